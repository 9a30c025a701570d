"""Track operators that the two programs call with different arguments, and what follows from these arguments.

Different arguments of a forward operator explain different arguments of its backward operator: for example, the bounds
of a clamp are used again for the mask of its gradient. A number that a program reads from a tensor with `item()` may be
passed as an argument. Then the difference of the argument follows from the difference of the tensor. Sizes that are
passed as arguments follow from the sizes of the data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.alignment.token_parts import token_part
from ascend_dump.analysis.explaining.drafts import Draft
from ascend_dump.analysis.explaining.origins import Drafts
from ascend_dump.analysis.explaining.results import ChangedCall, Pair
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS, InputNoise, OriginNumber
from ascend_dump.analysis.operators.arguments import DifferingArgument, differing_arguments
from ascend_dump.analysis.operators.names import is_view, moves_elements
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import TO_NUMBER, operator_class
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["ChangedArguments"]

_Number = tuple[float, float]
#: The name of an operator, or its class, and its differing arguments in words.
_Call = tuple[str, tuple[str, ...]]
#: Module and source line.
_Line = tuple[str, str]


class _Cause(NamedTuple):
    """The origins of a difference, and the noise that it follows from."""

    origins: frozenset[OriginNumber]
    noise: tuple[InputNoise, ...] = ()


_NOTHING = _Cause(NO_ORIGINS)


class ChangedArguments:
    """The calls with different arguments of one rank, over all steps."""

    def __init__(self) -> None:
        #: For the current step, by module and line: the origins at operators that are called differently.
        self._forward: dict[_Line, frozenset[OriginNumber]] = {}
        #: For the current step, by module and line: forward operators with equal inputs and outputs; their arguments
        #: may differ.
        self._equal: dict[_Line, list[Match]] = {}
        #: The lines of calls with other settings, which their backward operators have too.
        self._settings: set[_Line] = set()
        #: For the current step: numbers (actual, reference) that `item()` read from differing tensors, with the cause.
        self._numbers: dict[_Number, _Cause] = {}
        #: For the current step: sizes (actual, reference) of data that have other shapes, with the origins there.
        self._sizes: dict[tuple[int, int], frozenset[OriginNumber]] = {}
        #: For the current step and each side: the modules with a detach that the other side does not run, and the
        #: origin at this detach.
        self._detached: tuple[list[tuple[str, OriginNumber]], list[tuple[str, OriginNumber]]] = ([], [])
        #: The origins at calls with different arguments, and (`_one_sided`) at operators of one side (0: actual).
        self._origins: dict[_Call, OriginNumber] = {}
        self._one_sided: dict[tuple[int, str], OriginNumber] = {}
        #: The calls (operator name, arguments) that are in `_changed`.
        self._listed: set[_Call] = set()
        #: By operator class and arguments: pairs of outputs, one for each operator name.
        self._changed: dict[_Call, list[Pair]] = {}

    def begin_step(self) -> None:
        self._forward.clear()
        self._equal.clear()
        self._numbers.clear()
        self._sizes.clear()
        self._detached = ([], [])

    def add_number(self, match: Match, pair: Pair, origins: Collection[OriginNumber], noise: list[InputNoise]) -> None:
        """Note the number that `item()` read from a tensor that differs. pair: the pair of this tensor."""
        a, b = pair.actual, pair.reference
        if a is None or b is None or operator_class(match.reference.op_type) != TO_NUMBER:
            return
        try:
            number = float(a.numpy().item()), float(b.numpy().item())
        except (AscendDumpError, TypeError, ValueError):  # only statistics are recorded
            return
        self._numbers[number] = _Cause(frozenset(origins), tuple(noise))

    def add_sizes(self, pair: Pair, origin: OriginNumber) -> None:
        """Note the sizes of data that have another shape, such as those of a part of a batch."""
        a, b = (record.shape if record is not None else None for record in (pair.actual, pair.reference))
        for sizes in zip(a or (), b or ()) if a is not None and b is not None and len(a) == len(b) else ():
            if sizes[0] != sizes[1]:
                self._sizes[sizes] = self._sizes.get(sizes, NO_ORIGINS) | {origin}

    def add_origin(self, match: Match, origin: OriginNumber) -> None:
        """Note the origin at an operator that is called differently, or in whose place another operator runs."""
        call = _call_of(match)
        if call is not None:
            self._origins[call] = origin
            self.add_forward(match.reference, origin)

    def earlier_origin(self, match: Match) -> Optional[OriginNumber]:
        """Return the origin at the operator of this name that was called differently in the same way; None if first."""
        call = _call_of(match)
        return None if call is None else self._origins.get(call)

    def stretch_origin(
        self, side: int, operator: Operator, drafts: Drafts, draft: Draft, *, is_lost: bool
    ) -> OriginNumber:
        """Return the origin at a stretch (a part that is built differently) that begins with an operator of one side.

        side: 0 for actual

        If the operator computes a gradient, this is the origin at its forward operator, if there is one. Else it is the
        origin at the same operator in an earlier step. Else the draft is added as a new origin.

        is_lost: the other side computes no gradient there. A forward operator whose results agree does not explain that
        """
        forward = self.forward_origins(operator)
        if is_lost:
            forward = frozenset(number for number in forward if not drafts[number].settled)
        earlier = min(forward) if forward else self._one_sided.get((side, operator.op_name))
        origin = self._one_sided[side, operator.op_name] = drafts.add(draft) if earlier is None else earlier
        return origin

    def add_detached(self, side: int, operator: Operator, origin: OriginNumber) -> None:
        """Note that one side (0: actual) alone detaches a tensor in the forward pass: gradients end there."""
        self._detached[side].append((operator.module, origin))

    def lost_gradient(self, side: int, operator: Operator, *, is_alone: bool) -> Optional[OriginNumber]:
        """Return the origin at a detach of the other side that explains why that side lacks this backward operator.

        Among several, the detach whose module is nearest to the operator's module is chosen. Returns None without any.

        is_alone: the other side runs no operators there, which other arguments of a forward operator do not explain
        """
        if operator.phase != "backward" or (self.forward_origins(operator) and not is_alone):
            return None
        path = operator.module.split(".")
        candidates = [(_shared(path, module.split(".")), origin) for module, origin in self._detached[1 - side]]
        return max(candidates)[1] if candidates else None

    def add_forward(self, operator: Operator, *origins: OriginNumber) -> None:
        """Note the origins at an operator: the backward operators of its source line may be called differently."""
        line = operator.module, operator.source
        self._forward[line] = self._forward.get(line, NO_ORIGINS) | set(origins)

    def add_equal(self, match: Match) -> None:
        """Note paired operators with equal inputs and outputs: if arguments differ, their backward pass may differ."""
        operator = match.reference
        if operator.phase != "backward" and (operator.module or operator.source):
            self._equal.setdefault((operator.module, operator.source), []).append(match)

    def forward_evidence(self, operator: Operator) -> list[str]:
        """Return the differing arguments of the forward operators on the source line of a backward operator."""
        if operator.phase != "backward":
            return []
        return [
            f"{match.reference.label} of the forward pass: {argument.text}"
            for match in self._equal.get((operator.module, operator.source), ())
            for argument in differing_arguments(match.actual, match.reference)
        ]

    def add_reshaped(self, operator: Operator, origins: Collection[OriginNumber]) -> None:
        """Note an operator whose input has another shape. Sizes passed to its backward pass follow from this shape."""
        self.add_forward(operator, *origins)

    def forward_origins(self, operator: Operator) -> frozenset[OriginNumber]:
        """Return the origins at the forward operator of a backward operator."""
        if operator.phase != "backward" or not (operator.module or operator.source):
            return NO_ORIGINS
        return self._forward.get((operator.module, operator.source), NO_ORIGINS)

    def cause_of(self, match: Match, is_replaced: bool) -> _Cause:
        """Return the cause of different arguments of two calls; without origins if nothing explains them."""
        forward = self.forward_origins(match.reference)
        if not forward and not self._numbers and not self._sizes:
            return _NOTHING
        differing = differing_arguments(match.actual, match.reference)
        if forward and (is_replaced or differing):
            return _Cause(forward)
        sized = self._causes_of_sizes(differing)
        if sized:
            return _Cause(sized)
        causes = self._causes_of_numbers(differing)
        if not causes:
            return _NOTHING
        origins = NO_ORIGINS.union(*(cause.origins for cause in causes))
        return _Cause(origins, tuple(noise for cause in causes for noise in cause.noise))

    def add_changed(self, match: Match, pair: Pair, origins: Collection[OriginNumber], is_replaced: bool) -> None:
        """Note an operator whose inputs and output differ, if it is called differently.

        pair: the pair of the output. is_replaced: another operator runs in its place.
        """
        operator = match.reference
        if is_replaced:
            self.add_forward(operator, *origins)
        differing = differing_arguments(match.actual, operator)
        if not differing or self.forward_origins(operator) or self._causes_of_numbers(differing):
            return
        self.add_forward(operator, *origins)
        call = operator.op_name, _texts(differing)
        texts = _texts(argument for argument in differing if not _is_notation(argument, match))
        if texts and call not in self._origins and call not in self._listed:
            self._listed.add(call)
            self._changed.setdefault((operator_class(operator.op_type), texts), []).append(pair)

    def add_without_effect(self, match: Match, pair: Pair) -> None:
        """Note an operator that is called differently, and whose output agrees, or differs without any effect.

        Only settings count: numbers and words. Sizes and types follow from how a program is written. pair: the output
        """
        operator = match.reference
        line = operator.module, operator.source
        is_backward = operator.phase == "backward" and (line in self._settings or self.forward_origins(operator))
        if is_backward or moves_elements(operator.function):
            return
        differing = differing_arguments(match.actual, operator)
        if not differing or not all(map(_is_setting, differing)) or self._causes_of_numbers(differing):
            return
        self._settings.add(line)
        texts = _texts(differing)
        call = operator.op_name, texts
        if call not in self._listed:
            self._listed.add(call)
            self._changed.setdefault((operator_class(operator.op_type), texts), []).append(pair)

    @property
    def changed(self) -> list[ChangedCall]:
        """The calls with different arguments whose outputs an origin explains: one per operator class and arguments."""
        return [ChangedCall(pairs[0], texts, len(pairs) - 1) for (_, texts), pairs in self._changed.items()]

    def _causes_of_numbers(self, differing: Collection[DifferingArgument]) -> list[_Cause]:
        """Return the causes of the differing arguments if all of them were read from tensors; else an empty list."""
        if not self._numbers:
            return []
        numbers = [argument.numbers for argument in differing]
        causes = [self._numbers[number] for number in numbers if number is not None and number in self._numbers]
        return causes if len(causes) == len(differing) else []

    def _causes_of_sizes(self, differing: Collection[DifferingArgument]) -> frozenset[OriginNumber]:
        """Return the origins at data of other sizes if all differing arguments have these sizes; else none."""
        sizes = [_sizes_of(argument) for argument in differing] if self._sizes else []
        if not sizes or not all(each and all(size in self._sizes for size in each) for each in sizes):
            return NO_ORIGINS
        return NO_ORIGINS.union(*(self._sizes[size] for each in sizes for size in each))


def _sizes_of(argument: DifferingArgument) -> list[tuple[int, int]]:
    """Return the sizes that differ between two lists of as many sizes; empty for other arguments."""
    a, b = argument.actual, argument.reference
    if not isinstance(a, list) or not isinstance(b, list) or len(a) != len(b):
        return []
    return [(one, other) for one, other in zip(a, b) if one != other]


def _shared(path: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of levels that two paths of modules have in common."""
    return next((level for level, (a, b) in enumerate(zip(path, other)) if a != b), min(len(path), len(other)))


