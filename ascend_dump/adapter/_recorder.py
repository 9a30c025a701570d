"""A session for adapters that record a capture with one call per operator."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, NamedTuple, Optional, Union

import msgspec
import numpy as np

from ascend_dump.adapter._session import Session, tell_of_empty
from ascend_dump.common.counters import Tally
from ascend_dump.common.paths import RunDirectory
from ascend_dump.common.patterns import text_matcher
from ascend_dump.common.problem import Problem
from ascend_dump.dump_format import Line, Named, TensorOf, numpy_dtype, text_of
from ascend_dump.errors import AscendDumpError
from ascend_dump.request import DumpRequest
from ascend_dump.writing import HostRun, HostWriter, Item, Payload, size_limit

__all__ = ["Recorder"]

#: Tensors of an operator: in order, or by the names of its parameters. A parameter may have a list of tensors.
Tensors = Union[Iterable[Any], Mapping[str, Any]]
#: Maximum number of operator names in a message.
_MOST_NAMES = 5


class Recorder(Session):
    """A session for adapters that see each operator: `Adapter.start` creates one and returns it.

    It implements the request: `steps`, `mode`, `layers`, `data`, `stats`, `max_bytes`, `keep` and `until`.

        recorder = Recorder(request, run, model="network", restore=unhook, versions={"jax": jax.__version__})
        if recorder.begin_step():
            recorder.record("MatMul", inputs={"x": x, "weight": weight}, outputs=[y], arguments={"transpose": False})
        recorder.end_step()

    run       the directory with which `Adapter.start` was called
    model     the name of the model, which becomes a directory level in the dump
    restore   a function that detaches from the target; called by the first `stop`
    versions  versions of the framework and other packages, for the manifest
    """

    def __init__(
        self,
        request: DumpRequest,
        run: RunDirectory,
        *,
        model: str,
        restore: Callable[[], object],
        versions: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.root = run.path
        self.request = request
        self._restore: Optional[Callable[[], object]] = restore
        self._process = os.getpid()
        self._layers = [text_matcher(layer) for layer in request.layers]
        self._unselected: dict[str, None] = {}
        self._operators = itertools.count()
        self._steps_seen = 0
        self._next_step = 0
        self._is_open = self._is_ended = False
        self._limit = size_limit(request, run)
        self._run = HostRun(run, request=request.to_mapping(), versions=dict(versions or {}))
        self._writer = HostWriter.of_request(request, self._run.directory(0, run.model or model), self._limit)

    @staticmethod
    def check(request: DumpRequest) -> list[Problem]:
        """Return the problems of settings that a recorder does not implement, for use in `Adapter.check`."""
        problems = []
        if request.scene is not None:
            message = f"scene={request.scene!r} is not available here: every operator is recorded"
            problems.append(Problem("AD203", "error", message, "leave out scene=; until='nonfinite' may do", "scene"))
        without_effect = {
            "level": (request.level != "all", "operators are recorded"),
            "quant": (request.quant, "tensors are recorded as they are"),
            "models": (bool(request.models), "the target is the model"),
            "stats": (bool(request.stats) and request.data == "tensor", "data='tensor' has no statistics"),
            "options": (bool(request.options), "this adapter has no options"),
        }
        for name, (is_set, reason) in without_effect.items():
            if is_set:
                problems.append(Problem("AD211", "silent", f"{name}= changes nothing: {reason}", "leave it out", name))
        return problems

    def begin_step(self) -> bool:
        """End the open step and begin the next one. Return True if the new step is recorded."""
        self.step(self._next_step)
        return self._is_open

    def end_step(self) -> None:
        """End the open step, if there is one."""
        self.step(None)

    def step(self, number: Optional[int]) -> None:
        if self._restore is None or os.getpid() != self._process:
            return
        if self._is_open:
            self._writer.end_step()
            self._is_open = False
        if number is None:
            return
        self._next_step = number + 1
        self._steps_seen += 1
        if self.selects_step(number):
            self._writer.begin_step(number)
            self._operators = itertools.count()
            self._is_open = True

    @property
    def is_over(self) -> bool:
        return self._is_ended or self._writer.failure is not None or self._writer.ended is not None

    def record(
        self,
        op: str,
        *,
        inputs: Tensors = (),
        outputs: Tensors = (),
        arguments: Optional[Mapping[str, Any]] = None,
        name: str = "",
        module: str = "",
        source: str = "",
        phase: str = "other",
    ) -> None:
        """Record an operator that has run, with copies of its tensors. Does nothing outside of recorded steps.

        op         the type of the operator, such as "MatMul"
        inputs     its input tensors: numpy arrays, numbers, and objects with `__array__` or `__dlpack__`. A tensor
                   whose values cannot be read is recorded without values, but with the reason. The parameter of the
                   tensors of a sequence is called `inputs`
        outputs    its output tensors, as for `inputs`
        arguments  its other arguments: numbers, texts, lists, types
        name       its name in the model, by which `layers=` selects it; `op` by default
        module     the path of the module that called it
        source     the line of the program, "train.py:31"
        phase      "forward", "backward", "optimizer" or "other"
        """
        name = name or op
        if not self._is_open or os.getpid() != self._process or not self._selects(name, module):
            return
        if not isinstance(inputs, Mapping):
            inputs = {"inputs": [*inputs]}
        seq, micros = next(self._operators), time.time_ns() // 1000
        items: list[Item] = []
        for io, tensors in (("input", inputs), ("output", outputs)):
            for index, (parameter, value) in enumerate(_flat(tensors)):
                if self.request.mode in (io, "all"):
                    data = _content(value)
                    line = Line(seq, op, name, io, index, micros, data.dtype, data.shape, len(data.content))
                    line.module, line.source, line.phase = module, source, phase
                    line.stride, line.skipped = _strides(data.shape), data.skipped
                    line.argument = parameter if io == "output" else ""
                    payload = Payload(data.content, 0, len(data.content), data.dtype, data.shape)
                    items.append(Item(line, None if data.skipped else payload))
        if items:
            items[0].line.call = msgspec.Raw(_call_text(op, inputs, arguments or {}).encode())
            self._writer.put(items, sum(item.line.nbytes for item in items))

    def trigger(self, reason: str) -> None:
        self._is_ended = True
        self._writer.end(reason)

    def flush(self) -> None:
        if os.getpid() == self._process:
            self._writer.flush()

    def tally(self) -> Tally:
        limit = None if self._limit is None or not self._limit.by_default else self._limit.nbytes
        return self._writer.tally()._replace(limit=limit)

    def reasons(self) -> Optional[list[str]]:
        if not self._steps_seen:
            return ["the target ran no step in the block"]
        if self._unselected:
            names = ", ".join(list(self._unselected)[:_MOST_NAMES])
            return [f"layers= selects none of the operators that ran, such as {names}"]
        if not self._writer.tally().begun:
            return [f"steps={self.request.steps} was not reached: {self._steps_seen} steps ran, counted from 0"]
        return ["no operator was recorded in the steps that ran"]

    def stop(self) -> None:
        restore, self._restore = self._restore, None
        if restore is None:
            return
        restore()
        self._is_open = False
        if os.getpid() != self._process:
            self._writer.abandon()
            return
        self._writer.close()
        self.failure = self.failure or self._writer.failure
        if self._writer.records and self.failure is None:
            tell_of_empty("step", *self._writer.empty_steps)
        try:
            tally = self.tally()._asdict()
            self._run.finish([self._writer], self.failure, steps_seen=self._steps_seen, tally=tally)
        except AscendDumpError as error:
            self.failure = self.failure or error

    def _selects(self, name: str, module: str) -> bool:
        if not self._layers or any(matches(name) or matches(module) for matches in self._layers):
            return True
        if len(self._unselected) < _MOST_NAMES:
            self._unselected[name] = None
        return False


class _Content(NamedTuple):
    """The values of a tensor in the form in which they are stored. skipped: why there are no values, or ""."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes = b""
    skipped: str = ""


