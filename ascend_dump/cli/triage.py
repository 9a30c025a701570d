"""`ascend-dump triage`: the suspects of a dump, and the request for the next one."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import click

from ascend_dump.cli.config import write_settings
from ascend_dump.cli.shared.executor import executor_options, opened_executor
from ascend_dump.cli.shared.exit import Exit, exit_code
from ascend_dump.cli.shared.reading import (
    brief_option,
    ignore_option,
    json_option,
    open_selected,
    progress,
    selector_options,
)
from ascend_dump.cli.shared.target import check_target
from ascend_dump.common.units import counted
from ascend_dump.errors import ConfigError, WriteError
from ascend_dump.native.languages import languages

if TYPE_CHECKING:
    from ascend_dump.analysis.triage import Triage

#: The language of the file for each framework: `ascend-dump run` reads settings of its own.
_LANGUAGE_OF = {
    "torch": "ascend-dump",
    "torch_npu": "ascend-dump",
    "torchair": "ascend-dump",
    "acl": "acl",
    "mindspore": "mindspore",
    "tensorflow": "tensorflow",
}


@click.command(
    short_help="Find the suspects in a dump, or run a program until the cause is found.",
    options_metavar="[OPTIONS]",
    epilog="Example:  ascend-dump triage --run -- python train.py",
)
@click.argument("arguments", metavar="DUMP [REFERENCE] | --run -- COMMAND", nargs=-1, required=True)
@click.option("--step", metavar="TEXT", help='Steps: "0|3-5|10"; "0" by default with --reference and --determinism.')
@click.option("--rank", metavar="TEXT", help='Global ranks: "0|3-5|10".')
@selector_options("label")
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
@ignore_option
@click.option(
    "--symptom",
    type=click.Choice(["spike", "zero", "stuck"]),
    help="With --run: look for a loss that spikes, is zero, or does not fall.",
)
@click.option(
    "--quantised",
    is_flag=True,
    help="DUMP is of a quantised program and REFERENCE of the float one: rank the layers by their own errors.",
)
@click.option("--verbose", is_flag=True, help="With --run: print how the cause was found, and all that is known of it.")
@click.option("--run-out", is_flag=True, help="With --run: let COMMAND run to its end each time.")
@executor_options
@brief_option
@json_option
def triage(
    arguments: tuple[str, ...],
    limit: int,
    file: Optional[str],
    framework: str,
    run: bool,
    reference: Optional[str],
    path: Optional[str],
    max_bytes: Optional[str],
    workers: Optional[int],
    dask: Optional[str],
    brief: bool,
    as_json: bool,
    step: Optional[str],
    rank: Optional[str],
    label: Optional[str],
    verbose: bool,
    ignore: tuple[str, ...],
    symptom: Optional[str],
    quantised: bool,
    **flags: bool,
) -> Union[Exit, int]:
    """Find the suspects in DUMP, or with REFERENCE the origins of the differences.

    Without a reference, rules detect NaN and Inf, values at the limit of their type, growth, dead outputs, gradients
    that are zero or reach no parameter, parameters that do not change, ranks that disagree, and uninitialised memory.
    If nothing looks wrong, a step with the inputs and parameters of an earlier one has to give the same results.

    --next writes a narrower request: the tensors of the findings and of their inputs, at their steps. For torch,
    torch_npu and torchair it is a file for ASCEND_DUMP=FILE or `ascend-dump run --config FILE`, for other frameworks a
    file of the framework. An existing file is not replaced.

    With --run it runs COMMAND: once to find the step with NaN or Inf, and again to record that step. With --reference
    or --determinism it compares COMMAND with another program, or with a second run, until the first operator that
    differs is found. COMMAND has to do the same each time and read no input; it is stopped early if possible. The same
    command line resumes an interrupted run.

    Exit code 0 without findings, 1 with findings, 3 if not everything could be checked or read; with --run the exit
    code of a command that fails by itself. Ranks that the capture excludes do not change it.
    """
    selectors = {"step": step, "rank": rank}
    if quantised:
        return _quantised(
            arguments, {**selectors, "label": label}, flags, brief=brief, as_json=as_json, run=run, next=file
        )
    if file is not None:
        _check_next(Path(file), framework)
    if run:
        if label is not None:
            raise ConfigError(
                f"--label {label} was given with --run, whose dumps have no labels", hint="leave one of them out"
            )
        _refuse_executor(workers, dask)
        from ascend_dump.cli.shared.triage_run import exit_of_run, run_command, show_run

        settings = {"path": path or "triage", "max_bytes": max_bytes, "ignore": ignore, "symptom": symptom, **flags}
        result = run_command(arguments, reference, selectors, to_stdout=not (as_json or brief), **settings)
        show = None if as_json else partial(show_run, result, verbose=verbose)
        return _finish(result, file, framework, show, exit_of_run(result), brief=brief)
    _refuse(
        arguments,
        reference=reference,
        path=path,
        max_bytes=max_bytes,
        verbose=verbose,
        ignore=ignore,
        symptom=symptom,
        **flags,
    )
    from ascend_dump.analysis.triage import triage as triage_dump

    selectors["label"] = label
    compared = "records read and compared" if workers is None and dask is None else "ranks compared"
    with opened_executor(workers, dask) as executor:
        result = triage_dump(
            open_selected(arguments[0], selectors),
            None if len(arguments) == 1 else open_selected(arguments[1], selectors),
            watch=lambda passed: progress(passed, "records" if len(arguments) == 1 else compared),
            executor=executor,
        )
    return _finish(
        result, file, framework, None if as_json else partial(_show, result, limit), _exit(result), brief=brief
    )


def _finish(
    result: Triage,
    file: Optional[str],
    framework: str,
    show: Optional[Callable[[], None]],
    code: Union[Exit, int],
    *,
    brief: bool,
) -> Union[Exit, int]:
    """Write the next request, then print the result: a closed pipe must not lose the file, nor a full disk the result.

    show: prints the result as text; None: it is printed as JSON. code: the exit code if the request was written
    """
    written, failure = None, None
    if file is not None and result.next is not None:
        try:
            written = _write_next(result, Path(file), framework)
        except WriteError as error:
            failure = error
    try:
        if show is None:
            _write_json(result, written)
        elif brief:
            _show_brief(result, written)
        else:
            show()
            _show_next(result, file, written, framework)
        sys.stdout.flush()
    finally:  # printed even if stdout is closed; not raised, because with --json stdout has its document already
        if failure is not None:
            from ascend_dump.report.tables import escape_lines

            print(f"error: {escape_lines(str(failure))}", file=sys.stderr)
    return code if failure is None else exit_code(failure)


def _refuse_executor(workers: Optional[int], dask: Optional[str]) -> None:
    for name, value in (("--workers", workers), ("--dask", dask)):
        if value is not None:
            raise ConfigError(f"{name} is for dumps, and --run runs a program", hint="leave one of them out")


def _refuse(dumps: tuple[str, ...], **settings: Any) -> None:
    """Raise ConfigError for options that need --run, and for more than two dumps."""
    for name, value in settings.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option} is for --run, which runs a program",
                hint="write `ascend-dump triage --run ... -- COMMAND`; of dumps `ascend-dump triage DUMP REFERENCE`",
            )
    if len(dumps) > 2:
        raise ConfigError(
            f"{len(dumps)} dumps, expected one and its reference",
            hint="a command is run with --run: `ascend-dump triage --run -- COMMAND`",
        )


def _check_next(file: Path, framework: str) -> None:
    """Raise ConfigError or WriteError if the request could not be written to the file."""
    suffix = languages()[_LANGUAGE_OF[framework]].suffix
    if not str(file).endswith(suffix):
        raise ConfigError(
            f"--next {file}: {framework} reads only a file that ends in {suffix}", hint=f"name it next{suffix}"
        )
    if file.suffix.lower() == ".toml":
        raise ConfigError(f"--next {file}: the request is JSON", hint="name it next.json")
    check_target("--next", str(file))
    if file.exists():
        raise ConfigError(f"{file} exists already", hint="remove it, or use another name with --next")


def _write_json(result: Triage, written: Optional[Path]) -> None:
    from ascend_dump.report.documents import write_document

    write_document(sys.stdout, "triage", {**result.to_dict(), "written": written})


def _exit(result: Triage) -> Exit:
    if result.comparison is not None:
        from ascend_dump.cli.compare import exit_of

        code = exit_of(result.comparison.verdict)
        return Exit.UNREADABLE if code is Exit.OK and result.reasons else code
    if result.suspects:
        return Exit.DIFFERENT
    return Exit.UNREADABLE if result.reasons else Exit.OK


def _write_next(result: Triage, file: Path, framework: str) -> Path:
    assert result.next is not None
    language = languages()[_LANGUAGE_OF[framework]]
    request = result.next if language.selects_ranks else result.next.replace(ranks=None)
    write_settings(file, language.build(request))
    return file


def _quantised(
    arguments: tuple[str, ...],
    selectors: dict[str, Optional[str]],
    flags: dict[str, bool],
    *,
    brief: bool,
    as_json: bool,
    **others: object,
) -> Exit:
    """Rank the layers of a quantised program. Raises ConfigError for other options."""
    from ascend_dump.cli.shared.local_errors import compare_locally, refuse_others

    replay = flags.pop("replay", False)
    refuse_others("--quantised", {**others, **{name.replace("_", "-"): value for name, value in flags.items()}})
    if len(arguments) != 2:
        raise ConfigError(
            f"--quantised was given {counted(len(arguments), 'dump')}, expected two",
            hint="ascend-dump triage QUANTISED FLOAT --quantised",
        )
    return compare_locally(*arguments, selectors, replay=replay, show_all=False, as_json=as_json, brief=brief)


def _show(result: Triage, limit: int) -> None:
    from ascend_dump.analysis.explaining.page_facts import origin_finding
    from ascend_dump.report.findings import text_lines
    from ascend_dump.report.tables import escape, folded

    compared = result.comparison
    if compared is not None:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in compared.counts.items())
        click.echo(f"{compared.verdict}: {counts}")
        if result.why:
            click.echo("\n".join(folded(escape(result.why), sys.stdout, 2)))
        for origin in result.origins[:limit]:
            click.echo("")
            click.echo("\n".join(text_lines(origin_finding(origin, compared))))
    for number, suspect in enumerate(result.suspect_findings()[:limit], 1):
        click.echo("\n".join(text_lines(suspect, number)))
        click.echo("")
    hidden = len(result.suspects) - limit
    if hidden > 0:
        click.echo(f"and {hidden} more suspects: -n {len(result.suspects)}\n")
    for reason in result.reasons:
        click.echo(f"not checked: {escape(reason)}", err=True)
    for note in result.notes:
        click.echo(f"note: {escape(note)}", err=True)
    # A command stays in one line, to be copied.
    advice = escape(result.advice)
    click.echo(advice if "`" in advice else "\n".join(folded(advice, sys.stdout, 2)))


def _show_brief(result: Triage, written: Optional[Path]) -> None:
    from ascend_dump.analysis.explaining.page_facts import origin_finding
    from ascend_dump.report.findings import brief_text, nothing_wrong

    compared, findings = result.comparison, result.suspect_findings()
    if compared is not None:
        findings = [origin_finding(origin, compared) for origin in result.origins]
        counts = ", ".join(f"{count} {verdict}" for verdict, count in compared.counts.items())
        answer = f"{compared.verdict}: {counts}"
    elif findings:
        answer = counted(len(findings), "suspect")
    else:
        answer = nothing_wrong(is_complete=not result.reasons) if result.cause is None else "the cause was found"
    first = result.cause_finding() if result.rounds else next(iter(findings), None)
    next_steps = [result.advice]
    if written is not None:
        next_steps.append(f"the next request: {written}")
    elif result.next is not None:
        next_steps.append(f"ASCEND_DUMP={shlex.quote(result.next.to_text())} python …")
    others = [f"{counted(len(findings) - 1, 'more finding')}, listed without --brief"] if len(findings) > 1 else []
    reasons = [f"why: {result.why}"] if result.why else []
    notes = [*reasons, *(f"harmless: {text}" for text in result.harmless), *others, *result.notes]
    click.echo(brief_text(answer, first, next_steps=next_steps, not_checked=result.reasons, notes=notes))


def _show_next(result: Triage, file: Optional[str], written: Optional[Path], framework: str) -> None:
    from ascend_dump.report.tables import escape

    if written is not None:
        how = f", for ASCEND_DUMP={written} python …" if _LANGUAGE_OF[framework] == "ascend-dump" else ""
        click.echo(f"next request: {escape(str(written))}, settings of {framework}{escape(how)}")
        if framework != "torch" and result.cause is not None and result.cause.op_type.startswith("aten::"):
            click.echo(
                f"its operators have the names of PyTorch's capture, and {framework} has different ones: "
                f"find them with `ascend-dump ls` in a dump of {framework}, and change them in {escape(str(written))}",
                err=True,
            )
    elif result.next is not None:
        click.echo(
            f"next: ASCEND_DUMP='{escape(result.next.to_text())}'; --next FILE --for FRAMEWORK writes it as a file"
        )
    if file is not None and result.next is None:
        click.echo(f"{file} is not written: there is nothing to dump next", err=True)
