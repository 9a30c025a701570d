"""Walk the paired operators of one step in execution order, judge each tensor, and find the differences that nothing
before them explains.

A known difference explains the differences that follow from it. A new difference of an output is caused by its operator
if the inputs do not differ. A new difference of an input is caused by something that was not recorded.

Words of this package: a *draft* is an origin that is still being collected; a *hidden* draft is reported only if later
differences depend on it. A *stretch* is a part of the programs that the two sides build differently, and its *borders*
are the tensors that paired operators read from it. A draft is *settled* if an output behind it agrees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

from ascend_dump.analysis.alignment.shards import Portions, is_of_parts
from ascend_dump.analysis.explaining.api_calls import ApiCalls
from ascend_dump.analysis.explaining.borders import disregard, judge_border, leave, note_agreement
from ascend_dump.analysis.explaining.differing import Differing
from ascend_dump.analysis.explaining.drafts import Draft, stretch_draft
from ascend_dump.analysis.explaining.effects import Effects, reached_by_values
from ascend_dump.analysis.explaining.inputs import InputJudge
from ascend_dump.analysis.explaining.left_states import LeftStates, paired_states
from ascend_dump.analysis.explaining.operator_pair import OperatorPair
from ascend_dump.analysis.explaining.outputs import judge_outputs
from ascend_dump.analysis.explaining.rank_state import RankState
from ascend_dump.analysis.explaining.results import ChangedCall, Origin, Pair, Rebuilt
from ascend_dump.analysis.explaining.stretch_entry import StretchEntry
from ascend_dump.analysis.explaining.stretches import EnteredStretch, MadeInside, is_alone
from ascend_dump.analysis.explaining.tracking.local_results import NO_COUNTERPART
from ascend_dump.analysis.explaining.tracking.reordered_parameters import ReorderedParameters
from ascend_dump.analysis.explaining.updates import UpdateJudge, is_of_update
from ascend_dump.analysis.explaining.wiring import Wiring
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, OriginNumber
from ascend_dump.analysis.judging.noise import NoiseJudge
from ascend_dump.analysis.judging.second_run import Spread
from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.analysis.numerics.tensor_pair import Types, are_of_other_integers
from ascend_dump.analysis.operators.arguments import commutes
from ascend_dump.analysis.operators.names import without_counterpart
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import ALLOCATING, operator_class
from ascend_dump.analysis.pairing.data_flow import has_storages
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.analysis.pairing.stretches import Stretch
from ascend_dump.analysis.replay.rerun import Rerun

__all__ = ["Divergence"]

_SAME_RESULT = "made by different operators, and its reader returns the same"
_OTHER_INTEGERS = "the same numbers in another type of integers"
_ENDS = "built differently, and everything that is computed from it agrees"
#: The largest relative error of inputs by which the order of the inputs of a commutative operator is recognised.
_NEAR = 1e-3
_SIDES = ("actual", "the reference")


class Divergence:
    """The walk over the steps of one rank."""

    def __init__(self, rules: Rules, rerun: Optional[Rerun] = None, *, by_tokens: bool = False) -> None:
        """Begin a walk.

        rerun      replays operators whose outputs differ
        by_tokens  True if the tokens of all calls are walked as one step: states that are updated are read in it, and
                   operators without a partner are left out, so that they are no evidence
        """
        self._by_tokens = by_tokens
        self._state = RankState(rules, rerun, NoiseJudge(rules, None if rerun is None else rerun.settles))
        #: By module or operator: parts that are built differently and agree.
        self._rebuilt: dict[str, Rebuilt] = {}
        #: Hidden drafts at updates that one side runs after its last operator with a partner. `begin_step` shows them
        #: if another step follows.
        self._last_updates: list[Draft] = []
        self._left_states = LeftStates()
        self._reordered = ReorderedParameters()
        self.begin_step(())

    def begin_step(
        self,
        reference: Sequence[Operator],
        cast: Optional[tuple[str, str]] = None,
        views: Optional[tuple[dict[Any, Any], dict[Any, Any]]] = None,
        spread: Optional[Spread] = None,
        shards: Optional[Portions] = None,
        types: Optional[Types] = None,
        stretches: Optional[Mapping[tuple[int, int], Stretch]] = None,
        sources: Optional[Wiring] = None,
        updates: Optional[tuple[Sequence[Operator], Sequence[Operator]]] = None,
    ) -> None:
        """Begin a step. Storages are numbered anew in each step.

        reference  all operators of the reference
        cast       the types of actual and of the reference, if a whole program computes in another type
        views      for programs in two frameworks: for each side, by the content of a view, the content of the tensor
                   that is viewed. If it is given, layouts may differ
        types      for programs in two frameworks: for each side, by the identity of a tensor, the types of the tensor
                   and of its views
        spread     the same step in a second run of the reference: it shows how much two runs differ
        stretches  the stretch of each operator without a partner, see `stretches_of`
        sources    the sources of all inputs
        shards     the tensors of other ranks, if the ranks of one side have parts of the tensors of the other side
        updates    without `sources`: the operators of both sides whose updates of parameters are compared
        """
        state = self._state
        # Ranks that have parts run other operators than one rank, so most sources differ with good reason.
        wiring = sources if shards is None else None
        if wiring is not None and wiring.partners[0]:
            for draft in self._last_updates:
                draft.hidden = False
            self._last_updates.clear()
        state.judge.spread = spread
        state.differences.shards = shards
        state.differences.layouts = views is not None
        state.has_gradients = any(operator.phase == "backward" for operator in reference)
        state.differences.types = types or ({}, {})
        state.differences.cast = cast
        state.known.begin_step(views)
        state.arguments.begin_step()
        state.stretches.begin_step(stretches or {})
        state.rebuilt.clear()
        state.cast_memory.clear()
        state.local.begin_step()
        state.missed.begin_step(has_ranks=shards is not None and shards.of_actual)
        #: By position in the reference: paired operators of which a tensor differs.
        self._differing: dict[int, Differing] = {}
        self._wiring = state.wiring = wiring
        #: Identities of pairs that differ, although everything that is computed from them agrees.
        self._ending: set[int] = set()
        self._inputs = InputJudge(state, reference, wiring, sources)
        self._entry = StretchEntry(state, wiring, self._inputs, self._last_updates, by_tokens=self._by_tokens)
        self._updates = UpdateJudge(state, *((updates or ()) if wiring is None else wiring.operators))
        self._calls = ApiCalls()
        #: Identities of unreadable records of this step that are in a pair already.
        self._broken: set[int] = set()
        #: Identities of the records of operators that only one side runs, and that only allocate memory.
        self._allocated: set[int] = set()
        #: Identities of records that need no pair of their own: they are inside a stretch that agrees, or in a pair of
        #: results.
        self._inside: set[int] = set()

    def add_equal_step(self, step: Optional[int]) -> None:
        """Note a step in which all records are equal."""
        self._state.history.add_equal_step(step)

    @property
    def is_clean(self) -> bool:
        """True while no difference with an origin is known. Then a step with equal bytes does not change the state."""
        return not self._state.known

    def walk(self, match: Match) -> list[Pair]:
        """Judge the tensors of two paired operators."""
        if self._calls.has_all_kernels(match):
            pairs = [*self._calls.judge(self._state, match), *self._broken_pairs(match)]
            self._count_unreadable(pairs)
            return pairs
        if is_of_update(match.reference):
            return self._updates.judge(match)
        match = self._in_one_order(match)
        self._state.missed.add_match(match)
        operators = OperatorPair(match)
        operators.causes |= self._calls.causes_of(match)
        self._inputs.judge_all(operators)
        has_shards = self._state.differences.shards is not None
        self._state.judge.of_parts = has_shards and any(is_of_parts(pair.transformation) for pair in operators.inputs)
        if match.tensors is None:
            self._explain_arguments(operators)
        outputs, origin = judge_outputs(self._state, operators)
        self._state.moved_axes.add(match, operators.inputs, outputs)
        self._judge_borders(operators, outputs)
        pairs = [*operators.inputs, *outputs]
        if origin is not None:
            operators.causes.add(origin)
        elif match.tensors is None:
            self._settle(operators, outputs)
            self._note_arguments(operators, pairs)
        else:
            self._state.history.add_roundings(outputs)
        if match.actual.kernel is not None:
            self._calls.add_kernel(match, frozenset(operators.causes))
        self._end_module(operators, pairs)
        if any(pair.differs or pair.verdict in ("unmatched", "unreadable") for pair in pairs):
            causes = frozenset(operators.causes)
            self._differing[match.reference.position] = Differing(match, operators.inputs, outputs, causes)
        pairs += self._broken_pairs(match)
        self._count_unreadable(pairs)
        return pairs

    def _in_one_order(self, match: Match) -> Match:
        """Return the match of a commutative operator, crossed if only the opposite order of its inputs agrees.

        Between parts of tensors, dataflow does not show the order.
        """
        if not self._state.has_parts or match.tensors is not None or match.is_crossed or not commutes(match.reference):
            return match
        if len(match.actual.inputs) != 2:
            return match
        agreeing = self._agreeing(match)
        crossed = match._replace(is_crossed=True)
        return crossed if agreeing < 2 and self._agreeing(crossed) > agreeing else match

    def _agreeing(self, match: Match) -> int:
        """Return the number of inputs that agree."""
        count = 0
        for a, b in match.inputs:
            difference, _ = self._state.compare(match, a, b)
            measure = difference.measure
            is_near = measure is not None and not measure.nonfinite and measure.rel_l2 <= _NEAR
            count += difference.verdict == "equal" or (difference.verdict == "different" and is_near)
        return count

    def only(self, operator: Operator, *, of_actual: bool, is_update: bool = False) -> list[Pair]:
        """Return the pairs of an operator that only one side runs.

        is_update: True for an optimizer that another framework computes in another way. It is no cause of what differs
        later: the parameters that it updates are compared where the next step reads them.
        """
        side = _SIDES[0 if of_actual else 1]
        why = without_counterpart(operator.op_type) if self._state.differences.layouts else ""
        pairs: list[Pair] = []
        for record in operator.records:
            verdict, reason = "unmatched", f"{operator.op_type} runs in {side} only{why and f': {why}'}"
            if record.error is not None:
                verdict, reason = "unreadable", str(record.error)
            pairs.append(Pair(record if of_actual else None, None if of_actual else record, "", 0.0, verdict, reason))
        self._count_unreadable(pairs)
        outputs = [pair for pair in pairs if pair.record.io != "input" and pair.verdict == "unmatched"]
        if is_of_update(operator):
            self._updates.only(0 if of_actual else 1, operator, pairs)
            return pairs
        if operator_class(operator.op_type) in ALLOCATING:
            self._allocated.update(map(id, operator.records))
        if self._state.has_parts:
            self._state.local.add_operator(0 if of_actual else 1, operator)
        self._state.missed.add_alone(operator, of_actual=of_actual)
        if outputs and not is_update:
            self._entry.enter(0 if of_actual else 1, operator, outputs)
        return pairs

    def end_step(self) -> list[Pair]:
        """Judge the results of stretches that no operator with a partner reads, and return their pairs."""
        state = self._state
        pairs = []
        for entered in state.stretches.all():
            for a, b in (*entered.stretch.results, *paired_states(entered.stretch.states, state.agree)):
                difference, pair = state.compare(None, a, b)
                if difference.verdict == "equal":
                    note_agreement(state, [entered], pair)
                elif difference.verdict not in ("unreadable", "unmatched"):
                    made = entered.stretch.makers(a, b)
                    makers = [MadeInside(entered, operator, record) for operator, record in made]
                    border, _ = judge_border(state, makers, a, b, difference, pair)
                    pair = border.pair
                    if border.causes and state.has_parts:
                        # Ranks that work together run operators that one rank does not need, such as for a sum of two
                        # gradients. Such a result may be any intermediate one.
                        pair = replace(pair, verdict="unmatched", reason=NO_COUNTERPART)
                    elif border.causes and not state.modules.known(b):
                        entered.result_differs = True
                        leave(state, border)
                        state.remember(pair, difference.contents, border.causes)
                pairs.append(pair)
        for draft in state.missed.drafts():
            state.drafts.add(draft)
        self._add_left_states()
        self._count_unreadable(pairs)
        self._drop_ending()
        for rebuilt in state.stretches.rebuilt():
            self._rebuilt.setdefault(rebuilt.name, rebuilt)
        self._inside = (
            state.stretches.inside()
            | self._allocated
            | {id(record) for pair in pairs for record in (pair.actual, pair.reference)}
        )
        return pairs

    def _add_left_states(self) -> None:
        """Add an origin at each operator that updates a state of a module which the other side leaves as it is."""
        state, wiring = self._state, self._wiring
        if wiring is None or state.has_parts or self._by_tokens:
            return
        stretches = [entered.stretch for entered in state.stretches.all()]
        for left in self._left_states.of_step(wiring, stretches):
            writer = Stretch()
            writer.operators[left.side].append(left.operator)
            state.drafts.add(stretch_draft(writer, [wiring.named(left.side, left.after)]))

    def _drop_ending(self) -> None:
        """Drop origins where the programs are built differently and all differences end before a result."""
        state, wiring = self._state, self._wiring
        causes = NO_ORIGINS.union(*(differing.causes for differing in self._differing.values()))
        # Among ranks that share the work, and in calls joined by tokens, operators without a partner prove nothing.
        is_whole = not (self._by_tokens or state.has_parts)
        parameters = {number for number in causes if is_whole and state.drafts[number].kind == "parameter"}
        before = {number for number in causes if is_whole and state.drafts[number].reaches_results is False}
        if not (state.rebuilt or parameters or before) or wiring is None:
            return
        if not has_storages(*(flow.operators for flow in wiring.flows)):
            return
        stretches = state.stretches.by_operator()
        effects = Effects(wiring.flows, wiring.partners, self._differing, stretches, state.agree, self._reordered)
        origins = [(number, node) for number, node in state.rebuilt if state.drafts[number].may_end]
        if self._by_tokens:
            # Operators that read a tensor that differs may be left out, so it only seems to end there.
            origins = [(number, node) for number, node in origins if isinstance(node, EnteredStretch)]
        compensated = [*effects.compensated(parameters)]
        origins += compensated
        earlier = {number for number, _ in state.rebuilt if state.drafts[number].reaches_results}
        sizes = {number for number, _ in origins if state.drafts[number].is_of_size}
        alone = {number for number, _ in origins if state.drafts[number].begins_alone}
        ended = {number for number, _ in origins if state.drafts[number].reaches_results is False}
        reached, leading = effects.of(origins, earlier, sizes, alone, ended)
        reached -= ended - reached_by_values(origins, leading) - causes
        for number in effects.carried(before, leading):
            state.drafts[number].add_reach(True)
        ending = {number for number, _ in origins} - reached
        for number, node in origins:
            is_judged_later = False
            if isinstance(node, EnteredStretch):
                # Later steps show whether the update of a parameter that the other side lacks is right.
                is_judged_later = node.number == number and wiring.updates_own(node.stretch.operators)
                # Nothing reads what only one side computes: it is no origin, and it has no partner.
                if node not in leading and not (node.is_open and is_alone(node.stretch)):
                    node.is_absorbed = True
            elif number in ending:
                differing = self._differing[node]
                state.arguments.add_without_effect(differing.match, state.drafts[number].pair)
            state.drafts[number].add_reach(number in reached and not is_judged_later)
        # If another origin too explains a difference, for example of a parameter, then from now on it alone does.
        state.known.drop_causes({number for number in ending if state.drafts[number].reaches_results is False})
        for number, _ in compensated:
            name = state.drafts[number].pair.record.parameter
            if name and number in ending:
                self._rebuilt.setdefault(name, Rebuilt(name, 0, 0))
        # Origins of earlier steps, whose differences reach no result, may explain differences of this step too.
        ended = {number for number in ending | causes if state.drafts[number].reaches_results is False}
        # So may origins that are not reported, because tensors computed from them agree.
        drafts = {number: state.drafts[number] for number in causes}
        ended |= {number for number, draft in drafts.items() if not draft.is_reported or draft.is_disproved}
        for position, differing in self._differing.items():
            # The input of an operator that reads only a shape has no cause that could end.
            has_ended = bool(differing.causes or ending) and differing.causes <= ended
            if not self._by_tokens and position not in leading and has_ended:
                self._ending.update(map(id, (*differing.inputs, *differing.outputs)))

    def _add_ending(self, ended: set[OriginNumber]) -> None:
        """Note the pairs that differ because of these origins only, from which nothing that differs is computed."""
        for differing in self._differing.values() if ended else ():
            if differing.causes and differing.causes <= ended:
                self._ending.update(map(id, (*differing.inputs, *differing.outputs)))

    def inside(self, pair: Pair) -> bool:
        """Return True if a record without a partner is inside a stretch that agrees, or in a pair of results."""
        return pair.how == "" and id(pair.record) in self._inside

    def final(self, pair: Pair) -> Pair:
        """Return a pair of the step with its verdict after the whole step is known."""
        if pair.verdict == "equal" and are_of_other_integers(pair.actual, pair.reference):
            return replace(pair, verdict="noise", reason=_OTHER_INTEGERS)
        # An input that only one side has, such as a bias, is a part of what is built differently.
        ends = id(pair) in self._ending and (
            pair.differs or (pair.verdict == "unmatched" and pair.record.io == "input")
        )
        return replace(pair, verdict="noise", reason=_ENDS) if ends else pair

    def rebuilt(self) -> list[Rebuilt]:
        """Return the parts that are built differently and agree, each once."""
        return list(self._rebuilt.values())

    def divided(self) -> list[str]:
        """Return a sentence on the data that one side reads in parts; [] if there are none."""
        return self._state.drafts.divided()

    def origins(self, *, results_differ: bool = False) -> list[Origin]:
        """Return the origins, by `importance`, then in the order of the walk. results_differ: see `Drafts.origins`"""
        return self._state.drafts.origins(results_differ=results_differ)

    def changed(self) -> list[ChangedCall]:
        """Return the operators with different arguments whose difference an origin explains."""
        return self._state.arguments.changed

    def _explain_arguments(self, operators: OperatorPair) -> None:
        """Add the origins and the noise that explain different arguments of the two calls."""
        state, match = self._state, operators.match
        if len(operators.inputs) == 1 and operators.inputs[0].verdict != "equal":
            state.arguments.add_number(match, operators.inputs[0], operators.causes, operators.noise)
        cause = state.arguments.cause_of(match, operators.is_replaced)
        if operators.causes:
            # The inputs explain the difference better than a part of the forward pass that is only built differently.
            cause = cause._replace(origins=state.drafts.certain(cause.origins))
        if state.arguments.forward_origins(match.reference):
            for draft in state.drafts.of(cause.origins - operators.causes):
                draft.backward.append(match.actual.label)
        operators.causes |= cause.origins
        operators.noise.extend(cause.noise)

    def _judge_borders(self, operators: OperatorPair, outputs: Sequence[Pair]) -> None:
        """Decide on differing inputs that were made inside a stretch.

        If all outputs with more than one element agree, the differences of these inputs are disregarded.
        """
        state = self._state
        results = [
            pair.verdict for pair in outputs if pair.record.io != "input" and math.prod(pair.record.shape or ()) > 1
        ]
        agree = bool(results) and all(verdict in ("equal", "noise") for verdict in results)
        is_proven = operators.proves_border(outputs)
        for border in operators.borders:
            if not agree or border.is_update:
                leave(state, border, is_proven=is_proven)
                for draft in state.drafts.of(border.causes if border.is_update else ()):
                    draft.is_proven = True
                for stretch in border.stretches:
                    stretch.readers.add(operators.match.reference.position)
                continue
            disregard(state, border)
            number = next(i for i, pair in enumerate(operators.inputs) if pair is border.pair)
            operators.inputs[number] = replace(border.pair, verdict="noise", reason=_SAME_RESULT)

    def _settle(self, operators: OperatorPair, outputs: Sequence[Pair]) -> None:
        """Note at the origins of the inputs that an output agrees; single numbers may agree by chance."""
        for pair in outputs:
            size = math.prod(pair.record.shape or ())
            if pair.record.io != "input" and pair.verdict in ("equal", "noise") and size > 1:
                for draft in self._state.drafts.of(operators.causes):
                    draft.settled = True

    def _note_arguments(self, operators: OperatorPair, pairs: Sequence[Pair]) -> None:
        """Note different arguments of calls that are no origin."""
        arguments, match = self._state.arguments, operators.match
        if all(pair.verdict == "equal" for pair in pairs):
            arguments.add_equal(match)
        elif any(pair.record.io == "input" and pair.verdict == "structure" for pair in pairs):
            # Some arguments follow from the shape of an input.
            arguments.add_reshaped(match.reference, operators.causes)
        else:
            outputs = (pair for pair in pairs if pair.record.io != "input" and pair.explained and pair.differs)
            output = next(outputs, None)
            if output is not None:
                arguments.add_changed(match, output, operators.causes, operators.is_replaced)
            elif pairs and all(pair.verdict in ("equal", "noise") for pair in pairs):
                arguments.add_without_effect(match, pairs[-1])

    def _end_module(self, operators: OperatorPair, pairs: Sequence[Pair]) -> None:
        record = next(operators.match.reference.records, None)
        if record is not None:
            state = self._state
            causes = frozenset(operators.causes) if any(pair.differs for pair in pairs) else NO_ORIGINS
            # A module may return more in one program, such as the weights of its attention.
            outputs = [pair.verdict for pair in pairs if pair.record.io == "output" and pair.verdict != "unmatched"]
            agrees = bool(outputs) and all(verdict in ("equal", "noise") for verdict in outputs)
            # Another input that does not change the result, such as keywords in another order, explains nothing.
            own = {number for number in causes if state.drafts[number].pair.record.op_name == record.op_name}
            ended = {number for number in own if agrees and state.drafts[number].is_of_input}
            if is_of_module(record):
                forms = {number for number in ended if state.drafts[number].pair.verdict == "structure"}
                state.known.disregard(forms)
            is_rounded = not causes and any(pair.verdict == "noise" for pair in pairs)
            ended |= state.modules.end(record, causes - ended, agrees=agrees, is_rounded=is_rounded)
            # Parameters follow from the gradient of an output. The gradient of an input depends on its other readers.
            of_outputs = [pair for pair in pairs if pair.record.phase == "backward" and pair.record.io == "input"]
            is_gradient = any(pair.differs and pair.has_one_shape for pair in of_outputs)
            for draft in state.drafts.of(causes if is_gradient else ()):
                draft.changes_gradients = True
            for draft in state.drafts.of(ended):
                draft.settled = draft.ends_in_module = True
                draft.explained_inside = draft.explains
            passing = {number for number in ended if state.drafts[number].is_of_reader}
            self._add_ending(passing)

    def _broken_pairs(self, match: Match) -> Iterator[Pair]:
        """Yield pairs of the unreadable records, each once in a step: an operator may be in several matches."""
        for operator in (match.actual, match.reference):
            for record in operator.broken:
                if id(record) not in self._broken:
                    self._broken.add(id(record))
                    a, b = (record, None) if operator is match.actual else (None, record)
                    yield Pair(a, b, match.how, match.confidence, "unreadable", str(record.error))

    def _count_unreadable(self, pairs: Sequence[Pair]) -> None:
        self._state.unreadable += sum(pair.verdict == "unreadable" for pair in pairs)
