"""`ascend-dump demo`: train a network with planted faults, capture it, and find them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import json_option
from ascend_dump.errors import CaptureError, ConfigError, FrameworkMissing, WriteError

if TYPE_CHECKING:
    from ascend_dump.report.findings import Finding


@click.command(short_help="Find two planted faults in a small training run.")
@click.argument("directory", default="ascend_dump_demo", type=click.Path(file_okay=False, path_type=Path))
@json_option
def demo(directory: Path, as_json: bool) -> Exit:
    """Write a training script into DIRECTORY, run it under capture, and find its first Inf and a wrong epsilon.

    The script trains a small PyTorch network on the CPU for three steps; one operator overflows at step 1. Then the
    script runs again with another epsilon in its layer norm, and the second dump is compared with the first. A train.py
    of your own in DIRECTORY is never overwritten.
    """
    if find_spec("torch") is None:
        raise FrameworkMissing(
            "the demo trains a PyTorch network, and torch is not installed", hint="pip install torch"
        )
    text = (Path(__file__).parent / "demo_program" / "train.py").read_bytes()
    try:
        directory.mkdir(exist_ok=True, parents=True)
        _write_script(directory / "train.py", text)
    except OSError as error:
        raise WriteError(
            f"{directory}: the demo cannot be written there: {error.strerror}",
            hint="give `ascend-dump demo` a directory that this user may write",
        ) from error
    _say("first act: a loss becomes NaN, and the dump names the operator that overflows first", as_json)
    run = _train(directory, "dumps", [], as_json)
    click.echo("(looks for the first Inf in the dump)", err=True)
    first = _overflow(run, as_json)
    _say("\nsecond act: the same network, but its loss differs from that of the run above", as_json)
    _say("the two dumps are compared: which operator is wrong although its inputs are right?", as_json)
    wrong = _train(directory, "dumps_eps", ["--eps", "0.01", "--path", "dumps_eps"], as_json)
    click.echo("(pairs the operators of both dumps, and compares their tensors)", err=True)
    second = _difference(wrong, run, as_json)
    if as_json:
        from ascend_dump.report.documents import write_document

        write_document(sys.stdout, "demo", {**first, "comparison": second})
    return Exit.OK


def _train(directory: Path, name: str, arguments: list[str], quiet: bool) -> Path:
    """Run the script, and return the directory of its capture below `name`."""
    dumps = directory / name
    before = set(dumps.glob("*/*"))
    click.echo(f"$ cd {directory} && {shlex.join(['python', 'train.py', *arguments])}", err=quiet)
    sys.stdout.flush()
    click.echo("(imports PyTorch and trains three steps: some seconds)", err=True)
    # The script starts its own capture, so a capture requested by the environment is switched off.
    environment = {name: value for name, value in os.environ.items() if name != "ASCEND_DUMP"}
    done = subprocess.run(
        [sys.executable, "train.py", *arguments],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    click.echo(done.stdout, nl=False, err=quiet)
    runs = sorted(set(dumps.glob("*/*")) - before)
    if done.returncode or not runs:
        raise CaptureError("the demo's training failed", hint=f"run `python train.py` in {directory} to see why")
    return runs[-1]


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        click.echo(text)
    sys.stdout.flush()


def _write_script(file: Path, text: bytes) -> None:
    """Write the script if it does not exist. Raises ConfigError for a file with other content, and OSError."""
    try:
        with file.open("xb") as opened:
            opened.write(text)
    except FileExistsError:
        if not file.is_file() or file.read_bytes() != text:
            raise ConfigError(
                f"{file} exists and was not written by this demo, so it is not replaced",
                hint="give `ascend-dump demo` another directory, or remove the file",
            ) from None


def _program() -> str:
    # After `make demo` the environment with the script `ascend-dump` is not active.
    return "ascend-dump" if shutil.which("ascend-dump") else f"{shlex.quote(sys.executable)} -m ascend_dump"


def _difference(wrong: Path, run: Path, quiet: bool) -> dict[str, Any]:
    """Compare the two runs, print the origin of their difference, and return the fields of the JSON document."""
    from ascend_dump.analysis.compare import compare
    from ascend_dump.analysis.explaining.page_facts import origin_finding

    comparison = compare(wrong, run)
    if not comparison.origins:
        raise CaptureError("the planted epsilon was not found", hint="please report this")
    origin = comparison.origins[0]
    command = f"{_program()} compare {shlex.quote(str(wrong))} {shlex.quote(str(run))}"
    if not quiet:
        click.echo(f"\nthe first operator whose output is wrong though its inputs are right, at step {origin.step}:")
        _show(replace(origin_finding(origin, comparison), commands=(command,)))
    return {
        "actual": str(wrong),
        "reference": str(run),
        "verdict": comparison.verdict,
        "origin": origin.to_dict(),
        "command": command,
    }


def _overflow(run: Path, quiet: bool) -> dict[str, Any]:
    """Find the first Inf, print its operator, and return the fields of the JSON document."""
    from ascend_dump.analysis.operators.nonfinite import first_nonfinite
    from ascend_dump.reading import open_dump
    from ascend_dump.report.findings import Finding

    dump = open_dump(run)
    finding = first_nonfinite(dump)
    if finding is None:
        raise CaptureError("the planted overflow was not found", hint="please report this")
    record, statistics = finding.record, finding.statistics
    command = f"{_program()} show {shlex.quote(str(run))} --op {record.op_name!r} --step {record.step}"
    document = {
        "dump": str(run),
        "records": len(dump),
        "origin": finding.origin,
        "record": record.to_dict(),
        "statistics": statistics._asdict(),
        "command": command,
    }
    if quiet:
        return document
    inputs = ", ".join(f"{tensor.dtype}{list(tensor.shape or ())}" for tensor in finding.inputs)
    click.echo(f"\n{len(dump)} records in {run}")
    click.echo(f"the first operator to produce Inf or NaN, at step {record.step}:")
    evidence = f"{statistics.posinf} +Inf, {statistics.neginf} -Inf, {statistics.nan} NaN of {statistics.count} outputs"
    _show(
        Finding(
            "operator",
            record.op_name,
            record.op_type,
            module=record.module,
            source=record.source,
            evidence=(evidence, f"inputs {inputs}, all finite"),
            commands=(command,),
        )
    )
    return document


def _show(finding: Finding) -> None:
    from ascend_dump.report.findings import text_lines

    for line in text_lines(finding):
        click.echo(f"  {line}")
