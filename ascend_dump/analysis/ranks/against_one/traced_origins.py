"""Trace origins at inputs back to where the tensor became wrong, also on other ranks.

Ranks run operators that one rank does not need, such as collectives and messages, and what prepares the tensors for
them. These have no partner, so a wrong result is first seen where an operator with a partner reads it, maybe on another
rank. It is followed back through operators without a partner:

- If one of them reads what the one rank has, and its result differs, it is the origin.
- If a tensor is reached that differs already, the origin follows from it.
- If another rank reads the right tensor, and runs one operator more or one less, that one is the origin.
- Else the origin stays where it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.rank_relations import cuts_of, distance_of
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.numerics.float_types import is_float_tensor
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.ranks.against_one.rank_flow import RankFlow, Write
from ascend_dump.analysis.ranks.collective_calls import operator_key, record_key
from ascend_dump.analysis.ranks.collective_results import in_words
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["traced_to_sources"]

#: Maximum number of operators without a partner that are followed back from an origin.
_MOST_OPERATORS = 200
#: The largest relative difference of a tensor that is the same on both sides.
_SAME = 1e-5


class _Source(NamedTuple):
    """The end of a search.

    write  the operator that is the origin; None if the tensors that are sent differ already
    kind   "structure"; "wiring" if it reads another tensor than the operator of the other side; "alone" or "missing" if
           this rank runs one operator more or less than one that agrees
    """

    write: Optional[Write]
    kind: str = "structure"


def traced_to_sources(
    origins: Sequence[Origin], records: Iterable[Record], pairs: Iterable[Pair], *, of_actual: bool
) -> list[Origin]:
    """Return the origins at the operators that they are traced to, without those that follow from other ranks.

    records    the records of the side with several ranks, in the order of the dump
    pairs      the pairs of all ranks
    of_actual  True if actual is the side with several ranks
    """
    inputs = [origin.seen or origin.pair for origin in origins]
    starts = [_sides(pair, of_actual) if pair.record.io == "input" else None for pair in inputs]
    steps = {start[0].step for start in starts if start is not None}
    if not steps:
        return list(origins)
    flow = RankFlow(records, steps)
    pair_of: dict[Hashable, Pair] = {}
    #: By operator of the other side: the ranks that run it too. By tensor of the other side: those that agree with it.
    ranks_of: dict[Hashable, set[Optional[int]]] = {}
    agreeing: dict[Hashable, list[Record]] = {}
    for pair in pairs:
        record = pair.actual if of_actual else pair.reference
        if record is not None and record.step in steps:
            pair_of[record_key(record)] = pair
        sides = _sides(pair, of_actual)
        if sides is not None:
            ranks_of.setdefault(operator_key(sides[1]), set()).add(sides[0].rank)
            if pair.verdict in ("equal", "noise") and sides[0].step == sides[1].step:
                agreeing.setdefault(record_key(sides[1]), []).append(sides[0])
    traced: list[Origin] = []
    for origin, first, start in zip(origins, inputs, starts):
        source = None if start is None else _source(*start, flow, pair_of, of_actual)
        if source is None and start is not None:
            peers = agreeing.get(record_key(start[1]), ())
            source = next(filter(None, (_difference(start[0], peer, flow) for peer in peers)), None)
        if source is None:
            ranks = set() if start is None else _runs_elsewhere(origin, start, ranks_of)
            traced.append(_where_seen(origin, ranks) if ranks else origin)
        elif source.write is not None:
            traced.append(_at_write(origin, first, source.write, source.kind, of_actual))
    return traced or list(origins)


def _runs_elsewhere(
    origin: Origin, start: tuple[Record, Record], paired: dict[Hashable, set[Optional[int]]]
) -> set[Optional[int]]:
    """Return the ranks that run the operator of an origin, which its own rank does not, because it has another stage.

    Empty if other ranks read the result too: then the operator is missing on this rank.

    start: the input that differs, on the side with several ranks and on the other one
    """
    is_of_other_side = origin.seen is not None and None in (origin.pair.actual, origin.pair.reference)
    readers = paired.get(operator_key(start[1]), set()) - {start[0].rank}
    return paired.get(operator_key(origin.pair.record), set()) if is_of_other_side and not readers else set()


def _where_seen(origin: Origin, ranks: set[Optional[int]]) -> Origin:
    """Return an origin at the input that differs: other ranks run the operator that computes it on the other side."""
    assert origin.seen is not None, "the caller checked it"
    record = origin.seen.record
    named = in_words(sorted(rank for rank in ranks if rank is not None))
    evidence = (
        f"{record.label}: {origin.seen.reason}",
        f"it is the result of {origin.pair.record.op_name} on the other side, which {named} ran here",
    )
    return replace(origin, kind="input", pair=origin.seen, evidence=evidence, first_seen=True)


def _sides(pair: Pair, of_actual: bool) -> Optional[tuple[Record, Record]]:
    """Return the record of the side with several ranks, and that of the other side; None if one of them is missing."""
    if pair.actual is None or pair.reference is None:
        return None
    return (pair.actual, pair.reference) if of_actual else (pair.reference, pair.actual)


def _source(
    record: Record, whole: Record, flow: RankFlow, pair_of: dict[Hashable, Pair], of_actual: bool
) -> Optional[_Source]:
    """Return where an input became wrong; None if that is unknown. whole: the tensor of the other side"""
    path: list[Write] = []
    verdicts: list[str] = []
    visited: set[Hashable] = set()
    waiting = [record]
    while waiting and len(visited) < _MOST_OPERATORS:
        write = flow.write(waiting.pop(0))
        key = None if write is None else record_key(write.output)
        if write is None:
            verdicts.append("")  # it entered from outside of the recording
        if write is None or key in visited:
            continue
        visited.add(key)
        pair = pair_of.get(key)
        if pair is not None and _sides(pair, of_actual) is not None and pair.verdict != "unmatched":
            verdicts.append("received" if pair.differs and write.output.rank != record.rank else pair.verdict)
            continue
        if any(_is_same(source, whole) for source in write.inputs):
            return _Source(write)
        path.append(write)
        waiting += write.inputs
    if "received" in verdicts:
        return _Source(None)
    copies = [write for write in path if not write.is_call]
    # A tensor that was only copied and sent, and that agrees with another one than the other side reads.
    is_misread = verdicts in (["equal"], ["noise"]) and all(is_view(write.operator[0].op_type) for write in copies)
    return _Source(copies[0], "wiring") if copies and is_misread else None


def _difference(record: Record, peer: Record, flow: RankFlow) -> Optional[_Source]:
    """Return the only operator that one of two ranks runs to make the tensor that both read; else None.

    peer: the tensor of another rank, which agrees with the other side
    """
    own, theirs = (_prepared(tensor, flow) for tensor in (record, peer))
    extra = [write for key, write in own.items() if (peer.rank, *key) not in flow.lines]
    missing = [write for key, write in theirs.items() if (record.rank, *key) not in flow.lines]
    if len(extra) + len(missing) != 1:
        return None
    return _Source(extra[0], "alone") if extra else _Source(missing[0], "missing")


def _prepared(record: Record, flow: RankFlow) -> dict[tuple[str, Optional[str]], Write]:
    """Return the operators by which a rank makes a tensor, since the last call, by type and line."""
    found: dict[tuple[str, Optional[str]], Write] = {}
    waiting, visited = [record], 0
    while waiting and visited < _MOST_OPERATORS:
        visited += 1
        write = flow.write(waiting.pop(0))
        if write is None or write.is_call:
            continue
        if write.inputs and not is_view(write.operator[0].op_type):
            found.setdefault((write.output.op_type, write.output.source), write)
        waiting += write.inputs
    return found


def _is_same(record: Record, whole: Record) -> bool:
    """Return True if a tensor is the whole tensor, or a part of it that a rank may have."""
    shape, size = record.shape or (), whole.shape or ()
    if not is_float_tensor(record) or record.dtype != whole.dtype or len(shape) != len(size):
        return False
    if sum(a != b for a, b in zip(shape, size)) > 1:
        return False
    try:
        values, parts = record.numpy(), [*_parts(shape, whole.numpy())]
    except AscendDumpError:
        return False
    return any(_spread(part) > 0 and distance_of(values, part) <= _SAME * _spread(part) for part in parts)


def _parts(shape: tuple[int, ...], whole: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the parts of a whole array that have this shape, if the array is divided evenly."""
    axes = [axis for axis, size in enumerate(shape) if size != whole.shape[axis]]
    if not axes:
        yield whole
    elif len(axes) == 1 and shape[axes[0]]:
        count = whole.shape[axes[0]] // shape[axes[0]]
        for position in range(count):
            yield from (cut.of(whole) for cut in cuts_of(position, [shape] * count, whole.shape))


