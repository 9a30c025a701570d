"""The modules of the fake `torch_npu`, with the functions that training scripts call before a capture."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Optional

import torch

from ascend_dump.fakes.torch_npu._graphs import make_graphs
from ascend_dump.fakes.torch_npu._process import TorchNpuRuntime

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["make"]

_MEMORY = 64 << 30
#: ACL_FORMAT_ND.
_ND = 2


def make(npu: Npu) -> Mapping[str, ModuleType]:
    runtime = TorchNpuRuntime(npu)
    checked, dropping = _checked_dump(runtime), _dropping_dump(runtime)
    device = _NpuInterface(runtime)
    graphs = make_graphs(npu, device.synchronize)
    members = {
        "torch_npu": {
            "__version__": "2.13.0",
            "get_npu_format": lambda tensor: _ND,
            "get_storage_size": lambda tensor: tensor.untyped_storage().nbytes() // tensor.element_size(),
            "npu_format_cast": lambda tensor, acl_format: tensor,
        },
        "torch_npu._C": _native(runtime, device),
        "torch_npu.npu": {**_members(device), **graphs, **dropping, **_seeds(), **_memory(), **_surroundings()},
        "torch_npu.npu.utils": {
            **_members(device),
            **checked,
            "_is_gte_cann_version": lambda version, module="": True,
            "is_support_inf_nan": device.is_support_inf_nan,
        },
        "torch_npu.npu.npu_config": {**dropping},
        "torch_npu.utils": {},
        "torch_npu.utils._error_code": _error_codes(),
    }
    return {name: _module(name, members) for name, members in members.items()}


def _module(name: str, members: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name)
    if name in ("torch_npu", "torch_npu.npu", "torch_npu.utils"):
        module.__path__ = []
    for key, value in members.items():
        setattr(module, key, value)
    return module


def _checked_dump(runtime: TorchNpuRuntime) -> dict[str, Any]:
    """Return the dump functions of `npu/utils.py`."""

    def init_dump() -> None:
        runtime.lazy_init()
        runtime.init_dump()

    def set_dump(cfg_file: Any) -> None:
        runtime.lazy_init()
        runtime.set_dump(os.path.realpath(cfg_file))

    def finalize_dump() -> None:
        runtime.lazy_init()
        runtime.finalize_dump()

    return {"init_dump": init_dump, "set_dump": set_dump, "finalize_dump": finalize_dump}


def _dropping_dump(runtime: TorchNpuRuntime) -> dict[str, Any]:
    """Return the dump functions of `npu/npu_config.py`."""

    def init_dump() -> None:
        runtime.set_option({"mdldumpswitch": "enable"})

    def set_dump(cfg_file: Any) -> None:
        if not os.path.exists(cfg_file):
            raise AssertionError(f"cfg_file {cfg_file} path does not exists.")
        runtime.set_option({"mdldumpconfigpath": os.path.realpath(cfg_file)})

    def finalize_dump() -> None:
        runtime.set_option({"mdldumpswitch": "disable"})

    def set_option(option: Any) -> None:
        if not isinstance(option, dict):
            raise TypeError("npu option must be a dict.")
        runtime.set_option({name: str(value) for name, value in option.items()})

    def set_compile_mode(jit_compile: bool = False) -> None:
        runtime.set_option({"jitCompile": "enable" if jit_compile else "disable"})

    dump = {"init_dump": init_dump, "set_dump": set_dump, "finalize_dump": finalize_dump}
    return {**dump, "set_option": set_option, "set_compile_mode": set_compile_mode}


def _native(runtime: TorchNpuRuntime, device: _NpuInterface) -> dict[str, Any]:
    return {
        "_npu_initDump": runtime.init_dump,
        "_npu_setDump": runtime.set_dump,
        "_npu_finalizeDump": runtime.finalize_dump,
        "_npu_setOption": runtime.set_option,
        "_npu_synchronize": runtime.synchronize,
        "_npu_setDevice": runtime.set_device,
        "_npu_getDeviceCount": device.device_count,
    }


class _NpuInterface:
    """The functions of `torch_npu.npu` about devices and streams."""

    def __init__(self, runtime: TorchNpuRuntime) -> None:
        self._runtime = runtime

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self._runtime.initialised

    def init(self) -> None:
        self._runtime.lazy_init()

    def _lazy_init(self) -> None:
        self._runtime.lazy_init()

    def device_count(self) -> int:
        return self._runtime.npu.device_id + 1

    def current_device(self) -> int:
        self._runtime.lazy_init()
        return self._runtime.npu.device_id

    def set_device(self, device: Any) -> None:
        index = _index(device)
        if index >= 0:
            self._runtime.set_device(index)

    def synchronize(self, device: Any = None) -> None:
        self._runtime.lazy_init()
        self._runtime.synchronize()

    def is_support_inf_nan(self) -> bool:
        self._runtime.lazy_init()
        return self._runtime.supports_inf_nan()

    def get_device_name(self, device_name: Any = None) -> str:
        return self._runtime.npu.soc

    def get_device_properties(self, device_name: Any = None) -> Any:
        return SimpleNamespace(name=self._runtime.npu.soc, total_memory=_MEMORY)

    def current_stream(self, device: Any = None) -> _Stream:
        return _Stream()

    default_stream = current_stream


def _members(part: object) -> dict[str, Any]:
    names = [name for name in dir(part) if not name.startswith("_") or name == "_lazy_init"]
    functions = {name: getattr(part, name) for name in names}
    return {**functions, "device": _DeviceContext, "stream": _DeviceContext, "Stream": _Stream, "Event": _Event}


def _index(device: Any) -> int:
    """Return the device number in an integer or a name such as `npu:1`; -1 for None."""
    if device is None:
        return -1
    if isinstance(device, int):
        return device
    if isinstance(device, str) and device.startswith("npu"):
        return int(device.partition(":")[2] or 0)
    raise ValueError(f"Expected a npu device, but got: {device}")


class _DeviceContext:
    """`with torch_npu.npu.device(0):` and `with torch_npu.npu.stream(s):`, for the only device and stream."""

    def __init__(self, which: Any = None) -> None:
        self.which = which

    def __enter__(self) -> _DeviceContext:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class _Stream:
    """The only stream. Work is done when it is requested, so there is nothing to wait for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.npu_stream = 0

    def synchronize(self) -> None:
        return None

    def wait_stream(self, stream: Any) -> None:
        return None

    def wait_event(self, event: Any) -> None:
        return None

    def record_event(self, event: Optional[Any] = None) -> Any:
        return event or _Event()

    def query(self) -> bool:
        return True


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._recorded = False

    def record(self, stream: Any = None) -> None:
        self._recorded = True

    def wait(self, stream: Any = None) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 0.0


