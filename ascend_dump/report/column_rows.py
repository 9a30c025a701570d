"""Rows of a listing as columns of a catalog; only rows that need it are records too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading import Record

__all__ = ["ColumnRows", "shape", "text"]


class ColumnRows(NamedTuple):
    """Rows of a listing.

    frame    a row per line
    records  by row: the record of a line that the columns do not have all values for, such as an unreadable one
    steps    the steps that all have these rows, one after the other, if there are several
    """

    frame: polars.DataFrame
    records: dict[int, Record]
    steps: Sequence[Optional[int]] = ()

    @property
    def times(self) -> int:
        """The number of times that the rows are listed."""
        return max(len(self.steps), 1)

    def without(self, hidden: polars.Series) -> ColumnRows:
        """Return the rows that are not hidden. hidden: a boolean for each row"""
        if not self.records:
            return ColumnRows(self.frame.filter(~hidden), {}, self.steps)
        rows = self.frame.with_row_index("old").filter(~hidden)
        records = {new: self.records[old] for new, old in enumerate(rows["old"].to_list()) if old in self.records}
        return ColumnRows(rows.drop("old"), records)


def text(values: polars.Expr) -> polars.Expr:
    """Return values as text, and `-` for null and the empty text."""
    import polars as pl

    as_text = values.cast(pl.Utf8)
    return pl.when(as_text.eq("") | as_text.is_null()).then(pl.lit("-")).otherwise(as_text)


def shape(values: polars.Expr) -> polars.Expr:
    """Return shapes as text, `[2,3]`, and `-` for null."""
    import polars as pl

    return text(pl.concat_str(pl.lit("["), values.cast(pl.List(pl.Utf8)).list.join(","), pl.lit("]")))
