"""Find the attention of each layer in a call: the product with keys, the softmax, and the product with values.

Its tensors have an axis of keys, whose order and length follow from the cache of a program: padding, blocks of a paged
cache, or one request after the other. Here, each token has its values in an order that does not depend on that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.built_otherwise.products import is_product
from ascend_dump.analysis.alignment.token_groups import computes_floats
from ascend_dump.analysis.operators.arguments import arguments_of
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.dump_format import TensorOf
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Attention", "AttentionPart", "TokenAttention", "attention_of_tokens", "attentions_of"]

_SOFTMAX = frozenset({"_softmax", "softmax", "_safe_softmax"})
_BATCHED = frozenset({"bmm", "baddbmm", "matmul"})
_FUSED = frozenset(
    {
        *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
        *("_scaled_dot_product_efficient_attention", "scaled_dot_product_attention"),
    }
)
#: A score that is this much lower than the largest one has no weight in any type: its key is masked.
_MASKED = 500.0
#: Maximum number of scores of a call that are read.
_MOST_SCORES = 1 << 26


class AttentionPart(NamedTuple):
    """The operators of an attention. A program may run them for each request, or as one fused operator.

    scores   the product of queries and keys
    between  the operators from the product to the softmax: factors, masks, casts
    values   the product of weights and values
    """

    scores: Operator
    between: Sequence[Operator]
    softmax: Operator
    values: Operator

    @property
    def is_fused(self) -> bool:
        return self.scores is self.values and not self.has_one_key

    @property
    def has_one_key(self) -> bool:
        """True for the softmax of a single key: its weight is 1, and no products are known."""
        return self.scores is self.softmax and operator_class(self.softmax.op_type) in _SOFTMAX


class Attention(NamedTuple):
    """The attention of a layer in one call. begin, end: positions behind and at the products with weights around it"""

    begin: int
    end: int
    parts: list[AttentionPart]


@dataclass
class TokenAttention:
    """The attention of one token, over all heads and all keys that are not masked.

    call     the index of its call
    part     its operators
    keys     the number of keys
    queries, products, scores, weights  sorted elements; products are the scores before factors and masks
    rows     the vectors of these keys, each with its elements sorted
    all_rows the vectors of all keys that the product reads, masked or not
    results  sorted elements of the result
    steps    the operators between products and scores that compute them, each with sorted elements of its result
    """

    call: int
    part: AttentionPart
    keys: int
    queries: np.ndarray
    products: np.ndarray
    scores: np.ndarray
    weights: np.ndarray
    rows: np.ndarray
    all_rows: np.ndarray
    results: np.ndarray
    steps: Sequence[tuple[Operator, np.ndarray]]


def attentions_of(operators: Sequence[Operator]) -> list[Attention]:
    """Return the attentions of a call, in execution order."""
    found: list[Attention] = []
    parts: list[AttentionPart] = []
    begin = 0
    scores = softmax = -1
    for number, operator in enumerate(operators):
        function = operator_class(operator.op_type)
        if function in _FUSED:
            parts.append(AttentionPart(operator, (), operator, operator))
        elif function in _BATCHED and not _has_weight(operator):
            if softmax > scores >= 0 and _reads_weights(operator, operators[softmax]):
                between = operators[scores + 1 : softmax]
                parts.append(AttentionPart(operators[scores], between, operators[softmax], operator))
                scores = softmax = -1
            else:
                scores = number
        elif function in _SOFTMAX and operator.outputs:
            softmax = number
            if (operator.outputs[0].shape or ())[-1:] == (1,):
                # Programs multiply with a single key without a product of matrices.
                parts.append(AttentionPart(operator, (), operator, operator))
                scores = softmax = -1
        elif is_product(operator):
            if parts:
                found.append(Attention(begin, number, parts))
            parts, begin = [], number + 1
            scores = softmax = -1
    return found


def _has_weight(operator: Operator) -> bool:
    """Return True for a product with a matrix, as `matmul` of activations and a weight."""
    return operator_class(operator.op_type) == "matmul" and len(operator.inputs[-1].shape or ()) == 2


def _reads_weights(product: Operator, softmax: Operator) -> bool:
    """Return True if a product reads a tensor with as many elements as the result of a softmax, or without a sink."""
    shape = (softmax.outputs[0].shape or ()) if softmax.outputs else ()
    counts = {math.prod(shape), math.prod(shape[:-1]) * (shape[-1] - 1)} - {0} if shape else set()
    return any(math.prod(record.shape or ()) in counts for record in product.inputs)


def attention_of_tokens(
    slots: Sequence[np.ndarray],
    attentions: Sequence[Attention],
    other: Optional[Mapping[int, TokenAttention]] = None,
) -> Optional[dict[int, TokenAttention]]:
    """Return the attention of a layer for each token, by the number of the token; None if its axes are unknown.

    slots       for each call: the number of the token in each slot, [rows, slots]
    attentions  of one layer, by call
    other       the attention of the other side: if several axes may be the tokens, its queries show which
    """
    result: dict[int, TokenAttention] = {}
    for call, (numbers, attention) in enumerate(zip(slots, attentions)):
        arrays = [None if part.has_one_key else _arrays(part) for part in attention.parts]
        if any(array is None and not part.has_one_key for array, part in zip(arrays, attention.parts)):
            return None
        candidates: list[dict[int, TokenAttention]] = [
            {
                int(n): token
                for n, token in zip(numbers.flat, _of_call(call, attention.parts, arrays, axes))
                if token and n >= 0
            }
            for axes in _token_axes(numbers.shape, [_lead(part) for part in attention.parts])
        ]
        if not candidates:
            return None
        distances = [_distance_of_queries(tokens, other or {}) for tokens in candidates]
        result.update(candidates[distances.index(min(distances))])
    return result


def _distance_of_queries(tokens: Mapping[int, TokenAttention], other: Mapping[int, TokenAttention]) -> float:
    import numpy as np

    pairs = [(tokens[number].queries, other[number].queries) for number in tokens.keys() & other.keys()]
    return max((float(np.abs(a - b).max()) for a, b in pairs if a.shape == b.shape), default=0.0)


def _of_call(
    call: int, parts: Sequence[AttentionPart], arrays: Sequence[Optional[_AttentionArrays]], axes: tuple[int, ...]
) -> Iterator[Optional[TokenAttention]]:
    """Yield the attention of each slot of a call; None for a token that has one key."""
    for part, array in zip(parts, arrays):
        if array is None:
            lead = _lead(part)
            yield from [None] * math.prod(lead[axis] for axis in axes)
        else:
            yield from _by_token(call, part, array, axes)


def _lead(part: AttentionPart) -> tuple[int, ...]:
    """Return the shape of the scores, without the axis of keys."""
    record = part.scores.inputs[0] if part.is_fused else part.softmax.outputs[0]
    return tuple(record.shape or ())[:-1]


class _AttentionArrays(NamedTuple):
    """The tensors of an attention, without the names of its axes.

    queries, results                  [*lead, elements]
    products, scores, weights, steps  [*lead, keys]; steps are those between products and scores, with their operators
    keys                              [rows, keys, elements]
    """

    queries: np.ndarray
    keys: np.ndarray
    products: np.ndarray
    scores: np.ndarray
    weights: np.ndarray
    results: np.ndarray
    steps: Sequence[tuple[Operator, np.ndarray]] = ()


def _arrays(part: AttentionPart) -> Optional[_AttentionArrays]:
    import numpy as np

    if part.is_fused:
        return _fused_arrays(part.scores)
    shape = part.softmax.outputs[0].shape or ()
    if len(shape) < 2 or not 0 < math.prod(shape) <= _MOST_SCORES:
        return None
    scores, weights = (_read(side[0]).reshape(shape) for side in (part.softmax.inputs, part.softmax.outputs))
    inputs = [_read(record) for record in part.scores.inputs[-2:]]
    if len(inputs) < 2 or any(array.ndim < 2 for array in inputs):
        return None
    inputs = [array.reshape(-1, *array.shape[-2:]) for array in inputs]
    if math.prod(part.scores.outputs[0].shape or ()) == math.prod(shape[:-1]) * (shape[-1] - 1):
        # A sink is a last column without a key, which takes a share of the weights.
        shape = (*shape[:-1], shape[-1] - 1)
        scores, weights = scores[..., :-1], weights[..., :-1]
    queries, keys = inputs[0], inputs[1].swapaxes(-1, -2)
    if keys.shape[1] != shape[-1]:
        queries, keys = keys, queries
    lead = shape[:-1]
    results = _read(part.values.outputs[0])
    sizes = queries.shape[-1] * math.prod(lead), math.prod(lead)
    if keys.shape[1] != shape[-1] or queries.size != sizes[0] or results.size % sizes[1]:
        return None
    queries, results = queries.reshape(*lead, -1), results.reshape(*lead, -1)
    products = _read(part.scores.outputs[0])
    products = products.reshape(shape) if products.size == scores.size else scores
    steps = [
        (operator, _read(operator.outputs[0]).reshape(shape))
        for operator in part.between
        if computes_floats(operator) and math.prod(operator.outputs[0].shape or ()) == scores.size
    ]
    return _AttentionArrays(queries, np.ascontiguousarray(keys), products, scores, weights, results, steps)


def _fused_arrays(operator: Operator) -> Optional[_AttentionArrays]:
    """Return the arrays of a fused operator, with scores and weights computed from its inputs."""
    import numpy as np

    arguments = arguments_of(operator)
    if arguments is None or len(operator.inputs) < 3:
        return None
    queries, keys = (_read(record) for record in operator.inputs[:2])
    if queries.ndim != 4 or keys.ndim != 4 or queries.shape[1] % keys.shape[1]:
        return None
    all_keys = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    shape = (*queries.shape[:3], keys.shape[2])
    if not 0 < math.prod(shape) <= _MOST_SCORES:
        return None
    scale = arguments.values.get("scale")
    factor = scale if isinstance(scale, float) else queries.shape[-1] ** -0.5
    scores = (queries @ all_keys.swapaxes(-1, -2)) * factor
    if arguments.values.get("is_causal"):
        scores = np.where(np.tri(*shape[2:]) > 0, scores, -np.inf)
    name = next((name for name in ("attn_mask", "attn_bias") if name in arguments.values), "")
    mask = arguments.values.get(name)
    if isinstance(mask, TensorOf):
        of_mask = next((record for record in operator.inputs if record.index == mask.index), None)
        if of_mask is None:
            return None
        array = _read(of_mask)
        scores = np.where(array > 0, scores, -np.inf) if of_mask.dtype == "bool" else scores + array
    with np.errstate(all="ignore"):
        weights = np.nan_to_num(np.exp(scores - scores.max(axis=-1, keepdims=True)))
        weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-30)
    results = _read(operator.outputs[0])
    return _AttentionArrays(queries, keys.reshape(-1, *keys.shape[-2:]), scores, scores, weights, results)


def _read(record: Record) -> np.ndarray:
    return record.numpy().astype("float32")


def _token_axes(slots: tuple[int, ...], leads: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return what may be the axes of rows and slots, or the axis of all slots, of the scores; the likeliest first.

    leads: the shapes of the scores of each part, without the axis of keys
    """
    if len({len(lead) for lead in leads}) > 1:
        return []
    if len(leads) == 1:
        pairs = [pair for pair in combinations(range(len(leads[0])), 2) if tuple(leads[0][n] for n in pair) == slots]
        if pairs:
            return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
    return [(axis,) for axis in range(len(leads[0])) if sum(lead[axis] for lead in leads) == math.prod(slots)]


