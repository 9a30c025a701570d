"""`ascend-dump triage --run`: start the rounds, and print their result."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.common.units import counted
from ascend_dump.errors import ConfigError

if TYPE_CHECKING:
    from ascend_dump.analysis.triage import Triage

#: Maximum number of operators with harmless NaN that are listed.
_MOST_HARMLESS = 3

__all__ = ["exit_of_run", "run_command", "show_run"]


def run_command(
    command: tuple[str, ...],
    reference: Optional[str],
    selectors: dict[str, Optional[str]],
    *,
    to_stdout: bool,
    **settings: Any,
) -> Triage:
    """Run the rounds of a triage. Raises ConfigError for a reference that is no command line.

    to_stdout: True to pass the standard output of the command to stdout, False to pass it to stderr
    """
    from ascend_dump.report.tables import escape
    from ascend_dump.triage_runs import run_triage

    # With --json, stdout must contain the document only.
    output = (1, 2) if to_stdout else (2, 2)
    sys.stdout.flush()
    return run_triage(
        command,
        reference=() if reference is None else _split(reference),
        steps=selectors["step"],
        ranks=selectors["rank"],
        tell=lambda text: click.echo(f"ascend-dump: {escape(text)}", err=True),
        output=output,
        **settings,
    )


def _split(reference: str) -> list[str]:
    try:
        words = shlex.split(reference)
    except ValueError as error:
        raise ConfigError(
            f"--reference {reference!r} is not a command line: {error}", hint="quote it as the shell wants it"
        ) from None
    if not words:
        raise ConfigError("--reference is empty", hint="give the command line of a correct program")
    return words


def show_run(triage: Triage, *, verbose: bool) -> None:
    """Print the cause, the reason, and what to do next. verbose: also print the rounds and all evidence."""
    from ascend_dump.report.findings import cause_lines, text_lines
    from ascend_dump.report.tables import escape

    cause = triage.cause_finding()
    is_short = bool(triage.why) and not verbose
    if cause is not None:
        click.echo("\n".join(cause_lines(cause, triage.why) if is_short else text_lines(cause)))
    lines: list[tuple[str, str]] = []
    if verbose or triage.cause is None or not triage.why:
        lines += _rounds(triage)
    lines += [("harmless", text) for text in triage.harmless[: None if verbose else _MOST_HARMLESS]]
    lines += [("note", text) for text in (*triage.reasons, *triage.notes)]
    for name, text in lines:
        click.echo(f"{name:<12}{escape(text)}")
    click.echo(f"{'next':<12}{escape(triage.advice)}" if is_short else escape(triage.advice))


def _rounds(triage: Triage) -> list[tuple[str, str]]:
    lines = []
    for number, run in enumerate(triage.rounds):
        text = f"{run.number}. {run.program}: {run.purpose}{f': {run.outcome}' if run.outcome else ''}"
        lines.append(("" if number else "rounds", f"{text} ({run.seconds:.1f} s, {_bytes(run.nbytes)})"))
    dumps = [run.dump for run in triage.rounds if run.dump is not None]
    if dumps:
        lines.append(("dumps", f"{counted(len(dumps), 'dump')} in {_shortest(dumps[0].parent.parent)}"))
    return lines


def exit_of_run(triage: Triage) -> Union[Exit, int]:
    """Return the exit code of a triage with --run.

    1 if a cause or a difference was found; else the exit code of a failed command; else 3 if not everything could be
    checked, or 0.
    """
    if triage.cause is not None:
        return Exit.DIFFERENT
    if triage.comparison is not None and triage.comparison.verdict not in ("equal", "noise", "undecided"):
        return Exit.DIFFERENT
    failed = [run.exit_code for run in triage.rounds if run.exit_code]
    if failed:
        return failed[0]
    return Exit.UNREADABLE if triage.reasons else Exit.OK


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} KB"


def _shortest(path: Path) -> str:
    return min(os.fspath(path), os.path.relpath(path), key=len)
