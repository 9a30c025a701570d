"""`ascend-dump triage`: print the suspects of a dump, and the request for the next dump."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
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

#: The format of the --next file, by framework. Frameworks that are captured with `ascend-dump run` have the format of
#: ascend-dump's own settings.
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
@click.option(
    "--step", metavar="TEXT", help='Steps, such as "0|3-5|10". Default: all; step 0 with --reference or --determinism.'
)
@click.option("--rank", metavar="TEXT", help='Global ranks: "0|3-5|10".')
@selector_options("label")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Print at most this number of suspects or origins.",
)
@click.option("--next", "file", metavar="FILE", type=click.Path(dir_okay=False), help="Write the next request here.")
@click.option(
    "--for",
    "framework",
    type=click.Choice(list(_LANGUAGE_OF)),
    default="torch",
    show_default=True,
    help="With --next: the framework whose configuration file is written.",
)
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
    "--replay",
    is_flag=True,
    help="With --reference: replay each differing operator on its recorded inputs, to find which side is wrong.",
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
@click.option(
    "--verbose", is_flag=True, help="With --run: also print the rounds that led to the cause, and all evidence."
)
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
    If nothing is found, steps with equal inputs and parameters are compared: their results must be equal.

    --next writes a narrower request: the tensors of the findings and of their inputs, at their steps. For torch,
    torch_npu and torchair it is a file for ASCEND_DUMP=FILE or `ascend-dump run --config FILE`, for other frameworks a
    file of the framework. An existing file is not replaced.

    With --run it runs COMMAND: once to find the step with NaN or Inf, and again to record that step. With --reference
    or --determinism it compares COMMAND with another program, or with a second run, until the first operator that
    differs is found. COMMAND has to do the same each time and read no input; it is stopped early if possible. The same
    command line resumes an interrupted run.

    Exit code 0 without findings, 1 with findings, 3 if not everything could be checked or read. With --run, if COMMAND
    fails, its exit code. Ranks excluded from the capture do not affect the exit code.
    """
    selectors = {"step": step, "rank": rank}
    if quantised:
        others: dict[str, object] = {"run": run, "next": file, "reference": reference, "path": path, "ignore": ignore}
        others.update(
            {"max-bytes": max_bytes, "symptom": symptom, "verbose": verbose, "workers": workers, "dask": dask}
        )
        return _quantised(arguments, {**selectors, "label": label}, flags, brief=brief, as_json=as_json, others=others)
    if file is not None:
        _check_next_file(Path(file), framework)
    run_options = {"path": path, "max_bytes": max_bytes, "ignore": ignore, "symptom": symptom, **flags}
    if run:
        _forbid_dump_options(label, workers, dask)
        from ascend_dump.cli.shared.triage_run import exit_of_run, run_command, show_run

        run_options["path"] = path or "triage"
        result = run_command(arguments, reference, selectors, to_stdout=not (as_json or brief), **run_options)
        show, code = partial(show_run, result, verbose=verbose), exit_of_run(result)
    else:
        _require_dump_options(arguments, reference=reference, verbose=verbose, **run_options)
        result = _triage_dumps(arguments, {**selectors, "label": label}, workers, dask)
        show, code = partial(_show, result, limit), _exit_of_triage(result)
    return _finish(result, file, framework, None if as_json else show, code, brief=brief)


