"""Track memory of which operators overwrite a part: the other elements differ as before, or have no value still.

No record has the new content of the whole memory, so its difference is not known by content.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Optional

from ascend_dump.analysis.judging.input_noise import InputNoise, OriginNumber
from ascend_dump.analysis.operators.operator import storage_of
from ascend_dump.analysis.pairing.data_flow import layout_of
from ascend_dump.reading import Record

__all__ = ["PartlyWritten", "covers_part"]

#: The origins of a difference, or the noise that it is.
Cause = tuple[Optional[frozenset[OriginNumber]], Optional[InputNoise]]
#: The cause of the difference of a tensor, and its number of elements.
_Extent = tuple[Cause, int]


class PartlyWritten:
    """The memory that paired operators of one step wrote, by the numbers of the storages of both sides."""

    def __init__(self) -> None:
        #: The largest tensor of a memory, and the parts that were overwritten since.
        self._whole: dict[tuple[int, int], _Extent] = {}
        self._parts: dict[tuple[int, int], dict[Hashable, _Extent]] = {}

    def begin_step(self) -> None:
        """Begin a step. Storages are numbered anew in each step."""
        self._whole.clear()
        self._parts.clear()

    def add(self, a: Record, b: Record, cause: Cause, *, is_written: bool = False) -> None:
        """Note an output.

        cause       the origins of its difference, or its noise
        is_written  the operator wrote to memory of an input
        """
        storages, count = _storages(a, b), math.prod(b.shape or ())
        if storages is None:
            return
        whole = self._whole.get(storages)
        # Memory from outside is not known as a whole before an operator writes to it.
        if count >= whole[1] if whole is not None else not (is_written or covers_part(b)):
            self._whole[storages] = cause, count
            self._parts.pop(storages, None)
        elif is_written:
            self._parts.setdefault(storages, {})[layout_of(b)] = cause, count

    def look_up(self, a: Record, b: Record) -> Cause:
        """Return the cause of a difference of memory of which parts were overwritten; two None for other memory."""
        storages = _storages(a, b) or (-1, -1)
        parts = [*self._parts.get(storages, {}).values()]
        whole = self._whole.get(storages)
        # Parts may overlap. Then the whole seems to be overwritten too early, and the rest has no known cause.
        if whole is not None and parts and sum(count for _, count in parts) < whole[1]:
            parts.append(whole)
        origins = [cause[0] for cause, _ in parts if cause[0] is not None]
        noise = [cause[1] for cause, _ in parts if cause[1] is not None]
        if origins:
            return frozenset[OriginNumber]().union(*origins), None
        return None, max(noise, key=lambda of_part: of_part.error, default=None)


def covers_part(record: Record) -> bool:
    """Return True if a tensor covers a part of its memory only."""
    size, own_size = record.attrs.get("storage_nbytes"), record.nbytes
    return size is not None and own_size is not None and own_size < size


def _storages(a: Record, b: Record) -> Optional[tuple[int, int]]:
    """Return the numbers of the storages of two tensors; None if one is not recorded."""
    storage_a, storage_b = storage_of(a), storage_of(b)
    return None if storage_a is None or storage_b is None else (storage_a[0], storage_b[0])
