"""`torch_npu.contrib.transfer_to_npu`, which lets programs that were written for CUDA run on the NPU.

Source: this module of torch_npu 2.13. Left out are its changes of `torch.jit`, inductor, profilers of third parties
and the libraries in `apis_config.json`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._device

from ascend_dump.fakes.torch_npu._replace import replace

__all__ = ["transferred"]

_FACTORIES = (
    *("arange", "as_tensor", "bartlett_window", "blackman_window", "empty", "empty_like", "empty_strided", "eye"),
    *("from_file", "full", "full_like", "get_device_module", "hamming_window", "hann_window", "kaiser_window"),
    *("linspace", "load", "logspace", "normal", "ones", "ones_like", "rand", "rand_like", "randint", "randint_like"),
    *("randn", "randn_like", "randperm", "range", "scalar_tensor", "set_default_device", "tensor", "tril_indices"),
    *("triu_indices", "zeros", "zeros_like", "get_autocast_dtype", "set_autocast_dtype", "is_autocast_enabled"),
)
_METHODS = (*("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros", "to", "pin_memory"),)


@contextlib.contextmanager
def transferred(torch_npu: Any) -> Iterator[None]:
    """Let the names of PyTorch for CUDA mean the NPU for the duration of the block."""
    npu = torch_npu.npu
    public = [name for name in vars(npu) if not name.startswith("__")]
    with contextlib.ExitStack() as undo:
        put = functools.partial(_put, undo)
        for name in public:
            put(torch.cuda, name, getattr(npu, name))
        put(torch.cuda, "CUDAGraph", npu.NPUGraph)
        put(torch.cuda, "DoubleTensor", npu.FloatTensor)
        put(torch.Tensor, "cuda", torch.Tensor.npu)
        put(torch.Tensor, "is_cuda", torch.Tensor.is_npu)
        put(torch.nn.Module, "cuda", torch.nn.Module.npu)
        put(torch, "get_autocast_gpu_dtype", npu.get_autocast_dtype)
        put(torch, "set_autocast_gpu_dtype", npu.set_autocast_dtype)
        for name in ("profile", "schedule", "tensorboard_trace_handler", "ProfilerAction"):
            put(torch.profiler, name, getattr(torch_npu.profiler, name))
        for owner, names in _wrapped():
            for name in names:
                put(owner, name, _with_npu(owner.__dict__[name]))
        yield


def _put(undo: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    undo.enter_context(replace((owner, name, value)))


def _wrapped() -> list[tuple[Any, tuple[str, ...]]]:
    """Return pairs of an owner and the names of its functions whose arguments may name a CUDA device."""
    wrapped: list[tuple[Any, tuple[str, ...]]] = [
        (torch, _FACTORIES),
        (torch.nn.Module, ("to", "to_empty")),
        (torch.amp.autocast_mode.autocast, ("__init__",)),
        (torch.amp.GradScaler, ("__init__",)),
        (torch.utils._device.DeviceContext, ("__init__",)),
        (torch.nn.parallel.DistributedDataParallel, ("__init__",)),
        (torch, ("Generator",)),
    ]
    if torch.distributed.is_available():
        import torch.distributed.device_mesh as device_mesh

        wrapped += [
            (torch.distributed, ("init_process_group", "new_group")),
            (torch.distributed.distributed_c10d, ("init_process_group",)),
            (device_mesh, ("init_device_mesh",)),
        ]
    return wrapped


def _with_npu(function: Any) -> Any:
    """Return a function that replaces CUDA devices in its arguments by the NPU, and calls `function`."""
    numbers = getattr(function, "__name__", "") in ("to", "to_empty")

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(_npu(value, numbers=numbers) for value in args)
        kwargs = {name: _npu(value, numbers=name == "device") for name, value in kwargs.items()}
        return function(*args, **kwargs)

    return call


def _npu(value: Any, *, numbers: bool = False) -> Any:
    """Return an argument with the NPU in place of CUDA, and hccl in place of nccl. numbers: integers are devices."""
    if isinstance(value, str):
        return value.replace("cuda", "npu").replace("nccl", "hccl")
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("npu", value.index) if value.index is not None else torch.device("npu")
    if numbers and isinstance(value, int) and not isinstance(value, bool):
        return torch.device("npu", value)
    if type(value) is dict:
        return {_npu(key): _npu(item) for key, item in value.items()}
    return value