def _triage_dumps(
    dumps: tuple[str, ...], selectors: dict[str, Optional[str]], workers: Optional[int], dask: Optional[str]
) -> Triage:
    from ascend_dump.analysis.triage import triage as triage_dump

    if len(dumps) == 1:
        progress_unit = "records"
    else:
        progress_unit = "records read and compared" if workers is None and dask is None else "ranks compared"
    with opened_executor(workers, dask) as executor:
        return triage_dump(
            open_selected(dumps[0], selectors),
            None if len(dumps) == 1 else open_selected(dumps[1], selectors),
            watch=lambda passed: progress(passed, progress_unit),
            executor=executor,
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
    """Write the next request, then print the result.

    The file is written even if stdout is closed, and the result is printed even if the disk is full.

    show  prints the result as text; None for JSON; not called with `brief`
    code  the exit code unless writing fails
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
            _show_next(result, written, framework)
        if file is not None and result.next is None:
            click.echo(f"{file} is not written: there is nothing to dump next", err=True)
        sys.stdout.flush()
    finally:
        # The write error is printed even if stdout is closed. It is not raised: with --json the document is on stdout.
        if failure is not None:
            from ascend_dump.report.tables import escape_lines

            print(f"error: {escape_lines(str(failure))}", file=sys.stderr)
    return code if failure is None else exit_code(failure)


def _forbid_dump_options(label: Optional[str], workers: Optional[int], dask: Optional[str]) -> None:
    """Raise ConfigError for options that apply to dumps only."""
    if label is not None:
        raise ConfigError(
            f"--label {label} cannot be combined with --run: dumps of triage runs have no labels",
            hint="leave one of them out",
        )
    for name, value in (("--workers", workers), ("--dask", dask)):
        if value is not None:
            raise ConfigError(
                f"{name} applies to the analysis of dumps, and cannot be combined with --run",
                hint="leave one of them out",
            )


def _require_dump_options(dumps: tuple[str, ...], **settings: Any) -> None:
    """Raise ConfigError for options that need --run, and for more than two dumps."""
    for name, value in settings.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option} needs --run",
                hint="to run a program, write `ascend-dump triage --run … -- COMMAND`; "
                "to compare dumps, `ascend-dump triage DUMP REFERENCE`",
            )
    if len(dumps) > 2:
        raise ConfigError(
            f"{len(dumps)} dumps were given, expected a dump and its reference",
            hint="a command is run with --run: `ascend-dump triage --run -- COMMAND`",
        )


def _check_next_file(file: Path, framework: str) -> None:
    """Raise ConfigError or WriteError if the next request cannot be written to this file."""
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


def _exit_of_triage(result: Triage) -> Exit:
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
    others: Mapping[str, object],
) -> Exit:
    """Rank the layers of a quantised program. Raises ConfigError if one of the `others` or another flag is set."""
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

    comparison = result.comparison
    if comparison is not None:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in comparison.counts.items())
        click.echo(f"{comparison.verdict}: {counts}")
        if result.why:
            click.echo("\n".join(folded(escape(result.why), sys.stdout, 2)))
        for origin in result.origins[:limit]:
            click.echo("")
            click.echo("\n".join(text_lines(origin_finding(origin, comparison))))
        _show_hidden(len(result.origins), limit, "origin")
    for number, suspect in enumerate(result.suspect_findings()[:limit], 1):
        click.echo("\n".join(text_lines(suspect, number)))
        click.echo("")
    _show_hidden(len(result.suspects), limit, "suspect")
    for reason in result.reasons:
        click.echo(f"not checked: {escape(reason)}", err=True)
    for note in result.notes:
        click.echo(f"note: {escape(note)}", err=True)
    # Advice with a command is not folded, so that the command can be copied.
    advice = escape(result.advice)
    click.echo(advice if "`" in advice else "\n".join(folded(advice, sys.stdout, 2)))


def _show_hidden(count: int, limit: int, noun: str) -> None:
    if count > limit:
        click.echo(f"{counted(count - limit, f'more {noun}')} not shown: use -n {count}\n")


def _show_brief(result: Triage, written: Optional[Path]) -> None:
    from ascend_dump.analysis.explaining.page_facts import origin_finding
    from ascend_dump.report.findings import brief_text, nothing_wrong

    comparison, findings = result.comparison, result.suspect_findings()
    if comparison is not None:
        findings = [origin_finding(origin, comparison) for origin in result.origins]
        counts = ", ".join(f"{count} {verdict}" for verdict, count in comparison.counts.items())
        answer = f"{comparison.verdict}: {counts}"
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


def _show_next(result: Triage, written: Optional[Path], framework: str) -> None:
    from ascend_dump.report.tables import escape

    if written is not None:
        is_for_run = _LANGUAGE_OF[framework] == "ascend-dump"
        usage = f"; run: ASCEND_DUMP={shlex.quote(str(written))} python …" if is_for_run else ""
        click.echo(f"wrote the next request to {escape(str(written))} ({framework} settings){escape(usage)}")
        if framework != "torch" and result.cause is not None and result.cause.op_type.startswith("aten::"):
            click.echo(
                f"{escape(str(written))} contains PyTorch's operator names: look up those of {framework} with "
                f"`ascend-dump ls` in a dump of {framework}, and replace them in the file",
                err=True,
            )
    elif result.next is not None:
        click.echo(
            f"next: ASCEND_DUMP={escape(shlex.quote(result.next.to_text()))}; "
            "--next FILE --for FRAMEWORK writes it as a file"
        )
