"""Lines that one rank runs in place of others, or leaves out although it computes what they read."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from test_other_ranks import Rank, suspects_of


def branching(rank: Rank, wrong: bool, *, by_step: bool = False, is_stage: bool = False) -> Iterator[None]:
    """Compute a loss by one of two lines, of which the mistake is the second one."""
    step = 0
    while True:
        data = rank.tensor(rank.noise(1, common=False))
        made = rank.run("aten::mul", 1, [data], data.array * 2, phase="forward", module="fc")
        if wrong and not (by_step and step):
            loss = rank.run("aten::softplus", 3, [made], made.array + 1)
        else:
            turned = rank.run("aten::neg", 5, [made], -made.array)
            loss = rank.run("aten::softplus", 5, [turned], turned.array + 1)
        rank.run("aten::ones_like", 6, [loss], loss.array * 0 + 1)
        if is_stage:
            rank.run("c10d::send", 7, [made], None)
        step += 1
        yield


def test_a_line_that_one_rank_runs_in_place_of_that_of_others_is_named(tmp_path: Path) -> None:
    [suspect] = suspects_of(tmp_path / "one", branching, 2)
    assert (suspect.rule, suspect.rank, suspect.op_type) == ("extra-operator", 2, "aten::softplus")
    assert "rank 2 runs aten::softplus at train.py:3, and ranks 0-1|3 run train.py:5 in its place" in suspect.reason
    assert suspects_of(tmp_path / "half", branching, 2, 3) == []
    assert suspects_of(tmp_path / "data", functools.partial(branching, by_step=True), 2) == []
    assert suspects_of(tmp_path / "stages", functools.partial(branching, is_stage=True), 2) == []


def masking(rank: Rank, wrong: bool, *, is_read: bool = False) -> Iterator[None]:
    """Mask a product before its sum over ranks. The mistake: the mask is computed, but not applied."""
    while True:
        ids = rank.tensor(rank.noise(1, common=False))
        product = rank.run("aten::mul", 1, [ids], ids.array * 2, phase="forward", module="fc")
        mask = rank.run("aten::lt", 2, [ids], ids.array + 1, phase="forward", module="fc")
        if is_read:
            rank.run("aten::sum", 3, [mask], mask.array[:1], phase="forward", module="fc")
        if not wrong:
            both = [product, mask]
            product = rank.run("aten::masked_fill", 4, both, product.array / 3, phase="forward", module="fc")
        rank.run("c10d::all_reduce_", 5, [product], rank.noise(9), into=product, phase="forward", module="fc")
        yield


def test_a_rank_that_does_not_use_the_mask_that_it_computes_is_named(tmp_path: Path) -> None:
    [suspect] = suspects_of(tmp_path / "one", masking, 1)
    assert (suspect.rule, suspect.rank, suspect.op_type) == ("extra-operator", 1, "c10d::all_reduce_")
    assert "rank 1 runs no operator at train.py:4" in suspect.reason
    # A rank that needs no mask, for example without padding, may use it for something else.
    assert suspects_of(tmp_path / "read", functools.partial(masking, is_read=True), 1) == []
