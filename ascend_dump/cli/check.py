"""`ascend-dump check`: what a framework would refuse in a dump configuration, or silently ignore."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol, TypeVar

import click

from ascend_dump._errors import ConfigError
from ascend_dump.cli._exit import Exit
from ascend_dump.cli._reading import json_option
from ascend_dump.native.mindspore.runtime import RUNTIMES, Runtime

if TYPE_CHECKING:
    from ascend_dump._problem import Problem
    from ascend_dump.native.cann.config import Situation
    from ascend_dump.native.cann.config.parse import Source

__all__ = ["CHECKERS", "check", "exit_of", "graph_option", "print_problems", "resolve", "runtime_of", "situation_of"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Configuration format to its checker, `module:function`, which takes a path or the bytes of a file.
CHECKERS = {
    "acl": "ascend_dump.native.cann.config:check_acl_config",
    "ge": "ascend_dump.native.cann.config:check_ge_file",
    "mindspore": "ascend_dump.native.mindspore:check_mindspore_config",
    "tensorflow": "ascend_dump.native.tensorflow.config:check_parameters",
    "torchair": "ascend_dump.native.torchair.config:check_file",
}
#: What only TensorFlow's bridge knows; the other keys are torchair's too.
_BRIDGE_KEYS = ("enable_dump_debug", "dump_debug_mode", "use_off_line", "enable_exception_dump")


class Checker(Protocol):
    def __call__(self, source: Source, *, all: bool, situation: Situation, **facts: Any) -> list[Problem]: ...


def graph_option(function: _Function) -> _Function:
    """Add `--graph`: the operators that names are held against."""
    text = "GE's graph as text (ge_proto_*_Build.txt), or MindSpore's .ir: names are held against its operators."
    return click.option("--graph", metavar="FILE", type=click.Path(dir_okay=False), help=text)(function)


@click.command(short_help="Check a dump configuration before the run.")
@click.argument("file", type=click.Path())
@click.option(
    "--against", type=click.Choice(list(CHECKERS)), help="The format; guessed from the content when left out."
)
@click.option("--on", type=click.Choice(list(RUNTIMES)), help="Where MindSpore runs; O0 or O1 when it cannot be told.")
@graph_option
@json_option
def check(file: str, against: Optional[str], on: Optional[str], graph: Optional[str], as_json: bool) -> Exit:
    """Tell what is refused in the configuration FILE, and what is accepted without being done.

    FILE is an acl.json, a JSON object of GE session options (ge.exec.*), of the options of torchair's
    dump_config or of the keys of TensorFlow's NpuOptimizer, or MindSpore's dump JSON; - is standard input.
    The environment variables of this shell count, as they would in the application. Exits with
    2 when the file is refused, with 1 when something in it is silently ignored.
    """
    source = sys.stdin.buffer.read() if file == "-" else Path(file)
    name = against or _guess(source)
    checker: Checker = resolve(CHECKERS, name)
    problems = checker(source, all=True, situation=situation_of(graph), **_facts_of(name, on, graph))
    if as_json:
        from ascend_dump.report.documents import write_document

        fields = {"file": file, "against": name, "accepted": exit_of(problems) != Exit.USAGE}
        write_document(sys.stdout, "check", {**fields, "problems": [problem._asdict() for problem in problems]})
    else:
        print_problems(file, problems)
    return exit_of(problems)


def resolve(registry: dict[str, str], name: str) -> Any:
    """Load what a registry names."""
    module, _, function = registry[name].partition(":")
    return getattr(import_module(module), function)


def print_problems(file: str, problems: Sequence[Problem], *, err: bool = False) -> None:
    """One line per problem as compilers print them, its hint below, and a sum at the end."""
    from ascend_dump.report.tables import counted, escape

    for problem in problems:
        place = f" {escape(problem.where)}:" if problem.where else ""
        native = f" ({problem.native})" if problem.native else ""
        click.echo(
            f"{escape(file)}: {problem.severity}:{place} {escape(problem.message)} [{problem.code}]{native}", err=err
        )
        if problem.hint:
            click.echo(f"  hint: {escape(problem.hint)}", err=err)
    if problems:
        nouns = {"error": "error", "silent": "silently ignored setting", "warning": "warning"}
        counts = {noun: sum(one.severity == kind for one in problems) for kind, noun in nouns.items()}
        click.echo(", ".join(counted(count, noun) for noun, count in counts.items() if count), err=err)
    else:
        click.echo(f"{escape(file)}: accepted, nothing in it is ignored", err=err)


def exit_of(problems: Sequence[Problem]) -> Exit:
    """2 when something is refused, 1 when something is silently ignored, else 0."""
    found = {problem.severity for problem in problems}
    return Exit.USAGE if "error" in found else Exit.DIFFERENT if "silent" in found else Exit.OK


def runtime_of(name: str, on: Optional[str]) -> dict[str, Runtime]:
    """What only the checker of MindSpore takes. Raises ConfigError when it is given to another."""
    if on is None:
        return {}
    if name != "mindspore":
        raise ConfigError(f"--on {on} is for MindSpore, this is checked against {name}", hint="leave --on out")
    return {"runtime": Runtime.named(on)}


def _facts_of(name: str, on: Optional[str], graph: Optional[str]) -> dict[str, Any]:
    """What only the checker of MindSpore takes. Raises ConfigError and ReadError."""
    facts: dict[str, Any] = dict(runtime_of(name, on))
    if name == "mindspore" and graph is not None and graph.endswith(".ir"):
        from ascend_dump.native.mindspore.config.check import known_of_graph

        facts["known"] = known_of_graph(Path(graph))
    return facts


def situation_of(graph: Optional[str]) -> Situation:
    """This process, and the operators of a graph. Raises ReadError."""
    from ascend_dump.native.cann.config import Situation
    from ascend_dump.native.cann.graph import Node, read_graph

    if graph is None:
        return Situation.here()
    if graph.endswith(".ir"):
        from ascend_dump.native.mindspore.graph import read_ir

        nodes = [Node(name, name.rpartition("/")[2].partition("-op")[0], (), graph) for name in read_ir(Path(graph))]
    else:
        nodes = list(read_graph(graph))
    return Situation.here()._replace(operators=nodes)


def _guess(source: Source) -> str:
    """The format, by the keys; what has none of them is judged as CANN would."""
    from ascend_dump.native.cann.config.parse import read_source

    value = read_source(source).value
    keys = list(value) if isinstance(value, dict) else []
    if "dump" not in keys:
        if "common_dump_settings" in keys:
            return "mindspore"
        if any(key in keys for key in _BRIDGE_KEYS):
            return "tensorflow"
        if "enable_dump" in keys or "dump_config_path" in keys:
            return "torchair"
        if any(key.startswith("ge.") for key in keys):
            return "ge"
    return "acl"