def _content(value: Any) -> _Content:
    try:
        array = _array(value)
        numpy_dtype(array.dtype.name)  # raises for types without a reader
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        return _Content(array.dtype.name, array.shape, array.tobytes())
    except Exception as error:  # the conversions of frameworks raise many kinds of errors
        dtype = str(getattr(value, "dtype", type(value).__name__))
        return _Content(dtype, _shape(value), skipped=f"its values cannot be read: {error}")


def _array(value: Any) -> np.ndarray:
    if isinstance(value, (bool, int, float, complex)) or hasattr(value, "__array__"):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    raise TypeError(f"{type(value).__name__} is no tensor")


def _shape(value: Any) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in value.shape)
    except (AttributeError, TypeError, ValueError):
        return ()


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, in elements."""
    sizes = [*shape[1:], 1] if shape else []
    return tuple(itertools.accumulate(reversed(sizes), lambda step, size: step * max(1, size)))[::-1]


def _flat(tensors: Tensors) -> Iterator[tuple[str, Any]]:
    """Yield (parameter, tensor) pairs. The parameter is "" in a sequence, `weights[1]` in a list named `weights`."""
    if not isinstance(tensors, Mapping):
        yield from (("", tensor) for tensor in tensors)
        return
    for parameter, value in tensors.items():
        if isinstance(value, (list, tuple)):
            yield from ((f"{parameter}[{index}]", tensor) for index, tensor in enumerate(value))
        else:
            yield parameter, value


def _call_text(op: str, inputs: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Return the JSON of `Line.call`, with references to the records of inputs."""
    values: dict[str, Any] = {}
    indices = itertools.count()
    for parameter, value in inputs.items():
        if isinstance(value, (list, tuple)):
            values[parameter] = [TensorOf("input", next(indices)) for _ in value]
        else:
            values[parameter] = TensorOf("input", next(indices))
    values.update((key, _plain(value)) for key, value in arguments.items())
    texts = ",".join(f"{text_of(str(key))}:{text_of(value)}" for key, value in values.items())
    return f'{{"op":{text_of(op)},"args":{{{texts}}}}}'


def _plain(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return Named("dtype", value.name)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
