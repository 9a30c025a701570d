"""PyTorch's private device type under the name `npu`: tensors in host memory, and kernels that run on the host.

An *alias* of a tensor is another tensor, of the host or of the device, with the same memory. An operator on tensors of
the device runs on their host aliases, and its results become tensors of the device without a copy.

PyTorch can rename its private device type only once in a process. So the backend is registered at the first
installation of the fake, and stays. While no fake is installed, its operators raise NotSupported.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Optional, Protocol

import torch

from ascend_dump import FrameworkMissing, NotSupported
from ascend_dump.fakes.torch_npu import _autocast
from ascend_dump.fakes.torch_npu._composed import composed_operators
from ascend_dump.fakes.torch_npu._operators import register_operators

__all__ = ["NAME", "Device", "Operands", "host_alias", "installations", "is_npu", "npu_alias", "register"]

NAME = "npu"
#: File with the names of ATen operators for which torch_npu has kernels. Without a kernel for the device, PyTorch would
#: compose such an operator of others.
_COMPOSED = Path(__file__).with_name("aten_operators.txt")


class Device(Protocol):
    """The interface through which the backend uses the devices of one installation."""

    def use(self, index: Optional[int]) -> int:
        """Initialise the device with this number, or the current one for None, and return its number."""

    def allocated(self, tensor: torch.Tensor) -> None:
        """Count the new memory of a tensor."""

    def launch(
        self, index: int, operands: Sequence[torch.Tensor], func: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operator on device `index`, and return its results, which are host tensors.

        args, kwargs: its arguments, with host aliases. operands: the aliases among them that are inputs.
        """


#: The devices of the active installations, newest last.
installations: list[Device] = []

#: Operators that make a view or set the memory of a tensor. The host's kernels can do that for any device.
_DESCRIBE = (
    *("view", "as_strided", "unfold", "_reshape_alias", "view_as_complex", "view_as_real", "is_set_to"),
    *("set_", "set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor"),
)
#: Operators that accept indices on the host.
_HOST_INDICES = frozenset(("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"))

#: Offset of the device in DLPack's struct DLTensor: it follows the pointer to the data.
_DEVICE_OFFSET = ctypes.sizeof(ctypes.c_void_p)
_DL_CPU, _DL_EXTENSION = 1, 12
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def is_npu(value: Any) -> bool:
    """Return True for a tensor of the device."""
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def host_alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return the host alias of a tensor of the device, with the same view of the same storage."""
    size = tensor.element_size()
    stored = tensor.untyped_storage().nbytes()
    if tensor.numel() * size == stored and not tensor.storage_offset():
        return _with_device(tensor, _DL_CPU, 0)
    # DLPack exports the elements of a view only. So the whole storage is exported, and the view is made of its alias.
    whole = _with_device(tensor.as_strided((stored // size,), (1,), 0), _DL_CPU, 0)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def npu_alias(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """Return a tensor of device `index` with the memory of a host tensor."""
    return _with_device(tensor, _DL_EXTENSION, index)


def _with_device(tensor: torch.Tensor, kind: int, index: int) -> torch.Tensor:
    """Return a tensor with the same memory on another device. kind: DLPack's number of the device type."""
    capsule = torch._C._to_dlpack(tensor)
    address = _capsule_pointer(capsule, b"dltensor") + _DEVICE_OFFSET
    (ctypes.c_int32 * 2).from_address(address)[:] = [kind, index]
    return torch._C._from_dlpack(capsule)


class Operands:
    """The tensors of one call of an operator: pairs of a device's tensor and its host alias, and host tensors."""

    def __init__(self) -> None:
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.host: list[torch.Tensor] = []
        #: The number of the device, None if no argument has a device with a number.
        self.index: Optional[int] = None

    def lower(self, value: Any) -> Any:
        """Return an argument with host aliases in place of device tensors, and the CPU in place of the device."""
        if isinstance(value, torch.Tensor):
            if value.device.type != NAME:
                self.host.append(value)
                return value
            alias = host_alias(value)
            self.pairs.append((value, alias))
            self.index = value.device.index
            return alias
        if isinstance(value, (list, tuple)):
            return [self.lower(item) for item in value]
        if isinstance(value, torch.device) and value.type == NAME:
            if self.index is None:
                self.index = value.index
            return torch.device("cpu")
        return value

    def lift(self, value: Any, index: int) -> Any:
        """Return a result with tensors of device `index` in place of host tensors.

        A result that shares memory with an argument becomes this argument, or a view of it. Host tensors that were
        arguments are returned unchanged.
        """
        if isinstance(value, (list, tuple)):
            return type(value)(self.lift(item, index) for item in value)
        if not isinstance(value, torch.Tensor) or any(value is tensor for tensor in self.host):
            return value
        if value.layout != torch.strided:
            raise NotSupported(f"the fake torch_npu has no {value.layout} tensors", hint="use dense ones")
        storage = value.untyped_storage()._cdata
        for tensor, alias in self.pairs:
            if value is alias:
                return tensor
            if alias.untyped_storage()._cdata == storage:
                return tensor.as_strided(value.shape, value.stride(), value.storage_offset())
        return _allocate(value, index)


