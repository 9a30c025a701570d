"""The session of a capture of PyTorch: counts steps, and installs the hooks and mode that record selected steps."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Optional

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ascend_dump import AscendDumpError, CaptureError, ConfigError, NotSupported
from ascend_dump.adapter import DumpRequest, RunDirectory, Session, Tally, tell_of_empty
from ascend_dump.adapter.pytorch.calls import Watch
from ascend_dump.adapter.pytorch.warmup import is_left_out
from ascend_dump.dump_format import SYMPTOM
from ascend_dump.writing import CHANGED, HostRun, HostWriter, Item, SpreadSteps, size_limit
from ascend_dump_torch import _stack
from ascend_dump_torch._call_site import Tracker, user_line
from ascend_dump_torch._framework_settings import force_eager, settings_of_torch
from ascend_dump_torch._layers import LayerFilter
from ascend_dump_torch._mode import RecordMode
from ascend_dump_torch._modules import ModuleRecorder
from ascend_dump_torch._overflow import Aftermath
from ascend_dump_torch._overflow_mode import OverflowMode
from ascend_dump_torch._replace_tensors import Grafts, read_grafts
from ascend_dump_torch._updates import OptimizerSteps
from ascend_dump_torch.memory.hooks import MemoryGuard
from ascend_dump_torch.memory.records import OperatorCall
from ascend_dump_torch.memory.tensors import Tensors
from ascend_dump_torch.parameters.norms import ParameterNorms

__all__ = ["TorchSession"]

log = logging.getLogger("ascend_dump")


_FOLLOWED = "operators with NaN or Inf in later consecutive steps are not recorded: see options['steps_after_origin']"


class TorchSession(Session):
    """A running capture, started by `TorchAdapter.start`.

    Outside of selected steps only the hooks on the target are installed, so that other steps are not slowed down.
    """

    def __init__(
        self,
        request: DumpRequest,
        target: Optional[torch.nn.Module],
        run: RunDirectory,
    ) -> None:
        self.armed: bool = False
        self.launched: bool = run.launched
        self.recording = False
        self._abandoned = False
        #: True once `trigger` was called: nothing is recorded after the open step.
        self._ends = False
        #: True once a capture of the script has replaced this capture of the launcher.
        self._superseded = False
        self._target = target
        self.failure: Optional[AscendDumpError] = None
        self.records_inputs = request.mode in ("input", "all")
        # Only for `triage --run`, which explains the exception that ends a program. In other runs an exception of an
        # operator may be normal.
        self.records_failures = "outline" in request.options
        self.records_outputs = request.mode in ("output", "all")
        self.overflow_only = request.scene == "overflow"
        self.aftermath = Aftermath(request.options.get("steps_after_origin", 1))
        self.request = request
        self._thread = threading.get_ident()
        self._other_threads = 0
        self._calls = 0
        #: No step before this one is selected. Such steps are only counted, because they may take less than a
        #: millisecond.
        self._idle_until = 0
        self._step: Optional[int] = None
        #: Begin of the open step (`perf_counter`); None if no step is open.
        self._opened: Optional[float] = None
        #: Seconds that recorded steps took, and seconds that this session took to begin and end them.
        self._took = self._between = 0.0
        self._leaves_warmup_out = bool(request.options.get("skip_warmup"))
        #: True once the program has called `step`.
        self._steps_are_called = False
        self._layers = LayerFilter(request.layers)
        self.selects: Optional[Callable[[str, str], bool]] = self._layers.selects if request.layers else None
        graft = request.options.get("graft")
        self.grafts: Optional[Grafts] = None if graft is None else Grafts(read_grafts(graft))
        #: Returns the number of the next operator of this step.
        self.next_seq = itertools.count().__next__
        self.tracker = Tracker(target, stacks=bool(request.options.get("stack", False)))
        self._watch: Optional[Watch] = None
        #: Removes the hooks and the mode that record the open step. None if no step is recorded.
        self._undo: Optional[contextlib.ExitStack] = None
        self._refuse_overlap()
        versions = {"torch": str(torch.__version__)}
        self._run = HostRun(run, request=request.to_mapping(), versions=versions, settings=settings_of_torch())
        self.root = run.path
        self._limit = size_limit(request, run)
        model = run.model or (type(target).__name__ if target is not None else "process")
        directory = self._run.directory(_device(target), model)
        self._writer = HostWriter.of_request(request, directory, self._limit, framework="torch")
        self.tensors = Tensors(
            self._writer,
            whole=request.data in ("stats", "full"),
            # With level="module" operators are not observed, so neither are their writes: tensors are copied at once.
            rehash=request.level == "module" or bool(request.options.get("rehash", False)),
            # With data="stats" no tensors are stored, so no stored tensor is ever deleted.
            keep=None if request.data == "stats" else request.keep,
            # Most operators have no record in this scene, so only the number of a storage shows that two records use
            # the same memory. The number must therefore stay the same from step to step.
            numbers_last=self.overflow_only,
        )
        self._spread: Optional[SpreadSteps] = None
        if request.options.get("spread") and request.keep is not None:
            self._spread = SpreadSteps(request.keep)
        self._mode = (OverflowMode if self.overflow_only else RecordMode)(self)
        self._updates: Optional[OptimizerSteps] = None
        #: True if the capture was stopped in a step that had begun and that no optimizer step had ended.
        self._cut = False
        if (
            request.options.get("step") == "optimizer" and not run.launched
        ):  # with a launcher, the launcher counts steps
            self._updates = OptimizerSteps(self._updated, target, is_lazy=target is not None)
        self._modules = ModuleRecorder(self) if request.level == "module" else None
        self._norms: Optional[ParameterNorms] = None
        if self._modules is not None and "l2norm" in (request.stats or ("l2norm",)):
            self._norms = ParameterNorms(self, request.stats)
        if target is not None:
            self._watch = Watch(target, self._target_called)
        # The launcher calls `follow_inference_mode` at its start, because this code may already run inside a
        # torch.inference_mode block.
        self._stop_following: Callable[[], None] = (lambda: None) if run.launched else _stack.follow_inference_mode()
        self.armed = True
        _sessions.add(self)

    @property
    def claims_operators(self) -> bool:
        """True if a second capture would record the same operators.

        It is False between the calls of a decorated function.
        """
        return self.armed and (self._target is not None or self._undo is not None)

    def _refuse_overlap(self) -> None:
        """Raise CaptureError if another capture records the same operators. A capture of the launcher is ended."""
        for session in list(_sessions):
            if session is self or not session.armed:
                continue
            if session.launched:
                # The script's own capture is more specific than the settings of the launcher.
                log.warning("the capture of ASCEND_DUMP ends here: the script starts one of its own")
                session.stop()
                session._superseded = True
            elif session.claims_operators or self.launched:
                raise CaptureError(
                    "another capture of PyTorch is active in this process",
                    hint="stop it first; one capture records all operators, use select() to read some of them",
                    code="AD302",
                )

    # Begin and end of steps.

    def _target_called(self, entered: bool) -> None:
        if threading.get_ident() != self._thread:
            self._other_threads += 1
            self.note_skipped("calls of the target in other threads than the one that started the capture")
            return
        if self.skips_call():
            return
        number = self._calls if self._updates is None else self._updates.begins(self._target_trains())
        if number is None:
            return
        self._calls = number + 1
        if number < self._idle_until and self._undo is None:
            return
        self.guard(self.enter_step, number)
        if self.recording and not entered:
            # The global hooks were installed after this call began, so they have not seen it.
            assert self._target is not None, "only a target is watched"
            self.guard(self.tracker.enter, self._target)

    def skips_call(self) -> bool:
        """Return True if this call is no step, such as a warm-up call of a server. If so, end the open step."""
        if not is_left_out(self._leaves_warmup_out):
            return False
        self.guard(self.enter_step, None)
        return True

    def _target_trains(self) -> bool:
        return self._target is None or self._target.training

    def _updated(self) -> None:
        """End the step, or without a target begin the next one, after an optimizer step."""
        assert self._updates is not None, "the hook belongs to it"
        if self._target is not None and self._undo is None and self._calls <= self._idle_until:
            return
        self.guard(self.enter_step, None if self._target is not None else self._updates.count)

    def step(self, number: Optional[int]) -> None:
        """Call `enter_step` on behalf of the program. Raises CaptureError if another capture is active."""
        if number is not None and self._undo is None:
            self._refuse_overlap()
        self._steps_are_called = True
        self.guard(self.enter_step, number)

    def enter_step(self, number: Optional[int]) -> None:
        """End the open step, and begin step `number` if it is selected. None: only end the open step."""
        if not self.armed:
            return
        selected = self.selects_step(number) and (self._spread is None or self._spread.records_next())
        now, recorded = time.perf_counter(), self._undo is not None
        self._note_end(now)
        if recorded:
            self._end_recording()
            if selected:
                self.tensors.begin_step()
            else:
                self._disarm_step()
            self._writer.end_step()
        if number is not None:
            self._calls = max(self._calls, number + 1)
        if selected:
            assert number is not None, "an unselected step is never armed"
            self.next_seq = itertools.count().__next__
            self._step = number
            if self.grafts is not None:
                self.grafts.step = number
            self._writer.begin_step(number)
            self.tracker.begin_step()
            self.aftermath.begin_step()
            if self._undo is None:
                self._arm_step()
            elif self.launched and self._modules is None:
                # The capture may have begun inside a torch.inference_mode block that has ended since then.
                _stack.align()
            self._opened = time.perf_counter()
        if selected or recorded:
            self._between += time.perf_counter() - now
        if not selected:
            if self.is_past(number):
                self._stop_watching()
            elif number is not None:
                self._idle_until = self.request.steps.first_from(number) or 0

    def _end_recording(self) -> None:
        """Write the pending records of the step."""
        if self._modules is not None:
            self._modules.end_step()
        if self._norms is not None and self.recording:
            self._norms.end_step()
        self._mode.end_step()

    def _note_end(self, now: float) -> None:
        if self._opened is not None:
            self._took += now - self._opened
            self._opened = None

    @property
    def is_over(self) -> bool:
        is_failed = self.failure is not None or self._writer.failure is not None
        return not self.armed or self._ends or is_failed or bool(self._writer.ended)

    def trigger(self, reason: str) -> None:
        """Record nothing after the open step, which stays in addition to the `keep` steps before it.

        If called again, the first reason stays.
        """
        self._ends = True
        self._idle_until = 0
        self._writer.end(reason)

    def _arm_step(self) -> None:
        self._thread = threading.get_ident()
        self._mode.find_devices()
        with contextlib.ExitStack() as undo:
            undo.callback(register_module_forward_pre_hook(self._module_called).remove)
            if self._modules is not None:
                undo.enter_context(self._modules)
            undo.callback(register_module_forward_hook(self._module_returned, always_call=True).remove)
            undo.enter_context(force_eager())
            if self._modules is None or self._norms is not None:
                undo.callback(register_optimizer_step_pre_hook(self._optimizer_steps).remove)
            if self._modules is not None:
                self._undo = undo.pop_all()
                self.recording = True
                return
            undo.enter_context(MemoryGuard(self, self._mode.waits, self._mode.waited))
            undo.enter_context(self._mode.reductions)
            _stack.insert(self._mode)
            undo.callback(self._take_mode_out)
            self._undo = undo.pop_all()
        self.recording = True

    def _disarm_step(self) -> None:
        self.recording = False
        undo, self._undo = self._undo, None
        if undo is not None:
            undo.close()
        self.tensors.forget()

    def _take_mode_out(self) -> None:
        # No warning in a child that was forked by another thread: the thread with the mode does not exist there.
        if not _stack.remove(self._mode) and not self._abandoned:
            log.warning(
                "the capture was stopped in another thread than the one it recorded: "
                "a dispatch mode that does nothing stays active in the recorded thread"
            )

    def _module_called(self, module: torch.nn.Module, args: Any) -> None:
        if self.recording and self._records_here():
            self.guard(self.tracker.enter, module)

    def _module_returned(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self.recording and self._records_here():
            self.guard(self.tracker.leave)

    def _optimizer_steps(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.recording and self._norms is not None:
            self.guard(self._norms.optimizer_begins, optimizer)
        elif self.recording and self._records_here():
            self.guard(self.tracker.name_optimizer_states, optimizer)

    def _records_here(self) -> bool:
        return threading.get_ident() == self._thread or _stack.is_active(self._mode)

    # Called by the recorders.

    def write(self, items: list[Item]) -> None:
        new_bytes, self.tensors.new_bytes = self.tensors.new_bytes, 0
        self._writer.put(items, new_bytes)
        if self._writer.skipped and CHANGED in self._writer.skipped:
            self._report_changed()
        if self._writer.failure is not None:
            self.recording = False

    def _report_changed(self) -> None:
        """Warn once that memory changed before it was stored, and copy all tensors from now on."""
        if not self.tensors.copies_all:
            self.tensors.copies_all = True
            first = self._writer.first_skipped.get(CHANGED, "")
            log.warning(
                "memory of the program changed before it was stored (first: %s): these records are marked and have no "
                'values; tensors are copied from now on, options={"rehash": True} copies them from the start',
                first,
            )

    def note_symptom(self, tensor: torch.Tensor, kind: str, parameter: str = "", argument: str = "") -> None:
        """Record a tensor with NaN or Inf that the user sees, or an input of an operator that raised an exception.

        kind       "loss", "gradient", "parameter", "output", "read" (the program reads the value), or "raised"
        parameter  the name of the parameter or gradient, `fc.weight` or `fc.weight.grad`
        argument   for "raised" the name of the operator
        """
        if self.recording and self._records_here():
            name = self.tracker.name("", kind)
            now = time.time_ns() // 1000
            op = OperatorCall(self.next_seq(), f"{SYMPTOM}{kind}", name, now, "other", "", user_line())
            item = self.tensors.item(op, tensor, "input", 0)
            item.line.parameter, item.line.argument = parameter, argument
            self.write([item])

    def note_skipped(self, reason: str) -> None:
        self._writer.skipped[reason] += 1

    def guard(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a recording function and return its result. An exception ends the recording, not the program.

        Returns None after an exception.
        """
        try:
            result = function(*args)
        except Exception as error:
            self.give_up(error)
            return None
        if self._writer.failure is not None and self.recording:
            self.recording = False
        return result

    def give_up(self, error: Exception) -> None:
        """Stop recording because of an exception in recording code; with options={"debug": True} raise it."""
        if self.request.options.get("debug"):
            raise error
        self.recording = False
        if self.failure is not None:
            return
        self._mode.forget()
        # Writes are no longer observed, so queued payloads must not refer to the program's memory.
        with contextlib.suppress(Exception):
            self.tensors.forget()
        what, hint = repr(error), "please report this with the traceback of ASCEND_DUMP_LOG=debug"
        if isinstance(error, (ConfigError, NotSupported)):
            # The request cannot be fulfilled, for example if a graft has a wrong shape. The recording is not at fault.
            what, hint = error.message, error.hint
        elif isinstance(error, OSError):
            hint = "the disk is full or fails: free some space, or give path= another disk"
        self.failure = CaptureError(
            f"recording failed at step {self._step}: {what}", hint=f"the run goes on without it; {hint}", code="AD305"
        )
        self.failure.reported = True
        log.warning("%s", self.failure)
        log.debug("recording failed", exc_info=error)
        # The frames of the traceback would keep the operator's tensors alive.
        self.failure.__cause__ = error.with_traceback(None)

    # The end of the capture.

    @property
    def records(self) -> int:
        return self._writer.records

    def tally(self) -> Optional[Tally]:
        return None if self._abandoned or self._superseded else self._count()

    def _count(self) -> Tally:
        seconds = self._mode.seconds if self._modules is None else self._modules.seconds
        seconds += 0.0 if self._norms is None else self._norms.seconds
        limit = None if self._limit is None or not self._limit.by_default else self._limit.nbytes
        took = self._took + self._between
        return self._writer.tally()._replace(took=took, cost=seconds + self._between, limit=limit, cut=self._cut)

    def flush(self) -> None:
        self._writer.flush()

    def stop(self) -> None:
        if not self.armed:
            return
        self.armed = False
        began = time.perf_counter()
        # Without a target each optimizer step begins the next step. The open step may then be empty, so it does not
        # count as incomplete.
        self._cut = (
            self._updates is not None
            and not self._updates.is_updated
            and self._target is not None
            and self._undo is not None
        )
        self._note_end(began)
        self.guard(self._end_recording)
        empty = self._writer.empty_steps  # without the open step, which the program has not ended
        self.guard(self._disarm_step)
        self._stop_watching()
        self._stop_following()
        self._writer.end_step()
        self._writer.close()
        self._between += time.perf_counter() - began
        if CHANGED in self._writer.skipped:
            self._report_changed()
        if self.aftermath.followed:
            self._writer.skipped[_FOLLOWED] += self.aftermath.followed
            log.warning("%d %s", self.aftermath.followed, _FOLLOWED)
        self.failure = self.failure or self._writer.failure
        if self._writer.records:
            if self._steps_are_called and not self.overflow_only and self.failure is None:
                tell_of_empty("step", *empty)
            # Without records, `reasons` reports these sentences.
            for reason in [*self._layers.reasons(), *([] if self.grafts is None else self.grafts.reasons())]:
                self.note_skipped(reason)
                log.warning("%s", reason)
        try:
            self._write_manifest()
        except AscendDumpError as error:
            self.failure = self.failure or error

    def _write_manifest(self) -> None:
        self._run.finish(
            [self._writer],
            self.failure,
            steps_seen=self._calls,
            tally=self._count()._asdict(),
            skipped=[
                {"reason": reason, "count": count, "first": self._writer.first_skipped.get(reason, "")}
                for reason, count in sorted(self._writer.skipped.items())
            ],
        )

    def abandon(self) -> None:
        """Drop this capture in a forked child, which has a copy of everything except the writer's thread."""
        self.armed = self.recording = False
        self._abandoned = True
        self._mode.forget()
        self._writer.abandon()
        undo, self._undo = self._undo, None
        if undo is not None:
            undo.close()
        self._stop_watching()
        self._stop_following()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.remove()
        if self._updates is not None:
            self._updates.remove()

    def reasons(self) -> Optional[list[str]]:
        if self._abandoned or self._superseded:
            return None
        if self.overflow_only and self._step is not None:
            return self._layers.reasons() or None
        reasons = []
        if self._other_threads:
            reasons.append(
                f"the target was called {self._other_threads} times in threads other than the one that started the "
                "capture, and calls in other threads are not recorded"
            )
        elif self._target is not None and self._calls == 0:
            reasons += _reasons_of_no_call(self._target)
        elif self._step is None:
            reached = {0: "no step began", 1: "1 step ran"}.get(self._calls, f"{self._calls} steps ran")
            reasons.append(f"steps={self.request.steps} was not reached: {reached}")
        reasons += self._layers.reasons()
        return reasons


def _reasons_of_no_call(target: torch.nn.Module) -> list[str]:
    """Return why a target may have seen no call."""
    name = type(target).__name__
    # The module of torch.compile is loaded by optimizers too, so it says nothing.
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    if counters.get("frames"):
        return [
            f"the target, a {name}, was never called outside compiled code",
            "if torch.compile was applied to it after the start of the capture: capture the compiled module",
        ]
    return [
        f"the target, a {name}, was never called",
        "only calls of the module itself count: call `model(x)`, not `model.forward(x)` or a part of the model",
    ]


def _device(target: Optional[torch.nn.Module]) -> int:
    if target is not None:
        for tensor in target.parameters():
            return tensor.device.index or 0
    return 0


#: The sessions of this process. Only one may record at a time, since two would record each other's operators.
_sessions: weakref.WeakSet[TorchSession] = weakref.WeakSet()


def _forget_in_child() -> None:
    for session in list(_sessions):
        session.abandon()


os.register_at_fork(after_in_child=_forget_in_child)
