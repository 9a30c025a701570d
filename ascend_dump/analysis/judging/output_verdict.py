"""Judge an output by the properties of its operator: the length of its sums, its intermediate roundings, its type."""

from __future__ import annotations

import math
from typing import Any, Optional

from ascend_dump.analysis.judging.term_magnitude import term_sizes
from ascend_dump.analysis.judging.verdict import Noise, Rules, judge
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.measure import Measure, measure
from ascend_dump.analysis.numerics.tensor_pair import type_of
from ascend_dump.analysis.operators.arguments import arguments_of
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import (
    holds_constants,
    reduction_length,
    rounds_as_inputs,
    rounds_in_between,
    sums_in_own_type,
)
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["judge_output", "measure_terms", "rounding_type"]


def rounding_type(operator: Operator, *outputs: Record) -> str:
    """Return the coarsest type of the outputs; also of the inputs if the kernel may compute in their type."""
    return type_of(*outputs, *(operator.inputs if rounds_as_inputs(operator.function) else ()))


def judge_output(
    operator: Operator,
    output: Record,
    measured: Measure,
    dtype: str,
    rules: Rules,
    *,
    noise: Noise = Noise(),  # noqa: B008  # immutable
    scale: float = 0.0,
    scores: float = 1.0,
    cast: bool = False,
) -> tuple[str, str]:
    """Apply `judge` to an output whose distance from the reference is `measured`.

    operator    the operator of the reference
    dtype       the type that the output is rounded to, see `rounding_type`
    scores      for attention: the factor by which errors of sums grow in the operator, see `score_size`

    For `noise`, `scale` and `cast` see `judge`.
    """
    transposed = _is_transposed(operator, output)
    terms = reduction_length(operator.function, operator.inputs, output, transposed=transposed)
    return judge(
        measured,
        dtype,
        rules.of(operator.op_name, operator.op_type),
        # The envelope grows with the root of the number of terms.
        terms=math.ceil(terms * scores**2) if terms is not None else None,
        own_type=sums_in_own_type(operator.function),
        between=_rounds_between(operator, output, transposed),
        noise=noise,
        scale=scale,
        cast=cast,
        constant=_may_round_constant(operator, dtype),
    )


#: The factor on `Rules.steps`, the usual intermediate roundings, for operators for which `rounds_in_between` is True.
_FEW_TIMES = 3.0


def _rounds_between(operator: Operator, output: Record, transposed: bool) -> float:
    """Return the factor on `Rules.steps`: by how much intermediate roundings of an operator exceed the usual ones."""
    # A module, which has no function, runs several operators and casts its parameters.
    is_rough = transposed or not operator.function or rounds_in_between(operator.function)
    usual = _FEW_TIMES if is_rough else 1.0
    shapes = {record.index: record.shape for record in operator.inputs}
    backward = operator.function == "convolution_backward"
    weight = shapes.get(2 if backward else 1)
    if not weight or not (transposed or (backward and output.shape == shapes.get(1))):
        return usual
    # An element is a sum over the positions of the convolution kernel. Each term and each partial sum is rounded.
    return max(usual, math.sqrt(2 * math.prod(weight[2:])))


def measure_terms(operator: Operator, actual: Record, output: Record, dtype: str) -> Optional[Measure]:
    """Measure an output after each element is divided by the size of its terms; None if the sizes are unknown.

    `term_sizes` returns the sizes.
    """
    import numpy as np

    try:
        sizes = term_sizes(operator)
        if sizes is None:
            return None
        with np.errstate(all="ignore"):
            units = np.where(np.isfinite(sizes) & (sizes > 0), sizes, 1.0)
            sides = [record.numpy().astype(np.float64) / units for record in (actual, output)]
        return measure(sides[0], sides[1], dtype) if sides[1].shape == output.shape else None
    except (AscendDumpError, TypeError, ValueError):
        return None


def _is_transposed(operator: Operator, output: Record) -> bool:
    """Return True if the operator is a transposed convolution, by its arguments or else by its shapes."""
    if operator.function not in ("convolution", "_convolution"):
        return False
    arguments = arguments_of(operator)
    if arguments is not None and "transposed" in arguments.values:
        return bool(arguments.values["transposed"])
    shapes = {record.index: record.shape for record in operator.inputs}
    data, weight, output_shape = shapes.get(0), shapes.get(1), output.shape
    if not data or not weight or not output_shape or min(len(data), len(weight), len(output_shape)) < 3:
        return False
    return output_shape[1] != weight[0] == data[1]


def _may_round_constant(operator: Operator, dtype: str) -> bool:
    """Return True if an argument is a number that a narrow type cannot represent, so that kernels may round it."""
    kind = float_kind(dtype)
    if kind is None or kind.mantissa > 10 or not holds_constants(operator.function):
        return False
    arguments = arguments_of(operator)
    return arguments is not None and any(_is_finer(value, kind.mantissa) for value in arguments.values.values())


def _is_finer(value: Any, mantissa: int) -> bool:
    if isinstance(value, list):
        return any(_is_finer(element, mantissa) for element in value)
    if not isinstance(value, float) or not math.isfinite(value):
        return False
    steps = math.ldexp(math.frexp(value)[0], mantissa + 1)
    return steps != int(steps)
