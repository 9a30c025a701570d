"""Statistics of many ranks on an executor: tensors are read where a task runs, what is known of them comes back."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump import errors
from ascend_dump.analysis.numerics.valueless import is_no_value
from ascend_dump.analysis.ranks.rank_tasks import RankTask, map_ranks
from ascend_dump.errors import AscendDumpError, NotSupported, ReadError
from ascend_dump.reading import Dump, Record

if TYPE_CHECKING:
    import numpy as np
    import polars

    from ascend_dump.reading import Loader
    from ascend_dump.statistics import Statistics

__all__ = ["measured", "ranks_apart"]


def ranks_apart(dumps: Iterable[Dump]) -> Optional[list[int]]:
    """The ranks that can be looked at one by one, as names of files tell; None where there is one, or they do not."""
    found: set[Any] = set()
    for dump in dumps:
        found |= dump.known_values("rank")
    return sorted(found) if len(found) > 1 and None not in found else None


def measured(
    dump: Dump,
    executor: Executor,
    *,
    watch: Optional[Callable[[Iterable[str]], Iterable[str]]] = None,
) -> Iterator[Record]:
    """The records of a dump in their order; those without recorded statistics have the statistics of their values.

    The ranks are measured side by side, one task for each; records of a dump of one rank come as they are. `watch` is
    given the names of tasks as they are done. Raises as `map_ranks`.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as executor:   # doctest: +SKIP
    ...     for record in measured(ascend_dump.open("dumps"), executor):
    ...         print(record, record.statistics())
    """
    ranks = ranks_apart([dump])
    if ranks is None:
        yield from dump
        return
    tasks = [RankTask(f"rank-{rank}", dump.select(rank=rank).state(), (dump, rank)) for rank in ranks]
    with map_ranks(statistics_of_rank, tasks, executor=executor, watch=watch) as tables:
        known = {(path, number): text for table in tables for path, number, text in table.iter_rows()}
    seen: dict[str, int] = {}
    for record in dump:
        place = _place(record, seen)
        text = known.pop(place, None)
        if text is not None and record.loader is not None:
            record.loader = _MeasuredLoader(record.loader, text)
        yield record


def statistics_of_rank(dump: Dump, rank: int) -> polars.DataFrame:
    """Of each record of a rank that has no statistics, by its file and its number there: those of its values, or why
    there are none."""
    import polars as pl

    rows: list[tuple[str, int, str]] = []
    seen: dict[str, int] = {}
    for record in dump.select(rank=rank):
        place = _place(record, seen)
        if record.error is not None or record.loader is None or is_no_value(record):
            continue
        try:
            if record.recorded_statistics() is not None:
                continue
            found: Any = list(record.statistics())
        except (ReadError, NotSupported) as error:
            found = _told(error)
        rows.append((*place, json.dumps(found, default=_plain)))
    return pl.DataFrame(rows, schema={"path": pl.String, "number": pl.Int64, "found": pl.String}, orient="row")


def _place(record: Record, seen: dict[str, int]) -> tuple[str, int]:
    path = str(record.path)
    number = seen[path] = seen.get(path, -1) + 1
    return path, number


def _plain(value: Any) -> Any:
    """numpy's numbers as those of Python."""
    return value.item()


def _told(error: AscendDumpError) -> dict[str, Any]:
    path = getattr(error, "path", None)
    return {
        "type": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "code": error.code,
        "path": None if path is None else str(path),
        "offset": getattr(error, "offset", None),
    }


class _MeasuredLoader:
    """Reads as the one it stands for, and knows the statistics, or why there are none."""

    __slots__ = ("_found", "_inner")

    def __init__(self, inner: Loader, found: str) -> None:
        self._inner = inner
        self._found = found

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        return self._inner.tensor(record, format)

    def content(self, record: Record) -> Optional[tuple[Hashable, ...]]:
        find: Optional[Callable[[Record], Optional[tuple[Hashable, ...]]]] = getattr(self._inner, "content", None)
        return None if find is None else find(record)

    def statistics(self, record: Record) -> Statistics:
        from ascend_dump.statistics import Statistics

        found = json.loads(self._found)
        if isinstance(found, list):
            return Statistics(*found)
        error: AscendDumpError = getattr(errors, found["type"])(
            found["message"], hint=found["hint"], code=found["code"]
        )
        if isinstance(error, ReadError):
            # They stand in the message already.
            error.path, error.offset = found["path"], found["offset"]
        raise error
