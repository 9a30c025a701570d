"""Dialect `tfdbg`: dumps that the debugger of TensorFlow 1 writes of runs of a session.

    run_{time}_{n}/_tfdbg_core_metadata_…, _tfdbg_fetches_info_, _tfdbg_feed_keys_info_
                  /_tfdbg_device_,job_…,replica_0,task_0,device_CPU_0/_tfdbg_graph_hash{hash}_{time}
                                                                    /{scope}/{node}_{slot}_{DebugOp}_{time}[-{k}]

Sources: dumps of TensorFlow 2.15.1; `python/debug/lib/debug_data.py`. For readers:

- Every file is one output of a node. The graph of the device says which outputs of other nodes are its inputs. An input
  is read from the other node's file; if there are several files, from the last one that is not later than the
  node's own file.
- `step` is n, which counts the runs of one session wrapper; for hooks, the runs of the process.
- `timestamp` is the time at which the debugger got the tensor. Records are in this order.
- `_arg_x_0_0` is the value that was fed for the placeholder x.
- DebugNumericSummary files hold counts, and min, max and mean of the finite elements. In the statistics of the record,
  NaN and Inf are included as in all statistics. If there is a DebugIdentity file of the same output, its tensor is the
  record instead. Results of other debug operators are listed, but cannot be read.
- Strings, resources and uninitialised tensors have no values.
"""

from __future__ import annotations

import functools
import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.dump_format import UNINITIALISED
from ascend_dump.errors import CorruptDump, NotSupported, ReadError
from ascend_dump.native.npy import NpyHeader
from ascend_dump.native.tensorflow.events import EventTensor, GraphNode, read_event_graph, read_event_tensor
from ascend_dump.reading._dialect import Directory, Entry
from ascend_dump.reading._npy import dtype_of, read_array
from ascend_dump.reading._record import Record
from ascend_dump.statistics import Statistics
from ascend_dump.storage.files import walked

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DIALECT"]

_DEVICE = "_tfdbg_device_"
_IDENTITY, _SUMMARY = "DebugIdentity", "DebugNumericSummary"
_FILE = re.compile(r"(.+)_(\d{1,9})_(Debug\w+?)_(\d{10,18})(?:-(\d{1,9}))?", re.ASCII)
_GRAPH = re.compile(r"_tfdbg_graph_hash\d+_\d+", re.ASCII)
_BESIDE = ("_tfdbg_core_metadata_", "_tfdbg_fetches_info_", "_tfdbg_feed_keys_info_")
_RUN = re.compile(r"run_\d{10,18}_(\d{1,9})", re.ASCII)
_NUMBERED = re.compile(r"(?:.*,)?task_(\d{1,9}),(?:device_)?\w+_(\d{1,9})", re.ASCII)
#: Number of elements in a DebugNumericSummary before the sizes of the axes.
_FIXED = 14


class _DebugFile(NamedTuple):
    """The fields of a file name.

    node       the full name of the node, with its scopes
    collision  the suffix `-{k}` of files with the same name
    """

    node: str
    slot: int
    debug_op: str
    time: int
    collision: int

    @classmethod
    def of(cls, name: str, scope: str = "") -> Optional[_DebugFile]:
        match = _FILE.fullmatch(name)
        if match is None:
            return None
        node = f"{scope}/{match[1]}" if scope else match[1]
        return cls(node, int(match[2]), match[3], int(match[4]), int(match[5] or 0))

    @property
    def moment(self) -> tuple[int, int]:
        return self.time, self.collision


class _TfdbgDialect:
    name = "tfdbg"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        level = next((number for number, part in enumerate(directory.parts) if part.startswith(_DEVICE)), None)
        if level is None:
            return [], {name for name in directory.names if name.startswith(_BESIDE)}
        scope = "/".join(directory.parts[level + 1 :])
        files = {name: file for name in directory.names for file in (_DebugFile.of(name, scope),) if file is not None}
        graphs = [name for name in directory.names if _GRAPH.fullmatch(name)]
        if graphs or directory.path == directory.root:
            # A scan begins with this directory of a device. The files that an earlier scan saw may have changed since.
            _device.cache_clear()
        whole = {(file.node, file.slot) for file in files.values() if file.debug_op == _IDENTITY}
        listed = [
            (file, name)
            for name, file in files.items()
            if file.debug_op != _SUMMARY or (file.node, file.slot) not in whole
        ]
        listed.sort(key=lambda pair: (pair[0].node, pair[0].slot, pair[0].debug_op, pair[0].moment))
        entries: list[Entry] = []
        lowest: dict[str, int] = {}
        began: dict[tuple[str, int], int] = {}
        before, nth = None, 0
        for file, name in listed:
            nth = nth + 1 if before == file[:3] else 0
            before = file[:3]
            # All outputs of one run of a node are sorted by the time of the first one, so that they are not separated.
            order = began.setdefault((file.node, nth), file.time)
            first = lowest.setdefault(file.node, file.slot) == file.slot
            entries.append(_OutputFile(directory, name, file, len(directory.parts) - level - 1, nth, order, first))
        return entries, {*files, *graphs}


