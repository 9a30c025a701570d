"""One process with MindSpore: its settings, when it reads the dump JSON, and how it runs graphs.

The moments are those measured with MindSpore 2.10.0. The parser is one object for the process: the first file it
accepts is final, a refused one is read again at every later occasion. It looks when the device is initialised (first
operator, first compilation, `communication.init`), when the first graph is compiled, which decides once and for all
whether tensors are dumped, when any graph is compiled, which writes that graph's texts, and in `_set_init_iter`.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump import NotSupported
from ascend_dump.fakes.mindspore._files import KernelDumper
from ascend_dump.fakes.mindspore._graph import CompiledGraph, Tape
from ascend_dump.fakes.mindspore._o2 import ModelDumper
from ascend_dump.fakes.mindspore._state import VERSION_VARIABLE, MindSporeState
from ascend_dump.fakes.mindspore._types import Tensor
from ascend_dump.native.mindspore.config.dump_json import CONFIG_VARIABLE, read_file
from ascend_dump.native.mindspore.config.settings import DumpJsonSettings

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["MindSporeProcess", "current", "start_process"]

_DEPRECATED = (
    "[Dump Deprecated Alert {turn}/3]: For 'Dump', in the scenario where 'backend' is 'GE', the "
    "'MINDSPORE_DUMP_CONFIG' env has been deprecated since MindSpore 2.6. Please use msprobe tool instead."
)
#: Not MindSpore's own.
_OLDER = (
    "ascend_dump.fakes: the simulated MindSpore {version} dumps nothing with O2, as every MindSpore since 2.6: for the "
    'document\'s chapter "Dump in Ascend O2 Mode" set {variable}=2.5.0 before the fake is installed'
)


def make_executors() -> tuple[type, type]:
    """MindSpore's two executors of root graphs, whose methods tools wrap.

    What runs is `run` of the one and a call of the other; both are asked to `compile` before, which the simulated
    process does itself as soon as the graph has run once.
    """

    class _CellGraphExecutor:
        def compile(self, obj: Any, *args: Any, phase: str = "predict", **kwargs: Any) -> tuple[str, bool]:
            return phase, True

        def run(self, obj: Callable[[], Any], *args: Any, phase: str = "predict") -> Any:
            return obj()

    class _JitExecutor:
        def compile(self, method_name: str, *args: Any, phase: str = "", **kwargs: Any) -> str:
            return phase

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return args[0]()

    return _CellGraphExecutor, _JitExecutor


class MindSporeProcess(MindSporeState):
    """Everything that the real MindSpore keeps once per process."""

    def __init__(self, npu: Npu) -> None:
        super().__init__(npu)
        self.executors = make_executors()
        #: Devices that are up.
        self.initialized: set[str] = set()
        self.tape: Optional[Tape] = None
        self.in_graph = False
        #: How many cells around the running operator `set_dump` marked.
        self.marked = 0
        self._settings: Optional[DumpJsonSettings] = None
        self._dumps_tensors: Optional[bool] = None
        self._dumper: Optional[KernelDumper] = None
        self._graphs: dict[Any, CompiledGraph] = {}
        #: How many were compiled, or began to be.
        self._numbers = 0
        self._names: Counter[str] = Counter()
        self._iteration: Optional[int] = None
        self._user_counts = False

    # The moments at which the configuration is read.

    def parse(self) -> Optional[DumpJsonSettings]:
        """Read the configuration if that has not happened yet. Raises RuntimeError, as MindSpore does."""
        path = os.environ.get(CONFIG_VARIABLE, "")
        if self._settings is not None or not path:
            return self._settings
        runtime = self.runtime
        if runtime.ge and not runtime.old_ge:
            return None
        reading = read_file(path, runtime=runtime)
        refusal = reading.refusal
        for warning in reading.warnings:
            self.log("WARNING", warning)
        if refusal is not None:
            raise RuntimeError(refusal.message)
        settings = reading.settings
        if runtime.device != "CPU" and self.context["device_id"] not in settings.support_device:
            self.log("WARNING", f"Dump is not enabled. device_id:{self.context['device_id']} not support")
        self._settings = settings
        make = ModelDumper if runtime.ge else KernelDumper
        self._dumper = make(self, settings, path)
        if self._iteration is None:
            self._iteration = settings.initial_iteration
        return settings

    def close(self) -> None:
        """End the process."""
        if self._dumper is not None and self._dumps_tensors:
            self._dumper.close()

    def initialize_device(self) -> None:
        """What the first operator, the first compilation and `communication.init` do."""
        if self.target in self.initialized:
            return
        settings = self.parse()
        if settings is not None and self._dumper is not None and self.target == "CPU":
            self._dumper.write_metadata()
        self.initialized.add(self.target)

    def _prepare_compilation(self) -> bool:
        """Tells whether the new graph's texts are written: not by the compilation that is a late first reader."""
        runtime = self.runtime
        if runtime.ge and not runtime.old_ge and self._dumps_tensors is None and os.environ.get(CONFIG_VARIABLE):
            for turn in (1, 2, 3):
                self.log("WARNING", _DEPRECATED.format(turn=turn))
            self.log("WARNING", _OLDER.format(version=self.version, variable=VERSION_VARIABLE))
        known = self._dumper is not None or self._dumps_tensors is None
        settings = self.parse()
        if self._dumps_tensors is None:
            self._dumps_tensors = settings is not None
        return known

    # Steps that the program counts itself.

    def set_init_iter(self, value: int) -> None:
        """`_c_expression._set_init_iter`: reads the configuration now; iterations are counted by `_dump_step` alone."""
        self.parse()
        self._user_counts = True
        self._iteration = int(value)

    def dump_step(self, count: int = 1) -> None:
        """`_c_expression._dump_step`."""
        if not self._user_counts:
            self.log("WARNING", "Costomized step function has not enabled, step update does not work!")
            return
        self._iteration = (self._iteration or 0) + int(count)

    # Graphs.

    @contextlib.contextmanager
    def recording(self, tape: Tape, *, graph: bool) -> Iterator[Tape]:
        before = self.tape, self.in_graph
        self.tape, self.in_graph = tape, graph
        try:
            yield tape
        finally:
            self.tape, self.in_graph = before

    def run_graph(
        self,
        key: Any,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        inputs: Mapping[str, Tensor],
    ) -> Any:
        """Run a compiled function; a new key is compiled first. Inside another graph it becomes part of that one."""
        if self.in_graph:
            return function(*args, **kwargs)
        cells, functions = self.executors

        def run() -> Any:
            return self._run_root(key, function, args, kwargs, inputs)

        if key[0] == "cell":
            owner = getattr(function, "__self__", None)
            cells().compile(owner, *args, **kwargs)
            return cells().run(run)
        executor = functions()
        executor.compile("construct", *args, **kwargs)
        return executor(run)

    def _run_root(
        self,
        key: Any,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        inputs: Mapping[str, Tensor],
    ) -> Any:
        graph = self._graphs.get(key)
        tape = Tape(traced=graph is None)
        tape.inputs.update(inputs)
        outer = self.tape
        with self.recording(tape, graph=True):
            result = function(*args, **kwargs)
        # Without an operator there is nothing to compile and nothing to run, not even a device.
        if tape.nodes:
            tape.drop_unused_inputs(result)
            graph = graph or self._add_graph(key, tape)
            if outer is not None:
                outer.nodes.extend(tape.nodes)
            self._finish(graph, tape)
        return result

    def compile(
        self, key: Any, function: Callable[..., Any], args: tuple[Any, ...], inputs: Mapping[str, Tensor]
    ) -> None:
        """Compile without running: what the function does to parameters is undone."""
        if key in self._graphs:
            return
        tape = Tape(traced=True)
        tape.inputs.update(inputs)
        with self.recording(tape, graph=True):
            tape.drop_unused_inputs(function(*args))
        if tape.nodes:
            self._add_graph(key, tape)
            tape.undo()

    def _add_graph(self, key: Any, tape: Tape) -> CompiledGraph:
        """Compile what ran; where that is refused, it is undone."""
        try:
            self.initialize_device()
            texts = self._prepare_compilation()
            graph = CompiledGraph(self._numbers)
            self._numbers += 1
            names = self._names.copy()
            graph.name(tape, names)
            if texts and self._dumper is not None:
                self._dumper.write_graph(graph, tape)
        except RuntimeError:
            tape.undo()
            raise
        # A graph that could not be written is compiled again: its number is lost, its names are not.
        self._graphs[key], self._names = graph, names
        return graph

    def _finish(self, graph: CompiledGraph, tape: Tape) -> None:
        iteration = self._iteration or 0
        if self._dumps_tensors and self._dumper is not None:
            self._dumper.write_step(graph, tape, iteration)
        elif self.target == "Ascend":
            for node, name in graph.names_of(tape):
                self.run_on_device(node.op_type, name, node)
        # A run that failed does not count.
        graph.runs += 1
        if not self._user_counts:
            # It is the count of whichever graph ran last, not of the one that runs next.
            self._iteration = graph.runs + (self._settings.initial_iteration if self._settings else 0)


_current: Optional[MindSporeProcess] = None


def start_process(npu: Npu) -> MindSporeProcess:
    """A fresh process; what was made under another one belongs to this one from now on."""
    global _current
    _current = MindSporeProcess(npu)
    return _current


def current() -> MindSporeProcess:
    """The process of the fake that was installed last."""
    if _current is None:
        raise NotSupported(
            "the fake MindSpore is not installed", hint="use it inside `with ascend_dump.fakes.install('mindspore')`"
        )
    return _current
