"""Name the operator that brings other keys or values to an attention: it moves, rounds, repeats or caches them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.alignment.attention_parts import AttentionPart, TokenAttention
from ascend_dump.analysis.alignment.tokens import TokenAlignment
from ascend_dump.analysis.compare.by_tokens.attention_distances import (
    MOST_VECTORS,
    SAME_VECTOR,
    distances,
    lacks,
    moved_head,
)
from ascend_dump.analysis.compare.by_tokens.operand_paths import (
    OperandPath,
    earlier_path,
    line_of,
    overwrites,
    path_of,
    vectors_of,
)
from ascend_dump.analysis.numerics.float_types import float_kind
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["AGREE", "UNITS", "AttentionCause", "cause_of_heads", "cause_of_rows", "narrowed_weights", "narrowing"]

#: Sorted values agree up to this share of the largest one, or this many rounding units.
AGREE, UNITS = 1e-4, 32.0
_SCALING = frozenset({"mul", "div"})
_SELECTING = frozenset({"index", "index_select", "gather", "take", "_unsafe_index", "embedding"})
#: Operators that change the number and the order of heads.
_REPEATING = frozenset({"repeat", "repeat_interleave", "expand", "stack"})
#: Operators that change the order of keys.
_ORDERING = _SELECTING | {"cat", "flip", "roll"}


class AttentionCause(NamedTuple):
    """The kind and the operators of an origin, of actual and of the reference, the reason, and a fact besides."""

    kind: str
    operators: tuple[Operator, Operator]
    text: str
    fact: str = ""


def cause_of_heads(a: TokenAttention, b: TokenAttention, alignment: TokenAlignment) -> Optional[AttentionCause]:
    """Return the cause of other scores if queries and keys agree: heads read the keys of other heads, if they do.

    None if keys are only near those of the reference, and nothing rounds them.
    """
    text = "the queries and keys agree, and the scores differ"
    head, path = moved_head(a.rows, b.rows, a.keys), _path(a, alignment, of_values=False)
    if head is None:
        narrowed = _narrowed_rows(a, path, a.rows, b.rows, alignment)
        if narrowed is not None:
            text = f"the queries agree, and the keys are rounded to {narrowed.outputs[0].dtype}"
            return AttentionCause("structure", (narrowed, b.part.scores), text)
        if not _agree(a.rows, b.rows, alignment):
            return None
        return AttentionCause("compute", (a.part.scores, b.part.scores), text)
    text += f": head {head[0]} reads the keys of head {head[1]} of the reference"
    return AttentionCause("wiring", (_last_of(path, _REPEATING) or a.part.scores, b.part.scores), text)


def cause_of_rows(
    a: TokenAttention, b: TokenAttention, text: str, alignment: TokenAlignment, *, of_values: bool = False
) -> AttentionCause:
    """Return the cause of other keys, or values: the operator of actual that brings them to the product.

    A cache that lacks a key of the reference, or in which a write replaced it, was written wrongly. So was one that has
    it where the mask hides it, if as many keys are not hidden as in the reference.
    """
    import numpy as np

    path = _path(a, alignment, of_values=of_values)
    if of_values:
        # Scores that agree prove what the keys come through, such as a cache of latents from which both are made.
        of_keys = _path(a, alignment, of_values=False)
        moving = [operator for operator in path.moving if operator not in of_keys.moving]
        path = path._replace(moving=moving, writer=None if path.writer is of_keys.writer else path.writer)
    product = a.part.values if of_values else a.part.scores
    partner = b.part.values if of_values else b.part.scores
    rows, expected = (a.values, b.values) if of_values else (a.rows, b.rows)
    reader = _last_of(path, _SELECTING) or _last_of(path, _ORDERING)
    if not rows.size or not expected.size:  # values of an unknown layout, or no key that is not masked
        return AttentionCause("input", (reader or product, partner), text)
    narrowed = _narrowed_rows(a, path, rows, expected, alignment)
    if narrowed is not None:
        what = f"{'values' if of_values else 'keys'} are rounded to {narrowed.outputs[0].dtype}"
        return AttentionCause("structure", (narrowed, partner), text, what)
    if of_values and not lacks(rows, expected):
        mover = _last_of(path, _REPEATING if moved_head(rows, expected, a.keys) else _ORDERING)
        return AttentionCause("input", (mover or product, partner), text)
    if path.writer is None:
        return AttentionCause("input", (reader or product, partner), text)
    is_hidden = not of_values and a.keys == b.keys and not lacks(a.all_rows, b.rows)
    writer = line_of(path.writer)
    written = writer if path.indices is None else f"{writer}, to indices of {line_of(path.indices)}"
    missing = expected[distances(rows, expected) > SAME_VECTOR * np.abs(expected).max()]
    calls = [call.operators for call in alignment.calls[0][: a.call + 1]]
    if is_hidden or _lacks_written(path, path.writer, expected) or overwrites(calls, path.writer, missing, SAME_VECTOR):
        fact = f"the cache has not all of them where they are read: they are written by {written}"
        return AttentionCause("input", (path.writer, partner), text, fact)
    return AttentionCause("input", (reader or product, partner), text, f"the cache is written by {written}")


def _narrowed_rows(
    token: TokenAttention, path: OperandPath, rows: np.ndarray, expected: np.ndarray, alignment: TokenAlignment
) -> Optional[Operator]:
    """Return the operator that rounds vectors which are nearly those of the reference; None if there is none."""
    import numpy as np

    operators, before = alignment.calls[0][token.call].operators, list[Operator]()
    if path.writer is not None and path.writer.inputs:
        before = path_of(operators, path.writer, path.writer.inputs[-1]).moving
    if path.outside is not None:
        earlier = earlier_path([call.operators for call in alignment.calls[0][: token.call]], path.outside)
        before = [] if earlier is None else earlier.moving
    operator = narrowing([*before, *path.moving])
    kind = None if operator is None else float_kind(operator.outputs[0].dtype or "")
    if kind is None or not expected.size:
        return None
    if _agree(rows, expected, alignment):
        return None
    relative = float(distances(rows, expected).max()) / max(float(np.abs(expected).max()), 1e-30)
    return operator if relative <= max(SAME_VECTOR, kind.unit) else None


def _agree(rows: np.ndarray, expected: np.ndarray, alignment: TokenAlignment) -> bool:
    """Return True if there is a vector near each expected one, and not only nearly the same."""
    import numpy as np

    limit = max(AGREE, UNITS * alignment.unit) * max(float(np.abs(expected).max(initial=0.0)), 1e-30)
    return bool(distances(rows, expected).max(initial=0.0) <= limit)


def _lacks_written(path: OperandPath, writer: Operator, expected: np.ndarray) -> bool:
    """Return True if the memory that an operator writes to has not all of the expected vectors afterwards.

    A memory without any of them may have them in another form: multiplied with a factor, or along another axis.
    """
    import numpy as np

    size = expected.shape[1]
    chosen = expected[np.linspace(0, len(expected) - 1, min(len(expected), MOST_VECTORS)).astype(int)]
    are_far = distances(vectors_of(writer.outputs[0], size), chosen) > SAME_VECTOR * np.abs(chosen).max()
    may_be_other_form = (
        _last_of(path, _SCALING | {"_to_copy"}) is not None or (writer.outputs[0].shape or (0,))[-1] % size
    )
    return bool(are_far.any() and not (are_far.all() and may_be_other_form))


def _path(token: TokenAttention, alignment: TokenAlignment, *, of_values: bool) -> OperandPath:
    """Return the path of the keys, or the values, of a token of actual."""
    part = token.part
    reader = part.values if of_values else part.scores
    return path_of(alignment.calls[0][token.call].operators, reader, _operand(part, of_values=of_values))


def _operand(part: AttentionPart, *, of_values: bool) -> Record:
    """Return the record of the keys, or of the values, that an attention reads."""
    if part.is_fused:
        return part.scores.inputs[2 if of_values else 1]
    keys = (part.softmax.outputs[0].shape or (0,))[-1]
    counts = (keys, keys - 1)  # a sink has a column of its own
    first, second = (part.values if of_values else part.scores).inputs[-2:]
    axis = -2 if of_values else -1
    return first if (second.shape or (0, 0))[axis] not in counts and (first.shape or (0, 0))[axis] in counts else second


def _last_of(path: OperandPath, classes: frozenset[str]) -> Optional[Operator]:
    """Return the last operator of some classes. An expansion of no axis, as before a product, has no effect."""
    return next((op for op in reversed(path.moving) if operator_class(op.op_type) in classes and _expands(op)), None)


def _expands(operator: Operator) -> bool:
    sizes = (math.prod(record.shape or ()) for record in (*operator.inputs[:1], *operator.outputs[:1]))
    return operator_class(operator.op_type) != "expand" or len({*sizes}) > 1


def narrowed_weights(token: TokenAttention, alignment: TokenAlignment) -> Optional[Operator]:
    """Return the operator of actual that casts weights to a type with less precision; None if there is none."""
    part = token.part
    if part.is_fused:
        return None
    weights = next(record for record in part.values.inputs[-2:] if record is not _operand(part, of_values=True))
    return narrowing(path_of(alignment.calls[0][token.call].operators, part.values, weights).moving)


def narrowing(operators: Sequence[Operator]) -> Optional[Operator]:
    """Return the first operator that casts to a type with less precision; None if there is none."""
    for operator in operators:
        kinds = [float_kind(record.dtype or "") for record in (*operator.inputs[:1], *operator.outputs[:1])]
        if len(kinds) == 2 and kinds[0] is not None and kinds[1] is not None and kinds[1].unit > kinds[0].unit:
            return operator
    return None
