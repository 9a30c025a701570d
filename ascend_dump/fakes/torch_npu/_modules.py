"""The modules of the fake `torch_npu`, put together from the functions and classes of the other files."""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Union

import torch

from ascend_dump import NotSupported
from ascend_dump.fakes._importing import Fill
from ascend_dump.fakes.torch_npu._graphs import make_graphs
from ascend_dump.fakes.torch_npu._interface import (
    NpuInterface,
    checked_dump,
    device_index,
    dropping_dump,
    make_seeds,
    make_settings,
)
from ascend_dump.fakes.torch_npu._memory import AllocatedMemory, make_memory
from ascend_dump.fakes.torch_npu._operators import npu_operators
from ascend_dump.fakes.torch_npu._process import TorchNpuRuntime
from ascend_dump.fakes.torch_npu._profiler import make_mstx, make_profiler
from ascend_dump.fakes.torch_npu._streams import make_streams
from ascend_dump.fakes.torch_npu._training import make_amp, make_autocast, make_optimizers
from ascend_dump.fakes.torch_npu._transfer import transferred
from ascend_dump.fakes.torch_npu._types import make_tensor_types

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["Process", "make"]

#: The number of the memory format ND (ACL_FORMAT_ND).
_ND = 2
#: Functions of `torch_npu.npu` that the fake lacks: calling one raises NotSupported.
_MISSING = (
    *("MemPool", "NPUPluggableAllocator", "NpuGraphOpHandler", "register_npu_graph_handler", "npurt"),
    *("caching_allocator_alloc", "caching_allocator_delete", "change_current_allocator", "use_mem_pool"),
    *("check_uce_in_memory", "current_blas_handle", "make_graphed_callables", "memory_snapshot", "stress_detect"),
    *("obfuscation_calculate", "obfuscation_finalize", "obfuscation_initialize", "restart_device", "stop_device"),
    *("get_device_limit", "set_device_limit", "get_stream_limit", "set_stream_limit", "reset_stream_limit"),
    *("super_kernel_scope_begin", "super_kernel_scope_end"),
)


class Process:
    """The state of torch_npu in one process that uses the simulated device."""

    def __init__(self, npu: Npu) -> None:
        self.runtime = TorchNpuRuntime(npu)
        self.memory: dict[int, AllocatedMemory] = {}
        #: The callbacks that undo what importing modules such as transfer_to_npu changed in PyTorch.
        self.imported = contextlib.ExitStack()

    def memory_of(self, device: Any = None) -> AllocatedMemory:
        """Return the memory statistics of a device, for None those of the current device."""
        index = device_index(device)
        return self.memory.setdefault(self.runtime.current if index < 0 else index, AllocatedMemory())


def make(process: Process) -> dict[str, Union[ModuleType, Fill]]:
    """Return the modules of the fake torch_npu by name."""
    runtime = process.runtime
    interface = NpuInterface(runtime).members()
    streams = make_streams(interface["current_device"])
    base = {**interface, **streams}
    graphs = make_graphs(runtime.npu, base)
    seeds, settings, memory = make_seeds(runtime), make_settings(runtime), make_memory(process.memory_of)
    amp = make_amp()
    known = {**base, **graphs, **seeds, **settings, **memory, **make_autocast(), **make_tensor_types()}
    names = {f"torch_npu.npu.{name}": name for name in _MISSING}
    npu = {**{name: missing(path) for path, name in names.items()}, **known, **dropping_dump(runtime)}
    members = {
        "torch_npu": {
            "__version__": "2.13.0",
            **npu_operators(lambda name: missing(f"torch_npu.{name}")),
            **_formats(),
        },
        "torch_npu._C": _c_extension(runtime),
        "torch_npu.contrib": {},
        "torch_npu.npu": {**npu, "mstx": make_mstx()},
        "torch_npu.npu.amp": amp,
        "torch_npu.npu.amp.autocast_mode": amp,
        "torch_npu.npu.amp.grad_scaler": amp,
        "torch_npu.npu.memory": memory,
        "torch_npu.npu.npu_config": dropping_dump(runtime),
        "torch_npu.npu.random": seeds,
        "torch_npu.npu.streams": streams,
        "torch_npu.npu.utils": {**base, **checked_dump(runtime), **_utils(runtime)},
        "torch_npu.optim": make_optimizers(),
        "torch_npu.profiler": make_profiler(),
        "torch_npu.utils": {},
        "torch_npu.utils._error_code": _error_codes(),
    }
    modules: dict[str, Union[ModuleType, Fill]] = {name: _module(name, members) for name, members in members.items()}
    torch_npu = modules["torch_npu"]

    def transfer(module: ModuleType) -> None:
        process.imported.enter_context(transferred(torch_npu))

    return {**modules, "torch_npu.contrib.transfer_to_npu": transfer}


