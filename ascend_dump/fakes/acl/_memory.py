"""Memory of the fake `acl`: blocks at real addresses, each on the side of the host or of the device.

Where a wrong address would make a device fail or a process crash, the fake returns a code or raises an error. So a
program with such a mistake fails here too.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections import deque
from typing import Any

import numpy as np

from ascend_dump.native.cann.acl_codes import AclError

__all__ = ["DEVICE", "HOST", "Memory", "RtError"]

HOST, DEVICE = "host", "device"
#: aclrtMemcpyKind -> the sides of destination and source. (From acl_rt.h.)
_KINDS = {0: (HOST, HOST), 1: (DEVICE, HOST), 2: (HOST, DEVICE), 3: (DEVICE, DEVICE)}
#: Number of objects that are kept alive because the program has a pointer to them.
_MAX_LENT = 64


class RtError:
    """Error codes of CANN's runtime that acl passes on to programs. (From rt_error_codes.h.)"""

    PARAM_INVALID = 107000
    INVALID_DEVICEID = 107001
    CONTEXT_NULL = 107002
    STREAM_CONTEXT = 107003
    MEMORY_ALLOCATION = 207001


class Memory:
    """The allocated blocks of host and device. Device blocks are simulated in host memory that host functions refuse.

    limit: number of bytes that can be allocated.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._starts: list[int] = []
        self._blocks: dict[int, tuple[Any, int, str]] = {}
        self._lent: deque[object] = deque(maxlen=_MAX_LENT)

    def allocate(self, size: int, side: str) -> tuple[int, int]:
        """Allocate `size` bytes on a side, and return address and code. After a failure the address is 0."""
        if not _is_count(size) or size == 0:
            return 0, AclError.INVALID_PARAM
        if self._used + size > self._limit:
            return 0, RtError.MEMORY_ALLOCATION
        block = (ctypes.c_char * size)()
        address = ctypes.addressof(block)
        self._starts.insert(bisect_right(self._starts, address), address)
        self._blocks[address] = (block, size, side)
        self._used += size
        return address, AclError.SUCCESS

    def release(self, address: int, side: str) -> int:
        if self._blocks.get(address, (None, 0, ""))[2] != side:
            return AclError.INVALID_PARAM
        self._used -= self._blocks.pop(address)[1]
        self._starts.remove(address)
        return AclError.SUCCESS

    def side(self, address: int, size: int) -> str:
        """Return the side of a range of bytes; "" if it reaches beyond the end of its block.

        An address outside of all blocks is memory of the program, on the host.
        """
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return HOST
        start = self._starts[index]
        _, length, side = self._blocks[start]
        if address >= start + length:
            return HOST
        return side if address + size <= start + length else ""

    def copy(self, target: int, room: int, source: int, count: int, kind: int) -> int:
        if not all(map(_is_count, (target, room, source, count))) or kind not in _KINDS:
            return AclError.INVALID_PARAM
        if not target or not source or count > room:
            return AclError.INVALID_PARAM
        if (self.side(target, count), self.side(source, count)) != _KINDS[kind]:
            return RtError.PARAM_INVALID
        ctypes.memmove(target, source, count)
        return AclError.SUCCESS

    def fill(self, target: int, room: int, value: int, count: int) -> int:
        if not all(map(_is_count, (target, room, count))) or not target or count > room:
            return AclError.INVALID_PARAM
        if not self.side(target, count):
            return RtError.PARAM_INVALID
        ctypes.memset(target, value, count)
        return AclError.SUCCESS

    def device_bytes(self, address: int, size: int) -> bytes:
        """Return a copy of device memory. Raises ValueError for other memory."""
        self._require(address, size, DEVICE)
        return ctypes.string_at(address, size)

    def device_write(self, address: int, data: bytes) -> None:
        self._require(address, len(data), DEVICE)
        ctypes.memmove(address, data, len(data))

    def host_view(self, address: int, size: int) -> Any:
        """Return an array of ctypes that shares host memory. Raises ValueError for memory of the device."""
        self._require(address, size, HOST)
        kind = ctypes.c_char * size
        index = bisect_right(self._starts, address) - 1
        if index >= 0:
            block, length, _ = self._blocks[self._starts[index]]
            if address < self._starts[index] + length:
                # `from_buffer` keeps the block alive as long as the view or an array made from it.
                return kind.from_buffer(block, address - self._starts[index])
        return kind.from_address(address)

    def lend(self, data: bytes) -> int:
        """Return the address of a bytes object. The objects of the last `_MAX_LENT` calls are kept alive."""
        self._lent.append(data)
        return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0

    def lend_array(self, array: np.ndarray[Any, Any]) -> int:
        self._lent.append(array)
        return int(array.ctypes.data)

    def _require(self, address: int, size: int, side: str) -> None:
        if not address or self.side(address, size) != side:
            raise ValueError(
                f"address {address:#x} with {size} bytes is not {side} memory: on a device this ends the process"
            )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
