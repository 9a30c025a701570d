"""The outline of a run: for each step a few numbers of its losses, gradients and results of top-level calls.

    {directory}/{rank}-{process}.jsonl      one OutlineLine per line: the first has `schema`, the last one `over`

It costs little, so that it can cover all steps of a long training: it shows the first step with NaN or Inf, and the
first step in which two runs differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Optional

import msgspec
from msgspec import Meta

from ascend_dump.storage.files import open_regular, text_lines

__all__ = [
    "OUTLINE_SCHEMA",
    "SKIPPED",
    "Outline",
    "OutlineLine",
    "Over",
    "outline_name",
    "read_outlines",
    "why_over",
]

OUTLINE_SCHEMA = "ascend-dump/outline/1"
#: The begin of `OutlineLine.wrong` where a gradient scaler leaves out optimizer steps and does not recover.
SKIPPED = "gradients that the gradient scaler refuses"
#: The longest line that is read, in characters.
_LONGEST = 1 << 16
_MOST_FILES = 1 << 16
#: The last line of an outline is no longer, in bytes.
_LONGEST_END = 1 << 12
_Step = Annotated[int, Meta(ge=-1, le=2**63 - 1)]


class Over:
    """Why an outline ended before the process did, or with it."""

    #: A step gave NaN or Inf.
    WRONG = "wrong"
    #: The last of the selected steps is recorded.
    RECORDED = "recorded"
    #: The process ended.
    ENDED = "ended"
    #: Nothing could be recorded.
    FAILED = "failed"


class OutlineLine(msgspec.Struct, omit_defaults=True):
    """One line.

    schema  of the file, in its first line
    step    the step; -1 in the first and the last line
    update  the number of optimizer steps before it; passes: of backward passes
    updated_at  the time of the optimizer step in it, in microseconds since the epoch; 0 if there was none
    values  extremes of losses and of results of top-level calls, norms of gradients and parameters; None: not finite
    wrong   the tensor with NaN or Inf that the user sees in the step
    masked  a result of a call with NaN or Inf that may be harmless, such as a mask
    read    a number that is NaN or Inf, read by the program
    over    the end of the outline, one of `Over`; reason: the same in words
    looked  the number of looks by their kind: "output", "loss", "gradient", "parameter", "read", "skip"
    updates True if steps are those of optimizers, because no module with parameters was called
    losses  the losses of the step, in their order
    norm    the largest norm of a gradient, as the optimizer reads it
    change  the change of a sample of the parameters by the optimizer, relative to their size
    settings  numbers among the settings of the optimizer, such as `lr`, where they differ from those before
    settings_at  the line of the optimizer step that reads them
    parameters  in the last line, by their kind ("frozen", "without gradient", "without optimizer", "of all optimizers")
                the number of parameters as text, and the names of the first ones
    optimizers  in the last line, the number of optimizers
    """

    schema: str = ""
    step: _Step = -1
    update: _Step = -1
    passes: _Step = 0
    updated_at: _Step = 0
    values: tuple[Optional[float], ...] = ()
    wrong: str = ""
    masked: str = ""
    read: str = ""
    over: str = ""
    reason: str = ""
    looked: dict[str, int] = {}
    updates: bool = False
    losses: tuple[Optional[float], ...] = ()
    norm: Optional[float] = None
    change: Optional[float] = None
    settings: dict[str, float] = {}
    settings_at: str = ""
    parameters: dict[str, tuple[str, ...]] = {}
    optimizers: int = 0


@dataclass
class Outline:
    """The outline of one process.

    steps   the values of each step
    before  the number of optimizer steps and of backward passes before each step, and the time of its optimizer step
    wrong   the first step with NaN or Inf that the user sees, and its tensor
    masked  the first step with NaN or Inf that may be harmless, and its tensor
    read    the first step in which the program reads NaN, else Inf, and where
    over    one of `Over`; "" while the process runs, or where it was killed
    last    the last step, -1 where there is none
    looked, updates, parameters, optimizers  as in `OutlineLine`
    losses, norms, changes  the series of `OutlineLine.losses`, `norm` and `change` by step
    settings  of the optimizer from each step on in which they change, with the line of the optimizer step
    """

    name: str
    steps: dict[int, tuple[Optional[float], ...]] = field(default_factory=dict)
    before: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    wrong: Optional[tuple[int, str]] = None
    masked: Optional[tuple[int, str]] = None
    read: Optional[tuple[int, str]] = None
    over: str = ""
    reason: str = ""
    last: int = -1
    looked: dict[str, int] = field(default_factory=dict)
    updates: bool = False
    parameters: dict[str, tuple[str, ...]] = field(default_factory=dict)
    optimizers: int = 0
    losses: dict[int, tuple[Optional[float], ...]] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)
    changes: dict[int, float] = field(default_factory=dict)
    settings: list[tuple[int, dict[str, float], str]] = field(default_factory=list)

    def add(self, line: OutlineLine) -> None:
        if line.over:
            self.over, self.reason = line.over, line.reason
            self.looked, self.updates = line.looked, line.updates
            self.parameters, self.optimizers = line.parameters, line.optimizers
        if line.step < 0:
            return
        self.last = max(self.last, line.step)
        if line.values:
            self.steps[line.step] = line.values
        if line.losses:
            self.losses[line.step] = line.losses
        if line.norm is not None:
            self.norms[line.step] = line.norm
        if line.change is not None:
            self.changes[line.step] = line.change
        if line.settings:
            self.settings.append((line.step, line.settings, line.settings_at))
        if line.wrong and self.wrong is None:
            self.wrong = line.step, line.wrong
        self.before.setdefault(line.step, (line.update, line.passes, line.updated_at))
        if line.masked and self.masked is None:
            self.masked = line.step, line.masked
        if line.read and (self.read is None or line.read.startswith("NaN") > self.read[1].startswith("NaN")):
            self.read = line.step, line.read


def outline_name(rank: int, process: int) -> str:
    return f"{rank}-{process}.jsonl"


def read_outlines(directory: Path) -> list[Outline]:
    """Return the outlines in a directory, in the order of ranks. Incomplete and foreign lines are left out."""
    try:
        files = sorted(directory.glob("*.jsonl"), key=_order)[:_MOST_FILES]
    except OSError:
        return []
    return [_read(file) for file in files]


def why_over(directory: Path) -> list[str]:
    """Return the reason of the end of each outline in a directory, "" if it has none; reads only the ends of files."""
    try:
        files = list(directory.glob("*.jsonl"))[:_MOST_FILES]
    except OSError:
        return []
    return ["".join(line.over for line in _lines(_last_lines(file))) for file in files]


def _last_lines(file: Path) -> list[str]:
    try:
        with open_regular(file, follow_links=False) as opened:
            opened.seek(max(opened.seek(0, 2) - _LONGEST_END, 0))
            return opened.read(_LONGEST_END).decode("utf-8", "replace").splitlines(keepends=True)[-1:]
    except OSError:
        return []


def _order(file: Path) -> tuple[Any, ...]:
    numbers = file.stem.split("-")
    return (
        (0, *map(int, numbers))
        if all(number.isascii() and number.isdecimal() for number in numbers)
        else (1, file.stem)
    )


def _read(file: Path) -> Outline:
    outline = Outline(file.stem)
    try:
        for line in _lines(text_lines(file, most=_LONGEST)):
            outline.add(line)
    except OSError:
        pass
    return outline


def _lines(lines: Iterable[str]) -> Iterable[OutlineLine]:
    decode = msgspec.json.Decoder(OutlineLine).decode
    for line in lines:
        if line.endswith("\n"):
            try:
                yield decode(line)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
