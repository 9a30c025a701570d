"""Find requests of one side whose tokens the other side has at other positions, so that they cannot be compared.

A part of a prompt whose positions begin at 0 again is read as a request of its own. So are packed requests whose
positions go on from one to the next: they are read as one request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ascend_dump.analysis.alignment.token_requests import UNKNOWN

__all__ = ["DisplacedTokens", "displaced_tokens"]

#: Minimum number of tokens of such a request. Fewer tokens may occur in another request by chance.
_LEAST = 4


class DisplacedTokens(NamedTuple):
    """The tokens of a request without a partner, which a request of the other side has at later positions.

    request   number of the request on its own side
    length    number of its tokens
    other     number of the request of the other side
    position  position of the first of these tokens there
    """

    request: int
    length: int
    other: int
    position: int


def displaced_tokens(
    sequences: Sequence[Sequence[int]], others: Sequence[Sequence[int]], partners: Mapping[int, int]
) -> list[DisplacedTokens]:
    """Return the displaced requests of one side.

    sequences  the ids of each request of this side
    others     the ids of each request of the other side
    partners   by number of a request of this side: the request of the other side that begins with the same ids
    """
    found = []
    for request, ids in enumerate(sequences):
        if request in partners or len(ids) < _LEAST or UNKNOWN in ids:
            continue
        for other, theirs in enumerate(others):
            places = range(1, len(theirs) - len(ids) + 1)
            position = next((n for n in places if list(theirs[n : n + len(ids)]) == list(ids)), None)
            if position is not None:
                found.append(DisplacedTokens(request, len(ids), other, position))
                break
    return found
