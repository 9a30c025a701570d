"""Leave out what two programs do differently, if it leads to nothing but tensors that agree.

Only the operators before a tensor that differs can be its cause. Programs that are built otherwise have many others:
operators that are paired although they do not do the same, and operators without a partner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Optional

from ascend_dump.analysis.alignment.built_otherwise.agreeing_results import (
    ReadTensor,
    agreeing_results,
    are_rewritten,
    with_other_inputs,
)
from ascend_dump.analysis.alignment.built_otherwise.borders import Borders, RecordKey
from ascend_dump.analysis.alignment.built_otherwise.moved_differences import moved_differences
from ascend_dump.analysis.alignment.built_otherwise.products import is_product
from ascend_dump.analysis.alignment.built_otherwise.same_sources import operators_between, results_of_same_sources
from ascend_dump.analysis.alignment.compared_tensors import ComparedTensors
from ascend_dump.analysis.alignment.picked_values import is_unchanging
from ascend_dump.analysis.alignment.token_groups import computes_floats, last_results
from ascend_dump.analysis.alignment.token_parts import CommonTokens, TensorOfCalls
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.data_flow import DataFlow
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.analysis.pairing.weak_pairs import computes
from ascend_dump.reading import Record

__all__ = ["HarmlessDifferences", "OfCalls"]

_REBUILT = "inside parts that agree"
#: For each side: by position of an operator, the same operator in all calls, by index of the call.
OfCalls = Sequence[Mapping[int, dict[int, Operator]]]


class HarmlessDifferences:
    """Finds the differences that lead to nothing but tensors that agree.

    between  by name of an operator of the reference: the operators of both sides that compute its result from the
             inputs of its match, which are results of other operators
    """

    def __init__(
        self,
        sides: Sequence[Sequence[Operator]],
        calls_of: OfCalls,
        undivided: Sequence[Sequence[Operator]],
        positions: Sequence[Sequence[int]],
        compared: ComparedTensors,
        tokens: CommonTokens,
        unit: float,
    ) -> None:
        """Keep what both programs consist of.

        sides      the operators of each side
        undivided  the same before wide products were divided into narrow ones
        positions  for each side and operator: its position among the undivided operators
        unit       the rounding unit
        """
        self.between: dict[str, tuple[list[Operator], list[Operator]]] = {}
        self._sides, self._calls_of, self._origins = sides, calls_of, positions
        self._compared, self._tokens, self._unit = compared, tokens, unit
        self._has_agreeing = False
        self._flows = [DataFlow(operators) for operators in undivided]

    def without(self, matches: Sequence[Match], differing: Set[RecordKey]) -> Optional[list[Match]]:
        """Return the matches without those that are different but lead only to tensors that agree.

        Their records, and those of such operators of one side, are left out of the compared records. None if nothing
        is left out.

        differing: the key of each record that differs between the two sides
        """
        sides, before = self._sides, matches
        parts = self._compared.parts
        count = _count_compared(parts)
        moved = moved_differences(self._flows, self._origins, before, parts, differing)
        matches = [match for match in before if id(match.reference) not in moved]
        if self._compared.is_rebuilt and not self._has_agreeing:
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
                leads_on = is_move and borders.reads_difference(operator, number, differing, alone)
                if leads_on and not borders.is_inside(operator, number):
                    continue
                self._compared.omitted[_REBUILT] += computes_floats(operator)
                parts.update(dict.fromkeys(map(id, operator.records)))
        has_rounding = borders.note_rounding(matches)
        is_same = not has_rounding and _count_compared(parts) == count and len(matches) == len(before)
        return None if is_same else matches

    def _with_agreeing(self, matches: Sequence[Match], differing: Set[RecordKey]) -> list[Match]:
        """Return the matches, and those of operators with results that agree; these replace doubtful matches.

        Of the added matches, the results are compared only.
        """
        sides, parts = self._sides, self._compared.parts
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
            for match in agreeing_results(sides, matches, doubtful, read, self._tokens, self._unit)
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
            operators = self._sides[side]
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
        sides, parts = self._sides, self._compared.parts
        known = [match for match in matches if match.how == "value" or not self._is_doubtful(match, differing)]
        added: list[Match] = []
        for match in results_of_same_sources(self._flows, self._origins, sides, known):
            operators = match.actual, match.reference
            sources = {source.reference.op_name for source in (*known, *added)}
            inputs = [pair for pair in match.inputs if pair[1] is not None and pair[1].op_name in sources]
            if not inputs:
                continue  # nothing shows whether the difference begins here
            match = match._replace(tensors=(inputs, match.outputs))
            tensors = [read(side, operator, operator.outputs[0]) for side, operator in enumerate(operators)]
            if not are_rewritten(tensors[0], tensors[1], self._tokens):
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


def _names(match: Match) -> list[tuple[int, str]]:
    """Return (side, name) of both operators of a match."""
    return [(0, match.actual.op_name), (1, match.reference.op_name)]


def _count_compared(parts: Mapping[int, Optional[Record]]) -> int:
    return sum(part is not None for part in parts.values())
