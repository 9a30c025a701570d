"""Find the positions, masks and lengths of each call of a model among the integers that the call records early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.id_axes import before_known_ids
from ascend_dump.analysis.alignment.model_calls import INTEGERS, ModelCall
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["IntegersOfCalls", "TokenRun"]

#: The name of the operator in its call, "input" or "output", and the index of a record.
_Key = tuple[str, str, int]
_MASKS = ("bool", *INTEGERS, "uint8")
#: Programs usually make positions and masks before the first product of a call. Engines read positions and lengths only
#: in the attention of the first layer, so the search for these ends at the product of this number.
_FIRST_PRODUCTS = 5
#: Maximum number of records that may be the masks of padding, and of calls in which they are looked at.
_MOST_MASKS, _MOST_CALLS = 8, 4
#: The share of tokens that are known, of nearly all tokens.
_NEARLY_ALL = 0.9
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_grouped_mm", "convolution"})


class TokenRun(NamedTuple):
    """Slots of one row that belong to one request.

    row       index of the row
    slots     indices of the slots in the row
    ids       ids of the tokens in the slots
    position  the recorded position of the first slot; None if positions are not recorded
    cached    number of tokens of the request that a cache holds before this call; meaningful for its first call
    """

    row: int
    slots: tuple[int, ...]
    ids: tuple[int, ...]
    position: Optional[int]
    cached: int

    def part(self, begin: int, end: int) -> TokenRun:
        """Return the run of the slots from index `begin` to `end`."""
        position, cached = (None if n is None else n + begin for n in (self.position, self.cached))
        return TokenRun(self.row, self.slots[begin:end], self.ids[begin:end], position, cached or 0)


class IntegersOfCalls:
    """Reads positions, masks and lengths of the calls of one side.

    The record of the positions is found in the call with most slots. The records of masks and lengths are found in the
    first call that has such a record. In the other calls, the records with the same keys are read.
    """

    def __init__(self, calls: Sequence[ModelCall], known: Sequence[Sequence[int]] = ()) -> None:
        """Find the records. known: the ids of each request of the other side, if any"""
        #: Contents of the integers that an encoder reads before the model: its masks are not of the model's tokens.
        self._known = known
        self._of_encoder = {content for call in calls for content in _contents_before(call)}
        largest = max(calls, key=lambda call: (call.width, call.rows))
        at_positions = {token for ids in known for token in enumerate(ids)}
        self._positions = _positions_key(calls, largest, at_positions)
        self._mask = self._mask_key(calls)
        lengths = (_first_key(call, self._are_boundaries, _FIRST_PRODUCTS) for call in calls)
        self._lengths = next((key for key in lengths if key is not None), None)

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

    def segments(self, call: ModelCall) -> Iterator[TokenRun]:
        """Yield the runs of slots with consecutive positions, without padding.

        A run belongs to one request. If positions of several requests follow each other by chance, one run has the
        slots of these requests.
        """
        import numpy as np

        positions = self.positions(call)
        mask = self._mask_of(call)
        is_token = np.ones(call.ids.shape, bool)
        if mask is not None:
            is_token = mask[:, mask.shape[1] - call.width :].astype(bool)
        elif self._mask is None and positions is not None and call.rows > 1:
            is_token = ~_are_repeated(positions)
        if call.rows > 1 and is_token.all():
            is_token = ~before_known_ids(call.ids, self._known)
            if positions is not None:
                call.counted = int((~is_token & (positions == np.arange(call.width))).sum())
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

    def _is_mask_of_padding(self, call: ModelCall, array: np.ndarray) -> bool:
        """Return True for a mask of real tokens. The numbers 0 and 1 of two packed sequences look like such a mask."""
        if not _is_mask(call, array):
            return False
        positions = self.positions(call)
        if positions is None:
            return True
        # Behind padding, positions do not begin again: numbers of two requests may look like a mask of one of them.
        hidden = array[:, array.shape[1] - call.width :] == 0
        if (hidden[:, :-1] & ~hidden[:, 1:] & (positions[:, :-1] > positions[:, 1:] + 1)).any():
            return False
        return array.shape != positions.shape or not _are_sequence_numbers(array, positions)

    def _mask_key(self, calls: Sequence[ModelCall]) -> Optional[_Key]:
        """Return the key of the masks of padding; None if there are none.

        A program may record its mask before it adds the tokens of a call. Such a mask does not fit the positions of
        this call.
        """
        of_calls = (list(_keys(call, self._is_mask_of_padding, unlike=self._of_encoder)) for call in calls)
        first = next((number for number, keys in enumerate(of_calls) if keys), len(calls))
        looked_at = calls[first : first + _MOST_CALLS]
        keys = (key for call in looked_at for key in _keys(call, self._is_mask_of_padding, unlike=self._of_encoder))
        candidates = list(islice(dict.fromkeys(keys), _MOST_MASKS))
        candidates = [key for key in candidates if all(_has_numbers_of_mask(call, key) for call in looked_at)]
        unfit = {key: sum(not self._fits_positions(call, key) for call in looked_at) for key in candidates}
        best = min(candidates, key=lambda key: unfit[key], default=None)
        if best is None:
            return None
        found = sum(_find(call, best) is not None for call in looked_at)
        return None if 2 * unfit[best] > found else best

    def _fits_positions(self, call: ModelCall, key: _Key) -> bool:
        """Return False if the numbers of a key in a call are not the mask of its slots, as positions show."""
        mask, positions = _find(call, key), self.positions(call)
        if mask is None or positions is None:
            return True
        if mask.ndim != 2 or len(mask) != call.rows or mask.shape[1] < call.width:
            return True  # such an array is not read as a mask
        return any(_is_mask_of_slots(mask[:, :end], positions) for end in range(call.width, mask.shape[1] + 1))

    def _are_boundaries(self, call: ModelCall, array: np.ndarray) -> bool:
        return _are_boundaries(call, array, self.positions(call))

    def _mask_of(self, call: ModelCall) -> Optional[np.ndarray]:
        """Return the mask of a call, [rows, keys]; None if there is none.

        A mask of a cache of fixed length ends with columns for tokens that do not exist yet: they are cut off. Some
        programs make them True in advance; then positions tell which columns are the slots of the call.
        """
        import numpy as np

        mask = _find(call, self._mask)
        if mask is None or mask.ndim != 2 or len(mask) != call.rows or mask.shape[1] < call.width:
            return None
        keys = max(int(np.flatnonzero(mask.any(axis=0)).max(initial=-1)) + 1, call.width)
        positions = self.positions(call)
        if positions is not None:
            ends = (end for end in range(keys, call.width - 1, -1) if _is_mask_of_slots(mask[:, :end], positions))
            keys = next(ends, keys)
        return mask[:, :keys] if mask[:, keys - call.width : keys].any() else None


def _positions_key(calls: Sequence[ModelCall], largest: ModelCall, known: Container[tuple[int, int]]) -> Optional[_Key]:
    """Return the key of the positions; None if they are not recorded.

    largest: the call with most slots; known: (position, id) of the tokens of the other side
    """
    keys = list(_keys(largest, _are_positions))
    if keys:
        # Slot numbers of a call begin at 0 in each call, positions do not. Of several records, an input that no
        # operator of the call made is likelier to be the positions. Slot numbers of a cache are larger, in the first
        # call too. Those of rows with padding on the left are the same in each row.
        given = _given(largest)
        early = max(
            keys,
            key=lambda key: (
                _known_tokens(calls, key, known),
                min(_later_calls(calls, key), len(calls) - 1),
                key in given,
                -_sum_of_largest(calls, key),
                _differ_by_rows(largest, key),
            ),
        )
        if _calls_with(calls, early) == len(calls):
            return early
        keys = [early]
    # Slot numbers of a cache count up as well, but are larger than positions.
    keys += _keys(largest, _are_positions, _FIRST_PRODUCTS)
    return max(
        keys,
        key=lambda key: (_calls_with(calls, key), _known_tokens(calls, key, known), -_largest(largest, key)),
        default=None,
    )


def _calls_with(calls: Sequence[ModelCall], key: _Key) -> int:
    """Return the number of calls in which a record has a number for each slot."""
    sizes = [(call, array.size) for call in calls if (array := _find(call, key)) is not None]
    return sum(size in (call.width, call.ids.size) for call, size in sizes)


def _segment(
    call: ModelCall, row: int, slots: Sequence[int], positions: Optional[np.ndarray], cached: Optional[int]
) -> TokenRun:
    """Return a run of some slots of a row. cached: number of tokens before this call, by its mask; None if unknown"""
    ids = tuple(call.ids[row, list(slots)].tolist())
    if positions is None:
        return TokenRun(row, tuple(slots), ids, None, cached or 0)
    position = int(positions[row, slots[0]])
    # Positions may count padding on the left.
    before = max(position - slots[0], 0) if call.rows > 1 else position
    return TokenRun(row, tuple(slots), ids, position, before if cached is None else cached)


def _has_numbers_of_mask(call: ModelCall, key: _Key) -> bool:
    """Return False if the record of a key has other numbers than 0 and 1, such as those of requests."""
    array = _find(call, key)
    return array is None or array.dtype == bool or bool(((array == 0) | (array == 1)).all())


def _is_mask_of_slots(mask: np.ndarray, positions: np.ndarray) -> bool:
    """Return True if the last columns of a mask, [rows, keys], fit the positions of the slots of a call, [rows, slots].

    The position of a token is its column, or the number of tokens before it. A mask without tokens fits none, and
    positions of padding before the first token do not decrease.
    """
    import numpy as np

    first = mask.shape[1] - positions.shape[1]
    is_token = mask[:, first:].astype(bool)
    if not is_token.any():
        return False
    before = np.cumsum(mask.astype(bool), axis=1)[:, first:] - 1
    columns = np.arange(first, mask.shape[1])
    decreases = np.diff(positions, axis=1) < 0
    if (decreases & (np.cumsum(is_token, axis=1)[:, 1:] == 0)).any():
        return False
    return all(
        np.array_equal(own[tokens], numbers[tokens]) or np.array_equal(own[tokens], columns[tokens])
        for own, numbers, tokens in zip(positions, before, is_token)
    )


def _are_repeated(positions: np.ndarray) -> np.ndarray:
    """Return True for each slot whose next slot has the same position: padding on the left, before the first token."""
    import numpy as np

    repeated = np.zeros(positions.shape, bool)
    repeated[:, :-1] = positions[:, :-1] == positions[:, 1:]
    return repeated


def _begin_of_model(call: ModelCall) -> tuple[int, int]:
    """Return the indices of the first operator of a call behind an encoder, and of the lookup of the ids."""
    lookup = next(n for n, operator in enumerate(call.operators) if call.ids_record in operator.inputs)
    products = (n for n in range(lookup - 1, -1, -1) if operator_class(call.operators[n].op_type) in _PRODUCTS)
    return next(products, -1) + 1, lookup


def _contents_before(call: ModelCall) -> Iterator[Hashable]:
    """Yield the contents of the integers that an encoder reads."""
    begin, _ = _begin_of_model(call)
    for operator in call.operators[:begin]:
        for record in operator.inputs:
            if record.dtype in _MASKS and record.content is not None:
                yield record.content[0]


def _integers(call: ModelCall, products: int = 1) -> Iterator[tuple[_Key, Record]]:
    """Yield the integer records of a call with their keys.

    products: the search ends at this product of the call; 1 is the first
    """
    begin, lookup = _begin_of_model(call)
    before, after = call.operators[begin:lookup], call.operators[lookup:]
    # Operators without a module are numbered over all calls of a step, so they get numbers from the lookup on. The
    # first call may have more operators before it than the others.
    names = [*reversed(list(_numbered(reversed(before), "before"))), *_numbered(after, "after")]
    for name, operator in zip(names, call.operators[begin:]):
        if operator_class(operator.op_type) in _PRODUCTS:
            products -= 1
            if not products:
                return
        for record in (*operator.inputs, *operator.outputs):
            if record.dtype in _MASKS:
                yield (name, record.io, record.index), record


def _numbered(operators: Iterable[Operator], place: str) -> Iterator[str]:
    """Yield names of operators that are the same in each call. place: "before" or "after" the lookup of the ids"""
    counts = Counter[str]()
    for operator in operators:
        counts[operator.op_type] += 1
        yield operator.op_name if operator.module else f"{place}.{operator.op_type}_{counts[operator.op_type]}"


def _keys(
    call: ModelCall,
    is_wanted: Callable[[ModelCall, np.ndarray], bool],
    products: int = 1,
    unlike: Container[Hashable] = frozenset(),
) -> Iterator[_Key]:
    for key, record in _integers(call, products):
        if record is not call.ids_record and (record.content is None or record.content[0] not in unlike):
            array = _read(call, record)
            if array is not None and is_wanted(call, array):
                yield key


def _first_key(
    call: ModelCall, is_wanted: Callable[[ModelCall, np.ndarray], bool], products: int = 1
) -> Optional[_Key]:
    """Return the key of the first integers that are wanted."""
    return next(_keys(call, is_wanted, products), None)


def _sum_of_largest(calls: Sequence[ModelCall], key: _Key) -> int:
    return sum(_largest(call, key) for call in calls)


def _largest(call: ModelCall, key: _Key) -> int:
    array = _find(call, key)
    return 0 if array is None else int(array.max())


def _known_tokens(calls: Sequence[ModelCall], key: _Key, known: Container[tuple[int, int]]) -> int:
    """Return 2 if the other side has nearly all ids at the positions that a key has for them, 1 for most, else 0.

    Places in a block of a cache are positions of most ids, too.
    """
    count = total = 0
    for call in calls:
        array = _find(call, key)
        if array is not None and array.size == call.ids.size:
            pairs = zip(array.reshape(-1).tolist(), call.ids.reshape(-1).tolist())
            count += sum(pair in known for pair in pairs)
            total += call.ids.size
    return (2 * count > total) + (total > 0 and count >= _NEARLY_ALL * total)


def _differ_by_rows(call: ModelCall, key: _Key) -> bool:
    array = _find(call, key)
    if array is None:
        return False
    rows = array.reshape(-1, call.width)
    return bool((rows != rows[:1]).any())


def _later_calls(calls: Sequence[ModelCall], key: _Key) -> int:
    """Return the number of calls in which a record has numbers beyond the slots, like the positions of later calls.

    In a call of several rows each row has to have one, so that the numbers of the rows are no positions.
    """
    arrays = [(call, array) for call in calls if (array := _find(call, key)) is not None]
    return sum(
        array.size in (call.width, call.ids.size)
        and bool((array.reshape(-1, call.width).max(axis=1) >= call.width).all())
        for call, array in arrays
    )


def _given(call: ModelCall) -> set[_Key]:
    """Return the keys of integer inputs that no operator of the call made."""
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
    if call.integers is None:
        call.integers = {}
        for name, integers in _integers(call, _FIRST_PRODUCTS):
            call.integers.setdefault(name, integers)
    record = None if key is None else call.integers.get(key)
    return None if record is None else _read(call, record)


def _read(call: ModelCall, record: Record) -> Optional[np.ndarray]:
    """Return integers of a call, with rows before slots; None if there are none."""
    try:
        array = record.numpy()
    except AscendDumpError:
        return None
    return call.in_rows(array) if array.size else None


def _are_positions(call: ModelCall, array: np.ndarray) -> bool:
    """Return True if an array may be the positions of all slots: most slots of a row are one more than the slot before.

    Exceptions are padding and the begin of a request. If the call has a single row, it may have several requests, each
    of which begins at any position.
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
    """Return True for a mask of real tokens, [rows, keys], with padding at one end of each row."""
    import numpy as np

    if array.ndim != 2 or len(array) != call.rows or array.shape[1] < call.width or call.rows < 1:
        return False
    values = np.unique(array)
    if not set(values.tolist()) <= {0, 1} or len(values) != 2 or not (array[:, 0] | array[:, -1]).all():
        return False
    ends = np.diff(array.astype(np.int8), axis=1)
    # A causal mask has as many rows as slots, and ends one slot later in each row.
    is_causal = len(array) == array.shape[1] > 1 and np.array_equal(array.astype(bool), np.tri(len(array), dtype=bool))
    return bool((np.abs(ends).sum(axis=1) <= 2).all()) and not is_causal


