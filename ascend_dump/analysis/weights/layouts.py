"""Describe in words how the rows of tensors are arranged on the other side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "RowRun",
    "RowRuns",
    "RowUnit",
    "describe_joined",
    "describe_permutation",
    "named_order",
    "runs_of",
    "short_names",
]

#: Maximum number of runs, and about the maximum number of names, that a text lists.
_MOST_LISTED = 4


class RowUnit(NamedTuple):
    """The unit in which a text counts the rows of a tensor.

    noun  "rows", "columns" or "elements"
    size  number of units in a row: the number of elements for a vector, else 1
    """

    noun: str
    size: int = 1

    def span(self, start: int, length: int) -> str:
        """Return the text for some rows: `rows 0-63`."""
        first, last = start * self.size, (start + length) * self.size - 1
        return f"{self.noun[:-1]} {first}" if first == last else f"{self.noun} {first}-{last}"

    def amount(self, length: int) -> str:
        number = length * self.size
        return f"{number} {self.noun if number != 1 else self.noun[:-1]}"


class RowRun(NamedTuple):
    """Consecutive rows from `start` on that are the consecutive rows from `target_start` on in the tensor `target`."""

    start: int
    length: int
    target: int
    target_start: int


RowRuns = list[RowRun]


def runs_of(targets: np.ndarray, rows: np.ndarray) -> RowRuns:
    """Return the runs of rows with a partner, in order. targets, rows: as in `RowMap`."""
    import numpy as np

    if not len(targets):
        return []
    breaks = np.flatnonzero((np.diff(targets) != 0) | (np.diff(rows) != 1)) + 1
    starts = [0, *breaks.tolist()]
    ends = [*breaks.tolist(), len(targets)]
    return [
        RowRun(start, end - start, int(targets[start]), int(rows[start]))
        for first, last in zip(starts, ends)
        for start, end in ([(first, last)] if targets[first] >= 0 else [])
    ]


def describe_permutation(rows: np.ndarray, unit: RowUnit) -> tuple[str, bool]:
    """Describe a permutation of rows. Return also True if it interleaves parts, as for rotary embeddings."""
    import numpy as np

    count = len(rows)
    moved = np.flatnonzero(rows != np.arange(count))
    if len(moved) == 2:
        return f"{unit.noun} {moved[0] * unit.size} and {moved[1] * unit.size} are swapped", False
    interleaving = _interleaving(rows)
    if interleaving is not None:
        block, parts, size = interleaving
        within = "" if block == count else f"in each block of {unit.amount(block)} "
        if parts <= size:
            return f"{within}{parts} parts of {unit.amount(size)} are interleaved in the reference", True
        return f"{within}{size} parts of {unit.amount(parts)} are interleaved, which the reference has apart", True
    runs = runs_of(np.zeros(count, np.int64), rows)
    if len(runs) <= _MOST_LISTED:
        texts = [f"{unit.span(run.start, run.length)} are {unit.span(run.target_start, run.length)}" for run in runs]
        return f"{', '.join(texts)} of the reference", False
    first = int(moved[0])
    return (
        f"{len(moved) * unit.size} of {unit.amount(count)} are moved: the first one, {first * unit.size}, is "
        f"{unit.noun[:-1]} {int(rows[first]) * unit.size} of the reference",
        False,
    )


def _interleaving(rows: np.ndarray) -> Optional[tuple[int, int, int]]:
    """Return (block, parts, size) if in each block row x * size + y is row y * parts + x of the reference."""
    import numpy as np

    count = len(rows)
    step = int(rows[1]) - int(rows[0]) if count > 3 else 0
    if rows[0] != 0 or step < 2:
        return None
    parts = step
    jumps = np.flatnonzero(np.diff(rows) != parts)
    size = int(jumps[0]) + 1 if len(jumps) else count
    block = parts * size
    if size < 2 or count % block:
        return None
    position = np.arange(block)
    expected = (position % size) * parts + position // size
    starts = np.arange(0, count, block)
    return (block, parts, size) if (rows.reshape(-1, block) == starts[:, None] + expected).all() else None


def describe_joined(runs: RowRuns, names: dict[int, str], unit: RowUnit) -> tuple[str, bool]:
    """Describe a tensor with the rows of several others. Return also True if all rows of the others are in order.

    runs: the runs of the joined tensor. names: short names of the others, by their numbers.
    """
    runs = sorted(runs)
    order = list(dict.fromkeys(run.target for run in runs))
    is_ordered = all(
        run.target_start == sum(before.length for before in runs[:number] if before.target == run.target)
        for number, run in enumerate(runs)
    )
    if len(runs) == len(order):
        listed = [f"{unit.span(run.start, run.length)} {names[run.target]}" for run in runs]
        partial = [
            f"{unit.span(run.start, run.length)} are {unit.span(run.target_start, run.length)} of {names[run.target]}"
            for run in runs
            if run.target_start
        ]
        return ", ".join(_shortened(listed if is_ordered else partial)), is_ordered
    cycle = [(run.target, run.length) for run in runs[: len(order)]]
    is_periodic = len(runs) % len(order) == 0 and all(
        (run.target, run.length) == cycle[number % len(order)] for number, run in enumerate(runs)
    )
    if is_periodic and is_ordered:
        sizes = [f"{unit.amount(count)} of {names[target]}" for target, count in cycle]
        return f"in {len(runs) // len(order)} groups of {', '.join(_shortened(sizes))}", True
    listed = [
        f"{unit.span(run.start, run.length)} are {unit.span(run.target_start, run.length)} of {names[run.target]}"
        for run in runs
    ]
    return ", ".join(_shortened(listed)), False


def named_order(name: str, parts: Sequence[str]) -> list[str]:
    """Return the parts of a joined weight in the order in which its name lists them; no parts if it does not.

    >>> named_order("attn.qkv_proj.weight", ["q_proj", "v_proj", "k_proj"])
    ['q_proj', 'k_proj', 'v_proj']
    """
    words = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2].lower()
    start, end = (_common_letters(texts) for texts in (parts, [part[::-1] for part in parts]))
    distinct = [part[start : len(part) - end].lower() for part in parts]
    for keys in (distinct, [key[:1] for key in distinct]):
        places = [words.find(key) for key in keys]
        if all(keys) and -1 not in places and len({*places}) == len(parts):
            return [part for _, part in sorted(zip(places, parts))]
    return []


def _common_letters(texts: Sequence[str]) -> int:
    return next((n for n, letters in enumerate(zip(*texts)) if len({*letters}) > 1), min(map(len, texts)))


def _shortened(texts: Sequence[str]) -> list[str]:
    if len(texts) <= _MOST_LISTED + 1:
        return list(texts)
    return [*texts[: _MOST_LISTED - 1], f"… ({len(texts)} in all)"]


def short_names(names: Sequence[str]) -> list[str]:
    """Return names without the leading and the trailing words that all of them share.

    >>> short_names(["layers.0.q_proj.weight", "layers.0.k_proj.weight"])
    ['q_proj', 'k_proj']
    """
    if len(names) < 2:
        return [name.removesuffix(".weight").rpartition(".")[2] if len(names) else name for name in names]
    words = [name.split(".") for name in names]
    start = _common([*map(tuple, words)])
    end = _common([tuple(reversed(name[start:])) for name in words])
    return [".".join(name[start : len(name) - end]) or name[-1] for name in words]


def _common(lists: Sequence[tuple[str, ...]]) -> int:
    """Return the number of leading words that all lists share, but less than the length of the shortest list."""
    count = 0
    for words in zip(*lists):
        if len({*words}) > 1:
            break
        count += 1
    return min(count, min(map(len, lists)) - 1)
