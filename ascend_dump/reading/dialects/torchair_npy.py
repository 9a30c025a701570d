"""Dialect `torchair_npy`: dumps of torchair's eager dumper, `config.debug.data_dump.type = "npy"`.

    worldsize{N}_global_rank{R}/{graph}/{step}/{node}-{operator}.{INPUT|OUTPUT}.{i}[.{j}].{UTC time}.npy

Source: torchair 2.13, `fx_dumper.py`. For readers:

- `op_name` is the FX node, `op_type` the ATen operator that it calls. `step` counts the calls of one graph.
- `index` numbers the input files of one call from 0, and likewise its output files. `attrs` contains the argument's
  number and, for a list, the item's number.
- torchair also writes arguments that are not tensors. Numbers are read as arrays. Text and other Python objects become
  records without a tensor; pickled objects are never loaded.
- torchair writes bfloat16 as float32. Inputs and outputs of a node have the same timestamp, in UTC.
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
_NUMERIC_DTYPE = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248]|c8|c16)", re.ASCII)


class _FileName(NamedTuple):
    node: str
    operator: str
    io: str
    argument: int
    item: Optional[int]
    timestamp: int


class _TorchairNpyDialect:
    name = "torchair_npy"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        files = [
            (parsed, name) for name in directory.names for parsed in (_parse_file_name(name),) if parsed is not None
        ]
        # Each item of a list has an index of its own, so the index of a file depends on the files sorted before it.
        files.sort(key=lambda pair: (pair[0].timestamp, pair[0].node, pair[0].io, pair[0].argument, pair[0].item or 0))
        entries: list[Entry] = []
        previous_call, index = None, 0
        for parsed, name in files:
            call_side = (parsed.timestamp, parsed.node, parsed.operator, parsed.io)
            index = index + 1 if call_side == previous_call else 0
            previous_call = call_side
            entries.append(_NpyFile(directory, name, parsed, index))
        return entries, {name for _, name in files}


DIALECT = _TorchairNpyDialect()


def _parse_file_name(name: str) -> Optional[_FileName]:
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    node, operator, io, argument, item, digits = match.groups()
    try:
        time = datetime.strptime(digits, "%Y%m%d%H%M%S%f").replace(tzinfo=timezone.utc)
    except ValueError:  # the digits are not a valid time
        return None
    stamp = int(time.timestamp()) * 10**6 + time.microsecond
    return _FileName(node, operator, io.lower(), int(argument), None if item is None else int(item), stamp)


class _NpyFile(Entry):
    """A file with one argument or result of a node."""

    __slots__ = ("_index", "_name")

    def __init__(self, directory: Directory, file: str, name: _FileName, index: int) -> None:
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
        if not _NUMERIC_DTYPE.fullmatch(header.dtype):
            attrs["no_tensor"] = header.dtype
            yield Record(_OBJECT_LOADER, shape=header.shape, nbytes=header.nbytes, key=header, **fields)
            return
        dtype = dtype_of(header.dtype).name
        yield Record(
            _ARRAY_LOADER, key=header, dtype=dtype, shape=header.shape, format="ND", nbytes=header.nbytes, **fields
        )


class _ArrayLoader:
    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        if format not in (None, "ND"):
            raise NotSupported(f"{record} is an npy file without a device layout", hint="leave format out")
        return read_array(record.path, record.key)

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None


class _ObjectLoader:
    """The loader of arguments such as None or `mode="mean"`, which are text or pickled objects in the file."""

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        raise NotSupported(
            f"{record} is no tensor but a Python object ({record.key.dtype}); pickled objects are never loaded",
            hint="look up the argument in torchair's graph file beside the dump",
        )

    def statistics(self, record: Record) -> Optional[Statistics]:
        self.tensor(record, None)
        return None


_ARRAY_LOADER, _OBJECT_LOADER = _ArrayLoader(), _ObjectLoader()
