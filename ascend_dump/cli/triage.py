"""`ascend-dump triage`: what is wrong in a dump, and what to dump next."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import click

from ascend_dump.cli.config import write_settings
from ascend_dump.cli.shared.executor import executor_options, opened_executor
from ascend_dump.cli.shared.exit import Exit, exit_code
from ascend_dump.cli.shared.reading import json_option, open_selected, progress
from ascend_dump.cli.shared.target import check_target
from ascend_dump.errors import ConfigError, WriteError
from ascend_dump.native.languages import languages

if TYPE_CHECKING:
    from ascend_dump.analysis.triage import Triage

#: The language of the file for each framework: those that our launcher starts read our own settings.
_LANGUAGE_OF = {
    "torch": "ascend-dump",
    "torch_npu": "ascend-dump",
    "torchair": "ascend-dump",
    "acl": "acl",
    "mindspore": "mindspore",
    "tensorflow": "tensorflow",
}


@click.command(
    short_help="Find what is wrong in a dump and what to dump next, or run a program until the cause is found.",
    options_metavar="[OPTIONS]",
    epilog="Example:  ascend-dump triage --run -- python train.py",
)
@click.argument("given", metavar="DUMP [REFERENCE] | --run -- COMMAND", nargs=-1, required=True)
@click.option("--step", metavar="TEXT", help='Steps: "0|3-5|10"; "0" by default with --reference and --determinism.')
@click.option("--rank", metavar="TEXT", help='Global ranks: "0|3-5|10".')
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=10, show_default=True, help="Print at most this many suspects."
)
@click.option("--next", "file", metavar="FILE", type=click.Path(dir_okay=False), help="Write the next request here.")
@click.option("--for", "framework", type=click.Choice(list(_LANGUAGE_OF)), default="torch", show_default=True)
@click.option(
    "--run", is_flag=True, help="Run COMMAND repeatedly, each time with a narrower dump, until one operator is left."
)
@click.option(
    "--reference", metavar="COMMAND", help="With --run: the command line of a correct program, as one argument."
)
@click.option("--determinism", is_flag=True, help="With --run: find the first operator that differs between two runs.")
@click.option(
    "--confirm",
    is_flag=True,
    help="With --reference: run once more with the correct values in place of the wrong ones.",
)
@click.option(
    "--replay", is_flag=True, help="With --reference: run operators that differ again, to find which side is wrong."
)
@click.option("--path", metavar="DIRECTORY", help='With --run: the directory of the dumps, "triage" by default.')
@click.option("--max-bytes", metavar="BYTES", help="With --run: size limit of all dumps together, such as 20GB.")
@click.option("--run-out", is_flag=True, help="With --run: let COMMAND run to its end each time.")
@executor_options
@json_option
def triage(
    given: tuple[str, ...],
    limit: int,
    file: Optional[str],
    framework: str,
    run: bool,
    reference: Optional[str],
    path: Optional[str],
    max_bytes: Optional[str],
    workers: Optional[int],
    dask: Optional[str],
    as_json: bool,
    step: Optional[str],
    rank: Optional[str],
    **flags: bool,
) -> Union[Exit, int]:
    """Find what is wrong in DUMP: its suspects, or with REFERENCE the origins of the differences.

    Without a reference, rules look for NaN and Inf, values at the limit of their type, growth, dead outputs, gradients
    that are zero or reach no parameter, parameters that do not change, ranks that disagree, and uninitialised memory.

    --next writes a narrower request: the tensors of the findings and of their inputs, at the steps in question. For
    torch, torch_npu and torchair it is a file for ASCEND_DUMP=FILE or `ascend-dump run --config FILE`, for the others
    one of the framework's own. An existing file is not replaced.

    With --run it runs the program itself: once to find the step with NaN or Inf, and again to record that step. With
    --reference or --determinism it compares it with another program, or with a second run of itself, until it knows the
    first operator that differs. The program must do the same each time and read no input; it is stopped once it has
    shown enough. The same command line resumes an interrupted run.

    Exit code 0 if nothing is wrong, 1 if something is, 3 if not everything could be checked or read; with --run the
    exit code of a command that fails by itself. Ranks that the capture was asked to leave out do not change it.
    """
    selectors = {"step": step, "rank": rank}
    if file is not None:
        _check_next(Path(file), framework)
    if run:
        _refuse_executor(workers, dask)
        from ascend_dump.cli.shared.triage_run import exit_of_run, run_command, show_run

        settings = {"path": path or "triage", "max_bytes": max_bytes, **flags}
        found = run_command(given, reference, selectors, as_json=as_json, **settings)
        return _finish(found, file, framework, None if as_json else partial(show_run, found), exit_of_run(found))
    _refuse(given, reference=reference, path=path, max_bytes=max_bytes, **flags)
    from ascend_dump.analysis.triage import triage as look_through

    compared = "records read and compared" if workers is None and dask is None else "ranks compared"
    with opened_executor(workers, dask) as executor:
        found = look_through(
            open_selected(given[0], selectors),
            None if len(given) == 1 else open_selected(given[1], selectors),
            watch=lambda passed: progress(passed, "records" if len(given) == 1 else compared),
            executor=executor,
        )
    return _finish(found, file, framework, None if as_json else partial(_show, found, limit), _exit(found))


def _finish(
    found: Triage, file: Optional[str], framework: str, show: Optional[Callable[[], None]], code: Union[Exit, int]
) -> Union[Exit, int]:
    """Write the next request, then print the result: a closed pipe must not lose the file, nor a full disk the result.

    show: prints the result for people; None: it is printed as JSON
    code: of a result whose request could be written
    """
    written, failure = None, None
    if file is not None and found.next is not None:
        try:
            written = _write_next(found, Path(file), framework)
        except WriteError as error:
            failure = error
    try:
        if show is None:
            _write_json(found, written)
        else:
            show()
            _show_next(found, file, written, framework)
        sys.stdout.flush()
    finally:  # told where stdout is closed too; not raised, because with --json stdout has its document already
        if failure is not None:
            from ascend_dump.report.tables import escape_lines

            print(f"error: {escape_lines(str(failure))}", file=sys.stderr)
    return code if failure is None else exit_code(failure)


def _refuse_executor(workers: Optional[int], dask: Optional[str]) -> None:
    for name, value in (("--workers", workers), ("--dask", dask)):
        if value is not None:
            raise ConfigError(f"{name} is for dumps, and --run runs a program", hint="leave one of them out")


def _refuse(given: tuple[str, ...], **settings: Any) -> None:
    """Raise ConfigError for what is only there with --run, and for more than two dumps."""
    for name, value in settings.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option} is for --run, which runs a program",
                hint="write `ascend-dump triage --run ... -- COMMAND`; of dumps `ascend-dump triage DUMP REFERENCE`",
            )
    if len(given) > 2:
        raise ConfigError(
            f"{len(given)} dumps are given, expected one and its reference",
            hint="a command is run with --run: `ascend-dump triage --run -- COMMAND`",
        )


def _check_next(file: Path, framework: str) -> None:
    """Raise ConfigError for a file that the request could not be written to, and WriteError."""
    suffix = languages()[_LANGUAGE_OF[framework]].suffix
    if not str(file).endswith(suffix):
        raise ConfigError(
            f"--next {file}: {framework} takes only a file that ends in {suffix}", hint=f"name it next{suffix}"
        )
    if file.suffix.lower() == ".toml":
        raise ConfigError(f"--next {file}: the request is JSON", hint="name it next.json")
    check_target("--next", str(file))
    if file.exists():
        raise ConfigError(f"{file} exists already", hint="remove it, or give --next another name")


def _write_json(found: Triage, written: Optional[Path]) -> None:
    from ascend_dump.report.documents import write_document

    write_document(sys.stdout, "triage", {**found.to_dict(), "written": written})


def _exit(found: Triage) -> Exit:
    if found.comparison is not None:
        from ascend_dump.cli.compare import exit_of

        code = exit_of(found.comparison.verdict)
        return Exit.UNREADABLE if code is Exit.OK and found.reasons else code
    if found.suspects:
        return Exit.DIFFERENT
    return Exit.UNREADABLE if found.reasons else Exit.OK


def _write_next(found: Triage, file: Path, framework: str) -> Path:
    assert found.next is not None
    language = languages()[_LANGUAGE_OF[framework]]
    request = found.next if language.selects_ranks else found.next.replace(ranks=None)
    write_settings(file, language.build(request))
    return file


def _show(found: Triage, limit: int) -> None:
    from ascend_dump.analysis.explaining.page_facts import origin_finding
    from ascend_dump.report.findings import text_lines
    from ascend_dump.report.tables import escape

    compared = found.comparison
    if compared is not None:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in compared.counts.items())
        click.echo(f"{compared.verdict}: {counts}")
        for origin in found.origins[:limit]:
            click.echo("")
            click.echo("\n".join(text_lines(origin_finding(origin, compared))))
    for number, suspect in enumerate(found.suspect_findings()[:limit], 1):
        click.echo("\n".join(text_lines(suspect, number)))
        click.echo("")
    left = len(found.suspects) - limit
    if left > 0:
        click.echo(f"and {left} more suspects: -n {len(found.suspects)}\n")
    for reason in found.reasons:
        click.echo(f"not checked: {escape(reason)}", err=True)
    for note in found.notes:
        click.echo(f"note: {escape(note)}", err=True)
    click.echo(escape(found.advice))


def _show_next(found: Triage, file: Optional[str], written: Optional[Path], framework: str) -> None:
    from ascend_dump.report.tables import escape

    if written is not None:
        how = f", for ASCEND_DUMP={written} python …" if _LANGUAGE_OF[framework] == "ascend-dump" else ""
        click.echo(f"next request: {escape(str(written))}, settings of {framework}{escape(how)}")
        if framework != "torch" and found.cause is not None and found.cause.op_type.startswith("aten::"):
            click.echo(
                f"the operators in it have the names that PyTorch's capture gave them; {framework} has others: "
                f"look them up by `ascend-dump ls` in a dump of {framework}, and change them in {escape(str(written))}",
                err=True,
            )
    elif found.next is not None:
        click.echo(
            f"next: ASCEND_DUMP='{escape(found.next.to_text())}'; --next FILE --for FRAMEWORK writes it as a file"
        )
    if file is not None and found.next is None:
        click.echo(f"{file} is not written: there is nothing to dump next", err=True)
