"""NaN and Inf that another rank gave: through a collective or a message of which both parts are in the dump."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.nonfinite import NonFiniteOperator, is_nonfinite
from ascend_dump.analysis.ranks import CallBook, CallPart
from ascend_dump.reading import Record

__all__ = ["Givers", "GivingRanks"]


class Givers(NamedTuple):
    """The parts of other ranks that put NaN or Inf into a call, to which this rank gave finite numbers."""

    parts: tuple[CallPart, ...]

    @property
    def words(self) -> str:
        ranks = [str(part.rank) for part in self.parts]
        return f"rank{'' if len(ranks) == 1 else 's'} {' and '.join(ranks)} gave it: {self.parts[0].named}"


class GivingRanks:
    """Gathers what ranks give to each other, operator by operator in the order that the dump has them."""

    def __init__(self) -> None:
        self._book = CallBook()
        #: By identity, and kept, so that no other record has the same one.
        self._wrong: dict[int, Record] = {}

    def look_at(self, members: Sequence[Record], found: Optional[NonFiniteOperator]) -> None:
        self._book.look_at(members)
        if found is not None and "c10d" in members[0].op_type:
            pairs = zip(found.inputs, found.input_statistics)
            self._wrong.update((id(record), record) for record, one in pairs if one is not None and is_nonfinite(one))

    def end(self) -> dict[int, Givers]:
        """Those of each call, by the identity of its first record on the rank that was given NaN or Inf."""
        self._book.end()
        found: dict[int, Givers] = {}
        for parts in self._book.calls.values():
            wrong = tuple(part for part in parts if any(id(record) in self._wrong for record in part.given))
            found.update((id(part.first), Givers(wrong)) for part in parts if wrong and part not in wrong)
        return found
