"""`ascend-dump report`: write an HTML page about a dump, or about a comparison of two dumps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import json_option, lost_fields, print_lost_records
from ascend_dump.cli.shared.report_options import analyse_dump, page_options
from ascend_dump.cli.shared.target import check_target
from ascend_dump.common.units import counted
from ascend_dump.errors import ConfigError


@click.command(
    short_help="Write one HTML file that shows a dump or a comparison.",
    epilog="Example:  ascend-dump report npu_dumps gpu_dumps -o page.html --open",
)
@page_options
@click.option("-o", "--output", metavar="FILE", default="report.html", show_default=True, help="Write the page here.")
@click.option("--overwrite", is_flag=True, help="Replace an existing FILE.")
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
@json_option
def report(
    dump: str,
    reference: Optional[str],
    output: str,
    overwrite: bool,
    show: bool,
    sources: str,
    no_sources: bool,
    as_json: bool,
    **options: Optional[str],
) -> Exit:
    """Write an HTML page of DUMP: its suspects, or with REFERENCE the origins of the differences.

    The page is a single file that works offline and without this program. It shows the verdict and the next command,
    suspects or origins, error or magnitude in execution order, modules, all records or pairs with a filter, each
    operator with its producers and consumers, ranks, steps, and omissions.

    It contains names, statistics, histograms, and 64 x 64 maps of the largest values of the findings, but no other
    values.

    Exit code 0 if the page is complete, 3 if some records could not be read, or were lost.
    """
    target = Path(output)
    if target.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"-o {output}: the page is an HTML file, so its name ends in .html", hint="such as page.html")
    check_target("-o", output)
    if target.exists() and not overwrite:
        raise ConfigError(f"{target} exists already", hint="give -o another name, or --overwrite")
    from ascend_dump.report.page import write_page

    content, lost = analyse_dump(dump, reference, **options)
    built = write_page(content, target, sources=None if no_sources else sources)
    size = target.stat().st_size
    if as_json:
        from ascend_dump.report.documents import write_document

        fields: dict[str, Any] = {"page": target, "bytes": size, "rows": len(built.rows), "verdict": content.verdict}
        fields.update(sentence=content.sentence, unreadable=built.unreadable, notes=lost_fields(lost))
        write_document(sys.stdout, "report", fields)
    else:
        from ascend_dump.report.tables import escape, folded
        from ascend_dump.report.tables import size as size_text

        click.echo("\n".join(folded(f"{escape(content.verdict)}: {escape(content.sentence)}", sys.stdout, 2)))
        rows = counted(len(built.rows), "pair" if content.compared else "record")
        click.echo(f"{escape(str(target))}: {rows}, {size_text(size)}")
    if show:
        _open(target)
    print_lost_records(lost)
    if built.unreadable:
        click.echo(f"{counted(built.unreadable, 'record')} cannot be read; the page says why", err=True)
    return Exit.UNREADABLE if built.unreadable or lost else Exit.OK


def _open(target: Path) -> None:
    import webbrowser

    address = target.resolve().as_uri()
    if not webbrowser.open(address):
        click.echo(f"no browser was found here; open {address}", err=True)
