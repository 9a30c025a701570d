"""One process with MindSpore: its settings, the dump JSON, and the execution of graphs.

Measured with MindSpore 2.10.0. The parser is one object for the process: an accepted file is final, a refused file is
read again at the next occasion. Occasions are the initialisation of the device (first operator, first compilation,
`communication.init`), the compilation of a graph, and `_set_init_iter`. The first compilation decides if tensors are
dumped; each compilation writes the graph's texts.
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
#: A message of the fake, not of MindSpore.
_OLDER = (
    "ascend_dump.fakes: the simulated MindSpore {version} dumps nothing with O2, as every MindSpore since 2.6: for the "
    'document\'s chapter "Dump in Ascend O2 Mode" set {variable}=2.5.0 before the fake is installed'
)


def make_executors() -> tuple[type, type]:
    """Return MindSpore's two executors of root graphs: tools wrap their methods.

    A graph runs by `run` of the first or a call of the second, after `compile`. The simulated process compiles the
    graph itself after its first run.
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
    """MindSpore's state of one process."""

    def __init__(self, npu: Npu) -> None:
        super().__init__(npu)
        self.executors = make_executors()
        #: Initialised devices.
        self.initialized: set[str] = set()
        self.tape: Optional[Tape] = None
        self.in_graph = False
        #: The number of cells around the running operator that `set_dump` has marked.
        self.marked = 0
        self._settings: Optional[DumpJsonSettings] = None
        self._dumps_tensors: Optional[bool] = None
        self._dumper: Optional[KernelDumper] = None
        self._graphs: dict[Any, CompiledGraph] = {}
        #: The number of compilations, failed ones included.
        self._numbers = 0
        self._names: Counter[str] = Counter()
        self._iteration: Optional[int] = None
        self._user_counts = False

    # Occasions to read the configuration.

    def parse(self) -> Optional[DumpJsonSettings]:
        """Read the configuration if it is not yet read. Raises RuntimeError, as MindSpore does."""
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
        """Initialise the device, at the first operator, the first compilation or `communication.init`."""
        if self.target in self.initialized:
            return
        settings = self.parse()
        if settings is not None and self._dumper is not None and self.target == "CPU":
            self._dumper.write_metadata()
        self.initialized.add(self.target)

    def _prepare_compilation(self) -> bool:
        """Read the configuration. Returns False for a compilation that reads it first, but late: it writes no texts."""
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

    # Steps that the program counts itself.

    def set_init_iter(self, value: int) -> None:
        """`_c_expression._set_init_iter`: read the configuration; then only `_dump_step` counts iterations."""
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
        """Run a compiled function; a new key is compiled first. Inside another graph it becomes part of that graph."""
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
        """Compile without running: the function's changes to parameters are undone."""
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
        """Compile the recorded run; a refused compilation undoes it."""
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
        iteration = self._iteration or 0
        if self._dumps_tensors and self._dumper is not None:
            self._dumper.write_step(graph, tape, iteration)
        elif self.target == "Ascend":
            for node, name in graph.names_of(tape):
                self.run_on_device(node.op_type, name, node)
        # A failed run does not count.
        graph.runs += 1
        if not self._user_counts:
            # The count of the graph that ran last, not of the graph that runs next.
            self._iteration = graph.runs + (self._settings.initial_iteration if self._settings else 0)


_current: Optional[MindSporeProcess] = None


def start_process(npu: Npu) -> MindSporeProcess:
    """Start a new process, which takes over the objects of an earlier one."""
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
