"""Wrap the dialects of other packages: an error in such a dialect is reported with its name, and reading continues."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar

from ascend_dump.errors import AscendDumpError, ReadError
from ascend_dump.reading._dialect import Directory, Entry, WrappedEntry
from ascend_dump.reading._record import Loader, Record
from ascend_dump.statistics import COMPUTED, Precision

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.statistics import Statistics

__all__ = ["ThirdPartyDialect"]

log = logging.getLogger("ascend_dump")

_T = TypeVar("_T")

#: The fields by which entries are sorted, with their types: a wrong type would make sorting fail.
_FIELDS = {
    "run": (str, type(None)),
    "rank": (int, type(None)),
    "device": (int, type(None)),
    "model": (str, type(None)),
    "step": (int, type(None)),
    "order": (int,),
}


class ThirdPartyDialect:
    """A `Dialect` of another package. An exception in its `scan` becomes a warning, once per opening of a dump."""

    def __init__(self, name: str, inner: Any) -> None:
        if isinstance(inner, type) or not callable(getattr(inner, "scan", None)):
            raise TypeError(f"expected an object with a method scan(directory), got {inner!r}")
        self.name = name
        self._scan: Callable[[Directory], Any] = inner.scan
        self._reported = False

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        try:
            entries, claimed = self._scan(directory)
            return [_ThirdPartyEntry(entry, self.name) for entry in entries], {*claimed} & {*directory.names}
        except Exception as error:
            if not self._reported:
                self._reported = True
                log.warning(
                    "the dialect %s failed in %s, so its files there are not read: %r", self.name, directory.path, error
                )
            return [], set()


class _ThirdPartyEntry(WrappedEntry):
    """An entry of a dialect of another package: an exception in its `records` becomes a record with that error."""

    __slots__ = ("_dialect",)

    def __init__(self, inner: Entry, dialect: str) -> None:
        for field, kinds in _FIELDS.items():
            value = getattr(inner, field)
            if not isinstance(value, kinds):
                expected = " or ".join(kind.__name__ for kind in kinds)
                raise TypeError(f"{field} of an entry is {value!r}, expected {expected}")
        super().__init__(inner)
        self._dialect = dialect

    def records(self) -> Iterator[Record]:
        try:
            for record in self._inner.records():
                if not isinstance(record, Record):
                    raise TypeError(f"expected a Record, got {record!r}")
                if record.loader is not None:
                    record.loader = _ThirdPartyLoader(record.loader, self._dialect)
                yield record
        except Exception as error:
            yield Record(
                None,
                path=self.path,
                error=_failure(self._dialect, error, self.path),
                op_type=self.op_type or "",
                op_name=self.op_name or "",
                step=self.step,
                rank=self.rank,
            )


class _ThirdPartyLoader:
    """A loader of a dialect of another package: exceptions other than those of ascend_dump become a ReadError."""

    def __init__(self, inner: Loader, dialect: str) -> None:
        self._inner, self._dialect = inner, dialect

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        return self._guarded(record, lambda: self._inner.tensor(record, format))

    def statistics(self, record: Record) -> Optional[Statistics]:
        return self._guarded(record, lambda: self._inner.statistics(record))

    def precision(self, record: Record) -> Precision:
        find = getattr(self._inner, "precision", None)
        return COMPUTED if find is None else self._guarded(record, lambda: find(record))

    def content(self, record: Record) -> Optional[tuple[Hashable, ...]]:
        find = getattr(self._inner, "content", None)
        return None if find is None else self._guarded(record, lambda: find(record))

    def _guarded(self, record: Record, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except (AscendDumpError, MemoryError):
            raise
        except Exception as error:
            raise _failure(self._dialect, error, record.path) from error


def _failure(dialect: str, error: Exception, path: Any) -> ReadError:
    if isinstance(error, ReadError):
        return error
    return ReadError(
        f"the dialect {dialect} could not read this file: {error!r}",
        path=path,
        hint="report this to the authors of the package that registers the dialect; `ascend-dump doctor` names it",
    )
