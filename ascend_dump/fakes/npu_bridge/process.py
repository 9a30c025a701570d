"""GE, CANN's graph engine, as CANN's TensorFlow adapter uses it in one process.

The adapter initialises GE once in a process (ge_plugin.cc). For each TensorFlow session it opens a GE session, and for
each GeOp, the TensorFlow operation that contains a subgraph for the NPU, it adds a graph `ge_default_<time>_<number>`
to that session (geop_npu.cc). Source: hicann/tensorflow, tf_adapter/.
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

#: Options that only GEInitialize sets: a session cannot change them.
_INIT_ONLY = (keys.DUMP_DATA, keys.ENABLE_EXCEPTION)

__all__ = ["BridgeProcess", "GeSession", "import_tensorflow", "process_of"]


class BridgeProcess:
    """The state of the TensorFlow adapter and of GE in one process with one simulated device."""

    def __init__(self, npu: Npu) -> None:
        self.npu = npu
        #: Functions that undo the fake's changes of TensorFlow, in the order of the changes.
        self.undo: list[Callable[[], None]] = []
        #: TensorFlow operations that initialise the device, and those that shut it down.
        self.init_ops: weakref.WeakSet[Any] = weakref.WeakSet()
        self.shutdown_ops: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Functions that fill the modules that npu_bridge and npu_device share, by the name of the module.
        self.shared: dict[str, Fill] = {}
        self._init: Optional[dict[str, str]] = None
        self._sessions = itertools.count(1)
        self._graphs = itertools.count(1)

    def initialise(self, options: Mapping[str, str], config: Any = None) -> dict[str, str]:
        """Initialise GE, and return the options that are in force.

        The first call in the process sets the options, and selects the device that `config` or the environment names. A
        later call changes nothing: options that it would change are reported in the device's log. Raises Invalid.
        """
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
        """End GE. The next call of `initialise` sets the options again."""
        self._init = None

    def attributes(self, config: Any) -> Optional[Attributes]:
        """Return the NPU options in a ConfigProto. Raises OptionRefused and ProcessAborted.

        Returns None if `config` is None, or has no entry named NpuOptimizer.
        """
        return None if config is None else read_attributes(config, cwd=self.npu.working_directory)

    def open_session(self, options: Mapping[str, str], *, init: Mapping[str, str], config: Any = None) -> GeSession:
        """Open a GE session. Raises OptionRefused if the device refuses an option.

        options: options of the session. init: options for GEInitialize, of which those in `_INIT_ONLY` are used.
        """
        init = self.initialise({name: value for name, value in init.items() if name in _INIT_ONLY}, config)
        return GeSession(self, next(self._sessions), {**options, **init})

    def next_graph(self) -> int:
        # (assumption npu_bridge.graph_name)
        return next(self._graphs)

    def leave(self) -> None:
        """Undo all changes of TensorFlow, the latest first."""
        while self.undo:
            self.undo.pop()()


class GeSession:
    """A GE session. Its options apply to all its graphs."""

    def __init__(self, process: BridgeProcess, number: int, options: dict[str, str]) -> None:
        self.process = process
        self.options = options
        self._number = number
        self._models: list[int] = []
        npu = process.npu
        if npu.arm_ge(options, session=number) != 0:
            raise OptionRefused("; ".join(f"{error.code}: {error.where}: {error.message}" for error in npu.errors))

    def load(self, ops: Sequence[Planned]) -> int:
        """Build a graph of these operators, load it on the device, and return the id of the model."""
        npu = self.process.npu
        stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(npu.now))
        graph = self.process.next_graph()
        name = f"ge_default_{stamp}_{graph}"
        write_graph(npu, name, graph, ops, dump_path=self.options.get(keys.DUMP_PATH, ""))
        model = npu.load_model(name, ops=[op.node() for op in ops], session=self._number)
        self._models.append(model)
        return model

    def close(self) -> None:
        """Unload the session's graphs, and end its dump. A second call does nothing."""
        npu = self.process.npu
        for model in self._models:
            npu.unload_model(model)
        self._models.clear()
        npu.disarm_ge(session=self._number)


def import_tensorflow() -> Any:
    """Import TensorFlow, or the installed fake of it. Raises FrameworkMissing if there is neither."""
    try:
        return import_module("tensorflow")
    except ModuleNotFoundError as error:
        raise FrameworkMissing(
            "the fakes npu_bridge and npu_device need TensorFlow, which is not installed",
            hint='install the fake of TensorFlow too: fakes.install("tensorflow", "npu_bridge")',
        ) from error


_processes: weakref.WeakKeyDictionary[Npu, BridgeProcess] = weakref.WeakKeyDictionary()


def process_of(npu: Npu) -> BridgeProcess:
    """Return the process state of a device. The fakes npu_bridge and npu_device share it."""
    if npu not in _processes:
        _processes[npu] = BridgeProcess(npu)
    return _processes[npu]
