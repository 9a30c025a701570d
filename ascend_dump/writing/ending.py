"""End a recording before the capture ends: at NaN or Inf (`until=`), or on request of the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple, Optional

from ascend_dump.common.ignored import IgnoredOperators
from ascend_dump.dump_format import NO_VALUES, memory_of
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite import Flow, FlowTensor, Judge, Slot
from ascend_dump.writing.payload import CHANGED, Item

__all__ = ["Ended", "NonfiniteWatch"]

#: Statistics that stand for every tensor without NaN and Inf.
_FINITE = Statistics(1, nan=0, posinf=0, neginf=0)
_NO_VALUES = frozenset((*NO_VALUES, CHANGED))


class Ended(NamedTuple):
    """Why the recording ended.

    reason    a sentence, or the reason that the program gave
    step      the last recorded step; None if none had begun
    operator  the tensor with NaN or Inf, such as "fc/addmm_0.output.0"; "" for another reason
    """

    reason: str
    step: Optional[int]
    operator: str = ""


class NonfiniteWatch:
    """Checks records for NaN and Inf as they are written.

    unknown   number of floating-point tensors that could not be checked
    harmless  for each operator whose NaN or Inf was gone at the end of the step: the number of such steps
    """

    def __init__(self, ignored: Iterable[str] = (), *, follows: bool = False) -> None:
        """Create a watch.

        ignored  operators whose NaN and Inf do not count, in the form of `DumpRequest.ignore`
        follows  True if all operators are recorded with inputs and outputs, so that NaN and Inf can be followed
        """
        self.unknown = 0
        self.harmless: Counter[str] = Counter()
        self._judge = Judge()
        self._ignored = IgnoredOperators(ignored)
        #: Digests of the tensors with NaN or Inf of this step that come from ignored operators only.
        self._ignored_contents: set[bytes] = set()
        self._flow: Optional[Flow[Ended]] = Flow() if follows else None

    def look_at(self, items: Sequence[Item]) -> Optional[Ended]:
        """Check the records of one or more operators. All records of an operator must be passed in one call.

        Returns why the recording must end with this step. Returns None if it goes on, or if only `end_step` can decide.
        """
        wrong = self._flow is not None and self._flow.is_active
        for item in items:
            payload = item.payload
            if payload is None:
                skipped = item.line.skipped
                self.unknown += bool(skipped) and skipped not in _NO_VALUES
            else:
                measured = payload.measured
                if measured is not None and measured.nonfinite is not None:
                    wrong = True
                if payload.unmeasured:
                    self.unknown += 1
        if not wrong:
            return None
        for _, group in groupby(items, lambda item: (item.line.seq, item.line.op_name)):
            ended = self._of_operator(list(group))
            if ended is not None:
                return ended
        return None

    def end_step(self) -> Optional[Ended]:
        """Return why the recording ends with this step; None if it goes on."""
        self._ignored_contents.clear()
        if self._flow is None or not self._flow.is_active:
            return None
        end = self._flow.end()
        self.harmless.update(root.operator for root in end.ended)
        return end.remaining[0] if end.remaining else None

    def _of_operator(self, items: list[Item]) -> Optional[Ended]:
        outputs = [item for item in items if item.line.io == "output"]
        inputs = [item for item in items if item.line.io == "input"]
        line = items[0].line
        wrong = self._judge.look_at(line.op_type, [_slot(item) for item in inputs], [_slot(item) for item in outputs])
        ended = None
        if wrong is not None and not self._is_ignored(inputs, outputs):
            record = (outputs or inputs)[wrong.output].line
            name = f"{record.op_name}.{record.io}.{record.index}"
            ended = Ended(f"{wrong.what} in {name}", None, name)
        if self._flow is None:
            return ended
        read, made = ([_flow_tensor(item) for item in side] for side in (inputs, outputs))
        roots = self._flow.look_at(line.op_type, read, made, ended)
        # An operator without outputs has no roots: its NaN or Inf cannot be followed, so the recording ends at once.
        return ended if ended is not None and not roots else None

    def _is_ignored(self, inputs: list[Item], outputs: list[Item]) -> bool:
        """Return True if the operator is ignored, or if all its inputs with NaN or Inf come from ignored operators.

        In both cases its outputs with NaN or Inf are remembered as coming from ignored operators.
        """
        if not self._ignored:
            return False
        line = (outputs or inputs)[0].line
        carried = [item.payload.digest for item in inputs if item.payload is not None and _is_nonfinite(item)]
        is_ignored = self._ignored.selects(
            op_name=line.op_name, op_type=line.op_type, module=line.module, source=line.source
        ) or (bool(carried) and self._ignored_contents.issuperset(carried))
        if is_ignored:
            self._ignored_contents.update(
                item.payload.digest for item in outputs if item.payload is not None and _is_nonfinite(item)
            )
        return is_ignored


def _slot(item: Item) -> Slot:
    payload = item.payload
    if payload is None or payload.changed or payload.measured is None:
        return Slot(None)
    return Slot(payload.measured.nonfinite or _FINITE, payload.digest)


def _is_nonfinite(item: Item) -> bool:
    payload = item.payload
    return payload is not None and payload.measured is not None and payload.measured.nonfinite is not None


def _flow_tensor(item: Item) -> FlowTensor:
    line = item.line
    is_floating = not line.dtype.startswith(("int", "uint", "bool"))
    memory = memory_of(line.address, line.dtype, line.shape, line.stride, line.storage_offset)
    return FlowTensor(memory, line.storage, _is_nonfinite(item), is_floating)
