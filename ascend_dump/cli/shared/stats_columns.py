"""Select the tensors of a large dump that `stats` has to examine, by the columns of its catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from ascend_dump.cli.shared.reading import progress

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading import Dump

__all__ = ["candidates"]


def candidates(dump: Dump, *, nonfinite: bool, sort: Optional[str], limit: int) -> tuple[Dump, int]:
    """Return the part of the dump that may be listed, and the number of records outside of this part.

    The part contains all records without recorded statistics, because their statistics have to be computed.

    nonfinite  True if only tensors with NaN or Inf are listed
    sort       the column by which tensors are sorted, or None
    limit      with `sort`: number of tensors that are listed; 0: all
    """
    import polars as pl

    frame = dump.catalog(watch=lambda parts: progress(parts, "records", len))
    unknown = pl.col("count").is_null() | pl.col("error").is_not_null()
    filters = [unknown | _is_nonfinite()] if nonfinite else []
    if sort and limit:
        value = pl.col(sort).cast(pl.Float64)
        measured = frame.filter(~unknown, value.is_not_null() & ~value.is_nan(), *filters)
        largest = measured.select(value.top_k(limit).alias("value")).collect()["value"]
        if len(largest) == limit:
            filters.append(unknown | value.is_nan() | value.ge(largest.min()))
    if not filters:
        return dump, 0
    count = pl.len()
    selected = frame.filter(*filters).select(count).collect().item()
    return dump.where(*filters), frame.select(count).collect().item() - selected


def _is_nonfinite() -> polars.Expr:
    """Return an expression that is True for records with NaN or Inf in their recorded statistics.

    It has to agree with the function `is_nonfinite` for statistics.
    """
    import polars as pl

    counts = [pl.col(name) for name in ("nan", "posinf", "neginf")]
    counted = pl.any_horizontal(count.is_not_null() for count in counts)
    computed = pl.any_horizontal(~pl.col(name).is_finite().fill_null(True) for name in ("max", "min", "mean"))
    return pl.when(counted).then(pl.any_horizontal(count.fill_null(0).ne(0) for count in counts)).otherwise(computed)
