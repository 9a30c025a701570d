"""Combine the results of ranks and labels into one comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.compare._comparison import Comparison
from ascend_dump.analysis.compare._labels import named_by_label, verdict_of
from ascend_dump.analysis.compare._on_executor import RankResult
from ascend_dump.analysis.compare._surroundings import differing_surroundings
from ascend_dump.analysis.compare._unused import unused_names, unused_rules
from ascend_dump.analysis.explaining.origins import importance
from ascend_dump.analysis.explaining.pairs import Pairs
from ascend_dump.analysis.explaining.results import ChangedCall, Origin, Pair, Rebuilt
from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.analysis.operators.operator import parameter_name
from ascend_dump.analysis.operators.properties import COLLECTIVES
from ascend_dump.common.units import counted
from ascend_dump.reading import Dump

__all__ = ["ResultGroup", "combine", "combine_groups"]


_ENLARGED = "follows from rounding that an optimizer enlarged on another rank"
_LOCAL = "a rank's own update: the mean over ranks agrees, and so does a later update, or what later steps compute"


class ResultGroup(NamedTuple):
    """The results of all ranks of one label. dumps: the parts of actual and of the reference with this label."""

    label: str
    dumps: Sequence[Dump]
    results: Sequence[RankResult]


def _origins_and_pairs(
    dumps: Sequence[Dump], results: Sequence[RankResult]
) -> tuple[Sequence[Origin], Pairs, Sequence[str]]:
    """Return the origins of all ranks without those received from other ranks; the pairs; and notes on both."""
    notes: list[str] = []
    origins: Sequence[Origin] = [origin for result in results for origin in result.origins]
    pairs = Pairs([part for result in results for part in result.parts])
    if results[0].are_parts:
        from ascend_dump.analysis.ranks.against_one.arguments_of_some_ranks import with_arguments_of_some_ranks
        from ascend_dump.analysis.ranks.against_one.causes_of_local_results import with_causes_of_local_results
        from ascend_dump.analysis.ranks.against_one.enlarged_rounding import without_enlarged_rounding
        from ascend_dump.analysis.ranks.against_one.lines_of_some_ranks import with_lines_of_some_ranks
        from ascend_dump.analysis.ranks.against_one.local_origins import (
            first_of_local_results,
            without_local_updates,
            without_updates_of_no_rank,
        )
        from ascend_dump.analysis.ranks.against_one.outer_updates import after_inner_updates
        from ascend_dump.analysis.ranks.against_one.parts_in_turn import with_parts_in_turn
        from ascend_dump.analysis.ranks.against_one.traced_origins import traced_to_sources
        from ascend_dump.analysis.ranks.against_one.wrong_collectives import (
            of_one_rank,
            once_for_ranks,
            with_wrong_calls,
        )

        # If both sides have several ranks, the collectives of actual are checked: the reference is assumed correct.
        many_ranks = dumps[0] if len(dumps[0].known_values("rank")) > 1 else dumps[1]
        origins = without_updates_of_no_rank(origins, len(results))
        found = len(origins)
        origins = without_enlarged_rounding(origins, pairs.looked_at())
        reason = _ENLARGED if len(origins) < found else ""
        found = len(origins)
        origins = after_inner_updates(without_local_updates(origins, pairs.looked_at()), pairs.looked_at())
        reason = _LOCAL if len(origins) < found else reason
        origins = first_of_local_results(origins)
        origins = traced_to_sources(origins, many_ranks, pairs.looked_at(), of_actual=many_ranks is dumps[0])
        origins = of_one_rank(origins)
        origins = with_wrong_calls(origins, many_ranks, pairs.looked_at())
        if many_ranks is dumps[0]:
            origins = with_arguments_of_some_ranks(origins, pairs.looked_at())
            origins = with_lines_of_some_ranks(origins, many_ranks)
            origins = with_parts_in_turn(origins, many_ranks, pairs.looked_at())
            origins = with_causes_of_local_results(origins, many_ranks, pairs.looked_at())
        origins = once_for_ranks(origins)
        if not origins:
            # All that both sides compute agrees. The remaining records are of operators by which ranks work together.
            count = pairs.verdicts()["unmatched"]
            if count:
                notes.append(f"left out: {counted(count, 'record')} of operators that only one side runs")
            pairs = pairs.without_unmatched()
            pairs = pairs.replaced(partial(_as_noise, reason)) if reason else pairs
    elif any(len(results) > 1 or result.op_type.startswith(COLLECTIVES) for result in origins):
        from ascend_dump.analysis.ranks.origins_over_ranks import over_ranks

        origins, pairs = over_ranks(origins, dumps[0], pairs)
    return origins, pairs, notes


def _as_noise(reason: str, pair: Pair) -> Pair:
    """Return the pair, as noise if it differs: no origin is left, and the reason explains the difference."""
    return replace(pair, verdict="noise", explained=True, reason=reason) if pair.verdict == "different" else pair


def combine(
    dumps: list[Dump], rules: Rules, mapping: Optional[Mapping[str, str]], results: Sequence[RankResult]
) -> Comparison:
    """Return the comparison of all ranks."""
    return combine_groups(dumps, rules, mapping, [ResultGroup("", dumps, results)])


def combine_groups(
    dumps: list[Dump], rules: Rules, mapping: Optional[Mapping[str, str]], groups: Sequence[ResultGroup]
) -> Comparison:
    """Return the comparison of all groups: one per label, or a single one without labels."""
    found = [_origins_and_pairs(group.dumps, group.results) for group in groups]
    labels: dict[str, str] = {}
    if len(groups) > 1 or groups[0].label:
        found = [
            (named_by_label(origins, group.label), pairs, notes)
            for group, (origins, pairs, notes) in zip(groups, found)
        ]
        labels = {group.label: verdict_of(pairs) for group, (_, pairs, _) in zip(groups, found)}
    origins = [origin for of_group, _, _ in found for origin in of_group]
    results = [result for group in groups for result in group.results]
    pairs = Pairs.joined(pairs for _, pairs, _ in found)
    notes = [note for result in results for note in result.aligned]
    notes += [note for _, _, of_group in found for note in of_group]
    omitted = sum((Counter(result.omitted) for result in results), Counter[str]())
    if not origins:
        notes += _updates_of_one_side(pairs.looked_at())
    return Comparison(
        dumps[0].root,
        dumps[1].root,
        pairs,
        # Each rank has this order, or that of its tokens; restore it for several ranks.
        tuple(origins if len(results) == 1 else sorted(origins, key=importance(origins))),
        rules,
        _sums(result.inside for result in results),
        tuple(crossing for result in results for crossing in result.crossings),
        tuple(_unique_calls(changed for result in results for changed in result.changed)),
        _sums(result.left_out for result in results),
        any(len(group.results) > 1 for group in groups),
        (
            *unused_names(mapping or {}, {name for result in results for name in result.mapped}, dumps),
            *unused_rules(rules, dumps),
        ),
        rebuilt=tuple(_agreeing_parts(results, origins)),
        around=differing_surroundings(*dumps[:2]),
        aligned=tuple(dict.fromkeys(notes)),
        omitted=dict(omitted.most_common()),
        labels=labels,
    )


def _updates_of_one_side(pairs: Iterable[Pair]) -> Iterator[str]:
    """Yield a sentence for each side that alone updates parameters: its optimizer is not compared."""
    names: tuple[set[str], set[str]] = (set(), set())
    for pair in pairs:
        name, record = parameter_name(pair.record), pair.record
        is_update = record.io == "output" and record.phase == "other" and not record.module
        if pair.verdict == "unmatched" and is_update and name and not (record.parameter or "").endswith(".grad"):
            names[0 if pair.reference is None else 1].add(name)
    for side, of_side in zip(("actual", "the reference"), names):
        if of_side and names[0].isdisjoint(names[1]):
            yield f"not compared: updates of {counted(len(of_side), 'parameter')}, which only {side} records"


def _agreeing_parts(results: Iterable[RankResult], origins: Iterable[Origin]) -> Iterable[Rebuilt]:
    """Return the parts that are built differently and agree on all ranks, each part once."""
    records = [origin.pair.record for origin in origins]
    wrong = {name for record in records for name in (record.module, record.op_name, record.parameter)}
    return dict.fromkeys(part for result in results for part in result.rebuilt if part.name not in wrong)


def _sums(numbers: Iterable[tuple[int, int]]) -> tuple[int, int]:
    actual, reference = zip(*numbers)
    return sum(actual), sum(reference)


def _unique_calls(changed: Iterable[ChangedCall]) -> Iterable[ChangedCall]:
    """Return each call once: ranks run one program."""
    unique: dict[Any, ChangedCall] = {}
    for call in changed:
        unique.setdefault((call.op_name, call.arguments), call)
    return unique.values()
