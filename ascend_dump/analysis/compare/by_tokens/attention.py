"""Name the operator of an attention in which a difference begins, although its inner tensors have no common order.

A difference between the products with weights before and behind an attention is found where the latter reads it. The
scores and weights of each token, sorted, show whether it began in the mask, a factor, the softmax, or the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.attention_parts import (
    AttentionPart,
    TokenAttention,
    adds_to_products,
    attention_of_tokens,
    attentions_of,
)
from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.compare.by_tokens.attention_distances import (
    MOST_VECTORS,
    SAME_VECTOR,
    distance,
    distances,
    lacks,
    ratio,
)
from ascend_dump.analysis.compare.by_tokens.attention_rows import (
    AGREE,
    UNITS,
    AttentionCause,
    cause_of_heads,
    cause_of_rows,
    narrowed_weights,
    narrowing,
)
from ascend_dump.analysis.compare.by_tokens.movers import reads_cache
from ascend_dump.analysis.compare.by_tokens.operand_paths import (
    line_of,
    maker_of_added,
    maker_of_mask,
    parts_of_mask,
    scaling_of,
)
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.matches import RecordPair
from ascend_dump.errors import AscendDumpError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Operand", "differing_operand", "with_attention"]

_MASKING = frozenset({"masked_fill", "where", "add"})
_SCALING = frozenset({"mul", "div"})

#: By number of a token: its attention in actual and in the reference.
_Tokens = Mapping[int, tuple[TokenAttention, TokenAttention]]


class Operand(NamedTuple):
    """An operand of the product of queries and keys that differs. records: as this product reads it on each side"""

    name: str
    records: RecordPair
    numbers: list[int]


def with_attention(origins: Sequence[Origin], pairs: Sequence[Pair], alignment: TokenAlignment) -> list[Origin]:
    """Return the origins; the first one is replaced if it lies in an attention whose operators show the cause.

    pairs: those of all compared tensors, in execution order
    """
    if not origins:
        return []
    layer, seen = _layer_of(origins[0], alignment), origins[0].pair
    if layer is None and None in (seen.actual, seen.reference):
        differing = (pair for pair in pairs if pair.verdict == "different")
        seen = next((pair for pair in differing if None not in (pair.actual, pair.reference)), seen)
        layer = _layer_before(seen, alignment)
    if layer is None:
        return [*origins]
    try:
        tokens = _tokens_of(layer, alignment)
        found = None if tokens is None else _cause(tokens, max(AGREE, UNITS * alignment.unit), alignment)
    except AscendDumpError:
        return [*origins]
    if found is None:
        return [*origins]
    return [_origin(origins[0], found, seen), *origins[1:]]


def differing_operand(origin: Origin, alignment: TokenAlignment) -> Optional[Operand]:
    """Return the queries or keys that differ in the attention in which an origin lies; None if neither is known to."""
    layer = _layer_of(origin, alignment)
    if layer is None:
        return None
    limit = max(AGREE, UNITS * alignment.unit)
    try:
        tokens = _tokens_of(layer, alignment) or {}
        scores = _apart(tokens, limit, lambda token: token.scores)
        if not scores:
            return None
        queries = _apart(scores, limit, lambda token: token.queries, _factor(scores, lambda token: token.queries))
        keys = {number: pair for number, pair in scores.items() if lacks(pair[0].rows, pair[1].rows)}
    except AscendDumpError:
        return None
    for index, (name, numbers) in enumerate((("queries", queries), ("keys", keys))):
        if numbers:
            parts = [attentions_of(alignment.base_operators(side))[layer].parts[0] for side in (0, 1)]
            inputs = [part.scores.inputs for part in parts]
            if any(part.has_one_key for part in parts) or min(map(len, inputs)) <= index:
                return None
            return Operand(name, (inputs[0][index], inputs[1][index]), [*numbers])
    return None


def _origin(origin: Origin, cause: AttentionCause, seen: Pair) -> Origin:
    """Return an origin at the cause. seen: the tensors that differ and showed the attention"""
    a, b = (operator.outputs[0] for operator in cause.operators)
    pair = replace(origin.pair, actual=a, reference=b, how="order", verdict="different", reason=cause.text)
    facts = (cause.text, cause.fact, f"found where {seen.record.label} differs: {seen.reason}")
    evidence = tuple(fact for fact in facts if fact)
    return replace(origin, kind=cause.kind, pair=pair, evidence=evidence, first_seen=False)


def _layer_of(origin: Origin, alignment: TokenAlignment) -> Optional[int]:
    """Return the number of the attention that an origin lies in; None if it lies elsewhere.

    An origin at two operators that were compared there, such as at the keys that both read, needs no other operator.
    But masks are not compared, so that the inputs of an operator that adds one, or fills with it, seem to be equal.
    """
    pair = origin.pair
    is_alone = pair.actual is None or pair.reference is None
    for side, record in enumerate((pair.actual, pair.reference)):
        if record is None:
            continue
        operators = alignment.base_operators(side)
        name = record.op_name.partition("[")[0]
        position = next((n for n, operator in enumerate(operators) if operator.op_name == name), -1)
        for number, attention in enumerate(attentions_of(operators) if position >= 0 else ()):
            is_open = is_alone or origin.kind in ("structure", "unknown") or reads_cache(origin)
            is_open |= any(_is_at_weights(origin, operators[position], part) for part in attention.parts)
            is_open |= any(_is_at_scores(origin, operators[position], part) for part in attention.parts)
            reads_mask = operator_class(operators[position].op_type) in _MASKING or any(
                part.is_fused and part.scores is operators[position] for part in attention.parts
            )
            is_open |= origin.kind == "compute" and reads_mask
            is_open |= any(_is_behind_softmax(origin, position, operators, part) for part in attention.parts)
            if (attention.begin <= position < attention.end and is_open) or (
                position == attention.end and record.io == "input"
            ):
                return number
    return None


def _layer_before(first: Pair, alignment: TokenAlignment) -> Optional[int]:
    """Return the number of the attention whose result is the first tensor that differs; None if it is another tensor.

    Operators of one side may begin long before the attention, such as at a rotary embedding.
    """
    if first.record.io != "input":
        return None
    layers = {
        number
        for side, record in enumerate((first.actual, first.reference))
        for operators in [alignment.base_operators(side)]
        for number, attention in enumerate(attentions_of(operators))
        if record is not None and record.op_name.partition("[")[0] == operators[attention.end].op_name
    }
    return layers.pop() if len(layers) == 1 else None


def _is_at_weights(origin: Origin, operator: Operator, part: AttentionPart) -> bool:
    """Return True for an origin at weights that the product with values reads: the attention computes them."""
    record = origin.pair.record
    return operator is part.values and not part.is_fused and origin.kind == record.io == "input" and record.index == 0


def _is_at_scores(origin: Origin, operator: Operator, part: AttentionPart) -> bool:
    """Return True for an origin at scores that the softmax reads, if what made them was not compared."""
    return (
        operator.op_name == part.softmax.op_name
        and not part.is_fused
        and origin.kind == origin.pair.record.io == "input"
    )


def _is_behind_softmax(origin: Origin, position: int, operators: Sequence[Operator], part: AttentionPart) -> bool:
    """Return True for an origin at an operator that reads the weights otherwise, before the product with values."""
    if origin.kind != "wiring" or part.is_fused:
        return False
    return part.softmax.position < operators[position].position <= part.values.position


def _tokens_of(layer: int, alignment: TokenAlignment) -> Optional[_Tokens]:
    attentions = [[attentions_of(call.operators) for call in calls] for calls in alignment.calls]
    if len({len(of_call) for side in attentions for of_call in side}) > 1:
        return None
    # The side with fewer calls has the longer rows, which show their axes.
    first = int(len(attentions[1]) <= len(attentions[0]))
    sides: list[Optional[dict[int, TokenAttention]]] = [None, None]
    for side in (first, 1 - first):
        of_layer = [of_call[layer] for of_call in attentions[side]]
        sides[side] = attention_of_tokens(alignment.slots(side), of_layer, sides[first])
    a, b = sides
    if a is None or b is None:
        return None
    return {number: (a[number], b[number]) for number in sorted(a.keys() & b.keys())}


def _cause(tokens: _Tokens, limit: float, alignment: TokenAlignment) -> Optional[AttentionCause]:
    """Return the cause; None if the tensors do not show it."""

    def text(number: int, what: str) -> str:
        return f"first {alignment.tokens.text(number)}; {what}"

    weights = _apart(tokens, limit, lambda token: token.weights)
    for number, (a, b) in weights.items():
        if a.keys != b.keys:
            own = int(alignment.tokens.index_of[number, 1]) + 1
            if a.keys <= own < b.keys:
                what = f"it attends to {a.keys} keys here, to {b.keys} in the reference, of {own} tokens up to it"
                masks = [_mask_of(token, side, alignment) for side, token in enumerate((a, b))]
                fact = f"the mask of the reference is wrong, see {line_of(masks[1])}"
                return AttentionCause("compute", (masks[0], masks[1]), text(number, what), fact)
            if lacks(a.all_rows, b.rows) and _has_most(tokens, alignment):
                what = f"it attends to {a.keys} keys here, to {b.keys} in the reference, and reads other keys"
                return cause_of_rows(a, b, text(number, what), alignment)
            what = f"it attends to {a.keys} keys here, to {b.keys} in the reference: the mask or the keys differ"
            makers = [_mask_of(token, side, alignment) for side, token in enumerate((a, b))]
            parts = parts_of_mask(alignment.calls[0][a.call].operators, makers[0])
            lines = ", ".join(line_of(part) for part in parts if part.source != makers[0].source)
            fact = f"{makers[0].op_name} combines the masks of {lines}" if lines else ""
            return AttentionCause("compute", (makers[0], makers[1]), text(number, what), fact)
    if not weights:
        for number, (a, b) in _apart(tokens, limit, lambda token: token.results).items():
            if a.results.shape != b.results.shape:
                return None  # one side multiplies with a weight later, as for values of an absorbed projection
            narrowed = narrowed_weights(a, alignment)
            if narrowed is not None:
                what = f"the weights of all keys agree, and are rounded to {narrowed.outputs[0].dtype} for the product"
                return AttentionCause("structure", (narrowed, b.part.softmax), text(number, what))
            what = "the weights of all keys agree, and the results differ: the values, or their order, differ"
            return cause_of_rows(a, b, text(number, what), alignment, of_values=True)
        return None
    scores = _apart(weights, limit, lambda token: token.scores)
    if not scores:
        number, (a, b) = next(iter(weights.items()))
        what = f"the scores agree, and {len(weights)} tokens have other weights: the softmax differs"
        return AttentionCause("compute", (a.part.softmax, b.part.softmax), text(number, what))
    cause = _cause_of_scores(scores, limit, alignment) or _cause_of_keys(scores, tokens, limit, alignment)
    return None if cause is None else cause._replace(text=text(next(iter(scores)), cause.text))


def _cause_of_scores(scores: _Tokens, limit: float, alignment: TokenAlignment) -> Optional[AttentionCause]:
    """Return the cause if it lies behind the product of queries and keys. scores: the tokens with other scores"""
    a, b = next(iter(scores.values()))
    factor = _factor(scores, lambda token: token.scores)
    scaling = [_of_class(token, _SCALING) or token.part.scores for token in (a, b)]
    if not _apart(scores, limit, lambda token: token.scores, factor):
        what = f"the scores are {factor:.4g} times those of the reference: a factor differs"
        return AttentionCause("compute", _scaling_of(a, b, limit, alignment), what)
    if not _apart(scores, limit, lambda token: token.products, _factor(scores, lambda token: token.products)):
        behind = _behind_scores(a, b, limit)
        if behind is not None:
            return behind
        scaled = [_scaled(token, limit)[1] for token in (a, b)]
        factor = ratio(*scaled)
        if abs(factor - 1.0) > limit and distance(scaled[0], scaled[1] * factor) <= limit:
            what = f"the scores are {factor:.4g} times those of the reference at first: a factor differs"
            return AttentionCause("compute", _scaling_of(a, b, limit, alignment), what)
        named = [
            narrowing(token.part.between) or _first_apart(token, other, limit) for token, other in ((a, b), (b, a))
        ]
        what = "the products of queries and keys agree, and the scores differ"
        for side, name in enumerate(("actual", "the reference")):
            operator = named[side]
            if operator is not None and named[1 - side] is None:
                # The other side lacks this operator: all its steps are steps of this side.
                what += f": {operator.label} runs in {name} only"
                scaling[1 - side] = (a, b)[1 - side].part.softmax
        first, second = (operator or of_token for operator, of_token in zip(named, scaling))
        added = _maker_of_added(a, named[0], alignment)
        if added is None:
            return AttentionCause("compute", (first, second), what)
        return AttentionCause("compute", (added, second), what, f"{first.op_name} adds what {added.op_name} makes")
    return None


def _behind_scores(a: TokenAttention, b: TokenAttention, limit: float) -> Optional[AttentionCause]:
    """Return the cause if the last results before the softmax agree, but not what it reads, such as a sink besides."""
    last = [token.steps[-1] if token.steps else None for token in (a, b)]
    if last[0] is None or last[1] is None or distance(last[0][1], last[1][1]) > limit:
        return None
    classes: list[list[str]] = []
    for token, step in zip((a, b), last):
        begin = token.part.between.index(step[0]) + 1 if step is not None and step[0] in token.part.between else 0
        computing = (op for op in token.part.between[begin:] if not is_view(op.op_type) and _is_of_floats(op))
        names = (name for op in computing if (name := operator_class(op.op_type)) not in _MASKING)
        classes.append([*dict.fromkeys(names)])
    alone = [", ".join(name for name in of_side if name not in other) for of_side, other in zip(classes, classes[::-1])]
    facts = [f"only {side} runs {names}" for side, names in zip(("actual", "the reference"), alone) if names]
    if not facts:
        return None
    what = f"the scores agree, but not what the softmax computes from them: {', '.join(facts)} between them"
    return AttentionCause("structure", (a.part.softmax, b.part.softmax), what)


def _cause_of_keys(
    scores: _Tokens, tokens: _Tokens, limit: float, alignment: TokenAlignment
) -> Optional[AttentionCause]:
    """Return the cause if the queries agree, and the keys agree or are those of the program. tokens: all tokens"""
    if _apart(scores, limit, lambda token: token.queries, _factor(scores, lambda token: token.queries)):
        return None
    a, b = next(iter(scores.values()))
    other = next((pair for pair in scores.values() if lacks(pair[0].rows, pair[1].rows)), None)
    if other is None:
        return cause_of_heads(a, b, alignment)
    a, b = other
    if not _has_most(tokens, alignment):
        return None  # the keys are computed otherwise
    return cause_of_rows(a, b, "the queries agree, and it reads other keys than the reference", alignment)


def _scaled(token: TokenAttention, limit: float) -> tuple[list[Operator], np.ndarray]:
    """Return the operators that multiply the products of queries and keys with a factor, and their result."""
    scaling, values = [], token.products
    for operator, result in token.steps:
        if distance(result, token.products * ratio(result, token.products)) > limit:
            break
        if operator_class(operator.op_type) in _SCALING:
            scaling.append(operator)
        values = result
    return scaling, values


def _scaling_of(
    a: TokenAttention, b: TokenAttention, limit: float, alignment: TokenAlignment
) -> tuple[Operator, Operator]:
    """Return the operators that multiply with a factor.

    It may be a factor of the queries or keys: if their products have it already, or on a side with fewer factors.
    """
    (behind_a, last), (behind_b, other_last) = (_scaled(token, limit) for token in (a, b))
    behind = behind_a, behind_b
    of_products = ratio(a.products, b.products)
    is_before = abs(ratio(last, other_last) - of_products) <= limit * of_products
    scaling = []
    for side, token in enumerate((a, b)):
        operator = next(iter(behind[side]), None)
        if is_before or len(behind[side]) < len(behind[1 - side]) or operator is None:
            operator = scaling_of(alignment.calls[side][token.call].operators, token.part) or operator
        scaling.append(operator or token.part.scores)
    return scaling[0], scaling[1]


def _apart(tokens: _Tokens, limit: float, read: Callable[[TokenAttention], np.ndarray], factor: float = 1.0) -> _Tokens:
    """Return the tokens whose values, in actual and times a factor in the reference, are farther apart than a limit."""
    return {n: (a, b) for n, (a, b) in tokens.items() if distance(read(a), read(b) * factor) > limit}


def _factor(tokens: _Tokens, read: Callable[[TokenAttention], np.ndarray]) -> float:
    """Return the factor between the values of actual and of the reference."""
    import numpy as np

    sides = ([read(pair[side]).ravel() for pair in tokens.values()] for side in (0, 1))
    return ratio(*map(np.concatenate, sides))


def _has_most(tokens: _Tokens, alignment: TokenAlignment) -> bool:
    """Return True if actual has the keys that the reference computes for most tokens, in the attention of any token.

    Then it computes keys as the reference does. Keys of tokens that it does not compute itself may be left in a cache.
    """
    import numpy as np

    own = list(_own_keys(tokens, alignment))
    if not own:
        return True
    chosen = np.stack([own[n] for n in np.linspace(0, len(own) - 1, min(len(own), MOST_VECTORS)).astype(int)])
    nearest = np.full(len(chosen), np.inf)
    for rows in {id(a.all_rows): a.all_rows for a, _ in tokens.values()}.values():
        nearest = np.minimum(nearest, distances(rows, chosen))
    return bool(2 * np.count_nonzero(nearest <= SAME_VECTOR * np.abs(chosen).max()) >= len(chosen))


def _own_keys(tokens: _Tokens, alignment: TokenAlignment) -> Iterator[np.ndarray]:
    """Yield a key of the reference for tokens: one that the token before them did not have."""
    index_of = alignment.tokens.index_of
    number_of = {tuple(index_of[number].tolist()): number for number in tokens}
    following = [place for place in number_of if (place[0], place[1] - 1) in number_of]
    step = max(len(following) // MOST_VECTORS, 1)
    for sequence, position in following[::step]:
        before, own = (tokens[number_of[sequence, place]][1].rows for place in (position - 1, position))
        known = {row.tobytes() for row in before}
        yield from (row for row in own if row.tobytes() not in known)


def _mask_of(token: TokenAttention, side: int, alignment: TokenAlignment) -> Operator:
    """Return the operator that makes the mask of a token, or the one that masks scores if it is from outside.

    The product with keys, or the fused operator, is returned if there is no mask. side: 0 for actual
    """
    masking = _of_class(token, _MASKING) or token.part.scores
    if masking is token.part.scores and not (token.part.is_fused or adds_to_products(masking)):
        return masking
    return maker_of_mask(alignment.calls[side][token.call].operators, token.part, masking) or masking


def _maker_of_added(token: TokenAttention, adding: Optional[Operator], alignment: TokenAlignment) -> Optional[Operator]:
    """Return the operator of actual that makes what an operator adds to the scores, such as distances of tokens."""
    if adding is None or not (operator_class(adding.op_type) == "add" or adds_to_products(adding)):
        return None
    return maker_of_added(alignment.calls[0][token.call].operators, token.part, adding)


def _of_class(token: TokenAttention, classes: frozenset[str]) -> Optional[Operator]:
    """Return the last operator of these classes between the product and the softmax that computes floats."""
    between = reversed(token.part.between)
    return next((op for op in between if operator_class(op.op_type) in classes and _is_of_floats(op)), None)


def _first_apart(token: TokenAttention, other: TokenAttention, limit: float) -> Optional[Operator]:
    """Return the first operator between the product and the softmax whose result the other side does not have."""
    for operator, values in token.steps:
        if all(distance(values, of_other) > limit for _, of_other in other.steps):
            return operator
    return None


def _is_of_floats(operator: Operator) -> bool:
    return bool(operator.outputs) and float_kind(operator.outputs[0].dtype or "") is not None
