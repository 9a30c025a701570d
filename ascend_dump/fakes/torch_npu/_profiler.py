"""`torch_npu.profiler` and `torch_npu.npu.mstx`. Programs that use them run, but no trace is written."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Callable

import torch

__all__ = ["make_mstx", "make_profiler"]

_LEVELS = ("Level_none", "Level0", "Level1", "Level2")
_METRICS = (
    *("PipeUtilization", "ArithmeticUtilization", "Memory", "MemoryL0", "MemoryUB", "ResourceConflictRatio"),
    *("L2Cache", "MemoryAccess", "AiCoreNone"),
)


class Profile:
    """A profiler that only counts steps. `on_trace_ready` is not called, because there is no trace."""

    def __init__(self, **settings: Any) -> None:
        self.step_num = 0

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def step(self) -> None:
        self.step_num += 1

    def start(self) -> None:
        return None

    def stop(self) -> None:
        return None

    def add_metadata(self, key: str, value: str) -> None:
        return None

    add_metadata_json = add_metadata

    def export_chrome_trace(self, output_path: str) -> None:
        return None

    def export_stacks(self, output_path: str, metric: str = "") -> None:
        return None

    def export_memory_timeline(self, output_path: str, device: Any = None) -> None:
        return None


class ExperimentalConfig:
    """Settings of the profiler. They are stored as attributes, and have no effect."""

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)


def _tensorboard_trace_handler(*args: Any, **kwargs: Any) -> Callable[[Any], None]:
    return lambda profiler: None


def make_profiler() -> dict[str, Any]:
    """Return the members of `torch_npu.profiler`."""
    activities = SimpleNamespace(CPU="CPU", NPU="NPU")

    def names(*words: str) -> Any:
        return SimpleNamespace(**{word: word for word in words})

    return {
        "profile": Profile,
        "_KinetoProfile": Profile,
        "ProfilerActivity": activities,
        "supported_activities": lambda: {activities.CPU, activities.NPU},
        "tensorboard_trace_handler": _tensorboard_trace_handler,
        "schedule": torch.profiler.schedule,
        "ProfilerAction": torch.profiler.ProfilerAction,
        "_ExperimentalConfig": ExperimentalConfig,
        "ProfilerLevel": names(*_LEVELS),
        "AiCMetrics": names(*_METRICS),
        "ExportType": names("Db", "Text"),
        "HostSystem": names("CPU", "MEM", "DISK", "NETWORK", "OSRT", "NUMA"),
        "supported_profiler_level": lambda: set(_LEVELS),
        "supported_ai_core_metrics": lambda: set(_METRICS),
        "supported_export_type": lambda: {"Db", "Text"},
    }


def make_mstx() -> Any:
    """Return the namespace `torch_npu.npu.mstx`. Its functions, which mark events in a profile, do nothing."""

    @contextlib.contextmanager
    def annotate(message: str = "", stream: Any = None, domain: str = "default") -> Iterator[None]:
        yield

    def mstx_range(message: str, stream: Any = None, domain: str = "default") -> Any:
        def decorate(function: Any) -> Any:
            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs)

            return call

        return decorate

    def nothing(*args: Any, **kwargs: Any) -> int:
        return 0

    marks = dict.fromkeys(("mark", "range_push", "range_pop", "range_start", "range_end"), nothing)
    return SimpleNamespace(**marks, mstx_range=mstx_range, annotate=annotate)
