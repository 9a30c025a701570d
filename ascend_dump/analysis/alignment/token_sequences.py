"""Find the tokens of each call of a language model in recorded ids, positions and masks.

A call runs the model once: a whole prompt, a chunk of it, one decoding step, a batch of a trainer. Its ids have one
slot for each token, and maybe slots of padding. The tokens of one request follow each other over the calls, in a row of
the batch, or in a part of a packed row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["NO_TOKEN", "ModelCall", "Token", "calls_in", "pair_sequences"]

#: A slot without a token of a request: padding.
NO_TOKEN = (-1, -1)
#: Number of a sequence, index in it from 0.
Token = tuple[int, int]
#: The operator, the side and the index of a record.
_Key = tuple[str, str, int]
_INTEGERS = ("int32", "int64")
_MASKS = ("bool", *_INTEGERS, "uint8")
#: Operators of a call in which positions and masks are looked for; they are made before the first product.
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_grouped_mm", "convolution"})


@dataclass
class ModelCall:
    """One run of the model.

    operators  in execution order
    ids        [rows, slots]
    slots      [row][slot]: the token of each slot
    keys       [row][key]: the tokens whose keys a cache holds after the call, in its order
    """

    operators: list[Operator]
    ids: np.ndarray
    ids_record: Record
    slots: list[list[Token]] = field(default_factory=list)
    keys: list[list[Token]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return int(self.ids.shape[1])


class _Segment(NamedTuple):
    """Slots of one row that belong to one request. position: the recorded position of the first one, if any."""

    row: int
    slots: tuple[int, ...]
    position: Optional[int]


def calls_in(steps: Sequence[Sequence[Operator]]) -> tuple[list[ModelCall], list[list[int]]]:
    """Return the calls of the steps of one rank, and the ids of each sequence of tokens in them.

    Steps without ids are left out, and so is everything from the backward pass on.
    """
    calls = [call for step in steps for call in _calls_of_step(step)]
    if not calls:
        return [], []
    reader = _IntegersOfCalls(calls)
    sequences: list[list[int]] = []
    row_sequences: dict[int, int] = {}
    before: Optional[ModelCall] = None
    for call in calls:
        segments = list(reader.segments(call))
        is_flat = call.rows == 1 and (len(segments) > 1 or len(row_sequences) > 1)
        goes_on = not is_flat and before is not None and before.rows == call.rows and reader.goes_on(before, call)
        if is_flat:
            segments = _one_each(segments, len(row_sequences))
            owners = _owners(segments, row_sequences, sequences)
        else:
            owners = [row_sequences.get(segment.row) if goes_on else None for segment in segments]
        call.slots = [[NO_TOKEN] * call.width for _ in range(call.rows)]
        row_sequences = {}
        for index, (segment, owner) in enumerate(zip(segments, owners)):
            number = owner
            if number is None:
                number = len(sequences)
                sequences.append([])
            row_sequences[index if is_flat else segment.row] = number
            for slot in segment.slots:
                call.slots[segment.row][slot] = (number, len(sequences[number]))
                sequences[number].append(int(call.ids[segment.row, slot]))
        kept = before.keys if before is not None and goes_on else [[] for _ in range(call.rows)]
        call.keys = [[*keys, *slots] for keys, slots in zip(kept, call.slots)]
        before = call
    return calls, sequences


def _one_each(segments: Sequence[_Segment], count: int) -> list[_Segment]:
    """Return segments of one token, if there is one token for each of several requests of the call before."""
    slots = [(segment, number) for segment in segments for number in range(len(segment.slots))]
    if count < 2 or len(slots) != count:
        return list(segments)
    return [
        _Segment(segment.row, (segment.slots[n],), None if segment.position is None else segment.position + n)
        for segment, n in slots
    ]


def _owners(
    segments: Sequence[_Segment], before: dict[int, int], sequences: Sequence[Sequence[int]]
) -> list[Optional[int]]:
    """Return the sequence of the call before that each segment of a flat call continues; None for a new one."""
    waiting = list(before.values())
    owners: list[Optional[int]] = []
    for index, segment in enumerate(segments):
        fitting = [number for number in waiting if len(sequences[number]) == segment.position]
        if not fitting and len(segments) == len(before) and segment.position != 0:
            fitting = [before[index]] if before.get(index) in waiting else []
        owner = fitting[0] if fitting else None
        if owner is not None:
            waiting.remove(owner)
        owners.append(owner)
    return owners


def _calls_of_step(operators: Sequence[Operator]) -> Iterator[ModelCall]:
    """Yield the calls of a step: each begins with the operator that looks up the embeddings of ids."""
    first: Optional[tuple[str, str, object]] = None
    begins: list[tuple[int, Record]] = []
    end = next((n for n, operator in enumerate(operators) if operator.phase == "backward"), len(operators))
    for number, operator in enumerate(operators[:end]):
        ids = _embedded_ids(operator)
        if ids is None:
            continue
        key = operator.module, operator.op_type, operator.inputs[0].shape
        if first is None:
            first = key
        if key == first:
            begins.append((number, ids))
    for index, (begin, ids) in enumerate(begins):
        start = 0 if index == 0 else begin
        stop = begins[index + 1][0] if index + 1 < len(begins) else end
        try:
            array = ids.numpy().astype("int64")
        except AscendDumpError:
            continue
        if not array.size:
            continue
        rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
        yield ModelCall(list(operators[start:stop]), rows, ids)


def _embedded_ids(operator: Operator) -> Optional[Record]:
    """Return the ids that an operator looks up in a table; None for other operators."""
    if operator_class(operator.op_type) not in ("embedding", "Embedding", "GatherV2", "aclnnEmbedding"):
        return None
    ids = [record for record in operator.inputs if record.dtype in _INTEGERS and record.shape]
    return ids[0] if len(ids) == 1 and len(operator.inputs) == 2 and len(operator.inputs[0].shape or ()) == 2 else None


class _IntegersOfCalls:
    """Reads positions, masks and lengths of the calls of one side.

    The call with most slots shows which records they are; the same records have them in the other calls.
    """

    def __init__(self, calls: Sequence[ModelCall]) -> None:
        largest = max(calls, key=lambda call: (call.width, call.rows))
        keys = list(_keys(largest, _are_positions))
        # Numbers of slots begin at 0 in each call, positions do not; and a program may be given them.
        given = _given(largest)
        self._positions = max(keys, key=lambda key: (_later_calls(calls, key), key in given), default=None)
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

    def segments(self, call: ModelCall) -> Iterator[_Segment]:
        """Yield the parts of a call that belong to one request each, without padding."""
        import numpy as np

        positions = self.positions(call)
        mask = _find(call, self._mask)
        is_token = np.ones(call.ids.shape, bool)
        if mask is not None and mask.ndim == 2 and len(mask) == call.rows and mask.shape[1] >= call.width:
            is_token = mask[:, mask.shape[1] - call.width :].astype(bool)
        elif mask is None and positions is not None and call.rows > 1:
            is_token = ~_are_repeated(positions)
        lengths = _find(call, self._lengths)
        ends = set() if lengths is None or lengths.max() != call.ids.size else set(lengths.reshape(-1).tolist())
        for row in range(call.rows):
            part: list[int] = []
            for slot in np.flatnonzero(is_token[row]).tolist():
                resets = positions is not None and part and positions[row, slot] != positions[row, part[-1]] + 1
                if part and ((resets and positions is not None and positions[row, slot] == 0) or slot in ends):
                    yield _segment(row, part, positions)
                    part = []
                part.append(slot)
            if part:
                yield _segment(row, part, positions)


def _segment(row: int, slots: Sequence[int], positions: Optional[np.ndarray]) -> _Segment:
    return _Segment(row, tuple(slots), None if positions is None else int(positions[row, slots[0]]))


def _are_repeated(positions: np.ndarray) -> np.ndarray:
    """Return True for slots before a slot of the same position: padding on the left has that of the first token."""
    import numpy as np

    repeated = np.zeros(positions.shape, bool)
    repeated[:, :-1] = positions[:, :-1] == positions[:, 1:]
    return repeated


def _integers(call: ModelCall) -> Iterator[tuple[_Key, Record]]:
    """Yield the integer records of a call before its first product, with their keys: operator, side and index."""
    for operator in call.operators:
        if operator_class(operator.op_type) in _PRODUCTS:
            return
        for record in (*operator.inputs, *operator.outputs):
            if record.dtype in _MASKS:
                yield (record.op_name, record.io, record.index), record


def _keys(call: ModelCall, is_wanted: Callable[[ModelCall, np.ndarray], bool]) -> Iterator[_Key]:
    for key, record in _integers(call):
        if record is not call.ids_record:
            array = _read(record)
            if array is not None and is_wanted(call, array):
                yield key


def _first_key(call: ModelCall, is_wanted: Callable[[ModelCall, np.ndarray], bool]) -> Optional[_Key]:
    return next(_keys(call, is_wanted), None)


def _later_calls(calls: Sequence[ModelCall], key: _Key) -> int:
    """Return the number of calls that begin behind the first position, by a record."""
    arrays = [(call, array) for call in calls if (array := _find(call, key)) is not None]
    return sum(array.size in (call.width, call.ids.size) and int(array.max()) >= call.width for call, array in arrays)


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
    """Return True for positions of all slots: rows that count up, but for padding and where a request begins."""
    import numpy as np

    if array.dtype == bool or call.width < 2 or array.size not in (call.width, call.ids.size):
        return False
    rows = array.reshape(-1, array.shape[-1])
    if rows.shape[-1] != call.width or array.min() < 0 or np.array_equal(array, call.ids):
        return False
    steps = np.diff(rows.astype(np.int64), axis=1)
    counts = steps == 1
    fits = counts | (rows[:, 1:] == 0) | (steps == 0) | (rows[:, 1:] == 1)
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


def pair_sequences(actual: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> dict[int, tuple[int, int]]:
    """Return the sequence of the reference with the same ids for sequences of actual, and the number of equal tokens.

    A sequence may end earlier on one side. Those with most equal ids are paired first.
    """
    scores = []
    for a, ids_a in enumerate(actual):
        for b, ids_b in enumerate(reference):
            count = next((n for n, (x, y) in enumerate(zip(ids_a, ids_b)) if x != y), min(len(ids_a), len(ids_b)))
            if count:
                scores.append((-count, len(ids_a) + len(ids_b) - 2 * count, abs(a - b), a, b))
    pairs: dict[int, tuple[int, int]] = {}
    taken: set[int] = set()
    for negative, _, _, a, b in sorted(scores):
        if a not in pairs and b not in taken:
            pairs[a] = (b, -negative)
            taken.add(b)
    return pairs
