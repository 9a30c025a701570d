"""Find the operators that overflowed: as reported by the device, or from the recorded values."""

from __future__ import annotations

import cmath
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.analysis.operators.module_calls import NOT_RECORDED, ModuleCalls
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.nonfinite import (
    CONSTANTS,
    Measure,
    NonFiniteOperator,
    classify,
    executions,
    has_nan,
    is_nonfinite,
)
from ascend_dump.common.units import counted
from ascend_dump.dump_format import Cut, Named, TensorOf, plain_text
from ascend_dump.errors import CorruptDump, NotSupported, ReadError
from ascend_dump.reading import Dump, Record, RunState, open_dump
from ascend_dump.report.findings import ANSWERS, Finding
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite.masks import plain_name

if TYPE_CHECKING:
    from ascend_dump.analysis.ranks.received_nonfinite import Givers, GivingRanks

__all__ = ["ANSWERS", "Overflow", "OverflowReport", "find_overflows", "watched"]

_OPDEBUG = "re:(?i)^opdebug$"
#: Records of these types are what graphs call their parameters, constants and inputs.
_PARAMETERS = ("parameter", "refdata", "variable", "variablev2", "varhandleop", "const", "constant")
_GRAPH_INPUTS = ("data", "placeholder", "placeholderwithdefault", "iteratorgetnext", "getnext")

#: Characters of an argument that are shown.
_LONGEST = 80

_Place = tuple[Any, ...]


