"""The programs of `compare_programs` run again with other rounding only, so that no difference may have an origin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compare_faults import Site, Watch
from compare_programs import Program, dump
from functorch.compile import aot_module, nop
from torch import nn
from torch._decomp import core_aten_decompositions

import ascend_dump
from ascend_dump.analysis.operators.properties import RANDOM, operator_class

__all__ = ["ROUNDINGS", "draws_alike", "reference_of", "taken_apart", "without_dropout"]

_aten = torch.ops.aten


def _floats(values: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(values, torch.Tensor):
        return change(values) if values.is_floating_point() else values
    if isinstance(values, (list, tuple)):
        return type(values)(_floats(one, change) for one in values)
    if isinstance(values, dict):
        return {name: _floats(one, change) for name, one in values.items()}
    return values


#: Made of random numbers: the type they are drawn in is a part of them. Or nothing is computed.
_AS_IT_IS = (
    "bernoulli",
    "rand",
    "normal",
    "uniform",
    "empty",
    "copy_",
    "_to_copy",
    "_efficientzerotensor",
    "linspace",
    "_fft",
)


#: Kernels that are never given anything but dense tensors.
_DENSE = ("native_", "_weight_norm", "_fused_rms_norm", "_scaled_dot_product", "_embedding_bag", "embedding_dense")


def _is_view(func: Any) -> bool:
    return any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)


class Otherwise(Watch):
    """A dispatch mode below that of the capture, in which each operator computes the same in another way."""

    def __init__(self, way: Callable[[Any, list[Any], dict[str, Any]], Any]) -> None:
        super().__init__()
        self._way = way

    def call(self, site: Site, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if _is_view(func) or func._schema.name.partition("::")[2].startswith(_AS_IT_IS):
            return func(*args, **kwargs)
        return self._way(func, args, kwargs)


def _in_type(dtype: torch.dtype, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Computed in another type, and rounded."""
    if kwargs.get("dtype") is not None or not any(True for _ in _float_tensors(args)):
        return func(*args, **kwargs)
    kinds = iter(())
    writes = func._schema.is_mutable
    running = func._schema.name.startswith("aten::native_batch_norm") and len(args) == 8
    if not writes and not running:
        kinds = (one.dtype for one in _float_tensors([func(*args, **kwargs)]))
    try:
        wide, named = _floats(args, lambda one: one.to(dtype)), _floats(kwargs, lambda one: one.to(dtype))
        out = func(*wide, **named)
    except (RuntimeError, NotImplementedError):
        return func(*args, **kwargs)
    # An operator may be told by name where to write: `out`.
    given = list(_float_tensors([*args, *kwargs.values()]))
    used = list(_float_tensors([*wide, *named.values()]))
    if any(old.shape != new.shape for old, new in zip(given, used)):
        return func(*args, **kwargs)  # it gives what it is given another shape
    if writes or running:
        for old, new in zip(given, used):
            if not new.equal(old.to(new.dtype)):  # what is read only may be one element at many places
                old.data.copy_(new)
    # Arguments are returned as they are; what is returned beside them is made anew.
    same = {id(new): old for old, new in zip(given, used)}
    kind = next(_float_tensors(args)).dtype
    out = _floats(out, lambda one: same[id(one)] if id(one) in same else one.to(next(kinds, kind)))
    # Complex numbers that were made of floats in another type.
    return torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda one: one.to(torch.complex64) if one.dtype == torch.complex128 else one, out
    )


def _float_tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _float_tensors(value)


