"""The collectives of a dump: what each rank gave into a call and got of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.collectives import collective_of, is_contribution_to
from ascend_dump.analysis.ranks.launches import RankRun, launches
from ascend_dump.analysis.ranks.vector_clocks import Join, Point
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.reading import Record

__all__ = ["CallBook", "CallPart", "point_of"]

#: Positions of a step: it has twice as many as operators, between which and after which something is known.
_STEP = 1 << 40
#: Messages by which the steps of two ranks may be apart.
_MOST_SHIFT = 64


class CallPart(NamedTuple):
    """What one rank had to do with a call.

    members     the ranks of the group, in their order
    begin, end  positions, see `Point`
    given       what the rank put in; got: what it had of it; both in the order of the operator's tensors
    first       the first record of the operator
    key         what the parts of one call have in common
    sure        whether it is known to be the same call: of messages no other content tells that
    """

    told: CollectiveCall
    members: tuple[int, ...]
    rank: int
    begin: int
    end: int
    given: tuple[Record, ...]
    got: tuple[Record, ...]
    first: Record
    key: tuple[Hashable, ...]
    sure: bool = True

    @property
    def involved(self) -> tuple[int, ...]:
        """The ranks that give or take: of a message the two, as far as the dump names them, else the group."""
        if self.told.kind not in ("send", "recv"):
            return self.members
        return (self.rank,) if self.told.peer is None else (self.rank, self.told.peer)

    @property
    def join(self) -> Join:
        root = self.told.root
        own = root is None or root == self.rank
        gives = {"send": True, "recv": False, "broadcast": own, "scatter": own}.get(self.told.kind, True)
        takes = {"send": False, "recv": True, "reduce": own, "gather": own}.get(self.told.kind, True)
        return Join(self.key, self.rank, self.begin, self.end, gives, takes)

    @property
    def named(self) -> str:
        """`all_reduce of group 0 (ranks 0-3)`."""
        return f"{self.told.kind} of group {self.told.group} (ranks {self.told.ranks})"


def point_of(record: Record, *, after: Optional[int] = None) -> Optional[Point]:
    """When an operator ran on its rank; None where the dump does not tell.

    after: the number of an operator of the rank, after which the record was made
    """
    number = record.attrs.get("seq")
    if record.rank is None or number is None:
        return None
    position = 2 * number if after is None else 2 * after + 1
    return Point(record.rank, ((record.step or 0) + 1) * _STEP + position)


class CallBook:
    """Gathers the parts of all calls, operator by operator in the order that a dump has them."""

    def __init__(self) -> None:
        self.calls: dict[Hashable, list[CallPart]] = {}
        self.ranks: set[int] = set()
        self._runs: set[RankRun] = set()
        #: By rank and step: the last operator that was seen.
        self._last: dict[tuple[Optional[int], Optional[int]], int] = {}
        #: Of the operator at hand: after which one its outputs were there.
        self._ended: dict[int, int] = {}

    def look_at(self, members: Sequence[Record]) -> None:
        """The records of one run of an operator."""
        first = next((record for record in members if record.error is None), None)
        if first is None or first.rank is None:
            return
        self.ranks.add(first.rank)
        self._runs.add((first.rank, first.run))
        number = first.execution[-1]
        if not isinstance(number, int):
            return
        place = (first.rank, first.step)
        # Outputs that are there later stand behind those of operators that ran meanwhile.
        last = self._last[place] = max(number, self._last.get(place, -1))
        found = collective_of(first)
        if found is None:
            return
        told, ranks = found
        begin, end = point_of(first), point_of(first, after=last)
        if begin is None or end is None:
            return
        given = tuple(record for record in members if record.io == "input" and is_contribution_to(record, told))
        got = tuple(record for record in members if record.io == "output")
        for record in got:
            self._ended[id(record)] = end.position
        # Messages find their other side at the end.
        own = (first.rank, told.peer, told.tag) if told.kind in ("send", "recv") else ()
        key = (first.run, first.step, told.group, told.ranks, told.kind, told.nth, own)
        part = CallPart(told, ranks, first.rank, begin.position, end.position, given, got, first, key)
        self.calls.setdefault(key, []).append(part)

    def end(self) -> None:
        """Call when all operators were seen, before `joins` and before `calls` are looked at.

        Steps of several ranks need not begin at the same message: what came before a recorded step is not in the dump.
        """
        launch = launches(self._runs)
        apart, self.calls = self.calls, {}
        for parts in apart.values():
            for part in parts:
                of_all = (launch[part.rank, part.first.run], *part.key[1:])
                self.calls.setdefault(of_all, []).append(part._replace(key=of_all))
        channels: dict[Hashable, list[CallPart]] = {}
        for key in [key for key, parts in self.calls.items() if parts[0].told.kind in ("send", "recv")]:
            for part in self.calls.pop(key):
                ends = (part.rank, part.told.peer) if part.told.kind == "send" else (part.told.peer, part.rank)
                channels.setdefault((part.key[0], part.told.group, *ends, part.told.tag), []).append(part)
        for name, parts in channels.items():
            parts.sort(key=lambda part: part.begin)
            sides = [[part for part in parts if part.told.kind == kind] for kind in ("send", "recv")]
            shift = _shift(*sides)
            for side, first in ((sides[0], 0), (sides[1], shift or 0)):
                for number, part in enumerate(side, first):
                    sent = (name, number)
                    self.calls.setdefault(sent, []).append(part._replace(key=sent, sure=shift is not None))

    def joins(self) -> Iterator[Join]:
        for parts in self.calls.values():
            if len(parts) > 1:
                yield from (part.join for part in parts)

    def point(self, record: Record) -> Optional[Point]:
        """When a record was made: an output of a collective once it was there."""
        found = point_of(record)
        ended = self._ended.get(id(record))
        return found if found is None or ended is None else found._replace(position=ended)


def _shift(sent: Sequence[CallPart], received: Sequence[CallPart]) -> Optional[int]:
    """How many messages the receiver's first one is behind the sender's first one, by their contents.

    None where no content tells.
    """
    contents = [[_content(part.given) for part in sent], [_content(part.got) for part in received]]
    best: Optional[int] = None
    most = 0
    for shift in sorted(range(1 - len(received), len(sent)), key=abs):
        if abs(shift) > _MOST_SHIFT:
            break
        pairs = ((at + shift, other) for at, other in enumerate(contents[1]) if 0 <= at + shift < len(sent))
        same = sum(other is not None and contents[0][at] == other for at, other in pairs)
        if same > most:
            best, most = shift, same
    return best


def _content(records: Sequence[Record]) -> Optional[Hashable]:
    contents = tuple(record.content for record in records)
    return contents if contents and None not in contents else None
