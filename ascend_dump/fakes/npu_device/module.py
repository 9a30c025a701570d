"""A fake of `npu_device`, CANN's adapter for TensorFlow 2, on a real TensorFlow 2 or on the fake of TensorFlow.

    with ascend_dump.fakes.install("npu_device") as npu:
        import npu_device
        npu_device.global_options().dump_config.enable_dump = True
        npu_device.global_options().dump_config.dump_path = "dumps"
        npu_device.open().as_default()

`open` reads the options once, and opens a GE session with them. It raises RuntimeError if GE refuses an option. With
`npu_device.compat.enable_v1()` and `from npu_device.compat.v1.npu_init import *`, sessions run on the simulated NPU as
with `npu_bridge`. With a real TensorFlow 2, each `tf.function` that is traced after `as_default()` is a graph on the
device, and each call of the function is a step. Eager operators are single operators, which belong to no graph.

Differences from a device, in addition to those of `npu_bridge`:

- A function that was traced before `as_default()` stays on the host.
- Operators inside loops and branches of a function are not dumped. On a device they belong to subgraphs.
- A function that another function calls is inlined, but only if a call traces the outer one, not
  `get_concrete_function`.
- Calling a concrete function runs on the host. Simultaneous calls of one function in several threads are one step.
- The Identity operators of a function are not recorded.
- Only the checks of npu_device's Python code are made. Handles have no `scope()`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.fakes._importing import Fill, leave_empty
from ascend_dump.fakes.npu_bridge import module as bridge
from ascend_dump.fakes.npu_bridge.options import OptionRefused
from ascend_dump.fakes.npu_bridge.process import process_of
from ascend_dump.fakes.npu_device import _options

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu
    from ascend_dump.fakes.npu_bridge.process import BridgeProcess, GeSession

__all__ = ["modules", "patches"]

_V1 = "npu_device.compat.v1"


def modules(npu: Npu) -> Mapping[str, Fill]:
    """Return the functions that fill the modules when they are imported. The modules use the device `npu`."""
    process = process_of(npu)
    return {
        "npu_device": functools.partial(_fill_top, process),
        "npu_device.npu_device": functools.partial(_fill_device, process),
        "npu_device.configs": leave_empty,
        "npu_device.configs.dump_config": _fill_dump_config,
        "npu_device.compat": functools.partial(_fill_compat, process),
        **{name.replace("npu_bridge", _V1): fill for name, fill in bridge.modules(npu).items()},
    }


#: The context manager that restores TensorFlow at the end of the installation.
patches = bridge.patches


class _Handle:
    """The handle of a device, which `open` returns. `name()` is TensorFlow's name of the device."""

    def __init__(self, process: BridgeProcess, session: GeSession, number: int) -> None:
        self._process = process
        self._session = session
        self.device_id = number
        environ = process.npu.environ
        self.workers_num = int(environ.get("RANK_SIZE") or environ.get("CM_WORKER_SIZE") or 1)
        self.worker_id = int(environ.get("RANK_ID") or 0) if self.workers_num > 1 else 0

    def name(self) -> str:
        return f"/job:localhost/replica:0/task:0/device:NPU:{self.device_id}"

    def as_default(self) -> _Handle:
        """Let later functions and eager operators run on the device, and return the handle."""
        from ascend_dump.fakes.npu_device._functions import watch_functions

        watch_functions(self._process, self._session)
        return self

    def is_cluster_worker(self) -> bool:
        return self.workers_num > self.worker_id >= 0 and self.workers_num > 1


class _Device:
    """The functions of `npu_device.npu_device`."""

    def __init__(self, process: BridgeProcess, instances: dict[int, _Handle]) -> None:
        self._process = process
        self._instances = instances
        self._options = _options.NpuConfig()

    def global_options(self) -> Any:
        return self._options

    def open(self, device_id: Optional[int] = None) -> _Handle:
        """Open a device, and return its handle. A device that is open already is not opened again.

        Raises RuntimeError for a second device, and for options that GE refuses; ValueError for contradictory numbers
        of ranks in the environment.

        (assumption npu_device.options_once)
        """
        environ = self._process.npu.environ
        number = int(environ.get("ASCEND_DEVICE_ID", "0")) if device_id is None else device_id
        if number in self._instances:
            return self._instances[number]
        if self._instances:
            raise RuntimeError(
                f"Failed create npu instance on device {number} as existed instance on {list(self._instances)}"
            )
        if "CM_WORKER_SIZE" in environ and "RANK_SIZE" in environ:
            raise ValueError("RANK_SIZE and CM_WORK_SIZE cannot be configured at the same time")
        options = _options.ge_options(self._options.as_dict())
        try:
            self._process.npu.use_device(number)
            session = self._process.open_session(options, init=options)
        except OptionRefused as refusal:
            raise RuntimeError(f"Failed open npu device {number} : {refusal}") from None
        self._process.undo.append(session.close)
        self._instances[number] = _Handle(self._process, session, number)
        return self._instances[number]

    def close(self) -> None:
        """Close the GE session. As in npu_device, a later `open` returns the old handle, and opens nothing."""
        for handle in self._instances.values():
            handle._session.close()


def _fill_device(process: BridgeProcess, module: ModuleType) -> None:
    instances: dict[int, _Handle] = {}
    device = _Device(process, instances)
    vars(module).update(
        open=device.open,
        close=device.close,
        global_options=device.global_options,
        NpuDeviceHandle=_Handle,
        _npu_device_instances=instances,
    )


def _fill_top(process: BridgeProcess, module: ModuleType) -> None:
    from importlib import import_module

    inner = import_module("npu_device.npu_device")
    vars(module).update(
        open=inner.open,
        global_options=inner.global_options,
        compat=import_module("npu_device.compat"),
        configs=import_module("npu_device.configs"),
    )


def _fill_compat(process: BridgeProcess, module: ModuleType) -> None:
    def enable_v1() -> None:
        import tensorflow as tf
        from npu_device.npu_device import _npu_device_instances

        from ascend_dump.fakes.npu_bridge.sessions import watch_sessions

        if _npu_device_instances:
            os.environ["ASCEND_DEVICE_ID"] = str(next(iter(_npu_device_instances)))
        tf.compat.v1.disable_v2_behavior()
        watch_sessions(process)

    vars(module).update(enable_v1=enable_v1)


def _fill_dump_config(module: ModuleType) -> None:
    vars(module).update(NpuDumpConfig=_options.NpuDumpConfig)
