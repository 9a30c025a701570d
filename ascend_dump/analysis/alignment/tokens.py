"""Compare two programs token by token: join the calls of a model along their tokens.

A rollout runs a prompt and then one token after the other, with a cache. A trainer runs whole sequences, in a batch
with padding, or packed one after the other. Here, the same operator in all calls of one side becomes one operator. Each
of its tensors has the values of the tokens that both sides have, in the same order. Tensors without tokens, such as
weights, are compared as they are. Scores of attention are cut to the keys that both sides have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.built_otherwise.added_operators import (
    added_operator,
    added_results,
    may_change_results,
    scaled_for_choice,
)
from ascend_dump.analysis.alignment.built_otherwise.borders import RecordKey
from ascend_dump.analysis.alignment.built_otherwise.harmless_differences import HarmlessDifferences
from ascend_dump.analysis.alignment.built_otherwise.interleaved_heads import orders_of_heads
from ascend_dump.analysis.alignment.built_otherwise.merged_products import merge_products
from ascend_dump.analysis.alignment.built_otherwise.products import as_far_as_weights_show, same_weights, wide_products
from ascend_dump.analysis.alignment.built_otherwise.rebuilt_parts import (
    OperatorGroups,
    are_built_otherwise,
    divided,
    in_one_order,
)
from ascend_dump.analysis.alignment.built_otherwise.traced_differences import Beginning, TracedDifferences
from ascend_dump.analysis.alignment.compared_tensors import UNCHANGING, ComparedTensors
from ascend_dump.analysis.alignment.displaced_tokens import count_tokens, displaced_tokens, parted_requests
from ascend_dump.analysis.alignment.fixed_caches import keeps_window, room_of
from ascend_dump.analysis.alignment.model_calls import Token
from ascend_dump.analysis.alignment.paged_caches import MisreadToken, misread_token, writes_to_slots
from ascend_dump.analysis.alignment.picked_values import picking_operators, unchanging_operators
from ascend_dump.analysis.alignment.token_groups import (
    base_of,
    groups_of,
    is_append,
    last_results,
    makes_other_kind,
    replaced,
    rounding_unit,
    without_choices,
)
from ascend_dump.analysis.alignment.token_parts import (
    ChosenWays,
    CommonTokens,
    TensorOfCalls,
    TokenPart,
    pair_parts,
    token_part,
)
from ascend_dump.analysis.alignment.token_sequences import calls_of_sides, pair_sequences
from ascend_dump.analysis.alignment.token_ways import TokenSide
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow, InputSource, Made
from ascend_dump.analysis.pairing.matches import Match, RecordPair
from ascend_dump.analysis.pairing.same_framework import align
from ascend_dump.common.units import counted
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["TokenAlignment"]

#: Minimum number of common tokens. Fewer tokens are no evidence that two dumps have the same requests.
_LEAST_TOKENS = 2
_APPENDS = "appended to a cache"
_PICKED = "picked for the program"
#: Maximum number of reasons in the note on tokens.
_MOST_REASONS = 2


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
        self.parted = parted_requests(sequences, reference_sequences, partners)
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
        self._is_rebuilt = False
        #: The memory of products of actual with the weight of a product of the reference in another order of rows.
        self._reordered: set[int] = set()
        #: For each side: (index of the call, name) of operators that are the same as an operator of the base call.
        self._grouped: tuple[set[tuple[int, str]], set[tuple[int, str]]] = (set(), set())
        self._unit = max(rounding_unit(side[0]) for side in self.calls)
        self._compared = ComparedTensors(self._sides, self._bases, self.tokens, self._unit)
        #: Made when a difference is known, because it takes time.
        self._harmless: Optional[HarmlessDifferences] = None
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
            if not makes_other_kind(match)
        ]
        matches = [match for match in matches if not self._is_view_in_other_order(match)]
        matches = as_far_as_weights_show(matches, sides, mapping or {})
        matches = without_choices(sides, matches)
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
        sides, matches = self._program
        if self._harmless is None:
            of_program = sides, self._calls_of, self._undivided, self._origins
            self._harmless = HarmlessDifferences(*of_program, self._compared, self.tokens, self._unit)
        remaining = self._harmless.without(matches, differing)
        if remaining is None:
            return None
        self._program = _Program(sides, remaining)
        return self._kept()

    @property
    def between(self) -> Mapping[str, tuple[list[Operator], list[Operator]]]:
        """By name of an operator of the reference: the operators of both sides that compute its result.

        They begin at the inputs of its match, which are results of other operators.
        """
        return {} if self._harmless is None else self._harmless.between

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
        self._undivided_calls = [of_calls for _, of_calls in groups]
        self._origins = [list(range(len(operators))) for operators, _ in groups]
        if self._is_rebuilt:
            wide = [wide_products(groups[side][0], groups[1 - side][0], may_reorder=not side) for side in (0, 1)]
            self._compared.orders_of_heads = orders_of_heads(wide[0].values())
            products = [groups[0][0][position] for position, parts in wide[0].items() if len(parts) == 1]
            outputs = [record for product in products for record in product.outputs]
            self._reordered = {storage[0] for record in outputs if (storage := storage_of(record)) is not None}
            groups = [divided(group, parts) for group, parts in zip(groups, wide)]
            self._origins = [
                [position for position in origins for _ in parts.get(position, [None])]
                for origins, parts in zip(self._origins, wide)
            ]
        return groups

    def _is_view_in_other_order(self, match: Match) -> bool:
        """Return True for two views of the results of one product, whose weight has its rows in another order."""
        if not is_view(match.actual.op_type):
            return False
        storages = {storage[0] for record in match.actual.inputs if (storage := storage_of(record)) is not None}
        return not storages.isdisjoint(self._reordered)

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
            is_write = keeps_window(side.calls, same) or writes_to_slots(side.calls, same)
            if room or is_append(side, same) or is_write:
                reasons[id(operator)] = _APPENDS
        return reasons

    def added_results(self) -> list[tuple[int, Operator]]:
        """Return (side, operator) of operators that only one side runs on the last result, see `added_results`.

        What a model runs is no temperature, though it comes right before a choice.
        """
        return added_results(*self._program) + [
            (side, operator) for side, operator in scaled_for_choice(*self._program) if operator.phase == "forward"
        ]

    def scaled_for_choice(self) -> list[tuple[int, Operator]]:
        """Return (side, operator) of operators that change the last result of one side before it chooses from it.

        Those that a model runs are among `added_results`.
        """
        of_sides = scaled_for_choice(*self._program)
        return [(side, operator) for side, operator in of_sides if operator.phase != "forward"]

    def behind_results(self, last: RecordPair) -> Optional[RecordPair]:
        """Return the last results of both sides: `last`, or what operators of `added_results` make of it on one side.

        None if it is not known what a side makes of it.
        """
        import numpy as np

        sides, matches = self._program
        added = dict(self.added_results())
        if any(may_change_results(of_side, matches) and side not in added for side, of_side in enumerate(sides)):
            return None
        if not added:
            return last
        tensors = []
        for side, record in enumerate(last):
            part = token_part(record)
            if part is None:
                return None
            tensor = part.tensor_of_calls
            if side in added:
                calls = self._calls_of[side][added[side].position]
                tensor = self._compared.tensor(side, calls, "outputs", added[side].outputs[0])
            tensors.append(tensor)
        actual, reference = tensors
        try:
            return pair_parts(actual, reference, self.tokens, np.zeros(self.tokens.count, bool), ChosenWays())
        except AscendDumpError:
            return None

    def added_operator(self, side: int, part: TokenPart, number: int) -> Optional[tuple[int, Operator]]:
        """Return (index of the call, operator) that only some calls of a side (0: actual) run for a token, or None."""
        return added_operator(self._sides[side], self._grouped[side], part, number)

    def begins_at(
        self, end: RecordPair, numbers: Sequence[int], agreeing: Sequence[Set[str]]
    ) -> list[Optional[Beginning]]:
        """Return for each side where the difference of a tensor begins, see `TracedDifferences`.

        end       the tensor of each side, with a record of the base call or a part of it
        numbers   the tokens whose values differ
        agreeing  for each side: the names of operators with a partner whose results agree
        """
        flows = [DataFlow(operators) for operators in self._undivided]
        positions = [
            {operator.position for operator in flow.operators if operator.op_name in names}
            for flow, names in zip(flows, agreeing)
        ]

        def read(side: int, operator: Operator, record: Record) -> TensorOfCalls:
            calls = self._undivided_calls[side][operator.position]
            return self._compared.tensor(side, calls, f"{record.io}s", record)

        sources = [_sources_of(flow, record) for flow, record in zip(flows, end)]
        return TracedDifferences(flows, positions, read, self.tokens, numbers, self._unit).begins_at(sources)

    def at_token(self, side: int, operator: Operator, number: int) -> Operator:
        """Return an operator of the base call of a side as it runs in the call with a token; itself if it does not."""
        of_calls = self._undivided_calls[side].get(operator.position, {})
        calls = (of_calls[index] for index in sorted(of_calls) if (self._sides[side].slots[index] == number).any())
        return next(calls, operator)

    def operators_before(self, side: int, record: Record, *, by_tokens: bool = True) -> list[Operator]:
        """Return the operators of the base call of a side (0: actual) from whose results a tensor is computed.

        record     the tensor, with a record of the base call or a part of it
        by_tokens  False to leave out operators whose results reach the tensor by integers only, such as token ids
        """
        flow = DataFlow(self._undivided[side])
        waiting, visited = [*_sources_of(flow, record)], {OUTSIDE}
        while waiting:
            source = waiting.pop()
            if not by_tokens and (source.record.dtype or "").startswith(("int", "uint")):
                continue
            for made in (source.maker, source.root):
                if made is not None and made.position not in visited:
                    visited.add(made.position)
                    waiting += flow.sources[made.position]
        return [flow.operators[position] for position in sorted(visited - {OUTSIDE})]

    def reader_of_other_part(self, end: RecordPair, near: float) -> Optional[Operator]:
        """Return the operator of actual that reads what the reference reads at an input, as another part of one tensor.

        end   the input of both sides, with a record of the base call or a part of it
        near  the largest distance of equal values
        """
        flow, part = DataFlow(self._undivided[0]), token_part(end[1])
        sources = _sources_of(flow, end[0])
        if part is None or not sources or sources[0].root is None or sources[0].root.position == OUTSIDE:
            return None
        own = sources[0]
        for reader in flow.operators:
            for source in flow.sources[reader.position]:
                is_other = source.root == own.root and source.record.shape == own.record.shape
                offsets = {record.attrs.get("storage_offset") for record in (source.record, own.record)}
                if not is_other or len(offsets) < 2 or is_view(reader.op_type):
                    continue
                tensor = self._compared.tensor(0, self._undivided_calls[0][reader.position], "inputs", source.record)
                try:
                    if part.apart_from(tensor) <= near:
                        return reader
                except AscendDumpError:
                    continue
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

    @property
    def has_same_requests(self) -> bool:
        """True if both sides have most tokens, be it at other positions, as packed requests with wrong positions do."""
        displaced = max(sum(tokens.length for tokens in of_side) for of_side in self.displaced)
        return self.has_most_tokens or 2 * (self.tokens.count + displaced) >= min(map(count_tokens, self.calls))

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
            f"left out: {counted(count, 'token')} of {side} that a later call replaces, as after a rejected draft"
            for count, side in zip(self._rejected, ("actual", "the reference"))
            if count
        ]
        padding = [
            f"positions of {side} count {counted(count, 'slot')} of padding before its requests as tokens"
            for of_side, side in zip(self.calls, ("actual", "the reference"))
            if (count := sum(call.counted for call in of_side))
        ]
        return [*self._compared.left_out.notes(), *rejected, *padding, self._note()]

    @property
    def omitted(self) -> Mapping[str, int]:
        """The number of tensors that are not compared, by the reason, the commonest reason first."""
        return dict(self._compared.omitted.most_common())

    def _note(self) -> str:
        """Return one sentence on the tokens that are compared, and on tensors that are not."""
        compared, omitted = self._compared, self._compared.omitted
        reasons = ", ".join(f"{count} {reason}" for reason, count in omitted.most_common(_MOST_REASONS) if count)
        requests = counted(len({*self.tokens.index_of[:, 0].tolist()}), "request")
        return (
            f"{self.tokens.count} tokens of {requests}: {compared.joined + compared.whole} tensors compared, "
            f"{sum(omitted.values())} not{reasons and f' ({reasons})'}"
        )


def _sources_of(flow: DataFlow, record: Optional[Record]) -> list[InputSource]:
    """Return the source of a tensor: that of an input of an operator, or the operator that has it as an output."""
    name = "" if record is None else record.op_name.partition("[")[0]
    position = next((n for n, operator in enumerate(flow.operators) if operator.op_name == name), None)
    if position is None or record is None:
        return []
    if record.io == "output":
        return [InputSource(record, Made(position, record.index), None, None)]
    return [source for source in flow.sources[position] if source.record.index == record.index]
