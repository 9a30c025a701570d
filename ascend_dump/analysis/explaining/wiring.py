"""Find operators that read another tensor than in the reference, and states that only one program writes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Optional

from ascend_dump.analysis.alignment.token_parts import token_part
from ascend_dump.analysis.numerics.arrangement import are_rearranged
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.operator import Operator, parameter_name, storage_of
from ascend_dump.analysis.operators.properties import writes
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow, Flows, InputSource, Made, layout_of
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.reading import Record

__all__ = ["CHANGED", "FROM_OUTSIDE", "NOT_WRITTEN", "Wiring"]

#: Operators that overwrite a tensor, such as a sum or gradient, to begin it anew.
_FILLS = ("zero", "fill", "copy")
_GRADIENT = ".grad"
NOT_WRITTEN = "no recorded operator wrote it before"
CHANGED = "changed since by something that is not recorded"
FROM_OUTSIDE = "a tensor from outside"


class Wiring:
    """The sources of the inputs of both programs in one step."""

    def __init__(self, actual: Sequence[Operator], reference: Sequence[Operator], matches: Sequence[Match]) -> None:
        self.operators = actual, reference
        #: For each side: the positions of its paired operators, with the position of the pair in the reference.
        self.partners = (
            {match.actual.position: match.reference.position for match in matches},
            {match.reference.position: match.reference.position for match in matches},
        )

    @cached_property
    def flows(self) -> Flows:
        """The data flow of both programs."""
        return DataFlow(self.operators[0]), DataFlow(self.operators[1])

    @cached_property
    def last_paired(self) -> tuple[int, int]:
        """The position of the last operator with a partner on each side; -1 if there is none."""
        return max(self.partners[0], default=-1), max(self.partners[1], default=-1)

    @cached_property
    def first_reads(self) -> tuple[dict[str, Record], dict[str, Record]]:
        """For each side, by the name of a parameter: its first record, which is an output if it is written first."""
        found: tuple[dict[str, Record], dict[str, Record]] = ({}, {})
        for operators, reads in zip(self.operators, found):
            for operator in operators:
                for record in operator.records:
                    if record.parameter:
                        reads.setdefault(record.parameter, record)
        return found

    @cached_property
    def owners_of_lost_gradients(self) -> set[str]:
        """The paths of modules that own a parameter with a gradient on one side only."""
        here, there = (
            {
                record.parameter
                for operator in operators
                for record in operator.records
                if record.parameter and record.parameter.endswith(_GRADIENT)
            }
            for operators in self.operators
        )
        names = here ^ there if here and there else set()
        return {name.removesuffix(_GRADIENT).rpartition(".")[0] for name in names}

    @cached_property
    def _names(self) -> tuple[dict[int, str], dict[int, str]]:
        """For each side, by the number of a storage: the name of the parameter in it."""
        return self._named(0), self._named(1)

    def _named(self, side: int) -> dict[int, str]:
        records = (record for operator in self.operators[side] for record in operator.records if record.parameter)
        return {storage[0]: record.parameter or "" for record in records if (storage := storage_of(record)) is not None}

    @cached_property
    def _own_parameters(self) -> tuple[set[str], set[str]]:
        """For each side: the parameters that the other side lacks, if both have some: weights are divided otherwise.

        For example, one side has a single weight for query, key and value. Where it is used shows whether these agree.
        """
        names = tuple(
            {name for operator in operators for record in operator.records if (name := parameter_name(record))}
            for operators in self.operators
        )
        own = names[0] - names[1], names[1] - names[0]
        return own if all(own) else (set(), set())

    def updates_own(self, stretch: tuple[Sequence[Operator], Sequence[Operator]]) -> bool:
        """Return True if operators outside of all modules update a parameter that the other side lacks."""
        return any(
            parameter_name(record) in self._own_parameters[side] and operator.phase == "other" and not operator.module
            for side, operators in enumerate(stretch)
            for operator in operators
            for record in operator.outputs
        )

    def parameter(self, record: Record, side: int = 0) -> str:
        """Return the name of a parameter, or of a view of it, that an operator reads; "" if it is unknown.

        side: 0 for an operator of actual
        """
        storage = storage_of(record)
        return record.parameter or ("" if storage is None else self._names[side].get(storage[0], ""))

    def explain(self, match: Match, a: Record, b: Record) -> tuple[bool, list[str]]:
        """Return True if an input reads another tensor than in the reference, and the evidence on its sources."""
        sources = self._source(0, match.actual, a), self._source(1, match.reference, b)
        roots = [None if source is None else source.root for source in sources]
        if roots[0] is None or roots[1] is None:
            return False, []
        if roots[0].position == roots[1].position == OUTSIDE:
            parameters, holder = self._parameters(a, b), self._holder_of(a, b)
            if parameters is None and holder is not None and not a.parameter:
                parameters = holder, b.parameter or ""
            if parameters is None:
                return False, [NOT_WRITTEN, *([] if holder is None else [f"it has the elements of {holder}"])]
            return True, [f"reads {parameters[0]} here, {parameters[1]} in the reference"]
        names = [self._name(side, source) for side, source in enumerate(sources) if source is not None]
        if self.partners[0].get(roots[0].position) == roots[1].position and roots[0].output == roots[1].output:
            if layout_of(a) != layout_of(b):
                return True, [f"reads another part of {names[0]} than in the reference, or its axes in another order"]
            if self._has_elements_of(0, roots[0], a) and self._has_elements_of(1, roots[1], b):
                return True, [f"reads {names[0]} with its rows or axes in another order than in the reference"]
            return False, [f"made by {names[0]}, and {CHANGED}"]
        return True, [f"reads {names[0]} here, {names[1]} in the reference"]

    def update_between(self, match: Match, a: Record, b: Record) -> list[str]:
        """Return the evidence that one side reads a parameter before an update, and the other one after it; else []."""
        sources = self._source(0, match.actual, a), self._source(1, match.reference, b)
        positions = [source.root.position for source in sources if source is not None and source.root is not None]
        name = self.parameter(a)
        is_of_both = name == self.parameter(b, 1) and bool(name) and not name.endswith(_GRADIENT)
        updates = [(side, position) for side, position in enumerate(positions) if position != OUTSIDE]
        if not is_of_both or len(positions) < 2 or len(updates) != 1:
            return []
        [(side, position)] = updates
        times = ("after", "before") if side == 0 else ("before", "after")
        return [f"reads {name} {times[0]} {self.operators[side][position].label} here, {times[1]} it in the reference"]

    def _has_elements_of(self, side: int, root: Made, record: Record) -> bool:
        """Return True if a tensor has all elements of the tensor that it is a view of, in any order.

        If both sides do, and the tensors that they are views of agree, only the order can differ. Tokens of several
        calls are no view of what one call made.
        """
        outputs = self.operators[side][root.position].outputs
        if root.output >= len(outputs) or token_part(record) is not None:
            return False
        viewed = outputs[root.output]
        if viewed.content is None or record.content is None:
            return False
        return viewed.content[0] == record.content[0] or are_rearranged(viewed, record)

    def enclosing(self, match: Match) -> list[tuple[Operator, Operator]]:
        """Return the calls of the modules around a module in dumps of `level="module"`, outermost first.

        They are recorded when they end, so later, but their inputs are made earlier than those inside.
        """
        module, phase = match.reference.module or "", match.reference.phase
        if phase not in ("forward", "backward") or not module:
            return []
        calls: dict[str, tuple[Operator, Operator]] = {}
        actual = {
            position: operator for operator in self.operators[0] if (position := self._partner_of(operator)) is not None
        }
        for operator in self.operators[1][match.reference.position + 1 :]:
            outer, partner = operator.module or "", actual.get(operator.position)
            is_around = not outer or module.startswith(f"{outer}.")
            if is_around and partner is not None and operator.phase == phase and any(operator.inputs):
                calls.setdefault(outer, (partner, operator))
        return [calls[outer] for outer in sorted(calls, key=len)]

    def _partner_of(self, operator: Operator) -> Optional[int]:
        return self.partners[0].get(operator.position)

    def _parameters(self, a: Record, b: Record) -> Optional[tuple[str, str]]:
        """Return the names of two parameters that both programs have; None if one is unknown or both are the same."""
        storages = [storage_of(record) or (-1,) for record in (a, b)]
        name_a, name_b = (names.get(storage[0], "") for names, storage in zip(self._names, storages))
        if not name_a or not name_b or name_a == name_b:
            return None
        is_of_both = name_a in self._names[1].values() and name_b in self._names[0].values()
        return (name_a, name_b) if is_of_both else None

    def _holder_of(self, a: Record, b: Record) -> Optional[str]:
        """Return the name of the only parameter of the reference with the elements of another one of actual.

        Actual may have no names, and read a wrong weight, or its weights may have been loaded into wrong modules.
        """
        holders = self._named_contents.get(a.content, set()) if b.parameter else set()
        return None if len(holders) != 1 or b.parameter in holders else next(iter(holders))

    @cached_property
    def _named_contents(self) -> dict[Hashable, set[str]]:
        """By content: the names of the parameters of the reference that have it."""
        contents: dict[Hashable, set[str]] = {}
        for operator in self.operators[1]:
            for record in operator.inputs:
                if record.parameter and record.content is not None:
                    contents.setdefault(record.content, set()).add(record.parameter)
        return contents

    def states_written(self, side: int, operators: Sequence[Operator]) -> list[Record]:
        """Return the last values of the `changed_states`."""
        return [after for _, after in self.changed_states(side, operators)]

    def changed_states(self, side: int, operators: Sequence[Operator]) -> list[tuple[Record, Record]]:
        """Return first and last values of tensors older than the step that operators of one side (0: actual) update.

        Gradients, integers and single numbers are left out, and so are tensors that the other side writes too, and
        operators that fill or copy.
        """
        flow = self.flows[side]
        before: dict[int, Record] = {}
        after: dict[int, Record] = {}
        for operator in operators:
            if operator.phase == "backward" or not writes(operator.op_type) or operator.function in _FILLS:
                continue
            for source in flow.sources[operator.position]:
                if source.root is not None and source.root.position == OUTSIDE:
                    before.setdefault(source.root.output, source.record)
            after.update((storage[0], output) for output in operator.outputs if (storage := storage_of(output)))
        return [
            (before[storage], output)
            for storage, output in after.items()
            if storage in before
            and self._is_changed(side, before[storage], output)
            and not self._is_divided(1 - side, output)
        ]

    def _is_divided(self, side: int, state: Record) -> bool:
        """Return True if one side (0: actual) may keep a state in flat memory, and the other one in smaller tensors.

        For example, one program averages each parameter, and the other one flat memory of all parameters. Both update
        as many elements, or more.

        side: the side that does not have the state as it is
        """
        size = math.prod(state.shape or ())
        if len(state.shape or ()) == 1 and self._has_parts_of(side, size):
            return True
        return any(length > size and self._has_parts_of(1 - side, length) for length in self._flat_lengths(side))

    def _has_parts_of(self, side: int, length: int) -> bool:
        parts = [math.prod(shape) for shape in self._written_shapes[side] if math.prod(shape) < length]
        return len(parts) > 1 and sum(parts) >= length

    def _flat_lengths(self, side: int) -> set[int]:
        return {shape[0] for shape in self._written_shapes[side] if len(shape) == 1}

    @cached_property
    def _written_shapes(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """For each side: the shapes of the tensors older than the step that it updates."""
        sides = []
        for flow in self.flows:
            shapes: dict[int, tuple[int, ...]] = {}
            for operator, sources in zip(flow.operators, flow.sources):
                if operator.phase != "backward" and writes(operator.op_type):
                    for source in sources[:1]:
                        if source.root is not None and source.root.position == OUTSIDE:
                            shapes[source.root.output] = source.record.shape or ()
            sides.append([*shapes.values()])
        return sides[0], sides[1]

    def _is_changed(self, side: int, before: Record, after: Record) -> bool:
        # Step counts are single numbers. The other program may keep them in Python, so single numbers are left out.
        is_float = float_kind(after.dtype or "") is not None and math.prod(after.shape or ()) > 1
        name = self._names[side].get((storage_of(after) or (-1,))[0], after.parameter or "")
        if not is_float or name.endswith(".grad") or after.content is None or after.content == before.content:
            return False
        return after.content not in self._written[1 - side] and (not name or name not in self._named_writes[1 - side])

    @cached_property
    def _written(self) -> tuple[set[object], set[object]]:
        """For each side: the contents of all outputs."""
        sides: list[set[object]] = [
            {output.content for one in operators for output in one.outputs} for operators in self.operators
        ]
        return sides[0], sides[1]

    @cached_property
    def _named_writes(self) -> tuple[set[str], set[str]]:
        """For each side: the names of the parameters and states that it writes.

        An update of flat memory writes all parameters in it.
        """
        sides = []
        for operators in self.operators:
            names: dict[int, set[str]] = {}
            for record in (record for one in operators for record in one.records if record.parameter):
                names.setdefault((storage_of(record) or (-1,))[0], set()).add(record.parameter or "")
            outputs = (output for one in operators if writes(one.op_type) for output in one.outputs)
            of_outputs = (names.get((storage_of(output) or (-1,))[0], {output.parameter or ""}) for output in outputs)
            sides.append(set().union(*of_outputs))
        return sides[0], sides[1]

    def named(self, side: int, record: Record) -> str:
        """Return the name of the parameter or state of a tensor, or that it is from outside."""
        storage = storage_of(record)
        name = "" if storage is None else self._names[side].get(storage[0], "")
        return name or record.parameter or FROM_OUTSIDE

    def _source(self, side: int, operator: Operator, record: Record) -> Optional[InputSource]:
        sources = self.flows[side].sources[operator.position]
        return next((source for source in sources if source.record is record), None)

    def _name(self, side: int, source: InputSource) -> str:
        root = source.root
        if root is None or root.position == OUTSIDE:
            return self.named(side, source.record)
        label = self.operators[side][root.position].label
        return label if root.output == 0 else f"output {root.output} of {label}"
