"""Measure how far two tensors of one shape are apart. One pass over both tensors computes all numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.analysis.numerics.engine import Sums, compiled_codes, compiled_sums, compiled_unequal, first_code
from ascend_dump.analysis.numerics.float_types import FloatKind, float_kind

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ULP_BINS", "Measure", "measure"]

#: Bins of the histogram of differences, in units in the last place: bin 0 is below 1, bin k is [2^(k-1), 2^k).
ULP_BINS = 64
#: Elements of a block. numpy's intermediate arrays of this size fit in the cache, and dot products of this size are not
#: spread over several threads by numpy's library.
_BLOCK = 1 << 13
#: Numbers whose squares overflow float64 are divided by 2**_SHRUNK before they are squared and added up.
_SHRUNK = 600
#: Errors are relative to the elements that differ, not to all elements, if at least _MANY elements differ and each of
#: these is more than _SMALLER times smaller than the root mean square of the tensor. Then the other elements are fills,
#: such as those of a mask. Fewer elements prove nothing: elements that rounding changes may happen to be that small.
_MANY, _SMALLER = 16, 64
#: The exponent (as by `frexp`) of differences of two float64 that overflow. `frexp` returns none for Inf.
_OVERFLOWN = 1025


class Measure(NamedTuple):
    """The numbers of one pair of tensors; d = actual - reference, for the elements that are finite on both sides.

    count           number of elements of each side; a complex number counts as two
    unequal         elements whose values differ (NaN equals NaN here, +0.0 equals -0.0)
    nonfinite       elements that are NaN, +Inf or -Inf on one side and something else on the other
    nan, inf        numbers of NaN, and of infinite elements, in actual and in the reference
    max_abs, at     largest |d|, and the coordinates of an element with this |d|. If all finite elements are equal, `at`
                    is the first element that counts as nonfinite
    max_rel         largest |d| / |reference|, over references that are not zero
    rmse            root of the mean of d^2
    rel_l2          |d| / |reference|, Euclidean norms; Inf if the reference is all zero and d is not. Large elements
                    that are equal on both sides, such as those of a mask, are left out of |reference|
    cosine          cosine of the angle between both tensors; None if a norm is zero
    rms             root of the mean of reference^2, over the same elements as in rel_l2
    excess          largest |d| - 2u|reference| with u the unit of rounding of the coarser type; at most 0 if every
                    element differs by at most its last place
    drift           |sum of sign(d) sign(reference)| / sqrt(unequal): about 1 for rounding, large if one side is scaled
    bias            |sum of d sign(reference)| / sum of |reference|: the share by which one side is larger in magnitude
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
        """Return the share of unequal elements."""
        return self.unequal / self.count if self.count else 0.0


def measure(actual: np.ndarray, reference: np.ndarray, dtype: Optional[str] = None) -> Measure:
    """Compare two arrays of one shape element by element, in float64.

    Types may differ; the coarser type determines the rounding. A complex number counts as two real numbers. Of integers
    and bools only `count`, `unequal`, `max_abs` and `at` are measured. Raises ValueError for different shapes.

    dtype: the type that the values were rounded to, if the arrays have a finer type. For example, values of "hifloat8"
    are stored as float32.
    """
    import numpy as np

    if actual.shape != reference.shape:
        raise ValueError(f"shapes {actual.shape} and {reference.shape} cannot be compared element by element")
    kinds = [_kind_of(array.dtype) for array in (actual, reference)]
    if kinds[0] is None and kinds[1] is None:
        return _exact(actual, reference)
    kinds.append(float_kind(dtype or ""))
    kind = min((kind for kind in kinds if kind is not None), key=lambda kind: kind.mantissa)
    shape = actual.shape
    order = _in_memory_order(actual, reference)
    if order is not None:
        actual, reference = (array.transpose(order) for array in (actual, reference))
    a, b = _real_parts(actual), _real_parts(reference)
    if a.size != b.size:  # one side has complex numbers
        a, b = (parts if parts.size > actual.size else _with_imaginary_zeros(parts) for parts in (a, b))
    sums = _by_codes(a, b, kind) or compiled_sums(a, b, kind) or _sums(a, b, kind)
    unit = 1.0
    if not math.isfinite(sums.a2 + sums.b2 + sums.d2):
        sums, unit = _with_finite_sums(sums, a, b, kind), math.ldexp(1.0, _SHRUNK)
    where = sums.where if sums.where >= 0 else sums.first_nonfinite
    coordinates: Optional[tuple[int, ...]] = None
    if where >= 0:
        if a.size == 2 * actual.size:
            where //= 2
        indices = [int(i) for i in np.unravel_index(where, actual.shape)] if shape else []
        coordinates = tuple(indices if order is None else [indices[order.index(axis)] for axis in range(len(indices))])
    finite = max(sums.finite, 1)
    scale2, elements, total = sums.b2, finite, sums.total
    if sums.unequal >= _MANY and sums.b2 > finite * (_SMALLER * sums.differing) ** 2 > 0:
        scale2, elements = sums.differing2, sums.unequal
        total = math.sqrt(elements * scale2)  # an upper bound of the sum of |reference| over elements that differ
    norm = math.sqrt(scale2)
    return Measure(
        count=a.size,
        unequal=sums.unequal + sums.nonfinite,
        nonfinite=sums.nonfinite,
        nan=sums.nan,
        inf=sums.inf,
        max_abs=sums.largest,
        at=coordinates,
        max_rel=sums.largest_rel,
        rmse=math.sqrt(sums.d2 / finite) * unit,
        rel_l2=math.sqrt(sums.d2) / norm if norm else (math.inf if sums.d2 else 0.0),
        cosine=sums.ab / (math.sqrt(sums.a2) * math.sqrt(sums.b2)) if sums.a2 > 0 and sums.b2 > 0 else None,
        rms=math.sqrt(scale2 / elements) * unit,
        excess=sums.excess if sums.finite else 0.0,
        drift=abs(sums.signed) / math.sqrt(sums.unequal) if sums.unequal else 0.0,
        bias=abs(sums.leaning) / total if total else 0.0,
        ulp=tuple(sums.ulp.tolist()),
    )


