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
    attention_of_tokens,
    attentions_of,
)
from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.explaining.results import Origin
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.errors import AscendDumpError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["with_attention"]

#: Sorted values agree up to this share of the largest one, or this many rounding units.
_AGREE, _UNITS = 1e-4, 32.0
#: Maximum number of keys that are looked for among the keys of the other side.
_MOST_KEYS = 64
#: Keys are the same up to this share of the largest element.
_SAME_KEY = 1e-2
_MASKING = frozenset({"masked_fill", "where", "add"})
_SCALING = frozenset({"mul", "div"})
_SELECTING = frozenset({"index", "index_select", "gather", "take", "_unsafe_index", "embedding"})
#: Operators that change the arrangement of elements, how often they occur, or their type. A factor restores the values
#: of an integer type.
_COPYING = frozenset({"clone", "copy", "contiguous", "_to_copy", "expand", "repeat", "repeat_interleave", "cat"})

#: By number of a token: its attention in actual and in the reference.
_Tokens = Mapping[int, tuple[TokenAttention, TokenAttention]]


class _AttentionCause(NamedTuple):
    """The kind and the operators of an origin, of actual and of the reference, and the reason."""

    kind: str
    operators: tuple[Operator, Operator]
    text: str


def with_attention(origins: Sequence[Origin], alignment: TokenAlignment) -> list[Origin]:
    """Return the origins; the first one is replaced if it lies in an attention whose operators show the cause."""
    if not origins:
        return []
    layer = _layer_of(origins[0], alignment)
    if layer is None:
        return [*origins]
    try:
        tokens = _tokens_of(layer, alignment)
        found = None if tokens is None else _cause(tokens, max(_AGREE, _UNITS * alignment.unit), alignment)
    except AscendDumpError:
        return [*origins]
    if found is None:
        return [*origins]
    return [_origin(origins[0], found), *origins[1:]]


def _origin(origin: Origin, cause: _AttentionCause) -> Origin:
    a, b = (operator.outputs[0] for operator in cause.operators)
    pair = replace(origin.pair, actual=a, reference=b, how="order", verdict="different", reason=cause.text)
    evidence = (cause.text, f"found where {origin.pair.record.label} differs: {origin.pair.reason}")
    return replace(origin, kind=cause.kind, pair=pair, evidence=evidence, first_seen=False)


