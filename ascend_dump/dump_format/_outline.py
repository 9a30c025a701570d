"""The outline of a run: for each step a few numbers of the results of its top-level calls and of its gradients.

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
    "GRADIENTS",
    "OUTLINE_SCHEMA",
    "PARAMETERS",
    "Outline",
    "OutlineLine",
    "Over",
    "outline_name",
    "read_outlines",
    "why_over",
]

OUTLINE_SCHEMA = "ascend-dump/outline/1"
#: The reported tensor if a parameter or gradient has NaN or Inf and no output of the step has.
PARAMETERS = "a parameter, seen before the optimizer step"
GRADIENTS = "a gradient, seen before the optimizer step"
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
    values  largest and smallest element of each tensor that was returned, and the largest parameter or gradient where
            they were looked at; None: not finite
    wrong   the tensor with NaN or Inf in the step
    masked  a tensor with -Inf alone, such as a mask
    over    the end of the outline, one of `Over`; reason: the same in words
    """

    schema: str = ""
    step: _Step = -1
    values: tuple[Optional[float], ...] = ()
    wrong: str = ""
    masked: str = ""
    over: str = ""
    reason: str = ""


@dataclass
class Outline:
    """The outline of one process.

    steps   the values of each step
    wrong   the first step with NaN or Inf, and its tensor
    masked  the first one with -Inf and nothing else
    over    one of `Over`; "" while the process runs, or where it was killed
    last    the last step, -1 where there is none
    """

    name: str
    steps: dict[int, tuple[Optional[float], ...]] = field(default_factory=dict)
    wrong: Optional[tuple[int, str]] = None
    masked: Optional[tuple[int, str]] = None
    over: str = ""
    reason: str = ""
    last: int = -1

    def add(self, line: OutlineLine) -> None:
        if line.over:
            self.over, self.reason = line.over, line.reason
        if line.step < 0:
            return
        self.last = max(self.last, line.step)
        if line.values:
            self.steps[line.step] = line.values
        if line.wrong and self.wrong is None:
            self.wrong = line.step, line.wrong
        if line.masked and self.masked is None:
            self.masked = line.step, line.masked


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