DIALECT = _TfdbgDialect()


class _DeviceOutputs:
    """The graph of one device in one run of the session, and the files of each output.

    root   the directory of the device; the opened directory if that is below the directory of the device
    scope  the scope of the nodes in `root`; "" for the directory of the device
    """

    def __init__(self, root: Path, scope: str) -> None:
        self.graph: dict[str, GraphNode] = {}
        self._files: dict[tuple[str, int], list[tuple[tuple[int, int], Path]]] = {}
        for directory, names in walked(root):
            inner = [scope, *directory.parts[len(root.parts) :]]
            for name in names:
                file = _DebugFile.of(name, "/".join(filter(None, inner)))
                if file is not None and file.debug_op == _IDENTITY:
                    self._files.setdefault((file.node, file.slot), []).append((file.moment, directory / name))
                elif _GRAPH.fullmatch(name):
                    try:
                        self.graph.update(read_event_graph(directory / name))
                    except CorruptDump:  # without the graph, records have no op type and no inputs
                        continue
        for dumped in self._files.values():
            dumped.sort()
        self._moments = {output: [moment for moment, _ in dumped] for output, dumped in self._files.items()}

    def inputs(self, node: str, moment: tuple[int, int]) -> Iterator[tuple[int, Path]]:
        """Yield the index of each dumped input of a node, and its last file that is not later than `moment`."""
        graph_node = self.graph.get(node)
        for index, source in enumerate(graph_node.inputs if graph_node is not None else ()):
            position = bisect_right(self._moments.get(source, []), moment)
            if position:
                yield index, self._files[source][position - 1][1]


@functools.lru_cache(maxsize=4)
def _device(root: Path, scope: str) -> _DeviceOutputs:
    return _DeviceOutputs(root, scope)


class _OutputFile(Entry):
    """A file with one output of one run of a node. The file of the first output also yields the inputs' records."""

    __slots__ = ("_file", "_is_first", "_nth", "_root", "_scope")

    def __init__(
        self, directory: Directory, name: str, file: _DebugFile, depth: int, nth: int, order: int, is_first: bool
    ) -> None:
        parts = directory.parts
        runs = [match for part in parts for match in (_RUN.fullmatch(part),) if match]
        device = parts[len(parts) - 1 - depth][len(_DEVICE) :]
        numbered = _NUMBERED.fullmatch(device)
        super().__init__(
            directory.path / name,
            op_name=file.node,
            step=int(runs[-1][1]) if runs else None,
            rank=int(numbered[1]) if numbered and ",job_localhost," not in f"{device}," else None,
            device=int(numbered[2]) if numbered and "CPU_" not in device else None,
            order=order,
        )
        self._file, self._nth, self._is_first = file, nth, is_first
        # Files of inputs are searched in the device's directory, but never above the opened directory.
        inside = len(directory.path.parts) - len(directory.root.parts)
        levels = min(depth, inside)
        self._root = directory.path.parents[levels - 1] if levels else directory.path
        self._scope = "/".join(parts[len(parts) - depth : len(parts) - levels])

    def records(self) -> Iterator[Record]:
        device = _device(self._root, self._scope)
        node = device.graph.get(self._file.node)
        fields: dict[str, Any] = {
            "op_type": node.op if node is not None else "_Arg" if self._file.node.startswith("_arg_") else "",
            "op_name": self._file.node,
            "step": self.step,
            "rank": self.rank,
            "device": self.device,
            "timestamp": self._file.time,
            "nth": self._nth,
        }
        if self._is_first and self._file.debug_op == _IDENTITY:
            for index, path in device.inputs(self._file.node, self._file.moment):
                yield _record(path, _IDENTITY, {**fields, "io": "input", "index": index})
        yield _record(self.path, self._file.debug_op, {**fields, "io": "output", "index": self._file.slot})


