"""Trace origins at inputs back to where the tensor became wrong, also on other ranks.

Ranks run operators that one rank does not need, such as collectives and messages, and what prepares the tensors for
them. These have no partner, so a wrong result is first seen where an operator with a partner reads it, maybe on another
rank. It is followed back through operators without a partner:

- If one of them reads what the one rank has, and its result differs, it is the origin.
- If a tensor is reached that differs already, the origin follows from it.
- If a term of a sum over ranks is reached that another rank changes before its reader, that change is the origin.
- If a call replaces the tensor of the other side by another one, this call is the origin.
- If a call combines tensors that agree with different ones of the other side, or terms of a sum by another operation
  than a sum, this call is the origin.
- If another rank reads the right tensor, and runs one operator more or one less, that one is the origin.
- Else the origin stays where it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from ascend_dump.analysis.alignment.rank_parts.relations import NOT_REDUCED
from ascend_dump.analysis.alignment.shards import is_over_ranks
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.numerics.float_types import is_float_tensor
from ascend_dump.analysis.operators.collectives import collective_of
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.ranks.against_one.rank_flow import RankFlow, Write
from ascend_dump.analysis.ranks.against_one.whole_tensors import NO_SUMS, has_whole, is_constant
from ascend_dump.analysis.ranks.collective_calls import operator_key, record_key
from ascend_dump.analysis.ranks.collective_results import in_words
from ascend_dump.reading import Record

__all__ = ["traced_to_sources"]

#: Maximum number of operators without a partner that are followed back from an origin.
_MOST_OPERATORS = 200


#: By tensor of the other side: the record of each rank.
_RecordsOfRanks = dict[Hashable, dict[Optional[int], Record]]


class _Source(NamedTuple):
    """The end of a search.

    write  the operator that is the origin; None if the tensors that are sent differ already
    kind   "structure"; "wiring" if it reads another tensor than the operator of the other side; "alone" or "missing" if
           this rank runs one operator more or less than one that agrees; of a call "exchanged" if a rank sends another
           tensor than the others, "reduction" if it combines terms of a sum by another operation, "replaced" if a rank
           had the right tensor before; "term" if the input is a part of a term of a sum over ranks
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
    steps |= {origin.step for origin in origins if _may_read_term(origin)}
    if not steps:
        return list(origins)
    flow = RankFlow(records, steps)
    #: By operator: an input that agrees as a term of a sum or mean over ranks.
    terms: dict[Hashable, Pair] = {}
    pair_of: dict[Hashable, Pair] = {}
    #: By operator of the other side: the ranks that run it too. By tensor of the other side: those that agree with it.
    ranks_of: dict[Hashable, set[Optional[int]]] = {}
    agreeing: dict[Hashable, list[Record]] = {}
    on_ranks: _RecordsOfRanks = {}
    for pair in pairs:
        record = pair.actual if of_actual else pair.reference
        if record is not None and record.step in steps:
            pair_of[record_key(record)] = pair
        sides = _sides(pair, of_actual)
        if sides is not None:
            ranks_of.setdefault(operator_key(sides[1]), set()).add(sides[0].rank)
            if sides[0].step in steps:
                on_ranks.setdefault(record_key(sides[1]), {})[sides[0].rank] = sides[0]
            is_term = sides[0].io == "input" and is_over_ranks(pair.transformation)
            if is_term and pair.verdict in ("equal", "noise") and sides[0].step in steps:
                terms.setdefault(operator_key(sides[0]), pair)
            if pair.verdict in ("equal", "noise") and sides[0].step == sides[1].step:
                agreeing.setdefault(record_key(sides[1]), []).append(sides[0])
    traced: list[Origin] = []
    for origin, first, start in zip(origins, inputs, starts):
        unreduced = _unreduced(origin, terms, flow, pair_of, of_actual) if _may_read_term(origin) else None
        if unreduced is not None:
            traced.append(unreduced)
            continue
        source = None if start is None else _source(*start, flow, pair_of, of_actual)
        if start is not None and (source is None or source.kind == "wiring"):
            peers = agreeing.get(record_key(start[1]), ())
            is_misread = source is not None
            of_peers = (_difference(start[0], peer, flow, is_misread=is_misread) for peer in peers)
            source = next(filter(None, of_peers), source)
        if source is None:
            ranks = set() if start is None else _runs_elsewhere(origin, start, ranks_of)
            traced.append(_where_seen(origin, ranks) if ranks else origin)
        elif source.kind == "term":
            assert source.write is not None, "a term has a maker"
            assert start is not None, "it was followed back from there"
            term = pair_of[record_key(source.write.output)]
            changed = _changed_term(start, term, flow, on_ranks, of_actual)
            if changed is not None:
                if all(changed.output is not other.pair.record for other in traced):
                    traced.append(_at_write(origin, first, changed, "alone", of_actual))
                continue
            cut = flow.cut(start[0])
            part = term if cut is None else pair_of.get(record_key(cut), term)
            traced.append(_not_reduced(origin, first, term, part, term.transformation))
        elif source.write is not None and not any(other.pair.record is source.write.output for other in traced):
            traced.append(_at_write(origin, first, source.write, source.kind, of_actual))
    return traced or list(origins)


