"""Check that all ranks update one tensor with the same numbers: a parameter, its average, or a statistic of a norm.

Ranks may have parts of a parameter without a placement, so that no content has to be equal; and a tensor that later
steps do not read, such as an average of the parameters, is compared nowhere else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.names import name_in_rules
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.operators.properties import writes
from ascend_dump.analysis.ranks.collective_results import RankFinding, content_of_record, in_words
from ascend_dump.analysis.ranks.groups_of_ranks import by_launch, disagreement, first_of_each_rank
from ascend_dump.analysis.ranks.settings.shard_updates import differing_number
from ascend_dump.reading import Record
from ascend_dump.statistics.nonfinite.masks import FILLING

__all__ = ["TensorUpdates"]

_GRADIENT = ".grad"


class _TensorUpdate(NamedTuple):
    """The first record of an operator that updates a tensor in place.

    earlier: number of earlier updates of the tensor by this line, also in earlier steps
    """

    record: Record
    earlier: int


class TensorUpdates:
    """Gathers the operators that update tensors in place, in the order of the dump.

    most: the largest relative difference of two numbers that may be rounding
    """

    def __init__(self, most: float) -> None:
        self._most = most
        #: By run, operator, tensor and number of the call, and then by rank.
        self._updates: dict[tuple[Any, ...], dict[int, _TensorUpdate]] = {}
        self._calls: Counter[Hashable] = Counter()

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.error is not None or first.rank is None or first.io != "input" or not writes(first.op_type):
            return
        # A collective receives a tensor, and its numbers are those of ranks.
        if run.is_collective or first.phase == "backward" or "placement" in first.attrs:
            return
        name = run.inputs[0].name
        # Before ranks reduce gradients, each rank has its own, and each may scale its own.
        if name.endswith(_GRADIENT) or name_in_rules(first.op_type) in FILLING:
            return
        if float_kind(first.dtype or "") is None or math.prod(first.shape or ()) < 2:
            return
        call = (first.run, first.model, first.op_type, first.source, first.module, name, first.shape)
        earlier = self._calls[first.rank, call]
        self._calls[first.rank, call] += 1
        self._calls[first.rank, call, first.step] += 1
        number = self._calls[first.rank, call, first.step]
        self._updates.setdefault((*call, first.step, number), {})[first.rank] = _TensorUpdate(first, earlier)

    def findings(self) -> Iterator[RankFinding]:
        """Yield the first update of each rank whose number is another than that of the others."""
        ordered = sorted(by_launch(self._updates).items(), key=lambda item: _moment(item[1]))
        yield from first_of_each_rank(self._finding(str(key[5]), updates) for key, updates in ordered)

    def _finding(self, name: str, updates: dict[int, _TensorUpdate]) -> Optional[RankFinding]:
        # A rank that skipped an update, for example of an expert without tokens, counts its steps differently.
        if len(updates) < 2 or len({update.earlier for update in updates.values()}) > 1:
            return None
        contents = {content_of_record(update.record) for update in updates.values()}
        if not name and (len(contents) > 1 or None in contents):
            return None

        def number(rank: int, against: int) -> Optional[str]:
            return differing_number(updates[rank].record, updates[against].record, self._most)

        differing = disagreement(updates, lambda rank, against: number(rank, against) is None)
        if differing is None:
            return None
        record = updates[differing.ranks[0]].record
        tensor = name or f"a tensor that is equal on {in_words([*updates])}"
        text = f"{record.op_type} at {record.source} updates {tensor} by another number"
        return differing.finding(record, text, number(differing.ranks[0], differing.largest[0]))


def _moment(updates: dict[int, _TensorUpdate]) -> tuple[int, Any]:
    record = next(iter(updates.values())).record
    return (-1 if record.step is None else record.step, record.attrs.get("seq", 0))
