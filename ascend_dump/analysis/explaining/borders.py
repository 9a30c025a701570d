"""Judge the borders of stretches: the tensors that leave parts of the programs that are built differently."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
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
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, InputNoise, OriginNumber
from ascend_dump.analysis.numerics.arrangement import are_rearranged
from ascend_dump.analysis.numerics.float_types import float_kind, is_float_tensor
from ascend_dump.analysis.numerics.tensor_pair import Difference, identity_of, type_of
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import writes
from ascend_dump.analysis.pairing.stretches import Stretch
from ascend_dump.analysis.pairing.weak_pairs import computes
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["disregard", "judge_border", "leave", "note_agreement"]

#: Tensors with a larger relative distance are not near: in rounding units, but at least _LEAST_NEAR.
_UNITS_NEAR, _LEAST_NEAR = 16.0, 1e-4
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
    if difference.bounds:
        # Origins that were suspects so far: from here on their differences are proven.
        state.rebuilt += [(number, stretch) for stretch in stretches for number in causes - {stretch.number}]
    state.known.add(difference.contents, causes)
    return Border(stretches, replace(pair, explained=True), causes, difference.contents, is_update), None


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


def leave(state: RankState, border: Border) -> None:
    """Note that a tensor which leaves stretches differs, and that the result of its reader differs too."""
    drafts = state.drafts.of(border.causes)
    # A different shape alone does not prove that the values differ.
    for stretch in border.stretches if border.pair.has_one_shape else ():
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
    leading = entered.stretch.leading_to(_identities([pair]), state.wiring.flows)
    # The tensor itself may be near, too: an update may be small.
    agreeing = (_identities(entered.agreeing) | _agreeing_inside(state, leading, pair)) - _identities([pair])
    right = entered.stretch.leading_to(agreeing, state.wiring.flows)
    cause = leading.without(right).without_masks()
    return cause if _is_open_beside(state, entered, cause.module) else cause.without_common()


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


def _agreeing_inside(state: RankState, stretch: Stretch, border: Optional[Pair] = None) -> set[int]:
    """Return the identities of results inside of a stretch that both programs have, made by any operators.

    If one side computes a tensor that the other side reads as it is, by operators of the stretch or behind it at the
    `border`, then these operators change nothing, such as a division by one.

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
    pairs = [
        (a, b)
        for actual, reference in ((here, there), (entering_here, there), (here, entering_there))
        for b in reference.values()
        for a in actual.values()
        if a.shape == b.shape
    ]
    if sum(b.nbytes or 0 for _, b in pairs) > _MOST_INSIDE:
        return set()
    return {id(record) for a, b in pairs if _is_near(state, a, b) for record in (a, b)}


def _entering(operators: Sequence[Operator], behind: Optional[Record]) -> dict[Hashable, Record]:
    """Return the tensors that operators read and do not make, and the tensor behind them, by their contents."""
    made = {record.content for operator in operators for record in operator.outputs}
    read = [record for operator in operators for record in operator.inputs if record.content not in made]
    records = [*read, *([] if behind is None or behind.content in made else [behind])]
    return {record.content: record for record in records if float_kind(record.dtype or "") is not None}


def _has_parts(operator: Operator) -> bool:
    return is_view(operator.op_type) or operator.function.startswith("_foreach_")


def _is_near(state: RankState, a: Record, b: Record) -> bool:
    """Return True if two tensors differ by little more than rounding. Statistics do not prove it.

    Single numbers are near by chance more easily, and integers such as 0 and 1 are no evidence at all.
    """
    is_number = not is_float_tensor(b)
    if is_number and _is_integer(b):
        return False
    difference = state.differences.between(a, b)
    measure, kind = difference.measure, float_kind(type_of(a, b))
    if measure is None or kind is None or difference.bounds or measure.nonfinite:
        return difference.verdict == "equal"
    limit = _UNITS_NEAR * kind.unit if is_number else max(_UNITS_NEAR * kind.unit, _LEAST_NEAR)
    return measure.rms > 0 and measure.rel_l2 <= limit


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
