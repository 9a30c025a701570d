"""The functions of `torch_npu.npu` for devices, seeds, settings and the dump."""

from __future__ import annotations

import enum
import os
import warnings
from types import SimpleNamespace
from typing import Any, Optional

import torch

from ascend_dump.fakes.torch_npu._memory import TOTAL_MEMORY
from ascend_dump.fakes.torch_npu._process import TorchNpuRuntime

__all__ = ["NpuInterface", "checked_dump", "device_index", "dropping_dump", "make_seeds", "make_settings"]


class NpuInterface:
    """The functions of `torch_npu.npu` that concern devices. Each public method is one of them."""

    def __init__(self, runtime: TorchNpuRuntime) -> None:
        self._runtime = runtime

    def members(self) -> dict[str, Any]:
        """Return the functions by name, with the context managers `device` and `device_of`."""
        names = [name for name in dir(self) if not name.startswith("__") and name not in ("_runtime", "members")]
        return {**{name: getattr(self, name) for name in names}, **_contexts(self)}

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self._runtime.initialised

    def init(self) -> None:
        self._runtime.lazy_init()

    _lazy_init = init

    def _lazy_call(self, call: Any) -> None:
        self._runtime.when_initialised(call)

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return self._runtime.device_count()

    def current_device(self) -> int:
        self._runtime.lazy_init()
        return self._runtime.current

    def set_device(self, device: Any) -> None:
        index = device_index(device)
        if index >= 0:
            self._runtime.set_device(index)

    def synchronize(self, device: Any = None) -> None:
        self._runtime.lazy_init()
        self._runtime.synchronize()

    def get_device_name(self, device_name: Any = None) -> str:
        return self._runtime.npu.soc

    def get_device_properties(self, device_name: Any = None) -> Any:
        return SimpleNamespace(name=self._runtime.npu.soc, total_memory=TOTAL_MEMORY, L2_cache_size=192 << 20)

    def get_device_capability(self, device: Any = None) -> Optional[tuple[int, int]]:
        """Return the two numbers in the variable TORCH_NPU_DEVICE_CAPABILITY, such as "9.0"; None for other texts."""
        major, _, minor = self._runtime.npu.environ.get("TORCH_NPU_DEVICE_CAPABILITY", "").partition(".")
        return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None

    def can_device_access_peer(self, device_id: Any, peer_device_id: Any) -> bool:
        return device_index(device_id) != device_index(peer_device_id)

    def utilization(self, device: Any = None) -> int:
        """Return 0: the simulated device is idle between operators."""
        return 0


def device_index(device: Any) -> int:
    """Return the number of a device, which is a number, a name such as `npu:1`, or a torch.device; -1 for None.

    Raises ValueError for a device of another type.
    """
    if device is None:
        return -1
    if isinstance(device, int):
        return device
    if isinstance(device, (str, torch.device)) and torch.device(device).type == "npu":
        return torch.device(device).index or 0
    raise ValueError(f"Expected a npu device, but got: {device}")


def _contexts(interface: NpuInterface) -> dict[str, Any]:
    class device:  # noqa: N801  (torch_npu's name)
        """The context manager of `with torch.npu.device(1):`."""

        def __init__(self, device: Any) -> None:
            self.idx = device_index(device)
            self.prev_idx = -1

        def __enter__(self) -> None:
            if self.idx >= 0:
                self.prev_idx = interface.current_device()
                interface.set_device(self.idx)

        def __exit__(self, *error: object) -> None:
            interface.set_device(None if self.prev_idx < 0 else self.prev_idx)

    class device_of(device):  # noqa: N801
        """The context manager that selects the device of a tensor. For a host tensor it changes nothing."""

        def __init__(self, obj: torch.Tensor) -> None:
            super().__init__(obj.device if obj.device.type == "npu" else None)

    return {"device": device, "device_of": device_of}


def checked_dump(runtime: TorchNpuRuntime) -> dict[str, Any]:
    """Return the dump functions of `torch_npu.npu.utils`. They raise an error if acl refuses a call."""

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


def dropping_dump(runtime: TorchNpuRuntime) -> dict[str, Any]:
    """Return the dump functions of `torch_npu.npu.npu_config`. They ignore the return codes of acl."""

    def init_dump() -> None:
        runtime.set_option({"mdldumpswitch": "enable"})

    def set_dump(cfg_file: Any) -> None:
        if not os.path.exists(cfg_file):
            raise AssertionError(f"cfg_file {cfg_file} path does not exists.")
        runtime.set_option({"mdldumpconfigpath": os.path.realpath(cfg_file)})

    def finalize_dump() -> None:
        runtime.set_option({"mdldumpswitch": "disable"})

    return {"init_dump": init_dump, "set_dump": set_dump, "finalize_dump": finalize_dump}


