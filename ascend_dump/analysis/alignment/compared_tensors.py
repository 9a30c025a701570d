"""Choose for each tensor of two programs the records that are compared: values of common tokens, or all values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Optional

from ascend_dump.analysis.alignment.built_otherwise.interleaved_heads import in_order_of_heads
from ascend_dump.analysis.alignment.built_otherwise.rebuilt_parts import OperatorGroups
from ascend_dump.analysis.alignment.experts.token_routing import LeftOut, rerouted_tokens
from ascend_dump.analysis.alignment.picked_values import is_unchanging
from ascend_dump.analysis.alignment.token_groups import (
    chosen_behind,
    computes_floats,
    is_made_number,
    is_place_of_extreme,
    orders_before,
    orders_in,
    records_of_calls,
)
from ascend_dump.analysis.alignment.token_memory import MemorySources
from ascend_dump.analysis.alignment.token_parts import (
    ChosenWays,
    CommonTokens,
    TensorOfCalls,
    distance,
    pair_parts,
    resized_parts,
    token_part,
    without_tokens,
)
from ascend_dump.analysis.alignment.token_ways import TokenSide
from ascend_dump.analysis.operators.arguments import commutes
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import ALLOCATING, TO_NUMBER, operator_class, writes
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.reading import Record

__all__ = ["UNCHANGING", "ComparedTensors"]

_MASKS = "masks and numbers of slots"
_UNALIGNED = "without tokens"
_VALUELESS = "without stored values"
_ONE_SIDED = "moved on one side"
UNCHANGING = "without an effect on one side"
_CHOSEN = "behind the results, such as a loss"
_MIXED = "computed from several tokens"
#: Two inputs are crossed if their distances in opposite order are less than this share of the distances in order.
_CLEARLY = 0.8
#: Inputs agree up to this relative distance.
_AGREE = 1e-3
#: Operators of attention: their result for a token depends on other tokens.
_ATTENDING = frozenset({"bmm", "baddbmm", "matmul", "_softmax", "softmax"})


class ComparedTensors:
    """The records that are compared, of the tensors of two programs.

    parts       by `id` of a record of the base call: the record that is compared; None if the tensor is not compared
    left_out    tokens that are not compared, because they go to other experts
    omitted     number of tensors that are not compared, by the reason
    joined      number of tensors that were joined along the tokens
    whole       number of tensors that are compared as they are
    is_rebuilt  the two programs are built otherwise
    orders_of_heads  the orders of the elements of a head of actual in which the reference has them
    """

    def __init__(
        self, sides: tuple[TokenSide, TokenSide], bases: Sequence[int], tokens: CommonTokens, unit: float
    ) -> None:
        """Keep what the tensors belong to.

        sides  the calls of actual and of the reference
        bases  the index of the base call of each side
        unit   the rounding unit
        """
        self.parts: dict[int, Optional[Record]] = {}
        self.left_out = LeftOut(tokens)
        self.omitted = Counter[str]()
        self.joined = self.whole = 0
        self.is_rebuilt = False
        self.orders_of_heads: Sequence[tuple[int, ...]] = ()
        self._sides, self._bases, self._tokens, self._unit = sides, bases, tokens, unit
        self._calls = [side.calls for side in sides]
        self._orders = [[orders_in(call) for call in calls] for calls in self._calls]
        #: For each side: storages of values that were computed from several tokens.
        self._mixed: tuple[set[int], set[int]] = (set(), set())
        self._sources = MemorySources(0), MemorySources(1)
        #: For each side: storages that are allocated but not yet written.
        self._unwritten: tuple[set[int], set[int]] = (set(), set())
        self._chosen_ways = ChosenWays()
        #: For each side: storages of tensors that operators of the base call made.
        self._made = [_made_storages(side.calls[base].operators) for side, base in zip(sides, bases)]

    def pass_through(
        self,
        groups: Sequence[OperatorGroups],
        left_out: Sequence[Mapping[int, str]],
        matches: Sequence[Match],
    ) -> None:
        """Leave out unpaired operators that compute no floats, or that have a reason in `left_out`.

        Note the memory from which the values of their outputs come, and the other operators that write to memory.
        """
        paired = {id(operator) for match in matches for operator in (match.actual, match.reference)}
        for (of_base, _), reasons, sources in zip(groups, left_out, self._sources):
            for operator in of_base:
                reason = reasons.get(id(operator), UNCHANGING if is_unchanging(operator) else _ONE_SIDED)
                if id(operator) in paired or (reason == _ONE_SIDED and computes_floats(operator)):
                    sources.add_writer(operator)
                else:
                    sources.pass_through(operator)
                    self.omitted[reason] += len(list(operator.records))
                    self.parts.update(dict.fromkeys(map(id, operator.records)))

    def add_unpaired(self, sides: Sequence[Sequence[Operator]], matches: Sequence[Match]) -> None:
        """Note in `parts` which records of unpaired operators are compared."""
        paired = {id(operator) for match in matches for operator in (match.actual, match.reference)}
        for side, sources in zip(sides, self._sources):
            behind = chosen_behind(side, paired)
            for operator in side:
                if id(operator) in paired:
                    continue
                if id(operator) in behind:
                    self.omitted[_CHOSEN] += len(list(operator.records))
                    self.parts.update(dict.fromkeys(map(id, operator.records)))
                elif computes_floats(operator):
                    self.parts.update(
                        {id(record): sources.placed_whole(record, operator) for record in operator.records}
                    )
                else:
                    self.parts.update(dict.fromkeys(map(id, operator.records)))

    def add_match(
        self,
        match: Match,
        of_calls: tuple[dict[int, Operator], dict[int, Operator]],
    ) -> Match:
        """Note in `parts` the records that are compared for each tensor of two operators, and return their match.

        Tensors that are read as numbers are left out: of a batch, several are read.
        """
        if match.reference.function == TO_NUMBER:
            self.parts.update({id(record): None for pair in match.inputs for record in pair if record is not None})
            return match
        if "attention" in match.reference.op_type.lower() or operator_class(match.reference.op_type) in _ATTENDING:
            self.left_out.attend()
        if self.is_rebuilt and not match.is_crossed and commutes(match.reference) and len(match.actual.inputs) == 2:
            match = match._replace(is_crossed=self._is_crossed(match, of_calls))
        has_tokens = False
        of_tokens: dict[str, list[tuple[Record, Record]]] = {"inputs": [], "outputs": []}
        for io, pairs in (("inputs", match.inputs), ("outputs", match.outputs)):
            for a, b in pairs:
                if a is None or b is None or is_place_of_extreme(match.reference, b):
                    self.parts.update({id(record): None for record in (a, b) if record is not None})
                    self.omitted[_MASKS] += 1
                    continue
                tensors = self._tensors(of_calls, io, (a, b))
                aligned = self._aligned(match, tensors[0], tensors[1], has_tokens=has_tokens and io == "outputs")
                if aligned is None and io == "outputs" and _have_equal_inputs(match, of_tokens["inputs"]):
                    # From equal values, the operator computes another number of values for each token.
                    left_out = self.left_out.at(match.reference.module)
                    aligned = resized_parts(tensors[0], tensors[1], self._tokens, left_out)
                self.parts[id(a)], self.parts[id(b)] = aligned or (None, None)
                if aligned is not None and token_part(aligned[0]) is not None:
                    of_tokens[io].append(aligned)
                has_tokens |= self._is_mixed(a, b) or (aligned is not None and token_part(aligned[0]) is not None)
        self._leave_out_unwritten(match)
        self._leave_out_rerouted(match, of_tokens)
        return match

    def _leave_out_unwritten(self, match: Match) -> None:
        """Leave out tensors in memory that is allocated but not yet written."""
        for operator, unwritten in zip((match.actual, match.reference), self._unwritten):
            is_new = operator_class(operator.op_type) in ALLOCATING
            for record in operator.records:
                storage = storage_of(record)
                if storage is None:
                    continue
                if is_new and record.io == "output":
                    unwritten.add(storage[0])
                elif storage[0] in unwritten and record.io == "output" and writes(operator.op_type):
                    unwritten.discard(storage[0])
                    continue
                if storage[0] in unwritten:
                    self.parts[id(record)] = None

    def _tensors(
        self, of_calls: tuple[dict[int, Operator], dict[int, Operator]], io: str, pair: tuple[Record, Record]
    ) -> list[TensorOfCalls]:
        """Return a tensor of each side in all calls. pair: the records of the tensor in the base calls"""
        return [self.tensor(side, of_calls[side], io, record) for side, record in enumerate(pair)]

    def tensor(self, side: int, calls: Mapping[int, Operator], io: str, record: Record) -> TensorOfCalls:
        """Return a tensor of one side (0: actual) in all calls. record: the tensor in the base call"""
        orders = orders_before(self._orders[side], calls, record)
        return TensorOfCalls(self._sides[side], records_of_calls(calls, io, record), self._bases[side], orders)

    def _is_crossed(self, match: Match, of_calls: tuple[dict[int, Operator], dict[int, Operator]]) -> bool:
        """Return True if the two inputs of actual are clearly nearer to the opposite inputs of the reference."""
        distances = [0.0, 0.0]
        for a, actual in enumerate(match.actual.inputs):
            for b, reference in enumerate(match.reference.inputs):
                tensors = self._tensors(of_calls, "inputs", (actual, reference))
                try:
                    left_out = self.left_out.at(match.reference.module)
                    aligned = pair_parts(tensors[0], tensors[1], self._tokens, left_out, self._chosen_ways)
                except AscendDumpError:
                    return False
                # A weight has no tokens, and may have another type on the other side.
                is_whole = aligned is None and actual.shape == reference.shape
                compared = (actual, reference) if is_whole else aligned
                distances[a != b] += math.inf if compared is None else distance(*compared)
        return distances[1] < _CLEARLY * distances[0]

    def _leave_out_rerouted(self, match: Match, of_tokens: Mapping[str, list[tuple[Record, Record]]]) -> None:
        """From the outputs of a router on, leave out the tokens that go to other experts only because of rounding."""
        rerouted = rerouted_tokens(match, of_tokens["inputs"], of_tokens["outputs"], self._unit)
        if rerouted is None:
            return
        self.left_out.add(rerouted, match.reference.module)
        for a, b in match.outputs:
            if a is not None and b is not None:
                kept = without_tokens(self.parts[id(a)], self.parts[id(b)], self.left_out.at(match.reference.module))
                self.parts[id(a)], self.parts[id(b)] = kept

    def _is_mixed(self, *records: Record) -> bool:
        storages = map(storage_of, records)
        return any(storage is not None and storage[0] in mixed for storage, mixed in zip(storages, self._mixed))

    def _follows_calls(self, *tensors: TensorOfCalls) -> bool:
        """Return True if a program makes a row of numbers with other values in each call, such as numbers of tokens."""
        for tensor, made in zip(tensors, self._made):
            if len(tensor.base.shape or ()) != 1:
                continue
            storage = storage_of(tensor.base)
            contents = {record.content for record in tensor.records.values()}
            if len(contents) > 1 and storage is not None and storage[0] in made:
                return True
        return False

    def _aligned(
        self, match: Match, a: TensorOfCalls, b: TensorOfCalls, *, has_tokens: bool
    ) -> Optional[tuple[Record, Record]]:
        """Return the records that are compared for one tensor; None if it is not compared.

        has_tokens: the tensor was computed from tensors that have an axis of tokens
        """
        shapes = {*a.shapes.values(), *b.shapes.values()}
        has_widths = any(len({(call.rows, call.width) for call in calls}) > 1 for calls in self._calls)
        is_cache = any(not tensor.side.rooms.isdisjoint(tensor.base.shape or ()) for tensor in (a, b))
        is_equal = a.base.content == b.base.content is not None
        is_picked = bool(a.rows or b.rows)
        is_whole = len(shapes) == 1 and not is_picked and (is_equal or (has_widths and not is_cache))
        reason = _UNALIGNED
        try:
            if not is_whole:
                pair = pair_parts(a, b, self._tokens, self.left_out.at(match.reference.module), self._chosen_ways)
                if pair is not None:
                    if is_made_number(match, pair):
                        self.omitted[_MASKS] += 1
                        return None
                    self.joined += 1
                    in_order_of_heads(pair, self.orders_of_heads)
                    a_part, b_part = (
                        sources.placed(record, operator)
                        for sources, record, operator in zip(self._sources, pair, (match.actual, match.reference))
                    )
                    return a_part, b_part
        except NotSupported:
            reason = _VALUELESS
        except AscendDumpError:
            return a.base, b.base  # the comparison reports unreadable records
        if len(shapes) == 1 and not is_picked:
            pair = a.changed(), b.changed()
            if pair[0].content == pair[1].content is not None:
                pass
            elif has_tokens or self._is_mixed(*pair) or self._follows_calls(a, b):
                for mixed, record in zip(self._mixed, (a.base, b.base)):
                    storage = storage_of(record)
                    mixed.update(() if storage is None else storage[:1])
                self.omitted[_MIXED] += 1
                return None
            if not is_made_number(match, pair):
                self.whole += 1
                return pair
            reason = _MASKS
        self.omitted[reason] += 1
        return None


def _have_equal_inputs(match: Match, compared: Sequence[tuple[Record, Record]]) -> bool:
    """Return True if all inputs of an operator that computes floats agree. compared: the inputs with tokens

    A sort of integers returns numbers of elements, which follow from the tokens that a call has.
    """
    return (
        computes_floats(match.reference)
        and len(compared) == len(match.inputs) > 0
        and all(a.shape == b.shape and distance(a, b) < _AGREE for a, b in compared)
    )


def _made_storages(operators: Sequence[Operator]) -> set[int]:
    """Return the storages that operators write to, without those of views."""
    made: set[int] = set()
    for operator in operators:
        storages_read = {storage[0] for record in operator.inputs if (storage := storage_of(record)) is not None}
        storages = {storage[0] for record in operator.outputs if (storage := storage_of(record)) is not None}
        made |= storages - storages_read
    return made
