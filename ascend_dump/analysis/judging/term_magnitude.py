"""Estimate the size of the terms that an operator adds up.

Terms may cancel in their sum, but rounding errors are relative to the terms, not to the sum.

For example, the gradient of a bias before a batch norm is zero in exact arithmetic; the computed value is only the
rounding error of a sum whose terms are not zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Optional

from ascend_dump.analysis.operators.arguments import arguments_of
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import PRODUCTS, operator_class
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["natural_scale", "score_size", "term_sizes", "weight_error"]

_SUMS = frozenset(("sum", "cumsum", "embedding_dense_backward", "nansum", "BiasAddGrad"))
#: Operators that add the values of their last input to chosen elements of the first one.
_ADDING = frozenset(("index_add", "index_put", "scatter_add"))
_TERM_BY_TERM = frozenset(("add", "sub", "rsub", "lerp", "smooth_l1_loss"))
#: Operators that add a product or quotient to their first input. The addend is at most as large as that input and the
#: output together.
_TO_THE_FIRST = frozenset(("addcmul", "addcdiv"))
#: Operators that pad their first input with zeros, or multiply it by at most 1.
_OF_THE_FIRST = frozenset(
    {
        "_softmax_backward_data",
        "constant_pad_nd",
        "select_backward",
        "sigmoid_backward",
        "slice_backward",
        "tanh_backward",
    }
)
#: Scores that are so large are masked: they have no weights, and are no scale for the scores that they are added to.
_FILL = 1e4
#: Minimum number of parts of a sum, and maximum number of elements of a part. Each part is copied as float64.
_PARTS, _MOST_AT_ONCE = 64, 1 << 22
_NORMS = frozenset(
    ("native_layer_norm", "native_batch_norm", "native_group_norm", "_native_batch_norm_legit", "_fused_rms_norm")
)
#: For backward operators of norms: the index of the input with the reciprocal of the standard deviation.
_DEVIATIONS = {
    "native_layer_norm_backward": 3,
    "native_group_norm_backward": 3,
    "native_batch_norm_backward": 6,
    "_fused_rms_norm_backward": 2,
}


def natural_scale(operator: Operator, output: Record) -> float:
    """Return the root mean square that an output has if its terms do not cancel; 0 if unknown."""
    name = operator.function
    try:
        return _scale(name.removeprefix("_foreach_"), operator, output)
    except (AscendDumpError, ZeroDivisionError, OverflowError):
        return 0.0


def score_size(operator: Operator) -> float:
    """Return the approximate size of the scores of an attention, at least 1; 1 for other operators.

    The weights are exponentials of the scores. So the absolute error of a score, which grows with its size, becomes the
    relative error of a weight.
    """
    name = operator.function.lower()
    if "attention" not in name or "backward" in name:
        return 1.0
    inputs = {record.index: record for record in operator.inputs}
    try:
        return _scores(inputs.get(0), inputs.get(1))
    except AscendDumpError:
        return 1.0


def weight_error(operator: Operator) -> float:
    """Return the factor by which the weights of an attention, or of a softmax, enlarge the rounding of their scores.

    It is at least 1. Only the largest score of a row counts: the weights of much smaller ones are almost 0.
    """
    import numpy as np

    if operator_class(operator.op_type) not in ("_softmax", "softmax") or not operator.inputs:
        return score_size(operator)
    try:
        scores = operator.inputs[0].numpy().astype(np.float32)
    except AscendDumpError:
        return 1.0
    largest = np.abs(scores.max(axis=-1, initial=-np.inf))
    largest = largest[largest < _FILL]
    return max(1.0, float(np.median(largest))) if largest.size else 1.0


def _scores(query: Optional[Record], key: Optional[Record]) -> float:
    """Return the product of the norms of a query row and a key row, divided by the root of their length; at least 1."""
    length = query.shape[-1] if query is not None and query.shape else 1
    return max(1.0, _rms(query) * _rms(key) * math.sqrt(length))


def _scale(name: str, operator: Operator, output: Record) -> float:
    inputs = {record.index: record for record in operator.inputs}
    if operator.function.startswith("_foreach_"):
        # The inputs are lists. Take the tensor of each list that belongs to this output.
        count = max(len(operator.outputs), 1)
        position = output.index % count
        inputs = {index // count: record for index, record in inputs.items() if index % count == position}

    def rms(index: int) -> float:
        return _rms(inputs.get(index))

    def size(index: int) -> int:
        return _count(inputs.get(index))

    written = max(_count(output), 1)
    if name in PRODUCTS:
        first = PRODUCTS[name]
        shape = inputs[first].shape if first in inputs else None
        terms = math.sqrt(shape[-1]) if shape else 1.0
        addends = 0 if _ignores_addend(operator) else first
        return terms * rms(first) * rms(first + 1) + sum(rms(index) for index in range(addends))
    if name in ("convolution", "_convolution"):
        shape = inputs[1].shape if 1 in inputs else None
        return math.sqrt(math.prod(shape[1:]) if shape else 1) * rms(0) * rms(1) + rms(2)
    if name == "convolution_backward":
        return _of_convolution_backward(inputs, output, rms)
    if name in _SUMS:
        return math.sqrt(max(size(0) / written, 1)) * rms(0)
    if name in _ADDING:
        last = max(inputs, default=0)
        return math.sqrt(max(size(last) / written, 1)) * max(rms(0), rms(last))
    if name == "mean":
        return rms(0) / math.sqrt(max(size(0) / written, 1))
    if name in ("var", "var_mean", "std"):
        return rms(0) ** 2 if name != "std" else rms(0)
    if name in _TO_THE_FIRST:
        return rms(0)
    if name == "mse_loss":
        return math.sqrt(_rms(output)) * max(rms(0), rms(1))
    if name in _TERM_BY_TERM:
        return max(map(_rms_without_masks, inputs.values()), default=0.0)
    if name in _NORMS and output.index == 1 and name != "_fused_rms_norm":
        return rms(0) / math.sqrt(max(size(0) / written, 1))  # the mean
    if name in _NORMS and output.index == 0:
        deviation = next((out for out in operator.outputs if out.index == 2 or name == "_fused_rms_norm"), None)
        return rms(0) * _rms(deviation) * max(rms(1), 1.0)
    if name in _DEVIATIONS:
        if output.shape != (inputs[0].shape if 0 in inputs else None):
            return math.sqrt(max(size(0) / written, 1)) * rms(0)
        weights = rms(2) if name == "native_batch_norm_backward" else rms(_DEVIATIONS[name] + 1)
        return rms(0) * rms(_DEVIATIONS[name]) * (weights or 1.0)
    if name in _OF_THE_FIRST:
        return rms(0)
    if name == "logit":
        return 1.0  # the argument of the logarithm has a relative rounding error
    if name == "glu_backward":
        return rms(0) * max(1.0, rms(1))
    if "attention" in name and name.endswith("backward"):
        # The inputs are gradient, query, key and value. Errors of the scores become relative errors of the weights.
        return (
            _scores(inputs.get(1), inputs.get(2))
            * rms(0)
            * (1.0 if output.index == 2 else rms(3) * max(rms(1), rms(2)))
        )
    if name == "_log_softmax_backward_data":
        shape = inputs[0].shape if 0 in inputs else None
        return rms(0) * math.sqrt(shape[-1] if shape else 1)
    return 0.0


def term_sizes(operator: Operator) -> Optional[np.ndarray]:
    """Return the size of the terms of each output element; None but for products, and sums and means of all elements.

    For a product of matrices, it is the size that each element would have if its terms had random signs: some rows and
    columns may be much larger than others. For a sum of all elements, it is the largest sum of consecutive elements:
    several threads add up parts, which are rounded and may cancel each other.

    Raises the same errors as reading a tensor.
    """
    import numpy as np

    name = operator.function
    inputs = {record.index: record for record in operator.inputs}
    if name in ("sum", "mean") and 0 in inputs and [_count(output) for output in operator.outputs] == [1]:
        largest = _largest_part(inputs[0].numpy()) / (_count(inputs[0]) if name == "mean" else 1)
        return np.full(operator.outputs[0].shape or (), largest)
    first = PRODUCTS.get(name)
    if first is None or first not in inputs or first + 1 not in inputs:
        return None
    matrix_a, matrix_b = (inputs[first + side].numpy().astype(np.float64) for side in (0, 1))
    if name == "linear":
        matrix_b = matrix_b.T
    if matrix_a.ndim < 2 or matrix_b.ndim < 2 or matrix_a.shape[-1] != matrix_b.shape[-2] or not matrix_a.shape[-1]:
        return None
    rows, columns = np.linalg.norm(matrix_a, axis=-1)[..., :, None], np.linalg.norm(matrix_b, axis=-2)[..., None, :]
    sizes: np.ndarray = rows * columns / math.sqrt(matrix_a.shape[-1])
    if first and 0 in inputs and not _ignores_addend(operator):
        sizes = sizes + np.abs(inputs[0].numpy().astype(np.float64))
    return sizes


def _largest_part(array: np.ndarray) -> float:
    """Return the largest absolute sum of consecutive blocks of elements; 0 for complex numbers."""
    import numpy as np

    flat = array.reshape(-1)
    if flat.dtype.kind == "c":
        return 0.0
    blocks = np.array_split(flat, max(_PARTS, math.ceil(flat.size / _MOST_AT_ONCE)))
    sums = np.cumsum([0.0, *(block.astype(np.float64).sum() for block in blocks)])
    return float(sums.max() - sums.min())


def _of_convolution_backward(inputs: dict[int, Record], output: Record, rms: Callable[[int], float]) -> float:
    gradient, data, weight = (inputs[index].shape if index in inputs else None for index in range(3))
    if not gradient or not data or not weight:
        return 0.0
    positions = math.prod(gradient) / gradient[1]
    if output.shape == weight:
        return math.sqrt(positions) * rms(0) * rms(1)
    if output.shape == data:
        return math.sqrt(math.prod(weight) / weight[1]) * rms(0) * rms(2)
    return math.sqrt(positions) * rms(0)


def _ignores_addend(operator: Operator) -> bool:
    """Return True for a product with beta=0: its first input may be memory that nothing has written."""
    arguments = arguments_of(operator)
    return arguments is not None and arguments.values.get("beta") == 0


def _rms_without_masks(record: Record) -> float:
    """Return the root mean square of a tensor without masks, unless all elements are as large as masks."""
    import numpy as np

    rms = _rms(record)
    if rms * math.sqrt(_count(record)) < _FILL:
        return rms
    sizes = np.abs(record.numpy().astype(np.float64))
    sizes = sizes[sizes < _FILL]
    return float(np.sqrt(np.mean(np.square(sizes)))) if sizes.size else rms


def _count(record: Optional[Record]) -> int:
    return math.prod(record.shape) if record is not None and record.shape is not None else 0


def _rms(record: Optional[Record]) -> float:
    """Return the root mean square of a tensor; 0 if it is missing or has NaN or Inf."""
    if record is None or not _count(record):
        return 0.0
    norm = record.statistics().l2norm
    rms = norm / math.sqrt(_count(record)) if norm is not None else 0.0
    return rms if math.isfinite(rms) else 0.0
