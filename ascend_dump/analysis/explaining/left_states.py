"""Find states of modules that one program updates, and that the other program leaves as they are.

For example, a batch norm that is written by hand may compute the new running mean and not store it. The results of
training agree, so only the next step shows it: one side reads the updated state, and the other side the old one again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

from ascend_dump.analysis.explaining.wiring import Wiring
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.data_flow import OUTSIDE
from ascend_dump.analysis.pairing.stretches import Stretch
from ascend_dump.reading import Record

__all__ = ["LeftState", "LeftStates", "paired_states"]


class LeftState(NamedTuple):
    """A state that one side updates. side: 0 if actual does. operator: writes it. before, after: its values"""

    side: int
    operator: Operator
    before: Record
    after: Record


def paired_states(
    groups: Iterable[tuple[list[Record], list[Record]]], agree: Callable[[Record, Record], bool]
) -> Iterator[tuple[Record, Record]]:
    """Yield the pairs of updated states that were equal before: first those that agree, then the others in their order.

    groups  the states of actual and of the reference
    agree   returns True if two states are equal but for rounding
    """
    for of_actual, of_reference in groups:
        waiting = [*of_reference]
        left = []
        for a in of_actual:
            partner = next((b for b in waiting if agree(a, b)), None)
            if partner is None:
                left.append(a)
            else:
                waiting = [b for b in waiting if b is not partner]
                yield a, partner
        yield from zip(left, waiting)


class LeftStates:
    """The states of modules that only one side updated in the last step."""

    def __init__(self) -> None:
        self._last: list[LeftState] = []

    def of_step(self, wiring: Wiring, stretches: Iterable[Stretch]) -> Iterator[LeftState]:
        """Yield the states of the last step that one side reads updated in this step, and the other side unchanged.

        Only stretches are searched in which both sides run a module differently.
        """
        states: list[LeftState] = []
        again: set[tuple[int, Hashable]] = set()
        unchanged: set[tuple[int, Hashable]] = set()
        for stretch in stretches:
            for side in (0, 1) if all(stretch.operators) else ():
                read = _read_states(wiring, 1 - side, stretch)
                updated = [*_updated(wiring, side, stretch)]
                states += (state for state in updated if state.before.content in read)
                again.update((side, state.before.content) for state in updated)
                unchanged.update((side, content) for content in read)
        for state in self._last:
            if (state.side, state.after.content) in again and (state.side, state.before.content) in unchanged:
                yield state
        self._last = states


def _updated(wiring: Wiring, side: int, stretch: Stretch) -> Iterator[LeftState]:
    inside = [operator for operator in stretch.operators[side] if operator.module and operator.phase == "forward"]
    for before, after in wiring.changed_states(side, inside) if inside else ():
        writer = next(operator for operator in inside if any(output is after for output in operator.outputs))
        yield LeftState(side, writer, before, after)


def _read_states(wiring: Wiring, side: int, stretch: Stretch) -> set[Hashable]:
    """Return the contents of tensors older than the step that operators of one side read, without parameters.

    Several states may have one content, such as zeros. These are left out.
    """
    storages: dict[Hashable, set[int]] = {}
    for operator in stretch.operators[side]:
        for source in wiring.flows[side].sources[operator.position]:
            root, content = source.root, source.record.content
            if root is None or root.position != OUTSIDE or content is None:
                continue
            if not wiring.parameter(source.record, side):
                storages.setdefault(content, set()).add(root.output)
    return {content for content, of_content in storages.items() if len(of_content) == 1}
