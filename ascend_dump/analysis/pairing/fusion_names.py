"""What the dumps themselves say of which operators of one graph were made of which of another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.reading import Record

__all__ = ["Told", "is_fused", "origins_of"]

_Sides = tuple[Record, Record]
_Output = tuple[str, int]


def origins_of(operator: Operator) -> list[str]:
    """The operators that made what this one makes, before the graph was changed."""
    found = [name for record in operator.outputs for name, _ in _of_output(operator, record)]
    return [name for name in dict.fromkeys([*found, *operator.made_of.names]) if name != operator.op_name]


def _of_output(operator: Operator, record: Record) -> list[_Output]:
    """What an output was: as the graph beside the dump tells, and as the dump file does."""
    found = [one for number, told in operator.made_of.outputs if number == record.index for one in told]
    in_file = record.attrs.get("original_op")
    if isinstance(in_file, dict) and in_file.get("name"):
        number = in_file.get("output_index")
        found.append((str(in_file["name"]), number if isinstance(number, int) else 0))
    return found


def is_fused(actual: Sequence[Operator], reference: Sequence[Operator]) -> bool:
    """Whether operators of one side are made of what are operators of the other."""
    for side, other in ((actual, reference), (reference, actual)):
        names = {one.op_name for one in other}
        if any(name in names for one in side for name in origins_of(one)):
            return True
    return False


class Told:
    """Outputs of both sides that are the same tensor, as the dumps tell of the operators of either side."""

    def __init__(self, actual: Sequence[Operator], reference: Sequence[Operator]) -> None:
        self._found: dict[tuple[int, int], list[_Sides]] = {}
        for side, (one, other) in enumerate(((actual, reference), (reference, actual))):
            places = {operator.op_name: place for place, operator in enumerate(other)}
            for place, operator in enumerate(one):
                for record in operator.outputs:
                    self._add(side, place, record, _of_output(operator, record), other, places)

    def _add(
        self,
        side: int,
        place: int,
        record: Record,
        told: Sequence[_Output],
        others: Sequence[Operator],
        places: dict[str, int],
    ) -> None:
        for name, number in told:
            other = places.get(name)
            same = [] if other is None else [one for one in others[other].outputs if one.index == number]
            if other is not None and same:
                key, sides = ((place, other), (record, same[0])) if side == 0 else ((other, place), (same[0], record))
                known = self._found.setdefault(key, [])
                if sides not in known:
                    known.append(sides)
                return

    def outputs(self, left: int, right: int) -> Sequence[_Sides]:
        """Those of the operators at two places."""
        return self._found.get((left, right), ())

    def apart(self, paired: tuple[Collection[int], Collection[int]]) -> Iterator[tuple[int, int, _Sides]]:
        """Those of an operator that has no partner and of one that has another one, with their places: an operator that
        several were fused into has outputs of several.

        paired: the places of the operators of each side that have a partner.
        """
        for (left, right), found in self._found.items():
            if (left in paired[0]) != (right in paired[1]):
                yield from ((left, right, sides) for sides in found)
