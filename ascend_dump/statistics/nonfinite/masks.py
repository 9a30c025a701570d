"""Rules for operators that create Inf on purpose, as a mask, or only pass masks on. Masks are not errors.

Attention masks scores with -Inf in every step, and softmax turns -Inf into zeros. A search for the nearest element
masks distances with +Inf. Operators have the names of `plain_name`, which are equal for all frameworks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

__all__ = ["FILLING", "RULES", "VIEWS", "MaskRule", "Part", "is_mask", "moves", "plain_name", "rule_of"]


class MaskRule(NamedTuple):
    """A rule for some operators that says when Inf in their outputs is a mask and no fault.

    Without flags, Inf is accepted if the inputs have at least as many Inf of the same sign.
    why        the reason, as a part of a sentence about the operators
    spread     one Inf in the inputs may fill any number of elements of the outputs
    unasked    -Inf is accepted without any Inf in the inputs
    turns      +Inf in the inputs may become -Inf. The reverse is a fault, such as -log(0)
    moves      the outputs consist of unchanged elements of the inputs
    """

    why: str
    operators: frozenset[str]
    spread: bool = False
    unasked: bool = False
    turns: bool = False
    moves: bool = False


#: Operators that may fill in an Inf that the program passes as a number. Such a number is in no record.
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
        "keeps the masked elements of a row at -Inf",
        frozenset(("logsoftmax", "logsumexp", "logsigmoidforward", "logaddexp")),
    ),
    MaskRule(
        "begins a recursion over logarithms of probabilities with the logarithm of zero",
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
    """Return an operator's name without namespace, overload, underscores and capitals.

    `aten::masked_fill_.Scalar` becomes `maskedfill`.
    """
    name = op_type.rpartition("::")[2].removeprefix("aten.")
    return name.partition(".")[0].replace("_", "").lower()


def rule_of(op_type: str) -> Optional[MaskRule]:
    return _BY_NAME.get(plain_name(op_type))


class Part(NamedTuple):
    """The counts of a tensor that the rules use.

    elements            number of elements
    negative, positive  number of -Inf and of +Inf; None if it is unknown, or if the tensor has NaN
    """

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
    """Return True if an operator with NaN or Inf in its outputs only created or passed on a mask.

    view     True if its outputs are known to be views of its inputs
    inputs   its inputs before the call; only some rules use them
    numbers  True if one of its arguments is a number that is -Inf or +Inf
    outputs  the outputs that are not finite
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
    """Return True if an output has at most as many Inf of each sign as the inputs, after broadcasting to its size."""

    negative = positive = 0
    for part in inputs:
        times = -(-output.elements // max(part.elements, 1))
        negative += (part.infinite if rule.turns else part.negative or 0) * times
        positive += (part.positive or 0) * times
    return (output.negative or 0) <= negative and (output.positive or 0) <= positive
