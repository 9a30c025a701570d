"""Dialect `te`: dumps that Transformer Engine writes with its debug feature DumpTensors.

    tensor_dumps/rank_{r}/{layer}_{tensor}_iter_{iteration}.pt

Source: Transformer Engine, `debug/features/dump_tensors.py`. Not tested with dumps of a running program. For
readers:

- `op_name` is the layer in the file name, in which underscores replace dots. For the backward pass it ends with
  `/backward`.
- activation and weight are inputs of a layer, output is its output. gradient is the input of the backward pass, dgrad
  and wgrad are its outputs. The order of the layers is not recorded: records are sorted by name.
- A file contains the tensor before quantisation (`high_precision`), the quantised tensor, or both. A quantised tensor
  is a pickled object, which is listed but not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from ascend_dump.reading._dialect import Directory, Entry
from ascend_dump.reading._record import Record
from ascend_dump.reading.dialects._pt_items import items_as_records

__all__ = ["DIALECT"]

_RANK = re.compile(r"rank_(\d{1,9})", re.ASCII)
_FILE = re.compile(r"(.+)_(activation|weight|output|gradient|dgrad|wgrad)_iter_(\d{6,18})\.pt", re.DOTALL | re.ASCII)


class _Role(NamedTuple):
    """The fields of a record that follow from the tensor's name in the file name."""

    io: str
    index: int  # type: ignore[assignment]  # it hides tuple.index on purpose, as in Record
    phase: str


_ROLES = {
    "activation": _Role("input", 0, "forward"),
    "weight": _Role("input", 1, "forward"),
    "output": _Role("output", 0, "forward"),
    "gradient": _Role("input", 0, "backward"),
    "dgrad": _Role("output", 0, "backward"),
    "wgrad": _Role("output", 1, "backward"),
}


class _TeDialect:
    name = "te"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        rank = _RANK.fullmatch(directory.parts[-1]) if directory.parts else None
        if rank is None:
            return [], set()
        entries: list[Entry] = []
        for name in directory.names:
            match = _FILE.fullmatch(name)
            if match is not None:
                entries.append(_LayerTensor(directory, match, int(rank[1])))
        return entries, {entry.path.name for entry in entries}


DIALECT = _TeDialect()


class _LayerTensor(Entry):
    """A file with one tensor of one layer in one iteration."""

    __slots__ = ("_role", "_tensor")

    def __init__(self, directory: Directory, name: re.Match[str], rank: int) -> None:
        self._tensor = name[2]
        self._role = _ROLES[name[2]]
        layer = name[1] if self._role.phase == "forward" else f"{name[1]}/backward"
        backward = int(self._role.phase == "backward")
        super().__init__(directory.path / name[0], op_name=layer, step=int(name[3]), rank=rank, order=backward)

    @property
    def path_text(self) -> str:
        # Sorts the files of one layer next to each other, inputs before outputs.
        return f"{self.op_name}/{[*_ROLES].index(self._tensor)}"

    def records(self) -> Iterator[Record]:
        fields: dict[str, Any] = {
            "op_name": self.op_name,
            "io": self._role.io,
            "index": self._role.index,
            "step": self.step,
            "rank": self.rank,
            "phase": self._role.phase,
            "attrs": {"tensor": self._tensor},
        }
        yield from items_as_records(self.path, fields, _fields)


def _fields(keys: tuple[str, ...]) -> Optional[dict[str, Any]]:
    return {"attrs": {"form": keys[0]}} if keys else {}