def missing(path: str) -> Any:
    """Return a function that raises NotSupported. It stands for the name `path` of torch_npu, which the fake lacks."""

    def call(*args: Any, **kwargs: Any) -> Any:
        raise NotSupported(f"the fake torch_npu has no {path}", hint=f"do not call {path} on the simulated device")

    call.__name__ = path.rpartition(".")[2]
    return call


def _module(name: str, members: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name)
    if name in ("torch_npu", "torch_npu.contrib", "torch_npu.npu", "torch_npu.npu.amp", "torch_npu.utils"):
        module.__path__ = []
    for key, value in members.items():
        setattr(module, key, value)
    return module


def _formats() -> dict[str, Any]:
    """Return torch_npu's functions for memory formats. Tensors of the fake are always in format ND."""

    def get_storage_size(tensor: torch.Tensor) -> int:
        return int(tensor.untyped_storage().nbytes() // tensor.element_size())

    return {
        "get_npu_format": lambda tensor: _ND,
        "get_storage_size": get_storage_size,
        **dict.fromkeys(("npu_format_cast", "npu_format_cast_"), lambda tensor, acl_format, **dtypes: tensor),
    }


def _c_extension(runtime: TorchNpuRuntime) -> dict[str, Any]:
    return {
        "_npu_initDump": runtime.init_dump,
        "_npu_setDump": runtime.set_dump,
        "_npu_finalizeDump": runtime.finalize_dump,
        "_npu_setOption": runtime.set_option,
        "_npu_synchronize": runtime.synchronize,
        "_npu_setDevice": runtime.set_device,
        "_npu_getDeviceCount": runtime.device_count,
    }


def _utils(runtime: TorchNpuRuntime) -> dict[str, Any]:
    def is_support_inf_nan() -> bool:
        runtime.lazy_init()
        return runtime.supports_inf_nan()

    def npu_check_overflow(grad: Any) -> bool:
        total = float(grad if isinstance(grad, float) else grad.float().sum())
        return total != total or total in (float("inf"), -float("inf"))

    return {
        "_is_gte_cann_version": lambda version, module="": True,
        "is_support_inf_nan": is_support_inf_nan,
        "npu_check_overflow": npu_check_overflow,
    }


class _ErrorCode(enum.IntEnum):
    """The error codes whose names torchair reads. The numbers are arbitrary."""

    PARAM = 1
    TYPE = 2
    VALUE = 3
    INTERNAL = 4
    NOT_FOUND = 5
    NOT_SUPPORT = 6


def _error_codes() -> dict[str, Any]:
    def make_suffix(area: str) -> Any:
        return lambda code: f"\n[ERROR] (PID:{os.getpid()}, Device:-1, RankID:-1) ERR {area}"

    areas = {"pta_error": "PTA", "graph_error": "GRAPH", "dist_error": "DIST"}
    return {"ErrCode": _ErrorCode, **{name: make_suffix(area) for name, area in areas.items()}}
