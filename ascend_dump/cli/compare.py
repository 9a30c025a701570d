"""`ascend-dump compare`: compare a dump with a reference, and find the first operator that differs."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import click

from ascend_dump.cli.shared.compare_indexes import compare_by_index
from ascend_dump.cli.shared.compare_unmatched import unmatched_lines
from ascend_dump.cli.shared.executor import executor_options, opened_executor
from ascend_dump.cli.shared.exit import Exit, exit_code
from ascend_dump.cli.shared.reading import (
    brief_option,
    code_of_comparison,
    first_line,
    json_option,
    lost_fields,
    lost_of,
    open_selected,
    print_lost_records,
    progress,
    selector_options,
    shape_text,
    with_existing_values,
)
from ascend_dump.cli.shared.target import check_target
from ascend_dump.common.units import counted
from ascend_dump.errors import AscendDumpError, ConfigError
from ascend_dump.storage.files import read_small

if TYPE_CHECKING:
    from ascend_dump.analysis.compare import Comparison, Pair
    from ascend_dump.reading import Dump, LostRecords
    from ascend_dump.report.findings import Finding

#: Maximum size of a --mapping file in bytes.
_LARGEST_MAPPING = 64 << 20
#: Maximum number of pairs that are printed, and number of lines to which the answer is limited without --all.
_WORST, _MOST_LINES = 10, 25
#: Notes, and facts on the first origin, that are never left out.
_FEWEST_NOTES, _FEWEST_FACTS = 2, 3


@click.command(short_help="Find the first operator that differs from a reference.")
@click.argument("actual", type=click.Path())
@click.argument("reference", type=click.Path())
@selector_options("op", "step", "rank", "label")
@click.option("--mapping", metavar="FILE", help="JSON object: operator names of ACTUAL and their names in REFERENCE.")
@click.option(
    "--write-mapping", metavar="FILE", help="Write the pairs of operator names as a file for --mapping, to be edited."
)
@click.option("--rules", metavar="FILE", help="TOML or JSON: thresholds, for all operators or for a glob of operators.")
@click.option(
    "--noise",
    metavar="DUMP",
    help="Another run of REFERENCE: differences no larger than between these two runs are noise.",
)
@click.option(
    "--replay", is_flag=True, help="Run PyTorch operators at the first differences again, to find the wrong side."
)
@click.option(
    "--allow-unmatched",
    metavar="GLOB",
    multiple=True,
    help="Operators that may be missing on one side; may be repeated.",
)
@click.option(
    "--save", metavar="FILE", multiple=True, help="Save as .html (page), .json, .csv, .parquet or .xml (JUnit)."
)
@click.option(
    "--shards",
    metavar="GLOB=LAYOUT",
    multiple=True,
    help='The layout of tensors over ranks: "*.up/mm_0.output.0=shard 1".',
)
@click.option(
    "--rows",
    metavar="ROW=ROW",
    multiple=True,
    help="Row of the same request in the batches of ACTUAL and REFERENCE, counted from 0: 0=4; may be repeated.",
)
@click.option(
    "--align",
    type=click.Choice(["tokens"]),
    help="Compare token by token: a prompt and decoding with a cache against whole sequences. Automatic if the dumps "
    "contain the token ids.",
)
@click.option(
    "--index-only",
    is_flag=True,
    help="Compare two runs of many ranks by the hashes in their indexes; no tensor is read.",
)
@click.option(
    "--local",
    is_flag=True,
    help="ACTUAL is quantised: rank its layers by their own errors, without the errors of their inputs.",
)
@executor_options
@click.option("--all", "show_all", is_flag=True, help="Print every origin in full, and the pairs that differ most.")
@brief_option
@json_option
def compare(
    actual: str,
    reference: str,
    mapping: Optional[str],
    write_mapping: Optional[str],
    rules: Optional[str],
    noise: Optional[str],
    replay: bool,
    allow_unmatched: tuple[str, ...],
    save: tuple[str, ...],
    shards: tuple[str, ...],
    rows: tuple[str, ...],
    align: Optional[str],
    index_only: bool,
    local: bool,
    workers: Optional[int],
    dask: Optional[str],
    show_all: bool,
    brief: bool,
    as_json: bool,
    **selectors: Optional[str],
) -> Exit:
    """Compare the dump ACTUAL with the dump REFERENCE, which is assumed to be correct. DUMP@STEP is one step of a dump.

    Operators are paired by content, module and order, so renamed modules and inserted operators are matched.
    Each pair of tensors gets a verdict: equal, noise (rounding), undecided (only statistics are known, and they agree),
    different, structure (another type or shape), unmatched or unreadable. An origin is a difference that no earlier
    record explains; all others are propagated. Operators after an origin that are called with other arguments are
    listed as changed.

    With --local, ACTUAL is a quantised program. Each layer of REFERENCE is run again on the inputs of the same layer in
    ACTUAL; the difference of the outputs is the layer's own error. With --replay, operators whose kernels may not check
    their arguments are run too.

    With --index-only ACTUAL and REFERENCE are directories or URLs with one worldsizeN_global_rankR per rank; their
    indexes are compared, and the first difference of each rank is printed; the earliest differences are marked.

    Exit code 0 if all pairs are equal or noise, 1 if a pair is different, undecided or unmatched, 3 if a pair cannot be
    read, or if records were lost after they were written.
    """
    from ascend_dump.analysis.compare import compare as compare_dumps

    if local:
        from ascend_dump.cli.shared.local_errors import compare_locally, refuse_others

        no_others: dict[str, Any] = {
            "index-only": index_only,
            "mapping": mapping,
            "write-mapping": write_mapping,
            "rules": rules,
        }
        no_others.update({"noise": noise, "allow-unmatched": allow_unmatched, "save": save, "shards": shards})
        refuse_others("--local", {**no_others, "rows": rows, "align": align, "workers": workers, "dask": dask})
        options = {"replay": replay, "show_all": show_all, "as_json": as_json, "brief": brief}
        return compare_locally(actual, reference, selectors, **options)
    if index_only:
        others: dict[str, Any] = {**selectors, "mapping": mapping, "write-mapping": write_mapping, "rules": rules}
        others.update(
            {
                "noise": noise,
                "replay": replay,
                "allow-unmatched": allow_unmatched,
                "save": save,
                "shards": shards,
                "rows": rows,
                "align": align,
            }
        )
        given = [f"--{name}" for name, value in others.items() if value]
        if given:
            raise ConfigError(
                f"--index-only compares all records of all ranks and takes no {', '.join(given)}",
                hint="leave one of them out; afterwards compare the operators that it names, with --rank and --op",
            )
        return compare_by_index(actual, reference, workers, dask, as_json, brief=brief)
    _check_targets(save, write_mapping)
    names = read_mapping(mapping)
    dumps = [open_selected(path, selectors) for path in (actual, reference)]
    with opened_executor(workers, dask) as executor:
        what = "records read and compared" if executor is None else "ranks compared"
        again = None if noise is None else open_selected(noise, selectors)
        with with_existing_values(selectors):
            comparison = compare_dumps(
                *dumps,
                mapping=names,
                rules=rules,
                noise=again,
                replay=replay,
                shards=shards,
                rows=_row_numbers(rows),
                align=align,
                executor=executor,
                watch=lambda done: progress(done, what),
            )
    comparison = comparison.allowing(*allow_unmatched)
    failures = _save(comparison, save, write_mapping)
    try:
        lost = lost_of([*dumps, *([] if again is None else [again])])
        if as_json:
            from ascend_dump.report.documents import write_document

            document = comparison.to_dict()
            del document["schema"]  # replaced by the schema of the document
            write_document(sys.stdout, "compare", {**document, "notes": lost_fields(lost)})
        elif brief:
            _show_brief(comparison, lost)
        else:
            _show(dumps, comparison, full=show_all)
        print_lost_records(lost)
        sys.stdout.flush()
    finally:  # the failures are printed even if stdout is closed
        _print_errors(failures)
    for error in failures:
        if not isinstance(error, AscendDumpError):
            raise error
    code = code_of_comparison(exit_of(comparison.verdict), lost)
    return exit_code(failures[-1]) if failures else code


def _row_numbers(texts: tuple[str, ...]) -> Optional[dict[int, int]]:
    """Parse --rows: return the row in the reference for each row of actual, None without rows. Raises ConfigError."""
    pairs = [re.fullmatch(r"(\d{1,9})=(\d{1,9})", text.strip(), re.ASCII) for text in texts]
    for text, pair in zip(texts, pairs):
        if pair is None:
            raise ConfigError(
                f"--rows {text!r}, expected two row numbers", hint="rows are counted from 0: --rows 0=4 --rows 1=5"
            )
    return {int(pair[1]): int(pair[2]) for pair in pairs if pair is not None} or None


def _save(comparison: Comparison, save: tuple[str, ...], write_mapping: Optional[str]) -> list[Exception]:
    """Write all files that can be written. Return the errors of the others.

    The files are written before the comparison is printed, so that they are not lost if stdout is a closed pipe. The
    errors are reported after the comparison, so that a full disk does not lose the comparison.
    """
    failures: list[Exception] = []
    tasks = [partial(comparison.save, file) for file in save]
    tasks += [] if write_mapping is None else [partial(comparison.save_mapping, write_mapping)]
    for task in tasks:
        try:
            task()
        except Exception as error:
            failures.append(error)
    return failures


def _print_errors(failures: list[Exception]) -> None:
    """Print the AscendDumpErrors on stderr. They are not raised, because stdout may have its one document already."""
    from ascend_dump.report.tables import escape_lines

    for error in failures:
        if isinstance(error, AscendDumpError):
            print(f"error: {escape_lines(str(error))}", file=sys.stderr)


def _check_targets(save: tuple[str, ...], write_mapping: Optional[str]) -> None:
    """Raise ConfigError, NotSupported or WriteError for output files that cannot be written, before the work begins."""
    from ascend_dump.analysis.compare import SUFFIXES
    from ascend_dump.reading.catalog import polars_or_refuse
    from ascend_dump.report.saving import check_suffix

    targets = Counter(os.path.abspath(file) for file in (*save, write_mapping) if file is not None)
    for file, count in targets.items():
        if count > 1:
            raise ConfigError(f"{file} is to be written {count} times", hint="give each file its own name")
    for file in save:
        check_target("--save", file, SUFFIXES[0])
        check_suffix(Path(file), SUFFIXES, "a comparison")
        if file.lower().endswith(".parquet"):
            polars_or_refuse(f"--save {file}")
    if write_mapping is not None:
        check_target("--write-mapping", write_mapping)


def exit_of(verdict: str) -> Exit:
    """Return the exit code for the verdict of a comparison."""
    if verdict in ("equal", "noise"):
        return Exit.OK
    return Exit.UNREADABLE if verdict == "unreadable" else Exit.DIFFERENT


def _answer(comparison: Comparison) -> str:
    return f"{comparison.verdict}: {', '.join(f'{count} {verdict}' for verdict, count in comparison.counts.items())}"


def _notes(comparison: Comparison, *, full: bool = False) -> Iterator[str]:
    from ascend_dump.report.findings import comparison_notes

    yield from comparison_notes(comparison, full=full)
    if not comparison.has_partners and not comparison.aligned:
        yield "no tensor has a partner on the other side: are these dumps of two programs, steps or ranks?"


def _show_brief(comparison: Comparison, lost: Sequence[LostRecords]) -> None:
    from ascend_dump.analysis.explaining.page_facts import command, origin_finding
    from ascend_dump.report.findings import agreement, brief_text

    finding = None
    notes, next_steps = list(_notes(comparison)), list[str]()
    if comparison.origins:
        finding = origin_finding(comparison.origins[0], comparison)
        others = {"more origin": len(comparison.origins) - 1, "changed call": len(comparison.changed)}
        notes += [f"{counted(count, what)}, listed without --brief" for what, count in others.items() if count]
    else:
        notes.insert(0, agreement(comparison.verdict, comparison.counts))
        if exit_of(comparison.verdict) is not Exit.OK:
            next_steps = [command("ascend-dump", "compare", str(comparison.actual), str(comparison.reference))]
    reasons = [f"{run.run}: {run.reason}" for run in lost]
    click.echo(brief_text(_answer(comparison), finding, next_steps=next_steps, not_checked=reasons, notes=notes))


def _show(dumps: list[Dump], comparison: Comparison, *, full: bool) -> None:
    """Print the comparison: the first origin in full, each other origin in one line, and more lines if there is room.

    full: print all origins in full
    """
    from ascend_dump.analysis.compare import Rules
    from ascend_dump.analysis.explaining.page_facts import changed_finding, origin_finding
    from ascend_dump.report.findings import agreement, short_lines, text_lines
    from ascend_dump.report.tables import escape, folded

    lines = [_answer(comparison)]
    if not comparison.origins and comparison.verdict in ("structure", "different"):
        lines += folded(agreement(comparison.verdict, comparison.counts), sys.stdout, 2)
    omitted = [f"{count} {reason}" for reason, count in comparison.omitted.items() if full and count]
    notes = [*_notes(comparison, full=full), *([f"tensors not compared: {', '.join(omitted)}"] if omitted else ())]
    usual = Rules().to_dict()
    changed = {name: value for name, value in comparison.rules.to_dict().items() if value != usual.get(name)}
    rules = [f"rules: {escape(json.dumps(changed))}"] if changed else []
    findings = [origin_finding(origin, comparison) for origin in comparison.origins]
    calls = [changed_finding(call, several_ranks=comparison.several_ranks) for call in comparison.changed]
    alone = list(map(escape, unmatched_lines(dumps, comparison, comparison.unmatched)))
    if not full and findings:
        used = len(lines) + len(rules) + (len(alone) + 1 if alone else 0) + (3 if findings[1:] or calls else 0)
        notes, findings[0] = _shortened(notes, findings[0], _MOST_LINES - used - 1)
    for note in notes:
        lines += folded(escape(note), sys.stdout, 2)
    lines += rules
    shown = [*findings, *calls] if full else findings[:1]
    for finding in shown:
        lines += ["", *text_lines(finding)]
    if not full and (findings[1:] or calls):
        room = _MOST_LINES - len(lines) - 1 - (len(alone) + 1 if alone else 0)
        lines += ["", *short_lines(findings[1:], calls, room)]
    room = _WORST if full else min(_WORST, _MOST_LINES - len(lines) - len(alone) - 4)
    lines += [*(_worst_lines(comparison, room) if room > 0 else ()), *(["", *alone] if alone else ())]
    click.echo("\n".join(lines))


def _shortened(notes: list[str], finding: Finding, room: int) -> tuple[list[str], Finding]:
    """Leave out notes, then evidence, from their ends, until both fit into so many lines. A last note counts them."""
    from ascend_dump.report.findings import text_lines
    from ascend_dump.report.tables import escape, folded

    kept, evidence = [*notes], [*finding.evidence]

    def result() -> tuple[list[str], Finding]:
        counts = {"note": len(notes) - len(kept), "fact": len(finding.evidence) - len(evidence)}
        cut = ", ".join(counted(count, what) for what, count in counts.items() if count)
        left_out = [f"left out: {cut} (--all prints them)"] if cut else []
        return [*kept, *left_out], replace(finding, evidence=evidence)

    def is_too_long() -> bool:
        texts, short = result()
        return sum(len([*folded(escape(text), sys.stdout, 2)]) for text in texts) + len([*text_lines(short)]) > room

    while is_too_long() and len(kept) > _FEWEST_NOTES:
        kept.pop()
    while is_too_long() and len(evidence) > _FEWEST_FACTS:
        evidence.pop()
    return result()


def _worst_lines(comparison: Comparison, count: int) -> list[str]:
    """Return the lines of a table of the pairs that differ most. count: maximum number of pairs."""
    from ascend_dump.report.tables import PIPE_WIDTH, Column, write_table

    worst = comparison.worst_pairs(count)
    if not worst:
        return []
    columns = [Column("rank", right=True)] if comparison.several_ranks else []
    columns += [Column("step", right=True), Column("tensor", elastic=True), Column("shape")]
    columns += [Column("verdict"), Column("explained"), Column("reason", elastic=True)]
    table = io.StringIO()
    write_table(columns, [_row(pair, comparison.several_ranks) for pair in worst], table, pipe_width=PIPE_WIDTH)
    return ["", "the pairs that differ most, unexplained ones first:", *table.getvalue().splitlines()]


def _row(pair: Pair, several_ranks: bool) -> list[str]:
    record = pair.record
    places = (record.rank, record.step) if several_ranks else (record.step,)
    numbers = ["-" if number is None else str(number) for number in places]
    explained = "yes" if pair.explained else "no"
    return [*numbers, record.label, shape_text(record), pair.verdict, explained, first_line(pair.reason)]


def read_mapping(path: Optional[str]) -> Optional[dict[str, str]]:
    """Read a --mapping file: names of actual and their names in the reference. Raises ConfigError."""
    if path is None:
        return None
    what = 'expected a JSON object such as {"layers.0/addmm_0": "blocks.0/addmm_0"}'
    names = Counter[str]()

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names.update(name for name, _ in pairs)
        return dict(pairs)

    try:
        document: Any = json.loads(read_small(path, _LARGEST_MAPPING), object_pairs_hook=object_of)
    except OSError as error:
        raise ConfigError(f"--mapping {path!r} cannot be read: {error.strerror}", hint=what) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--mapping {path!r} is not JSON: {error}", hint=what) from error
    if not isinstance(document, dict) or not all(isinstance(value, str) for value in document.values()):
        raise ConfigError(f"--mapping {path!r} is not a mapping of names", hint=what)
    for name, count in names.items():
        if count > 1:
            raise ConfigError(
                f"--mapping {path!r} has {name!r} {count} times, expected each name once", hint="remove all but one"
            )
    return document
