"""Check that the tokens of a request are read from the slots of a paged cache to which they were written.

A paged cache consists of blocks of slots. An engine writes the keys and values of each token to a slot. It reads the
keys and values of a request block by block; a row of a table lists the blocks of the request. Slots and tables are
integers in the dump, so the token in each slot is known even without values.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.model_calls import INTEGERS, NO_TOKEN, REJECTED, ModelCall, Token
from ascend_dump.analysis.alignment.token_requests import are_equal_ids
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import writes
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["MisreadToken", "have_other_slots", "misread_token", "writes_to_slots"]

#: Integers from this number on are not taken for slots of a cache.
_MOST_SLOTS = 1 << 26


class MisreadToken(NamedTuple):
    """A token that is read from a slot of the cache that does not hold this token.

    call        index of the call that reads
    operator    the operator that reads
    table       the record of the blocks that it reads, in order
    token       the token that was expected
    slot        the slot that was read
    block_size  number of slots of a block
    holder      the token in this slot; None if no call wrote one
    own_slot    the slot to which the token was written; None if this is unknown
    """

    call: int
    operator: Operator
    table: Record
    token: Token
    slot: int
    block_size: int
    holder: Optional[Token]
    own_slot: Optional[int]

    @property
    def text(self) -> str:
        """Return one sentence."""
        request, position = self.token
        if self.holder is None:
            holder = "that no call wrote to"
        elif self.holder[0] < 0:
            holder = "that holds a rejected token or padding"
        else:
            holder = f"that holds token {self.holder[1]} of request {self.holder[0]}"
        own = "" if self.own_slot is None else f"; the token was written to {self._place(self.own_slot)}"
        return (
            f"call {self.call} reads token {position} of request {request} from a slot {holder}: "
            f"{self._place(self.slot)}{own}"
        )

    def _place(self, slot: int) -> str:
        return f"slot {slot % self.block_size} of block {slot // self.block_size}"


def misread_token(calls: Sequence[ModelCall], sequences: Sequence[Sequence[int]]) -> Optional[MisreadToken]:
    """Return the first token that an operator reads from the wrong slot of a paged cache; None if there is none.

    Integers count as a table of blocks only if they led to the right tokens before, in an earlier call or for another
    request.
    """
    layers: dict[str, _Layer] = {}
    arrays = _Integers()
    prefixes = _CommonPrefixes(sequences)
    for index, call in enumerate(calls):
        tokens = [token for row in call.slots for token in row]
        requests = list(_requests(tokens))
        reads: dict[str, list[_CacheRead]] = {}
        for operator in call.operators:
            name = operator.module or ""
            layer = layers.setdefault(name, _Layer())
            slots = arrays.slots(operator, len(tokens))
            if slots is not None:
                layer.write(index, tokens, slots)
                continue
            reads.setdefault(name, []).extend(arrays.reads(operator, layer.most_slots))
        for name, of_layer in reads.items():
            for read, request in _with_requests(of_layer, requests):
                layers[name].check(index, read, request, prefixes)
    found = [layer.misread for layer in layers.values() if layer.is_sure and layer.misread is not None]
    return min(found, key=lambda misread: (misread.call, misread.operator.position), default=None)


class _CacheRead(NamedTuple):
    """An operator that reads a cache. blocks: numbers of the blocks, [blocks] of one request or [requests, blocks]"""

    operator: Operator
    cache: Record
    table: Record
    blocks: np.ndarray


def _with_requests(reads: Sequence[_CacheRead], requests: Sequence[Token]) -> Iterator[tuple[_CacheRead, Token]]:
    """Yield the reads of each request, with (number of the sequence, number of its tokens).

    A read of several requests is divided by requests. Reads of a single request are in the order of the requests.
    """
    of_one: list[_CacheRead] = []
    for read in reads:
        if read.blocks.ndim == 2:
            for blocks, request in zip(read.blocks, requests):
                yield read._replace(blocks=blocks), request
        # Keys and values of a request are read one after the other, by the same table.
        elif not of_one or of_one[-1].blocks.tobytes() != read.blocks.tobytes():
            of_one.append(read)
    if len(of_one) == len(requests):
        yield from zip(of_one, requests)


def writes_to_slots(calls: Sequence[ModelCall], operators: Mapping[int, Operator]) -> bool:
    """Return True for an operator that may write the tokens of each call to slots of a cache. operators: by call"""
    counts = {index: calls[index].rows * calls[index].width for index in operators}
    return all(
        _slot_records(operator, counts[index]) or _has_rows_and_positions(operator, counts[index])
        for index, operator in operators.items()
    )


def have_other_slots(actual: ModelCall, reference: ModelCall) -> bool:
    """Return True if two calls write their tokens to different slots of a cache."""
    slots = [
        [record.content for operator in call.operators for record in _slot_records(operator, call.rows * call.width)]
        for call in (actual, reference)
    ]
    return bool(slots[0]) and len(slots[0]) == len(slots[1]) and slots[0] != slots[1]


def _requests(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield (number of the sequence, number of its tokens after the call) for each request of a call, in order."""
    counts: dict[int, int] = {}
    for sequence, position in tokens:
        if sequence >= 0:
            counts[sequence] = max(counts.get(sequence, 0), position + 1)
    yield from counts.items()


