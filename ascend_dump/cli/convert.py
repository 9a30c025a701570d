"""`ascend-dump convert`: convert dumps to arrays in file formats that other tools read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.failure import error_fields
from ascend_dump.cli.shared.reading import json_option, print_lost_records, progress
from ascend_dump.errors import ConfigError, DumpNotFound, ReadError
from ascend_dump.storage import StoredPath, list_stored, located

if TYPE_CHECKING:
    from ascend_dump.converting.convert import ConversionFailure, Options, Result
    from ascend_dump.reading import Dump

#: Maximum number of failures printed on stderr; --json lists all.
_SHOWN = 10


@click.command(short_help="Convert dump files to .npy and others.")
@click.argument("sources", nargs=-1, metavar="SRC...", type=click.Path())
@click.option("-d", "listed", metavar="SRC,...", help="Sources in the form of msaccucmp: separated by commas.")
@click.option(
    "-o",
    "-out",
    "--out",
    default=".",
    type=click.Path(path_type=Path, file_okay=False),
    help="Output directory; the current one by default, as with msaccucmp.",
)
@click.option(
    "-t",
    "--type",
    "type_",
    default="npy",
    show_default=True,
    metavar="TYPE",
    help="npy, npz (one file per operator), bin (the bytes), txt or csv (one line per row); of dumps that are not "
    "CANN's also pt and safetensors (one file per operator).",
)
@click.option(
    "-f", "--format", metavar="LAYOUT", help='Layout: NCHW, ND, ..., or "original" for the layout in the model.'
)
@click.option("--dtype", metavar="TYPE", help="Convert the values, for example to float32.")
@click.option("--select", metavar="TEXT", help="Operator names in file names: a glob, or re:PATTERN.")
@click.option("--io", type=click.Choice(["input", "output"]), help="Only inputs, or only outputs.")
@click.option("--index", metavar="TEXT", help='Positions among inputs or outputs: "0|2-3".')
@click.option(
    "-s", "--shape", metavar="DIMS", help="The shape in the model, such as 1,30,20, instead of the recorded one."
)
@click.option("--original-format", metavar="LAYOUT", help="The layout in the model, if a shape fits several.")
@click.option(
    "--names",
    type=click.Choice(["msaccucmp", "ours"]),
    default="msaccucmp",
    show_default=True,
    help="File names: msaccucmp's, or ours with type, shape and layout in them.",
)
@click.option(
    "--msaccucmp-compat",
    "compat",
    is_flag=True,
    help="Write the same files as msaccucmp, including its decoding errors.",
)
@click.option("--jobs", type=click.IntRange(0), default=0, metavar="N", help="Threads; 0 is one per processor.")
@click.option("-v", "version", type=click.Choice(["1", "2"]), expose_value=False, help="Ignored, as by msaccucmp.")
@json_option
def convert(sources: tuple[str, ...], listed: Optional[str], out: Path, as_json: bool, **chosen: Any) -> Exit:
    """Convert dump files, or all dump files below directories, into the directory OUT.

    Unlike msaccucmp, it decodes NaN and Inf of float8 and hifloat8 correctly, and crops padded layouts to the shape in
    the model. Types that numpy lacks (bfloat16, float8, ...) become float32: it represents all their values exactly.
    A failing file does not stop the others: each failure is reported, and the exit code is then 3.

    SRC may also be the directory of a dump that is not CANN's, such as one of PyTorch on the host, of msprobe or of
    SGLang: its tensors become OUT/rank0/RUN/MODEL/STEP/NAME.io.index.TYPE.

    The options of msaccucmp are understood (-d, -out, -f, -s, -t, -v), except -o N and -i N: use --io and --index.
    """
    from ascend_dump.common.patterns import text_matcher
    from ascend_dump.converting.convert import convert_all, find_tasks
    from ascend_dump.converting.records import convert_records
    from ascend_dump.native.cann.converted import parse_converted
    from ascend_dump.reading.torch_tensors import as_torch
    from ascend_dump.report.tables import escape

    options = _options(chosen)
    pattern: Optional[str] = chosen["select"]
    dump: Optional[Dump] = None
    paths = tuple(map(_source_path, _sources(sources, listed, out)))
    if any(map(_holds_records, paths)) or (len(paths) == 1 and parse_converted(paths[0].name) is not None):
        summary = _Summary("record")
        dump = _dump_of_records(paths, options, pattern, chosen)
        results = convert_records(dump, out, options, lambda array: as_torch(array, writable=True))
    else:
        summary = _Summary("dump file")
        tasks = find_tasks(paths, out, text_matcher(pattern) if pattern else None)
        results = convert_all(tasks, options, jobs=chosen["jobs"], compat=chosen["compat"])
    watched = summary.watch(progress(results, "files"))
    if as_json:
        from ascend_dump.report.documents import write_document

        files = (_fields(result) for result in watched if not result.skipped)
        write_document(sys.stdout, "convert", {"out": out, "files": files, "totals": summary.fields})
    else:
        for _ in watched:
            pass
        directory = os.path.abspath(out) if summary.written else ""
        print(f"{summary} · in {escape(directory)}" if directory else str(summary))
    if chosen["compat"] and any(path.is_dir() for path in paths):
        from ascend_dump.converting.msaccucmp import write_failed_list

        write_failed_list(out, summary.failures, formats=options.format is not None)
    summary.tell()
    lost = [] if dump is None else dump.lost_records()
    print_lost_records(lost)
    return Exit.UNREADABLE if summary.failures or lost or not summary.files else Exit.OK


def _sources(sources: tuple[str, ...], listed: Optional[str], out: Path) -> list[str]:
    """Return the sources of the command line, in our form or msaccucmp's. Raises ConfigError, UsageError."""
    if listed is not None:
        if str(out).isdecimal():
            raise ConfigError(
                f"-o {out} names the output directory; in msaccucmp, it is the position of an output",
                hint=f"give --io output --index {out}, or -out ./{out} for the directory",
            )
        # A path with a comma is one source, if it exists.
        sources = (*sources, *([listed] if os.path.exists(listed) else listed.split(",")))
    if not sources:
        raise click.UsageError("Missing argument 'SRC...'.")
    return list(sources)


