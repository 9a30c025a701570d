"""Statistics of a tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Statistics", "has_nonfinite", "statistics", "warm_up"]

#: What training uses most.
_COMMON = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "bool")


class Statistics(NamedTuple):
    """What one pass over a tensor says. None where the source of the statistics did not say.

    count       number of elements
    max, min    over the elements that are not NaN (None when there is none); int for integers
    mean, l2norm  as IEEE gives them: a NaN or Inf element makes them NaN or Inf
    nan, posinf, neginf   number of NaN, +Inf, -Inf elements
    zero, poszero, negzero   number of zeros, of +0.0 and of -0.0 (integers have only +0)
    """

    count: int  # type: ignore[assignment]  # it hides tuple.count on purpose
    max: Optional[float] = None
    min: Optional[float] = None
    mean: Optional[float] = None
    l2norm: Optional[float] = None
    nan: Optional[int] = None
    posinf: Optional[int] = None
    neginf: Optional[int] = None
    zero: Optional[int] = None
    poszero: Optional[int] = None
    negzero: Optional[int] = None


def statistics(array: np.ndarray, *, engine: Optional[str] = None, threads: Optional[int] = None) -> Statistics:
    """Compute the statistics of an array of any shape, memory order, alignment and byte order, without copying it.

    engine: "numba", "numpy", or None for numba where it can be used. Both give the same counts and extremes, and
    mean and l2norm to about 1e-12 of the mean magnitude and of the norm.
    threads: how many may work on a large array, this one among them; None for up to four.

    dtypes: float16/32/64, integers of 8 to 64 bits, bool, complex64/128, and from ml_dtypes bfloat16, the floats of
    8, 6 and 4 bits, the integers of 1, 2 and 4 bits, and complex32 and bcomplex32.

    - Sums are taken in float64; of float64, where a sum or square leaves its range, again on scaled values, so that
      l2norm is Inf only if the norm itself is beyond float64. Sums of integers are exact, and so is everything of
      one-byte elements, rounded once.
    - max and min of bool are the ints 0 and 1. A zero max or min is +0.0 and -0.0 respectively if the array holds
      such a zero.
    - Of complex elements max, min, mean and l2norm are those of the magnitude, in float64 (where a complex128
      magnitude exceeds float64, max is Inf). `nan` counts elements with a NaN part, `posinf` those with an infinite
      and no NaN part, `neginf` is 0, and `zero` and `poszero` count those with two zero parts of any sign.
    - Elements that were broadcast (strides of 0), or share memory in sliding windows many times over, are looked at
      once and counted as often as they occur.
    - Of an empty array max, min and mean are None, l2norm is 0.0 and the counts are 0.

    Raises ConfigError (AD101) for other dtypes and other engines. Safe to call from several threads; the other
    threads end with the call.
    """
    # Imported when used: whoever only reads statistics from a file needs no numpy.
    from ascend_dump.statistics import _engine

    return _engine.measure(array, engine, threads)


def has_nonfinite(array: np.ndarray, *, engine: Optional[str] = None) -> bool:
    """Tell whether an array holds NaN or Inf: for the dtypes of `statistics`, False for those that have neither.

    Stops at the first block that does. Raises ConfigError (AD101) as `statistics` does.
    """
    from ascend_dump.statistics import _engine

    return _engine.find_nonfinite(array, engine)


def warm_up(dtypes: Iterable[Union[str, type, np.dtype[Any]]] = _COMMON) -> str:
    """Load numba and compile what these dtypes need, or load it from numba's cache, before it is in a hurry.

    Returns the engine that `statistics` will use, "numba" or "numpy". Without it the first call for a dtype takes
    the time (a second or so per dtype the first time on a machine, some hundredths after). Raises ConfigError
    (AD101) for dtypes that have no statistics, and nothing when numba fails: that is logged once as a warning.
    """
    from ascend_dump.statistics import _engine

    return _engine.prepare(dtypes)
