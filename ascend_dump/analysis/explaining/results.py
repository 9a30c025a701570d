"""The items of a comparison: pairs with verdicts, origins with evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.analysis.operators.next_request import is_of_module, is_update
from ascend_dump.reading import Record
from ascend_dump.report.findings import KINDS

__all__ = ["KINDS", "ChangedCall", "Crossing", "Origin", "Pair", "Rebuilt"]


@dataclass(frozen=True)
class Pair:
    """Two records of the same tensor of the program, one of each side; a record without a partner has None.

    how, confidence   how the operators were paired, and how reliable that is (1.0 certain, 0.5 by position only);
                      "border": results of different operators that correspond to each other
    transformation    applied to `actual` before the comparison: "identity", "cast" (to another type),
                      "reshape", "permute(0, 3, 1, 2)" (axes in this order), "NC1HWC0→NCHW" (blocked device layout
                      undone, padding removed; "… of the reference" if the reference was transformed instead), "part 1
                      of 2 along axis 0" (one rank of several against one rank), "sum over 2 ranks" (each has a
                      partial sum)
    verdict           "equal", "noise", "undecided" (only statistics, which agree), "unmatched", "structure",
                      "different" or "unreadable"
    reason            the verdict in words, with numbers
    measure           the numbers (`Measure`); None if the values were not needed or could not be read
    explained         the difference follows from the difference of an earlier record
    undefined         the reason why the tensor has no defined value and is not judged; "" if it has one
    """

    actual: Optional[Record]
    reference: Optional[Record]
    how: str
    confidence: float
    verdict: str
    reason: str = ""
    transformation: str = "identity"
    measure: Optional[Measure] = None
    explained: bool = False
    undefined: str = ""

    @property
    def record(self) -> Record:
        """The record of actual, or of the reference if actual has none."""
        record = self.actual if self.actual is not None else self.reference
        assert record is not None, "a pair has at least one side"
        return record

    @property
    def differs(self) -> bool:
        """True if its values, or its structure, are not the same on both sides."""
        return self.verdict in ("different", "structure")

    @property
    def has_one_shape(self) -> bool:
        """True if both sides have a tensor, of the same shape."""
        return self.actual is not None and self.reference is not None and self.actual.shape == self.reference.shape

    def to_dict(self) -> dict[str, Any]:
        """Return the pair as plain values: labels of both records, fields of the measure."""
        record = self.record
        return {
            "step": record.step,
            "rank": record.rank,
            "op_name": record.op_name,
            "op_type": record.op_type,
            "io": record.io,
            "index": record.index,
            "actual": None if self.actual is None else self.actual.label,
            "reference": None if self.reference is None else self.reference.label,
            "module": record.module,
            "source": record.source,
            "phase": record.phase,
            "verdict": self.verdict,
            "reason": self.reason,
            "how": self.how,
            "confidence": self.confidence,
            "transformation": self.transformation,
            "explained": self.explained,
            "undefined": self.undefined,
            "measure": None if self.measure is None else self.measure._asdict(),
        }


class Crossing(NamedTuple):
    """Two operators that weak evidence pairs although they are in another order than pairs with stronger evidence.

    actual, reference  their names
    how, confidence    as in `Pair`
    """

    actual: str
    reference: str
    how: str
    confidence: float
    step: Optional[int]
    rank: Optional[int]


class Rebuilt(NamedTuple):
    """A part of the program that both sides build from different operators, with results that agree.

    name               its module, else its first operator; of parameters that differ: the parameter
    actual, reference  number of operators of each side; both are 0 for a parameter
    """

    name: str
    actual: int
    reference: int


class _OfOperator:
    """The location of a pair's operator in the program."""

    pair: Pair

    @property
    def op_name(self) -> str:
        return self.pair.record.op_name

    @property
    def op_type(self) -> str:
        return self.pair.record.op_type

    @property
    def module(self) -> Optional[str]:
        return self.pair.record.module

    @property
    def source(self) -> Optional[str]:
        return self.pair.record.source

    @property
    def step(self) -> Optional[int]:
        return self.pair.record.step

    @property
    def rank(self) -> Optional[int]:
        return self.pair.record.rank

    def _location(self) -> dict[str, Any]:
        names = ("op_name", "op_type", "module", "source", "step", "rank")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class ChangedCall(_OfOperator):
    """An operator that is called with different arguments, and that is no origin.

    Its inputs differ too, and an earlier origin explains them: so the effect of the arguments cannot be measured. Or
    its output agrees, or differs without an effect on any result. Check the program.

    pair       its first output that differs, or an output that agrees
    arguments  such as "eps: 0.001 here, 1e-05 in the reference"
    others     number of later operators of this type that are called with the same changed arguments
    """

    pair: Pair
    arguments: tuple[str, ...]
    others: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the call as plain values, for JSON."""
        return {
            **self._location(),
            "arguments": list(self.arguments),
            "others": self.others,
            "pair": self.pair.to_dict(),
        }


@dataclass(frozen=True)
class Origin(_OfOperator):
    """A difference that no earlier record explains.

    kind       one of `KINDS`
    module     the module of the operator; of a parameter the module that owns it, which the operator may be outside of;
               of a module call that only one side makes the module that calls it
    pair       the first pair that has it: an input for "input", "parameter" and "wiring", else an output in most cases
    evidence   the facts that support it, with numbers
    explains   number of later pairs whose differences were traced to it
    first_seen the cause may be in earlier operators or inputs, which are not recorded or could not be read
    next       settings of the capture to run next, as keyword arguments of `ascend_dump.capture`
    caller     in dumps of `level="module"`: the module whose functions between inner modules may be the cause. Else the
               module that calls a module which only one side runs. `module` is this one then. None if there is none
    seen       at an operator that only one side runs: the input that reads its result and differs
    """

    kind: str
    pair: Pair
    evidence: tuple[str, ...]
    explains: int = 0
    first_seen: bool = False
    next: dict[str, Any] = field(default_factory=dict)
    caller: Optional[str] = None
    seen: Optional[Pair] = None

    @property
    def module(self) -> Optional[str]:
        if self.caller is not None:
            return self.caller
        record = self.pair.record
        is_of_one_side = self.pair.actual is None or self.pair.reference is None
        is_call = is_of_module(record) and not is_update(record)
        if self.kind == "structure" and is_of_one_side and record.module and is_call:
            return record.module.rpartition(".")[0]
        owner = (record.parameter or "").rpartition(".")[0] if self.kind == "parameter" else ""
        # A parameter of another program than the module's, such as the state of an optimizer, has another path.
        is_inside = bool(record.module) and owner.startswith(f"{record.module}.")
        if not record.module and self.pair.reference is not None:
            return self.pair.reference.module  # actual has functions where the reference has a module
        return owner if is_inside else record.module

    def to_dict(self) -> dict[str, Any]:
        """Return the origin as plain values, for JSON."""
        return {
            "kind": self.kind,
            "meaning": KINDS[self.kind],
            **self._location(),
            "evidence": list(self.evidence),
            "explains": self.explains,
            "first_seen": self.first_seen,
            "next": self.next,
            "pair": self.pair.to_dict(),
        }
