"""Dialect `cann`: dumps that CANN writes; see `native.cann.names` for the layouts of their directories.

For readers:

- `index` is the position in the file. The device leaves out tensors in its L1 or UB memory and tensors on a
  blacklist, so `index` may be smaller than the operator's own index.
- An operator that ran several times in a step, or on several devices or ranks, has one file per run; the files differ
  in `timestamp`, `device` or `rank`. All replays of a captured graph are written to one file. Only the first of them
  is read.
- In file names `_` replaces blanks, dots and slashes of the operator's name. `op_name` is the name in the header,
  unless the header has the name of another operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ascend_dump.errors import CorruptDump, ReadError
from ascend_dump.native.cann.mapping import MAPPING
from ascend_dump.native.cann.names import DumpName, eager_name, parse_name, sanitize
from ascend_dump.reading._dialect import Directory, Entry
from ascend_dump.reading._record import Record
from ascend_dump.reading.dialects._cann_files import UNKNOWN_NAME, CannDirectory, CannEntry, is_hash
from ascend_dump.reading.dialects._cann_records import buffer_record, statistics_record, tensor_record
from ascend_dump.reading.dialects._eager_files import EagerEntry, join_eager
from ascend_dump.reading.dialects._unreadable import UnreadableLines

if TYPE_CHECKING:
    from ascend_dump.native.cann.dump_file import DumpFile

__all__ = ["DIALECT"]


class _CannDialect:
    name = "cann"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        cann_directory = CannDirectory(directory)
        entries: list[Entry] = []
        claimed = set()
        hashes = []
        for name in directory.names:
            parsed = cann_directory.parse(name)
            if parsed is not None:
                entries.append(_file(cann_directory, name, *parsed))
                claimed.add(name)
            elif is_hash(name):
                hashes.append(name)
        if hashes:
            entries += _renamed(cann_directory, hashes, claimed)
        cann_directory.files = entries  # type: ignore[assignment]  # declared as list[Entry], but all are CannEntry
        join_eager(entries)
        return entries, claimed


DIALECT = _CannDialect()


class _CannFile(CannEntry):
    """One dump file or statistics file."""

    __slots__ = ()

    def records_of_file(self) -> Iterable[Record]:
        return self._statistics() if self.name.statistics else self._tensors()

    def _tensors(self) -> Iterator[Record]:
        from ascend_dump.native.cann.dump_file import read_header

        path = self.path
        fields = self.shared_fields(path)
        try:
            header = read_header(path)
        except ReadError as error:
            yield Record(None, error=error, op_name=self.op_name or "", attrs=self.attrs(), **fields)
            return
        name, attrs = self._name_and_attrs(header, fields)
        common = {**fields, "op_name": name}
        for tensor in header.tensors:
            yield tensor_record(header, tensor, attrs, common)
        for buffer in header.buffers:
            yield buffer_record(header, buffer, attrs, common)
        for space in header.spaces:
            yield buffer_record(header, space, attrs, common)
        if not (header.tensors or header.buffers or header.spaces) and eager_name(self.name) is None:
            empty = CorruptDump("its header lists no tensor", path=path, offset=8)
            yield Record(None, error=empty, attrs=attrs, **common)

    def _name_and_attrs(self, header: DumpFile, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the operator's name and the attributes that all records of the file share.

        Sets `fields["timestamp"]` to the header's time if it is None.
        """
        attrs = self.attrs()
        name = self.name.op_name
        if header.op_name and (not name or sanitize(header.op_name) == sanitize(name)):
            name = header.op_name
        elif header.op_name:
            attrs["header_op_name"] = header.op_name
        if fields["timestamp"] is None and 10**15 <= header.dump_time < 10**16:
            fields["timestamp"] = header.dump_time
        if header.attrs:
            attrs["op_attrs"] = dict(header.attrs)
        if header.dfx_message:
            attrs["dfx_message"] = header.dfx_message
        if self.name.overflow:
            attrs.update(self._overflow(header))
        if header.problems:
            attrs["problems"] = [*header.problems, *attrs.get("problems", ())]
        return name, attrs

    def _overflow(self, header: DumpFile) -> dict[str, Any]:
        """Return attributes: the decoded overflow record, and the operator of each unit that overflowed."""
        from ascend_dump.native.cann.dump_file import payload
        from ascend_dump.native.cann.overflow import decode_overflow
        from ascend_dump.reading.dialects._overflow_fields import overflow_fields

        try:
            # An overflow record is in the first output. A longer payload is no such record: its rest is not read.
            data = payload(header, header.outputs[0])[:4096] if header.outputs else b""
            record = decode_overflow(bytes(data))
        except ReadError as error:
            return {"problems": [error.message]}
        return overflow_fields(self._directory, record, record.document, self.name.timestamp)

    def _statistics(self) -> Iterator[Record]:
        from ascend_dump.native.cann.statistics_csv import read_statistics

        path = self.path
        fields = {**self.shared_fields(path), "op_name": self.name.op_name}
        attrs = self.attrs()
        unreadable = UnreadableLines()
        try:
            for row in read_statistics(path):
                if not row.problem:
                    yield statistics_record(row, attrs, fields)
                    continue
                reason = unreadable.reason(f"line {row.line}: {row.problem}")
                if reason is not None:
                    error = CorruptDump(reason, path=path, hint="the other lines can be read")
                    yield Record(None, error=error, attrs=attrs, **fields)
        except ReadError as error:
            yield Record(None, error=error, attrs=attrs, **fields)


class _EagerCannFile(EagerEntry, _CannFile):
    """One file of an eager operator."""

    __slots__ = ()


def _file(directory: CannDirectory, on_disk: str, text: str, name: DumpName) -> _CannFile:
    kind = _CannFile if eager_name(name) is None else _EagerCannFile
    return kind(directory, on_disk, text, name)


def _renamed(directory: CannDirectory, hashes: list[str], claimed: set[str]) -> Iterator[CannEntry]:
    """Yield the entries of files whose names are hashes of longer names. Adds to `claimed`."""
    names = directory.long_names()
    for on_disk in hashes:
        long_name = names.get(on_disk)
        parsed = None if long_name is None else parse_name(long_name)
        if parsed is not None:
            claimed.add(MAPPING)
        elif long_name is None and (directory.levels.run or directory.levels.exception):
            # `mapping.csv` does not have this hash, but the file's header has the operator's name.
            parsed = UNKNOWN_NAME
        if parsed is not None:
            claimed.add(on_disk)
            yield _file(directory, on_disk, long_name or "", parsed)
