"""How a failed command line ends: message and hint for people, one document for programs."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import click

from ascend_dump._errors import AscendDumpError, ConfigError
from ascend_dump._version import __version__
from ascend_dump.cli._exit import Exit, exit_code, missing_package
from ascend_dump.cli._root import debugging

__all__ = ["error_fields", "report"]


def report(error: Exception, args: list[str]) -> Exit:
    """Tell about the error on stderr, and on stdout as JSON where that was asked for."""
    if type(error) is FileNotFoundError and not _has_directory():
        error = ConfigError(
            "the working directory of this shell is not there any more", hint="change to another one, then try again"
        ).with_traceback(error.__traceback__)
    mine = args[: args.index("--")] if "--" in args else args
    if "--debug" in mine or debugging():
        import traceback

        traceback.print_exception(type(error), error, error.__traceback__)
    code = Exit.USAGE if isinstance(error, click.ClickException) else exit_code(error)
    if "--json" in mine:
        from ascend_dump.report.documents import write_document

        write_document(sys.stdout, "error", {"exit": int(code), "error": error_fields(error)})
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
    return code


def error_fields(error: Exception) -> dict[str, Any]:
    """What a program needs of an error."""
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
