"""Pair results of two programs that are computed from the same tensors, although by other operators.

Both programs compute a tensor from the results of certain pairs, such as products with the same weight. One rotates
keys with tables, another one multiplies complex numbers; one adds the residual in a layer, another one in a norm. The
last results that are computed from the same tensors correspond to each other, even if they differ. So a difference is
added where it begins, and not where all of these results have been mixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.alignment.built_otherwise.products import is_product
from ascend_dump.analysis.alignment.token_groups import computes_floats
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow, InputSource
from ascend_dump.analysis.pairing.matches import Match, RecordPair
from ascend_dump.reading import Record

__all__ = ["operators_between", "results_of_same_sources"]

#: A tensor that is computed from more pairs than this is not searched for.
_MOST_SOURCES = 8
#: The pairs are searched this often, each time with the new ones as further sources.
_MOST_PASSES = 6
#: The numbers of the pairs that a tensor is computed from; None if they are too many.
_Sources = Optional[frozenset[int]]
#: Operators that move elements, but may make a result of several others.
_JOINING = frozenset({"cat", "stack"})
_NOTHING: frozenset[int] = frozenset()


class _Columns(NamedTuple):
    """The columns of the result of a wide product that are the result of a narrow product, as a range."""

    begin: int
    end: int
    number: int


class _Trace(NamedTuple):
    """The pairs from which the results of one side are computed.

    results  by these pairs: the operators without a partner that operators with further sources read
    sources  by position of each operator: the numbers of these pairs
    """

    results: dict[frozenset[int], list[Operator]]
    sources: dict[int, _Sources]


def results_of_same_sources(
    flows: Sequence[DataFlow],
    positions: Sequence[Sequence[int]],
    sides: Sequence[Sequence[Operator]],
    matches: Sequence[Match],
) -> list[Match]:
    """Return matches of operators without a partner: their results are computed from the same certain pairs.

    flows      the data flow of the base call of each side
    positions  for each side and operator: its position in the data flow, which a divided operator shares
    sides      the operators of both sides
    matches    the operators with partners
    """
    added: list[Match] = []
    traces: list[_Trace] = []
    for _ in range(_MOST_PASSES):
        certain_pairs = [*matches, *added]
        traces = [
            _trace(side, flow, numbers, operators, certain_pairs)
            for side, (flow, numbers, operators) in enumerate(zip(flows, positions, sides))
        ]
        results = [trace.results for trace in traces]
        new = [
            Match(a, b, "dataflow", 0.8)
            for sources, of_actual in results[0].items()
            if len(of_actual) == len(results[1].get(sources, ()))
            for a, b in zip(of_actual, results[1][sources])
        ]
        if not new:
            break
        added += new
    certain_pairs = [*matches, *added]
    return [match._replace(tensors=_tensors(match, positions, traces, certain_pairs)) for match in added]


def _tensors(
    match: Match, positions: Sequence[Sequence[int]], traces: Sequence[_Trace], certain_pairs: Sequence[Match]
) -> tuple[list[RecordPair], list[RecordPair]]:
    """Return the pairs of results that the result of a match is computed from, and the pair of this result."""
    numbers: set[int] = set()
    for originals, trace, operator in zip(positions, traces, (match.actual, match.reference)):
        numbers |= trace.sources[originals[operator.position]] or set()
    inputs = [pair for number in sorted(numbers) for pair in certain_pairs[number].outputs[:1]]
    return inputs, [(match.actual.outputs[0], match.reference.outputs[0])]


def operators_between(flow: DataFlow, end: int, sources: set[int]) -> list[Operator]:
    """Return the operators that compute a result from its sources, with the last one.

    end      the position of the operator that makes the result
    sources  the positions of the operators that make the sources
    """
    waiting, before = [end], {end}
    while waiting:
        for source in flow.sources[waiting.pop()]:
            for source_output in (source.maker, source.root):
                if source_output is not None and source_output.position not in (OUTSIDE, *sources, *before):
                    before.add(source_output.position)
                    waiting.append(source_output.position)
    return [flow.operators[position] for position in sorted(before) if computes_floats(flow.operators[position])]


def _trace(
    side: int, flow: DataFlow, positions: Sequence[int], operators: Sequence[Operator], matches: Sequence[Match]
) -> _Trace:
    """Return the pairs that the results of a side are computed from."""
    certain: dict[int, list[tuple[Operator, int]]] = {}
    paired: set[int] = set()
    for number, match in enumerate(matches):
        operator = match.reference if side else match.actual
        paired.add(positions[operator.position])
        if _is_certain(match):
            certain.setdefault(positions[operator.position], []).append((operator, number))
    by_position = {positions[operator.position]: operator for operator in operators}
    sources: dict[tuple[int, int], _Sources] = {}
    #: By position of an operator: the operators that compute its inputs, without moves between them.
    makers: dict[tuple[int, int], frozenset[int]] = {}
    read_outside: set[int] = set()
    of_operators: dict[int, _Sources] = {}
    for position, operator in enumerate(flow.operators):
        inputs = [
            (_sources_of(source, flow, certain, sources), _makers_of(source, makers))
            for source in flow.sources[position]
        ]
        computed_before = frozenset[int]().union(*(read_from for _, read_from in inputs))
        is_joined = operator_class(operator.op_type) in _JOINING and sum(bool(read_from) for _, read_from in inputs) > 1
        computes = computes_floats(operator) or is_joined
        combined = _union([of_input for of_input, _ in inputs])
        computed_by = frozenset({position}) if computes else computed_before
        for output in operator.outputs:
            is_certain = position in certain
            sources[position, output.index] = frozenset(n for _, n in certain[position]) if is_certain else combined
            makers[position, output.index] = computed_by
        of_operators[position] = combined
        if computes:
            for _, read_from in inputs:
                for maker in read_from:
                    if of_operators.get(maker) != combined:
                        read_outside.add(maker)
    results: dict[frozenset[int], list[Operator]] = {}
    for position in sorted(read_outside):
        of_result, member = of_operators[position], by_position.get(position)
        if of_result and position not in paired and member is not None and member.outputs:
            results.setdefault(of_result, []).append(member)
    return _Trace(results, of_operators)


def _is_certain(match: Match) -> bool:
    return match.how in ("mapping", "value", "content", "dataflow") or (
        is_product(match.reference) and is_product(match.actual)
    )


def _union(sets: Sequence[_Sources]) -> _Sources:
    result: set[int] = set()
    for members in sets:
        if members is None:
            return None
        result |= members
    return frozenset(result) if len(result) <= _MOST_SOURCES else None


def _sources_of(
    source: InputSource,
    flow: DataFlow,
    certain: Mapping[int, Sequence[tuple[Operator, int]]],
    sources: Mapping[tuple[int, int], _Sources],
) -> _Sources:
    root = source.root
    if root is not None and len(certain.get(root.position, ())) > 1:
        wide = flow.operators[root.position].outputs[0]
        numbers = _in_columns(source.record, wide, list(_columns(certain[root.position])))
        if numbers is not None:
            return numbers
    for source_output in (source.maker, root):
        if source_output is not None and source_output.position != OUTSIDE:
            return sources.get((source_output.position, source_output.output), _NOTHING)
    return _NOTHING


def _makers_of(source: InputSource, makers: Mapping[tuple[int, int], frozenset[int]]) -> frozenset[int]:
    for source_output in (source.maker, source.root):
        if source_output is not None and source_output.position != OUTSIDE:
            return makers.get((source_output.position, source_output.output), frozenset())
    return frozenset()


def _columns(narrow: Sequence[tuple[Operator, int]]) -> Iterator[_Columns]:
    """Yield the columns of narrow products: their names end with the ranges of their outputs."""
    for operator, number in narrow:
        ranges = operator.op_name.rpartition("[")[2].rstrip("]") if operator.op_name.endswith("]") else ""
        for part in ranges.split(",") if ranges else ():
            begin, _, end = part.partition(":")
            yield _Columns(int(begin), int(end), number)


def _in_columns(record: Record, wide: Record, columns: Sequence[_Columns]) -> _Sources:
    """Return the numbers of the narrow products with columns in a view of a wide result."""
    import numpy as np

    storages = storage_of(record), storage_of(wide)
    offsets = record.attrs.get("storage_offset"), wide.attrs.get("storage_offset")
    width = (wide.shape or (0,))[-1]
    if storages[0] is None or storages[1] is None or storages[0][0] != storages[1][0] or not width:
        return None
    if offsets[0] is None or offsets[1] is None:
        return None
    columns_read = np.array([(offsets[0] - offsets[1]) % width])
    for size, stride in zip(record.shape or (), record.attrs.get("stride") or ()):
        if stride < width:
            columns_read = (columns_read[:, None] + np.arange(size) * stride).reshape(-1)
    return frozenset(
        number for begin, end, number in columns if bool(((columns_read >= begin) & (columns_read < end)).any())
    )
