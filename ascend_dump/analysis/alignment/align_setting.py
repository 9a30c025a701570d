"""Check the setting `align` of a comparison, and recognise dumps that are compared by tokens without this setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

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
    """Return True if the first model calls of both sides have different numbers of slots, and not both sides train."""
    calls = model_calls_of([operators], [reference], guess=False)
    trains = [any(operator.phase == "backward" for operator in side) for side in (operators, reference)]
    return all(calls) and not all(trains) and calls[0][0].width != calls[1][0].width
