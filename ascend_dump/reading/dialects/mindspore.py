"""Dialect `mindspore`: dumps that MindSpore's Dump function writes; see `native.mindspore.names` for the directories.

For readers:

- `step` is MindSpore's iteration. One counter counts the iterations of all graphs of a process; `model_id` is the
  graph.
- `index` is the position among the operator's arguments. Strings and tuples have no file, so there may be gaps.
- If an operator only changes the shape, the inputs of the next operator may be recorded in the shape before the
  change (seen on a CPU).
- MindSpore copies the inputs of an operator after it has run: inputs that the operator changes in place have the new
  values.
- Parameters and inputs of a graph are records of the type `Parameter`, written when the iteration ends. Constants are
  records of this type too; they have no step, and `attrs["constant"]` is True.
- An operator that ran several times in an iteration has a file for each run, with another `timestamp`. The second and
  later ones are counted in `attrs["occurrence"]`, from 1. Causes are loops, and two runs in one directory.
- `op_name` is the full name if a graph file next to the dump has it. Otherwise it is the name in the file name, in
  which `_` replaces each slash.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

from ascend_dump.errors import CorruptDump, ReadError
from ascend_dump.native.cann.mapping import MAPPING, read_mapping
from ascend_dump.native.cann.names import parse_levels as parse_cann_levels
from ascend_dump.native.mindspore.graph import Graph, OperatorsByName, module_of, phase_of, read_graph
from ascend_dump.native.mindspore.names import (
    AUXILIARY,
    METADATA_DIRECTORY,
    PARAMETER,
    NpyName,
    parse_levels,
    parse_name,
    written,
)
from ascend_dump.native.mindspore.statistics_csv import FILE, MindsporeStatisticsRow, read_names, read_statistics
from ascend_dump.native.npy import read_npy_header
from ascend_dump.reading._dialect import Directory, Entry, rank_of
from ascend_dump.reading._record import Record
from ascend_dump.reading.dialects._mindspore_overflow import has_only_overflows, read_json
from ascend_dump.reading.dialects._mindspore_records import npy_record, statistics_record
from ascend_dump.reading.dialects._mindspore_rows import join
from ascend_dump.reading.dialects._unreadable import UnreadableLines

__all__ = ["DIALECT"]

log = logging.getLogger("ascend_dump")

_RENAMED = re.compile(r"\d{1,20}\.npy", re.ASCII)
#: The file name in MindSpore's documents, which has both an index and a slot. No known version writes such names.
_TEMPLATE = re.compile(
    r"([^.]+)\.(.+)\.\d{1,18}\.\d{1,18}\.\d{1,18}\.(input|output)\.\d{1,18}\.\d{1,18}\.[A-Za-z]\w*(?:\.[A-Za-z]\w*)?\.npy",
    re.ASCII,
)
_METADATA = ("config.json", "data_dump.json")


class _MindSporeDialect:
    name = "mindspore"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        shared = _MindsporeDirectory(directory)
        entries: list[Entry] = []
        claimed = set()
        renamed = []
        for name in directory.names:
            parsed = parse_name(name)
            if parsed is not None:
                entries.append(_MindsporeFile(shared, name, parsed))
                claimed.add(name)
            elif _RENAMED.fullmatch(name):
                renamed.append(name)
            elif name.endswith(".npy") and _TEMPLATE.fullmatch(name):
                entries.append(_Unknown(shared, name))
                claimed.add(name)
            elif AUXILIARY.fullmatch(name) or (name in _METADATA and directory.parts[-1:] == (METADATA_DIRECTORY,)):
                claimed.add(name)
            elif name == FILE and shared.is_one:
                entries.append(_Statistics(shared, name))
                claimed.add(name)
            elif shared.graph_id is not None and name.endswith(".json") and name.count(".") > 1:
                shared.kernel_args.append(name)
                claimed.add(name)
        if renamed:
            entries += _renamed(shared, renamed, claimed)
        shared.files = [entry for entry in entries if isinstance(entry, _MindsporeFile)]
        return entries, claimed


DIALECT = _MindSporeDialect()


class _MindsporeDirectory:
    """One directory of a MindSpore dump, with the fields that its path contains, and data that its files share."""

    def __init__(self, directory: Directory) -> None:
        self.path = directory.path
        self.text = os.fspath(directory.path) + os.sep
        self.files: list[_MindsporeFile] = []
        self.kernel_args: list[str] = []
        run_levels = parse_levels(directory.parts)
        self._graph: Optional[Graph] = None
        self._scene: Optional[dict[str, Any]] = None
        self._siblings: Optional[tuple[OperatorsByName, dict[NpyName, int]]] = None
        self._rows: Optional[dict[NpyName, MindsporeStatisticsRow]] = None
        self._args: Optional[dict[str, Any]] = None
        self._described: dict[tuple[str, str], Described] = {}
        self.constants = run_levels.constants
        self.graph_id = run_levels.graph
        self.depth = run_levels.depth
        rank = rank_of(directory.parts)
        self.known: dict[str, Any] = {
            "step": run_levels.iteration,
            "rank": run_levels.rank if rank is None else rank,
            "device": None,
            "model": run_levels.net,
            "run": run_levels.run,
        }
        if run_levels.graph is None:
            # The path is not one of MindSpore. Up to MindSpore 2.5, GE writes files with these names into paths of GE.
            depth = len(directory.path.parts) - len(directory.root.parts)
            levels = parse_cann_levels(directory.parts, depth)
            step = levels.data_index if levels.outer_step is None else levels.outer_step
            self.known.update(step=step, rank=levels.rank, device=levels.device, model=levels.model, run=levels.run)
            self.graph_id = None
            self.model_id = levels.model_id
        else:
            self.model_id = run_levels.graph

    @property
    def is_one(self) -> bool:
        """True if the path is certainly one of MindSpore. Elsewhere `statistic.csv`, a common name, is not read."""
        return self.graph_id is not None or self.known["run"] is not None

    @property
    def graph(self) -> Graph:
        if self._graph is None:
            above = self.path.parents
            if self.graph_id is None or not 2 <= self.depth <= len(above) + 1:
                self._graph = Graph(())
            else:
                self._graph = read_graph(above[self.depth - 2], self.graph_id)
        return self._graph

    def scene(self) -> dict[str, Any]:
        """Return the attribute `scene` of all records: {"scene": "overflow"}, or {} for a normal dump."""
        if self._scene is None:
            above = self.path.parents
            is_below_run = self.graph_id is not None and 2 <= self.depth <= len(above) + 1
            self._scene = {"scene": "overflow"} if is_below_run and has_only_overflows(above[self.depth - 2]) else {}
        return self._scene

    def siblings(self) -> tuple[OperatorsByName, dict[NpyName, int]]:
        """Return the graph's operators by the names in file names, and for each file the number of earlier files of
        the same tensor."""
        if self._siblings is None:
            names = sorted((file.name for file in self.files), key=lambda name: name.timestamp)
            before: dict[NpyName, int] = {}
            count: dict[NpyName, int] = {}
            for name in names:
                same = name._replace(timestamp=0)
                before[name] = count.get(same, 0)
                count[same] = before[name] + 1
            self._siblings = (self.graph.among(name.op_name for name in names), before)
        return self._siblings

    def described(self, op_type: str, op_name: str) -> Described:
        """Return the graph's information about an operator. It is computed once for all tensors of the operator."""
        described = self._described.get((op_type, op_name))
        if described is None:
            described = self._described[op_type, op_name] = describe(self.graph, op_type, op_name, self.siblings()[0])
        return described

    def rows(self) -> dict[NpyName, MindsporeStatisticsRow]:
        """Return the lines of `statistic.csv` by the names of the tensors' files; {} if it cannot be read."""
        if self._rows is None:
            try:
                self._rows = join([file.name for file in self.files], read_statistics(self.path / FILE))
            except ReadError:
                self._rows = {}
        return self._rows

    def arguments(self, name: NpyName) -> Optional[dict[str, Any]]:
        """Return the attributes with which the operator was created, from its JSON file; None without such a file."""
        file = f"{name.op_type}.{name.op_name}.json"
        if self._args is None:
            self._args = {}
        if file in self.kernel_args and file not in self._args:
            self._args[file] = read_json(self.path / file)
        return self._args.get(file)


