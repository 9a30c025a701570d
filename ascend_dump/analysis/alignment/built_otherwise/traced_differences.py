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
from ascend_dump.analysis.alignment.built_otherwise.fused_norms import is_fused_norm, results_inside
from ascend_dump.analysis.alignment.built_otherwise.products import is_product
from ascend_dump.analysis.alignment.token_groups import computes_floats
from ascend_dump.analysis.alignment.token_parts import CommonTokens, TensorOfCalls
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.names import is_view, moves_elements, operation
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.picking import picks_elements
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow, InputSource
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Beginning", "TracedDifferences"]

#: Returns an input or an output of an operator of a side (0: actual) in all calls.
ReadTensor = Callable[[int, Operator, Record], TensorOfCalls]
#: Elements agree if they differ by less than this share of the largest one, or by this many rounding units.
_LEAST_APART, _UNITS_APART = 1e-5, 64.0
#: Results with fewer elements of all compared tokens agree by chance.
_LEAST_ELEMENTS = 8
#: Maximum number of operators before and behind a tensor that are searched, and of tokens that are compared.
_MOST_BEFORE, _MOST_BEHIND, _MOST_TOKENS = 512, 16, 16
_BATCHED = frozenset({"bmm", "baddbmm", "matmul"})
_CHOOSING = frozenset({"topk", "sort"})
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


class Beginning(NamedTuple):
    """The operator in which a difference begins, and the operators that pick its inputs from results of both sides.

    picks_otherwise  the other side has no tensor with the elements that were picked: this operator picks them
    instead          the operator of the other side with the same inputs, if that side lacks `operator`; else None
    """

    operator: Operator
    picking: tuple[Operator, ...] = ()
    picks_otherwise: bool = False
    instead: Optional[Operator] = None


