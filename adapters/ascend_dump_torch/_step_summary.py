"""A few numbers of each step, cheap enough for all steps of a training: `ascend_dump.dump_format.OutlineLine`.

The outline has the largest and the smallest element of the results of top-level calls, which show NaN and Inf. NaN in a
gradient makes parameters NaN, and usually the next outputs; so parameters are checked only every few steps, and
gradients only in requested steps. Numbers computed on a device are read some steps later, so that the program does not
wait for the device.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import msgspec
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ascend_dump.adapter import current_rank, open_private
from ascend_dump.dump_format import GRADIENTS, OUTLINE_SCHEMA, PARAMETERS, OutlineLine, Over, outline_name
from ascend_dump_torch._devices import find_devices
from ascend_dump_torch._memory import is_plain

__all__ = ["StepOutline"]

log = logging.getLogger("ascend_dump")

#: The most tensors checked per call, and the most checks per step.
_MOST_TENSORS, _MOST_LOOKS = 32, 32
#: The number of steps after which numbers are read from a device.
_LAG = 16
#: Seconds between writes of the file; the number of steps with a line each; of later steps every hundredth has one.
_PAUSE, _MOST_LINES, _SPARSE = 0.5, 100_000, 100
#: Interval in steps at which the parameters of optimizers are checked.
_PARAMETERS_EVERY = 16


class _Look(NamedTuple):
    """The largest number of one or several tensors; for outputs the smallest too."""

    what: str
    numbers: list[torch.Tensor]


class StepOutline:
    """Writes the outline of this process, from its first step until `finish`.

    over  why it ended; "" before that
    """

    def __init__(self, directory: Path, *, until_wrong: bool, gradients: Container[int] = ()) -> None:
        """Begin an outline. gradients: the steps with a check of gradients."""
        self.over = ""
        self._gradients = gradients
        self._until_wrong = until_wrong
        self._directory = directory
        self._file = -1
        self._lines: list[bytes] = []
        self._written = 0.0
        self._count = 0
        self._step = -1
        self._looks: list[_Look] = []
        self._waiting: list[tuple[int, list[_Look]]] = []
        self._on_device = False
        self._devices = find_devices()
        self._undo: Callable[[], None] = register_optimizer_step_pre_hook(self._optimizes).remove

    def begin(self, step: int) -> None:
        """End the open step and begin another one."""
        self._guard(self._end_step)
        self._step = step

    def returned(self, root: Any, result: Any) -> None:
        """Call after a top-level call has returned `result`."""
        if not self.over and self._step >= 0:
            self._guard(self._look_at, root, result)

    def finish(self, over: str, reason: str = "") -> None:
        """Write the remaining steps and the reason of the end. A second call does nothing."""
        if self.over:
            return
        self._guard(self._end_step, True)
        self._end(over, reason)

    def abandon(self) -> None:
        """Drop this outline in a forked child: it writes its own."""
        self.over = Over.ENDED
        self._undo()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _end(self, over: str, reason: str) -> None:
        if self.over:
            return
        self.over = over
        self._undo()
        self._looks, self._waiting = [], []
        try:
            if self._file >= 0 or self._lines:  # nothing is written if there was no step
                self._add(OutlineLine(over=over, reason=reason))
                self._flush()
                os.close(self._file)
        except OSError as error:
            log.debug("the outline of the run could not be ended: %s", error)
        self._file = -1

    def _guard(self, function: Callable[..., None], *args: Any) -> None:
        if self.over:
            return
        try:
            with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
                function(*args)
        except Exception as error:
            # A failure here must not end the program.
            log.warning("the outline of the run ends at step %d: %s", self._step, error)
            log.debug("the outline failed", exc_info=True)
            self._end(Over.FAILED, f"{type(error).__name__}: {error}"[:500])

    # Checking tensors.

    def _look_at(self, root: Any, result: Any) -> None:
        if len(self._looks) >= _MOST_LOOKS or self._captures():
            return
        name = type(root).__name__ if isinstance(root, torch.nn.Module) else getattr(root, "__name__", "a function")
        for number, tensor in enumerate(_tensors_in(result)):
            plain = _plain(tensor)
            if plain is not None:
                self._note(f"output {number} of {name}", list(torch.aminmax(plain))[::-1])

    def _optimizes(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._step in self._gradients:
            # With a gradient scaler Inf is expected, and the scaler handles it.
            if getattr(optimizer, "found_inf", None) is None:
                self._guard(self._look_at_many, (parameter.grad for parameter in _parameters_of(optimizer)), GRADIENTS)
        elif self._step % _PARAMETERS_EVERY == _PARAMETERS_EVERY - 1:
            self._guard(self._look_at_many, _parameters_of(optimizer), PARAMETERS)

    def _look_at_many(self, tensors: Iterable[Optional[torch.Tensor]], what: str) -> None:
        if len(self._looks) >= _MOST_LOOKS or self._captures():
            return
        groups: dict[Any, list[torch.Tensor]] = {}
        for tensor in tensors:
            plain = None if tensor is None else _plain(tensor)
            if plain is not None:
                groups.setdefault((plain.device, plain.dtype), []).append(plain)
        for group in groups.values():
            self._note(what, [torch.stack(torch._foreach_norm(group, math.inf)).max()])

    def _note(self, what: str, numbers: list[torch.Tensor]) -> None:
        self._looks.append(_Look(what, numbers))
        self._on_device = self._on_device or not numbers[0].is_cpu

    def _captures(self) -> bool:
        """Return True if operators are being captured into a graph of a device."""
        return self._devices is not None and bool(self._devices.graph())

    # Writing lines.

    def _end_step(self, all_of_it: bool = False) -> None:
        # At the end the open step may be empty.
        if self._step >= 0 and (self._looks or not all_of_it):
            self._waiting.append((self._step, self._looks))
            self._looks = []
        if all_of_it or not self._on_device or len(self._waiting) >= _LAG:
            waiting, self._waiting = self._waiting, []
            for step, looks in waiting:
                if self._write_step(step, looks):
                    return

    def _write_step(self, step: int, looks: Sequence[_Look]) -> bool:
        """Write a step. Returns True if the outline ends with it."""
        values: list[float] = []
        wrong = masked = ""
        for look in looks:
            numbers = [float(number) for number in look.numbers]
            values += numbers
            what = _what(numbers)
            if what == "-Inf":
                masked = masked or f"{what} in {look.what}"
            elif what:
                wrong = wrong or f"{what} in {look.what}"
        self._count += 1
        if wrong or masked or self._count <= _MOST_LINES or step % _SPARSE == 0:
            finite = tuple(value if math.isfinite(value) else None for value in values)
            self._add(OutlineLine(step=step, values=finite, wrong=wrong, masked=masked))
        if wrong and self._until_wrong:
            self._end(Over.WRONG, wrong)
            return True
        if time.monotonic() - self._written > _PAUSE:
            self._flush()
        return False

    def _add(self, line: OutlineLine) -> None:
        self._lines.append(msgspec.json.encode(line) + b"\n")

    def _flush(self) -> None:
        if self._file < 0:
            name = outline_name(current_rank().rank, os.getpid())
            self._file = open_private(self._directory / name, os.O_WRONLY | os.O_APPEND)
            self._lines.insert(0, msgspec.json.encode(OutlineLine(schema=OUTLINE_SCHEMA)) + b"\n")
        data, self._lines = b"".join(self._lines), []
        while data:
            data = data[os.write(self._file, data) :]
        self._written = time.monotonic()


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _what(numbers: Sequence[float]) -> str:
    """Return the kind of non-finite value: "NaN", "Inf", or "-Inf" if it is the only one; "" if all are finite."""
    if any(map(math.isnan, numbers)):
        return "NaN"
    if numbers[0] == math.inf:
        return "Inf"
    return "-Inf" if -math.inf in numbers else ""


def _tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in the result of a call, searched in lists, mappings and data classes."""
    tensors: list[torch.Tensor] = []
    stack = [value]
    while stack and len(tensors) < _MOST_TENSORS:
        item = stack.pop()
        if isinstance(item, torch.Tensor):
            tensors.append(item)
        elif isinstance(item, (list, tuple)):
            stack += reversed(item[:_MOST_TENSORS])
        elif isinstance(item, Mapping):
            stack += reversed(list(item.values())[:_MOST_TENSORS])
        elif dataclasses.is_dataclass(item) and not isinstance(item, type):
            stack += reversed([getattr(item, part.name, None) for part in dataclasses.fields(item)])
    return tensors


def _plain(tensor: torch.Tensor) -> Any:
    """Return the tensor in a form that `aminmax` accepts; None if it cannot have NaN or Inf."""
    if not is_plain(type(tensor)):
        # The local part of a distributed tensor.
        tensor = getattr(tensor, "_local_tensor", None)
        if tensor is None or not is_plain(type(tensor)):
            return None
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta or tensor.is_nested:
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.element_size() == 1 else tensor
