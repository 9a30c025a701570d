"""The default output of our log messages, for programs that do not configure logging.

ASCEND_DUMP_LOG=debug prints all messages, with module and line in our code, and with tracebacks.
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
#: The logger of summaries: messages that are shown although they are no warnings.
_SPOKEN = "ascend_dump.summary"


def debugging() -> bool:
    """Return True if ASCEND_DUMP_LOG is "debug"."""
    return os.environ.get("ASCEND_DUMP_LOG", "").lower() == "debug"


def log_everything() -> None:
    """Write all our messages to stderr, unless the program has added a handler to our logger."""
    log.setLevel(logging.DEBUG)
    if all(isinstance(handler, _Named) for handler in log.handlers):
        log.handlers.clear()
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(module)s:%(lineno)d %(message)s"))
        log.addHandler(handler)


def spoken() -> logging.Logger:
    """Return the logger of summaries. Summaries are shown unless the program has set a level for one of our loggers."""
    give_messages_a_name()
    logger = logging.getLogger(_SPOKEN)
    if logger.level == logging.NOTSET and log.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    return logger


def of_this_rank(text: str) -> str:
    """Return the message with a prefix `rank N: ` if the program has several ranks."""
    rank = current_rank()
    return f"rank {rank.rank}: {text}" if rank.world > 1 else text


def give_messages_a_name() -> None:
    """Prefix our messages with "ascend-dump:" and with the rank. Without a handler Python prints the bare text."""
    log.addFilter(_add_rank)
    if debugging():
        log_everything()
    elif not log.handlers:
        log.addHandler(_Named())


def print_line(text: str) -> None:
    """Write a line to stderr. Never raises: if stderr is missing, closed or full, the line is lost."""
    stream: Any = sys.stderr
    with contextlib.suppress(Exception):
        line = f"{text}\n"
        stream.flush()
        original: Any = sys.__stderr__
        if stream is original:
            # Written without the stream's buffer: if the disk is full, data that stays in the buffer makes the
            # interpreter exit with code 120.
            os.write(stream.fileno(), line.encode(errors="backslashreplace"))
        else:
            stream.write(line)
            stream.flush()


def _add_rank(record: logging.LogRecord) -> bool:
    # Placeholders (%s) in the message stay valid, because the prefix has no percent sign.
    record.msg = of_this_rank(str(record.msg))
    return True


class _Named(logging.Handler):
    """A handler that prints warnings and summaries. It does nothing if the program has a handler."""

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