def _record(path: Path, debug_op: str, shared: dict[str, Any]) -> Record:
    try:
        tensor = read_event_tensor(path)
        if debug_op == _SUMMARY:
            return _of_summary(path, tensor, shared)
        attrs: dict[str, Any] = {}
        if debug_op != _IDENTITY:
            attrs = {"debug_op": debug_op}
            return Record(_COMPUTED, path=path, key=debug_op, attrs=attrs, **shared)
        if not tensor.has_numbers:
            attrs = {"no_tensor": True, "skipped": f"a {tensor.dtype} is no array of numbers"}
            return Record(None, path=path, shape=tensor.shape, attrs=attrs, **shared)
        fields: dict[str, Any] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "format": "ND",
            "nbytes": _nbytes(path, tensor),
        }
        if not tensor.is_whole:
            return Record(None, path=path, attrs={"skipped": UNINITIALISED}, **fields, **shared)
        return Record(_TENSOR, path=path, key=tensor, **fields, **shared)
    except ReadError as error:
        return Record(None, path=path, error=error, **shared)


def _nbytes(path: Path, tensor: EventTensor) -> int:
    needed = math.prod(tensor.shape) * dtype_of(tensor.dtype).itemsize
    if tensor.is_whole and needed != tensor.nbytes:
        raise CorruptDump(
            f"{tensor.dtype}{list(tensor.shape)} takes {needed} bytes, but it has {tensor.nbytes}", path=path
        )
    return needed


def _of_summary(path: Path, tensor: EventTensor, shared: dict[str, Any]) -> Record:
    if tensor.dtype != "float64" or len(tensor.shape) != 1 or not _FIXED <= tensor.shape[0] <= _FIXED + 254:
        raise CorruptDump(
            f"its summary is {tensor.dtype}{list(tensor.shape)}, expected 14 numbers and the shape", path=path
        )
    _nbytes(path, tensor)
    numbers = [float(value) for value in read_array(path, _header(tensor))]
    if not all(0 <= value < 2**53 and value == int(value) for value in (*numbers[1:8], *numbers[_FIXED:])):
        raise CorruptDump("its summary has a count or a size that is not an integer from 0 to 2**53", path=path)
    count, nan, neginf, _, zero, _, posinf = (int(value) for value in numbers[1:8])
    low, high, mean = numbers[8:11]
    if (neginf and posinf) or nan:
        mean = math.nan
    elif neginf or posinf:
        mean = math.inf if posinf else -math.inf
    statistics = Statistics(
        count,
        max=math.inf if posinf else high if math.isfinite(high) else -math.inf if neginf else None,
        min=-math.inf if neginf else low if math.isfinite(low) else math.inf if posinf else None,
        mean=mean if count else None,
        nan=nan,
        posinf=posinf,
        neginf=neginf,
        zero=zero,
    )
    shape = tuple(int(value) for value in numbers[_FIXED:])
    attrs = {"debug_op": _SUMMARY}
    return Record(_MEASURED, path=path, key=statistics, shape=shape, attrs=attrs, **shared)


def _header(tensor: EventTensor) -> NpyHeader:
    return NpyHeader(tensor.dtype, tensor.shape, False, tensor.offset, tensor.nbytes)


class _EventLoader:
    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        if format not in (None, "ND"):
            raise NotSupported(f"{record} has no layout to convert", hint="leave format= out")
        return read_array(record.path, _header(record.key))

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None


class _SummaryLoader:
    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        raise NotSupported(
            f"{record} holds statistics only", hint="dump with the debug operator DebugIdentity to keep values"
        )

    def statistics(self, record: Record) -> Optional[Statistics]:
        statistics: Statistics = record.key
        return statistics


class _ComputedLoader:
    """The loader of results of other debug operators, which cannot be read."""

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        raise NotSupported(
            f"{record} is the result of the debug operator {record.key}, which cannot be read",
            hint=f"dump with the debug operators {_IDENTITY} or {_SUMMARY}",
        )

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None


_TENSOR, _MEASURED, _COMPUTED = _EventLoader(), _SummaryLoader(), _ComputedLoader()
