"""`ascend-dump run`: launch a program with the dump switched on, after checking the request."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, Optional

import click

from ascend_dump._activation import RUN, VARIABLE
from ascend_dump._errors import ConfigError, WriteError
from ascend_dump._paths import RunDirectory
from ascend_dump._rank import current_rank
from ascend_dump._request import DumpRequest
from ascend_dump.adapter._contract import adapters, load
from ascend_dump.cli._place import look_at
from ascend_dump.cli._settings import read_request, request_options

__all__ = ["SITE", "run"]

#: The directory whose sitecustomize starts the dump in every interpreter that reads PYTHONPATH.
SITE = Path(__file__).parents[1] / "startup" / "site"


@click.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] --",
    epilog="Example:  ascend-dump run --steps '0|1' --path dumps -- torchrun --nproc-per-node 2 train.py",
)
@request_options
@click.option(
    "--config", metavar="FILE", type=click.Path(dir_okay=False), help="JSON or TOML with the same settings; options win"
)
@click.option("--dry-run", is_flag=True, help="check, print the command line that would run, and stop")
@click.option("--json", "as_json", is_flag=True, help="with --dry-run: print one JSON document")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(command: tuple[str, ...], config: Optional[str], dry_run: bool, as_json: bool, **given: Any) -> None:
    """Run COMMAND with the dump switched on in every Python process below it.

    Nothing in the program changes, and its exit code is returned. Lists are given by repeating
    the option or with `;` between the items. What ASCEND_DUMP holds already is the base that
    the options change.
    """
    request = read_request(config, given)
    program = _program(command[0])
    _check_place(request)
    _check_adapters(request)
    environment = _environment(request)
    if dry_run:
        _show(command, environment, as_json=as_json)
    else:
        _launch(program, command, environment)


def _program(name: str) -> str:
    """The file that would run. Raises ConfigError AD104 with the likely reason when none would."""
    found = shutil.which(name)
    if found is not None:
        return found
    path = Path(name)
    if path.is_dir():
        reason, hint = "it is a directory", "give the program inside it"
    elif path.is_file() and path.suffix == ".py":
        reason, hint = "it is a Python file", f"write `ascend-dump run ... -- python {shlex.quote(name)} ...`"
    elif path.is_file():
        there = os.access(path, os.X_OK)
        reason = "it stands in this directory, which PATH leaves out" if there else "it is not executable"
        hint = f"write ./{name}" if there else f"chmod +x {shlex.quote(name)}, or name its interpreter before it"
    elif name.startswith("-"):
        reason, hint = "it looks like an option", "options of ascend-dump stand before `--`, the command after it"
    else:
        reason, hint = "no such program on PATH", "check the spelling, or give the full path"
    raise ConfigError(f"cannot run {name!r}: {reason}", hint=hint, code="AD104")


def _check_place(request: DumpRequest) -> None:
    place = look_at(Path(request.path))
    if not place.writable:
        what = "cannot be written" if place.nearest.is_dir() else "is not a directory"
        raise WriteError(
            f"path={str(place.path)!r}: {place.nearest} {what}", hint="give --path a directory that this user may write"
        )


def _check_adapters(request: DumpRequest) -> None:
    """Say what each adapter would refuse or ignore. Raises ConfigError when none would dump."""
    usable = [load(info.name) for info in adapters() if info.usable]
    launchable = [adapter for adapter in usable if adapter.process_hooks]
    if not launchable:
        # Not an error: COMMAND may be an interpreter of another environment.
        click.echo("ascend-dump: no adapter is usable in this environment, `ascend-dump doctor` says why", err=True)
        return
    run = RunDirectory.planned(Path(request.path), current_rank(), launched=True)
    refused = []
    told = []
    for adapter in launchable:
        problems = adapter.check(request, None, run)
        refused += [problem for problem in problems if problem.severity == "error"][:1]
        told += [(adapter.name, problem) for problem in problems]
    all_refuse = len(refused) == len(launchable)
    for name, problem in told:
        if not (all_refuse and problem in refused):  # the error below says it
            click.echo(f"{name}: {problem}", err=True)
    if all_refuse:
        raise ConfigError(
            "every usable adapter refuses this request: " + "; ".join(problem.message for problem in refused),
            hint=refused[0].hint or "change the setting that it names",
            code=refused[0].code,
        )


def _environment(request: DumpRequest) -> dict[str, str]:
    """The variables to set for the command."""
    old = os.environ.get("PYTHONPATH")
    # An empty entry means the current directory, so only our own is taken out.
    entries = [entry for entry in old.split(os.pathsep) if entry != str(SITE)] if old else []
    return {VARIABLE: request.to_text(), "PYTHONPATH": os.pathsep.join([str(SITE), *entries])}


def _show(command: tuple[str, ...], environment: Mapping[str, str], *, as_json: bool) -> None:
    if as_json:
        from ascend_dump.report.documents import write_document

        write_document(sys.stdout, "run", {"environment": dict(environment), "command": list(command)})
        return
    variables = [f"{name}={value}" for name, value in environment.items()]
    click.echo(shlex.join(["env", *variables, *command]))


def _launch(program: str, command: tuple[str, ...], environment: Mapping[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, command, {**os.environ, **environment, RUN: str(os.getpid())})
    except OSError as error:
        raise ConfigError(
            f"cannot run {command[0]!r}: {error.strerror}",
            hint="a script needs a `#!` line, or its interpreter before it",
            code="AD104",
        ) from None
