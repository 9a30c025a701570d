"""Trainings that differ in a loss, in a factor, or in the number of parts of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest

import ascend_dump
from ascend_dump.cli import main

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
functional = torch.nn.functional

CLASSES, LENGTH, WIDTH = 5, 8, 8


class Network(torch.nn.Module):
    """An encoder layer of PyTorch beside a scaled feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 0.5
        self.up, self.norm = torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH)
        self.encoder = torch.nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(self.norm(x + self.factor * functional.silu(self.up(x)))))


def ctc(logits: Any, targets: Any, reduction: str = "mean") -> Any:
    scores = logits.log_softmax(-1).transpose(0, 1)
    lengths = torch.full((len(targets),), LENGTH), torch.full((len(targets),), targets.shape[1])
    return functional.ctc_loss(scores, targets, *lengths, reduction=reduction)


def train(
    path: Path,
    change: Callable[[Any], object] = lambda network: None,
    *,
    loss: Callable[[Any, Any], Any] = ctc,
    parts: int = 1,
    rate: float = 0.01,
    per_call: bool = False,
    updates_each: bool = False,
    shift: float = 0.0,
    **settings: Any,
) -> Path:
    """per_call: a step per call of the model; updates_each: an update after each call; shift: added to the data."""
    torch.manual_seed(0)
    network = Network()
    change(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, foreach=False)
    torch.manual_seed(1)
    settings = {"steps": "all"} | settings if per_call else {"options": {"step": "optimizer"}} | settings
    with ascend_dump.capture(network, path=path, mode="all", quiet=True, **settings):
        for _ in range(2):
            batch, targets = torch.randn(4, LENGTH, WIDTH) + shift, torch.randint(1, CLASSES, (4, 3))
            total = 0.0
            for x, y in zip(batch.chunk(parts), targets.chunk(parts)):
                term = loss(network(x), y) / parts
                term.backward()
                total = total + term.detach()
                if updates_each:
                    optimizer.step()
                    optimizer.zero_grad()
            if not updates_each:
                optimizer.step()
                optimizer.zero_grad()
    return path


def test_another_factor_is_the_origin_though_later_statistics_agree(tmp_path: Path) -> None:
    actual = train(tmp_path / "actual", lambda network: setattr(network, "factor", 1.0), data="stats")
    found = ascend_dump.compare(actual, train(tmp_path / "reference", data="stats"))
    assert (found.origins[0].kind, found.origins[0].pair.record.op_type) == ("structure", "aten::mul")
    assert "other: 1.0 here, 0.5 in the reference" in found.origins[0].evidence


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_a_difference_before_a_loss_with_undefined_elements_explains_its_gradients(tmp_path: Path, data: str) -> None:
    actual = train(tmp_path / "actual", lambda network: setattr(network.norm, "eps", 0.5), data=data)
    found = ascend_dump.compare(actual, train(tmp_path / "reference", data=data))
    [origin] = found.origins
    assert origin.module == "norm"


def test_another_reduction_is_one_origin_at_the_output_of_the_model(tmp_path: Path) -> None:
    actual = train(tmp_path / "actual", loss=lambda a, b: ctc(a, b, "sum"), level="module")
    found = ascend_dump.compare(actual, train(tmp_path / "reference", level="module"))
    [origin] = found.origins
    assert (origin.module, origin.pair.record.op_name, origin.step) == ("", "backward_0", 0)
    assert any("gradient of an output of the model" in line for line in origin.evidence)


def square(logits: Any, _: Any) -> Any:
    return logits.square().mean()


def test_a_batch_in_parts_is_no_origin(tmp_path: Path) -> None:
    actual = train(tmp_path / "actual", loss=square, parts=2)
    found = ascend_dump.compare(actual, train(tmp_path / "reference", loss=square))
    assert found.origins == ()
    assert "different" not in found.counts


