"""The first files of a large dump without NaN and Inf, from the columns of its catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ascend_dump.dump_format import NO_VALUES
from ascend_dump.reading.catalog import ENTRY

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading._dialect import Entry

__all__ = ["FiniteStart", "finite_start"]

#: The columns that tell one run of an operator from the next, see `Record.execution`.
_EXECUTION = (ENTRY, "run", "rank", "device", "model", "model_id", "step", "op_type", "op_name", "nth")


class FiniteStart(NamedTuple):
    """entries: the number of files before the first one that may have NaN or Inf; operators: those in them."""

    entries: int
    operators: int


def finite_start(frame: polars.LazyFrame, numbers: Sequence[int]) -> FiniteStart:
    """Return the files at the start of a dump that have recorded statistics of all tensors, without NaN or Inf.

    frame: the rows of the catalog; numbers: those of its files, in the order of the dump. Only host dumps have such
    files: the dumps of devices have their own reports of overflow. A collective ends them, because its outputs may be
    recorded after other operators.
    """
    import polars as pl

    begins = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in _EXECUTION)
    rows = frame.select(ENTRY, _is_finite().not_().alias("open"), begins.alias("begins"))
    files = rows.group_by(ENTRY).agg(pl.col("open").any(), pl.col("begins").sum()).collect()
    by_number: dict[int, tuple[bool, int]] = {number: (is_open, count) for number, is_open, count in files.iter_rows()}
    operators = 0
    for position, number in enumerate(numbers):
        is_open, count = by_number.get(number, (False, 0))
        if is_open:
            return FiniteStart(position, operators)
        operators += count
    return FiniteStart(len(numbers), operators)


def numbers_of(entries: Sequence[Entry], whole: Sequence[Entry]) -> list[int]:
    """Return the numbers of some entries in the catalog of the whole dump."""
    by_id = {id(entry): number for number, entry in enumerate(whole)}
    return [by_id[id(entry)] for entry in entries]


def _is_finite() -> Any:
    """Return the expression of a record of a host dump that surely has no NaN or Inf and is of no collective."""
    import polars as pl

    op_type = pl.col("op_type").fill_null("")
    ordinary = pl.col("error").is_null() & pl.col("storage").is_not_null() & pl.col("kernel").is_null()
    ordinary &= op_type.str.contains("c10d", literal=True).not_() & pl.col("origin").fill_null(False).not_()
    finite = pl.all_horizontal(pl.col(name).eq(0) for name in ("nan", "posinf", "neginf"))
    return ordinary & (finite.fill_null(False) | pl.col("skipped").is_in(list(NO_VALUES)).fill_null(False))
