"""Backward passes of one network in PyTorch, MindSpore and TensorFlow: gradients are paired, and a fault is named.

The dumps of MindSpore and TensorFlow are real ones of the host, made by tests/real/*/…/same_networks_dumps.py with
`gradients`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from places import extract
from same_networks import NETWORKS

import ascend_dump

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

from same_networks_torch import FAULTS, GRADIENT_FAULTS, Planted, computing, dump_gradients

OTHERS = ("mindspore", "tensorflow")
#: TensorFlow computes both gradients of a difference of which one is a constant, and nobody reads the second one.
_UNREAD = "gradients/moments_1/SquaredDifference_grad/sub"
#: A batch norm in training reads no moving mean.
_VISIBLE = [one for one in FAULTS if one.what != "a moving mean"]


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("others")
    extract("same_networks_gradients.tar.gz", root)
    return root


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("right")
    return lambda network: root / network if (root / network).exists() else dump_gradients(network, root / network)


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_the_same_in_both_frameworks(
    others: Path, right: Callable[[str], Path], network: str, other: str
) -> None:
    found = ascend_dump.compare(right(network), others / other / network)
    assert set(found.counts) <= {"equal", "noise", "unmatched"}
    assert not found.origins
    assert {pair.record.op_name for pair in found.unmatched} <= {_UNREAD}
    paired = {
        pair.actual.op_name
        for pair in found.pairs
        if pair.actual is not None and pair.reference is not None and pair.actual.io == "output"
    }
    # Inside of what the others have in one: `y * y` has two gradients, which they add at once, as those of k and q.
    inside = {"ones_like_0", "mul_1", "mul_2", "mul_3", "add_4", "unsqueeze_0", "unsqueeze_1"}
    assert computing(right(network)) - paired <= inside


def test_two_frameworks_neither_of_which_is_pytorch(others: Path) -> None:
    for network in NETWORKS:
        found = ascend_dump.compare(others / "mindspore" / network, others / "tensorflow" / network)
        assert not found.origins, network
        assert set(found.counts) <= {"equal", "noise", "unmatched"}
        assert {pair.record.op_name for pair in found.unmatched} <= {_UNREAD}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("one", GRADIENT_FAULTS, ids=lambda one: f"{one.network}-{one.what}")
def test_a_fault_in_the_backward_pass_is_named(others: Path, tmp_path: Path, one: Planted, other: str) -> None:
    found = ascend_dump.compare(
        dump_gradients(one.network, tmp_path / "actual", one.fault), others / other / one.network
    )
    assert found.verdict == "different"
    assert found.origins[0].op_name == one.expected
    assert found.origins[0].explains


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("one", _VISIBLE, ids=lambda one: f"{one.network}-{one.what}")
def test_a_fault_in_the_forward_pass_is_named_once(others: Path, tmp_path: Path, one: Planted, other: str) -> None:
    found = ascend_dump.compare(
        dump_gradients(one.network, tmp_path / "actual", one.fault), others / other / one.network
    )
    assert found.verdict == "different"
    assert [origin.op_name for origin in found.origins] == [one.expected]
