"""Hold a draft of an origin during a walk: the first difference, its evidence, and whether later ones depend on it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Optional

from ascend_dump.analysis.explaining.adapter_evidence import AdapterRecords
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.operators.names import is_source, is_view
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import COLLECTIVES, COPIES, TO_NUMBER, operator_class, writes
from ascend_dump.analysis.pairing.stretches import Stretch
from ascend_dump.analysis.pairing.weak_pairs import computes
from ascend_dump.common.units import counted
from ascend_dump.reading import Record

__all__ = ["MOST_NAMED", "Draft", "add_effect", "explain", "stretch_draft"]

#: Maximum number of operators or inputs that a line of evidence names.
MOST_NAMED = 4
#: Evidence that one side adds the gradients of several backward passes: for actual, and for the reference.
_ACCUMULATED = (
    "gradients were accumulated: not zero when a backward pass began, {count} in all",
    "gradients were accumulated in the reference only: zero here when a backward pass began, {count} in all"
    "; look for a zero_grad() between two passes",
)
#: The key of modules that get a gradient in one program only.
_LOST = "lost gradient"
#: The beginning of the evidence for the tensor that leaves a stretch and differs.
_READ_AS = "its result differs, read as"
#: The beginning of the evidence for results that were not compared.
_NO_PARTNER = "its results have no partner"
#: Evidence for a difference that begins between two steps.
_NOT_UPDATED = "it agrees in step {step}: the update after it is the probable cause"


class Draft:
    """An origin during the walk over the operators, with the number of differences that it explains.

    hidden    True: the origin is reported only if later differences depend on it. It is an operator of one side, or
              uninitialised memory, which always differs
    reshaped  True: only the shape differs. This is another way to compute the same if later tensors are equal again
    joined    drafts with the same key are reported as one origin; None: the draft is reported by itself
    arguments the differing arguments, which are part of the evidence
    summary   the first evidence if several drafts are reported as one; {count} stands for their number
    """

    def __init__(
        self,
        kind: str,
        pair: Pair,
        evidence: list[str],
        *,
        hidden: bool = False,
        reshaped: bool = False,
        first_seen: bool = False,
        joined: Optional[Hashable] = None,
        arguments: Sequence[str] = (),
        summary: str = "",
    ) -> None:
        self.kind = kind
        self.pair = pair
        self.evidence = evidence
        self.explains = 0
        self.hidden = hidden
        self.reshaped = reshaped
        #: True if a tensor with the same shape on both sides differs because of it.
        self.changes_values = False
        #: True at a stretch if a tensor that left it has another shape, so that its values were not compared.
        self.changes_shape = False
        #: True if tensors computed from it are equal again.
        self.settled = False
        #: True if the output of its operator, or of a module around it, agrees.
        self.ends_in_module = False
        #: True if a gradient inside of a module, whose output agrees, differs because of it.
        self.changes_gradients = False
        #: True at a module call of the backward pass that one side lacks, although it makes the forward call.
        self.is_lost_gradient = False
        #: The number of differences that it had explained when an output of a module around it agreed last.
        self.explained_inside = 0
        #: False if its differences end before any result of the program; None if that is not known.
        self.reaches_results: Optional[bool] = None
        #: True if statistics do not decide if a tensor that leaves its stretch agrees.
        self.is_undecided = False
        #: True if it is proven that another argument, or an update, changed a tensor: later ones that agree do not
        #: disprove it.
        self.is_proven = False
        self.first_seen = first_seen
        self.joined = joined
        self.arguments = arguments
        self.summary = summary
        #: The first tensor that left its stretch and differs.
        self.border: Optional[Pair] = None
        #: Path of the module whose functions between inner modules may be the cause, in dumps of `level="module"`, or
        #: which calls a module that only one side runs.
        self.caller: Optional[str] = None
        #: True at a stretch outside of modules that is shown by the reader of its result: it only makes a constant, or
        #: only the reference computes in it. A reader in a module, or one that sends the result, is right.
        self.is_at_reader = False
        #: True if results of its stretch were not compared, so that its kind is unknown.
        self._has_no_partner = False
        #: At a stretch: the number of lines of evidence on its operators; else 0.
        self.stretch_lines = 0
        #: The phase of the tensor that differs and is computed from the operators that are shown; None before.
        self.narrowed_by: Optional[str] = None
        #: True at a stretch of both passes that is narrowed to operators of the backward pass.
        self.is_later = False
        #: True if nothing else explained the first tensor that left its stretch and differs.
        self.begins_alone = False
        #: The first parameter, gradient or state of an optimizer that differs because of it, with its operator.
        self.first_named = ""
        #: The last earlier step in which the tensor that differs agreed; None if there is none.
        self.since: Optional[int] = None
        #: Operators of the backward pass that are called differently because of it.
        self.backward: list[str] = []
        #: The names in actual and in the reference of a parameter that has two: one may be computed from the other.
        self.names: Optional[tuple[str, str]] = None
        #: At an operator that only one side runs: the input that reads its result and differs.
        self.seen: Optional[Pair] = None
        #: The number of calls in which one side reads the data that the other side reads in one; 0 if they do not.
        self.parts = 0
        #: The adapter that one program keeps apart from such a parameter; None if there is none.
        self.adapter: Optional[AdapterRecords] = None

    def add_since(self, step: Optional[int]) -> None:
        """Note the last earlier step in which the tensor agreed, if there is one."""
        self.since = step
        if step is not None:
            self.evidence.insert(1, _NOT_UPDATED.format(step=step))

    def add_lost_gradient(self) -> None:
        """Note that one side has no gradient in a module. All such modules are one origin: the first lost it."""
        self.is_lost_gradient, self.joined = True, _LOST

    def add_reach(self, reaches: bool) -> None:
        """Note whether the differences of one step reach a result of the program."""
        self.reaches_results = reaches or self.reaches_results is True

    def is_wide(self, pair: Pair) -> bool:
        """Return True if this draft, at a stretch, may be narrowed to the operators from which a tensor is computed.

        The forward pass runs before the backward pass, but its results may be compared at the end of the step.
        """
        is_result = self._has_no_partner and pair.record.phase != "backward"
        is_of_stretch = self.stretch_lines > 0 and (self.kind == "structure" or is_result) and not self.summary
        is_later_step = pair.record.step != self.pair.record.step
        if not is_of_stretch or (is_later_step and (self.has_border or self.narrowed_by is not None)):
            return False
        return self.narrowed_by is None or "backward" == self.narrowed_by != pair.record.phase

    def add_border(self, pair: Pair, cause: Optional[Stretch], *, is_alone: bool) -> None:
        """Note a tensor that left the stretch of this draft, and that differs because of the stretch.

        cause     the operators of the stretch from which the tensor is computed; None if unknown
        is_alone  nothing else explains the difference
        """
        if cause is not None and any(cause.operators):
            self.narrowed_by = pair.record.phase
            if self._has_no_partner:
                # This result of the stretch, such as a loss, is compared at the end of the step.
                self.kind, self._has_no_partner = "structure", False
                self.evidence = [line for line in self.evidence if not line.startswith(_NO_PARTNER)]
            narrow = stretch_draft(cause, is_cause=True)
            self.is_later = "backward" == narrow.pair.record.phase != self.pair.record.phase
            self.pair, self.joined, self.caller = narrow.pair, narrow.joined, narrow.caller
            self.is_at_reader, self.evidence[: self.stretch_lines] = narrow.is_at_reader, narrow.evidence
            self.stretch_lines = narrow.stretch_lines
            if self.border is not None:
                # The tensor that was seen first is computed from other operators.
                self.border = pair
                self.evidence = [line for line in self.evidence if not line.startswith(_READ_AS)]
                self.evidence.append(_read_as(pair))
        if self.border is None:
            self.border, self.begins_alone = pair, is_alone
            if self.is_at_reader and _tells_place(pair.record):
                self.pair = pair
            self.evidence.append(_read_as(pair))
        self.changes_values = True

    def add_unknown(self, pair: Pair, *, is_lost: bool) -> None:
        """Note a tensor that differs, and that is computed from results of this stretch that were not compared.

        is_lost: it computes a gradient, and the other side computes none. That is certain
        """
        # A result of the forward pass that was compared, such as a loss, proves more.
        is_proven = self.narrowed_by not in (None, "backward")
        if self.kind != "unknown" and not is_proven and not any(line.startswith(_NO_PARTNER) for line in self.evidence):
            self._has_no_partner = self.kind == "structure" and not is_lost
            self.kind = self.kind if is_lost else "unknown"
            self.evidence.append(f"{_NO_PARTNER}, and {pair.record.label}, which is made of them, differs")
        self.changes_values |= is_lost

    @property
    def has_border(self) -> bool:
        return self.border is not None

    @property
    def is_of_structure(self) -> bool:
        """True if the programs are built differently there, or read data of another shape, such as parts of a batch."""
        if self.is_of_size or (self.kind == "wiring" and self.reshaped):
            return True
        return self.kind in ("structure", "wiring") or (self.hidden and self.kind == "unknown")

    @property
    def is_of_size(self) -> bool:
        """True if the data have another size on both sides, such as parts of a batch."""
        return self.kind == "input" and self.reshaped

    @property
    def is_from_outside(self) -> bool:
        """True if data from outside of the recorded operators have other values."""
        return self.kind == "input" and not self.reshaped

    @property
    def may_end(self) -> bool:
        """True if it is dropped once all its differences end before a result of the program."""
        return self.is_of_structure and not self.is_proven

    @property
    def is_of_input(self) -> bool:
        """True if an operator reads another tensor, or one of another shape or type."""
        return self.pair.record.io == "input" and (self.pair.verdict == "structure" or self.kind == "wiring")

    @property
    def is_of_reader(self) -> bool:
        """True if it changes gradients of inputs of modules only: they depend on all readers of these inputs."""
        record = self.pair.record
        is_of_input = record.phase == "backward" and record.io == "output" and self.pair.has_one_shape
        return is_of_input and not self.changes_gradients

    @property
    def is_certain(self) -> bool:
        return not (self.hidden or self.reshaped)

    @property
    def is_suspected(self) -> bool:
        """True at a stretch if no tensor that leaves it was seen to differ, and others that leave it agree."""
        return self.stretch_lines > 0 and self.settled and not (self.has_border or self.is_proven)

    @property
    def has_other_form(self) -> bool:
        """True at a stretch if only the shapes of tensors that leave it are known to differ."""
        return self.changes_shape and self.hidden and not (self.has_border or self.is_proven)

    @property
    def is_disproved(self) -> bool:
        """True at a stretch if all tensors that leave it and can be judged agree."""
        return self.is_suspected and not (self.is_undecided or is_of_module(self.pair.record))

    @property
    def changes_inside(self) -> bool:
        """True if values inside of a module differ because of it, and the output of the module agrees."""
        return self.ends_in_module and self.is_certain and self.pair.has_one_shape

    @property
    def is_reported(self) -> bool:
        if self.parts:
            return False  # both programs read the same data
        if self.reaches_results is False or (self.ends_in_module and self.explains <= self.explained_inside):
            return False
        if self.changes_values or self.is_certain:
            return True
        return not self.settled and (self.explains > 0 or not self.hidden)


def _read_as(pair: Pair) -> str:
    name = f" ({pair.record.parameter})" if pair.record.parameter else ""
    return f"{_READ_AS} {pair.record.label}{name}: {pair.reason}"


def _tells_place(reader: Record) -> bool:
    """Return True if a reader is a place in the program where a result is missing: one that computes with it.

    Copies and exchanges are often in functions that many places call, and modules have origins of their own.
    """
    is_copy = operator_class(reader.op_type) in COPIES or is_view(reader.op_type)
    return not (reader.module or reader.op_type.startswith(COLLECTIVES) or is_copy)


def stretch_draft(stretch: Stretch, states: Sequence[str] = (), *, is_cause: bool = False) -> Draft:
    """Return the draft of an origin at a stretch: its first operator that computes, if possible one of actual.

    A call of several ranks is named before others, if the other side has nothing in its place.

    states    names of the states that the stretch updates on one side only, and that later steps read
    is_cause  the result of the last operator differs. In losses the last operator is shown, because others may be right
    """
    stretch = stretch.without_masks()
    here, there = stretch.operators
    operators = [*here, *there]
    makes_result = _makes_result(operators)
    if there and any(operator.module for operator in there) and not any(operator.module for operator in here):
        operators = [*there, *here]  # the names of operators of a program of functions tell little
    first = next(filter(makes_result, operators), None) or next(filter(computes, operators), operators[0])
    if is_cause and not any(op.module or op.phase == "backward" or writes(op.op_type) for op in operators):
        first = next(filter(makes_result, reversed(here or there)), first)
    # A lost exchange between ranks is the cause itself: other operators prepare it, and its result is read later.
    exchange = next((op for op in operators if op.op_type.startswith(COLLECTIVES)), None)
    if exchange is not None and not (here and there):
        first = exchange
    of_actual = any(operator is first for operator in here)
    record = next(iter(first.outputs), None) or next(first.records)
    text = _how_built(stretch, first)
    pair = Pair(record if of_actual else None, None if of_actual else record, "", 0.0, "unmatched", text)
    added = [any(map(_adds_to_gradient, side)) for side in (here, there)]
    if added[0] != added[1]:
        summary = _ACCUMULATED[added[1]]
        return Draft("structure", pair, [summary.format(count=1)], hidden=True, joined=summary, summary=summary)
    # Operators of one source line are one change of the program, even if several layers run the line.
    types = (tuple(operator.op_type for operator in here), tuple(operator.op_type for operator in there))
    joined = (of_actual, first.module, first.source) if not (here and there) else (types, first.source)
    evidence = [text]
    if here and there and not of_actual:
        evidence.append(f"in actual it begins with {_place_of(next(filter(computes, here), here[0]))}")
    if states:
        names = list(dict.fromkeys(states))
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        side = "here" if here else "in the reference"
        evidence.append(f"updates {', '.join(names[:MOST_NAMED])}{more} {side} only, for later steps")
    draft = Draft("structure", pair, evidence, hidden=not states, joined=joined if first.source else None)
    draft.stretch_lines = len(evidence)
    is_constant = any(is_source(op.op_type) for op in operators) and not any(map(computes, operators))
    # Nothing in actual stands for a write to an existing tensor, and its reader may be anywhere in the program.
    is_write = any(writes(op.op_type) for op in there)
    is_of_reference = not here and any(map(computes, there)) and exchange is None and not is_write
    draft.is_at_reader = not any(op.module for op in operators) and (is_constant or is_of_reference)
    draft.caller = stretch.caller_of(first)
    return draft


def _place_of(operator: Operator) -> str:
    return operator.op_name if operator.source is None else f"{operator.op_name} at {operator.source}"


def _makes_result(operators: Sequence[Operator]) -> Callable[[Operator], bool]:
    """Return a test for operators that compute a tensor of the program, not only a number that Python code checks."""
    checked = [record.content for operator in operators if operator.function == TO_NUMBER for record in operator.inputs]

    def makes_result(operator: Operator) -> bool:
        contents = [record.content for record in operator.outputs]
        is_check = operator.function == TO_NUMBER or (None not in contents and all(one in checked for one in contents))
        return computes(operator) and not is_check

    return makes_result


def _adds_to_gradient(operator: Operator) -> bool:
    """Return True if an operator adds the gradient of a parameter to the gradient of an earlier backward pass."""
    is_sum = operator_class(operator.op_type) == "add" and writes(operator.op_type)
    return is_sum and operator.phase == "backward" and len(operator.inputs) == 2


def _how_built(stretch: Stretch, first: Operator) -> str:
    here, there = stretch.operators
    if len(here) == len(there) == 1 and here[0].op_type != there[0].op_type:
        return f"{here[0].op_type} in actual, {there[0].op_type} in the reference"
    if here and there:
        name = f"{stretch.module} is" if stretch.module else "these operators are"
        return f"{name} built differently: {counted(len(here), 'operator')} here, {len(there)} in the reference"
    types = list(dict.fromkeys(operator.op_type for operator in (here or there) if computes(operator)))
    types = types or [first.op_type]
    more = f" and {len(types) - MOST_NAMED} more" if len(types) > MOST_NAMED else ""
    side = "actual" if here else "the reference"
    return f"{', '.join(types[:MOST_NAMED])}{more} {'runs' if len(types) == 1 else 'run'} in {side} only"


def explain(pair: Pair, causes: Collection[Draft]) -> None:
    """Note at the origins that a pair of outputs differs because of them."""
    name = pair.record.parameter
    for draft in causes:
        draft.explains += 1
        if name and not draft.first_named:
            draft.first_named = f"{name} ({pair.record.op_name})"
    add_effect(pair, causes)


def add_effect(pair: Pair, causes: Collection[Draft]) -> None:
    """Note at the origins that values differ because of them."""
    # Differences explained by a certain origin support no uncertain one.
    is_effect = pair.has_one_shape and not any(draft.is_certain for draft in causes)
    for draft in causes:
        draft.changes_values |= is_effect
