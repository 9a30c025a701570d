"""The command line. `main` runs it and returns an exit code; each verb (`ls`, `compare`, …) has a file of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Optional

from ascend_dump.cli.shared.exit import Exit

__all__ = ["Exit", "main"]

PROGRAM = "ascend-dump"
#: The variable that makes click print a completion script: `_ASCEND_DUMP_COMPLETE=bash_source ascend-dump`.
COMPLETION_VARIABLE = "_ASCEND_DUMP_COMPLETE"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command line and return its exit code, see `Exit`.

    Errors of the user are printed without a traceback; `--debug` or `ASCEND_DUMP_LOG=debug` shows the traceback. With
    `--json` an error is also written to stdout, as one JSON document. A full disk under stdout is reported as an error.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            code = _invoke(args)
            sys.stdout.flush()
            return code
        except (KeyboardInterrupt, BrokenPipeError):
            raise
        except Exception as error:
            from ascend_dump.cli.shared.failure import report

            return report(error, args)
    except BrokenPipeError:
        from ascend_dump.cli.shared.failure import discard_output

        discard_output()
        return Exit.PIPE_CLOSED
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return Exit.INTERRUPTED


def _invoke(args: list[str]) -> int:
    import click

    from ascend_dump.cli.shared.root import root
    from ascend_dump.report.tables import PIPE_WIDTH

    instruction = os.environ.get(COMPLETION_VARIABLE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(root, {}, PROGRAM, COMPLETION_VARIABLE, instruction)
    _escape_unprintable()
    try:
        # click's own main() is not used, because it exits with 1 for a closed pipe and for Ctrl-C.
        width = None if sys.stdout.isatty() else PIPE_WIDTH
        with root.make_context(PROGRAM, list(args), terminal_width=width) as context:
            result = root.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else Exit.OK


def _escape_unprintable() -> None:
    """Print characters that the terminal's encoding lacks as escape sequences, instead of failing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell has closed it: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (open until the end of the process)
        stream = getattr(sys, name)
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