def make_seeds(runtime: TorchNpuRuntime) -> dict[str, Any]:
    """Return the functions for random numbers. The device has no generator of its own: all use that of the host."""
    generator = torch.default_generator

    def get_rng_state(device: Any = "npu") -> torch.Tensor:
        return generator.get_state()

    def set_rng_state(new_state: torch.Tensor, device: Any = "npu") -> None:
        generator.set_state(new_state)

    def set_rng_state_all(new_states: Any) -> None:
        for state in new_states:
            set_rng_state(state)

    return {
        **dict.fromkeys(("manual_seed", "manual_seed_all"), generator.manual_seed),
        **dict.fromkeys(("seed", "seed_all"), generator.seed),
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "get_rng_state_all": lambda: [get_rng_state() for _ in range(runtime.device_count())],
        "set_rng_state_all": set_rng_state_all,
        "initial_seed": torch.initial_seed,
        "default_generators": (generator,),
    }


class CubeMathType(enum.IntEnum):
    """The types in which matrix products of float32 may be computed."""

    KEEP_DTYPE = 0
    ALLOW_FP32_DOWN_PRECISION = 1
    USE_FP16 = 2
    USE_HF32 = 3
    USE_FP32_ADD = 4


def make_settings(runtime: TorchNpuRuntime) -> dict[str, Any]:
    """Return the functions that set and return settings of kernels and queues.

    The values are stored. Except options of the dump (`set_option`), they have no effect here.
    """
    values: dict[str, Any] = {"task_queue": 1, "sync_debug": 0, "nd": True, "deterministic": 0, "compatible": False}

    def setter(name: str, convert: Any = lambda value: value) -> Any:
        def set_value(value: Any = True) -> None:
            values[name] = convert(value)

        return set_value

    def getter(name: str) -> Any:
        return lambda: values[name]

    def set_option(option: Any) -> None:
        if not isinstance(option, dict):
            raise TypeError("npu option must be a dict.")
        if option.get("MM_BMM_ND_ENABLE") in ("enable", "disable"):
            values["nd"] = option["MM_BMM_ND_ENABLE"] == "enable"
        values.update({name: str(value) for name, value in option.items()})
        runtime.set_option({name: str(value) for name, value in option.items()})

    def set_compile_mode(jit_compile: bool = False) -> None:
        set_option({"jitCompile": "enable" if jit_compile else "disable"})

    def set_aoe(dump_path: str) -> None:
        os.makedirs(dump_path, exist_ok=True)
        set_option({"autotune": "enable", "autotunegraphdumppath": dump_path})

    modes = {"default": 0, "warn": 1, "error": 2}
    return {
        "set_option": set_option,
        "set_compile_mode": set_compile_mode,
        "set_aoe": set_aoe,
        "is_jit_compile_false": lambda: values.get("jitCompile", "disable") == "disable",
        "set_mm_bmm_format_nd": setter("nd", bool),
        "get_mm_bmm_format_nd": getter("nd"),
        "set_sync_debug_mode": setter("sync_debug", lambda mode: modes.get(mode, mode)),
        "get_sync_debug_mode": getter("sync_debug"),
        "set_task_queue_enable": setter("task_queue", int),
        "get_task_queue_enable": getter("task_queue"),
        "set_deterministic_level": setter("deterministic"),
        "_get_deterministic_level": getter("deterministic"),
        "use_compatible_impl": setter("compatible", bool),
        "are_compatible_impl_enabled": getter("compatible"),
        "set_op_timeout_ms": setter("timeout"),
        "enable_deterministic_with_backward": lambda tensor: tensor,
        "disable_deterministic_with_backward": lambda tensor: tensor,
        "CubeMathType": CubeMathType,
        "config": SimpleNamespace(allow_internal_format=False),
        "matmul": SimpleNamespace(allow_hf32=False),
        "conv": SimpleNamespace(allow_hf32=True),
        "clear_npu_overflow_flag": _clear_overflow_flag,
        "get_npu_overflow_flag": _overflow_flag,
        "is_bf16_supported": lambda including_emulation=False: True,
    }


def _clear_overflow_flag() -> None:
    warnings.warn(
        "When soc_version >= Ascend910B1, clear_npu_overflow_flag is useless. Please remove it.", stacklevel=2
    )


def _overflow_flag() -> bool:
    raise RuntimeError("Unsupported api when soc_version >= Ascend910B1, please use npu_check_overflow")
