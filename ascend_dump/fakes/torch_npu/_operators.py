"""Registration of torch_npu's operators, `torch.ops.npu.npu_*`, which are computed on the host.

The decorators `operator` and `gradient` collect the functions of `_attention`, `_matmul`, `_moe` and `_normalization`,
and `register_operators` passes them to PyTorch. The schemas are those of op-plugin's op_plugin_functions.yaml. Most
functions compute types such as float16 and bfloat16 in float32, and round the result once.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import torch

from ascend_dump import NotSupported

__all__ = ["HostOperator", "gradient", "npu_operators", "operator", "refuse", "register_operators", "scalar_type"]

#: File with the names of all operators of torch_npu, one on each line.
_NAMES = Path(__file__).with_name("npu_operators.txt")
#: PyTorch's number of a type (ScalarType) -> the type.
_SCALAR_TYPES = {
    0: torch.uint8,
    1: torch.int8,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    15: torch.bfloat16,
}


class _BackwardPass(NamedTuple):
    """The backward pass of an operator. save: stores in a context what `backward` needs."""

    save: Callable[..., None]
    backward: Callable[..., Any]


#: Schema of an operator -> the function that computes it with host tensors.
_COMPUTE: dict[str, Callable[..., Any]] = {}
#: Name of an operator -> its backward pass.
_BACKWARD_PASSES: dict[str, _BackwardPass] = {}


class HostOperator:
    """An operator for the kernel launcher: a call computes it with host tensors. It has the operator's schema."""

    def __init__(self, overload: Any, compute: Callable[..., Any]) -> None:
        self._overload = overload
        self._schema = overload._schema
        self._compute = compute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compute(*args, **kwargs)

    def __str__(self) -> str:
        return str(self._overload)


def operator(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator. It registers a function, which takes host tensors, as the operator with this schema."""

    def add(compute: Callable[..., Any]) -> Callable[..., Any]:
        _COMPUTE[schema] = compute
        return compute

    return add


def gradient(name: str, save: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers the backward pass of an operator.

    save: stores in the context `ctx` what the backward pass needs. Its further arguments are the inputs, the keyword
    inputs if the operator has any, and the output.
    """

    def setup(ctx: Any, *inputs: Any, **keywords: Any) -> None:
        # For outputs without a gradient, PyTorch then passes None instead of a tensor of zeros.
        ctx.set_materialize_grads(False)
        save(ctx, *inputs, **keywords)

    def add(backward: Callable[..., Any]) -> Callable[..., Any]:
        _BACKWARD_PASSES[name] = _BackwardPass(setup, backward)
        return backward

    return add


def register_operators(run: Callable[..., Any]) -> torch.library.Library:
    """Define all operators in PyTorch, and return the library. They exist as long as the library object.

    run: runs an operator on the device.
    """
    library = torch.library.Library("npu", "FRAGMENT")
    for schema, compute in _COMPUTE.items():
        library.define(schema)
        name = schema.partition("(")[0]
        packet, _, overload = name.partition(".")
        target = HostOperator(getattr(getattr(torch.ops.npu, packet), overload or "default"), compute)
        library.impl(name, functools.partial(run, target), "PrivateUse1")
        library.impl(name, compute, "Meta")
    for name, rule in _BACKWARD_PASSES.items():
        torch.library.register_autograd(f"npu::{name}", rule.backward, setup_context=rule.save, lib=library)
    return library


def npu_operators(missing: Callable[[str], Any]) -> dict[str, Any]:
    """Return all operators of torch_npu by name. missing: returns a stand-in for an operator that the fake lacks."""
    computed = {schema.partition("(")[0].partition(".")[0] for schema in _COMPUTE}
    names = computed.union(_NAMES.read_text(encoding="ascii").split())
    return {name: getattr(torch.ops.npu, name) if name in computed else missing(name) for name in sorted(names)}


def refuse(name: str, **arguments: Any) -> None:
    """Raise NotSupported if one of these arguments is set, that is, not None, False or 0.

    name: the operator, which the fake computes only without these arguments.
    """
    for argument, value in arguments.items():
        if value is not None and not (isinstance(value, (bool, int, float)) and not value):
            raise NotSupported(
                f"the fake torch_npu computes {name} only without the argument {argument}", hint=f"leave out {argument}"
            )


def scalar_type(number: Optional[int], default: torch.dtype) -> torch.dtype:
    """Return the dtype with PyTorch's number `number`, or `default` for None.

    Raises NotSupported for other numbers, such as CANN's numbers of types.
    """
    if number is None:
        return default
    if number not in _SCALAR_TYPES:
        raise NotSupported(
            f"the fake torch_npu has no results of the type with the number {number}",
            hint=f"it has {', '.join(map(str, _SCALAR_TYPES.values()))}",
        )
    return _SCALAR_TYPES[number]
