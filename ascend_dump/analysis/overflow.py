"""Find the operators that overflowed, from reports of the device or from the recorded values."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Union

from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.analysis.operators.module_calls import NOT_RECORDED, ModuleCalls
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.nonfinite import (
    Measure,
    NonFiniteOperator,
    classify,
    executions,
    has_nan,
    is_nonfinite,
)
from ascend_dump.analysis.operators.nonfinite_flow import NonfiniteFlow, OperatorKey, operator_key
from ascend_dump.analysis.operators.nonfinite_source import ProgramNumbers, first_nonfinite_input, source_of
from ascend_dump.analysis.operators.operator import call_of
from ascend_dump.common.ignored import IgnoredOperators
from ascend_dump.common.units import counted
from ascend_dump.errors import CorruptDump, NotSupported, ReadError
from ascend_dump.reading import Dump, Record, RunState, open_dump
from ascend_dump.report.findings import ANSWERS, Finding
from ascend_dump.statistics import Statistics

if TYPE_CHECKING:
    from ascend_dump.analysis.ranks.received_nonfinite import Givers, GivingRanks

__all__ = ["ANSWERS", "Overflow", "OverflowReport", "find_overflows", "watched"]

_OPDEBUG = "re:(?i)^opdebug$"
#: The run, the rank and the device of a record.
_DeviceKey = tuple[Any, ...]


class Overflow(NamedTuple):
    """One overflow, which a unit of the device reported, or which the recorded values of an operator show.

    kind      "origin", "nan-made" or "outside", see ANSWERS
    record    the record that shows the overflow: the report of the device, or the first non-finite output of the
              operator (for "outside": the first non-finite input)
    unit      the unit of the device that reported it; "dump" in dumps of overflowing operators only, which MindSpore
              and eager NPU programs write; else "values"
    words     the facts, one sentence each
    status, ids   the device's status words, and the ids of its task
    operator  op_type, op_name and path of the operator, None if the dump does not have it
    tensors   the operator's records
    source    for "outside": the source of NaN or Inf, as far as it is known
    """

    kind: str
    record: Record
    unit: str
    words: tuple[str, ...]
    status: tuple[int, ...] = ()
    ids: Optional[dict[str, Any]] = None
    operator: Optional[dict[str, Any]] = None
    tensors: tuple[Record, ...] = ()
    source: Optional[str] = None

    def finding(self) -> Finding:
        """Return the overflow as a finding for the report."""
        called = next((tensor for tensor in self.tensors if tensor.module or tensor.source), None)
        return Finding(
            "operator",
            self.record.op_name,
            self.record.op_type,
            module=None if called is None else called.module,
            source=None if called is None else called.source,
            parameter=self.record.parameter,
            evidence=self.words,
        )


class OverflowReport(NamedTuple):
    """The overflows in a dump.

    answer     one of ANSWERS: the kind of the first overflow, else "none" or "unchecked"
    overflows  in the order they happened, by the clocks of the devices
    operators  number of operators in the dump
    followed   number of operators that only propagated NaN or Inf
    masks      number of operators that filled in Inf because the program says so, which is no overflow
    reasons    reasons why not everything was checked; empty if it was
    notes      remarks on the answer
    errors     the errors of records that cannot be read
    checked    number of operators that could be read completely; 0 if a report of the device cannot be read
    harmless   overflows whose NaN or Inf no tensor had at the end of the step, and ignored overflows
    """

    answer: str
    overflows: tuple[Overflow, ...]
    operators: int
    followed: int
    masks: int
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    errors: tuple[ReadError, ...]
    checked: int
    harmless: tuple[Overflow, ...] = ()


def find_overflows(
    dump: Union[Dump, str, os.PathLike[str]],
    *,
    watch: Optional[Callable[[Iterable[Record]], Iterable[Record]]] = None,
    beside: Optional[Callable[[list[Record], Measure], object]] = None,
    executor: Optional[Executor] = None,
    ignore: Iterable[str] = (),
) -> OverflowReport:
    """Find the operators that overflowed, in a dump of any scene.

    Reports of the device are accepted as they are. Without reports the operators are judged by their recorded values or
    statistics, in the order in which they ran. An Inf that the program fills in itself, such as a mask, is no overflow.

    dump: a dump, or its path.

    watch: passes the records on, for example to show progress.
    beside: another analysis in the same pass: called with the records of each run of an operator and a function that
            measures them, so that no tensor is read twice.
    executor: measures the tensors of several ranks in parallel, see `ascend_dump.analysis.ranks.measured`.
    ignore: operators whose NaN and Inf is known: globs of names or types, modules, or FILE:LINE.
    """
    dump = dump if isinstance(dump, Dump) else open_dump(dump)
    reader = _OverflowReader()
    overflows: list[Overflow] = []
    reported: set[_DeviceKey] = set()
    if any(str(name).lower() == "opdebug" for name in dump.known_values("op_type")):
        for record in dump.select(op_type=_OPDEBUG):
            units = list(_of_device(record, reader))
            overflows += units
            if units:
                reported.add(_device_key(record))
    # True if a report of the device cannot be read: recorded values do not replace it.
    unknown = bool(reader.errors)
    ranks = _giving_ranks(dump)
    ignored = IgnoredOperators(ignore)
    values = _ValueJudge(reader, ranks, ignored, is_whole=_is_whole(dump))
    operators = unread = 0
    is_counted = False
    scene = _first_scene(dump)
    last: Optional[_DeviceKey] = None
    records: Iterable[Record] = dump
    if executor is not None:
        from ascend_dump.analysis.ranks import measured

        records = measured(dump, executor)
    elif beside is None and ranks is None:
        # Records before the first NaN or Inf are left out: nothing in them explains a later one.
        records, operators = dump.after_finite_start()
    for members in executions(records if watch is None else watch(records)):
        first = members[0]
        if first.op_type.lower() == "opdebug":
            continue
        # The kernels of an API call are one operator.
        call = None if first.kernel is None else call_of(first)
        if call is None or call != last:
            operators += 1
            is_counted = False
        last = call
        before = reader.misses
        reader.begin()
        for record in members:
            if record.error is not None:
                reader.errors.append(record.error)
        if beside is not None:
            beside(members, reader.statistics)
        is_reported = first.attrs.get("scene") == "overflow" or (scene == "overflow" and "call_number" in first.attrs)
        if is_reported:
            overflows += [_of_dump(members, reader)] if _device_key(first) not in reported else []
        elif _device_key(first) not in reported:
            overflows += values.look_at(members)
        if reader.misses > before and not is_counted:
            unread += 1
            is_counted = True
    values.end()
    harmless = tuple(overflow for overflow in overflows if values.is_harmless(overflow))
    overflows = [overflow for overflow in overflows if not values.is_harmless(overflow)]
    overflows = sorted(overflows, key=_time) if ranks is None else _of_ranks(overflows, ranks.end())
    reasons = [*reader.reasons(), *_unended(dump), *(f"{one.run}: {one.reason}" for one in dump.lost_records())]
    if not operators and not overflows and not reader.zero:
        reasons += _empty(dump)
    answer = overflows[0].kind if overflows else "unchecked" if reasons else "none"
    notes = [*reader.notes, *(f"ignore={pattern!r} selected no operator with NaN or Inf" for pattern in ignored.unused)]
    if not overflows and not scene and True in dump.known_values("scene_is_beside"):
        notes.append(
            "only NaN and Inf were looked for: MindSpore leaves no report with jit_level O0 and O1. If this was dumped "
            "with op_debug_mode 3, every operator in it overflowed"
        )
    return OverflowReport(
        answer,
        tuple(overflows),
        operators,
        values.followed,
        values.masks,
        tuple(reasons),
        tuple(notes),
        tuple(reader.errors),
        0 if unknown else operators - unread,
        harmless,
    )


def _giving_ranks(dump: Dump) -> Optional[GivingRanks]:
    """Return the collector of calls between ranks; None if the dump has one rank."""
    if len(dump.known_values("rank")) < 2:
        return None
    from ascend_dump.analysis.ranks.received_nonfinite import GivingRanks

    return GivingRanks()


def _of_ranks(overflows: list[Overflow], givers_by_record: dict[int, Givers]) -> list[Overflow]:
    """Sort the overflows by time. An overflow that came from another rank is placed after its origin on that rank."""
    timed = []
    for overflow in overflows:
        moment = _time(overflow)
        givers = next(
            (givers_by_record[id(record)] for record in overflow.tensors if id(record) in givers_by_record), None
        )
        if givers is not None and overflow.unit == "values":
            source = givers.words
            maker = _made_by(givers, overflows)
            if maker is not None:
                # The clocks of two machines may differ.
                moment = max(moment, _time(maker))
                source += f"; what is wrong there begins with {maker.record.op_name or maker.record.op_type}"
            overflow = _of_values("outside", overflow.record, list(overflow.tensors), source)
        timed.append((moment, givers is not None, overflow))
    return [overflow for _, _, overflow in sorted(timed, key=lambda each: each[:2])]


def _made_by(givers: Givers, overflows: list[Overflow]) -> Optional[Overflow]:
    """Return the first overflow of a rank that sent NaN or Inf, before it sent them."""
    for part in givers.parts:
        for overflow in overflows:
            record, first = overflow.record, part.first
            if (record.rank, record.run) == (first.rank, first.run) and _order(record) < _order(first):
                return overflow
    return None


def _order(record: Record) -> tuple[int, int]:
    return -1 if record.step is None else record.step, record.attrs.get("seq") or 0


def _time(overflow: Overflow) -> int:
    return overflow.record.timestamp or 0


def watched(dump: Dump) -> str:
    """Return the number of watched steps as a sentence; "" unless the dump is empty because no step had NaN or Inf."""
    runs = dump.runs()
    empty = (run for run in runs if run.scene == "overflow" and run.state is RunState.COMPLETE and not run.records)
    step_counts = [run.steps for run in empty if run.steps]
    if not runs or len(step_counts) < len(runs):
        return ""
    each = (
        counted(step_counts[0], "step")
        if len(set(step_counts)) == 1
        else f"{min(step_counts)} to {counted(max(step_counts), 'step')}"
    )
    of_runs = "" if len(runs) == 1 else f" of {len(runs)} runs"
    verb = "was" if step_counts == [1] else "were"
    return f"{each}{of_runs} {verb} watched, and no operator made NaN or Inf"


def _is_whole(dump: Dump) -> bool:
    """Return True if the dump has all operators of its steps, with inputs and outputs."""
    runs = dump.runs()
    is_narrowed = any(not {"step", "rank"}.issuperset(selection) for selection in dump.selections)
    return bool(runs) and all(run.is_whole for run in runs) and not is_narrowed


def _first_scene(dump: Dump) -> Optional[str]:
    """Return the scene of the runs, if it is recorded."""
    return next((run.scene for run in dump.runs() if run.scene is not None), None)


def _unended(dump: Dump) -> Iterator[str]:
    for run in dump.runs():
        if run.state is not RunState.COMPLETE:
            yield f"{run.path}: {run.reason}"


def _empty(dump: Dump) -> Iterator[str]:
    runs = dump.runs()
    if not runs or any(run.scene != "overflow" for run in runs):
        chosen = dump.selection_text
        yield f"{dump.root} holds no record {f'with {chosen}' if chosen else 'of an operator'}"


def _device_key(record: Record) -> _DeviceKey:
    return (record.run, record.rank, record.device)


class _OverflowReader:
    """A reader of statistics that collects its errors."""

    def __init__(self) -> None:
        self.errors: list[ReadError] = []
        self.notes: list[str] = []
        self.zero = False  # the device reported, and nothing overflowed
        self._without: Counter[str] = Counter()
        self._unsure = 0
        #: The statistics of the records of the current operator, by identity of the record.
        self._measured: dict[int, Optional[Statistics]] = {}
        self._has_nonfinite = False

    def begin(self) -> None:
        """Call before the records of another operator are measured."""
        self._measured.clear()
        self._has_nonfinite = False

    def statistics(self, record: Record) -> Optional[Statistics]:
        key = id(record)
        if key in self._measured:
            return self._measured[key]
        self._measured[key] = statistics = self._measure(record)
        if statistics is not None and is_nonfinite(statistics):
            self._has_nonfinite = True
        return statistics

    def are_finite(self, members: Sequence[Record]) -> bool:
        """Return True if all records of the current operator were measured, and none has NaN or Inf."""
        return not self._has_nonfinite and len(self._measured) == len(members)

    def _measure(self, record: Record) -> Optional[Statistics]:
        if record.error is not None or is_no_value(record):
            return None
        try:
            statistics = record.statistics()
        except NotSupported as error:
            self._without[str(record.attrs.get("skipped") or error.message.replace(repr(record), "the record"))] += 1
            return None
        except ReadError as error:
            self.errors.append(error)
            return None
        if not _tells(record, statistics):
            self._unsure += 1
        return statistics

    @property
    def misses(self) -> int:
        """The number of records that could not be judged."""
        without = sum(self._without.values()) if self._without else 0
        return len(self.errors) + without + self._unsure

    def reasons(self) -> Iterator[str]:
        if self.errors:
            yield f"{_counted(len(self.errors))} cannot be read"
        for reason, count in self._without.most_common():
            yield f"{_counted(count)} without values: {reason}"
        if self._unsure:
            yield f"the statistics of {_counted(self._unsure)} cannot show NaN; also record the statistic Nan or Avg"


def _counted(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def _tells(record: Record, statistics: Statistics) -> bool:
    """Return True if the statistics would show a NaN, or if the type cannot have NaN, such as integers."""
    if statistics.nan is not None or statistics.mean is not None or statistics.l2norm is not None:
        return True
    if is_nonfinite(statistics) or not statistics.count:
        return True
    return (record.dtype or "").startswith(("int", "uint", "bool"))


def _of_device(record: Record, reader: _OverflowReader) -> Iterator[Overflow]:
    if record.error is not None:
        reader.errors.append(record.error)
        return
    if "overflow" not in record.attrs:
        reason = "; ".join(record.attrs.get("problems", ())) or "no overflow record in it"
        reader.errors.append(CorruptDump(reason, path=record.path))
        return
    units = [unit for unit in record.attrs["units"] if any(unit["status"])]
    if not units:
        reader.zero = True
        reader.notes.append(f"{record.path}: every status is 0, nothing overflowed")
    for unit in units:
        ids = {name: unit[name] for name in ("model_id", "stream_id", "task_id", "context_id", "thread_id")}
        words = (*unit["words"], *record.attrs.get("problems", ()))
        tensors = tuple(_tensors_of(unit["operator"]))
        yield Overflow("origin", record, unit["name"], words, tuple(unit["status"]), ids, unit["operator"], tensors)


def _tensors_of(operator: Optional[dict[str, Any]]) -> list[Record]:
    if operator is None:
        return []
    try:
        return [record for path in operator.get("paths", [operator["path"]]) for record in open_dump(path)]
    except ReadError:  # another process has removed the file since the directory was listed
        return []


def _of_dump(members: list[Record], reader: _OverflowReader) -> Overflow:
    """Return the overflow of an operator in a dump of overflowing operators only.

    Such dumps are MindSpore's trees of O0 and O1, and eager dumps of an NPU. Their values may be finite: the device
    saturates instead of making Inf, unless its mode is INF_NAN.
    """
    first = members[0]
    misses = reader.misses
    nonfinite = classify(members, reader.statistics)
    kind = "nan-made" if nonfinite is not None and nonfinite.kind == "nan-made" else "origin"
    words = ["dumped because it overflowed"]
    if nonfinite is not None and nonfinite.kind == kind:
        words.append(_WORDS[kind])
    elif nonfinite is None and first.kernel is not None and misses == reader.misses:
        words.append("its values are finite: the device saturates instead of making Inf")
    return Overflow(kind, first, "dump", tuple(words), operator=_operator(first), tensors=tuple(members))


_WORDS = {"origin": "NaN or Inf of finite inputs", "nan-made": "NaN of inputs without NaN"}


def _operator(record: Record) -> dict[str, Any]:
    return {"op_type": record.op_type, "op_name": record.op_name, "path": str(record.path)}


class _ValueJudge:
    """A judge of operators by their values, in execution order on each device."""

    def __init__(
        self, reader: _OverflowReader, ranks: Optional[GivingRanks], ignored: IgnoredOperators, *, is_whole: bool
    ) -> None:
        """is_whole: the dump has all operators of its steps, with inputs and outputs."""
        self._ranks = ranks
        self.followed = self.masks = 0
        self._reader = reader
        self._ignored = ignored
        #: For each device: the overflows that later operators may follow from.
        self._rooted: dict[_DeviceKey, set[OperatorKey]] = {}
        self._is_whole = is_whole
        self._flows: dict[_DeviceKey, NonfiniteFlow] = {}
        self._harmless: set[OperatorKey] = set()
        self._masked: set[_DeviceKey] = set()
        self._known: dict[_DeviceKey, set[str]] = {}
        self._modules: dict[_DeviceKey, ModuleCalls] = {}

    def look_at(self, members: list[Record]) -> Iterator[Overflow]:
        nonfinite = None if self._reader.are_finite(members) else classify(members, self._reader.statistics)
        if self._ranks is not None:
            self._ranks.look_at(members, nonfinite)
        device = _device_key(members[0])
        flow = self._flows.get(device)
        if flow is None:
            flow = self._flows[device] = NonfiniteFlow(is_whole=self._is_whole)
        if flow.step != members[0].step:
            self._end_step(device)
            flow.step = members[0].step
        overflow = self._overflow_of(members, nonfinite, device)
        is_mask = nonfinite is None or nonfinite.kind == "mask" or self._is_of_masks(nonfinite, device)
        if overflow is None and nonfinite is None:
            flow.look_at(members, self._reader.statistics, None)
            return
        operator = operator_key(members[0])
        roots = flow.look_at(
            members, self._reader.statistics, operator if overflow is not None or not is_mask else None
        )
        rooted = self._rooted.setdefault(device, set())
        if (
            overflow is None
            and nonfinite is not None
            and roots == frozenset((operator,))
            and rooted
            and rooted <= flow.roots
        ):
            # No overflow explains this operator: all known overflows are in this step, and none reaches its inputs with
            # NaN or Inf.
            self.followed -= 1
            overflow = _of_values("outside", first_nonfinite_input(nonfinite), members, source_of(nonfinite))
        if overflow is None:
            return
        rooted.add(operator)
        first = members[0]
        if self._ignored.selects(
            op_name=first.op_name, op_type=first.op_type, module=first.module, source=first.source
        ):
            flow.ignore(operator)
        yield overflow

    def end(self) -> None:
        """End the last steps."""
        for device in self._flows:
            self._end_step(device)

    def is_harmless(self, overflow: Overflow) -> bool:
        return overflow.unit == "values" and operator_key(overflow.record) in self._harmless

    def _end_step(self, device: _DeviceKey) -> None:
        harmless = self._flows[device].end_step()
        self._harmless |= harmless
        self._rooted.get(device, set()).difference_update(harmless)

    def _overflow_of(
        self, members: list[Record], nonfinite: Optional[NonFiniteOperator], device: _DeviceKey
    ) -> Optional[Overflow]:
        """Return the overflow of an operator; None if it only passes NaN or Inf on, has none, or is a mask."""
        marked = [record for record in members if record.attrs.get("origin")]
        if marked and (nonfinite is None or nonfinite.kind not in ("mask", "origin")):
            # The recorder has marked the operator, and its mark counts more than the stored values: it saw the inputs
            # before the operator wrote into them, and tensors that it did not store.
            return _of_values("origin", marked[0], members)
        if nonfinite is None:
            return None
        hashes = self._known.setdefault(device, set())
        overflow: Optional[Overflow] = None
        if nonfinite.kind == "mask":
            self.masks += 1
            self._masked.add(device)
        elif self._follows_in_modules(nonfinite, device):
            self.followed += 1
        elif nonfinite.kind in _WORDS:
            overflow = _of_values(nonfinite.kind, nonfinite.record, members)
        elif nonfinite.kind == "unknown" and ProgramNumbers.of(members[0]).makes_it_itself:
            overflow = _of_values("origin", nonfinite.record, members)
        elif self._rooted.get(device):
            self.followed += 1
        elif nonfinite.kind != "carried" or not self._is_of_masks(nonfinite, device):
            overflow = _of_values("outside", first_nonfinite_input(nonfinite), members, source_of(nonfinite))
        # Later inputs that come from these outputs are recognised by their hashes, if the dump records hashes.
        outputs = (record for record in members if record.io == "output")
        hashes.update(record.attrs["hash"] for record in outputs if record.attrs.get("hash"))
        return overflow

    def _follows_in_modules(self, nonfinite: NonFiniteOperator, device: _DeviceKey) -> bool:
        """Return True if NaN or Inf of a module may come from an earlier call of a module with NaN or Inf."""
        calls = self._modules.setdefault(device, ModuleCalls())
        earlier_calls = calls.of_output(nonfinite.record)
        calls.end(nonfinite.record, {0})  # any number will do
        return bool(earlier_calls)

    def _is_of_masks(self, nonfinite: NonFiniteOperator, device: _DeviceKey) -> bool:
        """Return True if all non-finite inputs may come from masks: they are known outputs, or have -Inf only."""
        if device not in self._masked:
            return False
        for record, statistics in zip(nonfinite.inputs, nonfinite.input_statistics):
            if statistics is None or not is_nonfinite(statistics):
                continue
            if has_nan(statistics):
                return False
            content = record.attrs.get("hash")
            if content not in self._known[device] if content else bool(statistics.posinf):
                return False
        return True


def _of_values(kind: str, record: Record, members: list[Record], source: Optional[str] = None) -> Overflow:
    words = [f"first seen here; {source}"]
    if source is None:
        arguments = ProgramNumbers.of(record)
        words = ["it has no tensor inputs: it made the value itself" if arguments.makes_it_itself else _WORDS[kind]]
        if arguments.wrong and kind == "origin":
            words.append(f"the program gave it {arguments.wrong}")
    if is_of_module(record):
        words.append(NOT_RECORDED)
    operator = _operator(members[0])
    return Overflow(kind, record, "values", tuple(words), operator=operator, tensors=tuple(members), source=source)
