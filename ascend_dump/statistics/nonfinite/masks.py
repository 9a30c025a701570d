"""Operators that make Inf because the program requests it, or only pass it on: masks are no overflow.

Attention masks its scores with -Inf on every step, and softmax turns it into zeros; a search for the nearest masks its
distances with +Inf. Names are those of `plain_name`, equal for the spellings of all frameworks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

__all__ = ["FILLING", "RULES", "VIEWS", "MaskRule", "Part", "is_mask", "moves", "plain_name", "rule_of"]


class MaskRule(NamedTuple):
    """The conditions under which Inf in an output of some operators is no fault.

    spread     one Inf in the inputs may fill any number of elements
    unasked    they may return -Inf without Inf in the inputs
    turns      they turn +Inf into -Inf; +Inf from -Inf is a fault, as for -log(0)
    moves      they only move elements, so that outputs consist of elements of the inputs
    """

    why: str
    operators: frozenset[str]
    spread: bool = False
    unasked: bool = False
    turns: bool = False
    moves: bool = False


#: They may take Inf from a number that is in no record.
FILLING = frozenset(
    (
        *("maskedfill", "maskedfills", "maskedfillscalar", "where", "select", "selectv2", "indexfill"),
        *("full", "fulllike", "newfull", "fill", "fills", "fillv2", "constantpadnd"),
        *("scalartensor", "tensor", "liftfresh", "liftfreshcopy", "const", "constant"),
    )
)
RULES = (
    MaskRule(
        "fills in values of the program's choice",
        FILLING | {"indexput", "indexputimpl", "maskedscatter", "copy"},
        spread=True,
    ),
    MaskRule(
        "moves or repeats elements as they are",
        frozenset(
            (
                *("triu", "tril", "clone", "tocopy", "reshapecopy", "expandcopy", "foreachcopy", "contiguous", "lift"),
                *("cat", "stack", "repeat", "roll", "flip", "index", "unsafeindex", "indexselect", "gather"),
                *("slicescatter", "selectscatter", "sort", "topk", "kthvalue", "amax", "max", "amin", "min"),
            )
        ),
        moves=True,
    ),
    MaskRule(
        "adds scores to a mask, or bounds what was masked",
        frozenset(("add", "minimum", "maximum", "clamp", "clampmax", "clampmin")),
    ),
    MaskRule("scales what was masked", frozenset(("sub", "rsub", "mul", "div", "neg")), turns=True),
    MaskRule(
        "keeps the masked places of a row at -Inf",
        frozenset(("logsoftmax", "logsumexp", "logsigmoidforward", "logaddexp")),
    ),
    MaskRule(
        "begins a recursion over logarithms of probabilities with that of zero",
        frozenset(("ctcloss", "cudnnctcloss")),
        unasked=True,
    ),
)
#: Operators whose outputs are views of their inputs.
VIEWS = frozenset(
    (
        *("t", "view", "detach", "alias", "expand", "permute", "transpose", "unsqueeze", "squeeze", "slice", "select"),
        *("unsafeview", "reshapealias", "reshape", "flatten", "split", "splitwithsizes", "chunk", "unbind", "narrow"),
        *("asstrided", "diagonal", "unfold", "unflatten", "expanddims", "stridedslice", "identity", "broadcastto"),
    )
)
_VIEW = MaskRule("is a view", frozenset(), moves=True)
_BY_NAME = {name: rule for rule in RULES for name in rule.operators}


def plain_name(op_type: str) -> str:
    """Return an operator without namespace, overload and spelling: `aten::masked_fill_.Scalar` is `maskedfill`."""
    name = op_type.rpartition("::")[2].removeprefix("aten.")
    return name.partition(".")[0].replace("_", "").lower()


def rule_of(op_type: str) -> Optional[MaskRule]:
    return _BY_NAME.get(plain_name(op_type))


class Part(NamedTuple):
    """The counts of a tensor that the rules use: its elements, and those that are -Inf and +Inf; None if it has NaN, or
    the counts are unknown."""

    elements: int
    negative: Optional[int]
    positive: Optional[int] = 0

    @property
    def is_known(self) -> bool:
        return self.negative is not None and self.positive is not None

    @property
    def infinite(self) -> int:
        return (self.negative or 0) + (self.positive or 0)


def is_mask(op_type: str, view: bool, inputs: Iterable[Part], numbers: bool, outputs: Sequence[Part]) -> bool:
    """Return True if an operator with NaN or Inf in its outputs only made or passed on a mask.

    view     its outputs are known to be views of its inputs
    inputs   its inputs before the call, used only by some rules
    numbers  -Inf or +Inf was an argument that is a number
    outputs  its outputs that are not finite
    """
    rule = rule_of(op_type) or (_VIEW if view or plain_name(op_type) in VIEWS else None)
    if rule is None or not all(part.is_known for part in outputs):
        return False
    if rule.unasked:
        return not any(part.positive for part in outputs)
    parts = list(inputs)
    if not all(part.is_known for part in parts):
        return False
    if rule.spread:
        return numbers or any(part.infinite for part in parts)
    return all(_is_from_inputs(part, parts, rule) for part in outputs)


def moves(op_type: str) -> bool:
    """Return True if the outputs of an operator consist of unchanged elements of its inputs."""
    rule = rule_of(op_type)
    return rule.moves if rule is not None else plain_name(op_type) in VIEWS


def _is_from_inputs(output: Part, inputs: Sequence[Part], rule: MaskRule) -> bool:
    """Return True if an output has no more Inf than the broadcast inputs."""

    negative = positive = 0
    for part in inputs:
        times = -(-output.elements // max(part.elements, 1))
        negative += (part.infinite if rule.turns else part.negative or 0) * times
        positive += (part.positive or 0) * times
    return (output.negative or 0) <= negative and (output.positive or 0) <= positive
