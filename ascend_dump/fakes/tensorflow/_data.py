"""`tf.data` of the fake TensorFlow: data sets of arrays, and their iterators, which are operations of a graph."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.fakes.tensorflow._graph import DType, Operation, TensorShape, as_dtype, current

__all__ = ["Dataset", "make_initializable_iterator", "make_one_shot_iterator", "next_elements"]

_Spec = tuple[DType, TensorShape]
_Row = tuple[Any, ...]


class Dataset:
    """`tf.data.Dataset`: a sequence of rows, each a flat tuple of arrays.

    structure  the nested form of a row in the program, with indices of the tuple in place of tensors
    specs      type and shape of each array
    rows       returns an iterator of the rows
    """

    def __init__(self, structure: Any, specs: list[_Spec], rows: Callable[[], Iterator[_Row]]) -> None:
        self._structure = structure
        self._specs = specs
        self._rows = rows

    def __iter__(self) -> Iterator[_Row]:
        return self._rows()

    @staticmethod
    def from_tensors(tensors: Any) -> Dataset:
        arrays = _arrays(tensors)
        return Dataset(_positions(tensors), [_spec(array, array.shape) for array in arrays], lambda: iter([arrays]))

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset:
        """Return a data set with a row for each index of the first dimension.

        Raises ValueError if the sizes of the first dimensions differ.
        """
        arrays = _arrays(tensors)
        if len({len(array) for array in arrays}) != 1:
            raise ValueError("Dimensions of the components differ in from_tensor_slices")
        specs = [_spec(array, array.shape[1:]) for array in arrays]
        return Dataset(_positions(tensors), specs, lambda: iter(zip(*arrays)))

    def repeat(self, count: Optional[int] = None) -> Dataset:
        def rows() -> Iterator[_Row]:
            rounds = itertools.count() if count is None or count < 0 else range(count)
            for _ in rounds:
                yield from self._rows()

        return self._with(rows)

    def take(self, count: int) -> Dataset:
        return self._with(lambda: itertools.islice(self._rows(), None if count < 0 else count))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        def rows() -> Iterator[_Row]:
            source = self._rows()
            while True:
                part = list(itertools.islice(source, batch_size))
                if not part or (drop_remainder and len(part) < batch_size):
                    return
                yield tuple(np.stack(column) for column in zip(*part))

        first = batch_size if drop_remainder else None
        specs = [(dtype, TensorShape([first, *shape])) for dtype, shape in self._specs]
        return Dataset(self._structure, specs, rows)

    def shuffle(self, buffer_size: int, seed: Optional[int] = None, **ignored: Any) -> Dataset:
        """Return a data set that draws its rows at random from a buffer of `buffer_size` rows."""

        def rows() -> Iterator[_Row]:
            source, random = self._rows(), np.random.default_rng(seed)
            waiting = list(itertools.islice(source, buffer_size))
            for row in source:
                index = int(random.integers(len(waiting)))
                yield waiting[index]
                waiting[index] = row
            for index in random.permutation(len(waiting)):
                yield waiting[index]

        return self._with(rows)

    def prefetch(self, buffer_size: int) -> Dataset:
        return self

    def map(self, *arguments: Any, **options: Any) -> Dataset:
        """Raise NotSupported: the fake has no functions of tensors in data sets."""
        raise NotSupported(
            "the stand-in for tensorflow has no Dataset.map",
            hint="compute the arrays before Dataset.from_tensor_slices, or install a real tensorflow",
        )

    def make_one_shot_iterator(self) -> _Iterator:
        return make_one_shot_iterator(self)

    def make_initializable_iterator(self) -> _Iterator:
        return make_initializable_iterator(self)

    def _with(self, rows: Callable[[], Iterator[_Row]]) -> Dataset:
        return Dataset(self._structure, self._specs, rows)


class _Iterator:
    def __init__(self, dataset: Dataset, op: Operation, initializer: Optional[Operation]) -> None:
        self._dataset = dataset
        self._op = op
        self.initializer = initializer

    def get_next(self, name: Optional[str] = None) -> Any:
        data, graph = self._dataset, current.graph()
        op = graph.create_op("IteratorGetNext", [self._op.outputs[0]], data._specs, name or "IteratorGetNext")
        return _pack(data._structure, op.outputs)


def make_one_shot_iterator(dataset: Dataset) -> _Iterator:
    handle = [(DType("resource"), TensorShape(()))]
    op = current.graph().create_op("OneShotIterator", (), handle, "OneShotIterator", {"dataset": dataset})
    return _Iterator(dataset, op, None)


def make_initializable_iterator(dataset: Dataset) -> _Iterator:
    graph = current.graph()
    handle = [(DType("resource"), TensorShape(()))]
    op = graph.create_op("IteratorV2", (), handle, "IteratorV2", {"dataset": dataset})
    make = graph.create_op("MakeIterator", (), (), "MakeIterator", {"dataset": dataset, "iterator": op})
    return _Iterator(dataset, op, make)


def next_elements(source: Any) -> tuple[Any, Optional[Operation]]:
    """Return the tensors for the result of an `input_fn`, and the operation that has to run first, or None.

    source: the result, a data set or nested tensors.
    """
    if not isinstance(source, Dataset):
        return source, None
    iterator = make_initializable_iterator(source)
    return iterator.get_next(), iterator.initializer


def _arrays(tensors: Any) -> _Row:
    """Return the arrays in a nested structure of dicts and tuples as a flat tuple.

    Python numbers become float32 or int32, as in TensorFlow.
    """
    if isinstance(tensors, Mapping):
        return tuple(part for value in tensors.values() for part in _arrays(value))
    if isinstance(tensors, tuple):
        return tuple(part for value in tensors for part in _arrays(value))
    array = np.asarray(tensors)
    if isinstance(tensors, (list, float, int)) and not any(isinstance(leaf, np.generic) for leaf in _leaves(tensors)):
        if array.dtype.kind == "f":
            array = array.astype(np.float32)
        elif array.dtype == np.int64 and (array == array.astype(np.int32)).all():
            array = array.astype(np.int32)
    return (array,)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _positions(tensors: Any) -> Any:
    """Return the nested structure with the index of each array in the result of `_arrays`."""
    count = itertools.count()

    def number(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: number(part) for key, part in value.items()}
        return tuple(map(number, value)) if isinstance(value, tuple) else next(count)

    return number(tensors)


def _pack(structure: Any, flat: Any) -> Any:
    """Return the nested structure with the elements of `flat` in place of their indices."""
    if isinstance(structure, Mapping):
        return {key: _pack(part, flat) for key, part in structure.items()}
    return tuple(_pack(part, flat) for part in structure) if isinstance(structure, tuple) else flat[structure]


def _spec(array: Any, shape: Any) -> _Spec:
    return as_dtype(array.dtype), TensorShape(shape)
