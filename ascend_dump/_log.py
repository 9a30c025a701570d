"""Where the messages of this package go unless the program configures logging.

ASCEND_DUMP_LOG=debug: all of them, with the place in our code and with tracebacks.
"""

from __future__ import annotations

import logging
import os
import sys

__all__ = ["debugging", "give_messages_a_name", "log_everything"]

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


class _Named(logging.StreamHandler):  # type: ignore[type-arg]  # generic in typeshed only
    """Prints warnings where the program handles no logging; does nothing where it does."""

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)
        self.setFormatter(logging.Formatter("ascend-dump: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if logging.root.handlers or log.handlers != [self]:
            return
        self.stream = sys.stderr  # as it is now, like the last resort
        if self.stream is not None:
            super().emit(record)
