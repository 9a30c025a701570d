"""Find the same tensor on all ranks of one side, and the whole tensors that its parts or terms form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.analysis.alignment.placements import memory_of, placements_of, terms_of
from ascend_dump.analysis.alignment.rank_parts.relations import BLOCKS, MEAN, SUM
from ascend_dump.analysis.alignment.shard_notation import ShardLayouts
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.same_framework import align
from ascend_dump.dump_format import Placement
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Portion", "RanksOfSide", "WholeTensor", "identity_text"]


class Portion(NamedTuple):
    """Values of a rank, or combined from several ranks, and the values that they are compared with.

    name: the relation of these values to the whole tensor: "part 1 of 2 along axis 0"
    """

    values: np.ndarray
    counterpart: np.ndarray
    name: str


class WholeTensor(NamedTuple):
    """A whole tensor of the program, from a single rank or assembled from several ranks. numpy: returns its values"""

    shape: tuple[int, ...]
    numpy: Callable[[], np.ndarray]


class RanksOfSide:
    """The tensors of one of several ranks, and the same tensors on the other ranks.

    operators     the operators of the one rank
    operators_of  returns the operators of a rank by its position; called only if something differs
    numbers       the numbers of all ranks
    position      the position of the one rank among all ranks
    layouts       the layouts of the user
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        operators_of: Callable[[int], list[Operator]],
        numbers: Sequence[Optional[int]],
        position: int,
        layouts: ShardLayouts,
    ) -> None:
        self.operators, self.position, self.layouts = operators, position, layouts
        #: The numbers of the ranks, 0 if they have none.
        self.numbers = [number or 0 for number in numbers]
        self._operators_of = operators_of
        self._siblings_by_id: Optional[dict[int, list[Optional[Record]]]] = None
        self._placements: Optional[dict[Any, Placement]] = None
        self._terms: dict[Any, int] = {}

    @property
    def _count(self) -> int:
        return len(self.numbers)

    def siblings(self, record: Record) -> Optional[list[Record]]:
        """Return the corresponding records of all ranks, in their order; None if a rank has no such record.

        Stages of a pipeline run the same operators in other modules: their tensors do not correspond.
        """
        if self._siblings_by_id is None:
            self._siblings_by_id = {}
            for number in range(self._count):
                operators = self.operators if number == self.position else self._operators_of(number)
                for match in align(operators, self.operators, parts=True):
                    if match.actual.module != match.reference.module:
                        continue
                    theirs = {(r.io, r.index): r for r in (*match.actual.inputs, *match.actual.outputs)}
                    for ours in (*match.reference.inputs, *match.reference.outputs):
                        row = self._siblings_by_id.setdefault(id(ours), [None] * self._count)
                        row[number] = theirs.get((ours.io, ours.index))
        siblings = [sibling for sibling in self._siblings_by_id.get(id(record), ()) if sibling is not None]
        return siblings if len(siblings) == self._count else None

    def placement(self, record: Record) -> Optional[Placement]:
        """Return the recorded placement of a tensor; None if there is none."""
        if self._placements is None:
            self._placements = placements_of(self.operators)
            self._terms = terms_of(self.operators, self._placements)
        return Placement.of(record.attrs) or self._placements.get(memory_of(record))

    def terms(self, record: Record) -> Optional[int]:
        """Return the number by which DTensor divided a bias: the number of ranks that add it; None for others."""
        self.placement(record)
        return self._terms.get(id(record), self._terms.get(memory_of(record)))

    def added(self, record: Record, placement: Placement) -> Optional[Portion]:
        """Return the sum or mean over ranks, as the values and the counterpart; None if the tensor is no term of it."""
        import numpy as np

        terms = [axis in ("partial sum", "partial avg") for axis in placement.axes]
        if not any(terms) or any(axis.startswith("shard") for axis in placement.axes):
            return None
        addends = self.beside(record, placement, terms)
        if len(addends) != math.prod(size for size, term in zip(placement.mesh, terms) if term):
            return None
        total = sum((addend.numpy().astype(np.float64) for addend in addends), np.zeros(record.shape or ()))
        is_mean = "partial avg" in placement.axes
        total = total / len(addends) if is_mean else total
        return Portion(total, total, f"{MEAN if is_mean else SUM} {len(addends)} ranks")

    def beside(self, record: Record, placement: Placement, along: Sequence[bool]) -> list[Record]:
        """Return the records of the ranks with the same coordinates in the mesh.

        along: for each dimension of the mesh, True if the coordinates of this dimension may differ
        """
        origin = placement.coordinates(-1 if record.rank is None else record.rank)
        beside = []
        for sibling in self.siblings(record) or ():
            coordinates = placement.coordinates(-1 if sibling.rank is None else sibling.rank)
            if coordinates is None:
                continue
            if origin is None or all(free or a == b for free, a, b in zip(along, origin, coordinates)):
                beside.append(sibling)
        return beside

    def wholes(self, record: Record, part: Record) -> Iterator[WholeTensor]:
        """Yield the whole tensors that the ranks of this side may form, for a part on a rank of the other side.

        If the user or the dump specifies the layout, there is at most one whole tensor. Else there is one for each way
        to split the axis whose sizes differ. If both sides have the same shape, the tensor is whole, or a term of a
        sum over ranks.
        """
        import numpy as np

        placement = self._specified(record)
        siblings = self.siblings(record)
        if placement is not None and not all(axis == "replicate" for axis in placement.axes):
            joined = self._joined(record, placement)
            if joined is not None:
                yield _whole(joined)
            return
        count = self._terms.get(id(record), self._terms.get(memory_of(record))) if placement is None else None
        if count is not None:
            yield _whole(record.numpy().astype(np.float64) * count)
            return
        if placement is not None or siblings is None or record.shape == part.shape:
            yield WholeTensor(record.shape or (), record.numpy)
            if placement is not None or siblings is None:
                return
            if len({(sibling.content, sibling.shape) for sibling in siblings}) == len(siblings):
                alike = [sibling for sibling in siblings if sibling.shape == record.shape]
                yield _whole(sum((term.numpy().astype(np.float64) for term in alike), np.zeros(record.shape or ())))
            return
        shapes = [(sibling.shape or (), part.shape or ()) for sibling in siblings]
        axes = {axis for a, b in shapes for axis in range(len(a)) if len(a) == len(b) and a[axis] != b[axis]}
        if len(axes) != 1 or any(len(a) != len(b) for a, b in shapes):
            return
        [axis] = axes
        for blocks in BLOCKS:
            arrays = [sibling.numpy() for sibling in siblings]
            if all(array.shape[axis] % blocks == 0 for array in arrays):
                yield _whole(_joined_blocks(arrays, blocks, axis))

    def _specified(self, record: Record) -> Optional[Placement]:
        """Return the placement that the user gave, else the recorded placement; None without either."""
        layout = self.layouts.of(record)
        if layout is None:
            return self.placement(record)
        shape = list(record.shape or ())
        for axis, count in zip(layout.axes, layout.mesh or (self._count,)):
            cut = axis.partition("shard ")[2]
            if cut and int(cut) < len(shape):
                shapes = [sibling.shape or () for sibling in self.siblings(record) or ()]
                size = sum(sizes[int(cut)] for sizes in shapes if len(sizes) == len(shape))
                shape[int(cut)] = shape[int(cut)] * count if layout.mesh else size
            elif cut:
                raise layout.mismatch(record, f"there is no axis {cut}")
        return layout.placement(record, self.numbers, shape)

    def _joined(self, record: Record, placement: Placement) -> Optional[np.ndarray]:
        """Return the whole tensor: the parts of the ranks joined, or their terms added.

        Return None if the shapes do not fit the recorded placement. Raise ConfigError if they do not fit the layout of
        the user.
        """
        import numpy as np

        if not any(axis.startswith("shard") for axis in placement.axes):
            added = self.added(record, placement)
            return None if added is None else added.values
        layout = self.layouts.of(record)
        blocks = 1 if layout is None else layout.blocks
        cut = [axis.startswith("shard") for axis in placement.axes]
        parts = self.beside(record, placement, cut)
        if blocks > 1:
            axis = int(placement.axes[0].split()[1])
            return _joined_blocks([part.numpy() for part in parts], blocks, axis)
        regions = []
        for part in parts:
            region = placement.region(-1 if part.rank is None else part.rank)
            if region is None or tuple(side.stop - side.start for side in region) != part.shape:
                if layout is not None:
                    raise layout.mismatch(part, f"a whole of shape {list(placement.shape)} has no part of this shape")
                return None
            regions.append(region)
        # Checked before memory is allocated: the shape was read from a file, which may be damaged or hostile.
        if sum(math.prod(part.shape or ()) for part in parts) != math.prod(placement.shape):
            return None
        whole = np.empty(placement.shape, record.numpy().dtype)
        for region, part in zip(regions, parts):
            whole[region] = part.numpy()
        return whole

    def parts_of(self, record: Record) -> Optional[list[Record]]:
        """Return the records of the different parts of a tensor, one for each part; None for terms of a sum."""
        placement = self._specified(record)
        if placement is not None:
            if any(axis.startswith("partial") for axis in placement.axes):
                return None
            return self.beside(record, placement, [axis.startswith("shard") for axis in placement.axes])
        siblings = self.siblings(record)
        if siblings is None:
            return [record]
        # If some ranks have equal tensors, the tensor is assumed to be whole on all ranks.
        contents = {(sibling.shape, identity_text(sibling)) for sibling in siblings}
        return siblings if len(contents) == len(siblings) else [record]


def _joined_blocks(arrays: Sequence[np.ndarray], blocks: int, axis: int) -> np.ndarray:
    import numpy as np

    pieces = [np.split(array, blocks, axis) for array in arrays]
    return np.concatenate([piece[block] for block in range(blocks) for piece in pieces], axis)


def _whole(array: np.ndarray) -> WholeTensor:
    return WholeTensor(array.shape, lambda: array)


def identity_text(record: Record) -> Any:
    """Return a value that is equal for equal tensors: the content hash, else the statistics.

    Raises AscendDumpError if the record has neither.
    """
    content = record.content
    return (record.dtype, *map(str, record.statistics())) if content is None else content
