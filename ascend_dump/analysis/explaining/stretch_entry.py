"""Enter the operators that only one side runs into their stretches, and draft the origin of each stretch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Optional

from ascend_dump.analysis.explaining.drafts import Draft, stretch_draft
from ascend_dump.analysis.explaining.inputs import InputJudge
from ascend_dump.analysis.explaining.rank_state import RankState
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.explaining.stretches import is_lost_gradient
from ascend_dump.analysis.explaining.wiring import Wiring
from ascend_dump.analysis.judging.input_noise import OriginNumber
from ascend_dump.analysis.numerics.tensor_pair import identity_of
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import COPIES, operator_class, writes
from ascend_dump.analysis.pairing.stretches import Stretch
from ascend_dump.analysis.pairing.weak_pairs import computes
from ascend_dump.reading import Record

__all__ = ["StretchEntry"]

#: Operators that return parts of a tensor.
_DIVIDING = frozenset({"split", "split_with_sizes", "chunk", "tensor_split", "unbind", "narrow", "slice", "select"})

#: Norms of tensors that agree but for rounding are as near as this.
_NEAR = 1e-2


class StretchEntry:
    """The entry of the operators without a partner of one step into their stretches."""

    def __init__(
        self,
        state: RankState,
        wiring: Optional[Wiring],
        inputs: InputJudge,
        last_updates: list[Draft],
        *,
        by_tokens: bool,
    ) -> None:
        """Begin a step.

        last_updates  gets the hidden drafts at updates that one side runs after its last operator with a partner
        by_tokens     True if the tokens of all calls are walked as one step, so that states are read in it
        """
        self._state, self._wiring, self._inputs = state, wiring, inputs
        self._last_updates, self._by_tokens = last_updates, by_tokens

    def enter(self, side: int, operator: Operator, outputs: Sequence[Pair]) -> None:
        """Note an operator that only one side runs, with its inputs and outputs."""
        state = self._state
        stretch = state.stretches.stretch_of(side, operator)
        if _divides_data(stretch):
            return
        entered = state.stretches.entered(stretch)
        if entered is None:
            runs_alone = not stretch.operators[1 - side]
            lost = self._lost_gradient(side, operator, stretch)
            number = (
                state.arguments.stretch_origin(
                    side, operator, state.drafts, self._draft_of(side, stretch), is_lost=is_lost_gradient(stretch)
                )
                if lost is None
                else lost
            )
            entered = state.stretches.enter(stretch, number)
            entered.is_known = lost is not None
            draft = state.drafts[number]
            entered.has_agreed = draft.settled and draft.pair.record.step != outputs[0].record.step
            owners = () if self._wiring is None else self._wiring.owners_of_lost_gradients
            entered.is_lost = is_lost_gradient(stretch) and stretch.module in owners
            if lost is not None:
                state.drafts[lost].backward.append(operator.label)
            if state.has_parts and state.drafts[number].hidden:
                # Ranks that work together run operators that one rank does not need: only their results count.
                state.drafts[number].add_reach(False)
            if runs_alone and operator.function == "detach" and operator.phase != "backward":
                state.arguments.add_detached(side, operator, number)
            if not state.has_parts:
                state.rebuilt.append((number, entered))
        if not state.has_parts:
            state.arguments.add_forward(operator, entered.number)
            state.modules.add_alone(outputs[0].record, entered.number)
            if state.modules.has_lost_gradient(outputs[0].record):
                state.drafts[entered.number].add_lost_gradient()
        contents = [identity_of(record) for record in operator.inputs]
        for record, content in zip(operator.inputs, contents):
            self._inputs.judge_parameter(record)
            state.stretches.read(side, entered, content)
            causes, noise = state.known.of_side(side, content)
            entered.causes |= causes
            if noise is not None:
                entered.add_noise(side, noise, record)
        for pair in outputs:
            state.stretches.add_output(side, entered, operator, pair.record)
            if contents and operator.function in COPIES:
                state.known.add_copy(side, contents[0], identity_of(pair.record))
            if _is_write(pair.record, operator) and not state.has_parts:
                state.known.add_one_sided_write(side, pair.record, entered.number)

    def _draft_of(self, side: int, stretch: Stretch) -> Draft:
        if self._wiring is None or stretch.operators[1 - side]:
            return stretch_draft(stretch)
        written = [] if self._by_tokens else self._wiring.states_written(side, stretch.operators[side])
        states = [record for record in written if not self._has_copy(side, record)]
        draft = stretch_draft(stretch, [self._wiring.named(side, record) for record in states])
        if states and stretch.operators[side][-1].position > self._wiring.last_paired[side]:
            # The recording of the other side may have ended before this update. If a further step is recorded, the
            # recording had not ended, and `begin_step` makes the draft visible.
            draft.hidden = True
            self._last_updates.append(draft)
        return draft

    def _has_copy(self, side: int, state: Record) -> bool:
        """Return True if the other side copies the same values, but for rounding, instead of updating a tensor."""
        pairs = ((state, copy) if side == 0 else (copy, state) for copy in self._copies(1 - side, state))
        return any(_may_agree(a, b) and self._state.agree(a, b) for a, b in pairs)

    def _copies(self, side: int, state: Record) -> Iterator[Record]:
        for operator in () if self._wiring is None else self._wiring.operators[side]:
            if operator.function == "copy" and operator.phase != "backward":
                yield from (output for output in operator.outputs if output.shape == state.shape)

    def _lost_gradient(self, side: int, operator: Operator, stretch: Stretch) -> Optional[OriginNumber]:
        """Return the origin at a detach because of which one side computes nothing in a stretch of the backward pass.

        That side may make zeros there. Returns None if both sides compute.

        side, operator: the first operator of the stretch
        """
        computing = [next(filter(computes, operators), None) for operators in stretch.operators]
        if not stretch.operators[1 - side]:
            computing[side] = operator
        if (computing[0] is None) == (computing[1] is None):
            return None
        lacking = 0 if computing[0] is None else 1
        first = computing[1 - lacking]
        if first is None:
            return None
        lacks_all = not stretch.operators[lacking]
        return self._state.arguments.lost_gradient(1 - lacking, first, is_alone=lacks_all)


def _is_write(output: Record, operator: Operator) -> bool:
    """Return True if an operator wrote this output to the memory of an input."""
    storage, inputs = storage_of(output), map(storage_of, operator.inputs)
    return writes(operator.op_type) and storage is not None and any(read and read[0] == storage[0] for read in inputs)


def _divides_data(stretch: Stretch) -> bool:
    """Return True if operators outside of modules only divide data into parts: a difference begins where they are read.

    A step may end with operators that prepare the data of the next one, such as the parts of its batch.
    """
    operators = [*stretch.operators[0], *stretch.operators[1]]
    return all(
        operator.phase == "other" and not operator.module and operator_class(operator.op_type) in _DIVIDING
        for operator in operators
    )


def _may_agree(a: Record, b: Record) -> bool:
    """Return False if the recorded norms of two tensors are so far apart that the values need not be compared."""
    norms = [None if found is None else found.l2norm for found in (a.recorded_statistics(), b.recorded_statistics())]
    return norms[0] is None or norms[1] is None or math.isclose(norms[0], norms[1], rel_tol=_NEAR)
