"""Find differences of tensors that have to be equal on several ranks.

These are parameters of data parallelism, and tensors that are replicated by their placement.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.judging.verdict import Rules, judge
from ascend_dump.analysis.numerics.measure import measure
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.ranks.collective_results import RankFinding, content_of_record, in_words
from ascend_dump.analysis.ranks.launches import RankRun, launches
from ascend_dump.analysis.ranks.local_layers import LocalLayers
from ascend_dump.analysis.ranks.parameter_updates import ParameterUpdates
from ascend_dump.analysis.ranks.sequence_norms import SequenceNorms
from ascend_dump.analysis.ranks.synchronised_gradients import SynchronisedGradients, is_constant
from ascend_dump.dump_format import Placement
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["Replicas"]


#: The smallest share of parameters with a synchronised gradient by which the others are taken for left out.
_MOST_SYNCHRONISED = 0.75


_UNTRAINED = "a parameter without a gradient, and the gradients of others are reduced"
_ONE_VALUE = "although this operator gave all ranks one value in an earlier step"
_IN_COMMON = "a parameter that they had in common before"
_NOT_AVERAGED = f"{_IN_COMMON}; it is not averaged as others are"


class _Copy(NamedTuple):
    """The copy of one rank, with its content.

    is_placed  its placement says that it is a replica
    is_frozen  it has the name of a parameter, but needs no gradient
    """

    record: Record
    content: Any
    is_placed: bool
    is_frozen: bool


def _is_parameter(name: str) -> bool:
    """Return True if `Record.parameter` is a parameter itself, not its gradient or the state of an optimizer."""
    return bool(name) and " of " not in name and "grad" not in name.split(".")


class Replicas:
    """Gathers tensors that may be replicas, operator by operator in the order of the dump."""

    def __init__(self) -> None:
        #: By run, tensor and part, and then by rank.
        self._copies: dict[tuple[Any, ...], dict[int, _Copy]] = {}
        self._gradients = SynchronisedGradients()
        self._norms = SequenceNorms()
        self._layers = LocalLayers()
        self._updates = ParameterUpdates()
        #: By run of a rank: the first record of each parameter.
        self._first: dict[RankRun, dict[str, Record]] = {}
        self._exchanges = False
        self._reduces = False
        #: Number of calls outside of modules so far, by rank, step, operator, source line, parameters and shapes.
        self._calls: Counter[Hashable] = Counter()

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.phase == "forward":
            self._norms.look_at(run)
            self._layers.look_at(run)
        if first.rank is None:
            return
        self._gradients.look_at(run)
        if run.is_plain:
            return
        call: Optional[Hashable] = None
        for record, _, name in run.tensors:
            if record.error is not None:
                continue
            attrs = record.attrs
            if run.is_collective:
                self._exchanges = self._exchanges or _is_exchange(record, attrs) or self._is_averaged(record, attrs)
                self._reduces = self._reduces or _is_reduction(record, attrs)
            is_update = record.io == "output" and _is_parameter(name)
            is_trained = attrs.get("requires_grad") or is_update
            is_parameter = is_trained or (_is_parameter(name) and _is_read_by_module(record))
            if not is_parameter and "placement" not in attrs:
                continue
            if is_parameter and name:
                self._first.setdefault((first.rank, first.run), {}).setdefault(name, record)
            if is_update:
                call = self._call(run) if call is None else call
                self._updates.add(record, call, run.records)
            placed = Placement.of(attrs)
            if placed is None and (not is_parameter or _is_view_outside(record) or _is_sent(record)):
                continue
            part = () if placed is None else _replicated(placed, first.rank)
            content = None if part is None else content_of_record(record)
            if content is not None:
                call = self._call(run) if call is None else call
                tensor = (record.run, record.model, record.step, call, record.io, record.index)
                copies = self._copies.setdefault((*tensor, record.shape, part), {})
                if first.rank not in copies:
                    copies[first.rank] = _Copy(record, content, placed is not None, not is_trained)

    def _is_averaged(self, record: Record, attrs: Mapping[str, Any]) -> bool:
        """Return True for an all_reduce of a parameter: ranks that average parameters may differ until then."""
        if "c10d" not in record.op_type or attrs.get("collective", {}).get("kind") != "all_reduce":
            return False
        return _is_parameter(record.parameter or "") or self._gradients.parameter_of(record) is not None

    def _call(self, run: OperatorRun) -> Hashable:
        """Return a key of a call that is the same on all ranks.

        Names of operators outside of modules contain their number in the order of execution. Ranks may number them
        differently, for example if only one rank writes a log. So such a call is identified by its source line, by its
        parameters and shapes, and by the number of such calls before it.
        """
        first = run.first
        if first.module or not first.source:
            return first.op_name
        names = tuple((record.io, record.index, name or None, record.shape) for record, _, name in run.tensors)
        site = (first.run, first.rank, first.step, first.op_type, first.source, names)
        self._calls[site] += 1
        return (*site[3:], self._calls[site])

    def findings(self) -> Iterator[RankFinding]:
        """Yield the first tensor of each rank that differs from the others; later ones follow from it."""
        reported: set[int] = set()
        equal: dict[Hashable, bool] = {}
        #: By tensor: the groups of ranks that had it in common in the last step.
        groups: dict[Hashable, list[list[int]]] = {}
        averages: list[dict[int, _Copy]] = []
        ordered = sorted(self._of_launches().items(), key=lambda item: _moment(item[1]))
        averaged = self._averaged([copies for _, copies in ordered])
        for key, copies in ordered:
            same_in_each_step = key[:2] + key[3:]
            if _are_equal(copies):
                if len(copies) > 1 and not equal.get(same_in_each_step):
                    equal[same_in_each_step] = not is_constant(next(iter(copies.values())).record)
                continue
            if averaged and not any(copy.is_placed for copy in copies.values()):
                copies, kind = self._beside_averaged(copies, equal.get(same_in_each_step), averaged)
            else:
                earlier_groups = groups.get(same_in_each_step, [])
                if not is_constant(next(iter(copies.values())).record):
                    groups[same_in_each_step] = _groups({rank: copy.content for rank, copy in copies.items()})
                replicas, kind = self._replicas_of(copies, equal.get(same_in_each_step))
                copies, kind = (replicas, kind) if kind else self._replicas_of_group(copies, earlier_groups)
            if kind == _UNTRAINED and next(iter(copies.values())).record.io == "output":
                averages.append(copies)
                continue
            yield from self._once(copies, kind, reported)
        # An average of a parameter differs if the parameter does, which may show only in the next step.
        for copies in averages:
            yield from self._once(copies, _UNTRAINED, reported)

    def _once(self, copies: Mapping[int, _Copy], kind: str, reported: set[int]) -> Iterator[RankFinding]:
        """Yield the findings of copies that have to be equal, if none of their ranks is reported yet."""
        groups = _groups({rank: copy.content for rank, copy in copies.items()})
        if len(groups) < 2 or not reported.isdisjoint(rank for group in groups[1:] for rank in group):
            return
        findings = list(self._findings(copies, groups, kind))
        reported.update(rank for group in groups[1:] for rank in group if findings)
        yield from findings

    def _averaged(self, ordered: Sequence[Mapping[int, _Copy]]) -> dict[str, tuple[int, int]]:
        """Return the parameters that differed and are equal later, with the moment since which each is equal.

        Ranks that train alone for some steps and then average their parameters have such parameters.
        """
        differed: set[str] = set()
        averaged: dict[str, tuple[int, int]] = {}
        for copies in ordered:
            record = next(iter(copies.values())).record
            name = record.parameter or self._gradients.parameter_of(record)
            if name is None or not _is_parameter(name) or len(copies) < 2 or name in averaged:
                continue
            if record.phase != "forward":
                continue  # ranks may read it there before and after its update
            if not _are_equal(copies):
                differed.add(name)
            elif name in differed and not is_constant(record):
                averaged[name] = _moment(copies)
        return averaged

    def _beside_averaged(
        self, copies: dict[int, _Copy], were_equal: Optional[bool], averaged: Mapping[str, tuple[int, int]]
    ) -> tuple[dict[int, _Copy], str]:
        """Return the copies that have to be equal if ranks average parameters from time to time; else ({}, "").

        An averaged parameter differs in between, but the operator that writes the average gives equal results each
        time. A parameter that is never averaged must not differ after others were.
        """
        record = next(iter(copies.values())).record
        name = record.parameter or self._gradients.parameter_of(record) or ""
        if name in averaged:
            if were_equal and record.io == "output":
                return copies, _ONE_VALUE
        elif were_equal is not None and _moment(copies) > min(averaged.values()):
            return copies, _NOT_AVERAGED
        return {}, ""

    def _of_launches(self) -> dict[tuple[Hashable, ...], dict[int, _Copy]]:
        """Return the copies by launch of the program, instead of by run: ranks may name runs by different seconds."""
        launch = launches((rank, key[0]) for key, copies in self._copies.items() for rank in copies)
        by_launch: dict[tuple[Hashable, ...], dict[int, _Copy]] = {}
        for key, copies in self._copies.items():
            for rank, copy in copies.items():
                by_launch.setdefault((launch[rank, key[0]], *key[1:]), {}).setdefault(rank, copy)
        return by_launch

    def _findings(
        self, copies: Mapping[int, _Copy], groups: Sequence[Sequence[int]], kind: str
    ) -> Iterator[RankFinding]:
        """Yield a finding for each rank that differs from most, or one for all if no content has a majority."""
        largest, *others = groups
        wrong = [rank for group in others for rank in group]
        has_majority = len(largest) > len(wrong)
        for rank in wrong if has_majority else wrong[:1]:
            record, other = copies[rank].record, copies[largest[0]].record
            numbers = _difference(record, other)
            if numbers is None:
                continue  # rounding
            parameter = record.parameter or self._gradients.parameter_of(record) or ""
            # If ranks average parameters, their own updates before that differ with good reason.
            has_updates = kind not in (_ONE_VALUE, _NOT_AVERAGED) and (has_majority or len(copies) == 2)
            known = self._updates.compared(parameter, other, record) if has_updates else None
            evidence = "" if known is None else f"; {known.evidence}"
            if known is not None and known.record is not None:
                record = known.record
            label = copies[rank].record.label
            if has_majority or (known is not None and known.rank is not None):
                is_other = known is not None and known.rank == other.rank and not has_majority
                named, most = (other.rank or 0, [rank]) if is_other else (rank, largest)
                text = f"{label} of rank {named} differs from that of {in_words(most)}, {kind}: {numbers}{evidence}"
            elif len(copies) == 2:
                both = in_words([rank, *largest])
                text = f"two ranks cannot tell which one is wrong: {label} differs between {both}, {kind}: {numbers}"
                text += evidence
            elif len(groups) == len(copies):
                pair = f"of ranks {largest[0]} and {rank} {numbers}"
                text = f"{label} is another on each of {in_words([*copies])}, {kind}; {pair}"
            else:
                against = " against ".join(in_words(group) for group in groups)
                text = f"{label} has {len(groups)} values, {against}, {kind}: {numbers}"
            if parameter and parameter not in text:
                text += f"; the parameter is {parameter}"
            yield RankFinding(record, text)

    def _replicas_of(self, copies: dict[int, _Copy], were_equal: Optional[bool]) -> tuple[dict[int, _Copy], str]:
        """Return the copies that have to be equal, and the reason in words; ({}, "") if they may be parts of a model.

        were_equal  True if the copies were equal in an earlier step; False if they were, but only as constants of an
                    initialisation; None if they were not
        """
        if any(copy.is_placed for copy in copies.values()):
            return copies, "replicated by its placement"
        first = next(iter(copies.values())).record
        parameter = self._gradients.parameter_of(first)
        if parameter is not None:
            runs = [(rank, copy.record.run) for rank, copy in copies.items()]
            for ranks in self._norms.groups_of(runs, parameter):
                alike = {rank: copies[rank] for rank in ranks}
                if len({copy.content for copy in alike.values()}) > 1:
                    return alike, f"although it normalises rows of one tensor there; {parameter}.grad is not reduced"
            # Ranks that average updates instead of gradients give a parameter its common gradient after its own update,
            # but the forward pass of each step reads equal parameters.
            numbers = {run: copies[run[0]].record.attrs.get("seq", 0) for run in runs}
            until = None if first.phase == "forward" else numbers
            for step in (first.step, self._gradients.step_before(parameter, first.step)):
                is_earlier = step != first.step
                synchronised = self._gradients.ranks_of(parameter, step, runs, None if is_earlier else until)
                if not synchronised or (is_earlier and (step is None or were_equal is None)):
                    continue
                together = {rank: copies[rank] for rank, _ in synchronised}
                these = "these ranks"
                if were_equal is not None and self._gradients.are_left_out(parameter, step, runs, synchronised):
                    together, these = copies, in_words(sorted(together))
                if is_earlier:
                    return together, f"although the gradient of {parameter} was the same on {these} in step {step}"
                return together, f"although the gradient of {parameter} is reduced over {these}"
        if self._exchanges:
            reason = self._reason_beside_exchanges(first, copies, were_equal)
            return (copies, reason) if reason else ({}, "")
        if self._reduces:
            # Parts of a model have gradients of their own, so with tensor parallelism most parameters have.
            if were_equal and parameter is not None and self._gradients.share >= _MOST_SYNCHRONISED:
                return copies, f"{_IN_COMMON}; its gradient is not reduced as most are"
            return {}, ""
        if any(copy.is_frozen for copy in copies.values()) or (parameter or "") not in self._gradients.named:
            if parameter is not None and self._gradients.any_synchronised:
                return copies, _UNTRAINED
            if any(copy.is_frozen for copy in copies.values()):
                return {}, ""
        if were_equal is not None and parameter is not None and self._gradients.any_synchronised:
            return copies, f"{_IN_COMMON}; its gradient is not reduced as those of others are"
        if were_equal:
            return copies, _IN_COMMON
        largest = _groups({rank: copy.content for rank, copy in copies.items()})[0]
        has_majority = 2 * len(largest) > len(copies) and len(largest) > 1
        if has_majority and (were_equal is not None or not is_constant(copies[largest[0]].record)):
            return copies, "a parameter that ranks have in common"
        return {}, ""

    def _replicas_of_group(
        self, copies: dict[int, _Copy], groups: Sequence[Sequence[int]]
    ) -> tuple[dict[int, _Copy], str]:
        """Return the copies of a group of ranks that reduces the gradients of most parameters, but not of this one.

        groups: the ranks that had the parameter in common before
        """
        record = next(iter(copies.values())).record
        parameter = self._gradients.parameter_of(record)
        for group in groups if parameter is not None else ():
            alike = {rank: copies[rank] for rank in group if rank in copies}
            if not 1 < len(alike) == len(group) < len(copies) or _are_equal(alike):
                continue
            runs = [(rank, copy.record.run) for rank, copy in alike.items()]
            steps = (record.step, self._gradients.step_before(parameter or "", record.step))
            if any(self._gradients.ranks_of(parameter or "", step, runs) for step in steps):
                continue
            if self._gradients.share_of(runs) >= _MOST_SYNCHRONISED:
                return alike, f"{_IN_COMMON}; its gradient is not reduced over them as most are"
        return {}, ""

    def _reason_beside_exchanges(self, record: Record, copies: Mapping[int, _Copy], were_equal: Optional[bool]) -> str:
        """Return why copies have to stay equal, although ranks exchange activations; "" if unknown.

        record: a copy in the first step in which they differ
        """
        parameter = self._gradients.parameter_of(record)
        if parameter is None:
            return ""
        runs = [(rank, copy.record.run) for rank, copy in copies.items()]
        if self._is_tied(parameter, runs):
            return (
                f"{_IN_COMMON}; their other parameters differ, so {parameter} is tied, but its gradient is not reduced"
            )
        if not were_equal:
            return ""
        if self._gradients.has_synchronised_sibling(parameter, record.step, runs):
            return f"{_IN_COMMON}; its gradient is not reduced as others of its module are"
        if self._norms.are_of_rows(runs, parameter):
            return f"{_IN_COMMON}; it is applied to rows of one tensor, and {parameter}.grad is not reduced"
        if not self._reduces and self._layers.is_local(runs, parameter):
            return f"{_IN_COMMON}, and each rank uses it for its own data, before the ranks exchange any"
        return ""

    def _is_tied(self, parameter: str, runs: Sequence[RankRun]) -> bool:
        """Return True if ranks begin with this parameter in common, and with no other one.

        Layers of one seed begin equal too, but then other parameters of one shape are equal as well.
        """
        firsts = [self._first.get(run, {}) for run in runs]
        if not all(parameter in first for first in firsts) or is_constant(firsts[0][parameter]):
            return False
        if len({content_of_record(first[parameter]) for first in firsts}) > 1:
            return False
        others = [
            {(record.shape, content_of_record(record)): record for name, record in first.items() if name != parameter}
            for first in firsts
        ]
        shapes = set.intersection(*({shape for shape, _ in of_rank} for of_rank in others))
        common = [key for key in others[0] if any(key in of_rank for of_rank in others[1:])]
        return any(math.prod(shape or ()) > 1 for shape in shapes - {shape for shape, _ in common}) and all(
            is_constant(others[0][key]) for key in common
        )


def _is_view_outside(record: Record) -> bool:
    """Return True for a view outside of modules. This rank may not have received the updated parameter yet."""
    is_outside = not record.module and "/" not in record.op_name
    return record.io == "input" and is_outside and is_view(operator_class(record.op_type))


def _is_read_by_module(record: Record) -> bool:
    """Return True for an input of a module. Buffers have no name there, so one with the name of a parameter is one."""
    return bool(record.io == "input" and record.module and record.phase == "forward")


def _is_sent(record: Record) -> bool:
    """Return True for an input of a collective: the call may be the one that makes the tensor equal on all ranks."""
    return record.io == "input" and "c10d" in record.op_type


def _is_exchange(record: Record, attrs: Mapping[str, Any]) -> bool:
    """Return True for a call that ranks use to work on parts of one model, so that they may have other parameters.

    These calls are messages, all_to_all, scatter, gather, and gathers in the forward pass. A broadcast is none of them:
    in the forward pass it sends buffers.
    """
    kind = attrs.get("collective", {}).get("kind", "") if "c10d" in record.op_type else ""
    if kind in ("all_gather", "reduce_scatter"):
        return record.phase == "forward"
    return kind in ("send", "recv", "all_to_all", "scatter", "gather")


def _is_reduction(record: Record, attrs: Mapping[str, Any]) -> bool:
    """Return True for an all_reduce in the forward pass: of the terms of a split weight, or of statistics of a norm."""
    kind = attrs.get("collective", {}).get("kind", "") if "c10d" in record.op_type else ""
    return kind == "all_reduce" and record.phase == "forward"


def _are_equal(copies: Mapping[int, _Copy]) -> bool:
    return len({copy.content for copy in copies.values()}) < 2


def _groups(contents: Mapping[int, Hashable]) -> list[list[int]]:
    """Return the ranks by content, the largest group first."""
    groups: dict[Hashable, list[int]] = {}
    for rank, content in sorted(contents.items()):
        groups.setdefault(content, []).append(rank)
    return sorted(groups.values(), key=len, reverse=True)


def _replicated(placement: Placement, rank: int) -> Optional[tuple[Any, ...]]:
    """Return a key that is the same on all ranks with the same part; None if only this rank has its part."""
    if not any(axis == "replicate" and size > 1 for axis, size in zip(placement.axes, placement.mesh)):
        return None
    coordinates = placement.coordinates(rank)
    if coordinates is None:
        return None
    part = tuple(-1 if axis == "replicate" else coordinate for axis, coordinate in zip(placement.axes, coordinates))
    return placement.ranks, placement.mesh, placement.axes, part


def _moment(copies: Mapping[int, _Copy]) -> tuple[int, int]:
    record = next(iter(copies.values())).record
    return (-1 if record.step is None else record.step, record.attrs.get("seq", 0))


def _difference(record: Record, second: Record) -> Optional[str]:
    """Return the difference of two tensors in words; None if it is rounding, in a tensor without `requires_grad`."""
    try:
        a, b = record.numpy(), second.numpy()
    except AscendDumpError:
        return "their statistics differ"
    numbers = measure(a, b)
    verdict, _ = judge(numbers, record.dtype or "", Rules())
    if verdict == "noise" and not record.attrs.get("requires_grad"):
        return None
    index = () if numbers.at is None else numbers.at
    return f"{numbers.unequal} of {numbers.count} elements, most at {list(index)}: {a[index]!s} and {b[index]!s}"
