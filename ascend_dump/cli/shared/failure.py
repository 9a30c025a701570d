"""Report the error of a failed command: message and hint on stderr, and with --json one document on stdout."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, Optional

import click

from ascend_dump._version import __version__
from ascend_dump.cli.shared.exit import Exit, exit_code, missing_package
from ascend_dump.cli.shared.root import debugging
from ascend_dump.errors import AscendDumpError, ConfigError, WriteError

__all__ = ["discard_output", "error_fields", "report"]

#: Error numbers for a full disk, an exhausted quota, and a file of limited size.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def report(error: Exception, args: list[str]) -> Exit:
    """Report the error on stderr, and with --json on stdout too. Return the exit code.

    Raises BrokenPipeError if the reader of stdout has closed the pipe. A full disk under stdout is reported on stderr.
    """
    if type(error) is FileNotFoundError and not _has_directory():
        error = ConfigError(
            "the working directory of this shell was removed", hint="change to another directory, then try again"
        ).with_traceback(error.__traceback__)
    elif isinstance(error, OSError) and error.errno in _NO_ROOM:
        error = _unwritten(error).with_traceback(error.__traceback__)
    own_args = args[: args.index("--")] if "--" in args else args
    if "--debug" in own_args or debugging():
        import traceback

        traceback.print_exception(type(error), error, error.__traceback__)
    code = Exit.USAGE if isinstance(error, click.ClickException) else exit_code(error)
    _print_error(error, code)
    lost = _finish_output({"exit": int(code), "error": error_fields(error)} if "--json" in own_args else None)
    if lost is not None and str(lost) != str(error):
        _print_error(lost, exit_code(lost))
    return code


def discard_output() -> None:
    """Redirect stdout to the null device, because Python would print an error when it flushes stdout at exit."""
    if sys.stdout is not sys.__stdout__:  # a caller that uses main() as a function has replaced stdout
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _finish_output(document: Optional[dict[str, Any]]) -> Optional[WriteError]:
    """Write the document of the error, if given, and flush stdout. Return the error if writing fails, else None."""
    try:
        if document is not None:
            from ascend_dump.report.documents import write_document

            write_document(sys.stdout, "error", document)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        return _unwritten(error)
    return None


def _unwritten(error: OSError) -> WriteError:
    """Return the error for a failed write; a write to stdout has no file name."""
    return WriteError(
        f"{error.filename or 'the output'} cannot be written: {error.strerror}",
        hint="free some space, or write to another place",
    )


def _print_error(error: Exception, code: Exit) -> None:
    from ascend_dump.report.tables import escape_lines

    if isinstance(error, click.ClickException):
        shown = io.StringIO()
        error.show(shown)
        print(escape_lines(shown.getvalue()), end="", file=sys.stderr)
    elif missing_package(error):
        print(_missing(error), file=sys.stderr)
    elif code is not Exit.INTERNAL:
        print(f"error: {escape_lines(str(error))}", file=sys.stderr)
    else:
        print(escape_lines(_internal(error)), file=sys.stderr)


def error_fields(error: Exception) -> dict[str, Any]:
    """Return the fields of an error for a document."""
    fields: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, click.ClickException):
        fields["message"] = error.format_message()
    elif isinstance(error, AscendDumpError):
        fields.update(code=error.code, message=error.message, hint=error.hint)
        for name in ("path", "offset"):
            if getattr(error, name, None) is not None:
                fields[name] = getattr(error, name)
    return fields


def _has_directory() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _missing(error: Exception) -> str:
    return (
        f"error: the package {missing_package(error)} is not installed in the environment of {sys.executable}\n"
        "Hint: install ascend-dump anew, with its dependencies"
    )


def _internal(error: Exception) -> str:
    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f"internal error: {type(error).__name__}: {error}\n"
        f"This is a fault of ascend-dump {__version__} (Python {python}, {sys.platform}).\n"
        "Hint: report it with what `ascend-dump --debug ...` prints for the same command, and `ascend-dump doctor`"
    )
