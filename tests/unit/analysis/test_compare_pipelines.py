"""Stages of a pipeline on two ranks, which send each other activations, are compared with one rank that has all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_program import Rank, Tensor

import ascend_dump
from ascend_dump.analysis.compare import Comparison
from ascend_dump.dump_format import CollectiveCall

pytest.importorskip("rapidfuzz")

_WIDTH, _ROWS = 6, 4


class Stage(Rank):
    """The operators of a stage."""

    def layer(self, number: int, x: Tensor, weight: Tensor) -> Tensor:
        product = self.tensor(x.values @ weight.values)
        self.run("aten::mm", [x, weight], [product], f"layers.{number}")
        result = self.tensor(np.tanh(product.values))
        self.run("aten::tanh", [product], [result], f"layers.{number}")
        return result

    def copy(self, x: Tensor, op_type: str, factor: float = 1) -> Tensor:
        result = self.tensor(x.values * np.float32(factor))
        self.run(op_type, [x], [result], source="messages.py:7")
        return result

    def count(self, layers: int) -> None:
        """A tensor of which each stage has a part: it shows that the ranks share the work."""
        self.run("aten::zeros", [], [self.tensor(np.zeros(layers))])


def data() -> tuple[list[np.ndarray], ...]:
    """Return the parts of a batch, and the weights of the layers."""
    rng = np.random.default_rng(3)
    return tuple([rng.standard_normal(shape) for _ in range(2)] for shape in ((_ROWS, _WIDTH), (_WIDTH, _WIDTH)))


def alone(root: Path) -> Path:
    parts, weights = data()
    rank = Stage(root, 0, 1)
    rank.count(2)
    stored = [rank.tensor(weight, f"layers.{number}.weight") for number, weight in enumerate(weights)]
    for part in parts:
        rank.layer(1, rank.layer(0, rank.tensor(part), stored[0]), stored[1])
    rank.close()
    return root


def message(kind: str, peer: int) -> CollectiveCall:
    return CollectiveCall(kind, "0", "0-1", peer=peer)


def stages(root: Path, *, scale: float = 1, again: bool = False, wrong: bool = False, unrecorded: bool = False) -> Path:
    """Return the dump of two stages.

    scale       factor of the tensors that are sent
    again       the second stage uses the first part twice
    wrong       the second stage has other weights, and those of both stages add up to the right ones
    unrecorded  the second rank does not record the first message
    """
    parts, weights = data()
    first, second = Stage(root, 0, 2), Stage(root, 1, 2)
    first.count(1)
    second.count(1)
    weight = first.tensor(weights[0], "layers.0.weight")
    later = second.tensor(weights[1] - weights[0] if wrong else weights[1], "layers.1.weight")
    received = []
    for number, part in enumerate(parts):
        result = first.layer(0, first.tensor(part), weight)
        if scale != 1:
            result = first.copy(result, "aten::mul", scale)
        first.run("c10d::send", [result], [], collective=message("send", 1))
        received.append(second.tensor(result.values))
        if number or not unrecorded:
            second.run("c10d::recv_", [], received[-1:], collective=message("recv", 0))
        x = received[-1]
        if again and number:
            x = second.copy(received[0], "aten::clone")
        second.layer(1, x, later)
    first.close()
    second.close()
    return root


def compared(root: Path, **changes: Any) -> Comparison:
    return ascend_dump.compare(stages(root / "actual", **changes), alone(root / "reference"))


def test_stages_of_a_pipeline_agree_with_one_rank(tmp_path: Path) -> None:
    comparison = compared(tmp_path)
    assert not comparison.origins
    assert comparison.verdict in ("equal", "noise")


@pytest.mark.parametrize("unrecorded", [False, True])
def test_a_wrong_message_is_named_at_the_operator_of_the_sender(tmp_path: Path, unrecorded: bool) -> None:
    """Not at the receiver, and not at the operator of the single rank that another rank ran."""
    comparison = compared(tmp_path, scale=0.5, unrecorded=unrecorded)
    assert {(origin.op_type, origin.rank, origin.kind) for origin in comparison.origins} == {
        ("aten::mul", 0, "structure")
    }
    [text] = [line for line in comparison.origins[0].evidence if "rank 1" in line]
    assert text.startswith("it reads the tensor of the other side; its result differs, read on rank 1 as layers.1/mm")


def test_a_message_that_is_read_twice_is_named_at_the_copy(tmp_path: Path) -> None:
    [origin] = compared(tmp_path, again=True).origins
    assert (origin.op_type, origin.rank, origin.kind) == ("aten::clone", 1, "wiring")


def test_weights_of_two_stages_are_no_terms_of_a_sum(tmp_path: Path) -> None:
    """All stages run the same operators, but their tensors do not correspond."""
    [origin] = compared(tmp_path, wrong=True).origins
    assert (origin.kind, origin.pair.record.parameter, origin.rank) == ("parameter", "layers.1.weight", 1)
    assert origin.pair.transformation == "identity"


@pytest.mark.parametrize("scaled", [True, False])
def test_an_operator_that_one_of_two_equal_ranks_leaves_out_is_no_other_stage(tmp_path: Path, scaled: bool) -> None:
    """Another rank runs it, but it runs what reads the result too: it is missing on this rank."""
    rng = np.random.default_rng(4)
    x, weight = rng.standard_normal((_ROWS, _WIDTH)), rng.standard_normal((_WIDTH, _WIDTH))

    def rank(root: Path, number: int, ranks: int, *, scales: bool = True) -> None:
        written = Stage(root, number, ranks)
        written.count(2 // ranks)
        result = written.layer(0, written.tensor(x), written.tensor(weight, "layers.0.weight"))
        if scales:
            result = written.copy(result, "aten::mul", 0.5)
        written.run("aten::exp", [result], [written.tensor(np.exp(result.values))], "layers.1")
        written.close()

    for number in range(2):
        rank(tmp_path / "actual", number, 2, scales=scaled or number == 0)
    rank(tmp_path / "reference", 0, 1)
    origins = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference").origins
    assert [(origin.op_type, origin.kind) for origin in origins] == ([] if scaled else [("aten::mul", "structure")])


@pytest.mark.parametrize("unrecorded", [False, True])
def test_against_as_many_ranks_a_wrong_message_is_named_at_its_sender_too(tmp_path: Path, unrecorded: bool) -> None:
    """Nothing on the rank of the sender reads the message, and the receiver may have recorded no call for it."""
    healthy = stages(tmp_path / "healthy", unrecorded=unrecorded)
    repeated = ascend_dump.compare(stages(tmp_path / "repeated", unrecorded=unrecorded), healthy)
    assert (repeated.verdict, repeated.origins) == ("equal", ())
    wrong = ascend_dump.compare(stages(tmp_path / "wrong", scale=0.5, unrecorded=unrecorded), healthy)
    assert [(origin.op_type, origin.rank) for origin in wrong.origins] == [("aten::mul", 0)]
