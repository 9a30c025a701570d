"""`ascend-dump replay`: run recorded PyTorch operators again, to check their outputs."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import (
    first_line,
    open_selected,
    print_lost_records,
    progress,
    reading_options,
    report_no_match,
    shape_text,
)

if TYPE_CHECKING:
    from ascend_dump.analysis.replay import Replay, Replayed

_MOST_NAMED = 3


@click.command(short_help="Run recorded PyTorch operators again and check their outputs.")
@reading_options
@click.option(
    "--dtype",
    default="float64",
    show_default=True,
    metavar="TYPE",
    help="The type of higher precision: float64 or float32.",
)
@click.option("--rules", metavar="FILE", help="TOML or JSON: thresholds, as for `ascend-dump compare`.")
@click.option(
    "-n", "--limit", type=click.IntRange(0), default=20, show_default=True, help="Number of rows to print, 0 for all."
)
def replay(path: str, as_json: bool, dtype: str, rules: Optional[str], limit: int, **selectors: Optional[str]) -> Exit:
    """Run the PyTorch operators of the dump at PATH (default: dumps) again on this host and check their outputs.

    Each operator is run from its recorded inputs and arguments, in its own type and in a type of higher precision. If
    the outputs differ from the recorded ones, the recorded operator computed wrong values. Since the recorded inputs
    are used, wrong inputs do not count, and no reference is needed. For GE operators, the PyTorch nodes that torchair
    converted are run, if the dump contains torchair's text of the graph (options={'graph_dump': 'py'} of a capture).
    Random operators, collectives, operators with side effects and operators without recorded inputs cannot be run
    again; they are listed with the reason. PyTorch executes the operators of the dump, so use only dumps that you
    trust.

    Exit code 0 if all checked outputs are equal or noise, 1 if an output is neither or nothing could be checked, 3 if
    a record cannot be read or was lost, or if no record matches.
    """
    from ascend_dump.analysis.compare import rules_of
    from ascend_dump.analysis.replay import replay as run_again

    dump = open_selected(path, selectors)
    result = run_again(
        dump,
        dtype,
        rules=rules_of(rules),
        watch=lambda operators: progress(operators, "operators"),
    )
    if as_json:
        from ascend_dump.report.documents import write_document

        write_document(sys.stdout, "replay", result.to_dict())
    else:
        _show(result, limit)
    lost = dump.lost_records()
    print_lost_records(lost)
    if not result.pairs and not result.refused:
        code = report_no_match(path, selectors)
        return Exit.UNREADABLE if lost else code or Exit.DIFFERENT
    if result.verdict in ("equal", "noise"):
        return Exit.UNREADABLE if lost else Exit.OK
    return Exit.UNREADABLE if result.verdict == "unreadable" else Exit.DIFFERENT


def _show(result: Replay, limit: int) -> None:
    from ascend_dump.report.tables import Column, counted, escape, write_table

    if result.pairs:
        click.echo(f"{result.verdict}: {', '.join(f'{count} {verdict}' for verdict, count in result.counts.items())}")
    else:
        click.echo("no operator could be run again, so nothing is known about their outputs")
    wrong = result.wrong
    if wrong:
        unread = sum(checked.verdict == "unreadable" for checked in wrong)
        what = "outputs that differ from what their operators compute from the recorded inputs"
        if unread:
            what = "outputs that cannot be checked" if unread == len(wrong) else f"{what}, or that cannot be checked"
        click.echo(f"\n{what}:")
        columns = [Column("step", right=True), Column("tensor", elastic=True), Column("shape"), Column("verdict")]
        columns += [Column("source"), Column("reason")]
        write_table(columns, [_row(checked) for checked in wrong[: limit or None]], sys.stdout)
        if limit and len(wrong) > limit:
            click.echo(f"and {len(wrong) - limit} more: --limit 0 shows all")
    if result.refused:
        click.echo(f"\n{counted(len(result.refused), 'operator')} not run again:")
        for reason, count in Counter(refusal.reason for refusal in result.refused).most_common():
            refusals = [refusal for refusal in result.refused if refusal.reason == reason]
            names = list(dict.fromkeys(refusal.op_type for refusal in refusals))
            ellipsis = f" and {len(names) - _MOST_NAMED} more types" if len(names) > _MOST_NAMED else ""
            click.echo(
                f"  {count:>5}  {escape(_reason_text(reason))}: {escape(', '.join(names[:_MOST_NAMED]))}{ellipsis}"
            )


def _reason_text(reason: str) -> str:
    from ascend_dump.analysis.replay import REASONS

    return REASONS[reason]


def _row(checked: Replayed) -> list[str]:
    record = checked.record
    step = "-" if record.step is None else str(record.step)
    source = (record.source or "-").rpartition("/")[2]
    reason = f"{checked.node}: {checked.reason}" if checked.node else checked.reason
    return [step, record.label, shape_text(record), checked.verdict, source, first_line(reason)]
