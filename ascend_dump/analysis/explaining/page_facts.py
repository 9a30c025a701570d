"""Prepare a comparison for the report: findings, commands that show their tensors, and facts about the runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Protocol

from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.errors import NotSupported, ReadError
from ascend_dump.reading import Dump, Record
from ascend_dump.report.findings import Finding, rank_text
from ascend_dump.request import DumpRequest

if TYPE_CHECKING:
    from ascend_dump.analysis.explaining.results import ChangedCall, Origin, Pair

__all__ = [
    "capture_command",
    "changed_finding",
    "command",
    "has_values",
    "operator_command",
    "origin_finding",
    "run_facts",
    "show_command",
    "tensor_commands",
]

#: Maximum number of runs of one dump that a page shows.
_MOST_RUNS = 8


class ComparedSides(Protocol):
    """The fields of a `Comparison` that findings need."""

    @property
    def actual(self) -> Path: ...
    @property
    def reference(self) -> Path: ...
    @property
    def several_ranks(self) -> bool: ...


def origin_finding(origin: Origin, compared: ComparedSides) -> Finding:
    """Return the finding for an origin of a comparison, with the commands that show its tensors."""
    return Finding(
        "first seen" if origin.first_seen else "origin",
        origin.op_name,
        origin.op_type,
        origin.step,
        rank_text(origin.rank, compared.several_ranks),
        kind=origin.kind,
        module=origin.module,
        source=origin.source,
        evidence=origin.evidence,
        explains=origin.explains,
        commands=tensor_commands(compared.actual, compared.reference, origin.pair),
        settings=origin.next,
    )


def changed_finding(call: ChangedCall, *, several_ranks: bool) -> Finding:
    """Return the finding for an operator that is called with different arguments."""
    return Finding(
        "changed",
        call.op_name,
        call.op_type,
        call.step,
        rank_text(call.rank, several_ranks),
        module=call.module,
        source=call.source,
        arguments=call.arguments,
        others=call.others,
    )


def run_facts(dump: Dump, side: str = "") -> Iterator[tuple[str, str]]:
    """Yield facts about the runs of a dump, as name and text: state, request, command and versions.

    If several runs have the same request, command or version, it is yielded once.
    """
    runs = dump.runs()
    yielded: set[tuple[str, str]] = set()
    for number, run in enumerate(runs[:_MOST_RUNS], 1):
        name = f"{side} run {number}".strip()
        yield name, f"{run.path}: {run.state!s}{'; ' if run.notes else ''}{'; '.join(run.notes)}"
        for fact in run.made:
            if fact not in yielded:
                yielded.add(fact)
                yield f"{name}, {fact[0]}", fact[1]
    if len(runs) > _MOST_RUNS:
        yield f"{side} runs".strip(), f"{len(runs) - _MOST_RUNS} more"


def show_command(dump: Path, record: Record) -> str:
    """Return the command that prints one tensor."""
    return f"{operator_command('show', dump, record)} {command('--io', record.io or '*', '--plot')}"


def operator_command(verb: str, dump: Path, record: Record) -> str:
    """Return the command of a verb, such as show or replay, for all tensors of an operator."""
    words = ["ascend-dump", verb, str(dump), "--op", record.op_name or "*"]
    words += [] if record.step is None else ["--step", str(record.step)]
    words += ["--rank", str(record.rank)] if record.rank else []
    return command(*words)


def tensor_commands(actual: Path, reference: Path, pair: Pair) -> list[str]:
    """Return the commands that print the tensors of the operator of a pair.

    The list is empty if the values of a side cannot be read. It is also empty for a module, because neither dump
    contains the operators of the module.
    """
    sides = [
        (dump, record) for dump, record in ((actual, pair.actual), (reference, pair.reference)) if record is not None
    ]
    if is_of_module(pair.record) or not all(has_values(record) for _, record in sides):
        return []
    return [operator_command("show", dump, record) for dump, record in sides]


def has_values(record: Record) -> bool:
    """Return True if the tensor of a record can be read."""
    try:
        record.numpy()
    except (NotSupported, ReadError):
        return False
    return True


def capture_command(request: DumpRequest, dump: Optional[Dump] = None) -> str:
    """Return a shell command that runs the program with this request.

    The program and its arguments are those of the run that made the dump. If they are not recorded, or if the program
    came from standard input or from a text, "…" stands for them.
    """
    recorded = next((text for run in dump.runs() for name, text in run.made if name == "command"), "") if dump else ""
    program = recorded.partition(" ")[0]
    again = f"python {recorded}" if program.endswith(".py") else "python …"
    return f"ASCEND_DUMP={shlex.quote(request.to_text())} {again}"


def command(*words: str) -> str:
    """Return the words as a line for a shell."""
    return " ".join(map(shlex.quote, words))