@pytest.mark.parametrize("settings", [{"data": "tensor"}, {"data": "stats"}, {"level": "module"}], ids=str)
def test_calls_with_parts_of_a_batch_have_no_partner_and_no_origin(
    tmp_path: Path, settings: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With other data, they are no parts of that batch."""
    reference = train(tmp_path / "reference", loss=square, per_call=True, **settings)
    actual = train(tmp_path / "actual", loss=square, parts=2, per_call=True, **settings)
    for sides in ((actual, reference), (reference, actual)):
        found = ascend_dump.compare(*sides)
        assert (found.verdict, found.origins, {*found.counts}) == ("unmatched", (), {"unmatched"})
        assert len(found.aligned) == 1
        assert 'options={"step": "optimizer"}' in found.aligned[0]
    main(["compare", str(actual), str(reference)])
    printed = capsys.readouterr().out
    assert "each call is a step" in printed
    assert "has a partner" not in printed
    other = train(tmp_path / "other", loss=square, parts=2, per_call=True, shift=1.0, **settings)
    assert ascend_dump.compare(other, reference).origins


def test_an_update_after_each_part_of_a_batch_is_no_sum_of_gradients(tmp_path: Path) -> None:
    reference = train(tmp_path / "reference", loss=square, per_call=True)
    actual = train(tmp_path / "actual", loss=square, parts=2, per_call=True, updates_each=True)
    assert ascend_dump.compare(actual, reference).origins


def test_a_sum_of_losses_that_is_wrong_is_an_origin(tmp_path: Path) -> None:
    actual = train(tmp_path / "actual", loss=lambda a, b: 2 * square(a, b), parts=2)
    found = ascend_dump.compare(actual, train(tmp_path / "reference", loss=square))
    assert found.origins


def test_an_average_that_is_updated_after_the_optimizer_belongs_to_the_step(tmp_path: Path) -> None:
    def averaged(path: Path, share: float) -> Path:
        torch.manual_seed(0)
        network = torch.nn.Linear(WIDTH, WIDTH)
        average = [parameter.detach().clone() for parameter in network.parameters()]
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        x = torch.randn(4, WIDTH)
        with ascend_dump.capture(network, path=path, mode="all", quiet=True, options={"step": "optimizer"}):
            for _ in range(2):
                network(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    for mean, parameter in zip(average, network.parameters()):
                        if share:
                            mean.lerp_(parameter, share)
        return path

    reference = averaged(tmp_path / "reference", 0.1)
    assert ascend_dump.compare(averaged(tmp_path / "right", 0.1), reference).verdict == "equal"
    for share in (0.0, 0.2):
        [origin] = ascend_dump.compare(averaged(tmp_path / f"wrong{share}", share), reference).origins
        assert origin.op_type == "aten::lerp_"


class Recurrent(torch.nn.Module):
    """A cell of PyTorch that is called for each element of a sequence. `cut` detaches its state once."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = torch.nn.LSTMCell(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 2)
        self.cut = self.by_hand = False

    def called(self, x: Any, state: Any) -> Any:
        if not self.by_hand:
            return self.cell(x, state)
        cell = self.cell
        gates = x @ cell.weight_ih.t() + cell.bias_ih + state[0] @ cell.weight_hh.t() + cell.bias_hh
        i, f, g, o = gates.chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def forward(self, x: Any) -> Any:
        state = torch.zeros(len(x), WIDTH), torch.zeros(len(x), WIDTH)
        results = []
        for position in range(x.shape[1]):
            state = self.called(x[:, position], state)
            if self.cut and position == 2:
                state = state[0].detach(), state[1]
            results.append(state[0])
        return self.head(torch.stack(results, 1))


def run_recurrent(path: Path, *, cut: bool = False, by_hand: bool = False, **settings: Any) -> Path:
    torch.manual_seed(0)
    network = Recurrent()
    network.cut, network.by_hand = cut, by_hand
    with ascend_dump.capture(network, path=path, mode="all", quiet=True, **settings):
        network(torch.randn(3, 5, WIDTH)).square().mean().backward()
    return path


def test_a_state_that_is_detached_is_the_origin_of_lost_gradients(tmp_path: Path) -> None:
    found = ascend_dump.compare(run_recurrent(tmp_path / "actual", cut=True), run_recurrent(tmp_path / "reference"))
    assert (found.origins[0].module, found.origins[0].pair.record.op_type) == ("", "aten::detach")


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_two_parameters_of_one_shape_are_no_pair(tmp_path: Path, data: str) -> None:
    actual = run_recurrent(tmp_path / "actual", by_hand=True, data=data)
    found = ascend_dump.compare(actual, run_recurrent(tmp_path / "reference", data=data))
    assert "parameter" not in {origin.kind for origin in found.origins}


@pytest.mark.parametrize("swapped", [False, True])
def test_statistics_show_that_two_calls_read_one_batch(
    tmp_path: Path, swapped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing names the data as the cause; with other data it is."""
    reference = train(tmp_path / "reference", loss=square, data="stats")
    sides = train(tmp_path / "actual", loss=square, parts=2, data="stats"), reference
    found = ascend_dump.compare(*sides[:: -1 if swapped else 1])
    assert found.origins == ()
    [note] = found.aligned
    assert note.startswith("one side reads ")
    assert "in 2 parts, one part a call" in note
    main(["compare", *map(str, sides)])
    assert "are compared by rows" in " ".join(capsys.readouterr().out.split())
    other = train(tmp_path / "other", loss=square, parts=2, shift=1.0, data="stats")
    found = ascend_dump.compare(*(other, reference)[:: -1 if swapped else 1])
    assert found.origins[0].kind == "input"
    assert found.aligned == ()
