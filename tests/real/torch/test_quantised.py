"""Own errors of layers of quantised transformers: healthy ones have no fault, and a planted fault is first."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import ascend_dump
from ascend_dump.cli import main

sys.path.append(str(Path(__file__).parents[2] / "helpers"))

X = torch.arange(24).reshape(2, 12) % 100


class FakeQuantised(torch.nn.Module):
    """A linear layer whose weight and input are rounded to 8 bits.

    scale  factor of the scale of the input; zero_point: of the input, that nothing subtracts
    """

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.scale, self.zero_point = 1.0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = float(x.abs().max()) / 127 * self.scale
        of_weight = self.weight.abs().amax(1) / 127
        zeros = torch.zeros_like(of_weight, dtype=torch.int32)
        x = torch.fake_quantize_per_tensor_affine(x + self.zero_point * scale, scale, 0, -128, 127)
        weight = torch.fake_quantize_per_channel_affine(self.weight, of_weight, zeros, 0, -128, 127)
        return torch.nn.functional.linear(x, weight, self.bias)


class Int8(FakeQuantised):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scale, of_weight = rows.abs().amax(1, keepdim=True) / 127, self.weight.abs().amax(1, keepdim=True) / 127
        q = torch.clamp(torch.round(rows / scale) + self.zero_point, -128, 127).to(torch.int8)
        weight = torch.clamp(torch.round(self.weight / of_weight), -128, 127).to(torch.int8)
        y = torch._int_mm(q, weight.t()).float() * (scale * self.scale) * of_weight.t()
        return (y if self.bias is None else y + self.bias).reshape(*x.shape[:-1], -1)


class Float8(FakeQuantised):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scale, of_weight = rows.abs().max() / 448, self.weight.abs().max() / 448
        q, weight = (rows / scale).to(torch.float8_e4m3fn), (self.weight / of_weight).to(torch.float8_e4m3fn)
        y = torch._scaled_mm(q, weight.t(), scale * self.scale, of_weight, out_dtype=torch.float32)
        y = y + self.zero_point * scale * self.weight.sum(1)
        return (y if self.bias is None else y + self.bias).reshape(*x.shape[:-1], -1)


def bert() -> Any:
    config = BertConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=100
    )
    return BertModel(config).eval()


def llama() -> Any:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 100}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes)).eval()


#: Of each model: a linear layer, and a norm with the layers that read its output.
MODELS: dict[str, tuple[Callable[[], Any], str, str, str]] = {
    "bert": (
        bert,
        "encoder.layer.1.intermediate.dense",
        "encoder.layer.0.output.LayerNorm",
        "encoder.layer.1.attention.self",
    ),
    "llama": (llama, "model.layers.1.mlp.up_proj", "model.layers.1.post_attention_layernorm", "model.layers.1.mlp"),
}
KINDS = {"fake": FakeQuantised, "int8": Int8, "float8": Float8}


def quantised(model: Any, kind: type[FakeQuantised]) -> Any:
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(parent, name, kind(child))
    return model


def dumped(model: Any, path: Path) -> Path:
    with ascend_dump.capture(model, path=path, quiet=True) as cap, torch.no_grad():
        model(input_ids=X)
    return Path(cap.path)


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    found = {}
    for name, (make, *_) in MODELS.items():
        torch.manual_seed(0)
        model = make()
        found[name] = model, dumped(model, tmp_path_factory.mktemp(name))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [pytest.param("bert", marks=pytest.mark.thorough), "llama"])
def test_a_healthy_model_has_no_fault_and_a_planted_one_is_first(
    name: str, kind: str, references: dict[str, tuple[Any, Path]], tmp_path: Path
) -> None:
    model, reference = references[name]
    layer = MODELS[name][1]
    program = quantised(model, KINDS[kind])
    errors = ascend_dump.local_errors(dumped(program, tmp_path / "healthy"), reference)
    assert errors.verdict == "ok"
    assert errors.refused == ()
    linears = {path for path, module in program.named_modules() if isinstance(module, FakeQuantised)}
    assert {one.layer for one in errors.layers if one.is_quantised} == linears
    # Eight bits of a normal distribution: 35 to 45 dB, float8 with three bits of mantissa about 28.
    low, high = (24, 34) if kind == "float8" else (32, 48)
    assert all(low < one.numbers.snr < high for one in errors.layers if one.is_quantised)
    assert all(one.numbers.snr > 100 for one in errors.layers if not one.is_quantised)
    for fault, value, words in (("scale", 4.0, "scale"), ("scale", 0.2, "scale"), ("zero_point", 25, "zero point")):
        wrong = quantised(model, KINDS[kind])
        setattr(wrong.get_submodule(layer), fault, value)
        errors = ascend_dump.local_errors(dumped(wrong, tmp_path / f"{fault}{value}"), reference)
        assert errors.layers[0].layer == layer
        assert {one.layer for one in errors.layers if one.verdict == "wrong"} <= {layer}
        if kind == "fake" and value == 4.0:
            # The input is rounded to a quarter of the levels, and is not larger.
            assert errors.leave_out == (layer,)
        else:
            assert words in errors.layers[0].reason


@pytest.mark.parametrize("name", MODELS)
def test_layers_that_read_outlier_channels_are_first(name: str, tmp_path: Path) -> None:
    make, _, norm, readers = MODELS[name]
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        model.get_submodule(norm).weight[7] *= 60
    reference = dumped(model, tmp_path / "reference")
    errors = ascend_dump.local_errors(dumped(quantised(model, FakeQuantised), tmp_path / "actual"), reference)
    assert errors.layers[0].layer.startswith(readers)
    assert errors.verdict == "stands out"
    assert errors.leave_out[0] == errors.layers[0].layer
    assert "unquantised" in errors.advice
    reading = [one for one in errors.layers if one.outliers and one.outliers[0].channel == 7 and one.is_quantised]
    assert any(one.verdict == "stands out" for one in reading)
    assert max(one.outliers[0].times for one in reading) > 30


def test_dynamic_quantisation_is_measured_though_its_weights_are_packed(
    references: dict[str, tuple[Any, Path]], tmp_path: Path
) -> None:
    model, reference = references["bert"]
    with pytest.warns(match="deprecated"):
        program = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {torch.nn.Linear}, torch.qint8)
    errors = ascend_dump.local_errors(dumped(program, tmp_path), reference)
    assert (errors.verdict, errors.refused) == ("ok", ())
    assert sum(one.is_quantised for one in errors.layers) == 13


def test_the_share_of_the_final_error_is_that_of_quantising_one_layer_alone(
    references: dict[str, tuple[Any, Path]], tmp_path: Path
) -> None:
    model, reference = references["llama"]
    program = copy.deepcopy(model)
    program.model.layers[1].mlp.down_proj = Int8(program.model.layers[1].mlp.down_proj)
    errors = ascend_dump.local_errors(dumped(program, tmp_path), reference)
    assert [one.layer for one in errors.layers if one.is_quantised] == ["model.layers.1.mlp.down_proj"]
    assert errors.layers[0].share == pytest.approx(1.0, abs=1e-3)


def test_a_dump_of_modules_is_enough_of_the_quantised_side(
    references: dict[str, tuple[Any, Path]], tmp_path: Path
) -> None:
    model, reference = references["llama"]
    program = quantised(model, Int8)
    program.get_submodule(MODELS["llama"][1]).scale = 3.0
    with ascend_dump.capture(program, path=tmp_path, level="module", quiet=True), torch.no_grad():
        program(input_ids=X)
    errors = ascend_dump.local_errors(tmp_path, reference)
    assert errors.layers[0].layer == MODELS["llama"][1]
    assert errors.layers[0].numbers.gain == pytest.approx(3.0, rel=0.05)


def test_the_verbs_print_the_ranking(
    references: dict[str, tuple[Any, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from schemas import faults_of

    model, reference = references["llama"]
    program = quantised(model, Int8)
    program.get_submodule(MODELS["llama"][1]).scale = 3.0
    actual = dumped(program, tmp_path)
    assert main(["compare", str(actual), str(reference), "--local"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("wrong: ")
    assert "its output is 3 times as large as it should be: a wrong scale" in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 100
    assert main(["triage", str(actual), str(reference), "--quantised"]) == 1
    assert capsys.readouterr().out == printed
    assert main(["compare", str(actual), str(reference), "--local", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["layers"][0]["layer"] == MODELS["llama"][1]
    assert faults_of(document) == []
    assert main(["compare", str(actual), str(reference), "--local", "--brief"]) == 1
    assert len(capsys.readouterr().out.encode()) < 2048
    assert main(["compare", str(actual), str(reference), "--local", "--rows", "0=1"]) == 2
    assert main(["triage", str(actual), "--quantised"]) == 2
