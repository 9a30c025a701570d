"""Several ranks against one: which part of the tensor of the one rank a rank has, or which of several terms.

Tensor parallelism cuts parameters and activations along an axis, maybe several blocks of it one by one (query, key and
value in one matrix), and makes partial sums; data parallelism cuts the batch. Shapes say what may have been cut, values
say what was: of several ways the nearest is taken, and its difference is judged as any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.analysis.compare._match import align
from ascend_dump.analysis.compare._operators import Operator
from ascend_dump.analysis.compare._result import Origin
from ascend_dump.analysis.compare._types import COLLECTIVES
from ascend_dump.host import Placement
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Portion", "Portions", "hold_parts", "is_together", "of_one_rank"]

#: Blocks of one axis that may have been cut one by one: gate and up, or query, key and value.
_BLOCKS = (1, 2, 3)
#: Terms of a sum are further apart than this, relative to the norm of the sum.
_FAR = 0.1
_SUM, _MEAN = "sum over", "mean over"


class Portion(NamedTuple):
    """What a rank has, what the other side has of that, and in words what it is: "part 1 of 2 along axis 0"."""

    own: np.ndarray
    other: np.ndarray
    name: str


class Portions:
    """The ranks of the side that has several, while the records of one of them are compared.

    own     the operators of that rank
    ranks   the operators of a rank by its number, which are asked for where something differs only
    count   of ranks
    place   the number of that rank
    of_actual   whether it is actual that has several, not the reference
    """

    def __init__(
        self,
        own: Sequence[Operator],
        ranks: Callable[[int], list[Operator]],
        count: int,
        place: int,
        *,
        of_actual: bool,
    ) -> None:
        self._of_actual = of_actual
        self._own = own
        self._ranks = ranks
        self._count = count
        self._place = place
        self._known: Optional[dict[int, list[Optional[Record]]]] = None
        self._placements: Optional[dict[Any, Placement]] = None
        self._terms: dict[int, int] = {}

    def arrays(self, actual: Record, reference: Record) -> Optional[tuple[np.ndarray, np.ndarray, str]]:
        """Of both what is one tensor, and what that is in words; None where no part of the one is the other.

        Raises what reading a tensor raises.
        """
        if self._of_actual:
            return self._part(actual, reference)
        part = self._part(reference, actual)
        return None if part is None else (part.other, part.own, f"{part.name} of the reference")

    def _part(self, own: Record, whole: Record) -> Optional[Portion]:
        placed = self._placed(own, whole)
        if placed is not None:
            return placed
        ranks = self._siblings(own)
        if ranks is None or own.shape is None or whole.shape is None:
            return None
        if own.shape == whole.shape:
            return self._term(own, whole, ranks)
        return self._cut(own, whole, [one.shape or () for one in ranks])

    def _placed(self, own: Record, whole: Record) -> Optional[Portion]:
        """What the dump itself says of the part that a rank holds; None where it says nothing that fits."""
        if self._placements is None:
            self._placements = _placements(self._own)
            self._terms = _terms(self._own, self._placements)
        count = self._terms.get(id(own))
        if count is not None and own.shape == whole.shape:
            return Portion(own.numpy().astype("float64") * count, whole.numpy(), f"{_SUM} {count} ranks")
        placement = Placement.of(own.attrs) or self._placements.get(_memory(own))
        if placement is None or own.rank is None or placement.shape != whole.shape:
            return None
        if own.shape == whole.shape:
            return self._sum(own, whole, placement)
        region = placement.region(own.rank)
        if region is None or tuple(one.stop - one.start for one in region) != own.shape:
            return None
        place = placement.coordinates(own.rank) or ()
        cut = [
            f"part {at + 1} of {count} along axis {axis.split()[1]}"
            for axis, count, at in zip(placement.axes, placement.mesh, place)
            if axis.startswith("shard")
        ]
        return Portion(own.numpy(), whole.numpy()[region], " and ".join(cut))

    def _sum(self, own: Record, whole: Record, placement: Placement) -> Optional[Portion]:
        """The sum of the terms that the ranks hold, where the dump says that they are terms of one."""
        import numpy as np

        terms = [axis == "partial sum" for axis in placement.axes]
        place = placement.coordinates(own.rank or 0)
        if not any(terms) or place is None or any(axis.startswith("shard") for axis in placement.axes):
            return None
        found = []
        for one in self._siblings(own) or ():
            other = placement.coordinates(-1 if one.rank is None else one.rank)
            if other is not None and all(term or a == b for term, a, b in zip(terms, place, other)):
                found.append(one)
        if len(found) != math.prod(size for size, term in zip(placement.mesh, terms) if term):
            return None
        total = sum((one.numpy().astype(np.float64) for one in found), np.zeros(own.shape or ()))
        return Portion(total, whole.numpy(), f"{_SUM} {len(found)} ranks")

    def _cut(self, own: Record, whole: Record, shapes: Sequence[tuple[int, ...]]) -> Optional[Portion]:
        import numpy as np

        shape, of_whole = own.shape or (), whole.shape or ()
        axes = [axis for axis, (size, other) in enumerate(zip(shape, of_whole)) if size != other]
        if len(shape) != len(of_whole) or len(axes) != 1:
            return None
        [axis] = axes
        sizes = [one[axis] for one in shapes if len(one) == len(shape)]
        rest = {(*one[:axis], *one[axis + 1 :]) for one in shapes}
        if len(sizes) != len(shapes) or len(rest) != 1 or sum(sizes) != of_whole[axis]:
            return None
        starts = [0, *accumulate(sizes)]
        values, others = own.numpy(), whole.numpy()
        equal = len(set(sizes)) == 1
        found: list[tuple[float, Portion]] = []
        for blocks in _BLOCKS:
            if blocks > 1 and (not equal or sizes[0] % blocks):
                continue
            width, step = sizes[self._place] // blocks, sizes[0] // blocks * len(sizes)
            first = starts[self._place] // blocks
            places = np.concatenate([np.arange(width) + first + block * step for block in range(blocks)])
            part = others.take(places, axis)
            name = f"part {self._place + 1} of {len(sizes)} along axis {axis}"
            one = Portion(values, part, name + (f", of {blocks} blocks" if blocks > 1 else ""))
            found.append((_apart(values, part), one))
            if not found[-1][0]:
                break
        return min(found, key=lambda one: one[0])[1]

    def _term(self, own: Record, whole: Record, ranks: Sequence[Record]) -> Optional[Portion]:
        import numpy as np

        if any(one.shape != own.shape or one.dtype != own.dtype for one in ranks):
            return None
        values, others = own.numpy(), whole.numpy()
        if values.dtype.kind not in "fV":
            return None
        if not _apart(values, others):
            return None
        terms = [one.numpy().astype(np.float64) for one in ranks]
        total = sum(terms, np.zeros(values.shape))
        mean = total / len(ranks)
        ways = [(_apart(total, others), _SUM, total), (_apart(mean, others), _MEAN, mean)]
        least, word, made = min(ways, key=lambda one: one[0])
        # Where ranks have the whole by themselves they are near it, or near each other, even if one has it wrong.
        nearest = min(_apart(term, others) for term in terms)
        neighbours = min(_apart(one, next_one) for one, next_one in zip(terms, terms[1:]))
        far = _FAR * _apart(others, np.zeros(1))
        return (
            Portion(made, others, f"{word} {len(ranks)} ranks")
            if least < nearest and min(nearest, neighbours) > far
            else None
        )

    def _siblings(self, own: Record) -> Optional[list[Record]]:
        """The record of every rank that holds the same tensor of the program; None where a rank has none."""
        if self._known is None:
            self._known = {}
            for number in range(self._count):
                for match in align(self._own if number == self._place else self._ranks(number), self._own, parts=True):
                    theirs = {(one.io, one.index): one for one in (*match.actual.inputs, *match.actual.outputs)}
                    for record in (*match.reference.inputs, *match.reference.outputs):
                        row = self._known.setdefault(id(record), [None] * self._count)
                        row[number] = theirs.get((record.io, record.index))
        found = [one for one in self._known.get(id(own), ()) if one is not None]
        return found if len(found) == self._count else None


def _memory(record: Record) -> Any:
    """What is the same of one tensor where an operator makes it and where others read it."""
    attrs = record.attrs
    if attrs.get("storage", -1) < 0:
        return None
    return (
        tuple(attrs.get(name) for name in ("storage", "version", "storage_offset", "stride")),
        record.shape,
        record.dtype,
    )


def _placements(operators: Sequence[Operator]) -> dict[Any, Placement]:
    """The placements of tensors by where they lie: they are told where operators of DTensor read them."""
    found: dict[Any, Placement] = {}
    for operator in operators:
        for record in operator.inputs:
            placement = Placement.of(record.attrs)
            memory = None if placement is None else _memory(record)
            if placement is not None and memory is not None:
                found.setdefault(memory, placement)
    return found


def _terms(operators: Sequence[Operator], placements: dict[Any, Placement]) -> dict[int, int]:
    """By their ids, the inputs that an operator adds to a term of a sum, and the number of its terms.

    DTensor divides a bias by that number, so that the sum has it once.
    """
    found: dict[int, int] = {}
    for operator in operators:
        if operator.op_type not in ("aten::addmm", "aten::baddbmm", "aten::add") or not operator.inputs:
            continue
        placement = placements.get(_memory(operator.outputs[0])) if operator.outputs else None
        first = operator.inputs[0]
        if placement is not None and Placement.of(first.attrs) is None:
            count = math.prod(size for axis, size in zip(placement.axes, placement.mesh) if axis == "partial sum")
            if count > 1:
                found[id(first)] = count
    return found


def hold_parts(own: Sequence[Operator], whole: Sequence[Operator], count: int) -> bool:
    """Whether so many ranks hold parts of what one rank of the other side has, by placements, else by the shapes of
    their outputs."""
    if any(axis.startswith("shard") for one in _placements(own).values() for axis in one.axes):
        return True
    for match in align(own, whole, parts=True):
        for a, b in match.outputs:
            shapes = () if a is None or b is None or not a.shape or not b.shape else (a.shape, b.shape)
            if not shapes or len(shapes[0]) != len(shapes[1]):
                continue
            cut = [(size, other) for size, other in zip(*shapes) if size != other]
            if len(cut) == 1 and cut[0][0] * count == cut[0][1]:
                return True
    return False


def of_one_rank(origins: Sequence[Origin]) -> Sequence[Origin]:
    """In the order of steps, without those that say only that what ranks make together is wrong, where others of that
    step or of an earlier one say which rank makes it so."""
    steps: dict[int, list[Origin]] = {}
    for one in origins:
        steps.setdefault(-1 if one.pair.record.step is None else one.pair.record.step, []).append(one)
    found: list[Origin] = []
    known = False
    for _, every in sorted(steps.items()):
        own = [one for one in every if not one.op_type.startswith(COLLECTIVES) and not is_together(one)]
        known = known or bool(own)
        found += own if known else every
    return found


def is_together(origin: Origin) -> bool:
    """Whether it says of what several ranks make together that it is wrong."""
    return origin.pair.transformation.startswith((_SUM, _MEAN))


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    import numpy as np

    with np.errstate(all="ignore"):
        difference = (a.astype(np.float64) - b.astype(np.float64)).reshape(-1)
    finite = difference[np.isfinite(difference)]
    return float(np.linalg.norm(finite))
