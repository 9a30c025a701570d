"""How far two tensors of one shape are apart: all numbers of a pair in one pass over both."""

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

#: Bins of the histogram of differences, in units in the last place: bin 0 those below 1, bin k those in [2^(k-1), 2^k).
ULP_BINS = 64
#: Elements that are looked at together: what numpy makes of them stays in the cache, and products of so few are not
#: spread over the threads of a library.
_BLOCK = 1 << 13
#: The square of the largest float64, divided by the square of this power of two, leaves room for sums of any length.
_SHRUNK = 600


class Measure(NamedTuple):
    """The numbers of one pair; d = actual - reference over the elements that are finite on both sides.

    count           elements of each side
    unequal         elements whose values differ (NaN equals NaN here, +0.0 equals -0.0)
    nonfinite       elements that are NaN, +Inf or -Inf on one side and something else on the other
    nan, inf        elements of actual and of reference that are NaN, and that are infinite
    max_abs, at     largest |d| and the coordinates of its element; of several as large, one of them
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


def measure(actual: np.ndarray, reference: np.ndarray, dtype: Optional[str] = None) -> Measure:
    """Compare two arrays of one shape element by element, in float64.

    Types may differ; the coarser one determines the rounding. A complex number counts as two real ones. Integers and
    bool are exact: `max_abs` is their largest difference. Raises ValueError for different shapes.

    dtype: the type that the values were rounded to, if the arrays have a finer one: "hifloat8", whose values are stored
    as float32.
    """
    import numpy as np

    if actual.shape != reference.shape:
        raise ValueError(f"shapes {actual.shape} and {reference.shape} cannot be compared element by element")
    kinds = [_kind_of(array.dtype) for array in (actual, reference)]
    if kinds[0] is None and kinds[1] is None:
        return _exact(actual, reference)
    known = [kind for kind in (*kinds, float_kind(dtype or "")) if kind is not None]
    kind = min(known, key=lambda one: one.mantissa)
    shape = actual.shape
    turned = _in_memory_order(actual, reference)
    if turned is not None:
        actual, reference = (array.transpose(turned) for array in (actual, reference))
    a, b = _real_parts(actual), _real_parts(reference)
    found = _by_codes(a, b, kind) or compiled_sums(a, b, kind) or _sums(a, b, kind)
    unit = 1.0
    if not math.isfinite(found.a2 + found.b2 + found.d2):
        found, unit = _with_finite_sums(found, a, b, kind), math.ldexp(1.0, _SHRUNK)
    where = found.where if found.where >= 0 else found.first_nonfinite
    at: Optional[tuple[int, ...]] = None
    if where >= 0:
        if a.size == 2 * actual.size:
            where //= 2
        place = [int(i) for i in np.unravel_index(where, actual.shape)] if shape else []
        at = tuple(place if turned is None else [place[turned.index(axis)] for axis in range(len(place))])
    norm, finite = math.sqrt(found.b2), max(found.finite, 1)
    return Measure(
        count=a.size,
        unequal=found.unequal + found.nonfinite,
        nonfinite=found.nonfinite,
        nan=found.nan,
        inf=found.inf,
        max_abs=found.largest,
        at=at,
        max_rel=found.largest_rel,
        rmse=math.sqrt(found.d2 / finite) * unit,
        rel_l2=math.sqrt(found.d2) / norm if norm else (math.inf if found.d2 else 0.0),
        cosine=found.ab / (math.sqrt(found.a2) * math.sqrt(found.b2)) if found.a2 > 0 and found.b2 > 0 else None,
        rms=math.sqrt(found.b2 / finite) * unit,
        excess=found.excess if found.finite else 0.0,
        drift=abs(found.signed) / math.sqrt(found.unequal) if found.unequal else 0.0,
        bias=abs(found.leaning) / found.total if found.total else 0.0,
        ulp=tuple(found.ulp.tolist()),
    )


@functools.lru_cache(maxsize=64)
def _kind_of(dtype: np.dtype[Any]) -> Optional[FloatKind]:
    """`float_kind`; numpy takes microseconds to make the name of a type."""
    return float_kind(dtype.name)


def _by_codes(a: np.ndarray, b: np.ndarray, kind: FloatKind) -> Optional[Sums]:
    """Of types of one byte: what there is to say of each pair of bytes, as often as it occurs."""
    import numpy as np

    counts = compiled_codes(a, b)
    if counts is None:
        return None
    codes = np.flatnonzero(counts)
    x, y = (codes >> 8).astype(np.uint8).view(a.dtype), (codes & 255).astype(np.uint8).view(b.dtype)
    found = _sums(x, y, kind, counts[codes])
    if found.where < 0 and found.first_nonfinite < 0:
        return found
    x, y = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(x - y)
    if found.where >= 0:
        return found._replace(where=first_code(a, b, codes[apart == found.largest]))
    # Infinity less itself is NaN, as all that has NaN is.
    differ = ~np.isfinite(apart) & ~((x == y) | (np.isnan(x) & np.isnan(y)))
    return found._replace(first_nonfinite=first_code(a, b, codes[differ]))


def _sums(a: np.ndarray, b: np.ndarray, kind: FloatKind, times: Optional[np.ndarray] = None) -> Sums:
    """What the compiled kernels give, by numpy: for other types, small tensors, and where numba is missing.

    times: how often each element occurs; once, if it is not given.
    """
    import numpy as np

    sums = np.zeros(6)  # d^2, reference^2, actual^2, actual * reference, d sign(reference), |reference|
    unequal = nonfinite = signed = finite_count = 0
    nans, infs = [0, 0], [0, 0]
    largest, where, first, largest_rel, excess = 0.0, -1, -1, 0.0, -math.inf
    ulp = np.zeros(ULP_BINS, dtype=np.int64)
    with np.errstate(all="ignore"):
        for start, x, y in _blocks(a, b):
            often = np.ones(x.size, dtype=np.int64) if times is None else times[start : start + _BLOCK]
            finite = np.isfinite(x) & np.isfinite(y)
            places = None
            if not finite.all():
                nan_x, nan_y = np.isnan(x), np.isnan(y)
                nans[0] += int(often[nan_x].sum())
                nans[1] += int(often[nan_y].sum())
                infs[0] += int(often[np.isinf(x)].sum())
                infs[1] += int(often[np.isinf(y)].sum())
                differ = np.flatnonzero(~finite & ~((nan_x & nan_y) | (x == y)))
                if differ.size and not nonfinite:
                    first = start + int(differ[0])
                nonfinite += int(often[differ].sum())
                places = np.flatnonzero(finite)
                x, y, often = x[places], y[places], often[places]
            finite_count += int(often.sum())
            if not x.size:
                continue
            d = x - y
            size = np.abs(d)
            scale = np.abs(y)
            each, sign = (d, x, y) if times is None else (d * often, x * often, y * often), np.sign(y)
            sums += (each[0] @ d, each[2] @ y, each[1] @ x, each[1] @ y, each[0] @ sign, each[2] @ sign)
            changed = np.flatnonzero(d)
            excess = max(excess, float((size - 2 * kind.unit * scale).max()))
            if not changed.size:
                continue
            unequal += int(often[changed].sum())
            signed += int((np.sign(d[changed]) * sign[changed]) @ often[changed])
            highest = int(size.argmax())
            if size[highest] > largest:
                largest = float(size[highest])
                where = start + (highest if places is None else int(places[highest]))
            divisors = scale[changed]
            nonzero = divisors > 0
            if nonzero.any():
                largest_rel = max(largest_rel, float((size[changed][nonzero] / divisors[nonzero]).max()))
            ulp += _ulp_histogram(size[changed], divisors, kind, often[changed])
    d2, b2, a2, ab, leaning, total = sums.tolist()
    return Sums(
        d2=d2,
        b2=b2,
        a2=a2,
        ab=ab,
        leaning=leaning,
        total=total,
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


def _with_finite_sums(found: Sums, a: np.ndarray, b: np.ndarray, kind: FloatKind) -> Sums:
    """The sums of numbers whose squares leave the range of float64, of these numbers in units of 2**_SHRUNK."""
    import numpy as np

    a, b = (np.ldexp(side.astype(np.float64), -_SHRUNK) for side in (a, b))
    small = _sums(a, b, kind)
    return found._replace(d2=small.d2, b2=small.b2, a2=small.a2, ab=small.ab, leaning=small.leaning, total=small.total)


def _in_memory_order(a: np.ndarray, b: np.ndarray) -> Optional[list[int]]:
    """The axes as they lie in memory, if in another order and the same on both sides: so nothing has to be copied."""
    if a.flags.c_contiguous and b.flags.c_contiguous:
        return None
    order = sorted(range(a.ndim), key=lambda axis: (-a.strides[axis], axis))
    return order if all(one.transpose(order).flags.c_contiguous for one in (a, b)) else None


def _exact(actual: np.ndarray, reference: np.ndarray) -> Measure:
    import numpy as np

    a, b = np.asarray(actual).reshape(-1), np.asarray(reference).reshape(-1)
    found = compiled_unequal(a, b)
    unequal, largest, where = (0, 0.0, -1) if found is None else found
    for start in range(0, a.size if found is None else 0, _BLOCK):
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


def _ulp_histogram(sizes: np.ndarray, scales: np.ndarray, kind: FloatKind, often: np.ndarray) -> np.ndarray:
    import numpy as np

    # frexp gives 0.5 <= m < 1, so the exponent of a normal number is one less.
    last_place = np.maximum(np.frexp(scales)[1] - 1, kind.lowest) - kind.mantissa
    last_place[scales == 0] = kind.lowest - kind.mantissa
    bins = np.frexp(sizes)[1] - last_place
    return np.bincount(np.clip(bins, 0, ULP_BINS - 1), weights=often, minlength=ULP_BINS).astype(np.int64)
