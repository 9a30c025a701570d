"""Compare each element of an output with the elements that it was computed from.

The size of a whole tensor says little about an element. A mask is 1e38 times as large as the scores that it is added
to. A reciprocal has the relative error of its input: a small input with a large error has a large output with a large
error. And an optimizer that divides each gradient by its own size turns rounding noise into full-size updates: such
elements cannot be judged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.analysis.numerics.fills import equal_fills
from ascend_dump.analysis.numerics.float_types import FloatKind, float_kind
from ascend_dump.analysis.numerics.measure import Measure, measure
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ElementErrors", "element_errors", "measure_without_masks", "measure_without_outliers", "most_roundings"]

_InputPairs = Collection[tuple[Record, Record]]
#: For each input, at the elements where the output differs: the distances between both sides, and the absolute values
#: of the reference.
_Read = Sequence[tuple["np.ndarray", "np.ndarray"]]
#: Errors of an element, in units of rounding. _FEW: an element with at most this error is right. _MOST: the largest
#: error of any implementation, for types of at most 16 bits and for wider types, for which devices approximate
#: functions.
_FEW, _MOST = 8, (16, 512)


def measure_without_outliers(a: Record, b: Record, inputs: _InputPairs, unit: float) -> Optional[tuple[Measure, int]]:
    """Return the measure of a pair without its outliers, and the number of outliers; None if there are none.

    An element is an outlier if an input of the same shape differs there by more than sqrt(unit), relatively.
    """
    import numpy as np

    try:
        actual, reference = a.numpy(), b.numpy()
        outliers = np.zeros(reference.shape, dtype=bool)
        for x, y in _arrays([pair for pair in inputs if pair[0].shape == reference.shape], reference.shape):
            with np.errstate(all="ignore"):
                outliers |= np.abs(x - y) > math.sqrt(unit) * np.abs(y)
    except (AscendDumpError, TypeError, ValueError):
        return None
    if not outliers.any():
        return None
    return measure(actual[~outliers], reference[~outliers]), int(outliers.sum())


def measure_without_masks(a: Record, b: Record) -> Optional[Measure]:
    """Measure a pair without the masks and fills that are equal on both sides; return None if there are none.

    `equal_fills` recognises them.
    """
    try:
        actual, reference = _wide(a.numpy()), _wide(b.numpy())
    except AscendDumpError:
        return None
    if actual.shape != reference.shape:
        return None
    fills = equal_fills(actual, reference)
    if not fills.any():
        return None
    return measure(a.numpy()[~fills], b.numpy()[~fills])


class ElementErrors(NamedTuple):
    """The elements of an output that are not equal on both sides; one number per element.

    distance  the distance between actual and reference
    terms     the size of the numbers that the element is computed from; its rounding error is relative to this size
    spread    the distance that the differences of the inputs explain, up to a factor
    """

    distance: np.ndarray
    terms: np.ndarray
    spread: np.ndarray

    def are_right(self, gain: float, unit: float) -> bool:
        """Return True if the distance of each element is at most a few roundings plus `gain` times its spread."""
        import numpy as np

        with np.errstate(invalid="ignore"):
            allowed = _FEW * unit * self.terms + gain * self.spread
            # A larger tolerance would accept any element.
            return bool((self.distance <= np.minimum(allowed, math.sqrt(unit) * self.terms)).all())

    def why_wrong(self, most: float, gain: float, kind: Optional[FloatKind]) -> Optional[str]:
        """Return a reason if neither roundings nor the differences of the inputs explain some elements, else None.

        most  the largest error of an implementation, relative to the terms
        gain  factor by which the operator may enlarge the differences of its inputs
        kind  the rounding of the type; None for exact types
        """
        import numpy as np

        with np.errstate(invalid="ignore"):
            # Devices may round smaller numbers to zero.
            lost = 0.0 if kind is None else math.ldexp(1.0, kind.lowest)
            wrong = self.distance > most * self.terms + gain * self.spread + lost
        if not wrong.any():
            return None
        if kind is None:
            return f"{int(wrong.sum())} elements differ although those that they are computed from are equal"
        with np.errstate(divide="ignore"):
            error = float((self.distance[wrong] / self.terms[wrong]).max())
        count = int(wrong.sum())
        return f"{count} elements differ by up to {error:.2g} of the numbers that they are computed from"


def most_roundings(kind: FloatKind) -> float:
    """Return the largest relative error that an implementation of an elementwise operator may have."""
    return _MOST[kind.mantissa > 10] * kind.unit


def element_errors(
    a: Record, b: Record, inputs: Collection[tuple[Record, Record]], rule: str
) -> Optional[ElementErrors]:
    """Return the errors of an output of an elementwise operator. rule: the `element_rule` of the operator.

    None if an input cannot be broadcast to the output, or no floating-point input explains a floating-point output.
    """
    import numpy as np

    try:
        actual, reference = (_wide(record.numpy()) for record in (a, b))
        sides = list(_arrays(inputs, reference.shape))
    except (AscendDumpError, TypeError, ValueError):
        return None
    if len(sides) < len(inputs):
        return None
    with np.errstate(all="ignore"):
        differ = ~((actual == reference) | (np.isnan(actual) & np.isnan(reference)))
        size, jumps = np.abs(reference[differ]), np.zeros(int(differ.sum()))
        read = []
        for (x, y), (record, _) in zip(sides, inputs):
            distance, input_size = (np.abs(np.broadcast_to(side, differ.shape)[differ]) for side in (x - y, y))
            if float_kind(record.dtype or "") is not None:
                read.append((distance, input_size))
            else:
                jumps[distance > 0] = math.inf
        if float_kind(b.dtype or "") is None:
            # An element of an exact type may differ only if an element that it is computed from differs.
            terms, spread = np.zeros_like(size), np.where(_distances(size, read) > 0, math.inf, 0.0)
        elif read:
            terms, spread = _RULES[rule](size, read)
        else:
            return None
        return ElementErrors(np.abs(actual - reference)[differ], terms, spread + jumps)


def _relative(size: np.ndarray, read: _Read) -> tuple[np.ndarray, np.ndarray]:
    return size, size * _relative_errors(size, read)


def _exponential(size: np.ndarray, read: _Read) -> tuple[np.ndarray, np.ndarray]:
    return size * (1 + _sizes(size, read)), size * _distances(size, read)


def _growth(size: np.ndarray, read: _Read) -> tuple[np.ndarray, np.ndarray]:
    terms, spread = _exponential(size, read)
    return terms, spread + _distances(size, read)


def _selection(size: np.ndarray, read: _Read) -> tuple[np.ndarray, np.ndarray]:
    return size, _distances(size, read)


def _sum(size: np.ndarray, read: _Read) -> tuple[np.ndarray, np.ndarray]:
    return size + _sizes(size, read), _distances(size, read)


def _update(size: np.ndarray, read: _Read) -> tuple[np.ndarray, np.ndarray]:
    (distance, input_size), *factors = read
    # The update is the difference of output and first input, so it is at most as large as both together.
    terms = size + input_size
    return terms, distance + terms * _relative_errors(size, factors)


def _gradient(size: np.ndarray, read: _Read) -> tuple[np.ndarray, np.ndarray]:
    (distance, input_size), *others = read
    return size + input_size, distance + input_size * _distances(size, others)


def _jump(size: np.ndarray, read: _Read) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    return size + _sizes(size, read), np.where(_distances(size, read) > 0, math.inf, 0.0)


def _relative_errors(size: np.ndarray, read: _Read) -> np.ndarray:
    import numpy as np

    product = np.ones_like(size)
    for distance, input_size in read:
        # Equal elements have no error, even if they are zero. Two factors that are far off enlarge each other's errors.
        product *= 1 + np.where(distance > 0, distance / input_size, 0.0)
    return product - 1


def _distances(size: np.ndarray, read: _Read) -> np.ndarray:
    return _total([distance for distance, _ in read], size)


def _sizes(size: np.ndarray, read: _Read) -> np.ndarray:
    return _total([input_size for _, input_size in read], size)


def _total(arrays: Sequence[np.ndarray], like: np.ndarray) -> np.ndarray:
    """Return the sum of some arrays; zeros in the shape of `like` for none."""
    import numpy as np

    total: np.ndarray = sum(arrays, np.zeros_like(like))
    return total


_RULES = {
    "relative": _relative,
    "exponential": _exponential,
    "growth": _growth,
    "selection": _selection,
    "sum": _sum,
    "update": _update,
    "gradient": _gradient,
    "jump": _jump,
}


def _arrays(inputs: _InputPairs, shape: tuple[int, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for a, b in inputs:
        if _reaches(a.shape, shape) and _reaches(b.shape, shape):
            yield _wide(a.numpy()), _wide(b.numpy())


def _reaches(shape: Optional[tuple[int, ...]], target: tuple[int, ...]) -> bool:
    """Return True if an array of this shape can be broadcast to the target shape."""
    if shape is None or len(shape) > len(target):
        return False
    return all(size in (1, target_size) for size, target_size in zip(shape[::-1], target[::-1]))


def _wide(array: np.ndarray) -> np.ndarray:
    import numpy as np

    wide: Any = np.complex128 if array.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):  # memory that was never written may contain signalling NaN
        return array.astype(wide)
