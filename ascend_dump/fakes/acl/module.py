"""A fake of pyACL's module `acl`, for applications that run offline models.

    with ascend_dump.fakes.install("acl") as npu:
        import acl
        acl.init("acl.json")

The return codes, the order of checks and the dump interface are those of the real library. A model is not a real .om
file, but a JSON file (`ascend_dump.fakes.device.offline_model`). The simulated device executes it, and writes the dump.
As in pyACL, paths have to be text: a `pathlib.Path` raises TypeError.

Differences from pyACL on a device:

- `acl.op`, `acl.media` and `acl.prof` do not exist, nor do functions for dynamic shapes and AIPP.
- There is one simulated device. If its number is n, `get_device_count` returns n + 1, but lower ones cannot be set.
- `acl.util` keeps the last 64 bytes objects and arrays alive for which it returned a pointer. In pyACL a pointer is
  valid only as long as the program keeps the object.
- Work in a stream is done when the stream is synchronised, never before. In the default stream (0) it is done at once.
- For an invalid pointer, `acl.util` raises ValueError and `acl.rt.memcpy` returns 107000. A real process crashes.
- `acl.mdl.load_*` before `acl.init` returns 100001. In the real library, only some functions refuse such a call.
- `acl.mdl.finalize_dump` also ends a dump that `acl.init` began. Models stay loaded, but are no longer dumped. CANN's
  documentation asks programs to unload them first.
  (assumption acl.finalize_ends_init) (assumption acl.loaded_models_stop)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable

from ascend_dump.fakes.acl._models import DeviceBuffer, Models
from ascend_dump.fakes.acl._runtime import AclRuntime, Util
from ascend_dump.fakes.acl.process import AclProcess, process_of
from ascend_dump.native.cann.acl_codes import AclError

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["modules"]


class _Acl:
    """The functions of the module `acl` that are in no submodule."""

    def __init__(self, process: AclProcess) -> None:
        self._process = process
        self.init = process.init
        self.finalize = process.finalize
        self.get_recent_err_msg = process.recent_message

    def get_soc_name(self) -> str:
        return self._process.npu.soc

    def create_data_buffer(self, ptr: int, size: int) -> int:
        return self._process.add(("buffer", DeviceBuffer(ptr, size)))

    def destroy_data_buffer(self, buffer: int) -> int:
        return self._process.remove(buffer, "buffer")

    def get_data_buffer_addr(self, buffer: int) -> int:
        return self._data_buffer(buffer).address

    def get_data_buffer_size(self, buffer: int) -> int:
        return self._data_buffer(buffer).size

    get_data_buffer_size_v2 = get_data_buffer_size

    def _data_buffer(self, buffer: int) -> DeviceBuffer:
        data_buffer: DeviceBuffer = self._process.get(buffer, "buffer") or DeviceBuffer(0, 0)
        return data_buffer


def modules(npu: Npu) -> Mapping[str, ModuleType]:
    """Return the modules of pyACL. They use the device `npu`."""
    process = process_of(npu)
    parts = {
        "acl": _Acl(process),
        "acl.rt": AclRuntime(process),
        "acl.mdl": Models(process),
        "acl.util": Util(process),
    }
    return {name: _module(name, part) for name, part in parts.items()}


def _module(name: str, part: object) -> ModuleType:
    module = ModuleType(name, (type(part).__doc__ or "").strip())
    for function in dir(part):
        if not function.startswith("_"):
            setattr(module, function, _with_int_codes(getattr(part, function)))
    return module


def _with_int_codes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that it returns codes as plain int instead of `AclError`, as pyACL does."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        result = function(*args)
        if isinstance(result, tuple):
            return tuple(int(item) if isinstance(item, AclError) else item for item in result)
        return int(result) if isinstance(result, AclError) else result

    return call
