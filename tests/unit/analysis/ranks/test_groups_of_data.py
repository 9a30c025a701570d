"""Tensor and data parallelism together: the rules of data parallelism count within each group of its ranks."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from test_other_ranks import Rank, forward, gradient, suspects_of, updated

#: The ranks of each group that have the same parts of the model.
GROUPS = ("0|2", "1|3")


def split(rank: Rank, wrong: bool, *, fault: str, faults: int = 1, count: int = 5) -> Iterator[None]:
    """Average gradients over the ranks with the same parts. The mistake: some are not summed, or not divided."""
    column = rank.rank % 2
    parameters = [
        rank.tensor(np.random.default_rng((column, number)).standard_normal(6).astype("f4"), f"layer{number}")
        for number in range(count)
    ]
    while True:
        forward(rank, *parameters)
        term = rank.tensor(rank.noise(50, common=False))
        rank.run("c10d::all_reduce_", 8, [term], rank.noise(51), into=term, phase="forward")
        for number, parameter in enumerate(parameters):
            own = gradient(rank, parameter, seed=number)
            is_wrong = wrong and number < faults
            if not (is_wrong and fault == "missing"):
                terms = [
                    2 * np.random.default_rng((number, rank.step, member)).standard_normal(6).astype("f4")
                    for member in (column, column + 2)
                ]
                own = rank.run("c10d::all_reduce_", 4, [own], sum(terms), into=own, group=GROUPS[column])
                if not (is_wrong and fault == "undivided"):
                    own = rank.run("aten::div_", 5, [own], own.array / 2, into=own)
            parameters[number] = updated(rank, parameter, own)
        yield


def test_a_gradient_that_is_not_reduced_over_a_group_is_named(tmp_path: Path) -> None:
    missing = functools.partial(split, fault="missing")
    [suspect] = suspects_of(tmp_path / "one", missing, 0, 1, 2, 3)[:1]
    assert suspect.rule == "replicas"
    assert "differs between ranks 0|2, a parameter that they had in common before" in suspect.reason
    assert "its gradient is not reduced over them as most are" in suspect.reason
    assert suspects_of(tmp_path / "none", missing) == []
    # Experts may begin equal, and each rank trains its own.
    assert suspects_of(tmp_path / "most", functools.partial(missing, faults=3), 0, 1, 2, 3) == []


def test_a_gradient_that_is_not_divided_over_a_group_is_named(tmp_path: Path) -> None:
    undivided = functools.partial(split, fault="undivided")
    [suspect, *_] = suspects_of(tmp_path / "one", undivided, 0, 1, 2, 3)
    assert suspect.rule == "gradient-factor"
    assert "the gradient of layer0 lacks the division by 2: it is 1 times the sum over ranks 0|2" in suspect.reason
    assert suspects_of(tmp_path / "none", undivided) == []