@functools.lru_cache(maxsize=64)
def _kind_of(dtype: np.dtype[Any]) -> Optional[FloatKind]:
    """Return the `float_kind` of a type, cached because numpy takes microseconds to build its name."""
    return float_kind(dtype.name)


def _by_codes(a: np.ndarray, b: np.ndarray, kind: FloatKind) -> Optional[Sums]:
    """Return the sums of two arrays of one-byte types; None if they have to be computed element by element.

    Each pair of bytes that occurs is computed once, and multiplied by the number of its occurrences.
    """
    import numpy as np

    counts = compiled_codes(a, b)
    if counts is None:
        return None
    codes = np.flatnonzero(counts)
    x, y = (codes >> 8).astype(np.uint8).view(a.dtype), (codes & 255).astype(np.uint8).view(b.dtype)
    sums = _sums(x, y, kind, counts[codes])
    if sums.where < 0 and sums.first_nonfinite < 0:
        return sums
    x, y = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distances = np.abs(x - y)
    if sums.where >= 0:
        return sums._replace(where=first_code(a, b, codes[distances == sums.largest]))
    # A distance is not finite if either number is NaN or Inf. It counts unless both are NaN, or the same Inf.
    differ = ~np.isfinite(distances) & ~((x == y) | (np.isnan(x) & np.isnan(y)))
    return sums._replace(first_nonfinite=first_code(a, b, codes[differ]))


def _sums(a: np.ndarray, b: np.ndarray, kind: FloatKind, times: Optional[np.ndarray] = None) -> Sums:
    """Return the same sums as the compiled kernels, computed by numpy.

    This function is used for types that the kernels cannot read, for small tensors, and without numba.

    times: how often each element occurs; by default once.
    """
    import numpy as np

    sums = np.zeros(6)  # d^2, reference^2, actual^2, actual * reference, d sign(reference), |reference|
    unequal = nonfinite = signed = finite_count = 0
    nans, infs = [0, 0], [0, 0]
    largest, where, first, largest_rel, excess = 0.0, -1, -1, 0.0, -math.inf
    differing2 = differing = 0.0
    ulp = np.zeros(ULP_BINS, dtype=np.int64)
    with np.errstate(all="ignore"):
        for start, x, y in _blocks(a, b):
            weights = np.ones(x.size, dtype=np.int64) if times is None else times[start : start + _BLOCK]
            finite = np.isfinite(x) & np.isfinite(y)
            indices = None
            if not finite.all():
                nan_x, nan_y = np.isnan(x), np.isnan(y)
                nans[0] += int(weights[nan_x].sum())
                nans[1] += int(weights[nan_y].sum())
                infs[0] += int(weights[np.isinf(x)].sum())
                infs[1] += int(weights[np.isinf(y)].sum())
                differ = np.flatnonzero(~finite & ~((nan_x & nan_y) | (x == y)))
                if differ.size and not nonfinite:
                    first = start + int(differ[0])
                nonfinite += int(weights[differ].sum())
                indices = np.flatnonzero(finite)
                x, y, weights = x[indices], y[indices], weights[indices]
            finite_count += int(weights.sum())
            if not x.size:
                continue
            d = x - y
            distances = np.abs(d)
            scale = np.abs(y)
            terms, sign = (d, x, y) if times is None else (d * weights, x * weights, y * weights), np.sign(y)
            sums += (terms[0] @ d, terms[2] @ y, terms[1] @ x, terms[1] @ y, terms[0] @ sign, terms[2] @ sign)
            changed = np.flatnonzero(d)
            excess = max(excess, float((distances - 2 * kind.unit * scale).max()))
            if not changed.size:
                continue
            unequal += int(weights[changed].sum())
            signed += int((np.sign(d[changed]) * sign[changed]) @ weights[changed])
            largest_index = int(distances.argmax())
            if distances[largest_index] > largest:
                largest = float(distances[largest_index])
                where = start + (largest_index if indices is None else int(indices[largest_index]))
            divisors = scale[changed]
            differing2 += float((divisors * divisors) @ weights[changed])
            differing = max(differing, float(divisors.max()))
            nonzero = divisors > 0
            if nonzero.any():
                largest_rel = max(largest_rel, float((distances[changed][nonzero] / divisors[nonzero]).max()))
            ulp += _ulp_histogram(distances[changed], divisors, kind, weights[changed])
    d2, b2, a2, ab, leaning, total = sums.tolist()
    return Sums(
        d2=d2,
        b2=b2,
        a2=a2,
        ab=ab,
        leaning=leaning,
        total=total,
        differing2=differing2,
        differing=differing,
        largest=largest,
        largest_rel=largest_rel,
        excess=excess,
        where=where,
        unequal=unequal,
        signed=signed,
        finite=finite_count,
        nonfinite=nonfinite,
        first_nonfinite=first,
        nan=(nans[0], nans[1]),
        inf=(infs[0], infs[1]),
        ulp=ulp,
    )


