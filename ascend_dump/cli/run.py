"""`ascend-dump run`: launch a program with the dump switched on, after checking the request."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, Optional

import click

from ascend_dump.adapter import adapters, load
from ascend_dump.cli.shared.settings import read_request, request_options
from ascend_dump.cli.shared.writable_path import examine_path
from ascend_dump.common.paths import RunDirectory
from ascend_dump.common.rank import current_rank
from ascend_dump.errors import ConfigError, WriteError
from ascend_dump.request import DumpRequest
from ascend_dump.startup.activation import RUN
from ascend_dump.startup.launching import cannot_start, environment_of, find_program

__all__ = ["run"]


@click.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] --",
    epilog="Example:  ascend-dump run --steps '0|1' --path dumps -- torchrun --nproc-per-node 2 train.py",
)
@request_options
@click.option("--dry-run", is_flag=True, help="Check the settings, print the command line that would run, and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: one JSON document on stdout.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(command: tuple[str, ...], config: Optional[str], dry_run: bool, as_json: bool, **options: Any) -> None:
    """Run COMMAND with the dump switched on in COMMAND and all Python processes that it starts.

    The program itself is not changed, and its exit code is returned. Options that take several names may be repeated,
    or separate the names by `;`. The options override the settings of ASCEND_DUMP.
    """
    request = read_request(config, options)
    program = find_program(command[0])
    _check_path(request)
    _check_adapters(request)
    environment = environment_of(request)
    if dry_run:
        _show(command, environment, as_json=as_json)
    else:
        _launch(program, command, environment)


def _check_path(request: DumpRequest) -> None:
    target = examine_path(Path(request.path))
    if not target.writable:
        what = "cannot be written" if target.nearest.is_dir() else "is not a directory"
        raise WriteError(
            f"path={str(target.path)!r}: {target.nearest} {what}",
            hint="give --path a directory that this user may write",
        )


def _check_adapters(request: DumpRequest) -> None:
    """Print the settings that each adapter would refuse or ignore. Raises ConfigError if every adapter refuses."""
    usable = [load(info.name) for info in adapters() if info.usable]
    launchable = [adapter for adapter in usable if adapter.process_hooks]
    if not launchable:
        # This is no error, because COMMAND may run in another environment.
        click.echo(
            "ascend-dump: no adapter is usable in this environment (`ascend-dump doctor` says why); "
            "the program is started all the same, since it may run in another one",
            err=True,
        )
        return
    run = RunDirectory.planned(Path(request.path), current_rank(), launched=True)
    refused = []
    reported = []
    for adapter in launchable:
        problems = adapter.check(request, None, run)
        refused += [problem for problem in problems if problem.severity == "error"][:1]
        reported += [(adapter.name, problem) for problem in problems]
    all_refuse = len(refused) == len(launchable)
    for name, problem in reported:
        if not (all_refuse and problem in refused):  # otherwise the error below contains it
            click.echo(f"{name}: {problem}", err=True)
    if all_refuse:
        raise ConfigError(
            "every usable adapter refuses this request: " + "; ".join(problem.message for problem in refused),
            hint=refused[0].hint or "change the setting that it names",
            code=refused[0].code,
        )


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
        raise cannot_start(command[0], error) from None
