"""A filter for operators that listings leave out: operators that change no values, and kernels of API calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar

import click

if TYPE_CHECKING:
    import polars

    from ascend_dump.report.column_rows import ColumnRows

__all__ = ["Folding", "all_option"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Item = TypeVar("_Item")

#: ATen operators that change no values: operators whose outputs are views of their input (from native_functions.yaml),
#: factories of uninitialised memory, and the operator that `item()` runs.
_ATEN = """
    _reshape_alias _unsafe_view alias as_strided chunk detach diagonal expand expand_as flatten lift_fresh movedim
    narrow permute reshape select slice split split_with_sizes squeeze swapaxes t transpose unbind unflatten unfold
    unsafe_chunk unsafe_split unsqueeze view view_as view_as_complex view_as_real
    empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize resize_as _local_scalar_dense
"""
#: Operators of GE, MindSpore and TensorFlow that change no values.
_OTHERS = """
    Depend ExpandDims Flatten FlattenV2 Identity IdentityN Load NoOp Reshape Squeeze StopGradient Unsqueeze View
"""
_FOLDED = frozenset([f"aten::{name}{mark}" for name in _ATEN.split() for mark in ("", "_", "_copy")] + _OTHERS.split())


def all_option(function: _Function) -> _Function:
    """Add the option `--all` to a verb, which gets it as `show_all`."""
    return click.option("--all", "show_all", is_flag=True, help="Also views, empty memory and the like.")(function)


class Folding:
    """A filter that drops and counts operators that change no values.

    It drops nothing if --all is given, or if the user selects operators by name or type.

    hides_kernels: True to drop kernels of API calls too, except those that overflowed or failed
    """

    def __init__(self, show_all: bool, selectors: dict[str, Optional[str]], *, hides_kernels: bool = False) -> None:
        self.count = self.kernels = 0
        self._hides_kernels = hides_kernels
        self._off = show_all or selectors.get("op") is not None or selectors.get("op_type") is not None

    def unfold(self, items: Iterable[_Item], record: Callable[[_Item], Any] = lambda item: item) -> Iterator[_Item]:
        """Yield the items that are not dropped. record: a function that returns the record of an item."""
        if self._off:
            yield from items
            return
        for item in items:
            shown = record(item)
            if self._hides_kernels and shown.kernel and not getattr(shown, "attrs", {}).get("scene"):
                self.kernels += 1
            elif shown.op_type in _FOLDED and shown.error is None:
                self.count += 1
            else:
                yield item

    def unfold_rows(self, rows: ColumnRows) -> ColumnRows:
        """Return the rows that are not dropped."""
        import polars as pl

        if self._off:
            return rows
        row = pl.int_range(pl.len())
        if self._hides_kernels:
            shown = [number for number, record in rows.records.items() if record.attrs.get("scene")]
            is_kernel = pl.col("kernel").fill_null("").ne("") & ~row.is_in(shown)
        else:
            is_kernel = pl.lit(False)
        unreadable = [number for number, record in rows.records.items() if record.error is not None]
        is_folded = _is_folded() & ~row.is_in(unreadable)
        hidden = rows.frame.select(kernel=is_kernel, view=~is_kernel & is_folded)
        self.kernels += int(hidden["kernel"].sum()) * rows.times
        self.count += int(hidden["view"].sum()) * rows.times
        return rows.without(hidden["kernel"] | hidden["view"])

    def are_shown(self) -> polars.Expr:
        """Return an expression that is False for rows of a catalog that `unfold_rows` drops as views."""
        import polars as pl

        return pl.lit(True) if self._off else ~_is_folded() | pl.col("error").is_not_null()

    def notes(self, noun: str, *, holding: str = "") -> Iterator[str]:
        """Yield sentences about the dropped items. holding: a property of all dropped items, such as "NaN"."""
        from ascend_dump.report.tables import counted

        if self.kernels:
            are = "is" if self.kernels == 1 else "are"
            number = counted(self.kernels, "kernel" if noun == "operator" else noun)
            yield f"{number}{'' if noun == 'operator' else ' of kernels'} {are} left out: --kernels"
        if not self.count:
            return
        change, are = ("changes", "is") if self.count == 1 else ("change", "are")
        hold = f" with {holding}" if holding else ""
        what = f"{counted(self.count, noun)}{hold} that {change} no values"
        yield f"{what} (views, detach, empty, ...) {are} left out: --all"


def _is_folded() -> polars.Expr:
    import polars as pl

    return pl.col("op_type").is_in(sorted(_FOLDED)).fill_null(False)
