"""`ascend-dump selftest`: capture tiny networks on this machine, check the dumps, and list confirmed assumptions."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import json_option

__all__ = ["selftest"]


@click.command(short_help="Capture tiny networks on this machine and check the dumps.")
@click.option(
    "--framework", "frameworks", multiple=True, metavar="NAME", help="Test only this framework; may be repeated."
)
@click.option("--device", type=click.IntRange(min=0), metavar="N", help="The number of the device to use.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a report for the authors: versions, settings, file trees, small dump files; no private paths or names.",
)
@click.option("--simulated", is_flag=True, help="Use the simulated device instead of a real one.")
@json_option
def selftest(
    frameworks: tuple[str, ...], device: Optional[int], output: Optional[Path], simulated: bool, as_json: bool
) -> Exit:
    """Capture tiny networks in every installed framework, each in its own process, and check the dumps.

    Exits with 1 if a check failed, with 4 if no check failed but there was no device to test. The project's assumptions
    about devices are listed as confirmed or refuted by this device. The simulated device confirms nothing.
    """
    from ascend_dump.selftest.checks import CheckResult
    from ascend_dump.selftest.report import versions, write_report
    from ascend_dump.selftest.run import run_selftest

    def tell(result: CheckResult) -> None:
        if not as_json:
            click.echo(_line(result))

    with tempfile.TemporaryDirectory(prefix="ascend_dump_selftest_") as directory:
        test = run_selftest(Path(directory), frameworks=frameworks, simulated=simulated, device=device, tell=tell)
        document: dict[str, Any] = {
            "ok": not test.failed,
            "simulated": simulated,
            "device": test.on_device and not simulated,
            "results": [result._asdict() for result in test.results],
            "assumptions": test.assumptions(),
        }
        if output is not None:
            processes = {
                f"{name}/{scenario}": {"code": ran.code, "output": ran.output[-4000:], "truth": ran.truth}
                for name, runs in test.runs.items()
                for scenario, ran in runs.items()
            }
            write_report(output, Path(directory), {**document, "processes": processes})
            document["report"] = str(output)
    if as_json:
        from ascend_dump.report.documents import write_document

        write_document(sys.stdout, "selftest", {**document, "versions": versions()})
    else:
        _tell_summary(document, output)
    if test.failed:
        return Exit.DIFFERENT
    return Exit.UNAVAILABLE if test.lacks_device else Exit.OK


def _line(result: Any) -> str:
    reason = f": {result.reason}" if result.reason else ""
    return f"{result.state}  {result.framework:<10} {result.road:<10} {result.check}{reason}"


def _tell_summary(document: dict[str, Any], output: Optional[Path]) -> None:
    states = [result["state"] for result in document["results"]]
    click.echo(f"\n{states.count('PASS')} passed, {states.count('FAIL')} failed, {states.count('SKIP')} skipped")
    key = "simulated" if document["simulated"] else "state"
    outcomes = [assumption[key] for assumption in document["assumptions"]]
    confirmed, refuted = outcomes.count("confirmed"), outcomes.count("refuted")
    if document["simulated"]:
        click.echo(f"the simulated device agrees with {confirmed} of {confirmed + refuted} assumptions about devices")
    elif document["device"]:
        click.echo(f"assumptions about devices: {confirmed} confirmed here, {refuted} refuted")
    else:
        click.echo("no device was tested: `--simulated` runs the same tests on the simulated device")
    for assumption in document["assumptions"]:
        if assumption[key] == "refuted":
            click.echo(f"REFUTED  {assumption['id']}: {assumption['statement']}\n         seen: {assumption['seen']}")
    if output is not None:
        click.echo(f"report: {output}")
