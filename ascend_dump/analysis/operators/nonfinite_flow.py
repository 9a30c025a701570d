"""Follow NaN and Inf through the recorded operators of a step, by the memory addresses that the dump has of tensors."""

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
    """Follows NaN and Inf through the operators of one device, which are given in execution order.

    step    the step of the operators that are given; the caller sets it
    roots   the roots of the step so far: operators with NaN or Inf whose inputs have none from an earlier operator
    """

    def __init__(self, *, is_whole: bool) -> None:
        """is_whole: the dump has all operators of its steps, with inputs and outputs. Else nothing is followed."""
        self.step: Any = None
        self.roots: set[OperatorKey] = set()
        self._flow: Flow[OperatorKey] = Flow()
        self._ignored: set[OperatorKey] = set()
        #: For each operator given as `root` to `look_at`: the roots that its NaN or Inf comes from.
        self._roots_of: dict[OperatorKey, frozenset[OperatorKey]] = {}
        self._is_whole = is_whole

    def look_at(
        self, members: Sequence[Record], measure: Measure, root: Optional[OperatorKey]
    ) -> Optional[frozenset[OperatorKey]]:
        """Add an operator, and return the roots of its NaN or Inf; None if they are unknown.

        root: identifies the operator if it has NaN or Inf and creates no mask; else None
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
        """Treat the NaN and Inf of an operator as harmless until the end of the step."""
        self._ignored.add(operator)

    def end_step(self) -> set[OperatorKey]:
        """Return the harmless operators of the step, and begin the next step.

        An operator is harmless if it is ignored, or if the NaN and Inf of all its roots is gone at the end of the step.
        """
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
