"""An adapter as a third party would write and register it."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable, Optional

from ascend_dump.adapter import Adapter, Begin, DumpRequest, Problem, RunDirectory, Session, current_rank


class _Session(Session):
    """The open run of one process; a forked child opens its own."""

    def __init__(self, request: DumpRequest, run: RunDirectory, observed: list[Any]) -> None:
        self.request = request
        self.launched = run.launched
        self.observed = observed
        self.open(run)
        observed.append(self.observe)

    def open(self, run: RunDirectory) -> None:
        from ascend_dump.adapter import HostRun, HostWriter

        self.pid = os.getpid()
        self.step, self.count = -1, 0
        self.run = HostRun(run, request=self.request.to_mapping(), versions={})
        self.root = self.run.root
        self.writer = HostWriter(self.run.directory(0, "toy"), metadata={})

    def observe(self, network: Any, name: str, function: Any, value: Any, result: Any) -> None:
        if self.pid != os.getpid():
            self.open(RunDirectory.planned(self.request.path, current_rank()).make())
        first, *_, last = [*network.layers] * 2  # one layer is both
        if name == first:
            self.step += 1
            if self.step in self.request.steps:
                self.writer.begin_step(self.step)
        if self.step in self.request.steps:
            self.write(name, function, value, result)
        if name == last:
            self.writer.end_step()

    def write(self, name: str, function: Any, value: Any, result: Any) -> None:
        from ascend_dump.adapter import Item, Line, Payload

        items = []
        for io, array in (("input", value), ("output", result)):
            if self.request.mode not in (io, "all"):
                continue
            data, dtype = array.tobytes(), str(array.dtype)
            micros = time.time_ns() // 1000
            line = Line(self.count, function.__name__, name, io, 0, micros, dtype, array.shape, len(data))
            line.stride = tuple(size // array.itemsize for size in array.strides)
            items.append(Item(line, Payload(data, 0, len(data), dtype, array.shape)))
        self.count += 1
        self.writer.put(items, sum(item.line.nbytes for item in items))

    def reasons(self) -> Optional[list[str]]:
        # Under ASCEND_DUMP each process that imports the framework has a session; those that call nothing are none.
        return None if self.launched and self.step < 0 else []

    def flush(self) -> None:
        self.writer.flush()

    def stop(self) -> None:
        if self.observe in self.observed:
            self.observed.remove(self.observe)
            if self.pid == os.getpid():
                self.writer.close()
                self.run.write_manifest(state="complete")


class _NextCall:
    """Stands for `Network.__call__` from when somebody attaches until the call after the last step."""

    def __init__(self, begin: Begin) -> None:
        self.begin, self.calls = begin, 0
        self.network = sys.modules["toyframe"].Network
        self.original = self.network.__call__
        self.mine = self.network.__call__ = lambda network, value: self.call(network, value)

    def call(self, network: Any, value: Any) -> Any:
        last = self.begin.request.steps.last
        if self.begin.over or (last is not None and self.calls > last) or (not self.calls and self.begin() is None):
            self.restore()
            self.begin.done()
        self.calls += 1
        return self.original(network, value)

    def cancel(self) -> bool:
        if self.calls:
            return False
        self.restore()
        return True

    def restore(self) -> None:
        if self.network.__call__ is self.mine:
            self.network.__call__ = self.original


class ToyAdapter(Adapter):
    name = "toy"
    framework = "toyframe"
    process_hooks = ("toyframe",)

    def accepts(self, target: Any) -> bool:
        return target is None or isinstance(target, sys.modules["toyframe"].Network)

    def check(self, request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
        if request.scene is None:
            return []
        return [Problem("AD203", "error", f"toyframe knows no scene {request.scene!r}", "leave out scene=", "scene")]

    def attach(self, begin: Begin) -> Callable[[], bool]:
        return _NextCall(begin).cancel

    def start(self, request: DumpRequest, target: Any, run: RunDirectory) -> _Session:
        return _Session(request, run, sys.modules["toyframe"].observers if target is None else target.observers)
