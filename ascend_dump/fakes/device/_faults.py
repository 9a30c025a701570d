"""Faults of the simulated device: operators that overflow, trample or fail, a full disk, a missing step counter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from ascend_dump.fakes.device._service import TrampleFault

if TYPE_CHECKING:
    from ascend_dump.fakes.device._service import DumpService

__all__ = ["Faults"]


class Faults:
    """The faults of one device. A fault stays set until it is reset.

    op_name: the operator of a model, or the API or the kernel of an eager operator, such as aclnnAdd or AddAiCore.
    """

    def __init__(self, service: DumpService) -> None:
        self._service = service
        self._failing: set[str] = set()
        self._counts_steps = True

    def overflow(self, op_name: str, *, status: int = 0x20, acc_type: str = "AIC") -> None:
        """Make an operator overflow in all executions; status as in the documents, acc_type AIC, AIV, AICPU, SDMA.

        Eager operators have no status and no unit.
        """
        self._service.overflows[op_name] = (status, acc_type)

    def overflows_in(self, op_name: str) -> bool:
        """Return True if `overflow` is set for this operator."""
        return op_name in self._service.overflows

    def trample(self, layer_op: str, watched_op: str, *, offset: int, data: bytes) -> None:
        """Make `layer_op` overwrite bytes in output 0 of `watched_op`, an earlier operator of its model and step."""
        self._service.tramples.append(TrampleFault(layer_op, watched_op, offset, bytes(data)))

    def truncate_files(self, after_bytes: Optional[int]) -> None:
        """Truncate new files to this size; None resets it."""
        self._service.disk.cut_after = after_bytes

    def fill_disk(self, free_bytes: int) -> None:
        """Limit the free bytes on the disk."""
        self._service.disk.fill(free_bytes)

    def drop_step_counter(self) -> None:
        """Remove the step counter of all models."""
        self._counts_steps = False

    def fail(self, op_name: str) -> None:
        """Make an operator fail in all executions, so that an exception dump is written."""
        self._failing.add(op_name)