def _runs_elsewhere(
    origin: Origin, start: tuple[Record, Record], paired: dict[Hashable, set[Optional[int]]]
) -> set[Optional[int]]:
    """Return the ranks that run the operator of an origin, which its own rank does not, because it has another stage.

    Empty if other ranks read the result too: then the operator is missing on this rank, unless the rank reads memory of
    equal elements, which waits for data of another rank.

    start: the input that differs, on the side with several ranks and on the other one
    """
    is_of_other_side = origin.seen is not None and None in (origin.pair.actual, origin.pair.reference)
    readers = paired.get(operator_key(start[1]), set()) - {start[0].rank}
    if not is_of_other_side or (readers and not is_constant(start[0])):
        return set()
    return paired.get(operator_key(origin.pair.record), set()) - {start[0].rank}


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


def _may_read_term(origin: Origin) -> bool:
    # The backward pass reads what the forward pass has read before.
    record = origin.pair.record
    return origin.kind == "compute" and record.io == "output" and record.phase != "backward"


def _unreduced(
    origin: Origin, terms: dict[Hashable, Pair], flow: RankFlow, pair_of: dict[Hashable, Pair], of_actual: bool
) -> Optional[Origin]:
    """Return an origin at the tensor that should be reduced over ranks before an operator reads it; else None.

    The operator is right for its inputs: only the sum or mean of this input over the ranks agrees with the other side.
    """
    sides = _sides(origin.pair, of_actual)
    term = None if sides is None else terms.get(operator_key(sides[0]))
    term_sides = None if term is None else _sides(term, of_actual)
    write = None if term_sides is None else flow.write(term_sides[0])
    made = None if write is None else pair_of.get(record_key(write.output))
    if sides is None or term is None or write is None or write.is_call or made is None:
        return None
    return _not_reduced(origin, origin.pair, made, made, term.transformation)


def _not_reduced(origin: Origin, reader: Pair, term: Pair, part: Pair, transformation: str) -> Origin:
    """Return an origin at a term of a sum or mean that is not reduced.

    reader  the pair that differs because of it
    part    the term, or the part of it that is cut out
    """
    evidence = (
        f"{term.record.label}: the {transformation} agrees, and {reader.record.op_name} reads the term of one rank: "
        f"{NOT_REDUCED}",
        f"{reader.record.label}: {reader.reason}",
    )
    return replace(origin, kind="structure", pair=part, evidence=evidence)


def _changed_term(
    start: tuple[Record, Record], term: Pair, flow: RankFlow, on_ranks: _RecordsOfRanks, of_actual: bool
) -> Optional[Write]:
    """Return the write by which another rank changes its term before it is read; None if there is none.

    This rank reads its term as it was made, so that the sum over the ranks would agree if all ranks did.

    start: the tensor that is read, on the side with several ranks and on the other one. term: the pair of the term
    """
    made, read = (on_ranks.get(record_key(record), {}) for record in (_other_side(term, of_actual), start[1]))
    writes = {rank: flow.write(record) for rank, record in read.items() if rank in made}
    changed = [
        write
        for rank, write in writes.items()
        if write is not None and not write.is_call and record_key(write.output) != record_key(made[rank])
    ]
    return changed[0] if len(changed) < len(writes) and changed else None


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
            is_term = is_over_ranks(pair.transformation) and pair.verdict in ("equal", "noise")
            if is_term and not path and not write.is_call:
                return _Source(write, "term")
            verdicts.append("received" if pair.differs and write.output.rank != record.rank else pair.verdict)
            continue
        if not write.is_call and has_whole(write.output, whole):
            continue  # it is the part that the rank should have
        for sources, kind in ((write.inputs, "structure"), (write.replaced, "replaced")):
            if _have_whole(sources, whole, write):
                return _Source(write, kind)
        path.append(write)
        waiting += [*write.inputs, *flow.alike(write)]
    if "received" in verdicts:
        return _Source(None)
    of_calls = (_wrong_call(write, whole, flow, pair_of, of_actual) for write in path if write.is_call)
    in_call = next(filter(None, of_calls), None)
    if in_call is not None:
        return in_call
    copies = [write for write in path if not write.is_call]
    # A tensor that was only copied and sent, and that agrees with another one than the other side reads.
    is_misread = verdicts in (["equal"], ["noise"]) and all(is_view(write.operator[0].op_type) for write in copies)
    return _Source(copies[0], "wiring") if copies and is_misread else None


