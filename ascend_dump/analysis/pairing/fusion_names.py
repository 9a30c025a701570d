"""Read the fusion information in dumps: from which original operators and outputs a compiler made an operator."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.reading import Record

__all__ = ["FusedOutputs", "is_fused", "origins_of"]

_OutputPair = tuple[Record, Record]
_Output = tuple[str, int]


def origins_of(operator: Operator) -> list[str]:
    """Return the names of the operators that a compiler replaced by this one."""
    names = [name for record in operator.outputs for name, _ in _original_outputs(operator, record)]
    return [name for name in dict.fromkeys([*names, *operator.made_of.names]) if name != operator.op_name]


def _original_outputs(operator: Operator, record: Record) -> list[_Output]:
    """Return (name of the original operator, index of its output) for the outputs that an output replaces.

    This information is in the graph beside the dump, and in the dump file.
    """
    originals = [original for number, names in operator.made_of.outputs if number == record.index for original in names]
    in_file = record.attrs.get("original_op")
    if isinstance(in_file, dict) and in_file.get("name"):
        number = in_file.get("output_index")
        originals.append((str(in_file["name"]), number if isinstance(number, int) else 0))
    return originals


def is_fused(actual: Sequence[Operator], reference: Sequence[Operator]) -> bool:
    """Return True if a compiler made operators of one side from operators of the other side."""
    for fused, originals in ((actual, reference), (reference, actual)):
        names = {operator.op_name for operator in originals}
        if any(name in names for operator in fused for name in origins_of(operator)):
            return True
    return False


class FusedOutputs:
    """Pairs of outputs that are the same tensor on both sides, according to the fusion information of either side."""

    def __init__(self, actual: Sequence[Operator], reference: Sequence[Operator]) -> None:
        self._pairs: dict[tuple[int, int], list[_OutputPair]] = {}
        for side, (fused, originals) in enumerate(((actual, reference), (reference, actual))):
            positions = {operator.op_name: position for position, operator in enumerate(originals)}
            for position, operator in enumerate(fused):
                for record in operator.outputs:
                    self._add(side, position, record, _original_outputs(operator, record), originals, positions)

    def _add(
        self,
        side: int,
        position: int,
        record: Record,
        names: Sequence[_Output],
        originals: Sequence[Operator],
        positions: dict[str, int],
    ) -> None:
        for name, index in names:
            original = positions.get(name)
            same = [] if original is None else [out for out in originals[original].outputs if out.index == index]
            if original is not None and same:
                key, pair = (position, original), (record, same[0])
                if side == 1:
                    key, pair = (original, position), (same[0], record)
                pairs = self._pairs.setdefault(key, [])
                if pair not in pairs:
                    pairs.append(pair)
                return

    def outputs(self, position_a: int, position_b: int) -> Sequence[_OutputPair]:
        """Return the pairs of outputs of two operators. They are given by their positions in actual and reference."""
        return self._pairs.get((position_a, position_b), ())

    def unpaired(self, paired: tuple[Collection[int], Collection[int]]) -> Iterator[tuple[int, int, _OutputPair]]:
        """Yield (position in actual, position in the reference, pair of outputs) where only one operator has a partner.

        The partner is a third operator: an operator that was fused from several has outputs of each of them.

        paired: for each side, the positions of the operators that have a partner
        """
        for (position_a, position_b), pairs in self._pairs.items():
            if (position_a in paired[0]) != (position_b in paired[1]):
                yield from ((position_a, position_b, pair) for pair in pairs)
