"""The table of the GE operators that are computed with torch. (Those in `npu_ops` are computed with numpy.)"""

from __future__ import annotations

from typing import Any, Callable, Optional

from ascend_dump.fakes.kernels.ge_model import GeOp

__all__ = ["OPERATORS", "Operator", "axes_of", "integers", "operator"]

#: A function of an operator and its inputs (None for an absent one). It returns one tensor or a sequence of tensors.
Operator = Callable[..., Any]

#: Type of an operator -> the function that computes it.
OPERATORS: dict[str, Operator] = {}


def operator(*types: str) -> Callable[[Operator], Operator]:
    """Return a decorator that registers a function for these types of operators."""

    def register(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(types, function))
        return function

    return register


def integers(value: Any) -> list[int]:
    """Return the integers in a tensor or an attribute, which may be one number or a list."""
    numbers = value.reshape(-1).tolist() if hasattr(value, "reshape") else value
    return [int(number) for number in (numbers if isinstance(numbers, (list, tuple)) else [numbers])]


def axes_of(op: GeOp, axes: Optional[Any], name: str = "axes") -> list[int]:
    """Return the axes of an operator: those in its input `axes`, or if it is None, in the attribute `name`.

    GE's variants of operators with the suffix D have attributes in place of inputs.
    """
    return integers(op.attrs.get(name, [])) if axes is None else integers(axes)
