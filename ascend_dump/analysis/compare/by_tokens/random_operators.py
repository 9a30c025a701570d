"""Name operators that draw random numbers, such as a dropout, where only one side runs one before a difference."""

from __future__ import annotations

from collections.abc import Sequence

from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import RANDOM, operator_class
from ascend_dump.errors import AscendDumpError

__all__ = ["with_random_operator"]


def with_random_operator(origins: Sequence[Origin], pairs: Sequence[Pair], alignment: TokenAlignment) -> list[Origin]:
    """Return the origins; the first one is replaced by a random operator of one side that the difference follows from.

    Its numbers are others in each run, so no other operator between it and the difference needs to be wrong. A rollout
    draws its tokens too, but the trainer reads the same ones.

    pairs: those of all compared tensors, in execution order
    """
    end = next(
        (pair for pair in pairs if pair.verdict == "different" and None not in (pair.actual, pair.reference)), None
    )
    if not origins or end is None or end.actual is None or end.reference is None:
        return [*origins]
    ends = enumerate((end.actual, end.reference))
    before = [alignment.operators_before(side, record, by_tokens=False) for side, record in ends]
    random = [[operator for operator in of_side if _is_random(operator)] for of_side in before]
    if bool(random[0]) == bool(random[1]):
        return [*origins]
    side = 0 if random[0] else 1
    operator = random[side][0]
    name = ("actual", "the reference")[side]
    reason = f"{operator.op_type} runs in {name} only, and draws random numbers"
    record = operator.outputs[0]
    pair = Pair(None if side else record, record if side else None, "", 0.0, "unmatched", reason)
    evidence = (reason, f"found where {end.record.label} differs: {end.reason}")
    kept = [origin for origin in origins[1:] if origin.op_name != operator.op_name]
    return [Origin("structure", pair, evidence, origins[0].explains), *kept]


def _is_random(operator: Operator) -> bool:
    """Return True for a random operator with an effect. A dropout of nothing makes a mask of ones."""
    import numpy as np

    if operator_class(operator.op_type) not in RANDOM or not operator.outputs:
        return False
    try:
        values = operator.outputs[-1].numpy()
    except AscendDumpError:
        return True
    return bool(np.any(values != values.reshape(-1)[:1]))