def _is_setting(argument: DifferingArgument) -> bool:
    """Return True if both values are words, or numbers further apart than by rounding; flags and None do not count."""
    values = argument.actual, argument.reference
    if all(isinstance(value, str) for value in values):
        return "dtype" not in argument.name
    are_numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    return are_numbers and any(isinstance(value, float) for value in values) and not argument.is_rounding


def _is_notation(argument: DifferingArgument, match: Match) -> bool:
    """Return True for one value in two notations: a rounded number, an axis from the end, or a size to compute."""
    values = argument.actual, argument.reference
    here, there = (value if isinstance(value, list) else [value] for value in values)
    if argument.is_rounding:
        return True
    operators = match.actual, match.reference
    are_numbers = all(type(number) is int for number in (*here, *there))
    if len(here) != len(there) or not are_numbers or not all(operator.inputs for operator in operators):
        return False
    if argument.is_axis:
        axes = [_count_axes(operator.inputs[0]) for operator in operators]
        return all(a % axes[0] - axes[0] == b % axes[1] - axes[1] for a, b in zip(here, there))
    return is_view(match.reference.op_type) and all(a == b or -1 in (a, b) for a, b in zip(here, there))


def _count_axes(record: Record) -> int:
    """Return the number of axes of a tensor, of which the values of some tokens may be compared."""
    part = token_part(record)
    shape = record.shape if part is None else part.tensor_of_calls.base.shape
    return len(shape or ()) or 1


def _call_of(match: Match) -> Optional[_Call]:
    """Return how an operator is called differently, which may be another operator in its place; None if it is not."""
    texts = _texts(differing_arguments(match.actual, match.reference))
    actual, reference = (operator_class(operator.op_type) for operator in (match.actual, match.reference))
    if match.tensors is None and actual != reference:
        texts = (*texts, f"{actual} in place of {reference}")
    return (match.reference.op_name, texts) if texts else None


def _texts(arguments: Iterable[DifferingArgument]) -> tuple[str, ...]:
    return tuple(argument.text for argument in arguments)
