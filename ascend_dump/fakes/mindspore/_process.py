"""A process with MindSpore: when it reads the dump JSON, and how it runs graphs.

Measured with MindSpore 2.10.0: the dump JSON is read when the device is initialised (by the first operator, the first
compilation or `communication.init`), when a graph is compiled, and by `_set_init_iter`. A file that was accepted is not
read again. A file that was refused is read again on the next of these occasions. The first compilation decides whether
tensors are dumped. Each compilation writes the files that describe the graph.
"""

from __future__ import annotations

import contextlib
import functools
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
#: A warning that the fake adds. MindSpore has no such message.
_OLDER = (
    "ascend_dump.fakes: the simulated MindSpore {version} dumps nothing with O2, as every MindSpore since 2.6: for the "
    'document\'s chapter "Dump in Ascend O2 Mode" set {variable}=2.5.0 before the fake is installed'
)


def make_executors() -> tuple[type, type]:
    """Return the two classes by which MindSpore runs the graphs of cells and of functions.

    They exist because tools wrap their methods. As in MindSpore, `compile` is called first. Then `run` is called for
    the first class; for the second class the object itself is called. Here `compile` does nothing: the process compiles
    a graph after its first run.
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
    """The whole state of a process with MindSpore.

    tape      records the operators of the running graph, or those under differentiation; None if nothing records
    in_graph  True while a graph runs
    """

    def __init__(self, npu: Npu) -> None:
        super().__init__(npu)
        self.executors = make_executors()
        #: The devices (CPU, GPU, Ascend) that were initialised.
        self.initialized: set[str] = set()
        self.tape: Optional[Tape] = None
        self.in_graph = False
        #: Number of cells and primitives around the running operator that `set_dump` marked.
        self.marked = 0
        self._settings: Optional[DumpJsonSettings] = None
        self._dumps_tensors: Optional[bool] = None
        self._dumper: Optional[KernelDumper] = None
        self._graphs: dict[Any, CompiledGraph] = {}
        #: Number of compilations, including those whose files could not be written.
        self._numbers = 0
        self._names: Counter[str] = Counter()
        self._iteration: Optional[int] = None
        self._user_counts = False

    # Reading the configuration.

    def parse(self) -> Optional[DumpJsonSettings]:
        """Read the dump JSON, unless it was accepted before, and return its settings; None if there is no dump.

        Raises RuntimeError if the file is refused, as MindSpore does.
        """
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
        """End the process: log the warnings that MindSpore logs at its end."""
        if self._dumper is not None and self._dumps_tensors:
            self._dumper.close()

    def initialize_device(self) -> None:
        """Initialise the device, at the first call only. This reads the dump JSON."""
        if self.target in self.initialized:
            return
        settings = self.parse()
        if settings is not None and self._dumper is not None and self.target == "CPU":
            self._dumper.write_metadata()
        self.initialized.add(self.target)

    def _prepare_compilation(self) -> bool:
        """Read the dump JSON before a compilation. Returns True if the files that describe the graph are written.

        If earlier compilations found no dump JSON, the first compilation that finds one does not write these files.
        """
        runtime = self.runtime
        if runtime.ge and not runtime.old_ge and self._dumps_tensors is None and os.environ.get(CONFIG_VARIABLE):
            for turn in (1, 2, 3):
                self.log("WARNING", _DEPRECATED.format(turn=turn))
            self.log("WARNING", _OLDER.format(version=self.version, variable=VERSION_VARIABLE))
        writes_texts = self._dumper is not None or self._dumps_tensors is None
        settings = self.parse()
        if self._dumps_tensors is None:
            self._dumps_tensors = settings is not None
        return writes_texts

    # Steps that the program itself counts.

    def set_init_iter(self, value: int) -> None:
        """`_c_expression._set_init_iter`: read the dump JSON, and set the iteration.

        From then on, only `_dump_step` counts iterations.
        """
        self.parse()
        self._user_counts = True
        self._iteration = int(value)

    def dump_step(self, count: int = 1) -> None:
        """`_c_expression._dump_step`: add `count` to the iteration, if the program called `_set_init_iter` before."""
        if not self._user_counts:
            self.log("WARNING", "Costomized step function has not enabled, step update does not work!")
            return
        self._iteration = (self._iteration or 0) + int(count)

    # Graphs.

    @contextlib.contextmanager
    def recording(self, tape: Tape, *, graph: bool) -> Iterator[Tape]:
        """Record operators on this tape inside the block. graph: the block runs a graph."""
        outer = self.tape, self.in_graph
        self.tape, self.in_graph = tape, graph
        try:
            yield tape
        finally:
            self.tape, self.in_graph = outer

    def run_graph(
        self,
        key: Any,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        inputs: Mapping[str, Tensor],
    ) -> Any:
        """Run a function as a graph, and return its result. Inside another graph it becomes a part of that graph.

        key: identifies the graph; for a new key a graph is compiled. inputs: tensors among the arguments, by name.
        """
        if self.in_graph:
            return function(*args, **kwargs)
        cells, functions = self.executors
        run = functools.partial(self._run_root, key, functools.partial(function, *args, **kwargs), inputs)
        if key[0] == "cell":
            owner = getattr(function, "__self__", None)
            cells().compile(owner, *args, **kwargs)
            return cells().run(run)
        executor = functions()
        executor.compile("construct", *args, **kwargs)
        return executor(run)

    def _run_root(self, key: Any, construct: Callable[[], Any], inputs: Mapping[str, Tensor]) -> Any:
        """Run a graph that is inside no other graph, compile it if it is new, and dump the run."""
        graph = self._graphs.get(key)
        tape = Tape(traced=graph is None)
        tape.inputs.update(inputs)
        outer = self.tape
        with self.recording(tape, graph=True):
            result = construct()
        # A graph without an operator is neither compiled nor run, and initialises no device.
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
        """Compile a graph, if its key is new. The function runs, but its changes of parameters are undone."""
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
        """Compile a graph from its first run. If this raises RuntimeError, changes of parameters are undone."""
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
        # A graph that could not be written is compiled again, with a new number and the same names.
        self._graphs[key], self._names = graph, names
        return graph

    def _finish(self, graph: CompiledGraph, tape: Tape) -> None:
        """Dump a run, or report its operators to the device, and count it."""
        iteration = self._iteration or 0
        if self._dumps_tensors and self._dumper is not None:
            self._dumper.write_step(graph, tape, iteration)
        elif self.target == "Ascend":
            for node, name in graph.names_of(tape):
                self.run_on_device(node.op_type, name, node)
        # If the dump or the device raised an error, the run is not counted.
        graph.runs += 1
        if not self._user_counts:
            # As in MindSpore, the next run of any graph has the iteration after the runs of this graph.
            self._iteration = graph.runs + (self._settings.initial_iteration if self._settings else 0)


_current: Optional[MindSporeProcess] = None


def start_process(npu: Npu) -> MindSporeProcess:
    """Start a new process, which becomes the current one. Tensors and cells of an earlier process use it too."""
    global _current
    _current = MindSporeProcess(npu)
    return _current


def current() -> MindSporeProcess:
    """Return the process of the newest installation."""
    if _current is None:
        raise NotSupported(
            "the fake MindSpore is not installed", hint="use it inside `with ascend_dump.fakes.install('mindspore')`"
        )
    return _current
