"""The interface of a session that is used by the modules that record operators and track writes to memory."""

from __future__ import annotations

from typing import Any, Callable, Optional, Protocol

import torch

from ascend_dump.writing import Item
from ascend_dump_torch._call_site import Tracker
from ascend_dump_torch._overflow import Aftermath
from ascend_dump_torch._replace_tensors import Grafts
from ascend_dump_torch.memory.tensors import Tensors

__all__ = ["Recording"]


class Recording(Protocol):
    """One capture, while a step of it is open.

    recording   True while a selected step is open and nothing has failed
    records_failures  True to record the inputs of operators that raise an exception
    selects     returns True if an operator is recorded, by its name and the path of its module; None to record all
    next_seq    returns the number of the next operator of this step
    grafts      the tensors to replace by values of another dump; None if there are none
    guard       calls a function; an exception ends the recording, never the user's run
    give_up     ends the recording because of an exception
    """

    recording: bool
    records_inputs: bool
    records_outputs: bool
    records_failures: bool
    overflow_only: bool
    aftermath: Aftermath
    grafts: Optional[Grafts]
    tensors: Tensors
    tracker: Tracker
    selects: Optional[Callable[[str, str], bool]]

    def next_seq(self) -> int: ...

    def write(self, items: list[Item]) -> None: ...

    def note_skipped(self, reason: str) -> None: ...

    def note_symptom(self, tensor: torch.Tensor, kind: str, parameter: str = "", argument: str = "") -> None: ...

    def guard(self, function: Callable[..., Any], *args: Any) -> Any: ...

    def give_up(self, error: Exception) -> None: ...