def _layer_of(origin: Origin, alignment: TokenAlignment) -> Optional[int]:
    """Return the number of the attention that an origin lies in; None if it lies elsewhere.

    An origin at two operators that were compared there, such as at the keys that both read, needs no other operator.
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
            first = operators.index(attention.parts[0].scores)
            is_open = is_alone or (position >= first and origin.kind in ("structure", "unknown"))
            is_open |= any(_is_at_weights(origin, operators[position], part) for part in attention.parts)
            if (attention.begin <= position < attention.end and is_open) or (
                position == attention.end and record.io == "input"
            ):
                return number
    return None


def _is_at_weights(origin: Origin, operator: Operator, part: AttentionPart) -> bool:
    """Return True for an origin at weights that the product with values reads: the attention computes them."""
    record = origin.pair.record
    return operator is part.values and not part.is_fused and origin.kind == record.io == "input" and record.index == 0


def _tokens_of(layer: int, alignment: TokenAlignment) -> Optional[_Tokens]:
    attentions = [[attentions_of(call.operators) for call in calls] for calls in alignment.calls]
    if len({len(of_call) for side in attentions for of_call in side}) > 1:
        return None
    # The side with fewer calls has the longer rows, which show their axes.
    first = int(len(attentions[1]) <= len(attentions[0]))
    known = attention_of_tokens(alignment.slots(first), [of_call[layer] for of_call in attentions[first]])
    side = 1 - first
    other = attention_of_tokens(alignment.slots(side), [of_call[layer] for of_call in attentions[side]], known)
    if known is None or other is None:
        return None
    a, b = (other, known) if first else (known, other)
    return {number: (a[number], b[number]) for number in sorted(a.keys() & b.keys())}


def _cause(tokens: _Tokens, limit: float, alignment: TokenAlignment) -> Optional[_AttentionCause]:
    """Return the cause; None if the tensors do not show it."""

    def text(number: int, what: str) -> str:
        return f"first {alignment.tokens.text(number)}; {what}"

    weights = _apart(tokens, limit, lambda token: token.weights)
    for number, (a, b) in weights.items():
        if a.keys != b.keys:
            if _lacks(a.all_rows, b.rows) and _has_most(tokens, alignment):
                what = f"it attends to {a.keys} keys here, to {b.keys} in the reference, and reads other keys"
                return _AttentionCause("input", (_reader_of_keys(a, alignment), b.part.scores), text(number, what))
            what = f"it attends to {a.keys} keys here, to {b.keys} in the reference: the mask or the keys differ"
            return _AttentionCause("compute", (_mask_of(a), _mask_of(b)), text(number, what))
    if not weights:
        for number, (a, b) in _apart(tokens, limit, lambda token: token.results).items():
            what = "the weights of all keys agree, and the results differ: the values, or their order, differ"
            operators = alignment.calls[0][a.call].operators
            of_keys, of_values = (_reader_of_cache(operators, a.part, of_values=values) for values in (False, True))
            # Scores that agree prove that an operator which reads keys too, such as from latents, is right.
            reader = a.part.values if of_values is None or of_values is of_keys else of_values
            return _AttentionCause("input", (reader, b.part.values), text(number, what))
        return None
    scores = _apart(weights, limit, lambda token: token.scores)
    if not scores:
        number, (a, b) = next(iter(weights.items()))
        what = f"the scores agree, and {len(weights)} tokens have other weights: the softmax differs"
        return _AttentionCause("compute", (a.part.softmax, b.part.softmax), text(number, what))
    cause = _cause_of_scores(scores, limit) or _cause_of_keys(scores, tokens, limit, alignment)
    return None if cause is None else cause._replace(text=text(next(iter(scores)), cause.text))


def _cause_of_scores(scores: _Tokens, limit: float) -> Optional[_AttentionCause]:
    """Return the cause if it lies behind the product of queries and keys. scores: the tokens with other scores"""
    a, b = next(iter(scores.values()))
    factor = _factor(scores, lambda token: token.scores)
    scaling = [_of_class(token, _SCALING) or token.part.scores for token in (a, b)]
    if not _apart(scores, limit, lambda token: token.scores, factor):
        what = f"the scores are {factor:.4g} times those of the reference: a factor differs"
        return _AttentionCause("compute", (scaling[0], scaling[1]), what)
    if not _apart(scores, limit, lambda token: token.products, _factor(scores, lambda token: token.products)):
        behind = _behind_scores(a, b, limit)
        if behind is not None:
            return behind
        named = [_narrowing(token) or _first_apart(token, other, limit) for token, other in ((a, b), (b, a))]
        what = "the products of queries and keys agree, and the scores differ"
        for side, name in enumerate(("actual", "the reference")):
            operator = named[side]
            if operator is not None and named[1 - side] is None:
                # The other side lacks this operator: all its steps are steps of this side.
                what += f": {operator.label} runs in {name} only"
                scaling[1 - side] = (a, b)[1 - side].part.softmax
        first, second = (operator or of_token for operator, of_token in zip(named, scaling))
        return _AttentionCause("compute", (first, second), what)
    return None


def _behind_scores(a: TokenAttention, b: TokenAttention, limit: float) -> Optional[_AttentionCause]:
    """Return the cause if the last results before the softmax agree, but not what it reads, such as a sink besides."""
    last = [token.steps[-1] if token.steps else None for token in (a, b)]
    if last[0] is None or last[1] is None or _distance(last[0][1], last[1][1]) > limit:
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
    return _AttentionCause("structure", (a.part.softmax, b.part.softmax), what)


def _cause_of_keys(
    scores: _Tokens, tokens: _Tokens, limit: float, alignment: TokenAlignment
) -> Optional[_AttentionCause]:
    """Return the cause if the queries agree, and the keys agree or are those of the program. tokens: all tokens"""
    if _apart(scores, limit, lambda token: token.queries, _factor(scores, lambda token: token.queries)):
        return None
    a, b = next(iter(scores.values()))
    other = next((pair for pair in scores.values() if _lacks(pair[0].rows, pair[1].rows)), None)
    if other is None:
        return _AttentionCause(
            "compute", (a.part.scores, b.part.scores), "the queries and keys agree, and the scores differ"
        )
    a, b = other
    if not _has_most(tokens, alignment):
        return None  # the keys are computed otherwise
    reader = _reader_of_keys(a, alignment)
    return _AttentionCause(
        "input", (reader, b.part.scores), "the queries agree, and it reads other keys than the reference"
    )


def _reader_of_keys(token: TokenAttention, alignment: TokenAlignment) -> Operator:
    """Return the operator that selects the keys of a token from a cache, or the product with keys without one."""
    operators = alignment.calls[0][token.call].operators
    return _reader_of_cache(operators, token.part, of_values=False) or token.part.scores


def _apart(tokens: _Tokens, limit: float, read: Callable[[TokenAttention], np.ndarray], factor: float = 1.0) -> _Tokens:
    """Return the tokens whose values, in actual and times a factor in the reference, are farther apart than a limit."""
    return {n: (a, b) for n, (a, b) in tokens.items() if _distance(read(a), read(b) * factor) > limit}


def _factor(tokens: _Tokens, read: Callable[[TokenAttention], np.ndarray]) -> float:
    """Return the factor between the values of actual and of the reference."""
    import numpy as np

    norms = [sum(float(np.square(read(pair[side])).sum()) for pair in tokens.values()) for side in (0, 1)]
    return float(np.sqrt(norms[0] / norms[1])) if norms[1] and np.isfinite(norms).all() else 1.0


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference of sorted values, relative to the largest value; infinite for other counts.

    If each value occurs several times as often on one side, such as keys that are repeated for groups of heads, it
    counts once.
    """
    import numpy as np

    short, long = sorted((a, b), key=len)
    if not len(short) or len(long) % len(short):
        return 0.0 if len(long) == len(short) else float("inf")
    if len(long) != len(short):
        long = long[:: len(long) // len(short)]
    largest = max(float(np.abs(short).max()), 1e-30)
    return float(np.abs(short - long).max()) / largest


def _lacks(a: np.ndarray, b: np.ndarray) -> bool:
    """Return True if a vector of the reference is not among those of actual."""
    import numpy as np

    if not len(b):
        return True
    chosen = b[np.linspace(0, len(b) - 1, min(len(b), _MOST_KEYS)).astype(int)]
    return bool(_distances(a, chosen).max() > _SAME_KEY * np.abs(chosen).max())


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return for each vector of the reference the distance of the nearest one of actual."""
    import numpy as np

    if not len(a) or a.shape[1] != b.shape[1]:
        return np.full(len(b), np.inf)
    distances: np.ndarray = np.abs(b[:, None] - a[None]).max(axis=-1).min(axis=1)
    return distances


def _has_most(tokens: _Tokens, alignment: TokenAlignment) -> bool:
    """Return True if actual has the keys that the reference computes for most tokens, in the attention of any token.

    Then it computes keys as the reference does. Keys of tokens that it does not compute itself may be left in a cache.
    """
    import numpy as np

    own = list(_own_keys(tokens, alignment))
    if not own:
        return True
    chosen = np.stack([own[n] for n in np.linspace(0, len(own) - 1, min(len(own), _MOST_KEYS)).astype(int)])
    distances = np.full(len(chosen), np.inf)
    for rows in {id(a.all_rows): a.all_rows for a, _ in tokens.values()}.values():
        distances = np.minimum(distances, _distances(rows, chosen))
    return bool(2 * np.count_nonzero(distances <= _SAME_KEY * np.abs(chosen).max()) >= len(chosen))


def _own_keys(tokens: _Tokens, alignment: TokenAlignment) -> Iterator[np.ndarray]:
    """Yield a key of the reference for tokens: one that the token before them did not have."""
    index_of = alignment.tokens.index_of
    number_of = {tuple(index_of[number].tolist()): number for number in tokens}
    following = [place for place in number_of if (place[0], place[1] - 1) in number_of]
    step = max(len(following) // _MOST_KEYS, 1)
    for sequence, position in following[::step]:
        before, own = (tokens[number_of[sequence, place]][1].rows for place in (position - 1, position))
        known = {row.tobytes() for row in before}
        yield from (row for row in own if row.tobytes() not in known)


def _mask_of(token: TokenAttention) -> Operator:
    """Return the operator that masks scores; the product with keys, or the fused operator, if there is none."""
    return _of_class(token, _MASKING) or token.part.scores


def _of_class(token: TokenAttention, classes: frozenset[str]) -> Optional[Operator]:
    """Return the last operator of these classes between the product and the softmax that computes floats."""
    between = reversed(token.part.between)
    return next((op for op in between if operator_class(op.op_type) in classes and _is_of_floats(op)), None)


def _first_apart(token: TokenAttention, other: TokenAttention, limit: float) -> Optional[Operator]:
    """Return the first operator between the product and the softmax whose result the other side does not have."""
    for operator, values in token.steps:
        if all(_distance(values, of_other) > limit for _, of_other in other.steps):
            return operator
    return None


def _is_of_floats(operator: Operator) -> bool:
    return bool(operator.outputs) and float_kind(operator.outputs[0].dtype or "") is not None


def _reader_of_cache(operators: Sequence[Operator], part: AttentionPart, *, of_values: bool) -> Optional[Operator]:
    """Return the operator that selects keys, or values, of an attention from a cache; None if there is none."""
    product = part.values if of_values else part.scores
    end = next(number for number, operator in enumerate(operators) if operator is product)
    for record in product.inputs[2:3] if of_values and part.is_fused else reversed(product.inputs[:2]):
        storage = storage_of(record)
        for operator in reversed(operators[:end]):
            made = [memory for output in operator.outputs if (memory := storage_of(output)) is not None]
            if storage is None or storage[0] not in [memory[0] for memory in made]:
                continue
            if operator_class(operator.op_type) in _SELECTING:
                return operator
            if not (is_view(operator.op_type) or operator_class(operator.op_type) in _COPYING | _SCALING):
                break
            if operator.inputs:
                storage = storage_of(operator.inputs[0])
    return None


def _narrowing(token: TokenAttention) -> Optional[Operator]:
    """Return the operator before the softmax that casts scores to a type with less precision; None if there is none."""
    for operator in token.part.between:
        kinds = [float_kind(record.dtype or "") for record in (*operator.inputs[:1], *operator.outputs[:1])]
        if len(kinds) == 2 and kinds[0] is not None and kinds[1] is not None and kinds[1].unit > kinds[0].unit:
            return operator
    return None
