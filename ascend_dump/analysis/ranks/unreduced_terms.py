"""Find a term that tensor parallelism did not add up: an operator adds it to a tensor that all ranks of a group have.

Ranks that read the same data and add up activations over their group have the same activations, apart from the parts
between a split weight and the next sum. If an operator adds a tensor that differs between these ranks to one that is
equal on them, and the result is not added up itself, a sum over the ranks is missing. The same holds for gradients,
and for the gradient of a parameter that an operator reads with the same inputs on all these ranks.
The tensor has to differ because of split weights: if it follows from an operator with other results of equal inputs,
such as a norm with another epsilon on one rank, no sum is missing.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.collectives import collective_of, is_contribution_to
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.operators.properties import COPIES, VIEWS, operator_class
from ascend_dump.analysis.operators.unread_inputs import is_unread
from ascend_dump.analysis.ranks.collective_results import RankFinding, content_of_record, in_words
from ascend_dump.analysis.ranks.launches import RankRun, ranks_of_launches
from ascend_dump.analysis.ranks.summed_gradients import SummedGradients
from ascend_dump.analysis.ranks.synchronised_gradients import FILLS, is_constant
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["UnreducedTerms"]

_ADDS = frozenset({"add", "sub"})
_GRADIENT = ".grad"
#: Relative difference of the sizes of two gradients up to which they may differ by rounding.
_ROUNDING = 1e-3


class _Addition(NamedTuple):
    """An addition of two tensors of one shape, both computed from parameters.

    makers  the operators that wrote them, as far as they are recorded
    calls   the keys of their calls in `_CallsOfStep`
    """

    inputs: tuple[Record, Record]
    makers: tuple[Optional[Record], Optional[Record]]
    calls: tuple[Optional[Hashable], Optional[Hashable]]
    output: int


class _LayerGradient:
    """A parameter on one rank in a step.

    reads     the contents of all inputs of the operators that read it in the forward pass
    gradient  the last record of its gradient outside of the passes
    """

    def __init__(self) -> None:
        self.reads: list[Hashable] = []
        self.gradient: Optional[Record] = None


class _RankStep:
    """The first recorded step of a rank.

    data       the contents of tensors that the program reads from outside, in their order
    additions  by call
    groups     the groups of ranks that add up activations, as text
    """

    def __init__(self, step: Optional[int]) -> None:
        self.step = step
        self.data: list[Hashable] = []
        self.additions: dict[Hashable, _Addition] = {}
        self.groups: dict[str, tuple[int, ...]] = {}
        self.calls = _CallsOfStep()
        self.sums = SummedGradients()
        self.layers: dict[str, _LayerGradient] = {}
        #: By storage: the parameters of the step.
        self._names: dict[int, str] = {}
        #: Storages that a collective adds up, and for each copy or view the storage that it was made of.
        self._sent: set[int] = set()
        self._sources: dict[int, int] = {}
        self._makers: dict[int, Record] = {}
        #: Storages that are computed from parameters: a mask is none of them.
        self._trained: set[int] = set()
        self._calls: Counter[Hashable] = Counter()
        self._is_backward = False

    def look_at(self, members: Sequence[Record]) -> None:
        first = members[0]
        self._is_backward = self._is_backward or first.phase == "backward"
        self.calls.look_at(members)
        self._look_at_parameters(first, [record for record in members if record.io == "input"])
        self.sums.look_at(members, self._names)
        if "c10d" in first.op_type:
            self._look_at_collective(members)
        elif first.phase == "other" and self._is_backward:
            return  # the optimizer
        else:
            self._look_at_operator(members)
        inputs = [record for record in members if record.io == "input"]
        is_trained = self._is_backward or any(map(self._is_of_parameter, inputs))
        for record in members:
            if record.io == "output":
                self._makers[_storage(record)] = first
                if is_trained:
                    self._trained.add(_storage(record))

    def _look_at_parameters(self, first: Record, inputs: Sequence[Record]) -> None:
        for record in inputs:
            name = record.parameter or ""
            if name.endswith(_GRADIENT):
                if first.phase != "other" or first.op_type in FILLS or "placement" in record.attrs:
                    continue
                self.layers.setdefault(name[: -len(_GRADIENT)], _LayerGradient()).gradient = record
            elif name and first.phase == "forward":
                self._names[_storage(record)] = name
        if first.phase == "forward" and not is_view(first.op_type):
            for name in {self._names[_storage(record)] for record in inputs if _storage(record) in self._names}:
                reads = self.layers.setdefault(name, _LayerGradient()).reads
                reads.extend(content_of_record(record) for record in inputs if not is_unread(record))

    def _is_of_parameter(self, record: Record) -> bool:
        return bool(record.parameter or record.attrs.get("requires_grad") or _storage(record) in self._trained)

    def _look_at_collective(self, members: Sequence[Record]) -> None:
        call_and_ranks = collective_of(members[0])
        if call_and_ranks is None:
            return
        call, ranks = call_and_ranks
        if call.kind in ("all_reduce", "reduce_scatter", "reduce"):
            for record in members:
                if record.io == "input" and is_contribution_to(record, call):
                    self._sent.add(_storage(record))
            if call.kind == "all_reduce" and not self._is_backward:
                self.groups[call.ranks] = ranks

    def _look_at_operator(self, members: Sequence[Record]) -> None:
        inputs = [record for record in members if record.io == "input"]
        outputs = [record for record in members if record.io == "output"]
        name = operator_class(members[0].op_type)
        for record in inputs:
            is_outside = _storage(record) >= 0 and _storage(record) not in self._makers
            if is_outside and not (record.parameter or record.attrs.get("requires_grad") or self._is_backward):
                self.data.append(content_of_record(record))
                self._makers[_storage(record)] = record
        if inputs and outputs and (name in COPIES or name in VIEWS) and _storage(inputs[0]) != _storage(outputs[0]):
            self._sources[_storage(outputs[0])] = _storage(inputs[0])
        is_addition = name in _ADDS and len(inputs) == 2 and bool(outputs)
        if is_addition and all(_is_activation(record) and self._is_of_parameter(record) for record in inputs):
            self._add(inputs, _storage(outputs[0]))

    def _add(self, inputs: Sequence[Record], output: int) -> None:
        first, second = inputs
        if first.shape == second.shape:
            site = (first.op_type, first.module, first.source, first.phase, first.shape)
            self._calls[site] += 1
            makers = (self._makers.get(_storage(first)), self._makers.get(_storage(second)))
            calls = (self.calls.writer(first), self.calls.writer(second))
            self.additions[site, self._calls[site]] = _Addition((first, second), makers, calls, output)

    def sent(self) -> set[int]:
        """Return the storages that collectives add up, with those that they are copies of."""
        sent = set(self._sent)
        for storage in self._sent:
            while storage in self._sources and self._sources[storage] not in sent:
                storage = self._sources[storage]
                sent.add(storage)
        return sent


class _CallContents(NamedTuple):
    """A call of an operator: the contents of its tensors, and the calls that made its inputs.

    sources   by the position of the input
    is_float  an output is a tensor of floats
    """

    inputs: tuple[Hashable, ...]
    outputs: tuple[Hashable, ...]
    sources: tuple[Optional[Hashable], ...]
    is_float: bool


class _CallsOfStep:
    """The calls of one rank in one step, identified alike on all ranks."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, _CallContents] = {}
        self._count: Counter[Hashable] = Counter()
        #: By storage: the call that wrote to it last.
        self._writers: dict[int, Hashable] = {}
        #: By the numbers of an operator and of its input: the call that made the input.
        self._makers: dict[tuple[Optional[int], Optional[int]], Optional[Hashable]] = {}

    def look_at(self, members: Sequence[Record]) -> None:
        first = members[0]
        inputs = [record for record in members if record.io == "input" and not is_unread(record)]
        outputs = [record for record in members if record.io == "output"]
        site = (first.op_type, first.module, first.source, first.phase, tuple(record.shape for record in members))
        self._count[site] += 1
        key = (site, self._count[site])
        for record in inputs:
            self._makers[record.attrs.get("seq"), record.index] = self._writers.get(_storage(record))
        self._calls[key] = _CallContents(
            tuple(map(content_of_record, inputs)),
            tuple(map(content_of_record, outputs)),
            tuple(self._writers.get(_storage(record)) for record in inputs),
            any(float_kind(record.dtype or "") is not None for record in outputs),
        )
        self._writers.update((_storage(record), key) for record in outputs)

    def writer(self, record: Record) -> Optional[Hashable]:
        """Return the last call that wrote to the memory of a tensor, as far as the calls were seen."""
        return self._writers.get(_storage(record))

    def maker_of_input(self, record: Record) -> Optional[Hashable]:
        """Return the call that wrote an input before its operator read it."""
        return self._makers.get((record.attrs.get("seq"), record.index))

    def differ_by_themselves(self, key: Optional[Hashable], others: Sequence[_CallsOfStep]) -> bool:
        """Return True if a difference between ranks may begin at a call with equal inputs on all of them.

        key: the call that made a tensor that differs. All calls before it from which the difference may follow are
        looked at.
        """
        seen: set[Hashable] = set()
        remaining = [key]
        while remaining:
            key = remaining.pop()
            if key is None or key in seen:
                continue
            seen.add(key)
            calls = [of_rank._calls.get(key) for of_rank in (self, *others)]
            known = [call for call in calls if call is not None]
            if len(known) < len(calls):
                return True
            differing = [
                number for number, contents in enumerate(zip(*(call.inputs for call in known))) if len({*contents}) > 1
            ]
            # Integers and flags may depend on the number of the rank, such as the first index of its part.
            if not differing and known[0].is_float and len({call.outputs for call in known}) > 1:
                return True
            remaining += [known[0].sources[number] for number in differing]
        return False


