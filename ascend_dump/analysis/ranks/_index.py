"""Compare two runs of many ranks by their indexes alone: the first difference of each rank, and where it came from.

No tensor is read. A rank is worked on by itself and gives a small table (`_partials`): its first record of which hash
or statistics differ, and when it was joined with others. From these tables alone vector clocks say which of the first
differences came before which, so that of a thousand ranks that differ those few are named where it began.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from ascend_dump._errors import DumpNotFound, NotSupported
from ascend_dump.analysis.ranks._order import Join, Point, clocks, happens_before
from ascend_dump.analysis.ranks._partials import RankTask, map_ranks
from ascend_dump.host import NO_VALUES
from ascend_dump.storage import is_url

if TYPE_CHECKING:
    import polars

__all__ = ["IndexComparison", "RankOrigin", "compare_indexes", "index_of_rank"]

_PLACE = ("step", "op_type", "op_name", "io", "index", "source")
_STATISTICS = ("max", "min", "mean", "l2norm", "nan")
_COLUMNS = (*_PLACE, "hash", "attrs", *_STATISTICS, "nbytes", "skipped")
_ALIGNED = ("step", "op_name", "io", "index")
#: A directory of one rank, or the catalog of one as Parquet.
_RANK = re.compile(r"(?:worldsize\d{1,9}_global_)?rank[-_]?(\d{1,9})(\.parquet)?", re.ASCII)
#: Kinds of collectives in which some ranks only give, or only take.
_ROOTED = {"broadcast": "gives", "scatter": "gives", "reduce": "takes", "gather": "takes"}
_Watch = Callable[[Iterable[str]], Iterable[str]]


class RankOrigin(NamedTuple):
    """A first difference that no other one comes before.

    ranks    that have it first; several where a collective left it on all of them
    kind     "made": an operator made it of equal inputs; "given": an input that nothing before it on this rank
             explains; "collective": a collective brought it, and no rank had a difference before; "structure": a record
             that the other run lacks
    follows  how many ranks have their first difference after this one
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
    """What the indexes of two runs tell.

    ranks    one row for each rank, a polars DataFrame: `rank`, `rows` compared, `unequal` ones, `alone` (records that
             one side lacks), `undecided` (no hash tells that they are equal), `unreadable` lines of both sides, and of
             its first difference `position` in the index, `kind`, `step`, `op_type`, `op_name`, `io`, `index`,
             `source`; null where all is equal
    origins  where the differences began, the one that most ranks follow first
    missing  ranks that one side lacks
    """

    ranks: polars.DataFrame
    origins: tuple[RankOrigin, ...]
    missing: tuple[int, ...]

    @property
    def verdict(self) -> str:
        """The worst of "equal" (all hashes are), "undecided" (some have equal statistics, or none at all, and no hash),
        "structure" (ranks or records that one side lacks), "different" and "unreadable"."""
        for column, verdict in (("unreadable", "unreadable"), ("unequal", "different"), ("alone", "structure")):
            if self.ranks[column].sum():
                return verdict
        if self.missing:
            return "structure"
        return "undecided" if self.ranks["undecided"].sum() else "equal"

    def to_dict(self) -> dict[str, Any]:
        """The verdict, the origins, the ranks that one side lacks and the row of each rank, as plain values."""
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

    actual, reference  directories with one entry for each rank: a dump `worldsizeN_global_rankR`, or its catalog
                       `rank-R.parquet` (`Dump.catalog().sink_parquet(...)`)
    executor, work, watch  as of `map_ranks`

    Records are paired by their order where names agree, else by step, operator, input or output, and index. Raises
    DumpNotFound where a side has no rank, NotSupported for addresses of stored dumps and where polars is missing, and
    what reading a dump raises.

    >>> found = compare_indexes("dumps", "reference")   # doctest: +SKIP
    >>> found.origins[0].ranks, found.origins[0].op_name   # doctest: +SKIP
    """
    from ascend_dump.reading.catalog import polars_or_refuse

    polars_or_refuse("a comparison of indexes")
    for side in (actual, reference):
        if is_url(side):
            raise NotSupported(
                f"indexes of the stored dump {os.fspath(side)} are not compared by themselves",
                hint="copy its index.jsonl files here, or compare without index-only, which reads where they lie",
            )
    sides = [_ranks_in(Path(side)) for side in (actual, reference)]
    both = sorted(sides[0].keys() & sides[1].keys())
    tasks = [
        RankTask(f"rank-{rank}", _made_of(sides[0][rank], sides[1][rank]), (sides[0][rank], sides[1][rank], rank))
        for rank in both
    ]
    missing = tuple(sorted(sides[0].keys() ^ sides[1].keys()))
    if not tasks:
        raise DumpNotFound("both runs have no rank in common", path=Path(actual), hint="see `ascend-dump ls` of both")
    with map_ranks(index_of_rank, tasks, executor=executor, work=work, watch=watch) as partials:
        return _reduce(partials, missing)


def _ranks_in(root: Path) -> dict[int, str]:
    """The entries of a directory that are ranks. Raises DumpNotFound where there is none."""
    found: dict[int, str] = {}
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        raise DumpNotFound(f"it cannot be listed: {error.strerror}", path=root) from None
    for name in names:
        match = _RANK.fullmatch(name)
        if match:
            found[int(match[1])] = str(root / name)
    if not found:
        raise DumpNotFound(
            "there is no rank in it", path=root, hint="expected directories worldsizeN_global_rankR, or rank-R.parquet"
        )
    return found


def _made_of(*places: str) -> str:
    """What the result of a rank depends on: the files with their sizes and times."""
    parts: list[Any] = []
    for place in places:
        files = [place] if os.path.isfile(place) else _indexes(place)
        for file in files:
            status = os.stat(file)
            parts.append((file, status.st_size, status.st_mtime_ns))
    return repr(parts)


def _indexes(place: str) -> Iterator[str]:
    for folder, directories, names in os.walk(place):
        directories.sort()
        yield from (os.path.join(folder, name) for name in sorted(names) if not name.endswith(".safetensors"))


def index_of_rank(actual: str, reference: str, rank: int) -> polars.DataFrame:
    """What one rank gives: a row of its first difference, and one for each of its collectives.

    actual, reference: the rank in both runs, as `compare_indexes` finds it.
    """
    import polars as pl

    a, b = _read(actual), _read(reference)
    unreadable = a["error"].count() + b["error"].count()
    a, b = (side.filter(pl.col("error").is_null()) if side["error"].count() else side for side in (a, b))
    same = a.height == b.height and all(a[name].equals(b[name], null_equal=True) for name in _ALIGNED)
    if same:
        differs = _signature(a).ne_missing(_signature(b))
        alone, position, kind = 0, differs.arg_true().head(1), ""
        unequal = int(differs.sum())
        undecided = int((~differs & (_is_unproven(a) | _is_unproven(b))).sum())
    else:
        unequal, alone, undecided, position, kind = _joined(a, b)
    first: dict[str, Any] = {}
    if position.len():
        at = int(position[0])
        first = {"position": at, **{name: a[name][at] for name in _PLACE}}
        told = a["attrs"][at] or ""
        first["kind"] = kind or (
            "given" if first["io"] == "input" else "collective" if '"collective"' in told else "made"
        )
    elif alone:
        first = {"position": a.height, "kind": "structure"}
    counts = {"unequal": unequal, "alone": alone, "undecided": undecided, "unreadable": unreadable}
    row = {"what": "rank", "rank": rank, "rows": a.height, **counts, **first}
    return pl.concat([pl.DataFrame([row], schema=_table()), _joins(a, rank)], how="vertical")


#: The columns of a table by their types.
_COUNTS = ("rows", "unequal", "alone", "undecided", "unreadable")
_INTEGERS = ("rank", *_COUNTS, "position", "end", "step", "index")
_TEXTS = ("what", "kind", "op_type", "op_name", "io", "source", "key")


def _table() -> dict[str, Any]:
    """The columns of what `index_of_rank` gives."""
    import polars as pl

    kinds = dict.fromkeys(_TEXTS, pl.Utf8) | dict.fromkeys(_INTEGERS, pl.Int64)
    return {**kinds, "gives": pl.Boolean, "takes": pl.Boolean}


def _read(place: str) -> polars.DataFrame:
    """The columns of a rank that tell of values, in the order of its index."""
    import polars as pl

    from ascend_dump.reading import open_dump

    frame = pl.scan_parquet(place) if place.endswith(".parquet") else open_dump(place).catalog()
    return frame.select(*_COLUMNS, "error").collect()


def _signature(frame: polars.DataFrame) -> polars.Series:
    """What equal tensors have in common: the hash, else the statistics."""
    import polars as pl

    hashes = frame["hash"]
    if not hashes.null_count() and not (hashes == "").any():
        return hashes
    texts = pl.concat_str([pl.col(name).cast(pl.Utf8) for name in _STATISTICS], separator=" ", ignore_nulls=True)
    return frame.select(pl.when(pl.col("hash").fill_null("") != "").then(pl.col("hash")).otherwise(texts))["hash"]


def _is_unproven(frame: polars.DataFrame) -> polars.Series:
    """Of which records no hash tells the content, though they have one."""
    import polars as pl

    hashes = frame["hash"]
    if not hashes.null_count() and not (hashes == "").any():
        return pl.repeat(False, frame.height, dtype=pl.Boolean, eager=True)
    empty = pl.col("nbytes").fill_null(1) == 0
    without = pl.col("skipped").is_in(NO_VALUES).fill_null(False)
    unproven = (pl.col("hash").fill_null("") == "") & ~empty & ~without
    return frame.select(unproven.alias("unproven")).to_series()


def _joined(a: polars.DataFrame, b: polars.DataFrame) -> tuple[int, int, int, polars.Series, str]:
    """How many records differ, stand alone and are undecided, and which is the first, where both do not run alike."""
    import polars as pl

    keys = [*_ALIGNED, "again"]
    sides = [
        frame.select(*_ALIGNED, _signature(frame).alias("signature"), _is_unproven(frame).alias("unproven"))
        .with_row_index("row")
        .with_columns(pl.int_range(pl.len()).over(_ALIGNED).alias("again"))
        for frame in (a, b)
    ]
    joined = sides[0].join(sides[1], on=keys, how="full", nulls_equal=True, suffix="_b")
    paired = pl.col("row").is_not_null() & pl.col("row_b").is_not_null()
    differs = pl.col("signature").ne_missing(pl.col("signature_b"))
    differing = joined.filter(paired & differs)["row"]
    undecided = joined.filter(paired & ~differs & (pl.col("unproven") | pl.col("unproven_b")))
    alone = joined.filter(~paired)
    rows = pl.concat([differing, alone["row"].drop_nulls()]).sort().head(1)
    kind = "structure" if rows.len() and rows[0] in alone["row"] else ""
    return differing.len(), alone.height, undecided.height, rows, kind


def _joins(frame: polars.DataFrame, rank: int) -> polars.DataFrame:
    """One row for each collective: from where to where in the index it goes."""
    import polars as pl

    told = frame.with_row_index("position").filter(pl.col("attrs").str.contains('"collective"', literal=True))
    if not told.height:
        return pl.DataFrame(schema=_table())
    fields = {"kind": pl.Utf8, "group": pl.Utf8, "ranks": pl.Utf8, "nth": pl.Int64}
    numbers = dict.fromkeys(("root", "peer", "tag"), pl.Int64)
    shape = pl.Struct({"collective": pl.Struct({**fields, **numbers})})
    told = told.with_columns(pl.col("attrs").str.json_decode(shape).struct.field("collective")).unnest("collective")
    message = pl.col("kind").is_in(["send", "recv"])
    sends = pl.col("kind") == "send"
    ends = [
        pl.when(sends).then(pl.lit(rank)).otherwise(pl.col("peer")),
        pl.when(sends).then(pl.col("peer")).otherwise(rank),
    ]
    key = pl.concat_str(
        pl.col("step"),
        pl.when(message).then(pl.lit("message")).otherwise(pl.col("kind")),
        pl.col("group"),
        pl.col("ranks"),
        pl.when(message).then(ends[0]),
        pl.when(message).then(ends[1]),
        pl.when(message).then(pl.col("tag")),
        pl.col("nth").fill_null(0),
        separator=" ",
        ignore_nulls=True,
    )
    own = pl.col("root").fill_null(rank) == rank
    rooted = [
        pl.col("kind").is_in([kind for kind, what in _ROOTED.items() if what == role]) for role in ("gives", "takes")
    ]
    return (
        told.with_columns(
            key.alias("key"),
            ((~rooted[0] | own) & (pl.col("kind") != "recv")).alias("gives"),
            ((~rooted[1] | own) & ~sends).alias("takes"),
        )
        .group_by("key", maintain_order=True)
        .agg(
            pl.col("position").min().cast(pl.Int64),
            pl.col("position").filter(pl.col("io") == "output").min().cast(pl.Int64).alias("end"),
            pl.col("gives", "takes").first(),
        )
        .with_columns(pl.lit("join").alias("what"), pl.lit(rank, pl.Int64).alias("rank"))
        .with_columns(pl.col("end").fill_null(pl.col("position")))
        .pipe(lambda found: pl.concat([pl.DataFrame(schema=_table()), found], how="diagonal_relaxed"))
        .select(*_table())
    )


def _reduce(partials: Iterable[polars.DataFrame], missing: tuple[int, ...]) -> IndexComparison:
    import polars as pl

    tables = list(partials)
    ranks = pl.concat([table.filter(pl.col("what") == "rank") for table in tables])
    shown = ["rank", *_COUNTS, "position", "kind", *_PLACE]
    found = ranks.filter(pl.col("position").is_not_null())
    if not found.height:
        return IndexComparison(ranks.select(shown), (), missing)
    points = {Point(row["rank"], row["position"]): row for row in found.iter_rows(named=True)}
    known = clocks(_all_joins(tables), points)
    every = sorted(known.values(), key=lambda one: (one.total, one.point.rank))
    calls = {
        (rank, end): key
        for table in tables
        for rank, end, key in table.filter(pl.col("what") == "join").select("rank", "end", "key").iter_rows()
        if Point(rank, end) in points
    }
    begun = [one for at, one in enumerate(every) if not any(happens_before(other, one) for other in every[:at])]
    groups: dict[Any, list[Any]] = {}
    for one in begun:
        groups.setdefault(calls.get((one.point.rank, one.point.position), one.point), []).append(one)
    origins = []
    for members in groups.values():
        row = points[members[0].point]
        follows = sum(any(happens_before(one, other) for one in members) for other in every)
        place = {name: row[name] for name in _PLACE}
        origins.append(RankOrigin(tuple(one.point.rank for one in members), row["kind"], **place, follows=follows))
    origins.sort(key=lambda one: -one.follows)
    return IndexComparison(ranks.select(shown), tuple(origins), missing)


def _all_joins(tables: Iterable[polars.DataFrame]) -> Iterator[Join]:
    import polars as pl

    for table in tables:
        rows = table.filter(pl.col("what") == "join").select("key", "rank", "position", "end", "gives", "takes")
        yield from (Join(*row) for row in rows.iter_rows())
