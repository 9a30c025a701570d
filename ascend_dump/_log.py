"""Where the messages of this package go unless the program configures logging.

ASCEND_DUMP_LOG=debug: all of them, with the place in our code and with tracebacks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any

__all__ = ["debugging", "give_messages_a_name", "log_everything", "print_line"]

log = logging.getLogger("ascend_dump")


def debugging() -> bool:
    """Whether the environment asks for every message."""
    return os.environ.get("ASCEND_DUMP_LOG", "").lower() == "debug"


def log_everything() -> None:
    """Write every message to stderr, unless the program has a handler for ours."""
    log.setLevel(logging.DEBUG)
    if all(isinstance(handler, _Named) for handler in log.handlers):
        log.handlers.clear()
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(module)s:%(lineno)d %(message)s"))
        log.addHandler(handler)


def give_messages_a_name() -> None:
    """Begin our messages with "ascend-dump:", which Python's handler of last resort would leave out."""
    if debugging():
        log_everything()
    elif not log.handlers:
        log.addHandler(_Named())


def print_line(text: str) -> None:
    """Write a line to stderr. Never raises: where that is closed or full, or there is none, the line is lost."""
    stream: Any = sys.stderr
    with contextlib.suppress(Exception):
        line = f"{text}\n"
        stream.flush()
        original: Any = sys.__stderr__
        if stream is original:
            # What a stream keeps because its file is full makes the interpreter end with exit code 120.
            os.write(stream.fileno(), line.encode(errors="backslashreplace"))
        else:
            stream.write(line)
            stream.flush()


class _Named(logging.Handler):
    """Prints warnings where the program handles no logging; does nothing where it does."""

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)
        self.setFormatter(logging.Formatter("ascend-dump: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if logging.root.handlers or log.handlers != [self]:
            return
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
            return
        print_line(text)
