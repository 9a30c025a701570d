"""Find how the tensor of one of several ranks is related to the tensor of a program on fewer ranks.

A rank has the whole tensor, a part of it, or a term of a sum or mean. Data parallelism divides the batch. Until ranks
reduce them, losses and gradients of parameters are terms of a mean. Gradients of activations are larger than without
data parallelism; the factor is the number of ranks. Tensor parallelism makes terms of sums. Shapes show which relations
are possible. Of several possible relations, the one with the nearest values counts.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import float_kind

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "BLOCKS",
    "FAR",
    "MEAN",
    "NORM",
    "NOT_REDUCED",
    "SUM",
    "PartOfWhole",
    "Relation",
    "RelationFinder",
    "cuts_of",
    "distance_of",
]

#: Numbers of blocks of an axis that may have been split one by one: 2 for gate and up, 3 for query, key and value.
BLOCKS = (1, 2, 3)
#: Maximum number of blocks of an axis that other axes were merged into.
_MOST_BLOCKS = 64
#: Terms of a sum are further apart than this, relative to the norm of the sum.
FAR = 0.1
#: The largest error of a relation that is certain: the larger of a relative error, and a number of rounding units.
_CERTAIN, _CERTAIN_ROUNDINGS = 1e-4, 8
#: A relation that combines ranks, or scales values, has to be this many times nearer than the unchanged tensor.
_NEARER = 16
SUM, MEAN, NORM = "sum over", "mean over", "norm over"
#: The end of the sentence on a tensor whose sum or mean over ranks agrees with the other side.
NOT_REDUCED = "it is not reduced over ranks"


class PartOfWhole(NamedTuple):
    """The part of a whole tensor that one rank has, in one way to divide the tensor.

    name        the part in words; "" for the whole tensor
    members     positions of the ranks that have this part
    parts       number of different parts
    of          returns this part of a whole array
    axis_parts  if several axes are divided: the number of parts along each
    """

    name: str
    members: tuple[int, ...]
    parts: int
    of: Callable[[np.ndarray], np.ndarray]
    axis_parts: tuple[int, ...] = ()

    @property
    def scales(self) -> tuple[int, ...]:
        return self.axis_parts or (self.parts,)


class Relation(NamedTuple):
    """Values of one or several ranks, the part of the whole that should be equal, and the name of the relation."""

    values: np.ndarray
    counterpart: np.ndarray
    name: str


class RelationFinder(NamedTuple):
    """Finds the relation of the tensor of one rank to a whole tensor.

    position      position of the rank among all ranks
    shapes        shapes of the tensors of all ranks
    read          returns the tensor of the rank at a position
    dtype         the type of the tensors
    may_be_terms  the tensor may be a term of a sum or mean over ranks; parameters and states of optimizers may not
    is_scaled     the tensor is a gradient, and other gradients of the step are larger by the number of ranks
    """

    position: int
    shapes: Sequence[tuple[int, ...]]
    read: Callable[[int], np.ndarray]
    dtype: str
    may_be_terms: bool
    is_scaled: bool = False

    def nearest(self, whole: np.ndarray) -> Optional[Relation]:
        """Return the nearest relation; None if there is none, or if the rank has the whole tensor."""
        own = self.read(self.position)
        cuts = [*cuts_of(self.position, self.shapes, whole.shape)]
        best: Optional[tuple[float, Relation]] = None
        for cut in cuts:
            part = cut.of(whole)
            relation = Relation(own, part, cut.name)
            distance = distance_of(own, part)
            if best is None or distance < best[0]:
                best = distance, relation
            if self._is_certain(distance, part):
                return None if not cut.name else relation
        if best is None:
            return None
        combined = self._combined(own, cuts, whole, best[0]) if self.dtype and own.dtype.kind in "fVci" else None
        if combined is not None:
            return combined
        return best[1] if best[1].name else None

    def _combined(
        self, own: np.ndarray, cuts: Sequence[PartOfWhole], whole: np.ndarray, least: float
    ) -> Optional[Relation]:
        """Return a relation of values that are computed from one or several ranks; None if there is none.

        It may be as inexact as the rounding of earlier operators, if every unchanged part is much further away.

        least: the smallest distance of an unchanged part
        """
        import numpy as np

        for number, cut in enumerate(cuts):
            part = cut.of(whole)
            for values, name in self._derived(own, cut):
                distance = distance_of(values, part)
                if _NEARER * distance <= least and distance <= FAR * distance_of(part, np.zeros(1)):
                    if name.startswith(f"{cut.name}, divided") and self._is_unscaled_elsewhere(number, whole):
                        continue
                    return Relation(values, part, name)
        return None

    def _is_unscaled_elsewhere(self, number: int, whole: np.ndarray) -> bool:
        """Return True if another rank has its part of the whole as it is: values are scaled on all ranks or on none.

        number: the way to divide the whole, in the order of `cuts_of`
        """
        import numpy as np

        for position in range(len(self.shapes)):
            cuts = [*cuts_of(position, self.shapes, whole.shape)] if position != self.position else []
            part = cuts[number].of(whole) if number < len(cuts) else np.zeros(1)
            if distance_of(part, np.zeros(1)) and self._is_certain(distance_of(self.read(position), part), part):
                return True
        return False

    def _derived(self, own: np.ndarray, cut: PartOfWhole) -> Iterator[tuple[np.ndarray, str]]:
        import numpy as np

        if cut.parts > 1 and own.dtype.kind in "fV":
            # A mean over the elements of one rank has larger derivatives than a mean over all elements.
            for scale in cut.scales:
                yield own.astype(np.float64) / scale, f"{cut.name}, divided by {scale}"
        members = [member for member in cut.members if self.shapes[member] == own.shape]
        if not self.may_be_terms or len(members) < 2 or len(members) < len(cut.members):
            return
        terms = [self.read(member).astype(np.float64) for member in members]
        have_one_value = all(np.array_equal(terms[0], term) for term in terms[1:])
        if have_one_value and own.size > 1 and not self.is_scaled:
            return  # a tensor that is equal on all ranks is no term
        if have_one_value and not cut.name:
            yield terms[0] / len(terms), f"{SUM} {len(terms)} ranks, divided by {len(terms) ** 2}"
        if have_one_value and own.size > 1:
            return
        part = f" of {cut.name}" if cut.name else ""
        total = sum(terms, np.zeros(own.shape))
        yield total / len(terms), f"{MEAN} {len(terms)} ranks{part}"
        yield total, f"{SUM} {len(terms)} ranks{part}"
        for count in range(2, len(terms)):
            if len(terms) % count == 0:
                yield total / count, f"{SUM} {len(terms) // count} of {len(terms)} ranks{part}"
        if not cut.name and own.size == 1:
            yield np.sqrt(sum((term * term for term in terms), np.zeros(own.shape))), f"{NORM} {len(terms)} ranks"

    def _is_certain(self, distance: float, part: np.ndarray) -> bool:
        import numpy as np

        kind = float_kind(self.dtype)
        rounding = 0.0 if kind is None else max(_CERTAIN, _CERTAIN_ROUNDINGS * kind.unit)
        return distance <= rounding * distance_of(part, np.zeros(1))


def cuts_of(
    position: int, shapes: Sequence[tuple[int, ...]], whole: tuple[int, ...], ways: Sequence[int] = BLOCKS
) -> Iterator[PartOfWhole]:
    """Yield the parts that a rank may have if tensors of these shapes are parts of a whole, the most usual first.

    All ranks together have the whole, or each group of ranks does. Ranks are in row-major order of a mesh.
    """
    shape = shapes[position]
    if len(shape) != len(whole):
        return
    axes = [axis for axis, (size, whole_size) in enumerate(zip(shape, whole)) if size != whole_size]
    everyone = tuple(range(len(shapes)))
    if not axes:
        yield PartOfWhole("", everyone, 1, lambda array: array)
    elif len(axes) == 1:
        yield from _along_axis(position, shapes, whole, axes[0], ways)
    elif len(axes) == 2 and all(other == shape for other in shapes) and all(shape):
        counts = [whole[axis] // shape[axis] for axis in axes]
        is_even = all(shape[axis] * count == whole[axis] for axis, count in zip(axes, counts))
        if is_even and len(shapes) % math.prod(counts) == 0:
            yield from _along_two_axes(position, len(shapes), shape, axes, counts, ways)


def _along_axis(
    position: int, shapes: Sequence[tuple[int, ...]], whole: tuple[int, ...], axis: int, ways: Sequence[int]
) -> Iterator[PartOfWhole]:
    ranks = len(shapes)
    sizes = [shape[axis] for shape in shapes if len(shape) == len(whole)]
    across = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(sizes) != ranks or len(across) != 1:
        return
    is_even = len(set(sizes)) == 1
    if sum(sizes) == whole[axis]:
        starts = [0, *accumulate(sizes)]
        # The rows of a transposed matrix, and the labels of rows of tokens, are along the last axis.
        may_be_merged = is_even and (axis < len(whole) - 1 or len(whole) <= 2) and 1 in ways
        merged = [*_merged_blocks(sizes[0])] if may_be_merged else []
        for blocks in dict.fromkeys((*ways, *merged)):
            if blocks == 1 or (is_even and sizes[0] % blocks == 0):
                width, step = sizes[position] // blocks, sizes[0] // blocks * ranks
                first = starts[position] // blocks
                name = f"part {position + 1} of {ranks} along axis {axis}"
                name += f", of {blocks} blocks" if blocks > 1 else ""
                yield PartOfWhole(
                    name, (position,), ranks, _taken(axis, [(first + k * step, width, 1) for k in range(blocks)])
                )
        if is_even and ranks > 1:
            name = f"part {position + 1} of {ranks} along axis {axis}, every {ranks}th element"
            yield PartOfWhole(name, (position,), ranks, _taken(axis, [(position, sizes[0], ranks)]))
            for rows in range(2, ranks):
                if ranks % rows == 0:  # both dimensions of a mesh divide the axis
                    heads = merged if axis < len(whole) - 1 else ()
                    yield from _along_axis_twice(position, rows, ranks // rows, whole[axis], axis, heads)
        return
    size = sizes[0]
    count = whole[axis] // size if size and is_even else 0
    if count < 2 or count * size != whole[axis] or ranks % count:
        return
    for parts in ([rank * count // ranks for rank in range(ranks)], [rank % count for rank in range(ranks)]):
        own = parts[position]
        members = tuple(rank for rank, part in enumerate(parts) if part == own)
        for blocks in ways:
            if size % blocks == 0:
                width = size // blocks
                name = f"part {own + 1} of {count} along axis {axis}" + (f", of {blocks} blocks" if blocks > 1 else "")
                pieces = [(own * width + k * width * count, width, 1) for k in range(blocks)]
                yield PartOfWhole(name, members, count, _taken(axis, pieces))


def _along_axis_twice(
    position: int, rows: int, columns: int, whole: int, axis: int, merged: Iterable[int]
) -> Iterator[PartOfWhole]:
    """Yield the parts of a rank if both dimensions of a mesh divide an axis.

    The last dimension may divide it first. The first one may divide the batch, and the last one the heads that were
    merged with it. merged: numbers of blocks that a rank may have then
    """
    ranks = rows * columns
    size = whole // ranks
    row, column = divmod(position, columns)
    part = column * rows + row
    name = f"part {part + 1} of {ranks} along axis {axis}"
    yield PartOfWhole(name, (position,), ranks, _taken(axis, [(part * size, size, 1)]))
    for blocks in merged:
        width = size // blocks
        first = row * columns * size + column * width
        name = f"part {row + 1} of {rows} along axis {axis}, and part {column + 1} of {columns} of {blocks} blocks"
        pieces = [(first + block * width * columns, width, 1) for block in range(blocks)]
        yield PartOfWhole(name, (position,), ranks, _taken(axis, pieces), (rows, columns))


def _merged_blocks(size: int) -> Iterator[int]:
    """Yield numbers of blocks of an axis that was merged with axes before it, such as heads with the batch."""
    for blocks in range(2, min(size, _MOST_BLOCKS) + 1):
        if size % blocks == 0:
            yield blocks


def _along_two_axes(
    position: int, ranks: int, shape: tuple[int, ...], axes: Sequence[int], counts: Sequence[int], ways: Sequence[int]
) -> Iterator[PartOfWhole]:
    """Yield the parts of a rank if each dimension of a mesh divides an axis. One of both axes may have blocks."""
    per_part = ranks // math.prod(counts)
    orders = (
        [(rank // per_part // counts[1], rank // per_part % counts[1]) for rank in range(ranks)],
        [(rank // per_part % counts[0], rank // per_part // counts[0]) for rank in range(ranks)],
    )
    sizes = [shape[axis] for axis in axes]
    with_blocks = dict.fromkeys([*((1, blocks) for blocks in ways), *((blocks, 1) for blocks in ways)])
    for blocks in with_blocks:
        for parts in orders if not any(map(operator.mod, sizes, blocks)) else ():
            own = parts[position]
            members = tuple(rank for rank, part in enumerate(parts) if part == own)
            names = []
            takes = []
            for axis, size, index, count, number in zip(axes, sizes, own, counts, blocks):
                width = size // number
                pieces = [(index * width + block * width * count, width, 1) for block in range(number)]
                takes.append(_taken(axis, pieces))
                names.append(f"part {index + 1} of {count} along axis {axis}")
                names[-1] += f", of {number} blocks" if number > 1 else ""
            yield PartOfWhole(" and ".join(names), members, math.prod(counts), _in_turn(*takes), tuple(counts))


def _in_turn(
    first: Callable[[np.ndarray], np.ndarray], second: Callable[[np.ndarray], np.ndarray]
) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: second(first(array))


def _taken(axis: int, pieces: Sequence[tuple[int, int, int]]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that takes elements of an axis. pieces: first index, number, and distance of elements."""

    def take(array: np.ndarray) -> np.ndarray:
        import numpy as np

        indices = [np.arange(width) * stride + first for first, width, stride in pieces]
        return array.take(np.concatenate(indices), axis)

    return take


