"""Ranks on gloo that wait for each other in vain: the call that one of them lacks is named."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from processes import PROGRAMS, run_python

import ascend_dump


class Expected(NamedTuple):
    """The first suspect: its operator and rank, and words of its reason."""

    op_type: str
    rank: int
    words: tuple[str, ...]


HANGS = {
    "lacks": Expected(
        "c10d::allreduce_", 2, ("rank 2 never began all_reduce of 1.weight.grad at ", "ranks 0-1 waited at the end in")
    ),
    "last": Expected(
        "c10d::allreduce_",
        0,
        (
            "rank 0 waits in all_reduce of 2.weight.grad at ",
            "rank 1 never began: the last operator of rank 1 is aten::",
        ),
    ),
    "order": Expected(
        "c10d::allreduce_",
        1,
        (
            "rank 1 runs all_reduce of 1.weight.grad",
            "where rank 0 runs all_reduce of 0.weight.grad",
            "in another order",
        ),
    ),
    "kind": Expected("c10d::broadcast_", 1, ("rank 1 runs broadcast", "where rank 0 runs all_reduce")),
    "early": Expected("c10d::allreduce_", 0, ("rank 0 waits in all_reduce of 0.weight.grad", "rank 1 never began")),
    "message": Expected("c10d::recv_", 0, ("rank 0 waits for a message of rank 1", "which rank 1 never sent")),
    "ddp": Expected("c10d::allreduce_", 0, ("rank 0 waits in all_reduce", "rank 1 never began")),
    "kept": Expected("c10d::allreduce_", 0, ("rank 0 waits in all_reduce of 0.weight.grad", "rank 1 never began")),
    "stopped": Expected(
        "c10d::allreduce_",
        0,
        ("rank 0 waits in all_reduce of 0.weight.grad", "rank 1 never began", "of a killed process may be missing"),
    ),
}


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dumps of all scenarios, which run at the same time."""
    directory = tmp_path_factory.mktemp("hangs")
    run_python(PROGRAMS / "rank_hangs.py", directory, "healthy", *HANGS)
    return directory


def test_a_healthy_run_has_no_suspects(dumps: Path) -> None:
    found = ascend_dump.triage(dumps / "healthy")
    assert (found.suspects, found.reasons) == ((), ())


@pytest.mark.parametrize("name", HANGS)
def test_the_call_that_a_rank_lacks_is_named(name: str, dumps: Path) -> None:
    first = ascend_dump.triage(dumps / name).suspects[0]
    expected = HANGS[name]
    assert (first.rule, first.op_type, first.rank, first.step) == (
        "collective-order",
        expected.op_type,
        expected.rank,
        1,
    )
    assert [words for words in expected.words if words not in first.reason] == [], first.reason
    assert str(first.source).startswith(f"{PROGRAMS / 'rank_hangs.py'}:") or name == "ddp"
