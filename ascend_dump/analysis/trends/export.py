"""Write curves as event files of TensorBoard, as Parquet or as CSV."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.analysis.trends.curves import Curve
from ascend_dump.common.paths import PRIVATE_FILE, make_private_directory, open_private
from ascend_dump.common.suggest import did_you_mean
from ascend_dump.errors import ConfigError, NotSupported
from ascend_dump.reading.catalog import polars_or_refuse
from ascend_dump.report.saving import writing

if TYPE_CHECKING:
    import polars

__all__ = ["FORMATS", "CurveSide", "check_format", "export_curves", "frame_of"]

FORMATS = ("tensorboard", "parquet", "csv")

_COLUMNS = ("side", "run", "rank", "model", "kind", "name", "quantity", "step", "value")


class CurveSide(NamedTuple):
    """The curves of a dump. name: "actual" or "reference"; times: as in `CurvesRead`."""

    name: str
    curves: Sequence[Curve]
    times: Mapping[Any, float]


def check_format(format: str) -> None:
    """Raise ConfigError for an unknown format, NotSupported if the package that writes it is missing."""
    if format not in FORMATS:
        guess = did_you_mean(format, FORMATS)
        raise ConfigError(f"curves cannot be exported as {format!r}", hint=f"{guess}formats: {', '.join(FORMATS)}")
    if format == "parquet":
        polars_or_refuse("Parquet")
    elif format == "tensorboard":
        _tensorboard_or_refuse()


def export_curves(sides: Sequence[CurveSide], format: str, path: Path) -> Path:
    """Write curves to a file, or a directory for TensorBoard, and return its path. Raises as `Trends.export` does."""
    check_format(format)
    if format == "tensorboard":
        _write_events(sides, path)
    elif format == "parquet":
        packed = io.BytesIO()
        frame_of(sides).write_parquet(packed)
        _save(path, packed.getvalue())
    else:
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(_columns(sides))
        writer.writerows(_rows(sides))
        _save(path, text.getvalue().encode(errors="backslashreplace"))
    return path


def _save(path: Path, content: bytes) -> None:
    """Write a table that only its owner can read, never through a link. Raises WriteError."""
    with writing(path, "the table of curves"), os.fdopen(open_private(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(content)


def frame_of(sides: Sequence[CurveSide]) -> polars.DataFrame:
    """Return a row for each value. Raises NotSupported without polars."""
    pl = polars_or_refuse("to_frame()")
    types = dict.fromkeys(_COLUMNS, pl.Utf8)
    types.update(rank=pl.Int64, step=pl.Int64, value=pl.Float64)
    columns = _columns(sides)
    frame: polars.DataFrame = pl.DataFrame(
        list(_rows(sides)), schema={name: types[name] for name in columns}, orient="row"
    )
    return frame


def _columns(sides: Sequence[CurveSide]) -> tuple[str, ...]:
    return _COLUMNS if len(sides) > 1 else _COLUMNS[1:]


def _rows(sides: Sequence[CurveSide]) -> Iterator[tuple[Any, ...]]:
    for side in sides:
        for curve in side.curves:
            fields = (curve.run, curve.rank, curve.model, curve.kind, curve.name, curve.quantity)
            lead = (side.name, *fields) if len(sides) > 1 else fields
            yield from ((*lead, step, value) for step, value in zip(curve.steps, curve.values))


def _tensorboard_or_refuse() -> tuple[Any, Any, Any]:
    """Return the writer of event files, and the messages Event and Summary of the package tensorboard."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise NotSupported(
            f"event files need the package tensorboard, which cannot be imported: {error}",
            hint="pip install 'ascend-dump[tensorboard]', or export csv",
        ) from None
    return EventFileWriter, Event, Summary


def _write_events(sides: Sequence[CurveSide], directory: Path) -> None:
    """Write event files below `directory`, with a directory for each side, run, rank and model.

    A level of directories is left out if there is only one side, run, rank or model.
    """
    writer_of, event_of, summary_of = _tensorboard_or_refuse()
    several = _several(sides)
    groups: dict[Path, list[tuple[CurveSide, Curve]]] = {}
    for side in sides:
        for curve in side.curves:
            groups.setdefault(directory.joinpath(*_names(side, curve, several)), []).append((side, curve))
    with writing(directory, "the event files"):
        for path, members in groups.items():
            make_private_directory(path, "--export tensorboard ")
            # In a fresh directory nobody has put a link where the writer creates its file.
            with tempfile.TemporaryDirectory(prefix=".events-", dir=path) as fresh:
                writer = writer_of(fresh)
                try:
                    for event in _events(members, event_of, summary_of):
                        writer.add_event(event)
                finally:
                    writer.close()
                for name in os.listdir(fresh):
                    os.chmod(os.path.join(fresh, name), PRIVATE_FILE)
                    os.replace(os.path.join(fresh, name), path / name)


def _several(sides: Sequence[CurveSide]) -> list[str]:
    curves = [curve for side in sides for curve in side.curves]
    # Two sides always have runs of different names.
    runs = any(len({curve.run for curve in side.curves}) > 1 for side in sides)
    axes = [name for name in ("rank", "model") if len({getattr(curve, name) for curve in curves}) > 1]
    return [*(["side"] if len(sides) > 1 else []), *(["run"] if runs else []), *axes]


def _names(side: CurveSide, curve: Curve, several: Sequence[str]) -> list[str]:
    """Return the directories of a curve, which are the names of runs in TensorBoard."""
    parts = [side.name] if "side" in several else []
    return parts + [f"{name}_{_as_file_name(getattr(curve, name))}" for name in several if name != "side"]


def _as_file_name(value: Optional[object]) -> str:
    text = "none" if value is None else str(value)
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in text)[:100]


def _events(members: Sequence[tuple[CurveSide, Curve]], event_of: Any, summary_of: Any) -> Iterator[Any]:
    """Yield one event for each step, with all values of this step. The tag of a value is `quantity/name`."""
    by_step: dict[int, list[tuple[str, float]]] = {}
    times: dict[int, float] = {}
    for side, curve in members:
        tag = f"{curve.quantity}/{curve.name or 'model'}"
        key = (curve.run, curve.rank, curve.model)
        for step, value in zip(curve.steps, curve.values):
            by_step.setdefault(step, []).append((tag, value))
            times.setdefault(step, side.times.get((key, step), 0.0))
    for step, values in sorted(by_step.items()):
        summary = summary_of(value=[summary_of.Value(tag=tag, simple_value=value) for tag, value in values])
        yield event_of(wall_time=times[step], step=step, summary=summary)
