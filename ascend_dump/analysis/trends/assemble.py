"""Assemble the curves of a run and of its reference."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from ascend_dump.analysis.judging.second_run import refuse_same_dump
from ascend_dump.analysis.trends.curves import Curve, CurveSelection, CurveSpike, CurvesRead, read_curves
from ascend_dump.analysis.trends.export import CurveSide, export_curves, frame_of
from ascend_dump.analysis.trends.parting import ROUNDING, CurvePair, Parting, find_partings, pair_curves
from ascend_dump.analysis.trends.quantities import execution_order
from ascend_dump.common.units import counted
from ascend_dump.errors import ConfigError, DumpNotFound
from ascend_dump.reading import Dump, open_dump

if TYPE_CHECKING:
    import polars

__all__ = ["Trends", "trends"]

_Dumplike = Union[Dump, str, "os.PathLike[str]"]
_Watch = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Trends:
    """The curves of a run.

    path       path of the dump
    curves     the curves of the dump, in the order of execution
    reference  path of the reference; None if none was given
    noise      path of the other run of the reference; None if none was given
    reference_curves  the curves of the reference
    verdict    "" without a reference; "equal"; "noise" if no curve parts: all differences are rounding, or at most
               a few times those of two runs of the reference; "different"; "unmatched" if no curve has a step in common
               with the reference
    partings   for each curve that differs, the first step at which it does; the earliest first
    unmatched  number of curves of both sides without a partner, or without a step in common with it
    notes      sentences about missing or uncertain results
    unreadable number of records that cannot be read
    """

    path: Path
    curves: tuple[Curve, ...]
    reference: Optional[Path] = None
    noise: Optional[Path] = None
    reference_curves: tuple[Curve, ...] = ()
    verdict: str = ""
    partings: tuple[Parting, ...] = ()
    unmatched: int = 0
    notes: tuple[str, ...] = ()
    unreadable: int = 0
    #: `CurveSide` values. Programs must not use them.
    _sides: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    @property
    def steps(self) -> list[int]:
        """The steps of all curves, in ascending order."""
        return sorted({step for curve in self.curves for step in curve.steps})

    @property
    def spikes(self) -> tuple[tuple[Curve, CurveSpike], ...]:
        """The first spike of each curve that has one, sorted by step; within a step in the order of execution."""
        first = [
            (curve.spikes[0].step, execution_order(curve.quantity, number), curve)
            for number, curve in enumerate(self.curves)
            if curve.spikes
        ]
        return tuple((curve, curve.spikes[0]) for _, _, curve in sorted(first, key=lambda spike: spike[:2]))

    @property
    def first_nonfinite(self) -> Optional[tuple[Curve, int]]:
        """The curve with the earliest NaN or Inf, and its step; None if there is none."""
        nonfinite = [(curve, step) for curve in self.curves if (step := curve.first_nonfinite) is not None]
        return min(nonfinite, key=lambda pair: pair[1], default=None)

    def curve(self, name: str, quantity: str) -> Curve:
        """Return the first curve of a module or parameter. Raises ConfigError if there is none."""
        for curve in self.curves:
            if (curve.name, curve.quantity) == (name, quantity):
                return curve
        quantities = sorted({curve.quantity for curve in self.curves if curve.name == name})
        hint = (
            f"it has {', '.join(quantities)}" if quantities else _nearest(name, (curve.name for curve in self.curves))
        )
        raise ConfigError(f"{self.path} has no curve {quantity!r} of {name!r}", hint=hint)

    def to_dict(self) -> dict[str, Any]:
        """Return the curves as plain values, for JSON."""
        return {
            "path": str(self.path),
            "reference": None if self.reference is None else str(self.reference),
            "noise": None if self.noise is None else str(self.noise),
            "verdict": self.verdict,
            "partings": [parting.to_dict() for parting in self.partings],
            "unmatched": self.unmatched,
            "curves": [curve.to_dict() for curve in self.curves],
            "reference_curves": [curve.to_dict() for curve in self.reference_curves],
            "notes": list(self.notes),
            "unreadable": self.unreadable,
        }

    def to_frame(self) -> polars.DataFrame:
        """Return a table with a row for each value.

        Its columns are run, rank, model, kind, name, quantity, step and value; with a reference, the first
        column is `side`.

        Raises NotSupported without polars.
        """
        return frame_of(self._sides)

    def export(self, format: str, path: Union[str, os.PathLike[str]]) -> Path:
        """Write the curves.

        format  "csv" or "parquet" (needs polars): a file with the rows of `to_frame`; "tensorboard" (needs the package
                tensorboard): a directory of event files, with one run of TensorBoard for each side, run and rank

        Raises ConfigError for another format, NotSupported if the package is missing, and WriteError.
        """
        return export_curves(self._sides, format, Path(path))

    def __repr__(self) -> str:
        verdict = f", {self.verdict}" if self.verdict else ""
        counts = f"{counted(len(self.curves), 'curve')} of {counted(len(self.steps), 'step')}"
        return f"<Trends {self.path}: {counts}, {counted(len(self.spikes), 'spike')}{verdict}>"


def trends(
    dump: _Dumplike,
    reference: Optional[_Dumplike] = None,
    *,
    noise: Optional[_Dumplike] = None,
    module: Optional[str] = None,
    parameter: Optional[str] = None,
    watch: Optional[_Watch] = None,
) -> Trends:
    """Return the curves of modules and parameters over the steps of a run, and the steps at which they part.

    A curve parts at the first step at which it differs from the curve of the reference.

    dump, reference  dumps, or paths of dumps; `capture(data="stats", level="module", steps="0-:10")` writes small ones
    noise       a dump of another run of the reference, such as with another seed. A curve then parts only if it differs
                several times as much as the two runs of the reference do. Without this dump, every difference above
                rounding is a parting
    module      glob or `re:` pattern: select the modules that match, and their parameters
    parameter   pattern of parameters; with both patterns, a curve is selected if one of them matches
    watch       an iterator function that receives each record and yields it, for a progress display

    Statistics that are not recorded are computed from the recorded tensors.

    Raises what opening a dump raises, DumpNotFound if nothing matches, and ConfigError for noise without a reference or
    for one dump as a side and as noise.

    >>> found = ascend_dump.trends("dumps")                              # doctest: +SKIP
    >>> found.spikes, found.curve("fc.weight", "gradient_norm").values   # doctest: +SKIP
    """
    selection = CurveSelection(module, parameter)
    if noise is not None and reference is None:
        raise ConfigError("noise= was given without a reference", hint="give the run to compare with too")
    opened = [None if side is None else _opened(side) for side in (dump, reference, noise)]
    actual, against, second_run = opened
    assert actual is not None, "it is required"
    if against is not None and second_run is not None:
        refuse_same_dump(actual, against, second_run)
    read = {
        name: read_curves(side, selection, watch or (lambda records: records))
        for name, side in zip(("actual", "reference", "noise"), opened)
        if side is not None
    }
    for side, curves in zip((actual, against), (read["actual"], read.get("reference"))):
        if side is not None and curves is not None and not curves.curves:
            raise _no_curves(side, selection, curves)
    notes = list(_notes(read))
    sides = tuple(CurveSide(name, *read[name][:2]) for name in ("actual", "reference") if name in read)
    alone = Trends(
        actual.root,
        read["actual"].curves,
        notes=tuple(notes),
        unreadable=sum(curves.unreadable for curves in read.values()),
        _sides=sides,
    )
    return alone if against is None else _against(alone, against, second_run, read)


def _opened(dump: _Dumplike) -> Dump:
    return dump if isinstance(dump, Dump) else open_dump(dump)


def _against(alone: Trends, reference: Dump, second_run: Optional[Dump], read: Mapping[str, CurvesRead]) -> Trends:
    again = read["noise"].curves if "noise" in read else None
    pairs, unmatched = pair_curves(alone.curves, read["reference"].curves, again)
    measured = sum(pair.noise() is not None for pair in pairs)
    partings = find_partings(pairs, has_noise=bool(measured))
    notes = list(alone.notes)
    if second_run is not None and not measured:
        notes.append(f"{second_run.root} has no step and curve in common with the reference: the noise is not known")
    if not measured and partings:
        notes.append(
            f"no noise was measured: each difference above rounding ({ROUNDING:g}) counts, and another seed alone "
            "may explain it; give --noise with another run of the reference"
        )
    if unmatched:
        notes.append(f"{counted(unmatched, 'curve')} without a partner, or without a step in common")
    return Trends(
        alone.path,
        alone.curves,
        reference.root,
        None if second_run is None else second_run.root,
        read["reference"].curves,
        _verdict(pairs, partings),
        tuple(partings),
        unmatched,
        tuple(notes),
        alone.unreadable,
        alone._sides,
    )


def _verdict(pairs: list[CurvePair], partings: list[Parting]) -> str:
    if not pairs:
        return "unmatched"
    if partings:
        return "different"
    return "equal" if all(pair.is_equal for pair in pairs) else "noise"


def _notes(read: Mapping[str, CurvesRead]) -> Iterable[str]:
    for name, curves in read.items():
        if curves.unreadable:
            yield f"{counted(curves.unreadable, 'record')} of {name} cannot be read: {curves.first_error}"
    curves = read["actual"]
    steps = {step for curve in curves.curves for step in curve.steps}
    if len(steps) == 1:
        yield 'one step only, which is no curve: capture several, with steps="0-:10"'
    if not curves.has_parameters:
        yield (
            'no parameter is recorded: capture(data="stats", level="module") records their norms if a PyTorch '
            'optimizer is called within a recorded step; with gradient accumulation add options={"step": "optimizer"}'
        )
        return
    updated = {step for curve in curves.curves if curve.kind == "parameter" for step in curve.steps}
    if updated and len(updated) < len(steps):
        yield (
            f"parameters have values only in the {len(updated)} of {len(steps)} steps in which an optimizer stepped: "
            'with options={"step": "optimizer"}, each step ends with an update by the optimizer'
        )


def _no_curves(dump: Dump, selection: CurveSelection, read: CurvesRead) -> DumpNotFound:
    chosen = {"module": selection.module, "parameter": selection.parameter}
    patterns = [f"{name}={text!r}" for name, text in chosen.items() if text is not None]
    if patterns:
        names = {
            name: [
                curve.name for curve in read_curves(dump).curves if (curve.kind == "parameter") == (name == "parameter")
            ]
            for name, text in chosen.items()
            if text is not None
        }
        hint = "; ".join(_nearest(str(chosen[name]), known) for name, known in names.items())
        return DumpNotFound(f"no curve matches {', '.join(patterns)}", path=dump.root, hint=hint)
    reason = f"; {read.first_error}" if read.first_error else ""
    return DumpNotFound(
        f"no curve: no record of a step has a floating-point output{reason}",
        path=dump.root,
        hint='capture(data="stats", level="module", steps="0-:10") records curves',
    )


def _nearest(pattern: str, names: Iterable[str]) -> str:
    choices = sorted(set(names))
    near = get_close_matches(pattern.strip("*"), choices, n=3, cutoff=0.3) or choices[:3]
    return f"nearest: {', '.join(name or 'the model' for name in near)}" if near else "the dump has none"
