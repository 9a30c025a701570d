"""Make records that contain the values of the tokens that both sides have, in the same order on both sides."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.model_calls import INTEGERS
from ascend_dump.analysis.alignment.token_ways import (
    TokenSide,
    Way,
    gather,
    pair_indices,
    presence,
    rest_shape,
)
from ascend_dump.analysis.numerics.fills import equal_fills
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.statistics import Statistics

__all__ = [
    "NO_ROUNDING",
    "ChosenWays",
    "CommonTokens",
    "Rounding",
    "TensorOfCalls",
    "TokenPart",
    "distance",
    "pair_parts",
    "resized_parts",
    "token_part",
    "without_tokens",
]


@dataclass(frozen=True)
class CommonTokens:
    """The tokens that both sides have. index_of: [tokens, 2], number of the sequence of actual, and position in it"""

    index_of: np.ndarray

    @property
    def count(self) -> int:
        return len(self.index_of)

    def text(self, number: int) -> str:
        """Return a text such as "token 9 of request 2", both counted from 0."""
        sequence, position = self.index_of[number].tolist()
        several = len({*self.index_of[:, 0].tolist()}) > 1
        return f"token {position} of request {sequence}" if several else f"token {position}"


class TensorOfCalls:
    """One tensor of an operator: its record in each call of one side that runs the operator."""

    def __init__(
        self, side: TokenSide, records: Mapping[int, Record], base: int, orders: Mapping[int, np.ndarray]
    ) -> None:
        """Keep the records of a tensor.

        records  the record in each call, by index of the call
        base     the index of the base call, the call with most slots
        orders   for elements that the program sorts, such as by experts: their order, by index of the call; else empty
        """
        self.side, self.records = side, dict(records)
        #: For rows that the program picked: the number of the slot of each row, by index of the call; else empty.
        self.rows = side.rows_of(records)
        self.orders: Mapping[int, np.ndarray] = self.rows or orders
        self.base = records.get(base, next(iter(records.values())))
        self.shapes = {index: record.shape or () for index, record in records.items()}
        self._arrays: dict[int, np.ndarray] = {}

    def ways(self) -> list[Way]:
        if self.rows:
            return [Way("rows", None, 0)] if self.rows.keys() == self.records.keys() else []
        ways = self.side.ways(self.shapes)
        for way in list(ways):
            if not way.joined or way.axis != 0:
                continue
            sizes = {index: shape[0] for index, shape in self.shapes.items()}
            if all(index in self.orders and len(self.orders[index]) == size for index, size in sizes.items()):
                ways.append(way._replace(is_sorted=True))
        return [*ways, *(way._replace(is_outer=True) for way in ways if way.joined > 1 and not way.is_sorted)]

    def tokens_in(self, way: Way, tokens: CommonTokens) -> np.ndarray:
        """Return [tokens]: True for the common tokens that this tensor has values of."""
        import numpy as np

        if way.kind == "rows":
            known = np.zeros(tokens.count, bool)
            for index, rows in self.rows.items():
                numbers = self.side.joined[index][rows]
                known[numbers[numbers >= 0]] = True
            return known
        # The order of elements changes no set of tokens.
        return self.side.tokens_in(way._replace(is_sorted=False, is_outer=False), self.shapes, tokens.count)

    def rest(self, way: Way) -> tuple[int, ...]:
        shapes = self.shapes.items()
        index, shape = next(
            (item for item in shapes if not way.is_flat or self.side.calls[item[0]].width > 1), next(iter(shapes))
        )
        return rest_shape(way, shape, self.side.calls[index].rows)

    def changed(self) -> Record:
        """Return the first record whose content differs from the base call; else the record of the base call.

        It is the record that is compared if the tensor has no axis of tokens.
        """
        content = self.base.content
        return next((record for record in self.records.values() if record.content != content), self.base)

    def values(self, way: Way, tokens: CommonTokens) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of all common tokens, and for each token True if it is recorded.

        A key may be in the caches of several calls. Then the value of the last call is returned.
        """
        import numpy as np

        result: Optional[np.ndarray] = None
        rest = self.rest(way)
        known = np.zeros(tokens.count, bool)
        for index, record in self.records.items():
            for numbers, values in gather(self.side, way, index, record.numpy(), self.orders.get(index)):
                if result is None:
                    result = np.zeros((tokens.count, *rest), values.dtype)
                if values.size != len(values) * math.prod(rest):
                    continue  # of another shape for each token, such as the blocks of a request
                values = values.reshape(len(values), *rest)
                result[numbers] = values
                known[numbers] = True
        assert result is not None, "a way fits at least one record"
        return result, known

    def call_of(self, way: Way, number: int) -> Optional[int]:
        """Return the index of the call from which `values` returns the value of a token; None if there is none."""
        calls = [
            index
            for index, record in self.records.items()
            for numbers, _ in gather(self.side, way, index, record.numpy(), self.orders.get(index))
            if number in numbers
        ]
        return calls[-1] if calls else None

    def pairs(self, way: Way, tokens: CommonTokens, present: np.ndarray) -> np.ndarray:
        """Return the values of pairs of tokens and keys, [tokens, positions, *rest]; 0 where they are not present."""
        import numpy as np

        result: Optional[np.ndarray] = None
        for index, record in self.records.items():
            width = self.side.calls[index].width
            for both, values in gather(self.side, way, index, record.numpy(), self.orders.get(index)):
                if result is None:
                    result = np.zeros((*present.shape, *values.shape[2:]), values.dtype)
                (numbers, slots, keys), positions = pair_indices(both[:width], both[width:], tokens.index_of)
                result[numbers, positions] = values[slots, keys]
        assert result is not None, "a way fits at least one record"
        result[~present] = 0
        return result


