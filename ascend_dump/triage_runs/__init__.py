"""`ascend-dump triage --run`: run a program in rounds, each with a narrower dump, until one operator is left.

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
from ascend_dump.triage_runs.loss_symptoms import SYMPTOMS, Symptom

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
    ignore: Sequence[str] = (),
    symptom: Optional[Symptom] = None,
    tell: Optional[Tell] = None,
    output: tuple[int, int] = (1, 2),
) -> Triage:
    """Run a program repeatedly until the operator that causes its fault is found: `Triage.cause`.

    Without a reference the fault is NaN or Inf, or a symptom of the losses. The first run records a few numbers of each
    step, the second run records the step with the fault. With a reference both programs are recorded: first statistics
    and hashes, then the tensors of suspicious operators.

    command      the program and its arguments; it must do the same each time it is run, and read no input
    reference    the command of a correct program
    path         directory of triages. Each triage has a directory `{time}` in it, with a directory per run and a state
                 file. An interrupted triage is resumed by a call with the same arguments
    steps        with a reference or determinism, the steps to compare first, "0" by default
    ranks        the ranks to record
    max_bytes    size limit of all dumps together
    determinism  run the program twice, and find the first operator whose result differs in the second run
    replay       with a reference: replay differing operators on their recorded inputs, see `ascend_dump.compare`
    confirm      with a reference: run once more with the reference's values in place of the wrong ones
    run_out      let the program run to its end each time, instead of stopping it once enough is recorded
    ignore       without a reference: operators whose NaN and Inf is expected, as globs of names or types, modules, or
                 FILE:LINE
    symptom      without a reference: "spike", "zero" or "stuck", the symptom to look for in the losses. By default all
                 of them are looked for, if nothing is NaN or Inf
    tell         called with a sentence at the begin and at the end of each run
    output       file descriptors to which standard output and error of each program's first run are passed on

    Raises ConfigError for wrong settings and for a command that cannot be started, CaptureError for a program without
    anything to record, WriteError if the path cannot be written to or max_bytes is reached, KeyboardInterrupt when
    interrupted.

    >>> found = run_triage(["python", "train.py"])   # doctest: +SKIP
    >>> found.cause.source                           # doctest: +SKIP
    """
    commands = _commands(command, reference, determinism)
    compares = bool(reference) or determinism
    if steps is not None and not compares:
        raise ConfigError("steps is for a comparison", hint="add the command of the reference, or set determinism")
    for name, is_set in (("replay", replay), ("confirm", confirm)):
        if is_set and not reference:
            raise ConfigError(f"{name} is for a comparison with a reference", hint="add the command of the reference")
    if ignore and compares:
        raise ConfigError("ignore is for NaN and Inf, and a comparison looks for differences", hint="leave it out")
    if symptom is not None and symptom not in SYMPTOMS:
        raise ConfigError(f"symptom={symptom!r}", hint=f"expected one of {', '.join(SYMPTOMS)}")
    if symptom is not None and compares:
        raise ConfigError(
            f"symptom={symptom!r} was given with {'a reference' if reference else 'determinism'}",
            hint="leave one of them out: a comparison looks for differences, not for a symptom",
        )
    chosen = str(Steps(steps if steps is not None else "0"))
    limit = None if max_bytes is None else parse_size(max_bytes)
    if ranks is not None:
        Steps(ranks, name="ranks")
    settings = {
        **{name: list(words) for name, words in commands.items()},
        "directory": os.getcwd(),
        "steps": chosen,
        "ranks": ranks,
        "max_bytes": limit,
        "determinism": determinism,
        "replay": replay,
        "confirm": confirm,
        "ignore": list(ignore),
        "symptom": symptom,
    }
    state = TriageState.open(Path(os.path.abspath(path)), settings)
    report: Tell = tell if tell is not None else _say_nothing
    try:
        if state.is_resumed:
            report(f"resumes {state.directory}, which was interrupted")
        runner = RoundRunner(
            state, commands, tell=report, max_bytes=limit, ranks=ranks, run_out=run_out, ignore=ignore, output=output
        )
        if determinism:
            result = find_nondeterminism(runner, commands, state.directory, chosen)
        elif reference:
            result = find_difference(runner, commands, state.directory, chosen, replay=replay, confirm=confirm)
        else:
            result = find_nonfinite(runner, command, state.directory, ignore, symptom)
        state.save(ended=True)
        return replace(result, rounds=tuple(runner.rounds))
    except CaptureError:
        # The triage is not resumed later, because the program may behave differently then.
        with contextlib.suppress(WriteError):
            state.save(ended=True)
        raise
    except KeyboardInterrupt:
        report(f"interrupted: the same command line resumes {state.directory}")
        raise
    finally:
        state.close()


def _commands(command: Sequence[str], reference: Sequence[str], determinism: bool) -> dict[str, Sequence[str]]:
    if not command:
        raise ConfigError("no command is given", hint="write it after `--`: python train.py")
    if determinism and reference:
        raise ConfigError(
            "determinism compares a program with itself, and a reference is set", hint="leave one of them out"
        )
    commands: dict[str, Sequence[str]] = {PROGRAM: command}
    if reference:
        commands[REFERENCE] = reference
    elif determinism:
        commands[SECOND_RUN] = command
    for words in commands.values():
        find_program(words[0])
    return commands


def _say_nothing(text: str) -> Any:
    return None