def _with_finite_sums(sums: Sums, a: np.ndarray, b: np.ndarray, kind: FloatKind) -> Sums:
    """Recompute the sums in units of 2**_SHRUNK, for numbers whose squares leave the range of float64."""
    import numpy as np

    a, b = (np.ldexp(side.astype(np.float64), -_SHRUNK) for side in (a, b))
    small = _sums(a, b, kind)
    names = ("d2", "b2", "a2", "ab", "leaning", "total", "differing2", "differing")
    return sums._replace(**{name: getattr(small, name) for name in names})


def _in_memory_order(a: np.ndarray, b: np.ndarray) -> Optional[list[int]]:
    """Return the axes in their order in memory, if both sides have the same order and it is not C order; else None.

    Arrays that are transposed to this order can be flattened without a copy.
    """
    if a.flags.c_contiguous and b.flags.c_contiguous:
        return None
    order = sorted(range(a.ndim), key=lambda axis: (-a.strides[axis], axis))
    return order if all(array.transpose(order).flags.c_contiguous for array in (a, b)) else None


def _exact(actual: np.ndarray, reference: np.ndarray) -> Measure:
    import numpy as np

    a, b = np.asarray(actual).reshape(-1), np.asarray(reference).reshape(-1)
    counted = compiled_unequal(a, b)
    unequal, largest, where = (0, 0.0, -1) if counted is None else counted
    for start in range(0, a.size if counted is None else 0, _BLOCK):
        x, y = a[start : start + _BLOCK], b[start : start + _BLOCK]
        changed = np.flatnonzero(x != y)
        if not changed.size:
            continue
        unequal += changed.size
        try:
            # Differences of 64-bit integers may overflow int64, but not float64.
            sizes = np.abs(x[changed].astype(np.float64) - y[changed].astype(np.float64))
        except (TypeError, ValueError):  # structured or text
            sizes = np.zeros(changed.size)
        highest = int(sizes.argmax())
        if where < 0 or sizes[highest] > largest:
            largest, where = float(sizes[highest]), start + int(changed[highest])
    coordinates: Optional[tuple[int, ...]] = None
    if where >= 0:
        coordinates = tuple(int(i) for i in np.unravel_index(where, actual.shape)) if actual.shape else ()
    return Measure(count=int(a.size), unequal=unequal, max_abs=largest, at=coordinates)


def _real_parts(array: np.ndarray) -> np.ndarray:
    """Return the flat array; complex numbers become their real and imaginary parts."""
    import numpy as np

    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        return flat.view(np.float64 if flat.dtype.itemsize == 16 else np.float32)
    if flat.dtype.name in ("complex32", "bcomplex32"):
        import ml_dtypes

        return flat.view(np.float16 if flat.dtype.name == "complex32" else ml_dtypes.bfloat16)
    return flat


def _with_imaginary_zeros(array: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.stack((array, np.zeros_like(array)), axis=-1).reshape(-1)


def _blocks(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[int, Any, Any]]:
    import numpy as np

    for start in range(0, a.size, _BLOCK):
        end = start + _BLOCK
        yield start, a[start:end].astype(np.float64), b[start:end].astype(np.float64)


def _ulp_histogram(sizes: np.ndarray, scales: np.ndarray, kind: FloatKind, weights: np.ndarray) -> np.ndarray:
    import numpy as np

    # frexp returns 0.5 <= m < 1, so the exponent of a normal number is one less.
    last_place = np.maximum(np.frexp(scales)[1] - 1, kind.lowest) - kind.mantissa
    last_place[scales == 0] = kind.lowest - kind.mantissa
    exponents = np.frexp(sizes)[1]
    exponents[np.isinf(sizes)] = _OVERFLOWN
    bins = exponents - last_place
    return np.bincount(np.clip(bins, 0, ULP_BINS - 1), weights=weights, minlength=ULP_BINS).astype(np.int64)
