"""Dialect `torchair_npy`: dumps of torchair's eager dumper, `config.debug.data_dump.type = "npy"`.

    worldsize{N}_global_rank{R}/{graph}/{step}/{node}-{operator}.{INPUT|OUTPUT}.{i}[.{j}].{UTC time}.npy

Source: torchair 2.13, `fx_dumper.py`. For readers:

- `op_name` is the FX node, `op_type` the ATen operator that it calls. `step` counts the calls of one graph.
- `index` is the position among the files of one side; `attrs` has the number of the argument, and of the item where the
  argument is a list.
- Arguments that are no tensors are written too. Numbers are read as arrays; text and other Python objects are records
  without a tensor, because the latter are pickled.
- bfloat16 was written as float32. Inputs and outputs of a node have the same timestamp, in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.errors import NotSupported, ReadError
from ascend_dump.native.npy import read_npy_header
from ascend_dump.reading._dialect import Directory, Entry, rank_of
from ascend_dump.reading._npy import dtype_of, read_array
from ascend_dump.reading._record import Record

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.statistics import Statistics

__all__ = ["DIALECT"]

_NAME = re.compile(r"(\w+)-(.+)\.(INPUT|OUTPUT)\.(\d{1,6})(?:\.(\d{1,6}))?\.(\d{20})\.npy", re.DOTALL)
_NUMBER = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248]|c8|c16)", re.ASCII)


class _Name(NamedTuple):
    node: str
    operator: str
    io: str
    argument: int
    item: Optional[int]
    timestamp: int


class _TorchairNpyDialect:
    name = "torchair_npy"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        files = [(parsed, name) for name in directory.names for parsed in (_parse(name),) if parsed is not None]
        # Items of lists count on: the position of a file follows from its neighbours.
        files.sort(key=lambda pair: (pair[0].timestamp, pair[0].node, pair[0].io, pair[0].argument, pair[0].item or 0))
        entries: list[Entry] = []
        before, index = None, 0
        for parsed, name in files:
            side = (parsed.timestamp, parsed.node, parsed.operator, parsed.io)
            index = index + 1 if side == before else 0
            before = side
            entries.append(_NpyFile(directory, name, parsed, index))
        return entries, {name for _, name in files}


DIALECT = _TorchairNpyDialect()


def _parse(name: str) -> Optional[_Name]:
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    node, operator, io, argument, item, digits = match.groups()
    try:
        time = datetime.strptime(digits, "%Y%m%d%H%M%S%f").replace(tzinfo=timezone.utc)
    except ValueError:  # the digits are not a valid time
        return None
    stamp = int(time.timestamp()) * 10**6 + time.microsecond
    return _Name(node, operator, io.lower(), int(argument), None if item is None else int(item), stamp)


class _NpyFile(Entry):
    """One argument or result."""

    __slots__ = ("_index", "_name")

    def __init__(self, directory: Directory, file: str, name: _Name, index: int) -> None:
        parts = directory.parts
        step = parts[-1] if parts and parts[-1].isascii() and parts[-1].isdecimal() and len(parts[-1]) < 19 else None
        super().__init__(
            directory.path / file,
            op_type=name.operator,
            op_name=name.node,
            step=None if step is None else int(step),
            rank=rank_of(parts),
            model=parts[-2] if step is not None and len(parts) > 1 else None,
            order=name.timestamp,
        )
        self._name = name
        self._index = index

    def records(self) -> Iterator[Record]:
        name = self._name
        attrs: dict[str, Any] = {"argument" if name.io == "input" else "result": name.argument}
        if name.item is not None:
            attrs["item"] = name.item
        fields: dict[str, Any] = {
            "path": self.path,
            "op_type": name.operator,
            "op_name": name.node,
            "io": name.io,
            "index": self._index,
            "step": self.step,
            "rank": self.rank,
            "model": self.model,
            "timestamp": name.timestamp,
            "attrs": attrs,
        }
        try:
            header = read_npy_header(self.path, any_type=True)
        except ReadError as error:
            yield Record(None, error=error, **fields)
            return
        if not _NUMBER.fullmatch(header.dtype):
            attrs["no_tensor"] = header.dtype
            yield Record(_OBJECT, shape=header.shape, nbytes=header.nbytes, key=header, **fields)
            return
        dtype = dtype_of(header.dtype).name
        yield Record(_ARRAY, key=header, dtype=dtype, shape=header.shape, format="ND", nbytes=header.nbytes, **fields)


class _ArrayLoader:
    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        if format not in (None, "ND"):
            raise NotSupported(f"{record} has no layout to convert", hint="leave format away")
        return read_array(record.path, record.key)

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None


class _ObjectLoader:
    """Text and pickled objects: an argument such as None, or `mode="mean"`."""

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        raise NotSupported(
            f"{record} is no tensor but a Python object ({record.key.dtype}), and objects are not unpickled",
            hint="read the other arguments; the graph beside the dump shows this one",
        )

    def statistics(self, record: Record) -> Optional[Statistics]:
        self.tensor(record, None)
        return None


_ARRAY, _OBJECT = _ArrayLoader(), _ObjectLoader()
