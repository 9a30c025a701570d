"""What ends a recorder: NaN and Inf that an operator made, and no mask."""

from __future__ import annotations

import numpy as np
import pytest

from ascend_dump.statistics import Statistics, statistics
from ascend_dump.statistics.nonfinite import Judge, Slot, Wrong

INF, NAN = np.inf, np.nan


def slot(*values: float, content: object = None) -> Slot:
    return Slot(statistics(np.array(values, np.float32), engine="numpy"), content)


UNKNOWN = Slot(None)


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "expected"),
    [
        ("aten::mul", [slot(1)], [slot(2)], None),
        ("aten::mul", [slot(1)], [slot(2), slot(1, NAN)], Wrong("NaN", 1)),
        ("aten::softmax", [slot(-INF, -INF)], [slot(NAN, NAN)], Wrong("NaN", 0)),
        ("aten::exp", [slot(100)], [slot(INF)], Wrong("Inf", 0)),
        ("aten::neg", [slot(3e38)], [slot(-INF, 1)], Wrong("-Inf", 0)),
        ("aten::masked_fill", [slot(1, 2)], [slot(1, -INF)], None),
        ("aten::masked_fill", [slot(1, 2)], [slot(1, INF)], None),
        ("aten::masked_fill", [slot(1, 2)], [slot(1, NAN)], Wrong("NaN", 0)),
        ("aten::min", [slot(1, INF), slot(INF, INF)], [slot(INF)], None),
        ("aten::min", [slot(1, 2)], [slot(INF)], Wrong("Inf", 0)),
        ("aten::neg", [slot(1, INF)], [slot(-1, -INF)], None),
        ("aten::neg", [slot(1, INF)], [slot(-INF, -INF)], Wrong("-Inf", 0)),
        ("aten::neg", [slot(-1, -INF)], [slot(1, INF)], Wrong("Inf", 0)),
        ("aten::mul", [slot(1, INF), slot(2)], [slot(INF, INF)], Wrong("Inf", 0)),
        ("aten::add", [slot(1, -INF), slot(3e38)], [slot(INF, -INF)], Wrong("Inf", 0)),
        ("aten::add", [slot(3e38, 0), slot(0, -INF)], [slot(1, INF)], Wrong("Inf", 0)),
        ("aten::add", [], [slot(INF, 1)], Wrong("Inf", 0)),
        ("aten::view", [], [slot(INF, 1)], None),
        ("aten::log", [slot(0, 1)], [slot(INF, 0.5)], Wrong("Inf", 0)),
        ("aten::mm", [slot(INF, 1)], [], Wrong("Inf", 0)),
        ("aten::masked_fill", [], [slot(1, -INF)], None),
        ("anything", [slot(1, 2)], [slot(0, -INF)], None),
        ("aten::add", [slot(1, 2), slot(0, -INF)], [slot(1, -INF)], None),
        ("aten::add", [slot(1, 2), slot(0, -INF)], [slot(-INF, -INF)], Wrong("-Inf", 0)),
        ("aten::add", [slot(-3e38)], [slot(-INF, 1)], Wrong("-Inf", 0)),
        ("aten::add", [], [slot(-INF, 1)], None),
        ("aten::mm", [], [slot(-INF, 1)], Wrong("-Inf", 0)),
        ("aten::view", [], [slot(-INF, 1)], None),
        ("aten::log", [slot(0, 1)], [slot(-INF, 0.5)], None),
        ("aten::log", [slot(2, 1)], [slot(-INF, 0.5)], Wrong("-Inf", 0)),
        ("aten::log", [Slot(Statistics(2, nan=0, posinf=0, neginf=0))], [slot(-INF, 0.5)], None),
        ("aten::mm", [slot(-INF, 1)], [], None),
        ("aten::mm", [slot(NAN, 1)], [], Wrong("NaN", 0)),
        ("aten::mm", [UNKNOWN], [UNKNOWN], None),
    ],
)
def test_one_operator(op_type: str, inputs: list[Slot], outputs: list[Slot], expected: object) -> None:
    assert Judge().look_at(op_type, inputs, outputs) == expected


def test_what_a_mask_becomes_is_known_by_its_content() -> None:
    judge = Judge()
    made, read = slot(1, -INF, content="a"), slot(1, -INF, content="a")
    other = slot(2, -INF, content="b")
    assert judge.look_at("aten::masked_fill", [slot(1, 2)], [made]) is None
    assert judge.look_at("custom::scale", [read], [other]) is None
    assert judge.look_at("custom::again", [slot(2, -INF, content="b")], [slot(3, -INF)]) is None
    assert Judge().look_at("custom::scale", [read], [other]) == Wrong("-Inf", 0)


def test_what_a_mask_of_inf_becomes_may_overflow_beside_it() -> None:
    judge = Judge()
    far = slot(1, INF, content="far")
    assert judge.look_at("aten::masked_fill", [slot(1, 2)], [far]) is None
    assert judge.look_at("aten::sqrt", [far], [slot(1, INF, content="root")]) is None
    assert judge.look_at("aten::exp", [slot(1, INF, content="root")], [slot(INF, INF)]) == Wrong("Inf", 0)
    assert Judge().look_at("aten::sqrt", [far], [slot(1, INF)]) == Wrong("Inf", 0)
