"""`ascend-dump help`: print advice for a task, with commands."""

from __future__ import annotations

import json
import sys
from typing import Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import json_option
from ascend_dump.errors import ConfigError

__all__ = ["help"]


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from ascend_dump.cli.shared.help_texts import topics

    return [text.code for text in topics() if text.code.startswith(incomplete.lower())]


@click.command(short_help="Show what to do if a loss is NaN, differs, ...")
@click.argument("topic", required=False, shell_complete=_complete)
@click.option("--schema", "name", metavar="NAME", help="Print the JSON Schema of a document; see `help schemas`.")
@click.option(
    "--lang", metavar="LANGUAGE", help="zh: topics in Chinese if translated; by default the locale's language."
)
@json_option
def help(topic: Optional[str], name: Optional[str], lang: Optional[str], as_json: bool) -> Exit:  # noqa: A001  (the name of the verb)
    """Print a topic, or the help of the verb with this name. Without TOPIC, list all topics."""
    from ascend_dump.cli.shared.group import VERBS
    from ascend_dump.cli.shared.help_texts import LANGUAGES, TOPICS, topic_text, topics, user_language
    from ascend_dump.report.documents import write_document

    if name is not None:
        from ascend_dump.cli.shared.schemas import schema

        if topic is not None:
            raise ConfigError(f"--schema and the topic {topic} were both given", hint="leave one of them out")
        click.echo(json.dumps(schema(name), indent=1))
        return Exit.OK
    is_topic = any(topic in names for names in TOPICS.values())
    if topic is not None and not is_topic and any(topic in verbs for verbs in VERBS.values()):
        from ascend_dump.cli.shared.root import root

        context = click.get_current_context()
        command = root.get_command(context, topic)
        assert command is not None, "it is a verb"
        with click.Context(command, parent=context.parent, info_name=topic) as inner:
            click.echo(command.get_help(inner))
        return Exit.OK
    if lang is not None and lang not in LANGUAGES:
        raise ConfigError(f"--lang {lang} was given, expected one of {', '.join(LANGUAGES)}")
    language = lang or user_language()
    texts = topics(language) if topic is None else [topic_text(topic, language)]
    if as_json:
        write_document(sys.stdout, "help", {"pages": [text._asdict() for text in texts]})
    elif topic is not None:
        click.echo(texts[0].text.rstrip())
    else:
        titles = {text.code: text.title for text in texts}
        width = max(map(len, titles)) + 2
        for task, names in TOPICS.items():
            click.echo("\n".join([f"{task}:", *(f"  {name:<{width}}{titles[name]}" for name in names), ""]))
        click.echo("`ascend-dump help TOPIC` shows a topic, `ascend-dump VERB --help` the options of a verb")
    return Exit.OK
