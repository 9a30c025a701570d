"""Align two sequences of keys: the longest common subsequence, and the keys that are unique on both sides."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, Optional

from ascend_dump.errors import NotSupported

__all__ = ["common", "longest_increasing", "unique_in_order"]

#: Maximum number of operators that are aligned at once, because the memory grows with its square.
_WINDOW = 1 << 12


def unique_in_order(a: Sequence[Optional[Hashable]], b: Sequence[Optional[Hashable]]) -> list[tuple[int, int]]:
    """Return the index pairs of the longest sequence of keys that are unique on each side and in the same order."""
    count_a, count_b = Counter(a), Counter(b)
    index = {key: j for j, key in enumerate(b) if key is not None and count_b[key] == 1}
    pairs = [(i, index[key]) for i, key in enumerate(a) if key in index and count_a[key] == 1]
    return [pairs[position] for position in longest_increasing([j for _, j in pairs])]


def longest_increasing(numbers: Sequence[int]) -> list[int]:
    """Return the indices of the longest increasing subsequence."""
    tails: list[int] = []
    heads: list[int] = []
    before: list[int] = []
    for index, j in enumerate(numbers):
        length = bisect_left(tails, j)
        before.append(heads[length - 1] if length else -1)
        if length == len(tails):
            tails.append(j)
            heads.append(index)
        else:
            tails[length] = j
            heads[length] = index
    row = []
    index = heads[-1] if heads else -1
    while index >= 0:
        row.append(index)
        index = before[index]
    return row[::-1]


def common(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the index pairs of the longest common subsequence. Long sequences are searched window by window."""
    if len(a) == len(b) and all(x == y for x, y in zip(a, b)):
        return [(i, i) for i in range(len(a))]
    number: dict[Hashable, int] = {}
    x = [number.setdefault(key, len(number)) for key in a]
    y = [number.setdefault(key, len(number)) for key in b]
    pairs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(x) and j < len(y):
        if len(x) - i <= 2 * _WINDOW and len(y) - j <= 2 * _WINDOW:
            pairs += [(i + k, j + m) for k, m in _indel(x[i:], y[j:])]
            break
        piece = x[i : i + _WINDOW]
        row = _indel(piece, y[j : j + _partner_length(piece, y[j : j + 2 * _WINDOW])])
        # Pairs near the end of a window are not used, because they may change with what follows.
        settled = [(i + k, j + m) for k, m in row if k < _WINDOW // 2]
        pairs += settled
        i, j = (settled[-1][0] + 1, settled[-1][1] + 1) if settled else (i + _WINDOW // 2, j + _WINDOW // 2)
    return pairs


def _partner_length(piece: Sequence[int], candidates: Sequence[int]) -> int:
    """Return the number of leading candidates that correspond to the piece with the fewest insertions and deletions.

    With more or fewer candidates, layers that are all alike would be paired with their neighbours.
    """
    distance = _indel_module().distance
    distances: dict[int, int] = {}

    def edits(length: int) -> int:
        if length not in distances:
            distances[length] = distance(piece, candidates[:length])
        return distances[length]

    best, step = min(len(piece), len(candidates)), _WINDOW // 4
    while step:
        best = min((best, best - step, best + step), key=lambda length: edits(min(max(length, 0), len(candidates))))
        best = min(max(best, 0), len(candidates))
        step //= 2
    return best


def _indel_module() -> Any:
    try:
        from rapidfuzz.distance import Indel
    except ImportError:
        raise NotSupported(
            "comparing dumps whose operators differ needs rapidfuzz, which is not installed",
            hint="pip install 'ascend-dump[analyze]'",
        ) from None
    return Indel


def _indel(x: Sequence[int], y: Sequence[int]) -> list[tuple[int, int]]:
    # Of several longest subsequences, Indel returns that which agrees at the ends. Here the beginnings are known to
    # agree, so both sides are reversed.
    return [
        (len(x) - op.src_end + k, len(y) - op.dest_end + k)
        for op in reversed(_indel_module().opcodes(x[::-1], y[::-1]))
        if op.tag == "equal"
        for k in range(op.src_end - op.src_start)
    ]