class UnreducedTerms:
    """Gathers the additions of the first step of all ranks, in the order of the dump."""

    def __init__(self) -> None:
        self._steps: dict[RankRun, _RankStep] = {}

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.rank is None or first.error is not None:
            return
        step = self._steps.get((first.rank, first.run))
        if step is None:
            step = self._steps[first.rank, first.run] = _RankStep(first.step)
        if step.step == first.step:
            step.look_at(run.records)

    def findings(self) -> Iterator[RankFinding]:
        """Yield the first addition of each group of ranks that adds a term which is not added up."""
        for steps in ranks_of_launches(self._steps):
            yield from itertools.islice((one for step in steps.values() for one in step.sums.findings()), 1)
            groups = {ranks: members for step in steps.values() for ranks, members in step.groups.items()}
            for members in groups.values():
                of_group = {rank: steps[rank] for rank in members if rank in steps}
                data = {tuple(step.data) for step in of_group.values()}
                if len(of_group) == len(members) > 1 and len(data) == 1 and any(next(iter(data))):
                    findings = [*self._of_group(of_group)] or [*self._of_layers(of_group)]
                    yield from findings or self._of_gradients(of_group)

    def _of_layers(self, steps: Mapping[int, _RankStep]) -> Iterator[RankFinding]:
        """Yield the first layer with different inputs whose output gradient these ranks add up."""
        first, *others = steps.values()
        for site, layer in first.sums.layers.items():
            known = [step.sums.layers[site] for step in others if site in step.sums.layers]
            contents = {content_of_record(one.activation) for one in (layer, *known)}
            is_one = len(known) == len(others) and all(map(layer.is_of_same_tensor, known))
            if not is_one or len(contents) < 2 or None in contents or set(layer.ranks) != set(steps):
                continue
            record = layer.activation
            maker = first.calls.maker_of_input(record)
            if not first.calls.differ_by_themselves(maker, [step.calls for step in others]):
                text = (
                    f"{record.label} differs between {in_words([*steps])}, which read the same data, and add up the "
                    "gradient of this layer's output: a sum over these ranks is missing before the layer"
                )
                yield RankFinding(record, text)
                return

    def _of_gradients(self, steps: Mapping[int, _RankStep]) -> Iterator[RankFinding]:
        """Yield the first gradient that differs, of a layer that does the same on all these ranks."""
        differing = []
        for name in next(iter(steps.values())).layers:
            layers = [step.layers.get(name, _LayerGradient()) for step in steps.values()]
            reads = {tuple(layer.reads) for layer in layers}
            gradients = [layer.gradient for layer in layers if layer.gradient is not None]
            is_same = len(reads) == 1 and reads != {()} and None not in next(iter(reads))
            if is_same and len(gradients) == len(layers) and _differ(gradients):
                differing.append((name, gradients[0]))
        for name, record in sorted(differing, key=lambda item: _number(item[1]))[:1]:
            text = (
                f"the gradient of {name} differs between {in_words([*steps])}, which read the same data, and on which "
                "this layer has the same inputs and parameters: a sum over these ranks is missing in the backward pass"
            )
            yield RankFinding(record, text)

    def _of_group(self, steps: Mapping[int, _RankStep]) -> Iterator[RankFinding]:
        first = steps[min(steps)]
        sent = [step.sent() for step in steps.values()]
        calls = sorted(first.additions, key=lambda call: _number(first.additions[call].inputs[0]))
        for call in calls:
            additions = [step.additions.get(call) for step in steps.values()]
            known = [addition for addition in additions if addition is not None]
            if len(known) < len(additions) or any(one.output in storages for one, storages in zip(known, sent)):
                continue
            contents = [{content_of_record(one.inputs[index]) for one in known} for index in (0, 1)]
            if None in contents[0] | contents[1] or sorted(map(len, contents))[0] > 1 or contents[0] == contents[1]:
                continue
            equal = 0 if len(contents[0]) == 1 else 1
            if len(contents[1 - equal]) < 2 or is_constant(known[0].inputs[equal]):
                continue
            rank_calls = [step.calls for step in steps.values()]
            if rank_calls[0].differ_by_themselves(known[0].calls[1 - equal], rank_calls[1:]):
                continue
            yield _finding([*steps], known[0], 1 - equal)
            return


