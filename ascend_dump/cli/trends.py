"""`ascend-dump trends`: print curves of modules and parameters over steps, and where two runs part."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import click

from ascend_dump.cli.shared.exit import Exit, exit_code
from ascend_dump.cli.shared.reading import (
    json_option,
    lost_fields,
    lost_of,
    open_selected,
    print_lost_records,
    progress,
    selector_options,
)
from ascend_dump.common.units import counted
from ascend_dump.errors import AscendDumpError, ConfigError, WriteError

if TYPE_CHECKING:
    from ascend_dump.analysis.trends import Curve, Trends
    from ascend_dump.report.tables import Column

#: Number of lines to which the answer is limited without --all, and maximum number of quantities named in a line.
_MOST_LINES, _MOST_NAMES = 25, 3
#: Fields that are shown as columns if the curves of a dump have different values in them.
_PLACES = ("run", "rank", "model")


@click.command(short_help="Show how modules and parameters change over steps, and where two runs part.")
@click.argument("dump", type=click.Path())
@click.argument("reference", type=click.Path(), required=False)
@selector_options("step", "rank", "model", "run")
@click.option("--module", metavar="TEXT", help="Modules, with their parameters: a glob such as *mlp*, or re:PATTERN.")
@click.option("--parameter", metavar="TEXT", help="Parameters: a glob such as *.weight, or re:PATTERN.")
@click.option(
    "--noise",
    metavar="DUMP",
    help="Another run of REFERENCE: differences no larger than between these two runs are noise.",
)
@click.option(
    "--export",
    type=(str, click.Path()),
    metavar="FORMAT PATH",
    multiple=True,
    help="Write the curves: tensorboard (a directory of event files), parquet or csv (a file).",
)
@click.option("--all", "show_all", is_flag=True, help="Print every curve.")
@json_option
def trends(
    dump: str,
    reference: Optional[str],
    module: Optional[str],
    parameter: Optional[str],
    noise: Optional[str],
    export: tuple[tuple[str, str], ...],
    show_all: bool,
    as_json: bool,
    **selectors: Optional[str],
) -> Exit:
    """Print the curves of DUMP over its steps: one line per module or parameter and quantity, largest change first.

    The quantities of a module are the largest magnitude, the root mean square and the fraction of zeros of its outputs,
    and the norm of the gradients of its outputs. The quantities of a parameter are its norm, the norm of its gradient,
    and the update ratio. A spike is a value far above the values before it.

    With REFERENCE, the first step and module where the two runs part are printed. --noise measures how far two runs of
    the reference are apart; without it, each difference above rounding counts.

    Exit code 0 if there are no spikes, NaN and Inf, and with REFERENCE if the runs do not part; 1 otherwise; 3 if not
    everything could be read.
    """
    from ascend_dump.analysis.trends import trends as read_trends

    _check_exports(export)
    actual = open_selected(dump, selectors)
    against, again = (None if path is None else open_selected(path, selectors) for path in (reference, noise))
    result = read_trends(
        actual,
        against,
        noise=again,
        module=module,
        parameter=parameter,
        watch=lambda records: progress(records, "records"),
    )
    failures = _export(result, export)
    lost = lost_of(side for side in (actual, against, again) if side is not None)
    if as_json:
        from ascend_dump.report.documents import write_document

        fields = result.to_dict()
        notes = [{"path": dump, "note": note} for note in fields.pop("notes")]
        write_document(sys.stdout, "trends", {**fields, "notes": [*notes, *lost_fields(lost)]})
    else:
        _show(result, full=show_all)
    print_lost_records(lost)
    for error in failures:
        print(f"error: {error}", file=sys.stderr)
    if failures:
        return exit_code(failures[-1])
    return Exit.UNREADABLE if lost or result.unreadable else _exit_of(result)


def _check_exports(exports: Sequence[tuple[str, str]]) -> None:
    """Raise ConfigError, NotSupported or WriteError for exports that cannot be written, before the work begins."""
    from ascend_dump.analysis.trends.export import check_format
    from ascend_dump.cli.shared.target import check_target

    for path, count in Counter(os.path.abspath(path) for _, path in exports).items():
        if count > 1:
            raise ConfigError(f"{path} is to be written {count} times", hint="give each export its own name")
    for name, path in exports:
        check_format(name)
        if name != "tensorboard":
            check_target("--export", path, f".{name}")
            continue
        target = Path(path)
        if target.exists() and not target.is_dir():
            raise ConfigError(
                f"--export tensorboard {path} is a file, expected the name of a directory",
                hint="give a directory for `tensorboard --logdir`",
            )
        parent = next(folder for folder in (target, *target.absolute().parents) if folder.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            raise WriteError(
                f"--export {path}: this user may not write {parent}", hint="give a directory that you may write"
            )


def _export(result: Trends, exports: Sequence[tuple[str, str]]) -> list[AscendDumpError]:
    """Write all exports that can be written. Return the errors of the others, so that the answer is still printed."""
    failures = []
    for name, path in exports:
        try:
            result.export(name, path)
        except AscendDumpError as error:
            failures.append(error)
    return failures


def _exit_of(result: Trends) -> Exit:
    if result.verdict:
        return Exit.OK if result.verdict in ("equal", "noise") else Exit.DIFFERENT
    return Exit.DIFFERENT if result.spikes or result.first_nonfinite is not None else Exit.OK


def _show(result: Trends, *, full: bool) -> None:
    from ascend_dump.analysis.trends.page_curves import ranked_curves
    from ascend_dump.report.tables import PIPE_WIDTH, escape, folded, write_table

    lines = [part for line in _lines(result) for part in folded(escape(line), sys.stdout, 2)]
    print("\n".join(lines))
    curves = ranked_curves(result.curves, result.partings)
    room = len(curves) if full else max(_MOST_LINES - len(lines) - 3, 1)
    shown = curves[:room]
    several = [name for name in _PLACES if len({getattr(curve, name) for curve in result.curves}) > 1]
    print()
    rows = (_cells(curve, several) for curve in shown)
    write_table(_columns(several), rows, sys.stdout, pipe_width=PIPE_WIDTH)
    if len(curves) > len(shown):
        print(f"and {counted(len(curves) - len(shown), 'more curve')}: --all, --module, --parameter")


def _lines(result: Trends) -> Iterator[str]:
    """Yield the lines of the answer that are printed above the table."""
    steps = result.steps
    kinds = Counter(kind for kind, _ in {(curve.kind, curve.name) for curve in result.curves})
    counts = ", ".join(counted(count, kind) for kind, count in sorted(kinds.items()))
    between = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
    yield f"{result.path}: {between}, {counts}, {counted(len(result.curves), 'curve')}"
    if result.verdict:
        yield from _partings(result)
    nonfinite = result.first_nonfinite
    if nonfinite is not None:
        yield f"NaN or Inf first in step {nonfinite[1]}: {nonfinite[0].label}"
    yield from _spikes(result)
    yield from result.notes


def _partings(result: Trends) -> Iterator[str]:
    measured = " the noise between two runs of the reference" if result.noise else " rounding"
    if not result.partings:
        reason = f": no curve differs by more than{measured}" if result.verdict == "noise" else ""
        yield f"{result.verdict}{reason}"
        return
    first = result.partings[0]
    together = [parting for parting in result.partings if parting.step == first.step]
    yield f"{result.verdict}: the runs part in step {first.step}, first in {first.curve.label}"
    noise = "" if first.noise is None else f"; two runs of the reference differ by up to x{_factor(first.noise)} here"
    yield f"  {first.actual:.6g}, the reference has {first.reference:.6g} ({first.percent}){noise}"
    yield f"  {_names([parting.curve for parting in together])} in this step, {len(result.partings)} in all"


def _factor(distance: float) -> str:
    return f"{math.exp(min(distance, 700.0)):.4g}"


def _spikes(result: Trends) -> Iterator[str]:
    spikes = result.spikes
    if not spikes:
        return
    curve, spike = spikes[0]
    times = f"{spike.times:.3g} times the median before" if spike.median > 0 else "0 before"
    together = [follower for follower, first in spikes if first.step == spike.step]
    yield f"spike in step {spike.step}, first in {curve.label}: {spike.value:.4g}, {times}"
    yield f"  {_names(together)} in this step, {len(spikes)} in all"


def _names(curves: Sequence[Curve]) -> str:
    """Return the number of curves, and the numbers by quantity, in words."""
    counts = Counter(curve.quantity for curve in curves).most_common()
    named = [f"{quantity} of {count}" for quantity, count in counts[:_MOST_NAMES]]
    more = sum(count for _, count in counts[_MOST_NAMES:])
    return f"{counted(len(curves), 'curve')} ({', '.join([*named, *([f'{more} more'] if more else [])])})"


def _columns(several: Sequence[str]) -> list[Column]:
    from ascend_dump.report.tables import Column

    numbers = [Column(name, right=True, spare=spare) for name, spare in _NUMBERS.items()]
    places = [Column(name, spare=5) for name in several]
    return [
        *places,
        Column("quantity"),
        Column("of", elastic=True),
        *numbers,
        Column("spike", right=True),
        Column("curve"),
    ]


_NUMBERS = {"first": 2, "min": 3, "max": 0, "last": 1}


def _cells(curve: Curve, several: Sequence[str]) -> list[str]:
    from ascend_dump.report.plots import sparkline

    values = list(curve.values)
    finite = [value for value in values if value - value == 0]
    ends = [min(finite, default=None), max(finite, default=None)]
    numbers = [_number(value) for value in (values[0], *ends, values[-1])]
    spike = str(curve.spikes[0].step) if curve.spikes else "-"
    places = [str(getattr(curve, name)) for name in several]
    encoding = sys.stdout.encoding or "ascii"
    return [*places, curve.quantity, curve.name or "-", *numbers, spike, sparkline(values, encoding=encoding)]


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"
