"""Find suspects by comparing an operator with its earlier steps, and a layer with the layer before."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.operators.names import name_in_rules
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.suspects._case import Row, values
from ascend_dump.analysis.suspects._table import (
    FEWEST,
    Finder,
    MeasuredRun,
    MeasuredTensor,
    SuspectRule,
    rms_of,
    storage_number,
)
from ascend_dump.reading import Record
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite.masks import FILLING

__all__ = ["DEAD", "GROWTH", "LAYER_GROWTH"]

#: A step is checked only if there are this many earlier ones, and if the largest root mean square in them is at most
#: `_SPREAD` times the smallest.
_STEPS, _SPREAD = 2, 3.0


def _is_constant(statistics: Statistics) -> bool:
    return statistics.max is not None and statistics.max == statistics.min and not statistics.nan


def _steady(step: int, rms: float) -> list[Row]:
    return [
        Row("aten::mm", "0/mm_0", "input", values(1), step),
        Row("aten::mm", "0/mm_0", "output", values(rms), step),
    ]


class _DeadFinder(Finder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        #: By place: the indices of the outputs whose elements differed in a step.
        self._varied: dict[Any, set[int]] = {}

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        if not run.float_outputs:
            return ()
        varied = self._varied.get(run.place)
        if varied is None:
            varied = self._varied[run.place] = set()
        dead = None
        for record, statistics in run.float_outputs:
            if statistics.count < self.threshold:
                continue
            if not _is_constant(statistics):
                varied.add(record.index)
            elif record.index in varied and dead is None:
                dead = (record, statistics)
        if dead is None or name_in_rules(run.first.op_type) in FILLING:
            return ()
        if any(statistics.count > 1 and _is_constant(statistics) for _, statistics in run.measured_inputs):
            return ()  # it follows from an input
        if any(record.shape is not None and 0 in record.shape for record in run.records):
            return ()  # an expert that no token was sent to
        record, statistics = dead
        text = (
            f"all {statistics.count} values of {record.label} are {statistics.max:.3g}; in earlier steps they differed"
        )
        return [(record, text)]


DEAD = SuspectRule(
    "dead",
    FEWEST,
    "elements: smaller tensors are passed over",
    _DeadFinder,
    trips=(*_steady(0, 1.0), *_steady(1, 1.1)[:1], Row("aten::mm", "0/mm_0", "output", values(0, same=True), 1)),
    passes=(
        *_steady(0, 1.0),
        Row("aten::mm", "0/mm_0", "input", values(0, same=True), 1),
        Row("aten::mm", "0/mm_0", "output", values(0, same=True), 1),
    ),
)


#: Operators whose results grow by a power of the growth of their inputs. Their inputs and their readers are checked.
_POWERS = ("pow",)


class _Sizes(NamedTuple):
    """Root mean squares of one tensor in the steps so far."""

    least: float
    most: float
    steps: int


class _GrownTensor(NamedTuple):
    """A tensor that is larger than in earlier steps, and how many times."""

    record: Record
    statistics: Statistics
    times: float


class _GrowthFinder(Finder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        #: By place, and then by the `io` and index of the tensor.
        self._sizes: dict[Any, dict[Any, _Sizes]] = {}
        self._step: Any = None
        #: Numbers of the storages that operators of this step have written, or that were reported already.
        self._made: set[int] = set()

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        if run.step != self._step:
            self._step, self._made = run.step, set()
        # The state of an optimizer grows from nothing.
        is_checked = run.first.phase != "other" and bool(run.float_inputs or run.float_outputs)
        grown = self._grown_tensors(run) if is_checked else ()
        self._made |= run.made
        for record, statistics, times in grown:
            if times > self.threshold:
                size = f"{rms_of(statistics) or 0.0:.3g}, {times:.3g} times that of earlier steps"
                storage = storage_number(record)
                if storage is not None:
                    self._made.add(storage)
                return [(record, f"the root mean square of {record.label} is {size}")]
        return ()

    def _grown_tensors(self, run: MeasuredRun) -> Sequence[_GrownTensor]:
        """Return the tensors that grew: inputs that no operator of the step made, and outputs of inputs that did not.

        Inputs from outside of the step (data, parameters) are checked here.
        """
        sizes = self._sizes.get(run.place)
        if sizes is None:
            sizes = self._sizes[run.place] = {}
        inputs = self._grown(run.float_inputs, sizes)
        outputs = self._grown(run.float_outputs, sizes)
        storages = (storage_number(tensor.record) for tensor in inputs)
        outside = [
            tensor for tensor, storage in zip(inputs, storages) if storage is not None and storage not in self._made
        ]
        is_expected = bool(inputs) or operator_class(run.first.op_type) in _POWERS
        return outside if is_expected else outputs

    def _grown(self, tensors: Sequence[MeasuredTensor], sizes: dict[Any, _Sizes]) -> list[_GrownTensor]:
        """Record sizes in this step, and return the tensors that are larger than before by the root of the threshold.

        sizes: of the tensors of this operator in earlier steps
        """
        grown = []
        for record, statistics in tensors:
            rms = rms_of(statistics)
            if rms is None:
                continue
            key = (record.io, record.index)
            before = sizes.get(key)
            if before is None:
                sizes[key] = _Sizes(rms, rms, 1)
                continue
            least, most, steps = before
            sizes[key] = _Sizes(min(rms, least), max(rms, most), steps + 1)
            # Too few earlier steps, or they differ too much.
            if steps < _STEPS or most > _SPREAD * least:
                continue
            if most and rms / most > self.threshold**0.5:
                grown.append(_GrownTensor(record, statistics, rms / most))
        return grown


GROWTH = SuspectRule(
    "growth",
    10.0,
    "times the root mean square of any earlier step",
    _GrowthFinder,
    trips=(*_steady(0, 1.0), *_steady(1, 1.2), *_steady(2, 40.0)),
    passes=(*_steady(0, 1.0), *_steady(1, 1.2), *_steady(2, 8.0)),
)


class _NumberedLayer:
    """One of several layers of the same structure: its operators so far, and the size of its last readable output.

    at: number of operators up to that output
    """

    def __init__(self, path: str, number: int, first: Record) -> None:
        self.path = path
        self.number = number
        self.operators: list[str] = []
        self.record = first
        self.rms = 0.0
        self.at = 0

    def add(self, run: MeasuredRun) -> None:
        """Add a run of an operator."""
        self.operators.append(run.first.op_type)
        for output, statistics in run.float_outputs:
            if output.index == 0:
                rms = rms_of(statistics)
                if rms is not None:
                    self.record, self.rms, self.at = output, rms, len(self.operators)


def _layer_row(number: int, rms: float, phase: str = "forward") -> list[Row]:
    module = f"layers.{number}.mlp"
    return [
        Row("aten::mm", f"{module}/mm_0", "output", values(1.0), module=module, phase=phase),
        Row("aten::gelu", f"{module}/gelu_0", "output", values(rms), module=module, phase=phase),
    ]


class _LayerGrowthFinder(Finder):
    """A comparison of consecutive members of a list of modules, in execution order."""

    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._open: Optional[_NumberedLayer] = None
        self._last: Optional[_NumberedLayer] = None
        self._where: Any = None

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        first = run.first
        numbered = _numbered(first.module or "")
        layer = self._open
        where = (run.step, first.phase)
        if layer is not None and self._where == where and numbered == (layer.path, layer.number):
            layer.add(run)
            return ()
        sightings = [*self._close()]
        if self._where != where or (numbered is not None and self._last is not None and numbered[0] != self._last.path):
            self._last = None
        self._where = where
        if numbered is not None:
            self._open = _NumberedLayer(*numbered, first)
            self._open.add(run)
        return sightings

    def end(self) -> Iterator[tuple[Record, str]]:
        yield from self._close()

    def _close(self) -> Iterator[tuple[Record, str]]:
        block, last = self._open, self._last
        if block is None:
            return
        self._open, self._last = None, block
        if last is None or (last.path, last.operators) != (block.path, block.operators) or not last.rms:
            return
        if last.at != block.at:  # the end of one of the two blocks cannot be read
            return
        if abs(last.number - block.number) == 1 and block.rms > self.threshold * last.rms:
            times = block.rms / last.rms
            yield (
                block.record,
                f"{block.path}.{block.number} ends with a root mean square of {block.rms:.3g}, {times:.3g} times that "
                f"of {last.path}.{last.number}",
            )


LAYER_GROWTH = SuspectRule(
    "layer-growth",
    10.0,
    "times the root mean square of the layer before",
    _LayerGrowthFinder,
    trips=(*_layer_row(0, 1.0), *_layer_row(1, 25.0), Row("aten::sum", "sum_0", "output", values(1))),
    passes=(*_layer_row(0, 1.0), *_layer_row(1, 6.0), Row("aten::sum", "sum_0", "output", values(1))),
)


@functools.lru_cache(maxsize=4096)
def _numbered(module: str) -> Optional[tuple[str, int]]:
    """Return the list that contains a module, and its index there: the outermost number of its path."""
    levels = module.split(".")
    for depth, level in enumerate(levels):
        if level.isdecimal() and level.isascii() and len(level) < 8:
            return ".".join(levels[:depth]), int(level)
    return None
