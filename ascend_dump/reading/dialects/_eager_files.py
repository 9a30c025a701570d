"""Join the files of eager operators: CANN writes separate files for the inputs and the outputs of one execution.

Executions are those of API calls (`aclnnAdd`) and of the kernels that the calls start. The files of an execution are a
file with inputs and the next file with outputs of the same API call or kernel on one stream. A file's name does not
say which of the two it contains, so the headers are read when the first record is requested.

The number in a file name counts all API calls of the process. A kernel has the number of its call. This number differs
between steps, runs and ranks, so names of records have another number. It counts the calls of the same API in the
directory, that is, in one step: `aclnnAdd_0`, and `aclnnAdd_0/AddAiCore_0` for the first kernel of this call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Optional

from ascend_dump.native.cann.names import DumpName, EagerName, eager_name
from ascend_dump.reading._dialect import Entry
from ascend_dump.reading._record import Record
from ascend_dump.reading.dialects._cann_files import CannEntry

__all__ = ["EagerCalls", "EagerEntry", "join_eager"]

#: (API, number of the call, kernel), which groups the files of one API call or kernel. kernel: None for the API call.
#: The number is None for generated operators, because each of their files has another number.
_Key = tuple[str, Optional[int], Optional[str]]


class EagerEntry(CannEntry):
    """One file of an eager operator. The last file of an execution yields the records of all its files."""

    __slots__ = ()
    #: Set by `join_eager`.
    calls: EagerCalls

    @property
    def eager(self) -> EagerName:
        eager = eager_name(self.name)
        assert eager is not None, "only files with such a name have this entry"
        return eager

    @property
    def is_api_call(self) -> bool:
        return self.op_name is not None

    @property
    def written_name(self) -> Optional[str]:
        return None

    def records(self) -> Iterator[Record]:
        return self.calls.records_at(self)


def join_eager(entries: Iterable[Entry]) -> None:
    """Join the files of eager operators among the entries of one directory. Changes these entries."""
    eager = [entry for entry in entries if isinstance(entry, EagerEntry)]
    if eager:
        EagerCalls(eager)


class _Execution(NamedTuple):
    """The files of one execution of an API call or a kernel.

    nth       its number among the executions with the same `_Key`
    has_both  True if one file contains both inputs and outputs
    """

    files: tuple[EagerEntry, ...]
    op_name: str
    nth: int
    has_both: bool


class EagerCalls:
    """The executions of eager operators in one directory."""

    def __init__(self, files: Sequence[EagerEntry]) -> None:
        groups: defaultdict[_Key, list[EagerEntry]] = defaultdict(list)
        numbers: defaultdict[str, set[int]] = defaultdict(set)
        ends: defaultdict[tuple[str, int], int] = defaultdict(int)
        for file in files:
            eager = file.eager
            groups[_key(eager)].append(file)
            if not eager.generated:
                numbers[eager.api].add(eager.number)
                ends[eager.api, eager.number] = max(ends[eager.api, eager.number], file.order)
        self._groups = dict(groups)
        self._executions: dict[_Key, dict[EagerEntry, list[_Execution]]] = {}
        #: Records of files that were read to find out whether they are inputs or outputs, until they are requested.
        self._waiting: dict[EagerEntry, list[Record]] = {}
        self._call_names = {
            (api, number): f"{api}_{position}"
            for api, of_api in numbers.items()
            for position, number in enumerate(sorted(of_api))
        }
        for file in files:
            eager = file.eager
            file.calls, file.op_type, file.op_name = self, eager.api, None
            if eager.kernel is None and not eager.generated:
                # An API call is sorted by the time of its last file, so that it comes after its kernels.
                file.order = ends[eager.api, eager.number]
                file.op_name = self._call_names[eager.api, eager.number]

    def records_at(self, file: EagerEntry) -> Iterator[Record]:
        """Yield the records of the executions whose last file is `file`."""
        eager = file.eager
        key = _key(eager)
        if key not in self._executions:
            self._executions[key] = self._join(key)
        for execution in self._executions[key].get(file, ()):
            for part in execution.files:
                waiting = self._waiting.pop(part, None)
                for record in part.records_of_file() if waiting is None else waiting:
                    record.attrs["call_number"] = part.eager.number
                    if execution.has_both and eager.kernel is not None:
                        # CANN writes both sides of a kernel into one file only if the kernel overflowed, or if an
                        # exception occurred; the scene "exception" is already set then.
                        record.attrs.setdefault("scene", "overflow")
                    yield record.as_eager(eager.api, execution.op_name, eager.kernel, execution.nth)

    def _join(self, key: _Key) -> dict[EagerEntry, list[_Execution]]:
        api, number, kernel = key
        streams: defaultdict[tuple[object, ...], list[EagerEntry]] = defaultdict(list)
        for file in sorted(self._groups[key], key=lambda file: _moment(file.name, file.eager)):
            name = file.name
            streams[name.stream_id, name.form, name.statistics].append(file)
        joined = [part for files in streams.values() for part in self._join_stream(files, keep=number is not None)]
        joined.sort(key=lambda part: _moment(part[0][0].name, part[0][0].eager))
        executions: dict[EagerEntry, list[_Execution]] = {}
        for position, (files, has_both) in enumerate(joined):
            if number is None:
                op_name = f"{api}_{position}"
            else:
                op_name = self._call_names[api, number]
                if kernel is not None:
                    op_name += f"/{kernel}_{position}"
            execution = _Execution(tuple(files), op_name, position, has_both)
            executions.setdefault(files[-1], []).append(execution)
        return executions

    def _join_stream(self, files: list[EagerEntry], *, keep: bool) -> Iterator[tuple[list[EagerEntry], bool]]:
        """Yield the files of each execution, and True if a file contains both inputs and outputs.

        files: of one stream, in order of time. keep: store the records that are read, because they are requested next.
        """
        inputs: list[EagerEntry] = []
        # Converting a dump file makes one file per tensor. All of them have the name of the dump file.
        for _, parts in groupby(files, lambda file: file.name):
            records = {file: list(file.records_of_file()) for file in parts}
            sides = {record.io for of_file in records.values() for record in of_file if not record.error or record.io}
            if not any(records.values()):
                continue  # a file without records: `mode` leaves out inputs or outputs
            if keep:
                self._waiting.update(records)
            if "input" in sides and inputs:
                yield inputs, False
                inputs = []
            if sides == {"input"}:
                inputs = [*records]
                continue
            # The file has outputs, or it cannot be read: both end the execution.
            yield [*inputs, *records], "input" in sides and "output" in sides
            inputs = []
        if inputs:
            yield inputs, False


def _key(eager: EagerName) -> _Key:
    return eager.api, None if eager.generated else eager.number, eager.kernel


def _moment(name: DumpName, eager: EagerName) -> tuple[int, ...]:
    """Return the key by which the files of one API call or kernel are sorted in order of time."""
    return (eager.number, name.timestamp, name.dump_number or 0, name.task_id or 0)
