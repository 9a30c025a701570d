"""Describe a group of weights that share rows: their layout, their difference, and rows that are missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.weights.comparison import WeightFinding, WeightPart
from ascend_dump.analysis.weights.differences import WeightDifference, measured
from ascend_dump.analysis.weights.layouts import (
    RowRun,
    RowRuns,
    RowUnit,
    describe_joined,
    describe_permutation,
    named_order,
    runs_of,
    short_names,
)
from ascend_dump.analysis.weights.row_hashes import row_width
from ascend_dump.analysis.weights.row_maps import RowMap
from ascend_dump.analysis.weights.sides import Side

if TYPE_CHECKING:
    import numpy as np

__all__ = ["WeightGroup", "cast_text"]

_Types = tuple[tuple[str, ...], ...]  # of actual, and of the reference
#: Number of elements that are measured at once, and maximum number of parts in a finding.
_PIECE, _MOST_PARTS = 1 << 21, 16


def cast_text(dtype: str, target: str) -> str:
    """Return the text about the types of weights of actual (`dtype`) and of the reference (`target`)."""
    return f"{target} in the reference, {dtype} here"


def _types(side: Side, members: Iterable[int]) -> tuple[str, ...]:
    return tuple(sorted({side.tensors[number].dtype for number in members}))


class _Layout(NamedTuple):
    """The arrangement of the rows of a group on both sides.

    relation, text  the relation and text of a finding if all values are equal
    is_usual        False for an order of rows that no design of models has, so that the order is a difference
    """

    relation: str
    text: str
    is_usual: bool


class WeightGroup:
    """Weights of both sides that share rows."""

    def __init__(
        self, actual: Side, reference: Side, numbers: tuple[list[int], list[int]], maps: dict[int, RowMap]
    ) -> None:
        self.sides = actual, reference
        self.actual, self.reference = numbers
        self.maps = {number: maps[number] for number in self.actual}
        self.columns = next(iter(self.maps.values())).columns

    def finding(self) -> WeightFinding:
        """Compare the weights of actual with those of the reference, and return the finding."""
        self._order_members()
        sides = [*zip(self.sides, (self.actual, self.reference))]
        types = tuple(_types(side, members) for side, members in sides)
        names, reference_names = (tuple(side.names[number] for number in members) for side, members in sides)
        layout = self._layout()
        difference = self._difference(types)
        incomplete = self._incomplete()
        relation, verdict, cast_text = self._relation(layout, difference, types, bool(incomplete))
        text = "; ".join(filter(None, (layout.text, incomplete, cast_text)))
        parts = () if layout.relation == "equal" else tuple(self._parts())
        result = WeightFinding(relation, verdict, names, reference_names, text, "", parts)
        if difference is None or not difference.unequal:
            return result
        measure = f"{self._inexact_text()}{difference.text}"
        return result._replace(measure=measure, relative=difference.relative, largest=difference.largest)

    @staticmethod
    def _relation(
        layout: _Layout, difference: Optional[WeightDifference], types: _Types, is_incomplete: bool
    ) -> tuple[str, str, str]:
        """Return the relation, the verdict, and a text about the types if only the types differ."""
        is_rounded = difference is not None and difference.relation == "cast"
        if difference is not None and difference.relation not in ("equal", "cast"):
            return difference.relation, "different", ""
        if is_incomplete:
            return "part", "unmatched", ""
        if not layout.is_usual:
            return layout.relation, "different", ""
        if not is_rounded and types[0] == types[1]:
            return layout.relation, "equal", ""
        relation = "cast" if layout.relation == "equal" else layout.relation
        is_told = is_rounded or types[0] == types[1]
        return relation, "noise", "" if is_told else cast_text(", ".join(types[0]), ", ".join(types[1]))

    def _order_members(self) -> None:
        """Sort the members of each side by the order of their rows on the other side."""
        runs = [
            (run.target, run.target_start, number, run.start) for number in self.actual for run in self._runs(number)
        ]
        self.actual = [*dict.fromkeys(number for _, _, number, _ in sorted(runs))]
        self.reference = [*dict.fromkeys(target for target, _, _, _ in sorted(runs, key=lambda run: run[2:]))]

    def _layout(self) -> _Layout:
        if len(self.actual) == len(self.reference) == 1:
            return self._layout_of_two(self.actual[0])
        layout = self._layout_of_many()
        is_transposed = self.columns[0] != self.columns[1]
        return layout._replace(text=f"transposed, {layout.text}") if is_transposed else layout

    def _layout_of_many(self) -> _Layout:
        actual, reference = self.sides
        if len(self.actual) == 1:
            [number] = self.actual
            texts = dict(zip(self.reference, short_names([reference.names[j] for j in self.reference])))
            unit = actual.unit(number, columns=self.columns[0])
            return self._joined("concatenated", actual.names[number], self._runs(number), texts, unit)
        if len(self.reference) == 1:
            [target] = self.reference
            texts = dict(zip(self.actual, short_names([actual.names[i] for i in self.actual])))
            runs = sorted(
                RowRun(run.target_start, run.length, number, run.start)
                for number in self.actual
                for run in self._runs(number)
            )
            unit = reference.unit(target, columns=self.columns[1])
            return self._joined("split", reference.names[target], runs, texts, unit)
        sizes = f"{len(self.actual)} weights have the rows of {len(self.reference)}"
        return _Layout("rearranged", sizes, True)

    @staticmethod
    def _joined(relation: str, name: str, runs: RowRuns, texts: dict[int, str], unit: RowUnit) -> _Layout:
        """Return the layout of a weight with the rows of others. Its name may list them, as "qkv_proj" does."""
        text, is_ordered = describe_joined(runs, texts, unit)
        found = [texts[number] for number in dict.fromkeys(run.target for run in sorted(runs))]
        named = named_order(name, found)
        if named and named != found and len(runs) == len(found):
            return _Layout(relation, f"{text}: its name says {', '.join(named)}", False)
        return _Layout(relation, text, is_ordered)

    def _layout_of_two(self, number: int) -> _Layout:
        import numpy as np

        rows = self.maps[number]
        is_transposed = self.columns[0] != self.columns[1]
        relation = "transposed" if is_transposed else "equal"
        mapped = rows.targets >= 0
        if (rows.rows[mapped] == np.flatnonzero(mapped)).all():
            return _Layout(relation, "", True)
        if not mapped.all() or len({*rows.rows.tolist()}) != len(rows.rows):
            runs = self._runs(number)
            unit = self.sides[0].unit(number, columns=self.columns[0])
            texts = [
                f"{unit.span(run.start, run.length)} are {unit.span(run.target_start, run.length)}" for run in runs[:3]
            ]
            return _Layout(
                "permuted", ", ".join(texts) + (f" … ({len(runs)} in all)" if len(runs) > 3 else ""), len(runs) == 1
            )
        unit = self.sides[0].unit(number, columns=self.columns[0])
        return _Layout("permuted", *describe_permutation(rows.rows, unit))

    def _runs(self, number: int) -> RowRuns:
        rows = self.maps[number]
        return runs_of(rows.targets, rows.rows)

    def _parts(self) -> Iterator[WeightPart]:
        actual, reference = self.sides
        count = 0
        for number in self.actual:
            unit = actual.unit(number, columns=self.columns[0])
            for run in self._runs(number):
                count += 1
                if count > _MOST_PARTS:
                    return
                yield WeightPart(
                    actual.names[number],
                    run.start * unit.size,
                    run.length * unit.size,
                    reference.names[run.target],
                    run.target_start * unit.size,
                    unit.noun,
                )

    def _inexact(self) -> Iterator[tuple[int, RowRun]]:
        """Yield the runs of rows that differ from their expected partners, each with its weight of actual."""
        import numpy as np

        for number in self.actual:
            rows = self.maps[number]
            yield from ((number, run) for run in runs_of(np.where(rows.exact, -1, rows.targets), rows.rows))

    def _inexact_text(self) -> str:
        inexact = [*self._inexact()]
        total = sum(len(rows.targets) for rows in self.maps.values())
        count = sum(run.length for _, run in inexact)
        if count == total:
            return ""
        number, run = inexact[0]
        unit = self.sides[0].unit(number, columns=self.columns[0])
        of = self._of(self.sides[0], self.actual, number)
        remaining = f" and {count - run.length} more" if len(inexact) > 1 else ""
        return f"{unit.span(run.start, run.length)}{of}{remaining}: "

    def _difference(self, types: _Types) -> Optional[WeightDifference]:
        runs = [*self._inexact()]
        if not runs:
            return None
        return measured(self._pieces(runs), types[0][0], types[1][0])

    def _pieces(self, runs: list[tuple[int, RowRun]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        import numpy as np

        actual, reference = self.sides
        for number, run in runs:
            width = self._width(number)
            step = max(_PIECE // max(width, 1), 1)
            if any(self.columns):
                step = run.length
            for first in range(0, run.length, step):
                rows = np.arange(first, min(first + step, run.length))
                yield (
                    actual.values(number, rows + run.start, columns=self.columns[0]).reshape(-1),
                    reference.values(run.target, rows + run.target_start, columns=self.columns[1]).reshape(-1),
                )

    def _width(self, number: int) -> int:
        tensor = self.sides[0].tensors[number]
        return tensor.shape[-2] if self.columns[0] else row_width(tensor.shape)

    def _incomplete(self) -> str:
        """Return a text about the rows without a partner; "" if there are none."""
        import numpy as np

        actual, reference = self.sides
        texts = []
        for number in self.actual:
            rows = self.maps[number]
            lone = _spans(np.flatnonzero(rows.targets < 0), actual.unit(number, columns=self.columns[0]))
            if lone:
                texts.append(f"{lone}{self._of(actual, self.actual, number)} are not in the reference")
        for target in self.reference:
            covered = np.zeros(reference.rows(target, columns=self.columns[1]), bool)
            for rows in self.maps.values():
                covered[rows.rows[rows.targets == target]] = True
            lone = _spans(np.flatnonzero(~covered), reference.unit(target, columns=self.columns[1]))
            if lone:
                texts.append(f"{lone}{self._of(reference, self.reference, target)} are missing")
        return ", ".join(texts[:2]) + (f" and {len(texts) - 2} more" if len(texts) > 2 else "")

    @staticmethod
    def _of(side: Side, members: list[int], number: int) -> str:
        """Return " of" and the short name of a member; "" if it is the only one."""
        if len(members) == 1:
            return ""
        return f" of {short_names([side.names[member] for member in members])[members.index(number)]}"


def _spans(rows: np.ndarray, unit: RowUnit) -> str:
    import numpy as np

    if not len(rows):
        return ""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    first = rows[: breaks[0]] if len(breaks) else rows
    remaining = len(rows) - len(first)
    return unit.span(int(first[0]), len(first)) + (f" and {unit.amount(remaining)} more" if remaining else "")
