"""The session of a capture through MindSpore: it is set up before the device is initialised, or resumed later."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any, Optional, Union

from ascend_dump import AscendDumpError, CaptureError, WriteError
from ascend_dump.adapter import DumpRequest, RunDirectory, Session
from ascend_dump.native.mindspore.config.check import PYNATIVE
from ascend_dump.native.mindspore.names import STEP_DIRECTORY
from ascend_dump_mindspore._complex import watch_compilations
from ascend_dump_mindspore._counting import count_runs
from ascend_dump_mindspore._executors import Wrapped
from ascend_dump_mindspore._process import ArmedRun, armed, forget
from ascend_dump_mindspore._program import SinkWatch
from ascend_dump_mindspore._runtime import (
    cell_of,
    current_runtime,
    is_initialized,
    is_pynative,
    native,
    set_dump,
    wait_for_operators,
)
from ascend_dump_mindspore._settings import build, can_pause, far
from ascend_dump_mindspore._written import examine_files

__all__ = ["MindSporeSession"]

log = logging.getLogger("ascend_dump")


class MindSporeSession(Session):
    """An active capture. root: its new directory, in which MindSpore creates `rank_{R}`."""

    step_directories = STEP_DIRECTORY

    def __init__(self, request: DumpRequest, target: Any, run: RunDirectory) -> None:
        self._mindspore = importlib.import_module("mindspore")
        self._request = request
        self._stopped = False
        self._wrapped: list[Union[Wrapped, SinkWatch]] = []
        self._given_up: Optional[CaptureError] = None
        self._ran = False
        self._marked: Any = None
        # In the first capture without a target, the program may choose its mode (graph or PyNative) inside the block.
        self._mode_is_checked = target is not None or armed() is not None
        current = armed()
        wait_for_operators()
        if current is None and is_initialized(self._mindspore):
            raise CaptureError(
                "MindSpore's device is initialised: it reads no dump configuration any more",
                hint="start the capture before the first operator or compile",
                code="AD271",
            )
        if current is not None and current.on:
            raise CaptureError("another capture of MindSpore is on", hint="stop it first", code="AD302")
        self.root = run.path
        if current is None:
            self._armed = ArmedRun(self._mindspore, lambda link: build(request, self._mindspore, link), run)
        else:
            self._armed = current
        try:
            if current is not None:
                self._resume(run)
            self._wrapped.append(watch_compilations(self._can_give_up, self._give_up))
            self._wrapped.append(SinkWatch(self._mindspore, self._armed.text.encode()))
            if request.options.get("set_dump"):
                self._mark(cell_of(target))
        except BaseException:
            self._end()
            # The file is removed, so that a run that starts in the same second can use the same paths.
            self._armed.forget_config(run)
            raise

    def _resume(self, run: RunDirectory) -> None:
        move, advance = native(self._mindspore, "_set_init_iter"), native(self._mindspore, "_dump_step")
        if move is None or advance is None:
            raise CaptureError("this MindSpore cannot resume a dump", hint="use one capture per process", code="AD277")
        self._armed.point_to(run)
        self._armed.on = True
        move(int(self._request.options.get("initial_iteration", 0)))
        self._wrapped.append(count_runs(lambda: advance(1)))

    def _can_give_up(self) -> bool:
        """Return True if MindSpore has not read its configuration yet, so that the dump can be cancelled."""
        return not self._stopped and self._given_up is None and not is_initialized(self._mindspore)

    def _give_up(self) -> None:
        """Cancel the dump, because MindSpore would refuse to compile the program's graph."""
        self._armed.restore_environment()
        self._given_up = CaptureError(
            "the first graph of the program has complex numbers, and MindSpore compiles no such graph in a process "
            "that dumps: the capture was ended before, and the program runs without a dump",
            hint="dump in a process without this part of the program",
            code="AD279",
        )
        log.warning("%s", self._given_up)
        self._given_up.reported = True

    def _mark(self, target: Any) -> None:
        mark = set_dump(self._mindspore)
        if mark is not None:
            mark(target, True)
            self._marked = target

    def settle(self) -> None:
        """Wait for queued operators. Raises the error of a failed operator, because MindSpore reports it only once."""
        if not self._stopped and self._armed.pid == os.getpid():
            wait_for_operators()

    def stop(self) -> None:
        """Pause the dump, if MindSpore supports it. A second call does nothing. Raises WriteError."""
        if self._stopped:
            return
        self._stopped = True
        # A forked child does nothing, because it shares the link with its parent, which continues to dump.
        if self._armed.pid == os.getpid():
            self._end()

    def _end(self) -> None:
        for wrapped in reversed(self._wrapped):
            wrapped.remove()
        self._armed.restore_environment()
        self._armed.on = False
        try:
            self._pause()
        finally:
            mark = set_dump(self._mindspore)
            if self._marked is not None and mark is not None:
                mark(self._marked, False)
        self.failure = self._incomplete()

    def _pause(self) -> None:
        # (assumption mindspore.pause)
        self._ran = is_initialized(self._mindspore)
        if not self._ran or self._given_up is not None:
            forget()
            return
        move = native(self._mindspore, "_set_init_iter")
        if move is None or not can_pause(self._mindspore, self._request):
            log.info("MindSpore cannot be paused: it goes on dumping into %s", self.root)
            return
        move(far(self._request))
        self._armed.point_away()

    def _incomplete(self) -> Optional[AscendDumpError]:
        """Return the error if no record was written, or if small files were lost; else None.

        Graphs do not count as records, because MindSpore writes them even if no operator is dumped.
        """
        if self._given_up is not None:
            return self._given_up
        written = examine_files(self.root)
        if written.empty:
            return WriteError(
                f"{len(written.empty)} files of the dump are empty, the first is {written.empty[0]}: on a full "
                "disk MindSpore loses texts and tensors below 1024 bytes without an error",
                hint="free some space and dump again; dump.errors() lists the tensors that are lost",
                code="AD330",
            )
        if written.renamed:
            log.warning(
                "%d file names of the dump were too long and became numbers, which mapping.csv beside them explains. "
                "mindspore.set_context(reserve_class_name_in_scope=False) makes names shorter, without class names; "
                "then names for layers= have no class names either",
                written.renamed,
            )
        if written.records and not self._mode_is_checked and is_pynative(self._mindspore):
            log.warning("%s", PYNATIVE)
        reasons = self.reasons()
        if reasons is None or written.records:
            return None
        listed = "".join(f"\n  - {reason}" for reason in reasons)
        return CaptureError(f"the capture wrote nothing{listed}", hint="see `ascend-dump explain AD303`", code="AD303")

    def reasons(self) -> Optional[list[str]]:
        """Return likely reasons why nothing was written; None if an empty dump is a valid result."""
        if self._request.scene in ("overflow", "exception"):
            return None
        if not self._ran:
            return ["no graph was compiled and no operator ran inside the block"]
        reasons = []
        if not self._request.steps.all:
            reasons.append(
                f"no graph ran with an iteration in steps={self._request.steps}; iterations count from 0, and a graph "
                "that runs right after another graph continues the count of that graph"
            )
        if self._request.layers:
            reasons.append(
                f"no operator has a name that layers={list(self._request.layers)} selects; names are full names such "
                "as Default/fc-Dense/MatMul-op0, whose numbers continue over all graphs of a process"
            )
        if is_pynative(self._mindspore):
            reasons.append("in PyNative mode only functions under @jit are dumped")
        runtime = current_runtime(self._mindspore)
        if runtime.ge and not runtime.old_ge:
            reasons.append("with jit_level O2 MindSpore dumps nothing since 2.6")
        reasons.append("MindSpore could not write it: set GLOG_v=2 to see the reason in its log")
        return reasons
