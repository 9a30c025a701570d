"""Compare two runs of many ranks by their indexes alone, and find the ranks that differed first.

No tensor is read. The result of each rank is a small table (see `rank_index`) with its first difference and its
collectives. Vector clocks over these tables put the first differences of all ranks in the order of time. So of a
thousand ranks that differ, the few are reported that differed first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from ascend_dump.analysis.ranks.rank_index import COUNTS, PROGRAM_FIELDS, index_of_rank
from ascend_dump.analysis.ranks.rank_tasks import RankTask, map_ranks
from ascend_dump.analysis.ranks.vector_clocks import Join, Point, clocks, happens_before
from ascend_dump.errors import ConfigError, DumpNotFound, StorageError
from ascend_dump.storage import StoredPath, list_stored, located
from ascend_dump.storage.files import files_of_dump, stamp_of

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading import LostRecords

__all__ = ["IndexComparison", "RankOrigin", "compare_indexes"]

#: The name of the directory of a rank, or of a Parquet file (group 2) with the catalog of a rank.
_RANK = re.compile(r"(?:worldsize\d{1,9}_global_)?rank[-_]?(\d{1,9})(\.parquet)?", re.ASCII)
_Watch = Callable[[Iterable[str]], Iterable[str]]


class RankOrigin(NamedTuple):
    """A first difference of a rank that no difference of another rank precedes.

    ranks    the ranks that have it; several if they received it in one collective
    kind     of the record that differs: "made" is the output of an operator on one rank; "given" is an input;
             "collective" is the output of a collective; "structure" is a record that only one of the runs has
    follows  number of ranks whose first difference comes after this one
    """

    ranks: tuple[int, ...]
    kind: str
    step: Optional[int]
    op_type: str
    op_name: str
    io: str
    index: int  # type: ignore[assignment]  # it hides tuple.index on purpose, as in Record
    source: Optional[str]
    follows: int


class IndexComparison(NamedTuple):
    """The result of `compare_indexes`.

    ranks    a polars DataFrame with one row per rank. `rank` is its number. Five columns count records: `rows` all
             records in the index of actual, `unequal` records that differ, `alone` records in one run only,
             `undecided` records that hashes and statistics prove neither equal nor different, and `unreadable` the
             unreadable records of both runs. The other columns describe the first difference, and are null if there is
             none: `position` in the index of actual, `kind`, `step`, `op_type`, `op_name`, `io`, `index`, `source`
    origins  first differences that no difference of another rank precedes, sorted by the number of ranks that follow
    missing  ranks that only one of the runs has
    lost     runs of either side with fewer records than were written, or with files of tensors that are missing or cut
             off; the verdict covers only the remaining records
    """

    ranks: polars.DataFrame
    origins: tuple[RankOrigin, ...]
    missing: tuple[int, ...]
    lost: tuple[LostRecords, ...] = ()

    @property
    def verdict(self) -> str:
        """The worst of "equal" (all hashes are equal), "undecided" (hashes and statistics prove some records neither
        equal nor different), "structure" (ranks or records that only one run has), "different" and "unreadable"."""
        for column, verdict in (("unreadable", "unreadable"), ("unequal", "different"), ("alone", "structure")):
            if self.ranks[column].sum():
                return verdict
        if self.missing:
            return "structure"
        return "undecided" if self.ranks["undecided"].sum() else "equal"

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict, the origins, the missing ranks and the row of each rank, as plain values."""
        return {
            "verdict": self.verdict,
            "origins": [origin._asdict() for origin in self.origins],
            "missing": list(self.missing),
            "ranks": self.ranks.to_dicts(),
        }


def compare_indexes(
    actual: Union[str, os.PathLike[str]],
    reference: Union[str, os.PathLike[str]],
    *,
    executor: Optional[Executor] = None,
    work: Union[str, os.PathLike[str], None] = None,
    watch: Optional[_Watch] = None,
) -> IndexComparison:
    """Compare the indexes of all ranks of two runs.

    actual, reference  directories or URLs with one entry per rank: a dump `worldsizeN_global_rankR`, or its catalog
                       `rank-R.parquet` (`Dump.catalog().sink_parquet(...)`)
    executor, work, watch  as for `map_ranks`

    Records are paired by their order if names agree, else by step, operator, input or output, and index. Two records
    are equal if their stored bytes have the same hash, and both tensors have the same type, shape, offset and strides
    within these bytes. Two records with hashes differ if their types or shapes differ, or if each hash covers exactly
    the bytes of its tensor and the hashes differ. Two records also differ if a statistic that both have differs. Mean
    and l2norm do not count if the two tensors are different views of their bytes. If a rank has a step in several runs,
    the first of these runs in actual is compared with the first in the reference, the second with the second, and so
    on.

    Raises DumpNotFound for a directory without ranks, or if the directories have no rank in common; ConfigError for a
    directory with two entries of a rank, or with more runs of a step than the other one; CorruptDump for a file that is
    not a catalog; NotSupported without polars; and the errors of reading a dump.

    >>> comparison = compare_indexes("dumps", "reference")   # doctest: +SKIP
    >>> comparison.origins[0].ranks, comparison.origins[0].op_name   # doctest: +SKIP
    """
    from ascend_dump.reading.catalog import polars_or_refuse

    polars_or_refuse("a comparison of indexes")
    sides = [_ranks_in(located(side)) for side in (actual, reference)]
    common = sorted(sides[0].keys() & sides[1].keys())
    tasks = [
        RankTask(f"rank-{rank}", _made_of(sides[0][rank], sides[1][rank]), (sides[0][rank], sides[1][rank], rank))
        for rank in common
    ]
    missing = tuple(sorted(sides[0].keys() ^ sides[1].keys()))
    if not tasks:
        raise DumpNotFound("the runs have no rank in common", path=located(actual), hint="see `ascend-dump ls` of both")
    with map_ranks(index_of_rank, tasks, executor=executor, work=work, watch=watch) as partials:
        return _reduce(partials, missing)


