"""Compare the results of all tokens: the log-probabilities of the tokens that follow them.

The results are the safety net of a comparison by tokens. If they differ by more than rounding, the verdict is never
"noise", even if all other tensors that were compared agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.built_otherwise.products import is_product
from ascend_dump.analysis.alignment.token_parts import distance, token_part
from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.compare.by_tokens.operand_paths import line_of
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["TokenResults", "scaled_on_one_side", "settled_by_results", "token_results", "unexplained_results"]

#: Log-probabilities may differ by this many rounding units of the largest logit, times the square root of the number
#: of products: in types of at most 16 bits, and in wider ones.
_UNITS_NARROW, _UNITS_WIDE = 8.0, 256.0
_NARROW = 2.0**-12
#: Results agree clearly if they differ by less than this share of the limit, in types whose limit is at most _WIDE.
#: Those of right programs in float32 differ by less than 0.01 of it.
_CLEARLY, _WIDE = 0.04, 1e-3
_UNEQUAL = ("undecided", "unmatched", "structure", "different")
_NO_EFFECT = "everything computed from it agrees, up to the log-probabilities of all tokens"


class TokenResults(NamedTuple):
    """The log-probabilities of both sides. pair: the logits; text: one sentence

    difference  the largest difference of the log-probabilities
    limit       the largest difference that rounding may cause
    are_clear   the logits of all requests agree, far within this limit: nothing before them differs with an effect
    """

    pair: tuple[Record, Record]
    text: str
    difference: float
    limit: float
    are_clear: bool = False

    @property
    def differ(self) -> bool:
        """True if they differ by more than rounding may cause."""
        return self.difference > self.limit


def token_results(
    alignment: TokenAlignment, operators: tuple[Sequence[Operator], Sequence[Operator]]
) -> Optional[TokenResults]:
    """Return the log-probabilities of the tokens of all requests; None if logits are not recorded."""
    import numpy as np

    last = [_logits(of_side, alignment.base_operators(side)) for side, of_side in enumerate(operators)]
    logits = None if last[0] is None or last[1] is None else alignment.behind_results((last[0], last[1]))
    actual, reference = logits or (None, None)
    part = token_part(actual)
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
    rounding = _rounding(operators)
    are_clear = (
        rounding <= _WIDE
        and float(difference[worst]) <= _CLEARLY * rounding * largest
        and distance(actual, reference) <= _CLEARLY * rounding
        and _last_tokens(index_of[numbers]) == _last_tokens(index_of)
    )
    return TokenResults((actual, reference), text, float(difference[worst]), largest * rounding, are_clear)


def scaled_on_one_side(alignment: TokenAlignment) -> list[str]:
    """Return a sentence on operators that change the logits of one side only, behind those that are compared."""
    lines: list[list[str]] = [[], []]
    for side, operator in alignment.scaled_for_choice():
        lines[side].append(line_of(operator))
    return [
        f"the logits are compared before {', '.join(of_side)} of {name}, which the other side does not record: a "
        "temperature, or a factor that it lacks"
        for of_side, name in zip(lines, ("actual", "the reference"))
        if of_side
    ]


def _last_tokens(index_of: np.ndarray) -> dict[int, int]:
    """Return the last position of each sequence. index_of: [tokens, 2], sequence and position"""
    last: dict[int, int] = {}
    for sequence, position in index_of.tolist():
        last[sequence] = max(position, last.get(sequence, 0))
    return last


def settled_by_results(
    results: TokenResults, operators: Sequence[Sequence[Operator]], origins: Sequence[Origin], pairs: Sequence[Pair]
) -> tuple[list[Origin], list[Pair]]:
    """Return origins and pairs without the differences before results that agree clearly: these lead to nothing.

    Parameters that differ are kept: the programs are not the same, even if these tokens do not show it.

    operators: all those of a call of actual and of the reference, in execution order
    """
    orders = [{operator.op_name: n for n, operator in enumerate(side)} for side in operators]
    ends = [order.get(_name(record), -1) for order, record in zip(orders, results.pair)]

    def is_settled(pair: Pair) -> bool:
        sides = (pair.actual, pair.reference)
        is_float = float_kind(pair.record.dtype or "") is not None
        is_given = is_float and pair.record.io == "input" and token_part(pair.record) is None
        if pair.verdict == "different" and is_given:
            return False  # a parameter
        return all(
            record is None or order.get(_name(record), end + 1) <= end
            for record, order, end in zip(sides, orders, ends)
        )

    kept = [origin for origin in origins if not is_settled(origin.pair)]
    return kept, [
        replace(pair, verdict="noise", reason=_NO_EFFECT) if pair.verdict in _UNEQUAL and is_settled(pair) else pair
        for pair in pairs
    ]


def _name(record: Record) -> str:
    """Return the name of the operator of a record, which may be a part of a divided operator."""
    return record.op_name.partition("[")[0]


def unexplained_results(results: TokenResults, pairs: Iterable[Pair], *, has_origin: bool = False) -> Optional[Pair]:
    """Return a pair with the verdict "different" if the results differ, but no compared tensor; else None.

    pairs: those of all compared tensors; has_origin: an operator on the last results explains the difference
    """
    if not results.differ:
        return None
    compared = [pair for pair in pairs if pair.actual is not None and pair.reference is not None]
    if any(pair.differs for pair in compared):
        return None
    times = results.difference / results.limit if results.limit else math.inf
    last = next((pair for pair in reversed(compared) if token_part(pair.reference) is not None), None)
    before = "no tensor before them was compared" if last is None else _agreeing_before(last, len(compared))
    reason = f"the log-probabilities differ by {results.difference:.2g}, {times:.2g} times the rounding"
    reason = reason if has_origin else f"{reason}; {before}"
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


def _logits(operators: Sequence[Operator], of_call: Sequence[Operator]) -> Optional[Record]:
    """Return the last tensor of the step that has a value for each entry of the vocabulary.

    operators: those that are compared; of_call: all of a call, among which is the one that looks ids up in a table
    """
    sizes = {shape[0] for operator in of_call if (shape := _table_of(operator)) is not None}
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