def _wrong_call(
    write: Write, whole: Record, flow: RankFlow, pair_of: dict[Hashable, Pair], of_actual: bool
) -> Optional[_Source]:
    """Return the wrong part of a rank in a call, if the tensors that the ranks send show it. whole: as in `_source`"""
    call = collective_of(write.operator[0])
    sent = [(record, _counterpart(record, flow, pair_of, of_actual)) for record in write.inputs]
    known = [(record, pair) for record, pair in sent if pair is not None]
    terms = [record for record, pair in known if is_over_ranks(pair.transformation)]
    if call is not None and call[0].reduce in NO_SUMS and terms:
        return _Source(write, "reduction")
    contents = [_other_side(pair, of_actual).content for _, pair in known]
    # All ranks send the tensor that most of them send, or the reader reads on the other side; one sends another one.
    usual = Counter(contents).most_common(1)[0][0] if len(contents) > 2 else whole.content
    others = [record for (record, _), content in zip(known, contents) if content != usual]
    if len(terms) == len(sent) and len(others) == 1:
        return _Source(Write(others, others[0], ()), "exchanged")
    unknown = [record for record, pair in sent if pair is None]
    differences = (_difference(record, known[0][0], flow) for record in unknown if known)
    return next(filter(None, differences), None)


def _counterpart(record: Record, flow: RankFlow, pair_of: dict[Hashable, Pair], of_actual: bool) -> Optional[Pair]:
    """Return the pair that agrees of the tensor from which copies and factors make the one that a rank sends."""
    tensor: Optional[Record] = record
    for _ in range(_MOST_OPERATORS):
        write = None if tensor is None else flow.write(tensor)
        if write is None or write.is_call:
            return None
        pair = pair_of.get(record_key(write.output))
        if pair is not None and _sides(pair, of_actual) is not None and pair.verdict != "unmatched":
            return pair if pair.verdict in ("equal", "noise") else None
        tensor = write.inputs[0] if len(write.inputs) == 1 else None
    return None


def _other_side(pair: Pair, of_actual: bool) -> Record:
    sides = _sides(pair, of_actual)
    assert sides is not None, "the pair has both sides"
    return sides[1]


def _difference(record: Record, peer: Record, flow: RankFlow, *, is_misread: bool = False) -> Optional[_Source]:
    """Return the only operator that one of two ranks runs to make the tensor that both read; else None.

    Copies count only if there is no other operator.

    peer        the tensor of another rank, which agrees with the other side
    is_misread  the tensor was only copied, so operators count that the rank runs for other tensors only
    """
    own, theirs = (_prepared(tensor, flow) for tensor in (record, peer))
    extra = [write for key, write in own.items() if (peer.rank, *key) not in flow.lines]
    missing = [
        write
        for key, write in theirs.items()
        if (key not in own if is_misread else (record.rank, *key) not in flow.lines)
    ]
    found = [_Source(write, "alone") for write in extra] + [_Source(write, "missing") for write in missing]
    computed = [source for source in found if source.write is not None and not _is_copy(source.write)]
    chosen = computed or found
    return chosen[0] if len(chosen) == 1 else None


def _is_copy(write: Write) -> bool:
    return is_view(write.operator[0].op_type)


def _prepared(record: Record, flow: RankFlow) -> dict[tuple[str, Optional[str]], Write]:
    """Return the operators by which a rank makes a tensor, since the last call, by type and line."""
    found: dict[tuple[str, Optional[str]], Write] = {}
    waiting, visited = [record], 0
    while waiting and visited < _MOST_OPERATORS:
        visited += 1
        write = flow.write(waiting.pop(0))
        if write is None or write.is_call:
            continue
        if write.inputs:
            found.setdefault((write.output.op_type, write.output.source), write)
        waiting += write.inputs
    return found


def _have_whole(sources: Sequence[Record], whole: Record, write: Write) -> bool:
    """Return True if an operator reads what the other side has.

    Of parts that it joins, all have to be those of the other side: one of them alone says nothing about the others.
    """
    result = whole if write.is_call else write.output
    for source in sources:
        if has_whole(source, whole):
            is_joined = math.prod(source.shape or ()) < math.prod(result.shape or ())
            return not is_joined or all(has_whole(other, whole) for other in sources if is_float_tensor(other))
    return False


def _at_write(origin: Origin, seen: Pair, write: Write, kind: str, of_actual: bool) -> Origin:
    """Return an origin at an operator that only one side runs. seen: the input that reads its result and differs"""
    output, record = write.output, seen.record
    read = f"{record.label}: {seen.reason}"
    rank = f" on rank {record.rank}" if record.rank != output.rank else ""
    text = f"{output.op_type} runs in {'actual' if of_actual else 'the reference'} only"
    if kind == "missing":
        text, result = f"rank {output.rank} runs {output.op_type}, rank {record.rank} does not", f"there {read}"
    elif kind == "exchanged":
        text, result = f"rank {output.rank} sends another tensor than the other ranks", f"its result is read as {read}"
    elif kind == "reduction":
        text, result = f"{output.op_type} combines terms of a sum, but not by a sum", f"its result is read as {read}"
    elif kind == "replaced":
        text = f"{output.op_type} replaces the tensor of the other side, which a rank had, by another one"
        result = f"its result differs, read{rank} as {read}"
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
