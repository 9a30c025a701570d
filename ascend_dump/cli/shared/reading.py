"""Shared by the reading verbs: PATH, the selectors, progress, and the handling of unreadable records."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol, TypeVar

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.failure import error_fields
from ascend_dump.errors import ConfigError, DumpNotFound, NotSupported, ReadError

if TYPE_CHECKING:
    from ascend_dump.reading import Dump, LostRecords, Record
    from ascend_dump.report.tables import Column
    from ascend_dump.statistics import Statistics

__all__ = [
    "Unreadable",
    "argument_cells",
    "argument_columns",
    "argument_text",
    "brief_option",
    "code_of_comparison",
    "first_line",
    "ignore_option",
    "json_option",
    "leading_cells",
    "leading_columns",
    "lost_fields",
    "lost_of",
    "naming_what_there_is",
    "open_selected",
    "progress",
    "reading_options",
    "record_fields",
    "selector_options",
    "shape_text",
    "tell_lost",
    "tell_nothing_matched",
    "what_there_is",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Item = TypeVar("_Item")

_PATTERN, _NUMBERS = "a glob such as *conv1*, or re:PATTERN", '"0|3-5|10"'
_SELECTORS = {
    "op": f"Operator names: {_PATTERN}.",
    "op-type": f"Operator types: {_PATTERN}.",
    "step": f"Steps: {_NUMBERS}.",
    "rank": f"Global ranks: {_NUMBERS}.",
    "device": f"Device ids: {_NUMBERS}.",
    "io": "input or output.",
    "index": f"Positions among the inputs or outputs of an operator: {_NUMBERS}.",
    "model": f"Model names: {_PATTERN}.",
    "phase": "forward, backward or other.",
    "module": f"Module paths: {_PATTERN}.",
    "run": f"Runs, by the name of their time directory: {_PATTERN}.",
    "label": "Labels of captures: a glob such as update_*, or re:PATTERN.",
}
#: Columns that only dumps of several runs, ranks or models need.
_LEADING = ("run", "rank", "model")
#: Seconds between two lines of progress where stderr is no terminal.
_SECONDS_PER_LINE = 10.0
#: The most existing values that are listed if none matches a selector.
_FEW = 4
#: Records that are read to look for names of arguments.
_PEEK = 50


def json_option(function: _Function) -> _Function:
    """Add `--json`, given to the verb as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, is_eager=True, help="One JSON document on stdout.")(function)


def brief_option(function: _Function) -> _Function:
    """Add `--brief`, which `--json` excludes."""

    def refuse_json(context: click.Context, parameter: click.Parameter, brief: bool) -> bool:
        if brief and context.params.get("as_json"):
            raise ConfigError("--brief and --json were both given", hint="leave one of them out")
        return brief

    text = "Print the answer, the first finding and the next command only, at most 2 kB."
    return click.option("--brief", is_flag=True, callback=refuse_json, help=text)(function)


def ignore_option(function: _Function) -> _Function:
    """Add `--ignore`."""
    text = "An operator whose NaN or Inf is known: a glob of its name or type, its module, or FILE:LINE; repeatable."
    return click.option("--ignore", metavar="OP|MODULE|FILE:LINE", multiple=True, help=text)(function)


def reading_options(function: _Function) -> _Function:
    """Add PATH, one option per selector of `Dump.select`, and `--json`."""
    function = selector_options(*_SELECTORS)(json_option(function))
    return click.argument("path", type=click.Path(), default="dumps")(function)


def selector_options(*names: str) -> Callable[[_Function], _Function]:
    """Add the options for some selectors of `Dump.select`."""

    def add(function: _Function) -> _Function:
        for name in reversed(names):
            function = click.option(f"--{name}", metavar="TEXT", help=_SELECTORS[name])(function)
        return function

    return add


def open_selected(path: str, selectors: dict[str, Optional[str]]) -> Dump:
    """Open the dump and narrow it. Raises ReadError and ConfigError."""
    from ascend_dump.reading import open_dump

    dump = open_dump(path)
    chosen: dict[str, Any] = {name: text for name, text in selectors.items() if text is not None}
    return dump.select(**chosen) if chosen else dump


def leading_columns(dump: Dump) -> list[Column]:
    """Return the columns of runs, ranks and models, where there are several, and of the step."""
    from ascend_dump.report.tables import Column

    several = [Column(name) for name in _LEADING if len(dump.known_values(name)) > 1]
    return [*several, Column("step", right=True)]


