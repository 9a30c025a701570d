"""Causes of wrong records in dumps of `level="module"`, which contain only inputs and outputs of modules.

Neither parameters nor the functions between modules are recorded, so only possible causes are known. A wrong inner
module may have made its outer module wrong; the inner one is recorded first, since modules are recorded when they end.
A wrong input may come from any earlier module, through functions that are not recorded. After a wrong gradient, the
parameters of all later steps may be wrong.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.reading import Record

__all__ = ["NOT_RECORDED", "ModuleCalls"]

#: Evidence that weakens each statement about a module.
NOT_RECORDED = "level='module' records neither parameters nor the functions between modules: the cause may be there"

_NONE: frozenset[int] = frozenset()


class _CallOfOneSide(NamedTuple):
    """A module call that only one of two programs makes.

    number  its origin
    change  its class and source line: the calls of one line, in all layers, are one change of the program
    """

    module: str
    number: int
    change: tuple[Optional[str], Optional[str]]


class ModuleCalls:
    """The wrong module calls of one rank, with the numbers of their origins.

    Calls have to be given in execution order. Records of operators are ignored.
    """

    def __init__(self) -> None:
        self._step: Any = None
        self._origins: set[int] = set()
        self._of_step: set[int] = set()
        #: Origins of wrong gradients: of this step, and of earlier steps. After an earlier step, an optimizer may have
        #: made parameters wrong.
        self._of_gradients: set[int] = set()
        self._of_updates: set[int] = set()
        self._of_module: dict[str, frozenset[int]] = {}
        #: For backward (True) and forward (False): the wrong calls whose outer calls have not ended yet. Each has its
        #: module path and its origins.
        self._inside: dict[bool, list[tuple[str, frozenset[int]]]] = {}
        #: Calls that only one of two programs makes. They are used only for a difference that no other origin explains.
        self._alone: list[_CallOfOneSide] = []
        #: The classes and source lines of such calls inside of modules whose outputs agree.
        self._harmless: set[tuple[Optional[str], Optional[str]]] = set()

    def of_input(self, record: Record) -> frozenset[int]:
        """Return the possible origins of a wrong input that no recorded module produced."""
        if not is_of_module(record):
            return _NONE
        return frozenset(self._origins or (call.number for call in self._calls_of_one_side()))

    def known(self, record: Record) -> frozenset[int]:
        """Return the origins of earlier wrong calls, which explain a wrong input better than calls of one side do."""
        return frozenset(self._origins) if is_of_module(record) else _NONE

    def of_output(self, record: Record) -> frozenset[int]:
        """Return the possible origins of a wrong output, besides the origins of the inputs of its module."""
        if not is_of_module(record):
            return _NONE
        self._enter(record)
        inside = self._inside.get(_is_backward(record), ())
        origins = _NONE.union(*(causes for module, causes in inside if _is_inside(module, record)))
        if not origins and _is_backward(record):
            origins = frozenset(self._of_step)  # a backward call also reads unrecorded values of the forward pass
        origins = origins or frozenset(self._of_updates) or self._of_module.get(record.module or "", _NONE)
        calls = (call for call in self._calls_of_one_side() if _is_inside(call.module, record))
        return origins or frozenset(call.number for call in calls)

    def add_alone(self, record: Record, number: int) -> None:
        """Add a call that only one of two programs makes. record: a record of the call."""
        if is_of_module(record):
            self._alone.append(_CallOfOneSide(record.module or "", number, (record.op_type, record.source)))

    def _calls_of_one_side(self) -> list[_CallOfOneSide]:
        """Return the calls that only one side makes, and that agreed in no other module."""
        return [call for call in self._alone if call.change not in self._harmless]

    def end(self, record: Record, origins: Collection[int], *, agrees: bool = False) -> frozenset[int]:
        """Add a module call that ended, with the origins of its wrong values. Return the origins that end inside it.

        record  a record of the call
        agrees  all outputs agree, so that what differs inside the module ends there
        """
        if not is_of_module(record):
            return _NONE
        self._enter(record)
        backward, module = _is_backward(record), record.module or ""
        inside = self._inside.setdefault(backward, [])
        of_call = _NONE.union(origins, *(causes for name, causes in inside if _is_inside(name, record)))
        inside[:] = (call for call in inside if not _is_inside(call[0], record))
        ended = of_call.difference(origins, *(causes for _, causes in inside)) if agrees and module else _NONE
        self._forget(ended)
        if agrees and module:
            alone = [call for call in self._alone if _is_inside(call.module, record)]
            self._alone = [call for call in self._alone if call not in alone]
            self._harmless.update(call.change for call in alone)
            ended |= {call.number for call in alone}
        of_call -= ended
        if of_call:
            inside.append((module, of_call))
        if origins:
            self._origins.update(origins)
            self._of_step.update(origins)
            self._of_module[module] = frozenset(origins)
            if backward:
                self._of_gradients.update(origins)
        return ended

    def _forget(self, ended: frozenset[int]) -> None:
        """Remove origins whose differences ended inside a module."""
        for numbers in (self._origins, self._of_step, self._of_gradients):
            numbers.difference_update(ended)

    def _enter(self, record: Record) -> None:
        step = record.run, record.step
        if step != self._step:
            self._step = step
            self._of_updates |= self._of_gradients
            self._of_gradients.clear()
            self._of_step.clear()
            self._inside.clear()


def _is_backward(record: Record) -> bool:
    # The phase would be wrong: checkpointing runs forward calls again in the backward pass.
    return record.op_name.rpartition("/")[2].startswith("backward_")


def _is_inside(module: str, record: Record) -> bool:
    return not record.module or module.startswith(f"{record.module}.")
