"""What can go wrong on the simulated device: operators that overflow, trample or fail, a full disk, a lost counter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from ascend_dump.fakes.device._service import TrampleFault

if TYPE_CHECKING:
    from ascend_dump.fakes.device._service import DumpService

__all__ = ["Faults"]


class Faults:
    """The faults of one device. Each stays on until it is taken back."""

    def __init__(self, service: DumpService) -> None:
        self._service = service
        self._failing: set[str] = set()
        self._counts_steps = True

    def overflow(self, op_name: str, *, status: int = 0x20, acc_type: str = "AIC") -> None:
        """Let every execution of an operator overflow; status as in the documents, acc_type AIC, AIV, AICPU, SDMA."""
        self._service.overflows[op_name] = (status, acc_type)

    def overflows_in(self, op_name: str) -> bool:
        """Whether `overflow` named this operator."""
        return op_name in self._service.overflows

    def trample(self, layer_op: str, watched_op: str, *, offset: int, data: bytes) -> None:
        """Let one operator write bytes over output 0 of another that ran before it in the same model and step."""
        self._service.tramples.append(TrampleFault(layer_op, watched_op, offset, bytes(data)))

    def truncate_files(self, after_bytes: Optional[int]) -> None:
        """Cut off every file written from now on; None ends that."""
        self._service.disk.cut_after = after_bytes

    def fill_disk(self, free_bytes: int) -> None:
        """Leave so many bytes free on the disk."""
        self._service.disk.fill(free_bytes)

    def drop_step_counter(self) -> None:
        """Take the step counter away from every model."""
        self._counts_steps = False

    def fail(self, op_name: str) -> None:
        """Let every execution of an operator fail, which is what an exception dump is written for."""
        self._failing.add(op_name)
