"""Positions, masks and lengths of the calls of a model, by the integers that it reads first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.model_calls import INTEGERS, ModelCall
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["IntegersOfCalls", "Segment"]

#: The operator, the side and the index of a record.
_Key = tuple[str, str, int]
_MASKS = ("bool", *INTEGERS, "uint8")
#: Products of weights and of attention. Masks are made before the first one. Some models read positions only where they
#: rotate queries and keys, behind their projections: before this number of products.
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_grouped_mm", "convolution"})
_PRODUCTS_BEFORE_POSITIONS = 4


class Segment(NamedTuple):
    """Slots of one row that belong to one request.

    ids       of the slots
    position  the recorded position of the first one, if any
    cached    tokens of the request that are in a cache before this call, if it is the first one of the request
    """

    row: int
    slots: tuple[int, ...]
    ids: tuple[int, ...]
    position: Optional[int]
    cached: int

    def part(self, begin: int, end: int) -> Segment:
        """Return some of the slots."""
        position, cached = (None if n is None else n + begin for n in (self.position, self.cached))
        return Segment(self.row, self.slots[begin:end], self.ids[begin:end], position, cached or 0)


class IntegersOfCalls:
    """Reads positions, masks and lengths of the calls of one side.

    The call with most slots shows which records they are; the same records have them in the other calls.
    """

    def __init__(self, calls: Sequence[ModelCall]) -> None:
        self._positions = _positions_key(calls, 1) or _positions_key(calls, _PRODUCTS_BEFORE_POSITIONS)
        self._mask = next((key for call in calls if (key := _first_key(call, _is_mask)) is not None), None)
        self._lengths = next((key for call in calls if (key := _first_key(call, _are_lengths)) is not None), None)

    def positions(self, call: ModelCall) -> Optional[np.ndarray]:
        """Return the positions of all slots of a call, [rows, slots]; None if they are not recorded."""
        import numpy as np

        array = _find(call, self._positions)
        if array is None or array.size not in (call.width, call.ids.size):
            return None
        return np.broadcast_to(array.reshape(-1, call.width), call.ids.shape)

    def goes_on(self, before: ModelCall, call: ModelCall) -> bool:
        """Return True if a call continues the requests of the call before it."""
        positions = self.positions(call)
        if positions is None or call.width == 1 < before.width:
            return call.width < before.width or call.width == 1
        return bool((positions[:, -1] >= call.width).any())

    def segments(self, call: ModelCall) -> Iterator[Segment]:
        """Yield the parts of a call with consecutive positions, without padding: each belongs to one request.

        Requests whose positions follow each other by chance may be in one part.
        """
        import numpy as np

        positions = self.positions(call)
        mask = self._mask_of(call)
        is_token = np.ones(call.ids.shape, bool)
        if mask is not None:
            is_token = mask[:, mask.shape[1] - call.width :].astype(bool)
        elif self._mask is None and positions is not None and call.rows > 1:
            is_token = ~_are_repeated(positions)
        lengths = _find(call, self._lengths)
        ends = set() if lengths is None or lengths.max() != call.ids.size else set(lengths.reshape(-1).tolist())
        for row in range(call.rows):
            cached = None if mask is None else int(mask[row, : mask.shape[1] - call.width].astype(bool).sum())
            part: list[int] = []
            for slot in np.flatnonzero(is_token[row]).tolist():
                jumps = positions is not None and part and positions[row, slot] != positions[row, part[-1]] + 1
                begins = jumps and positions is not None and (call.rows == 1 or positions[row, slot] == 0)
                if part and (begins or slot in ends):
                    yield _segment(call, row, part, positions, cached)
                    part = []
                part.append(slot)
            if part:
                yield _segment(call, row, part, positions, cached)

    def _mask_of(self, call: ModelCall) -> Optional[np.ndarray]:
        """Return the mask of a call, [rows, keys]; None if there is none."""
        mask = _find(call, self._mask)
        is_mask = mask is not None and mask.ndim == 2 and len(mask) == call.rows and mask.shape[1] >= call.width
        return mask if is_mask else None


def _segment(
    call: ModelCall, row: int, slots: Sequence[int], positions: Optional[np.ndarray], cached: Optional[int]
) -> Segment:
    """Return a part of a row. cached: the number of tokens before this call, by its mask"""
    ids = tuple(call.ids[row, list(slots)].tolist())
    if positions is None:
        return Segment(row, tuple(slots), ids, None, cached or 0)
    position = int(positions[row, slots[0]])
    # Positions may count padding on the left.
    before = max(position - slots[0], 0) if call.rows > 1 else position
    return Segment(row, tuple(slots), ids, position, before if cached is None else cached)


def _are_repeated(positions: np.ndarray) -> np.ndarray:
    """Return True for slots before a slot of the same position: padding on the left has that of the first token."""
    import numpy as np

    repeated = np.zeros(positions.shape, bool)
    repeated[:, :-1] = positions[:, :-1] == positions[:, 1:]
    return repeated


def _integers(call: ModelCall, products: int = _PRODUCTS_BEFORE_POSITIONS) -> Iterator[tuple[_Key, Record]]:
    """Yield the integer records at the beginning of a call, with their keys: operator, side and index.

    products: the number of the product at which the beginning ends
    """
    for operator in call.operators:
        products -= operator_class(operator.op_type) in _PRODUCTS
        if not products:
            return
        for record in (*operator.inputs, *operator.outputs):
            if record.dtype in _MASKS:
                yield (record.op_name, record.io, record.index), record


def _keys(
    call: ModelCall, is_wanted: Callable[[ModelCall, np.ndarray], bool], products: int = _PRODUCTS_BEFORE_POSITIONS
) -> Iterator[_Key]:
    for key, record in _integers(call, products):
        if record is not call.ids_record:
            array = _read(record)
            if array is not None and is_wanted(call, array):
                yield key


def _first_key(call: ModelCall, is_wanted: Callable[[ModelCall, np.ndarray], bool]) -> Optional[_Key]:
    return next(_keys(call, is_wanted, 1), None)


def _later_calls(calls: Sequence[ModelCall], key: _Key) -> int:
    """Return the number of calls that begin behind the first position, by a record."""
    arrays = [(call, array) for call in calls if (array := _find(call, key)) is not None]
    return sum(array.size in (call.width, call.ids.size) and int(array.max()) >= call.width for call, array in arrays)


def _positions_key(calls: Sequence[ModelCall], products: int) -> Optional[_Key]:
    """Return the record that is likeliest to have the positions of the slots of calls; None if none has.

    Numbers of slots begin at 0 in each call, positions go on in later calls. Slots of a cache go on too, but may begin
    anywhere. Where nothing goes on, only what stands before the first product may be positions.
    """
    largest = max(calls, key=lambda call: (call.width, call.rows))
    given = _given(largest)
    ranks: dict[_Key, tuple[bool, bool, int, bool]] = {}
    for key in _keys(largest, _are_positions, products):
        later, array = _later_calls(calls, key), _find(calls[0], key)
        begins = array is not None and int(array.reshape(-1)[0]) == 0
        ranks[key] = (later > 0, begins, later, key in given)
    best = max(ranks, key=lambda key: ranks[key], default=None)
    return best if best is not None and (products == 1 or ranks[best][:2] == (True, True)) else None


def _given(call: ModelCall) -> set[_Key]:
    """Return the keys of integers that no operator of the call made."""
    made: set[object] = set()
    given: set[_Key] = set()
    for key, record in _integers(call):
        storage = record.attrs.get("storage")
        if record.io == "output":
            made.add(storage)
        elif storage is not None and storage not in made:
            given.add(key)
    return given


def _find(call: ModelCall, key: Optional[_Key]) -> Optional[np.ndarray]:
    record = None if key is None else next((record for other, record in _integers(call) if other == key), None)
    return None if record is None else _read(record)


def _read(record: Record) -> Optional[np.ndarray]:
    try:
        array = record.numpy()
    except AscendDumpError:
        return None
    return array if array.size else None


def _are_positions(call: ModelCall, array: np.ndarray) -> bool:
    """Return True for positions of all slots: rows that count up, but for padding and where a request begins.

    A row of several requests goes on with another one at any position.
    """
    import numpy as np

    if array.dtype == bool or call.width < 2 or array.size not in (call.width, call.ids.size):
        return False
    rows = array.reshape(-1, array.shape[-1])
    if rows.shape[-1] != call.width or array.min() < 0 or np.array_equal(array, call.ids):
        return False
    steps = np.diff(rows.astype(np.int64), axis=1)
    counts = steps == 1
    fits = counts | (rows[:, 1:] == 0) | (steps == 0) | (rows[:, 1:] == 1) | (call.rows == 1)
    return bool(fits.all()) and 2 * int(counts.sum()) >= counts.size


def _is_mask(call: ModelCall, array: np.ndarray) -> bool:
    """Return True for a mask of real tokens, [rows, keys], with padding at the ends."""
    import numpy as np

    if array.ndim != 2 or len(array) != call.rows or array.shape[1] < call.width or call.rows < 1:
        return False
    values = np.unique(array)
    if not set(values.tolist()) <= {0, 1} or len(values) != 2 or not array.any(axis=1).all():
        return False
    ends = np.diff(array.astype(np.int8), axis=1)
    # A causal mask of as many rows as slots ends one slot later in each row.
    is_causal = len(array) == array.shape[1] > 1 and np.array_equal(array.astype(bool), np.tri(len(array), dtype=bool))
    return bool((np.abs(ends).sum(axis=1) <= 2).all()) and not is_causal


def _are_lengths(call: ModelCall, array: np.ndarray) -> bool:
    """Return True for the ends of packed requests: counting from 0 to the number of slots."""
    import numpy as np

    if array.ndim != 1 or len(array) < 2 or array.dtype == bool or array[0] != 0 or array[-1] != call.ids.size:
        return False
    steps = np.diff(array)
    return bool((steps >= 0).all() and call.ids.size > len(array) - 1 and (steps > 1).any())
