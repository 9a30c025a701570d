"""Find an argument that one rank passes otherwise than the others, such as the epsilon of a norm or a scale.

All ranks run one program, so a line has the same settings on all of them. Numbers that depend on the data or on the
rank are left out: integers, which may be sizes and indices, and numbers that are no settings by their name and change
from call to call, or are passed outside of modules. There, numbers count in the backward pass of tensors: the forward
pass read them too, for example a temperature. A factor of a loss may be the share of the rank in the tokens. So it
counts only if it is the same in several steps, the tensors of the forward pass have the same shapes on all ranks, and
ranks exchange none there: the last part of a sequence often has fewer targets.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator_run import OperatorRun
from ascend_dump.analysis.ranks.collective_results import RankFinding, in_words
from ascend_dump.analysis.ranks.groups_of_ranks import disagreement
from ascend_dump.analysis.ranks.launches import RankRun, ranks_of_launches
from ascend_dump.errors import CorruptDump
from ascend_dump.reading import Record

__all__ = ["OtherArguments"]

#: The number of recorded steps of each rank whose arguments are read: settings do not change.
_MOST_STEPS = 2
#: The name of the type of the results, such as that of autocast.
_TYPE = "results of type"
#: Arguments that set the shape or the working of an operator and that no data determines.
_SETTINGS = frozenset(
    {
        *("eps", "epsilon", "scale", "momentum", "p", "dropout_p", "negative_slope", "beta", "threshold", "lambd"),
        *("approximate", "is_causal", "training", "train", "align_corners", "ceil_mode", "count_include_pad"),
        *(_TYPE, "label_smoothing", "delta", "min_val", "max_val", "lower", "upper", "norm_type"),
    }
)
#: The integer that says if a loss is a mean or a sum.
_REDUCTION = "reduction"
_PASSES = ("forward", "backward")


class _CallSite(NamedTuple):
    """A line of the program that calls an operator, identified alike on all ranks."""

    op_type: str
    source: str
    module: str
    phase: str


class _SiteCalls:
    """The calls of one rank at a site.

    first   the first record of its first call
    values  by the name of an argument: the values of all calls
    shapes  the shapes of the first tensors of all calls
    count   number of calls
    """

    def __init__(self, first: Record) -> None:
        self.first = first
        self.values: dict[str, set[Any]] = {}
        self.shapes: set[Optional[tuple[int, ...]]] = set()
        self.count = 0


class _RankCalls:
    """The sites of one rank in its first recorded steps.

    shapes     those of all tensors of the forward pass
    exchanges  True if the forward pass has a collective, apart from a broadcast, which may be one of buffers
    """

    def __init__(self) -> None:
        self.sites: dict[_CallSite, _SiteCalls] = {}
        self.steps: set[Optional[int]] = set()
        self.shapes: set[Optional[tuple[int, ...]]] = set()
        self.has_messages = False
        self.exchanges = False


class OtherArguments:
    """Gathers the arguments of the calls of both passes on all ranks, in the order of the dump.

    most: the largest relative difference of two numbers that may be rounding
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._ranks: dict[RankRun, _RankCalls] = {}

    def look_at(self, run: OperatorRun) -> None:
        """Add one run of an operator."""
        first = run.first
        if first.rank is None or first.error is not None:
            return
        calls = self._ranks.get((first.rank, first.run))
        if calls is None:
            calls = self._ranks[first.rank, first.run] = _RankCalls()
        if run.is_collective:
            if first.op_type.startswith(("c10d::send", "c10d::recv")):
                calls.has_messages = True
            if first.phase == "forward" and first.op_type.startswith("c10d::") and "broadcast" not in first.op_type:
                calls.exchanges = True
        if not first.source or first.phase not in _PASSES:
            return
        if first.step not in calls.steps and len(calls.steps) >= _MOST_STEPS:
            return
        calls.steps.add(first.step)
        if first.phase == "forward":
            calls.shapes.update(record.shape for record in run.records)
        values = {**_numbers_of(first), **_type_of(run.records)}
        if values:
            site = _CallSite(first.op_type, first.source, first.module or "", first.phase)
            of_site = calls.sites.setdefault(site, _SiteCalls(first))
            of_site.count += 1
            of_site.shapes.add(first.shape)
            for name, value in values.items():
                of_site.values.setdefault(name, set()).add(value)

    def findings(self) -> Iterator[RankFinding]:
        """Yield the first argument that a rank passes otherwise than the others, for each launch."""
        for ranks in ranks_of_launches(self._ranks):
            # The stages of a pipeline have layers of their own under the same names.
            if len(ranks) > 1 and not any(calls.has_messages for calls in ranks.values()):
                yield from self._of_launch(ranks)

    def _of_launch(self, ranks: dict[int, _RankCalls]) -> Iterator[RankFinding]:
        sites = dict.fromkeys(site for calls in ranks.values() for site in calls.sites)
        has_same_sizes = len({frozenset(calls.shapes) for calls in ranks.values()}) == 1
        has_same_sizes = has_same_sizes and not any(calls.exchanges for calls in ranks.values())
        findings = []
        for site in sites:
            calls = {rank: of_rank.sites[site] for rank, of_rank in ranks.items() if site in of_rank.sites}
            if len(calls) > 1:
                finding = self._of_site(calls, has_same_sizes)
                if finding is not None:
                    findings.append(finding)
        yield from sorted(findings, key=lambda finding: _moment(finding.record))[:1]

    def _of_site(self, calls: dict[int, _SiteCalls], has_same_sizes: bool) -> Optional[RankFinding]:
        names = dict.fromkeys(name for of_rank in calls.values() for name in of_rank.values)
        shapes = {frozenset(of_rank.shapes) for of_rank in calls.values()}
        # A number that changes from call to call depends on data, and without a second call this is unknown. A number
        # may depend on the size of the data too, which the shape of a loss does not show.
        is_of_data = len(shapes) > 1 or any(of_rank.count < 2 for of_rank in calls.values())
        is_of_data = is_of_data or (shapes == {frozenset([()])} and not has_same_sizes)
        for name in names:
            values = {rank: of_rank.values.get(name, {None}) for rank, of_rank in calls.items()}
            if any(len(of_rank) > 1 for of_rank in values.values()) or (
                is_of_data and name not in (*_SETTINGS, _REDUCTION)
            ):
                continue
            single = {rank: next(iter(of_rank)) for rank, of_rank in values.items()}
            differing = disagreement(single, functools.partial(self._agree, single))
            if differing is not None:
                record = calls[differing.ranks[0]].first
                ranks, others = in_words(differing.ranks), in_words(differing.largest)
                numbers = _text(single[differing.ranks[0]]), _text(single[differing.largest[0]])
                text = (
                    f"{record.op_type} at {record.source} has {name} {numbers[0]} on {ranks}, {numbers[1]} on {others}"
                )
                return RankFinding(record, f"{differing.doubt}: {text}" if differing.doubt else text)
        return None

    def _agree(self, values: Mapping[int, Any], rank: int, other_rank: int) -> bool:
        value, other = values[rank], values[other_rank]
        if type(value) is float and type(other) is float:
            return abs(value - other) <= self._most * max(abs(value), abs(other))
        return bool(value == other)


