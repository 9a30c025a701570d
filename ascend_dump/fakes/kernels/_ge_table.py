"""The table of GE operators that are computed with torch: those that `npu_ops`, the table for numpy, does not hold."""

from __future__ import annotations

from typing import Any, Callable, Optional

from ascend_dump.fakes.kernels.ge_model import GeOp

__all__ = ["OPERATORS", "Operator", "axes_of", "integers", "operator"]

#: Takes the operator and its inputs, None for those that are not fed; gives one tensor or several.
Operator = Callable[..., Any]

OPERATORS: dict[str, Operator] = {}


def operator(*types: str) -> Callable[[Operator], Operator]:
    """Register a function for these types of operator."""

    def register(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(types, function))
        return function

    return register


def integers(value: Any) -> list[int]:
    """Whole numbers given as a tensor or as an attribute."""
    found = value.reshape(-1).tolist() if hasattr(value, "reshape") else value
    return [int(each) for each in (found if isinstance(found, (list, tuple)) else [found])]


def axes_of(op: GeOp, given: Optional[Any], name: str = "axes") -> list[int]:
    """Axes that come as an input, or as an attribute in an operator's variant D."""
    return integers(op.attrs.get(name, [])) if given is None else integers(given)
