"""Find suspects in a dump without a reference: each with its rule, its reason and its operator.

report = find_suspects(ascend_dump.open("dumps"))
for suspect in report.suspects:
    print(suspect.rule, suspect.op_name, suspect.step, suspect.reason, suspect.source)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, Callable, NamedTuple, Optional

from ascend_dump.analysis.operators.nonfinite import Measure
from ascend_dump.analysis.operators.properties import COLLECTIVES
from ascend_dump.analysis.overflow import Overflow, find_overflows
from ascend_dump.analysis.ranks import CallBook
from ascend_dump.analysis.ranks.collective_results import in_words
from ascend_dump.analysis.suspects import _history, _ranks, _training, _values
from ascend_dump.analysis.suspects._case import Row, values
from ascend_dump.analysis.suspects._order import in_order_of_ranks
from ascend_dump.analysis.suspects._producers import Writers, gives_view, producers_of
from ascend_dump.analysis.suspects._table import MeasuredRun, Suspect, SuspectRule
from ascend_dump.analysis.suspects.repeated_steps import RepeatedStep, RepeatedSteps
from ascend_dump.common.collector import rare_collections
from ascend_dump.common.units import counted
from ascend_dump.errors import ReadError
from ascend_dump.reading import Dump, Record, Run, RunState, rank_of
from ascend_dump.steps import Steps

__all__ = [
    "RULES",
    "Row",
    "Suspect",
    "SuspectReport",
    "SuspectRule",
    "Writers",
    "find_suspects",
    "gives_view",
    "producers_of",
]

_NON_FINITE = SuspectRule(
    "non-finite",
    0,
    "no threshold: a value is finite or not",
    None,
    trips=(
        Row("aten::exp", "0/exp_0", "input", values(200)),
        Row("aten::exp", "0/exp_0", "output", values(2)._replace(max=float("inf"), l2norm=float("inf"), posinf=3)),
    ),
    passes=(
        Row("aten::exp", "0/exp_0", "input", values(2)),
        Row("aten::exp", "0/exp_0", "output", values(2)),
    ),
)
#: Rules by name, the strongest evidence first.
RULES: dict[str, SuspectRule] = {
    rule.name: rule
    for rule in (
        _NON_FINITE,
        _values.UNINITIALISED_READ,
        _ranks.COLLECTIVE_ORDER,
        _ranks.DISAGREEMENT,
        _ranks.EXTRA_OPERATOR,
        _ranks.OTHER_ARGUMENT,
        _ranks.REPLICAS,
        _ranks.SHARD_UPDATE,
        _ranks.GRADIENT_FACTOR,
        _ranks.UNREDUCED_TERM,
        _ranks.WRONG_REDUCTION,
        _ranks.REPEATED_PART,
        _values.SATURATED,
        _history.GROWTH,
        _history.LAYER_GROWTH,
        _history.DEAD,
        _training.ZERO_GRADIENT,
        _training.UNMOVED,
        _training.NO_GRADIENT,
        _values.UNDERFLOW,
    )
}
#: Rules by certainty, the most certain first: suspects are sorted by certainty, then in execution order.
_TIERS = (
    {
        "non-finite",
        "uninitialised",
        "collective-order",
        "disagreement",
        "extra-operator",
        "other-argument",
        "replicas",
        "shard-update",
        "gradient-factor",
        "unreduced-term",
        "wrong-reduction",
        "repeated-part",
        "saturated",
        "growth",
    },
    {"layer-growth", "dead"},
    {"zero-gradient", "unmoved", "no-gradient", "underflow"},
)


#: Number of runs of operators that are read before the rules check them, one rule after the other. If each run went
#: through all rules, the processor would have neither the code nor the data of the next rule in its caches.
_RUNS_AT_ONCE = 96


class SuspectReport(NamedTuple):
    """The suspects of a dump without a reference.

    suspects   ranked: certain faults first, then in execution order
    operators  number of operators that were checked
    reasons    reasons why not everything could be checked; empty if it was
    errors     the errors of records that cannot be read
    notes      records that were not checked because the capture was asked to leave them out
    repeats    steps that got the same inputs as an earlier step, but have other results
    """

    suspects: tuple[Suspect, ...]
    operators: int
    reasons: tuple[str, ...]
    errors: tuple[ReadError, ...]
    notes: tuple[str, ...] = ()
    repeats: tuple[RepeatedStep, ...] = ()


@rare_collections()
def find_suspects(
    dump: Dump,
    *,
    watch: Optional[Callable[[Iterable[Record]], Iterable[Record]]] = None,
    executor: Optional[Executor] = None,
) -> SuspectReport:
    """Check a dump for values that look wrong without a reference, in one pass.

    Recorded statistics are used where the dump has them, else tensors are read. Rules that compare steps need several
    steps in the dump.

    watch     an iterator function that receives the records and yields them again, for a progress display
    executor  measures the tensors of several ranks in parallel, see `ascend_dump.analysis.ranks.measured`
    """
    suspects_by_key: dict[Any, Suspect] = {}
    order: dict[Any, tuple[float, ...]] = {}
    moments = _Moments()
    ranks = dump.known_values("rank")
    several = len(ranks) > 1
    # A single rank has no other rank to compare with.
    rules = [rule for rule in RULES.values() if several or None in ranks or rule not in _ranks.BETWEEN_RANKS]
    rules = [rule for rule in rules if several or rule is not _ranks.REPLICAS]
    finders = [(rule, rule.finder(rule.threshold)) for rule in rules if rule.finder is not None]

    def note(rule: str, sightings: Iterable[tuple[Record, str]]) -> None:
        for record, reason in sightings:
            key = (rule, record.run, record.rank, record.model, record.op_name or record.op_type)
            first = suspects_by_key.get(key)
            if first is None:
                moment = moments.of(record)
                suspects_by_key[key] = Suspect(rule, record, reason, producers=moment.producers)
                tier = _tier(rule)
                # Ranks are read one after the other, so steps are sorted first. A collective may have received NaN or
                # Inf from another rank, so it comes last in its step.
                is_received = several and rule == _NON_FINITE.name and record.op_type.startswith(COLLECTIVES)
                step = -1 if record.step is None else record.step
                order[key] = (tier, *((step, is_received) if several else ()), moment.position)
            else:
                suspects_by_key[key] = first._replace(again=first.again + 1)

    book = CallBook()
    repeated = RepeatedSteps()

    runs: list[MeasuredRun] = []

    def look_at(members: list[Record], measure: Measure) -> None:
        runs.append(MeasuredRun(members, measure))
        if len(runs) == _RUNS_AT_ONCE:
            check_runs()

    def check_runs() -> None:
        for run in runs:
            book.look_at(run.records)
        for run in runs:
            repeated.look_at(run.records)
        sightings_of: dict[int, list[tuple[str, Sequence[tuple[Record, str]]]]] = {}
        for rule, finder in finders:
            for number, run in enumerate(runs):
                sightings = finder.look_at(run)
                if sightings:
                    sightings_of.setdefault(number, []).append((rule.name, [*sightings]))
        for number, run in enumerate(runs):
            moments.look_at(run)
            for name, of_rule in sightings_of.get(number, ()):
                note(name, of_rule)
        runs.clear()

    report = find_overflows(dump, watch=watch, beside=look_at, executor=executor)
    check_runs()
    for rule, finder in finders:
        sightings = finder.end()
        if rule is _ranks.COLLECTIVE_ORDER:
            sightings = _that_wait(sightings, dump, rule.threshold)
        note(rule.name, sightings)
    note(_NON_FINITE.name, ((overflow.record, _overflow_text(overflow)) for overflow in report.overflows))
    suspects = {key: suspects_by_key[key] for key in sorted(suspects_by_key, key=order.__getitem__)}
    book.end()
    repeated.end()
    ranked = in_order_of_ranks(suspects.values(), book, _tier) if several else suspects.values()
    missing, left_out = _absent_ranks(book, dump)
    reasons = (*report.reasons, *_unchecked("the dump has no records of {ranks}", missing, book))
    notes = tuple(_unchecked("the capture was asked to leave out {ranks}", left_out, book))
    return SuspectReport(tuple(ranked), report.operators, reasons, report.errors, notes, tuple(repeated.found))


def _that_wait(sightings: Iterable[tuple[Record, str]], dump: Dump, seconds: float) -> Iterator[tuple[Record, str]]:
    """Yield the sightings of calls; of a program that may still run, only those that began so many seconds ago."""
    runs: Optional[list[Run]] = None
    for record, reason in sightings:
        runs = dump.runs() if runs is None else runs
        is_running = any(run.state in (RunState.RUNNING, RunState.UNKNOWN) for run in runs)
        if is_running and time.time() - (record.timestamp or 0) / 1e6 < seconds:
            continue
        if any(run.state == RunState.ENDED for run in runs):
            reason += "; the last half second of a killed process may be missing"
        elif any("KeyboardInterrupt" in run.reason for run in runs):
            reason += "; the program was interrupted, maybe before that rank came to the call"
        yield record, reason


def _absent_ranks(book: CallBook, dump: Dump) -> tuple[set[int], set[int]]:
    """Return two sets of ranks that take part in recorded collectives, but have no records in the dump.

    The first set has the ranks that the capture was asked to record, the second the ranks that it was asked to leave
    out. Both sets are empty if only a part or a selection of the dump was opened.
    """
    opened_in_part = rank_of(dump.root.absolute().parts) is not None
    if opened_in_part or any("rank" in selection for selection in dump.selections):
        return set(), set()
    absent = {rank for parts in book.calls.values() for rank in parts[0].involved} - book.ranks
    requested = [Steps(run.ranks or None) for run in dump.runs()]
    missing = {rank for rank in absent if not requested or any(rank in selection for selection in requested)}
    return missing, absent - missing


def _unchecked(beginning: str, ranks: set[int], book: CallBook) -> Iterator[str]:
    """Yield the sentence about calls without these ranks. beginning: its first words, with `{ranks}`."""
    if ranks:
        count = sum(not ranks.isdisjoint(parts[0].involved) for parts in book.calls.values())
        sentence = beginning.format(ranks=in_words([*ranks]))
        yield f"{sentence}: {counted(count, 'collective call')} could not be checked as a whole"


def _tier(rule: str) -> int:
    return next(tier for tier, names in enumerate(_TIERS) if rule in names)


class _Moment(NamedTuple):
    """The position of an operator in execution order, and the producers of its inputs."""

    position: float
    producers: tuple[str, ...]


class _Moments:
    """The moments of the current operator, and of earlier operators with NaN or Inf."""

    def __init__(self) -> None:
        self._writers = Writers()
        self._moment = _Moment(-1, ())
        self._members: Sequence[Record] = ()
        self._nonfinite: dict[int, _Moment] = {}

    def look_at(self, run: MeasuredRun) -> None:
        self._moment = _Moment(self._moment.position + 1, self._writers.look_at(run))
        self._members = run.records
        if run.is_nonfinite:
            # The suspects of these operators are only known at the end, so their moments are kept.
            self._nonfinite.update((id(record), self._moment) for record in run.records)

    def of(self, record: Record) -> _Moment:
        """Return the moment of a record's operator; an infinite position for earlier operators without NaN or Inf."""
        if any(record is member for member in self._members):
            return self._moment
        return self._nonfinite.get(id(record), _Moment(float("inf"), ()))


def _overflow_text(overflow: Overflow) -> str:
    return f"{overflow.record.label}: {'; '.join(overflow.words)}"
