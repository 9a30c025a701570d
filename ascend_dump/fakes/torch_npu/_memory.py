"""Memory statistics of the simulated NPU: the number of bytes in the storages that exist. No memory is cached."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["TOTAL_MEMORY", "AllocatedMemory", "make_memory"]

#: Memory of a simulated device in bytes.
TOTAL_MEMORY = 64 << 30


class AllocatedMemory:
    """The memory that the storages of one device take.

    PyTorch does not report that a storage is freed. So the sum of the sizes is an upper bound, and the storages that
    still exist are counted only if this bound exceeds the highest sum so far (`peak`).
    """

    def __init__(self) -> None:
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._bound = 0
        self.peak = 0

    def add(self, storage: torch.UntypedStorage) -> None:
        """Count a new storage, or a storage whose size changed."""
        size = storage.nbytes()
        self._storages[storage._cdata] = (StorageWeakRef(storage), size)
        self._bound += size
        if self._bound > self.peak:
            self.peak = max(self.peak, self.current())

    def current(self) -> int:
        """Return the number of bytes in the storages that exist."""
        self._storages = {key: value for key, value in self._storages.items() if not value[0].expired()}
        self._bound = sum(size for _, size in self._storages.values())
        return self._bound

    def reset_peak(self) -> None:
        self.peak = self.current()


def make_memory(memory: Callable[[Any], AllocatedMemory]) -> dict[str, Any]:
    """Return the functions of `torch_npu.npu` for memory.

    memory: returns the `AllocatedMemory` of a device, which is given as a program does: a number, a name, or None.
    """

    def memory_allocated(device: Any = None) -> int:
        return memory(device).current()

    def max_memory_allocated(device: Any = None) -> int:
        return memory(device).peak

    def reset_peak_memory_stats(device: Any = None) -> None:
        memory(device).reset_peak()

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        return TOTAL_MEMORY - memory_allocated(device), TOTAL_MEMORY

    def memory_stats(device: Any = None) -> OrderedDict[str, int]:
        values = {"current": memory_allocated(device), "peak": max_memory_allocated(device)}
        kinds = ("active_bytes", "allocated_bytes", "reserved_bytes", "requested_bytes")
        stats = {f"{kind}.all.{name}": value for kind in kinds for name, value in values.items()}
        return OrderedDict(sorted({**stats, "num_alloc_retries": 0, "num_ooms": 0}.items()))

    def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
        nested: dict[str, Any] = {}
        for key, value in memory_stats(device).items():
            *path, last = key.split(".")
            level = nested
            for part in path:
                level = level.setdefault(part, {})
            level[last] = value
        return nested

    def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
        return "\n".join(f"{name:32}{value:>20}" for name, value in memory_stats(device).items())

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def set_fraction(fraction: float, device: Any = None) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value:{fraction}. Allowed range: 0~1")
        fractions[device] = fraction

    fractions: dict[Any, float] = {}
    peak_resets = ("reset_max_memory_allocated", "reset_max_memory_cached", "reset_peak_memory_stats")
    caches = ("empty_cache", "empty_virt_addr_cache", "host_empty_cache", "ipc_collect")
    counts = ("accumulated_memory_stats", "accumulated_host_memory_stats", "peak_host_memory_stats")
    host = {"host_memory_stats": OrderedDict, "host_memory_stats_as_nested_dict": dict}
    return {
        **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_cached"), memory_allocated),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "max_memory_cached"), max_memory_allocated),
        **dict.fromkeys(peak_resets, reset_peak_memory_stats),
        **dict.fromkeys((*caches, *(f"reset_{count}" for count in counts)), nothing),
        **{function.__name__: function for function in (mem_get_info, memory_stats, memory_stats_as_nested_dict)},
        **host,
        "memory_summary": memory_summary,
        "set_per_process_memory_fraction": set_fraction,
        "get_per_process_memory_fraction": lambda device=None: fractions.get(device, 1.0),
        "get_allocator_backend": lambda: "native",
    }
