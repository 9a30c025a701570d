"""`graft=`: values of another dump in the running program, and what becomes of a difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")


class Net(torch.nn.Module):
    """Two layers and a norm whose epsilon may be wrong."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8, eps=eps), torch.nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return self.last(torch.relu(self.norm(self.first(x))))


INPUT = torch.linspace(-1, 1, 32).reshape(4, 8)
FAULT = "norm/native_layer_norm_0.output.0"


def dumped(path: Path, net: Any, **settings: Any) -> Any:
    with ascend_dump.capture(net, path=path, **settings) as cap:
        net(INPUT).sum().backward()
    return cap.dump()


def output(dump: Any, name: str) -> Any:
    (record,) = dump.select(op=name, io="output", index=0)
    return record.numpy()


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    dumped(tmp_path / "reference", Net())
    return tmp_path / "reference"


def test_the_difference_is_gone_behind_the_operator_that_made_it(reference: Path, tmp_path: Path) -> None:
    right = ascend_dump.open(reference)
    wrong = dumped(tmp_path / "wrong", Net(eps=0.1))
    mended = dumped(tmp_path / "mended", Net(eps=0.1), graft={FAULT: reference})
    for name in ("norm/native_layer_norm_0", "relu_0", "last/addmm_0"):
        assert not np.array_equal(output(wrong, name), output(right, name))
        assert np.array_equal(output(mended, name), output(right, name))


def test_a_graft_elsewhere_leaves_the_difference(reference: Path, tmp_path: Path) -> None:
    right = ascend_dump.open(reference)
    still = dumped(tmp_path / "still", Net(eps=0.1), graft={"first/addmm_0.output.0": right})
    assert not np.array_equal(output(still, "last/addmm_0"), output(right, "last/addmm_0"))


def test_gradients_are_those_of_the_values_that_were_put_in(reference: Path, tmp_path: Path) -> None:
    net, twin = Net(eps=0.1), Net()
    dumped(tmp_path / "mended", net, graft={FAULT: reference})
    twin(INPUT).sum().backward()
    assert torch.equal(net.last.weight.grad, twin.last.weight.grad)


def test_an_input_is_replaced_for_its_operator_only(tmp_path: Path) -> None:
    def run(x: Any, **settings: Any) -> tuple[Any, Any, Any]:
        with ascend_dump.capture(path=tmp_path / settings.pop("name"), **settings) as cap:
            return torch.mul(torch.ones(3), x), torch.cat([x, x]), cap

    right, wrong = torch.full((3,), 2.0), torch.full((3,), 5.0)
    run(right, name="a")
    grafts = {"mul_0.input.1": tmp_path / "a", "cat_0.input.1": tmp_path / "a"}
    product, joined, cap = run(wrong, name="b", graft=grafts)
    assert product.tolist() == [2.0] * 3
    assert joined.tolist() == [5.0] * 3 + [2.0] * 3
    (recorded,) = cap.dump().select(op="mul_0", io="input", index=1)
    assert recorded.numpy().tolist() == [2.0] * 3
    assert wrong.tolist() == [5.0] * 3


def test_an_input_that_is_written_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ascend_dump.capture(path=tmp_path / "a"):
        torch.zeros(2, 2).add_(1)
    with ascend_dump.capture(path=tmp_path / "b", graft={"add__0.input.0": tmp_path / "a"}):
        assert torch.ones(2, 2).add_(1).sum() == 8
    assert "graft of 'add__0.input.0': the operator writes to that memory" in caplog.text
    assert "graft the output of the operator that computes it" in caplog.text
    assert "please report this" not in caplog.text


def test_the_input_of_a_view_is_replaced_in_its_memory(reference: Path, tmp_path: Path) -> None:
    net = Net()
    with torch.no_grad():
        net.last.weight.mul_(2)
    right = ascend_dump.open(reference)
    mended = dumped(tmp_path / "mended", net, graft={"last/t_0.input.0": reference})
    for name in ("last/t_0", "last/addmm_0"):
        assert np.array_equal(output(mended, name), output(right, name))
    (recorded,) = mended.select(op="last/t_0", io="input")
    assert np.array_equal(recorded.numpy(), net.last.weight.detach().numpy())
    twin = Net()
    twin(INPUT).sum().backward()
    assert torch.equal(net.first.weight.grad, twin.first.weight.grad)  # the backward pass reads the weight too


def test_what_was_stored_of_the_memory_of_a_view_before_stays(tmp_path: Path) -> None:
    def run(x: Any, **settings: Any) -> Any:
        with ascend_dump.capture(path=tmp_path / settings.pop("name"), **settings) as cap:
            x + 1
            x.t()
            x + 2
        return cap.dump()

    run(torch.zeros(64, 64), name="a")
    dump = run(torch.ones(64, 64), name="b", graft={"t_0.input.0": tmp_path / "a"})
    found = {one.op_name: float(one.numpy().max()) for one in dump.select(io="input")}
    assert found == {"add_0": 1.0, "t_0": 0.0, "add_1": 0.0}


def test_an_input_whose_elements_share_memory_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def run(x: Any, **settings: Any) -> Any:
        with ascend_dump.capture(path=tmp_path / settings.pop("name"), **settings):
            return x.expand(3, 2).t()

    run(torch.zeros(1, 2), name="a")
    assert run(torch.ones(1, 2), name="b", graft={"t_0.input.0": tmp_path / "a"}).sum() == 6
    assert "graft of 't_0.input.0': it is a view in which several elements share their memory" in caplog.text


