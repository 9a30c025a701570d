"""The result of a comparison of two dumps, and its file formats."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from ascend_dump.analysis.compare._surroundings import Surrounding
from ascend_dump.analysis.explaining.pairs import Pairs
from ascend_dump.analysis.explaining.results import ChangedCall, Crossing, Origin, Pair, Rebuilt
from ascend_dump.analysis.judging.input_noise import FOLLOWS_FLIPS
from ascend_dump.analysis.judging.verdict import ORDER, Rules, worst
from ascend_dump.common.units import counted
from ascend_dump.errors import ConfigError
from ascend_dump.reading.catalog import polars_or_refuse
from ascend_dump.report.saving import check_suffix, save_bytes

if TYPE_CHECKING:
    import polars

    from ascend_dump.report.page import PageContent

__all__ = ["SUFFIXES", "Comparison"]

#: Suffixes of the file formats of a comparison.
SUFFIXES = (".json", ".csv", ".html", ".parquet", ".xml")


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two dumps, tensor by tensor.

    pairs       a sequence of `Pair`: every record of both dumps in the execution order of the reference. A record that
                only actual has is placed where it ran. Pairs of identical steps are created when they are accessed
    origins     differences that no earlier record explains, the likely causes first
    changed     operators after such a difference that are called with different arguments. The difference hides their
                effect
    several_ranks  several ranks were compared, each may have an operator of the same name
    verdict     the worst of all pairs: equal < noise < undecided < unmatched < structure < different < unreadable
    rules       the thresholds that were used
    inside      for programs in two frameworks: numbers of operators of actual and of the reference that are inner
                operators of a pair; their tensors do not exist on the other side and are not compared
    left_out    for programs in two frameworks: numbers of operators of actual and of the reference without
                floating-point values of their own: views, constants, indices, modules with recorded functions
    crossings   operators that were paired by weak evidence, although in another order than other pairs: check these
                first if a verdict is surprising, and correct them by a mapping
    unused      names of the mapping and globs of the rules that fit nothing in the dumps, each in words
    rebuilt     parts of the program that are built differently and agree: their insides are in no pair
    around      versions, environment variables and settings that differ
    aligned     sentences on the rows of a batch that were compared, on tensors that cannot be aligned, and on operators
                that the settings of a capture leave out
    omitted     for a comparison by tokens: the number of tensors that were not compared, by the reason
    labels      the worst verdict of each label, "" for records without one; empty unless several labels were compared
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
    rebuilt: tuple[Rebuilt, ...] = ()
    around: tuple[Surrounding, ...] = ()
    aligned: tuple[str, ...] = ()
    omitted: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def allowing(self, *globs: str) -> Comparison:
        """Return the comparison in which operators whose names match a glob may be missing on one side.

        The records of these operators count as `allowed` in place of `unmatched`, and are no failures in JUnit XML.

        Raises ConfigError for an argument that is no text.

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
        """Return True for a record without a partner of an operator that may be missing on one side."""
        return pair.verdict == "unmatched" and any(fnmatchcase(pair.record.op_name, glob) for glob in self.allowed)

    @property
    def verdict(self) -> str:
        return worst([verdict for verdict in self.counts if verdict in ORDER])

    @property
    def counts(self) -> dict[str, int]:
        """The number of pairs with each verdict, the best verdict first; then the number of allowed ones, if any."""
        counts = self.pairs.verdicts()
        if self.allowed:
            allowed = sum(map(self.is_allowed, self.pairs.looked_at()))
            counts.update({"unmatched": -allowed, "allowed": allowed})
        return {verdict: counts[verdict] for verdict in (*ORDER, "allowed") if counts[verdict]}

    @property
    def unmatched(self) -> tuple[Pair, ...]:
        """The pairs of records that exist on one side only, without those that are allowed to."""
        return tuple(
            pair for pair in self.pairs.looked_at() if pair.verdict == "unmatched" and not self.is_allowed(pair)
        )

    @property
    def has_partners(self) -> bool:
        """True if at least one record was paired."""
        alone = [pair for pair in self.pairs.looked_at() if pair.actual is None or pair.reference is None]
        return len(alone) < len(self.pairs)

    @property
    def undefined(self) -> dict[str, int]:
        """The number of records that differ but have no defined value, by tensor and reason in words."""
        return dict(
            Counter(f"{_described(pair)}: {pair.undefined}" for pair in self.pairs.looked_at() if pair.undefined)
        )

    @property
    def mapping(self) -> dict[str, str]:
        """The names of operators of actual, and those of their partners in the reference.

        Can be edited and passed to `compare(mapping=...)`.
        """
        names: dict[str, tuple[int, str]] = {}
        for pair in self.pairs:
            a, b = pair.actual, pair.reference
            if a is not None and b is not None and a.io != "input":
                # Later outputs of a fused operator may be paired with other operators, so the first output decides.
                earlier = names.get(a.op_name)
                if earlier is None or a.index < earlier[0]:
                    names[a.op_name] = (a.index, b.op_name)
        return {name: reference for name, (_, reference) in names.items()}

    def save_mapping(self, path: Union[str, os.PathLike[str]]) -> Path:
        """Write `mapping` as a JSON file for `compare(mapping=...)`, to be edited. Raises WriteError."""
        import json

        target = Path(path)
        text = json.dumps(self.mapping, indent=1, ensure_ascii=False) + "\n"
        save_bytes(target, text.encode(errors="backslashreplace"), "the mapping")
        return target

    def worst_pairs(self, count: int = 10) -> list[Pair]:
        """Return the pairs with the largest differences, unexplained ones first."""
        passed = ("equal", "noise", "undecided", "unmatched")
        pairs = [pair for pair in self.pairs.looked_at() if pair.verdict not in passed]
        pairs.sort(key=lambda pair: (pair.explained, -ORDER.index(pair.verdict), -_size(pair)))
        return pairs[:count]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values, for JSON."""
        return {
            "schema": "ascend-dump/comparison/1",
            "actual": str(self.actual),
            "reference": str(self.reference),
            "verdict": self.verdict,
            "counts": self.counts,
            "origins": [origin.to_dict() for origin in self.origins],
            "changed": [call.to_dict() for call in self.changed],
            "rules": self.rules.to_dict(),
            "undefined": self.undefined,
            "inside": dict(zip(("actual", "reference"), self.inside)),
            "aligned": list(self.aligned),
            "omitted": dict(self.omitted),
            "left_out": dict(zip(("actual", "reference"), self.left_out)),
            "rebuilt": [part._asdict() for part in self.rebuilt],
            "around": [one._asdict() for one in self.around],
            "labels": dict(self.labels),
            "unused": list(self.unused),
            "allowed": list(self.allowed),
            "crossings": [crossing._asdict() for crossing in self.crossings],
            "pairs": [pair.to_dict() for pair in self.pairs],
        }

    def to_frame(self) -> polars.DataFrame:
        """Return one row for each pair. Raises NotSupported without polars."""
        pl = polars_or_refuse("to_frame()")
        frame: polars.DataFrame = pl.DataFrame(
            [_flat(pair) for pair in self.pairs], infer_schema_length=None, strict=False
        )
        return frame

    def save(self, path: Union[str, os.PathLike[str]], *, sources: Union[str, os.PathLike[str], None] = ".") -> Path:
        """Write the comparison as a file.

        The suffix selects the format: .html (a page), .json, .csv, .parquet (needs polars), .xml (JUnit).

        sources: the page shows lines of Python files below this directory that records name; None shows none.
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
        """Return the content of the report page, for `save("x.html")` and `ascend-dump serve`."""
        from ascend_dump.analysis.compare._page import of_comparison

        return of_comparison(self)

    def _repr_html_(self) -> str:
        """Return verdict and origins with a strip of all pairs, for notebooks."""
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
        return {name: _finite(element) for name, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(element) for element in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


def _described(pair: Pair) -> str:
    """Return the name under which a tensor without a defined value is counted.

    Tensors that follow from flips (roundings that change an index or flag) are counted together.
    """
    if pair.undefined == FOLLOWS_FLIPS:
        return "a tensor"
    return f"{pair.record.io} {pair.record.index} of {pair.record.op_type}"