def _holds_records(path: Path) -> bool:
    """Return True if a directory is a dump in another format than CANN's, so that its records are converted.

    Raises ConfigError for one file of a dump in the dump format, which is converted by directory.
    """
    from ascend_dump.converting.convert import find_tasks
    from ascend_dump.converting.records import is_file_of_host_dump, is_host_dump
    from ascend_dump.reading import open_dump

    if not path.is_dir():
        if is_file_of_host_dump(path):
            raise ConfigError(f"{path} is one file of a dump", hint="give the directory of the dump")
        return False
    if is_host_dump(path):
        return True
    if any(task.named for task in find_tasks([path], path)):
        return False
    try:
        open_dump(path)
    except ReadError:  # files of CANN may have any names
        return False
    return True


def _source_path(source: str) -> Path:
    """Return the path of a source. If it is in an object store, list it now. Raises DumpNotFound."""
    path = located(source)
    if isinstance(path, StoredPath):
        try:
            list_stored(str(path))
        except FileNotFoundError:
            raise DumpNotFound("nothing is stored there", path=path) from None
    return path


def _dump_of_records(
    sources: tuple[Path, ...], options: Options, pattern: Optional[str], chosen: dict[str, Any]
) -> Dump:
    """Open the dump. Raises ConfigError for several sources, and for options that apply to CANN's files only."""
    from ascend_dump.converting.records import check_record_options
    from ascend_dump.reading import open_dump

    if len(sources) > 1:
        raise ConfigError(
            f"{len(sources)} sources were given, but one command converts several only if all are dumps of CANN",
            hint="convert each source by itself",
        )
    if chosen["compat"]:
        raise ConfigError("msaccucmp converts dumps of CANN only", hint="leave --msaccucmp-compat out")
    check_record_options(options)
    dump = open_dump(sources[0])
    return dump if pattern is None else dump.select(pattern)


