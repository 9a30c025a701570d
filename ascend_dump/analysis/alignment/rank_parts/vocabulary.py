"""Compare lookups in a table of which each rank has some rows, as in a vocabulary that is divided over ranks.

A rank looks up the tokens of its rows, with indices that begin at its first row. For other tokens it looks up any row,
and masks the result later. So only the tokens of its own rows are compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.alignment.rank_parts.tensors import Portion, RanksOfSide
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.reading import Record

__all__ = ["VocabularyParts"]


class _TableLookup(NamedTuple):
    """A lookup of rows of a table, or its backward pass, in which the rows are gradients, and so is the table."""

    table: Record
    indices: Record
    rows: Record


class VocabularyParts:
    """Finds the lookups that one of several ranks and the whole program have in common.

    ranks  all ranks of the side with parts, and the position of this rank
    whole  the operators of the other side
    """

    def __init__(self, ranks: RanksOfSide, whole: Sequence[Operator]) -> None:
        self._ranks = ranks
        self._sides = _by_content(ranks.operators), _by_content(whole)

    def portion(self, record: Record, whole: Record) -> Optional[Portion]:
        """Return the indices, or the rows, of the tokens of this rank; None for another tensor, or a whole table."""
        lookup, whole_lookup = self._sides[0].get(record.content), self._sides[1].get(whole.content)
        if lookup is None or whole_lookup is None or lookup.indices.shape != whole_lookup.indices.shape:
            return None
        siblings = self._ranks.siblings(lookup.table)
        sizes = [sibling.shape[0] for sibling in siblings or () if sibling.shape]
        if sum(sizes) != (whole_lookup.table.shape or (0,))[0]:
            return None
        position = self._ranks.position
        begin = sum(sizes[:position])
        tokens = whole_lookup.indices.numpy()
        of_rank = (tokens >= begin) & (tokens < begin + sizes[position])
        name = f"part {position + 1} of {len(sizes)} of the rows of a table"
        if record.content == lookup.indices.content:
            return Portion(record.numpy()[of_rank], tokens[of_rank] - begin, name)
        return Portion(record.numpy()[of_rank], whole.numpy()[of_rank], name)


def _by_content(operators: Sequence[Operator]) -> dict[Hashable, _TableLookup]:
    """Return the lookups by the contents of their indices and of their rows: other operators read them too."""
    lookups: dict[Hashable, _TableLookup] = {}
    for operator in operators:
        kind = operator_class(operator.op_type)
        if len(operator.inputs) < 2 or len(operator.outputs) != 1:
            continue
        if kind == "embedding":
            lookup = _TableLookup(operator.inputs[0], operator.inputs[1], operator.outputs[0])
        elif kind == "embedding_dense_backward":
            lookup = _TableLookup(operator.outputs[0], operator.inputs[1], operator.inputs[0])
        else:
            continue
        lookups.update({lookup.indices.content: lookup, lookup.rows.content: lookup})
    lookups.pop(None, None)
    return lookups