def _spread(array: np.ndarray) -> float:
    """Return the distance of an array from its mean: tensors of equal elements identify nothing."""
    mean = array.astype("float64").mean(keepdims=True) if array.size else array
    return distance_of(array, mean)


def _at_write(origin: Origin, seen: Pair, write: Write, kind: str, of_actual: bool) -> Origin:
    """Return an origin at an operator that only one side runs. seen: the input that reads its result and differs"""
    output, record = write.output, seen.record
    read = f"{record.label}: {seen.reason}"
    rank = f" on rank {record.rank}" if record.rank != output.rank else ""
    text = f"{output.op_type} runs in {'actual' if of_actual else 'the reference'} only"
    if kind == "missing":
        text, result = f"rank {output.rank} runs {output.op_type}, rank {record.rank} does not", f"there {read}"
    elif kind == "alone":
        text, result = f"only rank {output.rank} runs {output.op_type}", f"its result differs, read as {read}"
    else:
        tensor = "another tensor than the other side" if kind == "wiring" else "the tensor of the other side"
        result = f"it reads {tensor}; its result differs, read{rank} as {read}"
    layer = {} if output.module is None else {"layers": output.module}
    return replace(
        origin,
        kind="collective" if write.is_call else "wiring" if kind == "wiring" else "structure",
        pair=Pair(output if of_actual else None, None if of_actual else output, "", 0.0, "unmatched", text),
        evidence=(text, result),
        first_seen=False,
        next={**layer, "data": "tensor", "steps": str(output.step), "ranks": str(output.rank)},
        seen=seen,
    )
