"""Find the operators that produce NaN or Inf, and the one that did it first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Callable, NamedTuple, Optional

from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.errors import NotSupported, ReadError
from ascend_dump.reading import Record
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite import has_nan, is_additive_mask, is_nonfinite
from ascend_dump.statistics.nonfinite.masks import FILLING, plain_name

__all__ = [
    "CONSTANTS",
    "Measure",
    "NonFiniteOperator",
    "classify",
    "executions",
    "find_nonfinite",
    "first_nonfinite",
    "has_nan",
    "is_nonfinite",
]

#: They bring a constant that the program writes down, which is among their inputs: `torch.tensor(inf)`.
CONSTANTS = frozenset(("liftfresh", "liftfreshcopy"))

Measure = Callable[[Record], Optional[Statistics]]


class NonFiniteOperator(NamedTuple):
    """One operator with NaN or Inf in an output, or in an input where it has no output.

    kind     "origin": it turned finite inputs into NaN or Inf
             "nan-made": it made NaN of inputs without NaN, such as softmax of -Inf, 0*Inf or Inf-Inf
             "mask": it filled in Inf as the program says, as masks of attention are made
             "carried": an input held it before
             "unknown": not all of its inputs are recorded with their values
    record   the first output that is not finite, statistics its statistics
    inputs   the operator's input records, input_statistics theirs; None for one without values
    """

    kind: str
    record: Record
    statistics: Statistics
    inputs: list[Record]
    input_statistics: list[Optional[Statistics]]

    @property
    def origin(self) -> bool:
        """Whether its inputs are recorded and all of them are finite: it made the value itself."""
        return self.kind == "origin"


def find_nonfinite(records: Iterable[Record], measure: Optional[Measure] = None) -> Iterator[NonFiniteOperator]:
    """Yield the operators of a dump with a non-finite output, in the order they ran.

    measure: returns the statistics of a record, None to skip it; by default records that have neither values nor
    statistics, or cannot be read, are skipped.
    """
    for members in executions(records):
        found = classify(members, measure or _measure)
        if found is not None:
            yield found


def executions(records: Iterable[Record]) -> Iterator[list[Record]]:
    """All records of each run of an operator, in the order they ran.

    A collective continues after it has returned, so the dump has its outputs apart from its inputs, once they are
    complete.
    """
    running: dict[tuple[Any, ...], list[Record]] = {}
    for key, group in groupby(records, key=lambda record: record.execution):
        members = running.pop(key, []) + list(group)
        if "c10d" in (members[0].op_type or "") and all(record.io == "input" for record in members):
            running[key] = members
        else:
            yield members
    yield from running.values()


def first_nonfinite(records: Iterable[Record]) -> Optional[NonFiniteOperator]:
    """The first operator that turned finite inputs into NaN or Inf.

    If no operator has inputs that are all known and finite, the first one with a non-finite output.
    """
    first = None
    for finding in find_nonfinite(records):
        if finding.origin:
            return finding
        first = first or finding
    return first


def classify(members: Sequence[Record], measure: Measure) -> Optional[NonFiniteOperator]:
    """Classify one run of an operator by all its records; None if none of them is known to have NaN or Inf."""
    inputs = [record for record in members if record.io == "input"]
    outputs = [(record, measure(record)) for record in members if record.io == "output"]
    wrong = [(record, found) for record, found in outputs if found is not None and is_nonfinite(found)]
    if outputs and not wrong:
        return None
    inputs = [record for record in inputs if not is_no_value(record)]
    measured = [measure(record) for record in inputs]
    if not outputs:
        wrong = [(one, found) for one, found in zip(inputs, measured) if found is not None and is_nonfinite(found)]
        if not wrong:
            return None
    # NaN tells more than Inf.
    record, found = next((pair for pair in wrong if has_nan(pair[1])), wrong[0])
    kind = _kind(members[0], [found for _, found in wrong], inputs, measured) if outputs else "carried"
    if kind in ("origin", "mask"):
        record, found = wrong[0]
    return NonFiniteOperator(kind, record, found, inputs, measured)


def _kind(operator: Record, wrong: list[Statistics], inputs: list[Record], measured: list[Optional[Statistics]]) -> str:
    makes_nan = any(map(has_nan, wrong))
    if not makes_nan and plain_name(operator.op_type or operator.op_name) in CONSTANTS:
        return "mask"
    known = [found for found in measured if found is not None]
    if any(is_nonfinite(found) for found in known):
        if not makes_nan or any(map(has_nan, known)):
            return "carried"
        return "nan-made" if len(known) == len(measured) else "unknown"
    fills = plain_name(operator.op_type or operator.op_name) in FILLING
    if not makes_nan and (fills or all(map(is_additive_mask, wrong))):
        return "mask"
    return "origin" if known and len(known) == len(measured) else "unknown"


def _measure(record: Record) -> Optional[Statistics]:
    try:
        return record.statistics()
    except (NotSupported, ReadError):
        return None
