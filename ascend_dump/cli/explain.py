"""`ascend-dump explain`: print the meaning of an error code, and what to do."""

from __future__ import annotations

import sys
from typing import Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import json_option


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from ascend_dump.cli.shared.help_texts import explanations

    return [text.code for text in explanations() if text.code.startswith(incomplete.upper())]


@click.command(short_help="Explain an error code such as AD101.")
@click.argument("code", required=False, shell_complete=_complete)
@json_option
def explain(code: Optional[str], as_json: bool) -> Exit:
    """Explain an error code; without CODE, list all codes."""
    from ascend_dump.cli.shared.help_texts import explanation, explanations
    from ascend_dump.report.documents import write_document

    texts = explanations() if code is None else [explanation(code)]
    if as_json:
        write_document(sys.stdout, "explain", {"pages": [text._asdict() for text in texts]})
    elif code is not None:
        click.echo(texts[0].text.rstrip())
    else:
        for text in texts:
            click.echo(f"{text.code}  {text.title}")
    return Exit.OK
