"""`level="module"` with `data="stats"`: norms of parameters, gradients and changes at each optimizer step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ascend_dump

torch = pytest.importorskip("torch")


def network(*, dtype: Any = None) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(dtype)


def train(model: Any, optimizer: Any, steps: int = 3, *, set_to_none: bool = True) -> list[dict[str, Any]]:
    """Train, and return for each step the norms of each parameter, its gradient and its change."""
    norms = []
    for step in range(steps):
        torch.manual_seed(step)
        x = torch.randn(32, 8, dtype=next(model.parameters()).dtype)
        model(x).square().mean().backward()
        before = {name: (value.detach().clone(), value.grad.clone()) for name, value in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        norms.append(
            {
                name: [float(part.double().norm()) for part in (*before[name], value.detach() - before[name][0])]
                for name, value in model.named_parameters()
            }
        )
    return norms


def capture(path: Path, model: Any, **settings: Any) -> Any:
    return ascend_dump.capture(model, path=path, quiet=True, strict=True, **{**STATS, **settings})


STATS = {"level": "module", "data": "stats"}


def updates(dump: ascend_dump.Dump) -> list[ascend_dump.Record]:
    return [record for record in dump if "update_" in record.op_name]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_norms_are_those_of_the_program(kind: str, foreach: bool, set_to_none: bool, tmp_path: Path) -> None:
    model = network()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, foreach=foreach)
    with capture(tmp_path, model) as cap:
        norms = train(model, optimizer, set_to_none=set_to_none)
    recorded: dict[Any, Any] = {}
    for record in updates(cap.dump()):
        assert (record.op_type, record.phase, record.dtype) == (kind, "other", "float32")
        statistics = record.statistics()
        assert statistics.count == math.prod(record.shape or ())
        assert statistics.max is statistics.nan is None
        recorded[record.step, record.parameter] = statistics.l2norm
    labels = ("{}", "{}.grad", "change of {}")
    expected = {
        (step, label.format(name)): norm
        for step, of_step in enumerate(norms)
        for name, three in of_step.items()
        for label, norm in zip(labels, three)
    }
    assert recorded.keys() == expected.keys()
    for key, norm in expected.items():
        assert recorded[key] == pytest.approx(norm, rel=1e-5), key


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_are_those_of_a_run_without_a_capture(dtype: str, tmp_path: Path) -> None:
    results = []
    for captured in (False, True):
        model = network(dtype=getattr(torch, dtype))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        cap = capture(tmp_path, model, steps="1").start() if captured else None
        train(model, optimizer)
        if cap is not None:
            cap.stop()
            assert {record.step for record in updates(cap.dump())} == {1}
            assert {record.dtype for record in updates(cap.dump())} == {dtype}
        results.append([parameter.detach().float().numpy() for parameter in model.parameters()])
    for plain, seen in zip(*results):
        np.testing.assert_array_equal(plain, seen)


def test_the_change_of_a_large_parameter_is_estimated(tmp_path: Path) -> None:
    """768 columns: elements at a distance that shares a factor with that would leave out columns."""
    torch.manual_seed(0)
    model = torch.nn.Embedding(4000, 768)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with capture(tmp_path, model) as cap:
        (model(torch.arange(4000)) * torch.arange(768)).square().mean().backward()
        before = model.weight.detach().clone()
        optimizer.step()
    [change] = [record for record in updates(cap.dump()) if record.io == "output"]
    norm = float((model.weight.detach() - before).norm())
    assert change.statistics().l2norm == pytest.approx(norm, rel=0.05)


def test_a_parameter_that_is_divided_anew_has_no_change(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with capture(tmp_path, model, options={"debug": True}) as cap:
        model(torch.ones(2, 8)).mean().backward()
        optimizer.step()
        model[0].weight.data = torch.ones(1)
    names = {record.parameter for record in updates(cap.dump()) if record.io == "output"}
    assert names == {"change of 0.bias", "change of 2.weight", "change of 2.bias"}


def test_a_device_without_the_kernel_for_many_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: Any) -> None:
        raise NotImplementedError("not on this device")

    monkeypatch.setattr(torch, "_foreach_norm", missing)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    with capture(tmp_path, model) as cap:
        [norms] = train(model, optimizer, steps=1)
    [weight] = [record for record in updates(cap.dump()) if record.parameter == "0.weight"]
    assert weight.statistics().l2norm == pytest.approx(norms["0.weight"][0], rel=1e-5)


def test_a_gradient_with_nan_has_all_its_statistics(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with capture(tmp_path, model) as cap:
        model(torch.full((2, 8), math.nan)).mean().backward()
        optimizer.step()
    dump = cap.dump()
    [gradient] = [record for record in updates(dump) if record.parameter == "0.weight.grad"]
    assert gradient.statistics().nan == 8 * 16
    [change] = [record for record in updates(dump) if record.parameter == "change of 0.weight"]
    assert math.isnan(change.statistics().l2norm or 0.0)


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({"mode": "input"}, {"2.bias", "2.bias.grad", "2.weight", "2.weight.grad"}),
        ({"mode": "output"}, {"change of 2.bias", "change of 2.weight"}),
        ({"stats": ("max",)}, set()),
        ({"data": "tensor", "mode": "output"}, {"change of 2.bias", "change of 2.weight"}),
    ],
)
def test_settings_apply(settings: dict[str, Any], labels: set[str], tmp_path: Path) -> None:
    model = network()
    with capture(tmp_path, model, layers=["2"], **settings) as cap:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert {record.parameter for record in updates(cap.dump())} == labels


def test_two_optimizers_and_two_steps_of_one_within_a_recorded_step(tmp_path: Path) -> None:
    model = network()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.AdamW(model[2].parameters(), lr=0.1)
    with capture(tmp_path, model) as cap:
        model(torch.ones(2, 8)).mean().backward()
        first.step()
        first.step()
        second.step()
    records = [record for record in updates(cap.dump()) if record.io == "input" and record.index == 0]
    assert [(record.op_type, record.op_name) for record in records] == [
        *(("SGD", f"0/update_{number}") for number in range(4)),
        *(("AdamW", f"2/update_{number}") for number in range(2)),
    ]


def test_optimizer_steps_as_steps_of_the_capture(tmp_path: Path) -> None:
    """Two calls of the model for each optimizer step: each has its gradients in the step of its calls."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with capture(tmp_path, model, steps="0|2", options={"step": "optimizer"}) as cap:
        for _ in range(4):
            for _ in range(2):
                model(torch.ones(2, 8)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    steps = [record.step for record in updates(cap.dump()) if record.parameter == "0.weight.grad"]
    assert steps == [0, 2]


def test_a_step_that_the_scaler_leaves_out_has_no_update(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with capture(tmp_path, model) as cap:
        for factor in (1.0, math.inf, 1.0):
            scaler.scale(model(torch.ones(2, 8)).mean() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert {record.step for record in updates(cap.dump())} == {0, 2}


def test_a_wrong_setting_of_an_optimizer_is_an_origin_of_compare(tmp_path: Path) -> None:
    """The records of updates are paired, and what differs after them is explained by them."""
    dumps = []
    for name, rate in (("actual", 0.2), ("reference", 0.1)):
        model = network()
        with capture(tmp_path / name, model) as cap:
            train(model, torch.optim.SGD(model.parameters(), lr=rate))
        dumps.append(cap.dump())
    comparison = ascend_dump.compare(*dumps)
    assert comparison.verdict == "different"
    assert {origin.op_name.rpartition("/")[2] for origin in comparison.origins} <= {"update_0", "update_1"}
    assert {origin.step for origin in comparison.origins} == {0}
