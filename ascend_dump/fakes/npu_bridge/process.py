"""One process with the TensorFlow adapter: GE's initialisation, its sessions and their graphs.

Source: hicann/tensorflow tf_adapter/kernels/geop_npu.cc (a GE session for each TensorFlow session, a graph
`ge_default_<time>` for each GeOp), ge_plugin.cc (GEInitialize once in a process).
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump import FrameworkMissing
from ascend_dump.fakes.npu_bridge._ge_text import write_graph
from ascend_dump.fakes.npu_bridge.options import Attributes, OptionRefused, read_attributes, read_device
from ascend_dump.native.cann.config import keys

if TYPE_CHECKING:
    from ascend_dump.fakes._importing import Fill
    from ascend_dump.fakes.device.npu import Npu
    from ascend_dump.fakes.npu_bridge.plan import Planned

#: Options of GEInitialize that no session can change.
_OF_INIT = (keys.DUMP_DATA, keys.ENABLE_EXCEPTION)

__all__ = ["BridgeProcess", "GeSession", "import_tensorflow", "process_of"]


class BridgeProcess:
    """The state of the adapter and GE in one process, around one simulated device."""

    def __init__(self, npu: Npu) -> None:
        self.npu = npu
        #: Functions that undo changes of the framework, the latest change last.
        self.undo: list[Callable[[], None]] = []
        #: The operations that initialise and shut down the device.
        self.init_ops: weakref.WeakSet[Any] = weakref.WeakSet()
        self.shutdown_ops: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Modules that npu_bridge and npu_device share, by name.
        self.shared: dict[str, Fill] = {}
        self._init: Optional[dict[str, str]] = None
        self._sessions = itertools.count(1)
        self._graphs = itertools.count(1)

    def initialise(self, options: Mapping[str, str], config: Any = None) -> dict[str, str]:
        """Call GEInitialize: the first call in the process sets the options and the device. Raises Invalid."""
        if self._init is None:
            device = read_device(config, self.npu.environ)
            if device is not None:
                self.npu.use_device(device)
            self._init = dict(options)
        for name, value in options.items():
            if self._init.get(name) != value:
                self.npu.log.append(
                    f"GE is initialised already: {name}={value} is ignored, {self._init.get(name)} is in force"
                )
        return self._init

    def finalise(self) -> None:
        """Call GEFinalize: the next initialisation is a first one again."""
        self._init = None

    def attributes(self, config: Any) -> Optional[Attributes]:
        """Return the settings in a ConfigProto. Raises OptionRefused and ProcessAborted."""
        return None if config is None else read_attributes(config, cwd=self.npu.working_directory)

    def open_session(self, options: Mapping[str, str], *, init: Mapping[str, str], config: Any = None) -> GeSession:
        """Open a GE session with these options. init: those of GEInitialize. Raises OptionRefused."""
        init = self.initialise({name: value for name, value in init.items() if name in _OF_INIT}, config)
        return GeSession(self, next(self._sessions), {**options, **init})

    def next_graph(self) -> int:
        # (assumption npu_bridge.graph_name)
        return next(self._graphs)

    def leave(self) -> None:
        while self.undo:
            self.undo.pop()()


class GeSession:
    """A GE session with the options of all its graphs."""

    def __init__(self, process: BridgeProcess, number: int, options: dict[str, str]) -> None:
        self.process = process
        self.options = options
        self._number = number
        self._models: list[int] = []
        npu = process.npu
        if npu.arm_ge(options, session=number) != 0:
            raise OptionRefused("; ".join(f"{error.code}: {error.where}: {error.message}" for error in npu.errors))

    def load(self, ops: Sequence[Planned]) -> int:
        """Build a graph of these operators and load it; returns the model's id."""
        npu = self.process.npu
        stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(npu.now))
        graph = self.process.next_graph()
        name = f"ge_default_{stamp}_{graph}"
        write_graph(npu, name, graph, ops, dump_path=self.options.get(keys.DUMP_PATH, ""))
        model = npu.load_model(name, ops=[op.node() for op in ops], session=self._number)
        self._models.append(model)
        return model

    def close(self) -> None:
        """Unload its graphs, and end its dump. A second call does nothing."""
        npu = self.process.npu
        for model in self._models:
            npu.unload_model(model)
        self._models.clear()
        npu.disarm_ge(session=self._number)


def import_tensorflow() -> Any:
    """Import TensorFlow or its stand-in. Raises FrameworkMissing without them."""
    try:
        return import_module("tensorflow")
    except ModuleNotFoundError as error:
        raise FrameworkMissing(
            "the fake npu_bridge and npu_device need TensorFlow, and it is not installed",
            hint='install its stand-in too: fakes.install("tensorflow", "npu_bridge")',
        ) from error


_processes: weakref.WeakKeyDictionary[Npu, BridgeProcess] = weakref.WeakKeyDictionary()


def process_of(npu: Npu) -> BridgeProcess:
    """Return the process around a device: npu_bridge and npu_device share it."""
    if npu not in _processes:
        _processes[npu] = BridgeProcess(npu)
    return _processes[npu]
