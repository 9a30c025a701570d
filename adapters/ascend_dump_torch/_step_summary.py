"""Write an outline: a few numbers of each step, cheap enough for all steps of a training (`OutlineLine`).

The numbers are extremes and norms of the values that a user looks at (`_value_hooks`), and of the results of top-level
calls. NaN or Inf in the loss, in gradients or in parameters is wrong. In the result of a call only NaN is wrong, and
only if the step has no loss: Inf may belong to a mask. NaN or Inf in a number that the program reads may belong to a
metric. Numbers computed on a device are read some steps later, so that the program does not wait for the device.
"""

from __future__ import annotations

import logging
import math
import os
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import msgspec
import torch

from ascend_dump.adapter import IgnoredOperators, current_rank, open_private
from ascend_dump.dump_format import OUTLINE_SCHEMA, SKIPPED, OutlineLine, Over, outline_name
from ascend_dump_torch._call_site import module_names, user_line
from ascend_dump_torch._devices import find_devices
from ascend_dump_torch._looks import (
    extremes_of,
    kind_of,
    nonfinite_among,
    norms_of,
    parameters_of,
    sample_of,
    settings_of,
    tensors_in,
)
from ascend_dump_torch._overflow import read_number
from ascend_dump_torch._value_hooks import follow_values

__all__ = ["StepOutline"]

log = logging.getLogger("ascend_dump")

#: Maximum number of looks (`_Look`) per step.
_MOST_LOOKS = 32
#: Number of steps after which numbers are read from a device.
_LAG = 16
#: Minimum seconds between two writes to the file. Each of the first `_MOST_LINES` steps has a line. Of the later steps,
#: steps with NaN or Inf and every `_SPARSE`-th step have a line.
_PAUSE, _MOST_LINES, _SPARSE = 0.5, 100_000, 100
#: Interval in optimizer steps at which parameters are looked at. NaN in them usually shows in the next loss.
_PARAMETERS_EVERY = 16
#: A gradient scaler that leaves out this many optimizer steps in a row is reported, because it finds no usable scale.
#: Before the first step that it lets through, it may leave out more steps, because it is still searching.
_MOST_SKIPS = 4
#: Maximum numbers: of parameters whose change is sampled, of sampled elements of each, of names of parameters in the
#: outline, and of characters of a name.
_MOST_SAMPLED, _SAMPLE, _MOST_NAMES, _LONGEST_NAME = 16, 64, 8, 80
#: Number of first optimizer steps before each of which the parameters are named and counted (`_name_parameters`).
_NAMED_AT = 3
#: Maximum number of tensors with NaN or Inf that are reported to a recording per look.
_MOST_REPORTED = 8


class _Look(NamedTuple):
    """Numbers of one or several tensors: their extremes or their norm.

    kind  "output", "loss", "gradient", "parameter", "read", "skip" or "change"
    what  a description of the tensors for users
    """

    kind: str
    what: str
    numbers: Sequence[Any]


