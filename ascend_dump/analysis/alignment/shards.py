"""Compare a program on several ranks with the same program on fewer ranks.

Each of the several ranks has a part of a whole tensor, or a term of a sum. Tensor parallelism splits parameters and
activations along an axis, maybe within each of several blocks of the axis (query, key and value in one matrix), and
makes partial sums. Data parallelism splits the batch. Shapes show which splits are possible, values show the actual
split: the nearest one is taken, and its difference is judged like any other difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.analysis.alignment.placements import placements_of
from ascend_dump.analysis.alignment.rank_parts.relations import (
    FAR,
    MEAN,
    NORM,
    SUM,
    RelationFinder,
    cuts_of,
    distance_of,
    why_no_whole,
)
from ascend_dump.analysis.alignment.rank_parts.tensors import Portion, RanksOfSide, WholeTensor, identity_text
from ascend_dump.analysis.alignment.rank_parts.vocabulary import VocabularyParts
from ascend_dump.analysis.alignment.shard_notation import ShardLayout, ShardLayouts
from ascend_dump.analysis.numerics.statistics_bounds import RoundedStatistics, rounded_statistics
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import writes
from ascend_dump.analysis.pairing.same_framework import align
from ascend_dump.dump_format import Placement
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record
from ascend_dump.statistics import Statistics

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "NO_LAYOUTS",
    "Portion",
    "Portions",
    "WholeTensor",
    "hold_parts",
    "is_of_parts",
    "is_over_ranks",
]

_TERMS, _STATISTICS = "terms of a sum", "statistics of"
NO_LAYOUTS = ShardLayouts()


class _KnownArray:
    """A loader of a record whose array was already read."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        return self._array

    def statistics(self, record: Record) -> Optional[Statistics]:
        return None


