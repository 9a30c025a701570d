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

from ascend_dump._errors import CaptureError, ConfigError, WriteError
from ascend_dump._launching import find_program
from ascend_dump._request import parse_size
from ascend_dump._steps import Steps
from ascend_dump.analysis.triage import Triage
from ascend_dump.rounds._against import find_difference, find_nondeterminism
from ascend_dump.rounds._nonfinite import find_nonfinite
from ascend_dump.rounds._runner import PROGRAM, REFERENCE, SECOND_RUN, RoundRunner, Tell
from ascend_dump.rounds._state import STATE, TriageState

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
    """Run a program as often as it takes to find the operator that is the cause, which is `Triage.cause`.

    Without a reference it is looked for what makes NaN or Inf: in the first round a few numbers of each step are looked
    at, in the second one the step is recorded that it is. With a reference both are recorded, statistics and hashes
    first, then tensors of what is suspicious.

    command      the program and its arguments; it must do the same each time it is run, and reads no input
    reference    the same of a program that is right
    path         below it each triage has a directory `{time}`, with a directory for each round and a state file; one
                 that was interrupted is resumed where the same is asked for
    steps        with a reference or determinism, the steps that are compared first, "0" if not given
    ranks        the ranks that are recorded
    max_bytes    of all rounds together
    determinism  find the first operator that gives something else in a second run of the program
    replay       with a reference: run operators again that differ, see `ascend_dump.compare`
    confirm      with a reference: one more round with its value in place of what is wrong
    run_out      do not stop the program once it has shown what a round is for
    tell         is given a sentence at the begin and the end of each round
    output       a descriptor that gets what the program prints to its standard output

    Raises ConfigError for wrong settings and a command that cannot be started, CaptureError for a program that shows
    nothing, WriteError where the path cannot be written or max_bytes is reached, KeyboardInterrupt when interrupted.

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
