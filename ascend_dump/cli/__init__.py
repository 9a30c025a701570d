"""The command line. `main` turns every outcome into one exit code; verbs live one per file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Optional

from ascend_dump.cli.shared.exit import Exit

__all__ = ["Exit", "main"]

PROGRAM = "ascend-dump"
#: click's convention: `_ASCEND_DUMP_COMPLETE=bash_source ascend-dump` prints a script.
COMPLETION_VARIABLE = "_ASCEND_DUMP_COMPLETE"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command line and return its exit code, see `Exit`.

    A user error is printed without a traceback; `--debug` or `ASCEND_DUMP_LOG=debug` shows it.
    With `--json` an error is one JSON document on stdout too. A stdout that is full is told as an error.
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
    _print_anything()
    try:
        # Not click's own main(): it would exit with 1 for a closed pipe and for Ctrl-C.
        width = None if sys.stdout.isatty() else PIPE_WIDTH
        with root.make_context(PROGRAM, list(args), terminal_width=width) as context:
            result = root.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else Exit.OK


def _print_anything() -> None:
    """Let names that the terminal's encoding lacks appear escaped instead of ending the listing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (for the rest of the process)
        stream = getattr(sys, name)
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
