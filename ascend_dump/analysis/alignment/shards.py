"""Several ranks compared with fewer: which part of a whole tensor a rank holds, or which sum it has a term of.

Tensor parallelism splits parameters and activations along an axis, possibly within several blocks of it (query, key and
value in one matrix), and makes partial sums; data parallelism splits the batch. Shapes show what may have been split,
values show what was: of several possibilities the nearest is taken, and its difference is judged like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.analysis.alignment.placements import memory_of, placements_of, terms_of
from ascend_dump.analysis.alignment.shard_notation import GivenLayout, GivenShards
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.same_framework import align
from ascend_dump.dump_format import Placement
from ascend_dump.reading import Record
from ascend_dump.statistics import Statistics, merged

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "NOT_GIVEN",
    "Portion",
    "Portions",
    "WholeTensor",
    "hold_parts",
    "is_of_parts",
    "is_over_ranks",
]

#: Blocks of one axis that may have been cut one by one: gate and up, or query, key and value.
_BLOCKS = (1, 2, 3)
#: Terms of a sum are further apart than this, relative to the norm of the sum.
_FAR = 0.1
_SUM, _MEAN = "sum over", "mean over"
_TERMS, _STATISTICS = "terms of a sum", "statistics of"
NOT_GIVEN = GivenShards()


class Portion(NamedTuple):
    """The values of a rank, the matching part of the other side, and its name: "part 1 of 2 along axis 0"."""

    own: np.ndarray
    other: np.ndarray
    name: str


class WholeTensor(NamedTuple):
    """A whole tensor of the program: that of a single rank, or one assembled from several ranks of the other side."""

    shape: tuple[int, ...]
    numpy: Callable[[], np.ndarray]


class Portions:
    """Finds the part of the other side's tensors that a rank holds, for one rank of several.

    own        the operators of that rank
    ranks      gives the operators of a rank by its position; called only where something differs
    numbers    the numbers of all ranks
    place      the position of that rank among them
    of_actual  whether the side with several ranks is actual
    given      the layouts that the user gave
    other      the ranks of the other side, if it has several too, but fewer
    """

    def __init__(
        self,
        own: Sequence[Operator],
        ranks: Callable[[int], list[Operator]],
        numbers: Sequence[Optional[int]],
        place: int,
        *,
        of_actual: bool,
        given: GivenShards = NOT_GIVEN,
        other: Optional[Portions] = None,
    ) -> None:
        self._of_actual = of_actual
        self._own = own
        self._ranks = ranks
        self._numbers = numbers
        self._place = place
        self._given = given
        self._other = other
        self._known: Optional[dict[int, list[Optional[Record]]]] = None
        self._placements: Optional[dict[Any, Placement]] = None
        self._terms: dict[Any, int] = {}

    @property
    def _count(self) -> int:
        return len(self._numbers)

    def arrays(self, actual: Record, reference: Record) -> Optional[tuple[np.ndarray, np.ndarray, str]]:
        """Arrays of actual and reference that hold the same values of the program, and the name of the transformation.

        None if neither side is a part of the other. Raises what reading a tensor raises, and ConfigError for a layout
        of the user that does not fit.
        """
        if self._of_actual:
            return self._part(actual, reference)
        part = self._part(reference, actual)
        return None if part is None else (part.other, part.own, f"{part.name} of the reference")

    def statistics(self, actual: Record, reference: Record) -> Optional[tuple[Statistics, Statistics, str]]:
        """Like `arrays` for dumps with statistics only, as far as statistics of parts can be merged; None if both are
        whole.
        """
        own, other = (actual, reference) if self._of_actual else (reference, actual)
        parts, others = self._parts_of(own), [other] if self._other is None else self._other._parts_of(other)
        if parts is None or others is None:
            # Terms of a sum, which say nothing of it.
            nothing = Statistics(math.prod(own.shape or ()))
            return nothing, nothing, _TERMS
        if len(parts) == len(others) == 1:
            return None
        both = [merged([one.statistics() for one in side]) for side in (parts, others)]
        if both[0].count != both[1].count:
            nothing = Statistics(math.prod(own.shape or ()))
            return (nothing, nothing, _TERMS) if own.shape == other.shape else None
        left, right = both if self._of_actual else both[::-1]
        return left, right, f"{_STATISTICS} {max(len(parts), len(others))} parts"

    def _part(self, own: Record, whole: Record) -> Optional[Portion]:
        if self._other is None:
            return self._of(own, WholeTensor(whole.shape or (), whole.numpy))
        found: list[tuple[float, Optional[Portion]]] = []
        for one in self._other.wholes(whole, own):
            part = self._of(own, one)
            if part is None and own.shape != one.shape:
                continue
            made = part or Portion(own.numpy(), one.numpy(), "")
            found.append((_apart(made.own, made.other), part or (made if one.numpy != whole.numpy else None)))
        return min(found, key=lambda one: one[0])[1] if found else None

    def _of(self, own: Record, whole: WholeTensor) -> Optional[Portion]:
        layout = self._given.of(own)
        if layout is not None:
            return self._as_given(layout, own, whole)
        placed = self._placed(own, whole)
        if placed is not None:
            return placed
        ranks = self._siblings(own)
        if ranks is None or own.shape is None:
            return None
        if own.shape == whole.shape:
            return self._term(own, whole, ranks)
        return self._cut(own, whole, [one.shape or () for one in ranks])

    def _as_given(self, layout: GivenLayout, own: Record, whole: WholeTensor) -> Optional[Portion]:
        """The part by the layout that the user gave. Raises ConfigError where shapes contradict it."""
        placement = layout.placement(own, [number or 0 for number in self._numbers], whole.shape)
        if not any(axis.startswith("shard") for axis in layout.axes):
            if own.shape != whole.shape:
                raise layout.mismatch(own, f"the whole has shape {list(whole.shape)}")
            return self._sum(own, whole, placement)
        if layout.blocks > 1:
            shapes = [one.shape or () for one in self._siblings(own) or ()]
            cut = self._cut(own, whole, shapes, (layout.blocks,))
        else:
            cut = self._region(own, whole, placement)
        if cut is None:
            raise layout.mismatch(own, f"a tensor of this shape is not such a part of {list(whole.shape)}")
        return cut

    def _placed(self, own: Record, whole: WholeTensor) -> Optional[Portion]:
        """The part by the placement that the dump records; None if there is none that fits."""
        placement = self._placement(own)
        count = self._terms.get(id(own), self._terms.get(memory_of(own)))
        if count is not None and own.shape == whole.shape:
            return Portion(own.numpy().astype("float64") * count, whole.numpy(), f"{_SUM} {count} ranks")
        if placement is None or own.rank is None or placement.shape != whole.shape:
            return None
        return self._sum(own, whole, placement) if own.shape == whole.shape else self._region(own, whole, placement)

    def _placement(self, own: Record) -> Optional[Placement]:
        """The placement that the dump records for a tensor."""
        if self._placements is None:
            self._placements = placements_of(self._own)
            self._terms = terms_of(self._own, self._placements)
        return Placement.of(own.attrs) or self._placements.get(memory_of(own))

    def _region(self, own: Record, whole: WholeTensor, placement: Placement) -> Optional[Portion]:
        rank = -1 if own.rank is None else own.rank
        region = placement.region(rank)
        if region is None or tuple(one.stop - one.start for one in region) != own.shape:
            return None
        place = placement.coordinates(rank) or ()
        cut = [
            f"part {at + 1} of {count} along axis {axis.split()[1]}"
            for axis, count, at in zip(placement.axes, placement.mesh, place)
            if axis.startswith("shard")
        ]
        return Portion(own.numpy(), whole.numpy()[region], " and ".join(cut))

    def _sum(self, own: Record, whole: WholeTensor, placement: Placement) -> Optional[Portion]:
        """The sum or mean of the terms of all ranks, if the placement says that they are terms."""
        found = self._added(own, placement)
        return None if found is None else Portion(found.own, whole.numpy(), found.name)

    def _added(self, own: Record, placement: Placement) -> Optional[Portion]:
        import numpy as np

        terms = [axis in ("partial sum", "partial avg") for axis in placement.axes]
        if not any(terms) or any(axis.startswith("shard") for axis in placement.axes):
            return None
        found = self._beside(own, placement, terms)
        if len(found) != math.prod(size for size, term in zip(placement.mesh, terms) if term):
            return None
        total = sum((one.numpy().astype(np.float64) for one in found), np.zeros(own.shape or ()))
        is_mean = "partial avg" in placement.axes
        total = total / len(found) if is_mean else total
        return Portion(total, total, f"{_MEAN if is_mean else _SUM} {len(found)} ranks")

    def _beside(self, own: Record, placement: Placement, along: Sequence[bool]) -> list[Record]:
        """The records of the ranks at the same coordinates of the mesh, except along the given dimensions."""
        place = placement.coordinates(-1 if own.rank is None else own.rank)
        found = []
        for one in self._siblings(own) or ():
            other = placement.coordinates(-1 if one.rank is None else one.rank)
            both = () if place is None or other is None else zip(along, place, other)
            if other is not None and all(free or a == b for free, a, b in both):
                found.append(one)
        return found

    def wholes(self, own: Record, part: Record) -> Iterator[WholeTensor]:
        """Whole tensors that the ranks of this side may hold together, for a part on a rank of the other side.

        A single one if the user or the dump gives the layout; else one for each way to split the axis that differs. A
        tensor that has the same shape on both sides is whole, or a term of a sum over the ranks.
        """
        import numpy as np

        said = self._said(own)
        ranks = self._siblings(own)
        if said is not None and not all(axis == "replicate" for axis in said.axes):
            joined = self._joined(own, said)
            if joined is not None:
                yield _held(joined)
            return
        count = self._terms.get(id(own), self._terms.get(memory_of(own))) if said is None else None
        if count is not None:
            yield _held(own.numpy().astype(np.float64) * count)
            return
        if said is not None or ranks is None or own.shape == part.shape:
            yield WholeTensor(own.shape or (), own.numpy)
            if said is None and ranks is not None and len({(one.content, one.shape) for one in ranks}) == len(ranks):
                alike = [one for one in ranks if one.shape == own.shape]
                yield _held(sum((one.numpy().astype(np.float64) for one in alike), np.zeros(own.shape or ())))
            return
        shapes = [(one.shape or (), part.shape or ()) for one in ranks]
        axes = {axis for a, b in shapes for axis in range(len(a)) if len(a) == len(b) and a[axis] != b[axis]}
        if len(axes) != 1 or any(len(a) != len(b) for a, b in shapes):
            return
        [axis] = axes
        for blocks in _BLOCKS:
            arrays = [one.numpy() for one in ranks]
            if all(array.shape[axis] % blocks == 0 for array in arrays):
                cut = [np.split(array, blocks, axis) for array in arrays]
                made = np.concatenate([one[block] for block in range(blocks) for one in cut], axis)
                yield _held(made)

    def _said(self, own: Record) -> Optional[Placement]:
        """The layout of the user, else the placement that the dump records."""
        layout = self._given.of(own)
        if layout is None:
            return self._placement(own)
        shape = list(own.shape or ())
        for axis, count in zip(layout.axes, layout.mesh or (self._count,)):
            cut = axis.partition("shard ")[2]
            if cut and int(cut) < len(shape):
                same = [one.shape or () for one in self._siblings(own) or ()]
                sizes = sum(one[int(cut)] for one in same if len(one) == len(shape))
                shape[int(cut)] = shape[int(cut)] * count if layout.mesh else sizes
            elif cut:
                raise layout.mismatch(own, f"there is no axis {cut}")
        return layout.placement(own, [number or 0 for number in self._numbers], shape)

    def _joined(self, own: Record, placement: Placement) -> Optional[np.ndarray]:
        """The whole assembled from the parts of the ranks, or the sum of their terms."""
        import numpy as np

        if not any(axis.startswith("shard") for axis in placement.axes):
            added = self._added(own, placement)
            return None if added is None else added.own
        layout = self._given.of(own)
        blocks = 1 if layout is None else layout.blocks
        cut = [axis.startswith("shard") for axis in placement.axes]
        parts = self._beside(own, placement, cut)
        if blocks > 1:
            axis = int(placement.axes[0].split()[1])
            pieces = [np.split(one.numpy(), blocks, axis) for one in parts]
            return np.concatenate([one[block] for block in range(blocks) for one in pieces], axis)
        regions = []
        for one in parts:
            region = placement.region(-1 if one.rank is None else one.rank)
            if region is None or tuple(side.stop - side.start for side in region) != one.shape:
                if layout is not None:
                    raise layout.mismatch(one, f"a tensor of this shape is not such a part of {list(placement.shape)}")
                return None
            regions.append(region)
        # Before memory is taken: the shape is a number in a file.
        if sum(math.prod(one.shape or ()) for one in parts) != math.prod(placement.shape):
            return None
        made = np.empty(placement.shape, own.numpy().dtype)
        for region, one in zip(regions, parts):
            made[region] = one.numpy()
        return made

    def _parts_of(self, own: Record) -> Optional[list[Record]]:
        """The records of the distinct parts of a tensor; None if they are terms of a sum."""
        said = self._said(own)
        if said is not None:
            if any(axis.startswith("partial") for axis in said.axes):
                return None
            return self._beside(own, said, [axis.startswith("shard") for axis in said.axes])
        ranks = self._siblings(own)
        if ranks is None:
            return [own]
        # Where some ranks have the same, all are to have it.
        contents = {(one.shape, identity_text(one)) for one in ranks}
        return ranks if len(contents) == len(ranks) else [own]

    def _cut(
        self,
        own: Record,
        whole: WholeTensor,
        shapes: Sequence[tuple[int, ...]],
        ways: Sequence[int] = _BLOCKS,
    ) -> Optional[Portion]:
        import numpy as np

        shape, of_whole = own.shape or (), whole.shape
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
        for blocks in ways:
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
        return min(found, key=lambda one: one[0])[1] if found else None

    def _term(self, own: Record, whole: WholeTensor, ranks: Sequence[Record]) -> Optional[Portion]:
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
        """The record of every rank that corresponds to this one; None if a rank has none."""
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


def _held(array: np.ndarray) -> WholeTensor:
    return WholeTensor(array.shape, lambda: array)


def hold_parts(own: Sequence[Operator], whole: Sequence[Operator], counts: tuple[int, int]) -> bool:
    """Whether ranks of the two sides hold different parts of tensors: by placements, else by shapes of outputs.

    counts: the numbers of ranks of both sides
    """
    if any(axis.startswith("shard") for one in placements_of(own).values() for axis in one.axes):
        return True
    for match in align(own, whole, parts=True):
        for a, b in match.outputs:
            shapes = () if a is None or b is None or not a.shape or not b.shape else (a.shape, b.shape)
            if not shapes or len(shapes[0]) != len(shapes[1]):
                continue
            cut = [(size, other) for size, other in zip(*shapes) if size != other]
            if len(cut) == 1 and cut[0][0] * counts[0] == cut[0][1] * counts[1]:
                return True
    return False


def identity_text(record: Record) -> Any:
    """Equal for equal tensors: the content hash, else the recorded statistics."""
    content = record.content
    return (record.dtype, *map(str, record.statistics())) if content is None else content


def is_of_parts(transformation: str) -> bool:
    """Whether a pair compares something else than the tensors as the ranks hold them."""
    return transformation.startswith(("part ", "cast", _SUM, _MEAN, _TERMS, _STATISTICS))


def is_over_ranks(transformation: str) -> bool:
    """Return whether a pair compares a sum or mean over several ranks."""
    return transformation.startswith((_SUM, _MEAN))


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    import numpy as np

    with np.errstate(all="ignore"):
        difference = (a.astype(np.float64) - b.astype(np.float64)).reshape(-1)
    finite = difference[np.isfinite(difference)]
    return float(np.linalg.norm(finite))
