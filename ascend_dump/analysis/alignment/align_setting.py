"""Check the setting `align` of a comparison, and recognise dumps that are compared by tokens without this setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from ascend_dump.analysis.alignment.paged_caches import have_other_slots
from ascend_dump.analysis.alignment.token_sequences import model_calls_of
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.errors import ConfigError

__all__ = ["check_align", "may_align_tokens"]


def check_align(align_by: Optional[str], **settings: object) -> None:
    """Raise ConfigError if `align` has another value than "tokens", or a setting is given that excludes `align`."""
    if align_by is None:
        return
    if align_by != "tokens":
        raise ConfigError(f"align={align_by!r}, expected 'tokens'", hint="rows of a batch are aligned by rows=")
    excluded = [name for name, value in settings.items() if value]
    if excluded:
        raise ConfigError(f"align= and {excluded[0]}= were both given", hint="leave one of them out")


def may_align_tokens(operators: Sequence[Operator], reference: Sequence[Operator]) -> bool:
    """Return True if the ids of the first model calls of both sides have no row in common, and not both sides train.

    Rows of one batch in another batch are found without their tokens. The same rows are compared by tokens if an engine
    writes them to other slots of its cache.
    """
    calls = model_calls_of([operators], [reference], guess=False)
    trains = [any(operator.phase == "backward" for operator in side) for side in (operators, reference)]
    if not all(calls) or all(trains):
        return False
    first = calls[0][0], calls[1][0]
    if first[0].width != first[1].width:
        return True
    rows = [{tuple(row) for row in call.ids.tolist()} for call in first]
    if first[0].rows != first[1].rows:
        return rows[0].isdisjoint(rows[1])
    return rows[0] == rows[1] and have_other_slots(*first)
