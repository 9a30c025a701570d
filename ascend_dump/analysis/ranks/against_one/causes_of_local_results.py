"""Find what makes the results of ranks wrong that have no counterpart on the other side.

The first such result is only where the comparison ends. Behind it, two operators that only the ranks run are known to
be wrong:

- one that moves elements, if its readers would have a part of the tensor of the other side without it
- outside of the passes, a reduction of tensors over ranks that is no sum, such as a maximum of gradients
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.numerics.float_types import is_float_tensor
from ascend_dump.analysis.operators.collectives import collective_of
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.nonfinite import executions
from ascend_dump.analysis.ranks.against_one.local_origins import is_local
from ascend_dump.analysis.ranks.against_one.whole_tensors import NO_SUMS, is_whole
from ascend_dump.analysis.ranks.collective_calls import record_key
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["with_causes_of_local_results"]

#: Number of operators behind one that moves elements, among which its reader is looked for.
_MOST_OPERATORS = 8


def with_causes_of_local_results(
    origins: Sequence[Origin], records: Iterable[Record], pairs: Iterable[Pair]
) -> list[Origin]:
    """Return the origins, those at results without a counterpart at the operators that make them wrong, if known.

    records  the records of actual, which has several ranks, in the order of the dump
    pairs    the pairs of all ranks
    """
    local = {(origin.rank, origin.step) for origin in origins if is_local(origin)}
    if not local:
        return list(origins)
    programs: dict[Hashable, list[Sequence[Record]]] = {}
    for members in executions(records):
        if (members[0].rank, members[0].step) in local and members[0].error is None:
            programs.setdefault((members[0].rank, members[0].step), []).append(members)
    whole_of = {
        record_key(pair.actual): pair.reference
        for pair in pairs
        if pair.actual is not None and pair.reference is not None and (pair.actual.rank, pair.actual.step) in local
    }
    return [
        _at_cause(origin, programs.get((origin.rank, origin.step), []), whole_of) if is_local(origin) else origin
        for origin in origins
    ]


def _at_cause(origin: Origin, program: Sequence[Sequence[Record]], whole_of: dict[Hashable, Record]) -> Origin:
    first = origin.pair.record.attrs.get("seq", 0)
    later = [members for members in program if members[0].attrs.get("seq", 0) >= first]
    for number, members in enumerate(later):
        output = _first_float(members)
        if output is None:
            continue
        call = collective_of(members[0])
        if call is not None and call[0].reduce in NO_SUMS and members[0].phase == "other":
            text = f"{output.op_type} combines tensors of all ranks by {call[0].reduce}, and not by a sum"
            return _at(origin, "collective", output, text)
        reader = None if _is_paired(members, whole_of) else _misled(members, later[number + 1 :], whole_of)
        if reader is not None:
            text = f"{output.op_type} runs in actual only: without it, {reader.label} would agree"
            return _at(origin, "structure", output, text)
    return origin


def _first_float(members: Sequence[Record]) -> Optional[Record]:
    outputs = (record for record in members if record.io == "output")
    return next((one for one in outputs if is_float_tensor(one) and math.prod(one.shape or ()) > 1), None)


def _is_paired(members: Sequence[Record], whole_of: dict[Hashable, Record]) -> bool:
    return any(record_key(record) in whole_of for record in members)


def _misled(
    members: Sequence[Record], later: Sequence[Sequence[Record]], whole_of: dict[Hashable, Record]
) -> Optional[Record]:
    """Return the tensor that would be a part of that of the other side if an operator did not move its elements."""
    first, *others = (record for record in members if record.io == "input")
    output = _first_float(members)
    if others or output is None or not is_view(output.op_type):
        return None
    if math.prod(first.shape or ()) != math.prod(output.shape or ()):
        return None
    try:
        before, moved = first.numpy().ravel(), output.numpy().ravel()
        if (before == moved).all():
            return None
        for record, whole in _readers(later, whole_of):
            if record.shape is not None and record.numpy().size == moved.size and whole.dtype == record.dtype:
                values = record.numpy()
                is_read = (values.ravel() == moved).all() and not is_whole(values, whole.numpy())
                if is_read and is_whole(before.reshape(values.shape), whole.numpy()):
                    return record
    except AscendDumpError:
        return None
    return None


def _readers(later: Sequence[Sequence[Record]], whole_of: dict[Hashable, Record]) -> Iterator[tuple[Record, Record]]:
    for members in later[:_MOST_OPERATORS]:
        for record in members:
            whole = whole_of.get(record_key(record))
            if whole is not None:
                yield record, whole


def _at(origin: Origin, kind: str, record: Record, text: str) -> Origin:
    layer = {} if record.module is None else {"layers": record.module}
    return replace(
        origin,
        kind=kind,
        pair=Pair(record, None, "", 0.0, "unmatched", text),
        evidence=(text, *origin.evidence[1:]),
        first_seen=False,
        next={**layer, "data": "tensor", "steps": str(record.step), "ranks": str(record.rank)},
    )
