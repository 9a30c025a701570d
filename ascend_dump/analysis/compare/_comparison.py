"""The result of a comparison of two dumps, and its file formats."""

from __future__ import annotations

import csv
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from ascend_dump._errors import ConfigError, NotSupported
from ascend_dump._units import counted
from ascend_dump.analysis.compare._pairs import Pairs
from ascend_dump.analysis.compare._result import ChangedCall, Crossing, Origin, Pair
from ascend_dump.analysis.compare._verdict import ORDER, Rules, worst

if TYPE_CHECKING:
    import polars

    from ascend_dump.report.page import PageContent

__all__ = ["Comparison"]


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two dumps, tensor by tensor.

    pairs       a sequence of `Pair`: every record of both dumps in the execution order of the reference; records that
                only actual has stand where they ran. Pairs of identical steps are created when they are accessed
    origins     differences that no earlier record explains, the likely causes first
    changed     operators after such a difference that are called with other arguments, whose effect the difference
                hides
    verdict     the worst of all pairs: equal < noise < undecided < unmatched < structure < different < unreadable
    rules       the thresholds that were used
    inside      for programs in two frameworks: how many operators of actual and of the reference are inner operators of
                a pair; their tensors do not exist on the other side and are not compared
    crossings   operators that were paired by weak evidence, and whose order contradicts that of other pairs: check
                these first if a verdict is surprising, and correct them by a mapping
    """

    actual: Path
    reference: Path
    pairs: Pairs
    origins: tuple[Origin, ...]
    rules: Rules = field(default_factory=Rules)
    inside: tuple[int, int] = (0, 0)
    crossings: tuple[Crossing, ...] = ()
    changed: tuple[ChangedCall, ...] = ()

    @property
    def verdict(self) -> str:
        return worst(list(self.pairs.verdicts()))

    @property
    def counts(self) -> dict[str, int]:
        """How many pairs have each verdict, the best verdict first."""
        found = self.pairs.verdicts()
        return {verdict: found[verdict] for verdict in ORDER if found[verdict]}

    @property
    def unmatched(self) -> tuple[Pair, ...]:
        """The pairs of records that exist on one side only."""
        return tuple(pair for pair in self.pairs.looked_at() if pair.verdict == "unmatched")

    @property
    def has_partners(self) -> bool:
        """Whether at least one record was paired with one of the other side."""
        alone = [pair for pair in self.pairs.looked_at() if pair.actual is None or pair.reference is None]
        return len(alone) < len(self.pairs)

    @property
    def undefined(self) -> dict[str, int]:
        """Outputs that differ but carry no value of the program: what they are and why, with the number of records."""
        return dict(
            Counter(
                f"output {one.record.index} of {one.record.op_type}: {one.undefined}"
                for one in self.pairs.looked_at()
                if one.undefined
            )
        )

    @property
    def mapping(self) -> dict[str, str]:
        """The names of operators of actual and of the operators of the reference that they were paired with.

        Can be edited and given to `compare(mapping=...)`.
        """
        found: dict[str, tuple[int, str]] = {}
        for pair in self.pairs:
            one, other = pair.actual, pair.reference
            if one is not None and other is not None and one.io != "input":
                # Of a fused operator other outputs than the first may be those of other operators.
                known = found.get(one.op_name)
                if known is None or one.index < known[0]:
                    found[one.op_name] = (one.index, other.op_name)
        return {name: reference for name, (_, reference) in found.items()}

    def save_mapping(self, path: Union[str, os.PathLike[str]]) -> Path:
        """Write `mapping` as a JSON file for `compare(mapping=...)`, to be edited."""
        import json

        target = Path(path)
        target.write_text(json.dumps(self.mapping, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return target

    def worst_pairs(self, count: int = 10) -> list[Pair]:
        """The pairs that differ most, unexplained ones first."""
        passed = ("equal", "noise", "undecided", "unmatched")
        found = [pair for pair in self.pairs.looked_at() if pair.verdict not in passed]
        found.sort(key=lambda pair: (pair.explained, -ORDER.index(pair.verdict), -_size(pair)))
        return found[:count]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain values, for JSON."""
        return {
            "schema": "ascend-dump/comparison/1",
            "actual": str(self.actual),
            "reference": str(self.reference),
            "verdict": self.verdict,
            "counts": self.counts,
            "origins": [origin.to_dict() for origin in self.origins],
            "changed": [one.to_dict() for one in self.changed],
            "rules": self.rules.to_dict(),
            "undefined": self.undefined,
            "inside": dict(zip(("actual", "reference"), self.inside)),
            "crossings": [crossing._asdict() for crossing in self.crossings],
            "pairs": [pair.to_dict() for pair in self.pairs],
        }

    def to_frame(self) -> polars.DataFrame:
        """One row for each pair. Raises NotSupported without polars."""
        try:
            import polars
        except ImportError:
            raise NotSupported(
                "to_frame() needs polars, which is not installed", hint="pip install 'ascend-dump[analyze]'"
            ) from None
        return polars.DataFrame([_flat(pair) for pair in self.pairs], infer_schema_length=None, strict=False)

    def save(self, path: Union[str, os.PathLike[str]], *, sources: Union[str, os.PathLike[str], None] = ".") -> Path:
        """Write the comparison as a file.

        The suffix selects the format: .html (a page), .json, .csv, .parquet (needs polars), .xml (JUnit).

        sources: the page shows lines of Python files below this directory where records name them; None shows none.
        Raises ConfigError for another suffix, WriteError if the file cannot be written.
        """
        target = Path(path)
        suffix = target.suffix.lower()
        if suffix == ".json":
            import json

            # Infinity is written as text: JSON has no number for it.
            target.write_text(json.dumps(_finite(self.to_dict()), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        elif suffix == ".csv":
            rows = [_flat(pair) for pair in self.pairs]
            with open(target, "w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, _COLUMNS)
                writer.writeheader()
                writer.writerows(rows)
        elif suffix == ".parquet":
            self.to_frame().write_parquet(target)
        elif suffix == ".xml":
            from ascend_dump.analysis.compare._junit import junit

            target.write_bytes(junit(self.pairs))
        elif suffix == ".html":
            from ascend_dump.report.page import save_page

            save_page(self.to_page(), target, "a comparison", sources)
        else:
            raise ConfigError(
                f"{target.name!r}: a comparison is not saved as {suffix or 'a file without suffix'}",
                hint="expected .json, .csv, .html, .parquet or .xml",
            )
        return target

    def to_page(self) -> PageContent:
        """The content of the report page, for `save("x.html")` and `ascend-dump serve`."""
        from ascend_dump.analysis.compare._page import of_comparison

        return of_comparison(self)

    def _repr_html_(self) -> str:
        """Verdict and origins with a strip of all pairs, for notebooks."""
        from ascend_dump.report.page import compact

        return compact(self.to_page())

    def __repr__(self) -> str:
        return f"<Comparison {self.verdict}: {len(self.pairs)} pairs, {counted(len(self.origins), 'origin')}>"


def _size(pair: Pair) -> float:
    if pair.measure is None:
        return 0.0
    return float("inf") if pair.measure.nonfinite else pair.measure.rel_l2


_MEASURES = ("count", "unequal", "nonfinite", "max_abs", "max_rel", "rmse", "rel_l2", "cosine", "drift", "bias")
_COLUMNS = (
    *("step", "rank", "op_name", "op_type", "io", "index", "actual", "reference", "module", "source", "phase"),
    *("verdict", "reason", "how", "confidence", "transformation", "explained", "undefined"),
    *_MEASURES,
)


def _flat(pair: Pair) -> dict[str, Any]:
    row = pair.to_dict()
    measure = row.pop("measure") or {}
    return {**row, **{name: measure.get(name) for name in _MEASURES}}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value
