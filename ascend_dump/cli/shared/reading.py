"""Parts that the reading verbs share: PATH, selectors, progress, and reports of unreadable and lost records."""

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
    "existing_values",
    "first_line",
    "ignore_option",
    "json_option",
    "leading_cells",
    "leading_columns",
    "lost_fields",
    "lost_of",
    "open_selected",
    "print_lost_records",
    "progress",
    "reading_options",
    "record_fields",
    "report_no_match",
    "selector_options",
    "shape_text",
    "with_existing_values",
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
#: Columns that are printed only if a dump has several runs, ranks or models.
_LEADING = ("run", "rank", "model")
#: Seconds between two lines of progress if stderr is no terminal.
_SECONDS_PER_LINE = 10.0
#: Maximum number of existing values that are all listed if none matches a selector.
_FEW = 4
#: Number of records that are read to find out whether a dump has names of arguments.
_PEEK = 50


def json_option(function: _Function) -> _Function:
    """Add the option `--json` to a verb, which gets it as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, is_eager=True, help="One JSON document on stdout.")(function)


def brief_option(function: _Function) -> _Function:
    """Add the option `--brief` to a verb. Together with `--json` it is an error."""

    def refuse_json(context: click.Context, parameter: click.Parameter, brief: bool) -> bool:
        if brief and context.params.get("as_json"):
            raise ConfigError("--brief and --json were both given", hint="leave one of them out")
        return brief

    text = "Print the answer, the first finding and the next command only, at most 2 kB."
    return click.option("--brief", is_flag=True, callback=refuse_json, help=text)(function)


def ignore_option(function: _Function) -> _Function:
    """Add the option `--ignore` to a verb."""
    text = "An operator whose NaN or Inf is expected: a glob of its name or type, its module, or FILE:LINE; repeatable."
    return click.option("--ignore", metavar="OP|MODULE|FILE:LINE", multiple=True, help=text)(function)


def reading_options(function: _Function) -> _Function:
    """Add PATH, an option for each selector of `Dump.select`, and `--json` to a verb."""
    function = selector_options(*_SELECTORS)(json_option(function))
    return click.argument("path", type=click.Path(), default="dumps")(function)


def selector_options(*names: str) -> Callable[[_Function], _Function]:
    """Add options for these selectors of `Dump.select` to a verb."""

    def add(function: _Function) -> _Function:
        for name in reversed(names):
            function = click.option(f"--{name}", metavar="TEXT", help=_SELECTORS[name])(function)
        return function

    return add


def open_selected(path: str, selectors: dict[str, Optional[str]]) -> Dump:
    """Open the dump and select the records that the selectors choose. Raises ReadError and ConfigError."""
    from ascend_dump.reading import open_dump

    dump = open_dump(path)
    chosen: dict[str, Any] = {name: text for name, text in selectors.items() if text is not None}
    return dump.select(**chosen) if chosen else dump


def leading_columns(dump: Dump) -> list[Column]:
    """Return the columns for run, rank and model, if the dump has several of them, and the column for the step."""
    from ascend_dump.report.tables import Column

    several = [Column(name) for name in _LEADING if len(dump.known_values(name)) > 1]
    return [*several, Column("step", right=True)]


def argument_columns(dump: Dump) -> list[Column]:
    """Return a list with the column for argument names, [] if the dump contains none.

    An argument name is from the operator's schema. If the tensor is a parameter, its name follows in parentheses:
    `self (fc.weight)`.
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
    """A record, or an object with those fields of a record that a listing shows."""

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
    """A counter of unreadable records. `finish` reports them, after all other output.

    seen            number of all records
    count           number of unreadable records
    without_values  number of records with neither values nor statistics

    dump: the dump whose lost records `finish` reports too; None to report none
    """

    def __init__(self, dump: Optional[Dump] = None) -> None:
        self._dump = dump
        self.seen = 0
        self.count = 0
        self.without_values = 0
        self._first: list[str] = []

    def watch(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield all records, and count those with an error."""
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
        """Return (statistics, error) of a record. Both are None if the record has no values.

        recorded: True to return recorded statistics only, so that no tensor is read
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
        """The runs of the dump that have lost records. To be read after all records were read."""
        return [] if self._dump is None else self._dump.lost_records()

    def finish(self, *, is_whole: bool = True) -> Exit:
        """Report unreadable and lost records on stderr, and return the exit code of the verb.

        is_whole: True if all records were read; otherwise lost records are not reported
        """
        from ascend_dump.report.tables import counted, escape

        lost = self.lost if is_whole else []
        print_lost_records(lost)
        if self.without_values:
            verb = "has" if self.without_values == 1 else "have"
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
    """Return the runs of these dumps that have lost records, without duplicates."""
    return list(dict.fromkeys(lost for dump in dumps for lost in dump.lost_records()))


def print_lost_records(lost: Iterable[LostRecords]) -> None:
    """Print on stderr the runs whose records were lost after they had been written."""
    from ascend_dump.report.tables import escape

    for run in lost:
        print(f"incomplete: {escape(str(run.run))}: {run.reason}", file=sys.stderr)


def code_of_comparison(code: Exit, lost: Iterable[LostRecords]) -> Exit:
    """Return the exit code of a comparison: 3 instead of 0 if records were lost, otherwise `code`.

    Lost tensor files (`shard`) do not count, because equal hashes prove that the captured tensors were equal.
    """
    return Exit.UNREADABLE if code is Exit.OK and not all(run.shard for run in lost) else code


def lost_fields(lost: Iterable[LostRecords]) -> list[dict[str, Any]]:
    """Return the notes of a JSON document about lost records."""
    return [{"path": run.run, "note": run.reason} for run in lost]


def report_no_match(path: str, selectors: dict[str, Optional[str]]) -> Exit:
    """Report on stderr that no record matches the selectors, and which values the dump has. Return the exit code.

    The code is 3 if there are selectors, because a name may be mistyped. It is 0 without selectors: then the dump is
    empty, which is a good result with scene="overflow".
    """
    from ascend_dump.report.tables import escape

    summary, *lines = existing_values(path, selectors)
    chosen = any(selectors.values())
    lines = [f"no record matches; {summary}" if chosen else summary, *(f"  {line}" for line in lines)]
    print("\n".join(map(escape, lines)), file=sys.stderr)
    return Exit.UNREADABLE if chosen else Exit.OK


@contextmanager
def with_existing_values(selectors: dict[str, Optional[str]]) -> Iterator[None]:
    """Add the existing values to the hint of a DumpNotFound that is raised because selectors match nothing."""
    try:
        yield
    except DumpNotFound as error:
        if error.path is not None and any(selectors.values()):
            error.hint = "; ".join(existing_values(str(error.path), selectors))
        raise


def existing_values(path: str, selectors: dict[str, Optional[str]]) -> list[str]:
    """Return a line about the whole dump, and a line per selector with the existing or most similar values.

    A selector gets no line if there are many values and none is similar.
    """
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
    """Yield the items, and write a line with their count to stderr every `_SECONDS_PER_LINE` seconds."""
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
    """Yield the items, and show their count on stderr: on a terminal after one second, else in a line every 10 s.

    size: a function that returns the number that an item counts for

    On a terminal the cursor stays at the start of the line, so that a row printed meanwhile replaces the count.
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
