"""Compute the operators of a GE graph, as torchair writes it.

Inputs and attributes are those of GE's operator prototypes (CANN, op_proto). An operator that offline models use too is
computed with numpy (`npu_ops`), others with torch (the modules `_ge_ops*`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ascend_dump import ConfigError, NotSupported
from ascend_dump.fakes.kernels import npu_ops
from ascend_dump.fakes.kernels._ge_table import OPERATORS, Operator
from ascend_dump.fakes.kernels.ge_model import GeOp
from ascend_dump.fakes.kernels.ge_values import from_array, to_array

__all__ = ["compute", "known_types"]


def _torch_operators() -> Mapping[str, Operator]:
    """Return the operators that are computed with torch, by type. Importing the modules registers them."""
    from ascend_dump.fakes.kernels import (  # noqa: F401
        _ge_ops,
        _ge_ops_convolution,
        _ge_ops_image,
        _ge_ops_index,
        _ge_ops_lists,
        _ge_ops_loss,
        _ge_ops_nn,
        _ge_ops_random,
        _ge_ops_reduce,
        _ge_ops_shape,
    )

    return OPERATORS


def known_types() -> list[str]:
    """Return the types of operators that can be computed."""
    return sorted({*_torch_operators(), *npu_ops.OPERATORS})


def compute(op: GeOp, inputs: Sequence[Optional[Any]]) -> tuple[Any, ...]:
    """Return the outputs of an operator: new tensors, or views of the inputs.

    inputs: tensors, None for an absent optional input. Raises NotSupported for an unknown type, and ConfigError for
    invalid inputs or attributes.
    """
    import torch

    if op.type in npu_ops.OPERATORS:
        arrays = [None if array is None else to_array(array) for array in inputs]
        return tuple(map(from_array, npu_ops.compute(op.type, op.name, arrays, op.attrs)))
    operators = _torch_operators()
    if op.type not in operators:
        raise NotSupported(
            f"the simulated device has no operator {op.type} ({op.name!r})", hint=f"it has {', '.join(known_types())}"
        )
    try:
        with torch.no_grad():
            result = operators[op.type](op, *inputs)
    except (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        if isinstance(error, NotSupported):
            raise
        shapes = ", ".join("none" if array is None else f"{array.dtype} {tuple(array.shape)}" for array in inputs)
        attrs = {name: value for name, value in op.attrs.items() if not name.startswith("_")}
        raise ConfigError(
            f"{op.type} {op.name!r} cannot be computed from {shapes or 'no inputs'} and {attrs}: "
            f"{type(error).__name__}: {error}",
            hint="inputs and attributes are those of GE's operator of that name",
        ) from error
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
