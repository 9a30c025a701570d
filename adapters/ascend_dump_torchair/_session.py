"""The session of a capture through torchair: sets options on configs, and closes GE at the end if GE has used them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

from ascend_dump import AdapterError, AscendDumpError, CaptureError
from ascend_dump.adapter import DumpRequest, RunDirectory, Session, open_directory, read_small
from ascend_dump.adapter import acl_interface as interface
from ascend_dump.native.cann.config import check_acl_config
from ascend_dump.native.cann.config.of_request import save_config
from ascend_dump.native.cann.names import STEP_DIRECTORY
from ascend_dump_torchair import _engine
from ascend_dump_torchair._config import Filled, config_of, find_detours, is_config, read_options, torchair
from ascend_dump_torchair._hook import Hook, OptionsOfCompile
from ascend_dump_torchair._settings import SettingsPlan, TorchairSettings
from ascend_dump_torchair._target import InPlace, calls_of, find_scopes, steering_exceptions

__all__ = ["TorchairSession", "fill"]

log = logging.getLogger("ascend_dump")

_TWICE_MESSAGE = "Unsupport twice"
#: Maximum size in bytes of a generated dump JSON that is read. CANN refuses files above 10 MiB; larger files are read
#: here so that this problem can be reported.
_LARGEST_GENERATED = 1 << 28


class TorchairSession(Session):
    """An active capture.

    root      the directory of the capture; torchair and GE create directories in it
    failure   why graphs could not be compiled or dumped, None if everything worked

    The constructor raises ConfigError for settings that torchair refuses, NotSupported for settings that torchair does
    not have, WriteError if the path cannot be written.
    """

    #: The step directories that GE writes, and those of graphs that run eagerly.
    step_directories = re.compile(
        rf"{STEP_DIRECTORY.pattern}|worldsize\d+_global_rank\d+/graph_\d+/(\d{{1,18}})", re.ASCII
    )

    def __init__(self, request: DumpRequest, target: Any, run: RunDirectory, plan: SettingsPlan) -> None:
        self.failure: Optional[AscendDumpError] = None
        self._request = request
        self._plan = plan
        self._stopped = False
        # A launched capture does not reserve acl's dump interface: the program may start its own capture, which has
        # priority.
        self._claims = not run.launched
        self._pid = os.getpid()
        self._errors: list[str] = []
        self._compiled = False
        self._built = False
        self.root = run.path
        self._directory = Path.cwd()
        if request.options.get("reset"):
            refused = _close()
            if refused is not None:
                raise refused
        self._filled: list[Filled] = []
        self._reported_options: set[str] = set()
        self._replaced: dict[str, Any] = {}
        self._detours: list[str] = []
        self._layers: list[str] = []
        # If the target is a module, the check has already reported the scopes in its code.
        self._scopes_reported = bool(target is not None and not is_config(target) and list(find_scopes(target)))
        self._roads: set[str] = set()
        self._undo: list[Callable[[], None]] = []
        self._hook: Optional[Hook] = None
        try:
            self.add(config_of(target, request.options.get("compiler_config")))
            self._undo.append(OptionsOfCompile(self._options_of, self._report_ignored).remove)
            if target is None:
                self._hook = Hook(self.add)
                self._undo.append(self._hook.remove)
            elif not is_config(target):
                self._undo.append(self._compile(target).remove)
        except BaseException:
            self._restore()
            interface.release(self)
            raise

    def add(self, config: Any) -> None:
        """Set the dump options on another config, until `stop`. Raises the errors of the constructor."""
        settings, filled = fill(self._plan, config)
        try:
            self._claim(settings.road)
        except BaseException:
            filled.restore()
            raise
        self._filled.append(filled)
        self._layers.append(str(settings.options.get("dump_config.dump_layer", "")))
        self._roads.add(settings.road)

    def _options_of(self, config: Any) -> dict[str, Any]:
        """Return the options that this capture has set on a config, with their values; {} after `stop`."""
        return {
            option: value for each in self._filled if each.config is config for option, value in each.options.items()
        }

    def _report_ignored(self, name: str, value: Any) -> None:
        """Log a warning about an ignored option of torch.compile, once for each name."""
        if name not in self._reported_options:
            self._reported_options.add(name)
            log.warning(
                "torch.compile(options={%r: %r}) would replace the setting of the capture on this config, and is "
                "ignored while the capture lasts: the dump is in %s [AD370]",
                name,
                value,
                self.root,
            )

    def _claim(self, road: str) -> None:
        """Reserve acl's dump interface if torchair will use it. Raises CaptureError if another capture uses it."""
        if self._claims and (road == "json" or (road == "options" and _engine.generates_json())):
            interface.claim(self, "torchair")
            self._claims = False

    def _compile(self, target: Any) -> InPlace:
        import torch

        options = self._request.options
        backend = torchair().get_npu_backend(compiler_config=self._filled[0].config)
        settings_of_compile = {name: options[name] for name in ("dynamic", "fullgraph") if name in options}
        return InPlace(target, torch.compile(calls_of(target), backend=self._guard(backend), **settings_of_compile))

    def _guard(self, backend: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a backend, so that a graph that torchair cannot compile runs eagerly.

        This is decided for each graph, because when a graph fails, the graphs before a graph break have run already.
        """

        steering = steering_exceptions()

        def npu(module: Any, example_inputs: Any, **kwargs: Any) -> Any:
            self._compiled = True
            try:
                with _backward_at_once():
                    return backend(module, example_inputs, **kwargs)
            except Exception as error:
                if isinstance(error, steering):
                    raise
                self._note_failure(error)
                return module.forward

        return npu

    def _note_failure(self, error: Exception) -> None:
        failure = why_failed(error)
        if self.failure is None:
            self.failure = failure
            failure.reported = True
            log.warning("what torchair cannot compile runs eagerly: %s", failure)

    def stop(self) -> None:
        """Restore the configs and the target, and close GE if it was initialised with this capture's settings.

        A second call does nothing.
        """
        if self._stopped:
            return
        self._stopped = True
        try:
            self._end()
        finally:
            interface.release(self)

    def _end(self) -> None:
        if os.getpid() != self._pid:
            # In a forked child GE and its dump belong to the parent process.
            self._restore()
            return
        ours = self._dumps_for_us()
        self._built = ours or self._compiled
        for filled in self._filled:
            self._replaced.update(filled.replaced())
            self._detours += find_detours(read_options(filled.config))
        self._restore()
        if ours:
            self._check_generated()
            self.failure = _close() or self.failure
        elif self._compiled or self._roads & {"eager", "aclgraph"}:
            _engine.forget_graphs()
        self._remove_generated()
        self.failure = self.failure or self._changed_options()
        if self.failure is None and self._only_graphs():
            listed = "".join(f"\n  - {reason}" for reason in self.reasons() or [])
            hint = "see `ascend-dump explain AD303`"
            self.failure = CaptureError(f"the capture wrote graphs but no operator{listed}", hint=hint, code="AD303")

    def _changed_options(self) -> Optional[CaptureError]:
        """Return the error if the program has changed options of the capture inside the block, else None."""
        if not self._replaced:
            return None
        listed = ", ".join(f"config.{option} = {value!r}" for option, value in self._replaced.items())
        return CaptureError(
            f"the program changed settings of the capture in the block: {listed}; the values at the time of the first "
            "graph count, so a part or all of the dump is not in the capture's directory",
            hint="do not set dump options inside a capture; or set them yourself and capture nothing",
            code="AD370",
        )

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()
        while self._filled:
            self._filled.pop().restore()

    def _dumps_for_us(self) -> bool:
        """Return True if GE was initialised with the settings of this capture."""
        recorded = _engine.recorded() or {}
        prefixes = (os.fspath(self.root), os.fspath(self._plan.file))
        return any(str(value).startswith(prefixes) for value in recorded.values())

    def _files(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the dump JSON files that torchair wrote for this capture, each with the content of its key `dump`."""
        # torchair writes them into the working directory that the process has at the first run of a graph. The
        # directory at the start of the capture may be another one.
        for directory in {self._directory, *_working_directory()}:
            for file in directory.glob(f"ge_dump_data_json/dump_options_*_pid{os.getpid()}.json"):
                with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, RecursionError):
                    dump = json.loads(read_small(file, _LARGEST_GENERATED)).get("dump", {})
                    path = Path(dump.get("dump_path", ""))
                    if path == self.root or self.root in path.parents:
                        yield file, dump

    def _check_generated(self) -> None:
        """Check the dump JSON that torchair generated, because torchair ignores the error that acl returns for it.

        (assumption torchair.refusal_dropped)
        """
        for file, dump in self._files():
            problems = (problem for problem in check_acl_config(file) if problem.severity == "error")
            self._errors += [f"the device refuses the settings that torchair generates: {each}" for each in problems]
            with contextlib.suppress(KeyError, AttributeError, TypeError):
                self._check_scopes(dump["dump_list"])

    def _check_scopes(self, listed: list[dict[str, list[str]]]) -> None:
        """Report graphs that use torchair's scope, according to the generated JSON.

        This is needed if only a config is captured, because then the code of the model is not known.
        """
        selected = {name for layers in self._layers for name in layers.split()}
        types = {name for entry in listed for name in entry.get("layer", ())} - selected
        if types and self.failure is None and not self._scopes_reported:
            self.failure = CaptureError(
                "a graph uses scope.data_dump(), and torchair lists the types of its operators "
                f"({', '.join(sorted(types))}) where names are compared: the dump has the first operator of each type, "
                "and no other operator of this graph",
                hint="leave the scope out, and use layers= with the names of the operators",
                code="AD250",
            )

    def _remove_generated(self) -> None:
        for file, _ in list(self._files()):
            with contextlib.suppress(OSError):
                above = open_directory(file.parent)  # raises for a link, because its target was not created by torchair
                try:
                    os.unlink(file.name, dir_fd=above)
                finally:
                    os.close(above)
                file.parent.rmdir()  # fails if other processes have files in it

    def _only_graphs(self) -> bool:
        if "graph_dump" not in self._request.options:
            return False
        names = [name for _, _, files in os.walk(self.root) for name in files]
        return bool(names) and all(name.startswith("dynamo_") for name in names)

    def reasons(self) -> Optional[list[str]]:
        request = self._request
        if request.scene in ("overflow", "exception") or os.getpid() != self._pid:
            return None
        reasons = list(self._errors)
        if self._detours and not self._roads & {"eager"}:
            listed = ", ".join(f"config.{option}" for option in dict.fromkeys(self._detours))
            reasons.append(f"{listed} let every graph run eagerly, so that none reached the device")
        if self._hook is not None:
            reasons += self._hook.uncaptured
        if not self._built and not self._roads & {"eager", "aclgraph"}:
            reasons.append(
                "no graph was built from the captured config in the block: the model was not called, or its graph was "
                "built before the block, or by a backend that has another config (such as backend='npu')"
            )
            return reasons
        if not request.steps.all:
            reasons.append(f"no graph was executed for a step in steps={request.steps}; each graph counts from 0")
        if request.layers or request.models:
            reasons.append(
                "no operator or graph has a name that layers= and models= select; GE compares exact names, and "
                "options={'graph_dump': 'py'} writes the names in torchair's graph"
            )
        if request.level == "kernel":
            reasons.append("level='kernel' leaves graphs out")
        if "torch_npu" in sys.modules:
            reasons.append("torch_npu.npu.init_dump was called before: torchair's own settings are dropped then")
        if not self._roads & {"eager", "aclgraph"}:
            reasons.append("CANN could not write it, as on a full disk: see its log in ~/ascend/log")
        return reasons