class Overflow(NamedTuple):
    """One overflow: a unit of the device that reported it, or an operator whose recorded values show it.

    kind      "origin", "nan-made" or "outside", see ANSWERS
    record    the record that shows it: the device's own, or the first non-finite output (for "outside": input)
    unit      the unit of the device; "MindSpore" if only overflowing operators are dumped; else "values"
    words     what is known about it, one sentence each
    status, ids   the device's status words, and the ids of its task
    operator  op_type, op_name and path of the operator, None if the dump does not have it
    tensors   the operator's records
    source    for "outside": where NaN or Inf came from, as far as it is known
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
    followed   operators that only propagated NaN or Inf
    masks      operators that filled in Inf because the program says so, which is no overflow
    reasons    why not everything was checked, empty if it was
    notes      remarks on the answer
    errors     the errors of records that cannot be read
    checked    number of operators of which everything could be read; 0 if a report of the device could not
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


def find_overflows(
    dump: Dump,
    *,
    watch: Optional[Callable[[Iterable[Record]], Iterable[Record]]] = None,
    beside: Optional[Callable[[list[Record], Measure], object]] = None,
    executor: Optional[Executor] = None,
) -> OverflowReport:
    """Look through a dump of any scene for the operators that overflowed.

    What the device reported is taken as it is. Elsewhere the recorded values or statistics decide, with the operators
    in the order they ran. An Inf that the program fills in by itself, such as the mask of attention, is no overflow.

    watch: passes the records on, for example to show progress.
    beside: another analysis in the same pass: called with the records of each run of an operator and a function that
            measures them, so that no tensor is read twice.
    executor: measures the tensors of several ranks side by side, see `ascend_dump.analysis.ranks.measured`.
    """
    reader = _OverflowReader()
    found: list[Overflow] = []
    reported: set[_Place] = set()
    if any(str(name).lower() == "opdebug" for name in dump.known_values("op_type")):
        for record in dump.select(op_type=_OPDEBUG):
            units = list(_of_device(record, reader))
            found += units
            if units:
                reported.add(_place(record))
    # What the device reported cannot be read: values that look fine prove nothing of it.
    unknown = bool(reader.errors)
    ranks = _giving_ranks(dump)
    values = _ValueJudge(reader, ranks)
    operators = unread = 0
    records: Iterable[Record] = dump
    if executor is not None:
        from ascend_dump.analysis.ranks import measured

        records = measured(dump, executor)
    for members in executions(records if watch is None else watch(records)):
        first = members[0]
        if first.op_type.lower() == "opdebug":
            continue
        operators += 1
        before = reader.misses
        reader.begin()
        for record in members:
            if record.error is not None:
                reader.errors.append(record.error)
        if beside is not None:
            beside(members, reader.statistics)
        if first.attrs.get("scene") == "overflow":
            found += [_of_mindspore(members, reader)] if _place(first) not in reported else []
        elif _place(first) not in reported:
            found += values.look_at(members)
        unread += reader.misses > before
    found = sorted(found, key=_time) if ranks is None else _of_ranks(found, ranks.end())
    reasons = [*reader.reasons(), *_unended(dump), *(f"{one.run}: {one.reason}" for one in dump.lost_records())]
    if not operators and not found and not reader.zero:
        reasons += _empty(dump)
    answer = found[0].kind if found else "unchecked" if reasons else "none"
    notes = list(reader.notes)
    if not found and not _first_scene(dump) and True in dump.known_values("scene_is_beside"):
        notes.append(
            "only NaN and Inf were looked for: MindSpore leaves no report with jit_level O0 and O1. If this was dumped "
            "with op_debug_mode 3, every operator in it overflowed"
        )
    return OverflowReport(
        answer,
        tuple(found),
        operators,
        values.followed,
        values.masks,
        tuple(reasons),
        tuple(notes),
        tuple(reader.errors),
        0 if unknown else operators - unread,
    )


def _giving_ranks(dump: Dump) -> Optional[GivingRanks]:
    """None where the dump has one rank."""
    if len(dump.known_values("rank")) < 2:
        return None
    from ascend_dump.analysis.ranks.received_nonfinite import GivingRanks

    return GivingRanks()


def _of_ranks(found: list[Overflow], given: dict[int, Givers]) -> list[Overflow]:
    """The overflows in the order they happened; those that another rank gave say so, and come behind what made it."""
    timed = []
    for one in found:
        moment = _time(one)
        givers = next((given[id(record)] for record in one.tensors if id(record) in given), None)
        if givers is not None and one.unit == "values":
            source = givers.words
            made = _made_by(givers, found)
            if made is not None:
                # The clocks of two machines may differ.
                moment = max(moment, _time(made))
                source += f"; what is wrong there begins with {made.record.op_name or made.record.op_type}"
            one = _of_values("outside", one.record, list(one.tensors), source)
        timed.append((moment, givers is not None, one))
    return [one for _, _, one in sorted(timed, key=lambda each: each[:2])]


def _made_by(givers: Givers, found: list[Overflow]) -> Optional[Overflow]:
    """The first overflow of a rank that gave NaN or Inf, before it did."""
    for part in givers.parts:
        for one in found:
            here, there = one.record, part.first
            if (here.rank, here.run) == (there.rank, there.run) and _order(here) < _order(there):
                return one
    return None


def _order(record: Record) -> tuple[int, int]:
    return -1 if record.step is None else record.step, record.attrs.get("seq") or 0


def _time(one: Overflow) -> int:
    return one.record.timestamp or 0


def watched(dump: Dump) -> str:
    """How many steps were watched in which no operator made NaN or Inf; "" unless the dump is empty because of that."""
    runs = dump.runs()
    empty = (run for run in runs if run.scene == "overflow" and run.state is RunState.COMPLETE and not run.records)
    known = [run.steps for run in empty if run.steps]
    if not runs or len(known) < len(runs):
        return ""
    each = counted(known[0], "step") if len(set(known)) == 1 else f"{min(known)} to {counted(max(known), 'step')}"
    of_runs = "" if len(runs) == 1 else f" of {len(runs)} runs"
    verb = "was" if known == [1] else "were"
    return f"{each}{of_runs} {verb} watched, and no operator made NaN or Inf"


def _first_scene(dump: Dump) -> Optional[str]:
    """The scene of the dump's runs, where they tell it."""
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


def _place(record: Record) -> _Place:
    return (record.run, record.rank, record.device)