class Portions:
    """Finds the part of a tensor of the other side that one of several ranks has.

    ranks         all ranks of the side with parts, and the position of this rank
    of_actual     True if the side with several ranks is actual
    counterpart   the ranks of the other side, if it has several, but fewer, ranks too
    over_ranks    sums and means over ranks of earlier steps; the sums and means of this step are added
    whole         the operators of the other side
    """

    def __init__(
        self,
        ranks: RanksOfSide,
        *,
        of_actual: bool,
        counterpart: Optional[Portions] = None,
        over_ranks: Optional[dict[Any, Portion]] = None,
        whole: Sequence[Operator] = (),
    ) -> None:
        self.of_actual = of_actual
        self._ranks = ranks
        self._counterpart = counterpart
        self._vocabulary = VocabularyParts(ranks, whole)
        #: Sums and means over several ranks, by the contents of the tensor of the rank and of the whole.
        self._over_ranks: dict[Any, Portion] = {} if over_ranks is None else over_ranks
        #: The tensors of operators that update parameters, by id.
        self._updates: Optional[set[int]] = None
        #: The numbers by which parts of this step were divided: gradients of a mean over fewer elements are larger.
        self._divisors: set[str] = set()

    @property
    def ranks(self) -> RanksOfSide:
        """The ranks of the side with parts."""
        return self._ranks

    def arrays(self, actual: Record, reference: Record) -> Optional[tuple[np.ndarray, np.ndarray, str]]:
        """Return the corresponding values of actual and of the reference, and the name of their relation.

        None if the rank has the whole tensor, or if no relation is found. Raises the same errors as reading a tensor,
        and ConfigError for a layout of the user that does not fit.
        """
        if self.of_actual:
            return self._part(actual, reference)
        part = self._part(reference, actual)
        return None if part is None else (part.counterpart, part.values, f"{part.name} of the reference")

    def aligned(self, actual: Record, reference: Record) -> Optional[tuple[Record, Record]]:
        """Return two records with the same elements; None if the relation combines ranks or scales values.

        Raises the same errors as reading a tensor.
        """
        arrays = self.arrays(actual, reference)
        if arrays is None:
            return (actual, reference) if actual.shape == reference.shape else None
        name = arrays[2]
        if not name.startswith("part ") or ", divided by" in name or is_over_ranks(name.partition(" of part")[0]):
            return None
        values = (reference, arrays[1]) if self.of_actual else (actual, arrays[0])
        part = values[0].as_part(_KnownArray(values[1]), values[1].shape)
        return (actual, part) if self.of_actual else (part, reference)

    def has_to_agree(self, actual: Record, reference: Record) -> bool:
        """Return True for tensors of operators that update parameters, which must have the same value on all ranks."""
        return not self._may_be_term(actual if self.of_actual else reference)

    def why_different(self, actual: Record, reference: Record) -> list[str]:
        """Return a sentence on how the tensor that should be whole on every rank differs, such as a missing reduction.

        Empty if it is unknown.
        """
        record, whole = (actual, reference) if self.of_actual else (reference, actual)
        siblings = self._ranks.siblings(record)
        if siblings is None or self._counterpart is not None or record.shape != whole.shape:
            return []
        try:
            terms = [sibling.numpy().astype("float64") for sibling in siblings if sibling.shape == record.shape]
            array = whole.numpy().astype("float64")
        except AscendDumpError:
            return []
        return why_no_whole(terms, array)

    def differs_over_ranks(self, pair: tuple[Optional[Record], Optional[Record]]) -> bool:
        """Return True if the ranks have different contents of a tensor, False also if one of them cannot be read.

        pair: the records of actual and reference
        """
        record = pair[0] if self.of_actual else pair[1]
        siblings = None if record is None else self._ranks.siblings(record)
        try:
            return siblings is not None and len({identity_text(sibling) for sibling in siblings}) > 1
        except AscendDumpError:
            return False

    def are_numbers_of_ranks(self, pair: tuple[Record, Record], name: str) -> bool:
        """Return True if the ranks call an operator with integers of their parts.

        For example, these are the first indices of the parts of a vocabulary, which grow evenly with the rank, or its
        size or last index, which is that of the whole divided by the number of ranks.

        pair: records of the operator on both sides. name: the name of the argument
        """
        record, whole = pair if self.of_actual else pair[::-1]
        siblings = self._ranks.siblings(record)
        if siblings is None:
            return False
        numbers = [_integer_argument(sibling, name) for sibling in siblings]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers):
            return False
        distances = {b - a for a, b in zip(known, known[1:])}
        if distances == {0}:
            size = _integer_argument(whole, name)
            return size is not None and any((known[0] + end) * len(known) == size + end for end in (0, 1))
        return len(distances) == 1 and min(distances) > 0

    def has_own_number(self, pair: tuple[Record, Record], name: str) -> bool:
        """Return True if the ranks call an operator with different integers.

        pair: records of the operator on both sides. name: the name of the argument
        """
        siblings = self._ranks.siblings(pair[0] if self.of_actual else pair[1])
        return siblings is not None and len({_integer_argument(sibling, name) for sibling in siblings}) > 1

    def is_of_one_rank(self, actual: Record, reference: Record) -> bool:
        """Return True if another rank lacks the operator of these records."""
        return self._ranks.siblings(actual if self.of_actual else reference) is None

    def statistics(
        self, actual: Record, reference: Record
    ) -> Optional[tuple[RoundedStatistics, RoundedStatistics, str]]:
        """Return the statistics of both sides, like `arrays`.

        None if the tensors are whole on both sides, or if their shapes and their numbers of elements differ.
        Statistics of parts are merged. For terms of a sum, statistics without numbers are returned, because numbers of
        terms say nothing about the sum.
        """
        record, whole = (actual, reference) if self.of_actual else (reference, actual)
        parts = self._ranks.parts_of(record)
        wholes = [whole] if self._counterpart is None else self._counterpart.ranks.parts_of(whole)
        if parts is None or wholes is None:
            # The statistics of terms say nothing about their sum.
            nothing = RoundedStatistics(Statistics(math.prod(record.shape or ())))
            return nothing, nothing, _TERMS
        if len(parts) == len(wholes) == 1:
            return None
        ours, theirs = (rounded_statistics(*side) for side in (parts, wholes))
        if ours.statistics.count != theirs.statistics.count:
            nothing = RoundedStatistics(Statistics(math.prod(record.shape or ())))
            return (nothing, nothing, _TERMS) if record.shape == whole.shape else None
        name = f"{_STATISTICS} {max(len(parts), len(wholes))} parts"
        return (ours, theirs, name) if self.of_actual else (theirs, ours, name)

    def _part(self, record: Record, whole: Record) -> Optional[Portion]:
        if self._counterpart is None:
            portion = self._vocabulary.portion(record, whole)
            portion = portion or self._of(record, WholeTensor(whole.shape or (), whole.numpy))
            contents = (record.content, whole.content)
            if None in contents:
                return portion
            if portion is not None and is_over_ranks(portion.name):
                self._over_ranks[contents] = portion
            # If one rank alone runs the operator, such as to log a loss, use the sum or mean that was found before.
            is_of_all = portion is not None or self._ranks.siblings(record) is not None
            return portion if is_of_all or not self._may_be_term(record) else self._over_ranks.get(contents)
        candidates: list[tuple[float, Optional[Portion]]] = []
        for candidate in self._counterpart.ranks.wholes(whole, record):
            part = self._of(record, candidate)
            if part is None and record.shape != candidate.shape:
                continue
            portion = part or Portion(record.numpy(), candidate.numpy(), "")
            is_single = part is None and candidate.numpy == whole.numpy
            candidates.append((distance_of(portion.values, portion.counterpart), None if is_single else portion))
        return min(candidates, key=itemgetter(0))[1] if candidates else None

    def _of(self, record: Record, whole: WholeTensor) -> Optional[Portion]:
        layout = self._ranks.layouts.of(record)
        if layout is not None:
            return self._by_layout(layout, record, whole)
        placed = self._placed(record, whole)
        distance = None if placed is None else distance_of(placed.values, placed.counterpart)
        if distance == 0:
            return placed
        siblings = self._ranks.siblings(record)
        if siblings is None or record.shape is None:
            return placed
        related = self._related(record, whole, siblings)
        if placed is not None and distance is not None:
            # Two dimensions of a mesh may divide one axis, in an order that the placement does not record.
            is_nearer = related is not None and 16 * distance_of(related.values, related.counterpart) < distance
            return related if is_nearer else placed
        if related is not None or record.shape != whole.shape:
            return related
        return self._term(record, whole, siblings) if self._may_be_term(record) else None

    def _related(self, record: Record, whole: WholeTensor, siblings: Sequence[Record]) -> Optional[Portion]:
        """Return the nearest relation to the whole; None if the rank has the whole, or no relation fits."""
        shapes = [sibling.shape or () for sibling in siblings]
        alike = all(sibling.dtype == record.dtype for sibling in siblings)
        terms = alike and self._may_be_term(record)
        is_scaled = record.phase == "backward" and str(len(siblings)) in self._divisors
        finder = RelationFinder(
            self._ranks.position, shapes, lambda n: siblings[n].numpy(), record.dtype or "", terms, is_scaled
        )
        relation = finder.nearest(whole.numpy())
        if relation is None:
            return None
        if relation.name.startswith("part "):
            self._divisors.add(relation.name.partition(", divided by ")[2])
        return Portion(*relation)

    def _may_be_term(self, record: Record) -> bool:
        """Return False for tensors of operators that update parameters: all replicas have the same value there."""
        if self._updates is None:
            self._updates = {
                id(member) for operator in self._ranks.operators if _is_update(operator) for member in operator.records
            }
        return id(record) not in self._updates

    def _by_layout(self, layout: ShardLayout, record: Record, whole: WholeTensor) -> Optional[Portion]:
        """Return the part according to a layout of the user. Raises ConfigError if shapes contradict the layout."""
        placement = layout.placement(record, self._ranks.numbers, whole.shape)
        if not any(axis.startswith("shard") for axis in layout.axes):
            if record.shape != whole.shape:
                raise layout.mismatch(record, f"the whole has shape {list(whole.shape)}")
            return self._sum(record, whole, placement)
        if layout.blocks > 1:
            shapes = [sibling.shape or () for sibling in self._ranks.siblings(record) or ()]
            cut = self._cut(record, whole, shapes, (layout.blocks,))
        else:
            cut = self._region(record, whole, placement)
        if cut is None:
            raise layout.mismatch(record, f"a whole of shape {list(whole.shape)} has no part of this shape")
        return cut

    def _placed(self, record: Record, whole: WholeTensor) -> Optional[Portion]:
        """Return the part according to the recorded placement; None if there is none, or it does not fit."""
        placement = self._ranks.placement(record)
        count = self._ranks.terms(record)
        if count is not None and record.shape == whole.shape:
            return Portion(record.numpy().astype("float64") * count, whole.numpy(), f"{SUM} {count} ranks")
        if placement is None or record.rank is None or placement.shape != whole.shape:
            return None
        method = self._sum if record.shape == whole.shape else self._region
        return method(record, whole, placement)

    def _region(self, record: Record, whole: WholeTensor, placement: Placement) -> Optional[Portion]:
        rank = -1 if record.rank is None else record.rank
        region = placement.region(rank)
        if region is None or tuple(side.stop - side.start for side in region) != record.shape:
            return None
        coordinates = placement.coordinates(rank) or ()
        parts = [
            f"part {index + 1} of {count} along axis {axis.split()[1]}"
            for axis, count, index in zip(placement.axes, placement.mesh, coordinates)
            if axis.startswith("shard")
        ]
        return Portion(record.numpy(), whole.numpy()[region], " and ".join(parts))

    def _sum(self, record: Record, whole: WholeTensor, placement: Placement) -> Optional[Portion]:
        """Return the sum or mean over all ranks, if the placement declares terms."""
        total = self._ranks.added(record, placement)
        return None if total is None else Portion(total.values, whole.numpy(), total.name)

    def _cut(
        self, record: Record, whole: WholeTensor, shapes: Sequence[tuple[int, ...]], ways: Sequence[int]
    ) -> Optional[Portion]:
        values, whole_values = record.numpy(), whole.numpy()
        cuts = cuts_of(self._ranks.position, shapes, whole.shape, ways)
        portions = [Portion(values, cut.of(whole_values), cut.name) for cut in cuts if cut.name.endswith(" blocks")]
        return min(portions, key=lambda each: distance_of(each.values, each.counterpart), default=None)

    def _term(self, record: Record, whole: WholeTensor, siblings: Sequence[Record]) -> Optional[Portion]:
        import numpy as np

        if any(sibling.shape != record.shape or sibling.dtype != record.dtype for sibling in siblings):
            return None
        values, whole_values = record.numpy(), whole.numpy()
        if values.dtype.kind not in "fV" or not distance_of(values, whole_values):
            return None
        terms = [sibling.numpy().astype(np.float64) for sibling in siblings]
        total = sum(terms, np.zeros(values.shape))
        mean = total / len(siblings)
        ways = [(distance_of(total, whole_values), SUM, total), (distance_of(mean, whole_values), MEAN, mean)]
        least, word, result = min(ways, key=itemgetter(0))
        # Tensors of ranks that have the whole tensor are near it, or near each other even if one rank has wrong values.
        # Terms of a sum are neither.
        nearest = min(distance_of(term, whole_values) for term in terms)
        neighbours = min(distance_of(term, following) for term, following in zip(terms, terms[1:]))
        if least >= nearest or min(nearest, neighbours) <= FAR * distance_of(whole_values, np.zeros(1)):
            return None
        return Portion(result, whole_values, f"{word} {len(siblings)} ranks")


