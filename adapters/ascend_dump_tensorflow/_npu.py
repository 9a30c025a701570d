"""The session of a capture on the NPU: puts the dump settings where TensorFlow on Ascend reads them, until `stop`."""

from __future__ import annotations

import copy
import logging
import os
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Optional

from ascend_dump import AscendDumpError, CaptureError
from ascend_dump.adapter import DumpRequest, RunDirectory, Session, make_private_directory, remove_directory
from ascend_dump.native.cann.mapping import MAPPING
from ascend_dump.native.cann.names import STEP_DIRECTORY
from ascend_dump.native.tensorflow.config import DUMP_KEYS, parameters
from ascend_dump.native.tensorflow.options import OPTIONS, exact_names, operators_of
from ascend_dump_tensorflow import _hook
from ascend_dump_tensorflow._bridge import bridge, device, device_is_open, holder_of, kind_of, make_dump_config
from ascend_dump_tensorflow._graphs import marks_of, models_of, settle_environment
from ascend_dump_tensorflow._proto import (
    arm,
    config_class,
    conflict,
    copy_of,
    effective,
    entries,
    has_root,
    put,
    strip,
    take_out,
)

__all__ = ["NpuSession", "settled_data"]

log = logging.getLogger("ascend_dump")

_MISSING = object()
#: The bridge that was used, and the kind of data ("tensor" or "stats") that its GE writes until the process ends.
_settled: Optional[tuple[Any, str]] = None