def _allocate(values: torch.Tensor, index: int) -> torch.Tensor:
    """Return the alias on device `index` of a host tensor, and count its memory."""
    tensor = npu_alias(values, index)
    if installations:
        installations[-1].allocated(tensor)
    return tensor


def _device(operator: Any) -> Device:
    if installations:
        return installations[-1]
    raise NotSupported(
        f"{operator} runs on a tensor of the device {NAME!r}, and no fake torch_npu is installed",
        hint="use such tensors inside `with ascend_dump.fakes.install('torch_npu')`",
    )


def _run(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that creates no view."""
    device = _device(func)
    # Let backward passes run in the thread that starts them. PyTorch has backward threads only for devices that were
    # registered before the first backward pass of the process, and this device was registered later.
    torch._C._set_multithreading_enabled(False)
    # Hide the calls below from active function modes, which would see them if C++ called the operator (backward pass).
    with torch._C.DisableTorchFunction():
        operands = Operands()
        names = [argument.name for argument in func._schema.arguments if argument.is_out]
        out_tensors = {name: kwargs.pop(name) for name in names if name in kwargs}
        lowered = [operands.lower(value) for value in args]
        keywords = {name: operands.lower(value) for name, value in kwargs.items()}
        inputs = [alias for _, alias in operands.pairs]
        memory = {name: operands.lower(value) for name, value in out_tensors.items()}
        _check_devices(func, operands)
        index = device.use(operands.index)
        launch = functools.partial(device.launch, index, inputs, func, lowered)
        if out_tensors:
            results = _run_with_outputs(launch, keywords, out_tensors, memory)
            return results if func._schema.returns else None
        return operands.lift(launch(keywords), index)


def _check_devices(func: Any, operands: Operands) -> None:
    """Raise PyTorch's RuntimeError if the tensors are on several devices. Host tensors of dimension 0 are accepted."""
    if func._schema.name in _HOST_INDICES or not operands.pairs:
        return
    devices = {str(tensor.device) for tensor, _ in operands.pairs}
    devices |= {str(tensor.device) for tensor in operands.host if tensor.dim()}
    if len(devices) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(devices, reverse=True))}! (when checking arguments of {func})"
        )


def _run_with_outputs(run: Any, kwargs: Any, out_tensors: dict[str, Any], memory: dict[str, Any]) -> Any:
    """Run an operator with `out=`, and return the tensors `out_tensors`.

    memory: their host aliases, to which the results are written. Aliases cannot be resized. So if the size of a result
    differs, the operator runs again on new memory, and the results are copied to the resized tensors.
    """
    computed = memory
    try:
        run({**kwargs, **memory})
    except RuntimeError as error:
        if "not resizable" not in str(error):
            raise
        computed = {
            name: [alias.new_empty(0) for alias in value] if isinstance(value, list) else value.new_empty(0)
            for name, value in memory.items()
        }
        run({**kwargs, **computed})
    for name, value in out_tensors.items():
        for tensor, result in zip(_list(value), _list(computed[name])):
            if tensor.shape != result.shape:
                _resize(tensor, result.shape)
            if computed is not memory:
                host_alias(tensor).copy_(result)
    returned = tuple(out_tensors.values())
    return returned if len(returned) != 1 else returned[0]


