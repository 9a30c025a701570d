"""Write the output of a command to files, pass it on to the user if wanted, and search it for NaN."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Optional

from ascend_dump.common.paths import open_private

__all__ = ["CommandOutput"]

#: NaN as programs print it: `loss nan`, `loss=NaN,`, `tensor(nan, grad_fn=...)`.
_NAN = re.compile(rb"(?<![\w.'/-])[-+]?nan(?![\w'/-])", re.IGNORECASE)
_BLOCK = 1 << 16
#: Only this many bytes at the end of a line are searched.
_LONGEST = 1 << 12
#: Maximum number of characters of an error message that are kept.
_LONGEST_ERROR = 200


class CommandOutput:
    """The files of a command's standard output and error, `stdout.txt` and `stderr.txt`.

    shown       descriptors to which standard output and error are passed on by `follow`; None: they are only kept
    nan_line    the first line with NaN; "" if there is none
    last_error  the last line of standard error, shortened
    """

    def __init__(self, directory: Path, shown: Optional[Sequence[int]]) -> None:
        self.nan_line = self.last_error = ""
        self._shown = shown
        paths = [directory / f"{name}.txt" for name in ("stdout", "stderr")]
        self._stack = ExitStack()
        enter = self._stack.enter_context
        private = [open_private(path, os.O_WRONLY | os.O_TRUNC) for path in paths]
        self.files = [enter(os.fdopen(descriptor, "wb", buffering=0)) for descriptor in private]
        self._readers = [enter(os.fdopen(os.open(path, os.O_RDONLY), "rb", buffering=0)) for path in paths]
        self._open_lines = [b"", b""]

    def __enter__(self) -> CommandOutput:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        with self._stack:
            self.follow()
            for number, line in enumerate(self._open_lines):
                self._search(number, line)

    def follow(self) -> None:
        """Search the output since the last call for NaN, and pass it on."""
        for number, reader in enumerate(self._readers):
            while True:
                block = reader.read(_BLOCK)
                if not block:
                    break
                if self._shown is not None:
                    _write(self._shown[number], block)
                *lines, rest = (self._open_lines[number] + block).split(b"\n")
                for line in lines:
                    self._search(number, line)
                self._open_lines[number] = rest[-_LONGEST:]

    def _search(self, number: int, line: bytes) -> None:
        # Progress bars rewrite their line after a carriage return, so only the last version counts.
        text = line[-_LONGEST:].rstrip(b"\r").rsplit(b"\r")[-1].decode("utf-8", "replace").strip()
        if number == 1 and text:
            self.last_error = text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}…"
        if not self.nan_line and _NAN.search(line[-_LONGEST:]):
            parts = [part for part in line[-_LONGEST:].split(b"\r") if _NAN.search(part)]
            self.nan_line = parts[0].decode("utf-8", "replace").strip()


def _write(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:  # for example a closed pipe, which does not end the triage
        return
