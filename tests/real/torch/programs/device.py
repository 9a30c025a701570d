"""A device of another package, as torch_npu adds one, in Python; a small network trains there under a capture.

The device keeps the bytes of its tensors inverted, so whoever reads its memory without its operators gets wrong values.
Any operator copies its tensors to the host, runs there, and copies back.

    device.py FOLDER    writes dumps of several captures below it, and prints as JSON what was true of them
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch.utils.dlpack import from_dlpack

import ascend_dump

NAME = "npu"


class Module:
    """What PyTorch and we ask of such a device beside operators."""

    graph = False
    waits = 0

    def is_initialized(self) -> bool:
        return True

    is_available = is_initialized

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def is_current_stream_capturing(self) -> bool:
        return self.graph

    def current_stream(self, device: Any = None) -> Module:
        return self

    def synchronize(self) -> None:
        self.waits += 1


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("dimensions", ctypes.c_int32),
        ("type", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("free", _FREE)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_EXTENSION = 12  # kDLExtDev
_CODES = {torch.float32: 2, torch.float64: 2, torch.int64: 0, torch.bool: 6}

#: The memory of the device that is in use, by the address of what describes it.
allocated: dict[int, Any] = {}


@_FREE
def _free(managed: int) -> None:
    del allocated[managed]


def to_device(host: torch.Tensor) -> torch.Tensor:
    count = len(host.shape)
    memory = bytearray(max(host.numel() * host.element_size(), 1))
    data = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    shape, strides = (ctypes.c_int64 * count)(*host.shape), (ctypes.c_int64 * count)(*torch.empty_like(host).stride())
    kind = _Type(_CODES[host.dtype], host.element_size() * 8, 1)
    managed = _Managed(_Tensor(data, _Device(_EXTENSION, 0), count, kind, shape, strides, 0), None, _free)
    allocated[ctypes.addressof(managed)] = (memory, shape, strides, managed)
    tensor = from_dlpack(_new_capsule(ctypes.addressof(managed), b"dltensor", None))
    store(tensor, host)
    return tensor


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return torch.empty(0, dtype=torch.uint8)
    buffer = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    return torch.frombuffer(buffer, dtype=torch.uint8)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    plain = memory_of(tensor).bitwise_not().view(tensor.dtype)
    return plain.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).clone()


def store(tensor: torch.Tensor, host: torch.Tensor) -> None:
    memory = memory_of(tensor)
    plain = memory.bitwise_not().view(tensor.dtype)
    plain.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(host)
    memory.copy_(plain.view(torch.uint8).bitwise_not())


def on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def run(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operator that makes no view."""
    hosts: list[tuple[torch.Tensor, torch.Tensor]] = []

    def lower(value: Any) -> Any:
        if on_device(value):
            hosts.append((value, to_host(value)))
            return hosts[-1][1]
        return torch.device("cpu") if isinstance(value, torch.device) else value

    def lift(value: Any) -> Any:
        same = next((own for own, host in hosts if host is value), None)
        if same is not None:
            return same
        return to_device(value) if isinstance(value, torch.Tensor) else value

    given = dict(zip((argument.name for argument in func._schema.arguments), args), **kwargs)
    writes = [argument for argument in func._schema.arguments if argument.alias_info and argument.alias_info.is_write]
    written = tree_leaves([given.get(argument.name) for argument in writes])
    result = func(*tree_map(lower, args), **tree_map(lower, kwargs))
    for own, host in hosts:
        if any(one is own for one in written):
            store(own, host)
    return tree_map(lift, result)


def add_device() -> Module:
    module = Module()
    _setup_privateuseone_for_python_backend(NAME, module)
    anything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    anything.fallback(run, "PrivateUse1")
    cpu = torch._C.DispatchKey.CPU
    for name in ("view", "as_strided"):  # the kernels of the host make views of any device
        kernel = getattr(torch.ops.aten, name).default
        aten.impl(name, lambda *args, kernel=kernel: kernel._op_dk(cpu, *args), "PrivateUse1")
    # Made of `abs.out` on memory without elements otherwise, which we cannot resize.
    aten.impl("abs", lambda tensor: to_device(to_host(tensor).abs()), "PrivateUse1")
    # Elsewhere it is made of `pow`.
    aten.impl("square", lambda tensor: to_device(to_host(tensor).square()), "PrivateUse1")
    aten.impl("_copy_from", copy_from, "PrivateUse1")
    aten.impl("_local_scalar_dense", lambda tensor: to_host(tensor).item(), "PrivateUse1")
    module.libraries = (anything, aten)
    # Memory that came as DLPack cannot be resized; that of such a device's own allocator can.
    torch.UntypedStorage.resizable = lambda storage: True
    return module


def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    host = to_host(source) if on_device(source) else source
    if on_device(target):
        store(target, host)
    else:
        target.copy_(host)
    return target


def make(device: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(device), torch.randn(4, 6).to(device)


def train(device: str, **settings: Any) -> list[float]:
    """Losses of two steps."""
    model, x = make(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    losses = []
    with ascend_dump.capture(model, strict=True, framework="torch", **settings):
        for _ in range(2):
            loss = (model(x) * 2 + 1).t().mul(0.5).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def main(path: str) -> None:
    module = add_device()
    gc.collect()
    before = len(allocated)
    found: dict[str, Any] = {"losses": {device: train(device, path=f"{path}/{device}") for device in (NAME, "cpu")}}
    with ascend_dump.capture(path=f"{path}/overflow", framework="torch", scene="overflow", strict=True):
        torch.full((2,), 1e38, device=NAME).mul_(100).add_(1)
    gc.collect()
    found["left"] = len(allocated) - before
    x = torch.ones(3).to(NAME)
    with ascend_dump.capture(path=f"{path}/graph", framework="torch", strict=True):
        waits = module.waits
        torch.zeros(3).copy_(x, non_blocking=True)
        found["waits"] = module.waits - waits
        module.graph = True
        y = x * 2
        module.graph = False
        (y + 1).cpu()
    with ascend_dump.capture(path=f"{path}/composite", framework="torch", strict=True), torch.inference_mode():
        x.square()
        torch.ones(3).square()
    with ascend_dump.capture(path=f"{path}/values", framework="torch", strict=True):
        (torch.arange(3.0) * 2).add(1)
    graft = {"mul_0.output.0": f"{path}/values", "add_0.input.0": f"{path}/values"}
    with ascend_dump.capture(path=f"{path}/graft", framework="torch", strict=True, graft=graft):
        product = x * 100
        found["graft"] = [product.tolist(), product.sub(1).tolist(), x.add(1).tolist(), x.tolist()]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
