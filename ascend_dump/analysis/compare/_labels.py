"""Dumps of several labels, `capture(label=...)`: each label is compared with itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.explaining.pairs import Pairs
from ascend_dump.analysis.explaining.results import Origin
from ascend_dump.analysis.judging.verdict import worst
from ascend_dump.reading import Dump

__all__ = ["labels_to_pair", "named_by_label", "verdict_of", "with_label"]


def labels_to_pair(actual: Dump, reference: Dump) -> list[str]:
    """Return the labels of both sides in their order; [] if each side has only one, as these two are compared then."""
    sides = [dump.labels for dump in (actual, reference)]
    return list(dict.fromkeys([*sides[0], *sides[1]])) if any(len(labels) > 1 for labels in sides) else []


def with_label(
    labels: Sequence[str], dumps: Sequence[Dump], second_run: Optional[Dump]
) -> Iterator[tuple[str, list[Dump], Optional[Dump]]]:
    """Yield each label with its part of each dump. A second run without labels is used for all of them."""
    has_labels = second_run is not None and any(second_run.labels)
    for label in labels:
        again = second_run.select(label=label) if second_run is not None and has_labels else second_run
        yield label, [dump.select(label=label) for dump in dumps], again


def named_by_label(origins: Sequence[Origin], label: str) -> list[Origin]:
    """Return the origins with the label as their first evidence."""
    text = f"label {label}" if label else "without a label"
    return [replace(origin, evidence=(text, *origin.evidence)) for origin in origins]


def verdict_of(pairs: Pairs) -> str:
    """Return the worst verdict of all pairs."""
    return worst([verdict for verdict, count in pairs.verdicts().items() if count])
