"""Trace a difference back to the operators in which it begins, where two programs compute a tensor by other operators.

Between two tensors that agree, two programs may have operators that do not correspond to each other. But most results
of one program are results of the other one too: in another order, or as a part of a wider tensor. From a tensor that
differs, the search goes back over results that the other program does not have, until all inputs are such that it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.attention_parts import attentions_of
from ascend_dump.analysis.alignment.built_otherwise.products import is_product
from ascend_dump.analysis.alignment.token_groups import computes_floats
from ascend_dump.analysis.alignment.token_parts import CommonTokens, TensorOfCalls
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.names import moves_elements, operation
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow, InputSource
from ascend_dump.errors import AscendDumpError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["TracedDifferences"]

#: Returns the output of an operator of a side (0: actual) in all calls.
ReadOutput = Callable[[int, Operator], TensorOfCalls]
#: Elements agree if they differ by less than this share of the largest one, or by this many rounding units.
_LEAST_APART, _UNITS_APART = 1e-5, 64.0
#: Results with fewer elements of all compared tokens agree by chance.
_LEAST_ELEMENTS = 8
#: Maximum number of operators before a tensor that are searched, and of tokens that are compared.
_MOST_BEFORE, _MOST_TOKENS = 512, 16
_BATCHED = frozenset({"bmm", "baddbmm", "matmul"})
_SCATTERING = frozenset({"scatter", "scatter_add", "index_put"})
#: Operators that the other side may do without: it subtracts instead of adding.
_ABSORBED = frozenset({"neg"})
#: Maximum share of elements that may be missing in a result of the other side.
_MISSING = 0.01

#: The elements of each token, [tokens, elements], and True for the tokens that are known.
_Values = tuple["np.ndarray", "np.ndarray"]


class _First(NamedTuple):
    """The first operator without a counterpart. has_doubt: it reads a product that the other side lacks, maybe wrong"""

    operator: Operator
    has_doubt: bool


class TracedDifferences:
    """Finds the operators of each side in which a difference begins."""

    def __init__(
        self,
        flows: Sequence[DataFlow],
        agreeing: Sequence[Set[int]],
        read: ReadOutput,
        tokens: CommonTokens,
        numbers: Sequence[int],
        unit: float,
    ) -> None:
        """Keep both programs.

        flows     the data flow of the base call of each side
        agreeing  for each side: the positions of operators with a partner whose result agrees
        numbers   the tokens whose values differ
        unit      the rounding unit
        """
        self._numbers = [*numbers][:_MOST_TOKENS]
        self._flows, self._agreeing, self._read = flows, agreeing, read
        self._tokens = tokens
        self._limit = max(_LEAST_APART, _UNITS_APART * unit)
        self._values: dict[tuple[int, int], Optional[_Values]] = {}
        #: For each side: the `id` of operators whose results depend on keys.
        self._of_keys = [
            {
                id(operator)
                for attention in attentions_of(flow.operators)
                for part in attention.parts
                for operator in (part.scores, *part.between, part.softmax)
            }
            for flow in flows
        ]

    def begins_at(self, ends: Sequence[Sequence[InputSource]]) -> list[Optional[Operator]]:
        """Return for each side the operator in which a difference begins; None if it has none.

        ends: for each side, the sources of the tensor that differs
        """
        before = [self._before(side, sources) for side, sources in enumerate(ends)]
        first = [self._first(side, ends[side], before) for side in (0, 1)]
        if any(of_side is not None and of_side.has_doubt for of_side in first):
            return [None, None]
        actual, reference = (None if of_side is None else of_side.operator for of_side in first)
        if actual is None or reference is None:
            return [actual, reference]
        read = self._read_by(actual, reference, before)
        if not any(self._have_common(x, y) for x in read[0] for y in read[1]):
            return [actual, reference]
        # The side that lacks an operator begins with the next one, which the other side has too. That one reads the
        # same results and another one, or is nearer behind the lacking operator than the other way round.
        lacks = [any(not any(self._have_common(x, y) for y in read[1 - side]) for x in read[side]) for side in (0, 1)]
        is_before = [not lacks[side] and lacks[1 - side] for side in (0, 1)]
        if is_before[0] == is_before[1]:
            steps = [
                self._steps_to(side, operator, _computes(other), before[side])
                for side, (operator, other) in enumerate(((actual, reference), (reference, actual)))
            ]
            is_before = [steps[side] < steps[1 - side] for side in (0, 1)]
        if is_before[0] == is_before[1] or operation((actual if is_before[0] else reference).op_type) in _ABSORBED:
            return [actual, reference]
        return [actual, None] if is_before[0] else [None, reference]

    def _read_by(
        self, actual: Operator, reference: Operator, before: Sequence[Sequence[int]]
    ) -> tuple[list[_Values], list[_Values]]:
        """Return the comparable results that an operator of each side reads."""
        read: tuple[list[_Values], list[_Values]] = ([], [])
        for side, operator in enumerate((actual, reference)):
            makers = self._makers(side, self._flows[side].sources[operator.position], before[side])[0]
            read[side].extend(values for p in makers if (values := self._values_of(side, p)) is not None)
        return read

    def _have_common(self, values: _Values, others: _Values) -> bool:
        return self._are_in(values, [others]) or self._are_in(others, [values])

    def _steps_to(self, side: int, operator: Operator, name: str, before: Sequence[int]) -> float:
        """Return after how many operators the result of one is read by one that does `name`; infinite if by none."""
        flow, waiting = self._flows[side], [(operator.position, 1)]
        visited = {operator.position}
        while waiting:
            position, count = waiting.pop(0)
            for reader in sorted(flow.readers[position] - visited):
                if reader in before:
                    if _computes(flow.operators[reader]) == name:
                        return count
                    visited.add(reader)
                    waiting.append((reader, count + 1))
        return math.inf

    def _before(self, side: int, sources: Sequence[InputSource]) -> list[int]:
        """Return the positions of the operators that compute a tensor from results that agree, and of those results."""
        flow, waiting = self._flows[side], [*sources]
        visited: set[int] = set()
        while waiting and len(visited) < _MOST_BEFORE:
            position = _maker_of(waiting.pop(0))
            if position in (OUTSIDE, *visited):
                continue
            visited.add(position)
            if position not in self._agreeing[side]:
                waiting += flow.sources[position]
        return sorted(visited)

    def _first(self, side: int, sources: Sequence[InputSource], before: Sequence[Sequence[int]]) -> Optional[_First]:
        """Return the operator without a counterpart that is reached from a tensor over operators without one."""
        flow = self._flows[side]
        first: Optional[int] = None
        while True:
            makers, passed = self._makers(side, sources, before[side])
            lacking = [position for position in makers if not self._has_counterpart(side, position, before)]
            if not lacking:
                products = (position for position in passed if is_product(flow.operators[position]))
                has_doubt = not all(self._has_counterpart(side, position, before) for position in products)
                return None if first is None else _First(flow.operators[first], has_doubt)
            first = lacking[0]
            sources = flow.sources[first]

    def _makers(self, side: int, sources: Sequence[InputSource], before: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the positions of the nearest operators with comparable results, and of those passed on the way."""
        flow, waiting = self._flows[side], [*sources]
        makers: set[int] = set()
        passed: set[int] = set()
        while waiting:
            position = _maker_of(waiting.pop())
            if position in (*makers, *passed) or position not in before:
                continue
            is_comparable = self._is_shared(side, position) and self._values_of(side, position) is not None
            if position in self._agreeing[side] or is_comparable:
                makers.add(position)
            else:
                passed.add(position)
                waiting += flow.sources[position]
        return sorted(makers), sorted(passed)

    def _has_counterpart(self, side: int, position: int, before: Sequence[Sequence[int]]) -> bool:
        """Return True if the elements of a result are elements of a result of the other side."""
        if position in self._agreeing[side]:
            return True
        values = self._values_of(side, position)
        if values is None:
            return True
        end = max(before[1 - side], default=-1) + 1
        nearest = range(end - 1, max(end - _MOST_BEFORE, 0) - 1, -1)
        others = [other for p in nearest if (other := self._values_of(1 - side, p)) is not None]
        # The other side may have one result for each expert, or for the real and for the imaginary parts.
        widest = values[0].shape[1] - (0 if self._is_complex(side, position) else 1)
        parts = [other for other in others if other[0].shape[1] <= widest]
        is_part = any(self._are_in(values, [other]) for other in others) or self._are_in(values, parts)
        return is_part or self._contains_results(side, position, before[1 - side])

    def _contains_results(self, side: int, position: int, others: Sequence[int]) -> bool:
        """Return True if a result contains the results of the same operator in a loop of the other side.

        One side may compute all experts for all tokens, and the other one only those of each token, one after the
        other. Operators of one line that read results of the same operators run in a loop.
        """
        import numpy as np

        values, operator = self._values_of(side, position), self._flows[side].operators[position]
        loops: dict[Hashable, list[_Values]] = {}
        flow = self._flows[1 - side]
        for number in others:
            other = flow.operators[number]
            of_other = self._values_of(1 - side, number)
            if _computes(other) == _computes(operator) and of_other is not None:
                makers = (_maker_of(source) for source in flow.sources[number])
                names = tuple("" if maker == OUTSIDE else flow.operators[maker].op_type for maker in makers)
                loops.setdefault((other.source, names), []).append(of_other)
        return values is not None and any(
            len(loop) > 1
            and bool(np.any([of_other[1] for of_other in loop], axis=0)[values[1]].all())
            and all(of_other[0].shape[1] < values[0].shape[1] for of_other in loop)
            and all(not of_other[1].any() or self._are_in(of_other, [values]) for of_other in loop)
            for loop in loops.values()
        )

    def _is_complex(self, side: int, position: int) -> bool:
        return (self._flows[side].operators[position].outputs[0].dtype or "").startswith("complex")

    def _is_shared(self, side: int, position: int) -> bool:
        """Return True for an operator whose result the other side has too, if both programs are right.

        A weight may be multiplied with another one, and scores of keys depend on the cache.
        """
        operator = self._flows[side].operators[position]
        if moves_elements(operator.op_type) or not computes_floats(operator):
            return False
        return not is_product(operator) and id(operator) not in self._of_keys[side]

    def _are_in(self, values: _Values, others: Sequence[_Values]) -> bool:
        """Return True if the elements of each token are, apart from a few, elements of the other results."""
        import numpy as np

        if not others:
            return False
        tokens = np.flatnonzero(values[1] & np.any([other[1] for other in others], axis=0))
        for token in tokens:
            x, y = map(
                _known, (values[0][token], np.concatenate([other[0][token] for other in others if other[1][token]]))
            )
            if not len(x) or len(x) > len(y):
                return False
            right = np.searchsorted(y, x).clip(0, len(y) - 1)
            distances = np.minimum(np.abs(x - y[right - 1]), np.abs(x - y[right]))
            if np.mean(distances > self._limit * max(float(np.abs(x).max()), 1e-30)) > _MISSING:
                return False
        return len(tokens) > 0

    def _values_of(self, side: int, position: int) -> Optional[_Values]:
        """Return the elements of each token; None if they are unknown."""
        key = side, position
        if key not in self._values:
            self._values[key] = self._read_values(side, self._flows[side].operators[position])
        return self._values[key]

    def _read_values(self, side: int, operator: Operator) -> Optional[_Values]:
        import numpy as np

        if not operator.outputs or float_kind(operator.outputs[0].dtype or "") is None:
            return None
        tensor = self._read(side, operator)
        ways = tensor.ways()
        if operator_class(operator.op_type) in _BATCHED and any(way.kind == "pairs" for way in ways):
            return None
        ways = [way for way in ways if way.kind in ("tokens", "rows")]
        # Elements that are sorted, such as by experts, are in the order of tokens only in this way.
        for way in sorted(ways, key=lambda way: not way.is_sorted)[:1]:
            try:
                array, has_token = tensor.values(way, self._tokens)
            except (AscendDumpError, ValueError):
                return None
            flat, has_token = array.reshape(len(array), -1)[self._numbers], has_token[self._numbers]
            if flat[has_token].size < _LEAST_ELEMENTS:
                return None
            if flat.dtype.kind == "c":
                flat = np.concatenate([flat.real, flat.imag], axis=1)
            flat = flat.astype(np.float64)
            if operator_class(operator.op_type) in _SCATTERING:
                flat[flat == 0] = np.nan  # where nothing is scattered
            return flat, has_token
        return None


def _known(elements: np.ndarray) -> np.ndarray:
    """Return the distinct elements, sorted, without NaN."""
    import numpy as np

    return np.asarray(np.unique(elements[~np.isnan(elements)]))


def _computes(operator: Operator) -> str:
    """Return the operation of an operator, the same one for all products."""
    is_any_product = is_product(operator) or operator_class(operator.op_type) in _BATCHED
    return "product" if is_any_product else operation(operator.op_type)


def _maker_of(source: InputSource) -> int:
    """Return the position of the operator that made an input, or the tensor that it is a view of."""
    made = source.maker if source.maker is not None else source.root
    return OUTSIDE if made is None else made.position
