"""Find the attention of each layer in a call: the product with keys, the softmax, and the product with values.

Its tensors have an axis of keys, whose order and length follow from the cache of a program: padding, blocks of a paged
cache, or one request after the other. Here, each token has its values in an order that does not depend on that.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.built_otherwise.products import is_product
from ascend_dump.analysis.alignment.token_groups import computes_floats
from ascend_dump.analysis.operators.arguments import arguments_of
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import COPIES, operator_class
from ascend_dump.dump_format import TensorOf
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "FUSED_ATTENTIONS",
    "SOFTMAX",
    "Attention",
    "AttentionPart",
    "TokenAttention",
    "adds_to_products",
    "attention_of_tokens",
    "attentions_of",
]

SOFTMAX = frozenset({"_softmax", "softmax", "_safe_softmax"})
#: Operators that compute the number which a softmax takes from all scores of a token first.
_LARGEST = frozenset({"max", "amax", "logsumexp"})
_BATCHED = frozenset({"bmm", "baddbmm", "matmul"})
FUSED_ATTENTIONS = frozenset(
    {
        *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
        *("_scaled_dot_product_efficient_attention", "scaled_dot_product_attention"),
    }
)
#: A score that is this much lower than the largest one has no weight in any type: its key is masked.
_MASKED = 500.0
#: Other axes than the likeliest ones are the tokens if their queries are nearer than this share of the distance.
_CLEARLY_NEARER = 0.1
#: Maximum number of scores of a call that are read.
_MOST_SCORES = 1 << 26


class AttentionPart(NamedTuple):
    """The operators of an attention. A program may run them for each request, or as one fused operator.

    scores   the product of queries and keys
    between  the operators from the product to the softmax: factors, masks, casts
    values   the product of weights and values
    added    where queries and keys are apart, such as with their rotated elements in other tensors: the product of the
             first elements, and the operator that adds `scores` to it. `between` begins behind that one
    """

    scores: Operator
    between: Sequence[Operator]
    softmax: Operator
    values: Operator
    added: Optional[tuple[Operator, Operator]] = None

    @property
    def is_fused(self) -> bool:
        return self.scores is self.values and not self.has_one_key

    @property
    def has_one_key(self) -> bool:
        """True for the softmax of a single key: its weight is 1, and no products are known."""
        return self.scores is self.softmax and operator_class(self.softmax.op_type) in SOFTMAX


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
    values   the vectors of the values of the keys that are not masked, each with its elements sorted
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
    values: np.ndarray
    results: np.ndarray
    steps: Sequence[tuple[Operator, np.ndarray]]


def adds_to_products(operator: Operator) -> bool:
    """Return True for an operator that computes products and adds its first operand to them, such as a mask."""
    return operator_class(operator.op_type) == "baddbmm"


def attentions_of(operators: Sequence[Operator]) -> list[Attention]:
    """Return the attentions of a call, in execution order."""
    found: list[Attention] = []
    parts: list[AttentionPart] = []
    begin = 0
    scores = softmax = earlier = -1
    computed: set[Hashable] = set()
    for number, operator in enumerate(operators):
        function = operator_class(operator.op_type)
        computed |= _computed(operator, computed)
        if function in FUSED_ATTENTIONS:
            parts.append(AttentionPart(operator, (), operator, operator))
        elif _is_of_activations(operator, computed):
            own_softmax = None if scores < 0 or softmax > scores else _softmax_of_parts(operators[scores:number])
            if own_softmax is not None and _reads_weights(operator, own_softmax[1]):
                first = scores if earlier < 0 else earlier
                before = operators[first : scores + own_softmax[0]]
                parts.append(_part(before, scores - first, own_softmax[1], operator))
                scores = softmax = earlier = -1
            elif softmax > scores >= 0 and _reads_weights(operator, operators[softmax]):
                first = scores if earlier < 0 else earlier
                parts.append(_part(operators[first:softmax], scores - first, operators[softmax], operator))
                scores = softmax = earlier = -1
            else:
                earlier, scores = (scores if softmax < 0 else -1), number
        elif function in SOFTMAX and operator.outputs:
            softmax = number
            if (operator.outputs[0].shape or ())[-1:] == (1,):
                # Programs multiply with a single key without a product of matrices.
                parts.append(AttentionPart(operator, (), operator, operator))
                scores = softmax = earlier = -1
        elif is_product(operator):
            if parts:
                found.append(Attention(begin, number, parts))
            parts, begin = [], number + 1
            scores = softmax = earlier = -1
    return found


def _part(operators: Sequence[Operator], scores: int, softmax: Operator, values: Operator) -> AttentionPart:
    """Return an attention. operators: those before the softmax, from an earlier product or the one of scores

    scores: the index of the product of queries and keys
    """
    between = operators[scores + 1 :]
    memory = {storage[0] for n in (0, scores) for r in operators[n].outputs if (storage := storage_of(r)) is not None}
    for number, operator in enumerate(between if scores else ()):
        read = {storage[0] for record in operator.inputs[:2] if (storage := storage_of(record)) is not None}
        if operator_class(operator.op_type) == "add" and len(memory) == 2 and read == memory:
            added = operators[0], operator
            return AttentionPart(operators[scores], between[number + 1 :], softmax, values, added)
    return AttentionPart(operators[scores], between, softmax, values)


def _softmax_of_parts(operators: Sequence[Operator]) -> Optional[tuple[int, Operator]]:
    """Return a softmax that a program computes by single operators, as one operator, and the index of its first part.

    It reads the scores, and returns the weights: exp(s - max) / sum, or exp(s - logsumexp).

    operators: the product of queries and keys, and those behind it
    """
    size = math.prod((operators[0].outputs[0].shape or ()) if operators[0].outputs else ())
    wide = [n for n, op in enumerate(operators[1:], 1) if op.outputs and math.prod(op.outputs[0].shape or ()) == size]
    exponential = next((n for n in wide if operator_class(operators[n].op_type) == "exp"), None)
    if exponential is None:
        return None
    shifts = [n for n in wide if n < exponential and operator_class(operators[n].op_type) == "sub"]
    first = shifts[-1] if shifts else exponential
    largest = [n for n in range(1, first) if operator_class(operators[n].op_type) in _LARGEST]
    behind = [n for n in wide if n >= exponential and operator_class(operators[n].op_type) in ("exp", "div", "mul")]
    softmax = replace(operators[behind[-1]], inputs=operators[first].inputs[:1])
    return (largest[-1] if largest else first), softmax


def _computed(operator: Operator, computed: Set[Hashable]) -> set[Hashable]:
    """Return the memory in which an operator computes values. computed: memory with values of operators before it

    Views and copies of weights are weights.
    """
    if is_view(operator.op_type) or operator_class(operator.op_type) in COPIES:
        inputs = {storage[0] for record in operator.inputs if (storage := storage_of(record)) is not None}
        if not inputs & computed:
            return set()
    return {storage[0] for record in operator.outputs if (storage := storage_of(record)) is not None}


def _is_of_activations(operator: Operator, computed: Set[Hashable]) -> bool:
    """Return True for a product of two tensors that the call computes, such as queries and keys, without a weight.

    Products of all queries with the keys of a single group of heads may be one product of two matrices.
    """
    function = operator_class(operator.op_type)
    if function == "mm":
        return all((storage := storage_of(record)) is not None and storage[0] in computed for record in operator.inputs)
    return function in _BATCHED and not (function == "matmul" and len(operator.inputs[-1].shape or ()) == 2)


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
    all_leads = [[_lead(part, numbers.shape) for part in of.parts] for numbers, of in zip(slots, attentions)]
    all_axes = _token_axes([numbers.shape for numbers in slots], all_leads)
    for call, (numbers, attention, of_call) in enumerate(zip(slots, attentions, all_axes)):
        arrays = [None if part.has_one_key else _arrays(part, numbers.shape) for part in attention.parts]
        if any(array is None and not part.has_one_key for array, part in zip(arrays, attention.parts)):
            return None
        candidates: list[dict[int, TokenAttention]] = [
            {
                int(n): token
                for n, token in zip(numbers.flat, _of_call(call, attention.parts, arrays, axes, numbers.shape))
                if token and n >= 0
            }
            for axes in of_call
        ]
        if not candidates:
            return None
        distances = [_distance_of_queries(tokens, other or {}) for tokens in candidates]
        # Where queries differ in all axes, they do not show that the likeliest ones are wrong.
        nearest = distances.index(min(distances))
        result.update(candidates[nearest if distances[nearest] < _CLEARLY_NEARER * distances[0] else 0])
    return result


def _distance_of_queries(tokens: Mapping[int, TokenAttention], other: Mapping[int, TokenAttention]) -> float:
    import numpy as np

    pairs = [(tokens[number].queries, other[number].queries) for number in tokens.keys() & other.keys()]
    return max((float(np.abs(a - b).max()) for a, b in pairs if a.shape == b.shape), default=0.0)


def _of_call(
    call: int,
    parts: Sequence[AttentionPart],
    arrays: Sequence[Optional[_AttentionArrays]],
    axes: tuple[int, ...],
    slots: tuple[int, ...],
) -> Iterator[Optional[TokenAttention]]:
    """Yield the attention of each slot of a call; None for a token that has one key."""
    for part, array in zip(parts, arrays):
        if array is None:
            lead = _lead(part, slots)
            yield from [None] * math.prod(lead[axis] for axis in axes)
        else:
            yield from _by_token(call, part, array, axes)


def _lead(part: AttentionPart, slots: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the scores, without the axis of keys. Rows and heads in one axis are two axes here.

    slots: the number of rows, and of the slots of each row
    """
    record = part.scores.inputs[0] if part.is_fused else part.softmax.outputs[0]
    lead = tuple(record.shape or ())[:-1]
    rows, width = slots
    if 1 < rows != lead[0] and len(lead) == 2 and lead[1] == width and lead[0] % rows == 0:
        return rows, lead[0] // rows, width
    return lead


