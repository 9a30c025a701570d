"""The result of a comparison of two dumps, and its file formats."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from ascend_dump.analysis.explaining.pairs import Pairs
from ascend_dump.analysis.explaining.results import ChangedCall, Crossing, Origin, Pair
from ascend_dump.analysis.judging.verdict import ORDER, Rules, worst
from ascend_dump.common.units import counted
from ascend_dump.errors import ConfigError
from ascend_dump.reading.catalog import polars_or_refuse
from ascend_dump.report.saving import check_suffix, save_bytes

if TYPE_CHECKING:
    import polars

    from ascend_dump.report.page import PageContent

__all__ = ["SUFFIXES", "Comparison"]

#: Of the formats that a comparison is saved in.
SUFFIXES = (".json", ".csv", ".html", ".parquet", ".xml")


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two dumps, tensor by tensor.

    pairs       a sequence of `Pair`: every record of both dumps in the execution order of the reference; records that
                only actual has stand where they ran. Pairs of identical steps are created when they are accessed
    origins     differences that no earlier record explains, the likely causes first
    changed     operators after such a difference that are called with other arguments, whose effect the difference
                hides
    several_ranks  whether several ranks were compared, each of which may have an operator of the same name
    verdict     the worst of all pairs: equal < noise < undecided < unmatched < structure < different < unreadable
    rules       the thresholds that were used
    inside      for programs in two frameworks: how many operators of actual and of the reference are inner operators of
                a pair; their tensors do not exist on the other side and are not compared
    left_out    for the same: how many operators of actual and of the reference have no floating-point values of their
                own to compare: views, constants, indices, modules whose functions are recorded
    crossings   operators that were paired by weak evidence, and whose order contradicts that of other pairs: check
                these first if a verdict is surprising, and correct them by a mapping
    unused      names of the mapping and globs of the rules that fit nothing in the dumps, each in words
    allowed     globs of operators that may be missing on one side, see `allowing`
    """

    actual: Path
    reference: Path
    pairs: Pairs
    origins: tuple[Origin, ...]
    rules: Rules = field(default_factory=Rules)
    inside: tuple[int, int] = (0, 0)
    crossings: tuple[Crossing, ...] = ()
    changed: tuple[ChangedCall, ...] = ()
    left_out: tuple[int, int] = (0, 0)
    several_ranks: bool = False
    unused: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    def allowing(self, *globs: str) -> Comparison:
        """The same comparison, in which operators with such names may be missing on one side.

        Their records count as `allowed` in place of `unmatched`, and are no failures in JUnit XML.

        Raises ConfigError for what is no text.

        >>> comparison.allowing("*dropout*").verdict   # doctest: +SKIP
        """
        for glob in globs:
            if not isinstance(glob, str):
                raise ConfigError(
                    f"allowing() was given {glob!r}, expected globs of operator names",
                    hint='give each as an argument of its own: allowing("*dropout*", "*noise*")',
                )
        return replace(self, allowed=(*self.allowed, *globs))

    def is_allowed(self, pair: Pair) -> bool:
        """Whether it is a record without a partner whose operator may be missing on one side."""
        return pair.verdict == "unmatched" and any(fnmatchcase(pair.record.op_name, glob) for glob in self.allowed)

    @property
    def verdict(self) -> str:
        return worst([verdict for verdict in self.counts if verdict in ORDER])

    @property
    def counts(self) -> dict[str, int]:
        """How many pairs have each verdict, the best verdict first; after them how many are allowed, if any."""
        found = self.pairs.verdicts()
        if self.allowed:
            allowed = sum(map(self.is_allowed, self.pairs.looked_at()))
            found.update({"unmatched": -allowed, "allowed": allowed})
        return {verdict: found[verdict] for verdict in (*ORDER, "allowed") if found[verdict]}

    @property
    def unmatched(self) -> tuple[Pair, ...]:
        """The pairs of records that exist on one side only, and are not allowed to."""
        return tuple(
            pair for pair in self.pairs.looked_at() if pair.verdict == "unmatched" and not self.is_allowed(pair)
        )

    @property
    def has_partners(self) -> bool:
        """Whether at least one record was paired with one of the other side."""
        alone = [pair for pair in self.pairs.looked_at() if pair.actual is None or pair.reference is None]
        return len(alone) < len(self.pairs)

    @property
    def undefined(self) -> dict[str, int]:
        """Tensors that differ but carry no value of the program: what they are and why, with the number of records."""
        return dict(
            Counter(
                f"{one.record.io} {one.record.index} of {one.record.op_type}: {one.undefined}"
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
        """Write `mapping` as a JSON file for `compare(mapping=...)`, to be edited. Raises WriteError."""
        import json

        target = Path(path)
        text = json.dumps(self.mapping, indent=1, ensure_ascii=False) + "\n"
        save_bytes(target, text.encode(errors="backslashreplace"), "the mapping")
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
            "left_out": dict(zip(("actual", "reference"), self.left_out)),
            "unused": list(self.unused),
            "allowed": list(self.allowed),
            "crossings": [crossing._asdict() for crossing in self.crossings],
            "pairs": [pair.to_dict() for pair in self.pairs],
        }

    def to_frame(self) -> polars.DataFrame:
        """One row for each pair. Raises NotSupported without polars."""
        pl = polars_or_refuse("to_frame()")
        frame: polars.DataFrame = pl.DataFrame(
            [_flat(pair) for pair in self.pairs], infer_schema_length=None, strict=False
        )
        return frame

    def save(self, path: Union[str, os.PathLike[str]], *, sources: Union[str, os.PathLike[str], None] = ".") -> Path:
        """Write the comparison as a file.

        The suffix selects the format: .html (a page), .json, .csv, .parquet (needs polars), .xml (JUnit).

        sources: the page shows lines of Python files below this directory where records name them; None shows none.
        Raises ConfigError for another suffix, WriteError if the file cannot be written.
        """
        target = Path(path)
        check_suffix(target, SUFFIXES, "a comparison")
        suffix = target.suffix.lower()
        if suffix == ".html":
            from ascend_dump.report.page import save_page

            return save_page(self.to_page(), target, "a comparison", sources)
        save_bytes(target, self._encoded(suffix), "the comparison")
        return target

    def _encoded(self, suffix: str) -> bytes:
        if suffix == ".xml":
            from ascend_dump.analysis.compare._junit import junit

            return junit(self.pairs, self.is_allowed)
        if suffix == ".parquet":
            packed = io.BytesIO()
            self.to_frame().write_parquet(packed)
            return packed.getvalue()
        if suffix == ".json":
            import json

            # Infinity is written as text: JSON has no number for it.
            return (json.dumps(_finite(self.to_dict()), indent=1, allow_nan=False) + "\n").encode()
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, _COLUMNS)
        writer.writeheader()
        writer.writerows(_flat(pair) for pair in self.pairs)
        return text.getvalue().encode(errors="backslashreplace")

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