def argument_columns(dump: Dump) -> list[Column]:
    """Return the column of the argument names in the schemas of operators, if the dump contains them.

    The parameter of the tensor follows in parentheses: `self (fc.weight)`.
    """
    from ascend_dump.report.tables import Column

    has_names = any(record.argument for record in islice(dump, _PEEK))
    return [Column("argument", elastic=True, spare=5)] if has_names else []


def argument_cells(record: Record, columns: list[Column]) -> list[str]:
    return [argument_text(record)] * len(columns)


def argument_text(record: Record) -> str:
    behind = f" ({record.parameter})" if record.parameter else ""
    return f"{record.argument or '-'}{behind}"


class _Shown(Protocol):
    """A record, or the part of its fields that a listing shows."""

    @property
    def shape(self) -> Optional[Sequence[int]]: ...


def shape_text(record: _Shown) -> str:
    return "-" if record.shape is None else f"[{','.join(map(str, record.shape))}]"


def first_line(text: str) -> str:
    """Return the first line of a reason, without the hint below it."""
    return text.partition("\n")[0]


def leading_cells(record: _Shown, columns: list[Column]) -> list[str]:
    values = (getattr(record, column.name) for column in columns)
    return ["-" if value is None else str(value) for value in values]


def record_fields(record: Record, error: Optional[ReadError] = None) -> dict[str, Any]:
    """Return the fields of a record for a JSON document. error: the error of reading its values."""
    fields = record.to_dict()
    failure = error or record.error
    if failure is not None:
        fields["error"] = error_fields(failure)
    return fields


class Unreadable:
    """A counter of unreadable records, reported after all other output.

    seen            all records
    count           unreadable records
    without_values  records with neither values nor statistics

    dump: the dump, for verbs that report lost records through this class
    """

    def __init__(self, dump: Optional[Dump] = None) -> None:
        self._dump = dump
        self.seen = 0
        self.count = 0
        self.without_values = 0
        self._first: list[str] = []

    def watch(self, records: Iterable[Record]) -> Iterator[Record]:
        """Pass the records on, noting those with an error."""
        for record in records:
            self.seen += 1
            if record.error is not None:
                self.add(record.error)
            yield record

    def add(self, error: ReadError) -> None:
        self.count += 1
        if len(self._first) < 5:
            self._first.append(f"{error.message} [{error.code}]")

    def statistics(self, record: Record, *, recorded: bool = False) -> tuple[Optional[Statistics], Optional[ReadError]]:
        """Return the statistics of a record, or the error of computing them; (None, None): it has no values.

        recorded: recorded statistics only; no tensor is read.
        """
        if record.error is not None:
            return None, record.error
        try:
            return record.recorded_statistics() if recorded else record.statistics(), None
        except NotSupported:
            self.without_values += 1
            return None, None
        except ReadError as error:
            self.add(error)
            return None, error

    @cached_property
    def lost(self) -> list[LostRecords]:
        """The runs of the dump that have lost records; correct after all records were read."""
        return [] if self._dump is None else self._dump.lost_records()

    def finish(self, *, is_whole: bool = True) -> Exit:
        """Report unreadable and lost records on stderr; return the exit code of the verb.

        is_whole: all records were read; else lost records are not looked for
        """
        from ascend_dump.report.tables import counted, escape

        lost = self.lost if is_whole else []
        tell_lost(lost)
        if self.without_values:
            verb = "holds" if self.without_values == 1 else "hold"
            print(f"{counted(self.without_values, 'record')} {verb} neither values nor statistics", file=sys.stderr)
        if not self.count:
            return Exit.UNREADABLE if lost else Exit.OK
        print(f"{counted(self.count, 'record')} cannot be read:", file=sys.stderr)
        for text in self._first:
            print(f"  {escape(text)}", file=sys.stderr)
        if self.count > len(self._first):
            print(f"  and {self.count - len(self._first)} more", file=sys.stderr)
        return Exit.UNREADABLE


def lost_of(dumps: Iterable[Dump]) -> list[LostRecords]:
    """Return the runs of some dumps that have lost records, each once."""
    return list(dict.fromkeys(lost for dump in dumps for lost in dump.lost_records()))


def tell_lost(lost: Iterable[LostRecords]) -> None:
    """Print on stderr the runs that have lost records after they were written."""
    from ascend_dump.report.tables import escape

    for run in lost:
        print(f"incomplete: {escape(str(run.run))}: {run.reason}", file=sys.stderr)


