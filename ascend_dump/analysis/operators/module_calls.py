"""Causes of wrong records in dumps of `level="module"`, which contain only inputs and outputs of modules.

Neither parameters nor the functions between modules are recorded, so only possible causes are known. A wrong inner
module may have made its outer module wrong; the inner one is recorded first, since modules are recorded when they end.
A wrong input may come from any earlier module, through functions that are not recorded. After a wrong gradient, the
parameters of all later steps may be wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.reading import Record

__all__ = ["DRIFTED", "NOT_RECORDED", "ModuleCalls"]

#: Evidence that weakens each statement about a module.
NOT_RECORDED = "level='module' records neither parameters nor the functions between modules: the cause may be there"

#: The reason of small differences after a step whose gradients differ by rounding.
DRIFTED = "rounding in gradients of earlier steps may have changed parameters, which are not recorded"
#: The largest relative error for which `DRIFTED` is a sufficient reason.
_MOST_DRIFT = 0.1

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
        self._before: Any = None
        self._origins: set[int] = set()
        self._of_step: set[int] = set()
        #: Origins of wrong gradients: of this step, and of earlier steps. After an earlier step, an optimizer may have
        #: made parameters wrong.
        self._of_gradients: set[int] = set()
        self._of_updates: set[int] = set()
        #: Origins whose differences did not end in an earlier step. So they are no less origins if they end in a later
        #: step, where the rounding of updates hides small differences.
        self._lasting: set[int] = set()
        self._of_module: dict[str, frozenset[int]] = {}
        #: For backward (True) and forward (False): the wrong calls whose outer calls have not ended yet. Each has its
        #: module path and its origins.
        self._inside: dict[bool, list[tuple[str, frozenset[int]]]] = {}
        #: Calls that only one of two programs makes. They are used only for a difference that no other origin explains.
        self._alone: list[_CallOfOneSide] = []
        #: The classes and source lines of such calls inside of modules whose outputs agree.
        self._harmless: set[tuple[Optional[str], Optional[str]]] = set()
        #: By module: the origin at a backward call that only one program makes. So the parameters of the module get a
        #: gradient in one program only, and differ in later steps, even if the gradient around the module agrees.
        self._without_gradient: dict[str, int] = {}
        #: The paths of modules around calls of this step.
        self._outer: set[str] = set()
        #: The paths of modules that both programs have called in this step.
        self._called: set[str] = set()
        #: True if gradients of this step, and of an earlier step, differ by rounding.
        self._is_rounded = self._has_drifted = False

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
        origins = origins or frozenset(call.number for call in calls)
        if not origins and not _is_backward(record) and record.module in self._without_gradient:
            origins = frozenset({self._without_gradient[record.module or ""]})
        return origins

    def reads_unrecorded(self, record: Record) -> bool:
        """Return True for a call that computes from values which are no inputs of it, and may differ by rounding.

        These are results of modules that it called in this step, and in the backward pass values of the forward pass.
        """
        return is_of_module(record) and (_is_backward(record) or (record.module or "") in self._outer)

    def may_have_drifted(self, record: Record, measure: Measure) -> bool:
        """Return True for a small difference that rounding in gradients of earlier steps may have caused.

        Optimizers such as Adam make full steps of gradients that are rounding alone. Parameters are not recorded.
        """
        is_small = not measure.nonfinite and measure.rel_l2 <= _MOST_DRIFT
        has_rounded = self._has_drifted or (self._is_rounded and (record.run, record.step) != self._step)
        return is_of_module(record) and has_rounded and is_small

    def agreed_in(self, record: Record) -> Optional[int]:
        """Return the step before that of a call; None if a wrong call is known, in this step or an earlier one."""
        if not is_of_module(record) or self._origins or self._alone:
            return None
        is_same = (record.run, record.step) == self._step
        before = self._before if is_same else self._step
        return None if before is None or before[0] != record.run else before[1]

    def of_update(self, record: Record) -> frozenset[int]:
        """Return the possible origins of a wrong update of a parameter of the module of a record.

        Its gradient may differ because of a difference inside of a module whose output agrees, or be lost.
        """
        module = record.module or ""
        lost = {self._without_gradient[module]} if module in self._without_gradient else _NONE
        return frozenset(self._origins or self._of_module.get(module) or lost)

    def add_update(self, origins: Collection[int]) -> None:
        """Note the origins of a wrong update of a parameter, which modules read in later steps."""
        self._origins.update(origins)
        self._of_gradients.update(origins)

    def add_alone(self, record: Record, number: int) -> None:
        """Add a call that only one of two programs makes. record: a record of the call."""
        if is_of_module(record):
            self._alone.append(_CallOfOneSide(record.module or "", number, (record.op_type, record.source)))
            if _is_backward(record):
                self._without_gradient.setdefault(record.module or "", number)

    def has_lost_gradient(self, record: Record) -> bool:
        """Return True for a backward call of one side of a module that both sides have called forward in this step."""
        return is_of_module(record) and _is_backward(record) and (record.module or "") in self._called

    def _calls_of_one_side(self) -> list[_CallOfOneSide]:
        """Return the calls that only one side makes, and that agreed in no other module."""
        return [call for call in self._alone if call.change not in self._harmless]

    def end(
        self, record: Record, origins: Collection[int], *, agrees: bool = False, is_rounded: bool = False
    ) -> frozenset[int]:
        """Add a module call that ended, with the origins of its wrong values. Return the origins that end inside it.

        record  a record of the call
        agrees  all outputs agree, so that what differs inside the module ends there
        is_rounded  values of the call differ by rounding
        """
        if not is_of_module(record):
            return _NONE
        self._enter(record)
        backward, module = _is_backward(record), record.module or ""
        self._is_rounded |= is_rounded and backward
        self._outer.update(_paths_around(module))
        self._called.add(module)
        inside = self._inside.setdefault(backward, [])
        of_call = _NONE.union(origins, *(causes for name, causes in inside if _is_inside(name, record)))
        inside[:] = (call for call in inside if not _is_inside(call[0], record))
        kept = (origins, self._lasting, *(causes for _, causes in inside))
        ended = of_call.difference(*kept) if agrees and module else _NONE
        self._forget(ended)
        if agrees and module:
            calls = (call for call in self._alone if _is_inside(call.module, record))
            alone = [call for call in calls if call.number not in self._lasting]
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
            self._before, self._step = self._step, step
            self._has_drifted |= self._is_rounded
            self._is_rounded = False
            self._outer.clear()
            self._called.clear()
            self._lasting |= self._origins
            self._of_updates |= self._of_gradients
            self._of_gradients.clear()
            self._of_step.clear()
            self._inside.clear()


def _paths_around(module: str) -> Iterator[str]:
    """Yield the paths of the modules around a module."""
    while module:
        module = module.rpartition(".")[0]
        yield module


def _is_backward(record: Record) -> bool:
    # The phase would be wrong: checkpointing runs forward calls again in the backward pass.
    return record.op_name.rpartition("/")[2].startswith("backward_")


def _is_inside(module: str, record: Record) -> bool:
    return not record.module or module.startswith(f"{record.module}.")
