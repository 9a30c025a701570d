"""Make the pictures of terminals in README: `pip install rich`, then pictures.py with the Python that has ascend_dump.

Each command runs in a copy of its example, in a terminal of 100 columns; what it prints becomes an SVG beside the
example. In an animated picture the lines appear when they were printed, with pauses of at most two seconds.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

REPOSITORY = Path(__file__).parents[2]
WIDTH = 100
#: Seconds between two lines of an animated picture.
LONGEST_PAUSE = 2.0


class Picture(NamedTuple):
    """A file in the directory of an example, and the command that it shows.

    before       commands that make its dumps
    is_animated  the lines come one after the other
    """

    file: str
    command: str
    before: tuple[str, ...] = ()
    is_animated: bool = False


class Line(NamedTuple):
    """A printed line, and when it was printed, in seconds since the start of the command."""

    text: str
    time: float


_DUMP = "ascend-dump run --quiet --steps 0 --path reference -- python train.py"
_LS = "ascend-dump ls reference --module 'blocks.0.attention*' --phase forward"
PICTURES = {
    "01_pytorch_training": (Picture("demo.svg", "ascend-dump demo", is_animated=True),),
    "08_wrong_numbers": (Picture("ls.svg", _LS, (_DUMP,)),),
    "09_nan_at_step_4000": (Picture("triage.svg", "ascend-dump triage --run -- python train.py"),),
}


def shown(command: str, directory: Path) -> list[Line]:
    """Return what a command prints in a terminal of WIDTH columns."""
    ours, theirs = pty.openpty()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": str(WIDTH), "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
    start = time.monotonic()
    process = subprocess.Popen(["sh", "-c", command], cwd=directory, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    lines, rest = [], b""
    try:
        while part := os.read(ours, 1 << 16):
            *complete, rest = (rest + part).split(b"\n")
            lines += [Line(line.decode(errors="replace"), time.monotonic() - start) for line in complete]
    except OSError:  # the other side was closed
        pass
    os.close(ours)
    if process.wait() not in (0, 1):
        raise SystemExit(f"{command}: exit code {process.returncode}\n" + "\n".join(line.text for line in lines))
    lines += [Line(rest.decode(errors="replace"), time.monotonic() - start)] if rest else []
    while lines and not lines[-1].text.strip():
        del lines[-1]
    # Of a line that was written again and again, such as a progress display, the last state.
    return [
        line._replace(text=re.sub(r".*\r", "", line.text.rstrip("\r")).replace(str(directory), "...")) for line in lines
    ]


def write_picture(file: Path, command: str, lines: Sequence[Line], *, is_animated: bool) -> None:
    """Write the command and its output as an SVG without links to fonts of others."""
    printed = [Line(f"$ {command}", 0.0), *lines]
    times: list[float] = []
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor")
        for line in printed:
            rows = Text.from_ansi(line.text).wrap(console, WIDTH)
            console.print(*rows or [Text("")], sep="\n", soft_wrap=False)
            times += [line.time] * max(len(rows), 1)
        svg = console.export_svg(title="ascend-dump", unique_id=file.stem)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code", "monospace")
    if is_animated:
        svg = svg.replace("</style>", f"{_appearing(file.stem, times)}</style>", 1)
    file.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def _appearing(name: str, times: Sequence[float]) -> str:
    """Return the style by which the rows of a picture appear at their times, for readers who accept motion."""
    rules, moment, before = [], 0.0, 0.0
    for row, printed in enumerate(times):
        moment += min(printed - before, LONGEST_PAUSE)
        before = printed
        rules.append(f'text[clip-path="url(#{name}-line-{row})"] {{ animation: appear 0.1s {moment:.1f}s both }}')
    motion = "\n".join(["@keyframes appear { from { opacity: 0 } to { opacity: 1 } }", *rules])
    return f"@media (prefers-reduced-motion: no-preference) {{\n{motion}\n}}\n"


def main() -> None:
    for example, pictures in PICTURES.items():
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary) / example
            shutil.copytree(REPOSITORY / "examples" / example, directory)
            for picture in pictures:
                for command in picture.before:
                    shown(command, directory)
                lines = shown(picture.command, directory)
                file = REPOSITORY / "examples" / example / picture.file
                write_picture(file, picture.command, lines, is_animated=picture.is_animated)


if __name__ == "__main__":
    main()
