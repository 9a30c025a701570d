"""`ascend-dump triage --run`: run a program round after round, each with a narrower dump, until one operator is left.

found = run_triage(["python", "train.py"], path="triage")
print(found.cause.op_name, found.cause.step, found.cause.source)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, Union

from ascend_dump.analysis.triage import Triage
from ascend_dump.errors import CaptureError, ConfigError, WriteError
from ascend_dump.request import parse_size
from ascend_dump.startup.launching import find_program
from ascend_dump.steps import Steps
from ascend_dump.triage_runs._find_difference import find_difference, find_nondeterminism
from ascend_dump.triage_runs._find_nonfinite import find_nonfinite
from ascend_dump.triage_runs._runner import PROGRAM, REFERENCE, SECOND_RUN, RoundRunner, Tell
from ascend_dump.triage_runs._state import STATE, TriageState

__all__ = ["STATE", "run_triage"]


def run_triage(
    command: Sequence[str],
    *,
    reference: Sequence[str] = (),
    path: Union[str, os.PathLike[str]] = "triage",
    steps: Optional[str] = None,
    ranks: Optional[str] = None,
    max_bytes: Union[int, str, None] = None,
    determinism: bool = False,
    replay: bool = False,
    confirm: bool = False,
    run_out: bool = False,
    tell: Optional[Tell] = None,
    output: Optional[int] = None,
) -> Triage:
    """Run a program repeatedly until the operator is found that causes its fault, which is then `Triage.cause`.

    Without a reference the fault is NaN or Inf: the first run records a few numbers of each step, the second one the
    step in which they appear. With a reference both programs are recorded, first statistics and hashes, then the
    tensors of suspicious operators.

    command      the program and its arguments; it must do the same each time it is run, and read no input
    reference    the command of a correct program
    path         each triage has a directory `{time}` below it, with a directory per run and a state file; an
                 interrupted one is resumed by an equal call
    steps        with a reference or determinism, the steps to compare first, "0" by default
    ranks        the ranks to record
    max_bytes    size limit of all dumps together
    determinism  find the first operator whose result differs in a second run of the program
    replay       with a reference: run operators again that differ, see `ascend_dump.compare`
    confirm      with a reference: run once more with the correct values instead of the wrong ones
    run_out      let the program run to its end each time, instead of stopping it once it has shown enough
    tell         called with a sentence at the begin and the end of each run
    output       a file descriptor for the standard output of the program

    Raises ConfigError for wrong settings and for a command that cannot be started, CaptureError for a program that
    shows nothing, WriteError if the path cannot be written to or max_bytes is reached, KeyboardInterrupt when
    interrupted.

    >>> found = run_triage(["python", "train.py"])   # doctest: +SKIP
    >>> found.cause.source                           # doctest: +SKIP
    """
    commands = _commands(command, reference, determinism)
    compares = bool(reference) or determinism
    for name, given, needs in (
        ("steps", steps is not None, compares),
        ("replay", replay, bool(reference)),
        ("confirm", confirm, bool(reference)),
    ):
        if given and not needs:
            raise ConfigError(f"{name} is for a comparison with a reference", hint="give the reference's command too")
    chosen = str(Steps(steps if steps is not None else "0"))
    limit = None if max_bytes is None else parse_size(max_bytes)
    if ranks is not None:
        Steps(ranks, name="ranks")
    asked = {
        **{name: list(one) for name, one in commands.items()},
        "directory": os.getcwd(),
        "steps": chosen,
        "ranks": ranks,
        "max_bytes": limit,
        "determinism": determinism,
        "replay": replay,
        "confirm": confirm,
    }
    state = TriageState.open(Path(os.path.abspath(path)), asked)
    said: Tell = tell if tell is not None else _say_nothing
    try:
        if state.resumed:
            said(f"goes on with {state.directory}, which was interrupted")
        runner = RoundRunner(state, commands, tell=said, max_bytes=limit, ranks=ranks, run_out=run_out, output=output)
        if determinism:
            found = find_nondeterminism(runner, commands, state.directory, chosen)
        elif reference:
            found = find_difference(runner, commands, state.directory, chosen, replay=replay, confirm=confirm)
        else:
            found = find_nonfinite(runner, command, state.directory)
        state.save(ended=True)
        return replace(found, rounds=tuple(runner.rounds))
    except CaptureError:
        # It is over: the program may be another one when it is run again.
        with contextlib.suppress(WriteError):
            state.save(ended=True)
        raise
    except KeyboardInterrupt:
        said(f"interrupted: the same command line goes on with what is in {state.directory}")
        raise
    finally:
        state.close()


def _commands(command: Sequence[str], reference: Sequence[str], determinism: bool) -> dict[str, Sequence[str]]:
    if not command:
        raise ConfigError("no command is given", hint="write it after `--`: python train.py")
    if determinism and reference:
        raise ConfigError(
            "determinism compares a program with itself, and a reference is given", hint="leave one of them out"
        )
    found: dict[str, Sequence[str]] = {PROGRAM: command}
    if reference:
        found[REFERENCE] = reference
    elif determinism:
        found[SECOND_RUN] = command
    for one in found.values():
        find_program(one[0])
    return found


def _say_nothing(text: str) -> Any:
    return None
