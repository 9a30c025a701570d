"""Operators that make -Inf because the program asks for it, or only carry it on: masks are no overflow.

Attention masks its scores with -Inf on every step, which softmax makes zeros of. Names are those of `plain_name`, which
are the same for the spellings of all frameworks.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

__all__ = ["FILLING", "RULES", "MaskRule", "plain_name", "rule_of"]


class MaskRule(NamedTuple):
    """Operators for which -Inf in an output means nothing, and when.

    spread     whether one -Inf that they are given may stand in any number of places: they fill it in
    unasked    whether they need not be given any
    """

    why: str
    operators: frozenset[str]
    spread: bool = False
    unasked: bool = False


#: They may take -Inf from a number, which stands in no record.
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
                *("slicescatter", "selectscatter", "sort", "topk", "amax", "max"),
            )
        ),
    ),
    MaskRule(
        "adds scores to a mask, or scales what was masked",
        frozenset(("add", "sub", "mul", "div", "minimum", "maximum", "clamp", "clampmax")),
    ),
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
_BY_NAME = {name: rule for rule in RULES for name in rule.operators}


def plain_name(op_type: str) -> str:
    """An operator without namespace, overload and spelling: `aten::masked_fill_.Scalar` is `maskedfill`."""
    name = op_type.rpartition("::")[2].removeprefix("aten.")
    return name.partition(".")[0].replace("_", "").lower()


def rule_of(op_type: str) -> Optional[MaskRule]:
    return _BY_NAME.get(plain_name(op_type))
