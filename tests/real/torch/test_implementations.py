"""Two implementations of one network: BERT of transformers against the encoder of PyTorch, with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel

import ascend_dump
from ascend_dump.analysis.compare import Comparison

WIDTH, HEADS, LAYERS, WORDS, POSITIONS, CLASSES = 48, 4, 2, 80, 32, 5
EPS = 1e-12


class Batch:
    """Three sequences, of which one is padded, with their classes."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.ids = torch.randint(0, WORDS, (3, 10))
        self.mask = torch.ones(3, 10)
        self.mask[1, 6:] = 0
        self.classes = torch.randint(0, CLASSES, (3,))


class OfTransformers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS}
        others = {"intermediate_size": 96, "vocab_size": WORDS, "max_position_embeddings": POSITIONS}
        no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        self.bert = BertModel(BertConfig(**sizes, **others, **no_dropout), add_pooling_layer=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, batch: Batch) -> Tensor:
        return self.head(self.bert(batch.ids, attention_mask=batch.mask).last_hidden_state[:, 0])


class OfPyTorch(nn.Module):
    """has_mask: False is a fault"""

    def __init__(self, *, has_mask: bool = True) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.kinds, self.norm = nn.Embedding(2, WIDTH), nn.LayerNorm(WIDTH, EPS)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 96, 0.0, "gelu", EPS, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.classifier, self.has_mask = nn.Linear(WIDTH, CLASSES), has_mask

    def forward(self, batch: Batch) -> Tensor:
        embedded = self.words(batch.ids) + self.places(torch.arange(10)) + self.kinds(torch.zeros_like(batch.ids))
        mask = batch.mask == 0 if self.has_mask else None
        return self.classifier(self.blocks(self.norm(embedded), src_key_padding_mask=mask)[:, 0])

    def load(self, weights: dict[str, Tensor]) -> None:
        """Load the weights of `OfTransformers`."""
        names = {
            "words": "bert.embeddings.word_embeddings",
            "places": "bert.embeddings.position_embeddings",
            "kinds": "bert.embeddings.token_type_embeddings",
            "norm": "bert.embeddings.LayerNorm",
            "classifier": "head",
        }
        state = {}
        for number in range(LAYERS):
            ours, theirs = f"blocks.layers.{number}.", f"bert.encoder.layer.{number}."
            names[f"{ours}self_attn.out_proj"] = f"{theirs}attention.output.dense"
            names[f"{ours}norm1"] = f"{theirs}attention.output.LayerNorm"
            names[f"{ours}linear1"] = f"{theirs}intermediate.dense"
            names[f"{ours}linear2"] = f"{theirs}output.dense"
            names[f"{ours}norm2"] = f"{theirs}output.LayerNorm"
            for kind in ("weight", "bias"):
                parts = [weights[f"{theirs}attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
                state[f"{ours}self_attn.in_proj_{kind}"] = torch.cat(parts)
        for ours, theirs in names.items():
            state.update(
                {f"{ours}.{k}": weights[f"{theirs}.{k}"] for k in ("weight", "bias") if f"{theirs}.{k}" in weights}
            )
        self.load_state_dict(state)


def dumped(path: Path, model: Any, batch: Batch) -> Path:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with ascend_dump.capture(model, path=path, steps="0|1"):
        for _ in range(2):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), batch.classes).backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor], Batch]:
    torch.manual_seed(0)
    model = OfTransformers()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 0.5, 0.2)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch = Batch()
    return dumped(tmp_path_factory.mktemp("reference"), model, batch), weights, batch


@pytest.fixture
def compared(tmp_path: Path, reference: Any) -> Callable[[OfPyTorch], Comparison]:
    path, weights, batch = reference

    def compare(model: OfPyTorch) -> Comparison:
        model.load(weights)
        return ascend_dump.compare(dumped(tmp_path / "actual", model, batch), path)

    return compare


def test_the_same_network_has_no_origin(compared: Callable[[OfPyTorch], Comparison]) -> None:
    found = compared(OfPyTorch())
    assert found.origins == ()
    assert set(found.counts) <= {"equal", "noise", "unmatched"}
    assert found.counts["equal"] + found.counts["noise"] > 2 * found.counts["unmatched"]
    assert "not compared: updates of 4 parameters, which only actual records" in found.aligned


def eps(model: OfPyTorch) -> None:
    model.blocks.layers[1].norm1.eps = 1e-2


def relu(model: OfPyTorch) -> None:
    model.blocks.layers[1].activation = functional.relu


def order(model: OfPyTorch) -> None:
    model.blocks.layers[1].norm_first = True


@pytest.mark.parametrize(
    ("change", "module", "kinds"),
    [
        (eps, "blocks.layers.1.norm1", {"structure"}),
        (relu, "blocks.layers.1", {"structure"}),
        (order, "blocks.layers.1", {"structure", "wiring"}),
    ],
)
def test_a_fault_is_named_where_it_is(
    compared: Callable[[OfPyTorch], Comparison], change: Callable[[OfPyTorch], None], module: str, kinds: set[str]
) -> None:
    model = OfPyTorch()
    change(model)
    found = compared(model)
    assert found.verdict == "different"
    assert found.origins[0].module == module
    assert found.origins[0].kind in kinds


def test_a_lost_mask_is_named(compared: Callable[[OfPyTorch], Comparison]) -> None:
    found = compared(OfPyTorch(has_mask=False))
    assert found.origins[0].module == "blocks.layers.0.self_attn"
    assert any("attn_mask: not given here" in line for line in found.origins[0].evidence)
