"""Compare the steps of one rank: pair their operators, and walk them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple, Optional, TypeVar

from ascend_dump.analysis.alignment.built_otherwise.borders import RecordKey
from ascend_dump.analysis.alignment.built_otherwise.flat_memory import with_divided_memory
from ascend_dump.analysis.alignment.built_otherwise.products import is_product
from ascend_dump.analysis.alignment.built_otherwise.transposed_weights import TransposedWeights
from ascend_dump.analysis.alignment.ranks_and_steps import (
    Key,
    RankGroup,
    ReadMadeOf,
    Steps,
    operators_in,
)
from ascend_dump.analysis.alignment.rows import RowFinder
from ascend_dump.analysis.alignment.shards import Portions
from ascend_dump.analysis.alignment.step_boundaries import (
    OperatorSteps,
    are_parts_of_batches,
    divided_steps,
    may_be_divided,
    may_be_parts_of_batches,
)
from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.compare._corrections import Corrections, corrections
from ascend_dump.analysis.compare._on_executor import RankResult
from ascend_dump.analysis.compare._proven_updates import Updates
from ascend_dump.analysis.compare.by_tokens.attention import with_attention
from ascend_dump.analysis.compare.by_tokens.makers import with_makers
from ascend_dump.analysis.compare.by_tokens.origins import (
    uncompared_tokens,
    with_added_results,
    with_misread_token,
    with_tokens,
    without_consequences,
)
from ascend_dump.analysis.compare.by_tokens.other_elements import with_other_elements
from ascend_dump.analysis.compare.by_tokens.random_operators import with_random_operator
from ascend_dump.analysis.compare.by_tokens.results import (
    scaled_on_one_side,
    settled_by_results,
    token_results,
    unexplained_results,
)
from ascend_dump.analysis.compare.by_tokens.shared_lines import with_calls, with_lines_around
from ascend_dump.analysis.compare.by_tokens.traced_difference import with_traced_difference, with_traced_operand
from ascend_dump.analysis.compare.by_tokens.wrong_positions import with_wrong_positions
from ascend_dump.analysis.explaining.pairs import EqualStep, are_equal
from ascend_dump.analysis.explaining.results import Crossing, Pair
from ascend_dump.analysis.explaining.walk import Divergence
from ascend_dump.analysis.explaining.wiring import Wiring
from ascend_dump.analysis.judging.second_run import Spread
from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.layer_names import with_names_of
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.cross_framework import is_cross_framework, pair_cross_framework
from ascend_dump.analysis.pairing.matches import Match, crossings
from ascend_dump.analysis.pairing.other_names import other_names
from ascend_dump.analysis.pairing.ported_modules import PortedModules, are_ported_modules
from ascend_dump.analysis.pairing.same_framework import align
from ascend_dump.analysis.pairing.stretches import stretches_of
from ascend_dump.analysis.replay.rerun import Rerun
from ascend_dump.reading import Batch

__all__ = ["Work", "compare_rank", "compare_tokens"]

#: How often the operators of a rank are walked, each time without harmless differences that the walk before reported.
_MOST_WALKS = 3
#: Minimum number of calls of modules of one class that show the type in which a program computes.
_FEW_CALLS = 3
_PARTS_OF_BATCHES = (
    "one side calls the model with parts of the batch, and each call is a step, so no steps correspond: "
    'capture both with options={"step": "optimizer"}'
)
_Result = TypeVar("_Result")
#: A generator of a result that yields once for each piece of work.
Work = Generator[object, None, _Result]


class _RankProgress(NamedTuple):
    """The results of one rank so far.

    inside, left_out: numbers of operators by side; updates: operators of one side in two frameworks; corrections: by
    step; others: as in `RankResult`
    """

    parts: list[Sequence[Pair]]
    inside: Counter[str]
    left_out: Counter[str]
    crossings: list[Crossing]
    mapped: set[str]
    updates: Updates
    corrections: dict[Key, Corrections]

    @classmethod
    def empty(cls) -> _RankProgress:
        return cls([], Counter(), Counter(), [], set(), Updates(), {})


def compare_rank(
    rules: Rules,
    mapping: Optional[Mapping[str, str]],
    spreads: dict[Key, list[Batch]],
    shared_spread: Optional[list[Batch]],
    made_of: tuple[ReadMadeOf, ReadMadeOf],
    group: Optional[RankGroup],
    replay: bool,
    steps: Steps,
    row_finder: Optional[RowFinder] = None,
) -> Work[RankResult]:
    """Return the result of one rank. steps: the steps of both sides, in the order in which they are compared.

    If results show that operators were paired wrongly, all steps are compared once more, with other pairs.
    """
    others = (mapping, spreads, shared_spread, made_of, group, replay, steps, row_finder)
    result, corrected = yield from _compare_pairs(rules, {}, *others)
    if corrected:
        again, _ = yield from _compare_pairs(rules, corrected, *others)
        dropped = {name for found in corrected.values() for names in found.apart for name in names}
        # An operator that is an origin without its partner, too, is wrong: another activation, for example.
        if not again.origins or again.origins[0].op_name not in dropped:
            result = min(again, result, key=_count_differing)
    return result


def _count_differing(result: RankResult) -> int:
    return sum(pair.differs for part in result.parts if not isinstance(part, EqualStep) for pair in part)


def _compare_pairs(
    rules: Rules,
    corrected: Mapping[Key, Corrections],
    mapping: Optional[Mapping[str, str]],
    spreads: dict[Key, list[Batch]],
    shared_spread: Optional[list[Batch]],
    made_of: tuple[ReadMadeOf, ReadMadeOf],
    group: Optional[RankGroup],
    replay: bool,
    steps: Steps,
    row_finder: Optional[RowFinder],
) -> Work[tuple[RankResult, dict[Key, Corrections]]]:
    """Return the result of one rank, and if it has origins, what results show about its pairs, by step.

    corrected: what an earlier comparison showed about the pairs
    """
    if group is None and (row_finder is None or not row_finder.has_rows) and may_be_parts_of_batches(steps):
        with_operators = [(key, operators_in(a, made_of[0]), operators_in(b, made_of[1])) for key, a, b in steps]
        if are_parts_of_batches(with_operators):
            return _result_of_parts(with_operators), {}
    divergence = Divergence(rules, Rerun(rules) if replay else None)
    progress = _RankProgress.empty()
    parts = progress.parts
    is_divided = group is None and (row_finder is None or not row_finder.has_rows) and may_be_divided(steps)
    names: Optional[dict[str, str]] = None
    transposed, ported = TransposedWeights(), PortedModules()
    for key, a, b in () if is_divided else steps:
        has_rows = row_finder is not None and row_finder.has_rows
        if not mapping and not has_rows and divergence.is_clean and are_equal(a, b):
            parts.append(EqualStep(a, b))
            divergence.add_equal_step(key[1])
            yield from repeat(None, len(parts[-1]))
            continue
        operators = operators_in(a, made_of[0]), operators_in(b, made_of[1])
        if group is None and a and b:
            names = other_names(*operators[::-1]) if names is None else names
            operators = operators[0], with_names_of(operators[1], names, keep_labels=True)
            operators = with_divided_memory(*transposed.turned(*operators))
        if group is not None:
            several = group.operators(key[0], a if group.of_actual else b)
            operators = (several, operators[1]) if group.of_actual else (operators[0], several)
        if row_finder is not None:
            operators = row_finder.cut(*operators, mapping)
        second_run = operators_in(spreads.get(key, shared_spread) or (), None)
        shards = None if group is None else group.shards(key, *(operators if group.of_actual else operators[::-1]))
        walk = _walk_step(
            divergence,
            *operators,
            second_run,
            mapping,
            progress,
            shards,
            corrected=corrected.get(key),
            ported=ported if group is None else None,
        )
        parts.append((yield from _pairs_of_step(divergence, walk)))
        found = corrections(parts[-1]) if group is None and not corrected else None
        if found is not None:
            progress.corrections[key] = found
    if is_divided:
        with_operators = [(key, operators_in(a, made_of[0]), operators_in(b, made_of[1])) for key, a, b in steps]
        for key, actual, reference in divided_steps(with_operators):
            second_run = operators_in(spreads.get(key, shared_spread) or (), None)
            walk = _walk_step(divergence, actual, reference, second_run, mapping, progress)
            parts.append((yield from _pairs_of_step(divergence, walk)))
    inside, left_out = ((counts["actual"], counts["reference"]) for counts in (progress.inside, progress.left_out))
    of_program = (divergence.origins(), divergence.changed())
    counts = (inside, left_out)
    crossed, mapped = progress.crossings, sorted(progress.mapped)
    aligned = () if row_finder is None else tuple(row_finder.notes())
    aligned = (*aligned, *divergence.divided())
    if not of_program[0]:
        parts, of_updates = progress.updates.without_proven(parts)
        aligned = aligned if of_updates is None else (*aligned, of_updates)
    result = RankResult(parts, *of_program, *counts, crossed, group is not None, mapped, divergence.rebuilt(), aligned)
    return result, progress.corrections if result.origins else {}


def _result_of_parts(steps: OperatorSteps) -> RankResult:
    """Return the result of a rank of which no steps correspond: no record has a partner."""
    parts: list[Sequence[Pair]] = []
    for _, *sides in steps:
        pairs: list[Pair] = []
        for side, operators in enumerate(sides):
            for record in (record for operator in operators for record in operator.records):
                verdict, reason = "unmatched", _PARTS_OF_BATCHES
                if record.error is not None:
                    verdict, reason = "unreadable", str(record.error)
                actual, reference = (record, None) if side == 0 else (None, record)
                pairs.append(Pair(actual, reference, "", 0.0, verdict, reason))
        parts.append(pairs)
    return RankResult(parts, [], [], (0, 0), (0, 0), [], False, [], [], (_PARTS_OF_BATCHES,))


def compare_tokens(rules: Rules, mapping: Optional[Mapping[str, str]], alignment: TokenAlignment) -> Work[RankResult]:
    """Return the result of one rank, all steps at once: its operators are compared token by token."""
    operators = alignment.operators(mapping)
    divergence, progress = yield from _walk_tokens(rules, mapping, operators)
    for _ in range(_MOST_WALKS - 1):
        remaining = alignment.without_harmless(set(_unequal(progress.parts[0])))
        if remaining is None:
            break
        operators = remaining
        divergence, progress = yield from _walk_tokens(rules, mapping, operators)
    inside, left_out = ((counts["actual"], counts["reference"]) for counts in (progress.inside, progress.left_out))
    results = token_results(alignment, operators[:2])
    origins = divergence.origins(results_differ=results is not None and results.differ)
    of_tokens = with_tokens(origins, progress.parts[0], alignment)
    origins = with_wrong_positions(of_tokens, results, alignment)
    if origins == of_tokens:
        origins = with_attention(of_tokens, progress.parts[0], alignment)
    if origins == of_tokens:
        origins = with_traced_operand(of_tokens, progress.parts[0], alignment)
    if origins == of_tokens:
        origins = with_other_elements(origins, progress.parts[0], alignment)
    if origins == of_tokens:
        origins = with_traced_difference(origins, progress.parts[0], alignment)
    origins = without_consequences(origins, of_tokens[0], alignment) if of_tokens else []
    origins = with_random_operator(origins, progress.parts[0], alignment)
    origins, of_cache = with_misread_token(origins, alignment)
    origins = [with_makers(origin, alignment) for origin in with_added_results(origins, alignment)]
    if results is not None and results.are_clear:
        whole_calls = [alignment.base_operators(side) for side in (0, 1)]
        origins, progress.parts[0] = settled_by_results(results, whole_calls, origins, progress.parts[0])
    origins = with_lines_around(with_calls(origins, alignment), alignment)
    uncompared = uncompared_tokens(alignment)
    has_origin = bool(origins)
    unexplained = None if results is None else unexplained_results(results, progress.parts[0], has_origin=has_origin)
    uncompared += [] if unexplained is None else [unexplained]
    progress.parts.append(uncompared)
    notes = (
        *(() if results is None else (results.text, *scaled_on_one_side(alignment))),
        *(pair.reason for pair in uncompared),
        *of_cache,
        *alignment.notes(),
    )
    return RankResult(
        progress.parts,
        origins,
        divergence.changed(),
        inside,
        left_out,
        progress.crossings,
        False,
        sorted(progress.mapped),
        divergence.rebuilt(),
        notes,
        alignment.omitted,
    )


def _walk_tokens(
    rules: Rules, mapping: Optional[Mapping[str, str]], operators: tuple[list[Operator], list[Operator], list[Match]]
) -> Work[tuple[Divergence, _RankProgress]]:
    divergence = Divergence(rules, None, by_tokens=True)
    progress = _RankProgress.empty()
    walk = _walk_step(divergence, operators[0], operators[1], [], mapping, progress, matches=operators[2])
    progress.parts.append((yield from _pairs_of_step(divergence, walk)))
    return divergence, progress


def _unequal(pairs: Iterable[Pair]) -> Iterator[RecordKey]:
    """Yield the keys of records that are neither equal nor differ by rounding only."""
    for pair in pairs:
        if pair.verdict not in ("equal", "noise"):
            for side, record in enumerate((pair.actual, pair.reference)):
                if record is not None:
                    yield side, record.op_name, record.io, record.index


def _pairs_of_step(divergence: Divergence, walk: Iterator[Pair]) -> Work[list[Pair]]:
    """Return the pairs of a step. walk: yields the pairs of the operators of the step."""
    pairs = []
    for pair in walk:
        pairs.append(pair)
        yield pair
    for pair in divergence.end_step():
        pairs.append(pair)
        yield pair
    return [divergence.final(pair) for pair in pairs if not divergence.inside(pair)]


def _walk_step(
    divergence: Divergence,
    actual: list[Operator],
    reference: list[Operator],
    second_run: list[Operator],
    mapping: Optional[Mapping[str, str]],
    progress: _RankProgress,
    shards: Optional[Portions] = None,
    matches: Optional[list[Match]] = None,
    corrected: Optional[Corrections] = None,
    ported: Optional[PortedModules] = None,
) -> Iterator[Pair]:
    if mapping or matches is not None or not are_ported_modules(actual, reference):
        ported = None
    if ported is not None or (shards is None and matches is None and is_cross_framework(actual, reference)):
        across = pair_cross_framework(actual, reference, mapping) if ported is None else ported.pair(actual, reference)
        progress.inside.update(actual=across.inside[0], reference=across.inside[1])
        progress.updates.add_step((actual, reference), across.updates, across.gradients)
        progress.left_out.update(actual=across.left_out[0], reference=across.left_out[1])
        progress.crossings.extend(map(_crossing, crossings(across.matches)))
        progress.mapped.update(_mapped(across.matches))
        spread = Spread(second_run, reference) if second_run else None
        updates = None if ported is None else (actual, reference)
        divergence.begin_step(
            reference, _cast(across.matches), across.views, spread, types=across.types, updates=updates
        )
        for across_match in across.matches:
            yield from divergence.walk(across_match)
        for side, alone in enumerate(across.alone):
            for operator in alone:
                is_update = operator.position in across.updates[side]
                yield from divergence.only(operator, of_actual=side == 0, is_update=is_update)
        return
    of_types, are_complete = matches, matches is None
    if matches is None:
        agreeing, apart = ({}, set()) if corrected is None else corrected
        of_types = matches = align(actual, reference, mapping, parts=shards is not None, agreeing=agreeing, apart=apart)
    else:
        # Engines compute norms and scores in a wider type than the rest: the products tell the type of the program.
        of_types = [match for match in matches if is_product(match.reference)]
    progress.crossings.extend(map(_crossing, crossings(matches)))
    progress.mapped.update(_mapped(matches))
    spread = Spread(second_run, reference) if second_run else None
    wiring = Wiring(actual, reference, matches)
    stretches = stretches_of(actual, reference, matches, lambda: wiring.flows, are_complete=are_complete)
    divergence.begin_step(
        reference,
        _cast(of_types),
        spread=spread,
        shards=shards,
        stretches=stretches,
        sources=wiring,
    )
    partner = {match.reference.position: match for match in matches}
    taken = {match.actual.position for match in matches}
    waiting = [operator for operator in actual if operator.position not in taken]
    for operator in reference:
        match = partner.get(operator.position)
        if match is None:
            yield from divergence.only(operator, of_actual=False)
            continue
        while waiting and waiting[0].position < match.actual.position:
            yield from divergence.only(waiting.pop(0), of_actual=True)
        yield from divergence.walk(match)
    for operator in waiting:
        yield from divergence.only(operator, of_actual=True)


def _mapped(matches: Iterable[Match]) -> Iterator[str]:
    return (match.actual.op_name for match in matches if match.how == "mapping")


def _crossing(match: Match) -> Crossing:
    actual, reference = match.actual, match.reference
    record = next(reference.records)
    return Crossing(actual.label, reference.label, match.how, match.confidence, record.step, record.rank)


def _cast(matches: list[Match]) -> Optional[tuple[str, str]]:
    """Return the types of both sides if most outputs have a type on one side and another on the other; else None.

    Dumps of modules do not show casts, so there most outputs of the modules of one class are enough. For example,
    autocast changes the types of the results of linear layers, and not those of norms.
    """
    of_classes: dict[str, Counter[tuple[str, str]]] = {"": Counter()}
    for match in matches:
        for types in _float_types(match):
            for name in {"", _class_of_module(match)}:
                of_classes.setdefault(name, Counter())[types] += 1
    for name, counts in of_classes.items():
        [(types, count)] = counts.most_common(1) or [(("", ""), 0)]
        is_usual = 2 * count > sum(counts.values()) and (not name or count >= _FEW_CALLS)
        if types[0] != types[1] and is_usual and float_kind(types[0]):
            return types
    return None


def _class_of_module(match: Match) -> str:
    """Return the class of a module call of the forward pass; "" for other operators.

    The types of gradients are those of the inputs.
    """
    record = next(match.reference.records, None)
    is_call = record is not None and is_of_module(record) and match.reference.phase == "forward"
    return match.reference.op_type if is_call else ""


def _float_types(match: Match) -> Iterator[tuple[str, str]]:
    """Yield the types of the outputs of both sides, if those of the reference are floats."""
    for a, b in match.outputs:
        if a is not None and b is not None and a.dtype is not None and float_kind(b.dtype or "") is not None:
            yield a.dtype, b.dtype or ""
