"""Operators of torch_npu, `torch.ops.npu.npu_*`: schemas of op-plugin's op_plugin_functions.yaml, computed on the host.

Floating types below 32 bits are computed in float32 and rounded once.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import torch

from ascend_dump import NotSupported

__all__ = ["HostOperator", "gradient", "npu_operators", "operator", "refuse", "register_operators", "scalar_type"]

#: All operators of torch_npu, one name a line.
_NAMES = Path(__file__).with_name("npu_operators.txt")
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
    save: Callable[..., None]
    backward: Callable[..., Any]


#: Schema -> function of host tensors.
_COMPUTE: dict[str, Callable[..., Any]] = {}
_BACKWARD_PASSES: dict[str, _BackwardPass] = {}


class HostOperator:
    """An operator as the launcher runs it: with the schema of the device's, and a function of host tensors."""

    def __init__(self, overload: Any, compute: Callable[..., Any]) -> None:
        self._overload = overload
        self._schema = overload._schema
        self._compute = compute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compute(*args, **kwargs)

    def __str__(self) -> str:
        return str(self._overload)


def operator(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers a function of host tensors as the operator of this schema."""

    def add(compute: Callable[..., Any]) -> Callable[..., Any]:
        _COMPUTE[schema] = compute
        return compute

    return add


def gradient(name: str, save: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers the backward pass of an operator.

    save: stores in a context what the pass needs, from the inputs, the keyword inputs and the output.
    """

    def setup(ctx: Any, *inputs: Any, **keywords: Any) -> None:
        # The operators do not read zeros for outputs without a gradient.
        ctx.set_materialize_grads(False)
        save(ctx, *inputs, **keywords)

    def add(backward: Callable[..., Any]) -> Callable[..., Any]:
        _BACKWARD_PASSES[name] = _BackwardPass(setup, backward)
        return backward

    return add


def register_operators(run: Callable[..., Any]) -> torch.library.Library:
    """Define the operators, which `run` computes on the device. Returns their library, to be kept."""
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
    """Return the operators of `torch_npu` by name. missing: makes the function for a name that the fake lacks."""
    computed = {schema.partition("(")[0].partition(".")[0] for schema in _COMPUTE}
    names = computed.union(_NAMES.read_text(encoding="ascii").split())
    return {name: getattr(torch.ops.npu, name) if name in computed else missing(name) for name in sorted(names)}


def refuse(name: str, **arguments: Any) -> None:
    """Raise NotSupported for the first argument that is given: not None, False or 0."""
    for argument, value in arguments.items():
        if value is not None and not (isinstance(value, (bool, int, float)) and not value):
            raise NotSupported(
                f"the fake torch_npu computes {name} without {argument}, and it is given", hint="leave it out"
            )


def scalar_type(number: Optional[int], default: torch.dtype) -> torch.dtype:
    """Return the dtype with PyTorch's number. Raises NotSupported for a number of CANN."""
    if number is None:
        return default
    if number not in _SCALAR_TYPES:
        raise NotSupported(
            f"the fake torch_npu has no results of the type with the number {number}",
            hint=f"it has {', '.join(map(str, _SCALAR_TYPES.values()))}",
        )
    return _SCALAR_TYPES[number]
