"""Origins while they are being found, and how they are told: what is one change of the program is one origin."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, Optional

from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.operators.next_request import is_of_module, layers_of

__all__ = ["LAST", "Draft", "add_effect", "explain", "place_of_kind", "told"]

#: Operators, or inputs, that a line of evidence names.
_MOST_NAMED = 4
#: Kinds of origins that are told after all others: amplifications, and what carries no value.
LAST = ("amplification", "uninitialised")


class Draft:
    """An origin being found, with what it explains.

    hidden    an origin only once it explains something: an operator of one side, or memory that nobody wrote, which
              differs all the time
    reshaped  it is one of shape alone: another way to compute the same, if what is made of it is equal again
    joined    what the drafts have in common that are told as one; None of one that stands alone
    """

    def __init__(
        self,
        kind: str,
        pair: Pair,
        evidence: list[str],
        *,
        hidden: bool = False,
        reshaped: bool = False,
        first_seen: bool = False,
        joined: Optional[Hashable] = None,
    ) -> None:
        self.kind = kind
        self.pair = pair
        self.evidence = evidence
        self.explains = 0
        self.hidden = hidden
        self.reshaped = reshaped
        #: Whether a tensor of one shape on both sides differs because of it; and whether equal tensors were made of it.
        self.changes_values = self.settled = False
        self.first_seen = first_seen
        self.joined = joined
        #: Operators of the backward pass that are called differently because this one is.
        self.backward: list[str] = []

    @property
    def is_sure(self) -> bool:
        return not (self.hidden or self.reshaped)

    @property
    def is_told(self) -> bool:
        if self.changes_values or self.is_sure:
            return True
        return not self.settled and (self.explains > 0 or not self.hidden)


def explain(pair: Pair, causes: Collection[Draft]) -> None:
    """Note at the origins that a pair of outputs differs because of them."""
    for draft in causes:
        draft.explains += 1
    add_effect(pair, causes)


def add_effect(pair: Pair, causes: Collection[Draft]) -> None:
    """Note at the origins whether values differ because of them."""
    is_one_shape = pair.actual is not None and pair.reference is not None and pair.actual.shape == pair.reference.shape
    # What a sure one explains speaks for no other.
    changed = is_one_shape and not any(draft.is_sure for draft in causes)
    for draft in causes:
        draft.changes_values |= changed


def told(drafts: Iterable[Draft]) -> list[Origin]:
    """The origins, ordered by their kinds, then as they were found."""
    groups: dict[Hashable, list[Draft]] = {}
    for draft in drafts:
        if draft.is_told:
            groups.setdefault(draft.joined if draft.joined is not None else id(draft), []).append(draft)
    ordered = sorted(groups.values(), key=lambda one: place_of_kind(one[0].kind))
    return [_origin(*group) for group in ordered]


def place_of_kind(kind: str) -> tuple[bool, bool]:
    """Sorts origins: first those whose inputs were compared, then those of unknown inputs, then those of `LAST`."""
    return kind in LAST, kind == "unknown"


def _origin(first: Draft, *others: Draft) -> Origin:
    backward = list(dict.fromkeys(name for draft in (first, *others) for name in draft.backward))
    return Origin(
        first.kind,
        first.pair,
        (
            *first.evidence,
            *_named("with it", [_with_it(first, one) for one in others]),
            *_named("its backward pass changes with it", backward),
        ),
        max(draft.explains for draft in (first, *others)),
        first.first_seen,
        _next_request(first.pair),
    )


def _with_it(first: Draft, draft: Draft) -> str:
    """The input, or the operator, that is told with another one."""
    record = draft.pair.record
    return record.op_name if record.op_name != first.pair.record.op_name else f"{record.io}.{record.index}"


def _named(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return [f"{what}: {', '.join(names[:_MOST_NAMED])}{more}"]


def _next_request(pair: Pair) -> dict[str, Any]:
    record = pair.record
    layers = layers_of(record, [record.op_name])
    request: dict[str, Any] = {"layers": layers[0]} if layers else {}
    if is_of_module(record):
        request["level"] = "all"  # the operators of the module
    request["data"] = "tensor"
    if record.step is not None:
        request["steps"] = str(record.step)
    if record.rank is not None:
        request["ranks"] = str(record.rank)
    return request
