"""The report page of a comparison, as values of `ascend_dump.report.page`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Protocol

from ascend_dump.analysis.explaining.page_facts import (
    capture_command,
    command,
    location_facts,
    run_facts,
    show_command,
    step_text,
    tensor_commands,
)
from ascend_dump.common.units import counted, explained, named
from ascend_dump.errors import AscendDumpError, ConfigError, NotSupported
from ascend_dump.reading import open_dump
from ascend_dump.report.page import PageContent, PageError, PageFinding, PageRow
from ascend_dump.report.page.tensors import read_tensor
from ascend_dump.request import DumpRequest
from ascend_dump.storage import named_beside

if TYPE_CHECKING:
    from ascend_dump.analysis.explaining.results import ChangedCall, Crossing, Origin, Pair
    from ascend_dump.analysis.judging.verdict import Rules

__all__ = ["of_comparison"]


class ShownComparison(Protocol):
    """The fields of a `Comparison` that a page shows. A protocol, because `Comparison.to_page` imports this module."""

    @property
    def actual(self) -> Path: ...
    @property
    def reference(self) -> Path: ...
    @property
    def verdict(self) -> str: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def pairs(self) -> Iterable[Pair]: ...
    @property
    def origins(self) -> Sequence[Origin]: ...
    @property
    def rules(self) -> Rules: ...
    @property
    def undefined(self) -> Mapping[str, int]: ...
    @property
    def inside(self) -> tuple[int, int]: ...
    @property
    def left_out(self) -> tuple[int, int]: ...
    @property
    def crossings(self) -> Sequence[Crossing]: ...
    @property
    def changed(self) -> Sequence[ChangedCall]: ...
    @property
    def several_ranks(self) -> bool: ...
    @property
    def unused(self) -> Sequence[str]: ...


def of_comparison(compared: ShownComparison) -> PageContent:
    """Return the page of a comparison."""
    usual = type(compared.rules)().to_dict()
    rules = {name: value for name, value in compared.rules.to_dict().items() if value != usual.get(name)}
    notes = [f"{text} ({count} records): not judged" for text, count in compared.undefined.items()]
    if any(compared.inside):
        notes.append(
            f"{compared.inside[0]} operators of actual and {compared.inside[1]} of the reference lie inside operators "
            "that are compared, and the other side does not have their tensors"
        )
    if any(compared.left_out):
        notes.append(
            f"{compared.left_out[0]} operators of actual and {compared.left_out[1]} of the reference "
            "have no floating-point values of their own to compare, such as views and constants: left out"
        )
    notes += [f"not used: {text}" for text in compared.unused]
    notes += [
        f"paired by weak evidence, across the order of other pairs: {item.actual} with {item.reference} ({item.how})"
        for item in compared.crossings[:20]
    ]
    if len(compared.crossings) > 20:
        notes.append(f"{len(compared.crossings) - 20} more pairs by weak evidence are not named here")
    allowed = compared.counts.get("allowed", 0)
    if allowed:
        notes.append(f"{counted(allowed, 'record')} of operators that may be missing on one side: not compared")
    first = compared.origins[0] if compared.origins else None
    return PageContent(
        title=f"{compared.actual} against {compared.reference}",
        rows=map(_row, compared.pairs),
        verdict=compared.verdict,
        sentence=_sentence(compared),
        facts=() if first is None else tuple(_origin_facts(first)),
        command=_next_command(compared, first),
        compared=True,
        findings=tuple(_origin(item, compared) for item in compared.origins),
        changed=tuple(_changed(item) for item in compared.changed),
        unmade=tuple(notes),
        made=(
            ("actual", str(compared.actual)),
            *_runs_of(compared.actual, "actual"),
            ("reference", str(compared.reference)),
            *_runs_of(compared.reference, "reference"),
            ("thresholds", json.dumps(compared.rules.to_dict(), default=str)),
            *((("changed from the usual", json.dumps(rules, default=str)),) if rules else ()),
        ),
    )


def _runs_of(dump: Path, side: str) -> list[tuple[str, str]]:
    try:
        return list(run_facts(open_dump(dump), side))
    except AscendDumpError:  # it was removed after the comparison
        return []


def _row(pair: Pair) -> PageRow:
    measure = pair.measure
    error = measure and PageError(
        measure.rel_l2,
        measure.max_abs,
        measure.max_rel,
        measure.rmse,
        measure.cosine,
        measure.unequal,
        measure.count,
        measure.nonfinite,
        measure.at,
        measure.ulp,
    )
    how = f"{pair.how}, {pair.confidence:.0%} sure" if pair.how else ""
    reason = pair.reason if not pair.undefined else f"not judged: {pair.undefined}"
    return PageRow(pair.actual, pair.reference, pair.verdict, reason, how, pair.transformation, pair.explained, error)


def _sentence(compared: ShownComparison) -> str:
    counts = compared.counts
    if not compared.origins:
        but = " but for operators that may be missing" if counts.get("allowed") else ""
        return {
            "equal": f"Both dumps are the same, bit for bit{but}.",
            "noise": f"The dumps differ by rounding only{but}.",
            "undecided": "Statistics agree, which proves nothing: dump tensors on both sides.",
            "unmatched": f"What was compared agrees; {counts.get('unmatched', 0)} records have no partner.",
            "unreadable": f"{counts.get('unreadable', 0)} pairs cannot be read.",
        }.get(compared.verdict, "The dumps differ, and no difference has an origin among what was compared.")
    first = compared.origins[0]
    has_rank = first.rank is not None and (first.rank > 0 or compared.several_ranks)
    rank = f" on rank {first.rank}" if has_rank else ""
    name = f"{named(first.op_name, first.op_type)}{rank}"
    step = "" if first.step is None else f"Step {first.step}: "
    meaning = {
        "structure": f"{name} is the first operator that is not the same in both programs",
        "input": f"{name} reads different data from outside",
        "parameter": f"a parameter differs when {name} first reads it",
        "compute": f"{name} is the first operator with a different result of equal inputs",
        "unknown": f"the output of {name} differs, and its inputs, or some of them, could not be compared",
        "amplification": f"{name} enlarges a difference that was within rounding",
        "collective": f"{name} has a different result, although the inputs of all ranks agree",
        "random": f"{name} draws other random numbers",
        "uninitialised": f"{name} reads uninitialised memory",
    }.get(first.kind, f"{name} is where the difference begins")
    follow = "follows" if first.explains == 1 else "follow"
    explains = f"; {counted(first.explains, 'later output')} {follow} from it" if first.explains else ""
    return f"{step}{meaning}{explains}."


def _origin_facts(origin: Origin) -> Iterator[tuple[str, str]]:
    kind = origin.to_dict()
    yield "kind", f"{origin.kind}: {kind['meaning']}"
    yield from location_facts(origin.module, origin.source)


def _origin(origin: Origin, compared: ShownComparison) -> PageFinding:
    lines = [*_origin_facts(origin), ("evidence", "\n".join(origin.evidence))]
    if origin.explains:
        lines.append(("explains", explained(origin.explains)))
    if origin.first_seen:
        lines.append(("first seen", "earlier operators are not recorded, or were not read: the cause may be there"))
    commands = tensor_commands(compared.actual, compared.reference, origin.pair)
    settings = ", ".join(f"{name}={value!r}" for name, value in origin.next.items())
    if commands:
        lines.append(("next", "\n".join(commands)))
    elif settings:
        lines.append(("next", f"ascend_dump.capture(..., {settings})"))
    rank = f"rank {origin.rank}, " if compared.several_ranks and origin.rank is not None else ""
    return PageFinding(
        f"{rank}{step_text(origin.step)}{origin.op_name or origin.op_type}", origin.pair.record, tuple(lines)
    )


def _changed(call: ChangedCall) -> PageFinding:
    lines = [*location_facts(call.module, call.source), ("arguments", "\n".join(call.arguments))]
    if call.others:
        lines.append(("others", f"{counted(call.others, 'more operator')} of this type with the same"))
    return PageFinding(f"{step_text(call.step)}{call.op_name or call.op_type}", call.pair.record, tuple(lines))


def _next_command(compared: ShownComparison, first: Optional[Origin]) -> str:
    if first is None:
        if compared.verdict in ("equal", "noise"):
            return ""
        return command("ascend-dump", "compare", str(compared.actual), str(compared.reference))
    if read_tensor(first.pair.record) is not None:
        return show_command(compared.actual, first.pair.record)
    try:
        request = DumpRequest(path=named_beside(compared.actual, "_next"), **first.next)
    except (ConfigError, NotSupported, TypeError):
        return show_command(compared.actual, first.pair.record)
    return capture_command(request)
