"""Where the messages of this package go unless the program configures logging.

ASCEND_DUMP_LOG=debug: all of them, with the place in our code and with tracebacks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any

from ascend_dump.common.rank import current_rank

__all__ = ["debugging", "give_messages_a_name", "log_everything", "of_this_rank", "print_line", "spoken"]

log = logging.getLogger("ascend_dump")
#: For what a run says without a reason to worry.
_SPOKEN = "ascend_dump.summary"


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


def spoken() -> logging.Logger:
    """The logger of what a run says of itself: shown as warnings are, unless the program has set a level for ours."""
    give_messages_a_name()
    found = logging.getLogger(_SPOKEN)
    if found.level == logging.NOTSET and log.level == logging.NOTSET:
        found.setLevel(logging.INFO)
    return found


def of_this_rank(text: str) -> str:
    """The message with the rank before it, where there are several."""
    rank = current_rank()
    return f"rank {rank.rank}: {text}" if rank.world > 1 else text


def give_messages_a_name() -> None:
    """Begin our messages with "ascend-dump:", which Python's handler of last resort would leave out, and the rank."""
    log.addFilter(_add_rank)
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


def _add_rank(record: logging.LogRecord) -> bool:
    # A message with marks for its arguments keeps them, since a rank has none.
    record.msg = of_this_rank(str(record.msg))
    return True


class _Named(logging.Handler):
    """Prints warnings where the program handles no logging; does nothing where it does."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("ascend-dump: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING and record.name != _SPOKEN:
            return
        if logging.root.handlers or log.handlers != [self]:
            return
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
            return
        print_line(text)
