"""The state of the walk over one rank, which the judges of inputs and outputs share."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.explaining.changed_arguments import ChangedArguments
from ascend_dump.analysis.explaining.effects import Node
from ascend_dump.analysis.explaining.input_evidence import is_compared
from ascend_dump.analysis.explaining.known_differences import KnownDifferences
from ascend_dump.analysis.explaining.local_results import LocalResults
from ascend_dump.analysis.explaining.moved_axes import MovedAxes
from ascend_dump.analysis.explaining.origins import Draft, Drafts, add_effect
from ascend_dump.analysis.explaining.parameter_history import ParameterHistory
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.explaining.stretches import (
    Border,
    EnteredStretch,
    MadeInside,
    Stretches,
    is_alone,
    is_lost_gradient,
)
from ascend_dump.analysis.explaining.wiring import Wiring
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, InputNoise, OriginNumber
from ascend_dump.analysis.judging.noise import NoiseJudge
from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.analysis.numerics.arrangement import are_rearranged
from ascend_dump.analysis.numerics.float_types import float_kind, is_float_tensor
from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.analysis.numerics.tensor_pair import Difference, Differences, type_of
from ascend_dump.analysis.operators.module_calls import ModuleCalls
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.operator import Operator, is_read_for
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.operators.undefined_outputs import written_inputs
from ascend_dump.analysis.pairing.same_framework import Match
from ascend_dump.analysis.pairing.stretches import Stretch
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
    "OperatorPair",
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


#: Tensors with a larger relative distance are not near: in rounding units, but at least _LEAST_NEAR.
_UNITS_NEAR, _LEAST_NEAR = 16.0, 1e-4
#: Maximum number of bytes of results inside of a stretch that are compared, each with each of its shape.
_MOST_INSIDE = 1 << 28


class OperatorPair:
    """Two paired operators with the differences of their inputs.

    is_replaced  another operator runs in place of the reference's operator
    written      indices of inputs that the operator overwrites: they are judged as outputs
    inputs       pairs of the other inputs, as far as they were judged
    causes       origins of the differences of the inputs
    noise        differences of the inputs that are within rounding
    borders      inputs that differ and that were made inside a stretch (a part that is built differently)
    is_cast      an input has another type on both sides, because one program casts it
    """

    def __init__(self, match: Match) -> None:
        self.match = match
        # Frameworks name operators differently, so another name proves nothing between frameworks.
        self.is_replaced = match.tensors is None and (
            operator_class(match.actual.op_type) != operator_class(match.reference.op_type)
        )
        self.written = written_inputs(match.reference)
        self.inputs: list[Pair] = []
        self.causes: set[OriginNumber] = set()
        self.noise: list[InputNoise] = []
        #: For each input: its index, its origins and its noise.
        self._read: list[tuple[Optional[int], frozenset[OriginNumber], tuple[InputNoise, ...]]] = []
        self.borders: list[Border] = []

    @property
    def is_cast(self) -> bool:
        return any(pair.transformation == "cast" and pair.verdict != "structure" for pair in self.inputs)

    def add(self, causes: Collection[OriginNumber], *noise: InputNoise, index: Optional[int] = None) -> None:
        """Add the origins and the noise of an input. index: of the input in the reference; None if it is unpaired."""
        self.causes.update(causes)
        self.noise.extend(noise)
        self._read.append((index, frozenset(causes), noise))

    def of_output(self, output: Optional[Record]) -> OperatorPair:
        """Return the pair with the origins and the noise of those inputs from which an output is computed.

        They are all inputs, except for operators on lists, which compute each tensor of a list by itself.
        """
        reference = self.match.reference
        if output is None or all(is_read_for(reference, index, output.index) for index, *_ in self._read):
            return self
        read, other = (
            [source for source in self._read if is_read_for(reference, source[0], output.index) is is_read]
            for is_read in (True, False)
        )
        part = copy.copy(self)
        part.causes = self.causes - NO_ORIGINS.union(*(causes for _, causes, _ in other))
        part.causes |= NO_ORIGINS.union(*(causes for _, causes, _ in read))
        left_out = {id(noise) for *_, noises in other for noise in noises}
        left_out -= {id(noise) for *_, noises in read for noise in noises}
        part.noise = [noise for noise in self.noise if id(noise) not in left_out]
        part.inputs = [pair for pair in self.inputs if is_read_for(reference, pair.record.index, output.index)]
        return part

    @property
    def noise_causes(self) -> frozenset[OriginNumber]:
        """The origins from which the noise of the inputs may follow."""
        return NO_ORIGINS.union(*(noise.causes for noise in self.noise))

    @property
    def has_equal_inputs(self) -> bool:
        """True if all inputs with a defined value were compared and are equal."""
        return all(pair.verdict == "equal" or pair.undefined for pair in self.inputs)

    @property
    def is_blind(self) -> bool:
        """True if there are inputs, but none could be compared: each may differ by rounding."""
        return any(self.match.unpaired_inputs) and not any(map(is_compared, self.inputs))


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
    """

    module: Optional[str]
    pair: Optional[Pair] = None

    @property
    def evidence(self) -> list[str]:
        if self.module is None:
            return ["the model is called with it"]
        name = self.module or "the model"
        return [f"computed inside of {name}, whose inputs agree, by functions between the modules that it calls"]


