"""Collect drafts of origins during a walk, and merge the drafts that one change of the program explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, Optional, Protocol

from ascend_dump.analysis.explaining.drafts import MOST_NAMED, Draft
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.judging.input_noise import OriginNumber
from ascend_dump.analysis.numerics.arrangement import are_rearranged
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.next_request import is_of_module, is_update, layers_of
from ascend_dump.reading import Record

__all__ = ["LAST", "Drafts", "importance"]

#: Up to this number, differing parameters are reported by name; for more, only their number is reported.
_FEW = 2
_GRADIENT = ".grad"
_DIVIDED = (
    "one side reads {name} in {count} parts, one part a call, and the other side in one call: results of a part are no "
    'results of the whole, so few tensors could be compared; dumps of operators with data="tensor" are compared by rows'
)
_NOT_SEEN = "{name} differs in step {step} too: what the program does before its first step is not recorded"
#: Kinds of origins that are reported last: amplifications, and tensors without a defined value.
LAST = ("amplification", "uninitialised")


class Drafts:
    """The drafts of one rank by their numbers, in the order of the walk."""

    def __init__(self) -> None:
        self._drafts: list[Draft] = []
        #: By step: the parameters that were compared, by their storages.
        self.parameters: dict[Optional[int], set[int]] = {}
        #: By operator and input: the first step in which a tensor that comes from outside, or is computed from one that
        #: does, differs; and its origins in the first later step in which it differs.
        self._from_outside: dict[str, int] = {}
        self._later_causes: dict[str, frozenset[OriginNumber]] = {}

    def add(self, draft: Draft) -> OriginNumber:
        self._drafts.append(draft)
        if draft.is_from_outside:
            self.add_from_outside(draft.pair.record)
        return len(self._drafts) - 1

    def add_from_outside(self, read: Record) -> None:
        """Note a tensor that differs and comes from outside of the recorded operators, or is computed from one."""
        self._from_outside.setdefault(read.label, read.step or 0)

    def add_later_read(self, read: Record, causes: frozenset[OriginNumber]) -> None:
        """Note the origins of a tensor that differs, if it differed in an earlier step too, and came from outside."""
        if causes and self._from_outside.get(read.label, math.inf) < (read.step or 0):
            self._later_causes.setdefault(read.label, causes)

    def __getitem__(self, number: OriginNumber) -> Draft:
        return self._drafts[number]

    @property
    def have_origins(self) -> bool:
        """True if a draft was added that is reported in any case."""
        return any(draft.is_certain for draft in self._drafts)

    def of(self, numbers: Iterable[OriginNumber]) -> list[Draft]:
        return [self._drafts[number] for number in numbers]

    def certain(self, numbers: Iterable[OriginNumber]) -> frozenset[OriginNumber]:
        """Return the numbers of the drafts that are reported even if no later difference depends on them."""
        return frozenset(number for number in numbers if self._drafts[number].is_certain)

    def are_undefined(self, causes: Collection[OriginNumber]) -> bool:
        """Return True if a difference follows from uninitialised memory, and from nothing else."""
        return bool(causes) and all(draft.kind == "uninitialised" for draft in self.of(causes))

    def divided(self) -> list[str]:
        """Return a sentence on the data that one side reads in parts; [] if there are none."""
        divided = next((draft for draft in self._drafts if draft.parts), None)
        return [] if divided is None else [_DIVIDED.format(name=divided.pair.record.label, count=divided.parts)]

    def origins(self, *, results_differ: bool = False) -> list[Origin]:
        """Return the origins, by `importance`, then in the order of the walk. Suspected ones come behind proven ones.

        results_differ: True if the results are known to differ. Then differences that seem to end may be the origin
        """
        groups: dict[Hashable, list[Draft]] = {}
        reported = [draft for draft in self._drafts if draft.is_reported]
        if results_differ and not reported:
            reported = [draft for draft in self._drafts if draft.changes_values and draft.explains][:1]
        if not reported:
            # The output of a module agrees, but parameters inside of it get other gradients.
            inner = (draft for draft in self._drafts if draft.changes_gradients and draft.changes_inside)
            reported = [draft for draft in inner if draft.reaches_results is not False][:1]
        reported = reported or [draft for draft in self._drafts if draft.is_lost_gradient]
        if all(draft.is_disproved for draft in reported):
            reported = []  # only parts that agree wherever values decide: no reason for what differs
        for draft in dict.fromkeys(map(self._maker_of, reported)):
            groups.setdefault(draft.joined if draft.joined is not None else id(draft), []).append(draft)
        order = importance(group[0] for group in groups.values())

        def key(group: Sequence[Draft]) -> tuple[Any, ...]:
            is_last, follows, is_unknown = order(group[0])
            is_suspected = all(draft.is_suspected for draft in group)
            return is_last, follows, is_suspected, is_unknown, group[0].pair.record.step or 0, group[0].is_later

        return [_origin(self._summary(group), *group) for group in sorted(groups.values(), key=key)]

    def _maker_of(self, draft: Draft) -> Draft:
        """Return the draft at the operators that make a tensor from outside, as later steps show; else the same draft.

        A step begins at the first call of the model, so what the program does with its data before that is recorded
        from the second step on.
        """
        makers = [draft]
        while (read := self._read_from_outside(makers[-1])) is not None:
            maker = self._later_maker(makers[-1], read)
            if maker is None or maker in makers:
                break
            line = _NOT_SEEN.format(name=read.label, step=read.step)
            if line not in maker.evidence:
                maker.evidence.append(line)
                maker.explains += makers[-1].explains
            makers.append(maker)
        return makers[-1]

    def _read_from_outside(self, draft: Draft) -> Optional[Record]:
        """Return the tensor of a draft that comes from outside, or is computed from one; None if there is none."""
        pair = draft.pair if draft.is_from_outside else draft.border
        is_first = pair is not None and self._from_outside.get(pair.record.label) == (pair.record.step or 0)
        return pair.record if pair is not None and is_first else None

    def _later_maker(self, draft: Draft, read: Record) -> Optional[Draft]:
        """Return the draft that explains a tensor from outside in a later step; None if there is none.

        A loop may compute it from the result of the step before, such as a loop of denoising.
        """
        makers = self.of(sorted(self._later_causes.get(read.label, ())))
        if draft in makers:
            return None
        makers = [maker for maker in makers if maker.pair.record.phase == "other" and maker.kind == "structure"]
        if draft.is_from_outside:
            makers += (maker for maker in self._drafts if _is_read_later(maker, read))
        return next((maker for maker in makers if maker.changes_values), None)

    def _summary(self, group: Sequence[Draft]) -> str:
        """Return the first line of evidence for drafts that are reported as one; "" to keep the first draft's line."""
        first = group[0]
        names = [draft.pair.record.parameter or "" for draft in group]
        if first.kind == "parameter" and len(group) > _FEW and all(name.endswith(_GRADIENT) for name in names):
            return f"{len(group)} gradients differ when they are first read, such as {names[0]}: {first.pair.reason}"
        if first.kind == "parameter" and len(group) > _FEW:
            total = max(len(self.parameters.get(first.pair.record.step, ())), len(group))
            count = f"all {total}" if total == len(group) else f"{len(group)} of {total}"
            if first.since is not None:
                return f"{count} parameters differ since step {first.since}: {_how_far(group)}"
            return f"{count} parameters differ when they are first read: {_how_far(group)}"
        return first.summary.replace("{count}", str(len(group))) if len(group) > 1 else ""


