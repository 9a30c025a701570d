"""Find suspects by comparing an operator with its earlier steps, and a layer with the layer before."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.operators.names import name_in_rules
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.suspects._case import Row, values
from ascend_dump.analysis.suspects._table import Finder, OperatorRun, SuspectRule, rms_of, storage_number
from ascend_dump.reading import Record
from ascend_dump.statistics import Statistics
from ascend_dump.statistics.nonfinite.masks import FILLING

__all__ = ["DEAD", "GROWTH", "LAYER_GROWTH"]

#: Minimum number of elements of a tensor that is checked. Smaller tensors may be constant or large by chance.
_FEWEST = 64
#: A step is checked only if there are this many earlier ones, and if the largest root mean square in them is at most
#: `_SPREAD` times the smallest.
_STEPS, _SPREAD = 2, 3.0


def _is_constant(statistics: Statistics) -> bool:
    return statistics.max is not None and statistics.max == statistics.min and not statistics.nan


def _is_float(record: Record) -> bool:
    return (record.dtype or "").startswith(("float", "bfloat", "hifloat"))


def _steady(step: int, rms: float) -> list[Row]:
    return [
        Row("aten::mm", "0/mm_0", "input", values(1), step),
        Row("aten::mm", "0/mm_0", "output", values(rms), step),
    ]


class _DeadFinder(Finder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._varied: set[Any] = set()

    def look_at(self, run: OperatorRun) -> Iterator[tuple[Record, str]]:
        dead = None
        for record, statistics in run.outputs:
            if statistics.count < self.threshold or not _is_float(record):
                continue
            key = (run.place, record.index)
            if not _is_constant(statistics):
                self._varied.add(key)
            elif key in self._varied and dead is None:
                dead = (record, statistics)
        if dead is None or name_in_rules(run.first.op_type) in FILLING:
            return
        if any(statistics.count > 1 and _is_constant(statistics) for _, statistics in run.inputs):
            return  # it follows from an input
        if any(record.shape is not None and 0 in record.shape for record in run.records):
            return  # an expert that no token was sent to
        record, statistics = dead
        yield (
            record,
            f"all {statistics.count} values of {record.label} are {statistics.max:.3g}; in earlier steps they differed",
        )


DEAD = SuspectRule(
    "dead",
    _FEWEST,
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


class _GrowthFinder(Finder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._sizes: dict[Any, _Sizes] = {}
        self._step: Any = None
        #: Numbers of the storages that operators of this step have written, or that were reported already.
        self._made: set[int] = set()

    def look_at(self, run: OperatorRun) -> Iterator[tuple[Record, str]]:
        if run.step != self._step:
            self._step, self._made = run.step, set()
        if run.first.phase == "other":
            self._made |= run.written - run.read
            return  # the optimizer, whose state grows from nothing
        inputs = [(tensor, self._growth(run, *tensor)) for tensor in run.inputs]
        outputs = [(tensor, self._growth(run, *tensor)) for tensor in run.outputs]
        # Inputs from outside of the step (data, parameters) are checked here: no operator of the step made them.
        grown = [(tensor, times) for tensor, times in inputs if times is not None and times > self.threshold**0.5]
        outside = [
            (tensor, times)
            for tensor, times in grown
            if storage_number(tensor.record) is not None and storage_number(tensor.record) not in self._made
        ]
        self._made |= run.written - run.read
        is_expected = bool(grown) or operator_class(run.first.op_type) in _POWERS
        for (record, statistics), times in [*outside, *([] if is_expected else outputs)]:
            if times is not None and times > self.threshold:
                size = f"{rms_of(statistics) or 0.0:.3g}, {times:.3g} times that of earlier steps"
                storage = storage_number(record)
                if storage is not None:
                    self._made.add(storage)
                yield record, f"the root mean square of {record.label} is {size}"
                return

    def _growth(self, run: OperatorRun, record: Record, statistics: Statistics) -> Optional[float]:
        """Record the size of a tensor in this step, and return its ratio to the largest in earlier steps.

        None if there are too few earlier steps, or if they differ too much.
        """
        rms = rms_of(statistics)
        if rms is None or statistics.count < _FEWEST or not _is_float(record):
            return None
        key = (run.place, record.io, record.index)
        before = self._sizes.get(key)
        if before is None:
            self._sizes[key] = _Sizes(rms, rms, 1)
            return None
        self._sizes[key] = _Sizes(min(rms, before.least), max(rms, before.most), before.steps + 1)
        if before.steps < _STEPS or before.most > _SPREAD * before.least:
            return None
        return rms / before.most if before.most else None


GROWTH = SuspectRule(
    "growth",
    10.0,
    "times the root mean square of any earlier step",
    _GrowthFinder,
    trips=(*_steady(0, 1.0), *_steady(1, 1.2), *_steady(2, 40.0)),
    passes=(*_steady(0, 1.0), *_steady(1, 1.2), *_steady(2, 8.0)),
)


class _NumberedLayer(NamedTuple):
    """One of several layers of the same structure: its operators so far, and the size of its last readable output.

    at: number of operators up to that output
    """

    path: str
    number: int
    operators: tuple[str, ...]
    record: Record
    rms: float
    at: int


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

    def look_at(self, run: OperatorRun) -> Iterator[tuple[Record, str]]:
        first = run.first
        where = (first.run, first.rank, first.device, first.model, first.step, first.phase)
        numbered = _numbered(first.module or "")
        is_same = self._open is not None and self._where == where and numbered == self._open[:2]
        if not is_same:
            yield from self._close()
            if self._where != where or (
                numbered is not None and self._last is not None and numbered[0] != self._last[0]
            ):
                self._last = None
            self._where = where
        if numbered is None:
            return
        before = self._open if is_same else None
        operators = (*(before.operators if before is not None else ()), first.op_type)
        record, rms, last_output = (before.record, before.rms, before.at) if before is not None else (first, 0.0, 0)
        for output, statistics in run.outputs:
            size = rms_of(statistics)
            if output.index == 0 and size is not None and statistics.count >= _FEWEST and _is_float(output):
                record, rms, last_output = output, size, len(operators)
        self._open = _NumberedLayer(*numbered, operators, record, rms, last_output)

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
