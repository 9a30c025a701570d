"""Judge the parts of two programs that are built differently, by the tensors that leave them.

Such a part is called a stretch. A tensor leaves a stretch if a paired operator reads it. A stretch agrees if every
tensor that leaves it agrees, whatever differs inside; then it is no origin. If a tensor that leaves a stretch differs,
this follows from a difference that enters the stretch. If no difference enters, the stretch is the origin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.explaining.results import Pair, Rebuilt
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, InputNoise, OriginNumber
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.tensor_pair import identity_of
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator, parameter_name
from ascend_dump.analysis.operators.properties import COPIES, operator_class
from ascend_dump.analysis.pairing.stretches import Stretch
from ascend_dump.analysis.pairing.weak_pairs import computes
from ascend_dump.reading import Record

__all__ = ["Border", "EnteredStretch", "MadeInside", "Stretches", "is_alone", "is_lost_gradient"]


@dataclass
class EnteringNoise:
    """A difference within rounding that enters a stretch, with its tensors in actual and in the reference."""

    noise: InputNoise
    records: list[Optional[Record]] = field(default_factory=lambda: [None, None])


@dataclass(eq=False)
class EnteredStretch:
    """A stretch during the walk.

    number   the number of the draft of the origin at this stretch
    order    the number of this stretch among all stretches
    step     the number of the walked step
    causes   origins of the differences that enter it
    before   earlier stretches, also of earlier steps, with outputs that it reads
    entering differences within rounding that enter it, by their identity
    agreeing tensors that left it and agree
    differs  a tensor that left it differs
    readers  paired operators that read a difference, by their position in the reference
    is_known `number` is an origin elsewhere that explains the stretch, even if no tensor of it was compared
    is_lost  it computes the gradient of a parameter that has no gradient on the other side
    result_differs  a result of the program that it makes differs
    is_absorbed  no difference inside it, or computed from one, reaches a result
    has_agreed   it was there in an earlier step, and tensors that left it agreed
    """

    stretch: Stretch
    number: OriginNumber
    order: int
    step: int
    causes: set[OriginNumber] = field(default_factory=set)
    before: list[EnteredStretch] = field(default_factory=list)
    entering: dict[int, EnteringNoise] = field(default_factory=dict)
    agreeing: list[Pair] = field(default_factory=list)
    differs: bool = False
    is_known: bool = False
    is_lost: bool = False
    readers: set[int] = field(default_factory=set)
    result_differs: bool = False
    is_absorbed: bool = False
    has_agreed: bool = False

    @property
    def agrees(self) -> bool:
        return self.is_absorbed or (bool(self.agreeing) and not self.differs)

    @property
    def is_open(self) -> bool:
        """True if no tensor that left it could be compared."""
        return not self.agreeing and not self.differs

    @property
    def casts(self) -> bool:
        """True if one side changes the type of a tensor in a way in which the other does not."""
        here, there = (set(filter(None, map(_cast_of, side))) for side in self.stretch.operators)
        return here != there

    def types_cast_from(self) -> set[str]:
        """Return the narrow types of tensors that enter it, and that it casts to a wider type.

        A type that it also casts to is none: there it rounds values that the other side does not round.
        """
        casts = [cast for side in self.stretch.operators for cast in map(_cast_of, side) if cast is not None]
        units = [tuple(kind.unit if (kind := float_kind(name or "")) else 0.0 for name in cast) for cast in casts]
        widened = {str(before) for (before, _), (unit, later) in zip(casts, units) if unit > later > 0}
        return widened - {str(after) for (_, after), (unit, later) in zip(casts, units) if later > unit}

    @property
    def length(self) -> int:
        """The number of operators of the longer side."""
        return max(map(len, self.stretch.operators))

    def add_noise(self, side: int, noise: InputNoise, record: Record) -> None:
        """Note a tensor of one side (0: actual) that enters with a difference within rounding."""
        entering = self.entering.setdefault(id(noise), EnteringNoise(noise))
        entering.records[side] = record

    def noise_of(self, result: Record) -> list[EnteringNoise]:
        """Return the noise that may have reached a result; for a parameter only noise of its gradient and states."""
        entering = list(self.entering.values())
        name = parameter_name(result)
        named = [noise for noise in entering if name and name in map(parameter_name, filter(None, noise.records))]
        return named or entering

    def origins(self) -> frozenset[OriginNumber]:
        """Return the origins of a difference that leaves it."""
        entered: dict[int, frozenset[OriginNumber]] = {}
        leaving: dict[int, frozenset[OriginNumber]] = {}
        # Without recursion, because stretches of many steps form long chains.
        for stretch in self._with_earlier():
            causes = set(stretch.causes - {stretch.number})
            for before in stretch.before:
                if before.differs or before.is_open:
                    causes.update((leaving if before.differs else entered)[before.order])
                if before.is_known or (before.is_open and before.is_lost):
                    causes.add(before.number)
            entered[stretch.order] = frozenset(causes)
            noise_causes = NO_ORIGINS.union(*(source.noise.causes for source in stretch.entering.values()))
            if noise_causes and not stretch.has_agreed:
                # The difference that leaves is larger than this noise explains.
                noise_causes |= {stretch.number}
            causes_inside = entered[stretch.order] or noise_causes or stretch._earlier_origins()
            leaving[stretch.order] = causes_inside or frozenset({stretch.number})
        return leaving[self.order]

    def _with_earlier(self) -> list[EnteredStretch]:
        """Return the stretches that differences may come from, and this one, in their order."""
        stretches: dict[int, EnteredStretch] = {}
        waiting = [self]
        while waiting:
            stretch = waiting.pop()
            if stretch.order not in stretches:
                stretches[stretch.order] = stretch
                waiting += [before for before in stretch.before if before.differs or before.is_open]
        return [stretches[order] for order in sorted(stretches)]

    def _earlier_origins(self) -> frozenset[OriginNumber]:
        """Return the origins at stretches of earlier steps of which no tensor was compared, if both programs have some.

        In that case each side has parameters that the other lacks, whose updates were not compared.
        """
        before = [stretch for stretch in self.before if stretch.step < self.step and stretch.is_open]
        in_both = all(any(stretch.stretch.operators[side] for stretch in before) for side in (0, 1))
        return frozenset(stretch.number for stretch in before) if in_both else frozenset()


class MadeInside(NamedTuple):
    """A tensor that an operator of a stretch made. is_again: a stretch of an earlier step made the same values"""

    stretch: EnteredStretch
    operator: Operator
    record: Record
    is_again: bool = False


def is_alone(stretch: Stretch) -> bool:
    """Return True if one side computes in a stretch, and the other side runs no operator there."""
    here, there = stretch.operators
    return not (here and there) and any(map(computes, (*here, *there)))


def is_lost_gradient(stretch: Stretch) -> bool:
    """Return True if one side computes gradients in a stretch, and the other side runs no operator there."""
    operators = (operator for side in stretch.operators for operator in side)
    return is_alone(stretch) and any(operator.phase == "backward" and computes(operator) for operator in operators)


class Border(NamedTuple):
    """A tensor that leaves stretches.

    causes    its origins if it differs
    contents  the key of its difference
    is_update one side alone updates it, so that it differs even if its reader returns the same
    """

    stretches: Sequence[EnteredStretch]
    pair: Pair
    causes: frozenset[OriginNumber] = NO_ORIGINS
    contents: Optional[tuple[Any, Any]] = None
    is_update: bool = False


def _cast_of(operator: Operator) -> Optional[tuple[Optional[str], Optional[str]]]:
    """Return the types from and to which an operator casts a tensor; None if it does not."""
    if operator_class(operator.op_type) not in COPIES or not operator.inputs or not operator.outputs:
        return None
    types = operator.inputs[0].dtype, operator.outputs[0].dtype
    return None if types[0] == types[1] else types


class Stretches:
    """The stretches of one rank."""

    def __init__(self) -> None:
        self._of: Mapping[tuple[int, int], Stretch] = {}
        self._entered: dict[int, EnteredStretch] = {}
        self._exits: dict[tuple[int, int], Stretch] = {}
        #: The types of actual and of the reference where an operator of one side casts from the type of the other.
        self._casts: Optional[set[tuple[Optional[str], Optional[str]]]] = None
        self._count = self._steps = 0
        #: By contents of each side, over all steps: the operators of stretches that made them.
        self._made: tuple[dict[Any, MadeInside], dict[Any, MadeInside]] = ({}, {})

    def begin_step(self, of: Mapping[tuple[int, int], Stretch]) -> None:
        """Begin a step. of: the stretches, by side (0: actual) and position of each of their operators."""
        self._of = of
        self._steps += 1
        self._entered = {}
        self._casts = None
        stretches = {id(stretch): stretch for stretch in of.values()}.values()
        self._exits = {reader: stretch for stretch in stretches for reader in stretch.exits}

    def cast_to(self, actual: Optional[str], reference: Optional[str]) -> bool:
        """Return True if an operator of one side casts a tensor of the other side's type to its own type."""
        if self._casts is None:
            self._casts = {
                cast if side == 1 else cast[::-1]
                for stretch in {id(stretch): stretch for stretch in self._of.values()}.values()
                for side, operators in enumerate(stretch.operators)
                for operator in operators
                if (cast := _cast_of(operator)) is not None
            }
        return (actual, reference) in self._casts

    def stretch_of(self, side: int, operator: Operator) -> Stretch:
        """Return the stretch of an operator; a stretch of its own if it has none."""
        stretch = self._of.get((side, operator.position))
        if stretch is None:
            stretch = Stretch()
            stretch.operators[side].append(operator)
        return stretch

    def entered(self, stretch: Stretch) -> Optional[EnteredStretch]:
        return self._entered.get(id(stretch))

    def enter(self, stretch: Stretch, number: OriginNumber) -> EnteredStretch:
        self._count += 1
        entered = self._entered[id(stretch)] = EnteredStretch(stretch, number, self._count, self._steps)
        return entered

    def read(self, side: int, entered: EnteredStretch, content: Any) -> None:
        """Note that an operator of a stretch reads a tensor."""
        source = self._made[side].get(content)
        if source is not None and source.stretch.order < entered.order and source.stretch not in entered.before:
            entered.before.append(source.stretch)

    def add_output(self, side: int, entered: EnteredStretch, operator: Operator, record: Record) -> None:
        """Note an output of an operator of a stretch. A view or copy has the operator that computed the tensor."""
        content, made = identity_of(record), self._made[side]
        if content is None or not (computes(operator) or content not in made):
            return
        source = identity_of(operator.inputs[0]) if operator.inputs and not computes(operator) else None
        before = made.get(content)
        is_again = before is not None and before.stretch.step < entered.step
        made[content] = made.get(source) or MadeInside(entered, operator, record, is_again)

    def makers(self, contents: Optional[tuple[Any, Any]], *, of_values: bool = False) -> list[MadeInside]:
        """Return the tensors of a pair, of either side, that stretches made.

        of_values: without views of tensors that were made elsewhere, because views change shapes but no values; casts
            round values
        """
        tensors = [makers.get(content) for makers, content in zip(self._made, contents or ())]
        return [
            tensor
            for tensor in tensors
            if tensor is not None and not (of_values and is_view(tensor.operator.op_type) and not tensor.stretch.casts)
        ]

    def is_made_again(self, contents: Optional[tuple[Any, Any]]) -> bool:
        """Return True if stretches made a tensor in an earlier step and in this one, in which no tensor was compared.

        The difference in an earlier step, such as that of a mask, does not tell what becomes of it in this step.
        """
        made = self.makers(contents)
        return bool(made) and all(one.is_again and one.stretch.is_open for one in made)

    def left_by(self, reader: Operator, record: Record) -> list[EnteredStretch]:
        """Return the stretch that made an input of an operator of the reference, by the data flow; [] if none did."""
        stretch = self._exits.get((reader.position, record.index))
        entered = None if stretch is None else self._entered.get(id(stretch))
        return [] if entered is None else [entered]

    def by_operator(self) -> dict[tuple[int, int], EnteredStretch]:
        """Return the stretches of the step by side (0: actual) and position of their operators."""
        return {
            (side, operator.position): entered
            for entered in self.all()
            for side, operators in enumerate(entered.stretch.operators)
            for operator in operators
        }

    def all(self) -> list[EnteredStretch]:
        """Return the stretches of the step."""
        return list(self._entered.values())

    def inside(self) -> set[int]:
        """Return the identities of the readable records inside the stretches of the step that agree."""
        operators = (operator for stretch in self._agreeing() for side in stretch.operators for operator in side)
        return {id(record) for operator in operators for record in (*operator.inputs, *operator.outputs)}

    def rebuilt(self) -> list[Rebuilt]:
        """Return the stretches of the step that agree, except those of views, copies and constants only."""
        rebuilt = []
        for stretch in self._agreeing():
            actual, reference = stretch.operators
            first = next((operator for operator in (*actual, *reference) if computes(operator)), None)
            if first is not None:
                rebuilt.append(Rebuilt(stretch.module or first.label, len(actual), len(reference)))
        return rebuilt

    def _agreeing(self) -> list[Stretch]:
        of_step = set(map(id, self._of.values()))
        return [entered.stretch for entered in self.all() if entered.agrees and id(entered.stretch) in of_step]
