"""Terms, parts and messages of ranks become wrong on another rank than the one that reads them, against one rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rank_program import Rank, Tensor

import ascend_dump
from ascend_dump.dump_format import CollectiveCall

pytest.importorskip("rapidfuzz")

_RANKS = 3


def accumulated(root: Path, ranks: int, *, cleared: tuple[int, ...] = (), copied: tuple[int, ...] = ()) -> Path:
    """Add up the gradients of two parts of the batch, of which each rank has its rows, and then reduce them.

    cleared  the ranks that clear the first gradient
    copied   the ranks that copy the first gradient to itself
    """
    rng = np.random.default_rng(1)
    halves = rng.standard_normal((2, 6, 5))
    for number in range(ranks):
        rank = Rank(root, number, ranks)
        gradients = []
        for half in halves:
            rows = rank.tensor(np.split(half, ranks)[number])
            made = rank.tensor(rows.values.mean(0))
            rank.run("aten::relu", [rows], [rows], "fc")
            rank.run("aten::mean", [rows], [made], "fc", phase="backward")
            gradients.append(made)
            if len(gradients) == 1 and number in cleared:
                gradients[0] = rank.written(made, np.zeros(5))
                rank.run("aten::zero_", [made], gradients, phase="other", source="net.py:5")
            if len(gradients) == 1 and number in copied:
                gradients[0] = rank.written(made, made.values)
                rank.run("aten::copy_", [made, made], gradients, phase="other", source="net.py:6")
        total = rank.written(gradients[0], gradients[0].values + gradients[1].values)
        rank.run("aten::add_", gradients, [total], "fc", phase="backward")
        rank.close()
    return root


def test_a_rank_that_changes_its_term_of_a_mean_is_named(tmp_path: Path) -> None:
    reference = accumulated(tmp_path / "reference", 1)
    assert ascend_dump.compare(accumulated(tmp_path / "healthy", _RANKS), reference).origins == ()
    assert ascend_dump.compare(accumulated(tmp_path / "copied", _RANKS, copied=(1,)), reference).origins == ()
    [origin] = ascend_dump.compare(accumulated(tmp_path / "actual", _RANKS, cleared=(1,)), reference).origins
    assert (origin.kind, origin.op_type, origin.rank) == ("structure", "aten::zero_", 1)
    assert origin.evidence[0] == "only rank 1 runs aten::zero_"


def gathered(root: Path, ranks: int, *, wrong: tuple[int, ...] = ()) -> Path:
    """Join the rows of all ranks. Each rank prepares its part by an operator that one rank does not need.

    wrong: the ranks that change their part there
    """
    rows = np.random.default_rng(2).standard_normal((6, 4))
    call = CollectiveCall("all_gather", "0", f"0-{ranks - 1}")
    results = np.tanh(rows).astype("f4")
    factors = [np.float32(1.5 if rank in wrong else 1) for rank in range(ranks)]
    for number in range(ranks):
        rank = Rank(root, number, ranks)
        part, made = (rank.tensor(np.split(array, ranks)[number]) for array in (rows, results))
        rank.run("aten::tanh", [part], [made], "fc")
        whole = made
        if ranks > 1:
            own = rank.tensor(made.values * factors[number])
            rank.run("aten::mul", [made], [own], source="net.py:3")
            received = [rank.tensor(values * factor) for values, factor in zip(np.split(results, ranks), factors)]
            rank.run("c10d::allgather_", [own], received, collective=call, source="net.py:4")
            whole = rank.tensor(np.concatenate([one.values for one in received]))
            rank.run("aten::cat", received, [whole], source="net.py:5")
        rank.run("aten::exp", [whole], [rank.tensor(np.exp(whole.values))], "out")
        rank.close()
    return root


def test_parts_that_are_joined_are_followed_to_the_rank_with_the_wrong_one(tmp_path: Path) -> None:
    reference = gathered(tmp_path / "reference", 1)
    assert ascend_dump.compare(gathered(tmp_path / "healthy", _RANKS), reference).origins == ()
    origins = ascend_dump.compare(gathered(tmp_path / "actual", _RANKS, wrong=(1,)), reference).origins
    assert [(origin.op_type, origin.rank) for origin in origins] == [("aten::mul", 1)]


def staged(root: Path, *, again: bool) -> Path:
    """Two parts pass through three stages. If wrong, the second stage uses the first part again.

    The last stage does not record its first message.
    """
    parts = np.random.default_rng(3).standard_normal((2, 4, 5))
    ranks = [Rank(root, number, _RANKS) for number in range(_RANKS)]
    for rank in ranks:
        rank.run("aten::zeros", [], [rank.tensor(np.zeros(1))])
    received: list[Tensor] = []
    for number, values in enumerate(parts):
        for stage, rank in enumerate(ranks):
            x = rank.tensor(values)
            if stage and (number or stage == 1):
                call = CollectiveCall("recv", "0", "0-2", peer=stage - 1)
                rank.run("c10d::recv_", [], [x], collective=call)
            received += [x] if stage == 1 else []
            if again and stage == 1 and number:
                x = rank.tensor(received[0].values)
                rank.run("aten::clone", received[:1], [x], source="net.py:8")
            result = rank.tensor(np.tanh(x.values * (stage + 2)))
            rank.run("aten::tanh", [x], [result], f"layers.{stage}")
            values = result.values
            if stage < _RANKS - 1:
                call = CollectiveCall("send", "0", "0-2", peer=stage + 1)
                rank.run("c10d::send", [result], [], collective=call)
    for rank in ranks:
        rank.close()
    return root


def test_a_message_of_the_content_of_an_earlier_one_is_followed_to_its_sender(tmp_path: Path) -> None:
    parts = np.random.default_rng(3).standard_normal((2, 4, 5))
    rank = Rank(tmp_path / "reference", 0, 1)
    rank.run("aten::zeros", [], [rank.tensor(np.zeros(3))])
    for values in parts:
        x = rank.tensor(values)
        for layer in range(_RANKS):
            result = rank.tensor(np.tanh(x.values * (layer + 2)))
            rank.run("aten::tanh", [x], [result], f"layers.{layer}")
            x = result
    rank.close()
    assert ascend_dump.compare(staged(tmp_path / "healthy", again=False), tmp_path / "reference").origins == ()
    origins = ascend_dump.compare(staged(tmp_path / "actual", again=True), tmp_path / "reference").origins
    assert [(origin.op_type, origin.rank) for origin in origins] == [("aten::clone", 1)]