class NpuSession(Session):
    """A running capture, started by `TensorflowAdapter.start`.

    root    the dump_path, a new directory; GE creates a directory in it for each session, whose name is a time
    graphs  the directory into which GE writes the graphs that it builds
    """

    step_directories = STEP_DIRECTORY

    def __init__(self, request: DumpRequest, target: Any, run: RunDirectory) -> None:
        self.failure: Optional[AscendDumpError] = None
        self._request = request
        self._target = target
        self._undo: list[Callable[[], None]] = []
        self._sessions: list[weakref.ref[Any]] = []
        self._foreign = 0
        #: Number of captured sessions that only initialise the device (init_resource).
        self._initialising = 0
        self._uncaptured: dict[str, int] = {}
        self._since = time.time() - 1
        self._device_was_closed = device() is not None and not device_is_open()
        self.root = run.path
        self.values = parameters(request.replace(path=self.root), names=operators_of(request), known_options=OPTIONS)
        try:
            self._settle_environment(run.beside("graphs"))
            self._arm(target)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Remove the settings. A second call does nothing."""
        undo, self._undo = self._undo, []
        for step in reversed(undo):
            step()
        if undo and self._device_was_closed and device_is_open():
            log.warning(
                "npu_device was opened inside the block: CANN goes on dumping what runs there until it is closed, "
                "at the end of the process [AD294]"
            )
        still = [session for session in (reference() for reference in self._sessions) if _is_open(session)]
        if undo and still:
            log.warning(
                "%d session(s) created inside the block are still open: CANN goes on dumping what they run "
                "until they are closed [AD294]",
                len(still),
            )
        if undo:
            self._settle_data()
            self._warn_of_graphs()

    def marks(self) -> dict[str, Mapping[str, str]]:
        """Return attributes for records by their model directory, which mark the records of the computational graph."""
        directory = self.graphs
        if not directory.is_dir():
            return {}
        named = self._request.options.get("computational")
        if named:
            return marks_of(models_of(self.root, directory, exact_names(named), self._since))
        marks = marks_of(models_of(self.root, directory, (), self._since))
        layers = exact_names(self._request.layers)
        # Graphs of programs that feed their data have no Iterator. Then the graph with the operators in layers= counts
        # as the computational one.
        return marks or (marks_of(models_of(self.root, directory, layers, self._since)) if layers else {})

    def reasons(self) -> Optional[list[str]]:
        if self._request.scene == "overflow":
            return None
        reasons = []
        if not self._sessions and device() is None:
            reasons.append(
                "no session was created with these settings: the bridge reads them when a session is created"
            )
        elif len(self._sessions) == self._initialising > 0:
            reasons.append("only init_resource created a session with these settings: it only initialises the device")
        if self._foreign and self._target is not None:
            reasons.append(
                f"{self._foreign} session(s) in the block were created with another configuration; settings that are "
                "given to init_resource only do not reach them: capture without a target"
            )
        reasons += [f"{count} session(s) {why}" for why, count in self._uncaptured.items()]
        if not self._request.steps.all:
            reasons.append(f"no graph ran a step of steps={self._request.steps}; each graph counts its own runs from 0")
        if self._request.layers:
            reasons.append("no operator has a name that layers= selects, or GE has fused it; names are exact")
        reasons.append("the graph ran on the host, or has only operators that GE never dumps")
        return reasons

    def _settle_data(self) -> None:
        """Remember the kind of data that GE writes, and set `failure` if it is not the requested kind."""
        global _settled
        written = _data_in(self.root)
        if written is None:
            return
        _settled = (bridge() or device(), written)
        if self._request.scene is None and written != self._request.data:
            self.failure = CaptureError(
                f"data={self._request.data!r} was requested, but {written} was dumped: GE keeps dump_data of the "
                "first session of this process",
                hint="start the capture before the first session, or use the same data= as there",
                code="AD298",
            )

    def _warn_of_graphs(self) -> None:
        """Warn if several graphs of a session ran more than once, because each of them counts its own steps."""
        repeated = _repeated_graphs(self.root)
        if len(repeated) > 1:
            log.warning(
                "%d graphs of a session ran more than once in the block (%s), each counting its own steps: keep only "
                "the sess.run that computes, or read one graph by dump.select(model=...) [%s]",
                len(repeated),
                ", ".join(repeated),
                "AD351",
            )

    # Placing the settings.

    def _settle_environment(self, default: Path) -> None:
        before, self.graphs = settle_environment(default)
        self._undo.append(lambda: _restore_environment(before))
        if self.graphs == default:
            make_private_directory(default)
            self._undo.append(lambda: remove_directory(default))

    def _arm(self, target: Any) -> None:
        kind = kind_of(target)
        if kind == "config":
            self._arm_config(target)
        elif kind == "npu_run_config":
            self._replace(target, "_dump_config", make_dump_config(self.values))
            if "quant_dumpable" in self.values:
                self._replace(target, "_quant_dumpable", self.values["quant_dumpable"])
        elif kind in ("run_config", "estimator"):
            holder = holder_of(target)
            if holder._session_config is None:
                self._replace(holder, "_session_config", put_into_new(self.values))
            else:
                self._arm_config(holder._session_config)
        if kind != "process" or bridge() is not None or "tensorflow" in sys.modules:
            _hook.watch(self)
            self._undo.append(lambda: _hook.unwatch(self))
        if kind in ("config", "run_config", "npu_run_config"):
            # Estimators copy their configuration, and would dump with the copy after the block too.
            self._undo.append(lambda: _retire(str(self.root)))
        if kind == "process" and device() is not None and not device_is_open():
            self._arm_device()

    def _arm_config(self, config: Any) -> None:
        armed = arm(config, self.values)
        # The restored settings may be those of another capture, which has ended in the meantime: remove them.
        self._undo.append(lambda: take_out(config, _retired.roots))
        self._undo.append(armed.restore)

    def _replace(self, target: Any, name: str, value: Any) -> None:
        before = target.__dict__.get(name, _MISSING)

        def back() -> None:
            if before is _MISSING:
                target.__dict__.pop(name, None)
            else:
                target.__dict__[name] = before

        target.__dict__[name] = value
        self._undo.append(back)

    def _arm_device(self) -> None:
        """Set the dump options in npu_device's global_options(), which npu_device.open() reads once."""
        module: Any = device()
        options = module.global_options()
        # All settings of the program are replaced, because its layers or steps would restrict this dump.
        before = vars(options)["dump_config"]
        vars(options)["dump_config"] = type(before)()
        self._undo.append(lambda: vars(options).__setitem__("dump_config", before))
        for name, value in self.values.items():
            holder = options if name == "quant_dumpable" else options.dump_config
            self._set_option(holder, name, value)

    def _set_option(self, holder: Any, name: str, value: Any) -> None:
        # The option object itself is replaced: its value could not be restored, because some options refuse None.
        before = vars(holder)[name]
        vars(holder)[name] = copy.copy(before)
        self._undo.append(lambda: vars(holder).__setitem__(name, before))
        setattr(holder, name, value)

    # Configuring new sessions: see _hook.Watcher.

    def configure(self, config: Any) -> Any:
        if self._target is not None:
            return self._repair(config)
        settings = effective(config) if config is not None else {}
        if settings.get("enable_dump") is True and settings.get("dump_path") != str(self.root):
            return self._leave(config, f"set a dump of their own, into {settings.get('dump_path')}")
        conflicting = conflict(settings, self.values)
        if conflicting:
            return self._leave(config, f"set {conflicting}, which excludes this dump")
        copied = copy_of(config)
        put(copied, self.values)
        return copied

    def created(self, session: Any) -> None:
        config = getattr(session, "_config", None)
        if config is not None and effective(config).get("dump_path") == str(self.root):
            self._sessions.append(weakref.ref(session))
            self._initialising += _is_in_init_resource()
            return
        self._foreign += 1
        if self._target is not None and self._foreign == 1 and len(self._sessions) == self._initialising > 0:
            log.warning(
                "a session was created with another configuration than the captured one, which was given to "
                "init_resource only: give it to this session too, or capture without a target [AD292]"
            )

    def _leave(self, config: Any, why: str) -> Any:
        if why not in self._uncaptured:
            log.warning("a session is not captured: sessions %s [AD294]", why)
        self._uncaptured[why] = self._uncaptured.get(why, 0) + 1
        return config

    def _repair(self, config: Any) -> Any:
        """Repair a captured configuration if NPUEstimator has appended an entry of its own to it.

        That entry overrides settings of the dump, or adds to them. Other configurations are returned unchanged.
        """
        entries_of_config = [] if config is None else entries(config)
        if not any(has_root(entry, {str(self.root)}) for entry in entries_of_config):
            return config
        settings = effective(config)
        silenced = any(settings.get(name) != value for name, value in self.values.items())
        # The bridge reads all entries, so steps and layers in an older entry would restrict this dump.
        keys = set(DUMP_KEYS) - {"quant_dumpable"}
        mixed = any(keys & set(entry.parameter_map) for entry in entries_of_config[:-1])
        if silenced:
            log.warning(
                "a session's configuration overrides settings of the dump, as an entry of NpuOptimizer does that was "
                "appended later; this session gets the settings again. To NPUEstimator, pass them by "
                "NPURunConfig(dump_config=…) [AD292]"
            )
        if not silenced and not mixed:
            return config
        copied = copy_of(config)
        put(copied, self.values)
        return copied


