"""Describe the inputs of an operator by the patterns in their values that lead to NaN or Inf."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.analysis.operators.names import name_in_rules
from ascend_dump.common.units import counted
from ascend_dump.errors import AscendDumpError, ReadError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["constant_argument", "input_patterns", "ranges", "wrong_index", "zero_argument"]

#: Maximum number of inputs in a description.
_MOST_INPUTS = 3
_DIVISIONS = ("div", "remainder", "fmod", "floordivide", "divide")
#: Operators that normalise the rows of their first input, and operators that need several elements for each result.
_ROW_OPERATORS = ("softmax", "logsoftmax", "safesoftmax")
_SPREADS = ("std", "var", "stdmean", "varmean", "cov", "corrcoef")
#: Operators that are not defined for negative numbers.
_POSITIVE = ("log", "log2", "log10", "sqrt", "rsqrt")
#: Operators in which large values lead to Inf, such as products and sums. Zeros are harmless there, so they are not
#: mentioned.
_MULTIPLY_ADD = (
    *("mul", "add", "sub", "rsub", "addcmul", "square", "exp", "exp2", "expm1", "cosh", "sinh", "sum", "cumsum"),
    *("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "linear", "matmul", "convolution", "prod", "tocopy"),
)
#: Operators that read their first input at the indices in another input, and the dimension to which the indices refer.
#: None: the dimension is the argument `dim`.
_LOOKUPS = {
    "embedding": 0,
    "embeddingbag": 0,
    "index": 0,
    "indexput": 0,
    "take": 0,
    "nllloss": 1,
    "nlllossforward": 1,
    "nllloss2dforward": 1,
    "gather": None,
    "indexselect": None,
    "scatter": None,
    "scatteradd": None,
    "indexadd": None,
    "indexcopy": None,
}
#: The operators among `_LOOKUPS` that accept negative indices: -1 is the last row.
_NEGATIVE_INDICES = ("index", "indexput", "take")
#: Version suffixes in operator names of other frameworks; and other frameworks' names of operators in these tables.
_VERSION = re.compile(r"(v\d+|ext)$")
_OTHER_NAMES = {
    "batchmatmul": "bmm",
    "biasadd": "add",
    "conv2d": "convolution",
    "divnonan": "div",
    "realdiv": "div",
    "reducemean": "mean",
    "reducesum": "sum",
    "tensoradd": "add",
}
#: Prefixes of the names of operators that combine several elements into one result.
_MEANS = (*_SPREADS, "mean", "nllloss", "mseloss", "l1loss", "binarycrossentropy")


def _name_of(record: Record) -> str:
    name = _VERSION.sub("", name_in_rules(record.op_type))
    return _OTHER_NAMES.get(name, name)


def constant_argument(records: Sequence[Record]) -> Optional[str]:
    """Return a number in the arguments that leads to NaN or Inf, as `value=nan`; None if there is none.

    Such numbers are NaN, Inf, and 0 as a divisor.
    """
    divides = _name_of(records[0]) in _DIVISIONS
    for name, value in _arguments(records).items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and (not math.isfinite(value) or (divides and name == "other" and value == 0)):
            return f"{name}={value}"
    return None


def wrong_index(records: Sequence[Record]) -> str:
    """Describe an index outside of its table, as `an index of 16 in a table of 16`; return "" if there is none."""
    name = _name_of(records[0])
    inputs = [record for record in records if record.io == "input"]
    indices = [record for record in inputs if (record.dtype or "").startswith(("int", "uint"))]
    if name not in _LOOKUPS or len(indices) != 1 or not inputs[0].shape:
        return ""
    dim = _LOOKUPS[name] if _LOOKUPS[name] is not None else _arguments(records).get("dim")
    shape, statistics = inputs[0].shape, _statistics_of(indices[0])
    if not isinstance(dim, int) or not -len(shape) <= dim < len(shape) or statistics is None:
        return ""
    size = math.prod(shape) if name == "take" else shape[dim]
    lowest = -size if name in _NEGATIVE_INDICES else None if name.startswith("nllloss") else 0
    for value in (statistics.max, statistics.min):
        if value is not None and (value >= size or (lowest is not None and value < lowest)):
            return f"an index of {int(value)} in a table of {size}"
    return ""


def zero_argument(records: Sequence[Record]) -> Optional[str]:
    """Return a number in the arguments of a multiplication that is 0, as `other=0.0`; None if there is none."""
    if _name_of(records[0]) not in ("mul", "foreachmul"):
        return None
    return next((f"{name}={value}" for name, value in _arguments(records).items() if value in (0, [0])), None)


def input_patterns(records: Sequence[Record]) -> str:
    """Describe the inputs of an operator: the patterns that explain NaN or Inf, or else their ranges of values."""
    inputs = [record for record in records if record.io == "input"]
    phrases = [(record, text) for record in inputs for text in _patterns(record, records)]
    texts = [f"input {record.index} {text}" for record, text in phrases[:_MOST_INPUTS]]
    return ", and ".join(texts) or ranges(inputs)


def ranges(inputs: Iterable[Record]) -> str:
    """Describe the ranges of values of inputs."""
    texts = [f"input {record.index} {text}" for record, text in ((record, _range(record)) for record in inputs) if text]
    return ", and ".join(texts[:_MOST_INPUTS])


def _patterns(record: Record, records: Sequence[Record]) -> Iterator[str]:
    """Yield a phrase for each pattern in an input."""
    name = _name_of(record)
    shape = record.shape or ()
    if name.endswith("norm") and record.index in (1, 2):
        return  # weight and bias of a normalisation, which are initialised to 1 and 0 everywhere
    if 0 in shape:
        yield f"is empty, {list(shape)}"
        return
    statistics = _statistics_of(record)
    if statistics is None:
        return
    reduced = _reduced(record, records) if record.index == 0 else None
    if reduced == 1 and name in _SPREADS:
        yield f"has 1 element for each result, {list(shape)}"
    if statistics.neginf and name in _ROW_OPERATORS and record.index == 0:
        count = _masked_rows(record, _arguments(records).get("dim", -1))
        if count:
            yield f"has {counted(count, 'row')} of -Inf alone"
            return
    kinds = (("NaN", statistics.nan), ("Inf", statistics.posinf), ("-Inf", statistics.neginf))
    wrong = [kind for kind, count in kinds if count]
    is_variance = name.endswith("batchnorm") and record.index == 4
    if wrong:
        yield f"has {' and '.join(wrong)}"
    elif (name in _POSITIVE or is_variance) and statistics.min is not None and statistics.min < 0:
        yield f"{_range(record)}, which begin below 0"
    elif statistics.zero and name not in _MULTIPLY_ADD:
        yield "is zero everywhere" if statistics.zero == statistics.count else f"has {counted(statistics.zero, 'zero')}"
    elif statistics.count > 1 and statistics.min == statistics.max:
        yield f"has the value {_number(statistics.min)} everywhere"


def _range(record: Record) -> str:
    statistics = _statistics_of(record)
    if statistics is None:
        return ""
    if 0 in (record.shape or ()):
        return f"is empty, {list(record.shape or ())}"
    extremes = (statistics.min, statistics.max)
    if None in extremes or not all(map(math.isfinite, extremes)):
        return ""
    low, high = map(_number, extremes)
    return f"has the value {low}" if low == high else f"has values from {low} to {high}"


def _number(value: Any) -> str:
    """Return a number as text with few digits, but enough that 1.0000001 does not look like the integer 1."""
    number = float(value)
    for digits in (3, 6, 9, 17):
        text = f"{number:.{digits}g}"
        is_round = float(text) == round(float(text)) and abs(number) < 1e6
        if float(text) == number or not is_round:
            return text
    return repr(number)


def _masked_rows(record: Record, dim: Any) -> int:
    array = _array_of(record)
    if array is None or not array.ndim or not isinstance(dim, int):
        return 0
    return int((array.astype("float32") == -math.inf).all(axis=dim).sum())


def _reduced(record: Record, records: Sequence[Record]) -> Optional[int]:
    """Return the number of elements that a reduction combines into one result; None if it is no reduction."""
    shape = record.shape
    if shape is None or not _name_of(record).startswith(_MEANS):
        return None
    dims = _arguments(records).get("dim")
    dims = [dims] if isinstance(dims, int) else dims
    lengths = shape if not isinstance(dims, list) or not dims else [shape[dim] for dim in dims if isinstance(dim, int)]
    return math.prod(lengths)


def _arguments(records: Sequence[Record]) -> dict[str, Any]:
    try:
        call = next((record.arguments for record in records if record.arguments is not None), None)
    except ReadError:
        return {}
    return {} if call is None else dict(call.values)


def _statistics_of(record: Record) -> Any:
    try:
        return record.statistics()
    except AscendDumpError:
        return None


def _array_of(record: Record) -> Optional[np.ndarray]:
    try:
        return record.numpy()
    except AscendDumpError:
        return None