def test_steps_that_are_not_recorded_are_left_alone(reference: Path, tmp_path: Path) -> None:
    net = Net(eps=0.1)
    plain = net(INPUT)
    with ascend_dump.capture(net, path=tmp_path / "d", steps="0", graft={FAULT: reference}):
        mended, later = net(INPUT), net(INPUT)
    assert not torch.equal(mended, plain)
    assert torch.equal(later, plain)
    assert torch.equal(net(INPUT), plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_type_is_put_in_as_it_was(tmp_path: Path, dtype: Any) -> None:
    values = torch.randn(5).to(dtype)
    with ascend_dump.capture(path=tmp_path / "a"):
        recorded = values * 2
    with ascend_dump.capture(path=tmp_path / "b", graft={"mul_0.output.0": tmp_path / "a"}):
        found = values * 3
    assert torch.equal(found, recorded)


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        ("norm", ascend_dump.ConfigError, "expected an operator"),
        ("nothing_0.output.0", ascend_dump.ConfigError, "has no such record"),
    ],
)
def test_what_cannot_be_grafted_is_refused_at_the_start(
    reference: Path, tmp_path: Path, key: str, error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        dumped(tmp_path / "d", Net(), graft={key: reference})


def test_statistics_hold_no_values_to_graft(tmp_path: Path) -> None:
    dumped(tmp_path / "stats", Net(), data="stats")
    with pytest.raises(ascend_dump.NotSupported):
        dumped(tmp_path / "d", Net(), graft={FAULT: tmp_path / "stats"})


def test_no_dump_to_take_values_from(tmp_path: Path) -> None:
    with pytest.raises(ascend_dump.DumpNotFound):
        dumped(tmp_path / "d", Net(), graft={FAULT: tmp_path / "none"})


def test_another_shape_ends_the_capture_and_not_the_run(
    reference: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = Net()
    with ascend_dump.capture(net, path=tmp_path / "d", graft={FAULT: reference}):
        assert net(INPUT[:2]).shape == (2, 2)
    assert "the program has [2, 8], the dump [4, 8]" in caplog.text
    with (
        pytest.raises(ascend_dump.CaptureError),
        ascend_dump.capture(net, path=tmp_path / "e", graft={FAULT: reference}, strict=True),
    ):
        net(INPUT[:2])


def test_a_view_is_told_to_be_one(reference: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dumped(tmp_path / "d", Net(), graft={"first/t_0.output.0": reference})
    assert "view of the output of another operator" in caplog.text
    assert "graft the output of that operator, or the input of the view" in caplog.text
    assert "please report this" not in caplog.text


def test_a_graft_that_was_not_done_is_told(reference: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ascend_dump.capture(path=tmp_path / "d", graft={FAULT: reference}):
        torch.ones(3) * 2
    assert f"graft of {FAULT!r} was not done: no such operator ran" in caplog.text
    net = Net()
    with ascend_dump.capture(net, path=tmp_path / "e", steps="1", graft={FAULT: reference}):
        net(INPUT)
        net(INPUT)
    assert "the dump does not have the steps that were recorded" in caplog.text


def test_other_adapters_refuse_it(tmp_path: Path, reference: Path) -> None:
    from ascend_dump.fakes import install

    with install("acl"), pytest.raises(ascend_dump.ConfigError, match="graft"):
        ascend_dump.capture(framework="acl", path=tmp_path / "d", graft={FAULT: reference}).start()


def test_a_tensor_is_refused_with_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ascend_dump.ConfigError, match="is a Tensor: expected the path of a dump"):
        ascend_dump.capture(Net(), path=tmp_path / "d", graft={FAULT: torch.zeros(3)}).start()


class Experts(torch.nn.Module):
    """Two layers that send each token to one of four experts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.routers = torch.nn.ModuleList(torch.nn.Linear(8, 4, bias=False) for _ in range(2))
        self.experts = torch.nn.Parameter(torch.randn(2, 4, 8, 8) / 3)

    def forward(self, x: Any) -> Any:
        for router, experts in zip(self.routers, self.experts):
            scores, ids = router(x).softmax(-1).topk(2, -1)
            parts = torch.einsum("tkoi,ti->tko", experts[ids], x)
            x = x + (parts * scores[..., None]).sum(1)
        return x


def test_the_routing_of_the_reference(tmp_path: Path) -> None:
    """With all choices of the reference, what is left of the difference is arithmetic."""
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))

    def experts_of(path: Path, dtype: Any, **settings: Any) -> Any:
        net = Experts().to(dtype)
        with torch.no_grad(), ascend_dump.capture(net, path=path, **settings) as cap:
            result = net(x.to(dtype)).float()
        chosen = [record.numpy() for record in cap.dump().select(op="*topk_*", io="output", index=1)]
        return np.stack(chosen), result

    ids, right = experts_of(tmp_path / "reference", torch.float32)
    other_ids, routed = experts_of(tmp_path / "bfloat16", torch.bfloat16)
    grafted_ids, grafted = experts_of(
        tmp_path / "grafted", torch.bfloat16, graft={"*topk_*.output.*": tmp_path / "reference"}
    )
    assert (ids != other_ids).any()
    assert (ids == grafted_ids).all()
    assert float((grafted - right).norm()) < 0.5 * float((routed - right).norm())


def test_a_pattern_that_fits_nothing(reference: Path, tmp_path: Path) -> None:
    with pytest.raises(ascend_dump.ConfigError, match="has no such record"):
        dumped(tmp_path / "run", Net(), graft={"*topk_*.output.*": reference})
