"""`ascend-dump compare --local` and `triage --quantised`: the errors that each layer of a quantised program adds."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Optional

import click

from ascend_dump.cli.shared.exit import Exit
from ascend_dump.cli.shared.reading import (
    lost_fields,
    lost_of,
    open_selected,
    print_lost_records,
    progress,
    with_existing_values,
)
from ascend_dump.common.units import counted
from ascend_dump.errors import ConfigError

if TYPE_CHECKING:
    from ascend_dump.analysis.quantised import LayerError, LocalErrors

__all__ = ["compare_locally", "refuse_others"]

#: Number of layers that are listed without --all, and number of layers listed that could not be measured.
_MOST_LAYERS, _MOST_REFUSED = 10, 3
_EXITS = {"ok": Exit.OK, "unchecked": Exit.UNREADABLE}


def compare_locally(
    actual: str,
    reference: str,
    selectors: Mapping[str, Optional[str]],
    *,
    replay: bool,
    show_all: bool,
    as_json: bool,
    brief: bool,
) -> Exit:
    """Print the layers of a quantised program, ranked by their own errors. Raises the errors of `local_errors`.

    Returns exit code 0 if no layer stands out, 1 if a layer stands out or is wrong, 3 if no layer could be measured.
    """
    from ascend_dump.analysis.quantised import local_errors

    chosen = dict(selectors)
    dumps = [open_selected(path, chosen) for path in (actual, reference)]
    with with_existing_values(chosen):
        errors = local_errors(*dumps, replay=replay, watch=lambda layers: progress(layers, "layers measured"))
    lost = lost_of(dumps)
    if as_json:
        from ascend_dump.report.documents import write_document

        fields = errors.to_dict()
        notes = [{"path": actual, "note": note} for note in fields.pop("notes")]
        write_document(sys.stdout, "local-errors", {**fields, "notes": [*notes, *lost_fields(lost)]})
    elif brief:
        from ascend_dump.report.findings import brief_text

        not_measured = [f"{layer}: {reason}" for layer, reason in errors.refused]
        click.echo(
            brief_text(_answer(errors), None, next_steps=[errors.advice], not_checked=not_measured, notes=errors.notes)
        )
    else:
        _show(errors, full=show_all)
    print_lost_records(lost)
    return _EXITS.get(errors.verdict, Exit.DIFFERENT)


def refuse_others(option: str, others: Mapping[str, object]) -> None:
    """Raise ConfigError if any of the other options is given together with `option`."""
    given = [f"--{name}" for name, value in others.items() if value]
    if given:
        raise ConfigError(f"{option} takes no {', '.join(given)}", hint="leave one of them out")


def _answer(errors: LocalErrors) -> str:
    counts = [
        f"{sum(layer.verdict == verdict for layer in errors.layers)} {verdict}"
        for verdict in dict.fromkeys(layer.verdict for layer in errors.layers)
    ]
    final = "" if errors.final is None else f"; relative error of the last output {errors.final:.2g}"
    quantised = sum(layer.is_quantised for layer in errors.layers)
    of_layers = f"{counted(len(errors.layers), 'layer')}, {quantised} quantised"
    return f"{errors.verdict}: {of_layers}: {', '.join(counts) or 'none measured'}{final}"


def _show(errors: LocalErrors, *, full: bool) -> None:
    from ascend_dump.report.tables import PIPE_WIDTH, Column, escape, folded, write_table

    print("\n".join(folded(escape(_answer(errors)), sys.stdout, 2)))
    for layer in errors.layers:
        if layer.verdict != "ok":
            texts = [f"{layer.verdict:<12}{layer.layer} ({layer.op_type}): {layer.reason}"]
            if layer.record.source:
                texts.append(f"{'source':<12}{layer.record.source}")
            if layer.quantisers:
                texts.append(f"{'quantisers':<12}{', '.join(layer.quantisers)}")
            print("\n".join(part for text in texts for part in folded(escape(text), sys.stdout, 12)))
    shown = errors.layers if full else errors.layers[:_MOST_LAYERS]
    if shown:
        print("\nlayers by their own error, for the inputs that the quantised side has:")
        columns = [Column("layer", elastic=True), Column("SNR", right=True), Column("cosine", right=True)]
        columns += [Column(name, right=True) for name in ("relative", "of final", "arrived")]
        columns += [Column("outliers", elastic=True), Column("verdict")]
        write_table(columns, map(_cells, shown), sys.stdout, pipe_width=PIPE_WIDTH)
    if len(errors.layers) > len(shown):
        print(f"and {counted(len(errors.layers) - len(shown), 'more layer')}: --all")
    refused = errors.refused if full else errors.refused[:_MOST_REFUSED]
    for name, reason in refused:
        print("\n".join(folded(escape(f"not measured: {name}: {reason}"), sys.stdout, 2)))
    if len(errors.refused) > len(refused):
        print(f"and {len(errors.refused) - len(refused)} more not measured: --all")
    for note in errors.notes:
        print("\n".join(folded(escape(f"note: {note}"), sys.stdout, 2)))
    print("\n".join(folded(escape(f"next        {errors.advice}"), sys.stdout, 12)))


def _cells(layer: LayerError) -> list[str]:
    numbers = layer.numbers
    outliers = ", ".join(f"{outlier.channel} (x{outlier.times:.3g})" for outlier in layer.outliers[:3])
    return [
        layer.layer,
        f"{numbers.snr:.1f} dB" if math.isfinite(numbers.snr) else str(numbers.snr),
        "-" if numbers.cosine is None else f"{numbers.cosine:.6f}",
        f"{numbers.relative:.2g}",
        "-" if layer.share is None else f"{layer.share:.1%}",
        "-" if layer.arrived is None else f"{layer.arrived:.2g}",
        outliers or "-",
        layer.verdict,
    ]
