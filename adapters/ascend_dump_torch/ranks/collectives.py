"""Asynchronous collectives: their outputs are recorded when they are complete.

A collective is complete when `Work.wait` or `wait_tensor` has returned, or when an operator reads or overwrites one of
its outputs: a correct program does so only after waiting. At the end of a step `Work.is_completed` decides.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable

import msgspec
import torch

from ascend_dump_torch.memory.layouts import range_in, storages_of

__all__ = ["WORK", "Collectives", "RunningCollective", "work_of"]

#: The class `torch.distributed.Work`; None if PyTorch is built without distributed.
WORK: Any = None
with contextlib.suppress(ImportError, AttributeError):
    WORK = torch._C._distributed_c10d.Work


def work_of(result: Any) -> Any:
    """Return the `Work` object in the results of a c10d operator, on which the program waits; None if there is none."""
    last = result[-1] if isinstance(result, (tuple, list)) else result
    if isinstance(last, torch.ScriptObject):
        with contextlib.suppress(Exception):  # the object is of another class
            return WORK.unbox(last)
    return None


class RunningCollective(msgspec.Struct, eq=False):
    """A collective that has started: its outputs, and a function that records them.

    work      its `Work`; None for a functional collective
    conclude  called with True if the outputs are complete, else with False
    failed    True if the last call of `Work.wait` raised an exception, such as that of a timeout, or returned False
    """

    outputs: list[torch.Tensor]
    work: Any
    conclude: Callable[[bool], None]
    failed: bool = False


class Collectives:
    """The collectives that have started and are not known to be complete."""

    def __init__(self) -> None:
        self.running: list[RunningCollective] = []
        #: The running collectives by the key of the storages to which they write.
        self._writing: dict[int, list[RunningCollective]] = {}
        #: Number of calls of `Work.wait` that have not returned.
        self._waits = 0

    def begin(self, operation: RunningCollective) -> None:
        self.running.append(operation)
        for key in _storages(operation):
            self._writing.setdefault(key, []).append(operation)

    def settle(self, tensors: list[torch.Tensor]) -> None:
        """Record the collectives that write to these tensors. Call before an operator reads or writes the tensors.

        Does nothing during a call of `Work.wait`.
        """
        if not self.running or self._waits:
            return
        for tensor in tensors:
            for storage in storages_of(tensor):
                for operation in list(self._writing.get(storage._cdata, ())):
                    if _overlaps(operation, tensor, storage):
                        self._end(operation, complete=not operation.failed)

    def waits(self, work: Any) -> None:
        """Call before `work.wait()`. Some collectives run operators inside this call that write their outputs."""
        self._waits += 1

    def waited(self, work: Any, complete: bool) -> None:
        """Call after `work.wait()` has returned or raised. complete: True to record the collective as complete."""
        self._waits = max(self._waits - 1, 0)
        for operation in list(self.running):
            if operation.work is work:
                operation.failed = not complete
                if complete:
                    self._end(operation, complete=True)

    def end_step(self) -> None:
        """Record the remaining collectives, each as complete or as incomplete."""
        for operation in list(self.running):
            is_complete = operation.work is not None and bool(operation.work.is_completed())
            # A failed collective counts as completed.
            has_failed = operation.failed or (is_complete and _has_failed(operation.work))
            self._end(operation, complete=is_complete and not has_failed)

    def forget(self) -> None:
        self._waits = 0
        self.running.clear()
        self._writing.clear()

    def _end(self, operation: RunningCollective, *, complete: bool) -> None:
        if operation not in self.running:
            return  # it was recorded in the meantime
        self.running.remove(operation)
        for key in _storages(operation):
            self._writing[key].remove(operation)
            if not self._writing[key]:
                del self._writing[key]
        operation.conclude(complete)


def _has_failed(work: Any) -> bool:
    """Return True if a completed `Work` has an exception, such as that of a timeout, and its backend reports it."""
    try:
        future = work.get_future()
    except Exception:  # backends without futures
        return False
    try:
        if future.done():
            future.value()
    except Exception:
        return True
    return False


def _storages(operation: RunningCollective) -> set[int]:
    return {storage._cdata for tensor in operation.outputs for storage in storages_of(tensor)}


def _overlaps(operation: RunningCollective, tensor: torch.Tensor, storage: Any) -> bool:
    low, high = range_in(tensor, storage)
    for output in operation.outputs:
        for output_storage in storages_of(output):
            begin, end = range_in(output, output_storage)
            if output_storage._cdata == storage._cdata and low < end and begin < high:
                return True
    return False
