"""Find gradients that were divided by the number of ranks once too often or too rarely.

If ranks add up their gradients, they divide all sums by the number of ranks, or none. The factor of a parameter is its
reduced gradient divided by the sum of the gradients that backward wrote on each rank. All parameters have one factor.

Ranks may add up copies of parameters or of gradients instead, and copy the results back. Then the factor is the tensor
that is copied back divided by the sum, and all sums of one line of the program have one factor.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.collectives import collective_of
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.ranks.collective_results import RankFinding, content_of_record, in_words
from ascend_dump.analysis.ranks.launches import RankRun, launches, ranks_of_launches
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["GradientFactors"]

_GRADIENT = ".grad"
_SCALES = frozenset({"mul", "div"})
#: Larger gradients are left out: reading them takes long, and the others show the factor.
_MOST_ELEMENTS = 2**22
#: Relative error up to which two factors are equal. A factor is computed from means only if the sum of the means is
#: more than the share `_LEAST_MEAN` of the size of the elements: if terms cancel out, the means are too inexact.
_ROUNDING = 1e-3
_LEAST_MEAN = 1e-3


class _GradientReads(NamedTuple):
    """The first record of a gradient outside of the passes, and the last one, which the optimizer reads."""

    first: Record
    last: Record


class _Factor(NamedTuple):
    parameter: str
    value: float
    record: Record


class _SumCall(NamedTuple):
    """A sum over ranks that is copied into a parameter or gradient. name: this parameter or gradient"""

    name: str
    source: Optional[str]
    ranks: tuple[int, ...]


class _SummedCopies:
    """The sums of one rank, in the first step that copies any into a parameter or gradient.

    copied  by call: the sum, and the tensor that is copied
    """

    def __init__(self) -> None:
        self.copied: dict[_SumCall, _GradientReads] = {}
        self._step: Optional[int] = None
        #: By storage, in the current step: the sums with their ranks, and the names of parameters and gradients.
        self._sums: dict[int, tuple[Record, tuple[int, ...]]] = {}
        self._names: dict[int, str] = {}

    def look_at(self, run: OperatorRun) -> None:
        first = run.first
        if first.step != self._step:
            if self.copied:
                return
            self._step, self._sums, self._names = first.step, {}, {}
        if run.is_named:
            for _, storage, name in run.tensors:
                if name and " of " not in name:
                    self._names.setdefault(storage, name)
        found = collective_of(first) if run.is_collective else None
        if found is not None:
            if found[0].kind == "all_reduce":
                self._sums.update((storage, (record, found[1])) for record, storage, _ in run.outputs)
            return
        if not self._sums:
            return
        name = operator_class(first.op_type)
        read = [tensor for tensor in run.inputs if tensor.storage in self._sums]
        if name == "copy" and run.outputs and read and run.outputs[0].storage in self._names:
            last, storage, _ = read[-1]
            sums, ranks = self._sums[storage]
            call = _SumCall(self._names[run.outputs[0].storage], sums.source, ranks)
            self.copied.setdefault(call, _GradientReads(sums, last))
        elif name not in _SCALES:
            for _, storage, _ in run.outputs:
                self._sums.pop(storage, None)


class GradientFactors:
    """Gathers the gradients of the first training step of each rank, in the order of the dump.

    fewest: a factor is reported only if at least this many times as many parameters have the usual factor
    """

    def __init__(self, fewest: float) -> None:
        self._fewest = fewest
        self._steps: dict[RankRun, Optional[int]] = {}
        self._gradients: dict[tuple[RankRun, str], _GradientReads] = {}
        #: By rank and gradient: the ranks that add it up, if it is added up in its own memory.
        self._members: dict[tuple[RankRun, str], tuple[int, ...]] = {}
        self._copies: dict[RankRun, _SummedCopies] = {}

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.rank is None:
            return
        rank = (first.rank, first.run)
        if first.phase == "other":
            copies = self._copies.get(rank)
            if copies is None:
                copies = self._copies[rank] = _SummedCopies()
            copies.look_at(run)
        if run.is_named:
            for record, _, name in run.inputs:
                if name.endswith(_GRADIENT) and " of " not in name:
                    self._look_at_gradient(record, name, rank)
                    found = collective_of(record) if run.is_collective else None
                    if found is not None and found[0].kind == "all_reduce":
                        self._members[rank, name] = found[1]

    def _look_at_gradient(self, record: Record, name: str, rank: RankRun) -> None:
        if self._steps.setdefault(rank, record.step) == record.step:
            first, last = self._gradients.get((rank, name)) or _GradientReads(record, record)
            # In the dump, asynchronous calls come after the operators that ran meanwhile. So sequence numbers are used.
            if _number(record) < _number(first):
                first = record
            if _number(record) > _number(last):
                last = record
            self._gradients[rank, name] = _GradientReads(first, last)

    def findings(self) -> Iterator[RankFinding]:
        """Yield, per group of ranks and kind of fault, the first gradient with a wrong factor."""
        launch = launches(self._steps)
        gradients: dict[tuple[Hashable, str, tuple[int, ...]], dict[int, _GradientReads]] = {}
        for ((rank, run), name), reads in self._gradients.items():
            members = self._members.get(((rank, run), name), ())
            gradients.setdefault((launch[rank, run], name, members), {})[rank] = reads
        groups: dict[tuple[Hashable, tuple[int, ...]], list[_Factor]] = {}
        for (number, name, _), of_ranks in gradients.items():
            value = _factor(of_ranks)
            if value is not None:
                record = of_ranks[min(of_ranks)].last
                groups.setdefault((number, tuple(sorted(of_ranks))), []).append(
                    _Factor(name[: -len(_GRADIENT)], value, record)
                )
        for (_, ranks), factors in groups.items():
            yield from self._of_group(ranks, factors, "the gradient of ", "the gradients of")
        for copies in ranks_of_launches(self._copies):
            # All ranks have the results of a sum, so one of its ranks is enough.
            lines: dict[tuple[tuple[int, ...], Optional[str]], list[_Factor]] = {}
            for rank, of_rank in copies.items():
                for call, reads in of_rank.copied.items():
                    value = _factor_of([reads.first], reads.last) if rank == call.ranks[0] else None
                    if value is not None:
                        lines.setdefault((call.ranks, call.source), []).append(_Factor(call.name, value, reads.last))
            for (ranks, _), factors in lines.items():
                yield from self._of_group(ranks, factors, "the sum of ", "those of")

    def _of_group(
        self, ranks: Sequence[int], factors: Sequence[_Factor], singular: str, plural: str
    ) -> Iterator[RankFinding]:
        usual = statistics.median(factor.value for factor in factors)
        alike = [factor for factor in factors if _is_close(factor.value, usual)]
        count = len(ranks)
        for fault, ratio in ((f"lacks the division by {count}", count), (f"is divided by {count} twice", 1 / count)):
            different = [factor for factor in factors if _is_close(factor.value, usual * ratio)]
            if different and len(alike) >= self._fewest * len(different):
                parameter, value, record = different[0]
                text = (
                    f"{singular}{parameter} {fault}: it is {value:.4g} times the sum over {in_words(ranks)}, "
                    f"and {plural} {len(alike)} other parameters are {usual:.4g} times their sums"
                )
                yield RankFinding(record, text)


def _number(record: Record) -> int:
    return int(record.attrs.get("seq", 0))


def _is_close(value: float, expected: float) -> bool:
    return abs(value - expected) <= _ROUNDING * abs(expected)


def _factor(reads: dict[int, _GradientReads]) -> Optional[float]:
    """Return the reduced gradient divided by the sum over the ranks; None if unknown, or no multiple of the sum."""
    firsts = {content_of_record(one.first) for one in reads.values()}
    lasts = {content_of_record(one.last) for one in reads.values()}
    if len(firsts) != len(reads) or len(reads) < 2 or len(lasts) != 1 or None in firsts | lasts:
        return None
    return _factor_of([one.first for one in reads.values()], reads[min(reads)].last)


def _factor_of(firsts: Sequence[Record], last: Record) -> Optional[float]:
    """Return a tensor divided by the sum of tensors; None if unknown, or no multiple of the sum."""
    try:
        return _factor_of_arrays(firsts, last)
    except AscendDumpError:
        return _factor_of_means(firsts, last)


def _factor_of_arrays(firsts: Sequence[Record], last: Record) -> Optional[float]:
    if any(math.prod(record.shape or ()) > _MOST_ELEMENTS for record in (*firsts, last)):
        return None
    import numpy as np

    total = np.sum([record.numpy().astype(np.float64) for record in firsts], axis=0)
    reduced = last.numpy().astype(np.float64)
    square = float(np.vdot(total, total))
    if not np.isfinite(square) or square == 0 or total.shape != reduced.shape:
        return None
    factor = float(np.vdot(total, reduced)) / square
    rest = float(np.linalg.norm(reduced - factor * total))
    return factor if rest <= _ROUNDING * abs(factor) * square**0.5 else None


def _factor_of_means(firsts: Sequence[Record], last: Record) -> Optional[float]:
    try:
        measured = [record.statistics() for record in firsts]
        reduced = last.statistics()
    except AscendDumpError:
        return None
    means = [tensor.mean for tensor in measured]
    norms = [tensor.l2norm for tensor in measured]
    if None in means or None in norms or reduced.mean is None or not reduced.count:
        return None
    total = sum(mean for mean in means if mean is not None)
    size = sum(norm for norm in norms if norm is not None) / reduced.count**0.5
    if not math.isfinite(total) or not math.isfinite(size) or abs(total) <= _LEAST_MEAN * size:
        return None
    return float(reduced.mean / total)
