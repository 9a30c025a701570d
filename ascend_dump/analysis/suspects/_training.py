"""Find suspects among parameters: without a gradient, with a zero gradient, or unchanged by the optimizer.

A parameter is memory that a module reads in the forward pass and that no operator of the step made. An operator that
writes to it after the backward pass began belongs to the optimizer. Memory is identified by storage numbers, which only
the dump format has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ascend_dump.analysis.operators.properties import VIEWS, operator_class
from ascend_dump.analysis.suspects._case import Row, values
from ascend_dump.analysis.suspects._table import Finder, MeasuredRun, SuspectRule
from ascend_dump.errors import CorruptDump
from ascend_dump.reading import Record

__all__ = ["NO_GRADIENT", "UNMOVED", "ZERO_GRADIENT"]


class _Parameter(NamedTuple):
    """One parameter in one step: the record that reads it first, and its content before and after the optimizer."""

    key: Any
    record: Record
    before: str
    after: str = ""

    @property
    def name(self) -> str:
        shape = list(self.record.shape or ())
        return f"input {self.record.index} of {self.record.op_name}, {self.record.dtype}{shape}"


class _ParameterFinder(Finder):
    """A collector of the parameters of each step; `_judge` checks them when the step is over."""

    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._step: Any = None
        self._parameters: dict[int, _Parameter] = {}
        self._made: set[int] = set()
        self._backward = False

    def look_at(self, run: MeasuredRun) -> Iterable[tuple[Record, str]]:
        first = run.first
        sightings: Sequence[tuple[Record, str]] = ()
        if run.step != self._step:
            sightings = [*self._close()]
            self._step = run.step
        self._backward = self._backward or first.phase == "backward"
        if not self._backward:
            if first.phase == "forward" and first.module:
                for record, storage, _ in run.inputs:
                    if storage >= 0:
                        self._note(run, record, storage)
            self._made |= run.made
        elif self._parameters and self._updates(first) and not self._parameters.keys().isdisjoint(run.written):
            for record, storage, _ in run.outputs:
                if storage in self._parameters and storage in run.read:
                    self._parameters[storage] = self._parameters[storage]._replace(after=record.attrs.get("hash", ""))
        self._look(run)
        return sightings

    def end(self) -> Iterator[tuple[Record, str]]:
        yield from self._close()

    def _updates(self, first: Record) -> bool:
        """Return True for an operator of an optimizer, if the backward pass has begun.

        A module may receive buffers from another rank when its next call begins, before the step ends.
        """
        return first.phase != "forward" and operator_class(first.op_type) not in VIEWS

    def _note(self, run: MeasuredRun, record: Record, storage: int) -> None:
        if storage in self._made or storage in self._parameters or not record.attrs.get("hash"):
            return
        if (record.dtype or "").startswith(("float", "bfloat")):
            key = (*run.place, record.index)
            self._parameters[storage] = _Parameter(key, record, record.attrs["hash"])

    def _close(self) -> Iterator[tuple[Record, str]]:
        if self._backward:
            yield from self._judge([*self._parameters.values()])
        self._parameters, self._made, self._backward = {}, set(), False

    def _look(self, run: MeasuredRun) -> None:
        """Record further facts about an operator, for one of the rules."""

    def _judge(self, parameters: list[_Parameter]) -> Iterator[tuple[Record, str]]:
        raise NotImplementedError


def _step_of(step: int, *, stuck: bool = False, gradient: float = 1.0, written: bool = True) -> tuple[Row, ...]:
    """Return a training step of two modules with one parameter each. The arguments describe the first parameter.

    stuck: the parameter does not change. gradient: the root mean square of its gradient. written: the optimizer writes
    the parameter.
    """
    forward, backward, update = [], [], []
    for storage, module in enumerate(("first", "second")):
        still = stuck and module == "first"
        before, after = ("0", "0") if still else (str(step), str(step + 1))
        position: dict[str, Any] = {"step": step, "module": module}
        read: dict[str, Any] = {"index": 1, "storage": storage, "hash": before, "requires_grad": True}
        forward.append(Row("mm", f"{module}/mm", "input", values(1), **read, **position))
        forward.append(Row("mm", f"{module}/mm", "output", values(1), storage=10 + storage, **position))
        statistics = values(gradient if module == "first" else 1.0)
        backward += [
            Row("detach", f"{module}/detach", io, statistics, phase="backward", storage=20 + storage, **position)
            for io in ("input", "output")
        ]
        if written or module == "second":
            update += [
                Row("add_", f"add_{storage}", io, values(1), step, phase="other", storage=storage, hash=content)
                for io, content in (("input", before), ("output", after))
            ]
    return (*forward, *backward, *update)


def _received_in(step: int) -> tuple[Row, ...]:
    """Return a training step after which a module writes its first parameter with the same values."""
    received = [
        Row("copy_", "wrapper/copy_", io, values(1), step, module="wrapper", storage=0, hash="0")
        for io in ("input", "output")
    ]
    return (*_step_of(step, stuck=True, written=False), *received)


#: Operators that add a bias to each row of their result, with the index of this input.
_BIASED = {"addmm": 0, "convolution": 2}


def _is_of_batch(norm: Record) -> bool:
    """Return True if a norm subtracts the mean of the batch, and not that of earlier batches."""
    try:
        arguments = norm.arguments
    except CorruptDump:
        return False
    is_training = arguments is None or arguments.values.get("training", True) is not False
    return is_training and "no_training" not in norm.op_type


class _UnmovedFinder(_ParameterFinder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._still: dict[Any, int] = {}
        #: By storage of a result: the storage of the bias that was added to it.
        self._biases: dict[int, int] = {}
        #: Storages of biases that a norm over the batch takes out again, so that their gradient is rounding alone.
        self._cancelled: set[int] = set()

    def _look(self, run: MeasuredRun) -> None:
        if run.first.phase != "forward":
            return
        function = operator_class(run.first.op_type)
        if function not in _BIASED and "batch_norm" not in function:
            return
        inputs = {record.index: storage for record, storage, _ in run.inputs}
        bias = inputs.get(_BIASED.get(function, -1), -1)
        if bias >= 0:
            self._biases.update((storage, bias) for _, storage, _ in run.outputs if storage >= 0)
        if "batch_norm" in function and _is_of_batch(run.first):
            source = inputs.get(0)
            if source in self._biases:
                self._cancelled.add(self._biases[source])

    def _judge(self, parameters: list[_Parameter]) -> Iterator[tuple[Record, str]]:
        cancelled = [self._parameters[storage] for storage in self._cancelled if storage in self._parameters]
        self._biases, self._cancelled = {}, set()
        written = [parameter for parameter in parameters if parameter.after and parameter not in cancelled]
        if all(parameter.after == parameter.before for parameter in written):
            return  # no parameter moved: the learning rate is 0, or the optimizer made no step
        for parameter in written:
            self._still[parameter.key] = (
                self._still.get(parameter.key, 0) + 1 if parameter.after == parameter.before else 0
            )
            if self._still[parameter.key] == self.threshold:
                reason = (
                    f"the optimizer wrote the parameter read as {parameter.name} in {self.threshold:g} steps in a row "
                    "without a change, while others changed: the update is zero, or too small for its type"
                )
                name = parameter.record.parameter
                reason += f"; it is {name}" if name else ""
                yield parameter.record, reason


UNMOVED = SuspectRule(
    "unmoved",
    2,
    "steps in a row",
    _UnmovedFinder,
    trips=(*_step_of(0, stuck=True), *_step_of(1, stuck=True)),
    passes=(*_step_of(0, stuck=True), *_step_of(1), *_received_in(2), *_received_in(3)),
)


class _ZeroGradientFinder(_ParameterFinder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._zero: dict[Any, int] = {}
        #: True if the last step changed a parameter. Else this step only computes the same again.
        self._moved = True
        self._gradients: list[tuple[Any, Record, bool]] = []

    def _look(self, run: MeasuredRun) -> None:
        # At the end of the backward pass of a module, autograd detaches the gradients that it keeps.
        if run.first.phase == "backward" and operator_class(run.first.op_type) == "detach" and run.first.module:
            for record, statistics in run.measured_outputs:
                if record.shape and statistics.count and statistics.max is not None:
                    self._gradients.append((run.place, record, statistics.max == 0 and statistics.min == 0))

    def _judge(self, parameters: list[_Parameter]) -> Iterator[tuple[Record, str]]:
        shapes = {(one.record.module, one.record.shape) for one in parameters}
        shapes |= {(module, shape[::-1]) for module, shape in shapes if shape is not None}
        gradients = [one for one in self._gradients if (one[1].module, one[1].shape) in shapes]
        self._gradients = []
        moved, self._moved = self._moved, any(one.after not in ("", one.before) for one in parameters)
        if not moved or all(zero for _, _, zero in gradients):
            return
        for key, record, zero in gradients:
            self._zero[key] = self._zero.get(key, 0) + 1 if zero else 0
            if self._zero[key] == self.threshold:
                reason = (
                    f"the gradient {record.label}, {record.dtype}{list(record.shape or ())}, is zero everywhere in "
                    f"{self.threshold:g} steps in a row"
                )
                yield record, reason


ZERO_GRADIENT = SuspectRule(
    "zero-gradient",
    2,
    "steps in a row",
    _ZeroGradientFinder,
    trips=(*_step_of(0, gradient=0), *_step_of(1, gradient=0)),
    passes=(*_step_of(0, gradient=0), *_step_of(1, gradient=1e-9)),
)


class _NoGradientFinder(_ParameterFinder):
    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self._unwritten: dict[Any, _Parameter] = {}
        #: By key: the number of steps that read the parameter while the optimizer wrote only others.
        self._left_out: Counter[Any] = Counter()
        #: Keys that the optimizer wrote, or whose content changed between steps. The latter are no parameters, but for
        #: example activations received from another rank.
        self._written: set[Any] = set()

    def _judge(self, parameters: list[_Parameter]) -> Iterator[tuple[Record, str]]:
        is_update = any(parameter.after for parameter in parameters)
        for parameter in parameters:
            if parameter.after:
                self._written.add(parameter.key)
            elif parameter.record.attrs.get("requires_grad"):
                self._left_out[parameter.key] += is_update
                first = self._unwritten.setdefault(parameter.key, parameter)
                if first.before != parameter.before:
                    self._written.add(parameter.key)
        return iter(())

    def end(self) -> Iterator[tuple[Record, str]]:
        yield from self._close()
        for key, parameter in self._unwritten.items():
            steps = self._left_out[key]
            if key not in self._written and steps >= self.threshold:
                record = parameter.record
                named = f"the parameter {record.parameter}, read" if record.parameter else "the parameter read"
                received = "" if record.rank is None else ", or this rank does not receive its update"
                reason = (
                    f"{named} as {parameter.name}, requires a gradient, and the optimizer did not write it "
                    f"in {steps} steps: no gradient reaches it, or the optimizer does not have it{received}"
                )
                yield parameter.record, reason


NO_GRADIENT = SuspectRule(
    "no-gradient",
    2,
    "steps in which the optimizer wrote other parameters",
    _NoGradientFinder,
    trips=(*_step_of(0, stuck=True, written=False), *_step_of(1, stuck=True, written=False)),
    passes=(*_step_of(0, stuck=True, written=False), *_step_of(1)),
)