def _options(chosen: dict[str, Any]) -> Options:
    from ascend_dump.converting.convert import Options
    from ascend_dump.steps import Steps

    return Options(
        type=chosen["type_"],
        format=chosen["format"],
        dtype=chosen["dtype"],
        io=chosen["io"],
        indices=None if chosen["index"] is None else Steps(chosen["index"], name="index"),
        shape=_shape(chosen["shape"]),
        original_format=chosen["original_format"],
        names=chosen["names"],
    )


def _shape(text: Optional[str]) -> tuple[int, ...]:
    if text is None:
        return ()
    dims = text.replace("x", ",").split(",")
    if not all(dim.strip().isdecimal() and len(dim) < 20 for dim in dims):
        raise ConfigError(f"shape={text!r} is no shape", hint="numbers separated by commas, such as 1,3,224,224")
    return tuple(map(int, dims))


def _fields(result: Result) -> dict[str, Any]:
    return {
        "source": result.source,
        "written": result.written,
        "problems": result.problems,
        "failures": [{"what": failure.what, "error": error_fields(failure.error)} for failure in result.failures],
    }


class _Summary:
    """Counts and failures of the conversion, summed over its results."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self.files = self.records = self.written = self.size = self.skipped = self.unreadable = 0
        self.failures: list[ConversionFailure] = []
        self.problems: list[tuple[Path, str]] = []

    def watch(self, results: Iterator[Result]) -> Iterator[Result]:
        for result in results:
            if result.skipped:
                self.skipped += 1
            else:
                self.files += 1
                self.records += result.records
            self.written += len(result.written)
            self.size += result.size
            self.failures += result.failures
            self.unreadable += bool(result.failures)
            self.problems += [(result.source, problem) for problem in result.problems]
            yield result

    def fields(self) -> dict[str, int]:
        records = {"records": self.records} if self._noun == "record" else {}
        return {
            "files": self.files,
            **records,
            "written": self.written,
            "bytes": self.size,
            "failed_files": self.unreadable,
            "failures": len(self.failures),
            "skipped": self.skipped,
        }

    def __str__(self) -> str:
        from ascend_dump.report.tables import counted, size

        count = self.records if self._noun == "record" else self.files
        text = f"{counted(count, self._noun)} · {counted(self.written, 'file')} written · {size(self.size)}"
        if self.skipped:
            noun, why = ("record", "without values") if self._noun == "record" else ("file", "of other kinds")
            text += f" · {counted(self.skipped, noun)} {why} left out"
        return text

    def tell(self) -> None:
        """Print failures, and problems of converted files, on stderr."""
        from ascend_dump.report.tables import counted

        if not self.files:
            what = "no record with values" if self._noun == "record" else "no dump file of CANN"
            print(f"{what} was found, or none was selected", file=sys.stderr)
            if self.skipped and self._noun != "record":
                print("`ascend-dump ls` and `ascend_dump.open()` read dumps of every kind", file=sys.stderr)
        _print_lines([f"{source}: {problem}" for source, problem in self.problems], "problems:")
        lines = []
        for failure in self.failures:
            where = "" if getattr(failure.error, "path", None) is not None else f"{os.fspath(failure.source)}: "
            what = f"{failure.what}: " if failure.what and failure.what not in failure.error.message else ""
            lines.append(f"{where}{what}{failure.error.message} [{failure.error.code}]")
        _print_lines(lines, f"{len(lines)} could not be converted, in {counted(self.unreadable, 'file')}:")


def _print_lines(lines: list[str], title: str) -> None:
    from ascend_dump.report.tables import escape

    if lines:
        print(title, file=sys.stderr)
    for line in lines[:_SHOWN]:
        print(f"  {escape(line)}", file=sys.stderr)
    if len(lines) > _SHOWN:
        print(f"  and {len(lines) - _SHOWN} more (--json lists all)", file=sys.stderr)
