"""Find the files at the start of a large dump that have no NaN and Inf, by the columns of its catalog."""

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
    """The number of files before the first one that may have NaN or Inf, and the number of operators in these files."""

    entries: int
    operators: int


def finite_start(frame: polars.LazyFrame, numbers: Sequence[int]) -> FiniteStart:
    """Count the files at the start of a dump that have recorded statistics of all tensors, without NaN or Inf.

    frame: the rows of the catalog; numbers: the numbers of its files (column ENTRY), in the order of the dump. Only
    files of host dumps are counted: dumps of devices have reports of overflow. No file from the first collective on is
    counted, because the outputs of a collective may be recorded after other operators.
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
    """Return an expression that is True for a record of a host dump without NaN, without Inf, and of no collective."""
    import polars as pl

    op_type = pl.col("op_type").fill_null("")
    ordinary = pl.col("error").is_null() & pl.col("storage").is_not_null() & pl.col("kernel").is_null()
    ordinary &= op_type.str.contains("c10d", literal=True).not_() & pl.col("origin").fill_null(False).not_()
    finite = pl.all_horizontal(pl.col(name).eq(0) for name in ("nan", "posinf", "neginf"))
    return ordinary & (finite.fill_null(False) | pl.col("skipped").is_in(list(NO_VALUES)).fill_null(False))
