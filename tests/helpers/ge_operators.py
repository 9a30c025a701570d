"""One GE operator on the simulated device, without a graph around it."""

from __future__ import annotations

from typing import Any

# Private: what users reach is a graph of torchair, which takes the real torchair to make.
from ascend_dump.fakes.kernels.ge_compute import compute
from ascend_dump.fakes.kernels.ge_model import GeOp

__all__ = ["run"]


def run(op_type: str, *inputs: Any, **attrs: Any) -> Any:
    """Its output, or a tuple of them. The operator's name is `op`."""
    found = compute(GeOp("op", op_type, (), attrs), inputs)
    return found[0] if len(found) == 1 else found