class _Ranked(Protocol):
    """A draft or an origin."""

    @property
    def kind(self) -> str: ...
    @property
    def pair(self) -> Pair: ...


def importance(origins: Iterable[_Ranked]) -> Callable[[_Ranked], tuple[bool, bool, bool]]:
    """Return a sort key for these origins: the kind "unknown" comes after the other kinds, the kinds in `LAST` last.

    From the first step with an origin in the forward or backward pass on, origins outside of both come after all others
    but those in `LAST`, for example at operators of an optimizer. The reason: if one program has no gradient of a
    parameter, its optimizer does not update the parameter.
    """
    records = [origin.pair.record for origin in origins if origin.kind not in LAST]
    passes = (record.step or 0 for record in records if record.phase in ("forward", "backward"))
    first_pass = min(passes, default=None)

    def key(origin: _Ranked) -> tuple[bool, bool, bool]:
        record = origin.pair.record
        follows = first_pass is not None and record.phase == "other" and (record.step or 0) >= first_pass
        return origin.kind in LAST, follows, origin.kind == "unknown"

    return key


def _is_read_later(maker: Draft, read: Record) -> bool:
    """Return True if the result of a draft's operators is read as this tensor is, in a later step."""
    later = None if maker.border is None else maker.border.record
    return later is not None and later.label == read.label and (later.step or 0) > (read.step or 0)


