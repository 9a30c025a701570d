"""Compare two programs token by token: join the calls of a model along their tokens.

A rollout runs a prompt and then one token after the other, with a cache. A trainer runs whole sequences, in a batch
with padding, or packed one after the other. Here, the same operator in all calls of one side becomes one operator. Each
of its tensors has the values of the tokens that both sides have, in the same order. Tensors without tokens, such as
weights, are compared as they are. Scores of attention are cut to the keys that both sides have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.built_otherwise.agreeing_results import (
    ReadTensor,
    agreeing_results,
    are_rewritten,
    with_other_inputs,
)
from ascend_dump.analysis.alignment.built_otherwise.borders import Borders, RecordKey
from ascend_dump.analysis.alignment.built_otherwise.merged_products import merge_products
from ascend_dump.analysis.alignment.built_otherwise.moved_differences import moved_differences
from ascend_dump.analysis.alignment.built_otherwise.products import is_product, same_weights, wide_products
from ascend_dump.analysis.alignment.built_otherwise.rebuilt_parts import (
    OperatorGroups,
    are_built_otherwise,
    divided,
    in_one_order,
)
from ascend_dump.analysis.alignment.built_otherwise.same_sources import operators_between, results_of_same_sources
from ascend_dump.analysis.alignment.compared_tensors import UNCHANGING, ComparedTensors
from ascend_dump.analysis.alignment.displaced_tokens import count_tokens, displaced_tokens
from ascend_dump.analysis.alignment.fixed_caches import room_of
from ascend_dump.analysis.alignment.model_calls import Token
from ascend_dump.analysis.alignment.paged_caches import MisreadToken, misread_token, writes_to_slots
from ascend_dump.analysis.alignment.picked_values import is_unchanging, picking_operators, unchanging_operators
from ascend_dump.analysis.alignment.token_groups import (
    base_of,
    changes_elements,
    chosen_behind,
    computes_floats,
    groups_of,
    is_append,
    last_results,
    makes_mask,
    replaced,
    rounding_unit,
)
from ascend_dump.analysis.alignment.token_parts import (
    CommonTokens,
    TensorOfCalls,
    TokenPart,
)
from ascend_dump.analysis.alignment.token_sequences import calls_of_sides, pair_sequences
from ascend_dump.analysis.alignment.token_ways import TokenSide
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.data_flow import DataFlow
from ascend_dump.analysis.pairing.same_framework import Match, RecordPair, align
from ascend_dump.analysis.pairing.weak_pairs import computes
from ascend_dump.common.units import counted
from ascend_dump.errors import NotSupported
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["TokenAlignment"]

#: Minimum number of common tokens. Fewer tokens are no evidence that two dumps have the same requests.
_LEAST_TOKENS = 2
_REBUILT = "operators of parts that are built otherwise, between tensors that agree"
_APPENDS = "of operators that append to a cache"
_PICKED = "of operators that pick values of the model for the program"


class _Program(NamedTuple):
    """The operators of the base call of each side, and their pairs."""

    sides: Sequence[Sequence[Operator]]
    matches: Sequence[Match]


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
            displaced_tokens(sequences, reference_sequences, {a: b for a, (b, _) in partners.items()}, reference_calls),
            displaced_tokens(reference_sequences, sequences, of_reference, calls),
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
        self._bases = [base_of(side) for side in self.calls]
        self._is_rebuilt = self._has_agreeing = False
        #: For each side: (index of the call, name) of operators that are the same as an operator of the base call.
        self._grouped: tuple[set[tuple[int, str]], set[tuple[int, str]]] = (set(), set())
        #: The data flow of the base call of each side; empty until it is needed.
        self._flows: list[DataFlow] = []
        self._unit = max(rounding_unit(side[0]) for side in self.calls)
        self._compared = ComparedTensors(self._sides, self._bases, self.tokens, self._unit)
        #: By name of an operator of the reference: the operators of both sides that compute its result from the inputs
        #: of its match, which are results of other operators.
        self.between: dict[str, tuple[list[Operator], list[Operator]]] = {}
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
        self._compared.pass_through(groups, left_out, matches)
        self._calls_of = groups[0][1], groups[1][1]
        matches = [self._compared.add_match(match, self._of_calls(match)) for match in matches]
        self._compared.add_unpaired(sides, matches)
        self._program = _Program(sides, matches)
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
        sides, before = self._program
        parts = self._compared.parts
        count = _count_compared(parts)
        if not self._flows:
            self._flows = [DataFlow(operators) for operators in self._undivided]
        moved = moved_differences(self._flows, self._origins, before, parts, differing)
        matches = [match for match in before if id(match.reference) not in moved]
        if self._is_rebuilt and not self._has_agreeing:
            self._has_agreeing = True
            matches = self._with_agreeing(matches, differing)
            names = {key for match in matches if match.how == "value" for key in _names(match)}
            differing = {key for key in differing if key[:2] not in names}
        elif self._has_agreeing:
            # What rounding leaves between results that agree is no difference.
            apart = {key[:2] for key in differing}
            matches = [match for match in matches if match.how != "value" or apart.isdisjoint(_names(match))]
        borders = Borders(self._flows, self._origins, matches, parts, self._unit)
        matches = borders.believed(differing)
        matches += [
            self._compared.add_match(match, self._of_calls(match))
            for match in last_results(sides[0], sides[1], matches)
        ]
        paired = {id(operator) for match in matches for operator in (match.actual, match.reference)}
        for number, side in enumerate(sides):
            unpaired = [operator for operator in side if id(operator) not in paired and not is_unchanging(operator)]
            alone = {id(op) for op in unpaired if computes(op) and not borders.is_inside(op, number)}
            for operator in side:
                if id(operator) in paired or id(operator) in alone:
                    continue
                # A view of a tensor that differs stays: it leads from this difference to the operators behind it.
                is_move = not computes(operator) and not is_unchanging(operator)
                if is_move and borders.reads_difference(operator, number, differing, alone):
                    continue
                self._compared.omitted[_REBUILT] += computes_floats(operator)
                parts.update(dict.fromkeys(map(id, operator.records)))
        has_rounding = borders.note_rounding(matches)
        self._program = _Program(sides, matches)
        is_same = not has_rounding and _count_compared(parts) == count and len(matches) == len(before)
        return None if is_same else self._kept()

    def _with_agreeing(self, matches: Sequence[Match], differing: Set[RecordKey]) -> list[Match]:
        """Return the matches, and those of operators with results that agree; these replace doubtful matches.

        Of the added matches, the results are compared only.
        """
        sides, parts = self._program.sides, self._compared.parts
        doubtful = {
            id(operator)
            for match in matches
            if self._is_doubtful(match, differing)
            for operator in (match.actual, match.reference)
        }

        def read(side: int, operator: Operator, record: Record) -> TensorOfCalls:
            return self._compared.tensor(side, self._calls_of[side][operator.position], "outputs", record)

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
            self._compared.add_match(of_result, self._of_calls(match))
            kept.append(match)
        kept = self._with_same_sources(kept, differing, read)
        wrong = with_other_inputs(
            self._flows, self._origins, kept, lambda a: (0, a.op_name, a.io, a.index) in differing
        )
        kept = [match for match in kept if id(match.reference) not in wrong]
        return sorted(kept, key=lambda match: match.reference.position)

    def _operators_between(self, match: Match) -> tuple[list[Operator], list[Operator]]:
        """Return the operators of each side that compute a result from the inputs of its match."""
        made: list[list[Operator]] = []
        for side, (flow, positions, result) in enumerate(
            zip(self._flows, self._origins, (match.actual, match.reference))
        ):
            names = {record.op_name for pair in match.inputs if (record := pair[side]) is not None}
            operators = self._program.sides[side]
            sources = {positions[op.position] for op in operators if op.op_name.partition("[")[0] in names}
            made.append(operators_between(flow, positions[result.position], sources))
        return made[0], made[1]

    def _is_doubtful(self, match: Match, differing: Set[RecordKey]) -> bool:
        """Return True if a tensor of a match without a weight differs, or is not compared."""
        return (
            match.how != "mapping"
            and not is_product(match.reference)
            and any(
                a is None or self._compared.parts.get(id(a)) is None or (0, a.op_name, a.io, a.index) in differing
                for a, _ in (*match.inputs, *match.outputs)
            )
        )

    def _with_same_sources(self, matches: Sequence[Match], differing: Set[RecordKey], read: ReadTensor) -> list[Match]:
        """Return the matches, and those of results of the same tensors; these replace doubtful matches.

        The inputs of the added matches are these tensors. Results that differ by a rewrite are not added.
        """
        sides, parts = self._program[0], self._compared.parts
        known = [match for match in matches if match.how == "value" or not self._is_doubtful(match, differing)]
        added = []
        for match in results_of_same_sources(self._flows, self._origins, sides, known):
            operators = match.actual, match.reference
            tensors = [read(side, operator, operator.outputs[0]) for side, operator in enumerate(operators)]
            if not are_rewritten(tensors[0], tensors[1], self.tokens):
                parts.update(dict.fromkeys(id(record) for operator in operators for record in operator.records))
                self._compared.add_match(match._replace(tensors=([], match.outputs)), self._of_calls(match))
                added.append(match)
                self.between[match.reference.op_name] = self._operators_between(match)
        replaced_by = {id(operator) for match in added for operator in (match.actual, match.reference)}
        return [
            *(match for match in matches if replaced_by.isdisjoint((id(match.actual), id(match.reference)))),
            *added,
        ]

    def _of_calls(self, match: Match) -> tuple[dict[int, Operator], dict[int, Operator]]:
        """Return the two operators of a match in all calls, by index of the call."""
        return self._calls_of[0][match.actual.position], self._calls_of[1][match.reference.position]

    def _kept(self) -> tuple[list[Operator], list[Operator], list[Match]]:
        """Return the operators of both sides with the records that are compared, and the pairs of operators."""
        sides, matches = self._program
        actual, reference = (replaced(side, self._compared.parts) for side in sides)
        kept = [
            match._replace(
                actual=actual[match.actual.position],
                reference=reference[match.reference.position],
                tensors=None if match.tensors is None else self._compared_pairs(*match.tensors),
            )
            for match in matches
            if match.actual.position in actual and match.reference.position in reference
        ]
        return list(actual.values()), list(reference.values()), kept

    def _compared_pairs(self, *tensors: Sequence[RecordPair]) -> tuple[list[RecordPair], list[RecordPair]]:
        """Return the pairs of inputs and of outputs with the records that are compared."""
        parts = self._compared.parts
        inputs, outputs = (
            [pair for a, b in pairs if None not in (pair := (parts.get(id(a)), parts.get(id(b))))] for pairs in tensors
        )
        return inputs, outputs

    def _groups(self) -> list[OperatorGroups]:
        """Return for each side the operators of its base call, and the same operator in all calls.

        If the programs are built differently, wide products are divided into the narrow products of the other side.
        """
        groups = [groups_of(calls, base) for calls, base in zip(self.calls, self._bases)]
        for grouped, (_, of_calls) in zip(self._grouped, groups):
            grouped.update((index, op.op_name) for group in of_calls.values() for index, op in group.items())
        self._is_rebuilt = self._compared.is_rebuilt = are_built_otherwise(groups[0][0], groups[1][0])
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
        reasons.update(dict.fromkeys(unchanging_operators(of_base, other), UNCHANGING))
        for operator in of_base:
            same = of_calls[operator.position]
            room = room_of(side.calls, same)
            if room:
                side.rooms.add(room)
            if room or is_append(side, same) or writes_to_slots(side.calls, same):
                reasons[id(operator)] = _APPENDS
        return reasons

    def added_results(self) -> list[tuple[int, Operator]]:
        """Return (side, operator) of element-wise operators that only one side runs on the last result of both sides.

        Their results have the last axis of that result, such as that of the vocabulary: a loss has another one. If
        there are other operators behind it, the side goes on with a part that is built otherwise.

        side: 0 for actual, 1 for the reference
        """
        sides, matches = self._program
        paired = {id(operator) for match in matches for operator in (match.actual, match.reference)}
        added = []
        for number, side in enumerate(sides):
            computing = [operator for operator in side if computes_floats(operator)]
            begin = 1 + max((n for n, operator in enumerate(computing) if id(operator) in paired), default=-1)
            if not begin:
                continue
            chosen, axes = chosen_behind(side, paired), {_last_axis(record) for record in computing[begin - 1].outputs}
            behind = [operator for operator in computing[begin:] if id(operator) not in chosen]
            if all(changes_elements(operator) and _last_axis(operator.outputs[0]) in axes for operator in behind):
                added += [(number, operator) for operator in behind]
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
                computes = computes_floats(operator) or operator_class(operator.op_type) == "_to_copy"
                if storage is not None and storage[0] in places and computes:
                    maker = operator
            if maker is not None and (index, maker.op_name) not in self._grouped[side]:
                return index, maker
        return None

    def misread(self) -> Optional[tuple[MisreadToken, int]]:
        """Return the first token that is read from a wrong slot of a paged cache, and its side (0: actual), or None."""
        sides = zip(self.calls, (self.sequences, self.reference_sequences))
        found = ((misread_token(calls, sequences), side) for side, (calls, sequences) in enumerate(sides))
        return next(((misread, side) for misread, side in found if misread is not None), None)

    def base_operators(self, side: int) -> list[Operator]:
        """Return the operators of the call with most slots. side: 0 for actual, 1 for the reference"""
        return self.calls[side][self._bases[side]].operators

    def slots(self, side: int) -> list[np.ndarray]:
        """Return for each call of a side: the number of the common token in each slot; -1 for padding."""
        return self._sides[side].slots

    @property
    def unit(self) -> float:
        """The coarser rounding unit of both sides."""
        return self._unit

    @property
    def has_most_tokens(self) -> bool:
        """True if the common tokens are at least half of the tokens of the side with fewer tokens."""
        return 2 * self.tokens.count >= min(map(count_tokens, self.calls))

    def has_rows(self, rows: Mapping[int, int]) -> bool:
        """Return True if each row of the first call of actual has the tokens of its row of the reference."""
        for row, reference_row in rows.items():
            prompts = self._sides[0].prompt_in_row(row), self._sides[1].prompt_in_row(reference_row)
            if prompts[0] != prompts[1] or not prompts[0] or -1 in prompts[0]:
                return False
        return True

    def notes(self) -> list[str]:
        """Return sentences on tokens that go to other experts, and on the tokens that are compared."""
        rejected = [
            f"{counted(count, 'token')} of a draft were rejected in {side} and are left out"
            for count, side in zip(self._rejected, ("actual", "the reference"))
            if count
        ]
        return [*self._compared.left_out.notes(), *rejected, self._note()]

    def _note(self) -> str:
        """Return one sentence on the tokens that are compared, and on tensors that are not."""
        omitted = [f"{count} {reason}" for reason, count in self._compared.omitted.items() if count]
        not_compared = f"; not compared: {', '.join(omitted)}" if omitted else ""
        requests = len({*self.tokens.index_of[:, 0].tolist()})
        return (
            f"tokens: {self.tokens.count} tokens of {counted(requests, 'request')} are on both sides, in "
            f"{counted(len(self.calls[0]), 'call')} of actual and {len(self.calls[1])} of the reference; "
            f"{self._compared.joined} tensors were joined along them, {self._compared.whole} have no tokens"
            f"{not_compared}"
        )


def _names(match: Match) -> list[tuple[int, str]]:
    """Return (side, name) of both operators of a match."""
    return [(0, match.actual.op_name), (1, match.reference.op_name)]


def _count_compared(parts: Mapping[int, Optional[Record]]) -> int:
    return sum(part is not None for part in parts.values())


def _last_axis(record: Record) -> tuple[int, ...]:
    return tuple(record.shape or ())[-1:]