def _working_directory() -> list[Path]:
    """Return a list with the current working directory, [] if that was removed."""
    with contextlib.suppress(OSError):
        return [Path.cwd()]
    return []


def _close() -> Optional[CaptureError]:
    """Close GE. Return an error if torchair could not close it, else None."""
    try:
        _engine.close()
    except RuntimeError as error:
        first = (str(error).splitlines() or [""])[0]
        return CaptureError(
            f"torchair could not end the dump: {first}",
            hint="leave torch_npu.npu.init_dump and finalize_dump alone while torchair dumps",
            code="AD254",
        )
    return None


def _backward_at_once() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which PyTorch compiles the graph of the backward pass together with the forward graph.

    By default the backward graph is compiled later. If torchair could not compile it, the program's `backward()` would
    raise an error.
    """
    import torch._functorch.config as settings

    name = "force_non_lazy_backward_lowering"
    context: contextlib.AbstractContextManager[Any] = (
        settings.patch(name, True) if hasattr(settings, name) else contextlib.nullcontext()
    )
    return context


def fill(plan: SettingsPlan, config: Any) -> tuple[TorchairSettings, Filled]:
    """Set the options of a plan on a config, and write the dump JSON if the plan needs one."""
    settings = plan.settings(read_options(config))
    if settings.file is not None:
        save_config(plan.file, settings.file)
    filled = Filled(config)
    filled.set(settings.options)
    return settings, filled


def why_failed(error: Exception) -> AscendDumpError:
    """Convert an exception of torchair's backend to an error, without the traceback that the exception's text has."""
    text = str(error)
    reason = (text.splitlines() or [type(error).__name__])[0]
    if _TWICE_MESSAGE in text:
        return CaptureError(
            "GE was initialised by another graph inside the block, with other options, so this graph cannot be dumped",
            hint="call the captured model first, or pass the other graph's config: options={'compiler_config': config}",
            code="AD240",
        )
    if "acl init dump" in text:
        return CaptureError(
            f"another user of acl's dump interface is active, so torchair's own cannot begin: {reason[:200]}",
            hint="end the capture with framework='torch_npu', or call torch_npu.npu.finalize_dump, before",
            code="AD254",
        )
    return AdapterError(
        f"torchair could not compile the model: {reason[:500]}",
        hint="compile it without a capture first; see the mode and the log of torchair",
    )
