"""The verdict on an output by what is known of its operator: how it sums, and in which type."""

from __future__ import annotations

from ascend_dump.analysis.compare._measure import Measure
from ascend_dump.analysis.compare._operators import Operator
from ascend_dump.analysis.compare._records import type_of
from ascend_dump.analysis.compare._types import reduction_length, rounds_as_inputs, rounds_in_between, sums_in_own_type
from ascend_dump.analysis.compare._verdict import Noise, Rules, judge
from ascend_dump.reading import Record

__all__ = ["judge_output", "rounding_type"]


def rounding_type(operator: Operator, *outputs: Record) -> str:
    """The type that an output is rounded to: that of the inputs, where the operator computes in it."""
    return type_of(*outputs, *(operator.inputs if rounds_as_inputs(operator.op_type) else ()))


def judge_output(
    operator: Operator,
    output: Record,
    measured: Measure,
    dtype: str,
    rules: Rules,
    *,
    noise: Noise = Noise(),  # noqa: B008  # a value that nobody can change
    scale: float = 0.0,
    cast: bool = False,
) -> tuple[str, str]:
    """`judge` of an output that is `measured` apart from another one; the operator is the one taken for right."""
    return judge(
        measured,
        dtype,
        rules.of(operator.op_name, operator.op_type),
        terms=reduction_length(operator.op_type, operator.inputs, output),
        own_type=sums_in_own_type(operator.op_type),
        rough=rounds_in_between(operator.op_type),
        noise=noise,
        scale=scale,
        cast=cast,
    )
