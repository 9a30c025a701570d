"""What the pages of a comparison and of a triage say in the same words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.errors import NotSupported, ReadError
from ascend_dump.reading import Dump, Record
from ascend_dump.request import DumpRequest

if TYPE_CHECKING:
    from ascend_dump.analysis.explaining.results import Pair

__all__ = [
    "capture_command",
    "command",
    "has_values",
    "operator_command",
    "place_facts",
    "run_facts",
    "show_command",
    "step_text",
    "tensor_commands",
]

#: Runs of one dump that a page tells of.
_MOST_RUNS = 8


def step_text(step: Optional[int]) -> str:
    """How a finding begins."""
    return "" if step is None else f"step {step}: "


def place_facts(module: Optional[str], source: Optional[str]) -> Iterator[tuple[str, str]]:
    """Where in the program a finding lies, as far as the dump says it."""
    if module:
        yield "module", module
    if source:
        yield "source", source


def run_facts(dump: Dump, side: str = "") -> Iterator[tuple[str, str]]:
    """How a dump was made: of its runs the state, the request, the command and the versions; once what is the same."""
    runs = dump.runs()
    told: set[tuple[str, str]] = set()
    for number, run in enumerate(runs[:_MOST_RUNS], 1):
        name = f"{side} run {number}".strip()
        yield name, f"{run.path}: {run.state!s}{'; ' if run.notes else ''}{'; '.join(run.notes)}"
        for what, text in run.made:
            if (what, text) not in told:
                told.add((what, text))
                yield f"{name}, {what}", text
    if len(runs) > _MOST_RUNS:
        yield f"{side} runs".strip(), f"{len(runs) - _MOST_RUNS} more"


def show_command(dump: Path, record: Record) -> str:
    """The command that prints one tensor."""
    return f"{operator_command('show', dump, record)} {command('--io', record.io or '*', '--plot')}"


def operator_command(verb: str, dump: Path, record: Record) -> str:
    """The command that does something with all tensors of an operator, such as show or replay."""
    words = ["ascend-dump", verb, str(dump), "--op", record.op_name or "*"]
    words += [] if record.step is None else ["--step", str(record.step)]
    words += ["--rank", str(record.rank)] if record.rank else []
    return command(*words)


def tensor_commands(actual: Path, reference: Path, pair: Pair) -> list[str]:
    """The commands that print the tensors of the operator of a pair; none where another dump would tell more.

    That is where a side has no tensors, and of modules, whose operators are in neither dump.
    """
    sides = [(dump, one) for dump, one in ((actual, pair.actual), (reference, pair.reference)) if one is not None]
    if is_of_module(pair.record) or not all(has_values(one) for _, one in sides):
        return []
    return [operator_command("show", dump, one) for dump, one in sides]


def has_values(record: Record) -> bool:
    """Whether the tensor of a record can be read."""
    try:
        record.numpy()
    except (NotSupported, ReadError):
        return False
    return True


def capture_command(request: DumpRequest, dump: Optional[Dump] = None) -> str:
    """How the program is started to record what `request` says; by the command that made the dump, if it is known."""
    told = next((text for run in dump.runs() for name, text in run.made if name == "command"), "") if dump else ""
    program = told.partition(" ")[0]
    # What came from standard input or from a text stands in no command.
    again = f"python {told}" if program.endswith(".py") else "python …"
    return f"ASCEND_DUMP={shlex.quote(request.to_text())} {again}"


def command(*words: str) -> str:
    """A line for a shell."""
    return " ".join(map(shlex.quote, words))