class StepOutline:
    """Writes the outline of this process, from its first step until `finish`.

    over           why the outline ended; "" before its end
    is_wrong       True once a step had NaN or Inf that the user sees
    counts_itself  True if no module begins steps: then each optimizer step or backward pass begins a step
    report         called with each tensor to record, the kind of the look, and the name of its parameter: a tensor with
                   NaN or Inf, or any if `reports_all` is True. None while nothing is recorded
    until_wrong    True to end the outline at the first NaN or Inf that is wrong
    reports_all    True to report losses and gradients without NaN and Inf too
    """

    def __init__(
        self,
        directory: Path,
        *,
        until_wrong: bool,
        reports_all: bool = False,
        ignore: Sequence[str] = (),
        begins: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Begin an outline. begins: called with each step that no module begins.

        ignore: source lines as FILE:LINE. NaN and Inf in values that the program uses on these lines do not count
        """
        self._ignored = IgnoredOperators(ignore)
        self.over = ""
        self._begins = begins
        self.report: Optional[Callable[[torch.Tensor, str, str], None]] = None
        self._until_wrong = until_wrong
        self._reports_all = reports_all
        self._settings: dict[str, float] = {}
        #: The settings of the optimizer if they have changed in the open step, and the source line of its step.
        self._new_settings: tuple[dict[str, float], str] = {}, ""
        self._seen_optimizers = 0
        self._sample: Optional[torch.Tensor] = None
        self._names: dict[str, tuple[str, ...]] = {}
        self._directory = directory
        self._file = -1
        self._lines: list[bytes] = []
        self._written = 0.0
        self._count = 0
        self._step = -1
        self._looks: list[_Look] = []
        self._waiting: list[tuple[OutlineLine, list[_Look]]] = []
        self._on_device = False
        self._devices = find_devices()
        self._busy = False
        self._looked: Counter[str] = Counter()
        self.is_wrong = self.counts_itself = False
        #: The optimizer whose steps are counted.
        self._optimizer: Optional[weakref.ref[Any]] = None
        #: The number of its steps, the number of backward passes, and the time of its step within the open step.
        self._updates = self._passes = self._updated_at = 0
        #: All optimizers with their parameters.
        self._optimizers: weakref.WeakKeyDictionary[Any, list[torch.Tensor]] = weakref.WeakKeyDictionary()
        self._models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        #: The numbers of optimizer steps and of backward passes before the open step.
        self._began_after = 0, 0
        #: `_fresh_gradients`: a backward pass has added to gradients, and they were not looked at since.
        #: `_scaled_gradients`: these gradients are scaled. `_has_passed`: the open step has had a backward pass.
        self._fresh_gradients = self._scaled_gradients = self._has_passed = False
        self._scaled_losses = self._skips = 0
        self._ever_updated = False
        self._undo: Callable[[], None] = follow_values(self)

    # Begin and end of steps.

    def begin(self, step: int) -> None:
        """End the open step and begin another one."""
        if not self.counts_itself:
            self._guard(self._begin, step)

    def _begin(self, step: int) -> None:
        # If gradients are accumulated over several steps, no optimizer step has looked at them yet.
        self._look_at_gradients()
        self._end_step()
        self._step = step
        self._began_after = self._updates, self._passes
        self._updated_at = 0
        self._has_passed = False

    def _begin_itself(self) -> None:
        self._begin(self._step + 1)
        self._begins(self._step)

    def finish(self, over: str, reason: str = "") -> None:
        """Write the remaining steps and the reason of the end. A second call does nothing."""
        if self.over:
            return
        self._guard(self._finish, over == Over.ENDED)
        self._end(over, reason)

    def _finish(self, is_end: bool) -> None:
        self._look_at_gradients()
        for parameters in list(self._optimizers.values()) if is_end else ():
            self._look_at_parameters(parameters)
        if self._skips >= _MOST_SKIPS:
            what = f"{SKIPPED}: it left out the last {self._skips} optimizer steps"
            self._note("skip", what, [math.nan])
        self._end_step(True)

    def abandon(self) -> None:
        """Drop this outline in a forked child, which writes an outline of its own."""
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
            if self._file >= 0 or self._lines or self._looked:  # else nothing has happened
                looked = dict(self._looked)
                end = OutlineLine(over=over, reason=reason, looked=looked, updates=self.counts_itself)
                end.parameters, end.optimizers = self._names, self._seen_optimizers
                self._add(end)
                self._flush()
                os.close(self._file)
        except OSError as error:
            log.debug("the outline of the run could not be ended: %s", error)
        self._file = -1

    def _guard(self, function: Callable[..., None], *args: Any) -> None:
        if self.over or self._busy:
            return
        self._busy = True
        try:
            with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
                function(*args)
        except Exception as error:
            # A failure here must not end the program.
            log.warning("the outline of the run ends at step %d: %s", self._step, error)
            log.debug("the outline failed", exc_info=True)
            self._end(Over.FAILED, f"{type(error).__name__}: {error}"[:500])
        finally:
            self._busy = False

    # Looking at tensors.

    def returned(self, root: Any, result: Any) -> None:
        """Look at the tensors in the result of a top-level call of the model or function `root`."""
        if self._step >= 0:
            self._guard(self._look_at_result, root, result)

    def _look_at_result(self, root: Any, result: Any) -> None:
        if isinstance(root, torch.nn.Module):
            self._models.add(root)
        name = type(root).__name__ if isinstance(root, torch.nn.Module) else getattr(root, "__name__", "a function")
        for number, tensor in enumerate(tensors_in(result)):
            self._look_at("output", f"output {number} of {name}", tensor)

    def backward_begins(self, tensors: Any, *, accumulates: bool) -> None:
        self._guard(self._look_at_losses, tensors, accumulates)

    def _look_at_losses(self, tensors: Any, accumulates: bool) -> None:
        if self._step < 0 or (self.counts_itself and self._has_passed and self._optimizer is None):
            self.counts_itself = True
            self._begin_itself()
        self._has_passed = True
        if self._scaled_losses:  # the loss was looked at before it was scaled
            self._scaled_losses -= 1
            self._scaled_gradients = True
        else:
            for tensor in tensors_in(tensors):
                self._look_at("loss", "the loss that backward() begins at", tensor)
        if accumulates:
            self._fresh_gradients = True
            self._passes += 1

    def backward_ended(self) -> None:
        # Without an optimizer there may be no later chance to look at the gradients: at the end of the program the
        # model may not exist any more.
        if not self._optimizers:
            self._guard(self._look_at_gradients)

    def differentiated(self, gradients: Any) -> None:
        self._guard(self._look_at_many, "output", "a result of autograd.grad()", tensors_in(gradients))

    def scaled(self, loss: Any, result: Any) -> None:
        self._guard(self._look_at_unscaled, loss)

    def _look_at_unscaled(self, loss: Any) -> None:
        self._scaled_losses += 1
        for tensor in tensors_in(loss):
            self._look_at("loss", "the loss before it is scaled", tensor)

    def steps(self, optimizer: torch.optim.Optimizer) -> None:
        self._guard(self._look_before, optimizer)

    def _look_before(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer not in self._optimizers:
            self._seen_optimizers += 1
            parameters = list(parameters_of(optimizer))
            self._optimizers[optimizer] = parameters
            # Look at the parameters a last time when the optimizer is deleted, for example when the function that
            # created it returns.
            weakref.finalize(optimizer, self._guard, self._look_at_parameters, parameters).atexit = False
        # With an optimizer that skips steps itself (`found_inf`), Inf in scaled gradients is expected.
        if getattr(optimizer, "found_inf", None) is None:
            self._look_at_gradients(optimizer)
        if self._optimizer is None or self._optimizer() is optimizer:
            if self._updates < _NAMED_AT:
                self._name_parameters()
            settings = settings_of(optimizer)
            if settings != self._settings:
                self._settings = settings
                self._new_settings = settings, user_line()
            self._sample = sample_of(self._optimizers[optimizer], _MOST_SAMPLED, _SAMPLE)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self._guard(self._look_after, optimizer)

    def _look_after(self, optimizer: torch.optim.Optimizer) -> None:
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is not optimizer:
            return
        self._note_update()
        before, self._sample = self._sample, None
        after = None if before is None else sample_of(self._optimizers.get(optimizer, []), _MOST_SAMPLED, _SAMPLE)
        if before is not None and after is not None and before.shape == after.shape:
            change = (after - before).norm() / before.norm().clamp(min=1e-30)
            self._note("change", "", [read_number(change) if change.is_cpu else change])
        if self._updates % _PARAMETERS_EVERY == 0:
            self._look_at_parameters(list(parameters_of(optimizer)))
        if self.counts_itself:
            self._begin_itself()

    def _note_update(self) -> None:
        self._updates += 1
        self._updated_at = time.time_ns() // 1000

    def scaler_stepped(self, scaler: Any, skipped: bool) -> None:
        self._guard(self._look_at_scaler, scaler, skipped)

    def _look_at_scaler(self, scaler: Any, skipped: bool) -> None:
        self._scaled_gradients = self._fresh_gradients = False
        self._skips = self._skips + 1 if skipped else 0
        self._ever_updated = self._ever_updated or not skipped
        if not skipped:
            return
        self._note_update()  # a step that is left out counts, because the program counts it
        scale = scaler.get_scale()
        self._report_many("skip", [parameter.grad for parameter in self._all_parameters()])
        if (self._ever_updated and self._skips >= _MOST_SKIPS) or scale <= 1:
            steps = f"{self._skips} optimizer steps in a row, at last at a scale of {scale:g}"
            what = f"{SKIPPED}: it left out {steps}"
            self._note("skip", what, [math.nan])
        else:
            self._looked["skip"] += 1

    def reads(self, tensor: torch.Tensor, value: Any) -> None:
        # Scaled gradients and their norm may have Inf. That is no fault, because the scaler then leaves out the step.
        if self._busy or self._scaled_gradients or self._skips:
            return
        if isinstance(value, float):
            self._looked["read"] += 1
            if not math.isfinite(value):
                self._guard(self._look_at_number, tensor, value)
        elif not isinstance(value, (int, bool)) and tensor.numel() == 1:
            self._guard(self._look_at, "read", "a tensor of one element that the program reads", tensor)

    def _look_at_number(self, tensor: torch.Tensor, value: float) -> None:
        self._tell(tensor, "read", "")
        self._note("read", "a number that the program reads", [value])

    def _look_at(self, kind: str, what: str, tensor: torch.Tensor) -> None:
        if self._captures() or len(self._looks) >= _MOST_LOOKS:
            return
        numbers = extremes_of(tensor)
        if not numbers:
            return
        if numbers[0].is_cpu or self.report is not None:
            numbers = [read_number(number) for number in numbers]
            if kind_of(numbers) or (self._reports_all and kind == "loss"):
                self._tell(tensor, kind, "")
        self._note(kind, what, numbers)

    def _name_parameters(self) -> None:
        """Note how many parameters of each kind there are, and the first names of each kind.

        The kinds are: parameters of all optimizers, frozen ones, those that no optimizer has, those without a gradient.
        """
        every = [parameter for model in self._models for parameter in model.parameters() if parameter.requires_grad]
        mine = {id(parameter) for parameters in self._optimizers.values() for parameter in parameters}
        names = self._names_of(every)
        absent = [names[id(parameter)] for parameter in every if id(parameter) not in mine]
        parameters = self._all_parameters()
        names = self._names_of(parameters)
        without = [names[id(one)] for one in parameters if one.requires_grad and one.grad is None]
        found = {
            "of all optimizers": [names[id(one)] for one in parameters if one.requires_grad],
            "frozen": [names[id(one)] for one in parameters if not one.requires_grad],
            "without optimizer": absent,
            "without gradient": without,
        }
        self._names = {
            kind: (str(len(some)), *(name[:_LONGEST_NAME] for name in some[:_MOST_NAMES]))
            for kind, some in found.items()
            if some
        }

    def _look_at_gradients(self, optimizer: Optional[torch.optim.Optimizer] = None) -> None:
        """Look at the gradients that the last backward pass has left, unless they are scaled."""
        if not self._fresh_gradients:
            return
        self._fresh_gradients = False
        if not self._scaled_gradients:
            parameters = list(parameters_of(optimizer)) if optimizer is not None else self._all_parameters()
            if self._reports_all and self.report is not None:
                names = self._names_of(parameters)
                for parameter in parameters:
                    if parameter.grad is not None:
                        self._tell(parameter.grad, "gradient", f"{names[id(parameter)]}.grad")
            self._look_at_many("gradient", "the gradient", [parameter.grad for parameter in parameters], parameters)

    def _look_at_parameters(self, parameters: list[torch.Tensor]) -> None:
        self._look_at_many("parameter", "the parameter", parameters, parameters)

    def _look_at_many(
        self, kind: str, what: str, tensors: Sequence[Optional[torch.Tensor]], parameters: Sequence[torch.Tensor] = ()
    ) -> None:
        if self._captures():
            return
        for number in norms_of(tensors):
            value: Any = number
            if number.is_cpu or self.report is not None:
                value = read_number(number)
                if not math.isfinite(value):
                    wrong = nonfinite_among(tensors)
                    if not wrong:
                        continue  # the norm has overflowed
                    names = self._names_of(parameters)
                    name = names.get(id(parameters[wrong[0]]), "") if parameters else ""
                    further = f" and of {len(wrong) - 1} more" if len(wrong) > 1 else ""
                    what = f"{what} {'of ' * (kind == 'gradient')}{name}{further}" if name else what
                    self._report_many(kind, tensors, parameters)
            self._note(kind, what, [value])

    def _all_parameters(self) -> list[torch.Tensor]:
        """Return the parameters of all optimizers; before the first optimizer step, those of all models."""
        lists = list(self._optimizers.values()) or [list(model.parameters()) for model in self._models]
        return list({id(parameter): parameter for parameters in lists for parameter in parameters}.values())

    def _names_of(self, parameters: Sequence[torch.Tensor]) -> dict[int, str]:
        names = {id(parameter): f"number {number}" for number, parameter in enumerate(parameters)}
        for model in self._models:
            paths = module_names(model)
            for module in model.modules():
                for name, parameter in module.named_parameters(recurse=False):
                    names[id(parameter)] = f"{paths[id(module)]}.{name}".lstrip(".")
        return names

    def _report_many(
        self, kind: str, tensors: Sequence[Optional[torch.Tensor]], parameters: Sequence[torch.Tensor] = ()
    ) -> None:
        if self.report is None:
            return
        names = self._names_of(parameters)
        for position in nonfinite_among(tensors)[:_MOST_REPORTED]:
            tensor = tensors[position]
            assert tensor is not None, "it has NaN or Inf"
            name = names[id(parameters[position])] if parameters else ""
            self._tell(tensor, kind, f"{name}{'.grad' * (kind == 'gradient')}" if name else "")

    def _tell(self, tensor: torch.Tensor, kind: str, parameter: str) -> None:
        if self.report is not None and not (self._ignored and self._ignored.selects_line(user_line())):
            self.report(tensor, kind, parameter)

    def _note(self, kind: str, what: str, numbers: Sequence[Any]) -> None:
        self._looked[kind] += kind not in ("read", "change")
        known = not isinstance(numbers[0], torch.Tensor)
        if known and kind_of(numbers):
            line = user_line()
            if self._ignored.selects_line(line):
                return
            what = f"{what}, at {line}" if line else what
        if kind == "read" and not kind_of(numbers):
            return
        look = _Look(kind, what, numbers)
        if len(self._looks) < _MOST_LOOKS or (known and kind_of(numbers)):
            self._looks.append(look)
        self._on_device = self._on_device or not known
        if known and self._until_wrong and kind not in ("output", "change") and _judge(OutlineLine(), [look]).wrong:
            self._end_step()

    def _captures(self) -> bool:
        """Return True if operators are being captured into a graph of a device."""
        return self._devices is not None and bool(self._devices.graph())

    # Writing lines.

    def _end_step(self, all_of_it: bool = False) -> None:
        # Before the first step there is a line only if something was looked at.
        if self._step >= 0 or self._looks:
            update, passes = self._began_after
            line = OutlineLine(step=max(self._step, 0), update=update, passes=passes, updated_at=self._updated_at)
            line.settings, line.settings_at = self._new_settings
            self._new_settings = {}, ""
            self._waiting.append((line, self._looks))
            self._looks = []
        if all_of_it or not self._on_device or len(self._waiting) >= _LAG:
            waiting, self._waiting = self._waiting, []
            for line, looks in waiting:
                if self._write_step(line, looks):
                    return

    def _write_step(self, line: OutlineLine, looks: Sequence[_Look]) -> bool:
        """Write a step. Returns True if the outline ends with it."""
        looks = [look._replace(numbers=list(_numbers(look))) for look in looks]
        _judge(line, looks)
        self.is_wrong = self.is_wrong or bool(line.wrong)
        _add_series(line, looks)
        values = (value for look in looks if look.kind != "change" for value in look.numbers)
        line.values = tuple(value if math.isfinite(value) else None for value in values)
        self._count += 1
        if line.wrong or line.masked or line.read or self._count <= _MOST_LINES or line.step % _SPARSE == 0:
            self._add(line)
        if line.wrong and self._until_wrong:
            self._end(Over.WRONG, line.wrong)
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


def _numbers(look: _Look) -> Iterator[float]:
    for number in look.numbers:
        yield read_number(number) if isinstance(number, torch.Tensor) else number


def _add_series(line: OutlineLine, looks: Sequence[_Look]) -> None:
    """Add the losses, the norm of the gradients and the change of the parameters to the line of a step."""
    line.losses = tuple(_finite(look.numbers[0]) for look in looks if look.kind == "loss")
    for kind, name in (("gradient", "norm"), ("change", "change")):
        numbers = [number for look in looks if look.kind == kind for number in look.numbers]
        if numbers:
            setattr(line, name, _finite(max(numbers)))


def _finite(number: float) -> Optional[float]:
    return number if math.isfinite(number) else None


def _judge(line: OutlineLine, looks: Sequence[_Look]) -> OutlineLine:
    """Set `wrong`, `masked` and `read` of the line to descriptions of the first looks with NaN or Inf of each kind.

    They are: a look that is wrong, a result of a call that may be harmless, and a number that the program reads.
    """
    has_loss = any(look.kind == "loss" for look in looks)
    for look in looks:
        kind = kind_of(look.numbers)
        if not kind or look.kind == "change":
            continue
        text = f"{kind} in {look.what}"
        if look.kind == "read":
            line.read = line.read or text
        elif look.kind == "output" and (kind != "NaN" or has_loss):
            line.masked = line.masked or text
        else:
            line.wrong = line.wrong or (look.what if look.kind == "skip" else text)
    return line
