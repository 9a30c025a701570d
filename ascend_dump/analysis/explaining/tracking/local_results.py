"""Track results of one of several ranks that correspond to no tensor of a program on fewer ranks.

A difference of such a result, or of a tensor computed from it, proves nothing. Examples are the norm of a gradient
before its reduction, the flat buffers of FSDP, and indices into a part of a vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

from ascend_dump.analysis.alignment.rank_parts.relations import NORM
from ascend_dump.analysis.alignment.shards import is_over_ranks
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.judging.input_noise import OriginNumber
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.numerics.tensor_pair import identity_of
from ascend_dump.analysis.operators.arguments import arguments_of
from ascend_dump.analysis.operators.collectives import collective_of
from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import COLLECTIVES, NO_INPUTS, SHAPED
from ascend_dump.reading import Record

__all__ = [
    "NO_COUNTERPART",
    "NO_COUNTERPART_INPUT",
    "LocalResults",
    "MadeAlone",
    "is_index_into_part",
    "only_passes_on",
    "why_local",
]

NO_COUNTERPART = "computed from what only this rank has, so that the other side has no such tensor"
NO_COUNTERPART_INPUT = "an input is computed from what only this rank has, so that the other side has no such tensor"
_LOCAL_REDUCTION = "a result of the part of one rank, which is no term of a sum or mean over ranks"
#: Linear operators: if an input is a term of a sum over ranks, the result is a term of a sum too. In a product only one
#: input may be a term, see `why_local`.
_LINEAR = frozenset(
    (
        *("add", "sub", "rsub", "neg", "mul", "div", "sum", "mean", "mm", "bmm", "addmm", "matmul", "linear"),
        *("copy", "cat", "stack", "lerp", "masked_fill", "where", "fill", "zero", "convolution", "index_add"),
        *("addcmul", "baddbmm"),
    )
)
#: Operators whose result for one element depends on other elements along an axis.
_MIXING = frozenset(
    {
        *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "softmax", "log_softmax"),
        *("cumsum", "cumprod", "sort", "topk", "argmax", "argmin", "argsort", "native_layer_norm", "native_group_norm"),
        *("native_layer_norm_backward", "native_group_norm_backward", "rms_norm", "_fused_rms_norm", "bincount"),
        *("native_batch_norm", "native_batch_norm_backward", "var", "std", "nonzero", "unique", "unique2"),
    }
)


#: Those whose result depends on all elements of a tensor.
_OF_ALL = frozenset({"bincount", "nonzero", "unique", "unique2"})


class MadeAlone(NamedTuple):
    """An operator that only one side runs, which made an input that differs."""

    of_actual: bool
    operator: Operator


class LocalResults:
    """The results without a counterpart on the other side, by side (0: actual) and contents.

    Each has the number of the hidden origin at the first such result that it is computed from, or None if that is
    unknown. The origin is reported if a parameter that is computed from it differs.
    """

    def __init__(self) -> None:
        self._contents: tuple[dict[Any, Optional[OriginNumber]], dict[Any, Optional[OriginNumber]]] = ({}, {})
        #: For each side, by memory in this step: the last of the operators that only this side runs and that wrote it.
        self._makers: tuple[dict[Any, Operator], dict[Any, Operator]] = ({}, {})

    def begin_step(self) -> None:
        """Begin a step. Storages are numbered anew in each step, so the writers are forgotten."""
        for makers in self._makers:
            makers.clear()

    def add(self, a: Record, b: Record, origin: Optional[OriginNumber]) -> None:
        """Note that two records have no counterpart.

        origin: at the first such result that they are computed from; None if there is none
        """
        for contents, record in zip(self._contents, (a, b)):
            identity = identity_of(record)
            if identity is not None:
                contents[identity] = origin

    def origin_of(self, pairs: Iterable[Pair]) -> Optional[OriginNumber]:
        """Return the first origin of the results among these records; None if there is none."""
        origins = [
            contents.get(identity_of(record))
            for pair in pairs
            for contents, record in zip(self._contents, (pair.actual, pair.reference))
            if record is not None
        ]
        return min((origin for origin in origins if origin is not None), default=None)

    def are_local(self, a: Record, b: Record) -> bool:
        """Return True if one of two tensors is a result without a counterpart."""
        return any(identity_of(record) in contents for contents, record in zip(self._contents, (a, b)))

    def add_operator(self, side: int, operator: Operator) -> None:
        """Note an operator that only one side (0: actual) runs.

        If one of its inputs has no counterpart, its outputs have none either. Rows that ranks exchange have none: they
        come in the order of the ranks.
        """
        contents, makers = self._contents[side], self._makers[side]
        local = [contents[identity] for record in operator.inputs if (identity := identity_of(record)) in contents]
        if local or _exchanges_rows(operator):
            origin = min((origin for origin in local if origin is not None), default=None)
            for record in operator.outputs:
                if (identity := identity_of(record)) is not None:
                    contents[identity] = origin
        source = next((makers[key] for record in operator.inputs[:1] if (key := storage_of(record)) in makers), None)
        is_copy = is_view(operator.function) or operator.function in ("copy", "clone", "contiguous")
        for record in operator.outputs:
            memory = storage_of(record)
            if memory is not None:
                makers[memory] = source if is_copy and source is not None else operator

    def maker(self, a: Optional[Record], b: Optional[Record]) -> Optional[MadeAlone]:
        """Return the operator that computed one of two inputs and that only one side runs.

        None if there is none, or if such operators of both sides wrote the two inputs.
        """
        made = [
            None if record is None else makers.get(storage_of(record)) for makers, record in zip(self._makers, (a, b))
        ]
        for side in (0, 1):
            operator = made[side]
            other = made[1 - side]
            if operator is not None and _computes(operator) and (other is None or not _computes(other)):
                return MadeAlone(side == 0, operator)
        return None

    def passed_on_by(self, a: Record, b: Record) -> list[str]:
        """Return a sentence on the operator that wrote an input, if only one side runs it, and it computes nothing."""
        sides = ("actual", "the reference")
        for makers, record, side in zip(self._makers, (a, b), sides):
            operator = makers.get(storage_of(record))
            if operator is not None:
                return [f"read from {operator.label}, which {side} runs alone"]
        return []


def _exchanges_rows(operator: Operator) -> bool:
    """Return True for an all_to_all of rows, such as tokens for experts, or of their numbers."""
    if not operator.op_type.startswith(COLLECTIVES):
        return False
    calls = [collective_of(record) for record in operator.outputs if len(record.shape or ()) < 3]
    return any(call is not None and call[0].kind == "all_to_all" for call in calls)


def _computes(operator: Operator) -> bool:
    function = operator.function
    return not (
        operator.op_type.startswith(COLLECTIVES)
        or is_view(function)
        or function in NO_INPUTS
        or function in SHAPED
        or function in ("copy", "clone", "contiguous", "cat", "split", "chunk_cat", "split_with_sizes_copy")
    )


def why_local(
    operator: Operator, inputs: Iterable[Pair], output: Pair, *, is_alone: bool, adds_own: bool = False
) -> Optional[str]:
    """Return the reason why an output that differs proves nothing; None if it has to agree.

    inputs    the pairs of the inputs
    is_alone  only one of several ranks runs the operator
    adds_own  an input that agrees with the other side differs from that of other ranks: added to a term of a sum over
              ranks, it makes a term of no sum of the other side
    """
    pairs = list(inputs)
    function = operator.function
    if operator.op_type.startswith(COLLECTIVES):
        return NO_COUNTERPART  # collectives are checked elsewhere, with the inputs of all ranks
    if any(pair.verdict == "unmatched" and pair.actual is not None and pair.reference is not None for pair in pairs):
        return NO_COUNTERPART_INPUT
    if function in NO_INPUTS or function in SHAPED:
        return NO_COUNTERPART
    over_ranks = [pair for pair in pairs if is_over_ranks(pair.transformation)]
    if any(pair.transformation.startswith(NORM) for pair in over_ranks):
        return NO_COUNTERPART
    if over_ranks and is_alone:
        return NO_COUNTERPART
    if over_ranks and not (is_view(function) or function in _LINEAR):
        return NO_COUNTERPART
    if len(over_ranks) > 1 and function in ("mul", "mm", "bmm", "matmul", "addcmul", "convolution"):
        return NO_COUNTERPART
    if over_ranks and adds_own:
        return NO_COUNTERPART
    parts = [pair for pair in pairs if pair.transformation.startswith("part ")]
    if parts and not output.transformation.startswith("part "):
        return _LOCAL_REDUCTION
    if function in _MIXING and any(_mixes_parts(operator, pair) for pair in parts):
        return _LOCAL_REDUCTION
    return None


def _mixes_parts(operator: Operator, pair: Pair) -> bool:
    """Return True if an element of the result depends on elements of an input that other ranks have.

    Without an axis or a normalised shape, that of the last axes, among the arguments, the operator works on each row of
    axis 0, the axis of the batch.
    """
    axis_text = pair.transformation.partition("along axis ")[2].partition(",")[0]
    count = len(pair.record.shape or ())
    if operator.function in _OF_ALL or count < 2:
        return True
    if " and part" in pair.transformation or not axis_text.isdecimal():
        return True
    arguments = arguments_of(operator)
    shape = None if arguments is None else arguments.values.get("normalized_shape")
    if isinstance(shape, list) and shape:
        return int(axis_text) >= count - len(shape)
    axis = None if arguments is None else arguments.values.get("dim")
    if isinstance(axis, int) and not isinstance(axis, bool):
        return axis % count == int(axis_text)
    return int(axis_text) != 0


def only_passes_on(operator: Operator) -> bool:
    """Return True for an operator that computes nothing by itself: a view, or a collective."""
    return is_view(operator.function) or operator.op_type.startswith(COLLECTIVES)


def is_index_into_part(record: Record, pairs: Sequence[Pair]) -> bool:
    """Return True for an input of integers or flags if another input is a part of a tensor.

    For example, these are indices into the part of a vocabulary that a rank has.
    """
    is_exact = float_kind(record.dtype or "") is None
    return is_exact and any(pair.transformation.startswith("part ") for pair in pairs)
