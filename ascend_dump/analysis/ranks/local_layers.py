"""Find parameters that work on the data of each rank, before ranks exchange activations by all_to_all.

Expert parallelism gives each rank experts of its own, which work on exchanged tokens. The layers before the exchange,
such as the gate, work on the rank's own data, as in data parallelism: all ranks have the same ones. Tables of
embeddings are left out, because ranks may divide them and exchange what they look up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from ascend_dump.analysis.operators.collectives import collective_of
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.ranks.launches import RankRun

__all__ = ["LocalLayers"]

_EXCHANGE = "all_to_all"


class _RankLayers:
    """The parameters that one rank reads in the forward pass.

    names      parameters by storage, in the current step
    exchanged  storages of the current step with data of other ranks, or computed from such data
    kinds      the kinds of collectives of the forward pass
    """

    def __init__(self) -> None:
        self.step: Optional[int] = None
        self.names: dict[int, str] = {}
        self.exchanged: set[int] = set()
        self.kinds: set[str] = set()
        self.local: set[str] = set()
        self.others: set[str] = set()


class LocalLayers:
    """Follows exchanged data in the forward pass, operator by operator in the order of the dump."""

    def __init__(self) -> None:
        self._ranks: dict[RankRun, _RankLayers] = {}

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator of the forward pass."""
        first = run.first
        if first.rank is None:
            return
        layers = self._ranks.get((first.rank, first.run))
        if layers is None:
            layers = self._ranks[first.rank, first.run] = _RankLayers()
        if layers.step != first.step:
            layers.step, layers.names, layers.exchanged = first.step, {}, set()
        found = collective_of(first) if run.is_collective else None
        if found is not None:
            layers.kinds.add(found[0].kind)
        inputs = {storage for _, storage, _ in run.inputs}
        is_exchanged = found is not None or not layers.exchanged.isdisjoint(inputs)
        outputs = {storage for _, storage, _ in run.outputs}
        if is_exchanged:
            layers.exchanged |= outputs
        elif layers.exchanged:
            layers.exchanged -= outputs
        if run.is_named:
            layers.names.update((storage, name) for _, storage, name in run.inputs if name)
        if is_view(first.op_type):
            return  # a parameter is often transposed first, and the reader of the view has the data
        names = [layers.names[storage] for storage in inputs if storage in layers.names]
        if names:
            is_other = is_exchanged or "embedding" in first.op_type
            (layers.others if is_other else layers.local).update(names)

    def is_local(self, runs: Iterable[RankRun], parameter: str) -> bool:
        """Return True if all these ranks read a parameter only with data of their own, before an all_to_all."""
        of_ranks = [self._ranks.get(run) for run in runs]
        return all(
            layers is not None
            and layers.kinds == {_EXCHANGE}
            and parameter in layers.local
            and parameter not in layers.others
            for layers in of_ranks
        )
