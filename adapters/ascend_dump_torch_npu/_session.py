"""The session of a capture of eager kernels: counts steps, and switches the dump on in selected steps."""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
import weakref
from collections import deque
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, Callable, Optional

import torch

from ascend_dump import AscendDumpError, CaptureError
from ascend_dump.adapter import DumpRequest, RunDirectory, Session, add_private_directory, tell_of_empty
from ascend_dump.adapter import acl_interface as interface
from ascend_dump.adapter.pytorch.calls import Watch
from ascend_dump.adapter.pytorch.warmup import is_left_out
from ascend_dump.native.cann.config.of_request import save_config
from ascend_dump.native.cann.config.parse import read_config
from ascend_dump_torch_npu._interface import DumpInterface, overflow_once
from ascend_dump_torch_npu._settings import (
    INIT_CONFIG,
    SKIP_WARMUP,
    build,
    build_initial,
    own_initial_config,
    torchair_dump,
)

__all__ = ["TorchNpuSession"]

log = logging.getLogger("ascend_dump")

#: Maximum number of steps that `keep=` may not have removed yet, because its thread runs only from time to time.
_LATE = 10_000
#: Name of the directory for overflows outside of selected steps. It is removed.
_UNSELECTED = "unselected"


class TorchNpuSession(Session):
    """A running capture. Outside of selected steps only a hook on the target is installed, to count its calls.

    root     the directory of the capture; it contains one directory per dumped step, which is CANN's dump_path
    failure  why the capture is incomplete, or None
    """

    step_directories = re.compile(r"(\d{1,18})", re.ASCII)

    def __init__(self, request: DumpRequest, target: Optional[torch.nn.Module], run: RunDirectory) -> None:
        self.failure: Optional[AscendDumpError] = None
        self.armed = True
        self.launched = run.launched
        self.request = request
        self._target = target
        self._interface = DumpInterface()
        self._thread = threading.get_ident()
        self._other_threads = 0
        self._calls = 0
        #: Number of dumped steps.
        self.dumped = 0
        # The begun and the completed steps, as far as their directories may still exist at the end.
        most = None if request.keep is None else request.keep + _LATE
        self._begun: deque[int] = deque(maxlen=most)
        self._ended: deque[int] = deque(maxlen=most)
        self._on = False
        #: The open step, if it is dumped.
        self._open: Optional[int] = None
        #: True if the dump has to stay on until an operator has run, see `_watch_overflow`.
        self._awaits_operator = False
        self._is_unsure = False
        self._superseded = False
        #: True once `trigger` was called: nothing is dumped after the open step.
        self._ends = False
        self._watch: Optional[Watch] = None
        self._restore: Callable[[], None] = lambda: None
        self._stop_launched()
        interface.claim(self, "torch_npu")
        try:
            self.root = run.path
            self._config = run.beside("torch_npu.json")
            if request.scene == "exception":
                self._restore = self._set_scene()
            elif request.scene == "overflow":
                self._watch_overflow()
            if target is not None and request.scene != "exception":
                self._watch = Watch(target, self._called)
        except BaseException:
            interface.release(self)
            raise
        _sessions.add(self)

    def _stop_launched(self) -> None:
        for session in list(_sessions):
            if session.launched and session.armed and not self.launched:
                # The script's own capture is more specific than the settings of the launcher.
                log.warning("the capture of ASCEND_DUMP ends here: the script starts one of its own")
                session.stop()
                session._superseded = True

    # Counting steps.

    def _called(self, entered: bool) -> None:
        if threading.get_ident() != self._thread:
            self._other_threads += 1
            return
        if not self.skips_call():
            self.guard(self.enter_step, self._calls)

    def skips_call(self) -> bool:
        """Return True if this call is no step, such as a warm-up call of a server. If so, end the open step."""
        if not is_left_out(bool(self.request.options.get(SKIP_WARMUP))):
            return False
        self.guard(self.enter_step, None)
        return True

    def step(self, number: Optional[int]) -> None:
        """Call `enter_step` for a step that the program or launcher begins. A failure ends the dump only."""
        self.guard(self.enter_step, number)

    def enter_step(self, number: Optional[int]) -> None:
        """End the current step, and begin step `number` unless it is None. Raises AscendDumpError.

        The dump is on during selected steps.
        """
        if not self.armed or self.request.scene == "exception":
            return
        if number is not None:
            self._calls = max(self._calls, number + 1)
        selected = self.selects_step(number)
        if self._on or selected:
            self._refuse_in_graph("a step")
        if self._awaits_operator and not selected:
            self._awaits_operator = False
            return
        self._awaits_operator = False
        self._switch_off()
        if selected:
            assert number is not None, "an unselected step is never dumped"
            self._switch_on(number)
        if not selected and self.is_past(number):
            self._stop_watching()

    def _refuse_in_graph(self, what: str) -> None:
        if self._interface.capturing:
            raise CaptureError(
                f"{what} began while a graph (NPUGraph) was being captured, when the dump cannot be switched on or off",
                hint="capture graphs before the block, or outside selected steps",
                code="AD269",
            )

    @property
    def is_over(self) -> bool:
        return not self.armed or self._ends or self.failure is not None

    def trigger(self, reason: str) -> None:
        """Dump nothing after the open step."""
        self._ends = True

    def _switch_on(self, number: int) -> None:
        # (assumption torch_npu.step_numbering)
        self._begin(self.root / str(number))
        self._open = number
        self.dumped += 1
        self._begun.append(number)

    def _begin(self, path: Path) -> None:
        add_private_directory(path)
        save_config(self._config, build(self.request, path))
        self._interface.begin(os.fspath(self._config))
        self._on = True

    def _switch_off(self) -> None:
        if not self._on:
            return
        step, self._on, self._open = self._open, False, None
        if step is not None:
            self._ended.append(step)
        try:
            self._interface.end()
        finally:
            if step is None:
                shutil.rmtree(self.root / _UNSELECTED, ignore_errors=True)

    def guard(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function of this capture. An exception is not raised; it ends the dump and is stored in `failure`."""
        try:
            function(*args)
        except Exception as error:
            if isinstance(error, AscendDumpError):
                self.failure = self.failure or error
            else:
                advice = "please report this with the traceback of ASCEND_DUMP_LOG=debug"
                if isinstance(error, OSError):
                    advice = "the disk is full or fails: free some space, or give path= another disk"
                failure = CaptureError(
                    f"the dump could not be switched at step {self._calls}: {error!r}",
                    hint=f"the run goes on without it; {advice}",
                    code="AD305",
                )
                failure.__cause__ = error
                self.failure = self.failure or failure
            self._stop_watching()
            if not self.failure.reported:
                self.failure.reported = True
                log.warning("%s", self.failure)
                log.debug("switching failed", exc_info=True)

    # Overflow.

    def _watch_overflow(self) -> None:
        """Switch overflow detection on. (assumption torch_npu.overflow_switch)

        CANN reads the switch at the first operator of the process and keeps it. So the dump stays on from here until an
        operator has run, which happens in the first step.

        If the NPU is initialised, operators may have run already, and detection may be off. In INF_NAN mode this is
        tested with an operator that overflows: its record is written only if detection is on. Raises CaptureError AD257
        if detection is off. In saturation mode there is no test, because the overflow would set a status that loss
        scalers read.
        """
        self._refuse_in_graph("the capture")
        path = self.root / _UNSELECTED
        mode = self._interface.supports_inf_nan
        self._is_unsure = self._interface.initialised and not mode
        self._begin(path)
        self._awaits_operator = not mode
        if not mode:
            return
        try:
            overflow_once()
        finally:
            # The files of the overflow are complete only when the dump has ended.
            self._on = False
            self._interface.end()
            is_detected = any(names for _, _, names in os.walk(path))
            shutil.rmtree(path, ignore_errors=True)
        if not is_detected:
            raise CaptureError(
                "overflow detection is off in this process: CANN reads its switch at the first operator on an NPU, and "
                "keeps it; a test operator overflowed, and was not recorded",
                hint="start the capture before the first operator, or run the program with "
                "`ascend-dump run --scene overflow`",
                code="AD257",
            )

    # Exception scenes.

    def _set_scene(self) -> Callable[[], None]:
        """Set the variable with the path of the file that torch_npu passes to aclInit.

        Returns a function that restores the variable.
        """
        if self._interface.initialised:
            return lambda: None  # the variable would have no effect, as the check reports
        before = own_initial_config()
        config = build_initial(self.request, self.root)
        if before is not None:
            config = {**_read(before), "dump": config["dump"]}
        save_config(self._config, config)
        os.environ[INIT_CONFIG] = os.fspath(self._config)

        def restore() -> None:
            if before is None:
                os.environ.pop(INIT_CONFIG, None)
            else:
                os.environ[INIT_CONFIG] = before

        return restore

    # The end.

    def flush(self) -> None:
        if self._on and not self._interface.capturing:
            self._interface.synchronize()

    def stop(self) -> None:
        """Switch the dump off and leave the target as it was. A second call does nothing."""
        if not self.armed:
            return
        ended = list(self._ended)
        self.guard(self._switch_off)
        self.armed = False
        self._release()
        if self._target is None and self.request.scene is None and self.failure is None:
            first = 0
            if self.request.keep is not None:  # earlier steps were removed, so they do not count as empty
                first = min((int(path.name) for path in self.root.iterdir() if path.name.isdecimal()), default=0)
            empty = [number for number in ended if number >= first and not self._wrote(number)]
            if any(self._wrote(number) for number in self._begun if number >= first and number not in empty):
                tell_of_empty("step", len(empty), min(empty, default=None))
        if self._is_unsure and self.dumped and not any(map(self._wrote, self._begun)):
            log.warning(
                "no overflow was recorded: either there was none, or detection was off, because an operator had run on "
                "the NPU before this capture [AD257]"
            )
        self._look_for_torchair()

    def _wrote(self, step: int) -> bool:
        return any(names for _, _, names in os.walk(self.root / str(step)))

    def _look_for_torchair(self) -> None:
        """Set `failure` if torchair built a graph with dump options in the block.

        acl refuses such options, and the program gets no error.
        """
        reason = torchair_dump()
        if reason is not None and self.request.scene != "exception" and self.failure is None:
            self.failure = CaptureError(
                f"torchair tried to use acl's dump interface inside the block: {reason}; it was refused, so graphs are "
                "dumped only with the settings of this capture",
                hint="capture with framework='torchair', or leave the dump options out of its CompilerConfig",
                code="AD261",
            )

    def abandon(self) -> None:
        """Drop this capture in a forked child, where the NPU cannot be used."""
        self.armed = self._on = False
        self._superseded = True
        self._release()

    def _release(self) -> None:
        self._stop_watching()
        restore, self._restore = self._restore, lambda: None
        restore()
        interface.release(self)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.remove()

    def reasons(self) -> Optional[list[str]]:
        if self._superseded or self.request.scene == "exception" or (self.request.scene and self.dumped):
            return None
        if self.launched and self.request.scene and parent_process() is not None and not self._calls:
            return None  # a worker process that runs no model, which is normal
        reasons = []
        if self._other_threads:
            reasons.append(
                f"the target was called {self._other_threads} times in threads other than the one that started the "
                "capture"
            )
        if self._target is not None and self._calls == 0:
            reasons.append(f"the target, a {type(self._target).__name__}, was never called")
        elif not self.dumped:
            reached = {0: "no step began", 1: "1 step ran"}.get(self._calls, f"{self._calls} steps ran")
            reasons.append(f"steps={self.request.steps} was not reached: {reached}")
        else:
            if not self._interface.initialised:
                reasons.append("nothing used an NPU: tensors and modules are moved there with .npu()")
            reasons.append(
                "no selected step launched a kernel of aclnn; graphs, and copies to or from the host, launch none"
            )
            reasons.append("CANN wrote nothing: see its log in ~/ascend/log")
        return reasons


def _read(file: str) -> dict[str, Any]:
    """Return the content of the user's own file for aclInit, because its other settings must be preserved."""
    config = read_config(file)
    if config.refusal is not None:
        raise CaptureError(
            f"{INIT_CONFIG}={file} cannot be used: {config.refusal.reason}",
            hint="correct the file, or unset the variable",
        )
    return config.value if isinstance(config.value, dict) else {}


_sessions: weakref.WeakSet[TorchNpuSession] = weakref.WeakSet()


def _forget_in_child() -> None:
    for session in list(_sessions):
        session.abandon()


os.register_at_fork(after_in_child=_forget_in_child)
