"""Indices and flags that rounding changed: what follows from them is told as that, and is no origin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_compare_elements import compared, last_place, normal, operator

from ascend_dump import Comparison
from ascend_dump.writing import Item

pytest.importorskip("rapidfuzz")

#: Two logits of each row are nearly equal.
TIES = normal(6, 4)
TIES[:, 1] = TIES[:, 0] = 3.0
FLIPPED = TIES.copy()
FLIPPED[2, 1] = np.nextafter(np.float32(3.0), np.float32(4.0))
ROWS = normal(4, 5, seed=1)
INDEX = '{"op": "aten.index.Tensor", "args": {"self": {"input": 0}, "indices": [{"input": 1}]}}'


def choose(logits: np.ndarray) -> tuple[list[Item], np.ndarray]:
    """The best of each row, of logits that a product made."""
    chosen = logits.argmax(1)[:, None]
    best = np.take_along_axis(logits, chosen, 1)
    product = operator("aten::mm", [normal(6, 3), normal(3, 4)], [logits])
    return [*product, *operator("aten::topk", [logits], [best, chosen], seq=1)], chosen[:, 0]


def gather(logits: np.ndarray, shift: int = 0) -> list[Item]:
    items, chosen = choose(logits)
    rows = ROWS[np.roll(chosen, shift)]
    return [
        *items,
        *operator("aten::index", [ROWS, chosen], [rows], seq=2, call=INDEX),
        *operator("aten::mm", [rows, normal(5, 2)], [rows @ normal(5, 2)], seq=3),
    ]


def test_rows_that_other_experts_compute_are_not_judged(tmp_path: Path) -> None:
    found = compared(tmp_path, gather(FLIPPED), gather(TIES))
    assert (found.verdict, found.origins) == ("noise", ())
    assert {pair.record.op_name for pair in found.pairs if pair.undefined} == {"index_2", "mm_3"}
    assert found.undefined == {"a tensor: it follows from indices or flags that rounding changed": 2}


def test_a_gather_of_other_rows_than_its_indices_select_is_wrong(tmp_path: Path) -> None:
    found = compared(tmp_path, gather(FLIPPED, shift=1), gather(TIES))
    assert [(one.op_name, one.kind) for one in found.origins] == [("index_2", "compute")]


def activated(logits: np.ndarray, factor: float = 1.0) -> list[Item]:
    """The activation of the rows that are chosen, in the order of their experts."""
    items, chosen = choose(logits)
    rows = ROWS[chosen]
    result = (rows / (1 + np.exp(-rows)) * factor).astype("f4")
    return [
        *items,
        *operator("aten::index", [ROWS, chosen], [rows], seq=2, call=INDEX),
        *operator("aten::silu", [rows], [result], seq=3),
    ]


def test_a_wrong_function_of_rows_that_are_not_the_same_is_seen(tmp_path: Path) -> None:
    found = compared(tmp_path, activated(FLIPPED, 1.5), activated(TIES))
    assert [(one.op_name, one.kind) for one in found.origins] == [("silu_3", "compute")]


def test_a_right_function_of_rows_that_are_not_the_same_is_no_origin(tmp_path: Path) -> None:
    found = compared(tmp_path, activated(FLIPPED), activated(TIES))
    assert (found.verdict, found.origins) == ("noise", ())


def selected(logits: np.ndarray, drop: int = 0) -> list[Item]:
    """The places of the logits above a threshold that some of them are at."""
    flags = logits > np.float32(3.0)
    places = np.stack(np.nonzero(flags), -1)
    product = operator("aten::mm", [normal(6, 3), normal(3, 4)], [logits])
    compare = operator("aten::gt", [logits, np.float32(3.0).reshape(())], [flags], seq=1)
    return [*product, *compare, *operator("aten::nonzero", [flags], [places[drop:]], seq=2)]


def test_the_number_of_elements_may_follow_from_flags(tmp_path: Path) -> None:
    found = compared(tmp_path, selected(FLIPPED), selected(TIES))
    assert (found.verdict, found.origins) == ("noise", ())


def test_another_number_of_elements_of_equal_flags_is_wrong(tmp_path: Path) -> None:
    found: Comparison = compared(tmp_path, selected(FLIPPED, drop=1), selected(FLIPPED))
    assert found.verdict == "structure"
    assert [one.op_name for one in found.origins] == ["nonzero_2"]


def test_rounding_of_inputs_alone_flips_nothing(tmp_path: Path) -> None:
    found = compared(tmp_path, gather(last_place(normal(6, 4))), gather(normal(6, 4)))
    assert (found.verdict, found.undefined) == ("noise", {})
