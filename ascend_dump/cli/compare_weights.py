"""`ascend-dump compare-weights`: compare the weights of two checkpoints or dumps."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Optional

import click

from ascend_dump.cli.compare import exit_of
from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import json_option, progress

if TYPE_CHECKING:
    from ascend_dump.analysis.weights import WeightComparison

#: Number of groups of weights that are printed without --all.
_MOST_GROUPS = 20


@click.command(short_help="Compare the weights of two checkpoints or dumps.")
@click.argument("actual", type=click.Path())
@click.argument("reference", type=click.Path())
@click.option(
    "--earlier",
    metavar="PATH",
    help="An earlier state of REFERENCE: differing weights that equal it are stale.",
)
@click.option("--all", "show_all", is_flag=True, help=f"Print all groups of weights, not the worst {_MOST_GROUPS}.")
@json_option
def compare_weights(actual: str, reference: str, earlier: Optional[str], show_all: bool, as_json: bool) -> Exit:
    """Compare the weights in ACTUAL with those in REFERENCE, which are assumed to be correct.

    ACTUAL and REFERENCE are a .safetensors file, a file of torch.save (.pt, .pth, .bin, .ckpt), a directory of such
    files with or without an index of Hugging Face, or a dump. Of a dump, the parameters that its operators read are
    compared. Nothing is unpickled.

    Weights are paired by the content of their rows, whatever their names: equal, cast, permuted, split, concatenated,
    transposed, scaled, stale, missing and added weights are found. See `ascend-dump help weights`.

    Exit code 0 if all weights are equal, possibly in another layout or rounded to another type, 1 if a weight differs
    or is missing, 3 if a weight cannot be read.
    """
    from ascend_dump.analysis.weights import compare_weights as compare_both

    comparison = compare_both(
        actual, reference, earlier=earlier, watch=lambda tensors: progress(tensors, "tensors read")
    )
    if as_json:
        from ascend_dump.report.documents import write_document

        write_document(sys.stdout, "compare-weights", comparison.to_dict())
    else:
        _show(comparison, _MOST_GROUPS if not show_all else sys.maxsize)
    return exit_of(comparison.verdict)


def _show(comparison: WeightComparison, most: int) -> None:
    """Print the verdict, and one line for each group of weights with the same finding. most: number of groups."""
    from ascend_dump.common.units import counted
    from ascend_dump.report.tables import escape, folded

    counts = ", ".join(f"{count} {relation}" for relation, count in comparison.counts.items())
    totals = f"{counted(comparison.totals[0], 'weight')} against {comparison.totals[1]}"
    lines = [f"{comparison.verdict}: {totals}: {counts}"]
    groups = comparison.groups()
    width = max((len(relation) for relation, _, _ in groups[:most]), default=0)
    for relation, names, details in groups[:most]:
        behind = f": {details}" if details else ""
        lines += folded(f"  {relation.ljust(width)}  {escape(names + behind)}", sys.stdout, width + 4)
    if len(groups) > most:
        lines.append(f"  and {counted(len(groups) - most, 'more group')}, see --all")
    click.echo("\n".join(lines))
