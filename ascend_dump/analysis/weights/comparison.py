"""The result of comparing weights: a verdict, and a finding for each group of weights that belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.weights.names import numbers_text, parsed
from ascend_dump.common.units import counted

__all__ = ["RELATIONS", "WeightComparison", "WeightFinding", "WeightPart"]

#: The verdicts, the worst one last, with the same names as in `compare`.
_VERDICTS = ("equal", "noise", "unmatched", "different", "unreadable")
#: Every relation, with its meaning.
RELATIONS = {
    "equal": "the same values",
    "cast": "the same values after rounding to another type",
    "concatenated": "one weight of actual has the rows of several of the reference",
    "split": "several weights of actual have the rows of one of the reference",
    "rearranged": "several weights of actual have the rows of several of the reference",
    "transposed": "rows are columns on the other side",
    "reshaped": "the same values in another shape",
    "permuted": "the same rows in another order",
    "misplaced": "the values of another weight of the reference, of another layer for example",
    "merged": "a weight and its low-rank adapter on the other side",
    "part": "some rows are missing on one side",
    "scaled": "multiplied by a number",
    "stale": "an earlier state: equal to it, or a small update away while other weights are equal",
    "updated": "a small update away",
    "different": "other values",
    "missing": "in the reference only",
    "added": "in actual only",
    "unrecorded": "in one side only, and the other one is a dump, which has only parameters that were read",
    "unreadable": "cannot be read",
}


class WeightPart(NamedTuple):
    """Consecutive rows of a weight of actual, and the rows of a weight of the reference that correspond to them.

    unit  "rows", "columns" or "elements": the unit of `start`, `length` and `reference_start`
    """

    actual: str
    start: int
    length: int
    reference: str
    reference_start: int
    unit: str


class WeightFinding(NamedTuple):
    """Weights of both sides that belong together.

    relation   a key of RELATIONS
    verdict    equal, noise (rounding), unmatched, different or unreadable
    text       the layout in words; "" if the relation says enough
    measure    the size of the difference in words; "" if there is none
    parts      the first parts that correspond, if the layouts differ
    relative, largest  L2 norm of the difference relative to the reference, and largest absolute difference, of the
               elements that were measured; None if all rows are equal
    """

    relation: str
    verdict: str
    actual: tuple[str, ...]
    reference: tuple[str, ...]
    text: str = ""
    measure: str = ""
    parts: tuple[WeightPart, ...] = ()
    relative: Optional[float] = None
    largest: Optional[float] = None


class WeightComparison(NamedTuple):
    """The result of `compare_weights`.

    findings  the findings, the worst ones first
    totals    number of weights of actual, and of the reference
    nbytes    size of all weights of both sides
    """

    actual: str
    reference: str
    findings: tuple[WeightFinding, ...]
    totals: tuple[int, int]
    nbytes: int

    @property
    def verdict(self) -> str:
        """The worst of equal < noise < unmatched < different < unreadable."""
        return max((finding.verdict for finding in self.findings), key=_VERDICTS.index, default="equal")

    @property
    def counts(self) -> dict[str, int]:
        """The number of weights by relation.

        Weights of actual are counted. If a finding has none, its weights of the reference are counted.
        """
        counts = Counter[str]()
        for finding in self.findings:
            counts[finding.relation] += len(finding.actual) or len(finding.reference)
        return {relation: counts[relation] for relation in RELATIONS if counts[relation]}

    def groups(self) -> list[tuple[str, str, str]]:
        """Group the findings that differ only in the layer. Return the relation, names and text of each group."""
        groups: dict[tuple[Any, ...], list[WeightFinding]] = {}
        for finding in self.findings:
            groups.setdefault(_group_key(finding), []).append(finding)
        return [(members[0].relation, _names_text(members), _details(members)) for members in groups.values()]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON document `compare-weights`."""
        return {
            "actual": self.actual,
            "reference": self.reference,
            "verdict": self.verdict,
            "counts": self.counts,
            "weights": {"actual": self.totals[0], "reference": self.totals[1]},
            "bytes": self.nbytes,
            "findings": [
                {**finding._asdict(), "parts": [part._asdict() for part in finding.parts]} for finding in self.findings
            ],
        }

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {relation}" for relation, count in self.counts.items())
        return f"<WeightComparison {self.verdict}: {counts}>"


def ordered(findings: Iterable[WeightFinding]) -> tuple[WeightFinding, ...]:
    """Return findings, the worst ones first; those of the same verdict by relation."""
    relations = [*RELATIONS]
    return tuple(
        sorted(
            findings,
            key=lambda members: (-_VERDICTS.index(members.verdict), -relations.index(members.relation), members.actual),
        )
    )


def _group_key(finding: WeightFinding) -> tuple[Any, ...]:
    key = (finding.relation, finding.verdict, finding.text)
    if finding.actual == finding.reference or not finding.actual or not finding.reference:
        return key
    sides = (
        tuple(dict.fromkeys(parsed(name).template for name in side)) for side in (finding.actual, finding.reference)
    )
    return (*key, *sides)


def _details(findings: Sequence[WeightFinding]) -> str:
    worst = max(findings, key=lambda finding: finding.relative or 0.0)
    is_largest = worst.relative is not None and worst.relation != "cast" and len(findings) > 1
    largest = f"largest in {worst.actual[0]}: " if is_largest else ""
    return "; ".join(filter(None, (worst.text, largest + worst.measure)))


def _names_text(findings: Sequence[WeightFinding]) -> str:
    sides = [list(_patterns(findings, is_actual)) for is_actual in (True, False)]
    if sides[0] == sides[1] or not all(sides):
        names = sides[0] or sides[1]
        if len(names) == 1:
            return names[0]
        same = " of the same names" if all(sides) else ""
        return f"{counted(len(findings), 'weight')}{same}: {_few(names, 2)}"
    return " = ".join(_few(side) for side in sides if side)


def _patterns(findings: Sequence[WeightFinding], is_actual: bool) -> Iterator[str]:
    """Yield the names of one side, with the ranges of their numbers."""
    by_template: dict[str, list[tuple[int, ...]]] = {}
    for finding in findings:
        for name in finding.actual if is_actual else finding.reference:
            template, numbers = parsed(name)
            by_template.setdefault(template, []).append(numbers)
    for template, rows in by_template.items():
        columns = [numbers_text(column) for column in zip(*rows)]
        yield template.format(*(text if text.isdigit() else f"{{{text}}}" for text in columns))


def _few(names: Sequence[str], most: int = 3) -> str:
    """Join the first names. Names after the first are shortened by the leading words that they share with the first."""
    shown = list(names[:most])
    first = shown[0] if shown else ""
    for number, name in enumerate(shown[1:], 1):
        prefix = 0
        while prefix < min(len(name), len(first)) and name[prefix] == first[prefix]:
            prefix += 1
        cut = name.rfind(".", 0, prefix) + 1
        shown[number] = f"…{name[cut:]}" if cut > 1 else name
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return " + ".join(shown) + more