class Described(NamedTuple):
    """The graph's information about an operator.

    op_name        the full name, or the name in the file name if the graph lacks the operator
    fields, attrs  fields and attributes of its records
    """

    op_name: str
    fields: dict[str, Any]
    attrs: dict[str, Any]


def describe(graph: Graph, op_type: str, op_name: str, operators: OperatorsByName) -> Described:
    if op_type == PARAMETER:
        return Described(graph.parameter(op_name), {"phase": "other"}, {})
    match = operators.find(op_name)
    if match is None:
        return Described(op_name, {}, {})
    full, operator = match
    attrs: dict[str, Any] = {}
    if operator.position is not None:
        attrs["execution_index"] = operator.position
    if operator.stack:
        attrs["stack"] = list(operator.stack)
    if operator.name != full:
        attrs["graph_op_name"] = operator.name
    return Described(full, {"phase": phase_of(full), "module": module_of(full), "source": operator.source}, attrs)


class _Plain(Entry):
    """An entry for one file. Small, because a dump has very many files."""

    __slots__ = ("_directory", "_on_disk")

    def __init__(self, directory: _MindsporeDirectory, on_disk: str) -> None:
        self._directory = directory
        self._on_disk = on_disk
        fields = directory.known
        self.op_type = self.op_name = None
        self.order = 0
        self.step, self.rank, self.device = fields["step"], fields["rank"], fields["device"]
        self.model, self.run = fields["model"], fields["run"]

    @property
    def path(self) -> Path:  # type: ignore[override]  # created on access, because most files are only listed
        return self._directory.path / self._on_disk

    @property
    def path_text(self) -> str:
        return self._directory.text + self._on_disk

    @property
    def scene_is_beside(self) -> bool:
        return self._directory.graph_id is not None

    def shared_fields(self) -> dict[str, Any]:
        return {"path": self.path, "model_id": self._directory.model_id, **self._directory.known}


