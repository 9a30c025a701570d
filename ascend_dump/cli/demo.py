"""`ascend-dump demo`: train a network with a planted fault, capture it, and find the fault."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from ascend_dump._errors import CaptureError, ConfigError, FrameworkMissing, WriteError
from ascend_dump.cli._exit import Exit
from ascend_dump.cli._reading import json_option


@click.command(short_help="Find a planted overflow in a small training run.")
@click.argument("directory", default="ascend_dump_demo", type=click.Path(file_okay=False, path_type=Path))
@json_option
def demo(directory: Path, as_json: bool) -> Exit:
    """Write a training script into DIRECTORY, run it under capture, and find its first Inf.

    The script trains a small PyTorch network on the CPU for three steps; one operator overflows
    at step 1. A train.py of your own in DIRECTORY is never overwritten.
    """
    if find_spec("torch") is None:
        raise FrameworkMissing(
            "the demo trains a PyTorch network, and torch is not installed", hint="pip install torch"
        )
    text = (Path(__file__).parent.parent / "demo" / "train.py").read_bytes()
    try:
        directory.mkdir(exist_ok=True, parents=True)
        _write_script(directory / "train.py", text)
    except OSError as error:
        raise WriteError(
            f"{directory}: the demo cannot be written there: {error.strerror}",
            hint="give `ascend-dump demo` a directory that this user may write",
        ) from error
    dumps = directory / "dumps"
    before = set(dumps.glob("*/*"))
    click.echo(f"$ cd {directory} && python train.py", err=as_json)
    # The script makes its own capture; one from the environment would be in its way.
    environment = {name: value for name, value in os.environ.items() if name != "ASCEND_DUMP"}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=directory, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    click.echo(done.stdout, nl=False, err=as_json)
    runs = sorted(set(dumps.glob("*/*")) - before)
    if done.returncode or not runs:
        raise CaptureError("the demo's training failed", hint=f"run `python train.py` in {directory} to see why")
    _report(runs[-1], as_json)
    return Exit.OK


def _write_script(file: Path, text: bytes) -> None:
    """Write what is not there yet. Raises ConfigError for a file with other content, and OSError."""
    try:
        with file.open("xb") as opened:
            opened.write(text)
    except FileExistsError:
        if not file.is_file() or file.read_bytes() != text:
            raise ConfigError(
                f"{file} is there and was not written by this demo, which leaves it as it is",
                hint="give `ascend-dump demo` another directory, or remove the file",
            ) from None


def _report(run: Path, as_json: bool) -> None:
    from ascend_dump.analysis.nonfinite import first_nonfinite
    from ascend_dump.reading import open_dump
    from ascend_dump.report.documents import write_document

    dump = open_dump(run)
    finding = first_nonfinite(dump)
    if finding is None:
        raise CaptureError("the planted overflow was not found", hint="please report this")
    record, statistics = finding.record, finding.statistics
    # After `make demo` its environment is not the active one.
    program = "ascend-dump" if shutil.which("ascend-dump") else f"{shlex.quote(sys.executable)} -m ascend_dump"
    command = f"{program} show {shlex.quote(str(run))} --op {record.op_name!r} --step {record.step}"
    if as_json:
        write_document(
            sys.stdout,
            "demo",
            {
                "dump": str(run),
                "records": len(dump),
                "origin": finding.origin,
                "record": record.to_dict(),
                "statistics": statistics._asdict(),
                "command": command,
            },
        )
        return
    inputs = ", ".join(f"{one.dtype}{list(one.shape or ())}" for one in finding.inputs)
    click.echo(f"\n{len(dump)} records in {run}")
    click.echo(f"the first operator to produce Inf or NaN, at step {record.step}:")
    click.echo(f"  operator  {record.op_name} ({record.op_type})")
    click.echo(f"  module    {record.module or '(none)'}")
    click.echo(f"  source    {record.source}")
    click.echo(
        f"  output    {statistics.posinf} +Inf, {statistics.neginf} -Inf, {statistics.nan} NaN of {statistics.count}"
    )
    click.echo(f"  inputs    {inputs}, all finite")
    click.echo(f"look at it:\n  {command}")
