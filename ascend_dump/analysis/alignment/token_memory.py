"""Find the memory from which values come, if operators that are not compared moved them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable
from typing import TYPE_CHECKING, Optional

from ascend_dump.analysis.alignment.token_parts import token_part
from ascend_dump.analysis.operators.names import moves_elements
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import writes
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.statistics import Statistics

__all__ = ["MemorySources"]


class _WholeTensor:
    """Reads a tensor as it is. Its content key is its memory, if this is known."""

    def __init__(self, whole: Record) -> None:
        self._whole = whole
        self.memory: Optional[Hashable] = None

    def content(self, record: Record) -> Optional[tuple[Hashable, ...]]:
        return self._whole.content if self.memory is None else (self.memory, id(self))

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        return self._whole.numpy(format=format)

    def statistics(self, record: Record) -> Optional[Statistics]:
        return self._whole.statistics()


class MemorySources:
    """Finds the memory from which values of one side come, if operators of this side alone moved the values."""

    def __init__(self, side: int) -> None:
        self._side = side
        self._sources: dict[int, int] = {}
        #: By storage: the positions of the compared operators that write to it, in ascending order.
        self._writers: dict[int, list[int]] = {}

    def pass_through(self, operator: Operator) -> None:
        """Note the memory from which the outputs of a left-out operator come.

        It is that of its last input with elements of the type of the first output: indices are no source. Nothing is
        noted if the operator changes values.
        """
        made_type = operator.outputs[0].dtype if operator.outputs else None
        inputs = [record for record in operator.inputs if math.prod(record.shape or ()) and record.dtype == made_type]
        if not inputs:
            return
        is_equal = inputs[-1].content == operator.outputs[0].content is not None
        if not is_equal and not moves_elements(operator.op_type):
            return
        source = storage_of(inputs[-1])
        if source is not None:
            for record in operator.outputs:
                made = storage_of(record)
                if made is not None and made[0] != source[0]:
                    self._sources[made[0]] = self._sources.get(source[0], source[0])

    def add_writer(self, operator: Operator) -> None:
        """Note an operator that is compared, if it writes to the memory of an input."""
        for record in operator.outputs if writes(operator.op_type) else ():
            storage = storage_of(record)
            if storage is not None:
                writers = self._writers.setdefault(self._sources.get(storage[0], storage[0]), [])
                index = bisect_left(writers, operator.position)
                if operator.position not in writers[index : index + 1]:
                    writers.insert(index, operator.position)

    def placed(self, record: Record, operator: Operator) -> Record:
        """Return a record of tokens of an operator, with the memory from which its values come."""
        part = token_part(record)
        if part is not None:
            part.memory = self._memory(record, operator)
        return record

    def placed_whole(self, record: Record, operator: Operator) -> Record:
        """Return the record of an operator without a partner, with the memory from which its values come."""
        loader = _WholeTensor(record)
        whole = record.as_part(loader, record.shape or ())
        loader.memory = self._memory(whole, operator)
        return whole

    def _memory(self, record: Record, operator: Operator) -> Optional[Hashable]:
        storage = storage_of(record)
        if storage is None:
            return None
        memory = self._sources.get(storage[0], storage[0])
        end = operator.position + (record.io == "output")
        count = bisect_left(self._writers.get(memory, ()), end)
        record.attrs.update(storage=memory, version=count)
        return (self._side, memory, count)
