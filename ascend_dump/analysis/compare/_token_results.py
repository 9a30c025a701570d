"""Compare the results of all tokens: the log-probabilities of the tokens that follow them.

The results are the safety net of a comparison by tokens. If they differ by more than rounding, the verdict is never
"noise", even if all other tensors that were compared agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.built_otherwise.products import is_product
from ascend_dump.analysis.alignment.token_parts import token_part
from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["TokenResults", "token_results", "unexplained_results"]

#: Log-probabilities may differ by this many rounding units of the largest logit, times the square root of the number
#: of products: in types of at most 16 bits, and in wider ones.
_UNITS_NARROW, _UNITS_WIDE = 8.0, 256.0
_NARROW = 2.0**-12


class TokenResults(NamedTuple):
    """The log-probabilities of both sides. pair: the logits; text: one sentence

    difference  the largest difference of the log-probabilities
    limit       the largest difference that rounding may cause
    """

    pair: tuple[Record, Record]
    text: str
    difference: float
    limit: float

    @property
    def differ(self) -> bool:
        """True if they differ by more than rounding may cause."""
        return self.difference > self.limit


def token_results(
    alignment: TokenAlignment, operators: tuple[Sequence[Operator], Sequence[Operator]]
) -> Optional[TokenResults]:
    """Return the log-probabilities of the tokens of all requests; None if logits are not recorded."""
    import numpy as np

    logits = [_logits(side) for side in operators]
    part, (actual, reference) = token_part(logits[0]), logits
    if actual is None or reference is None or part is None or actual.shape != reference.shape:
        return None
    numbers, index_of = part.numbers, alignment.tokens.index_of
    chosen = []
    for row, number in enumerate(numbers.tolist()):
        sequence, position = index_of[number].tolist()
        ids = alignment.sequences[sequence]
        if position + 1 < len(ids) and ids[position + 1] < (actual.shape or (0,))[-1]:
            chosen.append((row, number, ids[position + 1]))
    if not chosen:
        return None
    rows, tokens, ids_after = (np.array(column) for column in zip(*chosen))
    try:
        values = [record.numpy()[rows].astype(np.float64) for record in (actual, reference)]
    except AscendDumpError:
        return None
    a, b = (_log_softmax(of_side)[np.arange(len(rows)), ids_after] for of_side in values)
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
    worst = int(np.argmax(difference))
    sequence, position = index_of[tokens[worst]].tolist()
    after = alignment.tokens.text(int(tokens[worst])).replace(f"token {position}", f"token {position + 1}", 1)
    text = (
        f"log-probabilities of {len(rows)} tokens: largest difference {difference[worst]:.2g} at {after} "
        f"({a[worst]:.4g} here, {b[worst]:.4g} in the reference), mean {float(np.mean(difference)):.2g}"
    )
    # Only logits that count in a log-probability are a scale: those of unused entries may be -3.4e38.
    counting = np.stack([values[1].max(axis=-1), values[1][np.arange(len(rows)), ids_after]])
    largest = float(np.abs(counting[np.isfinite(counting)]).max(initial=1.0))
    return TokenResults((actual, reference), text, float(difference[worst]), largest * _rounding(operators))


def unexplained_results(results: TokenResults, pairs: Iterable[Pair]) -> Optional[Pair]:
    """Return a pair with the verdict "different" if the results differ, but no compared tensor; else None.

    pairs: those of all compared tensors
    """
    if not results.differ:
        return None
    compared = [pair for pair in pairs if pair.actual is not None and pair.reference is not None]
    if any(pair.differs for pair in compared):
        return None
    times = results.difference / results.limit if results.limit else math.inf
    last = next((pair for pair in reversed(compared) if token_part(pair.reference) is not None), None)
    before = "no tensor before them was compared" if last is None else _agreeing_before(last, len(compared))
    reason = f"the log-probabilities differ by {results.difference:.2g}, {times:.2g} times the rounding; {before}"
    return Pair(*results.pair, "order", 0.5, "different", reason)


def _agreeing_before(last: Pair, count: int) -> str:
    return (
        f"all {count} compared tensors agree, the last one is {last.record.label}: the difference begins in a part "
        "that was not compared"
    )


def _rounding(operators: Sequence[Sequence[Operator]]) -> float:
    """Return the error of logits that rounding may cause, relative to the largest logit."""
    products = [[operator for operator in side if is_product(operator)] for side in operators]
    kinds = [float_kind(operator.outputs[0].dtype or "") for side in products for operator in side if operator.outputs]
    unit = max((kind.unit for kind in kinds if kind is not None), default=0.0)
    return (_UNITS_NARROW if unit > _NARROW else _UNITS_WIDE) * unit * math.sqrt(max(map(len, products), default=1))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    import numpy as np

    values = logits.astype(np.float64)
    with np.errstate(all="ignore"):
        values = values - values.max(axis=-1, keepdims=True)
        result: np.ndarray = values - np.log(np.exp(values).sum(axis=-1, keepdims=True))
    return result


def _logits(operators: Sequence[Operator]) -> Optional[Record]:
    """Return the last tensor of the step that has a value for each entry of the vocabulary."""
    sizes = {shape[0] for operator in operators if (shape := _table_of(operator)) is not None}
    for operator in reversed(operators):
        for record in operator.outputs:
            shape = record.shape or ()
            is_float = float_kind(record.dtype or "") is not None
            if len(shape) == 2 and shape[1] in sizes and is_float and token_part(record) is not None:
                return record
    return None


def _table_of(operator: Operator) -> Optional[tuple[int, ...]]:
    """Return the shape of the table that an operator looks ids up in: an embedding, or a matrix that is indexed."""
    if operator_class(operator.op_type) not in ("embedding", "index", "index_select") or len(operator.inputs) < 2:
        return None
    shape = operator.inputs[0].shape
    return tuple(shape) if shape is not None and len(shape) == 2 else None
