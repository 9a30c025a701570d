"""Judge the borders of stretches: the tensors that leave parts of the programs that are built differently."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Sequence, Set
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.explaining.drafts import add_effect
from ascend_dump.analysis.explaining.rank_state import RankState, extent
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.explaining.stretches import (
    Border,
    EnteredStretch,
    MadeInside,
    is_alone,
    is_lost_gradient,
)
from ascend_dump.analysis.judging.attention_scores import agreeing_scores
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, InputNoise, OriginNumber
from ascend_dump.analysis.numerics.arrangement import are_rearranged
from ascend_dump.analysis.numerics.float_types import float_kind, is_float_tensor
from ascend_dump.analysis.numerics.other_layouts import pairs_in_other_layouts, repeated_pairs
from ascend_dump.analysis.numerics.tensor_pair import Difference, identity_of, type_of
from ascend_dump.analysis.operators.arguments import differing_arguments
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class, writes
from ascend_dump.analysis.pairing.data_flow import OUTSIDE
from ascend_dump.analysis.pairing.stretches import Stretch
from ascend_dump.analysis.pairing.weak_pairs import computes
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["agreeing_inside", "disregard", "judge_border", "leave", "note_agreement"]

#: Tensors with a larger relative distance are not near: in rounding units, but at least _LEAST_NEAR.
_UNITS_NEAR, _LEAST_NEAR = 16.0, 1e-4
#: Of tensors of which only statistics are known, extremes may differ by this many times the distance, relative to rms.
_EXTREMES = 8.0
#: An update is not rounding if it is larger than this, in rounding units. A tensor was not updated if it is this many
#: times nearer to the tensor before the update than to the one after it.
_FEW_UNITS, _TIMES_NEARER = 4.0, 4.0
_LACKS_UPDATE = "one side updates it in place, and the other side reads it as it was before"
#: Maximum number of bytes of results inside of a stretch that are compared, each with each of its shape.
_MOST_INSIDE = 1 << 28


def judge_border(
    state: RankState, makers: Sequence[MadeInside], a: Record, b: Record, difference: Difference, pair: Pair
) -> tuple[Border, Optional[InputNoise]]:
    """Judge a tensor that leaves stretches and differs: return it as a border, and its noise if it agrees."""
    stretches = list({id(made.stretch): made.stretch for made in makers}.values())
    is_update = False
    if difference.has_values:
        entering = [noise for stretch in stretches for noise in stretch.noise_of(b)]
        length = max(stretch.length for stretch in stretches)
        last = [(made.operator, made.record) for made in makers]
        noise = [source.noise for source in entering]
        inputs = [tuple(source.records) for source in entering]
        types = {name for stretch in stretches for name in stretch.types_cast_from()}
        verdict, reason = state.judge.of_border(a, b, difference, noise, inputs, last, length, sorted(types))
        is_update = verdict == "noise" and _lacks_update(state, makers, a, b, difference)
        if is_update:
            verdict, reason = "different", f"{_LACKS_UPDATE}{extent(difference.measure)}"
        pair = replace(pair, verdict=verdict, reason=reason)
        if verdict != "different":
            suspects = NO_ORIGINS
            if verdict == "undecided":
                suspects = _suspects(state, stretches, a, b).union(*(source.causes for source in noise))
                _confirm_lost(state, stretches)
                for draft in state.drafts.of(suspects):
                    draft.is_undecided = True
            agreeing = [stretch for stretch in stretches if verdict == "noise" or not stretch.differs]
            note_agreement(state, agreeing, pair)
            return Border(stretches, pair), state.known.add_noise(difference, type_of(a, b), suspects, noise)
    causes = NO_ORIGINS.union(*(stretch.origins() for stretch in stretches))
    if causes and all(draft.has_other_form for draft in state.drafts.of(causes)):
        # Another shape that enters does not explain other values.
        for stretch in stretches:
            stretch.causes -= causes
        causes = frozenset(stretch.number for stretch in stretches)
    if any(stretch.number in causes and _reads_outside(state, stretch) for stretch in stretches):
        state.drafts.add_from_outside(pair.record)
    state.drafts.add_later_read(pair.record, causes)
    if difference.bounds:
        # Origins that were suspects so far: from here on their differences are proven.
        state.rebuilt += [(number, stretch) for stretch in stretches for number in causes - {stretch.number}]
    state.known.add(difference.contents, causes)
    return Border(stretches, replace(pair, explained=True), causes, difference.contents, is_update), None


def _reads_outside(state: RankState, entered: EnteredStretch) -> bool:
    """Return True if operators of a stretch read data from outside of the recorded operators, such as a batch."""
    is_of_step = state.stretches.entered(entered.stretch) is entered
    return (is_of_step and state.wiring is not None) and any(
        source.root is not None and source.root.position == OUTSIDE and not source.record.parameter
        for flow, side in zip(state.wiring.flows, entered.stretch.operators)
        for operator in side
        for source in flow.sources[operator.position]
    )


def _lacks_update(state: RankState, makers: Sequence[MadeInside], a: Record, b: Record, difference: Difference) -> bool:
    """Return True if one side updates a tensor in place, and the other side reads it as it was before.

    An update may be smaller than the rounding of a sum, such as that of an average of weights. But no rounding leads
    back to the tensor before it.
    """
    kind = float_kind(type_of(a, b))
    if len(makers) != 1 or kind is None or difference.measure is None or difference.bounds:
        return False
    [made] = makers
    least = difference.measure.rel_l2
    side = 0 if identity_of(made.record) == identity_of(a) else 1
    storage, unchanged = storage_of(made.record), b if side == 0 else a
    if storage is None or not writes(made.operator.op_type) or least <= _FEW_UNITS * kind.unit:
        return False
    for operator in made.stretch.stretch.operators[side]:
        for record in operator.inputs if writes(operator.op_type) and computes(operator) else ():
            written = storage_of(record)
            if written is not None and written[0] == storage[0] and record.shape == unchanged.shape:
                before = state.differences.between(*((record, unchanged) if side == 0 else (unchanged, record)))
                measure = before.measure
                if before.verdict == "equal" or (measure is not None and _TIMES_NEARER * measure.rel_l2 < least):
                    return True
    return False


def _confirm_lost(state: RankState, stretches: Sequence[EnteredStretch]) -> None:
    """Report the origins because of which one side has no gradient in a stretch.

    Bytes behind the stretch differ. Its gradient may be too small a term of a sum for statistics to prove it.
    """
    for stretch in stretches:
        is_lost = is_lost_gradient(stretch.stretch) and not _is_of_rebuilt_forward(state, stretch)
        if stretch.is_known or is_lost:
            stretch.differs = True
            draft = state.drafts[stretch.number]
            draft.hidden, draft.is_proven = False, True


def _is_of_rebuilt_forward(state: RankState, entered: EnteredStretch) -> bool:
    """Return True if a stretch of the backward pass follows from a forward pass that is built differently.

    What one side computes otherwise, or alone, has gradients of its own.
    """
    if state.drafts[entered.number].pair.record.phase == "forward":
        return True
    module = entered.stretch.module
    return any(
        operator.phase == "forward" and operator.module == module and computes(operator)
        for other in state.stretches.all()
        for side in other.stretch.operators
        for operator in side
    )


def _suspects(state: RankState, stretches: Sequence[EnteredStretch], a: Record, b: Record) -> frozenset[OriginNumber]:
    """Return the origins of a tensor that leaves stretches, and that differs although its statistics agree.

    They explain later differences that are proven. Without a sign of a difference only operators that compute, and
    for which the other side runs none, are such origins.
    """
    if not are_rearranged(a, b) and not any(stretch.causes for stretch in stretches):
        stretches = [stretch for stretch in stretches if is_alone(stretch.stretch)]
    return NO_ORIGINS.union(*(stretch.origins() for stretch in stretches))


def leave(state: RankState, border: Border, *, is_proven: bool = False) -> None:
    """Note that a tensor which leaves stretches differs, and that the result of its reader differs too.

    is_proven: the result of its reader has the same shape, other values, and no other input that differs
    """
    drafts = state.drafts.of(border.causes)
    # A different shape alone does not prove that the values differ.
    has_values = border.pair.has_one_shape or is_proven
    for stretch in border.stretches if not has_values else ():
        state.drafts[stretch.number].changes_shape |= stretch.number in border.causes
    for stretch in border.stretches if has_values else ():
        stretch.differs = True
        if stretch.number in border.causes:
            # With gradients, a difference of the forward pass that ended comes back where tensors are read again.
            # A difference that begins and ends inside of one pass began in this stretch.
            in_backward = {phase == "backward" for phase in stretch.stretch.phases}
            is_of_pass = in_backward == {border.pair.record.phase == "backward"}
            has_cause = state.wiring is not None and not stretch.is_known and (is_of_pass or not state.has_gradients)
            draft = state.drafts[stretch.number]
            cause = _cause(state, stretch, border.pair) if has_cause and draft.is_wide(border.pair) else None
            is_alone = not state.has_gradients and has_cause and border.causes == {stretch.number}
            draft.add_border(border.pair, cause, is_alone=is_alone)
        for before in stretch.before:
            if before.is_open and before.number in border.causes:
                state.drafts[before.number].add_unknown(border.pair, is_lost=before.is_lost)
    add_effect(border.pair, drafts)


def _cause(state: RankState, entered: EnteredStretch, pair: Pair) -> Stretch:
    """Return the operators of a stretch from which a tensor that leaves it is computed, but for right operators.

    Operators are right if a tensor computed from them agrees. For example, all layers read one mask, and the
    results of earlier layers agree; or the result of a norm agrees, and a product of it differs.
    """
    assert state.wiring is not None, "the caller checked it"
    flows = state.wiring.flows
    leading = entered.stretch.leading_to(_identities([pair]), flows)
    cause = leading
    # Values in another order are no evidence if nothing that computes is left: the order itself may be the fault.
    for with_layouts in (True, False):
        near = agreeing_inside(state, leading, pair, with_layouts=with_layouts)
        # The tensor itself may be near, too, and what it is a view of: an update may be small.
        near -= _same_as(leading, pair)
        near -= _near_by_chance(state, leading, pair, near)
        agreeing = (_identities(entered.agreeing) | near) - _identities([pair])
        cause = leading.without(entered.stretch.leading_to(agreeing, flows))
        if cause is not leading:
            break
    cause = cause.without_masks()
    if _is_open_beside(state, entered, cause.module):
        return cause
    return cause.to_first_product(flows).without_common()


def _near_by_chance(state: RankState, leading: Stretch, pair: Pair, near: set[int]) -> set[int]:
    """Return the results inside of a stretch that are near, although they are computed from calls that differ.

    Both sides run such a call on inputs that agree, with other arguments, and its result differs. If the result leads
    to the border in another way too, this call is the cause. For example, a gradient that is scaled too much is near
    the average of the gradients, if both factors are a tenth.
    """
    assert state.wiring is not None, "the caller checked it"
    flows = state.wiring.flows
    open_operators = {
        id(operator)
        for side in leading.leading_to(_identities([pair]), flows, ends=near).operators
        for operator in side
    }
    calls = {
        id(operator)
        for actual in leading.operators[0]
        for reference in leading.operators[1]
        if open_operators.intersection((id(actual), id(reference))) and _are_other_calls(state, actual, reference)
        for operator in (actual, reference)
    }
    if not calls:
        return set()
    return {
        number
        for number in near
        if any(id(operator) in calls for side in leading.leading_to({number}, flows).operators for operator in side)
    }


def _are_other_calls(state: RankState, actual: Operator, reference: Operator) -> bool:
    """Return True if two operators are called with inputs that agree and with other arguments, and results differ."""
    sides = actual, reference
    if operator_class(actual.op_type) != operator_class(reference.op_type) or not all(map(computes, sides)):
        return False
    inputs, outputs = ([getattr(side, name) for side in sides] for name in ("inputs", "outputs"))
    if len(inputs[0]) != len(inputs[1]) or not (inputs[0] and outputs[0] and outputs[1]):
        return False
    if not any(not argument.is_rounding for argument in differing_arguments(actual, reference)):
        return False
    pairs = [*zip(*inputs), (outputs[0][0], outputs[1][0])]
    if any(a.shape != b.shape for a, b in pairs) or sum(b.nbytes or 0 for _, b in pairs) > _MOST_INSIDE:
        return False
    *agreeing, output = (_is_near(state, a, b) for a, b in pairs)
    return all(agreeing) and not output


def _same_as(stretch: Stretch, pair: Pair) -> set[int]:
    """Return the identities of the outputs of a stretch that are one of two tensors, or a view or copy of it."""
    contents = {identity_of(record) for record in (pair.actual, pair.reference) if record is not None}
    outputs = (record for side in stretch.operators for operator in side for record in operator.outputs)
    return {id(record) for record in outputs if record.content is not None and record.content[0] in contents}


def _is_open_beside(state: RankState, entered: EnteredStretch, module: str) -> bool:
    """Return True if one side runs operators in the module of a stretch from which nothing was compared.

    They may lead to it by a cache, which data flow does not show, and do what this side seems to lack.
    """
    return any(
        other is not entered
        and other.is_open
        and is_alone(other.stretch)
        and f"{other.stretch.module}.".startswith(f"{module}.")
        for other in state.stretches.all()
    )


def agreeing_inside(
    state: RankState, stretch: Stretch, border: Optional[Pair] = None, *, with_layouts: bool = False
) -> set[int]:
    """Return the identities of results inside of a stretch that both programs have, made by any operators.

    If one side computes a tensor that the other side reads as it is, by operators of the stretch or behind it at the
    `border`, then these operators change nothing, such as a division by one.

    with_layouts: also results of which one has another layout, or repeats the other one

    Only first outputs count, and all parts of a tensor that is divided, or of a list of tensors. Other outputs are
    statistics in most cases, such as the mean of a norm. If there is too much to compare, nothing is returned.
    """
    here, there = (
        {
            record.content: record
            for operator in side
            for record in (operator.outputs if _has_parts(operator) else operator.outputs[:1])
            if record.content is not None and float_kind(record.dtype or "") is not None
        }
        for side in stretch.operators
    )
    behind = (None, None) if border is None else (border.actual, border.reference)
    entering_here, entering_there = map(_entering, stretch.operators, behind)
    sides = ((here, there), (entering_here, there), (here, entering_there))
    pairs = [
        (a, b) for actual, reference in sides for b in reference.values() for a in actual.values() if a.shape == b.shape
    ]
    if sum(b.nbytes or 0 for _, b in pairs) > _MOST_INSIDE:
        return set()
    near = {id(record) for a, b in pairs if _is_near(state, a, b) for record in (a, b)}
    results = [record for side in (here, there, entering_here, entering_there) for record in side.values()]
    if with_layouts and sum(record.nbytes or 0 for record in results) <= _MOST_INSIDE:
        remaining = [
            (_without_views(actual.values(), near), _without_views(reference.values(), near))
            for actual, reference in sides
        ]
        moved = [pair for both in remaining for pair in pairs_in_other_layouts(*both)]
        if sum(b.nbytes or 0 for _, b in moved) <= _MOST_INSIDE:
            near |= {id(record) for a, b in moved if _is_near(state, a, b) for record in (a, b)}
        near |= {id(record) for pair in repeated_pairs(*remaining[0], limit=_LEAST_NEAR) for record in pair}
    return near | _same_scores(stretch)


def _without_views(records: Collection[Record], near: Set[int]) -> list[Record]:
    """Return the first record of each content that is not near, without those that have the content of a near one."""
    known = {identity_of(record) for record in records if id(record) in near}
    first: dict[Hashable, Record] = {}
    for record in records:
        first.setdefault(identity_of(record), record)
    return [record for identity, record in first.items() if identity not in known]


def _same_scores(stretch: Stretch) -> set[int]:
    """Return the identities of the scores, queries and keys of attentions that one side fuses, if they agree."""
    contents = {identity_of(record) for record in agreeing_scores(*stretch.operators)} - {None}
    outputs = (record for side in stretch.operators for operator in side for record in operator.outputs)
    return {id(record) for record in outputs if identity_of(record) in contents} if contents else set()


def _entering(operators: Sequence[Operator], behind: Optional[Record]) -> dict[Hashable, Record]:
    """Return the tensors that operators read and do not make, and the tensor behind them, by their contents."""
    made = {record.content for operator in operators for record in operator.outputs}
    read = [record for operator in operators for record in operator.inputs if record.content not in made]
    records = [*read, *([] if behind is None or behind.content in made else [behind])]
    return {record.content: record for record in records if float_kind(record.dtype or "") is not None}


def _has_parts(operator: Operator) -> bool:
    return is_view(operator.op_type) or operator.function.startswith("_foreach_")


def _is_near(state: RankState, a: Record, b: Record) -> bool:
    """Return True if two tensors differ by little more than rounding, as far as is known.

    Statistics that agree do not prove it, but other tensors of one shape seldom have the same norm and extremes. Single
    numbers are near by chance more easily, and integers such as 0 and 1 are no evidence at all.
    """
    is_number = not is_float_tensor(b)
    if is_number and _is_integer(b):
        return False
    difference = state.differences.between(a, b)
    measure, kind = difference.measure, float_kind(type_of(a, b))
    if measure is None or kind is None or measure.nonfinite or (difference.bounds and is_number):
        return difference.verdict == "equal"
    limit = _UNITS_NEAR * kind.unit if is_number else max(_UNITS_NEAR * kind.unit, _LEAST_NEAR)
    if measure.rms <= 0:
        return False
    extremes = measure.max_abs / (_EXTREMES * measure.rms) if difference.bounds else 0.0
    return max(measure.rel_l2, extremes) <= limit


def _is_integer(number: Record) -> bool:
    try:
        value = number.statistics().max
    except AscendDumpError:
        return True
    return value is None or not math.isfinite(value) or float(value).is_integer()


def disregard(state: RankState, border: Border) -> None:
    """Note that a tensor which leaves stretches differs, and that the result of its reader does not."""
    note_agreement(state, border.stretches, border.pair)
    state.known.forget(border.contents)


def note_agreement(state: RankState, stretches: Iterable[EnteredStretch], pair: Pair) -> None:
    """Note that a tensor which leaves stretches agrees."""
    for stretch in stretches:
        stretch.agreeing.append(pair)
        state.drafts[stretch.number].settled = True


def _identities(pairs: Iterable[Pair]) -> set[int]:
    return {id(record) for pair in pairs for record in (pair.actual, pair.reference) if record is not None}
