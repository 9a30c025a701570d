"""Outputs that differ although both sides computed them correctly, each from its own inputs.

A comparison or a sort returns bools or indices, so that the smallest difference in its inputs can change an element
completely. A gather whose indices differ returns different elements. Equal elements may be sorted in any order. The
remainder of a division jumps if a tiny change of the divisor makes the integer quotient larger by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.analysis.judging.elementwise import most_roundings
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.arguments import arguments_of, differing_arguments
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.matches import Match
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["is_wrong", "why_both_are_right"]

_Check = Callable[[Operator, Record], bool]
#: The inputs of an operator by their index.
_Arrays = Mapping[int, "np.ndarray"]
_COMPARISONS = {
    "eq": "equal",
    "ge": "greater_equal",
    "gt": "greater",
    "le": "less_equal",
    "lt": "less",
    "ne": "not_equal",
    "Equal": "equal",
    "Greater": "greater",
    "GreaterEqual": "greater_equal",
    "Less": "less",
    "LessEqual": "less_equal",
    "NotEqual": "not_equal",
}
#: Remainders of a division by a number argument, with the numpy function of each. Rounding the number may make the
#: quotient larger by one, and then the remainder jumps.
_REMAINDERS = {"fmod": "fmod", "remainder": "remainder"}
#: Operators that choose elements of input 0: output 0 has the elements, output 1 their indices along an axis.
_CHOICES = frozenset(
    {"cummax", "cummin", "kthvalue", "max", "median", "min", "mode", "nanmedian", "sort", "topk", "TopK"}
)


def why_both_are_right(match: Match, a: Record, b: Record) -> Optional[str]:
    """Return why two outputs that differ are both right for their inputs; None if either is wrong or undecided."""
    if not all(argument.is_rounding for argument in differing_arguments(match.actual, match.reference)):
        return None
    check = _check_of(match, b)
    if check is None or not (_holds(check, match.actual, a) and _holds(check, match.reference, b)):
        return None
    return _REASONS.get(check, "each side is right for its own inputs, which differ by rounding")


def is_wrong(match: Match, a: Record, b: Record) -> bool:
    """Return True if an output is certainly wrong for the inputs of its own side.

    There are two such cases. A gather, on either side, returned other elements than its indices select. Or an operator
    in `_FUNCTIONS` computed its function of the input in the reference, but not in actual.
    """
    if match.reference.function in _FUNCTIONS and match.actual.function == match.reference.function:
        return bool(_holds(_computes, match.reference, b)) and _holds(_computes, match.actual, a) is False
    if _check_of(match, b) is not _gathers:
        return False
    return False in (_holds(_gathers, match.actual, a), _holds(_gathers, match.reference, b))


def _check_of(match: Match, output: Record) -> Optional[_Check]:
    """Return the check that applies to an output of both operators; None if there is none."""
    name = match.reference.function
    if match.actual.function != name:
        return None
    if name in _COMPARISONS:
        return _compares
    if name in _CHOICES and output.index == 1:
        return _chooses
    if name in _REMAINDERS:
        return _remains
    return _gathers if name in _GATHERS else None


def _holds(check: _Check, operator: Operator, output: Record) -> Optional[bool]:
    """Return the result of a check; None if the tensors that it needs cannot be read."""
    try:
        return check(operator, output)
    except (AscendDumpError, KeyError, TypeError, ValueError, IndexError):
        return None


def _compares(operator: Operator, output: Record) -> bool:
    import numpy as np

    inputs = {record.index: record.numpy() for record in operator.inputs}
    compare = getattr(np, _COMPARISONS[operator.function])
    if 0 not in inputs:
        return False
    x, recorded = inputs[0], output.numpy()
    operands = [_wide(inputs[1])] if 1 in inputs else _numbers(operator, x.dtype)
    return any(
        np.array_equal(np.broadcast_to(compare(_wide(x), operand), recorded.shape), recorded) for operand in operands
    )


def _remains(operator: Operator, output: Record) -> bool:
    import numpy as np

    kind = float_kind(output.dtype or "")
    dividend = _record_at(operator.inputs, 0)
    if kind is None or dividend is None:
        return False
    x, recorded = dividend.numpy(), _wide(output.numpy())
    remainder = getattr(np, _REMAINDERS[operator.function])
    results = (remainder(_wide(x), number) for number in _numbers(operator, x.dtype))
    tiny = math.ldexp(1.0, kind.lowest - kind.mantissa)
    return any(np.allclose(recorded, result, rtol=2 * kind.unit, atol=tiny, equal_nan=True) for result in results)


def _computes(operator: Operator, output: Record) -> bool:
    import numpy as np

    kind = float_kind(output.dtype or "")
    [read] = operator.inputs
    if kind is None:
        return False
    x, recorded = _wide(read.numpy()), _wide(output.numpy())
    with np.errstate(all="ignore"):
        distance = np.abs(_FUNCTIONS[operator.function](x) - recorded)
        return bool((distance <= most_roundings(kind) * (np.abs(x) + np.abs(recorded))).all())


def _sigmoid(x: np.ndarray) -> np.ndarray:
    import numpy as np

    result: np.ndarray = 1 / (1 + np.exp(-x))
    return result


def _silu(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = x * _sigmoid(x)
    return result


def _tanh(x: np.ndarray) -> np.ndarray:
    import numpy as np

    result: np.ndarray = np.tanh(x)
    return result


def _relu(x: np.ndarray) -> np.ndarray:
    import numpy as np

    result: np.ndarray = np.maximum(x, 0)
    return result


#: Functions of single elements that have no arguments.
_FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": _relu,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "tanh": _tanh,
}


def _record_at(records: Sequence[Record], index: int) -> Optional[Record]:
    return next((record for record in records if record.index == index), None)


def _numbers(operator: Operator, dtype: np.dtype[Any]) -> Iterator[Any]:
    """Yield the number argument of an operator: exact, rounded to the type of the tensor, and rounded to float32."""
    import numpy as np

    arguments = arguments_of(operator)
    number = None if arguments is None else arguments.values.get("other")
    if isinstance(number, (int, float)):
        yield number
        yield _wide(np.asarray(number).astype(dtype))
        yield np.float64(np.float32(number))


def _chooses(operator: Operator, output: Record) -> bool:
    import numpy as np

    source, chosen = _record_at(operator.inputs, 0), _record_at(operator.outputs, 0)
    if source is None or chosen is None:
        return False
    x, values, indices = source.numpy(), chosen.numpy(), output.numpy()
    if values.shape != indices.shape or indices.size == 0 or indices.dtype.kind not in "iu":
        return False
    for axis in range(x.ndim):
        i, v = (a if a.ndim == x.ndim else np.expand_dims(a, axis) for a in (indices, values))
        fits = all(size == x.shape[dim] for dim, size in enumerate(i.shape[: x.ndim]) if dim != axis)
        if fits and i.min() >= 0 and i.max() < x.shape[axis]:
            taken = np.take_along_axis(x, i, axis)
            if np.array_equal(_wide(taken), _wide(v), equal_nan=True):
                return True
    return False


def _gathers(operator: Operator, output: Record) -> bool:
    import numpy as np

    inputs = {record.index: record.numpy() for record in operator.inputs}
    arguments = arguments_of(operator)
    values = {} if arguments is None else arguments.values
    gathered = _GATHERS[operator.function](inputs, values)
    return np.array_equal(_wide(gathered), _wide(output.numpy()), equal_nan=gathered.dtype.kind in "fVc")


def _index(inputs: _Arrays, values: Mapping[str, Any]) -> np.ndarray:
    places = [slice(None) if place is None else inputs[place.index] for place in values["indices"]]
    gathered: np.ndarray = inputs[0][tuple(places)]
    return gathered


def _embedding(inputs: _Arrays, values: Mapping[str, Any]) -> np.ndarray:
    rows: np.ndarray = inputs[0][inputs[1]]
    return rows


def _index_select(inputs: _Arrays, values: Mapping[str, Any]) -> np.ndarray:
    import numpy as np

    return np.take(inputs[0], inputs[1], axis=values["dim"])


def _gather(inputs: _Arrays, values: Mapping[str, Any]) -> np.ndarray:
    import numpy as np

    return np.take_along_axis(inputs[0], inputs[1], values["dim"])


def _nonzero(inputs: _Arrays, values: Mapping[str, Any]) -> np.ndarray:
    import numpy as np

    return np.stack(np.nonzero(inputs[0]), -1)


_GATHERS: dict[str, Callable[[_Arrays, Mapping[str, Any]], np.ndarray]] = {
    "embedding": _embedding,
    "gather": _gather,
    "index": _index,
    "index_select": _index_select,
    "nonzero": _nonzero,
}
_REASONS: dict[_Check, str] = {
    _chooses: "the elements at these places are equal: any of them is right",
    _remains: "each side is right for its own argument, exact or as kernels round the argument",
}


def _wide(array: np.ndarray) -> np.ndarray:
    """Return floats as float64, since numpy lacks operations for some types."""
    import numpy as np

    return array.astype(np.float64) if array.dtype.kind in "fV" else array
