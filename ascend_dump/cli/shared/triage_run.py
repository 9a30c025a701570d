"""`ascend-dump triage --run`: its options, and what it says."""

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

__all__ = ["exit_of_run", "run_command", "show_run"]


def run_command(
    command: tuple[str, ...],
    reference: Optional[str],
    selectors: dict[str, Optional[str]],
    *,
    to_stdout: bool,
    **settings: Any,
) -> Triage:
    """Run the rounds. Raises ConfigError for a reference that is no command line.

    to_stdout: the output of the command goes to stdout, else to stderr
    """
    from ascend_dump.report.tables import escape
    from ascend_dump.triage_runs import run_triage

    # What the command prints must not come between the parts of a document.
    output = None if to_stdout else sys.stderr.fileno()
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
        raise ConfigError("--reference is empty", hint="give the command of a program that is right")
    return words


def show_run(triage: Triage) -> None:
    """The cause, how it was found, and what became of it."""
    from ascend_dump.report.findings import text_lines
    from ascend_dump.report.tables import escape

    cause = triage.cause_finding()
    if cause is not None:
        click.echo("\n".join(text_lines(cause)))
    lines: list[tuple[str, str]] = []
    for number, run in enumerate(triage.rounds):
        text = f"{run.number}. {run.program}: {run.purpose}{f': {run.outcome}' if run.outcome else ''}"
        lines.append(("" if number else "rounds", f"{text} ({run.seconds:.1f} s, {_bytes(run.nbytes)})"))
    lines += [("note", text) for text in (*triage.reasons, *triage.notes)]
    for name, text in lines:
        click.echo(f"{name:<12}{escape(text)}")
    dumps = [run.dump for run in triage.rounds if run.dump is not None]
    if dumps:
        click.echo(f"{'dumps':<12}{counted(len(dumps), 'dump')} in {escape(_shortest(dumps[0].parent.parent))}")
    click.echo(escape(triage.advice))


def exit_of_run(triage: Triage) -> Union[Exit, int]:
    """1 where there is a cause; else the exit code of a command that failed by itself."""
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