class _AttentionArrays(NamedTuple):
    """The tensors of an attention, without the names of its axes.

    queries, results                  [*lead, elements]
    products, scores, weights, steps  [*lead, keys]; steps are those between products and scores, with their operators
    keys, values                      [rows, keys, elements]; no values if they have another order of axes
    """

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    products: np.ndarray
    scores: np.ndarray
    weights: np.ndarray
    results: np.ndarray
    steps: Sequence[tuple[Operator, np.ndarray]] = ()


def _arrays(part: AttentionPart, slots: tuple[int, ...]) -> Optional[_AttentionArrays]:
    import numpy as np

    if part.is_fused:
        return _fused_arrays(part.scores)
    shape = (*_lead(part, slots), *(part.softmax.outputs[0].shape or ())[-1:])
    if len(shape) < 2 or not 0 < math.prod(shape) <= _MOST_SCORES:
        return None
    scores, weights = (_read(side[0]).reshape(shape) for side in (part.softmax.inputs, part.softmax.outputs))
    if math.prod(part.scores.outputs[0].shape or ()) == math.prod(shape[:-1]) * (shape[-1] - 1):
        # A sink is a last column without a key, which takes a share of the weights.
        shape = (*shape[:-1], shape[-1] - 1)
        scores, weights = scores[..., :-1], weights[..., :-1]
    operands = [_operands_of(product, shape) for product in (*(part.added or ())[:1], part.scores)]
    results = _read(part.values.outputs[0])
    if any(of is None for of in operands) or results.size % math.prod(shape[:-1]):
        return None
    all_keys = [of[1] for of in operands if of]
    rows = {len(keys) for keys in all_keys} - {1} or {1}
    if len(rows) > 1:
        return None
    queries = np.concatenate([of[0] for of in operands if of], axis=-1)
    # All heads may read the same keys in one product, and copies of them in the other one.
    keys = np.concatenate([np.broadcast_to(keys, (*rows, *keys.shape[1:])) for keys in all_keys], axis=-1)
    results = results.reshape(*shape[:-1], -1)
    adds = adds_to_products(part.scores)
    if adds:
        x, y = (_read(record) for record in part.scores.inputs[-2:])
        products = x @ y * _factor_of(part.scores)
    else:
        products = _read((part.scores if part.added is None else part.added[1]).outputs[0])
    products = products.reshape(shape) if products.size == scores.size else scores
    steps = [
        (operator, _read(operator.outputs[0]).reshape(shape))
        for operator in (*((part.scores,) if adds else ()), *part.between)
        if computes_floats(operator) and math.prod(operator.outputs[0].shape or ()) == scores.size
    ]
    keys = np.ascontiguousarray(keys)
    return _AttentionArrays(queries, keys, _values_of(part, keys.shape), products, scores, weights, results, steps)