@dataclass
class RankState:
    """The state of the walk over one rank.

    casts       contents of pairs of tensors whose types differ because one program casts the tensors they are made of
    cast_memory memory of this step that is allocated for such tensors, and has no value yet
    wirings     origins at inputs that read another tensor than in the reference, by operator name and evidence
    rebuilt     origins where the programs are built differently in this step, each with its operators or stretch
    local       results of one rank of several that correspond to no tensor of the other side
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
        """Note a pair of records without a counterpart. inputs: what it is computed from, or itself for an input"""
        if pair.actual is None or pair.reference is None:
            return
        origin = self.local.origin_of(inputs)
        if origin is None:
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
            caller = Caller(calls[1].module or "")
        return caller

    def _differing_input(self, match: Match, actual: Operator, reference: Operator) -> Optional[Pair]:
        """Return the first input of an outer call that differs by more than rounding; None if there is none."""
        sides = [{record.index: record for record in operator.inputs} for operator in (actual, reference)]
        for index, b in sides[1].items():
            difference, pair = self.compare(match, sides[0].get(index), b)
            if pair.actual is None or difference.measure is None or difference.verdict != "different":
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

    def judge_border(
        self, makers: Sequence[MadeInside], a: Record, b: Record, difference: Difference, pair: Pair
    ) -> tuple[Border, Optional[InputNoise]]:
        """Judge a tensor that leaves stretches and differs: return it as a border, and its noise if it agrees."""
        stretches = list({id(made.stretch): made.stretch for made in makers}.values())
        if difference.has_values:
            entering = [noise for stretch in stretches for noise in stretch.noise_of(b)]
            length = max(stretch.length for stretch in stretches)
            last = [(made.operator, made.record) for made in makers]
            noise = [source.noise for source in entering]
            inputs = [tuple(source.records) for source in entering]
            verdict, reason = self.judge.of_border(a, b, difference, noise, inputs, last, length)
            pair = replace(pair, verdict=verdict, reason=reason)
            if verdict != "different":
                suspects = NO_ORIGINS
                if verdict == "undecided":
                    suspects = self._suspects(stretches, a, b).union(*(source.causes for source in noise))
                    self._confirm_lost(stretches)
                agreeing = [stretch for stretch in stretches if verdict == "noise" or not stretch.differs]
                self.note_agreement(agreeing, pair)
                return Border(stretches, pair), self.known.add_noise(difference, type_of(a, b), suspects, noise)
        causes = NO_ORIGINS.union(*(stretch.origins() for stretch in stretches))
        if difference.bounds:
            # Origins that were suspects so far: from here on their differences are proven.
            self.rebuilt += [(number, stretch) for stretch in stretches for number in causes - {stretch.number}]
        self.known.add(difference.contents, causes)
        return Border(stretches, replace(pair, explained=True), causes, difference.contents), None

    def _confirm_lost(self, stretches: Sequence[EnteredStretch]) -> None:
        """Report the origins because of which one side has no gradient in a stretch.

        Bytes behind the stretch differ. Its gradient may be too small a term of a sum for statistics to prove it.
        """
        for stretch in stretches:
            if stretch.is_known or is_lost_gradient(stretch.stretch):
                stretch.differs = True
                draft = self.drafts[stretch.number]
                draft.hidden, draft.is_proven = False, True

    def _suspects(self, stretches: Sequence[EnteredStretch], a: Record, b: Record) -> frozenset[OriginNumber]:
        """Return the origins of a tensor that leaves stretches, and that differs although its statistics agree.

        They explain later differences that are proven. Without a sign of a difference only operators that compute, and
        for which the other side runs none, are such origins.
        """
        if not are_rearranged(a, b) and not any(stretch.causes for stretch in stretches):
            stretches = [stretch for stretch in stretches if is_alone(stretch.stretch)]
        return NO_ORIGINS.union(*(stretch.origins() for stretch in stretches))

    def leave(self, border: Border) -> None:
        """Note that a tensor which leaves stretches differs, and that the result of its reader differs too."""
        drafts = self.drafts.of(border.causes)
        # A different shape alone does not prove that the values differ.
        for stretch in border.stretches if border.pair.has_one_shape else ():
            stretch.differs = True
            if stretch.number in border.causes:
                # With gradients, a difference of the forward pass that ended comes back where tensors are read again.
                # A difference that begins and ends inside of one pass began in this stretch.
                in_backward = {phase == "backward" for phase in stretch.stretch.phases}
                is_of_pass = in_backward == {border.pair.record.phase == "backward"}
                has_cause = self.wiring is not None and not stretch.is_known and (is_of_pass or not self.has_gradients)
                draft = self.drafts[stretch.number]
                cause = self._cause(stretch, border.pair) if has_cause and draft.is_wide(border.pair) else None
                is_alone = not self.has_gradients and has_cause and border.causes == {stretch.number}
                draft.add_border(border.pair, cause, is_alone=is_alone)
            for before in stretch.before:
                if before.is_open and before.number in border.causes:
                    self.drafts[before.number].add_unknown(border.pair, is_lost=before.is_lost)
        add_effect(border.pair, drafts)

    def _cause(self, entered: EnteredStretch, pair: Pair) -> Stretch:
        """Return the operators of a stretch from which a tensor that leaves it is computed, but for right operators.

        Operators are right if a tensor computed from them agrees. For example, all layers read one mask, and the
        results of earlier layers agree; or the result of a norm agrees, and a product of it differs.
        """
        assert self.wiring is not None, "the caller checked it"
        leading = entered.stretch.leading_to(_identities([pair]), self.wiring.flows)
        agreeing = _identities(entered.agreeing) | self._agreeing_inside(leading)
        right = entered.stretch.leading_to(agreeing, self.wiring.flows)
        cause = leading.without(right).without_masks()
        return cause if self._is_open_beside(entered, cause.module) else cause.without_common()

    def _is_open_beside(self, entered: EnteredStretch, module: str) -> bool:
        """Return True if one side runs operators in the module of a stretch from which nothing was compared.

        They may lead to it by a cache, which data flow does not show, and do what this side seems to lack.
        """
        return any(
            other is not entered
            and other.is_open
            and is_alone(other.stretch)
            and f"{other.stretch.module}.".startswith(f"{module}.")
            for other in self.stretches.all()
        )

    def _agreeing_inside(self, stretch: Stretch) -> set[int]:
        """Return the identities of results inside of a stretch that both programs compute, by any operators.

        Only first outputs count. The others are statistics in most cases, such as the mean of a norm. If there is too
        much to compare, nothing is returned.
        """
        here, there = (
            {
                record.content: record
                for operator in side
                for record in operator.outputs[:1]
                if record.content is not None and is_float_tensor(record)
            }
            for side in stretch.operators
        )
        pairs = [(a, b) for b in there.values() for a in here.values() if a.shape == b.shape]
        if sum(b.nbytes or 0 for _, b in pairs) > _MOST_INSIDE:
            return set()
        return {id(record) for a, b in pairs if self._is_near(a, b) for record in (a, b)}

    def _is_near(self, a: Record, b: Record) -> bool:
        """Return True if two tensors differ by little more than rounding. Statistics do not prove it."""
        difference = self.differences.between(a, b)
        measure, kind = difference.measure, float_kind(type_of(a, b))
        if measure is None or kind is None or difference.bounds or measure.nonfinite:
            return difference.verdict == "equal"
        return measure.rms > 0 and measure.rel_l2 <= max(_UNITS_NEAR * kind.unit, _LEAST_NEAR)

    def disregard(self, border: Border) -> None:
        """Note that a tensor which leaves stretches differs, and that the result of its reader does not."""
        self.note_agreement(border.stretches, border.pair)
        self.known.forget(border.contents)

    def note_agreement(self, stretches: Iterable[EnteredStretch], pair: Pair) -> None:
        """Note that a tensor which leaves stretches agrees."""
        for stretch in stretches:
            stretch.agreeing.append(pair)
            self.drafts[stretch.number].settled = True

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


def _identities(pairs: Iterable[Pair]) -> set[int]:
    return {id(record) for pair in pairs for record in (pair.actual, pair.reference) if record is not None}


def extent(measure: Optional[Measure]) -> str:
    """Return the size of a difference in words, in parentheses; "" if it was not measured."""
    if measure is None:
        return ""
    if measure.nonfinite:
        return f" ({measure.nonfinite} of {measure.count} elements NaN or Inf on one side only)"
    return f" (relative error {measure.rel_l2:.2g})"
