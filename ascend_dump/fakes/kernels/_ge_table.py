"""The table of GE operators in torch, for operators that are not in `npu_ops`, the table of operators in numpy."""

from __future__ import annotations

from typing import Any, Callable, Optional

from ascend_dump.fakes.kernels.ge_model import GeOp

__all__ = ["OPERATORS", "Operator", "axes_of", "integers", "operator"]

#: Takes the operator and its inputs (None for an absent one); returns one tensor or several.
Operator = Callable[..., Any]

OPERATORS: dict[str, Operator] = {}


def operator(*types: str) -> Callable[[Operator], Operator]:
    """Register a function for these types of operator."""

    def register(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(types, function))
        return function

    return register


def integers(value: Any) -> list[int]:
    """Return the integers in a tensor or an attribute."""
    numbers = value.reshape(-1).tolist() if hasattr(value, "reshape") else value
    return [int(number) for number in (numbers if isinstance(numbers, (list, tuple)) else [numbers])]


def axes_of(op: GeOp, axes: Optional[Any], name: str = "axes") -> list[int]:
    """Return the axes of an input, or of an attribute in an operator's variant D."""
    return integers(op.attrs.get(name, [])) if axes is None else integers(axes)
