"""The report page of a comparison, as values of `ascend_dump.report.page`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ascend_dump.analysis.explaining.page_facts import (
    capture_command,
    changed_finding,
    command,
    origin_finding,
    run_facts,
    show_command,
)
from ascend_dump.analysis.trends import page_curves
from ascend_dump.common.units import counted
from ascend_dump.errors import AscendDumpError, ConfigError, NotSupported
from ascend_dump.reading import open_dump
from ascend_dump.report.findings import agreement, comparison_notes, sentence_case
from ascend_dump.report.page import PageContent, PageError, PageFinding, PageRow
from ascend_dump.report.page.tensors import read_tensor
from ascend_dump.request import DumpRequest
from ascend_dump.storage import named_beside

if TYPE_CHECKING:
    from ascend_dump.analysis.compare._surroundings import Surrounding
    from ascend_dump.analysis.explaining.results import ChangedCall, Crossing, Origin, Pair, Rebuilt
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
    def aligned(self) -> Sequence[str]: ...
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
    def rebuilt(self) -> Sequence[Rebuilt]: ...
    @property
    def around(self) -> Sequence[Surrounding]: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def unused(self) -> Sequence[str]: ...


def of_comparison(compared: ShownComparison) -> PageContent:
    """Return the page of a comparison."""
    usual = type(compared.rules)().to_dict()
    rules = {name: value for name, value in compared.rules.to_dict().items() if value != usual.get(name)}
    unchecked = list(comparison_notes(compared))
    allowed = compared.counts.get("allowed", 0)
    if allowed:
        unchecked.append(f"{counted(allowed, 'record')} of operators that may be missing on one side: not compared")
    findings = [origin_finding(origin, compared) for origin in compared.origins]
    sentence = findings[0].sentence if findings else sentence_case(agreement(compared.verdict, compared.counts))
    return PageContent(
        title=f"{compared.actual} against {compared.reference}",
        rows=map(_row, compared.pairs),
        verdict=compared.verdict,
        sentence=sentence,
        facts=findings[0].headline() if findings else (),
        command=_next_command(compared),
        compared=True,
        findings=tuple(
            PageFinding.of(finding, origin.pair.record) for finding, origin in zip(findings, compared.origins)
        ),
        changed=tuple(
            PageFinding.of(changed_finding(call, several_ranks=compared.several_ranks), call.pair.record)
            for call in compared.changed
        ),
        unchecked=tuple(unchecked),
        provenance=(
            ("actual", str(compared.actual)),
            *_runs_of(compared.actual, "actual"),
            ("reference", str(compared.reference)),
            *_runs_of(compared.reference, "reference"),
            ("thresholds", json.dumps(compared.rules.to_dict(), default=str)),
            *((("changed from the usual", json.dumps(rules, default=str)),) if rules else ()),
        ),
        curves=page_curves(
            (pair.actual for pair in compared.pairs if pair.actual is not None),
            (pair.reference for pair in compared.pairs if pair.reference is not None),
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
        *(measure.rel_l2, measure.max_abs, measure.max_rel, measure.rmse, measure.cosine, measure.unequal),
        *(measure.count, measure.nonfinite, measure.at, measure.ulp),
    )
    how = f"{pair.how}, {pair.confidence:.0%} sure" if pair.how else ""
    reason = pair.reason if not pair.undefined else f"not judged: {pair.undefined}"
    return PageRow(pair.actual, pair.reference, pair.verdict, reason, how, pair.transformation, pair.explained, error)


def _next_command(compared: ShownComparison) -> str:
    if not compared.origins:
        if compared.verdict in ("equal", "noise"):
            return ""
        return command("ascend-dump", "compare", str(compared.actual), str(compared.reference))
    origin = compared.origins[0]
    if read_tensor(origin.pair.record) is not None:
        return show_command(compared.actual, origin.pair.record)
    try:
        request = DumpRequest(path=named_beside(compared.actual, "_next"), **origin.next)
    except (ConfigError, NotSupported, TypeError):
        return show_command(compared.actual, origin.pair.record)
    return capture_command(request)
