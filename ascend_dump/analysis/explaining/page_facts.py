"""Facts and commands that the pages of a comparison and of a triage share."""

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
    "location_facts",
    "operator_command",
    "run_facts",
    "show_command",
    "step_text",
    "tensor_commands",
]

#: Runs of one dump that a page names.
_MOST_RUNS = 8


def step_text(step: Optional[int]) -> str:
    """Return the beginning of the title of a finding."""
    return "" if step is None else f"step {step}: "


def location_facts(module: Optional[str], source: Optional[str]) -> Iterator[tuple[str, str]]:
    """Yield the module and the source line of a finding, as far as they are recorded."""
    if module:
        yield "module", module
    if source:
        yield "source", source


def run_facts(dump: Dump, side: str = "") -> Iterator[tuple[str, str]]:
    """Yield the state, the request, the command and the versions of each run; facts that runs share only once."""
    runs = dump.runs()
    shared: set[tuple[str, str]] = set()
    for number, run in enumerate(runs[:_MOST_RUNS], 1):
        name = f"{side} run {number}".strip()
        yield name, f"{run.path}: {run.state!s}{'; ' if run.notes else ''}{'; '.join(run.notes)}"
        for title, text in run.made:
            if (title, text) not in shared:
                shared.add((title, text))
                yield f"{name}, {title}", text
    if len(runs) > _MOST_RUNS:
        yield f"{side} runs".strip(), f"{len(runs) - _MOST_RUNS} more"


def show_command(dump: Path, record: Record) -> str:
    """Return the command that prints one tensor."""
    return f"{operator_command('show', dump, record)} {command('--io', record.io or '*', '--plot')}"


def operator_command(verb: str, dump: Path, record: Record) -> str:
    """Return the command that applies a verb, such as show or replay, to all tensors of an operator."""
    words = ["ascend-dump", verb, str(dump), "--op", record.op_name or "*"]
    words += [] if record.step is None else ["--step", str(record.step)]
    words += ["--rank", str(record.rank)] if record.rank else []
    return command(*words)


def tensor_commands(actual: Path, reference: Path, pair: Pair) -> list[str]:
    """Return the commands that print the tensors of the operator of a pair.

    There are none if a new dump helps more: if a side has no tensors, and for modules without their operators.
    """
    sides = ((actual, pair.actual), (reference, pair.reference))
    records = [(dump, record) for dump, record in sides if record is not None]
    if is_of_module(pair.record) or not all(has_values(record) for _, record in records):
        return []
    return [operator_command("show", dump, record) for dump, record in records]


def has_values(record: Record) -> bool:
    """Return True if the tensor of a record can be read."""
    try:
        record.numpy()
    except (NotSupported, ReadError):
        return False
    return True


def capture_command(request: DumpRequest, dump: Optional[Dump] = None) -> str:
    """Return the command that runs the program with a request; the program is that of the dump, if it is known."""
    run = next((text for run in dump.runs() for name, text in run.made if name == "command"), "") if dump else ""
    # A program from standard input or from a text is not in the command.
    program = f"python {run}" if run.partition(" ")[0].endswith(".py") else "python …"
    return f"ASCEND_DUMP={shlex.quote(request.to_text())} {program}"


def command(*words: str) -> str:
    """Return a line for a shell."""
    return " ".join(map(shlex.quote, words))