def _numbers_of(first: Record) -> dict[str, Any]:
    """Return the arguments of a call that may be settings: flags, texts, and numbers that are no integers.

    Outside of modules, only those that are settings by their name, numbers of the backward pass of tensors, and factors
    of single numbers such as a loss.
    """
    try:
        arguments = first.arguments
    except CorruptDump:
        return {}
    if arguments is None:
        return {}
    is_of_tensor = first.shape == () or (first.phase == "backward" and math.prod(first.shape or ()) > 1)
    return {
        name: value
        for name, value in arguments.values.items()
        if (type(value) in (bool, float, str) and first.module)
        or (type(value) is float and is_of_tensor)
        or (_is_setting(value) and name in _SETTINGS)
        or name == _REDUCTION
    }


def _type_of(members: Sequence[Record]) -> dict[str, Any]:
    """Return the type of the floats that a call in a module computes; {} for a view."""
    if is_view(members[0].op_type):
        return {}
    types = {
        record.dtype
        for record in members
        if record.io == "output" and record.module and float_kind(record.dtype or "") is not None
    }
    return {_TYPE: types.pop()} if len(types) == 1 else {}


def _is_setting(value: Any) -> bool:
    return value is None or type(value) in (bool, float, str)


def _text(value: Any) -> str:
    return "not given" if value is None else str(value)


def _moment(record: Record) -> tuple[int, Any]:
    return (-1 if record.step is None else record.step, record.attrs.get("seq", 0))