def _integer_argument(record: Record, name: str) -> Optional[int]:
    """Return an argument of the call of a record; None if it is no integer or not recorded."""
    try:
        arguments = record.arguments
    except AscendDumpError:
        return None
    number = None if arguments is None else arguments.values.get(name)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def hold_parts(parts: Sequence[Operator], whole: Sequence[Operator], counts: tuple[int, int]) -> bool:
    """Return True if placements, or shapes of outputs, show that tensors of one side are parts of the other side's.

    counts: the numbers of ranks of both sides
    """
    if any(axis.startswith("shard") for placement in placements_of(parts).values() for axis in placement.axes):
        return True
    for match in align(parts, whole, parts=True):
        for a, b in match.outputs:
            shapes = () if a is None or b is None or not a.shape or not b.shape else (a.shape, b.shape)
            if not shapes or len(shapes[0]) != len(shapes[1]):
                continue
            split = [(size_a, size_b) for size_a, size_b in zip(*shapes) if size_a != size_b]
            if len(split) == 1 and split[0][0] * counts[0] == split[0][1] * counts[1]:
                return True
    return False


def _is_update(operator: Operator) -> bool:
    """Return True if an operator outside of modules writes to a parameter, or to a state of an optimizer.

    In the first step, states have no recorded name. Then they are recognised by the gradient that is added to them.
    """
    if operator.phase != "other" or not writes(operator.op_type):
        return False
    names = [record.parameter or "" for record in (*operator.inputs, *operator.outputs)]
    has_state = any(name and not name.endswith(".grad") for name in names)
    written = {record.parameter or "" for record in (*operator.inputs[:1], *operator.outputs)}
    return has_state or (any(names) and not any(name.endswith(".grad") for name in written))


def is_of_parts(transformation: str) -> bool:
    """Return True if the relation of this name compares other values than the tensors of the ranks as they are."""
    return transformation.startswith(("part ", "cast", SUM, MEAN, NORM, _TERMS, _STATISTICS))


def is_over_ranks(transformation: str) -> bool:
    """Return True if the relation of this name compares a sum, mean or norm over several ranks."""
    return transformation.startswith((SUM, MEAN, NORM))