def _how_far(group: Sequence[Draft]) -> str:
    """Return the probable reason why parameters differ."""
    is_in_another_order = all(map(_is_in_another_order, group))
    errors = [draft.pair.measure.max_rel for draft in group if draft.pair.measure is not None]
    for dtype in () if is_in_another_order else ("float16", "bfloat16"):
        kind = float_kind(dtype)
        if kind is not None and len(errors) == len(group) and max(errors) <= 1.01 * kind.unit:
            return f"by a rounding to {dtype}"
    if group[0].since is not None:
        return "they were updated differently"
    if is_in_another_order:
        return "probably the same values in another order"
    if group[0].names is not None:
        return f"they have other names, such as {group[0].names[0]} here and {group[0].names[1]} in the reference"
    return "another seed or checkpoint"


def _is_in_another_order(draft: Draft) -> bool:
    actual, reference = draft.pair.actual, draft.pair.reference
    return actual is not None and reference is not None and are_rearranged(actual, reference)


def _origin(summary: str, first: Draft, *joined: Draft) -> Origin:
    drafts = (first, *joined)
    arguments = dict.fromkeys(text for draft in joined for text in draft.arguments if text not in first.arguments)
    backward = list(dict.fromkeys(name for draft in drafts for name in draft.backward))
    return Origin(
        first.kind,
        first.pair,
        (
            *([summary, *first.evidence[1:]] if summary else first.evidence),
            *(() if first.adapter is None else first.adapter.evidence()),
            *[*arguments][:MOST_NAMED],
            *_named("with it", [_short_name(first, draft) for draft in joined]),
            *_named("its backward pass changes with it", backward),
            *_effect_of(drafts),
        ),
        max(draft.explains for draft in drafts),
        first.first_seen,
        _next_request(first),
        first.caller,
        first.seen,
    )


def _effect_of(drafts: Sequence[Draft]) -> list[str]:
    """Return a sentence on the first named tensor that differs, for an origin outside of modules without a name."""
    record = drafts[0].pair.record
    named = next((draft.first_named for draft in drafts if draft.first_named), "")
    if not named or record.module or record.parameter or record.phase != "other":
        return []
    return [f"first of the named tensors that differ because of it: {named}"]


def _short_name(first: Draft, draft: Draft) -> str:
    """Return the name of a draft's operator; the name of its tensor if the first draft is at the same operator."""
    record = draft.pair.record
    return record.op_name if record.op_name != first.pair.record.op_name else f"{record.io}.{record.index}"


def _named(title: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    end = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return [f"{title}: {', '.join(names[:MOST_NAMED])}{end}"]


def _next_request(draft: Draft) -> dict[str, Any]:
    record, caller = draft.pair.record, draft.caller
    layers = layers_of(record, [record.op_name]) if caller is None else (caller,) if caller else ()
    request: dict[str, Any] = {"layers": layers[0]} if layers else {}
    if is_of_module(record):
        request["level"] = "all"  # the operators of the module
    request["data"] = "tensor"
    if record.step is not None:
        request["steps"] = str(record.step)
        if is_update(record):
            request.pop("layers", None)  # the operators of an optimizer belong to no module
        if draft.since is not None:
            # Both steps, and all operators: the update between them has no module.
            request.pop("layers", None)
            request["steps"] = f"{draft.since}|{record.step}"
    if record.rank is not None:
        request["ranks"] = str(record.rank)
    return request
