"""Compare the indexes of one rank in two runs: return its first difference and its collectives as a small table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.analysis.operators.unread_inputs import unread_rows
from ascend_dump.dump_format import NO_VALUES
from ascend_dump.errors import ConfigError, CorruptDump, StorageError
from ascend_dump.storage import StoredPath, located
from ascend_dump.storage.files import open_regular

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading import LostRecords

__all__ = ["COUNTS", "PROGRAM_FIELDS", "index_of_rank"]

#: The columns that identify a record in the program.
PROGRAM_FIELDS = ("step", "op_type", "op_name", "io", "index", "source")
#: Statistics that do not depend on the order of the elements, and sums, whose last digits depend on it.
_EXACT, _SUMS = ("max", "min", "nan"), ("mean", "l2norm")
#: The columns that describe a tensor as a part of the hashed bytes: see `ascend_dump.dump_format.StoredView`.
_VIEW = ("dtype", "shape", "blob_offset", "stored_stride")
_LISTS = ("shape", "stored_stride")
_VALUES = (*_VIEW, "blob_nbytes", "nbytes", *_EXACT, *_SUMS)
_COLUMNS = (*PROGRAM_FIELDS, "run", "hash", "attrs", *_VALUES, "skipped")
#: An added column: the number of the run among the runs with the same step, from 1.
_TURN = "turn"
_ALIGNED = ("step", _TURN, "op_name", "io", "index")
#: The columns with numbers of records of a rank.
COUNTS = ("rows", "unequal", "alone", "undecided", "unreadable")
#: Kinds of collectives in which only the root sends ("gives"), or only the root receives ("takes").
_ROOTED = {"broadcast": "gives", "scatter": "gives", "reduce": "takes", "gather": "takes"}
#: The columns of the table of a rank: columns of integers, and columns of texts.
_INTEGERS = ("rank", *COUNTS, "position", "end", "step", "index", "found", "written", "size", "needs")
_TEXTS = ("what", "kind", "op_type", "op_name", "io", "source", "key", "run", "shard")


def index_of_rank(actual: str, reference: str, rank: int) -> polars.DataFrame:
    """Return the table of one rank: a row for its first difference, for each collective, and for each run that has
    lost records.

    actual, reference: the entries of the rank in both runs. Raises ConfigError if the numbers of runs of a step
    differ.
    """
    import polars as pl

    (a, lost_in_a), (b, lost_in_b) = _read(actual), _read(reference)
    unreadable = a["error"].count() + b["error"].count()
    a, b = (side.filter(pl.col("error").is_null()) if side["error"].count() else side for side in (a, b))
    a, b = _with_turns(a, b, (actual, reference), rank)
    row = {"what": "rank", "rank": rank, "rows": a.height, "unreadable": unreadable, **_compared(a, b)}
    try:
        joins = _joins(a, rank)
    except pl.exceptions.PolarsError as error:
        raise CorruptDump(f"a collective in its index cannot be read: {_first_line(error)}", path=actual) from error
    lost = [{"what": "lost", **run._asdict(), "run": str(run.run)} for run in dict.fromkeys([*lost_in_a, *lost_in_b])]
    return pl.concat([pl.DataFrame([row, *lost], schema=_table()), joins], how="vertical")


def _with_turns(
    a: polars.DataFrame, b: polars.DataFrame, paths: tuple[str, str], rank: int
) -> tuple[polars.DataFrame, polars.DataFrame]:
    """Return both sides with the column _TURN: runs with the same step are compared one by one, in their order.

    Raises ConfigError if the numbers of such runs differ.
    """
    import polars as pl

    if max(side["run"].n_unique() for side in (a, b)) < 2:
        turn = pl.lit(1, pl.UInt32).alias(_TURN)
        return a.with_columns(turn), b.with_columns(turn)
    runs, runs_b = (side.group_by("step").agg(pl.col("run").unique().sort()) for side in (a, b))
    common = runs.join(runs_b, on="step", nulls_equal=True, suffix="_b").sort("step")
    ambiguous = common.filter(pl.col("run").list.len() != pl.col("run_b").list.len())
    for step, *names in ambiguous.head(1).iter_rows():
        longer = 0 if len(names[0]) > len(names[1]) else 1
        raise ConfigError(
            f"{paths[longer]} has step {step} in {len(names[longer])} runs ({', '.join(map(str, names[longer]))}), "
            f"{paths[1 - longer]} in {len(names[1 - longer])}: the runs to compare are ambiguous",
            hint="give directories with one run of each rank, or the catalog of one: "
            f"`{_catalog_of(paths[longer], names[longer][-1])}.sink_parquet('rank-{rank}.parquet')`",
        )
    turn = pl.col("run").rank("dense").over("step").cast(pl.UInt32).alias(_TURN)
    return a.with_columns(turn), b.with_columns(turn)


def _catalog_of(path: str, run: str) -> str:
    """Return the expression for the catalog of one run of a rank."""
    if path.endswith(".parquet"):
        return f"polars.scan_parquet({path!r}).filter(polars.col('run') == {run!r})"
    return f"ascend_dump.open({path!r}).select(run={run!r}).catalog()"


def _table() -> dict[str, Any]:
    """Return the columns of the table of `index_of_rank`, with their types."""
    import polars as pl

    kinds = dict.fromkeys(_TEXTS, pl.Utf8) | dict.fromkeys(_INTEGERS, pl.Int64)
    return {**kinds, "gives": pl.Boolean, "takes": pl.Boolean}


def _read(path_text: str) -> tuple[polars.DataFrame, list[LostRecords]]:
    """Return the index of a rank with the columns to compare, and its runs that have lost records.

    A catalog does not tell which records were lost. Raises CorruptDump for a file that is no catalog.
    """
    import polars as pl

    from ascend_dump.reading import open_dump
    from ascend_dump.reading.catalog import schema

    if not path_text.endswith(".parquet"):
        dump = open_dump(path_text)
        # The order matters: the lost records of a large dump are counted in the stored catalog.
        return dump.catalog().select(*_COLUMNS, "error").collect(), dump.lost_records()
    types = schema()
    path = located(path_text)
    columns = [pl.col(name).cast(types[name]) for name in (*_COLUMNS, "error")]
    try:
        if isinstance(path, StoredPath):
            with open_regular(path) as file:
                return pl.read_parquet(file).select(columns), []
        return pl.scan_parquet(path, glob=False).select(columns).collect(), []
    except StorageError:
        raise
    except (pl.exceptions.PolarsError, OSError) as error:
        raise CorruptDump(
            f"it is not the catalog of a rank: {_first_line(error)}",
            path=path_text,
            hint="write it with `ascend_dump.open(rank).catalog().sink_parquet(file)`",
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _compared(a: polars.DataFrame, b: polars.DataFrame) -> dict[str, Any]:
    """Return the counts of `COUNTS` that need a comparison, and the first difference if there is one."""
    import polars as pl

    sides = [_values(frame) for frame in (a, b)]
    if a.height == b.height and all(a[name].equals(b[name], null_equal=True) for name in _ALIGNED):
        renamed = sides[1].rename(lambda name: f"{name}_b")
        joined = pl.concat([sides[0], renamed], how="horizontal")
    else:
        numbered = [side.with_columns(pl.int_range(pl.len()).over(_ALIGNED).alias("again")) for side in sides]
        joined = numbered[0].join(numbered[1], on=[*_ALIGNED, "again"], how="full", nulls_equal=True, suffix="_b")
    paired = joined.filter(pl.col("row").is_not_null() & pl.col("row_b").is_not_null())
    differing, undecided = _judged(paired, a)
    only_b = joined.filter(pl.col("row").is_null())
    alone = joined.height - paired.height
    counts = {"unequal": differing.height, "alone": alone, "undecided": undecided}
    positions = [
        (position, order, kind, frame, row)
        for order, kind, frame, rows in (
            (1, "", a, differing.select("row", row_of="row")),
            (1, "structure", a, joined.filter(pl.col("row_b").is_null()).select("row", row_of="row")),
            (0, "structure", b, _positions(joined, only_b)),
        )
        for position, row in rows.sort("row").head(1).iter_rows()
    ]
    if not positions:
        return counts
    position, _, kind, frame, row = min(positions, key=lambda item: item[:2])
    first = {"position": position, **{name: frame[name][row] for name in PROGRAM_FIELDS}}
    in_collective = '"collective"' in (frame["attrs"][row] or "")
    kind = kind or ("given" if first["io"] == "input" else "collective" if in_collective else "made")
    return {**counts, **first, "kind": kind}


def _values(frame: polars.DataFrame) -> polars.DataFrame:
    """Return numbered rows with the columns to pair and compare.

    Two columns are added: `valueless` if the record has no value, and `unread` if its operator does not read the input.
    """
    import polars as pl

    valueless = (pl.col("nbytes").fill_null(1) == 0) | pl.col("skipped").is_in(NO_VALUES).fill_null(False)
    hashes = pl.when((pl.col("hash") != "") & (pl.col("skipped").fill_null("") == "")).then(pl.col("hash"))
    unread = unread_rows().alias("unread")
    # Lists are compared by hashes of 64 bits, eight times as fast.
    values = [
        pl.when(pl.col(name).is_not_null()).then(pl.col(name).hash()).alias(name) if name in _LISTS else pl.col(name)
        for name in _VALUES
    ]
    return frame.select(*_ALIGNED, hashes.alias("hash"), *values, valueless.alias("valueless"), unread).with_row_index(
        "row"
    )


def _judged(paired: polars.DataFrame, a: polars.DataFrame) -> tuple[polars.DataFrame, int]:
    """Return the pairs that differ, and the number of undecided ones; inputs that operators do not read are left out.

    a: the records of actual, to which `row` refers

    Equal hashes prove that tensors are equal if both tensors are the same part of the hashed bytes. Unequal hashes
    prove a difference only if the hash covers exactly the tensor: a slice may be equal in unequal blobs.
    """
    import polars as pl

    hashed = pl.col("hash").is_not_null() & pl.col("hash_b").is_not_null()
    same_view = pl.all_horizontal(pl.col(name) == pl.col(f"{name}_b") for name in _VIEW).fill_null(False)
    same = (pl.col("hash") == pl.col("hash_b")).fill_null(False) & same_view
    remaining = paired.filter(~same & ~pl.col("unread"))
    if not remaining.height:
        return remaining, 0
    sizes = [pl.col(f"blob_nbytes{side}").fill_null(pl.col("nbytes")) for side in ("", "_b")]
    own_bytes = pl.all_horizontal(size == pl.col("nbytes") for size in sizes).fill_null(False) & _without_gaps(
        remaining, a
    )
    by_hash = (hashed & same_view & own_bytes) | (hashed & _unequal(("dtype", "shape")))
    by_sums = _unequal(_SUMS) & (same_view | ~hashed)
    differs = by_hash | by_sums | _unequal((*_EXACT, "valueless"))
    undecided = remaining.filter(~differs & ~pl.col("valueless")).height
    return remaining.filter(differs), undecided


def _unequal(names: Iterable[str]) -> polars.Expr:
    """Return the expression for rows with a column that is known on both sides, and not equal."""
    import polars as pl

    return pl.any_horizontal((pl.col(name) != pl.col(f"{name}_b")).fill_null(False) for name in names)


def _without_gaps(pairs: polars.DataFrame, a: polars.DataFrame) -> polars.Series:
    """Return for each tensor of actual True if its elements fill one range of bytes without gaps and overlap.

    This is computed once for each combination of shape and strides, of which many tensors have only a few.
    """
    import polars as pl

    alike: polars.Series = pairs.select(pl.struct(_LISTS).hash()).to_series()
    firsts = pl.DataFrame({"alike": alike, "row": pairs["row"]}).unique("alike", keep="first")
    filled = [_fill(*(a[name][row] for name in _LISTS)) for row in firsts["row"]]
    dense: polars.Series = alike.replace_strict(
        firsts["alike"], pl.Series(filled, dtype=pl.Boolean), return_dtype=pl.Boolean
    )
    return dense


def _fill(shape: Optional[Iterable[int]], strides: Optional[Iterable[int]]) -> bool:
    elements = 1
    # A tensor without strides is stored in row-major order.
    pairs = list(zip([] if shape is None else shape, [] if strides is None else strides))
    if any(None in pair for pair in pairs):  # in a catalog that was written by hand
        return False
    for step, size in sorted((step, size) for size, step in pairs if size > 1):
        if step != elements:
            return False
        elements *= size
    return True


def _positions(joined: polars.DataFrame, only_b: polars.DataFrame) -> polars.DataFrame:
    """Return positions in actual for records that only the reference has: each comes after the pairs before it."""
    import polars as pl

    if not only_b.height:
        return only_b.select("row", row_of="row_b")
    before = pl.col("row").cum_max().forward_fill().fill_null(-1).cast(pl.Int64) + 1
    ordered = joined.filter(pl.col("row_b").is_not_null()).sort("row_b").with_columns(before.alias("before"))
    return ordered.filter(pl.col("row").is_null()).select(row="before", row_of="row_b")


def _joins(frame: polars.DataFrame, rank: int) -> polars.DataFrame:
    """Return one row for each collective, with the position in the index of its first record and first output."""
    import polars as pl

    records = frame.with_row_index("position").filter(pl.col("attrs").str.contains('"collective"', literal=True))
    if not records.height:
        return pl.DataFrame(schema=_table())
    fields = {"kind": pl.Utf8, "group": pl.Utf8, "ranks": pl.Utf8, "nth": pl.Int64}
    numbers = dict.fromkeys(("root", "peer", "tag"), pl.Int64)
    shape = pl.Struct({"collective": pl.Struct({**fields, **numbers})})
    records = records.with_columns(pl.col("attrs").str.json_decode(shape).struct.field("collective")).unnest(
        "collective"
    )
    message = pl.col("kind").is_in(["send", "recv"])
    sends = pl.col("kind") == "send"
    ends = [
        pl.when(sends).then(pl.lit(rank)).otherwise(pl.col("peer")),
        pl.when(sends).then(pl.col("peer")).otherwise(rank),
    ]
    key = pl.concat_str(
        pl.col("step"),
        pl.col(_TURN),
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
    is_root = pl.col("root").fill_null(rank) == rank
    rooted = [
        pl.col("kind").is_in([kind for kind, direction in _ROOTED.items() if direction == column])
        for column in ("gives", "takes")
    ]
    return (
        records.with_columns(
            key.alias("key"),
            ((~rooted[0] | is_root) & (pl.col("kind") != "recv")).alias("gives"),
            ((~rooted[1] | is_root) & ~sends).alias("takes"),
        )
        .group_by("key", maintain_order=True)
        .agg(
            pl.col("position").min().cast(pl.Int64),
            pl.col("position").filter(pl.col("io") == "output").min().cast(pl.Int64).alias("end"),
            pl.col("gives", "takes").first(),
        )
        .with_columns(pl.lit("join").alias("what"), pl.lit(rank, pl.Int64).alias("rank"))
        .with_columns(pl.col("end").fill_null(pl.col("position")))
        .pipe(lambda joins: pl.concat([pl.DataFrame(schema=_table()), joins], how="diagonal_relaxed"))
        .select(*_table())
    )
