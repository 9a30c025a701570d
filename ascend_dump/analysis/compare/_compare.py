"""Compare two dumps: pair the operators of each step and rank, judge each pair, and find the origins."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TypeVar, Union

from ascend_dump.analysis.alignment.align_setting import check_align
from ascend_dump.analysis.alignment.ranks_and_steps import (
    Key,
    RankGroup,
    by_key,
    joined_steps,
    may_be_parts,
    numbered_alike,
)
from ascend_dump.analysis.alignment.rows import RowFinder, check_rows
from ascend_dump.analysis.alignment.shard_notation import ShardLayouts, ShardSource, shards_of
from ascend_dump.analysis.compare._combine import ResultGroup, combine, combine_groups
from ascend_dump.analysis.compare._comparison import Comparison
from ascend_dump.analysis.compare._labels import labels_to_pair, with_label
from ascend_dump.analysis.compare._on_executor import CountedBatch, RankResult, result_of, table_of, tasks_of
from ascend_dump.analysis.compare._second_opinion import with_second_opinion
from ascend_dump.analysis.compare._walk_rank import Work, compare_rank, compare_tokens
from ascend_dump.analysis.compare.by_tokens.origins import tokens_of_rank, tokens_of_rows
from ascend_dump.analysis.compare.by_tokens.wrong_weights import with_wrong_weight
from ascend_dump.analysis.judging.rules import RuleSource, rules_of
from ascend_dump.analysis.judging.second_run import refuse_same_dump
from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.errors import DumpNotFound, NotSupported
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
    rows: Optional[Mapping[int, int]] = None,
    align: Optional[str] = None,
    executor: Optional[Executor] = None,
    watch: Optional[Callable[[Iterable[Any]], Iterable[Any]]] = None,
) -> Comparison:
    """Compare two dumps and find the operators whose outputs are wrong although their inputs are not.

    actual, reference   dumps, or paths of dumps, or PATH@STEP; the reference is assumed to be correct
    mapping             names of operators of actual -> names in the reference, for those that are not paired
                        automatically
    rules               thresholds: `Rules`, a mapping, or a TOML or JSON file, optionally per glob of operators
    noise               a dump of another run of the reference. A difference is noise if the two runs of the reference
                        differ about as much
    replay              run PyTorch operators again when a difference begins, each side from its own inputs, as
                        `ascend_dump.replay` does: if both sides are right the difference is noise, else the evidence of
                        the origin names the wrong side. Needs PyTorch (else FrameworkMissing), and executes the
                        operators in the dumps, so use it only on dumps that you trust
    shards              how tensors are split over ranks, if the dump does not record it: globs of tensors and layouts,
                        {"*.up/addmm_0.output.0": "shard 1"}; see `ascend-dump help ranks`
    rows                rows of the batch of actual -> the same requests in the batch of the reference, {0: 4}, to
                        compare a request alone with the same one among others. Without it, rows with equal ids are
                        found
    align               "tokens": compare token by token, such as a rollout (a prompt, then decoding with a cache) with
                        one forward pass of a trainer; all steps at once. The tokens are found by recorded ids,
                        positions and masks. Without it, this is done if the ids show it
    executor            a concurrent.futures.Executor: ranks are compared in parallel, one task per rank, in processes
                        or on other machines that can open the dumps by the same paths or URLs. Results are kept until
                        all ranks are done, so an interrupted call can be repeated; needs polars. Ranks that cannot be
                        told apart by directory names, and dumps of one rank, are compared in this process
    watch               an iterator function that receives each record read and each pair compared (with an executor
                        each finished rank) and yields it, for a progress display

    Records with the same label (`capture(label=...)`) are compared with each other. If each side has only one label,
    these two are compared. With several labels an executor is not used.

    Equal steps and ranks are compared with each other. If each side has only one step or rank, these two are compared:
    so `compare("dumps@1", "dumps@0")` compares two steps of one dump. If one side has fewer ranks, and shapes or
    placements show that the ranks of the other side have parts of tensors, the tensors are assembled, and each rank is
    compared with its part. A step or rank that one side lacks is unmatched.

    Raises DumpNotFound for a side without records, NotSupported for align="tokens" if both sides have no tokens in
    common, and the errors of `open`. Raises ConfigError for shards that do not fit, for an object that is no executor,
    and if one dump is given as a side and as noise.

    >>> comparison = ascend_dump.compare("npu_dumps", "gpu_dumps")   # doctest: +SKIP
    >>> comparison.verdict, comparison.origins[0].op_name            # doctest: +SKIP
    """
    used, given_shards = rules_of(rules), shards_of(shards)
    check_align(align, rows=rows, shards=shards, noise=noise, replay=replay, executor=executor)
    check_rows(rows, shards=shards, noise=noise, replay=replay, executor=executor)
    dumps = [side if isinstance(side, Dump) else open_dump(side) for side in (actual, reference)]
    second_run = None if noise is None else noise if isinstance(noise, Dump) else open_dump(noise)
    if second_run is not None:
        refuse_same_dump(dumps[0], dumps[1], second_run)
    labels = labels_to_pair(*dumps)
    settings = _Settings(mapping, used, replay, given_shards, rows, align)
    if executor is not None:
        from ascend_dump.analysis.ranks.rank_statistics import ranks_apart
        from ascend_dump.analysis.ranks.rank_tasks import check_executor

        check_executor(executor)
        ranks = None if labels else ranks_apart(dumps if second_run is None else [*dumps, second_run])
        if ranks is not None and any(len(dump.known_values("rank")) > 1 for dump in dumps):
            comparison = _side_by_side(dumps, second_run, settings, executor, ranks, watch)
            return comparison if replay else with_second_opinion(comparison, dumps)
    work = _compare(dumps, second_run, settings, labels)
    comparison = _finish(work) if watch is None else _finish(work, watch)
    return comparison if replay else with_second_opinion(comparison, dumps)


def _finish(work: Work[_Result], watch: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> _Result:
    results: list[_Result] = []

    def pieces() -> Iterator[object]:
        results.append((yield from work))

    remaining = pieces()
    deque(watch(remaining), 0)
    deque(remaining, 0)  # pieces that `watch` did not yield
    return results[0]


class _Settings(NamedTuple):
    """The arguments of `compare` that hold for all labels and ranks."""

    mapping: Optional[Mapping[str, str]]
    rules: Rules
    replay: bool
    shards: ShardLayouts
    rows: Optional[Mapping[int, int]]
    align: Optional[str] = None


def _compare(
    dumps: list[Dump], second_run: Optional[Dump], settings: _Settings, labels: Sequence[str]
) -> Work[Comparison]:
    mapping, rules = settings.mapping, settings.rules
    if not labels:
        results = yield from _ranks(dumps, second_run, settings)
        return combine(dumps, rules, mapping, results)
    groups = []
    for label, parts, again in with_label(labels, dumps, second_run):
        results = yield from _ranks(parts, again, settings, may_lack=True)
        if results:
            groups.append(ResultGroup(label, parts, results))
    if not all(any(True for _ in dump.batches()) for dump in dumps):
        yield from _ranks(dumps, second_run, settings)  # raises
    return combine_groups(dumps, rules, mapping, groups)


def _ranks(
    dumps: Sequence[Dump], second_run: Optional[Dump], settings: _Settings, *, may_lack: bool = False
) -> Work[list[RankResult]]:
    """Return the results of all ranks. may_lack: a side without records is allowed, else it raises DumpNotFound."""
    mapping, rules, replay, given_shards, rows, tokens = settings
    sides = []
    for name, dump in _named(dumps, second_run):
        sides.append((yield from _steps(dump)))
        if not sides[-1] and not may_lack:
            raise _no_records(name, dump)
    sides[0] = numbered_alike(sides[0], sides[1])
    spreads = sides[2] if second_run is not None else {}
    made_of = (dumps[0].made_of, dumps[1].made_of)
    group = None if rows is not None else RankGroup.of(sides[0], sides[1], made_of, given_shards)
    joined = joined_steps(*sides[:2]) if group is None else group.joined(sides[1 if group.of_actual else 0])
    ranks = [list(steps) for _, steps in groupby(joined, key=lambda step: step[0][0])]
    shared_spread = next(iter(spreads.values())) if len(spreads) == 1 else None
    results = []
    for rank in ranks:
        may_look = group is None and second_run is None and not replay
        if tokens is not None or (may_look and rows is None):
            alignment = tokens_of_rank(rank, made_of, must=tokens is not None)
            if alignment is not None:
                results.append(_with_weights((yield from compare_tokens(rules, mapping, alignment)), dumps))
                continue
        row_finder = RowFinder(rows, may_look=may_look)
        work = compare_rank(rules, mapping, spreads, shared_spread, made_of, group, replay, rank, row_finder)
        try:
            results.append((yield from work))
        except NotSupported:
            alignment = None if rows is None else tokens_of_rows(rank, made_of, rows)
            if alignment is None:
                raise
            results.append(_with_weights((yield from compare_tokens(rules, mapping, alignment)), dumps))
    return results


def _with_weights(result: RankResult, dumps: Sequence[Dump]) -> RankResult:
    """Return the result of a rank whose tokens are compared, with a wrong weight in place of its first origin."""
    pairs = (pair for part in result.parts for pair in part)
    return result._replace(origins=with_wrong_weight(result.origins, [*pairs], dumps))


def _named(dumps: Sequence[Dump], second_run: Optional[Dump]) -> list[tuple[str, Dump]]:
    """Return the dumps with their names for messages."""
    named = [("actual", dumps[0]), ("the reference", dumps[1])]
    return named if second_run is None else [*named, ("the other run of the reference", second_run)]


def _no_records(name: str, dump: Dump) -> DumpNotFound:
    chosen = [f"{field}={value!r}" for selection in dump.selections for field, value in selection.items()]
    of = f" with {', '.join(chosen)}" if chosen else ""
    lost = "".join(f"; {run.run}: {run.reason}" for run in dump.lost_records())
    hint = "widen the selection, see `ascend-dump ls`" if chosen else "see `ascend-dump ls` of it"
    return DumpNotFound(f"{name} holds no records{of}{lost}", path=dump.root, hint=hint)


def _side_by_side(
    dumps: list[Dump],
    second_run: Optional[Dump],
    settings: _Settings,
    executor: Executor,
    ranks: list[int],
    watch: Optional[Callable[[Iterable[Any]], Iterable[Any]]],
) -> Comparison:
    from ascend_dump.analysis.ranks.rank_tasks import map_ranks

    mapping, rules, replay, given_shards, *_ = settings
    all_dumps = [*dumps, *([] if second_run is None else [second_run])]
    for name, dump in _named(dumps, second_run):
        if not any(True for _ in dump.batches()):
            raise _no_records(name, dump)
    are_whole = _need_all_ranks(dumps, given_shards)
    has_one_step = second_run is not None and all(len(second_run.known_values(name)) == 1 for name in ("rank", "step"))
    texts = tuple(shard.text for shard in given_shards)
    shared = _RankSettings(rules, None if mapping is None else dict(mapping), replay, are_whole, has_one_step, texts)
    state = [
        rules.to_dict(),
        shared.mapping,
        replay,
        texts,
        *(dump.state() for dump in all_dumps if are_whole or has_one_step),
    ]
    tasks = tasks_of(all_dumps, ranks, state, (dumps[0], dumps[1], second_run, shared))
    with map_ranks(compare_rank_of, tasks, executor=executor, watch=watch) as tables:
        return combine(dumps, rules, mapping, [result_of(table, dumps, _steps_at_once) for table in tables])


def _need_all_ranks(dumps: list[Dump], given_shards: ShardLayouts) -> bool:
    """Return True if ranks may have parts of tensors, so that the comparison of one rank needs the others.

    As in a comparison without an executor, the first rank of each side decides. If a rank has no records, the result is
    True.
    """
    ranks = [sorted(dump.known_values("rank")) for dump in dumps]
    if given_shards or not may_be_parts(len(ranks[0]), len(ranks[1]), given_shards):
        return may_be_parts(len(ranks[0]), len(ranks[1]), given_shards)
    sides: list[dict[Key, list[Batch]]] = []
    for dump, (first, *later) in zip(dumps, ranks):
        if not all(any(True for _ in dump.select(rank=rank).batches()) for rank in later):
            return True
        sides.append({**_steps_at_once(dump.select(rank=first)), **{(rank, None): [] for rank in later}})
        if not any(rank == first for rank, _ in sides[-1]):
            return True
    sides[0] = numbered_alike(sides[0], sides[1])
    return RankGroup.of(sides[0], sides[1], (dumps[0].made_of, dumps[1].made_of), given_shards) is not None


class _RankSettings(NamedTuple):
    """The settings of the comparison of each rank.

    are_whole     the comparison of one rank needs all ranks of both sides
    has_one_step  the other run of the reference has a single step of a single rank, used for all
    shards        the layouts of tensors that were given, as texts for `shards_of`
    """

    rules: Rules
    mapping: Optional[dict[str, str]]
    replay: bool
    are_whole: bool
    has_one_step: bool
    shards: tuple[str, ...] = ()


def compare_rank_of(
    actual: Dump, reference: Dump, second_run: Optional[Dump], shared: _RankSettings, rank: int
) -> polars.DataFrame:
    """Return the table of one rank, see `table_of`. Runs in a worker of an executor."""
    positions: dict[int, tuple[Record, Any]] = {}
    dumps = [actual, reference]
    if not shared.are_whole:
        dumps = [dump.select(rank=rank) for dump in dumps]
    actual_steps, reference_steps = (_counted(_steps_at_once(dump), positions) for dump in dumps)
    actual_steps = numbered_alike(actual_steps, reference_steps)
    made_of = (actual.made_of, reference.made_of)
    group = RankGroup.of(actual_steps, reference_steps, made_of, shards_of(shared.shards)) if shared.are_whole else None
    joined = (
        by_key(actual_steps, reference_steps)
        if group is None
        else group.joined(reference_steps if group.of_actual else actual_steps)
    )
    spreads = (
        {}
        if second_run is None
        else _steps_at_once(second_run if shared.has_one_step else second_run.select(rank=rank))
    )
    shared_spread = next(iter(spreads.values())) if shared.has_one_step and len(spreads) == 1 else None
    steps = [step for step in joined if step[0][0] == rank]
    work = compare_rank(shared.rules, shared.mapping, spreads, shared_spread, made_of, group, shared.replay, steps)
    return table_of(_finish(work), positions)


def _counted(steps: dict[Key, list[Batch]], positions: dict[int, tuple[Record, Any]]) -> dict[Key, list[Batch]]:
    counted: dict[Key, list[Batch]] = {}
    for key, batches in steps.items():
        first = 0
        for batch in batches:
            counted.setdefault(key, []).append(CountedBatch(batch, key, first, positions))
            first += len(batch)
    return counted


def _steps_at_once(dump: Dump) -> dict[Key, list[Batch]]:
    return _finish(_steps(dump))


def _steps(dump: Dump) -> Work[dict[Key, list[Batch]]]:
    steps: dict[Key, list[Batch]] = {}
    for batch in dump.batches():
        steps.setdefault((batch.rank, batch.step), []).append(batch)
        yield from repeat(None, len(batch))
    return steps