def _by_token(
    call: int, part: AttentionPart, arrays: _AttentionArrays, axes: tuple[int, ...]
) -> Iterator[TokenAttention]:
    """Yield the attention of each slot of a part."""
    import numpy as np

    lead = arrays.scores.shape[:-1]
    count = math.prod(lead[axis] for axis in axes)
    queries, products, scores, weights, results = (
        np.moveaxis(array, axes, range(len(axes))).reshape(count, -1, array.shape[-1])
        for array in (arrays.queries, arrays.products, arrays.scores, arrays.weights, arrays.results)
    )
    steps = [
        (operator, np.moveaxis(array, axes, range(len(axes))).reshape(scores.shape)) for operator, array in arrays.steps
    ]
    # The first axis of the scores is that of batches or requests, or all tokens are of one request.
    rows = lead[0] if axes[0] == 0 and len(arrays.keys) % lead[0] == 0 else 1
    keys = np.sort(arrays.keys, axis=-1).reshape(rows, -1, *arrays.keys.shape[1:])
    all_rows = [of_row.reshape(-1, of_row.shape[-1]) for of_row in keys]
    for token in range(count):
        visible = scores[token] > scores[token].max(axis=-1, keepdims=True) - _MASKED
        shown = visible.any(axis=0)
        of_row = keys[token * rows // count]
        yield TokenAttention(
            call,
            part,
            int(shown.sum()),
            np.sort(queries[token], axis=None),
            np.sort(products[token][visible]),
            np.sort(scores[token][visible]),
            np.sort(weights[token][visible]),
            of_row[:, shown].reshape(-1, of_row.shape[-1]),
            all_rows[token * rows // count],
            np.sort(results[token], axis=None),
            [(operator, np.sort(values[token][visible])) for operator, values in steps],
        )
