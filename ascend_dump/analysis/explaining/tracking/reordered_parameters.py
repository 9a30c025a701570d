"""Find parameters of which one program has the rows or columns in another order, with all that is computed for them.

For example, a rotary embedding may turn pairs of neighbours, or of the halves of a head. Then the rows of the weights
before it are in another order, and the scores of attention agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.operators.operator import parameter_name
from ascend_dump.analysis.pairing.data_flow import DataFlow, Flows
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.statistics import Precision, Statistics

__all__ = ["ReorderedParameters"]


class _Order(NamedTuple):
    """The order of the slices of a tensor of actual along an axis, as the reference has them."""

    axis: int
    indices: np.ndarray


class ReorderedParameters:
    """The orders of parameters, by the values that they have when they are first needed: updates round them."""

    def __init__(self) -> None:
        self._orders: dict[str, Optional[_Order]] = {}

    def in_order_of_reference(self, actual: Record, flows: Flows) -> Optional[Record]:
        """Return a parameter of actual, its gradient or a state of it, in the order that the reference has.

        None if its parameter does not have the slices of that of the reference in another order. flows: of the step
        """
        name = parameter_name(actual)
        if name is None:
            return None
        if name not in self._orders:
            a, b = (_first_of(name, flow) for flow in flows)
            self._orders[name] = None if a is None or b is None else _order(a, b)
        order = self._orders[name]
        if order is None or actual.shape is None or len(actual.shape) <= order.axis:
            return None
        if actual.shape[order.axis] != len(order.indices):
            return None
        return actual.as_part(_Reordered(actual, order), actual.shape)


class _Reordered:
    """Reads a tensor, and returns its slices in another order."""

    def __init__(self, record: Record, order: _Order) -> None:
        self._record, self._order = record, order

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        array: np.ndarray = self._record.numpy(format=format).take(self._order.indices, self._order.axis)
        return array

    def statistics(self, record: Record) -> Optional[Statistics]:
        return self._record.recorded_statistics()

    def precision(self, record: Record) -> Precision:
        return self._record.precision


def _first_of(name: str, flow: DataFlow) -> Optional[Record]:
    records = (record for operator in flow.operators for record in operator.inputs)
    return next((record for record in records if record.parameter == name), None)


def _order(a: Record, b: Record) -> Optional[_Order]:
    """Return the order of slices with which a parameter of actual is that of the reference, bit for bit."""
    import numpy as np

    if a.shape != b.shape or a.dtype != b.dtype or not a.shape:
        return None
    try:
        arrays = a.numpy(), b.numpy()
    except AscendDumpError:
        return None
    for axis in range(min(arrays[0].ndim, 2)):
        here, there = ([part.tobytes() for part in np.moveaxis(array, axis, 0)] for array in arrays)
        indices = {part: index for index, part in enumerate(here)}
        if len(indices) == len(here) and here != there and all(part in indices for part in there):
            return _Order(axis, np.array([indices[part] for part in there]))
    return None
