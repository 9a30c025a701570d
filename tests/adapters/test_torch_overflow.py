"""The scene `overflow`: only what holds NaN or Inf, its inputs, and where it began."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import ascend_dump

torch = pytest.importorskip("torch")

INF, NAN = math.inf, math.nan


pytestmark = pytest.mark.usefixtures("host_and_device")


def dump_of(dumps: Path, run: Callable[[], Any], **settings: Any) -> Any:
    with ascend_dump.capture(path=dumps, strict=True, **{"scene": "overflow", **settings}) as cap:
        run()
    assert cap.dump().errors() == []
    return cap.dump()


def ops(dump: Any) -> dict[str, bool]:
    """Names of the operators in the dump, and whether they are origins."""
    found: dict[str, bool] = {}
    for record in dump:
        found[record.op_name] = found.get(record.op_name, False) or bool(record.attrs.get("origin"))
    return found


def test_only_what_overflows_with_its_inputs(dumps: Path) -> None:
    x = torch.tensor([1.0, 1000.0])

    def run() -> None:
        y = (x * 2).exp()
        z = y - y
        (z + 1).relu()
        x.cos()

    dump = dump_of(dumps, run)
    assert ops(dump) == {"exp_0": True, "sub_0": False, "add_0": False, "relu_0": False}
    inputs = {record.index: record.numpy().tolist() for record in dump.select("exp_0", io="input")}
    assert inputs == {0: [2, 2000]}
    assert next(iter(dump.select("exp_0", io="output"))).numpy()[1] == INF


@pytest.mark.parametrize("mode", ["all", "input", "output"])
def test_in_place_operators(mode: str, dumps: Path) -> None:
    """Inputs are as they were, also where the result stands in the same memory."""
    x = torch.full((100, 100), 100.0)
    view = x[3:50]
    out = torch.full((3,), NAN)

    def run() -> None:
        x.exp_()
        view.sub_(x[3:50])
        torch.log(torch.zeros(3), out=out)
        y = torch.tensor([1.0, 0.0])
        y[:1].div_(y[1:])

    dump = dump_of(dumps, run, mode=mode)
    expected = {"exp__0": True, "sub__0": False, "log_0": True, "div__0": True}
    found = {name: origin for name, origin in ops(dump).items() if not name.startswith("slice")}
    if mode == "input":
        assert set(found) == {"exp__0", "sub__0", "log_0", "div__0"}
    else:
        assert found == expected
    if mode != "output":
        values = {
            (record.op_name, record.index): record.numpy().ravel()[0] for record in dump.select("*_0", io="input")
        }
        assert values["exp__0", 0] == 100
        assert values["sub__0", 0] == values["sub__0", 1] == INF
        assert (values["div__0", 0], values["div__0", 1]) == (1, 0)
        assert ("log_0", 1) not in values  # `out` is a result
        before = next(iter(dump.select("exp__0", io="input")))
        assert before.attrs["storage_nbytes"] == 40000
        assert np.array_equal(before.numpy(), np.full((100, 100), 100, np.float32))
    if mode != "input":
        assert next(iter(dump.select("sub__0", io="output"))).statistics().nan == 47 * 100


def test_constants_are_no_origins(dumps: Path) -> None:
    x = torch.ones(4, 4)
    mask = torch.eye(4, dtype=torch.bool)

    def run() -> None:
        masked = x.masked_fill(mask, -INF)
        masked.softmax(-1)
        x.clone().masked_fill_(mask, INF)
        torch.full((2,), -INF)
        torch.where(mask, x, torch.tensor(-INF))
        x + INF
        torch.add(x, x, alpha=INF)
        torch.nn.functional.pad(x, (1, 1), value=-INF)
        torch.tensor([NAN]).clone()
        x.new_full((2,), NAN)

    dump = dump_of(dumps, run)
    assert {name.rstrip("_0123456789") for name in ops(dump)} == {"add", "clone", "lift_fresh", "new_full"}
    assert not any(ops(dump).values())
    assert "_softmax_0" not in ops(dump)


def test_attention_with_a_causal_mask_is_quiet(dumps: Path) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    with ascend_dump.capture(layer, path=dumps, scene="overflow", strict=True) as cap:
        for _ in range(2):
            layer(torch.randn(2, 5, 8), src_mask=mask, is_causal=True).sum().backward()
    assert not any(ops(cap.dump()).values())


def test_a_sum_that_overflows_by_itself_is_none(dumps: Path) -> None:
    def run() -> None:
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.complex64):
            largest = torch.finfo(dtype).max
            torch.full((1000,), largest, dtype=dtype).clone()
        torch.tensor([6e4] * 4, dtype=torch.float16) * 1

    dump = dump_of(dumps, run)
    assert len(dump) == 0


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_every_type(dumps: Path) -> None:
    bad = {
        name: getattr(torch, name)
        for name in ("float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "complex64")
        if hasattr(torch, name)
    }
    values = {name: torch.tensor([1.0, NAN]).to(dtype) for name, dtype in bad.items()}
    values["complex128"] = torch.complex(
        torch.ones(2, dtype=torch.float64), torch.tensor([0, INF], dtype=torch.float64)
    )
    finite = [torch.arange(3), torch.ones(3).bool(), torch.ones(3, device="meta")]
    finite += [torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8), torch.ones(0), torch.ones(2).conj()]
    finite += [torch.ones(2).to(getattr(torch, "float8_e8m0fnu", torch.float16))]
    if hasattr(torch, "float4_e2m1fn_x2"):
        finite.append(torch.ones(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))

    def run() -> None:
        for value in [*values.values(), *finite]:
            torch.ops.aten.clone(value)
        torch.eye(3).to_sparse().mul(NAN)
        values["complex128"].conj().clone()

    dump = dump_of(dumps, run)
    found = [record.dtype for record in dump.select("clone_*", io="output")]
    assert found == [*values, "complex128"]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex32(dumps: Path) -> None:
    bad = torch.tensor([1, INF * 1j]).to(torch.complex32)
    dump = dump_of(dumps, lambda: (torch.ops.aten.clone(bad), torch.ops.aten.clone(bad[:1].conj())))
    assert set(ops(dump)) == {"clone_0"}


def _sparse(value: float) -> Any:
    return torch.tensor([[0.0, 1.0], [value, 0.0]]).to_sparse()


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "make",
    [
        lambda: _sparse(1e38),
        lambda: _sparse(1e38).to_dense().to_sparse_csr(),
        lambda: torch.nested.nested_tensor([torch.ones(2) * 1e38, torch.ones(3)]),
    ],
    ids=["coordinates", "rows", "nested"],
)
def test_every_layout(make: Callable[[], Any], dumps: Path) -> None:
    """Also the values of tensors that are not stored count."""
    x, dense = make(), torch.ones(2) * 1e38

    def run() -> None:
        x * 1e-3
        y = x * 1e3
        y * 2
        y.to_padded_tensor(0.0) if y.is_nested else y.to_dense()
        dense * 1e3

    found = ops(dump_of(dumps, run))
    assert {name for name, origin in found.items() if origin} == {"mul_1", "mul_3"}
    assert {"mul_2", "mul_3"} < set(found)
    assert "mul_0" not in found


def test_a_selection_of_all_operators_records_the_same(dumps: Path) -> None:
    """Without a selection little is noted of an operator before it runs; the rest is gathered once it overflowed."""

    def run() -> None:
        torch.manual_seed(0)
        x = torch.ones(4, requires_grad=True)
        y = (x * 100).exp() * 1
        y[:2].div_(torch.zeros(2))
        torch.div(y.detach(), torch.zeros(4), out=torch.empty(4))
        torch._foreach_add_([torch.ones(2), torch.full((2,), 3e38)], [torch.ones(2), torch.full((2,), 3e38)])
        torch.rand(4).log_().div_(0).zero_()
        torch.sort(torch.zeros(2, 2) / 0)
        (y.log() * x).sum().backward()

    def told(dump: Any) -> list[Any]:
        fields = ("op_name", "io", "index", "phase", "source", "argument")
        return [
            (
                *(getattr(record, name) for name in fields),
                *map(record.attrs.get, ("seq", "origin", "version")),
                record.numpy().tobytes(),
            )
            for record in dump
        ]

    dump = dump_of(dumps / "all", run)
    found = told(dump)
    assert len({name for name, *_ in found}) > 5
    assert [record.argument for record in dump.select(op="sort_0", io="output")] == ["values", "indices"]
    assert found == told(dump_of(dumps / "selected", run, layers="*"))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_tensor_that_is_overwritten(dumps: Path) -> None:
    x, y = _sparse(1e38), _sparse(INF)

    def run() -> None:
        x.mul_(1e3)
        y.mul_(0.0)

    assert ops(dump_of(dumps, run)) == {"mul__0": True, "mul__1": False}


def test_views_are_not_recorded_and_keep_their_numbers(dumps: Path) -> None:
    """Their values are those of the operator before them; names stay those of a dump of everything."""
    bad = torch.tensor([1.0, -1.0])

    def run() -> None:
        bad.view(2, 1).log().view(1, 2).mul(1).add(bad.view(1, 2))

    whole = {record.op_name for record in dump_of(dumps / "all", run, scene=None)}
    found = dump_of(dumps / "overflow", run)
    assert sorted(set(ops(found))) == ["add_0", "log_0", "mul_0"]
    assert {"view_0", "view_1", "view_2", *ops(found)} == whole


def test_backward_and_optimizer(dumps: Path) -> None:
    """An infinite gradient begins in the backward pass of the square root at zero."""
    model = torch.nn.Linear(4, 4)
    torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ascend_dump.capture(model, path=dumps, scene="overflow", steps="0-1", strict=True) as cap:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sqrt().sum().backward()
            optimizer.step()
    origins = [record for record in cap.dump().select(step=0) if record.attrs.get("origin")]
    assert [(record.phase, record.op_type) for record in origins] == [("backward", "aten::div")]
    assert origins[0].source.startswith(__file__)
    updated = [record for record in cap.dump().select(step=0) if record.phase == "other"]
    assert {record.parameter for record in updated if record.io == "input"} >= {"weight", "weight.grad"}
    assert {record.step for record in cap.dump()} == {0, 1}


def test_no_overflow_is_no_complaint(dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Linear(4, 4)
    with ascend_dump.capture(model, path=dumps, scene="overflow", strict=True) as cap:
        model(torch.ones(1, 4))
    assert len(cap.dump()) == 0
    assert all(record.levelno < logging.WARNING for record in caplog.records)
    cap = ascend_dump.capture(model, path=dumps, scene="overflow", steps="3", strict=True).start()
    model(torch.ones(1, 4))
    with pytest.raises(ascend_dump.CaptureError, match="was not reached"):
        cap.stop()


def test_results_are_unchanged(dumps: Path) -> None:
    def run() -> list[bytes]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout())
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.randn(6, 4)).exp() * 1e38).sum().backward()
            optimizer.step()
        return [value.detach().numpy().tobytes() for value in (*model.state_dict().values(), torch.get_rng_state())]

    expected = run()
    with ascend_dump.capture(path=dumps, scene="overflow", strict=True) as cap:
        assert run() == expected
    assert len(cap.dump()) > 0


def test_memory_from_empty_is_quiet(dumps: Path) -> None:
    def run() -> None:
        for _ in range(20):
            torch.empty(1000, 100).view(-1)
            torch.empty_like(torch.ones(1000)).fill_(1)

    dump = dump_of(dumps, run)
    assert not any(ops(dump).values())
    assert not dump.select("empty*")
