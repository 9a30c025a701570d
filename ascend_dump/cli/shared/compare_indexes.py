"""`ascend-dump compare --index-only`: find the first differences of two runs, using only the indexes of their ranks."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Optional

import click

from ascend_dump.cli.shared.executor import opened_executor
from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import code_of_comparison, lost_fields, print_lost_records, progress

if TYPE_CHECKING:
    from ascend_dump.analysis.ranks import IndexComparison, RankOrigin
    from ascend_dump.report.findings import Finding

__all__ = ["compare_by_index"]

_EXITS = {"equal": Exit.OK, "unreadable": Exit.UNREADABLE}
#: Maximum number of ranks that are listed one by one.
_MOST_RANKS = 16


def compare_by_index(
    actual: str, reference: str, workers: Optional[int], dask: Optional[str], as_json: bool, *, brief: bool
) -> Exit:
    """Compare the indexes of all ranks and print the result. Raises the errors of `compare_indexes`."""
    from ascend_dump.analysis.ranks import compare_indexes

    with opened_executor(workers, dask) as executor:
        comparison = compare_indexes(
            actual, reference, executor=executor, watch=lambda names: progress(names, "ranks compared")
        )
    if as_json:
        from ascend_dump.report.documents import write_document

        write_document(sys.stdout, "compare-indexes", {**comparison.to_dict(), "notes": lost_fields(comparison.lost)})
    elif brief:
        from ascend_dump.report.findings import brief_text

        finding = _finding(comparison.origins[0], actual, reference) if comparison.origins else None
        reasons = [f"{run.run}: {run.reason}" for run in comparison.lost]
        click.echo(brief_text(_answer(comparison), finding, not_checked=reasons, notes=_notes(comparison)))
    else:
        _show(comparison, actual, reference)
    print_lost_records(comparison.lost)
    return code_of_comparison(_EXITS.get(comparison.verdict, Exit.DIFFERENT), comparison.lost)


def _answer(comparison: IndexComparison) -> str:
    table = comparison.ranks
    words = {"unequal": "differ", "alone": "have no partner", "undecided": "undecided", "unreadable": "unreadable"}
    counts = [f"{total} {word}" for name, word in words.items() if (total := int(table[name].sum()))]
    records = f"{int(table['rows'].sum())} records of {table.height} {'rank' if table.height == 1 else 'ranks'}"
    return f"{comparison.verdict}: {', '.join([records, *counts])}"


def _notes(comparison: IndexComparison) -> list[str]:
    from ascend_dump.dump_format import ranks_text

    notes = [f"only one of the runs has the ranks {ranks_text(comparison.missing)}"] if comparison.missing else []
    if comparison.origins and comparison.ranks["undecided"].sum():
        notes.append(
            "the difference may have begun in one of the undecided records: `compare` without --index-only reads them"
        )
    return notes


def _show(comparison: IndexComparison, actual: str, reference: str) -> None:
    from ascend_dump.report.findings import text_lines
    from ascend_dump.report.tables import Column, write_table

    table = comparison.ranks
    for line in (_answer(comparison), *_notes(comparison)):
        click.echo(line)
    for origin in comparison.origins:
        click.echo("")
        click.echo("\n".join(text_lines(_finding(origin, actual, reference))))
    differing = table.filter(table["position"].is_not_null())
    if not differing.height:
        return
    click.echo("\nthe first difference of each rank:")
    names = ("rank", "unequal", "alone", "step", "op_name", "io", "kind")
    columns = [Column(name, right=name in names[:4], elastic=name == "op_name") for name in names]
    rows = differing.head(_MOST_RANKS).select(names).iter_rows()
    write_table(columns, [["-" if cell is None else str(cell) for cell in row] for row in rows], sys.stdout)
    if differing.height > _MOST_RANKS:
        click.echo(f"and {differing.height - _MOST_RANKS} more ranks; --json lists all")


def _finding(origin: RankOrigin, actual: str, reference: str) -> Finding:
    from ascend_dump.dump_format import ranks_text
    from ascend_dump.report.findings import Finding

    return Finding(
        "origin",
        origin.op_name,
        origin.op_type,
        origin.step,
        ranks_text(origin.ranks),
        kind=origin.kind,
        source=origin.source,
        evidence=(f"the first record that differs: {origin.io} {origin.index}",),
        ranks_after=origin.follows,
        commands=(shlex.join(["ascend-dump", "compare", actual, reference, f"--rank={origin.ranks[0]}"]),),
    )
