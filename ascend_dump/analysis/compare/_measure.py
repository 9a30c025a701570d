"""How far two tensors of one shape are apart: every number of a pair in one pass over both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ULP_BINS", "FloatKind", "Measure", "float_kind", "measure"]

#: Bins of the histogram of differences, in units in the last place: bin 0 those below 1, bin k those in [2^(k-1), 2^k).
ULP_BINS = 64
#: Elements that are looked at together: what numpy makes of them stays in the cache.
_BLOCK = 1 << 15


class FloatKind(NamedTuple):
    """What rounding to a type costs.

    mantissa    explicit bits of the significand
    lowest      exponent of the smallest normal number
    """

    mantissa: int
    lowest: int

    @property
    def unit(self) -> float:
        """The unit of rounding: half the distance between 1 and the next number."""
        return math.ldexp(0.5, -self.mantissa)


_FLOATS = {
    "float64": FloatKind(52, -1022),
    "float32": FloatKind(23, -126),
    "bfloat16": FloatKind(7, -126),
    "float16": FloatKind(10, -14),
    "float8_e4m3fn": FloatKind(3, -6),
    "float8_e4m3": FloatKind(3, -6),
    "float8_e4m3b11fnuz": FloatKind(3, -10),
    "float8_e4m3fnuz": FloatKind(3, -7),
    "float8_e3m4": FloatKind(4, -2),
    "float8_e5m2": FloatKind(2, -14),
    "float8_e5m2fnuz": FloatKind(2, -15),
    "float6_e2m3fn": FloatKind(3, 0),
    "float6_e3m2fn": FloatKind(2, -2),
    "float4_e2m1fn": FloatKind(1, 0),
    "complex64": FloatKind(23, -126),
    "complex128": FloatKind(52, -1022),
    "complex32": FloatKind(10, -14),
    "bcomplex32": FloatKind(7, -126),
}


def float_kind(dtype: str) -> Optional[FloatKind]:
    """What is known of the rounding of a type by its numpy or ml_dtypes name; None for exact types."""
    return _FLOATS.get(dtype)


class Measure(NamedTuple):
    """The numbers of one pair; d = actual - reference over the elements that are finite on both sides.

    count           elements of each side
    unequal         elements whose values differ (NaN equals NaN here, +0.0 equals -0.0)
    nonfinite       elements that are NaN, +Inf or -Inf on one side and something else on the other
    nan, inf        elements of actual and of reference that are NaN, and that are infinite
    max_abs, at     largest |d| and the coordinates of its element
    max_rel         largest |d| / |reference|, over references that are not zero
    rmse            root of the mean of d^2
    rel_l2          |d| / |reference|, Euclidean norms; Inf where only the reference is all zero
    cosine          cosine of the angle between both; None where a norm is zero
    rms             root of the mean of reference^2
    excess          largest |d| - 2u|reference| with u the unit of rounding of the coarser type; at most 0 where every
                    element is within its last place
    drift           |sum of sign(d) sign(reference)| / sqrt(unequal): about 1 for rounding, large where one side is
                    scaled
    bias            |sum of d sign(reference)| / sum of |reference|: by how much one side is larger than the other
    ulp             counts of |d| in units in the last place of the reference, by powers of two (`ULP_BINS`); empty for
                    exact types
    """

    count: int  # type: ignore[assignment]  # it hides tuple.count on purpose, as in Statistics
    unequal: int
    nonfinite: int = 0
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)
    max_abs: float = 0.0
    at: Optional[tuple[int, ...]] = None
    max_rel: float = 0.0
    rmse: float = 0.0
    rel_l2: float = 0.0
    cosine: Optional[float] = None
    rms: float = 0.0
    excess: float = 0.0
    drift: float = 0.0
    bias: float = 0.0
    ulp: tuple[int, ...] = ()

    @property
    def share(self) -> float:
        """The share of unequal elements."""
        return self.unequal / self.count if self.count else 0.0


def measure(actual: np.ndarray, reference: np.ndarray) -> Measure:
    """Compare two arrays of one shape element by element, in float64.

    Types may differ; the coarser one says what rounding may do. Complex numbers count as two real ones. Integers and
    bool are exact: `max_abs` is their largest difference. Raises ValueError for different shapes.
    """
    import numpy as np

    if actual.shape != reference.shape:
        raise ValueError(f"shapes {actual.shape} and {reference.shape} cannot be compared element by element")
    kinds = [float_kind(array.dtype.name) for array in (actual, reference)]
    if kinds[0] is None and kinds[1] is None:
        return _exact(actual, reference)
    known = [kind for kind in kinds if kind is not None]
    kind = min(known, key=lambda one: one.mantissa)
    shape = actual.shape
    a, b = _real_parts(actual), _real_parts(reference)
    complex_parts = a.size == 2 * actual.size and actual.size > 0
    count = a.size
    sums = np.zeros(6)  # d^2, reference^2, actual^2, actual * reference, d sign(reference), |reference|
    unequal = nonfinite = signed = 0
    nans, infs = [0, 0], [0, 0]
    largest, where, largest_rel, excess = 0.0, -1, 0.0, -math.inf
    ulp = np.zeros(ULP_BINS, dtype=np.int64)
    finite_count = 0
    with np.errstate(all="ignore"):
        for start, x, y in _blocks(a, b):
            finite = np.isfinite(x) & np.isfinite(y)
            every = bool(finite.all())
            if not every:
                nan_x, nan_y = np.isnan(x), np.isnan(y)
                nans[0] += int(nan_x.sum())
                nans[1] += int(nan_y.sum())
                infs[0] += int(np.isinf(x).sum())
                infs[1] += int(np.isinf(y).sum())
                differ = ~finite & ~((nan_x & nan_y) | (x == y))
                nonfinite += int(differ.sum())
                places = np.flatnonzero(finite)
                x, y = x[places], y[places]
            else:
                places = None
            finite_count += x.size
            if not x.size:
                continue
            d = x - y
            size = np.abs(d)
            scale = np.abs(y)
            sums += (d @ d, y @ y, x @ x, x @ y, d @ np.sign(y), scale.sum())
            changed = np.flatnonzero(d)
            excess = max(excess, float((size - 2 * kind.unit * scale).max()))
            if not changed.size:
                continue
            unequal += changed.size
            signed += int((np.sign(d[changed]) * np.sign(y[changed])).sum())
            highest = int(size.argmax())
            if size[highest] > largest:
                largest = float(size[highest])
                where = start + (highest if places is None else int(places[highest]))
            divisors = scale[changed]
            nonzero = divisors > 0
            if nonzero.any():
                largest_rel = max(largest_rel, float((size[changed][nonzero] / divisors[nonzero]).max()))
            ulp += _ulp_histogram(size[changed], divisors, kind)
    if where < 0 and nonfinite:
        where = _first_nonfinite(a, b)
    d2, b2, a2, ab, leaning, total = (float(value) for value in sums)
    at: Optional[tuple[int, ...]] = None
    if where >= 0:
        at = tuple(int(i) for i in np.unravel_index(where // 2 if complex_parts else where, shape)) if shape else ()
    norm, finite_total = math.sqrt(b2), max(finite_count, 1)
    return Measure(
        count=count,
        unequal=unequal + nonfinite,
        nonfinite=nonfinite,
        nan=(nans[0], nans[1]),
        inf=(infs[0], infs[1]),
        max_abs=largest,
        at=at,
        max_rel=largest_rel,
        rmse=math.sqrt(d2 / finite_total),
        rel_l2=math.sqrt(d2) / norm if norm else (math.inf if d2 else 0.0),
        cosine=ab / math.sqrt(a2 * b2) if a2 > 0 and b2 > 0 else None,
        rms=math.sqrt(b2 / finite_total),
        excess=excess if finite_count else 0.0,
        drift=abs(signed) / math.sqrt(unequal) if unequal else 0.0,
        bias=abs(leaning) / total if total else 0.0,
        ulp=tuple(ulp.tolist()),
    )


def _exact(actual: np.ndarray, reference: np.ndarray) -> Measure:
    import numpy as np

    a, b = np.asarray(actual).reshape(-1), np.asarray(reference).reshape(-1)
    unequal, largest, where = 0, 0.0, -1
    for start in range(0, a.size, _BLOCK):
        x, y = a[start : start + _BLOCK], b[start : start + _BLOCK]
        changed = np.flatnonzero(x != y)
        if not changed.size:
            continue
        unequal += changed.size
        try:
            # float64 holds differences of 64-bit integers that int64 does not.
            sizes = np.abs(x[changed].astype(np.float64) - y[changed].astype(np.float64))
        except (TypeError, ValueError):  # structured or text
            sizes = np.zeros(changed.size)
        highest = int(sizes.argmax())
        if where < 0 or sizes[highest] > largest:
            largest, where = float(sizes[highest]), start + int(changed[highest])
    at = None if where < 0 else tuple(int(i) for i in np.unravel_index(where, actual.shape)) if actual.shape else ()
    return Measure(count=int(a.size), unequal=unequal, max_abs=largest, at=at)


def _real_parts(array: np.ndarray) -> np.ndarray:
    """The array flat; complex numbers as their real and imaginary parts."""
    import numpy as np

    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        return flat.view(np.float64 if flat.dtype.itemsize == 16 else np.float32)
    if flat.dtype.name in ("complex32", "bcomplex32"):
        import ml_dtypes

        return flat.view(np.float16 if flat.dtype.name == "complex32" else ml_dtypes.bfloat16)
    return flat


def _blocks(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[int, Any, Any]]:
    import numpy as np

    for start in range(0, a.size, _BLOCK):
        end = start + _BLOCK
        yield start, a[start:end].astype(np.float64), b[start:end].astype(np.float64)


def _ulp_histogram(sizes: np.ndarray, scales: np.ndarray, kind: FloatKind) -> np.ndarray:
    import numpy as np

    # frexp gives 0.5 <= m < 1, so the exponent of a normal number is one less.
    last_place = np.maximum(np.frexp(scales)[1] - 1, kind.lowest) - kind.mantissa
    last_place[scales == 0] = kind.lowest - kind.mantissa
    bins = np.frexp(sizes)[1] - last_place
    return np.bincount(np.clip(bins, 0, ULP_BINS - 1), minlength=ULP_BINS)


def _first_nonfinite(a: np.ndarray, b: np.ndarray) -> int:
    import numpy as np

    for start, x, y in _blocks(a, b):
        differ = ~(np.isfinite(x) & np.isfinite(y)) & ~((np.isnan(x) & np.isnan(y)) | (x == y))
        found = np.flatnonzero(differ)
        if found.size:
            return start + int(found[0])
    return -1
