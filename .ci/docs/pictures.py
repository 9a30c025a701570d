"""Make the pictures of terminals in README: `pip install rich`, then pictures.py with the Python that has ascend_dump.

Each command runs in a copy of its example, in a terminal of 100 columns; what it prints becomes an SVG beside the
example.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

REPOSITORY = Path(__file__).parents[2]
WIDTH = 100


class Picture(NamedTuple):
    """A file in the directory of an example, and the command that it shows. before: commands that make its dumps."""

    file: str
    command: str
    before: tuple[str, ...] = ()


_DUMP = "ascend-dump run --quiet --steps 0 --path reference -- python train.py"
_LS = "ascend-dump ls reference --module 'blocks.0.attention*' --phase forward"
PICTURES = {
    "08_wrong_numbers": (Picture("ls.svg", _LS, (_DUMP,)),),
    "09_nan_at_step_4000": (Picture("triage.svg", "ascend-dump triage --run -- python train.py"),),
}


def shown(command: str, directory: Path) -> str:
    """Return what a command prints in a terminal of WIDTH columns."""
    ours, theirs = pty.openpty()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": str(WIDTH), "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
    process = subprocess.Popen(["sh", "-c", command], cwd=directory, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = b""
    try:
        while part := os.read(ours, 1 << 16):
            output += part
    except OSError:  # the other side was closed
        pass
    os.close(ours)
    if process.wait() not in (0, 1):
        raise SystemExit(f"{command}: exit code {process.returncode}\n{output.decode()}")
    lines = output.decode().replace("\r\n", "\n").splitlines()
    # Of a line that was written again and again, such as a progress display, the last state.
    return "\n".join(re.sub(r".*\r", "", line).replace(str(directory), "...") for line in lines).rstrip()


def write_picture(file: Path, command: str, output: str) -> None:
    """Write the command and its output as an SVG without links to fonts of others."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.from_ansi(f"$ {command}\n{output}"), soft_wrap=False)
        svg = console.export_svg(title="ascend-dump", unique_id=file.stem)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code", "monospace")
    file.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def main() -> None:
    for example, pictures in PICTURES.items():
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary) / example
            shutil.copytree(REPOSITORY / "examples" / example, directory)
            for picture in pictures:
                for command in picture.before:
                    shown(command, directory)
                output = shown(picture.command, directory)
                write_picture(REPOSITORY / "examples" / example / picture.file, picture.command, output)


if __name__ == "__main__":
    main()