def _operands_of(product: Operator, shape: tuple[int, ...]) -> Optional[tuple[np.ndarray, np.ndarray]]:
    """Return the queries [*lead, elements] and keys [rows, keys, elements] of a product; None if they are unknown.

    shape: that of the scores, [*lead, keys]
    """
    inputs = [_read(record) for record in product.inputs[-2:]]
    if len(inputs) < 2 or any(array.ndim < 2 for array in inputs):
        return None
    queries, keys = (array.reshape(-1, *array.shape[-2:]) for array in inputs)
    keys = keys.swapaxes(-1, -2)
    if keys.shape[1] != shape[-1]:
        queries, keys = keys, queries
    if keys.shape[1] != shape[-1] or queries.size != queries.shape[-1] * math.prod(shape[:-1]):
        return None
    return queries.reshape(*shape[:-1], -1), keys


def _factor_of(operator: Operator) -> float:
    """Return the factor with which an operator multiplies products before it adds its first operand to them."""
    arguments = arguments_of(operator)
    alpha = None if arguments is None else arguments.values.get("alpha")
    return float(alpha) if isinstance(alpha, (int, float)) else 1.0


def _values_of(part: AttentionPart, shape: tuple[int, ...]) -> np.ndarray:
    """Return the values that an attention reads, [rows, keys, elements]. shape: that of the keys"""
    import numpy as np

    for record in reversed(part.values.inputs[-2:]):
        own = record.shape or ()
        if len(own) > 1 and own[-2] == shape[1] and math.prod(own[:-2]) == shape[0]:
            array = _read(record).reshape(shape[0], shape[1], -1)
            if array.min(initial=0.0) < 0:  # weights are not negative
                return array
    return np.empty((*shape[:2], 0), np.float32)


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
    values = _read(operator.inputs[2])
    keys, values = (array.reshape(-1, *array.shape[-2:]) for array in (keys, values))
    return _AttentionArrays(queries, keys, values, scores, scores, weights, results)


