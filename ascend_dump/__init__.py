"""Dump, read and compare the operators of a model, on Ascend NPUs and on the host.

    with ascend_dump.capture(model, steps="0|1", path="dumps"):
        train(model)
    for record in ascend_dump.open("dumps").select(op="*linear1*", io="output"):
        print(record, record.statistics())

Importing this package imports nothing else: the module of a name is imported when the name is first used.
"""

from __future__ import annotations

from ascend_dump._version import __version__

# Type checkers treat this name as True. Importing it from `typing` would take longer than the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ascend_dump.adapter import Adapter, AdapterInfo, adapters
    from ascend_dump.analysis.compare import Comparison, compare
    from ascend_dump.analysis.overflow import find_overflows as overflow
    from ascend_dump.analysis.quantised import LocalErrors, local_errors
    from ascend_dump.analysis.replay import Replay, replay
    from ascend_dump.analysis.trends import Trends, trends
    from ascend_dump.analysis.triage import Triage, triage
    from ascend_dump.analysis.weights import WeightComparison, compare_weights
    from ascend_dump.capturing.capture import Capture
    from ascend_dump.capturing.function import capture
    from ascend_dump.common.problem import Problem
    from ascend_dump.converting.push import Pushed, push
    from ascend_dump.errors import (
        AdapterError,
        AdapterNotFound,
        AscendDumpError,
        CaptureError,
        ConfigError,
        CorruptDump,
        DumpNotFound,
        FrameworkMissing,
        NotSupported,
        ReadError,
        StorageError,
        UnknownFormat,
        WorkerLost,
        WriteError,
    )
    from ascend_dump.reading import Dump, Record
    from ascend_dump.reading import open_dump as open  # noqa: A004  (as in `gzip.open`: used with its package)
    from ascend_dump.request import DumpRequest
    from ascend_dump.statistics import Statistics
    from ascend_dump.steps import Steps

__all__ = [
    "Adapter",
    "AdapterError",
    "AdapterInfo",
    "AdapterNotFound",
    "AscendDumpError",
    "Capture",
    "CaptureError",
    "Comparison",
    "ConfigError",
    "CorruptDump",
    "Dump",
    "DumpNotFound",
    "DumpRequest",
    "FrameworkMissing",
    "LocalErrors",
    "NotSupported",
    "Problem",
    "Pushed",
    "ReadError",
    "Record",
    "Replay",
    "Statistics",
    "Steps",
    "StorageError",
    "Trends",
    "Triage",
    "UnknownFormat",
    "WeightComparison",
    "WorkerLost",
    "WriteError",
    "__version__",
    "adapters",
    "capture",
    "compare",
    "compare_weights",
    "local_errors",
    "open",
    "overflow",
    "push",
    "replay",
    "trends",
    "triage",
]

#: The module of each public name, and its name in that module.
_HOMES: dict[str, tuple[str, str]] = {
    name: (module, name)
    for module, names in {
        "adapter": ("Adapter", "AdapterInfo", "adapters"),
        "capturing.capture": ("Capture",),
        "capturing.function": ("capture",),
        "errors": (
            "AdapterError",
            "AdapterNotFound",
            "AscendDumpError",
            "CaptureError",
            "ConfigError",
            "CorruptDump",
            "DumpNotFound",
            "FrameworkMissing",
            "NotSupported",
            "ReadError",
            "StorageError",
            "UnknownFormat",
            "WorkerLost",
            "WriteError",
        ),
        "common.problem": ("Problem",),
        "converting.push": ("Pushed", "push"),
        "request": ("DumpRequest",),
        "steps": ("Steps",),
        "statistics": ("Statistics",),
        "analysis.compare": ("Comparison", "compare"),
        "analysis.quantised": ("LocalErrors", "local_errors"),
        "analysis.replay": ("Replay", "replay"),
        "analysis.trends": ("Trends", "trends"),
        "analysis.triage": ("Triage", "triage"),
        "analysis.weights": ("WeightComparison", "compare_weights"),
        "reading": ("Dump", "Record"),
    }.items()
    for name in names
}
_HOMES["open"] = ("reading", "open_dump")
_HOMES["overflow"] = ("analysis.overflow", "find_overflows")


def __getattr__(name: str) -> object:
    try:
        module, name_in_module = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{module}"), name_in_module)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
