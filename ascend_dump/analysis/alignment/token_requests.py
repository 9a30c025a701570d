"""Find the request to which each token of a call belongs, and collect the ids of each request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Optional

from ascend_dump.analysis.alignment.model_calls import REJECTED, ModelCall
from ascend_dump.analysis.alignment.token_integers import TokenRun

__all__ = ["UNKNOWN", "Requests", "are_equal_ids"]

#: The id of a token that was in a cache before the first recorded call.
UNKNOWN = -1
#: Minimum number of ids that show the place of a segment in a sequence. Fewer may occur elsewhere by chance.
_LEAST = 4


def are_equal_ids(first: int, second: int) -> bool:
    """Return True if two ids are equal, or one of them is unknown."""
    return first == second or UNKNOWN in (first, second)


class Requests:
    """The sequences of ids of one side, one for each request. Each call continues some of them.

    A call may write a token at a position that already has a token. Then a draft model proposed the tokens from this
    position on, and the model rejected them; or they were padding behind the tokens of a request. If positions do not
    show to which request a token belongs, the sequences of the other side decide, if they are known.

    ids       ids of the tokens of each sequence
    """

    def __init__(self, known: Sequence[Sequence[int]]) -> None:
        self.ids: list[list[int]] = []
        self._known = known
        #: The ids of the tokens that were written again, of the first call of a sequence and of later calls.
        self._overwritten: tuple[list[int], list[int]] = ([], [])
        #: For each sequence and token: the row of slots and the index of the slot; None for a token that was cached.
        self._slots: list[list[Optional[tuple[list[tuple[int, int]], int]]]] = []
        #: For each sequence: the sequences of the other side with the same ids up to a position, and this position.
        self._alike: list[tuple[list[int], int]] = []

    @property
    def rejected(self) -> int:
        """The number of tokens of drafts that were rejected, without padding behind the tokens of a request.

        All padding has one id, and is in the first calls of sequences if these have tokens that were written again.
        """
        first, later = self._overwritten
        padding = {*first} or ({*later} if len(later) > 1 else set())
        tokens = [*first, *later]
        return sum(token not in padding for token in tokens) if len(padding) == 1 else len(tokens)

    def begin(self, segment: TokenRun) -> int:
        """Begin a sequence for a segment, with the tokens that were cached before this call; return its number."""
        cached = self._count_cached(segment)
        self.ids.append([UNKNOWN] * cached)
        self._slots.append([None] * cached)
        self._alike.append((list(range(len(self._known))), 0))
        return len(self.ids) - 1

    def _count_cached(self, segment: TokenRun) -> int:
        """Return the number of tokens that were cached before a new sequence.

        Recorded positions may be wrong. Then the ids are looked for near their position, and elsewhere if they are
        several.
        """
        cached, count = segment.cached, len(segment.ids)
        if not self._known:
            return 0
        if self._is_known(segment, cached):
            return cached
        near = [cached - 1, cached + 1] if cached > 1 else []
        positions = [position for position in (0, *near) if self._is_known(segment, position)]
        if not positions and count >= _LEAST:
            ends = ((ids, range(1, len(ids) - count + 1)) for ids in self._known)
            ids_of_segment = list(segment.ids)
            positions = [n for ids, ends_at in ends for n in ends_at if ids[n : n + count] == ids_of_segment]
        return positions[0] if positions else cached

    def add(self, number: int, segment: TokenRun, call: ModelCall) -> None:
        """Add the tokens of a segment to a sequence, and note them in the slots of its call."""
        ids, slots = self.ids[number], self._slots[number]
        position = self._position(number, segment)
        self._reject(number, position)
        gap = position - len(ids)
        ids.extend([UNKNOWN] * gap)
        slots.extend([None] * gap)
        row = call.slots[segment.row]
        for slot, token_id in zip(segment.slots, segment.ids):
            row[slot] = (number, len(ids))
            slots.append((row, slot))
            ids.append(token_id)

    def _reject(self, number: int, position: int) -> None:
        """Remove the tokens of a sequence from a position on, and mark their slots as rejected."""
        slots = self._slots[number]
        first_row = next((slot[0] for slot in slots if slot is not None), None)
        for slot, token_id in zip(slots[position:], self.ids[number][position:]):
            if slot is not None:
                row, index = slot
                row[index] = REJECTED
                self._overwritten[row is not first_row].append(token_id)
        del self.ids[number][position:], self._slots[number][position:]

    def _position(self, number: int, segment: TokenRun) -> int:
        """Return the position in a sequence at which a segment of this sequence begins."""
        end, position = len(self.ids[number]), segment.position
        if not position:
            return end
        if not self._known:
            return min(position, end)
        if not any(self._slots[number]) and self._is_known(segment, end):
            return end  # it begins with this segment, and its positions count padding
        # Recorded positions may be wrong, so positions nearby are tried too.
        near = (end, position) if position >= end else (position, position - 1, position + 1, end)
        before = (*near, *self._padding_of(number))
        return next((n for n in before if n > 0 and self._continues(number, n, segment.ids[0])), end)

    def _padding_of(self, number: int) -> Sequence[int]:
        """Return the positions of padding at the end of a sequence, behind which a program may write the next tokens.

        It has one id, and is in the first call of the sequence. A single token may have this id by chance, unless no
        request of the other side has it there.
        """
        ids, slots = self.ids[number], self._slots[number]
        first_row = next((slot[0] for slot in slots if slot is not None), None)
        last = slots[-1] if slots else None
        if last is None or last[0] is not first_row:
            return ()
        padding = list(takewhile(lambda n: ids[n] == ids[-1], range(len(ids) - 1, 0, -1)))
        is_unknown = bool(self._known) and not self._sequences_like(number, len(ids))
        return padding if len(padding) > 1 or is_unknown else ()

    def begins_other(self, number: int, segment: TokenRun) -> bool:
        """Return True if a segment, written before the end of a sequence, is of another request.

        The other side has all tokens of the sequence, so none of them was rejected: the first tokens of the request
        were cached for the sequence.
        """
        ids, position = self.ids[number], segment.position
        if not position or position >= len(ids) or not self._is_known(segment, position):
            return False
        whole = [n for n in self._sequences_like(number, len(ids)) if len(self._known[n]) >= len(ids)]
        return bool(whole) and not any(all(self._has(n, segment, i) for i in range(len(segment.ids))) for n in whole)

    def waiting(self, segment: TokenRun, last: Optional[int]) -> Optional[int]:
        """Return the sequence that the only segment of a call continues, if it ends where the segment begins.

        Requests may be decoded in turn, each in calls of its own.

        last: the sequence of the call before, which is returned if it ends there, or if no sequence does
        """
        if not segment.position:
            return last
        ending = [number for number, ids in enumerate(self.ids) if len(ids) == segment.position]
        if self._known:
            ending = self._continued_by(ending, segment.ids[0])
            ending = [number for number in ending if self._has_more(number, segment.position)] or ending
        return last if last in ending or not ending else ending[0]

    def divided(self, segment: TokenRun, waiting: Sequence[int]) -> Iterator[TokenRun]:
        """Yield the parts of a segment of a flat call that belong to one request each.

        A flat call has a single row with the slots of several requests, whose positions may follow each other by
        chance.

        waiting: the sequences that may go on in this call
        """
        if not self._known or not waiting or segment.position is None:
            yield segment
            return
        begin, alike = 0, self._that_have(segment, 0, 1)
        own = alike
        for index in range(1, len(segment.ids)):
            # Behind a token of a draft that will be rejected, the draft may be right again.
            goes_on = [n for n in alike or own if self._has(n, segment, index)]
            if not goes_on and self._waits(segment.part(index, index + 1), waiting):
                yield segment.part(begin, index)
                begin, goes_on = index, self._that_have(segment, index, index + 1)
                own = goes_on
            alike = goes_on
        yield segment.part(begin, len(segment.ids))

    def _that_have(self, segment: TokenRun, begin: int, end: int) -> list[int]:
        return [n for n in range(len(self._known)) if all(self._has(n, segment, i) for i in range(begin, end))]

    def _has(self, known: int, segment: TokenRun, index: int) -> bool:
        """Return True if a known sequence has, at its position, the id that a segment has at an index."""
        position = (segment.position or 0) + index
        return position < len(self._known[known]) and are_equal_ids(self._known[known][position], segment.ids[index])

    def _waits(self, segment: TokenRun, waiting: Sequence[int]) -> bool:
        position = segment.position or 0
        return any(
            0 < position <= len(self.ids[number]) and self._continues(number, position, segment.ids[0])
            for number in waiting
        )

    def owner(self, segment: TokenRun, waiting: Sequence[int], same_index: Optional[int]) -> Optional[int]:
        """Return the sequence that a segment of a flat call continues; None for a new one.

        waiting     the sequences that may go on, the likeliest first
        same_index  the sequence at the same index in the call before, if both calls have as many sequences; else None
        """
        position, first = segment.position, segment.ids[0]
        if position == 0:
            return self._continued(segment, waiting)
        at_end = [number for number in waiting if len(self.ids[number]) == position]
        if not self._known:
            return at_end[0] if at_end else same_index
        fitting = self._continued_by(at_end, first)
        within = [
            number
            for number in waiting
            if position is not None
            and position < len(self.ids[number])
            and self._continues(number, position, first)
            and not self.begins_other(number, segment)
        ]
        # Recorded positions may be wrong or missing, so a sequence that fits at its end is considered too.
        elsewhere = [number for number in waiting if self._continues(number, len(self.ids[number]), first)]
        is_likely = same_index is not None and same_index in (within or elsewhere)
        if fitting or within or elsewhere:
            return fitting[0] if fitting else same_index if is_likely else (within or elsewhere)[0]
        unknown = [number for number in at_end if not self._sequences_like(number, position or 0)]
        return unknown[0] if unknown else same_index

    def _continued(self, segment: TokenRun, waiting: Sequence[int]) -> Optional[int]:
        """Return the sequence that all ids of a segment continue, if none begins with them: its positions are wrong."""
        if not self._known or self._is_known(segment, 0):
            return None
        ids = list(segment.ids)
        for number in waiting:
            end = len(self.ids[number])
            if any(self._known[n][end : end + len(ids)] == ids for n in self._sequences_like(number, end)):
                return number
        return None

    def _is_known(self, segment: TokenRun, position: int) -> bool:
        """Return True if a known sequence has, from a position on, the first id of a segment and most of the others."""
        for ids in self._known:
            pairs = list(zip(segment.ids, ids[position:]))
            if pairs and pairs[0][0] == pairs[0][1] and 2 * sum(a == b for a, b in pairs) > len(pairs):
                return True
        return False

    def _continues(self, number: int, position: int, token_id: int) -> bool:
        """Return True if a known sequence like this one has an id at a position, or ends before this position."""
        return any(
            position >= len(self._known[n]) or are_equal_ids(self._known[n][position], token_id)
            for n in self._sequences_like(number, position)
        )

    def _continued_by(self, numbers: Sequence[int], token_id: int) -> list[int]:
        """Return the sequences that may go on with an id; those that have ended on the other side are the last ones."""
        ends = {number: len(self.ids[number]) for number in numbers}
        fitting = [number for number in numbers if self._continues(number, ends[number], token_id)]
        return sorted(fitting, key=lambda number: not self._has_more(number, ends[number]))

    def _has_more(self, number: int, position: int) -> bool:
        return any(position < len(self._known[n]) for n in self._sequences_like(number, position))

    def _sequences_like(self, number: int, position: int) -> list[int]:
        """Return the known sequences that have the same ids as a sequence before a position."""
        ids = self.ids[number]
        alike, checked = self._alike[number]
        if position < checked:
            alike, checked = list(range(len(self._known))), 0
        end = min(position, len(ids))
        alike = [
            n
            for n in alike
            if all(are_equal_ids(ids[i], self._known[n][i]) for i in range(checked, min(end, len(self._known[n]))))
        ]
        self._alike[number] = alike, end
        return alike
