"""Networks that were ported from TensorFlow to PyTorch: what differs by nature is quiet, and a fault is named once.

The dumps of TensorFlow are real ones of the host, made by tests/real/tensorflow/ported_networks_dumps.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import extract
from same_networks import inputs

import ascend_dump
from ascend_dump.analysis.explaining.results import Origin

pytest.importorskip("torch")

import torch
from ported_networks import NETWORKS
from ported_networks_torch import dump
from same_networks_torch import Network
from torch.nn import functional


@pytest.fixture(scope="module")
def ported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ported")
    extract("ported_networks.tar.xz", root)
    return root


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("others")
    extract("same_networks.tar.gz", root)
    return root


def first_origin(actual: Path, reference: Path) -> Origin:
    """Return the first origin of a comparison that finds a difference."""
    found = ascend_dump.compare(actual, reference)
    assert found.verdict == "different"
    return found.origins[0]


def names(origin: Origin) -> set[str]:
    return {record.op_name for record in (origin.pair.actual, origin.pair.reference) if record is not None}


@pytest.mark.parametrize("network", NETWORKS)
def test_a_right_port_has_no_origin(ported: Path, tmp_path: Path, network: str) -> None:
    found = ascend_dump.compare(dump(network, tmp_path), ported / network)
    assert not found.origins
    assert set(found.counts) <= {"equal", "noise", "unmatched"}
    assert found.counts["noise"] + found.counts["equal"] > found.counts.get("unmatched", 0)


def rolled(name: str) -> Any:
    return lambda weight, value: np.roll(value, 1, 0) if weight == name else value


@pytest.mark.parametrize(
    ("network", "changed", "expected"),
    [
        # Both sides split the output of one layer into parts; TensorFlow's `Split` has the axis as its first input.
        ("gpt", {"attention_scale": 0.3}, "_scaled_dot_product_flash_attention_for_cpu_1"),
        ("gpt", {"mask_offset": 1}, "_scaled_dot_product_flash_attention_for_cpu_0"),
        ("gpt", {"weights": rolled("h1.n2.b")}, "native_layer_norm_3"),
        # The table of TensorFlow is not recorded, only the tokens that both read.
        ("lstm", {"weights": rolled("emb.w")}, "embedding_0"),
        # A mask of -1e9 is in both scores, which are far from each other elsewhere.
        ("llama", {"rotation_base": 100.0}, "rope/mul_3"),
        ("llama", {"swaps_gate": True}, "mul_8"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_fault_of_a_port_is_named(
    ported: Path, tmp_path: Path, network: str, changed: dict[str, Any], expected: str
) -> None:
    assert expected in names(first_origin(dump(network, tmp_path, **changed), ported / network))


def test_a_residual_that_one_side_lacks_is_named(ported: Path, tmp_path: Path) -> None:
    origin = first_origin(dump("gpt", tmp_path / "gpt", residual=False), ported / "gpt")
    assert origin.kind == "structure"
    assert origin.pair.actual is None
    assert origin.pair.reference is not None
    assert origin.pair.reference.op_type == "AddV2"
    assert "runs in the reference only" in origin.evidence[0]


def test_an_operator_that_reads_another_tensor_is_named_with_both(ported: Path, tmp_path: Path) -> None:
    origin = first_origin(dump("lstm", tmp_path, last_step=4), ported / "lstm")
    assert (origin.kind, origin.op_name) == ("wiring", "addmm_12")
    assert origin.evidence[0] == "addmm_12 reads mul_14 here, cell_5/mul_2 in the reference"
    assert origin.pair.actual is not None
    assert origin.pair.actual.io == "input"


class Ported(Network):
    """The transformer with its query in place of its key, or without its first residual."""

    def __init__(self, *, swapped: bool = False, residual: bool = True) -> None:
        super().__init__("transformer")
        self.swapped, self.residual = swapped, residual

    def __call__(self, x: Any) -> Any:
        y = self.norm(x, "norm1")
        q, k, v = (self.heads(self.dense(y, name)) for name in ("q", "k", "v"))
        q, k = (k, q) if self.swapped else (q, k)
        mixed = torch.softmax(q @ k.transpose(-1, -2) * 0.5, -1) @ v
        mixed = self.dense(mixed.transpose(1, 2).reshape(2, 4, 8), "o")
        x = x + mixed if self.residual else mixed
        return x + self.dense(functional.gelu(self.dense(self.norm(x, "norm2"), "up")), "down")


def dump_transformer(path: Path, **changed: bool) -> Path:
    with torch.no_grad(), ascend_dump.capture(path=path, framework="torch", steps="0"):
        Ported(**changed)(torch.from_numpy(inputs("transformer")))
    return path


@pytest.mark.parametrize("other", ["mindspore", "tensorflow"])
class TestATransformer:
    def test_with_query_and_key_swapped_has_its_axes_in_another_order(
        self, others: Path, tmp_path: Path, other: str
    ) -> None:
        """The product is the transpose of the right one: no layout of a framework, because softmax differs."""
        origin = first_origin(dump_transformer(tmp_path, swapped=True), others / other / "transformer")
        assert (origin.kind, origin.op_name) == ("wiring", "bmm_0")
        assert "its axes are in another order" in origin.evidence[0]

    def test_without_a_residual_lacks_an_addition(self, others: Path, tmp_path: Path, other: str) -> None:
        origin = first_origin(dump_transformer(tmp_path, residual=False), others / other / "transformer")
        assert origin.kind == "structure"
        assert origin.pair.actual is None
        assert origin.pair.reference is not None
        assert origin.pair.reference.op_type in ("Add", "AddV2")

    def test_that_is_right_has_no_origin(self, others: Path, tmp_path: Path, other: str) -> None:
        assert not ascend_dump.compare(dump_transformer(tmp_path), others / other / "transformer").origins
