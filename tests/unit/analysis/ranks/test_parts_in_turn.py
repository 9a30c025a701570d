"""Ranks compute the parts of a tensor one after the other, as in ring attention, and one rank computes all at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_related_tensors import Call, part, rng, write

import ascend_dump
from ascend_dump.analysis.explaining.results import Origin

pytest.importorskip("rapidfuzz")

_RANKS, _ROWS = 4, 8


def ring(rank: int, ranks: int, mistake: str) -> list[Call]:
    """Each rank has a part of the rows, and receives the columns of all ranks.

    mistake: "neighbour": they come from the rank after the next one; "mask": rank 1 masks those of one rank as if they
    were others; "weight": only a parameter that is read later is wrong
    """
    rows, columns = rng().standard_normal((2, _ROWS, 3)).astype("f4")
    positions = np.arange(_ROWS)
    mine, own_positions = part(rows, rank, ranks), part(positions, rank, ranks)
    total = np.zeros((len(mine), 3), "f4")
    calls = [Call("aten::relu", [mine], [mine], module="attention")]
    for hop in range(ranks):
        sender = (rank - hop * (2 if mistake == "neighbour" else 1)) % ranks
        own = part(columns, sender, ranks)
        if hop:
            calls.append(Call("c10d::recv_", [np.zeros_like(own)], [own], module="attention", source="ring.py:1"))
        place = 0 if mistake == "mask" and rank == 1 and hop == 2 else sender
        late = part(positions, place, ranks) > own_positions[:, None]
        total = total + np.where(late, 0, mine @ own.T) @ own
        calls.append(Call("aten::clone", [own], [own.copy()], module="attention", source="ring.py:2"))
        calls.append(Call("aten::gt", [own_positions], [late], module="attention", source="ring.py:3"))
        calls.append(Call("aten::neg", [-total], [total], module="attention", source="ring.py:4"))
    weight = rng().standard_normal((3, 3)).astype("f4") + np.float32(mistake != "")
    return [*calls, Call("aten::exp", [weight], [np.exp(weight)], parameter="w", module="last")]


def origins_of(root: Path, mistake: str) -> list[Origin]:
    actual = write(root / "actual", [ring(rank, _RANKS, mistake) for rank in range(_RANKS)])
    return [*ascend_dump.compare(actual, write(root / "reference", [ring(0, 1, "")])).origins]


def test_all_parts_in_any_order_are_right(tmp_path: Path) -> None:
    assert origins_of(tmp_path / "healthy", "") == []
    [origin] = origins_of(tmp_path / "weight", "weight")
    assert (origin.kind, origin.op_type) == ("parameter", "aten::exp")


def test_parts_that_all_ranks_receive_twice_are_named(tmp_path: Path) -> None:
    [origin] = origins_of(tmp_path, "neighbour")
    assert (origin.kind, origin.op_type, origin.rank) == ("structure", "aten::clone", 0)
    assert origin.evidence[:3] == (
        "rank 0 runs it for one part of attention/aten::clone_1.output.0 after the other, but not for 2 of 4",
        "round 3 gives the part of an earlier round",
        "the same on ranks 1-3",
    )


def test_a_mask_of_one_rank_that_belongs_to_another_part_is_named(tmp_path: Path) -> None:
    [origin] = origins_of(tmp_path, "mask")
    assert (origin.kind, origin.op_type, origin.rank) == ("structure", "aten::gt", 1)
