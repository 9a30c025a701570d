"""The functions of `acl.rt` and `acl.util` over one `AclProcess`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ascend_dump.fakes.acl._memory import DEVICE, HOST, RtError
from ascend_dump.native.cann.acl_codes import AclError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ascend_dump.fakes.acl.process import AclProcess

__all__ = ["AclRuntime", "Util"]

#: aclrtRunMode: the program runs on the host.
_RUN_MODE_HOST = 1
#: The characters of numpy's own types, whose numbers `ptr_to_numpy` takes.
_TYPES = "?bBhHiIlLqQefdgFDG"


class AclRuntime:
    """Devices, contexts, streams and memory; every function returns a code, alone or last."""

    def __init__(self, process: AclProcess) -> None:
        self._process = process

    def set_device(self, device_id: int) -> int:
        return self._process.set_device(device_id)

    def reset_device(self, device_id: int) -> int:
        return self._process.reset_device(device_id)

    def get_device(self) -> tuple[int, int]:
        if not self._process.context:
            return 0, RtError.CONTEXT_NULL
        return self._process.npu.device_id, AclError.SUCCESS

    def get_device_count(self) -> tuple[int, int]:
        # Devices before the simulated one exist, but are somebody else's.
        return self._process.npu.device_id + 1, AclError.SUCCESS

    def get_run_mode(self) -> tuple[int, int]:
        return _RUN_MODE_HOST, AclError.SUCCESS

    def create_context(self, device_id: int) -> tuple[int, int]:
        return self._process.create_context(device_id)

    def set_context(self, context: int) -> int:
        return self._process.set_context(context)

    def get_context(self) -> tuple[int, int]:
        return self._process.get_context()

    def destroy_context(self, context: int) -> int:
        return self._process.destroy_context(context)

    def create_stream(self) -> tuple[int, int]:
        return self._process.create_stream()

    def destroy_stream(self, stream: int) -> int:
        return self._process.remove(stream, "stream")

    def synchronize_stream(self, stream: int) -> int:
        return self._process.synchronize_stream(stream)

    def synchronize_device(self) -> int:
        return self._process.synchronize_device()

    def malloc(self, size: int, policy: int) -> tuple[int, int]:
        if not self._process.context:
            return 0, RtError.CONTEXT_NULL
        return self._process.memory.allocate(size, DEVICE)

    def free(self, ptr: int) -> int:
        return self._process.memory.release(ptr, DEVICE)

    def malloc_host(self, size: int) -> tuple[int, int]:
        if not self._process.context:
            return 0, RtError.CONTEXT_NULL
        return self._process.memory.allocate(size, HOST)

    def free_host(self, ptr: int) -> int:
        return self._process.memory.release(ptr, HOST)

    def memcpy(self, dst: int, dest_max: int, src: int, count: int, kind: int) -> int:
        if not self._process.context:
            return RtError.CONTEXT_NULL
        return self._process.memory.copy(dst, dest_max, src, count, kind)

    def memcpy_async(self, dst: int, dest_max: int, src: int, count: int, kind: int, stream: int) -> int:
        return self._process.enqueue(stream, lambda: self._process.memory.copy(dst, dest_max, src, count, kind))

    def memset(self, ptr: int, max_count: int, value: int, count: int) -> int:
        if not self._process.context:
            return RtError.CONTEXT_NULL
        return self._process.memory.fill(ptr, max_count, value, count)


class Util:
    """Between Python objects and addresses of the host. Raises ValueError where a process would crash."""

    def __init__(self, process: AclProcess) -> None:
        self._memory = process.memory

    def bytes_to_ptr(self, data: bytes) -> int:
        if not isinstance(data, bytes):
            raise TypeError(f"argument must be bytes, not {type(data).__name__}")
        return self._memory.lend(data)

    def ptr_to_bytes(self, ptr: int, size: int) -> bytes:
        return bytes(self._memory.host_view(ptr, size))

    def numpy_to_ptr(self, array: np.ndarray[Any, Any]) -> int:
        if not array.flags.c_contiguous:
            raise ValueError("the array is not contiguous: its address says nothing; use numpy.ascontiguousarray")
        return self._memory.lend_array(array)

    def ptr_to_numpy(self, ptr: int, shape: Sequence[int], data_type: int) -> np.ndarray[Any, Any]:
        known = {np.dtype(char).num: np.dtype(char) for char in _TYPES}
        if data_type not in known:
            raise ValueError(f"data_type={data_type!r}: expected numpy's number of a type, such as 11 for float32")
        dtype = known[data_type]
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return np.frombuffer(self._memory.host_view(ptr, size), dtype=dtype).reshape(tuple(shape))
