"""Find the fields of CANN dump files in the paths of their directories and in their names.

Shared by the dialects `cann` (the files of the device) and `converted` (files converted from them).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.errors import ReadError
from ascend_dump.native.cann.mapping import MAPPING, read_mapping
from ascend_dump.native.cann.names import DumpName, parse_levels, parse_name, watch_pairs
from ascend_dump.reading._dialect import Directory, Entry

if TYPE_CHECKING:
    from ascend_dump.reading._record import Record

__all__ = ["UNKNOWN_NAME", "CannDirectory", "CannEntry", "is_hash"]

log = logging.getLogger("ascend_dump")

#: Minimum and maximum number of digits of a 64-bit hash. CANN replaces a file name that is too long by its hash.
_SHORTEST_HASH, _LONGEST_HASH = 10, 20
#: The fields of a file whose name is a hash, if `mapping.csv` does not have the original name.
UNKNOWN_NAME = DumpName("device", "", "", 0)


def is_hash(name: str) -> bool:
    """Return True if this name may be the hash that replaces a longer file name."""
    return _SHORTEST_HASH <= len(name) <= _LONGEST_HASH and name.isdecimal()


class CannDirectory:
    """One directory of a CANN dump, with the fields that its path contains."""

    __slots__ = ("path", "text", "levels", "step", "files", "_prefix", "tasks", "_names")

    def __init__(self, directory: Directory) -> None:
        depth = len(directory.path.parts) - len(directory.root.parts)
        levels = parse_levels(directory.parts, depth)
        self.path = directory.path
        self.text = os.fspath(directory.path) + os.sep
        self.levels = levels
        # The training step if the path has one, else GE's counter of executions. In a path with a training step, that
        # counter counts the executions within the step.
        self.step = levels.data_index if levels.outer_step is None else levels.outer_step
        self.files: Sequence[CannEntry] = ()
        # Operators of captured streams (aclgraph) have slashes in their names, so their files are in nested
        # directories. The levels of these directories are the beginning of the file's name.
        self._prefix = "/".join((*levels.inner, "")) if levels.inner and "." in levels.inner[0] else ""
        self._names: Optional[set[tuple[str, str]]] = None
        #: By task id: the files of each operator run of the task. None until `_overflow_fields` needs it.
        self.tasks: Optional[Mapping[int, Mapping[DumpName, list[Path]]]] = None

    def parse(self, name: str) -> Optional[tuple[str, DumpName]]:
        """Return the full name of a dump file and its fields; None if this is not the name of a dump file.

        The full name includes the levels of nested directories that belong to the operator's name.
        """
        text = self._prefix + name
        parsed = parse_name(text)
        if self._prefix and (parsed is None or parsed.form != "aclgraph"):
            text, parsed = name, parse_name(name)
        parsed = self.as_exception(parsed)
        if parsed is None or (parsed.form == "custom" and not self.levels.exception):
            return None
        return text, parsed

    def as_exception(self, name: Optional[DumpName]) -> Optional[DumpName]:
        """Return the name, with form "normal" instead of "old" in a directory of an exception dump.

        Older CANN names its exception files in the old form, but with a timestamp in microseconds like normal files.
        """
        if name is not None and name.form == "old" and self.levels.exception:
            return name._replace(form="normal")
        return name

    def long_names(self) -> dict[str, str]:
        """Return the original names by the hashed names on disk, from `mapping.csv`; empty if it cannot be read."""
        try:
            mapping = read_mapping(self.path / MAPPING)
        except ReadError as error:
            log.debug("%s", error)
            return {}
        for reason in mapping.refused:
            log.warning("%s: %s", self.path / MAPPING, reason)
        return mapping.names

    def watched(self, name: DumpName) -> Optional[tuple[str, str]]:
        """Return (layer, watched operator) for a file of the scene "watch"; None for an operator with a similar name.

        The name of such a file joins both names (LAYER_To_WATCHED), which is ambiguous. The watched operator's own
        output is dumped too. So a pair is accepted if its watched operator has a file in the directory, or if all files
        in the directory have joined names (a copied part of a dump).
        """
        pairs = list(watch_pairs(name.op_name))
        if not pairs:
            return None
        if self._names is None:
            self._names = {(file.name.op_type, file.name.op_name) for file in self.files}
        for pair in pairs:
            if (name.op_type, pair[1]) in self._names:
                return pair
        return pairs[0] if all(any(watch_pairs(op_name)) for _, op_name in self._names) else None


class CannEntry(Entry):
    """A dump file, or a file that was converted from a dump file. Small, because a dump may have millions of files.

    on_disk  the name of the file on disk
    text     the full name of the dump file, which differs for converted and renamed files
    name     the fields of `text`
    """

    __slots__ = ("_directory", "_on_disk", "_text", "calls")
    #: Only for eager operators, see `EagerEntry`.
    calls: Any

    def __init__(self, directory: CannDirectory, on_disk: str, text: str, name: DumpName) -> None:
        levels = directory.levels
        self._directory = directory
        self._on_disk = on_disk
        # The property `name` parses the text again at each use: storing the parsed name, one more object per file,
        # would double the work of the garbage collector.
        self._text = text
        self.op_type = name.op_type or None
        # In a file name `_` may replace another character, so such a name is known only from the header.
        self.op_name = name.op_name if name.op_name and "_" not in name.op_name else None
        self.step = directory.step
        self.rank = levels.rank
        self.device = levels.device if name.device_id is None else name.device_id
        self.model = levels.model
        self.run = levels.run
        self.order = name.timestamp

    @property
    def name(self) -> DumpName:
        return self._directory.as_exception(parse_name(self._text)) or UNKNOWN_NAME

    @property
    def path(self) -> Path:  # type: ignore[override]  # created on access, because most files are only listed
        return self._directory.path / self._on_disk

    @property
    def written_name(self) -> Optional[str]:
        return self.name.op_name or None

    @property
    def path_text(self) -> str:
        return self._directory.text + self._on_disk

    def records_of_file(self) -> Iterable[Record]:
        """Return the records of this file. `records` may join the records of several files."""
        raise NotImplementedError("the entries of a dialect read their files")

    def records(self) -> Iterable[Record]:
        return self.records_of_file()

    def shared_fields(self, path: Path) -> dict[str, Any]:
        """Return the fields of records that are known from the file's name and directory."""
        levels, name = self._directory.levels, self.name
        return {
            "path": path,
            "op_type": name.op_type,
            "step": self.step,
            "rank": self.rank,
            "device": self.device,
            "model": self.model,
            "model_id": levels.model_id,
            "run": self.run,
            "task_id": name.task_id,
            "stream_id": name.stream_id,
            "timestamp": None if name.local_time else name.timestamp or None,
        }

    def attrs(self) -> dict[str, Any]:
        """Return the attributes of records that are known from the file's name and directory."""
        name, levels = self.name, self._directory.levels
        attrs: dict[str, Any] = {}
        if name.overflow:
            attrs["scene"] = "overflow"
        elif name.exception:
            attrs["scene"] = "exception"
            if name.local_time:
                attrs["time"] = str(name.timestamp)
        else:
            watched = self._directory.watched(name)
            if watched is not None:
                attrs.update(scene="watch", watch={"layer": watched[0], "watched": watched[1]})
        if levels.outer_step is not None:
            attrs["data_index"] = levels.data_index
        for field in ("task_type", "context_id", "thread_id", "dump_number", "core_type", "core_id"):
            value = getattr(name, field)
            if value is not None:
                attrs[field] = value
        return attrs