class _OverflowReader:
    """Reads statistics and keeps what kept it from reading them."""

    def __init__(self) -> None:
        self.errors: list[ReadError] = []
        self.notes: list[str] = []
        self.zero = False  # the device reported, and nothing overflowed
        self._without: Counter[str] = Counter()
        self._unsure = 0
        #: Of the operator at hand, by the identity of the record.
        self._found: dict[int, Optional[Statistics]] = {}

    def begin(self) -> None:
        """Call before the records of another operator are measured."""
        self._found.clear()

    def statistics(self, record: Record) -> Optional[Statistics]:
        key = id(record)
        if key not in self._found:
            self._found[key] = self._measure(record)
        return self._found[key]

    def _measure(self, record: Record) -> Optional[Statistics]:
        if record.error is not None or is_no_value(record):
            return None
        try:
            found = record.statistics()
        except NotSupported as error:
            self._without[str(record.attrs.get("skipped") or error.message.replace(repr(record), "the record"))] += 1
            return None
        except ReadError as error:
            self.errors.append(error)
            return None
        if not _tells(record, found):
            self._unsure += 1
        return found

    @property
    def misses(self) -> int:
        """How many records could not be judged."""
        return len(self.errors) + sum(self._without.values()) + self._unsure

    def reasons(self) -> Iterator[str]:
        if self.errors:
            yield f"{_counted(len(self.errors))} cannot be read"
        for reason, count in self._without.most_common():
            yield f"{_counted(count)} without values: {reason}"
        if self._unsure:
            yield f"the statistics of {_counted(self._unsure)} tell nothing of NaN; record Nan or Avg among them"


def _counted(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def _tells(record: Record, found: Statistics) -> bool:
    """Whether the statistics would show a NaN: of integers there is none."""
    if is_nonfinite(found) or not found.count:
        return True
    if any(value is not None for value in (found.nan, found.mean, found.l2norm)):
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
    except ReadError:  # it was there when the directory was listed: someone else tidies up
        return []


def _of_mindspore(members: list[Record], reader: _OverflowReader) -> Overflow:
    """An operator in a tree of O0 or O1: it is there because it overflowed, and nothing says how."""
    first = members[0]
    seen = classify(members, reader.statistics)
    kind = "nan-made" if seen is not None and seen.kind == "nan-made" else "origin"
    words = ("dumped because it overflowed", *([_WORDS[kind]] if seen is not None and seen.kind == kind else []))
    return Overflow(kind, first, "MindSpore", words, operator=_operator(first), tensors=tuple(members))


_WORDS = {"origin": "NaN or Inf of finite inputs", "nan-made": "NaN of inputs without NaN"}


def _operator(record: Record) -> dict[str, Any]:
    return {"op_type": record.op_type, "op_name": record.op_name, "path": str(record.path)}


class _ValueJudge:
    """Judges operators by their values, in the order they ran on each device."""

    def __init__(self, reader: _OverflowReader, ranks: Optional[GivingRanks] = None) -> None:
        self._ranks = ranks
        self.followed = self.masks = 0
        self._reader = reader
        self._rooted: set[_Place] = set()
        self._masked: set[_Place] = set()
        self._known: dict[_Place, set[str]] = {}
        self._modules: dict[_Place, ModuleCalls] = {}

    def look_at(self, members: list[Record]) -> Iterator[Overflow]:
        found = classify(members, self._reader.statistics)
        if self._ranks is not None:
            self._ranks.look_at(members, found)
        place = _place(members[0])
        marked = [record for record in members if record.attrs.get("origin")]
        if marked and (found is None or found.kind not in ("mask", "origin")):
            # The recorder looked at the inputs before the operator wrote into them, and at what it did not store.
            self._rooted.add(place)
            yield _of_values("origin", marked[0], members)
            return
        if found is None:
            return
        known = self._known.setdefault(place, set())
        one: Optional[Overflow] = None
        if found.kind == "mask":
            self.masks += 1
            self._masked.add(place)
        elif self._follows_in_modules(found, place):
            self.followed += 1
        elif found.kind in _WORDS:
            one = _of_values(found.kind, found.record, members)
        elif found.kind == "unknown" and _Given.of(members[0]).makes_it_itself:
            one = _of_values("origin", found.record, members)
        elif place in self._rooted:
            self.followed += 1
        elif found.kind != "carried" or not self._is_of_masks(found, place):
            one = _of_values("outside", _first_wrong(found), members, _source(found))
        # What comes of it later is known by its content, where the dump tells that.
        outputs = (record for record in members if record.io == "output")
        known.update(record.attrs["hash"] for record in outputs if record.attrs.get("hash"))
        if one is not None:
            self._rooted.add(place)
            yield one

    def _follows_in_modules(self, found: NonFiniteOperator, place: _Place) -> bool:
        """Whether NaN or Inf of a module may come from another call of a module that was seen to have some."""
        calls = self._modules.setdefault(place, ModuleCalls())
        known = calls.of_output(found.record)
        calls.end(found.record, {0})  # it is of no interest which one
        return bool(known)

    def _is_of_masks(self, found: NonFiniteOperator, place: _Place) -> bool:
        """Whether all that is not finite in the inputs comes from masks that were seen."""
        if place not in self._masked:
            return False
        for record, one in zip(found.inputs, found.input_statistics):
            if one is None or not is_nonfinite(one):
                continue
            if has_nan(one):
                return False
            content = record.attrs.get("hash")
            if content not in self._known[place] if content else bool(one.posinf):
                return False
        return True


def _of_values(kind: str, record: Record, members: list[Record], source: Optional[str] = None) -> Overflow:
    words = [f"first seen here; {source}"]
    if source is None:
        given = _Given.of(record)
        words = ["it has no tensor inputs: it made the value itself" if given.makes_it_itself else _WORDS[kind]]
        if given.wrong and kind == "origin":
            words.append(f"the program gave it {given.wrong}")
    if is_of_module(record):
        words.append(NOT_RECORDED)
    operator = _operator(members[0])
    return Overflow(kind, record, "values", tuple(words), operator=operator, tensors=tuple(members), source=source)


class _Given(NamedTuple):
    """What is known of the arguments of an operator that the program gave it as numbers.

    alone   whether it has no tensor inputs
    wrong   the arguments that are NaN or Inf, as in `fill_value=nan`; "" if there are none
    """

    alone: bool
    wrong: str

    @classmethod
    def of(cls, record: Record) -> _Given:
        try:
            found = record.arguments
        except ReadError:
            found = None
        if found is None:
            return cls(False, "")
        tensors = any(map(_may_be_input, found.values.values()))
        wrong = [f"{name}={plain_text(one)[:_LONGEST]}" for name, one in found.values.items() if _is_wrong(one)]
        return cls(not tensors, ", ".join(wrong))

    @property
    def makes_it_itself(self) -> bool:
        return self.alone and not self.wrong


def _may_be_input(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_may_be_input, value))
    if isinstance(value, Named):
        return value.kind == "object"  # it may hold tensors
    return isinstance(value, TensorOf) and value.io == "input"


