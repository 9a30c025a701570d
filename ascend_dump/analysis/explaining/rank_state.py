"""The state of the walk over one rank, which the judges of inputs and outputs share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.explaining.differing import Node
from ascend_dump.analysis.explaining.drafts import Draft
from ascend_dump.analysis.explaining.origins import Drafts
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.explaining.stretches import Stretches
from ascend_dump.analysis.explaining.tracking.changed_arguments import ChangedArguments
from ascend_dump.analysis.explaining.tracking.known_differences import KnownDifferences
from ascend_dump.analysis.explaining.tracking.local_results import LocalResults
from ascend_dump.analysis.explaining.tracking.missed_updates import MissedUpdates
from ascend_dump.analysis.explaining.tracking.moved_axes import MovedAxes
from ascend_dump.analysis.explaining.tracking.parameter_history import ParameterHistory
from ascend_dump.analysis.explaining.wiring import Wiring
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, InputNoise, OriginNumber
from ascend_dump.analysis.judging.noise import NoiseJudge
from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.analysis.numerics.tensor_pair import Difference, Differences
from ascend_dump.analysis.operators.module_calls import ModuleCalls
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import NO_INPUTS, RANDOM, SHAPED, operator_class
from ascend_dump.analysis.pairing.matches import Match, in_places
from ascend_dump.analysis.replay.rerun import Rerun
from ascend_dump.common.units import counted
from ascend_dump.reading import Record

__all__ = [
    "FOLLOWS",
    "FOLLOWS_ROUNDING",
    "FOLLOWS_UNDEFINED",
    "MAYBE_REARRANGED",
    "NO_VALUE_YET",
    "SAME_CONSTANT",
    "RankState",
    "extent",
]

OF_MODEL = "it is the gradient of an output of the model: the cause is in the loss, or where its gradient is scaled"
OF_MODULE = "it is the gradient of an output of the module: the cause is in a function that reads this output"
#: The reasons of differences that follow from known ones.
FOLLOWS = "follows from an earlier difference"
FOLLOWS_ROUNDING = "follows from earlier rounding"
FOLLOWS_UNDEFINED = "follows from a tensor without a defined value"
MAYBE_REARRANGED = "its bytes are others and its statistics the same: its elements may be in another order"
SAME_CONSTANT = "the same constant, in the type that one program casts to"
NO_VALUE_YET = "memory without a value yet, in the type that one program casts to"


class OuterGradient(NamedTuple):
    """The gradient of an output of the model or of a module, as an origin. For its fields see `Draft`."""

    pair: Pair
    evidence: list[str]
    joined: tuple[Any, ...]

    @classmethod
    def of(cls, pair: Pair, more_evidence: Sequence[str]) -> OuterGradient:
        record = pair.record
        text = OF_MODULE if record.module else OF_MODEL
        evidence = [f"{record.label}: {pair.reason}", text, *more_evidence]
        return cls(pair, evidence, (text, record.module, record.index))


class Caller(NamedTuple):
    """The call of a module that computes an input of a module inside it, by functions that are not recorded.

    module  its path; None for the program that calls the outermost module
    pair    an input that this call passes on, and that differs already; None if the input of the inner module is first
    others  its inputs of another shape or type, and those that one program does not pass
    """

    module: Optional[str]
    pair: Optional[Pair] = None
    others: tuple[Pair, ...] = ()

    @property
    def evidence(self) -> list[str]:
        if self.module is None:
            return ["the model is called with it"]
        name = self.module or "the model"
        inputs = "whose other inputs agree" if self.others else "whose inputs agree"
        return [
            f"computed inside of {name}, {inputs}, by functions between the modules that it calls",
            *(f"{pair.record.label}{_argument_of(pair.record)}: {pair.reason}" for pair in self.others),
        ]


@dataclass
class RankState:
    """The state of the walk over one rank.

    casts       contents of pairs of tensors whose types differ because one program casts the tensors they are made of
    cast_memory memory of this step that is allocated for such tensors, and has no value yet
    wirings     origins at inputs that read another tensor than in the reference, by operator name and evidence
    rebuilt     origins where the programs are built differently in this step, each with its operators or stretch
    local       results of one rank of several that correspond to no tensor of the other side
    missed      updates of parameters that one rank of several does not run
    moved_axes  tensors with another order of axes in the other framework
    unreadable  number of unreadable records so far
    history     parameters over the steps
    wiring      the sources of all inputs of the step
    has_gradients  the step has a backward pass
    """

    rules: Rules
    rerun: Optional[Rerun]
    judge: NoiseJudge
    differences: Differences = field(default_factory=Differences)
    known: KnownDifferences = field(default_factory=KnownDifferences)
    arguments: ChangedArguments = field(default_factory=ChangedArguments)
    modules: ModuleCalls = field(default_factory=ModuleCalls)
    drafts: Drafts = field(default_factory=Drafts)
    stretches: Stretches = field(default_factory=Stretches)
    casts: set[tuple[Any, Any]] = field(default_factory=set)
    cast_memory: set[tuple[Any, Any]] = field(default_factory=set)
    wirings: dict[tuple[str, tuple[str, ...]], OriginNumber] = field(default_factory=dict)
    rebuilt: list[tuple[OriginNumber, Node]] = field(default_factory=list)
    local: LocalResults = field(default_factory=LocalResults)
    missed: MissedUpdates = field(default_factory=MissedUpdates)
    moved_axes: MovedAxes = field(default_factory=MovedAxes)
    unreadable: int = 0
    history: ParameterHistory = field(default_factory=ParameterHistory)
    wiring: Optional[Wiring] = None
    has_gradients: bool = False

    @property
    def has_parts(self) -> bool:
        """True if one side has more ranks, so that a tensor of a rank may be a part of a tensor of the other side."""
        return self.differences.shards is not None

    def compare(self, match: Optional[Match], a: Optional[Record], b: Optional[Record]) -> tuple[Difference, Pair]:
        """Return the difference of two records, and their pair before its numbers are judged.

        match: None for results of stretches
        """
        difference = self.differences.between(a, b)
        verdict, reason = difference.verdict, difference.reason
        transformation = "cast" if difference.cast else difference.layout
        how, confidence = ("border", 0.95) if match is None else (match.how, match.confidence)
        return difference, Pair(a, b, how, confidence, verdict, reason, transformation, difference.measure)

    def add_local(self, pair: Pair, inputs: Iterable[Pair]) -> None:
        """Note a pair of records without a counterpart. inputs: what it is computed from, or itself for an input

        Memory and constants of another size are no origin: numbers of the program determine them.
        """
        if pair.actual is None or pair.reference is None:
            return
        origin = self.local.origin_of(inputs)
        if origin is None and not (pair.record.io == "output" and _is_constant(pair.record)):
            evidence = [f"{pair.record.label}: {pair.reason}"]
            origin = self.drafts.add(Draft("unknown", pair, evidence, hidden=True, first_seen=True))
        self.local.add(pair.actual, pair.reference, origin)

    def local_origin(self, pair: Pair) -> frozenset[OriginNumber]:
        """Return the origin at the first result without a counterpart that an input is computed from, and report it.

        Empty if it is computed from no such result in this step or the one before, or if it is read later in the step:
        then the gradient of a parameter did not pass through the result. Results of the backward pass do not count:
        the parameters of one layer differ because of them, whatever is done with its gradients.

        pair: the input, which should agree and does not
        """
        origin = self.local.origin_of([pair]) if self.has_parts else None
        if origin is None:
            return NO_ORIGINS
        draft, record = self.drafts[origin], pair.record
        first = draft.pair.record
        is_read_later = record.attrs.get("seq", 0) > first.attrs.get("seq", 0)
        is_earlier_step = (record.step or 0) > (first.step or 0) + 1
        if is_read_later or is_earlier_step or first.phase == "backward":
            return NO_ORIGINS
        if not draft.changes_values:
            name = record.parameter and f" ({record.parameter})"
            draft.evidence.append(f"{record.label}{name or ''}, which is computed from it, differs: {pair.reason}")
        draft.explains += 1
        draft.changes_values = True
        return frozenset({origin})

    def agree(self, a: Record, b: Record) -> bool:
        """Return True if two tensors are equal, or differ no more than rounding in this program explains."""
        difference, _ = self.compare(None, a, b)
        if not difference.has_values:
            return difference.verdict == "equal"
        return self.judge.of_input(a, b, difference, self.known.largest)[0] in ("noise", "undecided")

    def outer_gradient(self, match: Match) -> Optional[OuterGradient]:
        """Return the differing gradient that enters the outermost module around a module; None if there is none.

        It is recorded later than the gradients inside, but made earlier. match: of dumps of `level="module"`
        """
        is_backward = match.reference.phase == "backward"
        for calls in self.wiring.enclosing(match) if is_backward and self.wiring is not None else ():
            pair = self._differing_input(match, *calls)
            if pair is not None:
                return OuterGradient.of(pair, self.unreadable_evidence())
        return None

    def caller(self, match: Match) -> Optional[Caller]:
        """Return the call that computes an input of a module, which differs, from inputs that agree; None if unknown.

        match: a forward call in dumps of `level="module"`
        """
        is_forward = match.reference.phase == "forward"
        caller: Optional[Caller] = None
        for calls in self.wiring.enclosing(match) if is_forward and self.wiring is not None else ():
            pair = self._differing_input(match, *calls)
            if pair is not None:
                return Caller(None if caller is None else caller.module, pair)
            inputs = [self.compare(match, a, b)[1] for a, b in in_places(calls[0].inputs, calls[1].inputs)]
            others = [other for other in inputs if other.verdict in ("structure", "unmatched")]
            caller = Caller(calls[1].module or "", others=tuple(others))
        return caller

    def _differing_input(self, match: Match, actual: Operator, reference: Operator) -> Optional[Pair]:
        """Return the first input of an outer call that differs by more than rounding; None if there is none."""
        for a, b in in_places(actual.inputs, reference.inputs):
            difference, pair = self.compare(match, a, b)
            if b is None or pair.actual is None or difference.measure is None or difference.verdict != "different":
                continue
            verdict, reason = self.judge.of_input(pair.actual, b, difference, self.known.largest)
            if verdict == "different":
                return replace(pair, verdict=verdict, reason=reason)
        return None

    def agreed_in(self, name: str, record: Record) -> Optional[int]:
        """Return the last step before that of a record in which its tensor, or each module, agreed; None if unknown.

        name: the name of the parameter; "" for a module call
        """
        of_modules = None if name else self.modules.agreed_in(record)
        if not name and not is_of_module(record):
            return None
        if not name and of_modules is None and self.drafts.have_origins:
            return None
        steps = (of_modules, self.history.agreed_in(name, record.step))
        return max((step for step in steps if step is not None), default=None)

    def is_same_constant(self, a: Record, b: Record, difference: Difference) -> bool:
        """Return True for the same values in two types of floats between which one program casts, as autocast does."""
        measure = difference.measure
        if difference.verdict != "structure" or not difference.cast or measure is None or measure.unequal:
            return False
        if not self.stretches.cast_to(a.dtype, b.dtype):
            return False
        if difference.contents is not None:
            self.casts.add(difference.contents)
        return True

    def is_cast(self, difference: Difference) -> bool:
        """Return True if an input has another type because one program casts it, as autocast does."""
        if difference.verdict != "structure" or not difference.cast or difference.contents is None:
            return False
        makers = self.stretches.makers(difference.contents)
        return difference.contents in self.casts or any(made.stretch.casts for made in makers)

    def look_up_unpaired(self, side: int, record: Record) -> tuple[frozenset[OriginNumber], Optional[InputNoise]]:
        """Return the origins and the noise of an input of one side (0: actual) without a partner.

        Hidden origins are left out: an operator that only one side runs does not prove that values differ.
        """
        return self.known.look_up_unpaired(side, record, lambda origin: not self.drafts[origin].hidden)

    def remember(self, pair: Pair, contents: Optional[tuple[Any, Any]], causes: frozenset[OriginNumber]) -> None:
        """Note the origins of a difference of outputs."""
        if pair.record.phase == "backward":
            self.history.add_gradient(pair.record.step, causes)
        if pair.actual is not None and pair.reference is not None:
            self.known.add_written(pair.actual, pair.reference, contents, causes)

    def unreadable_evidence(self) -> list[str]:
        """Return the evidence that earlier records, which are unreadable, may contain the cause."""
        if not self.unreadable:
            return []
        return [f"{counted(self.unreadable, 'earlier record')} could not be read: the cause may be among them"]


def _argument_of(record: Record) -> str:
    return f" ({record.argument})" if record.argument else ""


def _is_constant(record: Record) -> bool:
    function = operator_class(record.op_type)
    return function in NO_INPUTS or (function in SHAPED and function not in RANDOM)


def extent(measure: Optional[Measure]) -> str:
    """Return the size of a difference in words, in parentheses; "" if it was not measured."""
    if measure is None:
        return ""
    if measure.nonfinite:
        return f" ({measure.nonfinite} of {measure.count} elements NaN or Inf on one side only)"
    return f" (relative error {measure.rel_l2:.2g})"
