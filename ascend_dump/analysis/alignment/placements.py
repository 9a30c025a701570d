"""Read the placements of tensors on ranks that a dump of DTensors records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.dump_format import Placement
from ascend_dump.reading import Record

__all__ = ["memory_of", "placements_of", "terms_of"]


def memory_of(record: Record) -> Any:
    """Return a key of a tensor's memory, the same for the operators that write and read it; None if not recorded."""
    attrs = record.attrs
    if attrs.get("storage", -1) < 0:
        return None
    return (
        tuple(attrs.get(name) for name in ("storage", "version", "storage_offset", "stride")),
        record.shape,
        record.dtype,
    )


def placements_of(operators: Sequence[Operator]) -> dict[Any, Placement]:
    """Return the placements of tensors by `memory_of`. A dump has them only for the inputs of DTensor operators."""
    placements: dict[Any, Placement] = {}
    for operator in operators:
        for record in operator.inputs:
            placement = Placement.of(record.attrs)
            memory = None if placement is None else memory_of(record)
            if placement is not None and memory is not None:
                placements.setdefault(memory, placement)
    return placements


def terms_of(operators: Sequence[Operator], placements: dict[Any, Placement]) -> dict[Any, int]:
    """Return the number of ranks by which DTensor divided a bias, by the `id` of the bias and by its `memory_of`.

    Each rank adds such a bias to its term of a sum over ranks. The division lets the bias enter the sum only once.
    """
    counts: dict[Any, int] = {}
    for operator in operators:
        if operator.op_type not in ("aten::addmm", "aten::baddbmm", "aten::add") or not operator.inputs:
            continue
        placement = placements.get(memory_of(operator.outputs[0])) if operator.outputs else None
        first = operator.inputs[0]
        if placement is not None and Placement.of(first.attrs) is None:
            count = math.prod(size for axis, size in zip(placement.axes, placement.mesh) if axis == "partial sum")
            if count > 1:
                counts[id(first)] = count
                if memory_of(first) is not None:
                    counts[memory_of(first)] = count
    return counts
