"""What explains what in dumps of `level="module"`, which hold inputs and outputs of modules and nothing between them.

Neither parameters nor the functions between modules are recorded. So a module may be wrong because of one inside it,
which was recorded before it: modules are recorded when they end. Its input may come from any earlier module, through
functions that are not recorded. After a wrong gradient the parameters of all later steps may be wrong too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.reading import Record

__all__ = ["NOT_RECORDED", "ModuleCalls"]

#: The evidence against all that is said of a module.
NOT_RECORDED = "level='module' records neither parameters nor the functions between modules: the cause may be there"

_NONE: frozenset[int] = frozenset()


class ModuleCalls:
    """The wrong calls of modules of one rank, in the order they ran, with numbers of what they are wrong by.

    Records of operators are ignored, and nothing is known of them.
    """

    def __init__(self) -> None:
        self._step: Any = None
        self._known: set[int] = set()
        self._of_step: set[int] = set()
        #: Those of gradients: of the step, and of steps before it, by which an optimizer may have changed parameters.
        self._of_gradients: set[int] = set()
        self._of_updates: set[int] = set()
        self._of_module: dict[str, frozenset[int]] = {}
        #: Forward and backward, by module: the wrong calls of which no recorded call around them has ended.
        self._inside: dict[bool, list[tuple[str, frozenset[int]]]] = {}
        #: Calls that one side makes alone. They explain what nothing else does.
        self._alone: list[tuple[str, int]] = []

    def of_input(self, record: Record) -> frozenset[int]:
        """What an input may be wrong by that no recorded module gave."""
        if not is_of_module(record):
            return _NONE
        return frozenset(self._known or (number for _, number in self._alone))

    def of_output(self, record: Record) -> frozenset[int]:
        """What an output may be wrong by, besides the inputs of its module."""
        if not is_of_module(record):
            return _NONE
        self._enter(record)
        inside = self._inside.get(_is_backward(record), ())
        found = _NONE.union(*(why for module, why in inside if _is_inside(module, record)))
        if not found and _is_backward(record):
            found = frozenset(self._of_step)  # of the forward pass it reads more than what was given and gave
        found = found or frozenset(self._of_updates) or self._of_module.get(record.module or "", _NONE)
        return found or frozenset(number for module, number in self._alone if _is_inside(module, record))

    def add_alone(self, record: Record, number: int) -> None:
        """Note a call that one of two programs makes alone. record: one of its records."""
        if is_of_module(record):
            self._alone.append((record.module or "", number))

    def end(self, record: Record, why: Collection[int]) -> None:
        """Call after each call of a module, with what is wrong in it. record: one of its records."""
        if not is_of_module(record):
            return
        self._enter(record)
        backward, module = _is_backward(record), record.module or ""
        inside = self._inside.setdefault(backward, [])
        of_call = _NONE.union(why, *(found for one, found in inside if _is_inside(one, record)))
        inside[:] = (one for one in inside if not _is_inside(one[0], record))
        if of_call:
            inside.append((module, of_call))
        if why:
            self._known.update(why)
            self._of_step.update(why)
            self._of_module[module] = frozenset(why)
            if backward:
                self._of_gradients.update(why)

    def _enter(self, record: Record) -> None:
        step = record.run, record.step
        if step != self._step:
            self._step = step
            self._of_updates |= self._of_gradients
            self._of_gradients.clear()
            self._of_step.clear()
            self._inside.clear()


def _is_backward(record: Record) -> bool:
    # While gradients are computed, checkpointing runs forward passes again.
    return record.op_name.rpartition("/")[2].startswith("backward_")


def _is_inside(module: str, record: Record) -> bool:
    return not record.module or module.startswith(f"{record.module}.")
