"""`graft=`: replace tensors of the running program by values that another dump recorded.

If a later difference disappears, the operator of the replaced output is its cause. An output is replaced by copying the
value into its memory before the next operator reads it. An input is replaced by another tensor in the call of this
operator only: other readers of the input's memory still get the program's value. The input of a view, such as a
parameter that is transposed, is replaced in its memory, because the view shows that memory. So later readers of the
memory get the value too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump import ConfigError, NotSupported

if TYPE_CHECKING:
    import torch

    from ascend_dump import Record

__all__ = ["Grafts", "read_grafts"]


class _Graft(NamedTuple):
    """An output or input to replace, and the records of the other dump with its values, by step."""

    key: str
    op_name: str
    io: str
    position: int
    records: Mapping[Optional[int], Record]


def read_grafts(setting: Any) -> list[_Graft]:
    """Read the setting `graft`: names such as `layers.3/addmm_0.output.0`, each with the path of a dump.

    A name with `*` stands for all tensors of the dump that it matches: `*/topk_0.output.*`.

    Raises ConfigError for a name that is invalid or that the dump does not contain, NotSupported for a tensor that
    cannot be replaced, and ReadError if the dump cannot be read.
    """
    import ascend_dump

    if not isinstance(setting, Mapping) or not setting:
        raise ConfigError(
            f"graft={setting!r}: expected a mapping from names to the dumps with their values",
            hint="such as {'layers.3/addmm_0.output.0': 'reference'}",
        )
    dumps: dict[str, Any] = {}
    grafts = []
    for key, path in setting.items():
        parts = _parts(str(key))
        if not isinstance(path, (str, os.PathLike)):
            raise ConfigError(
                f"graft of {key!r} is a {type(path).__name__}: expected the path of a dump",
                hint="record the value in a dump, and give its path",
            )
        if str(path) not in dumps:
            dumps[str(path)] = ascend_dump.open(path)
        grafts += _grafts_of(str(key), parts, path, dumps[str(path)])
    return grafts


def _grafts_of(key: str, parts: tuple[str, str, str], path: object, dump: Any) -> list[_Graft]:
    """Return a graft for each tensor of a dump that matches a name.

    parts: the name divided by `_parts`; it may contain `*`
    """
    from fnmatch import fnmatchcase

    name, io, wanted = parts
    has_pattern = "*" in name
    fitting: dict[tuple[str, int], dict[Optional[int], Record]] = {}
    for record in dump.select(io=io):
        if wanted not in ("*", str(record.index)) or record.error is not None or record.shape is None:
            continue
        if record.op_name == name or (has_pattern and fnmatchcase(record.op_name, name)):
            fitting.setdefault((record.op_name, record.index), {}).setdefault(record.step, record)
    if not fitting:
        raise ConfigError(
            f"graft of {key!r}: {path} has no such record",
            hint=f"`ascend-dump ls {path}` lists its operators",
        )
    for records in fitting.values():
        next(iter(records.values())).numpy()  # raises if there are only statistics
    return [_Graft(f"{op_name}.{io}.{index}", op_name, io, index, r) for (op_name, index), r in fitting.items()]


def _parts(key: str) -> tuple[str, str, str]:
    """Divide the name of a graft into the name of the operators, "input" or "output", and the index or `*`."""
    op_name, _, index = key.rpartition(".")
    op_name, _, io = op_name.rpartition(".")
    is_number = index.isdecimal() and index.isascii() and len(index) <= 9
    if not op_name or io not in ("input", "output") or not (is_number or index == "*"):
        raise ConfigError(
            f"graft of {key!r}: expected an operator, `output` or `input`, and a number",
            hint="as `ascend-dump ls` and a comparison name them: layers.3/addmm_0.output.0",
        )
    return op_name, io, str(int(index)) if is_number else index


class Grafts:
    """Replaces tensors in recorded steps; `step` is the number of the open step."""

    def __init__(self, grafts: list[_Graft]) -> None:
        self.step: Optional[int] = None
        self._grafts: dict[tuple[str, str], list[_Graft]] = {}
        for graft in grafts:
            self._grafts.setdefault((graft.io, graft.op_name), []).append(graft)
        self._applied: set[str] = set()
        #: Grafts whose dump has no record of a step in which the operator ran.
        self._missing: set[str] = set()

    def apply(self, op_name: str, views: bool, outputs: list[torch.Tensor]) -> None:
        """Replace the requested outputs of an operator that has just run.

        Raises ConfigError if the tensor has another shape, NotSupported for a view, since it shares its memory with
        another tensor.
        """
        for graft, record in self._due("output", op_name):
            if views:
                raise NotSupported(
                    f"graft of {graft.key!r}: it is a view of the output of another operator",
                    hint="graft the output of that operator, or the input of the view",
                )
            _fitting(graft, record, outputs).copy_(_tensor_of(record))
            self._applied.add(graft.key)

    def give(
        self,
        op_name: str,
        views: bool,
        written: Sequence[torch.Tensor],
        inputs: list[torch.Tensor],
        protect: Callable[[torch.Tensor], None],
    ) -> bool:
        """Replace the requested inputs of an operator that is about to run. Returns True if its arguments change.

        protect: called before and after memory of the program is written

        Raises ConfigError if the tensor has another shape, NotSupported for an input that the operator writes to, or a
        view of elements that share their memory.
        """
        is_replaced = False
        for graft, record in self._due("input", op_name):
            before = _fitting(graft, record, inputs)
            if any(before is tensor for tensor in written):
                raise NotSupported(
                    f"graft of {graft.key!r}: the operator writes to that memory",
                    hint="graft the output of the operator that computes it",
                )
            if not views:
                inputs[graft.position] = _tensor_of(record).to(before.device, before.dtype)
                is_replaced = True
            elif any(stride == 0 and size > 1 for stride, size in zip(before.stride(), before.shape)):
                raise NotSupported(
                    f"graft of {graft.key!r}: it is a view in which several elements share their memory",
                    hint="graft the input of the view before it, or the output of the operator that computes it",
                )
            else:
                protect(before)
                # Through `data`, so that autograd does not notice the write. Tensors that autograd has saved may share
                # this memory and then have the new value too.
                before.data.copy_(_tensor_of(record))
                protect(before)
            self._applied.add(graft.key)
        return is_replaced

    def _due(self, io: str, op_name: str) -> Iterator[tuple[_Graft, Record]]:
        for graft in self._grafts.get((io, op_name), ()):
            record = graft.records.get(self.step)
            if record is None:
                self._missing.add(graft.key)
            else:
                yield graft, record

    def reasons(self) -> list[str]:
        """Return a sentence for each requested replacement that did not happen."""
        keys = [graft.key for grafts in self._grafts.values() for graft in grafts]
        return [
            f"graft of {key!r} was not done: "
            + (
                "the dump does not have the steps that were recorded"
                if key in self._missing
                else "no such operator ran in a recorded step"
            )
            for key in keys
            if key not in self._applied
        ]


def _fitting(graft: _Graft, record: Record, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the tensor of the program that a graft replaces. Raises ConfigError if it has another shape."""
    exists = graft.position < len(tensors)
    if not exists or tuple(tensors[graft.position].shape) != record.shape:
        shape = list(tensors[graft.position].shape) if exists else f"no such {graft.io}"
        raise ConfigError(
            f"graft of {graft.key!r}: the program has {shape}, the dump {list(record.shape or ())}",
            hint="graft values of the same program with the same batch",
        )
    return tensors[graft.position]


def _tensor_of(record: Record) -> torch.Tensor:
    import numpy as np
    import torch

    array = np.array(record.numpy())  # a copy: arrays of a dump may be read-only
    if record.dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.kind not in "fiubc":
        name = str(record.dtype)
        kind = getattr(torch, name, None)
        if kind is None or array.dtype.itemsize != 1:
            raise NotSupported(f"graft: values of type {name} cannot be copied", hint="graft another output")
        return torch.from_numpy(array.view(np.uint8)).view(kind)
    return torch.from_numpy(array)