def _read(record: Record) -> np.ndarray:
    return record.numpy().astype("float32")


def _token_axes(
    slots: Sequence[tuple[int, ...]], leads: Sequence[Sequence[tuple[int, ...]]]
) -> list[list[tuple[int, ...]]]:
    """Return for each call what may be the axes of rows and slots, or the axis of all slots, of the scores.

    The likeliest are first. A call may have as many heads as tokens; the axes that all calls allow decide then.

    slots: the shape of the slots of each call; leads: for each call the shape of the scores of its parts, without keys
    """
    of_calls = [_axes_of_call(*call) for call in zip(slots, leads)]
    ranks = [len(of_parts[0]) if of_parts else 0 for of_parts in leads]
    shared = {
        rank: set.intersection(*(set(axes) for axes, own in zip(of_calls, ranks) if own == rank)) for rank in {*ranks}
    }
    return [[one for one in axes if one in shared[rank]] or axes for axes, rank in zip(of_calls, ranks)]


def _axes_of_call(slots: tuple[int, ...], leads: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
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
    keys, values = (
        np.sort(array, axis=-1).reshape(rows, len(array) // rows, *array.shape[1:])
        for array in (arrays.keys, arrays.values)
    )
    all_rows = [of_row.reshape(-1, of_row.shape[-1]) for of_row in keys]
    for token in range(count):
        visible = scores[token] > scores[token].max(axis=-1, keepdims=True) - _MASKED
        shown = visible.any(axis=0)
        row = token * rows // count
        yield TokenAttention(
            call,
            part,
            int(shown.sum()),
            np.sort(queries[token], axis=None),
            np.sort(products[token][visible]),
            np.sort(scores[token][visible]),
            np.sort(weights[token][visible]),
            _vectors(keys[row][:, shown]),
            all_rows[row],
            _vectors(values[row][:, shown]),
            np.sort(results[token], axis=None),
            [(operator, np.sort(result[token][visible])) for operator, result in steps],
        )


def _vectors(array: np.ndarray) -> np.ndarray:
    """Return [vectors, elements]."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
