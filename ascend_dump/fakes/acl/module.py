"""A stand-in for pyACL's module `acl`, as far as an application that runs offline models needs it.

    with ascend_dump.fakes.install("acl") as npu:
        import acl
        acl.init("acl.json")

Return codes, their order of checks and the dump interface are those of the real library; models are the
JSON stand-ins of `ascend_dump.fakes.device.offline_model`, executed by the simulated device, which writes the dump.

Known differences from pyACL on a device:

- Only the functions below exist: no `acl.op`, `acl.media`, `acl.prof`, no dynamic shapes or AIPP.
- The simulated device is the only one. Devices with a lower number are counted and cannot be set.
- A pointer made of bytes or of an array is kept valid for the next 64 such calls; the real one only as long
  as the object lives.
- Work given to a stream is done when the stream is synchronised, never before. The default stream (0) is
  synchronous.
- Where a wrong pointer ends the real process, `acl.util` raises ValueError and `acl.rt.memcpy` returns 107000.
- `acl.mdl.load_*` before `acl.init` returns 100001; the real library refuses only some of its functions then.
- `acl.mdl.finalize_dump` also ends a dump that was set by `acl.init`. Models that stay loaded are not dumped
  any more; the documents ask to unload them.
  (assumption acl.finalize_ends_init) (assumption acl.loaded_models_stop)
- Paths must be text: a `pathlib.Path` raises TypeError, as in an extension module.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump.fakes.acl._models import DeviceBuffer, Models
from ascend_dump.fakes.acl._runtime import AclRuntime, Util
from ascend_dump.fakes.acl.process import AclProcess, process_of
from ascend_dump.native.cann.acl_codes import AclError

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["modules"]


class _Acl:
    """The functions of the module `acl` itself."""

    def __init__(self, process: AclProcess) -> None:
        self._process = process

    def init(self, config_path: Optional[str] = None) -> int:
        return self._process.init(config_path)

    def finalize(self) -> int:
        return self._process.finalize()

    def get_soc_name(self) -> str:
        return self._process.npu.soc

    def get_recent_err_msg(self) -> str:
        return self._process.recent_message()

    def create_data_buffer(self, ptr: int, size: int) -> int:
        return self._process.add(("buffer", DeviceBuffer(ptr, size)))

    def destroy_data_buffer(self, buffer: int) -> int:
        return self._process.remove(buffer, "buffer")

    def get_data_buffer_addr(self, buffer: int) -> int:
        return self._buffer(buffer).address

    def get_data_buffer_size(self, buffer: int) -> int:
        return self._buffer(buffer).size

    get_data_buffer_size_v2 = get_data_buffer_size

    def _buffer(self, buffer: int) -> DeviceBuffer:
        found: DeviceBuffer = self._process.get(buffer, "buffer") or DeviceBuffer(0, 0)
        return found


def modules(npu: Npu) -> Mapping[str, ModuleType]:
    """The modules of one process with pyACL, bound to `npu`."""
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
            setattr(module, function, _plain(getattr(part, function)))
    return module


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with plain ints for codes, as an extension module returns them."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        found = function(*args)
        if isinstance(found, tuple):
            return tuple(int(one) if isinstance(one, AclError) else one for one in found)
        return int(found) if isinstance(found, AclError) else found

    return call
