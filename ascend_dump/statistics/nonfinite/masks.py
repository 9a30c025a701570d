"""Operators that make Inf because the program asks for it, or only carry it on: masks are no overflow.

Attention masks its scores with -Inf on every step, which softmax makes zeros of; a search for the nearest masks its
distances with +Inf. Names are those of `plain_name`, which are the same for the spellings of all frameworks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

__all__ = ["FILLING", "RULES", "VIEWS", "MaskRule", "Part", "is_mask", "moves", "plain_name", "rule_of"]


class MaskRule(NamedTuple):
    """Operators for which Inf in an output means nothing, and when.

    spread     whether one Inf that they are given may stand in any number of places: they fill it in
    unasked    whether they need not be given any to give -Inf
    turns      whether they make -Inf of +Inf; +Inf of -Inf is none, as that of -log(0)
    moves      whether elements stay what they are, so that what they give was given to them
    """

    why: str
    operators: frozenset[str]
    spread: bool = False
    unasked: bool = False
    turns: bool = False
    moves: bool = False


#: They may take Inf from a number, which stands in no record.
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
#: Operators whose outputs are what they are given, looked at in another way.
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
    """What of a tensor the rules look at: its number of elements, and how many of them are -Inf and +Inf; None where
    NaN is among them, or where nobody can tell."""

    elements: int
    negative: Optional[int]
    positive: Optional[int] = 0

    @property
    def is_known(self) -> bool:
        return self.negative is not None and self.positive is not None

    @property
    def infinite(self) -> int:
        return (self.negative or 0) + (self.positive or 0)


def is_mask(op_type: str, view: bool, given: Iterable[Part], numbers: bool, made: Sequence[Part]) -> bool:
    """Return True if an operator that gave NaN or Inf only made or carried a mask.

    view     whether its outputs are known to be views of what it was given
    given    its inputs as it read them, looked at only where a rule asks for them
    numbers  whether it was given -Inf or +Inf as a number
    made     its outputs that are not finite
    """
    rule = rule_of(op_type) or (_VIEW if view or plain_name(op_type) in VIEWS else None)
    if rule is None or not all(part.is_known for part in made):
        return False
    if rule.unasked:
        return not any(part.positive for part in made)
    parts = list(given)
    if not all(part.is_known for part in parts):
        return False
    if rule.spread:
        return numbers or any(part.infinite for part in parts)
    return all(_is_given(part, parts, rule) for part in made)


def moves(op_type: str) -> bool:
    """Return True if the elements that an operator gives are some of those that it was given, as they were."""
    rule = rule_of(op_type)
    return rule.moves if rule is not None else plain_name(op_type) in VIEWS


def _is_given(made: Part, given: Sequence[Part], rule: MaskRule) -> bool:
    """Return True if an output has no more Inf than the inputs bring to it, broadcast."""

    negative = positive = 0
    for one in given:
        times = -(-made.elements // max(one.elements, 1))
        negative += (one.infinite if rule.turns else one.negative or 0) * times
        positive += (one.positive or 0) * times
    return (made.negative or 0) <= negative and (made.positive or 0) <= positive
