"""GE operators on lists of tensors (`Foreach...`).

Such an operator applies a function to corresponding elements of its lists. Its inputs are the tensors of all lists, one
list after the other, and then scalars. The number of lists depends on the type only, so the length of a list follows
from the number of inputs.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from ascend_dump import NotSupported
from ascend_dump.fakes.kernels._ge_table import OPERATORS, integers, operator
from ascend_dump.fakes.kernels.ge_model import GeOp

__all__: list[str] = []

_Function = Callable[..., Any]

_UNARY = (
    *("Abs", "Acos", "Asin", "Atan", "Cos", "Cosh", "Erf", "Erfc", "Exp", "Expm1", "Log", "Log1p", "Log2", "Log10"),
    *("Neg", "Reciprocal", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh"),
)
_BINARY = {
    "Add": "add",
    "Div": "div",
    "Maximum": "clamp_min",
    "Minimum": "clamp_max",
    "Mul": "mul",
    "Pow": "pow",
    "Sub": "sub",
}


def _lists(count: int, inputs: tuple[Any, ...], scalars: int) -> list[tuple[Any, ...]]:
    """Split the inputs, and return `count` lists of equal length, and last the list of scalars."""
    length = (len(inputs) - scalars) // count
    return [inputs[number * length : (number + 1) * length] for number in range(count)] + [inputs[count * length :]]


def _register(name: str, lists: int, scalars: int, function: _Function) -> None:
    """Register the operator `Foreach{name}`. function: takes one element of each list, and the scalars."""

    def call(op: GeOp, *inputs: Any) -> Any:
        *tensors, values = _lists(lists, inputs, scalars)
        return tuple(function(*elements, *(scalar.item() for scalar in values)) for elements in zip(*tensors))

    OPERATORS[f"Foreach{name}"] = call


def _register_scalars(name: str, lists: int, function: _Function) -> None:
    """Register the operator `Foreach{name}` whose last input has a scalar for each element of a list.

    function: takes one element of each list, and the scalar for it.
    """

    def call(op: GeOp, *inputs: Any) -> Any:
        *tensors, [scalars] = _lists(lists, inputs, 1)
        return tuple(function(*elements, scalar) for *elements, scalar in zip(*tensors, scalars.tolist()))

    OPERATORS[f"Foreach{name}"] = call


def _method(name: str) -> _Function:
    def call(x: Any, *arguments: Any) -> Any:
        return getattr(x, name)(*arguments)

    return call


for _name in _UNARY:
    _register(_name, 1, 0, _method(_name.lower()))
for _name, _torch in _BINARY.items():
    _register(f"{_name}Scalar", 1, 1, _method(_torch))
    _register_scalars(f"{_name}ScalarList", 1, _method(_torch))
    _pairwise = {"clamp_min": "maximum", "clamp_max": "minimum"}.get(_torch, _torch)
    if _torch not in ("add", "sub"):
        _register(f"{_name}List", 2, 0, _method(_pairwise))
_register("AddList", 2, 1, lambda x, y, alpha: x.add(y, alpha=alpha))
_register("SubList", 2, 1, lambda x, y, alpha: x.sub(y, alpha=alpha))
for _name in ("Addcdiv", "Addcmul"):

    def _product(x: Any, first: Any, second: Any, value: Any, *, method: str = _name.lower()) -> Any:
        return getattr(x, method)(first, second, value=value)

    _register(f"{_name}Scalar", 3, 1, _product)
    _register_scalars(f"{_name}ScalarList", 3, _product)
    _register_scalars(f"{_name}List", 3, _product)
_register("LerpScalar", 2, 1, _method("lerp"))
_register("LerpList", 3, 0, _method("lerp"))
_register("Norm", 1, 1, lambda x, order: x.norm(order))


@operator("ForeachPowScalarAndTensor")
def _power(op: GeOp, scalar: Any, *powers: Any) -> Any:
    return tuple(torch.pow(scalar.item(), power) for power in powers)


#: Number of a mode of rounding -> function of torch. The numbers are those that torchair's converters of
#: _foreach_round, floor, ceil, trunc and frac write.
_ROUNDINGS = {2: "floor", 3: "ceil", 4: "round", 5: "trunc", 7: "frac"}


@operator("ForeachRoundOffNumber")
def _round_off(op: GeOp, *inputs: Any) -> Any:
    [mode] = integers(inputs[-1])
    if mode not in _ROUNDINGS:
        raise NotSupported(
            f"{op.type} {op.name!r} rounds in mode {mode}, which the simulated device lacks",
            hint=f"it has {', '.join(f'{number} ({name})' for number, name in _ROUNDINGS.items())}",
        )
    return tuple(getattr(tensor, _ROUNDINGS[mode])() for tensor in inputs[:-1])
