"""Pair operators of two programs whose results agree, although the operators are not the same.

One program rotates halves of a head with tables, another one multiplies complex numbers; one has a norm, another one
its single operators. Names and types tell nothing then, but at the end of each such part both programs have one tensor.
So the part in which a difference begins lies between two tensors that agree, and is as small as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.built_otherwise.products import is_product
from ascend_dump.analysis.alignment.token_groups import computes_floats
from ascend_dump.analysis.alignment.token_parts import ChosenWays, CommonTokens, TensorOfCalls, distance, pair_parts
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.pairing.data_flow import OUTSIDE, DataFlow, InputSource
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ReadTensor", "agreeing_results", "are_rewritten", "with_other_inputs"]

#: Returns the output of an operator of a side (0: actual) in all calls.
ReadTensor = Callable[[int, Operator, Record], TensorOfCalls]
#: Results may agree if they lie behind the same product, or behind products that are this many products apart.
_MOST_PRODUCTS = 3
#: Operators that move elements only, but make a tensor that no operator before them has.
_JOINING = frozenset({"cat", "stack"})
#: The largest relative distance of norms, in rounding units, but at least _LEAST_APART.
_UNITS_APART, _LEAST_APART = 4.0, 1e-4
#: The largest relative distance of two results that are the same in another order, or with another factor.
_NEAR = 1e-3


class _TokenResult(NamedTuple):
    """The result of an operator.

    products  the number of products with a partner before it
    size      number of elements of each token
    is_known  [tokens], True if the tensor has values of a token
    norms     [tokens, 2], the Euclidean norm of the values of each token, and their sum
    """

    operator: Operator
    tensor: TensorOfCalls
    products: int
    size: int
    is_known: np.ndarray
    norms: np.ndarray


def agreeing_results(
    sides: Sequence[Sequence[Operator]],
    matches: Sequence[Match],
    doubtful: set[int],
    read: ReadTensor,
    tokens: CommonTokens,
    unit: float,
) -> list[Match]:
    """Return matches of operators that have no partner, or a doubtful one, and whose results agree.

    sides     the operators of actual and of the reference
    matches   the operators with partners
    doubtful  the `id` of each operator with a partner that may be wrong
    unit      the rounding unit
    """
    limit = max(_UNITS_APART * unit, _LEAST_APART)
    results = [list(_results(side, operators, matches, doubtful, read, tokens)) for side, operators in enumerate(sides)]
    agreeing: list[Match] = []
    taken: set[int] = set()
    for result in results[0]:
        candidates = (
            candidate
            for candidate in results[1]
            if id(candidate.operator) not in taken and _may_agree(result, candidate, limit)
        )
        for candidate in sorted(candidates, key=lambda candidate: abs(candidate.products - result.products)):
            if _agree(result, candidate, tokens, limit):
                agreeing.append(Match(result.operator, candidate.operator, "value", 0.9))
                taken.add(id(candidate.operator))
                break
    return agreeing


def _results(
    side: int,
    operators: Sequence[Operator],
    matches: Sequence[Match],
    doubtful: set[int],
    read: ReadTensor,
    tokens: CommonTokens,
) -> Iterator[_TokenResult]:
    import numpy as np

    partners = {id(match.reference if side else match.actual): match for match in matches}
    order = {id(match.reference): n for n, match in enumerate(m for m in matches if is_product(m.reference))}
    products = 0
    for operator in operators:
        match = partners.get(id(operator))
        if match is not None and id(match.reference) in order:
            products = order[id(match.reference)]
        is_free = match is None or id(operator) in doubtful
        if not is_free or is_product(operator) or not operator.outputs:
            continue
        output = operator.outputs[0]
        if not computes_floats(operator) and operator_class(operator.op_type) not in _JOINING:
            continue
        if float_kind(output.dtype or "") is None:
            continue
        values = _values(read(side, operator, output), tokens)
        if values is not None:
            array, is_known = values
            with np.errstate(all="ignore"):
                flat = array.reshape(len(array), -1).astype(np.float64)
                norms = np.stack([np.linalg.norm(flat, axis=1), flat.sum(axis=1)], axis=1)
            if np.isfinite(norms).all() and norms.any():
                yield _TokenResult(operator, read(side, operator, output), products, flat.shape[1], is_known, norms)


def _values(tensor: TensorOfCalls, tokens: CommonTokens) -> Optional[tuple[np.ndarray, np.ndarray]]:
    way = next((way for way in tensor.ways() if way.kind == "tokens"), None)
    if way is None:
        return None
    try:
        array, is_known = tensor.values(way, tokens)
    except (AscendDumpError, ValueError):
        return None
    # Numbers of one element may agree by chance, and complex numbers have no sum of their own.
    return (array, is_known) if array.size > 2 * len(array) and array.dtype.kind != "c" else None


def _may_agree(a: _TokenResult, b: _TokenResult, limit: float) -> bool:
    import numpy as np

    if a.size != b.size or abs(a.products - b.products) > _MOST_PRODUCTS:
        return False
    common = a.is_known & b.is_known
    if 2 * int(common.sum()) < min(int(a.is_known.sum()), int(b.is_known.sum())) or not common.any():
        return False
    x, y = a.norms[common], b.norms[common]
    scale = y[:, :1] * np.array([1.0, a.size**0.5])
    return bool((np.abs(x - y) <= limit * np.maximum(scale, float(scale.max()) * limit)).all())


def _agree(a: _TokenResult, b: _TokenResult, tokens: CommonTokens, limit: float) -> bool:
    import numpy as np

    try:
        parts = pair_parts(a.tensor, b.tensor, tokens, np.zeros(tokens.count, bool), ChosenWays())
    except AscendDumpError:
        return False
    return parts is not None and distance(*parts) <= limit


def are_rewritten(a: TensorOfCalls, b: TensorOfCalls, tokens: CommonTokens) -> bool:
    """Return True if two results cannot be compared as they are, or if they may be the same computed in another order.

    One has another factor in all tokens, because the program applies it elsewhere; or the elements of each token have
    another order, such as pairs of a rotary embedding.
    """
    import numpy as np

    values = [_values(tensor, tokens) for tensor in (a, b)]
    if values[0] is None or values[1] is None:
        return True
    common = values[0][1] & values[1][1]
    if not common.any():
        return True
    x, y = (array[common].reshape(int(common.sum()), -1).astype(np.float64) for array, _ in (values[0], values[1]))
    if x.shape != y.shape or not x.size or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return True
    scale = float((x * y).sum()) / max(float((y * y).sum()), 1e-300)
    near = _NEAR * float(np.linalg.norm(x))
    is_scaled = abs(scale - 1.0) > _NEAR and float(np.linalg.norm(x - scale * y)) <= near
    # Scaled queries may have the elements of each pair in another order too.
    x, y = np.sort(x, axis=1), np.sort(y, axis=1)
    scale = float((x * y).sum()) / max(float((y * y).sum()), 1e-300)
    return is_scaled or float(np.linalg.norm(x - scale * y)) <= near


def with_other_inputs(
    flows: Sequence[DataFlow],
    positions: Sequence[Sequence[int]],
    matches: Sequence[Match],
    differs: Callable[[Record], bool],
) -> Set[int]:
    """Return the `id` of the reference operator of each match that is wrong: it reads another tensor on each side.

    An input of one side is the result of an operator with a sure partner, but the input of the other side is not the
    result of this partner, and the inputs differ.

    flows      the data flow of the base call of each side
    positions  for each side and operator: its position in the data flow, which a divided operator shares
    differs    returns True for a record of actual that is not equal to that of the reference
    """
    partners: list[dict[int, set[int]]] = [{}, {}]
    for match in filter(_is_sure, matches):
        ends = [originals[end.position] for originals, end in zip(positions, (match.actual, match.reference))]
        for side in (0, 1):
            partners[side].setdefault(ends[side], set()).add(ends[1 - side])
    wrong = set()
    for match in matches:
        if _is_sure(match):
            continue
        sources = [
            flow.sources[originals[end.position]]
            for flow, originals, end in zip(flows, positions, (match.actual, match.reference))
        ]
        for pair in match.inputs:
            a = pair[0]
            if a is None or pair[1] is None or not differs(a):
                continue
            makers = [_made_at(of_side, record) for of_side, record in zip(sources, pair)]
            if any(makers[1 - side] not in partners[side].get(makers[side], makers) for side in (0, 1)):
                wrong.add(id(match.reference))
    return wrong


def _made_at(sources: Sequence[InputSource], record: Optional[Record]) -> int:
    """Return the position of the operator that made an input, or the tensor that it is a view of."""
    root = next((source.root for source in sources if source.record is record), None)
    return OUTSIDE if root is None else root.position


def _is_sure(match: Match) -> bool:
    return match.how in ("value", "mapping") or (is_product(match.reference) and is_product(match.actual))