class TracedDifferences:
    """Finds the operators of each side at the beginning of a difference."""

    def __init__(
        self,
        flows: Sequence[DataFlow],
        agreeing: Sequence[Set[int]],
        read: ReadTensor,
        tokens: CommonTokens,
        numbers: Sequence[int],
        unit: float,
    ) -> None:
        """Keep both programs.

        flows     the data flow of the base call of each side
        agreeing  for each side: the positions of operators with a partner whose result agrees
        numbers   the tokens with other values
        unit      the rounding unit
        """
        self._numbers = [*numbers][:_MOST_TOKENS]
        self._flows, self._agreeing, self._read = flows, agreeing, read
        self._tokens = tokens
        self._limit = max(_LEAST_APART, _UNITS_APART * unit)
        self._values: dict[tuple[int, str, str, int], Optional[_Values]] = {}
        #: By side and name of an operator: the tensors inside of it.
        self._inner: dict[tuple[int, str], list[_Values]] = {}
        #: For each side: the `id` of operators whose results depend on keys.
        self._of_keys = [
            {
                id(operator)
                for attention in attentions_of(flow.operators)
                for part in attention.parts
                for operator in (part.scores, *flow.operators[part.scores.position : part.values.position])
            }
            for flow in flows
        ]

    def begins_at(self, ends: Sequence[Sequence[InputSource]]) -> list[Optional[Beginning]]:
        """Return for each side where a difference begins; None if it does not begin there.

        ends: for each side, the sources of the tensor that differs
        """
        before = [self._before(side, sources) for side, sources in enumerate(ends)]
        first = [self._first(side, ends[side], before) for side in (0, 1)]
        if any(of_side is not None and of_side.has_doubt for of_side in first):
            return [None, None]
        beginnings = [
            None if of_side is None else self._beginning(side, of_side.operator, before)
            for side, of_side in enumerate(first)
        ]
        if any(begin is not None and begin.picks_otherwise for begin in beginnings):
            return [begin if begin is not None and begin.picks_otherwise else None for begin in beginnings]
        if beginnings[0] is None or beginnings[1] is None:
            return [
                None if begin is None else begin._replace(instead=self._reader_of(side, begin.operator, before))
                for side, begin in enumerate(beginnings)
            ]
        is_before = self._is_before(beginnings[0].operator, beginnings[1].operator, before)
        if not any(is_before):
            return beginnings
        first_side = is_before.index(True)
        begin, later = beginnings[first_side], beginnings[1 - first_side]
        begin = None if begin is None or later is None else begin._replace(instead=later.operator)
        return [begin if side == first_side else None for side in (0, 1)]

    def _beginning(self, side: int, operator: Operator, before: Sequence[Sequence[int]]) -> Beginning:
        """Return an operator with those that pick its inputs, or the first of them if the other side has no such part.

        The other side has to have parts of the same result, as of a product for queries, keys and values.
        """
        flow = self._flows[side]
        picking: list[Operator] = []
        for source in flow.sources[operator.position]:
            makers, passed = self._makers(side, [source], before[side])
            picks = [flow.operators[position] for position in passed if picks_elements(flow.operators[position])]
            picking += (pick for pick in picks if pick not in picking)
            values = self._values_of(side, operator, source.record)
            whole = None if len(makers) != 1 else self._output_of(side, makers[0])
            if not picks or values is None or whole is None or values[0].shape[1] >= whole[0].shape[1]:
                continue
            read, computed_with = self._read_of(whole, 1 - side, before[1 - side])
            # The smallest tensor of the other side with these elements is what they are picked from.
            size = values[0].shape[1]
            wider = [part for part in read if part[0].shape[1] > size and self._are_in(values, [part])]
            whole = min(wider, key=lambda part: part[0].shape[1], default=whole)
            parts = [part for part in read if part[0].shape[1] == size and self._are_in(part, [whole])]
            if parts and not any(self._are_in(values, [part]) for part in parts):
                # A tensor that the other side computes with is arranged rightly: the pick itself is wrong.
                is_whole = any(part[0].shape == whole[0].shape for part in computed_with)
                moved = picks[-1:] if is_whole else [flow.operators[position] for position in passed]
                return Beginning(next(op for op in moved if not _keeps_order(op)), tuple(picks), True)
        return Beginning(operator, tuple(picking))

    def _read_of(self, whole: _Values, side: int, positions: Sequence[int]) -> tuple[list[_Values], list[_Values]]:
        """Return what operators of a side read of a result of the other side: all of its elements, or some of them.

        The second list has the inputs of operators that compute with it.
        """
        inputs, computed_with = [], []
        for position in positions:
            operator = self._flows[side].operators[position]
            for record in operator.inputs:
                values = self._values_of(side, operator, record)
                if values is not None and values[0].shape[1] <= whole[0].shape[1] and self._are_in(values, [whole]):
                    inputs.append(values)
                    if not moves_elements(operator.op_type):
                        computed_with.append(values)
        return inputs, computed_with

    def _reader_of(self, side: int, operator: Operator, before: Sequence[Sequence[int]]) -> Optional[Operator]:
        """Return the first operator of the other side that reads all elements of an input of an operator."""
        inputs = (self._values_of(side, operator, record) for record in operator.inputs)
        read = next((values for values in inputs if values is not None), None)
        if read is None:
            return None
        for position in before[1 - side]:
            other = self._flows[1 - side].operators[position]
            values = (self._values_of(1 - side, other, record) for record in other.inputs if not is_view(other.op_type))
            if any(of is not None and of[0].shape == read[0].shape and self._are_in(of, [read]) for of in values):
                return other
        return None

    def _is_before(self, actual: Operator, reference: Operator, before: Sequence[Sequence[int]]) -> list[bool]:
        """Return for each side True if its operator comes before what the other side begins with.

        The other side lacks it then, and begins with the next one, which both sides have.
        """
        read = self._read_by(actual, reference, before)
        if not any(self._have_common(x, y) for x in read[0] for y in read[1]):
            return [False, False]
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
            return [False, False]
        return is_before

    def _read_by(
        self, actual: Operator, reference: Operator, before: Sequence[Sequence[int]]
    ) -> tuple[list[_Values], list[_Values]]:
        """Return the comparable results that an operator of each side reads."""
        read: tuple[list[_Values], list[_Values]] = ([], [])
        for side, operator in enumerate((actual, reference)):
            makers = self._makers(side, self._flows[side].sources[operator.position], before[side])[0]
            read[side].extend(values for p in makers if (values := self._output_of(side, p)) is not None)
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
            source = waiting.pop()
            position = _maker_of(source)
            if position in (*makers, *passed) or position not in before:
                continue
            if float_kind(source.record.dtype or "") is None and self._chooses_alike(side, position):
                continue  # what is chosen agrees, whatever is computed from the values of the choice
            is_comparable = self._is_shared(side, position) and self._output_of(side, position) is not None
            if position in self._agreeing[side] or is_comparable:
                makers.add(position)
            else:
                passed.add(position)
                waiting += flow.sources[position]
        return sorted(makers), sorted(passed)

    def _chooses_alike(self, side: int, position: int) -> bool:
        """Return True for the largest elements of each token, of which the other side chooses the same ones."""
        operator = self._flows[side].operators[position]
        if operator_class(operator.op_type) not in _CHOOSING:
            return False
        values = self._choice_of(side, operator)
        others = (op for op in self._flows[1 - side].operators if operator_class(op.op_type) in _CHOOSING)
        choices = (self._choice_of(1 - side, other) for other in others)
        return values is not None and any(choice is not None and _are_same(values, choice) for choice in choices)

    def _choice_of(self, side: int, operator: Operator) -> Optional[_Values]:
        """Return the indices of the elements that are chosen for each token, sorted; None if they are unknown."""
        import numpy as np

        if len(operator.outputs) < 2:
            return None
        tensor = self._read(side, operator, operator.outputs[1])
        for way in [way for way in tensor.ways() if way.kind in ("tokens", "rows")][:1]:
            try:
                array, has_token = tensor.values(way, self._tokens)
            except (AscendDumpError, ValueError):
                return None
            return np.sort(array.reshape(len(array), -1)[self._numbers], axis=1), has_token[self._numbers]
        return None

    def _has_counterpart(self, side: int, position: int, before: Sequence[Sequence[int]]) -> bool:
        """Return True if the elements of a result are elements of a result of the other side."""
        if position in self._agreeing[side]:
            return True
        values = self._output_of(side, position)
        if values is None:
            return True
        # One product may compute what the other side computes in several ones, also behind the tensor.
        end = min(max(before[1 - side], default=-1) + 1 + _MOST_BEHIND, len(self._flows[1 - side].operators))
        nearest = range(end - 1, max(end - _MOST_BEFORE, 0) - 1, -1)
        operators = [self._flows[1 - side].operators[p] for p in nearest]
        # A fused norm returns the mean too.
        results = ((op, record) for op in operators for record in op.outputs)
        others = [other for op, record in results if (other := self._values_of(1 - side, op, record)) is not None]
        others += [inside for op in operators for inside in self._inside(1 - side, op)]
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

        values, operator = self._output_of(side, position), self._flows[side].operators[position]
        loops: dict[Hashable, list[_Values]] = {}
        flow = self._flows[1 - side]
        for number in others:
            other = flow.operators[number]
            of_other = self._output_of(1 - side, number)
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
        flow = self._flows[side]
        operator = flow.operators[position]
        if moves_elements(operator.op_type) or not computes_floats(operator):
            return False
        is_batched = operator_class(operator.op_type) in _BATCHED
        if is_batched and any(map(_is_from_outside, flow.sources[position])):
            return False  # a weight for each head
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
            with np.errstate(invalid="ignore"):  # masks may be infinite
                distances = np.minimum(np.abs(x - y[right - 1]), np.abs(x - y[right]))
            if np.mean(distances > self._limit * max(float(np.abs(x).max()), 1e-30)) > _MISSING:
                return False
        return len(tokens) > 0

    def _output_of(self, side: int, position: int) -> Optional[_Values]:
        """Return the elements of each token in the result of an operator; None if they are unknown."""
        operator = self._flows[side].operators[position]
        return self._values_of(side, operator, operator.outputs[0]) if operator.outputs else None

    def _inside(self, side: int, operator: Operator) -> list[_Values]:
        """Return the elements of each token in the tensors inside of a fused norm; none for other operators."""
        key = side, operator.op_name
        if key not in self._inner:
            read = self._values_of(side, operator, operator.inputs[0]) if is_fused_norm(operator) else None
            self._inner[key] = [] if read is None else [(of, read[1]) for of in results_inside(operator, read[0])]
        return self._inner[key]

    def _values_of(self, side: int, operator: Operator, record: Record) -> Optional[_Values]:
        key = side, operator.op_name, record.io, record.index
        if key not in self._values:
            self._values[key] = self._read_values(side, operator, record)
        return self._values[key]

    def _read_values(self, side: int, operator: Operator, record: Record) -> Optional[_Values]:
        import numpy as np

        if float_kind(record.dtype or "") is None or record.parameter:
            return None
        tensor = self._read(side, operator, record)
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
            with np.errstate(invalid="ignore"):  # memory that nothing was written to yet
                flat = flat.astype(np.float64)
            if operator_class(operator.op_type) in _SCATTERING:
                flat[flat == 0] = np.nan  # where nothing is scattered
            return flat, has_token
        return None


