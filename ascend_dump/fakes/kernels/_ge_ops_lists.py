"""GE operators on lists of tensors (`Foreach...`): several lists of equal length, then scalars.

The inputs of a node are the concatenated lists; the number of lists is known per type, so their length follows.
"""

from __future__ import annotations

from typing import Any, Callable

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


def _lists(count: int, inputs: tuple[Any, ...], rest: int) -> list[tuple[Any, ...]]:
    """Split the inputs into `count` lists of equal length and the `rest`."""
    length = (len(inputs) - rest) // count
    return [inputs[at * length : (at + 1) * length] for at in range(count)] + [inputs[count * length :]]


def _register(name: str, lists: int, rest: int, function: _Function) -> None:
    """Register a type whose function gets one element of each list, and one scalar if there is one."""

    def call(op: GeOp, *inputs: Any) -> Any:
        *found, more = _lists(lists, inputs, rest)
        return tuple(function(*each, *(scalar.item() for scalar in more)) for each in zip(*found))

    OPERATORS[f"Foreach{name}"] = call


def _register_scalars(name: str, lists: int, function: _Function) -> None:
    """Like `_register`, with a last input that holds one scalar per element."""

    def call(op: GeOp, *inputs: Any) -> Any:
        *found, [scalars] = _lists(lists, inputs, 1)
        return tuple(function(*each, scalar) for *each, scalar in zip(*found, scalars.tolist()))

    OPERATORS[f"Foreach{name}"] = call


def _method(name: str) -> _Function:
    def call(x: Any, *more: Any) -> Any:
        return getattr(x, name)(*more)

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

    def _product(x: Any, one: Any, other: Any, value: Any, *, method: str = _name.lower()) -> Any:
        return getattr(x, method)(one, other, value=value)

    _register(f"{_name}Scalar", 3, 1, _product)
    _register_scalars(f"{_name}ScalarList", 3, _product)
    _register_scalars(f"{_name}List", 3, _product)
_register("LerpScalar", 2, 1, _method("lerp"))
_register("LerpList", 3, 0, _method("lerp"))
_register("Norm", 1, 1, lambda x, order: x.norm(order))


@operator("ForeachPowScalarAndTensor")
def _power(op: GeOp, scalar: Any, *powers: Any) -> Any:
    import torch

    return tuple(torch.pow(scalar.item(), each) for each in powers)


#: As torchair's converters of _foreach_round, floor, ceil, trunc and frac number them.
_ROUNDINGS = {2: "floor", 3: "ceil", 4: "round", 5: "trunc", 7: "frac"}


@operator("ForeachRoundOffNumber")
def _round_off(op: GeOp, *inputs: Any) -> Any:
    [mode] = integers(inputs[-1])
    if mode not in _ROUNDINGS:
        raise NotSupported(
            f"{op.type} {op.name!r} rounds in mode {mode}, which the simulated device has not",
            hint=f"it has {', '.join(f'{number} ({name})' for number, name in _ROUNDINGS.items())}",
        )
    return tuple(getattr(each, _ROUNDINGS[mode])() for each in inputs[:-1])
