"""The numba engine: the kernel of each dtype, compiled on first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional, cast

import numba
import numpy as np

import ascend_dump.statistics._kernels as kernels
from ascend_dump.statistics._kernels_complex import scan_complex64
from ascend_dump.statistics._layout import Engine, Layout
from ascend_dump.statistics._table import Statistic
from ascend_dump.statistics.compiling import announce_compiling, compiling
from ascend_dump.statistics.numba_primitives import SUMS
from ascend_dump.statistics.numba_primitives import kernel as compiled_later

__all__ = ["NUMBA"]

#: Maximum number of words per call of a kernel: sums of so many integers do not overflow.
_BLOCK = 1 << 30

#: The kernels by the names of layouts; statistics of other layouts are computed by numpy.
_KERNELS: dict[str, Any] = {
    "float16": kernels.scan_float16,
    "bfloat16": kernels.scan_bfloat16,
    "float32": kernels.scan_float32,
    "float64": kernels.scan_float64,
    **dict.fromkeys(("int16", "uint16", "int32", "uint32", "int64", "uint64"), kernels.scan_integers),
    "complex64": scan_complex64,
    "bool": kernels.count_bools,
    "table": kernels.count_bytes,
}

_compiled: set[tuple[Any, np.dtype[Any]]] = set()
#: The compiled functions that compute the sums for optional statistics, by the statistic's name.
_sums: dict[str, Callable[[np.ndarray, float], float]] = {}


def _is_compiled(layout: Layout) -> bool:
    kernel = _KERNELS.get(layout.name)
    return kernel is None or (kernel, layout.word) in _compiled


def _is_ready(layout: Layout, added: tuple[Statistic, ...]) -> bool:
    return _is_compiled(layout) and all(entry.name in _sums for entry in added)


def _prepare(layout: Layout) -> None:
    """Compile the kernel of a layout, or load it from numba's cache."""
    if _is_compiled(layout):
        return
    kernel = _KERNELS[layout.name]
    with compiling():
        _compile(kernel, layout.word)
        _compiled.add((kernel, layout.word))


def _sum_of(entry: Statistic) -> Callable[[np.ndarray, float], float]:
    """Return the compiled function that computes the sum for an optional statistic; compile it if necessary."""
    if entry.name not in _sums:
        assert entry.kernel is not None, "only optional statistics have sums of their own"
        with compiling():
            summing: Any = compiled_later(entry.kernel, SUMS)
            _compile(summing, np.dtype("float64"), numba.types.float64)
            _sums[entry.name] = summing
    return _sums[entry.name]


def _compile(kernel: Any, word: np.dtype[Any], *others: Any) -> None:
    announce_compiling(kernel, "statistics")
    # Only a version for read-only arrays is compiled, which accepts writable arrays too. After `disable_compile`
    # numba does not compile another version for these.
    kernel.disable_compile(False)
    kernel.compile((numba.types.Array(numba.from_dtype(word), 1, "C", readonly=True), *others))
    kernel.disable_compile()


def _scanner(layout: Layout) -> Optional[Callable[[np.ndarray], Any]]:
    """Return the function that reduces a block of words of a layout to a `Partial`; None if numba has no kernel."""
    kernel = _KERNELS.get(layout.name)
    if kernel is None:
        return None
    _prepare(layout)
    if layout.kind != "integer":
        return cast("Callable[[np.ndarray], Any]", kernel)

    def scan_integers(words: np.ndarray) -> Sequence[float]:
        maximum, minimum, high, low, squares, zero = kernel(words)
        return maximum, minimum, (high << 32) + low, squares, 0, 0, 0, zero, 0

    return scan_integers


NUMBA = Engine(_BLOCK, _scanner, _sum_of, _prepare, _is_ready)
