"""Statistics of tensors: the value type `Statistics`, and the functions that compute it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_dump.statistics._precision import COMPUTED, PRINTED, Precision
from ascend_dump.statistics._table import ALL_STATISTICS, COUNTS, STATISTIC_NAMES, TABLE, Statistic, merged, with_needs
from ascend_dump.statistics._value import Statistics

if TYPE_CHECKING:
    from ascend_dump.statistics._engine import is_ready, statistics, warm_up
    from ascend_dump.statistics._finite import surely_finite
    from ascend_dump.statistics._scan import Scan, scanner
    from ascend_dump.statistics._warming import warm_up_soon
    from ascend_dump.statistics.compiling import compile_quietly

__all__ = [
    "ALL_STATISTICS",
    "COMPUTED",
    "COUNTS",
    "PRINTED",
    "STATISTIC_NAMES",
    "TABLE",
    "Precision",
    "Scan",
    "Statistic",
    "Statistics",
    "compile_quietly",
    "is_ready",
    "merged",
    "scanner",
    "statistics",
    "surely_finite",
    "warm_up",
    "warm_up_soon",
    "with_needs",
]

_HOMES = {
    "Scan": "_scan",
    "compile_quietly": "compiling",
    "is_ready": "_engine",
    "scanner": "_scan",
    "statistics": "_engine",
    "surely_finite": "_finite",
    "warm_up": "_engine",
    "warm_up_soon": "_warming",
}


def __getattr__(name: str) -> object:
    # Imported on first use: reading statistics from a file needs no numpy.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
