"""Faults that can be set on the simulated device.

An operator can overflow, fail, or overwrite the output of another one ("trample"). Files can be truncated, the disk can
be full, and the step counter can be missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from ascend_dump.fakes.device._service import TrampleFault

if TYPE_CHECKING:
    from ascend_dump.fakes.device._service import DumpService

__all__ = ["Faults"]


class Faults:
    """The faults of one device. A fault applies to all executions from then on.

    op_name: the name of an operator in a model; for an eager operator its API or its kernel, such as aclnnAdd or
    AddAiCore.
    """

    def __init__(self, service: DumpService) -> None:
        self._service = service
        self._failing: set[str] = set()
        self._counts_steps = True

    def overflow(self, op_name: str, *, status: int = 0x20, acc_type: str = "AIC") -> None:
        """Let an operator overflow.

        status: the status bits in the overflow record. acc_type: the unit in the record: AIC, AIV, AICPU or SDMA. There
        is no record for eager operators, so both are unused for them.
        """
        self._service.overflows[op_name] = (status, acc_type)

    def overflows_in(self, op_name: str) -> bool:
        """Return True if `overflow` was called for this operator."""
        return op_name in self._service.overflows

    def trample(self, layer_op: str, watched_op: str, *, offset: int, data: bytes) -> None:
        """Let `layer_op` overwrite output 0 of `watched_op`, an earlier operator of the same model and step.

        data: the bytes to write, from byte `offset` of the output on.
        """
        self._service.tramples.append(TrampleFault(layer_op, watched_op, offset, bytes(data)))

    def truncate_files(self, after_bytes: Optional[int]) -> None:
        """Truncate new files to this size in bytes; None ends the fault."""
        self._service.disk.cut_after = after_bytes

    def fill_disk(self, free_bytes: int) -> None:
        """Set the number of free bytes on the disk. Files that are written use them up."""
        self._service.disk.fill(free_bytes)

    def drop_step_counter(self) -> None:
        """Remove the step counter of all models."""
        self._counts_steps = False

    def fail(self, op_name: str) -> None:
        """Let an operator fail. An exception dump is written, if one is set."""
        self._failing.add(op_name)
