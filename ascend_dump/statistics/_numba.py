"""The numba engine: which kernel serves which dtype, compiled when first needed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional, cast

import numba
import numpy as np

from ascend_dump.statistics import _kernels as kernels
from ascend_dump.statistics._kernels_complex import scan_complex64
from ascend_dump.statistics._layout import Layout

__all__ = ["BLOCK", "compile_kernels", "finder", "scanner"]

#: Words of one call: the sums of integers hold that many.
BLOCK = 1 << 30


class _Kernels(NamedTuple):
    """The kernel of the statistics of a dtype, None where numpy does it, and that of the test for NaN and Inf."""

    scan: Any = None
    nonfinite: Any = None


_KERNELS = {
    "float16": _Kernels(kernels.scan_float16, kernels.nonfinite_float16),
    "bfloat16": _Kernels(kernels.scan_bfloat16, kernels.nonfinite_bfloat16),
    "float32": _Kernels(kernels.scan_float32, kernels.nonfinite_float32),
    "float64": _Kernels(kernels.scan_float64, kernels.nonfinite_float64),
    "int16": _Kernels(kernels.scan_integers),
    "uint16": _Kernels(kernels.scan_integers),
    "int32": _Kernels(kernels.scan_integers),
    "uint32": _Kernels(kernels.scan_integers),
    "int64": _Kernels(kernels.scan_integers),
    "uint64": _Kernels(kernels.scan_integers),
    "complex32": _Kernels(None, kernels.nonfinite_float16),
    "bcomplex32": _Kernels(None, kernels.nonfinite_bfloat16),
    "complex64": _Kernels(scan_complex64, kernels.nonfinite_float32),
    "complex128": _Kernels(None, kernels.nonfinite_float64),
    "bool": _Kernels(kernels.count_bools),
    "table": _Kernels(kernels.count_bytes),
}

_lock = threading.Lock()
_compiled: set[tuple[Any, np.dtype[Any]]] = set()


def _ready(kernel: Any, layout: Layout) -> Any:
    """Compile a kernel, or load it from the cache, for one word dtype, read-only or not."""
    key = (kernel, layout.word)
    if key not in _compiled:
        with _lock:
            word = numba.from_dtype(layout.word)
            # A kernel for read-only arrays takes writable ones too, unless it may compile one more for them.
            kernel.disable_compile(False)
            kernel.compile((numba.types.Array(word, 1, "C", readonly=True),))
            kernel.disable_compile()
            _compiled.add(key)
    return kernel


def compile_kernels(layout: Layout) -> None:
    """Compile what `scanner` and `finder` need for a layout."""
    for kernel in _KERNELS[layout.name]:
        if kernel is not None:
            _ready(kernel, layout)


def scanner(layout: Layout) -> Optional[Callable[[np.ndarray], Any]]:
    """Give the function that looks at a block of words of this layout, None where numpy has to."""
    scan = _KERNELS[layout.name].scan
    if scan is None:
        return None
    kernel = _ready(scan, layout)
    if layout.kind != "integer":
        return cast("Callable[[np.ndarray], Any]", kernel)

    def scan_integers(words: np.ndarray) -> Sequence[float]:
        maximum, minimum, high, low, squares, zero = kernel(words)
        return maximum, minimum, (high << 32) + low, squares, 0, 0, 0, zero, 0

    return scan_integers


def finder(layout: Layout) -> Callable[[np.ndarray], bool]:
    """Give the function that tells whether a block of floats or complex parts holds NaN or Inf."""
    return cast("Callable[[np.ndarray], bool]", _ready(_KERNELS[layout.name].nonfinite, layout))
