"""The fields of index lines about other ranks: the group of a collective, and the division of a tensor over ranks.

    "collective": {"kind": "all_reduce", "group": "0", "ranks": "0-3", "nth": 2, "reduce": "sum"}
    "collective": {"kind": "send", "group": "0", "ranks": "0-3", "nth": 0, "peer": 1, "tag": 7}
    "placement": {"ranks": "0-3", "mesh": [2, 2], "names": ["dp", "tp"], "axes": ["replicate", "shard 0"],
                  "shape": [64, 32]}

All ranks are global ranks. A list of ranks is written as ranges in the order of the list: `0-3`, `1-13:4` (every fourth
from 1 to 13), `3|1`.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Optional

import msgspec
from msgspec import Meta

__all__ = ["CollectiveCall", "Placement", "ranks_of", "ranks_text"]

#: Maximum number of ranks of a group.
_MOST_RANKS = 1 << 17
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_SHARD = re.compile(r"shard (\d{1,2})", re.ASCII)

_Rank = Annotated[int, Meta(ge=0, lt=2**31)]
_Text = Annotated[str, Meta(max_length=1 << 16)]


class CollectiveCall(msgspec.Struct, omit_defaults=True, frozen=True):
    """The fields that identify a call of a collective, so that the calls of all its ranks can be matched.

    kind    "all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter", "gather", "scatter", "all_to_all",
            "barrier", "send" or "recv"; for others the framework's name
    group   the name of the process group
    ranks   the global ranks of the group in their order
    nth     number of earlier calls of this rank with the same kind and group in this step; for send and recv also with
            the same peer and tag
    reduce  "sum", "avg", "max", "min", "product", ... ; "" if the framework does not report it
    root    for kinds with a root: the rank that sends to all others, or receives from them
    peer    for send and recv: the other rank; None if any rank may send
    tag     for send and recv: the tag of the message
    """

    kind: _Text
    group: _Text
    ranks: _Text
    nth: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    reduce: _Text = ""
    root: Optional[_Rank] = None
    peer: Optional[_Rank] = None
    tag: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of the group, in order. Raises ValueError if `ranks` is not a list of ranks."""
        return ranks_of(self.ranks)


class Placement(msgspec.Struct, omit_defaults=True, frozen=True):
    """The division of a tensor over a mesh, which is an array of ranks. A record has the part of one rank.

    ranks  the ranks of the mesh in row-major order
    mesh   the size of each dimension of the mesh
    names  the names of these dimensions; empty if they have none
    axes   for each dimension of the mesh: "replicate", "shard AXIS", "partial OPERATION", or the framework's own text
    shape  the shape of the whole tensor
    """

    ranks: _Text
    mesh: Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**31)], ...], Meta(max_length=16)]
    axes: Annotated[tuple[_Text, ...], Meta(max_length=16)]
    names: Annotated[tuple[_Text, ...], Meta(max_length=16)] = ()
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=2**63 - 1)], ...], Meta(max_length=64)] = ()

    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> Optional[Placement]:
        """Return the placement in the attributes of a record; None if they have no valid one."""
        placement = attrs.get("placement")
        if placement is None:
            return None
        try:
            return msgspec.convert(placement, cls)
        except msgspec.ValidationError:
            return None

    def coordinates(self, rank: int) -> Optional[tuple[int, ...]]:
        """Return the coordinates of a rank on the mesh; None if the mesh lacks the rank, or is inconsistent.

        >>> Placement("0-3", (2, 2), ("replicate", "shard 0")).coordinates(2)
        (1, 0)
        """
        try:
            ranks = ranks_of(self.ranks)
        except ValueError:
            return None
        if rank not in ranks or math.prod(self.mesh) != len(ranks) or len(self.mesh) != len(self.axes):
            return None
        position, coordinates = ranks.index(rank), []
        for size in reversed(self.mesh):
            position, coordinate = divmod(position, size)
            coordinates.append(coordinate)
        return tuple(reversed(coordinates))

    def region(self, rank: int) -> Optional[tuple[slice, ...]]:
        """Return the slices of the whole tensor that a rank has; None if it has no slice but, say, a term of a sum.

        Axes are divided as by `torch.chunk`: the last parts may be smaller, or empty.

        >>> Placement("0-3", (4,), ("shard 1",), shape=(8, 10)).region(3)
        (slice(0, 8, None), slice(9, 10, None))
        """
        coordinates = self.coordinates(rank)
        if coordinates is None:
            return None
        bounds = [(0, size) for size in self.shape]
        for axis, count, coordinate in zip(self.axes, self.mesh, coordinates):
            cut = _SHARD.fullmatch(axis)
            if cut is not None and int(cut[1]) < len(bounds):
                low, high = bounds[int(cut[1])]
                size = -(-(high - low) // count)
                bounds[int(cut[1])] = (min(low + coordinate * size, high), min(low + (coordinate + 1) * size, high))
            elif axis != "replicate":
                return None
        return tuple(slice(low, high) for low, high in bounds)


def ranks_text(ranks: Sequence[int]) -> str:
    """Return a list of ranks as text with ranges, in the order of the list.

    >>> ranks_text([0, 1, 2, 3]), ranks_text([1, 5, 9, 13]), ranks_text([3, 1])
    ('0-3', '1-13:4', '3|1')
    """
    parts: list[str] = []
    start = 0
    while start < len(ranks):
        step = ranks[start + 1] - ranks[start] if start + 1 < len(ranks) else 0
        end = start + 1
        while step > 0 and end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        if end - start < (2 if step == 1 else 3):
            parts.append(str(ranks[start]))
            start += 1
        else:
            parts.append(f"{ranks[start]}-{ranks[end - 1]}" + ("" if step == 1 else f":{step}"))
            start = end
    return "|".join(parts)


@functools.lru_cache(64)
def ranks_of(text: str) -> tuple[int, ...]:
    """Parse a text of `ranks_text`. Raises ValueError for anything else.

    >>> ranks_of("0-3"), ranks_of("1-13:4"), ranks_of("3|1")
    ((0, 1, 2, 3), (1, 5, 9, 13), (3, 1))
    """
    ranks: list[int] = []
    for part in text.split("|"):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{text[:80]!r} is no list of ranks such as '0-3|8-12:2'")
        first, last, step = match.groups()
        row = range(int(first), int(last or first) + 1, int(step or 1) or 1)
        if len(ranks) + len(row) > _MOST_RANKS:
            raise ValueError(f"{text[:80]!r} has more than {_MOST_RANKS} ranks")
        ranks += row
    return tuple(ranks)