def _seeds() -> dict[str, Any]:
    """Return the functions of the only random generator, the host's."""
    return {
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": lambda device="npu": torch.get_rng_state(),
        "set_rng_state": lambda new_state, device="npu": torch.set_rng_state(new_state),
        "initial_seed": torch.initial_seed,
    }


def _memory() -> dict[str, Any]:
    """Return the memory statistics: nothing is allocated on the device."""

    def nothing(device: Any = None) -> int:
        return 0

    def empty_cache() -> None:
        return None

    names = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    return {
        **dict.fromkeys(names, nothing),
        "reset_peak_memory_stats": lambda device=None: None,
        "mem_get_info": lambda device=None: (_MEMORY, _MEMORY),
        "empty_cache": empty_cache,
    }


def _surroundings() -> dict[str, Any]:
    return {
        "config": SimpleNamespace(allow_internal_format=False),
        "matmul": SimpleNamespace(allow_hf32=False),
        "conv": SimpleNamespace(allow_hf32=True),
        "is_bf16_supported": lambda: True,
        "_get_deterministic_level": lambda: 0,
    }


class _ErrorCode(enum.IntEnum):
    """The members that torchair reads; their numbers are not torch_npu's."""

    PARAM = 1
    TYPE = 2
    VALUE = 3
    INTERNAL = 4
    NOT_FOUND = 5
    NOT_SUPPORT = 6


def _error_codes() -> dict[str, Any]:
    def make(area: str) -> Any:
        return lambda code: f"\n[ERROR] (PID:{os.getpid()}, Device:-1, RankID:-1) ERR {area}"

    return {"ErrCode": _ErrorCode, "pta_error": make("PTA"), "graph_error": make("GRAPH"), "dist_error": make("DIST")}