class _CommonPrefixes:
    """Counts the equal ids at the beginnings of two sequences."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._sequences = sequences
        self._lengths: dict[Token, int] = {}

    def length(self, first: int, second: int) -> int:
        key = min(first, second), max(first, second)
        if key not in self._lengths:
            a, b = (self._sequences[number] for number in key)
            unequal = (n for n, pair in enumerate(zip(a, b)) if not are_equal_ids(*pair))
            self._lengths[key] = next(unequal, min(len(a), len(b)))
        return self._lengths[key]


class _Layer:
    """The tokens in the slots of the caches of one module.

    is_sure     True if a table has led to the expected tokens, so that it really is a table of blocks
    misread     the first token that was read from a wrong slot
    most_slots  number of slots up to the last one that was written; 0 if the slots are in doubt
    """

    def __init__(self) -> None:
        import numpy as np

        self._holders = np.full((0, 2), NO_TOKEN[0], np.int64)
        self._own: dict[Token, int] = {}
        self._call, self._slots = -1, b""
        self._is_doubtful = False
        self.is_sure = False
        self.misread: Optional[MisreadToken] = None

    @property
    def most_slots(self) -> int:
        return 0 if self._is_doubtful else len(self._holders)

    def write(self, call: int, tokens: Sequence[Token], slots: np.ndarray) -> None:
        """Note the tokens that a call writes to slots.

        If a call writes its tokens to different slots a second time, the module has different caches, and is not
        checked.
        """
        import numpy as np

        content = slots.tobytes()
        if call == self._call:
            self._is_doubtful |= content != self._slots
            return
        self._call, self._slots = call, content
        missing = int(slots.max(initial=-1)) + 1 - len(self._holders)
        if missing > 0:
            self._holders = np.concatenate((self._holders, np.full((missing, 2), NO_TOKEN[0], np.int64)))
        for token, slot in zip(tokens, slots.tolist()):
            if slot >= 0 and token != NO_TOKEN:
                self._holders[slot] = token
                if token != REJECTED:
                    self._own[token] = slot

    def check(self, call: int, read: _CacheRead, request: Token, prefixes: _CommonPrefixes) -> None:
        """Check the tokens that a request reads. request: (number of the sequence, number of its tokens)"""
        import numpy as np

        sequence, count = request
        size = (read.cache.shape or (0, 1))[1]
        if self.misread is not None or len(read.blocks) * size < count:
            return
        positions = np.arange(count)
        slots = read.blocks.astype(np.int64)[positions // size] * size + positions % size
        is_inside = slots < len(self._holders)
        holders = np.full((count, 2), NO_TOKEN[0], np.int64)
        holders[is_inside] = self._holders[slots[is_inside]]
        is_right = (holders[:, 0] == sequence) & (holders[:, 1] == positions)
        if 2 * int(is_right.sum()) < count:
            return  # if most tokens are wrong, the read is probably not of this request
        for position in np.flatnonzero(~is_right).tolist():
            holder: Token = tuple(holders[position].tolist())
            own = self._own.get((sequence, position))
            if holder == REJECTED or (holder == NO_TOKEN and own is None):
                continue  # the token may not have been rejected; or it was cached before the first recorded call
            if holder[1] == position and holder[0] >= 0 and position < prefixes.length(holder[0], sequence):
                continue  # both requests begin with the same ids, so they may share this slot
            if holder[0] >= 0 and prefixes.length(holder[0], sequence) > size:
                continue  # requests with so many equal ids at their beginning may have been confused here
            at = int(slots[position])
            held = None if holder == NO_TOKEN else holder
            token = sequence, position
            self.misread = MisreadToken(call, read.operator, read.table, token, at, size, held, own)
            return
        self.is_sure |= bool(is_right.any())


class _Integers:
    """Reads slots and tables. Each content is read only once."""

    def __init__(self) -> None:
        self._arrays: dict[Hashable, Optional[np.ndarray]] = {}

    def slots(self, operator: Operator, count: int) -> Optional[np.ndarray]:
        """Return the slots to which an operator writes `count` tokens; None if it writes to no slots."""
        import numpy as np

        for record in _slot_records(operator, count):
            array = self.read(record)
            if array is None or array.min() < -1 or array.max() >= _MOST_SLOTS:
                continue
            used = array[array >= 0]
            if used.size and len(np.unique(used)) == len(used):
                return array
        return None

    def reads(self, operator: Operator, most_slots: int) -> Iterator[_CacheRead]:
        """Yield the read of an operator if it may read a cache in blocks. most_slots: slots of the cache in use"""
        caches = [
            record
            for record in operator.inputs
            if _is_cache(record) and 0 < most_slots <= (record.shape or (0,))[0] * (record.shape or (0, 0))[1]
        ]
        if not caches or writes(operator.op_type):
            return
        for record in operator.inputs:
            if _is_number(record) and len(record.shape or ()) in (1, 2):
                array = self.read(record)
                if array is not None and array.min() >= 0 and array.max() < (caches[0].shape or (0,))[0]:
                    yield _CacheRead(operator, caches[0], record, array)
                    return

    def read(self, record: Record) -> Optional[np.ndarray]:
        key = record.content or id(record)
        if key not in self._arrays:
            try:
                array = record.numpy()
            except AscendDumpError:
                array = None
            self._arrays[key] = array if array is not None and array.size else None
        return self._arrays[key]


def _slot_records(operator: Operator, count: int) -> list[Record]:
    """Return the inputs that may be the slots of `count` tokens, if an operator writes to a cache; else none."""
    if not writes(operator.op_type) and "cache" not in operator.op_type.lower():
        return []
    if not any(_is_cache(record) for record in operator.inputs):
        return []
    return [record for record in operator.inputs if record.shape == (count,) and _is_number(record)]


def _has_rows_and_positions(operator: Operator, count: int) -> bool:
    """Return True if an operator writes to a cache at two indices, for `count` tokens together."""
    import numpy as np

    shapes = [record.shape or () for record in operator.inputs if _is_number(record)]
    if len(shapes) != 2 or not writes(operator.op_type) or not any(map(_is_cache, operator.inputs)):
        return False
    try:
        return math.prod(np.broadcast_shapes(*shapes)) == count
    except ValueError:
        return False


def _is_number(record: Record) -> bool:
    return record.dtype in INTEGERS and bool(record.shape)


def _is_cache(record: Record) -> bool:
    return record.dtype not in (*INTEGERS, "bool") and len(record.shape or ()) >= 3
