"""Find a parameter that changes between two steps on some ranks, although no recorded operator writes it.

Such changes are made by faulty memory, or by code that does not call operators. A rank whose part of a parameter has no
copy on another rank shows it nowhere else. Ranks run one program. So if more ranks still have what their last update
wrote, nothing in the program changes this parameter between updates.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.numerics.measure import measure
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.operators.properties import writes
from ascend_dump.analysis.ranks.collective_results import RankFinding, content_of_record, in_words
from ascend_dump.analysis.ranks.groups_of_ranks import by_launch, first_of_each_rank
from ascend_dump.analysis.ranks.launches import RankRun
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["ChangedParameters"]


class _NextRead(NamedTuple):
    """A parameter when its name is first seen in a step.

    written  what the last operator wrote, in the step before
    first    the first record of the same bytes in this step, which may have another shape and no name
    """

    record: Record
    written: Record
    first: Record

    @property
    def is_changed(self) -> bool:
        return bool(content_of_record(self.record) != content_of_record(self.written))


class _StepParameters:
    """The parameters of one rank in a step.

    written   the last output of each parameter that an operator has written; None if a part of it was written
    named     the names of the parameters in a memory, by its number
    first     the first record of each memory
    known     the parameters that were read or written
    """

    def __init__(self, step: Optional[int], before: dict[str, Optional[Record]]) -> None:
        self.step = step
        self.before = before
        self.written: dict[str, Optional[Record]] = {}
        self.named: dict[int, dict[str, Record]] = {}
        self.first: dict[int, Record] = {}
        self.known: set[str] = set()


class ChangedParameters:
    """Gathers the writes and reads of parameters on all ranks, in the order of the dump."""

    def __init__(self) -> None:
        self._steps: dict[RankRun, _StepParameters] = {}
        #: By run, step and parameter, and then by rank.
        self._reads: dict[tuple[Any, ...], dict[int, _NextRead]] = {}

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.rank is None or first.error is not None or first.io not in ("input", "output"):
            return
        step = self._step_of(first)
        if step.step != first.step:
            return  # the end of an asynchronous call of an earlier step
        for record, storage, name in run.tensors:
            if storage < 0:
                continue
            if storage not in step.first:
                step.first[storage] = record
            if name and _is_parameter(name):
                step.named.setdefault(storage, {})[name] = record
                if record.io == "output":
                    step.written[name] = record
                elif name not in step.known:
                    self._read(name, record, step)
                step.known.add(name)
            elif record.io == "output" and storage in step.named and _may_write(record):
                _write_unnamed(record, step)

    def _step_of(self, record: Record) -> _StepParameters:
        run = (record.rank or 0, record.run)
        step = self._steps.get(run)
        if step is None or _number(step.step) < _number(record.step):
            follows = step is not None and _number(record.step) == _number(step.step) + 1
            before = step.written if step is not None and follows else {}
            step = self._steps[run] = _StepParameters(record.step, before)
        return step

    def _read(self, name: str, record: Record, step: _StepParameters) -> None:
        written = step.before.get(name)
        # A rank may load a parameter, and then send it to the others.
        if written is None or "c10d" in record.op_type:
            return
        if content_of_record(written) is None or content_of_record(record) is None:
            return
        first = step.first[record.attrs["storage"]]
        if not first.attrs.get("hash") or first.attrs["hash"] != record.attrs.get("hash"):
            first = record
        key = (record.run, record.model, record.step, name)
        self._reads.setdefault(key, {})[record.rank or 0] = _NextRead(record, written, first)

    def findings(self) -> Iterator[RankFinding]:
        """Yield the first such parameter of each rank."""
        ordered = sorted(by_launch(self._reads).items(), key=lambda item: _moment(item[1]))
        yield from first_of_each_rank(
            finding for key, reads in ordered for finding in self._findings(str(key[3]), reads)
        )

    def _findings(self, name: str, reads: dict[int, _NextRead]) -> Iterator[RankFinding]:
        changed = [rank for rank, read in sorted(reads.items()) if read.is_changed]
        kept = [rank for rank in sorted(reads) if rank not in changed]
        if not changed or len(changed) > len(kept):
            return
        copies = {content_of_record(reads[rank].written) for rank in kept}
        for rank in changed:
            record, written, first = reads[rank]
            if content_of_record(written) in copies:
                continue  # a copy, which is compared with the others as such
            text = f"{name} of rank {rank} is not what {written.op_name} wrote in step {written.step}, and no recorded "
            text += f"operator wrote it since; on {in_words(kept)} it is{_difference(record, written)}"
            yield RankFinding(first, text)


def _is_parameter(name: str) -> bool:
    """Return True if `Record.parameter` is a parameter itself, not its gradient or the state of an optimizer."""
    return " of " not in name and "grad" not in name.split(".")


def _may_write(record: Record) -> bool:
    return writes(record.op_type) or "c10d" in record.op_type


def _write_unnamed(record: Record, step: _StepParameters) -> None:
    """Note a write to a memory with parameters by an operator that got none of them, but a view such as `.data`."""
    named = step.named[record.attrs["storage"]]
    for name, known in named.items():
        step.written[name] = record if _elements(known) == _elements(record) else None


def _elements(record: Record) -> Hashable:
    attrs = record.attrs
    return record.dtype, record.shape, attrs.get("storage_offset") or 0, tuple(attrs.get("stride") or ())


def _number(step: Optional[int]) -> int:
    return -1 if step is None else step


def _moment(reads: dict[int, _NextRead]) -> tuple[int, Any]:
    record = next(iter(reads.values())).record
    return (_number(record.step), record.attrs.get("seq", 0))


def _difference(record: Record, written: Record) -> str:
    try:
        a, b = record.numpy().ravel(), written.numpy().ravel()
    except AscendDumpError:
        return ""
    if a.size != b.size:
        return ""
    numbers = measure(a, b)
    at = 0 if numbers.at is None else numbers.at
    return f": {numbers.unequal} of {numbers.count} elements differ, most {a[at]!s} and {b[at]!s}"
