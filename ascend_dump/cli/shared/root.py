"""The command `ascend-dump` itself, to which the verbs belong."""

from __future__ import annotations

import os

import click

from ascend_dump._version import __version__
from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.group import LazyGroup

__all__ = ["debugging", "root"]


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    # Not as a docstring, because `python -OO` removes docstrings.
    help="""Dump, read and compare operator inputs and outputs.

    Every reading verb takes --json: one document on stdout, with a versioned "schema".
    Progress and messages go to stderr.
    """,
)
@click.version_option(__version__, "-v", "--version", prog_name="ascend-dump", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Log everything to stderr and show tracebacks; as ASCEND_DUMP_LOG=debug.")
@click.pass_context
def root(context: click.Context, debug: bool) -> None:
    if debug or debugging():
        from ascend_dump.common.log import log_everything

        log_everything()
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(Exit.USAGE)


def debugging() -> bool:
    # Not in the logging module, because `--help` must not import that.
    return os.environ.get("ASCEND_DUMP_LOG", "").lower() == "debug"
