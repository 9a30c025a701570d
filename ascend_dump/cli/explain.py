"""`ascend-dump explain`: the meaning of an error code and its remedy."""

from __future__ import annotations

import sys
from typing import Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import json_option


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from ascend_dump.report.pages import all_pages

    return [page.code for page in all_pages() if page.code.startswith(incomplete.upper())]


@click.command(short_help="Explain an error code such as AD101.")
@click.argument("code", required=False, shell_complete=_complete)
@json_option
def explain(code: Optional[str], as_json: bool) -> Exit:
    """Print the page of an error code; without CODE, list all codes."""
    from ascend_dump.report.documents import write_document
    from ascend_dump.report.pages import all_pages, page

    pages = all_pages() if code is None else [page(code)]
    if as_json:
        write_document(sys.stdout, "explain", {"pages": [entry._asdict() for entry in pages]})
    elif code is not None:
        click.echo(pages[0].text.rstrip())
    else:
        for entry in pages:
            click.echo(f"{entry.code}  {entry.title}")
    return Exit.OK
