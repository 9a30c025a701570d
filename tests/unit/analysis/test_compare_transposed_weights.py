"""Programs of which one stores matrices transposed, as the Conv1D of GPT-2 does in place of a linear layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ascend_dump

WIDTH, HIDDEN, ROWS = 8, 20, 12


class Conv1D(nn.Module):
    """A linear layer whose weight is [in, out]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return rows.view(*x.shape[:-1], rows.shape[-1])


class Network(nn.Module):
    """A network with a square matrix, in whose gradient no shape shows the order of the axes."""

    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.mix, self.down = layer(WIDTH, HIDDEN), layer(HIDDEN, HIDDEN), layer(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.gelu(self.up(self.norm(x)))
        return x + self.down(functional.silu(self.mix(hidden)))


def network(layer: Callable[[int, int], nn.Module], unturned: str = "") -> Network:
    """Return a network with the same weights for each kind of layer. unturned: a matrix that is not transposed"""
    torch.manual_seed(0)
    source, model = Network(Conv1D).state_dict(), Network(layer)
    for name, value in source.items():
        is_turned = layer is nn.Linear and value.dim() == 2 and name != unturned
        source[name] = value.t() if is_turned else value
    model.load_state_dict(source)
    return model


def dump(path: Path, model: Network, data: str = "tensor", **settings: Any) -> Path:
    optimizer = torch.optim.AdamW(model.parameters(), **{"lr": 1e-2, **settings})
    torch.manual_seed(1)
    batches = torch.randn(3, 2, ROWS, WIDTH).unbind(0)
    with ascend_dump.capture(model, path=path, steps="0-2", data=data):
        for batch in batches:
            optimizer.zero_grad()
            functional.mse_loss(model(batch), batch.flip(1)).backward()
            optimizer.step()
    return path


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("layers", [(nn.Linear, Conv1D), (Conv1D, nn.Linear)])
def test_the_order_of_axes_of_weights_is_no_difference(tmp_path: Path, layers: Any, foreach: bool) -> None:
    actual, reference = (
        dump(tmp_path / name, network(layer), foreach=foreach) for name, layer in zip(("actual", "reference"), layers)
    )
    comparison = ascend_dump.compare(actual, reference)
    assert not comparison.origins
    assert comparison.verdict in ("equal", "noise")


def test_statistics_of_transposed_weights_are_no_difference(tmp_path: Path) -> None:
    actual = dump(tmp_path / "actual", network(nn.Linear), "stats")
    comparison = ascend_dump.compare(actual, dump(tmp_path / "reference", network(Conv1D), "stats"))
    assert not comparison.origins
    assert comparison.verdict in ("equal", "noise", "undecided")


@pytest.mark.parametrize(
    ("setting", "operators"),
    [({"lr": 1.1e-2}, ("addcdiv",)), ({"weight_decay": 0.3}, ("mul",)), ({"eps": 1e-3}, ("add",))],
)
def test_another_setting_of_the_optimizer_is_named_first(
    tmp_path: Path, setting: dict[str, float], operators: tuple[str, ...]
) -> None:
    actual = dump(tmp_path / "actual", network(nn.Linear), foreach=False, **setting)
    comparison = ascend_dump.compare(actual, dump(tmp_path / "reference", network(Conv1D), foreach=False))
    assert comparison.verdict == "different"
    assert comparison.origins[0].op_name.startswith(operators)
    assert comparison.origins[0].pair.record.phase == "other"


def test_a_square_matrix_that_was_not_transposed_is_named(tmp_path: Path) -> None:
    actual = dump(tmp_path / "actual", network(nn.Linear, "mix.weight"))
    comparison = ascend_dump.compare(actual, dump(tmp_path / "reference", network(Conv1D)))
    assert comparison.verdict == "different"
    assert comparison.origins[0].module == "mix"


def test_a_square_matrix_that_one_side_transposed_by_mistake_is_a_parameter_that_differs(tmp_path: Path) -> None:
    model = network(nn.Linear)
    with torch.no_grad():
        model.mix.weight.copy_(model.mix.weight.t().clone())
    found = ascend_dump.compare(dump(tmp_path / "actual", model), dump(tmp_path / "reference", network(nn.Linear)))
    assert (found.origins[0].kind, found.origins[0].module) == ("parameter", "mix")
