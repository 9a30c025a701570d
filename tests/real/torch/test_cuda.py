"""The same truths on a CUDA device: values, results, and nothing read before it is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from truth import Truth, compare_step
from workloads import digest, make_llama, train

import ascend_dump
from ascend_dump import Record

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

#: Elements of tensors that keep a device busy for longer than Python needs to go on.
MANY = 1 << 25


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Two runs compute the same bits."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def bounds(record: Record) -> list[float]:
    """The smallest and the largest value, once when they are the same."""
    array = record.numpy()
    return sorted({float(array.min()), float(array.max())})


class Net(nn.Module):
    """Convolution, batch norm with running statistics, in-place activation, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(16 * 14 * 14, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def make_net() -> Net:
    torch.manual_seed(0)
    return Net().cuda()


def train_net(model: Net, *, autocast: bool) -> list[str]:
    """Losses of three steps, fed from pinned memory by copies that nobody waits for."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        x = torch.randn(16, 3, 16, 16).pin_memory().to("cuda", non_blocking=True)
        y = torch.randint(0, 10, (16,)).pin_memory().to("cuda", non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.grad.clamp_(-1, 1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    return losses


@needs_cuda
@pytest.mark.usefixtures("deterministic")
class TestTraining:
    @pytest.mark.parametrize("autocast", [False, True])
    def test_values_and_results_are_true(self, autocast: bool, tmp_path: Path) -> None:
        losses = train_net(model := make_net(), autocast=autocast)
        parameters = [parameter.detach().cpu() for parameter in model.state_dict().values()]
        with Truth(model := make_net()) as truth:
            assert train_net(model, autocast=autocast) == losses
        model = make_net()
        with ascend_dump.capture(model, steps="0|2", path=tmp_path, strict=True) as cap:
            assert train_net(model, autocast=autocast) == losses
        captured = [parameter.detach().cpu() for parameter in model.state_dict().values()]
        assert all(torch.equal(a, b) for a, b in zip(parameters, captured))
        dump = cap.dump()
        for step in (0, 2):
            assert compare_step(dump.select(step=step), truth.steps[step]) > 100
        assert {record.attrs["device"] for record in dump.select("features.*", phase="forward")} == {"cuda:0"}

    def test_statistics_only(self, tmp_path: Path) -> None:
        losses = train_net(make_net(), autocast=False)
        model = make_net()
        with ascend_dump.capture(model, steps="1", path=tmp_path, data="stats", strict=True) as cap:
            assert train_net(model, autocast=False) == losses
        (loss,) = cap.dump().select(op_type="aten::nll_loss_forward", io="output", index=0)
        assert loss.statistics().max.hex() == losses[1]

    def test_llama(self, tmp_path: Path) -> None:
        def train_on_device(model: nn.Module) -> list[str]:
            with torch.device("cuda"):
                return train(model)

        losses = train_on_device(model := make_llama(attn_implementation="eager").cuda())
        parameters = digest(model.cpu())
        model = make_llama(attn_implementation="eager").cuda()
        with ascend_dump.capture(model, steps="1|3", path=tmp_path, strict=True) as cap:
            assert train_on_device(model) == losses
        assert digest(model.cpu()) == parameters
        backward = cap.dump().select("model.layers.0.self_attn.q_proj/mm_*", step=1, io="output", phase="backward")
        assert len(backward) == 2, "the thread that runs the device's backward pass is seen too"


@needs_cuda
class TestAsynchrony:
    def test_side_stream(self, tmp_path: Path) -> None:
        side = torch.cuda.Stream()
        ones = torch.ones(MANY, device="cuda")
        with ascend_dump.capture(path=tmp_path, strict=True, max_bytes="2GB") as cap:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                doubled = ones * 2
                doubled.add_(3)
            torch.cuda.current_stream().wait_stream(side)
            total = (doubled - 1).sum()
        assert total.item() == 4 * MANY
        values = [
            (record.op_type, record.io, bounds(record)) for record in cap.dump() if record.attrs["device"] != "cpu"
        ]
        assert values == [
            ("aten::mul", "input", [1.0]),
            ("aten::mul", "output", [2.0]),
            ("aten::add_", "input", [2.0]),
            ("aten::add_", "output", [5.0]),
            ("aten::sub", "input", [5.0]),
            ("aten::sub", "output", [4.0]),
            ("aten::sum", "input", [4.0]),
            ("aten::sum", "output", [4.0 * MANY]),
        ]

    def test_copies_to_the_host_that_nobody_has_waited_for(self, tmp_path: Path) -> None:
        ones = torch.ones(MANY, device="cuda")
        pinned = torch.zeros(MANY, pin_memory=True)
        few = torch.zeros(16, pin_memory=True)
        with ascend_dump.capture(path=tmp_path, strict=True, max_bytes="2GB") as cap:
            doubled = ones * 2
            pinned.copy_(doubled, non_blocking=True)
            few.copy_(doubled[:16], non_blocking=True)
            made = doubled.to("cpu", non_blocking=True)
            torch.cuda.synchronize()
        assert made.sum().item() == 2 * MANY
        arrived = [record for record in cap.dump().select(io="output") if record.attrs["device"] == "cpu"]
        assert [bounds(record) for record in arrived] == [[2.0]] * 3

    def test_pinned_memory_that_is_used_again(self, tmp_path: Path) -> None:
        pinned = torch.ones(1 << 20, pin_memory=True)
        with ascend_dump.capture(path=tmp_path, strict=True) as cap:
            first = pinned.to("cuda", non_blocking=True)
            torch.cuda.current_stream().synchronize()
            pinned.fill_(2)
            second = pinned.to("cuda", non_blocking=True)
        assert (first.sum().item(), second.sum().item()) == (1 << 20, 2 << 20)
        copies = [record for record in cap.dump() if record.op_type in ("aten::_to_copy", "aten::copy_")]
        assert [(record.io, bounds(record)) for record in copies] == [
            ("input", [1.0]),
            ("output", [1.0]),
            ("input", [2.0]),
            ("output", [2.0]),
        ]

    def test_graph_is_recorded_and_replayed_as_without_a_capture(self, tmp_path: Path) -> None:
        x = torch.ones(1024, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _ = x * 2 + 1  # once before, so that everything is loaded
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with ascend_dump.capture(path=tmp_path) as cap:
            with torch.cuda.graph(graph):
                y = x * 2 + 1
            x.fill_(4)
            graph.replay()
            torch.cuda.synchronize()
            result = y - 1
        assert torch.equal(result.cpu(), torch.full((1024,), 8.0))
        (difference,) = cap.dump().select("sub_0", io="output")
        assert bounds(difference) == [8.0]
        assert not cap.dump().select(op_type="aten::mul")


def test_operators_that_go_into_a_graph_are_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Reading a tensor then would make the graph invalid; here only the question is asked of CUDA."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    with ascend_dump.capture(path=tmp_path) as cap:
        before = torch.ones(3) + 1
        with monkeypatch.context() as patched:
            patched.setattr(torch.cuda, "is_initialized", lambda: True)
            patched.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            product = before * 2
        total = product.sum()
    assert total.item() == 12
    assert [record.op_type for record in cap.dump().select(io="output")] == ["aten::ones", "aten::add", "aten::sum"]
    assert "operators captured into a device graph (cuda)" in (cap.path / "manifest.json").read_text()