def _are_sequence_numbers(array: np.ndarray, positions: np.ndarray) -> bool:
    """Return True if 0 and 1 number two packed sequences: the positions count up from 0 in both.

    Positions of padding do not count up. Both arrays have the shape [rows, slots].
    """
    import numpy as np

    for numbers, counted in zip(array, positions):
        begin = int(np.count_nonzero(numbers == 0))
        if begin in (0, len(numbers)):
            continue
        parts = counted[:begin], counted[begin:]
        if begin < 2 or numbers[:begin].any() or any((part != np.arange(len(part))).any() for part in parts):
            return False
    return True


def _are_boundaries(call: ModelCall, array: np.ndarray, positions: Optional[np.ndarray]) -> bool:
    """Return True for the boundaries of packed requests: they do not decrease from 0 to the number of slots.

    Slot numbers of a cache and even numbers may do the same. So positions, [rows, slots], may jump at boundaries only,
    and jump at most of them: by chance they go on at some.
    """
    import numpy as np

    size = call.ids.size
    if array.ndim != 1 or len(array) < 2 or array.dtype == bool or array[0] != 0 or array[-1] != size:
        return False
    steps = np.diff(array)
    if not ((steps >= 0).all() and size > len(array) - 1 and (steps > 1).any()):
        return False
    if positions is None:
        return True
    inner = {number for number in array.tolist() if 0 < number < size}
    jumps = {int(slot) + 1 for slot in np.flatnonzero(np.diff(positions.reshape(-1)) != 1)}
    return jumps <= inner and 2 * len(jumps) >= len(inner)
