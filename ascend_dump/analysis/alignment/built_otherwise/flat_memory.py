"""Divide operators on flat memory into operators on the parameters in it, where only one program has flat memory.

An optimizer that is written anew, or one for sharded parameters, may have all parameters in one vector, and update this
vector. The parameters of the model are views of it. Operators by element on such a vector do the same as one operator
on each parameter, which is what the other program runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.operators.operator import Operator, parameter_name, storage_of
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    from collections.abc import Hashable

    import numpy as np

    from ascend_dump.statistics import Precision, Statistics

__all__ = ["with_divided_memory"]

#: Operators that compute each element of a tensor from the elements at the same position.
_BY_ELEMENT = frozenset(
    {
        *(
            "abs",
            "add",
            "addcdiv",
            "addcmul",
            "clamp",
            "clamp_max",
            "clamp_min",
            "div",
            "exp",
            "lerp",
            "log",
            "maximum",
        ),
        *("minimum", "mul", "neg", "pow", "reciprocal", "rsqrt", "rsub", "sign", "sqrt", "square", "sub", "where"),
        *("eq", "ge", "gt", "isfinite", "isnan", "le", "lt", "ne", "nan_to_num"),
        *("_to_copy", "alias", "clone", "contiguous", "copy", "detach", "lift_fresh"),
        *("empty_like", "fill", "full_like", "ones_like", "zero", "zeros_like"),
    }
)
_JOIN = "cat"


class _FlatPart(NamedTuple):
    """The part of a vector in which a parameter is."""

    start: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.start + self.size

    @property
    def stride(self) -> list[int]:
        return [*accumulate(self.shape[:0:-1], int.__mul__, initial=1)][::-1][: len(self.shape)]


@dataclass
class _FlatMemory:
    """The vectors of one length in a step of a program.

    length    the number of elements of each vector
    parts     the parts of each vector, in order
    storages  the numbers of the storages of vectors, with the number of the first of their parts
    names     the parameters, gradients and states that are in parts, by storage and number of the part
    """

    length: int
    parts: list[_FlatPart]
    storages: dict[int, int]
    names: dict[tuple[int, int], str]

    def has(self, record: Record) -> bool:
        """Return True for a whole vector."""
        storage = storage_of(record)
        return storage is not None and storage[0] in self.storages and _is_vector(record, self.length)

    def part_of(self, record: Record) -> Optional[int]:
        """Return the number of the part that contains a tensor; None if none does."""
        start = record.attrs.get("storage_offset")
        if start is None or record.shape is None:
            return None
        stop = start + _reach(record)
        return next((n for n, part in enumerate(self.parts) if part.start <= start and stop <= part.stop), None)

    def divided(self, operators: Sequence[Operator]) -> list[Operator]:
        """Return the operators, with operators on the parts in place of those on vectors."""
        result: list[Operator] = []
        for operator in operators:
            for one in self._divided(operator):
                result.append(replace(one, position=len(result)))
        return result

    def _divided(self, operator: Operator) -> Iterator[Operator]:
        inputs, outputs = operator.inputs, operator.outputs
        if operator.function == _JOIN and self._are_parts(inputs) and all(map(self.has, outputs)):
            for number, record in enumerate(inputs):
                joined = [self._part(output, number) for output in outputs]
                yield replace(operator, inputs=[self._placed(record)], outputs=joined)
        elif operator.function in _BY_ELEMENT and any(map(self.has, outputs)) and self._is_by_element(operator):
            for number in range(len(self.parts)):
                here, there = ([self._of(record, number) for record in side] for side in (inputs, outputs))
                yield replace(operator, inputs=here, outputs=there)
        else:
            yield replace(operator, inputs=[*self._all(inputs)], outputs=[*self._all(outputs)])

    def _are_parts(self, records: Sequence[Record]) -> bool:
        return [math.prod(record.shape or ()) for record in records] == [part.size for part in self.parts]

    def _is_by_element(self, operator: Operator) -> bool:
        others = [record for record in operator.records if not self.has(record)]
        return all(math.prod(record.shape or ()) == 1 and record.io == "input" for record in others)

    def _of(self, record: Record, number: int) -> Record:
        return self._part(record, number) if self.has(record) else record

    def _all(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            if self.has(record):
                yield from (self._part(record, number) for number in range(len(self.parts)))
            else:
                yield self._placed(record)

    def _part(self, record: Record, number: int) -> Record:
        part = self.parts[number]
        divided = record.as_part(_FlatPartLoader(record, part), part.shape)
        storage = record.attrs["storage"]
        memory = {"storage": self.storages[storage] + number, "storage_offset": 0, "stride": part.stride}
        name = self.names.get((storage, number))
        divided.attrs.update(memory, storage_nbytes=divided.nbytes, **({} if name is None else {"parameter": name}))
        return divided

    def _placed(self, record: Record) -> Record:
        """Return a record with the memory of its part in place of that of the vector."""
        storage = storage_of(record)
        number = self.part_of(record) if storage is not None and storage[0] in self.storages else None
        if storage is None or number is None:
            return record
        part = self.parts[number]
        placed = record.as_part(_PlacedLoader(record), record.shape or ())
        size = (record.nbytes or 0) // max(math.prod(record.shape or ()), 1)
        placed.attrs.update(
            storage=self.storages[storage[0]] + number,
            storage_offset=record.attrs["storage_offset"] - part.start,
            stride=record.attrs.get("stride"),
            storage_nbytes=size * part.size,
        )
        return placed


class _PlacedLoader:
    """Reads the tensor of a record."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        return self._record.numpy(format=format)

    def statistics(self, record: Record) -> Optional[Statistics]:
        return self._record.recorded_statistics()

    def precision(self, record: Record) -> Precision:
        return self._record.precision

    def content(self, record: Record) -> Optional[tuple[Hashable, ...]]:
        return self._record.content


