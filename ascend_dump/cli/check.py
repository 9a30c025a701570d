"""`ascend-dump check`: find settings of a dump configuration that a framework would refuse or silently ignore."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import json_option
from ascend_dump.native.languages import ConfigLanguage, Surroundings, languages, recognise, refuse_runtime

if TYPE_CHECKING:
    from ascend_dump.common.problem import Problem
    from ascend_dump.native.cann.config import Situation

__all__ = ["check", "exit_of", "print_problems", "situation_of", "surroundings_options"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def surroundings_options(function: _Function) -> _Function:
    """Add options about the model: `--graph`, to check names against its operators, and `--dynamic-shape`."""
    text = (
        "GE's graph as text (ge_proto_*_Build.txt), or MindSpore's .ir: names are compared with its operators, and "
        "operators that MindSpore cannot dump are reported (complex numbers, heterogeneous training)."
    )
    dynamic = click.option("--dynamic-shape", is_flag=True, help="The graph has dynamic shapes.")
    return click.option("--graph", metavar="FILE", type=click.Path(dir_okay=False), help=text)(dynamic(function))


def _runtimes() -> str:
    return ", ".join(dict.fromkeys(name for language in languages().values() for name in language.runtimes))


@click.command(short_help="Check a dump configuration before the run.")
@click.argument("file", type=click.Path())
@click.option(
    "--against", type=click.Choice(list(languages())), help="The format of FILE; recognised by its content by default."
)
@click.option(
    "--on", metavar="WHERE", help=f"The runtime of MindSpore: {_runtimes()}. O0 or O1 if it cannot be determined."
)
@surroundings_options
@json_option
def check(
    file: str, against: Optional[str], on: Optional[str], graph: Optional[str], dynamic_shape: bool, as_json: bool
) -> Exit:
    """Report the settings in the configuration FILE that are refused, or accepted and silently ignored.

    FILE is an acl.json; a JSON object of GE session options (ge.exec.*), of torchair's dump_config options or of the
    keys of TensorFlow's NpuOptimizer; MindSpore's dump JSON; or settings of ascend-dump (as for --config). - reads
    standard input. The environment variables of this shell are taken into account, as they would be by the application.
    Exits with 2 if the file is refused, with 1 if something in it is silently ignored.
    """
    source = sys.stdin.buffer.read() if file == "-" else Path(file)
    by_name = languages()
    candidates = [by_name[against]] if against else _recognised(by_name, source)
    language = candidates[0]
    refuse_runtime(language, on)
    graph_path = None if graph is None else Path(graph)
    surroundings = Surroundings(situation_of(language, graph_path, dynamic_shape=dynamic_shape), on, graph_path)
    problems = language.check(source, surroundings)
    name = language.name
    if as_json:
        from ascend_dump.report.documents import write_document

        fields = {"file": file, "against": name, "accepted": exit_of(problems) != Exit.USAGE}
        write_document(sys.stdout, "check", {**fields, "problems": [problem._asdict() for problem in problems]})
    else:
        if len(candidates) > 1:
            alternatives = " or ".join(f"--against {candidate.name}" for candidate in candidates[1:])
            click.echo(f"checked as a file of {name}; for another format, give {alternatives}", err=True)
        print_problems(file, problems)
    return exit_of(problems)


def print_problems(file: str, problems: Sequence[Problem], *, err: bool = False) -> None:
    """Print one line per problem in the form of a compiler's errors, its hint below it, and counts at the end."""
    from ascend_dump.report.tables import counted, escape

    for problem in problems:
        location = f" {escape(problem.where)}:" if problem.where else ""
        native = f" ({problem.native})" if problem.native else ""
        click.echo(
            f"{escape(file)}: {problem.severity}:{location} {escape(problem.message)} [{problem.code}]{native}", err=err
        )
        if problem.hint:
            click.echo(f"  hint: {escape(problem.hint)}", err=err)
    if problems:
        nouns = {"error": "error", "silent": "silently ignored setting", "warning": "warning"}
        counts = {noun: sum(problem.severity == kind for problem in problems) for kind, noun in nouns.items()}
        click.echo(", ".join(counted(count, noun) for noun, count in counts.items() if count), err=err)
    else:
        click.echo(f"{escape(file)}: accepted, nothing in it is ignored", err=err)


def exit_of(problems: Sequence[Problem]) -> Exit:
    """Return 2 if a setting is refused, 1 if a setting is silently ignored, else 0."""
    severities = {problem.severity for problem in problems}
    return Exit.USAGE if "error" in severities else Exit.DIFFERENT if "silent" in severities else Exit.OK


def situation_of(language: ConfigLanguage, graph: Optional[Path], *, dynamic_shape: bool = False) -> Situation:
    """Return the situation of this process, completed by the options about the model. Raises ReadError."""
    from ascend_dump.native.cann.config.situation import Situation, in_container

    operators = None if graph is None else language.operators(graph)
    static_shape = False if dynamic_shape else None
    situation = Situation.here()._replace(container=in_container(), whole_run=True)
    return situation._replace(operators=operators, static_shape=static_shape)


def _recognised(by_name: Mapping[str, ConfigLanguage], source: Union[Path, bytes]) -> list[ConfigLanguage]:
    """Return the possible formats of a source, the most likely first; only acl.json if no key is recognised."""
    from ascend_dump.native.cann.config.parse import read_source

    suffix = "" if isinstance(source, bytes) else source.suffix
    return recognise(by_name.values(), read_source(source).value, suffix) or [by_name["acl"]]
