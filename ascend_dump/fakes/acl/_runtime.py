"""The functions of `acl.rt` and `acl.util` for one `AclProcess`."""

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
#: The type characters of numpy. `ptr_to_numpy` takes the numbers of these types.
_TYPES = "?bBhHiIlLqQefdgFDG"


class AclRuntime:
    """The functions of `acl.rt` for devices, contexts, streams and memory.

    They return a code, or a tuple whose last item is a code.
    """

    def __init__(self, process: AclProcess) -> None:
        self._process = process
        self.set_device = process.set_device
        self.reset_device = process.reset_device
        self.create_context = process.create_context
        self.set_context = process.set_context
        self.get_context = process.get_context
        self.destroy_context = process.destroy_context
        self.create_stream = process.create_stream
        self.synchronize_stream = process.synchronize_stream
        self.synchronize_device = process.synchronize_device

    def get_device(self) -> tuple[int, int]:
        if not self._process.context:
            return 0, RtError.CONTEXT_NULL
        return self._process.npu.device_id, AclError.SUCCESS

    def get_device_count(self) -> tuple[int, int]:
        # Devices with lower numbers exist too. They count as used by other processes, so they cannot be set.
        return self._process.npu.device_id + 1, AclError.SUCCESS

    def get_run_mode(self) -> tuple[int, int]:
        return _RUN_MODE_HOST, AclError.SUCCESS

    def destroy_stream(self, stream: int) -> int:
        return self._process.remove(stream, "stream")

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
    """The functions of `acl.util`: conversions between Python objects and addresses of host memory.

    They raise ValueError where a real process would crash.
    """

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
            raise ValueError(
                "the array is not contiguous, so its address does not describe it: use numpy.ascontiguousarray"
            )
        return self._memory.lend_array(array)

    def ptr_to_numpy(self, ptr: int, shape: Sequence[int], data_type: int) -> np.ndarray[Any, Any]:
        types = {np.dtype(char).num: np.dtype(char) for char in _TYPES}
        if data_type not in types:
            raise ValueError(f"data_type={data_type!r}: expected numpy's number of a type, such as 11 for float32")
        dtype = types[data_type]
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return np.frombuffer(self._memory.host_view(ptr, size), dtype=dtype).reshape(tuple(shape))
