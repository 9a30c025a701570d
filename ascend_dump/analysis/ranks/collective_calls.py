"""Collect the collective calls and messages of a dump, with the tensors that each rank sent and received."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.collectives import collective_of, is_contribution_to
from ascend_dump.analysis.ranks.launches import RankRun, launches
from ascend_dump.analysis.ranks.vector_clocks import Join, Point
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.reading import Record

__all__ = ["CallBook", "CallPart", "operator_key", "point_of", "record_key"]

#: Number of positions reserved for one step. Each operator takes two: one at its beginning, one after its end.
_STEP = 1 << 40
#: Maximum number of sent messages that are skipped in the search for the content of the next received message.
_MOST_SHIFT = 64


class CallPart(NamedTuple):
    """The part of one rank in a call.

    members     the ranks of the group, in the order of the group
    begin, end  the positions (see `Point`) at which the rank begins the call and has received its outputs
    inputs      the tensors that the rank sends, in the order of the operator's tensors
    outputs     the tensors that the rank receives
    first       the first record of the operator
    key         the same for all parts of one call
    is_certain  False for a message whose sender and receiver were matched by their order only, because no contents
                prove that they belong together
    """

    call: CollectiveCall
    members: tuple[int, ...]
    rank: int
    begin: int
    end: int
    inputs: tuple[Record, ...]
    outputs: tuple[Record, ...]
    first: Record
    key: tuple[Hashable, ...]
    is_certain: bool = True

    @property
    def involved(self) -> tuple[int, ...]:
        """The ranks that take part: sender and receiver of a message, as far as the dump names both; else the group."""
        if self.call.kind not in ("send", "recv"):
            return self.members
        return (self.rank,) if self.call.peer is None else (self.rank, self.call.peer)

    @property
    def join(self) -> Join:
        root = self.call.root
        is_root = root is None or root == self.rank
        gives = {"send": True, "recv": False, "broadcast": is_root, "scatter": is_root}.get(self.call.kind, True)
        takes = {"send": False, "recv": True, "reduce": is_root, "gather": is_root}.get(self.call.kind, True)
        return Join(self.key, self.rank, self.begin, self.end, gives, takes)

    @property
    def named(self) -> str:
        """`all_reduce of group 0 (ranks 0-3)`."""
        return f"{self.call.kind} of group {self.call.group} (ranks {self.call.ranks})"


def point_of(record: Record, *, after: Optional[int] = None) -> Optional[Point]:
    """Return the time at which an operator begins on its rank; None if the dump does not record the order of operators.

    after: a sequence number; if given, the time after the end of the operator with this number is returned instead
    """
    number = record.attrs.get("seq")
    if record.rank is None or number is None:
        return None
    position = 2 * number if after is None else 2 * after + 1
    return Point(record.rank, ((record.step or 0) + 1) * _STEP + position)


def operator_key(record: Record) -> Hashable:
    return (record.run, record.rank, record.step, record.execution)


def record_key(record: Record) -> Hashable:
    return (operator_key(record), record.io, record.index)


class CallBook:
    """Gathers the parts of all calls, operator by operator in the order of the dump."""

    def __init__(self) -> None:
        self.calls: dict[Hashable, list[CallPart]] = {}
        self.ranks: set[int] = set()
        self._runs: set[RankRun] = set()
        #: By rank and step: the highest number of an operator so far.
        self._last: dict[tuple[Optional[int], Optional[int]], int] = {}
        #: By the identity of an output record: the position at which the tensor was complete.
        self._ended: dict[int, int] = {}

    def look_at(self, members: Sequence[Record]) -> None:
        """Add the records of one run of an operator."""
        first: Optional[Record] = members[0]
        if first is not None and first.error is not None:
            first = next((record for record in members if record.error is None), None)
        if first is None or first.rank is None:
            return
        self.ranks.add(first.rank)
        self._runs.add((first.rank, first.run))
        number = first.nth
        if number is None:
            return
        rank_and_step = (first.rank, first.step)
        # An asynchronous call is in the dump after the operators that ran until its outputs were complete. These
        # operators have higher numbers than the call.
        last = self._last.get(rank_and_step, -1)
        if number > last:
            last = self._last[rank_and_step] = number
        call_and_group = collective_of(first)
        if call_and_group is None:
            return
        call, members_of_group = call_and_group
        begin, end = point_of(first), point_of(first, after=last)
        if begin is None or end is None:
            return
        inputs = tuple(record for record in members if record.io == "input" and is_contribution_to(record, call))
        outputs = tuple(record for record in members if record.io == "output")
        for record in outputs:
            self._ended[id(record)] = end.position
        # The two sides of a message are matched in `end`.
        message = (first.rank, call.peer, call.tag) if call.kind in ("send", "recv") else ()
        key = (first.run, first.step, call.group, call.ranks, call.kind, call.nth, message)
        part = CallPart(call, members_of_group, first.rank, begin.position, end.position, inputs, outputs, first, key)
        self.calls.setdefault(key, []).append(part)

    def end(self) -> None:
        """Put the parts of each call together. Call this after the last operator, before `joins` and `calls` are used.

        The recorded steps of two ranks need not begin at the same message. So messages are matched by `_partners`.
        """
        launch = launches(self._runs)
        apart, self.calls = self.calls, {}
        for parts in apart.values():
            for part in parts:
                of_all = (launch[part.rank, part.first.run], *part.key[1:])
                self.calls.setdefault(of_all, []).append(part._replace(key=of_all))
        channels: dict[Hashable, list[CallPart]] = {}
        for key in [key for key, parts in self.calls.items() if parts[0].call.kind in ("send", "recv")]:
            for part in self.calls.pop(key):
                peers = (part.rank, part.call.peer) if part.call.kind == "send" else (part.call.peer, part.rank)
                channels.setdefault((part.key[0], part.call.group, *peers, part.call.tag), []).append(part)
        for name, parts in channels.items():
            parts.sort(key=lambda part: part.begin)
            sides = [[part for part in parts if part.call.kind == kind] for kind in ("send", "recv")]
            partners = _partners(*([_content(_tensors(part)) for part in side] for side in sides))
            for side, numbers in zip(sides, partners or (range(len(sides[0])), range(len(sides[1])))):
                for number, part in zip(numbers, side):
                    key = (name, number)
                    self.calls.setdefault(key, []).append(part._replace(key=key, is_certain=partners is not None))

    def joins(self) -> Iterator[Join]:
        for parts in self.calls.values():
            if len(parts) > 1:
                yield from (part.join for part in parts)

    def point(self, record: Record) -> Optional[Point]:
        """Return the time of a record; for an output of a collective the time at which the tensor was complete."""
        point = point_of(record)
        position = self._ended.get(id(record))
        return point if point is None or position is None else point._replace(position=position)


def _tensors(part: CallPart) -> Sequence[Record]:
    return part.inputs if part.call.kind == "send" else part.outputs


def _partners(
    sent: Sequence[Optional[Hashable]], received: Sequence[Optional[Hashable]]
) -> Optional[tuple[list[Hashable], list[Hashable]]]:
    """Return a key for each sent and each received message; the two sides of one message have the same key.

    None if no received message has the content of a sent message. Messages arrive in order, but a side may lack some
    messages, because not all steps are recorded. The messages between two messages that arrived unchanged are matched
    by their order, but only if both sides have equally many of them. Before the first and after the last of those, as
    many messages are matched as both sides have, from the nearest on.
    """
    anchors: list[tuple[int, int]] = []
    positions: dict[Hashable, list[int]] = {}
    for index, content in enumerate(sent):
        if content is not None:
            positions.setdefault(content, []).append(index)
    last = -1
    for index, content in enumerate(received):
        later = [position for position in positions.get(content, ()) if last < position <= last + 1 + _MOST_SHIFT]
        if later:
            last = later[0]
            anchors.append((last, index))
    if not anchors:
        return None
    numbers: tuple[list[Hashable], list[Hashable]] = (
        [("sent", index) for index in range(len(sent))],
        [("received", index) for index in range(len(received))],
    )
    ends = [(-1, -1), *anchors, (len(sent), len(received))]
    for (i0, j0), (i1, j1) in zip(ends, ends[1:]):
        gaps = i1 - i0 - 1, j1 - j0 - 1
        is_first, is_last = (i0, j0) == (-1, -1), i1 == len(sent)
        if gaps[0] != gaps[1] and not (is_first or is_last):
            continue
        for count in range(1, min(gaps) + 1):
            # Messages before the first unchanged message are counted backwards from it, all others forwards.
            i, j = (i1 - count, j1 - count) if is_first else (i0 + count, j0 + count)
            numbers[1][j] = numbers[0][i]
    for i, j in anchors:
        numbers[1][j] = numbers[0][i]
    return numbers


def _content(records: Sequence[Record]) -> Optional[Hashable]:
    contents = tuple(record.content for record in records)
    return contents if contents and None not in contents else None
