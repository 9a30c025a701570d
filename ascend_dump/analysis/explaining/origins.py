"""Drafts of origins during a walk. The drafts of one change of the program become one origin."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, Optional

from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.judging.input_noise import OriginNumber
from ascend_dump.analysis.operators.next_request import is_of_module, layers_of

__all__ = ["LAST", "Draft", "Drafts", "add_effect", "explain", "kind_order"]

#: Operators, or inputs, that a line of evidence names.
_MOST_NAMED = 4
#: Kinds of origins that are reported last: amplifications, and tensors without a defined value.
LAST = ("amplification", "uninitialised")


class Draft:
    """An origin during the walk, with the number of differences that it explains.

    hidden    reported only if later differences depend on it: an operator of one side, or uninitialised memory, which
              always differs
    reshaped  only the shape differs: another way to compute the same, if later tensors are equal again
    joined    the key of the drafts that are reported as one; None: it is reported by itself
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
        #: True if a tensor of one shape on both sides differs because of it.
        self.changes_values = False
        #: True if tensors computed from it are equal again.
        self.settled = False
        self.first_seen = first_seen
        self.joined = joined
        #: Operators of the backward pass that are called differently because of it.
        self.backward: list[str] = []

    @property
    def is_certain(self) -> bool:
        return not (self.hidden or self.reshaped)

    @property
    def is_reported(self) -> bool:
        if self.changes_values or self.is_certain:
            return True
        return not self.settled and (self.explains > 0 or not self.hidden)


class Drafts:
    """The drafts of one rank by their numbers, in the order of the walk."""

    def __init__(self) -> None:
        self._drafts: list[Draft] = []

    def add(self, draft: Draft) -> OriginNumber:
        self._drafts.append(draft)
        return len(self._drafts) - 1

    def __getitem__(self, number: OriginNumber) -> Draft:
        return self._drafts[number]

    def of(self, numbers: Iterable[OriginNumber]) -> list[Draft]:
        return [self._drafts[number] for number in numbers]

    def are_undefined(self, causes: Collection[OriginNumber]) -> bool:
        """Return True if a difference follows from uninitialised memory, and from nothing else."""
        return bool(causes) and all(draft.kind == "uninitialised" for draft in self.of(causes))

    def are_hidden(self, causes: Collection[OriginNumber]) -> bool:
        """Return True if a difference follows from hidden origins, and from nothing else."""
        return bool(causes) and all(draft.hidden for draft in self.of(causes))

    def origins(self) -> list[Origin]:
        """Return the origins, ordered by their kinds, then in the order of the walk."""
        groups: dict[Hashable, list[Draft]] = {}
        for draft in self._drafts:
            if draft.is_reported:
                groups.setdefault(draft.joined if draft.joined is not None else id(draft), []).append(draft)
        ordered = sorted(groups.values(), key=lambda group: kind_order(group[0].kind))
        return [_origin(*group) for group in ordered]


def explain(pair: Pair, causes: Collection[Draft]) -> None:
    """Note at the origins that a pair of outputs differs because of them."""
    for draft in causes:
        draft.explains += 1
    add_effect(pair, causes)


def add_effect(pair: Pair, causes: Collection[Draft]) -> None:
    """Note at the origins that values differ because of them."""
    # Differences explained by a certain origin support no uncertain one.
    is_effect = pair.has_one_shape and not any(draft.is_certain for draft in causes)
    for draft in causes:
        draft.changes_values |= is_effect


def kind_order(kind: str) -> tuple[bool, bool]:
    """Return the sort key of a kind: first origins with compared inputs, then those of unknown inputs, then `LAST`."""
    return kind in LAST, kind == "unknown"


def _origin(first: Draft, *joined: Draft) -> Origin:
    drafts = (first, *joined)
    backward = list(dict.fromkeys(name for draft in drafts for name in draft.backward))
    return Origin(
        first.kind,
        first.pair,
        (
            *first.evidence,
            *_named("with it", [_short_name(first, draft) for draft in joined]),
            *_named("its backward pass changes with it", backward),
        ),
        max(draft.explains for draft in drafts),
        first.first_seen,
        _next_request(first.pair),
    )


def _short_name(first: Draft, draft: Draft) -> str:
    """Return the name of the operator; of another input of the first operator the name of the input."""
    record = draft.pair.record
    return record.op_name if record.op_name != first.pair.record.op_name else f"{record.io}.{record.index}"


def _named(title: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    end = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return [f"{title}: {', '.join(names[:_MOST_NAMED])}{end}"]


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
