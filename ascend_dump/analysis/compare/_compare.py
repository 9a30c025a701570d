"""Compare two dumps: pair the operators of each step and rank, judge each pair, and find the origins."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TypeVar, Union

from ascend_dump.analysis.alignment.ranks_and_steps import (
    Key,
    Made,
    RankGroup,
    Steps,
    by_key,
    joined_steps,
    may_be_parts,
    operators_in,
)
from ascend_dump.analysis.alignment.shard_notation import GivenShards, ShardSource, shards_of
from ascend_dump.analysis.alignment.shards import Portions
from ascend_dump.analysis.compare._comparison import Comparison
from ascend_dump.analysis.compare._on_executor import CountedBatch, FoundOnRank, found_of, table_of, tasks_of
from ascend_dump.analysis.compare._unused import unused_names, unused_rules
from ascend_dump.analysis.explaining.origins import kind_order
from ascend_dump.analysis.explaining.pairs import EqualStep, Pairs, are_equal
from ascend_dump.analysis.explaining.results import ChangedCall, Crossing, Origin, Pair
from ascend_dump.analysis.explaining.walk import Divergence
from ascend_dump.analysis.judging.rules import RuleSource, rules_of
from ascend_dump.analysis.judging.second_run import Spread
from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import COLLECTIVES
from ascend_dump.analysis.pairing.cross_framework import is_across, pair_across
from ascend_dump.analysis.pairing.same_framework import Match, align, crossings
from ascend_dump.analysis.replay.rerun import Rerun
from ascend_dump.errors import ConfigError, DumpNotFound
from ascend_dump.reading import Batch, Dump, Record, open_dump

if TYPE_CHECKING:
    import polars

__all__ = ["compare"]

_Dumplike = Union[Dump, str, "os.PathLike[str]"]
_Result = TypeVar("_Result")


def compare(
    actual: _Dumplike,
    reference: _Dumplike,
    *,
    mapping: Optional[Mapping[str, str]] = None,
    rules: RuleSource = None,
    noise: Optional[_Dumplike] = None,
    replay: bool = False,
    shards: ShardSource = None,
    executor: Optional[Executor] = None,
    watch: Optional[Callable[[Iterable[Any]], Iterable[Any]]] = None,
) -> Comparison:
    """Compare two dumps and find the operators whose outputs are wrong although their inputs are not.

    actual, reference   dumps, or paths of dumps; the reference is assumed to be correct
    mapping             names of operators of actual -> names in the reference, for those that are not found
                        automatically
    rules               thresholds: `Rules`, a mapping, or a TOML or JSON file, optionally per glob of operators
    noise               a dump of another run of the reference: differences not larger than between its two runs are
                        noise
    replay              run PyTorch operators again where a difference begins, each side from its own inputs, as
                        `ascend_dump.replay` does: if both sides are right the difference is noise, else the origin says
                        which side is wrong. Needs PyTorch (else FrameworkMissing), and executes what the dumps say, so
                        use it only on dumps that you trust
    shards              how tensors are split over ranks, if the dump does not record it: globs of tensors and layouts,
                        {"*.up/addmm_0.output.0": "shard 1"}; see `ascend-dump help ranks`
    executor            a concurrent.futures.Executor: ranks are compared in parallel, one task per rank, in processes
                        or on other machines that can open the dumps by the same paths or URLs. Results are kept until
                        all ranks are done, so an interrupted call can be repeated; needs polars. Ranks that cannot be
                        told apart by directory names, and dumps of one rank, are compared in this process
    watch               an iterator function that is given each record read and each pair compared (with an executor
                        each finished rank) and yields it on, for a progress display

    The same steps and ranks are compared with each other; if each side has only one, these two. If one side has fewer
    ranks, and shapes or placements show that the other side's ranks hold parts, their tensors are assembled, and each
    rank is compared with its part. A step or rank that one side lacks is unmatched.

    Raises DumpNotFound for a side without records, ConfigError for shards that do not fit, for what is no executor and
    for one dump as a side and as noise, and what `open` raises.

    >>> comparison = ascend_dump.compare("npu_dumps", "gpu_dumps")   # doctest: +SKIP
    >>> comparison.verdict, comparison.origins[0].op_name            # doctest: +SKIP
    """
    used, given = rules_of(rules), shards_of(shards)
    dumps = [side if isinstance(side, Dump) else open_dump(side) for side in (actual, reference)]
    again = None if noise is None else noise if isinstance(noise, Dump) else open_dump(noise)
    if again is not None:
        _check_noise(dumps, again)
    if executor is not None:
        from ascend_dump.analysis.ranks.rank_statistics import ranks_apart
        from ascend_dump.analysis.ranks.rank_tasks import check_executor

        check_executor(executor)
        ranks = ranks_apart(dumps if again is None else [*dumps, again])
        if ranks is not None and any(len(dump.known_values("rank")) > 1 for dump in dumps):
            return _side_by_side(dumps, again, mapping, used, replay, given, executor, ranks, watch)
    work = _compare(dumps, again, mapping, used, replay, given)
    return _finish(work) if watch is None else _finish(work, watch)


#: Work that yields something for each piece of it that is done.
_Work = Generator[object, None, _Result]


def _finish(work: _Work[_Result], watch: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> _Result:
    found: list[_Result] = []

    def pieces() -> Iterator[object]:
        found.append((yield from work))

    done = pieces()
    deque(watch(done), 0)
    deque(done, 0)  # what was not passed on
    return found[0]


def _compare(
    dumps: list[Dump],
    again: Optional[Dump],
    mapping: Optional[Mapping[str, str]],
    rules: Rules,
    replay: bool,
    given: GivenShards,
) -> _Work[Comparison]:
    sides = []
    for name, dump in _named(dumps, again):
        sides.append((yield from _steps(dump)))
        if not sides[-1]:
            raise _no_records(name, dump)
    spreads = sides[2] if again is not None else {}
    made_of = (dumps[0].made_of, dumps[1].made_of)
    group = RankGroup.of(sides[0], sides[1], made_of, given)
    joined = joined_steps(*sides[:2]) if group is None else group.joined(sides[1 if group.of_actual else 0])
    ranks = [list(steps) for _, steps in groupby(joined, key=lambda one: one[0][0])]
    only = next(iter(spreads.values())) if len(spreads) == 1 else None
    found = []
    for rank in ranks:
        found.append((yield from _compare_rank(rules, mapping, spreads, only, made_of, group, replay, rank)))
    return _together(dumps, rules, mapping, found)


def _check_noise(dumps: list[Dump], again: Dump) -> None:
    """Raise ConfigError for a side: of actual every difference would be noise, of the reference none."""
    for name, dump in _named(dumps, None):
        if _share_steps(dump, again):
            raise ConfigError(
                f"noise= is {again.root}, the same dump as {name}, expected one of another run of the reference",
                hint="run the program of the reference a second time: what differs between its two runs is noise",
            )


def _share_steps(one: Dump, other: Dump) -> bool:
    """Whether two are of the same dump, and a step of a rank is selected in both."""
    if os.path.realpath(one.root) != os.path.realpath(other.root):
        return False
    steps, others = ({(record.run, record.rank, record.step) for record in dump} for dump in (one, other))
    return not steps.isdisjoint(others)


def _named(dumps: list[Dump], again: Optional[Dump]) -> list[tuple[str, Dump]]:
    """The roots of both dumps, for messages."""
    named = [("actual", dumps[0]), ("the reference", dumps[1])]
    return named if again is None else [*named, ("the other run of the reference", again)]


def _no_records(name: str, dump: Dump) -> DumpNotFound:
    chosen = [f"{field}={value!r}" for one in dump.selections for field, value in one.items()]
    of = f" with {', '.join(chosen)}" if chosen else ""
    why = "".join(f"; {lost.run}: {lost.reason}" for lost in dump.lost_records())
    hint = "widen the selection, see `ascend-dump ls`" if chosen else "see `ascend-dump ls` of it"
    return DumpNotFound(f"{name} holds no records{of}{why}", path=dump.root, hint=hint)


def _together(
    dumps: list[Dump], rules: Rules, mapping: Optional[Mapping[str, str]], found: Sequence[FoundOnRank]
) -> Comparison:
    origins: Sequence[Origin] = [origin for one in found for origin in one.origins]
    pairs = Pairs([part for one in found for part in one.parts])
    if found[0].are_parts:
        from ascend_dump.analysis.ranks.wrong_collectives import of_one_rank, with_wrong_calls

        # Of two that have several ranks actual: the reference is taken for right.
        several = dumps[0] if len(dumps[0].known_values("rank")) > 1 else dumps[1]
        origins = with_wrong_calls(of_one_rank(origins), several, pairs.looked_at())
    elif any(len(found) > 1 or one.op_type.startswith(COLLECTIVES) for one in origins):
        from ascend_dump.analysis.ranks.origins_over_ranks import over_ranks

        origins, pairs = over_ranks(origins, dumps[0], pairs)
    return Comparison(
        dumps[0].root,
        dumps[1].root,
        pairs,
        # Each rank has its own in this order; here are those of all ranks.
        tuple(sorted(origins, key=lambda one: kind_order(one.kind))),
        rules,
        _sums(one.inside for one in found),
        tuple(crossing for one in found for crossing in one.crossings),
        tuple(_told_once(changed for one in found for changed in one.changed)),
        _sums(one.left_out for one in found),
        len(found) > 1,
        (
            *unused_names(mapping or {}, {name for one in found for name in one.mapped}, dumps),
            *unused_rules(rules, dumps),
        ),
    )


def _sums(numbers: Iterable[tuple[int, int]]) -> tuple[int, int]:
    actual, reference = zip(*numbers)
    return sum(actual), sum(reference)


def _told_once(changed: Iterable[ChangedCall]) -> Iterable[ChangedCall]:
    """Ranks run one program."""
    found: dict[Any, ChangedCall] = {}
    for one in changed:
        found.setdefault((one.op_name, one.arguments), one)
    return found.values()


class _Walked(NamedTuple):
    """Results of one rank so far; inside, left_out: numbers of operators by side; mapped: as in FoundOnRank."""

    parts: list[Sequence[Pair]]
    inside: Counter[str]
    left_out: Counter[str]
    crossings: list[Crossing]
    mapped: set[str]


def _side_by_side(
    dumps: list[Dump],
    again: Optional[Dump],
    mapping: Optional[Mapping[str, str]],
    rules: Rules,
    replay: bool,
    given: GivenShards,
    executor: Executor,
    ranks: list[int],
    watch: Optional[Callable[[Iterable[Any]], Iterable[Any]]],
) -> Comparison:
    from ascend_dump.analysis.ranks.rank_tasks import map_ranks

    every = [*dumps, *([] if again is None else [again])]
    for name, dump in _named(dumps, again):
        if not any(True for _ in dump.batches()):
            raise _no_records(name, dump)
    are_whole = _need_all_ranks(dumps, given)
    lone = again is not None and all(len(again.known_values(name)) == 1 for name in ("rank", "step"))
    texts = tuple(one.text for one in given)
    how = _How(rules, None if mapping is None else dict(mapping), replay, are_whole, lone, texts)
    settings = [rules.to_dict(), how.mapping, replay, texts, *(dump.state() for dump in every if are_whole or lone)]
    tasks = tasks_of(every, ranks, settings, (dumps[0], dumps[1], again, how))
    with map_ranks(compare_rank_of, tasks, executor=executor, watch=watch) as tables:
        return _together(dumps, rules, mapping, [found_of(table, dumps, _steps_at_once) for table in tables])


def _need_all_ranks(dumps: list[Dump], given: GivenShards) -> bool:
    """Whether ranks may hold parts of what others hold, so that comparing one of them needs the others.

    As in one process, the first rank of each side tells. If a rank has no records, all of them are needed to tell.
    """
    ranks = [sorted(dump.known_values("rank")) for dump in dumps]
    if given or not may_be_parts(len(ranks[0]), len(ranks[1]), given):
        return may_be_parts(len(ranks[0]), len(ranks[1]), given)
    sides: list[dict[Key, list[Batch]]] = []
    for dump, (first, *others) in zip(dumps, ranks):
        if not all(any(True for _ in dump.select(rank=rank).batches()) for rank in others):
            return True
        sides.append({**_steps_at_once(dump.select(rank=first)), **{(rank, None): [] for rank in others}})
        if not any(rank == first for rank, _ in sides[-1]):
            return True
    return RankGroup.of(sides[0], sides[1], (dumps[0].made_of, dumps[1].made_of), given) is not None


class _How(NamedTuple):
    """How the ranks of two dumps are compared.

    are_whole  whether comparing one rank needs all ranks of both sides
    lone       whether the other run of the reference has a single step of a single rank, which is used for all
    shards     the result of `shards_of`
    """

    rules: Rules
    mapping: Optional[dict[str, str]]
    replay: bool
    are_whole: bool
    lone: bool
    shards: tuple[str, ...] = ()


def compare_rank_of(actual: Dump, reference: Dump, again: Optional[Dump], how: _How, rank: int) -> polars.DataFrame:
    """The table of one rank, see `table_of`. Runs in a worker of an executor."""
    places: dict[int, tuple[Record, Any]] = {}
    dumps = [actual, reference]
    if not how.are_whole:
        dumps = [dump.select(rank=rank) for dump in dumps]
    left, right = (_counted(_steps_at_once(dump), places) for dump in dumps)
    made_of = (actual.made_of, reference.made_of)
    group = RankGroup.of(left, right, made_of, shards_of(how.shards)) if how.are_whole else None
    joined = by_key(left, right) if group is None else group.joined(right if group.of_actual else left)
    spreads = {} if again is None else _steps_at_once(again if how.lone else again.select(rank=rank))
    only = next(iter(spreads.values())) if how.lone and len(spreads) == 1 else None
    steps = [one for one in joined if one[0][0] == rank]
    work = _compare_rank(how.rules, how.mapping, spreads, only, made_of, group, how.replay, steps)
    return table_of(_finish(work), places)


def _counted(steps: dict[Key, list[Batch]], places: dict[int, tuple[Record, Any]]) -> dict[Key, list[Batch]]:
    found: dict[Key, list[Batch]] = {}
    for key, batches in steps.items():
        first = 0
        for batch in batches:
            found.setdefault(key, []).append(CountedBatch(batch, key, first, places))
            first += len(batch)
    return found


def _steps_at_once(dump: Dump) -> dict[Key, list[Batch]]:
    return _finish(_steps(dump))


def _compare_rank(
    rules: Rules,
    mapping: Optional[Mapping[str, str]],
    spreads: dict[Key, list[Batch]],
    only: Optional[list[Batch]],
    made_of: tuple[Made, Made],
    group: Optional[RankGroup],
    replay: bool,
    steps: Steps,
) -> _Work[FoundOnRank]:
    divergence = Divergence(rules, Rerun(rules) if replay else None)
    found = _Walked([], Counter(), Counter(), [], set())
    parts = found.parts
    for key, a, b in steps:
        if not mapping and divergence.is_clean and are_equal(a, b):
            parts.append(EqualStep(a, b))
            yield from repeat(None, len(parts[-1]))
            continue
        again = spreads.get(key, only)
        left, right, third = map(operators_in, (a, b, again or ()), (*made_of, None))
        pairs: list[Pair] = []
        shards = None if group is None else group.shards(key, *((left, right) if group.of_actual else (right, left)))
        for pair in _compare_step(divergence, left, right, third, mapping, found, shards):
            pairs.append(pair)
            yield pair
        parts.append(pairs)
    inside, left_out = ((one["actual"], one["reference"]) for one in (found.inside, found.left_out))
    of_program = (divergence.origins(), divergence.changed())
    counts = (inside, left_out)
    return FoundOnRank(parts, *of_program, *counts, found.crossings, group is not None, sorted(found.mapped))


def _steps(dump: Dump) -> _Work[dict[Key, list[Batch]]]:
    found: dict[Key, list[Batch]] = {}
    for batch in dump.batches():
        found.setdefault((batch.rank, batch.step), []).append(batch)
        yield from repeat(None, len(batch))
    return found


def _compare_step(
    divergence: Divergence,
    left: list[Operator],
    right: list[Operator],
    again: list[Operator],
    mapping: Optional[Mapping[str, str]],
    found: _Walked,
    shards: Optional[Portions] = None,
) -> Iterator[Pair]:
    if shards is None and is_across(left, right):
        across = pair_across(left, right, mapping)
        found.inside.update(actual=across.inside[0], reference=across.inside[1])
        found.left_out.update(actual=across.left_out[0], reference=across.left_out[1])
        found.crossings.extend(map(_crossing, crossings(across.matches)))
        found.mapped.update(_mapped(across.matches))
        spread = Spread(again, right) if again else None
        divergence.begin_step(right, _cast(across.matches), across.views, spread, types=across.types)
        for one in across.matches:
            yield from divergence.walk(one)
        for number, alone in enumerate(across.alone):
            for operator in alone:
                yield from divergence.only(operator, of_actual=number == 0)
        return
    matches = align(left, right, mapping, parts=shards is not None)
    found.crossings.extend(map(_crossing, crossings(matches)))
    found.mapped.update(_mapped(matches))
    spread = Spread(again, right) if again else None
    divergence.begin_step(right, _cast(matches), spread=spread, shards=shards)
    partner = {match.reference.position: match for match in matches}
    taken = {match.actual.position for match in matches}
    waiting = [one for one in left if one.position not in taken]
    for operator in right:
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
    one, other = match.actual, match.reference
    record = next(other.records)
    return Crossing(one.label, other.label, match.how, match.confidence, record.step, record.rank)


def _cast(matches: list[Match]) -> Optional[tuple[str, str]]:
    """The types of both sides if one program as a whole computes in another type than the other, else None."""
    found = Counter(
        (a.dtype, b.dtype)
        for match in matches
        for a, b in match.outputs
        if a is not None
        and b is not None
        and a.dtype is not None
        and b.dtype is not None
        and float_kind(b.dtype) is not None
    )
    [(types, count)] = found.most_common(1) or [(("", ""), 0)]
    return types if types[0] != types[1] and 2 * count > sum(found.values()) and float_kind(types[0]) else None
