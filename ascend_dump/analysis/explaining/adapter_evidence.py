"""Say with which factor one program merged an adapter into a weight that the other program keeps apart from it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import narrower
from ascend_dump.analysis.numerics.merged_adapters import LowRankAdapter, adapters_in, merged_factor
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["AdapterRecords", "adapter_of"]


class AdapterRecords(NamedTuple):
    """A weight of one program, and the weight with an adapter of the other program.

    is_actual  True if the weight is of actual
    records    the weight, the weight without the adapter, and the matrices of the adapter
    """

    adapter: LowRankAdapter
    is_actual: bool
    records: tuple[Record, Record, Record, Record]

    def evidence(self) -> list[str]:
        """Return a line of evidence if the adapter is merged into the weight; the tensors are read only here."""
        try:
            weight, base, down, up = (record.numpy() for record in self.records)
        except AscendDumpError:  # only statistics are recorded, or a tensor is damaged
            return []
        dtype = functools.reduce(narrower, (record.dtype or "" for record in self.records))
        factor = merged_factor(weight, base, down, up, dtype)
        sides = ("here", "in the reference") if self.is_actual else ("in the reference", "here")
        name = self.records[0].parameter
        return [] if factor is None else [f"{name} {sides[0]} is {self.adapter.formula(factor)} {sides[1]}"]


def adapter_of(
    parameters: tuple[str, str], reads: tuple[Mapping[str, Record], Mapping[str, Record]]
) -> Optional[AdapterRecords]:
    """Return the adapter of a weight that has another name on the other side; None if neither side has one.

    parameters: the names of the weight in actual and in the reference
    reads: for each side, by name: the first record of each parameter
    """
    for side, other in ((0, 1), (1, 0)):
        weight, names = reads[side].get(parameters[side]), reads[other]
        for adapter in adapters_in(names):
            if weight is not None and adapter.base == parameters[other]:
                records = (weight, names[adapter.base], names[adapter.down], names[adapter.up])
                return AdapterRecords(adapter, side == 0, records)
    return None
