"""Find NaN and Inf that a rank received in a collective or message of which the sender is in the dump too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.nonfinite import NonFiniteOperator, is_nonfinite
from ascend_dump.analysis.ranks import CallBook, CallPart
from ascend_dump.reading import Record

__all__ = ["Givers", "GivingRanks"]


class Givers(NamedTuple):
    """The parts of the ranks that sent NaN or Inf into a call, to which this rank sent only finite numbers."""

    parts: tuple[CallPart, ...]

    @property
    def words(self) -> str:
        ranks = [str(part.rank) for part in self.parts]
        return f"received from rank{'' if len(ranks) == 1 else 's'} {' and '.join(ranks)}: {self.parts[0].named}"


class GivingRanks:
    """Gathers the calls between ranks, operator by operator in the order of the dump."""

    def __init__(self) -> None:
        self._book = CallBook()
        #: Sent tensors with NaN or Inf by identity, which stays unique while the record exists.
        self._wrong: dict[int, Record] = {}

    def look_at(self, members: Sequence[Record], finding: Optional[NonFiniteOperator]) -> None:
        self._book.look_at(members)
        if finding is not None and "c10d" in members[0].op_type:
            pairs = zip(finding.inputs, finding.input_statistics)
            self._wrong.update(
                (id(record), record) for record, values in pairs if values is not None and is_nonfinite(values)
            )

    def end(self) -> dict[int, Givers]:
        """Return the givers of each call, by the identity of its first record on the rank that received NaN or Inf."""
        self._book.end()
        givers: dict[int, Givers] = {}
        for parts in self._book.calls.values():
            wrong = tuple(part for part in parts if any(id(record) in self._wrong for record in part.inputs))
            givers.update((id(part.first), Givers(wrong)) for part in parts if wrong and part not in wrong)
        return givers