def _list(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy a tensor. Only a copy within one device is a kernel; copies from and to the host are not."""
    if is_npu(target) and target.device == source.device:
        return _run(torch.ops.aten.copy_.default, target, source, non_blocking)
    with torch._C.DisableTorchFunction():
        (host_alias(target) if is_npu(target) else target).copy_(host_alias(source) if is_npu(source) else source)
    return target


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return _copy(target, source, non_blocking)


def _to_copy(tensor: torch.Tensor, *, device: Optional[torch.device] = None, **options: Any) -> torch.Tensor:
    copy = torch.ops.aten._to_copy.default
    options.pop("pin_memory", None)
    target = tensor.device if device is None else device
    if target.type == NAME:
        index = _device(copy).use(target.index)
        if not is_npu(tensor) or tensor.device.index != target.index:
            values = host_alias(tensor) if is_npu(tensor) else tensor
            return _allocate(copy(values, device=torch.device("cpu"), **options), index)
        return _run(copy, tensor, **options)
    return copy(host_alias(tensor), device=device, **options)


def _resize(tensor: torch.Tensor, size: Sequence[int], memory_format: Any = None) -> torch.Tensor:
    like = torch.empty(size, dtype=tensor.dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    needed = like.untyped_storage().nbytes() + tensor.storage_offset() * tensor.element_size()
    storage = tensor.untyped_storage()
    if needed > storage.nbytes():
        resize_storage(storage, needed)
    return tensor.set_(storage, tensor.storage_offset(), like.shape, like.stride())


def resize_storage(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
    """Change the size of a storage of the device to `size` bytes, keep the bytes that fit, and return the storage."""
    index = storage.device.index
    memory = torch.empty(size, dtype=torch.uint8)
    kept = min(size, storage.nbytes())
    memory[:kept] = host_alias(as_bytes(storage))[:kept]
    storage._swap_data_ptr_(npu_alias(memory, index).untyped_storage())
    _device("resize_").allocated(as_bytes(storage))
    return storage


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a tensor of uint8 with the memory of a storage of the device."""
    return npu_alias(torch.empty(0, dtype=torch.uint8), storage.device.index).set_(storage)


def _implementations() -> dict[str, Callable[..., Any]]:
    """Return the kernels of the ATen operators that `_run` does not run, by the name of the operator."""
    kernels: dict[str, Callable[..., Any]] = {
        "copy_": _copy,
        "_copy_from": _copy_from,
        "_copy_from_and_resize": _copy_from,
        "_to_copy": _to_copy,
        "resize_": _resize,
        "record_stream": lambda tensor, stream: None,
    }
    for name in _DESCRIBE:
        host_kernel = functools.partial(_overload(name)._op_dk, torch._C.DispatchKey.CPU)
        kernels[name] = host_kernel
    return kernels


def _without_kernel() -> set[str]:
    """Return the names of ATen operators that have no kernel for this device, and that PyTorch does not compose."""
    operators = torch._C._dispatch_get_all_op_names()
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    composites = (
        f"Composite{kind}" for kind in ("ImplicitAutograd", "ExplicitAutograd", "ExplicitAutogradNonFunctional")
    )
    composing = ("PrivateUse1", *composites)
    return {
        operator.partition("::")[2]
        for operator in operators
        if operator.startswith("aten::") and not any(has_kernel(operator, key) for key in composing)
    }


def _run_named(name: str, *args: Any, **kwargs: Any) -> Any:
    return _run(_overload(name), *args, **kwargs)


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


@functools.cache
def register() -> None:
    """Rename PyTorch's private device type to `npu`, and register its kernels. Later calls do nothing.

    Raises FrameworkMissing for a PyTorch that does not support devices written in Python, and NotSupported if another
    package has renamed the device type.
    """
    try:
        from torch.utils.backend_registration import (
            _DummyDeviceGuard,
            _DummyPrivateUse1Hook,
        )
    except ImportError:
        raise FrameworkMissing(
            f"the fake torch_npu needs a PyTorch with devices written in Python, and {torch.__version__} has none",
            hint="install torch 2.13 or newer",
        ) from None
    # These modules define operators of torch_npu when they are imported.
    from ascend_dump.fakes.torch_npu import _attention, _matmul, _moe, _normalization  # noqa: F401

    name = torch._C._get_privateuse1_backend_name()
    if name not in (NAME, "privateuseone"):
        raise NotSupported(
            f"PyTorch's private device is {name!r} in this process already", hint="install the fake in another process"
        )
    # Run a backward pass before the device is registered. It starts PyTorch's backward threads, without one for this
    # device: with such a thread, a forked child could not run a backward pass. `run_backward` is called directly,
    # because captures watch `torch.autograd.backward`.
    root = torch.ones((), requires_grad=True)
    torch.autograd.Variable._execution_engine.run_backward((root,), (torch.ones(()),), False, False, (), True, True)
    torch.utils.rename_privateuse1_backend(NAME)
    torch._C._acc.register_python_privateuseone_hook(_keep(_DummyPrivateUse1Hook()))
    torch._C._acc.register_python_privateuseone_device_guard(_keep(_DummyDeviceGuard()))
    aten, any_library = _keep(torch.library.Library("aten", "IMPL")), _keep(torch.library.Library("_", "IMPL"))
    any_library.fallback(_run, "PrivateUse1")
    kernels = _implementations()
    for name, kernel in kernels.items():
        aten.impl(name, kernel, "PrivateUse1")
    for name in _COMPOSED.read_text(encoding="ascii").split():
        if name not in kernels and torch._C._dispatch_has_kernel(f"aten::{name}"):
            aten.impl(name, functools.partial(_run, _overload(name)), "PrivateUse1")
    # Each operator needs a kernel of its own: when a dispatch mode is switched off, PyTorch does not use the fallback.
    composed = composed_operators(_run)
    for name in sorted(_without_kernel() - kernels.keys() - composed.keys()):
        aten.impl(name, functools.partial(_run_named, name), "PrivateUse1")
    for name, (with_gradients, plain) in composed.items():
        aten.impl(name, with_gradients, "AutogradPrivateUse1")
        aten.impl(name, plain, "PrivateUse1")
    _keep(register_operators(_run))
    any_library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name, rule in _autocast.kernels().items():
        aten.impl(name, rule(_overload(name)), "AutocastPrivateUse1")


_kept: list[Any] = []


def _keep(value: Any) -> Any:
    """Keep an object alive until the process ends, because PyTorch's C++ code holds a pointer to it. Returns it."""
    _kept.append(value)
    return value
