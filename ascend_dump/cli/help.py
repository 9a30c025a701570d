"""`ascend-dump help`: advice for a situation, with the commands."""

from __future__ import annotations

import sys
from typing import Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import json_option

__all__ = ["help"]


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from ascend_dump.report.pages import all_topics

    return [page.code for page in all_topics() if page.code.startswith(incomplete.lower())]


@click.command(short_help="Show what to do if a loss is NaN, differs, ...")
@click.argument("topic", required=False, shell_complete=_complete)
@json_option
def help(topic: Optional[str], as_json: bool) -> Exit:  # noqa: A001  (the name of the verb)
    """Print the page of a topic, or the help of a verb; without TOPIC, list all topics."""
    from ascend_dump.cli.shared.group import VERBS
    from ascend_dump.report.documents import write_document
    from ascend_dump.report.pages import all_topics, topic_page

    if topic is not None and any(topic in verbs for verbs in VERBS.values()):
        from ascend_dump.cli.shared.root import root

        context = click.get_current_context()
        command = root.get_command(context, topic)
        assert command is not None, "it is a verb"
        with click.Context(command, parent=context.parent, info_name=topic) as inner:
            click.echo(command.get_help(inner))
        return Exit.OK
    pages = all_topics() if topic is None else [topic_page(topic)]
    if as_json:
        write_document(sys.stdout, "help", {"pages": [page._asdict() for page in pages]})
    elif topic is not None:
        click.echo(pages[0].text.rstrip())
    else:
        for page in pages:
            click.echo(f"{page.code:<12}{page.title}")
        click.echo("\n`ascend-dump help TOPIC` shows one, `ascend-dump VERB --help` the options of a verb")
    return Exit.OK
