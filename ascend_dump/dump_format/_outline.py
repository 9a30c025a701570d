"""The outline of a run: for each step a few numbers about its losses, its gradients and the results of the model.

    {directory}/{rank}-{process}.jsonl      one OutlineLine per line: the first has `schema`, the last one `over`

An outline costs little, so it can cover all steps of a long training. It shows the first step with NaN or Inf, and the
first step in which two runs differ. A top-level call is a call of a module by the program itself, such as `model(x)`.
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
#: The beginning of `OutlineLine.wrong` if a gradient scaler skips optimizer steps and does not recover.
SKIPPED = "gradients that the gradient scaler refuses"
#: Maximum length of a line in characters.
_LONGEST = 1 << 16
_MOST_FILES = 1 << 16
#: Maximum length of the last line in bytes: only so much is read from the end of a file.
_LONGEST_END = 1 << 12
_Step = Annotated[int, Meta(ge=-1, le=2**63 - 1)]


class Over:
    """The reasons for the end of an outline."""

    #: A step had NaN or Inf that the user sees.
    WRONG = "wrong"
    #: The last selected step was recorded.
    RECORDED = "recorded"
    #: The process ended.
    ENDED = "ended"
    #: Nothing could be recorded.
    FAILED = "failed"


class OutlineLine(msgspec.Struct, omit_defaults=True):
    """A line of an outline.

    schema  the schema of the file, in its first line
    step    the step; -1 in the first and the last line
    update, passes  number of optimizer steps, and of backward passes, before the step
    updated_at  time of the optimizer step in this step, in microseconds since the epoch; 0 without an optimizer step
    values  largest and smallest values of losses and of results of top-level calls, norms of gradients and parameters;
            None: not finite
    wrong   the tensor with NaN or Inf that the user sees in the step
    masked  a result of a call with NaN or Inf that may be harmless, such as a mask
    read    a number that the program read from a tensor and that is NaN or Inf
    over, reason  in the last line: the reason for the end, one of `Over`, and a sentence about it
    looked  in the last line: number of checks by their kind: "output", "loss", "gradient", "parameter", "read", "skip"
    updates in the last line: True if a step is an optimizer step, because no module with parameters was called
    losses  the losses of the step, in their order
    norm    the largest norm of a gradient when the optimizer reads it
    change  the optimizer's change of a sample of the parameters, relative to their size
    settings  settings of the optimizer that are numbers, such as `lr`; only if they changed since the previous step
    settings_at  the line of the program with the optimizer step that uses these settings
    parameters  in the last line: by kind ("frozen", "without gradient", "without optimizer", "of all optimizers") the
                number of parameters as text, and the names of the first ones
    optimizers  in the last line: number of optimizers
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
    """The outline of one process, collected from its lines. "By step" means a dictionary with steps as keys.

    name    the name of the file without its suffix: rank and process
    steps   by step: `OutlineLine.values`
    before  by step: `update`, `passes` and `updated_at` of `OutlineLine`
    wrong   the first step with NaN or Inf that the user sees, and the tensor
    masked  the first step with NaN or Inf that may be harmless, and the tensor
    read    the first step in which the program reads a NaN, and `OutlineLine.read`; if it reads none, the first Inf
    over    one of `Over`; "" if the process still runs or was killed
    last    the last step; -1 if there is none
    looked, updates, parameters, optimizers  as in `OutlineLine`
    losses, norms, changes  by step: `losses`, `norm` and `change` of `OutlineLine`
    settings  (step, settings, line of the optimizer step) for each change of the optimizer's settings
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
    """Return the outlines in a directory, in the order of ranks. Incomplete and invalid lines are left out."""
    try:
        files = sorted(directory.glob("*.jsonl"), key=_order)[:_MOST_FILES]
    except OSError:
        return []
    return [_read(file) for file in files]


def why_over(directory: Path) -> list[str]:
    """Return `OutlineLine.over` of each outline in a directory; "" if it has not ended. Reads only ends of files."""
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