def _finding(ranks: Sequence[int], addition: _Addition, differing: int) -> RankFinding:
    record, maker = addition.inputs[differing], addition.makers[differing]
    made = "" if maker is None or not maker.op_name else f", made by {maker.op_name}"
    text = (
        f"{record.label}{made}, differs between {in_words(ranks)}, which read the same data, and is added to a tensor "
        "that is equal on them: a sum over these ranks is missing"
    )
    return RankFinding(record, text)


def _differ(gradients: Sequence[Record]) -> bool:
    """Return True if the sizes of gradients differ by more than rounding."""
    if len({content_of_record(record) for record in gradients}) < 2:
        return False
    try:
        norms = [record.statistics().l2norm for record in gradients]
    except AscendDumpError:
        return False
    sizes = [norm for norm in norms if norm is not None]
    return len(sizes) == len(norms) and max(sizes) - min(sizes) > _ROUNDING * max(sizes)


def _is_activation(record: Record) -> bool:
    is_float = float_kind(record.dtype or "") is not None and math.prod(record.shape or ()) > 1
    return is_float and not record.parameter and "placement" not in record.attrs


def _storage(record: Record) -> int:
    return int(record.attrs.get("storage", -1))


def _number(record: Record) -> int:
    return int(record.attrs.get("seq", 0))
