"""Compare the tokens of one rank: all calls of both programs at once, with log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Optional

from ascend_dump.analysis.alignment.align_setting import may_align_tokens
from ascend_dump.analysis.alignment.ranks_and_steps import ReadMadeOf, Steps, operators_in
from ascend_dump.analysis.alignment.token_parts import token_part
from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.compare.by_tokens.movers import with_movers
from ascend_dump.analysis.explaining.origins import LAST
from ascend_dump.analysis.explaining.output_origins import RUN_BETWEEN
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.explaining.wiring import FROM_OUTSIDE
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.reading import Record

__all__ = [
    "BEGINS_IN",
    "differing_tokens",
    "run_alone",
    "tokens_of_rank",
    "tokens_of_rows",
    "uncompared_tokens",
    "with_added_results",
    "with_misread_token",
    "with_tokens",
    "without_consequences",
]

#: A token differs clearly if its largest difference is more than this share of the largest difference of all tokens.
_CLEAR = 0.01
#: Maximum number of operators of a part that are listed for each side.
_MOST_LISTED = 2
#: The beginning of the evidence that lists the operators of such a part.
BEGINS_IN = "it begins in one of these operators"


def tokens_of_rank(steps: Steps, made_of: tuple[ReadMadeOf, ReadMadeOf], *, must: bool) -> Optional[TokenAlignment]:
    """Return the alignment of the tokens of a rank; None if nothing shows that it has to be compared token by token.

    must: the user requires it. Then NotSupported is raised if both sides have no tokens in common.
    """
    if not must:
        first = [
            next((operators for _, *sides in steps if (operators := operators_in(sides[side], made_of[side]))), [])
            for side in (0, 1)
        ]
        if not may_align_tokens(*first):
            return None
    try:
        alignment = _alignment_of(steps, made_of)
    except NotSupported:
        if must:
            raise
        return None
    return alignment if must or alignment.has_same_requests else None


def tokens_of_rows(
    steps: Steps, made_of: tuple[ReadMadeOf, ReadMadeOf], rows: Mapping[int, int]
) -> Optional[TokenAlignment]:
    """Return the alignment of the tokens of a rank if it has the tokens of these rows; else None.

    Rows of different lengths cannot be cut from a batch, because the shorter ones are padded; their tokens can.

    rows: from rows of actual to rows of the reference
    """
    try:
        alignment = _alignment_of(steps, made_of)
    except NotSupported:
        return None
    return alignment if alignment.has_rows(rows) else None


def _alignment_of(steps: Steps, made_of: tuple[ReadMadeOf, ReadMadeOf]) -> TokenAlignment:
    return TokenAlignment(
        *(
            [operators for _, *sides in steps if (operators := operators_in(sides[side], made_of[side]))]
            for side in (0, 1)
        )
    )


def with_tokens(origins: Sequence[Origin], pairs: Sequence[Pair], alignment: TokenAlignment) -> list[Origin]:
    """Return origins with the first token that differs as their first evidence.

    pairs: those of all compared tensors, in execution order
    """
    numbers = [next(iter(differing_tokens(origin.pair)), None) for origin in origins]
    of_tokens = [
        with_movers(_of_part(_with_token(origin, alignment), alignment), alignment, number)
        for origin, number in zip(origins, numbers)
    ]
    return _in_execution_order(_in_order_of_differences(of_tokens, pairs, alignment), alignment)


def _in_order_of_differences(
    origins: Sequence[Origin], pairs: Sequence[Pair], alignment: TokenAlignment
) -> list[Origin]:
    """Return the origins; operators of one side come behind the operator with the first result that differs.

    Such operators may have more inputs than could be compared, and begin anywhere, such as at a rotary embedding. If
    the reason for the first result is unknown, they come behind it where they are computed from it.
    """
    differing = (pair for pair in pairs if pair.verdict == "different")
    first = next((pair.record for pair in differing if None not in (pair.actual, pair.reference)), None)
    if first is None or not origins or None not in (origins[0].pair.actual, origins[0].pair.reference):
        return [*origins]
    chosen = [
        origin
        for origin in origins[1:]
        if origin.op_name == first.op_name
        and None not in (origin.pair.actual, origin.pair.reference)
        and origin.kind not in ("input", *LAST)
        and (origin.kind != "unknown" or _is_behind(origins[0], origin, alignment))
    ]
    return [*chosen[:1], *(origin for origin in origins if origin not in chosen[:1])]


def _is_behind(origin: Origin, earlier: Origin, alignment: TokenAlignment) -> bool:
    """Return True for an origin at operators that compute with the result of another one."""
    side = 0 if origin.pair.reference is None else 1
    record = earlier.pair.reference if side else earlier.pair.actual
    name = "" if record is None else record.op_name.partition("[")[0]
    return any(operator.op_name == name for operator in alignment.operators_before(side, origin.pair.record))


def _in_execution_order(origins: Sequence[Origin], alignment: TokenAlignment) -> list[Origin]:
    """Return the origins; the first one comes behind those at earlier operators if it may follow from them.

    A model computes the values of tokens that an operator reads from its ids, so a tensor before them differs, even if
    it could not be compared: such values are not from outside either. An operator of one side was found in a part of
    the program that may begin much earlier.
    """
    if not origins:
        return []
    first = origins[0]
    is_outside = first.kind == "wiring" and any(FROM_OUTSIDE in fact for fact in first.evidence)
    is_read = (first.kind == "input" or is_outside) and token_part(first.pair.reference) is not None
    if not is_read and not (first.kind == "structure" and None in (first.pair.actual, first.pair.reference)):
        return [*origins]
    places = [_places_of(origin, alignment) for origin in origins]
    earlier = [
        n
        for n, (origin, place) in enumerate(zip(origins, places))
        if any(before < at < math.inf for before, at in zip(place, places[0]))
        and (is_read or origin.kind not in ("unknown", *LAST))
    ]
    if not earlier:
        return [*origins]
    first = replace(first, kind="unknown") if is_read else first
    return [*(origins[n] for n in earlier), first, *(origins[n] for n in range(1, len(origins)) if n not in earlier)]


def _places_of(origin: Origin, alignment: TokenAlignment) -> tuple[float, float]:
    """Return the position of the operator of an origin in the base call of each side; infinite if it is not there."""
    places = [math.inf, math.inf]
    for side, record in enumerate((origin.pair.actual, origin.pair.reference)):
        name = None if record is None else record.op_name.partition("[")[0]
        operators = enumerate(alignment.base_operators(side))
        places[side] = next((position for position, member in operators if member.op_name == name), math.inf)
    return places[0], places[1]


def _of_part(origin: Origin, alignment: TokenAlignment) -> Origin:
    """Return an origin at a part that is built differently with the operators of this part."""
    reference = origin.pair.reference
    between = None if reference is None or origin.pair.how != "dataflow" else alignment.between.get(reference.op_name)
    if between is None:
        return origin
    facts = [fact for fact in origin.evidence if not fact.startswith(RUN_BETWEEN)]
    facts += [
        f"{BEGINS_IN} of {side}: {_listed(operators)}" for side, operators in zip(("actual", "the reference"), between)
    ]
    return replace(origin, kind="structure", evidence=tuple(facts))


def _listed(operators: Sequence[Operator]) -> str:
    """Return the names of operators with their lines, the last ones."""
    last = operators[-_MOST_LISTED:]
    names = [f"{op.op_name} ({op.source.rpartition('/')[2]})" if op.source else op.op_name for op in last]
    more = f"{len(operators) - len(last)} more, " if len(operators) > len(last) else ""
    return more + ", ".join(names)


def run_alone(origin: Origin) -> bool:
    """Return True for an origin at several operators that only one side runs, of which the first may be right."""
    return None in (origin.pair.actual, origin.pair.reference) and " run in " in origin.pair.reason


def without_consequences(origins: Sequence[Origin], first: Origin, alignment: TokenAlignment) -> list[Origin]:
    """Return origins without parts that read results of the first origin, and whose inputs were not all compared.

    Their results differ because of it, so that they cannot be checked. first: the first origin as it was found
    """
    names = [
        {record.op_name.partition("[")[0] for record in records if record is not None}
        for records in zip(*((origin.pair.actual, origin.pair.reference) for origin in (first, *origins[:1])))
    ]

    def follows(origin: Origin) -> bool:
        sides = enumerate((origin.pair.actual, origin.pair.reference))
        before = ((side, alignment.operators_before(side, record)) for side, record in sides if record is not None)
        return any(operator.op_name in names[side] for side, operators in before for operator in operators)

    return [*origins[:1], *(origin for origin in origins[1:] if not (_is_of_other_parts(origin) and follows(origin)))]


def _is_of_other_parts(origin: Origin) -> bool:
    """Return True for an origin at operators that only one side runs, or at the result of operators built otherwise.

    A single operator that one side lacks is a change of its own.
    """
    is_alone = None in (origin.pair.actual, origin.pair.reference) and " runs in " not in origin.pair.reason
    is_read = origin.kind == "input" and token_part(origin.pair.reference) is not None
    return is_alone or is_read or origin.pair.how == "dataflow"


def with_misread_token(origins: Sequence[Origin], alignment: TokenAlignment) -> tuple[list[Origin], tuple[str, ...]]:
    """Return the origins, and notes. A token that is read from the wrong block of a cache is added as an origin.

    The added origin replaces the origins in its module, and is placed before later origins. Without origins of these
    two groups, no difference follows from the token, and only a note is returned.
    """
    found = alignment.misread()
    if found is None:
        return [*origins], ()
    misread, side = found
    names = ["actual", "the reference"]
    text = f"paged cache of {names[side]}: {misread.text}"
    order = {operator.op_name: n for n, operator in enumerate(alignment.calls[side][misread.call].operators)}
    number, module = order[misread.operator.op_name], misread.operator.module
    index = next(
        (n for n, origin in enumerate(origins) if origin.module == module or order.get(origin.op_name, -1) >= number),
        None,
    )
    if index is None:
        return [*origins], (f"{text}; no difference follows",)
    table = misread.table
    sides: tuple[Optional[Record], Optional[Record]] = (None, table) if side else (table, None)
    reason = "the table of blocks and the slots of the tokens do not agree"
    evidence = (text, f"{reason}: one of the two is wrong")
    if misread.slot == misread.own_slot:
        reason = "the slot of a token was given to another one too"
        evidence = (text, f"{reason}: a block may belong to two requests")
    pair = Pair(*sides, "content", 1.0, "different", reason)
    later = [origin for origin in origins[index:] if origin.module != module]
    explains = sum(origin.explains for origin in origins[index:])
    return [*origins[:index], Origin("wiring", pair, evidence, explains), *later], ()


def uncompared_tokens(alignment: TokenAlignment) -> list[Pair]:
    """Return unmatched pairs for tokens that were not compared, so that the verdict is not "noise".

    There is one for each request whose tokens the other side has at other positions. Without one, there is one for each
    request whose ids part, or one if less than half of the tokens are on both sides. The records are those of the ids.
    """
    pairs = []
    for side, displaced in enumerate(alignment.displaced):
        names = ("actual", "the reference")[:: -1 if side else 1]
        for tokens in displaced:
            first = (tokens.request, 0)
            call = next((c for c in alignment.calls[side] if any(first in row for row in c.slots)), None)
            if call is None:
                continue
            places = f"{tokens.position} to {tokens.position + tokens.length - 1}"
            reason = (
                f"{tokens.length} tokens of request {tokens.request} of {names[0]} were not compared: {names[1]} has "
            )
            if tokens.holder is None:
                reason += f"them in slots {places} of a row, which were taken for padding"
            else:
                reason += f"them at positions {places} of request {tokens.holder}, "
                reason += "as if positions began again, or requests were not kept apart"
            pairs.append(_uncompared(call.ids_record, reason, of_actual=side == 0))
    for request, position, ids in () if pairs else alignment.parted:
        reason = (
            f"the ids of request {request} part at token {position}: {ids[0]} here, {ids[1]} in the reference; the "
            "tokens from there on were not compared"
        )
        pairs.append(_uncompared(alignment.calls[0][0].ids_record, reason, of_actual=True))
    if not pairs and not alignment.has_most_tokens:
        reason = f"only {alignment.tokens.count} tokens are on both sides: most were not compared"
        pairs.append(_uncompared(alignment.calls[0][0].ids_record, reason, of_actual=True))
    return pairs


def _uncompared(record: Record, reason: str, *, of_actual: bool) -> Pair:
    return Pair(record if of_actual else None, None if of_actual else record, "", 0.0, "unmatched", reason)


def with_added_results(origins: Sequence[Origin], alignment: TokenAlignment) -> list[Origin]:
    """Return the origins, and one for each operator that only one side runs on the last result of both sides."""
    result = [*origins]
    for side, operator in alignment.added_results():
        if any(origin.op_name == operator.op_name for origin in origins):
            continue
        record = operator.outputs[0]
        reason = f"{operator.op_type} runs in {'the reference' if side else 'actual'} only"
        pair = Pair(None if side else record, record if side else None, "", 0.0, "unmatched", reason)
        result.append(Origin("structure", pair, (reason, "it changes the last result, such as the logits")))
    return result


def _with_token(origin: Origin, alignment: TokenAlignment) -> Origin:
    numbers = differing_tokens(origin.pair)
    part = token_part(origin.pair.actual)
    if not numbers or part is None:
        return origin
    text = f"first {alignment.tokens.text(numbers[0])}; {len(numbers)} of {len(part.numbers)} tokens differ"
    if origin.pair.record.io == "input":
        for side, record in enumerate((origin.pair.actual, origin.pair.reference)):
            of_side = token_part(record)
            added = None if of_side is None else alignment.added_operator(side, of_side, numbers[0])
            if added is not None:
                return _added(origin, text, side, *added)
    if origin.kind == "parameter" and not origin.pair.record.parameter:
        # Tensors of tokens without a parameter name are data, not parameters.
        evidence = (fact for fact in origin.evidence if "parameters differ when they are first read" not in fact)
        return replace(origin, kind="input", evidence=(text, *evidence))
    return replace(origin, evidence=(text, *origin.evidence))


def _added(origin: Origin, text: str, side: int, call: int, operator: Operator) -> Origin:
    """Return the origin at an operator that only some calls of one side run."""
    name = "actual" if side == 0 else "the reference"
    reason = f"{operator.op_type} runs in some calls of {name} only, such as call {call}"
    read = f"its result differs, read as {origin.pair.record.label}: {origin.pair.reason}"
    record = operator.outputs[0]
    pair = replace(origin.pair, actual=None if side else record, reference=record if side else None, reason=reason)
    return replace(origin, kind="structure", pair=pair, evidence=(text, reason, read))


def differing_tokens(pair: Pair) -> list[int]:
    """Return the numbers of the tokens whose values differ clearly; none for tensors without tokens."""
    import numpy as np

    a, b = pair.actual, pair.reference
    part = token_part(a)
    if a is None or b is None or part is None or token_part(b) is None:
        return []
    try:
        arrays = [record.numpy().reshape(len(part.numbers), -1) for record in (a, b)]
        wide = np.complex128 if any(map(np.iscomplexobj, arrays)) else np.float64
        x, y = (array.astype(wide) for array in arrays)
    except (AscendDumpError, TypeError, ValueError):
        return []
    if x.shape != y.shape:
        return list(part.numbers.tolist())
    with np.errstate(all="ignore"):
        distances = np.where(x == y, 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf)).max(axis=1, initial=0.0)
    limit = _CLEAR * float(distances[np.isfinite(distances)].max(initial=0.0))
    differing: list[int] = part.numbers[distances > limit].tolist()
    return differing