def distance_of(a: np.ndarray, b: np.ndarray) -> float:
    """Return the norm of the difference of two arrays, without elements that are not finite."""
    import numpy as np

    with np.errstate(all="ignore"):
        difference = (a.astype(np.float64) - b.astype(np.float64)).reshape(-1)
    finite = difference[np.isfinite(difference)]
    return float(np.linalg.norm(finite))


def why_no_whole(terms: Sequence[np.ndarray], whole: np.ndarray) -> list[str]:
    """Return a sentence on how the tensors of several ranks differ from the whole tensor that each rank should have.

    terms: the tensors of all ranks, in float64
    """
    import numpy as np

    count, size = len(terms), distance_of(whole, np.zeros(1))
    if count < 2 or not size:
        return []
    total = sum(terms, np.zeros(whole.shape))
    are_equal = all(np.array_equal(terms[0], term) for term in terms[1:])
    for word, values in (("mean", total / count), ("sum", total)):
        if not are_equal and distance_of(values, whole) <= _CERTAIN * size:
            return [f"the {word} over the {count} ranks agrees: {NOT_REDUCED}"]
    for factor in (count, 1 / count):
        if are_equal and distance_of(terms[0], whole * factor) <= _CERTAIN * size * factor:
            text = "a division by their number is missing" if factor > 1 else "it is divided once too often"
            return [f"all {count} ranks have {factor:g} times the value of one rank: {text}"]
    return [] if are_equal else [f"the {count} ranks have different values"]
