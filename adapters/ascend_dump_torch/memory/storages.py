"""Know the storages of a program, and which of their bytes are stored in the dump and still unchanged.

Only writes by operators that pass through PyTorch's dispatcher are observed:

- Memory that is shared (with numpy, or between processes) is read each time. PyTorch marks its storages as not
  resizable.
- Writes by other threads, and writes while our mode is disabled, may be missed. So queued bytes have a hash that is
  checked when they are stored. When a known tensor is recorded again, a sample of its bytes is compared with its
  memory. After the first difference, or while other threads run, all tensors are copied.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Optional

import torch

from ascend_dump.writing import HostWriter
from ascend_dump_torch.memory.layouts import range_in, storages_of
from ascend_dump_torch.memory.storage_state import StorageState

__all__ = ["Storages"]

#: Number of operators between two sweeps. A sweep drops storages that were freed, see `next_operator`.
_SWEEP = 4

_expired = torch.UntypedStorage._expired


class Storages:
    """The storages that a capture knows. One is remembered from step to step as long as all writes are observed."""

    def __init__(self, writer: HostWriter, *, keep: Optional[int] = None, numbers_last: bool = False) -> None:
        """Create an empty registry.

        keep          number of recorded steps that stay on disk, None if all do
        numbers_last  True to keep the numbers of storages from step to step
        """
        self._numbers_last = numbers_last
        self._writer = writer
        self._keep = keep
        self._steps = 0
        self._states: dict[int, StorageState] = {}
        self._numbered = 0
        self._operators = 0
        self._next_sweep = 0
        #: Storages by key: those used since the last sweep, and those used between the last two sweeps.
        self._just_used: dict[int, StorageState] = {}
        self._used: dict[int, StorageState] = {}
        #: True if an unfinished collective may write to one of the storages.
        self.any_in_flight = False
        self._any_unset = False
        #: Threads that were started in this step. Their operators are not observed.
        self._threads: list[threading.Thread] = []
        #: True once an unobserved write was detected. Then all tensors are copied.
        self.copies_all = False

    def begin_step(self) -> None:
        """Restart the numbering of storages, and drop storages that were freed. To be called between recorded steps."""
        self._steps += 1
        # With `keep`, the bytes of earlier steps are deleted at some time, and no later record may refer to them. So
        # the stored ranges are forgotten every `keep` + 1 steps.
        forgets = self._keep is not None and self._steps % (self._keep + 1) == 0
        for state in list(self._states.values()):
            if _expired(state.handle):
                self._drop(state)
                continue
            if not self._numbers_last:
                state.number = -1
            if forgets:
                state.ranges.clear()
            state.views.clear()  # because they contain the number of the storage
        if not self._numbers_last:
            self._numbered = 0

    def thread_starts(self, thread: threading.Thread) -> None:
        """Copy all queued bytes, because another thread of the program is about to start and may write to them."""
        if thread.name.startswith("ascend_dump"):
            return  # our threads do not write to the program's memory; and the writer's thread would wait for itself
        for state in list(self._states.values()):
            self._secure(state)
        self._threads.append(thread)

    def _may_change_unseen(self) -> bool:
        """Return True if memory may be written unobserved at any time, so that tensors must be copied."""
        if self._threads:
            self._threads = [thread for thread in self._threads if thread.is_alive() or thread.ident is None]
        return self.copies_all or bool(self._threads)

    def next_operator(self) -> None:
        """Count an operator, and every few operators drop the handles of storages that were freed.

        A handle is a small heap block that keeps the allocator from merging the free blocks around it. Then the
        program's next large tensor needs new pages from the system, and its allocation takes up to a third longer. Most
        tensors are freed soon after their last operator, so a sweep checks the storages that were used shortly before
        the previous sweep. From time to time a sweep checks all storages.
        """
        self._operators += 1
        if self._operators % _SWEEP == 0 and self._states:
            used, self._used, self._just_used = self._used, self._just_used, {}
            if self._operators >= self._next_sweep:
                used = self._states.copy()
                self._next_sweep = self._operators + len(used)
            states = self._states
            for key, state in used.items():
                # The first test comes first, because the handle of a storage that was dropped meanwhile is invalid.
                if states.get(key) is state and _expired(state.handle):
                    self._drop(state)

    def _drop(self, state: StorageState) -> None:
        torch.UntypedStorage._free_weak_ref(state.handle)
        del self._states[state.key]

    def forget(self) -> None:
        """Forget all storages, and copy queued bytes, because writes are no longer observed from now on."""
        states, self._states = self._states, {}
        self._used, self._just_used = {}, {}
        for state in states.values():
            self._secure(state)
            torch.UntypedStorage._free_weak_ref(state.handle)
        if not self._numbers_last:
            self._numbered = 0
        self.any_in_flight = False
        self._any_unset = False
        self._threads = []

    def protect(self, tensor: torch.Tensor) -> None:
        """Copy queued bytes of the tensor's memory and forget its stored ranges.

        To be called before and after the memory is written or freed.
        """
        if not self._states:
            return
        for storage in storages_of(tensor):
            self.protect_storage(storage)

    def protect_storage(self, storage: Any) -> None:
        state = self._states.get(storage._cdata)
        if state is not None:
            self._secure(state)
            state.forget_content()
            state.unset = False

    def resize_storage(self, storage: Any) -> None:
        """Do the same as `protect_storage`, before the memory of a storage is freed or reallocated."""
        self.protect_storage(storage)
        if not storage.nbytes():
            self._any_unset = True
            self._find(storage).unset = True

    def distrust(self, tensor: torch.Tensor) -> None:
        """Read the tensor's memory each time from now on, because it may be written unobserved."""
        for storage in storages_of(tensor):
            self.distrust_storage(storage)

    def distrust_storage(self, storage: Any) -> None:
        state = self._find(storage)
        self._secure(state)
        state.forget_content()
        state.unseen_writes = True
        state.unset = False

    def mark_unset(self, tensor: torch.Tensor) -> None:
        """Mark this memory as uninitialized."""
        self._any_unset = True
        for storage in storages_of(tensor):
            self._find(storage).unset = True

    def mark_infinite(self, tensor: torch.Tensor) -> None:
        """Mark this memory as containing Inf that an operator has computed."""
        for storage in storages_of(tensor):
            self._find(storage).infinite = True

    def is_infinite(self, tensor: torch.Tensor) -> bool:
        states = (self._states.get(storage._cdata) for storage in storages_of(tensor))
        return any(state is not None and state.infinite for state in states)

    def is_unset(self, tensor: torch.Tensor) -> bool:
        if not self._any_unset:
            return False
        for storage in storages_of(tensor):
            state = self._states.get(storage._cdata)
            if state is not None and state.unset:
                return True
        return False

    def set_in_flight(self, tensor: torch.Tensor, in_flight: bool) -> None:
        """Mark the tensor's memory as being written by an unfinished collective (True), or as complete (False)."""
        for storage in storages_of(tensor):
            self.distrust_storage(storage)
        if in_flight:
            self.any_in_flight = True
            for storage in storages_of(tensor):
                self._find(storage).in_flight += (range_in(tensor, storage),)
        else:
            self.settle([tensor])

    def settle(self, tensors: list[torch.Tensor]) -> None:
        """Mark collectives that write to these tensors as finished: an operator is about to use the tensors."""
        if not self.any_in_flight:
            return
        for tensor, storage, state in self._in_flight_around(tensors):
            low, high = range_in(tensor, storage)
            state.in_flight = tuple((a, b) for a, b in state.in_flight if b <= low or high <= a)

    def is_in_flight(self, tensor: torch.Tensor) -> bool:
        for part, storage, state in self._in_flight_around([tensor]):
            low, high = range_in(part, storage)
            if any(low < end and begin < high for begin, end in state.in_flight):
                return True
        return False

    def _in_flight_around(self, tensors: list[torch.Tensor]) -> Iterator[tuple[torch.Tensor, Any, StorageState]]:
        for tensor in tensors:
            for storage in storages_of(tensor):
                state = self._states.get(storage._cdata)
                if state is not None and state.in_flight:
                    yield tensor, storage, state

    def _find(self, storage: Any) -> StorageState:
        state = self._states.get(storage._cdata)
        if state is None:
            state = self._states[storage._cdata] = StorageState(storage._cdata, storage._weak_ref(), -1)
        if state.number < 0:
            state.number = self._numbered
            self._numbered += 1
        return state

    def _secure(self, state: StorageState) -> None:
        for payload in state.pending:
            self._writer.protect(payload)
        state.pending.clear()
