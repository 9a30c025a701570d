"""Rank the layers of a quantised program by their own errors.

The layer of the reference is run again on the activations that the quantised layer read, so that both have the same
inputs. The difference of their outputs is the own error of the layer. Nothing of the quantised side is run: its weights
may be packed, and its kernels may exist only on a device.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from ascend_dump.analysis.operators.operator import operators
from ascend_dump.analysis.quantised.final_error import Disturbance, with_shares
from ascend_dump.analysis.quantised.judge_layers import judged
from ascend_dump.analysis.quantised.layer_error import LayerError
from ascend_dump.analysis.quantised.layer_inputs import ProgramSide, match_inputs, values_of
from ascend_dump.analysis.quantised.measures import error_numbers, outliers_of
from ascend_dump.analysis.quantised.run_operators import ChainRunner
from ascend_dump.analysis.quantised.segments import Segment, find_modules, outputs_of, segments_of, tensor_key
from ascend_dump.analysis.replay import NotRun
from ascend_dump.common.units import counted
from ascend_dump.errors import ConfigError, DumpNotFound
from ascend_dump.reading import Dump, Record, open_dump

__all__ = ["LocalErrors", "local_errors"]

_Dumplike = Union[Dump, str, "os.PathLike[str]"]
_Watch = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class LocalErrors:
    """The layers of a quantised program, sorted by verdict, the worst first, and then by their own errors.

    refused  layers that could not be measured, with the reason
    notes    sentences on what was left out
    final    relative error of the last output of the program; None if it could not be measured

    >>> errors = ascend_dump.local_errors("int8", "float")   # doctest: +SKIP
    >>> errors.layers[0].layer, errors.layers[0].numbers.snr, errors.advice   # doctest: +SKIP
    """

    actual: Path
    reference: Path
    layers: tuple[LayerError, ...]
    refused: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    final: Optional[float] = None

    @property
    def verdict(self) -> str:
        """Return the worst verdict of all layers; "unchecked" if none could be measured."""
        if not self.layers:
            return "unchecked"
        return next(
            (name for name in ("wrong", "stands out") if name in {layer.verdict for layer in self.layers}), "ok"
        )

    @property
    def leave_out(self) -> tuple[str, ...]:
        """The layers to leave in the type of the reference: those that stand out, and are not wrong."""
        return tuple(layer.layer for layer in self.layers if layer.verdict == "stands out")

    @property
    def advice(self) -> str:
        """Return the next action, in one sentence."""
        wrong = [layer for layer in self.layers if layer.verdict == "wrong"]
        if wrong:
            return f"mend {wrong[0].layer}, dump the quantised program again, and rank its layers again"
        if self.leave_out:
            names = ", ".join(self.leave_out[:4])
            further = f" and {len(self.leave_out) - 4} more" if len(self.leave_out) > 4 else ""
            return f"leave {names}{further} unquantised, and quantise the others"
        if not self.layers:
            return "no layer could be measured"
        share, layer = max((part.share or 0.0, part.layer) for part in self.layers)
        largest = f"; the largest part of the final error comes from {layer} ({share:.0%})" if share > 0 else ""
        return f"no layer stands out: leaving single layers unquantised gains little{largest}"

    def to_dict(self) -> dict[str, Any]:
        """Return the layers as plain values, for JSON."""
        return {
            "actual": str(self.actual),
            "reference": str(self.reference),
            "verdict": self.verdict,
            "advice": self.advice,
            "final": self.final,
            "layers": [layer.to_dict() for layer in self.layers],
            "refused": [{"layer": layer, "reason": reason} for layer, reason in self.refused],
            "leave_out": list(self.leave_out),
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        return f"<LocalErrors {self.verdict}: {counted(len(self.layers), 'layer')}, {len(self.refused)} not measured>"


def local_errors(
    actual: _Dumplike, reference: _Dumplike, *, replay: bool = False, watch: Optional[_Watch] = None
) -> LocalErrors:
    """Rank the layers of a quantised program by their own errors.

    actual     a dump of the quantised program: operators or modules, with tensors
    reference  a dump of the program in floating point: operators, with tensors
    replay     also replay operators whose kernels may not check their arguments: use it only on dumps that you trust
    watch      an iterator function that receives each layer and yields it, for a progress display

    Only the forward pass is measured, in the first step and rank that both dumps have.

    Raises what opening a dump raises, DumpNotFound if the dumps have no step or no rank in common, ConfigError if the
    reference has no operators, and FrameworkMissing without PyTorch, which runs the operators.
    """
    sides = [side if isinstance(side, Dump) else open_dump(side) for side in (actual, reference)]
    selectors, notes = _common_place(sides)
    runner = ChainRunner(is_trusted=replay)
    of_step = [operators(side.select(**selectors)) for side in sides]
    if not any(operator.op_type.startswith("aten::") for operator in of_step[1]):
        raise ConfigError(
            f"{sides[1].root} has no operators of PyTorch, which are run again for the quantised layers",
            hint='dump the reference with level="op" and data="tensor", which is the default',
        )
    modules = find_modules(of_step[1])
    programs = _Programs(*(ProgramSide(side) for side in of_step))
    segments = [segments_of(side, modules) for side in of_step]
    measured: list[tuple[LayerError, Disturbance]] = []
    refused = []
    for key in watch(segments[1]) if watch is not None else segments[1]:
        segment, partner = segments[1][key], segments[0].get(key)
        if partner is None:
            refused.append((segment.label, "the quantised side has no operators of this layer"))
            continue
        try:
            measured.append(_measured(runner, programs, partner, segment))
        except NotRun as error:
            refused.append((segment.label, str(error)))
    layers = judged([layer for layer, _ in measured])
    disturbances = {layer.layer: disturbance for layer, disturbance in measured}
    layers, final, note = with_shares(runner, layers, disturbances, of_step[1], _last_outputs(segments))
    notes += [note] if note else []
    return LocalErrors(sides[0].root, sides[1].root, tuple(layers), tuple(refused), tuple(notes), final)


class _Programs(NamedTuple):
    actual: ProgramSide
    reference: ProgramSide


def _common_place(sides: Sequence[Dump]) -> tuple[dict[str, Any], list[str]]:
    """Return the first step and the first rank that both dumps have, as selectors; and notes.

    A note says which step or rank was chosen if the dumps have several in common.
    """
    shared = {name: sides[0].known_values(name) & sides[1].known_values(name) for name in ("step", "rank")}
    selectors = {}
    notes = []
    for name, values in shared.items():
        if not values:
            numbers = [sorted(map(str, side.known_values(name))) for side in sides]
            raise DumpNotFound(
                f"the dumps have no {name} in common: {', '.join(numbers[0])} and {', '.join(numbers[1])}",
                path=sides[0].root,
                hint=f"select with --{name}, or dump the same {name}s of both",
            )
        chosen = min(values, key=lambda value: -1 if value is None else value)
        if chosen is not None:
            selectors[name] = chosen
        if len(values) > 1:
            notes.append(f"{name} {chosen} of {len(values)}: select another one with --{name}")
    return selectors, notes


def _measured(
    runner: ChainRunner, programs: _Programs, actual: Segment, reference: Segment
) -> tuple[LayerError, Disturbance]:
    """Return the own error of a layer, not judged yet, as numbers and as an array. Raises NotRun."""
    inputs = list(match_inputs(programs.actual, actual, programs.reference, reference))
    target = next(iter(outputs_of(reference)), None)
    output = next((record for record in outputs_of(actual) if _elements(record) == _elements(target)), None)
    if target is None or output is None:
        raise NotRun("outputs", f"the sides have no output of the same size: {reference.label}")
    recorded = values_of(target)
    input_values = {tensor_key(record): values for record, _, values in inputs}
    again = runner.run(reference.operators, input_values, "float64")
    expected = np.asarray(again.get(tensor_key(target), recorded), np.float64)
    values = values_of(output).reshape(expected.shape)
    numbers = error_numbers(values, expected)
    largest = max(inputs, key=lambda triple: triple[1].size, default=None)
    layer = LayerError(
        layer=reference.label,
        op_type=reference.main_type,
        verdict="ok",
        reason="",
        numbers=numbers,
        arrived=_arrived(inputs),
        share=None,
        outliers=() if largest is None else outliers_of(largest[1]),
        quantisers=tuple(programs.actual.quantisers(actual)),
        is_quantised=actual.has_quantisers or bool(programs.actual.quantisers(actual)),
        record=output,
    )
    return layer, Disturbance(tensor_key(target), recorded.reshape(expected.shape), values - expected)


def _elements(record: Optional[Record]) -> Optional[int]:
    return None if record is None or record.shape is None else int(np.prod(record.shape))


def _arrived(inputs: Sequence[tuple[Record, np.ndarray, np.ndarray]]) -> Optional[float]:
    """Return the largest relative error of the activations."""
    errors = [error_numbers(values, expected).relative for _, expected, values in inputs]
    return max(errors, default=None)


def _last_outputs(segments: Sequence[dict[tuple[str, int], Segment]]) -> Optional[tuple[Record, Record]]:
    """Return the last output of both sides; None if a side has none, or their sizes differ."""
    last = [next(iter(outputs_of(list(side.values())[-1])), None) if side else None for side in segments]
    if last[0] is None or last[1] is None or _elements(last[0]) != _elements(last[1]):
        return None
    return last[0], last[1]
