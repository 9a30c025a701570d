"""Measure how far the elements and vectors of an attention are apart, whose order depends on the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    import numpy as np

__all__ = ["MOST_VECTORS", "SAME_VECTOR", "distance", "distances", "lacks", "moved_head", "ratio"]

#: Maximum number of vectors that are looked for among the vectors of the other side.
MOST_VECTORS = 64
#: Vectors are the same up to this share of the largest element.
SAME_VECTOR = 1e-2


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference of sorted values, relative to the largest value; infinite for other counts.

    If each value occurs several times as often on one side, such as keys that are repeated for groups of heads, it
    counts once.
    """
    import numpy as np

    short, long = sorted((a, b), key=len)
    if not len(short) or len(long) % len(short):
        return 0.0 if len(long) == len(short) else float("inf")
    if len(long) != len(short):
        long = long[:: len(long) // len(short)]
    largest = max(float(np.abs(short).max()), 1e-30)
    return float(np.abs(short - long).max()) / largest


def ratio(a: np.ndarray, b: np.ndarray) -> float:
    """Return the ratio of the norms of two arrays; 1 if it is unknown."""
    import numpy as np

    norms = [float(np.square(side).sum()) for side in (a, b)]
    return float(np.sqrt(norms[0] / norms[1])) if norms[1] and np.isfinite(norms).all() else 1.0


def lacks(a: np.ndarray, b: np.ndarray) -> bool:
    """Return True if a vector of the reference is not among those of actual."""
    import numpy as np

    if not len(b):
        return True
    chosen = b[np.linspace(0, len(b) - 1, min(len(b), MOST_VECTORS)).astype(int)]
    return bool(distances(a, chosen).max() > SAME_VECTOR * np.abs(chosen).max())


def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return for each vector of the reference the distance of the nearest one of actual."""
    import numpy as np

    if not len(a) or a.shape[1] != b.shape[1]:
        return np.full(len(b), np.inf)
    distances: np.ndarray = np.abs(b[:, None] - a[None]).max(axis=-1).min(axis=1)
    return distances


def moved_head(rows: np.ndarray, others: np.ndarray, keys: int) -> Optional[tuple[int, int]]:
    """Return a head of actual and the other head of the reference that has its vectors; None if all are in order.

    keys: the number of vectors of each head. A side may have one head for several heads of the other side
    """
    if not keys or rows.shape[1] != others.shape[1] or any(len(side) % keys for side in (rows, others)):
        return None
    heads, of_reference = (side.reshape(-1, keys, side.shape[1]) for side in (rows, others))
    count = max(len(heads), len(of_reference))
    if count % len(heads) or count % len(of_reference):
        return None
    heads, of_reference = (side.repeat(count // len(side), axis=0) for side in (heads, of_reference))
    for number, head in enumerate(heads):
        if lacks(head, of_reference[number]):
            return next(((number, n) for n, other in enumerate(of_reference) if not lacks(head, other)), None)
    return None
