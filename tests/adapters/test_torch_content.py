"""Every record holds the bytes that the operator saw, however the memory changes afterwards."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Callable

import pytest

import ascend_dump

torch = pytest.importorskip("torch")

from torch_helpers import (  # noqa: E402  (needs torch)
    Residual,
    Shadow,
    assert_same_as_shadow,
    same,
    slow_down,
    train,
    transformer,
)


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    return tmp_path / "dumps"


class Calls(torch.nn.Module):
    """A module that runs a function, so that its operators are one step."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def check(dumps: Path, function: Callable[..., Any], *args: Any, steps: int = 1, **settings: Any) -> Any:
    """Run `function(*args)` as steps under capture and shadow; gives the capture and the number of records."""
    model = Calls(function)
    shadow = Shadow()
    with ascend_dump.capture(model, path=dumps, strict=True, **settings) as cap, shadow.under(model):
        for _ in range(steps):
            model(*args)
    compared = assert_same_as_shadow(cap, shadow)
    assert compared > 0
    return cap


def pictures() -> Any:
    return torch.randn(2, 3, 8, 8)


def words() -> Any:
    return torch.randn(2, 5, 32)


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.lstm = torch.nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.gru = torch.nn.GRUCell(10, 4)
        self.rnn = torch.nn.RNN(4, 3)

    def forward(self, x: Any) -> Any:
        out, _ = self.lstm(self.embed(x))
        hidden = torch.zeros(x.shape[0], 4)
        for t in range(out.shape[1]):
            hidden = self.gru(out[:, t], hidden)
        return self.rnn(hidden.unsqueeze(0))[0]


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(40, 200)
        self.mix = torch.nn.Linear(200, 200)
        self.out = torch.nn.Linear(200, 40, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Any) -> Any:
        return self.out(self.mix(self.embed(x)).tanh())


MODELS = {
    "transformer": (transformer, words),
    "convnet": (Residual, pictures),
    "convnet channels_last": (
        lambda: Residual().to(memory_format=torch.channels_last),
        lambda: pictures().contiguous(memory_format=torch.channels_last),
    ),
    "recurrent": (Recurrent, lambda: torch.randint(0, 11, (3, 4))),
    "tied": (Tied, lambda: torch.randint(0, 40, (6, 7))),
    "instance norm": (
        lambda: torch.nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
        pictures,
    ),
}


@pytest.mark.parametrize("speed", ["fast writer", "slow writer"])
@pytest.mark.parametrize("name", MODELS)
def test_a_training_loop(name: str, speed: str, dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, make_input = MODELS[name]
    torch.manual_seed(3)
    model = make()
    plain = copy.deepcopy(model)
    expected = train(plain, make_input)
    if speed == "slow writer":
        slow_down(monkeypatch, 0.0005)
    shadow = Shadow()
    with ascend_dump.capture(model, path=dumps, strict=True) as cap, shadow.under(model):
        results = train(model, make_input)
    assert same(expected, results), "the capture changed a result"
    assert assert_same_as_shadow(cap, shadow) > 50


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=False),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True, foreach=False),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
    "LBFGS": None,
}


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "LBFGS"])
def test_optimizers(name: str, dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters large enough not to be copied at once, written in place while they wait."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(80, 90), torch.nn.ReLU(), torch.nn.Linear(90, 80))
    plain = copy.deepcopy(model)
    expected = train(plain, lambda: torch.randn(4, 80), optimizer=OPTIMIZERS[name])
    slow_down(monkeypatch, 0.001)
    shadow = Shadow()
    with ascend_dump.capture(model, path=dumps, strict=True) as cap, shadow.under(model):
        results = train(model, lambda: torch.randn(4, 80), optimizer=OPTIMIZERS[name])
    assert same(expected, results)
    assert_same_as_shadow(cap, shadow)
