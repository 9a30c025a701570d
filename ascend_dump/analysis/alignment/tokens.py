"""Compare two programs token by token: join the calls of a model along their tokens.

A rollout runs a prompt and then one token after the other, with a cache. A trainer runs whole sequences, in a batch
with padding, or packed one after the other. Here, the same operator in all calls of one side becomes one operator. Each
of its tensors has the values of the tokens that both sides have, in the same order. Tensors without tokens, such as
weights, are compared as they are. Scores of attention are cut to the keys that both sides have.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple, Optional

from ascend_dump.analysis.alignment.built_otherwise.agreeing_results import agreeing_results, with_other_inputs
from ascend_dump.analysis.alignment.built_otherwise.borders import Borders, RecordKey
from ascend_dump.analysis.alignment.built_otherwise.merged_products import merge_products
from ascend_dump.analysis.alignment.built_otherwise.products import is_product, same_weights, wide_products
from ascend_dump.analysis.alignment.built_otherwise.rebuilt_parts import (
    OperatorGroups,
    are_built_otherwise,
    divided,
    in_one_order,
)
from ascend_dump.analysis.alignment.displaced_tokens import displaced_tokens
from ascend_dump.analysis.alignment.fixed_caches import room_of
from ascend_dump.analysis.alignment.model_calls import NO_TOKEN, REJECTED, Token
from ascend_dump.analysis.alignment.paged_caches import MisreadToken, misread_token, writes_to_slots
from ascend_dump.analysis.alignment.picked_values import is_unchanging, picking_operators, unchanging_operators
from ascend_dump.analysis.alignment.token_groups import (
    base_of,
    changes_elements,
    chosen_behind,
    computes_floats,
    groups_of,
    is_append,
    is_made_number,
    is_place_of_extreme,
    last_results,
    makes_mask,
    orders_before,
    orders_in,
    records_of_calls,
    replaced,
    rounding_unit,
)
from ascend_dump.analysis.alignment.token_parts import (
    ChosenWays,
    CommonTokens,
    MemorySources,
    TensorOfCalls,
    TokenPart,
    distance,
    pair_parts,
    token_part,
    without_tokens,
)
from ascend_dump.analysis.alignment.token_routing import LeftOut, rerouted_tokens
from ascend_dump.analysis.alignment.token_sequences import calls_of_sides, pair_sequences
from ascend_dump.analysis.alignment.token_ways import TokenSide
from ascend_dump.analysis.operators.arguments import commutes
from ascend_dump.analysis.operators.names import moves_elements
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class, writes
from ascend_dump.analysis.pairing.data_flow import DataFlow
from ascend_dump.analysis.pairing.same_framework import Match, align
from ascend_dump.common.units import counted
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.reading import Record

__all__ = ["TokenAlignment"]

#: Minimum number of common tokens. Fewer tokens are no evidence that two dumps have the same requests.
_LEAST_TOKENS = 2
_MASKS = "masks and numbers of slots, which differ with padding and caches"
_UNALIGNED = "without an axis of tokens"
_VALUELESS = "without stored values"
_ONE_SIDED = "of operators of one side that only move elements"
_REBUILT = "operators of parts that are built otherwise, between tensors that agree"
_APPENDS = "of operators that append to a cache"
_PICKED = "of operators that pick values of the model for the program"
_UNCHANGING = "of operators of one side that change nothing, such as a factor of 1"
_CHOSEN = "of operators of one side that choose tokens, or compute a loss, of the results"
_MIXED = "computed from several tokens"
#: Two inputs are crossed if their distances in opposite order are less than this share of the distances in order.
_CLEARLY = 0.8
#: Operators of attention: their result for a token depends on other tokens.
_ATTENDING = frozenset({"bmm", "baddbmm", "matmul", "_softmax", "softmax"})


class _Program(NamedTuple):
    """The operators of the base call of each side, their pairs, and by `id` of a record the record to compare."""

    sides: Sequence[Sequence[Operator]]
    matches: Sequence[Match]
    parts: dict[int, Optional[Record]]


class TokenAlignment:
    """The tokens that two programs have in common, and the operators of both programs with the values of these tokens.

    calls                            the model calls of actual, and of the reference
    sequences, reference_sequences   the ids of each request, of actual and of the reference
    tokens                           the tokens that both sides have
    """

    def __init__(self, steps: Sequence[Sequence[Operator]], reference_steps: Sequence[Sequence[Operator]]) -> None:
        """Raise NotSupported if ids are not recorded, or if the two dumps are of different requests."""
        import numpy as np

        sides = calls_of_sides(steps, reference_steps)
        (calls, sequences, _), (reference_calls, reference_sequences, _) = sides
        for side, side_calls in (("actual", calls), ("the reference", reference_calls)):
            if not side_calls:
                raise NotSupported(
                    f"{side} records no ids of tokens that an embedding reads",
                    hint="capture the whole model with mode='all' and data='tensor'",
                )
        merge_products((calls, reference_calls))
        partners = pair_sequences(sequences, reference_sequences)
        of_reference = {partner: sequence for sequence, (partner, _) in partners.items()}
        #: For each side: requests whose tokens the other side has at other positions.
        self.displaced = (
            displaced_tokens(sequences, reference_sequences, {a: b for a, (b, _) in partners.items()}),
            displaced_tokens(reference_sequences, sequences, of_reference),
        )
        order = dict.fromkeys(
            token
            for rows in (*(call.slots for call in calls), *(call.keys for call in calls))
            for row in rows
            for token in row
            if token[0] in partners and token[1] < partners[token[0]][1]
        )
        if len(order) < _LEAST_TOKENS:
            raise NotSupported(
                "the ids of both dumps are of other requests: no sequence begins with the same tokens",
                hint="run both programs on the same prompts; `ascend-dump show` prints the ids",
            )
        numbers = {token: number for number, token in enumerate(order)}
        reference_numbers: dict[Token, int] = {
            (partners[sequence][0], position): number for (sequence, position), number in numbers.items()
        }
        self.calls = calls, reference_calls
        self.sequences, self.reference_sequences = sequences, reference_sequences
        self.tokens = CommonTokens(np.array(list(order), np.int64))
        self._sides = TokenSide(calls, numbers), TokenSide(reference_calls, reference_numbers)
        self._orders = tuple([orders_in(call) for call in side] for side in self.calls)
        #: For each side: storages of values that were computed from several tokens.
        self._mixed: tuple[set[int], set[int]] = (set(), set())
        self._sources = MemorySources(0), MemorySources(1)
        self._bases = [base_of(side) for side in self.calls]
        self._is_rebuilt = self._has_agreeing = False
        #: For each side: storages that are allocated but not yet written.
        self._unwritten: tuple[set[int], set[int]] = (set(), set())
        #: For each side: (index of the call, name) of operators that are the same as an operator of the base call.
        self._grouped: tuple[set[tuple[int, str]], set[tuple[int, str]]] = (set(), set())
        #: The data flow of the base call of each side; empty until it is needed.
        self._flows: list[DataFlow] = []
        self._unit = max(rounding_unit(side[0]) for side in self.calls)
        self._left_out = LeftOut(self.tokens)
        self._chosen_ways = ChosenWays()
        self._omitted = Counter[str]()
        self._joined = self._whole = 0
        self._rejected = sides[0].rejected, sides[1].rejected

    def operators(self, mapping: Optional[Mapping[str, str]]) -> tuple[list[Operator], list[Operator], list[Match]]:
        """Return the operators of actual and of the reference, as if each side had one call, and their pairs.

        The tensors of the operators have the values of the common tokens.
        """
        groups = self._groups()
        left_out = [
            self._left_out_operators(side, *group, other)
            for side, group, (other, _) in zip(self._sides, groups, groups[::-1])
        ]
        sides = [
            [operator for operator in of_base if id(operator) not in reasons]
            for reasons, (of_base, _) in zip(left_out, groups)
        ]
        weights = same_weights(sides[0], sides[1]) if self._is_rebuilt else {}
        matches = [
            in_one_order(match)
            for match in align(sides[0], sides[1], {**weights, **(mapping or {})}, parts=True)
            if not makes_mask(match)
        ]
        matches += last_results(sides[0], sides[1], matches)
        parts: dict[int, Optional[Record]] = {}
        self._pass_through(groups, left_out, matches, parts)
        self._calls_of = groups[0][1], groups[1][1]
        matches = [self._add_match(match, self._of_calls(match), parts) for match in matches]
        self._add_unpaired(sides, matches, parts)
        self._program = _Program(sides, matches, parts)
        return self._kept()

    def without_harmless(
        self, differing: Set[RecordKey]
    ) -> Optional[tuple[list[Operator], list[Operator], list[Match]]]:
        """Return the same as `operators`, without what is different but leads only to tensors that agree.

        It is called after `operators`. None if nothing is left out.

        differing: the key of each record that differs between the two sides
        """
        if not differing:
            return None
        sides, before, parts = self._program
        matches, count = before, _count_compared(parts)
        if not self._flows:
            self._flows = [DataFlow(operators) for operators in self._undivided]
        if self._is_rebuilt and not self._has_agreeing:
            self._has_agreeing = True
            matches = self._with_agreeing(differing)
            names = {key for match in matches if match.how == "value" for key in _names(match)}
            differing = {key for key in differing if key[:2] not in names}
        elif self._has_agreeing:
            # What rounding leaves between results that agree is no difference.
            apart = {key[:2] for key in differing}
            matches = [match for match in matches if match.how != "value" or apart.isdisjoint(_names(match))]
        borders = Borders(self._flows, self._origins, matches, parts, self._unit)
        matches = borders.believed(differing)
        matches += [
            self._add_match(match, self._of_calls(match), parts) for match in last_results(sides[0], sides[1], matches)
        ]
        paired = {id(operator) for match in matches for operator in (match.actual, match.reference)}
        for number, side in enumerate(sides):
            for operator in side:
                if id(operator) not in paired and (is_unchanging(operator) or borders.is_inside(operator, number)):
                    self._omitted[_REBUILT] += computes_floats(operator)
                    parts.update(dict.fromkeys(map(id, operator.records)))
        borders.note_rounding(matches)
        self._program = _Program(sides, matches, parts)
        is_same = _count_compared(parts) == count and len(matches) == len(before)
        return None if is_same else self._kept()

    def _with_agreeing(self, differing: Set[RecordKey]) -> list[Match]:
        """Return the matches, and those of operators with results that agree; these replace doubtful matches.

        Of the added matches, the results are compared only.
        """
        sides, matches, parts = self._program
        doubtful = {
            id(operator)
            for match in matches
            if match.how != "mapping" and not is_product(match.reference)
            if any(
                a is None or parts.get(id(a)) is None or (0, a.op_name, a.io, a.index) in differing
                for a, _ in (*match.inputs, *match.outputs)
            )
            for operator in (match.actual, match.reference)
        }

        def read(side: int, operator: Operator, record: Record) -> TensorOfCalls:
            return self._tensor(side, self._calls_of[side][operator.position], "outputs", record)

        partners = {id(match.actual): match.reference for match in matches}
        added = [
            match
            for match in agreeing_results(sides, matches, doubtful, read, self.tokens, self._unit)
            if partners.get(id(match.actual)) is not match.reference
        ]
        replaced_by = {id(operator) for match in added for operator in (match.actual, match.reference)}
        kept = [match for match in matches if replaced_by.isdisjoint((id(match.actual), id(match.reference)))]
        for match in added:
            of_result = match._replace(tensors=([], match.outputs[:1]))
            parts.update(
                dict.fromkeys(id(record) for operator in (match.actual, match.reference) for record in operator.records)
            )
            self._add_match(of_result, self._of_calls(match), parts)
            kept.append(match)
        wrong = with_other_inputs(
            self._flows, self._origins, kept, lambda a: (0, a.op_name, a.io, a.index) in differing
        )
        for match in kept:
            if id(match.reference) in wrong and moves_elements(match.reference.op_type):
                for operator in (match.actual, match.reference):
                    parts.update(dict.fromkeys(map(id, operator.records)))
        kept = [match for match in kept if id(match.reference) not in wrong]
        return sorted(kept, key=lambda match: match.reference.position)

    def _of_calls(self, match: Match) -> tuple[dict[int, Operator], dict[int, Operator]]:
        """Return the two operators of a match in all calls, by index of the call."""
        return self._calls_of[0][match.actual.position], self._calls_of[1][match.reference.position]

    def _kept(self) -> tuple[list[Operator], list[Operator], list[Match]]:
        """Return the operators of both sides with the records that are compared, and the pairs of operators."""
        sides, matches, parts = self._program
        actual, reference = (replaced(side, parts) for side in sides)
        kept = [
            match._replace(actual=actual[match.actual.position], reference=reference[match.reference.position])
            for match in matches
            if match.actual.position in actual and match.reference.position in reference
        ]
        return list(actual.values()), list(reference.values()), kept

    def _groups(self) -> list[OperatorGroups]:
        """Return for each side the operators of its base call, and the same operator in all calls.

        If the programs are built differently, wide products are divided into the narrow products of the other side.
        """
        groups = [groups_of(calls, base) for calls, base in zip(self.calls, self._bases)]
        for grouped, (_, of_calls) in zip(self._grouped, groups):
            grouped.update((index, op.op_name) for group in of_calls.values() for index, op in group.items())
        self._is_rebuilt = are_built_otherwise(groups[0][0], groups[1][0])
        self._undivided = [operators for operators, _ in groups]
        self._origins = [list(range(len(operators))) for operators, _ in groups]
        if self._is_rebuilt:
            wide = [wide_products(groups[side][0], groups[1 - side][0], may_reorder=not side) for side in (0, 1)]
            groups = [divided(group, parts) for group, parts in zip(groups, wide)]
            self._origins = [
                [position for position in origins for _ in parts.get(position, [None])]
                for origins, parts in zip(self._origins, wide)
            ]
        return groups

    def _left_out_operators(
        self,
        side: TokenSide,
        of_base: Sequence[Operator],
        of_calls: Mapping[int, Mapping[int, Operator]],
        other: Sequence[Operator],
    ) -> dict[int, str]:
        """Return the operators of the base call that are not compared, by `id`, each with the reason.

        The lengths of fixed caches are added to `side.rooms`.

        other: the operators of the base call of the other side
        """
        reasons = dict.fromkeys(picking_operators(of_base), _PICKED)
        reasons.update(dict.fromkeys(unchanging_operators(of_base, other), _UNCHANGING))
        for operator in of_base:
            same = of_calls[operator.position]
            room = room_of(side.calls, same)
            if room:
                side.rooms.add(room)
            if room or is_append(side, same) or writes_to_slots(side.calls, same):
                reasons[id(operator)] = _APPENDS
        return reasons

    def _pass_through(
        self,
        groups: Sequence[OperatorGroups],
        left_out: Sequence[Mapping[int, str]],
        matches: Sequence[Match],
        parts: dict[int, Optional[Record]],
    ) -> None:
        """Leave out unpaired operators that compute no floats, or that have a reason in `left_out`.

        Note the memory from which the values of their outputs come.
        """
        paired = {id(operator) for match in matches for operator in (match.actual, match.reference)}
        for (of_base, _), reasons, sources in zip(groups, left_out, self._sources):
            for operator in of_base:
                if id(operator) in paired:
                    continue
                reason = reasons.get(id(operator), _UNCHANGING if is_unchanging(operator) else _ONE_SIDED)
                if reason != _ONE_SIDED or not computes_floats(operator):
                    sources.pass_through(operator)
                    self._omitted[reason] += len(list(operator.records))
                    parts.update(dict.fromkeys(map(id, operator.records)))

    def _add_unpaired(
        self, sides: Sequence[Sequence[Operator]], matches: Sequence[Match], parts: dict[int, Optional[Record]]
    ) -> None:
        """Note in `parts` which records of unpaired operators are compared."""
        paired = {id(operator) for match in matches for operator in (match.actual, match.reference)}
        for side, sources in zip(sides, self._sources):
            behind = chosen_behind(side, paired)
            for operator in side:
                if id(operator) in paired:
                    continue
                if id(operator) in behind:
                    self._omitted[_CHOSEN] += len(list(operator.records))
                    parts.update(dict.fromkeys(map(id, operator.records)))
                elif computes_floats(operator):
                    parts.update({id(record): sources.placed_whole(record, operator) for record in operator.records})
                else:
                    parts.update(dict.fromkeys(map(id, operator.records)))

    def _add_match(
        self,
        match: Match,
        of_calls: tuple[dict[int, Operator], dict[int, Operator]],
        parts: dict[int, Optional[Record]],
    ) -> Match:
        """Note in `parts` the records that are compared for each tensor of two operators, and return their match."""
        if "attention" in match.reference.op_type.lower() or operator_class(match.reference.op_type) in _ATTENDING:
            self._left_out.attend()
        if self._is_rebuilt and not match.is_crossed and commutes(match.reference) and len(match.actual.inputs) == 2:
            match = match._replace(is_crossed=self._is_crossed(match, of_calls))
        has_tokens = False
        of_tokens: dict[str, list[tuple[Record, Record]]] = {"inputs": [], "outputs": []}
        for io, pairs in (("inputs", match.inputs), ("outputs", match.outputs)):
            for a, b in pairs:
                if a is None or b is None or is_place_of_extreme(match.reference, b):
                    parts.update({id(record): None for record in (a, b) if record is not None})
                    self._omitted[_MASKS] += 1
                    continue
                tensors = self._tensors(of_calls, io, (a, b))
                aligned = self._aligned(match, tensors[0], tensors[1], has_tokens=has_tokens and io == "outputs")
                parts[id(a)], parts[id(b)] = aligned or (None, None)
                if aligned is not None and token_part(aligned[0]) is not None:
                    of_tokens[io].append(aligned)
                has_tokens |= self._is_mixed(a, b) or (aligned is not None and token_part(aligned[0]) is not None)
        self._leave_out_unwritten(match, parts)
        self._leave_out_rerouted(match, of_tokens, parts)
        return match

    def _leave_out_unwritten(self, match: Match, parts: dict[int, Optional[Record]]) -> None:
        """Leave out tensors in memory that is allocated but not yet written."""
        for operator, unwritten in zip((match.actual, match.reference), self._unwritten):
            is_new = operator_class(operator.op_type) in ("empty", "empty_like", "new_empty", "empty_strided")
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
                    parts[id(record)] = None

    def _tensors(
        self, of_calls: tuple[dict[int, Operator], dict[int, Operator]], io: str, pair: tuple[Record, Record]
    ) -> list[TensorOfCalls]:
        """Return a tensor of each side in all calls. pair: the records of the tensor in the base calls"""
        return [self._tensor(side, of_calls[side], io, record) for side, record in enumerate(pair)]

    def _tensor(self, side: int, calls: Mapping[int, Operator], io: str, record: Record) -> TensorOfCalls:
        orders = orders_before(self._orders[side], calls, record)
        return TensorOfCalls(self._sides[side], records_of_calls(calls, io, record), self._bases[side], orders)

    def _is_crossed(self, match: Match, of_calls: tuple[dict[int, Operator], dict[int, Operator]]) -> bool:
        """Return True if the two inputs of actual are clearly nearer to the opposite inputs of the reference."""
        distances = [0.0, 0.0]
        for a, actual in enumerate(match.actual.inputs):
            for b, reference in enumerate(match.reference.inputs):
                tensors = self._tensors(of_calls, "inputs", (actual, reference))
                try:
                    left_out = self._left_out.at(match.reference.module)
                    aligned = pair_parts(tensors[0], tensors[1], self.tokens, left_out, self._chosen_ways)
                except AscendDumpError:
                    return False
                distances[a != b] += math.inf if aligned is None else distance(*aligned)
        return distances[1] < _CLEARLY * distances[0]

    def _leave_out_rerouted(
        self, match: Match, of_tokens: Mapping[str, list[tuple[Record, Record]]], parts: dict[int, Optional[Record]]
    ) -> None:
        """From the outputs of a router on, leave out the tokens that go to other experts only because of rounding."""
        rerouted = rerouted_tokens(match, of_tokens["inputs"], of_tokens["outputs"], self._unit)
        if rerouted is None:
            return
        self._left_out.add(rerouted, match.reference.module)
        for a, b in match.outputs:
            if a is not None and b is not None:
                kept = without_tokens(parts[id(a)], parts[id(b)], self._left_out.at(match.reference.module))
                parts[id(a)], parts[id(b)] = kept

    def _is_mixed(self, *records: Record) -> bool:
        storages = map(storage_of, records)
        return any(storage is not None and storage[0] in mixed for storage, mixed in zip(storages, self._mixed))

    def _aligned(
        self, match: Match, a: TensorOfCalls, b: TensorOfCalls, *, has_tokens: bool
    ) -> Optional[tuple[Record, Record]]:
        """Return the records that are compared for one tensor; None if it is not compared.

        has_tokens: the tensor was computed from tensors that have an axis of tokens
        """
        shapes = {*a.shapes.values(), *b.shapes.values()}
        has_widths = any(len({(call.rows, call.width) for call in calls}) > 1 for calls in self.calls)
        is_cache = any(not tensor.side.rooms.isdisjoint(tensor.base.shape or ()) for tensor in (a, b))
        is_equal = a.base.content == b.base.content is not None
        is_picked = bool(a.rows or b.rows)
        is_whole = len(shapes) == 1 and not is_picked and (is_equal or (has_widths and not is_cache))
        reason = _UNALIGNED
        try:
            if not is_whole:
                pair = pair_parts(a, b, self.tokens, self._left_out.at(match.reference.module), self._chosen_ways)
                if pair is not None:
                    if is_made_number(match, pair):
                        self._omitted[_MASKS] += 1
                        return None
                    self._joined += 1
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
            elif has_tokens or self._is_mixed(*pair):
                for mixed, record in zip(self._mixed, (a.base, b.base)):
                    storage = storage_of(record)
                    mixed.update(() if storage is None else storage[:1])
                self._omitted[_MIXED] += 1
                return None
            if not is_made_number(match, pair):
                self._whole += 1
                return pair
            reason = _MASKS
        self._omitted[reason] += 1
        return None

    def added_results(self) -> list[tuple[int, Operator]]:
        """Return (side, operator) of element-wise operators that only one side runs on the last result of both sides.

        side: 0 for actual, 1 for the reference
        """
        sides, matches, _ = self._program
        paired = {id(operator) for match in matches for operator in (match.actual, match.reference)}
        added = []
        for number, side in enumerate(sides):
            computing = [operator for operator in side if computes_floats(operator)]
            begin = 1 + max((n for n, operator in enumerate(computing) if id(operator) in paired), default=-1)
            chosen = chosen_behind(side, paired)
            for operator in computing[begin:] if begin else ():
                if id(operator) not in chosen and changes_elements(operator):
                    added.append((number, operator))
        return added

    def added_operator(self, side: int, part: TokenPart, number: int) -> Optional[tuple[int, Operator]]:
        """Return (index of the call, operator that made the value of a token) if the base call lacks this operator.

        None if the base call has the same operator, or if the operator is unknown.

        side    0 for actual, 1 for the reference
        part    the tokens of a tensor of this side
        number  the number of the token
        """
        for index, record in part.records.items():
            if number not in self._sides[side].slots[index]:
                continue
            storage = storage_of(record)
            maker: Optional[Operator] = None
            for operator in self.calls[side][index].operators:
                if any(read is record for read in operator.inputs):
                    break
                places = [place[0] for output in operator.outputs if (place := storage_of(output)) is not None]
                if storage is not None and storage[0] in places and computes_floats(operator):
                    maker = operator
            if maker is not None and (index, maker.op_name) not in self._grouped[side]:
                return index, maker
        return None

    def misread(self) -> Optional[tuple[MisreadToken, int]]:
        """Return the first token that is read from a wrong slot of a paged cache, and its side (0: actual), or None."""
        sides = zip(self.calls, (self.sequences, self.reference_sequences))
        found = ((misread_token(calls, sequences), side) for side, (calls, sequences) in enumerate(sides))
        return next(((misread, side) for misread, side in found if misread is not None), None)

    @property
    def has_most_tokens(self) -> bool:
        """True if the common tokens are at least half of the tokens of the side with fewer tokens."""
        counts = [
            sum(token not in (NO_TOKEN, REJECTED) for call in side for row in call.slots for token in row)
            for side in self.calls
        ]
        return 2 * self.tokens.count >= min(counts)

    def notes(self) -> list[str]:
        """Return sentences on tokens that go to other experts, and on the tokens that are compared."""
        rejected = [
            f"{counted(count, 'token')} of a draft were rejected in {side} and are left out"
            for count, side in zip(self._rejected, ("actual", "the reference"))
            if count
        ]
        return [*self._left_out.notes(), *rejected, self._note()]

    def _note(self) -> str:
        """Return one sentence on the tokens that are compared, and on tensors that are not."""
        omitted = [f"{count} {reason}" for reason, count in self._omitted.items() if count]
        not_compared = f"; not compared: {', '.join(omitted)}" if omitted else ""
        requests = len({*self.tokens.index_of[:, 0].tolist()})
        return (
            f"tokens: {self.tokens.count} tokens of {counted(requests, 'request')} are on both sides, in "
            f"{counted(len(self.calls[0]), 'call')} of actual and {len(self.calls[1])} of the reference; "
            f"{self._joined} tensors were joined along them, {self._whole} have no tokens{not_compared}"
        )


def _names(match: Match) -> list[tuple[int, str]]:
    """Return (side, name) of both operators of a match."""
    return [(0, match.actual.op_name), (1, match.reference.op_name)]


def _count_compared(parts: Mapping[int, Optional[Record]]) -> int:
    return sum(part is not None for part in parts.values())