class _Retired:
    """A watcher of sessions that removes the settings of ended captures from copied configurations."""

    def __init__(self) -> None:
        #: The directories of ended captures. No session may dump into them.
        self.roots: set[str] = set()

    def configure(self, config: Any) -> Any:
        return config if config is None else strip(config, self.roots)

    def created(self, session: Any) -> None:
        return


_retired = _Retired()


def _retire(root: str) -> None:
    _retired.roots.add(root)
    _hook.watch(_retired)


def settled_data() -> Optional[str]:
    """Return the kind of data that GE writes in this process, "tensor" or "stats". None if it is not known yet."""
    return _settled[1] if _settled is not None and _settled[0] is (bridge() or device()) else None


def _data_in(root: Path) -> Optional[str]:
    for _, _, names in os.walk(root):
        for name in names:
            if name != MAPPING:
                return "stats" if name.endswith(".csv") else "tensor"
    return None


def _repeated_graphs(root: Path) -> list[str]:
    """Return the names of the graphs with several steps, for the session that has most such graphs."""
    graphs: dict[Path, list[str]] = {}
    for graph in sorted(root.glob("*/*/*")):  # time, device, graph
        if len({step.name for step in graph.glob("*/*") if step.is_dir()}) > 1:
            graphs.setdefault(graph.parent, []).append(graph.name)
    return max(graphs.values(), key=len, default=[])


def put_into_new(values: Mapping[str, Any]) -> Any:
    """Return a new ConfigProto with these dump settings."""
    config = config_class()()
    put(config, values)
    return config


def _is_in_init_resource() -> bool:
    """Return True if npu_bridge's init_resource is creating the session, according to the call stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "init_resource":
            return True
        frame = frame.f_back  # type: ignore[assignment]  # None at the end
    return False


def _is_open(session: Any) -> bool:
    return session is not None and not getattr(session, "_closed", False)


def _restore_environment(before: Mapping[str, Optional[str]]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