def _is_wrong(value: Any) -> bool:
    if isinstance(value, Cut):
        value = value.values
    if isinstance(value, list):
        return any(map(_is_wrong, value))
    return isinstance(value, (float, complex)) and not cmath.isfinite(value)


def _first_wrong(found: NonFiniteOperator) -> Record:
    pairs = zip(found.inputs, found.input_statistics)
    return next((record for record, one in pairs if one is not None and is_nonfinite(one)), found.record)


def _source(found: NonFiniteOperator) -> str:
    kind = found.record.op_type.lower()
    if kind in _PARAMETERS:
        return f"the parameter {found.record.op_name} holds it"
    if kind in _GRAPH_INPUTS:
        return f"the input {found.record.op_name} of the model holds it"
    wrong = [
        f"input {record.index} ({record.dtype}{list(record.shape or ())})"
        for record, one in zip(found.inputs, found.input_statistics)
        if one is not None and is_nonfinite(one)
    ]
    name = found.record.op_name or found.record.path.name
    if plain_name(found.record.op_type) in CONSTANTS:
        return f"{name} brings numbers that the program gave, as torch.tensor(...) does"
    given = _Given.of(found.record)
    if given.alone and given.wrong:
        return f"{name} has no tensor inputs: the program gave it {given.wrong}"
    if wrong:
        return (
            f"{' and '.join(wrong)} of {name} held it before, and no recorded operator made that: it is an input, a "
            "parameter or a buffer of the model, or the result of an operator that is not recorded"
        )
    return (
        f"the inputs of {name} are not all recorded: it made the value itself, or got it from an operator before it. "
        "Dump with mode='all' to tell"
    )
