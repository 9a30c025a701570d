"""`level="module"`: what modules are given and give, forward and backward."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ascend_dump
from ascend_dump import ConfigError, NotSupported, fakes

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.relu = torch.nn.ReLU(inplace=True)
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x: Any, *, scale: Any) -> Any:
        return {"logits": self.last(self.relu(self.first(x)) * scale), "count": 3}


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    return Net()


def run(model: Any) -> Any:
    x = torch.linspace(-1, 1, 32).reshape(4, 8).requires_grad_()
    (x * 1).retain_grad()
    out = model(x * 1, scale=torch.full((8,), 2.0))["logits"]
    out.pow(2).sum().backward()
    return x, out


def value(dump: ascend_dump.Dump, name: str, io: str, index: int = 0) -> Any:
    [record] = dump.select(op=name, io=io, index=index, step=0)
    return record.numpy()


def test_modules_are_recorded_and_no_operators(model: Net, tmp_path: Path) -> None:
    with ascend_dump.capture(model, path=tmp_path, level="module", quiet=True) as cap:
        for _ in range(2):
            _, out = run(model)
            model.zero_grad()
    dump = cap.dump()
    expected = {f"{path}{phase}_0" for path in ("", "first/", "relu/", "last/") for phase in ("forward", "backward")}
    for step in (0, 1):
        assert {record.op_name for record in dump.select(step=step)} == expected
    assert {record.op_type for record in dump} == {"Net", "Linear", "ReLU"}
    assert {record.phase for record in dump} == {"forward", "backward"}
    assert all(record.source.startswith(__file__) for record in dump)
    np.testing.assert_array_equal(value(dump, "forward_0", "output"), out.detach().numpy())
    [scale] = dump.select(op="forward_0", io="input", index=1, step=0)
    [logits] = dump.select(op="forward_0", io="output", index=0, step=0)
    assert (scale.argument, logits.argument) == ("scale", "logits")


def test_values_are_those_of_the_moment(model: Net, tmp_path: Path) -> None:
    """The ReLU writes into what the layer before it gave."""
    with ascend_dump.capture(model, path=tmp_path, level="module", quiet=True) as cap:
        run(model)
    dump = cap.dump()
    given, gives = value(dump, "relu/forward_0", "input"), value(dump, "relu/forward_0", "output")
    np.testing.assert_array_equal(value(dump, "first/forward_0", "output"), given)
    assert (given < 0).any()
    np.testing.assert_array_equal(np.maximum(given, 0), gives)


def test_writes_that_pytorch_does_not_count_are_seen(tmp_path: Path) -> None:
    """What is known from the module before is looked at again: one element is written, in a way no version tells."""

    class Unseen(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            x.data[5, 7] = -1.0
            return x * 1

    model = torch.nn.Sequential(torch.nn.ReLU(), Unseen())
    with ascend_dump.capture(model, path=tmp_path, level="module", quiet=True) as cap, torch.no_grad():
        for _ in range(2):
            model(torch.linspace(0, 1, 4096).reshape(64, 64))
    dump = cap.dump()
    for step in (0, 1):
        [[before], [given], [gives]] = (
            dump.select(op=op, io=io, step=step)
            for op, io in (("0/forward_0", "output"), ("1/forward_0", "input"), ("1/forward_0", "output"))
        )
        assert before.numpy()[5, 7] == given.numpy()[5, 7] > 0
        assert gives.numpy()[5, 7] == -1


def test_a_tensor_that_modules_give_on_is_queued_once(tmp_path: Path) -> None:
    """Else so many copies would wait for the writer that the program waits too."""
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Identity()) for _ in range(8)))
    x = torch.rand(1024, 1024)
    tracemalloc.start()
    with ascend_dump.capture(model, path=tmp_path, level="module", quiet=True) as cap:
        model(x)
        most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(cap.dump()) == 34
    assert most < 3 * x.nbytes


def test_gradients_are_those_of_autograd(model: Net, tmp_path: Path) -> None:
    plain_x, plain = run(model)
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with ascend_dump.capture(model, path=tmp_path, level="module", quiet=True) as cap:
        x, out = run(model)
    assert torch.equal(plain, out)
    assert torch.equal(plain_x.grad, x.grad)
    assert all(torch.equal(one, parameter.grad) for one, parameter in zip(expected, model.parameters()))
    dump = cap.dump()
    np.testing.assert_allclose(value(dump, "backward_0", "input"), 2 * out.detach().numpy())
    np.testing.assert_array_equal(value(dump, "backward_0", "output"), x.grad.numpy())
    inner = value(dump, "last/backward_0", "input") @ model.last.weight.detach().numpy()
    np.testing.assert_allclose(value(dump, "last/backward_0", "output"), inner, rtol=1e-6)


def test_nothing_of_it_stays(model: Net, tmp_path: Path) -> None:
    with ascend_dump.capture(model, path=tmp_path, level="module", steps="0", quiet=True) as cap:
        for _ in range(3):
            run(model)
    assert {record.step for record in cap.dump()} == {0}
    before = len(cap.dump())
    run(model)
    assert len(cap.dump()) == before
    hooks = torch.nn.modules.module
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks


@pytest.mark.parametrize("mode", ["input", "output"])
def test_mode_and_layers_select(mode: Any, model: Net, tmp_path: Path) -> None:
    settings: Any = {"mode": mode, "layers": "first", "level": "module", "quiet": True}
    with ascend_dump.capture(model, path=tmp_path, **settings) as cap:
        run(model)
    found = {(record.op_name, record.io) for record in cap.dump()}
    assert found == {("first/forward_0", mode), ("first/backward_0", mode)}


def test_a_module_that_raises_is_recorded_with_its_inputs(tmp_path: Path) -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise RuntimeError("mine")

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Broken())
    with ascend_dump.capture(model, path=tmp_path, level="module", quiet=True) as cap:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="mine"):
                model(torch.ones(1, 2))
    broken = cap.dump().select(op="1/forward_0")
    assert [(record.step, record.io) for record in broken] == [(0, "input"), (1, "input")]


def test_statistics_of_modules(model: Net, tmp_path: Path) -> None:
    with ascend_dump.capture(model, path=tmp_path, level="module", data="stats", quiet=True) as cap:
        run(model)
    [record] = cap.dump().select(op="relu/forward_0", io="output")
    assert record.statistics().min == 0.0


@pytest.mark.parametrize("settings", [{"scene": "overflow"}, {"graft": {"a.output.0": "dumps"}}], ids=str)
def test_what_looks_at_operators_is_refused(settings: Any, model: Net, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="level='module' records modules"):
        ascend_dump.capture(model, path=tmp_path, level="module", **settings).start()


def test_where_there_are_no_modules_it_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises((ConfigError, NotSupported), match="dumps operators and kernels, not modules")
    with fakes.install("torch_npu"), refused:
        ascend_dump.capture(framework="torch_npu", path=tmp_path, level="module").start()


def test_nothing_of_the_hooks_stays(model: Net, tmp_path: Path) -> None:
    from torch.nn.modules import module

    def entries() -> int:
        return sum(
            len(value)
            for name, value in vars(module).items()
            if name.startswith("_global_") and isinstance(value, dict)
        )

    before = entries()
    with ascend_dump.capture(model, path=tmp_path, level="module", quiet=True):
        run(model)
    assert entries() == before
