"""Follow NaN and Inf through the recorded operators of a step, where their dump tells the memory of each tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from ascend_dump.analysis.operators.nonfinite import Measure
from ascend_dump.dump_format import memory_of
from ascend_dump.reading import Record
from ascend_dump.statistics.nonfinite import Flow, FlowTensor, is_nonfinite

__all__ = ["NonfiniteFlow", "OperatorKey", "memory_of_record", "operator_key"]

#: Identifies one run of an operator.
OperatorKey = tuple[Any, ...]


class NonfiniteFlow:
    """The operators of one device, in the order they ran.

    step    the open step
    roots   the operators of this step that made NaN or Inf, or had it from outside
    """

    def __init__(self, *, is_whole: bool) -> None:
        """is_whole: the dump has all operators of its steps, with inputs and outputs."""
        self.step: Any = None
        self.roots: set[OperatorKey] = set()
        self._flow: Flow[OperatorKey] = Flow()
        self._ignored: set[OperatorKey] = set()
        #: By operator with NaN or Inf, the roots that it comes from.
        self._roots_of: dict[OperatorKey, frozenset[OperatorKey]] = {}
        self._is_whole = is_whole

    def look_at(
        self, members: Sequence[Record], measure: Measure, root: Optional[OperatorKey]
    ) -> Optional[frozenset[OperatorKey]]:
        """Follow an operator, and return the roots of its NaN or Inf; None if they are unknown.

        root: the operator, if it has NaN or Inf that is none of a mask
        """
        if not self._is_whole or (not self._flow.is_active and root is None):
            return None
        read, made = (
            [_flow_tensor(record, measure) for record in members if record.io == io] for io in ("input", "output")
        )
        roots = self._flow.look_at(members[0].op_type, read, made, root)
        self.roots |= roots
        if root is not None:
            self._roots_of[root] = roots
        return roots

    def ignore(self, operator: OperatorKey) -> None:
        """Take the NaN and Inf of an operator for harmless."""
        self._ignored.add(operator)

    def end_step(self) -> set[OperatorKey]:
        """Return the harmless operators of the step: those that are ignored, or whose NaN or Inf is gone at its end."""
        ended = self._ignored.union(self._flow.end().ended)
        harmless = {operator for operator, roots in self._roots_of.items() if roots <= ended}
        harmless |= self._ignored
        self.roots, self._ignored, self._roots_of = set(), set(), {}
        return harmless


def operator_key(record: Record) -> OperatorKey:
    return (record.run, record.execution)


def memory_of_record(record: Record) -> Optional[tuple[int, int, int]]:
    """Return the address of a tensor's storage, and the range of bytes that the tensor covers there; None: unknown."""
    attrs = record.attrs
    if record.dtype is None or record.shape is None:
        return None
    offset = int(attrs.get("storage_offset") or 0)
    return memory_of(int(attrs.get("address") or 0), record.dtype, record.shape, attrs.get("stride") or (), offset)


def _flow_tensor(record: Record, measure: Measure) -> FlowTensor:
    statistics = measure(record)
    is_floating = not (record.dtype or "").startswith(("int", "uint", "bool"))
    nonfinite = statistics is not None and is_nonfinite(statistics)
    return FlowTensor(memory_of_record(record), record.attrs.get("storage"), nonfinite, is_floating)
