"""`ascend-dump push`: upload a dump to an object store."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import json_option, progress

if TYPE_CHECKING:
    from ascend_dump.converting.push import Pushed


@click.command(short_help="Upload a dump to an object store.")
@click.argument("dump", type=click.Path())
@click.argument("url")
@click.option(
    "--jobs", type=click.IntRange(1), default=4, show_default=True, help="Number of files uploaded in parallel."
)
@click.option("--quiet", is_flag=True, help="Print nothing on success.")
@json_option
def push(dump: str, url: str, jobs: int, quiet: bool, as_json: bool) -> Exit:
    """Upload the finished parts of the dump at DUMP to URL, such as s3://bucket/run7.

    Each file is verified after its upload: by the hash of the store, or by reading it back. The same command again
    uploads only missing and changed files. While a capture runs, the newest step of each rank and model is not uploaded
    yet. Nothing is removed at URL.

    \b
    Exit codes:
      0  all finished parts are uploaded
      2  wrong usage; DUMP is no directory, or URL is no address
      3  the store refused a file or has different bytes, or the dump cannot be read
      4  the package for this store is missing: pip install 'ascend-dump[remote]'
    """
    from ascend_dump.converting.push import push as push_dump

    done = push_dump(dump, url, jobs=jobs, watch=None if quiet else lambda files: progress(files, "files"))
    if as_json:
        from ascend_dump.report.documents import write_document

        write_document(sys.stdout, "push", {"path": dump, **done.to_dict()})
    elif not quiet:
        _tell(done)
    return Exit.OK


def _tell(done: Pushed) -> None:
    from ascend_dump.common.units import counted, size
    from ascend_dump.report.tables import escape

    present = f"; {counted(done.present, 'file')} had been uploaded before" if done.present else ""
    print(f"uploaded {counted(done.uploaded, 'file')}, {size(done.nbytes)}, each verified{present}")
    for name in done.unfinished:
        print(f"left for the next time, a running capture may write to it: {escape(name)}", file=sys.stderr)
    for name in done.changed:
        print(f"left for the next time, it changed while it was read: {escape(name)}", file=sys.stderr)
    print(f"look at it: ascend-dump ls {escape(done.url)}")
