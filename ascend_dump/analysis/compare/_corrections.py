"""Find operators that were paired wrongly, by their results.

Two programs may run branches in another order, such as the losses of images and of texts. Where names and data flow do
not tell them apart, their results do: each agrees with the result of one other operator. And one program may run one
operator where the other one runs several: then none of these is its partner.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.names import is_source, is_view
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Corrections", "corrections"]

#: The largest relative distance of two results that agree: in rounding units, but at least _LEAST.
_UNITS, _LEAST = 16.0, 1e-4
#: Larger groups of results of one kind and shape are not compared, each with each: their number, and their bytes.
_MOST, _MOST_BYTES = 64, 1 << 28
#: Evidence of pairs that results may correct. Names, parameters and contents are stronger.
_WEAK = ("place", "order", "dataflow")


class _FlatResult(NamedTuple):
    """The values of a first output, flat. differs: the output of its partner has other values."""

    record: Record
    differs: bool
    values: np.ndarray
    norm: float


class Corrections(NamedTuple):
    """Corrections of the pairs of a step, by their results.

    agreeing  names of operators of the reference, by names of actual, whose results agree although others were paired
    apart     names in actual and in the reference of operators of other classes that are no pair
    """

    agreeing: dict[str, str]
    apart: set[tuple[str, str]]


def corrections(pairs: Sequence[Pair]) -> Optional[Corrections]:
    """Return what results show about the pairs of one step; None if they show nothing.

    Operators are exchanged if each of the two results agrees with no other result of its kind. Statistics do not prove
    that results agree.
    """
    agreeing = _exchanged(pairs)
    read_alone = _read_alone(pairs)
    by_order = [
        pair
        for pair in pairs
        if pair.actual is not None
        and pair.reference is not None
        and pair.how == "order"
        and pair.record.io == "output"
        and operator_class(pair.actual.op_type) != operator_class(pair.reference.op_type)
        and any(record.content in read for record, read in zip((pair.actual, pair.reference), read_alone))
    ]
    # Other layers run the same lines: what one pair shows holds for theirs, too, even if a difference explains them.
    wrong = {_lines_of(pair) for pair in by_order if pair.differs and not pair.explained}
    apart = {
        (pair.actual.op_name, pair.reference.op_name)
        for pair in by_order
        if pair.actual is not None and pair.reference is not None and pair.differs and _lines_of(pair) in wrong
    }
    return Corrections(agreeing, apart) if agreeing or apart else None


def _read_alone(pairs: Iterable[Pair]) -> tuple[set[Hashable], set[Hashable]]:
    """Return the contents that operators without a partner read: they go on with what an operator before them does."""
    contents: tuple[set[Hashable], set[Hashable]] = set(), set()
    for pair in pairs:
        if pair.verdict == "unmatched" and pair.record.io == "input" and pair.record.content is not None:
            contents[0 if pair.reference is None else 1].add(pair.record.content)
    return contents


def _lines_of(pair: Pair) -> Hashable:
    """Return the types of the two operators of a pair, and the source lines that run them."""
    return tuple((record.op_type, record.source) for record in (pair.actual, pair.reference) if record is not None)


def _exchanged(pairs: Iterable[Pair]) -> dict[str, str]:
    groups: dict[Hashable, tuple[list[tuple[Record, bool]], list[tuple[Record, bool]]]] = {}
    for pair in pairs:
        is_paired = pair.actual is not None and pair.reference is not None
        if (is_paired and pair.how not in _WEAK) or pair.verdict not in ("different", "unmatched"):
            continue
        for side, record in enumerate((pair.actual, pair.reference)):
            if record is not None and _is_result(record):
                kind = operator_class(record.op_type), record.phase, record.shape, record.dtype
                groups.setdefault(kind, ([], []))[side].append((record, is_paired))
    names: dict[str, str] = {}
    for group in groups.values():
        if _may_be_exchanged(group):
            names.update(_agreeing(*([*_read(side)] for side in group)))
    return names


def _is_result(record: Record) -> bool:
    is_first = record.io == "output" and record.index == 0 and float_kind(record.dtype or "") is not None
    return is_first and not (is_view(record.op_type) or is_source(record.op_type) or is_of_module(record))


def _may_be_exchanged(group: tuple[list[tuple[Record, bool]], list[tuple[Record, bool]]]) -> bool:
    records = [record for side in group for record, _ in side]
    is_small = len(records) <= _MOST and sum(record.nbytes or 0 for record in records) <= _MOST_BYTES
    return is_small and all(group) and len(records) > 2 and any(differs for _, differs in group[0])


def _read(records: Iterable[tuple[Record, bool]]) -> Iterator[_FlatResult]:
    import numpy as np

    for record, differs in records:
        try:
            values = record.numpy().astype(np.float64).reshape(-1)
        except (AscendDumpError, TypeError, ValueError):
            continue
        norm = float(np.linalg.norm(values))
        # Single numbers and constants are equal by chance.
        if values.size > 1 and np.isfinite(norm) and norm > 0 and values.min() != values.max():
            yield _FlatResult(record, differs, values, norm)


def _agreeing(actual: list[_FlatResult], reference: list[_FlatResult]) -> Iterator[tuple[str, str]]:
    """Yield the names of two operators whose results agree with each other, and with no other result."""
    near = [[n for n, b in enumerate(reference) if _agree(a, b)] for a in actual]
    for a, partners in zip(actual, near):
        if len(partners) == 1 and sum(partners[0] in others for others in near) == 1:
            b = reference[partners[0]]
            if a.differs or b.differs:
                yield a.record.op_name, b.record.op_name


def _agree(a: _FlatResult, b: _FlatResult) -> bool:
    import numpy as np

    limit = _limit(a.record.dtype) * b.norm
    return abs(a.norm - b.norm) <= limit and float(np.linalg.norm(a.values - b.values)) <= limit


def _limit(dtype: Optional[str]) -> float:
    kind = float_kind(dtype or "")
    return _LEAST if kind is None else max(_UNITS * kind.unit, _LEAST)