class Rounding(NamedTuple):
    """The rounding before a tensor, in operators that are not compared.

    error      the relative distance of the tensors that these operators read
    operators  the number of operators that compute
    unit       the coarsest unit of rounding
    attending  those of the operators that compute weights from scores
    """

    error: float
    operators: int
    unit: float
    attending: tuple[Operator, ...] = ()


NO_ROUNDING = Rounding(0.0, 0, 0.0)


class TokenPart:
    """Reads the values of common tokens in one tensor. numbers: the common tokens that both sides of the tensor have"""

    def __init__(
        self,
        tensor: TensorOfCalls,
        way: Way,
        tokens: CommonTokens,
        numbers: np.ndarray,
        present: Optional[np.ndarray],
        shape: tuple[int, ...],
    ) -> None:
        self._tensor, self._way, self._present, self._shape = tensor, way, present, shape
        self.tokens, self.numbers = tokens, numbers
        #: A key of the memory in which the values are, the same for all tensors in this memory until an operator
        #: writes to it; None if unknown.
        self.memory: Optional[Hashable] = None
        #: The integer type to which values are converted, because the other side has it; "" if they are not converted.
        self.integer_type = ""
        #: The order in which the elements of each token are read; None for their own order.
        self.order: Optional[np.ndarray] = None
        #: The rounding in operators before this tensor that are not compared.
        self.rounding = NO_ROUNDING

    @property
    def records(self) -> Mapping[int, Record]:
        """The records of the tensor, by the index of their call."""
        return self._tensor.records

    def call_of(self, number: int) -> Optional[int]:
        """Return the index of the call from which the values of a token are read; None for pairs of tokens."""
        return None if self._present is not None else self._tensor.call_of(self._way, number)

    @property
    def may_reorder(self) -> bool:
        """True if each row has the values of one token, in the order in which the program has them."""
        return self._present is None

    @property
    def tensor_of_calls(self) -> TensorOfCalls:
        """The tensor in all calls."""
        return self._tensor

    @property
    def is_of_last(self) -> bool:
        """True if each row has the values of one token, which has to be the last one."""
        return self._way.kind == "last"

    def values_of_all(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of all common tokens, and for each token True if it is recorded."""
        return self._tensor.values(self._way, self.tokens)

    def apart_from(self, tensor: TensorOfCalls) -> float:
        """Return the relative distance of these values and those of a tensor of the other side; infinite if unknown."""
        import numpy as np

        parts = pair_parts(tensor, self._tensor, self.tokens, np.zeros(self.tokens.count, bool), ChosenWays())
        return math.inf if parts is None else distance(*parts)

    def content(self, record: Record) -> Optional[tuple[Hashable, ...]]:
        return None if self.memory is None else (self.memory, id(self))

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        if self._present is not None:
            values = self._tensor.pairs(self._way, self.tokens, self._present)
        else:
            values = self._tensor.values(self._way, self.tokens)[0]
        part: np.ndarray = values[self.numbers]
        if self.order is not None:
            part = part.reshape(len(part), -1)[:, self.order]
        part = part.reshape(self._shape)
        return part.astype(self.integer_type) if self.integer_type else part

    def without(self, record: Record, left_out: np.ndarray) -> Record:
        """Return a record without some tokens. left_out: [tokens], True for tokens to leave out"""
        numbers = self.numbers[~left_out[self.numbers]]
        shape = (len(numbers), *self._shape[1:])
        part = TokenPart(self._tensor, self._way, self.tokens, numbers, self._present, shape)
        part.memory, part.integer_type, part.order = self.memory, self.integer_type, self.order
        return record.as_part(part, shape)

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None


def token_part(record: Optional[Record]) -> Optional[TokenPart]:
    """Return the `TokenPart` of a record that `pair_parts` made; None for other records."""
    loader = None if record is None else record.loader
    return loader if isinstance(loader, TokenPart) else None


def without_tokens(
    a: Optional[Record], b: Optional[Record], left_out: np.ndarray
) -> tuple[Optional[Record], Optional[Record]]:
    """Return two records of `pair_parts` without some tokens; other records are returned unchanged.

    left_out: [tokens], True for tokens to leave out
    """
    parts = token_part(a), token_part(b)
    if a is None or b is None or parts[0] is None or parts[1] is None:
        return a, b
    return parts[0].without(a, left_out), parts[1].without(b, left_out)


class ChosenWays:
    """The ways that were chosen by their values for a tensor. The same tensor of the other layers has them too."""

    def __init__(self) -> None:
        self._ways: dict[Hashable, tuple[Way, Way]] = {}

    def of(self, a: TensorOfCalls, b: TensorOfCalls) -> Optional[tuple[Way, Way]]:
        return self._ways.get(self._key(a, b))

    def add(self, a: TensorOfCalls, b: TensorOfCalls, ways: tuple[Way, Way]) -> None:
        """Note the ways in which two tensors agree. Sorted elements have another order in each layer."""
        if not any(way.is_sorted for way in ways):
            self._ways[self._key(a, b)] = ways

    @staticmethod
    def _key(*tensors: TensorOfCalls) -> Hashable:
        return tuple(
            (_without_numbers(tensor.base.op_name), tensor.base.io, tensor.base.index, tuple(tensor.shapes.items()))
            for tensor in tensors
        )


@functools.lru_cache(maxsize=1 << 14)
def _without_numbers(op_name: str) -> str:
    """Return a name without the numbers of layers: "layers.#.mlp/mm_0" for "layers.5.mlp/mm_0"."""
    module, slash, name = op_name.rpartition("/")
    levels = ["#" if level.isdigit() else level for level in module.split(".")]
    return f"{'.'.join(levels)}{slash}{name}"


def pair_parts(
    a: TensorOfCalls, b: TensorOfCalls, tokens: CommonTokens, left_out: np.ndarray, chosen: ChosenWays
) -> Optional[tuple[Record, Record]]:
    """Return records of both sides with the values of the common tokens in a tensor; None if it has no axis of tokens.

    Raises NotSupported if values are not stored. If a tensor cannot be read, reading the returned record raises the
    error.

    left_out  [tokens], True for tokens that are not compared
    chosen    the ways that were chosen before; this choice is added
    """
    if any(record.attrs.get("skipped") for side in (a, b) for record in side.records.values()):
        raise NotSupported("values are not stored")
    known = chosen.of(a, b)
    if known is not None:
        return _parts(a, known[0], b, known[1], tokens, left_out)
    candidates: dict[tuple[bool, bool], list[tuple[Way, Way]]] = {}
    for way_a in a.ways():
        for way_b in b.ways():
            is_pairs = way_a.kind == "pairs", way_b.kind == "pairs"
            rests = a.rest(way_a), b.rest(way_b)
            if is_pairs[0] == is_pairs[1] and math.prod(rests[0]) == math.prod(rests[1]):
                unlike = rests[0] != rests[1], way_a[:4] != way_b[:4]
                candidates.setdefault(unlike, []).append((way_a, way_b))
    for unlike in sorted(candidates):
        best: Optional[tuple[float, Record, Record]] = None
        for way_a, way_b in candidates[unlike][:_MOST_TRIED]:
            records = _parts(a, way_a, b, way_b, tokens, left_out)
            if records is None:
                continue
            if len(candidates[unlike]) == 1:
                return records
            apart = distance(*records)
            if best is None or apart < 0.5 * best[0]:
                best = (apart, *records)
            if apart < _NEAR:
                chosen.add(a, b, (way_a, way_b))
                break
        if best is not None:
            return best[1:]
    return None


def resized_parts(
    a: TensorOfCalls, b: TensorOfCalls, tokens: CommonTokens, left_out: np.ndarray
) -> Optional[tuple[Record, Record]]:
    """Return records like those of `pair_parts` of two tensors that have other numbers of values for each token."""
    for way_a in a.ways():
        for way_b in b.ways():
            if way_a.kind == way_b.kind == "tokens" and way_a.joined == way_b.joined:
                return _parts(a, way_a, b, way_b, tokens, left_out)
    return None


#: Maximum number of pairs of ways that are tried, and the relative distance below which the search ends.
_MOST_TRIED, _NEAR = 12, 1e-3


def _parts(
    a: TensorOfCalls, way_a: Way, b: TensorOfCalls, way_b: Way, tokens: CommonTokens, left_out: np.ndarray
) -> Optional[tuple[Record, Record]]:
    import numpy as np

    present: Optional[np.ndarray] = None
    if way_a.kind == "pairs":
        present = _present(a, way_a, tokens) & _present(b, way_b, tokens)
        known = present.any(axis=1)
        middle: tuple[int, ...] = (present.shape[1],)
    else:
        known = a.tokens_in(way_a, tokens) & b.tokens_in(way_b, tokens)
        middle = ()
    numbers = np.flatnonzero(known & ~left_out)
    if not numbers.size:
        return None
    rests = a.rest(way_a), b.rest(way_b)
    rests = (rests[1], rests[1]) if math.prod(rests[0]) == math.prod(rests[1]) else rests
    parts = []
    for side, way, rest in zip((a, b), (way_a, way_b), rests):
        shape = (len(numbers), *middle, *rest)
        parts.append(side.base.as_part(TokenPart(side, way, tokens, numbers, present, shape), shape))
    types = a.base.dtype, b.base.dtype
    if types[0] != types[1] and types[0] in INTEGERS and types[1] in INTEGERS:
        part = token_part(parts[0])
        assert part is not None, "it was just made"
        parts[0].dtype = part.integer_type = types[1]
    return parts[0], parts[1]


def _present(tensor: TensorOfCalls, way: Way, tokens: CommonTokens) -> np.ndarray:
    return presence(tensor.side, way, tensor.shapes, tokens.count, tokens.index_of)


def distance(a: Record, b: Record) -> float:
    """Return the L2 norm of the difference, relative to the norm of b. Equal masks and fills are in neither norm.

    It is infinite if a record cannot be read, if the tensors have different sizes, or if an element is finite on one
    side only.
    """
    import numpy as np

    try:
        arrays = [record.numpy() for record in (a, b)]
    except AscendDumpError:
        return math.inf
    if arrays[0].size != arrays[1].size:
        return math.inf
    wide = np.complex128 if any(map(np.iscomplexobj, arrays)) else np.float64
    with np.errstate(all="ignore"):
        x, y = (array.astype(wide).reshape(-1) for array in arrays)
        is_equal = (x == y) | (np.isnan(x) & np.isnan(y))
        if not np.isfinite(x[~is_equal]).all() or not np.isfinite(y[~is_equal]).all():
            return math.inf
        kept = np.isfinite(x) & ~equal_fills(x, y)
        x, y = x[kept], y[kept]
        return float(np.linalg.norm(x - y) / max(float(np.linalg.norm(y)), 1e-300))
