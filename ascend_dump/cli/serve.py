"""`ascend-dump serve`: serve the page of `ascend-dump report` locally, with access to every tensor."""

from __future__ import annotations

import sys
from typing import Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import json_option, print_lost_records
from ascend_dump.cli.shared.report_options import analyse_dump, page_options


@click.command(
    short_help="Show the page of a dump on this machine, with every tensor.",
    epilog="Example:  ascend-dump serve npu_dumps gpu_dumps --open",
)
@page_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Listen on this port; by default on a free one.")
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
@json_option
def serve(
    dump: str,
    reference: Optional[str],
    port: int,
    show: bool,
    sources: str,
    no_sources: bool,
    as_json: bool,
    **options: Optional[str],
) -> Exit:
    """Serve the page of DUMP, or of its comparison with REFERENCE, with slices, histograms and maps of every tensor.

    The server listens on 127.0.0.1 only. Requests need the random token in the printed address, and cannot change
    anything. From another machine, forward the port (`ssh -L PORT:127.0.0.1:PORT HOST`, with --port PORT), and open the
    same address.

    It runs until Ctrl-C.
    """
    from ascend_dump.report.serving import PageServer

    content, lost = analyse_dump(dump, reference, **options)
    print_lost_records(lost)
    with PageServer(content, port, sources=None if no_sources else sources) as server:
        if as_json:
            from ascend_dump.report.documents import write_document

            write_document(sys.stdout, "serve", {"address": server.address, "verdict": content.verdict})
        else:
            from ascend_dump.report.tables import escape

            click.echo(f"{escape(content.verdict)}: {escape(content.sentence)}")
            click.echo(server.address)
            click.echo("Ctrl-C ends it", err=True)
        sys.stdout.flush()
        if show:
            import webbrowser

            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("", err=True)
    return Exit.OK