class _FlatPartLoader(_PlacedLoader):
    """Reads a part of a vector."""

    def __init__(self, record: Record, part: _FlatPart) -> None:
        super().__init__(record)
        self._part = part
        self._content: Optional[tuple[Hashable, ...]] = None

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        part = self._part
        array: np.ndarray = self._record.numpy(format=format)[part.start : part.stop].reshape(part.shape)
        return array

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None

    def content(self, record: Record) -> Optional[tuple[Hashable, ...]]:
        if self._content is None:
            import numpy as np
            import xxhash

            try:
                array = np.ascontiguousarray(self.tensor(record, None))
            except AscendDumpError:
                return None
            key = xxhash.xxh3_128_hexdigest(array.reshape(-1).view(np.uint8).data if array.size else b"")
            self._content = (key, record.dtype, record.shape, 0, tuple(self._part.stride))
        return self._content


def with_divided_memory(actual: list[Operator], reference: list[Operator]) -> tuple[list[Operator], list[Operator]]:
    """Return the operators of a step; if one side only has flat memory of parameters, those on its parts."""
    sides = actual, reference
    memories = [[*_flat_memories(side)] for side in sides]
    for side, operators in enumerate(sides):
        for memory in memories[side]:
            if not _has_vectors(sides[1 - side], memory.length) and _updates_names(sides[1 - side], memory):
                operators = memory.divided(operators)
        sides = (operators, sides[1]) if side == 0 else (sides[0], operators)
    return sides


def _flat_memories(operators: Sequence[Operator]) -> Iterator[_FlatMemory]:
    """Yield the flat memory of a step, if several parameters fill it and their values are recorded."""
    parameters: dict[int, dict[str, Record]] = {}
    for record in (record for operator in operators for record in operator.records):
        storage = storage_of(record)
        is_parameter = record.parameter is not None and record.parameter == parameter_name(record)
        if storage is not None and is_parameter and _is_contiguous(record):
            parameters.setdefault(storage[0], {}).setdefault(record.parameter or "", record)
    numbers = (storage[0] for one in operators for record in one.records if (storage := storage_of(record)))
    first = 1 + max(numbers, default=0)
    for views in parameters.values():
        records = sorted(views.values(), key=lambda record: record.attrs.get("storage_offset") or 0)
        parts = [_FlatPart(record.attrs.get("storage_offset") or 0, record.shape or ()) for record in records]
        ends = [0, *(part.stop for part in parts)]
        if len(parts) > 1 and [part.start for part in parts] == ends[:-1]:
            memory = _memory(operators, ends[-1], parts, first)
            if memory is not None and _has_values(operators, memory):
                yield memory
                first += len(memory.storages) * len(parts)


def _memory(operators: Sequence[Operator], length: int, parts: list[_FlatPart], first: int) -> Optional[_FlatMemory]:
    """Return the vectors of a length; None if there are none, or if tensors are in several parts of one.

    first: the number of the first storage that is free
    """
    numbers = {
        record.attrs["storage"]
        for operator in operators
        if operator.phase == "other"
        for record in operator.records
        if _is_vector(record, length) and storage_of(record) is not None
    }
    storages = {number: first + index * len(parts) for index, number in enumerate(sorted(numbers))}
    memory = _FlatMemory(length, parts, storages, {})
    for record in (record for operator in operators for record in operator.records):
        storage = storage_of(record)
        if storage is None or storage[0] not in storages or memory.has(record):
            continue
        number = memory.part_of(record)
        if number is None:
            return None
        if record.parameter is not None and math.prod(record.shape or ()) == parts[number].size:
            memory.names[storage[0], number] = record.parameter
    return memory if storages else None


def _has_values(operators: Sequence[Operator], memory: _FlatMemory) -> bool:
    """Return True if the elements of vectors are recorded: statistics of a vector say nothing on its parts."""
    vector = next(record for operator in operators for record in operator.records if memory.has(record))
    try:
        vector.numpy()
    except AscendDumpError:
        return False
    return True


def _is_vector(record: Record, length: int) -> bool:
    """Return True for a vector of a length that is all of its memory."""
    attrs = record.attrs
    is_whole = record.shape == (length,) and attrs.get("storage_nbytes") == record.nbytes and record.error is None
    return is_whole and "hash" in attrs and not attrs.get("skipped")


def _is_contiguous(record: Record) -> bool:
    return list(record.attrs.get("stride") or ()) == _FlatPart(0, record.shape or ()).stride


def _reach(record: Record) -> int:
    """Return the number of elements of memory from the first to the last element of a tensor."""
    strides: Sequence[int] = record.attrs.get("stride") or ()
    return 1 + sum((size - 1) * stride for size, stride in zip(record.shape or (), strides))


def _has_vectors(operators: Sequence[Operator], length: int) -> bool:
    return any(
        record.shape == (length,) for operator in operators if operator.phase == "other" for record in operator.records
    )


def _updates_names(operators: Sequence[Operator], memory: _FlatMemory) -> bool:
    """Return True if operators outside of the forward and the backward pass read memory of these parameters."""
    names = {*memory.names.values()}
    records = (record for operator in operators for record in operator.records if record.parameter in names)
    storages = {storage[0] for record in records if (storage := storage_of(record)) is not None}
    read = (storage_of(record) for operator in operators if operator.phase == "other" for record in operator.inputs)
    return any(storage is not None and storage[0] in storages for storage in read)