def _keeps_order(operator: Operator) -> bool:
    """Return True for a view that has all elements in the same order, such as that of a transposed weight."""
    return operator_class(operator.op_type) in ("t", "alias", "detach", "_unsafe_view")


def _are_same(values: _Values, others: _Values) -> bool:
    """Return True if the values of all tokens that both sides have are equal."""
    import numpy as np

    both = values[1] & others[1]
    return bool(both.any()) and np.array_equal(values[0][both], others[0][both])


def _known(elements: np.ndarray) -> np.ndarray:
    """Return the distinct elements, sorted, without NaN."""
    import numpy as np

    return np.asarray(np.unique(elements[~np.isnan(elements)]))


def _computes(operator: Operator) -> str:
    """Return the operation of an operator, the same one for all products."""
    is_any_product = is_product(operator) or operator_class(operator.op_type) in _BATCHED
    return "product" if is_any_product else operation(operator.op_type)


def _is_from_outside(source: InputSource) -> bool:
    """Return True for a tensor that no operator computed, such as a weight, or a view or copy of one."""
    return source.root is None or source.root.position == OUTSIDE


def _maker_of(source: InputSource) -> int:
    """Return the position of the operator that made an input, or the tensor that it is a view of."""
    made = source.maker if source.maker is not None else source.root
    return OUTSIDE if made is None else made.position