class _MindsporeFile(_Plain):
    """An npy file with one tensor."""

    __slots__ = ("name",)

    def __init__(self, directory: _MindsporeDirectory, on_disk: str, name: NpyName) -> None:
        super().__init__(directory, on_disk)
        self.name = name
        self.op_type = name.op_type
        # A `_` may replace a slash of the full name, which is known only after the graph was read.
        self.op_name = None if "_" in name.op_name else name.op_name
        self.order = name.timestamp

    @property
    def written_name(self) -> Optional[str]:
        return self.name.op_name

    def records(self) -> Iterable[Record]:
        directory, name = self._directory, self.name
        _, before = directory.siblings()
        described = directory.described(name.op_type, name.op_name)
        common = {
            **self.shared_fields(),
            "op_type": name.op_type,
            "op_name": described.op_name,
            "io": name.io,
            "index": name.position,
            "task_id": name.task_id,
            "stream_id": name.stream_id,
            "timestamp": name.timestamp,
            "format": name.format,
            "nth": before.get(name, 0),
            **described.fields,
        }
        attrs = {**described.attrs, **directory.scene()}
        if before.get(name):
            attrs["occurrence"] = before[name]
        if directory.constants:
            attrs["constant"] = True
        if name.dtype is not None:
            attrs["data_type"] = name.dtype
        arguments = directory.arguments(name)
        if arguments is not None:
            attrs["kernel_args"] = arguments
        try:
            header = read_npy_header(self.path, bfloat16=(name.dtype or "").lower() == "bfloat16")
        except CorruptDump as error:
            return [Record(None, error=error, attrs=attrs, **common)]
        return [npy_record(header, lambda: directory.rows().get(name), attrs, common)]


class _Unknown(_Plain):
    """A file named as in MindSpore's documents (`_TEMPLATE`). Its record is unreadable: its position is unknown."""

    __slots__ = ()

    def records(self) -> list[Record]:
        error = CorruptDump(
            "its name has an index and a slot, as in MindSpore's documents. No known version writes both, so it is "
            "unknown which of the two is the tensor's position",
            path=self.path,
            hint="rename it to TYPE.NAME.TASK.STREAM.TIMESTAMP.output.POSITION.FORMAT.npy, or read it with numpy",
        )
        match = _TEMPLATE.fullmatch(self._on_disk)
        assert match is not None, "only such names become this entry"
        return [Record(None, error=error, op_type=match[1], op_name=match[2], io=match[3], **self.shared_fields())]


class _Statistics(_Plain):
    """The file `statistic.csv`. Its records are the lines about tensors without a file of their own."""

    __slots__ = ()

    def records(self) -> Iterator[Record]:
        """Yield the records of lines. A large file without tensors beside it is never loaded into memory as a whole."""
        directory, fields = self._directory, self.shared_fields()
        joined = {row.line for row in directory.rows().values()} if directory.files else set()
        scene = directory.scene()
        before: Counter[tuple[Any, ...]] = Counter()
        unreadable = UnreadableLines()
        try:
            operators = directory.siblings()[0] if directory.files else directory.graph.among(read_names(self.path))
            for row in read_statistics(self.path):
                if row.problem:
                    reason = unreadable.reason(f"line {row.line}: {row.problem}")
                    if reason is not None:
                        broken = CorruptDump(reason, path=self.path, hint="the other lines can be read")
                        yield Record(None, error=broken, **fields)
                    continue
                tensor = (row.op_type, row.op_name, row.task_id, row.stream_id, row.io, row.slot)
                nth = before[tensor]
                before[tensor] = nth + 1
                if row.line not in joined:
                    described = describe(directory.graph, row.op_type, written(row.op_name), operators)
                    name = row.op_name if "/" in row.op_name else described.op_name
                    attrs = {**described.attrs, **scene}
                    yield statistics_record(row, attrs, {**fields, "op_name": name, "nth": nth, **described.fields})
        except ReadError as error:
            yield Record(None, error=error, **fields)


def _renamed(directory: _MindsporeDirectory, names: list[str], claimed: set[str]) -> Iterator[Entry]:
    """Yield the entries of files whose names are hashes of longer names. Adds to `claimed`."""
    try:
        mapping = read_mapping(directory.path / MAPPING)
    except ReadError as error:
        log.debug("%s", error)
        return
    for reason in mapping.refused:
        log.warning("%s: %s", directory.path / MAPPING, reason)
    for on_disk in names:
        parsed = parse_name(mapping.names.get(on_disk, ""))
        if parsed is not None:
            claimed.update((on_disk, MAPPING))
            yield _MindsporeFile(directory, on_disk, parsed)
