"""Follow tensors that ranks have in common, by the sums of gradients that belong to them.

If ranks add up the gradient of a tensor, each of them has the whole tensor. So a norm whose output gradient is added up
normalises the same rows on all these ranks. And if ranks gather rows, compute with parts of weights, and scatter the
sum of the results, the gradient of the gathered rows on one rank is a term: backward has to add up these terms, if the
rows are computed from parameters.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.collectives import collective_of, is_contribution_to
from ascend_dump.analysis.operators.properties import COPIES, VIEWS, operator_class
from ascend_dump.analysis.ranks.collective_results import RankFinding, content_of_record, in_words
from ascend_dump.reading import Record

__all__ = ["ReplicatedLayer", "SummedGradients"]

_SUMS = ("all_reduce", "reduce_scatter")


class ReplicatedLayer(NamedTuple):
    """A call of a layer on one rank, with an output gradient that ranks add up.

    ranks       these ranks
    gradient    content of this gradient
    parameters  contents of the parameters that backward reads
    activation  the input of the layer, as the forward pass reads it
    """

    ranks: tuple[int, ...]
    gradient: Hashable
    parameters: tuple[Hashable, ...]
    activation: Record

    @property
    def site(self) -> Hashable:
        """A key of the call that is the same on all ranks."""
        record = self.activation
        return record.op_type, record.module, record.source, record.shape

    def is_of_same_tensor(self, other: ReplicatedLayer) -> bool:
        """Return True if both ranks have to read the same input."""
        is_known = self.gradient is not None and None not in self.parameters
        return is_known and (self.ranks, self.gradient, self.parameters) == other[:3]


class SummedGradients:
    """The tensors of one rank in one step, operator by operator in the order of the dump."""

    def __init__(self) -> None:
        self.layers: dict[Hashable, ReplicatedLayer] = {}
        #: By storage: the ranks that added up the gradient there. By module and storage: the first read in forward.
        self._sums: dict[int, tuple[int, ...]] = {}
        self._reads: dict[tuple[Optional[str], int], Record] = {}
        #: Storages that are computed from parameters with gradients; and by storage, the gathers it is computed from.
        self._trained: set[int] = set()
        self._gathers: dict[int, dict[tuple[int, ...], Record]] = {}
        #: By ranks: the first gather whose rows reach a scattered sum; and the kinds of calls of the backward pass.
        self._regions: dict[tuple[int, ...], Record] = {}
        self._backward: dict[tuple[int, ...], set[str]] = {}

    def look_at(self, members: Sequence[Record], names: Mapping[int, str]) -> None:
        """Add the records of one run of an operator. names: the parameters by storage"""
        call = collective_of(members[0])
        if members[0].phase == "forward":
            self._look_at_forward(members)
        elif members[0].phase == "backward":
            if call is not None:
                self._backward.setdefault(call[1], set()).add(call[0].kind)
            self._look_at_backward(members, names, call[1] if call is not None and call[0].kind == _SUMS[0] else ())

    def findings(self) -> Iterator[RankFinding]:
        """Yield the first gather of each group of ranks whose gradients backward does not add up."""
        for ranks, record in self._regions.items():
            kinds = self._backward.get(ranks, set())
            if "all_gather" in kinds and kinds.isdisjoint(_SUMS):
                text = (
                    f"{record.op_name} gathers rows of {in_words(ranks)}, and the results computed from them are added "
                    "up and scattered, but backward does not add up their gradients over these ranks"
                )
                yield RankFinding(record, text)

    def _look_at_forward(self, members: Sequence[Record]) -> None:
        found = collective_of(members[0])
        inputs = [record for record in members if record.io == "input"]
        gathers: dict[tuple[int, ...], Record] = {}
        for record in inputs:
            self._reads.setdefault((record.module, _storage(record)), record)
            gathers.update(self._gathers.get(_storage(record), {}))
        is_trained = any(record.attrs.get("requires_grad") or _storage(record) in self._trained for record in inputs)
        if found is not None:
            kind, ranks = found[0].kind, found[1]
            sent = [record for record in inputs if is_contribution_to(record, found[0])]
            is_sent_trained = any(_storage(record) in self._trained for record in sent)
            if kind == "all_gather":
                gathers = {ranks: members[0]} if is_sent_trained else {}
            elif kind == "reduce_scatter":
                gathered = [self._gathers.get(_storage(record), {}).get(ranks) for record in sent]
                self._regions.update((ranks, record) for record in gathered if record and ranks not in self._regions)
                gathers = {}
        for record in members:
            if record.io == "output":
                self._gathers[_storage(record)] = gathers
                if is_trained:
                    self._trained.add(_storage(record))

    def _look_at_backward(self, members: Sequence[Record], names: Mapping[int, str], summing: tuple[int, ...]) -> None:
        inputs = [record for record in members if record.io == "input"]
        name = operator_class(members[0].op_type)
        ranks = summing or next((self._sums[one] for one in map(_storage, inputs) if one in self._sums), ())
        is_passed_on = bool(summing) or name in COPIES or name in VIEWS
        if ranks and not is_passed_on:
            self._add_layer(inputs, names, ranks)
        for record in members:
            if record.io == "output":
                self._sums.pop(_storage(record), None)
                if ranks and is_passed_on:
                    self._sums[_storage(record)] = ranks

    def _add_layer(self, inputs: Sequence[Record], names: Mapping[int, str], ranks: tuple[int, ...]) -> None:
        gradients = [record for record in inputs if _storage(record) in self._sums]
        parameters = [record for record in inputs if _storage(record) in names]
        others = [record for record in inputs if record not in gradients and record not in parameters]
        for record in others:
            activation = self._reads.get((record.module, _storage(record)))
            if parameters and activation is not None and record.shape == gradients[0].shape == activation.shape:
                contents = tuple(map(content_of_record, parameters))
                layer = ReplicatedLayer(ranks, content_of_record(gradients[0]), contents, activation)
                self.layers.setdefault(layer.site, layer)


def _storage(record: Record) -> int:
    return int(record.attrs.get("storage", -1))