def code_of_comparison(code: Exit, lost: Iterable[LostRecords]) -> Exit:
    """Return the exit code of a comparison: 3 if the compared records are equal, but records were lost before.

    Lost tensors do not count: equal hashes are proof of what was captured.
    """
    return Exit.UNREADABLE if code is Exit.OK and not all(run.shard for run in lost) else code


def lost_fields(lost: Iterable[LostRecords]) -> list[dict[str, Any]]:
    """Return the lost records for the `notes` of a document."""
    return [{"path": run.run, "note": run.reason} for run in lost]


def tell_nothing_matched(path: str, selectors: dict[str, Optional[str]]) -> Exit:
    """Print the existing values on stderr, to distinguish a mistyped name from an empty dump.

    Return the exit code: an empty dump is a good result of scene="overflow".
    """
    from ascend_dump.report.tables import escape

    summary, *lines = what_there_is(path, selectors)
    chosen = any(selectors.values())
    lines = [f"no record matches; {summary}" if chosen else summary, *(f"  {line}" for line in lines)]
    print("\n".join(map(escape, lines)), file=sys.stderr)
    return Exit.UNREADABLE if chosen else Exit.OK


@contextmanager
def naming_what_there_is(selectors: dict[str, Optional[str]]) -> Iterator[None]:
    """Add the existing values to an error about selectors without a match."""
    try:
        yield
    except DumpNotFound as error:
        if error.path is not None and any(selectors.values()):
            error.hint = "; ".join(what_there_is(str(error.path), selectors))
        raise


def what_there_is(path: str, selectors: dict[str, Optional[str]]) -> list[str]:
    """Return a line about the whole dump, and one per selector with the existing or nearest values."""
    from difflib import get_close_matches

    from ascend_dump.report.tables import counted

    texts = {option: text for option, text in selectors.items() if text is not None}
    present: dict[str, dict[Any, None]] = {option: {} for option in ("op", *texts)}
    count = 0
    dump = open_selected(path, {})
    for record in dump:
        count += 1
        for option, values_of_option in present.items():
            if option != "label":
                values_of_option.setdefault(getattr(record, "op_name" if option == "op" else option))
    if "label" in present:
        present["label"] = dict.fromkeys(dump.labels)
    summary = f"{counted(count, 'record')} of {counted(len(present['op']), 'operator')}" if count else "no records"
    lines = [f"{path} holds {summary}"]
    for option, text in texts.items():
        values = sorted(str(value) for value in present[option] if value not in (None, ""))
        name = f"--{option.replace('_', '-')}"
        near = get_close_matches(text.strip("*"), values, n=3, cutoff=0.3)
        if len(values) <= _FEW:
            lines.append(f"{name} {text}: the dump has {', '.join(values) or 'none'}")
        elif near:
            lines.append(f"nearest to {name} {text}: {', '.join(near)}")
    return lines


def _counted_in_lines(items: Iterable[_Item], noun: str, size: Callable[[_Item], int]) -> Iterator[_Item]:
    """Pass the items on; write a line with their count to stderr every `_SECONDS_PER_LINE` seconds."""
    start = shown = monotonic()
    count = 0
    for item in items:
        count += size(item)
        now = monotonic()
        if now - shown >= _SECONDS_PER_LINE:
            sys.stderr.write(f"{count} {noun}, {now - start:.0f} s\n")
            sys.stderr.flush()
            shown = now
        yield item


def progress(items: Iterable[_Item], noun: str, size: Callable[[_Item], int] = lambda item: 1) -> Iterator[_Item]:
    """Pass the items on; count them on stderr if it takes over a second, without a terminal in a line every 10 s.

    size: returns the count of an item. On a terminal the cursor stays at the start of the line, so that a row printed
    meanwhile replaces the count.
    """
    if not sys.stderr.isatty():
        yield from _counted_in_lines(items, noun, size)
        return
    start = shown = monotonic()
    is_shown = False
    count = 0
    try:
        for item in items:
            count += size(item)
            now = monotonic()
            if now - start > 1 and now - shown > 0.2:
                sys.stderr.write(f"\r{count} {noun}, {now - start:.0f} s\x1b[K\r")
                sys.stderr.flush()
                shown, is_shown = now, True
            yield item
    finally:
        if is_shown:
            sys.stderr.write("\r\x1b[K")
