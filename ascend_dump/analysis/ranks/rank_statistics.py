"""Measure statistics of many ranks on an executor: workers read the tensors and send statistics back."""

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
    from ascend_dump.statistics import Precision, Statistics

__all__ = ["measured", "ranks_apart"]


def ranks_apart(dumps: Iterable[Dump]) -> Optional[list[int]]:
    """Return the ranks if file names alone tell the rank of each record; None if they do not, or for a single rank."""
    ranks: set[Any] = set()
    for dump in dumps:
        ranks |= dump.known_values("rank")
    return sorted(ranks) if len(ranks) > 1 and None not in ranks else None


def measured(
    dump: Dump,
    executor: Executor,
    *,
    watch: Optional[Callable[[Iterable[str]], Iterable[str]]] = None,
) -> Iterator[Record]:
    """Yield the records of a dump in their order; records without recorded statistics get measured ones.

    The ranks are measured in parallel, one task for each. Records of a dump of one rank, or of
    ranks that the file names do not tell, are yielded unchanged: they measure their statistics on access. `watch` and
    errors are those of `map_ranks`.

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
        measurements = {(path, number): text for table in tables for path, number, text in table.iter_rows()}
    numbers: dict[str, int] = {}
    for record in dump:
        key = _key(record, numbers)
        text = measurements.pop(key, None)
        if text is not None and record.loader is not None:
            record.loader = _MeasuredLoader(record.loader, text)
        yield record


def statistics_of_rank(dump: Dump, rank: int) -> polars.DataFrame:
    """Return the statistics of each record of a rank that has no recorded ones, or the error, by file and number."""
    import polars as pl

    rows: list[tuple[str, int, str]] = []
    numbers: dict[str, int] = {}
    for record in dump.select(rank=rank):
        key = _key(record, numbers)
        if record.error is not None or record.loader is None or is_no_value(record):
            continue
        try:
            if record.recorded_statistics() is not None:
                continue
            result: Any = list(record.statistics())
        except (ReadError, NotSupported) as error:
            result = _error_fields(error)
        rows.append((*key, json.dumps(result, default=_plain)))
    return pl.DataFrame(rows, schema={"path": pl.String, "number": pl.Int64, "found": pl.String}, orient="row")


def _key(record: Record, numbers: dict[str, int]) -> tuple[str, int]:
    path = str(record.path)
    number = numbers[path] = numbers.get(path, -1) + 1
    return path, number


def _plain(value: Any) -> Any:
    """Convert a numpy number to a Python number."""
    return value.item()


def _error_fields(error: AscendDumpError) -> dict[str, Any]:
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
    """A loader with measured statistics, or with the error of measuring them."""

    __slots__ = ("_result", "_inner")

    def __init__(self, inner: Loader, result: str) -> None:
        self._inner = inner
        self._result = result

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        return self._inner.tensor(record, format)

    def precision(self, record: Record) -> Precision:
        from ascend_dump.statistics import COMPUTED

        find: Optional[Callable[[Record], Precision]] = getattr(self._inner, "precision", None)
        return COMPUTED if find is None or self._inner.statistics(record) is None else find(record)

    def content(self, record: Record) -> Optional[tuple[Hashable, ...]]:
        find: Optional[Callable[[Record], Optional[tuple[Hashable, ...]]]] = getattr(self._inner, "content", None)
        return None if find is None else find(record)

    def statistics(self, record: Record) -> Statistics:
        from ascend_dump.statistics import Statistics

        result = json.loads(self._result)
        if isinstance(result, list):
            return Statistics(*result)
        error: AscendDumpError = getattr(errors, result["type"])(
            result["message"], hint=result["hint"], code=result["code"]
        )
        if isinstance(error, ReadError):
            # The message contains path and offset already.
            error.path, error.offset = result["path"], result["offset"]
        raise error
