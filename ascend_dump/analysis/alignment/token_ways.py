"""Find out which axes of a tensor are tokens.

A tensor may have the values of tokens in rows and slots of a batch, in packed rows, as a cache of keys, as scores of
tokens and keys, or for the last token of each request only. Each of these is a `Way`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.experts.routed_rows import slots_of_rows
from ascend_dump.analysis.alignment.model_calls import NO_TOKEN, ModelCall, Token, has_slots_first

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.reading import Record

__all__ = ["TokenSide", "Way", "gather", "presence", "rest_shape"]

#: The largest number of elements per token on an axis that joins tokens and elements, such as the experts of a token.
_MOST_JOINED = 64
_Shape = tuple[int, ...]


class Way(NamedTuple):
    """The axes of a tensor that are tokens.

    kind      "tokens", "keys" (of a cache), "pairs" (tokens and keys), "last" (one token of each row), "rows" (rows of
              the first axis that the program picked, see `slots_of_rows`)
    row_axis  the axis of rows of the batch, maybe joined with heads; None if there is none
    axis      the axis of slots, or of rows and slots joined, or of keys; for "last" the axis of rows or requests
    key_axis  for "pairs": the axis of keys
    joined    for an axis that joins rows and slots: the number of elements of each token on it; else 0
    window    number of keys that a cache is cut to; 0 if it is not cut
    room      number of keys that a fixed cache has room for, the first ones in use; 0 for other caches
    is_sorted the joined elements are sorted in another order, such as by experts
    is_outer  the joined elements are the outer part of the axis: all tokens for the first element, then for the next
    is_flat   in calls of one token per row, the tensor has other axes, with the values of one token of each row
    """

    kind: str
    row_axis: Optional[int]
    axis: int
    key_axis: Optional[int] = None
    joined: int = 0
    window: int = 0
    room: int = 0
    is_sorted: bool = False
    is_outer: bool = False
    is_flat: bool = False


class TokenSide:
    """The calls of one side, with the number of the common token in each slot; -1 for padding and other tokens.

    slots   for each call: numbers of the tokens, [rows, slots]
    joined  for each call: the same numbers in the order of an axis that joins rows and slots
    keys    for each call: numbers of the tokens whose keys a cache holds, [rows, keys]
    last    for each call: the last slot of each row that is not padding
    rooms   the lengths of caches of a fixed length
    """

    def __init__(self, calls: Sequence[ModelCall], numbers: Mapping[Token, int]) -> None:
        import numpy as np

        #: For each flat call (one row, maybe several requests): the last slot of each request; empty for other calls.
        self.last_of_requests = [_last_of_requests(call) for call in calls]
        #: Results by shapes, since all layers have tensors of equal shapes: the ways, and the tokens in a tensor.
        self._ways: dict[tuple[tuple[int, _Shape], ...], list[Way]] = {}
        self._known: dict[tuple[Way, tuple[tuple[int, _Shape], ...]], np.ndarray] = {}

        self.calls = list(calls)
        #: By call: the slots of the rows of tensors; empty until they are needed.
        self._rows: dict[int, dict[int, np.ndarray]] = {}
        self.rooms: set[int] = set()
        self.slots = [
            np.array([[numbers.get(token, -1) for token in row] for row in call.slots], np.int64) for call in calls
        ]
        slots_first = has_slots_first(calls)
        self.joined = [(numbers.T if slots_first else numbers).reshape(-1) for numbers in self.slots]
        self.keys = [_key_numbers(call, numbers) for call in calls]
        self.last = [
            np.array(
                [next((slot for slot in range(len(row) - 1, -1, -1) if row[slot] != NO_TOKEN), 0) for row in slots]
            )
            for slots in (call.slots for call in calls)
        ]

    def prompt_in_row(self, row: int) -> set[int]:
        """Return the numbers of the tokens in a row of the first call; -1 for a token that the other side lacks."""
        if row >= len(self.slots[0]):
            return set()
        tokens = zip(self.calls[0].slots[row], self.slots[0][row].tolist())
        return {number for token, number in tokens if token != NO_TOKEN}

    def rows_of(self, records: Mapping[int, Record]) -> dict[int, np.ndarray]:
        """Return the slot of each row of a tensor in each call, if the program picked the rows. records: by call

        Calls in which several rows have one slot are left out. Nothing is returned for one row of each request, which
        has to be the last one: if the program picked another one, this is a difference.
        """
        import numpy as np

        slots: dict[int, np.ndarray] = {}
        for index, record in records.items():
            if index not in self._rows:
                self._rows[index] = slots_of_rows(self.calls[index])
            rows = self._rows[index].get(id(record))
            if rows is not None:
                slots[index] = rows
        has_other_slots = any(len(self.last_of_requests[index]) < self.calls[index].width for index in slots)
        if has_other_slots and all(self._has_row_of_each_request(index, rows) for index, rows in slots.items()):
            return {}
        return {index: rows for index, rows in slots.items() if len(rows) == len(np.unique(rows))}

    def _has_row_of_each_request(self, index: int, rows: np.ndarray) -> bool:
        """Return True if a flat call has as many rows as requests: one of each, or last ones only."""
        ends = self.last_of_requests[index]
        if len(rows) != len(ends):
            return False
        [slots] = self.calls[index].slots
        requests, last = ([slots[slot][0] for slot in row_slots] for row_slots in (rows.tolist(), ends))
        return requests == last or {*rows.tolist()} <= {*ends}

    def ways(self, shapes: Mapping[int, _Shape]) -> list[Way]:
        """Return the ways that fit a tensor in all calls, the likeliest first. shapes: by index of the call"""
        key = tuple(shapes.items())
        if key not in self._ways:
            self._ways[key] = _ways(self, shapes)
        return list(self._ways[key])

    def tokens_in(self, way: Way, shapes: Mapping[int, _Shape], count: int) -> np.ndarray:
        """Return [tokens]: for each of `count` common tokens, True if a tensor has a value of it."""
        import numpy as np

        key = way, tuple(shapes.items())
        if key not in self._known:
            known = np.zeros(count, bool)
            for index, shape in shapes.items():
                for numbers, _ in gather(self, way, index, np.broadcast_to(np.int8(0), shape)):
                    known[numbers] = True
            self._known[key] = known
        return self._known[key]


def _key_numbers(call: ModelCall, numbers: Mapping[Token, int]) -> np.ndarray:
    """Return the number of the token of each key, [rows, keys]; -1 for other tokens, and behind the last key of a row.

    In a cache with a place for each position, rows may have different numbers of keys.
    """
    import numpy as np

    keys = np.full((call.rows, max(map(len, call.keys), default=0)), -1, np.int64)
    for row, tokens in enumerate(call.keys):
        keys[row, : len(tokens)] = [numbers.get(token, -1) for token in tokens]
    return keys


def _last_of_requests(call: ModelCall) -> list[int]:
    """Return the last slot of each request in the one row of a flat call, in the order of the requests."""
    if call.rows != 1:
        return []
    last: dict[int, int] = {}
    for slot, token in enumerate(call.slots[0]):
        if token != NO_TOKEN:
            last[token[0]] = slot
    return list(last.values())


def _ways(side: TokenSide, shapes: Mapping[int, _Shape]) -> list[Way]:
    ways = _fitting_all(side, shapes)
    if ways or not shapes:
        return ways
    # Calls of one token per row may have other axes, such as heads in groups.
    wide = {index: shape for index, shape in shapes.items() if side.calls[index].width > 1}
    if not wide or len(wide) == len(shapes):
        return []
    return [
        way._replace(is_flat=True)
        for way in _fitting_all(side, wide)
        if way.kind == "tokens" and not way.joined and _fits_flat(side, way, shapes, wide)
    ]


def _fits_flat(side: TokenSide, way: Way, shapes: Mapping[int, _Shape], wide: Mapping[int, _Shape]) -> bool:
    index, shape = next(iter(wide.items()))
    size = math.prod(rest_shape(way, shape, side.calls[index].rows))
    return all(
        math.prod(shape) == side.calls[index].rows * size for index, shape in shapes.items() if index not in wide
    )


def _fitting_all(side: TokenSide, shapes: Mapping[int, _Shape]) -> list[Way]:
    if not all(map(math.prod, shapes.values())) or len({len(shape) for shape in shapes.values()}) != 1:
        return []  # no call, an empty tensor, or different numbers of axes
    [rank] = {len(shape) for shape in shapes.values()}
    of_last = list(_of_last_in_flat(side, shapes))
    if of_last:
        return of_last
    calls = {index: side.calls[index] for index in shapes}
    varies = [len({shape[axis] for shape in shapes.values()}) > 1 for axis in range(rank)]
    slots = [axis for axis in range(rank) if all(shapes[n][axis] == call.width for n, call in calls.items())]
    windows = {axis: window for axis in range(rank) if (window := _window(side, shapes, axis)) is not None}
    rooms = {axis: room for axis in range(rank) if axis not in windows and (room := _room(side, shapes, axis))}
    windows.update(dict.fromkeys(rooms, 0))
    # A size that varies with the number of slots or keys is sure evidence. A constant size may be equal by chance.
    slots_only = {axis for axis in slots if varies[axis]}
    sure_keys = {axis for axis in windows if (varies[axis] or axis in rooms) and axis not in slots_only}
    keys = sure_keys or set(windows) - slots_only
    ways = [*_of_tokens(shapes, calls, slots)]
    of_keys = [
        way._replace(room=rooms.get(axis, 0)) for axis in keys for way in _of_keys(shapes, calls, axis, windows[axis])
    ]
    pairs = [
        way._replace(kind="pairs", key_axis=axis, window=windows[axis], room=rooms.get(axis, 0))
        for way in ways
        if not way.joined
        for axis in keys
        if axis > way.axis and axis != way.row_axis
    ]
    if sure_keys:
        pairs_or_keys = [way for way in pairs if way.axis in slots_only or not any(varies[a] for a in slots)]
        ordered = pairs_or_keys if slots_only else [*of_keys, *pairs]
        if slots_only and not any(varies[axis] for axis in sure_keys):
            # The elements of a token may be as many as a cache has room for.
            ordered = [*ordered, *(way for way in ways if way.axis in slots_only or way.joined)]
    elif slots_only:
        ordered = [way for way in ways if way.axis in slots_only or way.joined]
    else:
        ordered = [*ways, *of_keys, *pairs]
    if not slots and not of_keys:
        ordered += _of_last(shapes, calls)
    return [
        way
        for way in dict.fromkeys(ordered)
        if len({rest_shape(way, shape, side.calls[index].rows) for index, shape in shapes.items()}) == 1
    ]


def _of_tokens(shapes: Mapping[int, _Shape], calls: Mapping[int, ModelCall], slots: Sequence[int]) -> Iterator[Way]:
    for axis in slots:
        row_axis = 0 if axis else 1
        if row_axis < len(next(iter(shapes.values()))) and _has_rows(shapes, calls, row_axis):
            yield Way("tokens", row_axis, axis)
        if all(call.rows == 1 for call in calls.values()) or all(
            all(size == 1 for size in shape[:axis]) for shape in shapes.values()
        ):
            yield Way("tokens", None, axis)
    for axis in range(min(2, len(next(iter(shapes.values()))))):
        factors = {_factor(shapes[index][axis], call.rows * call.width) for index, call in calls.items()}
        joined = factors.pop()
        is_other = joined > 1 or axis not in slots or any(call.rows > 1 for call in calls.values())
        if not factors and 0 < joined <= _MOST_JOINED and is_other:
            yield Way("tokens", None, axis, joined=joined)


def _of_keys(shapes: Mapping[int, _Shape], calls: Mapping[int, ModelCall], axis: int, window: int) -> Iterator[Way]:
    if axis and _has_rows(shapes, calls, 0):
        yield Way("keys", 0, axis, window=window)
    if all(call.rows == 1 for call in calls.values()):
        yield Way("keys", None, axis, window=window)


def _of_last(shapes: Mapping[int, _Shape], calls: Mapping[int, ModelCall]) -> Iterator[Way]:
    has_prompt = any(call.width > 1 for call in calls.values())
    if has_prompt and all(shapes[index][:1] == (call.rows,) for index, call in calls.items()):
        yield Way("last", 0, 0)


def _of_last_in_flat(side: TokenSide, shapes: Mapping[int, _Shape]) -> Iterator[Way]:
    """Yield the way of tensors that have one value for each of several requests of a flat call."""
    last = {index: side.last_of_requests[index] for index in shapes}
    if not any(len(slots) > 1 for slots in last.values()):
        return
    if not any(len(slots) < side.calls[index].width for index, slots in last.items()):
        return
    for axis in (0, 1):
        is_first = all(math.prod(shape[:axis]) == 1 and len(shape) > axis for shape in shapes.values())
        if is_first and all(shape[axis] == len(last[index]) for index, shape in shapes.items()):
            yield Way("last", None, axis)


def _has_rows(shapes: Mapping[int, _Shape], calls: Mapping[int, ModelCall], axis: int) -> bool:
    factors = {_factor(shapes[index][axis], call.rows) for index, call in calls.items()}
    return len(factors) == 1 and 0 not in factors


def _factor(size: int, unit: int) -> int:
    """Return the ratio of a size to a unit; 0 if the size is no multiple of the unit."""
    return size // unit if unit and size % unit == 0 else 0


def _window(side: TokenSide, shapes: Mapping[int, _Shape], axis: int) -> Optional[int]:
    """Return the number of keys that a cache on this axis is cut to; 0 if not cut, None if the axis has no keys."""
    sizes = [(shape[axis], side.keys[index].shape[1]) for index, shape in shapes.items()]
    cut = {size for size, count in sizes if size != count}
    if not cut:
        return 0
    if len(cut) != 1 or len(sizes) == 1:
        return None
    window = cut.pop()
    # The call of the prompt makes all its keys itself, so its keys are not cut.
    limits = [
        min(count, max(window, call.width)) for (_, count), call in zip(sizes, map(side.calls.__getitem__, shapes))
    ]
    return window if all(size <= limit for (size, _), limit in zip(sizes, limits)) else None


def _room(side: TokenSide, shapes: Mapping[int, _Shape], axis: int) -> int:
    """Return the length of the axis if it may be a cache of a fixed length; else 0."""
    sizes = {shape[axis] for shape in shapes.values()}
    if len(sizes) != 1 or not sizes <= side.rooms:
        return 0
    [size] = sizes
    return size if all(side.keys[index].shape[1] <= size for index in shapes) else 0


@functools.lru_cache(maxsize=4096)
def _split(way: Way, shape: _Shape, rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape with joined axes split, and the order of the split axes: rows, tokens, keys, others."""
    sizes, origins = [], []
    for axis, size in enumerate(shape):
        if axis == way.row_axis and way.kind != "last":
            sizes += [rows, size // rows]
            origins += ["row", "other"]
        elif axis == way.axis and way.joined > 1:
            sizes += [way.joined, size // way.joined] if way.is_outer else [size // way.joined, way.joined]
            origins += ["other", "token"] if way.is_outer else ["token", "other"]
        else:
            sizes.append(size)
            origins.append("token" if axis == way.axis else "key" if axis == way.key_axis else "other")
    ranks = {"row": 0, "token": 1, "key": 2, "other": 3}
    order = sorted(range(len(sizes)), key=lambda axis: ranks[origins[axis]])
    return tuple(sizes), tuple(order)


@functools.lru_cache(maxsize=4096)
def rest_shape(way: Way, shape: _Shape, rows: int) -> _Shape:
    """Return the shape of the values of one token, or of one pair, without axes of size 1."""
    sizes, order = _split(way, shape, rows)
    first = (way.row_axis is not None and way.kind != "last") + 1 + (way.kind == "pairs")
    return tuple(sizes[axis] for axis in order[first:] if sizes[axis] != 1)


def gather(
    side: TokenSide, way: Way, index: int, array: np.ndarray, order: Optional[np.ndarray] = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (numbers, values) of the tokens in the tensor of a call; for pairs (numbers of tokens and keys, values).

    numbers  [tokens], without padding and other tokens; for pairs [slots + keys], slots first, -1 for such tokens
    values   [tokens, *rest]; for pairs [slots, keys, *rest]
    order    for sorted elements: the position of each element in the order of rows, slots and elements; for picked
             rows: the number of the slot of each row
    """
    import numpy as np

    call = side.calls[index]
    if way.kind == "rows":
        yield _kept(side.joined[index][order], array.reshape(len(array), *rest_shape(way, array.shape, 1)))
        return
    if way.is_sorted and order is not None:
        unsorted = np.empty_like(array)
        unsorted[order] = array
        array = unsorted
    if way.is_flat and call.width == 1:
        yield _kept(side.joined[index], array.reshape(call.rows, -1))
        return
    sizes, axes = _split(way, array.shape, call.rows)
    values = array.reshape(sizes).transpose(axes)
    rest = rest_shape(way, array.shape, call.rows)
    slots = side.slots[index]
    if way.kind == "last":
        numbers = slots[np.arange(call.rows), side.last[index]]
        if way.row_axis is None:
            numbers = slots[0, side.last_of_requests[index]]
        yield _kept(numbers, values.reshape(len(numbers), *rest))
        return
    keys = side.keys[index]
    if way.window and keys.shape[1] > way.window:
        size = array.shape[way.axis if way.kind == "keys" else way.key_axis or 0]
        keys = keys[:, keys.shape[1] - size :]
    if way.room:
        keys = np.pad(keys, ((0, 0), (0, way.room - keys.shape[1])), constant_values=-1)
    numbers = keys if way.kind == "keys" else slots
    if way.kind == "pairs":
        for row in range(call.rows):
            of_row = values[row] if way.row_axis is not None else values
            of_row = of_row.reshape(slots.shape[1], keys.shape[1], *rest)
            yield np.concatenate([slots[row], keys[row]]), of_row
        return
    if way.row_axis is not None or way.joined:
        numbers = side.joined[index] if way.joined else numbers.reshape(-1)
        yield _kept(numbers, values.reshape(-1, *rest))
        return
    for row in range(call.rows):  # one row of values for all rows of the batch
        yield _kept(numbers[row], values.reshape(-1, *rest))


def _kept(numbers: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    is_token = numbers >= 0
    return numbers[is_token], values[is_token]


def presence(side: TokenSide, way: Way, shapes: Mapping[int, _Shape], count: int, index_of: np.ndarray) -> np.ndarray:
    """Return [tokens, positions]: True if a side has the pair of a token and the key at a position of its sequence.

    Keys after the token do not count.

    count     number of common tokens
    index_of  [tokens, 2], the sequence and the position of each token
    """
    import numpy as np

    present = np.zeros((count, int(index_of[:, 1].max()) + 1), bool)
    for index, shape in shapes.items():
        for both, _ in gather(side, way, index, np.broadcast_to(np.int8(0), shape)):
            width = side.calls[index].width
            tokens, positions = pair_indices(both[:width], both[width:], index_of)
            present[tokens[0], positions] = True
    return present


def pair_indices(
    tokens: np.ndarray, keys: np.ndarray, index_of: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Return ((numbers of tokens, their slots, indices of keys), positions of keys), one element for each pair.

    A pair is a token and a key of the same sequence that is not later than the token.
    """
    import numpy as np

    slot, key = np.nonzero((tokens >= 0)[:, None] & (keys >= 0)[None, :])
    of_token, of_key = index_of[tokens[slot]], index_of[keys[key]]
    fits = (of_token[:, 0] == of_key[:, 0]) & (of_key[:, 1] <= of_token[:, 1])
    return (tokens[slot][fits], slot[fits], key[fits]), of_key[fits, 1]
