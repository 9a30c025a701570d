"""Exit codes of the command line, and the code of each error."""

from __future__ import annotations

from enum import IntEnum

from ascend_dump.errors import (
    AdapterError,
    AscendDumpError,
    CaptureError,
    ConfigError,
    ReadError,
    WorkerLost,
    WriteError,
)

__all__ = ["Exit", "exit_code", "missing_package"]


class Exit(IntEnum):
    """Exit codes of the command line. `meaning` is the explanation that `--help` prints."""

    OK = 0
    DIFFERENT = 1
    USAGE = 2
    UNREADABLE = 3
    UNAVAILABLE = 4
    EMPTY = 5
    INTERNAL = 70
    INTERRUPTED = 130
    PIPE_CLOSED = 141

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Exit.OK: "done; everything that was compared is equal or noise",
    Exit.DIFFERENT: "a difference was found",
    Exit.USAGE: "wrong usage or configuration",
    Exit.UNREADABLE: "a dump, or a part of it, cannot be read",
    Exit.UNAVAILABLE: "a framework, an adapter, an optional package or a worker is missing",
    Exit.EMPTY: "a captured program recorded nothing, and its settings are strict",
    Exit.INTERNAL: "an error in ascend-dump itself",
    Exit.INTERRUPTED: "interrupted (Ctrl-C)",
    Exit.PIPE_CLOSED: "the reader of the output closed it, as `| head` does",
}

#: Exit codes of error classes. The first class of which an error is an instance decides.
_CODES: tuple[tuple[type[AscendDumpError], Exit], ...] = (
    (ConfigError, Exit.USAGE),
    (CaptureError, Exit.USAGE),
    (WriteError, Exit.USAGE),
    (ReadError, Exit.UNREADABLE),
    (AdapterError, Exit.UNAVAILABLE),
    (WorkerLost, Exit.UNAVAILABLE),
)


def exit_code(error: BaseException) -> Exit:
    """Return the exit code of an error: INTERNAL, unless it is an AscendDumpError or a missing package."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return Exit.UNAVAILABLE if missing_package(error) else Exit.INTERNAL


def missing_package(error: BaseException) -> str:
    """Return the name of the missing package that caused the error; "" if the error has another reason."""
    name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    return "" if name.startswith("ascend_dump") else name.partition(".")[0]