def _strided(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Inputs with another order of axes in memory."""
    if func._schema.is_mutable or func._schema.name.partition("::")[2].startswith(_DENSE):
        return func(*args, **kwargs)

    def turned(one: torch.Tensor) -> torch.Tensor:
        return one.transpose(0, -1).contiguous().transpose(0, -1) if one.dim() > 1 else one

    try:
        return _floats(func(*_floats(args, turned), **kwargs), lambda one: one.contiguous())
    except RuntimeError:
        return func(*args, **kwargs)


def _reordered(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Sums added in another order, in float32 or wider."""
    name = func._schema.name.partition("::")[2]
    if name in ("mm", "addmm", "bmm"):
        *first, a, b = args[:3]
        middle = max(1, a.shape[-1] // 3)
        x, y = a.float(), b.float()
        parts = (x[..., :middle] @ y[..., :middle, :], x[..., middle:].flip(-1) @ y[..., middle:, :].flip(-2))
        return (parts[1] + parts[0] + (first[0] if first else 0)).to(a.dtype)
    if name in ("sum", "mean", "logsumexp") and args and args[0].dim():
        return func(args[0].flip(list(range(args[0].dim()))).flip(_kept(args)), *args[1:], **kwargs)
    if name == "convolution" and not args[6]:
        order = torch.arange(args[1].shape[1]).flip(0)
        if args[8] == 1:
            return func(args[0][:, order], args[1][:, order], *args[2:])
    if name in ("_softmax", "_log_softmax", "native_layer_norm", "native_group_norm") and not _of_rows(func, args):
        return func(*args, **kwargs)
    if name == "native_layer_norm":
        turned = [one.flip(-1) if isinstance(one, torch.Tensor) else one for one in args]
        out, mean, rstd = func(*turned, **kwargs)
        return out.flip(-1), mean, rstd
    if name in ("_softmax", "_log_softmax"):
        return func(args[0].flip(args[1]), *args[1:], **kwargs).flip(args[1])
    return func(*args, **kwargs)


def _of_rows(func: Any, args: list[Any]) -> bool:
    return bool(args[0].dim()) and args[0].shape[-1] > 1


def _kept(args: list[Any]) -> list[int]:
    """The axes that a reduction keeps."""
    dims = args[1] if len(args) > 1 and isinstance(args[1], list) else list(range(args[0].dim()))
    gone = {one % args[0].dim() for one in dims} or set(range(args[0].dim()))
    return [axis for axis in range(args[0].dim()) if axis not in gone]


def _last_place(seed: int, program: Program, path: Path) -> None:
    def change(model: nn.Module) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            bits = torch.int32 if parameter.dtype == torch.float32 else torch.int16
            steps = torch.randint(-1, 2, parameter.shape, generator=generator, dtype=bits)
            parameter.copy_((parameter.view(bits) + steps * (parameter != 0)).view(parameter.dtype))

    dump(program, path, change=change)


def _with(way: Callable[[Any, list[Any], dict[str, Any]], Any], program: Program, path: Path, **settings: Any) -> None:
    dump(program, path, under=Otherwise(way), **settings)


def _threads(program: Program, path: Path, *, times: int = 64, **settings: Any) -> None:
    count = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        dump(program, path, times=times, **settings)
    finally:
        torch.set_num_threads(count)


def _compiled(program: Program, path: Path) -> None:
    """Traced, taken apart and put together by torch.compile, whose graph then runs operator by operator."""
    torch._dynamo.reset()
    dump(program, path, change=lambda model: torch.compile(model, backend="aot_eager"))


def without_dropout(model: nn.Module) -> nn.Module:
    """Without dropout, because masks are drawn in other ways, which is no rounding."""
    for one in model.modules():
        if isinstance(one, nn.Dropout):
            one.p = 0.0
        if isinstance(one, nn.MultiheadAttention):
            one.dropout = 0.0
    return model


def taken_apart(model: nn.Module) -> nn.Module:
    """Forward and backward pass as graphs of the simpler operators that PyTorch's compilers take."""
    tables = dict(core_aten_decompositions())
    # Taken apart, it gives statistics in bfloat16 to a backward kernel that asks for float32.
    del tables[_aten._scaled_dot_product_flash_attention_for_cpu.default]
    return aot_module(without_dropout(model), fw_compiler=nop, bw_compiler=nop, decompositions=tables)


def _decomposed(program: Program, path: Path) -> None:
    dump(program, path, change=taken_apart)


def _other_type(program: Program, path: Path) -> None:
    narrow = next(program.build().parameters()).dtype != torch.float32
    dump(program, path, dtype=torch.float32 if narrow else torch.float64)


ROUNDINGS: dict[str, Callable[..., None]] = {
    **{f"last place of parameters, seed {seed}": partial(_last_place, seed) for seed in range(3)},
    "kernels of float64": partial(_with, partial(_in_type, torch.float64)),
    "strided inputs": partial(_with, _strided),
    "other order of sums": partial(_with, _reordered),
    "four threads": _threads,
    "float64": _other_type,
    "torch.compile": _compiled,
    "decomposed graphs": _decomposed,
}


def reference_of(rounding: str, program: Program, path: Path) -> Path:
    """The reference run for one of the `ROUNDINGS`."""
    change = without_dropout if rounding == "decomposed graphs" else None
    return dump(program, path, times=64 if rounding == "four threads" else 1, change=change)


def draws_alike(actual: Path, reference: Path) -> bool:
    """Whether two runs drew the same random numbers in the same order, up to rounding.

    A generator that is asked for another type, or for numbers of another layout, gives others, so that the runs differ
    by more than rounding.
    """
    one, other = _drawn(actual), _drawn(reference)
    return len(one) == len(other) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=2**-7, atol=2**-7) for a, b in zip(one, other)
    )


def _drawn(path: Path) -> list[np.ndarray]:
    """What random operators gave, in the order they ran, without what is one number alone: nothing was drawn there."""
    last: dict[Any, np.ndarray] = {}
    for record in ascend_dump.open(path):
        if record.io != "input" and operator_class(record.op_type) in RANDOM:
            # Those that drop elements of what they are given say which in their last output.
            last[record.execution] = record.numpy().astype(np.float64)
    return [values for values in last.values() if np.unique(values).size > 1]
