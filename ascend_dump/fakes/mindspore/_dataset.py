"""Datasets of the fake MindSpore (`mindspore.dataset`). Their rows come from Python functions or arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.fakes.mindspore._types import Tensor

__all__ = ["DatasetHelper", "GeneratorDataset", "NumpySlicesDataset", "data_sink"]

_Row = tuple[Any, ...]


class Dataset:
    """A dataset: rows of arrays, one array for each column.

    rows     returns an iterator of all rows; it is called for each pass
    columns  names of the columns
    length   number of rows, None if they have to be counted
    """

    def __init__(self, rows: Callable[[], Iterator[_Row]], columns: Sequence[str], length: Optional[int]) -> None:
        self._rows, self._length = rows, length
        self._columns = [columns] if isinstance(columns, str) else list(columns)

    def get_dataset_size(self) -> int:
        """Return the number of rows in one pass; after `batch`, a row is a batch."""
        return sum(1 for _ in self._rows()) if self._length is None else self._length

    def get_col_names(self) -> list[str]:
        return list(self._columns)

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        def rows() -> Iterator[_Row]:
            waiting: list[_Row] = []
            for row in self._rows():
                waiting.append(row)
                if len(waiting) == batch_size:
                    yield tuple(np.stack(column) for column in zip(*waiting))
                    waiting = []
            if waiting and not drop_remainder:
                yield tuple(np.stack(column) for column in zip(*waiting))

        return Dataset(rows, self._columns, None)

    def repeat(self, count: Optional[int] = None) -> Dataset:
        if count is None or count < 1:
            raise NotSupported("the fake MindSpore does not repeat rows endlessly", hint="use repeat(1) or more")

        def rows() -> Iterator[_Row]:
            for _ in range(count):
                yield from self._rows()

        return Dataset(rows, self._columns, None)

    def map(self, operations: Any, input_columns: Any = None) -> Dataset:
        chosen = [input_columns] if isinstance(input_columns, str) else list(input_columns or self._columns[:1])
        steps = list(operations) if isinstance(operations, (list, tuple)) else [operations]
        positions = [self._columns.index(name) for name in chosen]

        def rows() -> Iterator[_Row]:
            for row in self._rows():
                values = list(row)
                for step in steps:
                    result = step(*(values[position] for position in positions))
                    for position, value in zip(positions, result if isinstance(result, tuple) else (result,)):
                        values[position] = np.asarray(value)
                yield tuple(values)

        return Dataset(rows, self._columns, self._length)

    def create_tuple_iterator(self, num_epochs: int = -1, output_numpy: bool = False, **_: Any) -> Iterator[list[Any]]:
        for row in self._rows():
            yield [value if output_numpy else Tensor(value) for value in row]

    def create_dict_iterator(
        self, num_epochs: int = -1, output_numpy: bool = False, **_: Any
    ) -> Iterator[dict[str, Any]]:
        for row in self.create_tuple_iterator(output_numpy=output_numpy):
            yield dict(zip(self._columns, row))

    def __iter__(self) -> Iterator[list[Any]]:
        return self.create_tuple_iterator()


class GeneratorDataset(Dataset):
    """`dataset.GeneratorDataset`. source: a function that yields rows, or a sequence of rows."""

    def __init__(self, source: Any, column_names: Sequence[str], shuffle: Optional[bool] = None, **_: Any) -> None:
        if shuffle:
            raise NotSupported("the fake MindSpore does not shuffle rows", hint="use shuffle=False")

        def rows() -> Iterator[_Row]:
            items = source() if callable(source) else (source[index] for index in range(len(source)))
            for row in items:
                values = tuple(np.asarray(value) for value in (row if isinstance(row, (tuple, list)) else (row,)))
                if len(values) != len(self._columns):
                    raise RuntimeError(f"a row has {len(values)} values, and the data set {len(self._columns)} columns")
                yield values

        super().__init__(rows, column_names, None if callable(source) else len(source))


class NumpySlicesDataset(Dataset):
    """`dataset.NumpySlicesDataset`: a dataset of arrays with equal first dimensions. A row has one slice of each."""

    def __init__(
        self, data: Any, column_names: Optional[Sequence[str]] = None, shuffle: Optional[bool] = None, **_: Any
    ) -> None:
        if shuffle:
            raise NotSupported("the fake MindSpore does not shuffle rows", hint="use shuffle=False")
        columns = list(data.values()) if isinstance(data, dict) else list(data) if isinstance(data, tuple) else [data]
        arrays = [np.asarray(column) for column in columns]
        if len({len(array) for array in arrays}) > 1:
            raise ValueError("Data length in each column is not equal.")
        names = (
            list(data)
            if isinstance(data, dict)
            else column_names or [f"column_{number}" for number in range(len(arrays))]
        )
        super().__init__(lambda: iter(zip(*arrays)), names, len(arrays[0]))


class DatasetHelper:
    """`mindspore.DatasetHelper` without data sinking: iterates over the batches of one epoch."""

    def __init__(
        self, dataset: Dataset, dataset_sink_mode: bool = True, sink_size: int = -1, epoch_num: int = 1
    ) -> None:
        if dataset_sink_mode:
            raise NotSupported(
                "the fake DatasetHelper does not support data sinking", hint="use dataset_sink_mode=False"
            )
        self._dataset = dataset

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (tuple(batch) for batch in self._dataset.create_tuple_iterator())


def data_sink(fn: Callable[..., Any], dataset: Dataset, sink_size: int = 1, **_: Any) -> Callable[[], Any]:
    """`mindspore.data_sink`: return a function that runs `fn` on the next `sink_size` batches.

    After the last batch of the dataset, the function continues with the first one. Each call returns the result for its
    last batch.
    """

    def batches() -> Iterator[list[Any]]:
        while True:
            yield from dataset.create_tuple_iterator()

    waiting = batches()

    def run() -> Any:
        result = None
        for _ in range(sink_size):
            result = fn(*next(waiting))
        return result

    return run
