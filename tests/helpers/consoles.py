"""Run the `console` blocks of a README, and compare what they print with the text of the README.

A line that begins with `$ ` is typed into a shell, those below it are what it prints: on stdout and stderr, as in a
terminal. Runs of spaces count as one. `...` stands for anything in its line, alone on a line for any number of lines.
Figures that differ from machine to machine are not compared: those with a unit of time or size, with a decimal point,
of rounding, and time directories.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["Typed", "printed_as", "sections", "type_into"]

_BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: What is not compared, and what stands for it.
_FIGURES = [
    (re.compile(r"\b\d{14}\b"), "TIME"),
    # From a minute on, pytest repeats the time in hours and minutes.
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s|B|kB|MB|GB)\b( \(\d+:\d\d:\d\d\))?"), "AMOUNT"),
    (re.compile(r"-?\b\d+(\.\d+)?e[+-]\d+\b|-?\b\d+\.\d+\b"), "FLOAT"),
    # How many tensors round differently is a matter of the processor and of the number of threads.
    (re.compile(r"\b\d+ (equal|noise|different|later outputs)\b"), r"COUNT \1"),
]
#: Said once on a machine.
_ONCE = re.compile(r"^ascend-dump: compiling the kernels .*\n", re.MULTILINE)
_MARK = "--- typed "


class Typed(NamedTuple):
    """One command, and what is printed below it."""

    command: str
    printed: str


def sections(text: str) -> dict[str, list[Typed]]:
    """The commands below each heading that has some."""
    parts = re.split(r"^#+ (.*)\n", text, flags=re.MULTILINE)
    found = {title: list(_typed(body)) for title, body in zip(parts[1::2], parts[2::2])}
    return {title: commands for title, commands in found.items() if commands}


def type_into(place: Path, commands: list[Typed], environment: Mapping[str, str]) -> list[Typed]:
    """The commands with what they really print, typed into one shell. Each ends with 0, or 1 for a difference."""
    script = "\n".join(f"{one.command}\ncode=$?; echo; echo '{_MARK}'$code" for one in commands)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=place,
        env={**environment, "PYTHONUNBUFFERED": "1", "COLUMNS": "160"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        stdin=subprocess.DEVNULL,
    )
    parts = re.split(rf"^{_MARK}(\d+)\n", done.stdout, flags=re.MULTILINE)
    assert len(parts) == 2 * len(commands) + 1, done.stdout
    assert set(parts[1::2]) <= {"0", "1"}, done.stdout
    return [Typed(one.command, _ONCE.sub("", text)) for one, text in zip(commands, parts[::2])]


def printed_as(expected: str, printed: str) -> bool:
    """Return True if the text was printed, apart from figures that differ between machines.

    >>> printed_as("...\\nloss 1.25\\n  in .../a.py:3 after 2 s\\n", "x\\ny\\nloss 7.5\\n in /a b/a.py:3 after 31 s\\n")
    True
    >>> printed_as("3 passed in 12.31s\\n", "3 passed in 202.55s (0:03:22)\\n")
    True
    >>> printed_as("step 3: loss 1.25\\n", "step 4: loss 1.25\\n")
    False
    """
    pattern = ""
    for line in _plain(expected):
        pattern += r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _plain(printed))) is not None


def _typed(body: str) -> Iterator[Typed]:
    for block in _BLOCK.findall(body):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            yield Typed(command, printed)


def _plain(text: str) -> list[str]:
    for figure, name in _FIGURES:
        text = figure.sub(name, text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in lines if line]
