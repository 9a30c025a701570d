"""Find requests of one side whose tokens the other side has at other positions, so that they cannot be compared.

A part of a prompt whose positions begin at 0 again is read as a request of its own. So are packed requests whose
positions go on from one to the next: they are read as one request, or the first ones as padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Optional

from ascend_dump.analysis.alignment.model_calls import NO_TOKEN, REJECTED, ModelCall
from ascend_dump.analysis.alignment.token_requests import UNKNOWN

__all__ = ["DisplacedTokens", "PartedRequest", "count_tokens", "displaced_tokens", "parted_requests"]

#: Minimum number of tokens of such a request. Fewer tokens may occur in another request by chance.
_LEAST = 4


class DisplacedTokens(NamedTuple):
    """The tokens of a request without a partner, which a request of the other side has at later positions.

    request   number of the request on its own side
    length    number of its tokens
    holder    number of the request of the other side, or None if the tokens are in slots that were taken for padding
    position  position of the first of these tokens there, or its place in these slots
    """

    request: int
    length: int
    holder: Optional[int]
    position: int


class PartedRequest(NamedTuple):
    """A request whose ids differ from some position on. ids: those at this position, of actual and of the reference"""

    request: int
    position: int
    ids: tuple[int, int]


def parted_requests(
    actual: Sequence[Sequence[int]], reference: Sequence[Sequence[int]], partners: Mapping[int, tuple[int, int]]
) -> list[PartedRequest]:
    """Return the requests of actual whose ids part from those of their partners.

    If a request goes on with ids of another request, the dump does not show where the one ends and the other begins.
    Requests that have more than half of the equal ids in common may be beams: a search replaces one by another one.

    partners: by number of a request of actual: the request of the reference, and the number of ids until they part
    """
    parted = []
    for request, (partner, count) in partners.items():
        here, there = actual[request], reference[partner]
        others = [ids for number, ids in enumerate(reference) if number != partner]
        own = [ids for number, ids in enumerate(actual) if number != request]
        goes_on = any(
            _position(here[start : start + _LEAST], ids, 1) is not None
            for start in (count, count + 1)
            if start + _LEAST <= len(here)
            for ids in others
        )
        common = here[: count // 2 + 1]
        is_beam = any(list(ids[: len(common)]) == list(common) for ids in (*own, *others))
        if count < min(len(here), len(there)) and not (goes_on or is_beam):
            parted.append(PartedRequest(request, count, (here[count], there[count])))
    return parted


def displaced_tokens(
    sequences: Sequence[Sequence[int]],
    opposite_sequences: Sequence[Sequence[int]],
    partners: Mapping[int, int],
    opposite_calls: Iterable[ModelCall] = (),
) -> list[DisplacedTokens]:
    """Return the displaced requests of one side.

    sequences           the ids of each request of this side
    opposite_sequences  the ids of each request of the other side
    partners            by number of a request of this side: the request of the other side that begins with the same ids
    opposite_calls      the model calls of the other side
    """
    alone = [
        (request, ids)
        for request, ids in enumerate(sequences)
        if request not in partners and len(ids) >= _LEAST and UNKNOWN not in ids
    ]
    if not alone:
        return []
    rows = [(number, ids, 1) for number, ids in enumerate(opposite_sequences)]
    padding = [(None, ids, 0) for call in opposite_calls for ids in _padding(call)]
    displaced = []
    for request, ids in alone:
        for holder, row, first in (*rows, *padding):
            position = _position(ids, row, first)
            if position is not None:
                displaced.append(DisplacedTokens(request, len(ids), holder, position))
                break
    return displaced


def count_tokens(calls: Iterable[ModelCall]) -> int:
    """Return the number of tokens of one side, with those that were taken for padding.

    Real padding has one id, so adjacent slots with several ids hold tokens whose positions were not understood.
    """
    count = 0
    for call in calls:
        count += sum(token not in (NO_TOKEN, REJECTED) for row in call.slots for token in row)
        count += sum(len(ids) for ids in _padding(call) if len(ids) >= _LEAST and len(set(ids)) > 1)
    return count


def _position(ids: Sequence[int], row: Sequence[int], first: int) -> Optional[int]:
    """Return the position of the ids in a longer row, `first` or later; None if the row does not contain them."""
    positions = range(first, len(row) - len(ids) + 1)
    return next((n for n in positions if list(row[n : n + len(ids)]) == list(ids)), None)


def _padding(call: ModelCall) -> Iterator[list[int]]:
    """Yield the ids of adjacent slots without a token."""
    for ids, tokens in zip(call.ids.tolist(), call.slots):
        for is_padding, slots in groupby(zip(ids, tokens), lambda slot: slot[1] == NO_TOKEN):
            if is_padding:
                yield [number for number, _ in slots]