def _ranks_in(root: Path) -> dict[int, str]:
    """Return the entries of a directory that are ranks. Raises DumpNotFound for none, ConfigError for a rank twice."""
    entries: dict[int, str] = {}
    try:
        if isinstance(root, StoredPath):
            list_stored(str(root))
        names = sorted(path.name for path in root.iterdir())
    except StorageError:
        raise
    except OSError as error:
        raise DumpNotFound(f"it cannot be listed: {error.strerror}", path=root) from None
    for name in names:
        match, path = _RANK.fullmatch(name), root / name
        if match is None or not (path.is_file() if match[2] else path.is_dir()):
            continue
        earlier = entries.setdefault(int(match[1]), str(path))
        if earlier != str(path):
            raise ConfigError(
                f"{root} has rank {int(match[1])} twice: {os.path.basename(earlier)} and {name}",
                hint="give a directory with the ranks of one run",
            )
    if not entries:
        raise DumpNotFound(
            "the directory has no ranks",
            path=root,
            hint="expected directories worldsizeN_global_rankR, or rank-R.parquet",
        )
    return entries


def _made_of(*paths: str) -> str:
    """Return the names, sizes and modification times of the files of a rank."""
    parts: list[Any] = []
    for path in map(located, paths):
        files = [path] if path.is_file() else files_of_dump(path)
        parts += [(str(file), stamp_of(file)) for file in files]
    return repr(parts)


def _reduce(partials: Iterable[polars.DataFrame], missing: tuple[int, ...]) -> IndexComparison:
    import polars as pl

    tables = list(partials)
    ranks = pl.concat([table.filter(pl.col("what") == "rank") for table in tables])
    shown = ["rank", *COUNTS, "position", "kind", *PROGRAM_FIELDS]
    lost = _all_lost(tables)
    differing = ranks.filter(pl.col("position").is_not_null())
    if not differing.height:
        return IndexComparison(ranks.select(shown), (), missing, lost)
    points = {Point(row["rank"], row["position"]): row for row in differing.iter_rows(named=True)}
    times = clocks(_all_joins(tables), points)
    ordered = sorted(times.values(), key=lambda clock: (clock.total, clock.point.rank))
    calls = {
        (rank, end): key
        for table in tables
        for rank, end, key in table.filter(pl.col("what") == "join").select("rank", "end", "key").iter_rows()
        if Point(rank, end) in points
    }
    beginnings = [
        clock
        for number, clock in enumerate(ordered)
        if not any(happens_before(earlier, clock) for earlier in ordered[:number])
    ]
    groups: dict[Any, list[Any]] = {}
    for clock in beginnings:
        groups.setdefault(calls.get((clock.point.rank, clock.point.position), clock.point), []).append(clock)
    origins = []
    for members in groups.values():
        row = points[members[0].point]
        follows = sum(any(happens_before(clock, later) for clock in members) for later in ordered)
        location = {name: row[name] for name in PROGRAM_FIELDS}
        origins.append(
            RankOrigin(tuple(clock.point.rank for clock in members), row["kind"], **location, follows=follows)
        )
    origins.sort(key=lambda origin: -origin.follows)
    return IndexComparison(ranks.select(shown), tuple(origins), missing, lost)


def _all_lost(tables: Iterable[polars.DataFrame]) -> tuple[LostRecords, ...]:
    import polars as pl

    from ascend_dump.reading import LostRecords

    rows = pl.concat([table.filter(pl.col("what") == "lost").select(LostRecords._fields) for table in tables])
    return tuple(LostRecords(located(run), *values) for run, *values in rows.iter_rows())


def _all_joins(tables: Iterable[polars.DataFrame]) -> Iterator[Join]:
    import polars as pl

    for table in tables:
        rows = table.filter(pl.col("what") == "join").select("key", "rank", "position", "end", "gives", "takes")
        yield from (Join(*row) for row in rows.iter_rows())
