"""Dialect `cann`: dumps that CANN writes; see `native.cann.names` for the layouts of their directories.

What to know when reading one:

- `index` is the position in the file. The device leaves out tensors that live in L1 or UB and those on a
  blacklist, so it may be smaller than the operator's own index.
- An operator that ran twice in a step, on several devices or ranks, has one file each; `timestamp`, `device` and
  `rank` tell them apart. In a captured graph all replays go to one file, of which the first is read.
- The file name has `_` for blanks, dots and slashes of the operator's name. `op_name` is the name in the header,
  unless that is another operator's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.errors import CorruptDump, ReadError
from ascend_dump.native.cann.mapping import MAPPING, read_mapping
from ascend_dump.native.cann.names import DumpName, Place, parse_name, parse_place, sanitize, watch_pairs
from ascend_dump.reading._dialect import Directory, Entry
from ascend_dump.reading._record import Record
from ascend_dump.reading.dialects._cann_records import buffer_record, statistics_record, tensor_record
from ascend_dump.reading.dialects._unreadable import UnreadableLines

if TYPE_CHECKING:
    from ascend_dump.native.cann.dump_file import DumpFile
    from ascend_dump.native.cann.overflow import Unit

__all__ = ["DIALECT"]

log = logging.getLogger("ascend_dump")

#: The digits of a 64-bit hash, which replaces a name that is too long.
_SHORTEST_HASH, _LONGEST_HASH = 10, 20
_UNKNOWN = DumpName("device", "", "", 0)


class _CannDialect:
    name = "cann"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        own = len(directory.path.parts) - len(directory.root.parts)
        here = _CannDirectory(directory, parse_place(directory.parts, own))
        prefix = _captured_prefix(here.place)
        entries: list[Entry] = []
        claimed = set()
        hashes = []
        for name in directory.names:
            text = prefix + name
            parsed = parse_name(text)
            if prefix and (parsed is None or parsed.form != "aclgraph"):
                text, parsed = name, parse_name(name)
            if parsed is not None:
                if parsed.form != "custom" or here.place.exception:
                    entries.append(_CannFile(here, name, text, parsed))
                    claimed.add(name)
            elif _SHORTEST_HASH <= len(name) <= _LONGEST_HASH and name.isdecimal():
                hashes.append(name)
        if hashes:
            entries += _renamed(here, hashes, claimed)
        here.files = entries  # type: ignore[assignment]  # the list that the walk wants holds nothing else
        return entries, claimed


DIALECT = _CannDialect()


class _CannDirectory:
    """One directory: the fields given by its path, and the fields that its files share."""

    __slots__ = ("path", "text", "place", "step", "files", "_names", "_by_task")

    def __init__(self, directory: Directory, place: Place) -> None:
        self.path = directory.path
        self.text = os.fspath(directory.path) + os.sep
        self.place = place
        # The training step, if there is one; GE's own counter counts executions within it.
        self.step = place.data_index if place.outer_step is None else place.outer_step
        self.files: list[_CannFile] = []
        self._names: Optional[set[tuple[str, str]]] = None
        self._by_task: Optional[dict[Optional[int], dict[DumpName, _CannFile]]] = None

    def of_task(self, task_id: int) -> dict[DumpName, _CannFile]:
        """The files of one task id."""
        if self._by_task is None:
            self._by_task = {}
            for file in self.files:
                self._by_task.setdefault(file.name.task_id, {})[file.name] = file
        return self._by_task.get(task_id, {})

    def watched(self, name: DumpName) -> Optional[tuple[str, str]]:
        """The (layer, watched) pair of a watcher's file, None for an operator that is only named so.

        The watcher dumps the watched operator's own output too; a directory of nothing but pairs was cut out.
        """
        pairs = list(watch_pairs(name.op_name))
        if not pairs:
            return None
        if self._names is None:
            self._names = {(file.name.op_type, file.name.op_name) for file in self.files}
        for pair in pairs:
            if (name.op_type, pair[1]) in self._names:
                return pair
        return pairs[0] if all(any(watch_pairs(other)) for _, other in self._names) else None


class _CannFile(Entry):
    """One dump file or statistics file. Small, because a dump may have millions of them.

    on_disk  the name of the file
    text     the original name, if the file name is a hash
    name     the parsed original name
    """

    __slots__ = ("_here", "_on_disk", "_text")

    def __init__(self, here: _CannDirectory, on_disk: str, text: str, name: DumpName) -> None:
        place = here.place
        self._here = here
        self._on_disk = on_disk
        # Parsed again when needed, because another object per file would double the work of the garbage collector.
        self._text = text
        self.op_type = name.op_type or None
        # A `_` may stand for another character, so the name is not known before the header is read.
        self.op_name = name.op_name if name.op_name and "_" not in name.op_name else None
        self.step = here.step
        self.rank = place.rank
        self.device = place.device if name.device_id is None else name.device_id
        self.model = place.model
        self.run = place.run
        self.order = name.timestamp

    @property
    def name(self) -> DumpName:
        return parse_name(self._text) or _UNKNOWN

    @property
    def path(self) -> Path:  # type: ignore[override]  # made when asked for: most files are only listed
        return self._here.path / self._on_disk

    @property
    def written_name(self) -> Optional[str]:
        return self.name.op_name or None

    @property
    def path_text(self) -> str:
        return self._here.text + self._on_disk

    def records(self) -> Iterable[Record]:
        if self.name.statistics:
            return self._statistics()
        return self._tensors()

    def _tensors(self) -> Iterator[Record]:
        from ascend_dump.native.cann.dump_file import read_header

        path = self.path
        known = self._known(path)
        try:
            header = read_header(path)
        except ReadError as error:
            yield Record(None, error=error, op_name=self.op_name or "", attrs=self._attrs(), **known)
            return
        name, attrs = self._header_says(header, known)
        common = {**known, "op_name": name}
        for tensor in header.tensors:
            yield tensor_record(header, tensor, attrs, common)
        for buffer in header.buffers:
            yield buffer_record(header, buffer, attrs, common)
        for space in header.spaces:
            yield buffer_record(header, space, attrs, common)
        if not (header.tensors or header.buffers or header.spaces):
            empty = CorruptDump("its header lists no tensor", path=path, offset=8)
            yield Record(None, error=empty, attrs=attrs, **common)

    def _known(self, path: Path) -> dict[str, Any]:
        place, name = self._here.place, self.name
        return {
            "path": path,
            "op_type": name.op_type,
            "step": self.step,
            "rank": self.rank,
            "device": self.device,
            "model": self.model,
            "model_id": place.model_id,
            "run": self.run,
            "task_id": name.task_id,
            "stream_id": name.stream_id,
            "timestamp": None if name.exception else name.timestamp or None,
        }

    def _attrs(self) -> dict[str, Any]:
        """The fields given by the name and directory of this file."""
        name, place = self.name, self._here.place
        attrs: dict[str, Any] = {}
        if name.overflow:
            attrs["scene"] = "overflow"
        elif name.exception:
            attrs.update(scene="exception", time=str(name.timestamp))
        else:
            watched = self._here.watched(name)
            if watched is not None:
                attrs.update(scene="watch", watch={"layer": watched[0], "watched": watched[1]})
        if place.outer_step is not None:
            attrs["data_index"] = place.data_index
        for field in ("task_type", "context_id", "thread_id", "dump_number", "core_type", "core_id"):
            value = getattr(name, field)
            if value is not None:
                attrs[field] = value
        return attrs

    def _header_says(self, header: DumpFile, known: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The operator's name and what all records of the file share; completes `known`."""
        attrs = self._attrs()
        name = self.name.op_name
        if header.op_name and (not name or sanitize(header.op_name) == sanitize(name)):
            name = header.op_name
        elif header.op_name:
            attrs["header_op_name"] = header.op_name
        if known["timestamp"] is None and 10**15 <= header.dump_time < 10**16:
            known["timestamp"] = header.dump_time
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
        """The decoded overflow record, with the operator of each unit that overflowed."""
        from ascend_dump.native.cann.dump_file import payload
        from ascend_dump.native.cann.overflow import decode_overflow

        try:
            # The record is in the only tensor; a longer payload is not a record, and is not read.
            data = payload(header, header.outputs[0])[:4096] if header.outputs else b""
            found = decode_overflow(bytes(data))
        except ReadError as error:
            return {"problems": [error.message]}
        units = [unit for unit in found.units if unit.overflowed] or list(found.units)
        attrs: dict[str, Any] = {"overflow": found.document, "units": [self._unit(unit) for unit in units]}
        if found.problems:
            attrs["problems"] = list(found.problems)
        return attrs

    def _unit(self, unit: Unit) -> dict[str, Any]:
        from ascend_dump.native.cann.overflow import find_operator

        by_name = self._here.of_task(unit.task_id)
        operator = find_operator(unit, by_name, self.name.timestamp)
        fields: dict[str, Any] = {**unit._asdict(), "status": list(unit.status), "words": list(unit.words)}
        fields["operator"] = None
        if operator is not None:
            fields["operator"] = {
                "op_type": operator.op_type,
                "op_name": operator.op_name,
                "path": str(by_name[operator].path),
            }
        return fields

    def _statistics(self) -> Iterator[Record]:
        from ascend_dump.native.cann.statistics_csv import read_statistics

        path = self.path
        known = {**self._known(path), "op_name": self.name.op_name}
        attrs = self._attrs()
        unreadable = UnreadableLines()
        try:
            for row in read_statistics(path):
                if not row.problem:
                    yield statistics_record(row, attrs, known)
                    continue
                reason = unreadable.reason(f"line {row.line}: {row.problem}")
                if reason is not None:
                    error = CorruptDump(reason, path=path, hint="the other lines can be read")
                    yield Record(None, error=error, attrs=attrs, **known)
        except ReadError as error:
            yield Record(None, error=error, attrs=attrs, **known)


def _captured_prefix(place: Place) -> str:
    """The beginning of the op name that the levels below the device hold: captured streams keep slashes."""
    return "/".join((*place.inner, "")) if place.inner and "." in place.inner[0] else ""


def _renamed(here: _CannDirectory, hashes: list[str], claimed: set[str]) -> Iterator[Entry]:
    """The entries of files whose names are hashes of longer names. Adds to `claimed`."""
    try:
        mapping = read_mapping(here.path / MAPPING)
    except ReadError as error:
        log.debug("%s", error)
        names: dict[str, str] = {}
    else:
        names = mapping.names
        for reason in mapping.refused:
            log.warning("%s: %s", here.path / MAPPING, reason)
    for on_disk in hashes:
        long_name = names.get(on_disk)
        parsed = None if long_name is None else parse_name(long_name)
        if parsed is not None:
            claimed.add(MAPPING)
        elif long_name is None and (here.place.run or here.place.exception):
            # Without the mapping of names the header still has the operator's name.
            parsed = _UNKNOWN
        if parsed is not None:
            claimed.add(on_disk)
            yield _CannFile(here, on_disk, long_name or "", parsed)
