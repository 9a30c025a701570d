"""Find weights whose layout differs from that of the same weight in other layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ascend_dump.analysis.weights.comparison import WeightFinding
from ascend_dump.analysis.weights.names import parsed
from ascend_dump.analysis.weights.sides import Side
from ascend_dump.errors import ReadError

__all__ = ["with_unusual_layouts"]

_Layout = tuple[str, str]  # relation, and text of a finding
_Layouts = Mapping[Any, Counter[_Layout]]  # number of layers by layout, by the names of a weight
#: Relations of weights that have the order of the reference, and of weights that have another one.
_SAME_ORDER, _OTHER_ORDER = ("equal", "cast"), ("permuted", "transposed")


def with_unusual_layouts(findings: list[WeightFinding], sides: tuple[Side, Side]) -> list[WeightFinding]:
    """Return the findings. A layout becomes a difference if more layers have another layout of the same weight.

    If as many layers have each of two layouts, the weights that have these layouts decide: keys whose order one of two
    layers lacks are odd if the queries of both layers have it. If this decides nothing, either order is a difference
    from the reference.
    """
    layouts: dict[Any, Counter[_Layout]] = {}
    for finding in findings:
        if finding.verdict in ("equal", "noise"):
            layouts.setdefault(_templates(finding), Counter())[_layout(finding)] += 1
    return [_checked(finding, layouts, sides) for finding in findings]


def _layout(finding: WeightFinding) -> _Layout:
    return finding.relation, finding.text


def _checked(finding: WeightFinding, layouts: _Layouts, sides: tuple[Side, Side]) -> WeightFinding:
    counts = layouts.get(_templates(finding), Counter())
    if finding.verdict not in ("equal", "noise") or len(counts) < 2:
        return finding
    usual = max(counts, key=lambda layout: _votes(layout, counts, layouts))
    if _votes(usual, counts, layouts) <= _votes(_layout(finding), counts, layouts):
        return finding
    (relation, text), count = usual, counts[usual]
    others = f"in {count} other {'layer' if count == 1 else 'layers'}"
    if finding.relation in _SAME_ORDER:
        if relation not in _OTHER_ORDER or _has_any_order(finding, sides, relation):
            return finding
        facts = (finding.text, f"in the order of the reference, but {others} {text or relation}")
        return finding._replace(relation=relation, verdict="different", text="; ".join(filter(None, facts)))
    if finding.relation == "unrecorded":
        return finding
    elsewhere = f"{others} {relation}" + (f" ({text})" if text else "")
    return finding._replace(verdict="different", text="; ".join(filter(None, (finding.text, elsewhere))))


def _votes(layout: _Layout, counts: Counter[_Layout], layouts: _Layouts) -> tuple[int, int, bool]:
    """Return a number that is greater for more usual layouts of a weight.

    Layouts that as many layers have are equally usual, except for the order of the reference and another one.
    """
    orders = [other for other in counts if other[0] in _OTHER_ORDER]
    if len(counts) > 2 or len(orders) != 1 or not any(other[0] in _SAME_ORDER for other in counts):
        return counts[layout], 0, False
    alike = [of_weight for of_weight in layouts.values() if orders[0] in of_weight]
    return counts[layout], sum(of_weight[layout] for of_weight in alike), layout[0] in _SAME_ORDER


def _has_any_order(finding: WeightFinding, sides: tuple[Side, Side], relation: str) -> bool:
    """Return True if a weight is the same in the other order too, as one with equal rows is, or a symmetric one."""
    side = sides[0]
    [name] = finding.actual
    tensor = side.tensors[side.number_of[name]]
    try:
        values = tensor.elements().reshape(tensor.shape)
    except ReadError:
        return True
    if relation == "transposed":
        return values.ndim < 2 or _are_equal(values, values.swapaxes(-1, -2))
    return not values.ndim or _are_equal(values[1:], values[:-1])


def _are_equal(values: Any, others: Any) -> bool:
    import numpy as np

    return bool(np.array_equal(values, others))


def _templates(finding: WeightFinding) -> tuple[frozenset[str], frozenset[str]]:
    actual, reference = (
        frozenset(parsed(name).template for name in names) for names in (finding.actual, finding.reference)
    )
    return actual, reference
