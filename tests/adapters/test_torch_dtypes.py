"""Every type of element and every layout: the values, the statistics, or the reason why there are none."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any, Callable

import ml_dtypes
import numpy as np
import pytest

import ascend_dump
from ascend_dump import NotSupported

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("host_and_device")


def dump_of(dumps: Path, run: Callable[[], Any], **settings: Any) -> tuple[Any, dict[str, int]]:
    """The dump of the operators of `run`, and what its manifest says was skipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # prototypes of PyTorch
        with ascend_dump.capture(path=dumps, strict=True, **settings) as cap:
            run()
    manifest = json.loads((cap.path / "manifest.json").read_text())
    assert manifest["state"] == "complete"
    dump = cap.dump()
    assert dump.errors() == []
    return dump, {one["reason"]: one["count"] for one in manifest["skipped"]}


def last(dump: Any, op: str, io: str = "output", index: int = 0) -> Any:
    return list(dump.select(op_type=f"aten::{op}", io=io, index=index))[-1]


INTEGERS = ["uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"]
FLOATS = [
    *("float16", "bfloat16", "float32", "float64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
]


def dtype_named(name: str) -> Any:
    if not hasattr(torch, name):
        pytest.skip(f"this PyTorch has no {name}")
    return getattr(torch, name)


@pytest.mark.parametrize("data", ["tensor", "full", "stats"])
@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS, "bool"])
def test_values_and_statistics(name: str, data: str, dumps: Path) -> None:
    dtype = dtype_named(name)
    numbers = [0.0, 1.0, 2.0, 4.0, 0.5, 8.0] if name in FLOATS else [0, 1, 2, 4, 100, 8]
    if name in FLOATS and "fnu" not in name:
        numbers[0] = -0.0
    source = torch.tensor(numbers, dtype=torch.float64).to(dtype)

    def run() -> None:
        source.view(2, -1)
        source[1:].view(torch.uint8)

    dump, skipped = dump_of(dumps, run, data=data)
    assert skipped == {}
    expected = [float(value) for value in source.to(torch.float64)]
    record = last(dump.select("view_0"), "view")
    assert record.dtype == name
    if data != "stats":
        assert record.numpy().astype(np.float64).ravel().tolist() == expected
        part = last(dump, "slice")
        assert part.numpy().astype(np.float64).tolist() == expected[1:]
    found = record.statistics()
    assert found.count == len(expected)
    assert (float(found.max), float(found.min)) == (max(expected), min(expected))
    assert math.isclose(found.mean, sum(expected) / len(expected))
    assert math.isclose(found.l2norm, math.sqrt(sum(value * value for value in expected)))
    assert (found.nan, found.posinf, found.neginf, found.zero) == (0, 0, 0, expected.count(0.0))
    if name in FLOATS and "fnu" not in name:
        assert (found.poszero, found.negzero) == (0, 1)


@pytest.mark.parametrize("name", [name for name in FLOATS if not name.endswith(("fnuz", "e4m3fn", "e8m0fnu"))])
def test_statistics_of_what_is_no_number(name: str, dumps: Path) -> None:
    dtype = dtype_named(name)
    source = torch.tensor([1.0, math.nan, math.inf, -math.inf, math.inf]).to(dtype)
    dump, _ = dump_of(dumps, lambda: source.view(5, 1), data="full")
    record = last(dump, "view")
    found = record.statistics()
    assert (found.nan, found.posinf, found.neginf) == (1, 2, 1)
    assert np.array_equal(record.numpy().astype(np.float64).ravel(), source.double().numpy(), equal_nan=True)


def complex_values(record: ascend_dump.Record) -> list[complex]:
    """Of complex32 as pairs of float16 too: ml_dtypes has the type from 0.6 on."""
    array = record.numpy()
    if record.dtype == "complex32" and not hasattr(ml_dtypes, "complex32"):
        assert (array.dtype, array.shape) == (np.float16, (*record.shape, 2))
        return [complex(*pair) for pair in array.tolist()]
    return array.tolist()


@pytest.mark.parametrize("name", ["complex32", "complex64", "complex128"])
def test_complex(name: str, dumps: Path) -> None:
    dtype = dtype_named(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = torch.tensor([1 + 2j, 3 - 4j, -5j]).to(dtype)

    def run() -> None:
        torch.ops.aten.alias(source.conj())
        torch.ops.aten.alias(source.conj().imag)
        torch.ops.aten.alias(torch._neg_view(source))

    dump, _ = dump_of(dumps, run, data="full")
    values = source.to(torch.complex128)
    conjugate, imaginary, negative = dump.select(op_type="aten::alias", io="output")
    assert (conjugate.dtype, negative.dtype) == (name, name)
    assert imaginary.dtype == str(source.real.dtype).replace("torch.", "")
    assert complex_values(conjugate) == values.conj().tolist()
    assert imaginary.numpy().tolist() == [-2, 4, 5]
    assert complex_values(negative) == (-values).tolist()
    for record in (conjugate, imaginary, negative):
        if record.dtype == "complex32" and not hasattr(ml_dtypes, "complex32"):
            with pytest.raises(NotSupported, match="complex32"):
                record.statistics()
        else:
            assert (record.statistics().count, record.statistics().nan) == (3, 0)


def test_quantized(dumps: Path) -> None:
    floats = torch.tensor([[-1.0, 0.0], [1.5, 2.0]])

    def run() -> None:
        one = torch.quantize_per_tensor(floats, 0.5, 3, torch.qint8)
        torch.relu(one)
        scales, zeros = torch.tensor([0.5, 0.25]), torch.tensor([1, 0])
        torch.quantize_per_channel(floats, scales, zeros, 0, torch.quint8).clone()
        torch.quantize_per_tensor(floats, 0.5, 0, torch.qint32).clone()

    dump, skipped = dump_of(dumps, run, data="full")
    record = last(dump, "quantize_per_tensor")
    assert last(dump, "relu").numpy().tolist() == [[3, 3], [6, 7]]
    assert last(dump.select("quantize_per_tensor_0"), "quantize_per_tensor").attrs["quantization"] == {
        "scheme": "per_tensor",
        "scale": 0.5,
        "zero_point": 3,
    }
    assert record.dtype == "qint32"
    assert record.numpy().tolist() == [[-2, 0], [3, 4]]
    record = last(dump, "clone", io="input")
    channel = last(dump, "quantize_per_channel")
    assert channel.dtype == "quint8"
    assert channel.numpy().tolist() == [[0, 1], [6, 8]]
    assert channel.attrs["quantization"] == {
        "scheme": "per_channel",
        "scale": [0.5, 0.25],
        "zero_point": [1, 0],
        "axis": 0,
    }
    assert channel.statistics().max == 8
    assert skipped == {}


def test_shell_types_are_read_as_bytes(dumps: Path) -> None:
    source = torch.arange(8, dtype=torch.uint8)
    names = [
        name for name in ("uint3", "int4", "bits8", "bits2x4", "quint4x2", "float4_e2m1fn_x2") if hasattr(torch, name)
    ]

    def run() -> None:
        for name in names:
            source.view(getattr(torch, name)).view(2, 4)

    for data in ("tensor", "full"):
        dump, _ = dump_of(dumps, run, data=data)
        found = {record.dtype: record.numpy().view(np.uint8).tolist() for record in dump.select("view_*", io="input")}
        for name in names:
            assert found[name] == list(range(8)), name
        for record in dump.select("view_*", io="input"):
            if record.dtype in names:
                with pytest.raises(ascend_dump.NotSupported, match=f"no statistics are defined for {record.dtype}"):
                    record.statistics()


@pytest.mark.parametrize("data", ["tensor", "full"])
def test_columns_of_a_shell_type_are_stored(dumps: Path, data: str) -> None:
    rows = torch.arange(8, dtype=torch.uint8).view(torch.uint4).view(2, 4)

    def run() -> None:
        rows[:, ::2]
        torch.ones(3) + 1

    dump, skipped = dump_of(dumps, run, data=data, mode="output")
    [columns] = dump.select("slice_*", io="output")
    assert columns.numpy().view(np.uint8).tolist() == [[0, 2], [4, 6]]
    assert last(dump, "add").numpy().tolist() == [2, 2, 2]
    assert skipped == ({} if data == "tensor" else {"no statistics for uint4": 1})


def test_views_that_cannot_be_negated_are_told(dumps: Path) -> None:
    def run() -> None:
        torch._neg_view(torch.zeros(8, dtype=torch.bool))
        torch.ones(3) + 1

    dump, skipped = dump_of(dumps, run)
    assert skipped == {"bool that PyTorch cannot negate or conjugate": 1}
    assert last(dump, "add").numpy().tolist() == [2, 2, 2]


def test_packed_elements_do_not_reach_past_their_memory(dumps: Path) -> None:
    """Two or four elements in a byte: the sizes of such a tensor say more than its memory holds."""
    rows = torch.rand(3, 64)
    scales, zeros = torch.full((3,), 0.1), torch.zeros(3)

    def run() -> None:
        torch.quantize_per_channel(rows, scales, zeros, 0, torch.quint4x2)

    dump, skipped = dump_of(dumps, run, data="full")
    record = last(dump, "quantize_per_channel")
    assert record.dtype == "quint4x2"
    assert skipped.get("memory that is freed, or packed", 0) >= 1
    with pytest.raises(ascend_dump.AscendDumpError):
        record.numpy()


LAYOUTS: dict[str, tuple[Callable[[], Any], str]] = {
    "sparse_coo": (lambda: torch.eye(3).to_sparse() * 2, "sparse_coo layout"),
    "sparse_csr": (lambda: torch.eye(4).to_sparse_csr() * 2, "sparse_csr layout"),
    "sparse_csc": (lambda: torch.eye(4).to_sparse_csc() * 2, "sparse_csc layout"),
    "sparse_bsr": (lambda: torch.eye(4).to_sparse_bsr((2, 2)) * 2, "sparse_bsr layout"),
    "mkldnn": (lambda: torch.randn(4, 4).to_mkldnn().relu().to_dense(), "_mkldnn layout"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]) * 2, "nested tensor"),
    "meta": (lambda: torch.ones(3, device="meta") + 1, "meta tensor"),
    "empty": (lambda: torch.empty(3), "uninitialised memory"),
    "no memory": (lambda: torch._efficientzerotensor(3) * 2, "zero tensor without memory"),
}


@pytest.mark.parametrize("data", ["tensor", "full"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_cannot_be_stored_is_listed(name: str, data: str, dumps: Path) -> None:
    if name == "mkldnn" and not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    run, reason = LAYOUTS[name]
    dump, skipped = dump_of(dumps, run, data=data)
    assert skipped.get(reason, 0) >= 1, skipped
    for record in dump:
        if "skipped" in record.attrs:
            with pytest.raises(ascend_dump.AscendDumpError):
                record.numpy()
        else:
            record.numpy()
    # The parts of a sparse tensor are records of their own.
    assert any(record.attrs.get("skipped") == reason for record in dump)


def inputs_of_fillers(dump: Any) -> list[tuple[str, str]]:
    """(operator, reason why its first input is not stored) of what overwrites memory."""
    fillers = ("aten::bernoulli_", "aten::fill_", "aten::zero_", "aten::copy_", "aten::uniform_")
    found = [record for record in dump if record.op_type in fillers and record.io == "input" and record.index == 0]
    return [(record.op_type[6:], record.attrs.get("skipped", "")) for record in found]


def test_memory_nobody_has_filled_is_no_input(dumps: Path) -> None:
    def run() -> None:
        torch.manual_seed(0)
        torch.nn.functional.dropout(torch.ones(100), 0.5, training=True)
        torch.empty(3).fill_(1).zero_()
        torch.empty(6)[:3].copy_(torch.ones(3))

    dump, skipped = dump_of(dumps, run)
    unset = "uninitialised memory"
    assert inputs_of_fillers(dump) == [("bernoulli_", unset), ("fill_", unset), ("zero_", ""), ("copy_", unset)]
    assert skipped[unset] == 8  # of `empty`, of what fills it, and both sides of the view
    again, _ = dump_of(dumps / "again", run)
    assert [record.attrs.get("hash") for record in again] == [record.attrs.get("hash") for record in dump]


def test_memory_that_a_tensor_gives_up_is_no_input(dumps: Path) -> None:
    dump, _ = dump_of(dumps, lambda: torch.empty(3).set_(torch.ones(3)))
    first, second = [record for record in dump if record.op_type == "aten::set_" and record.io == "input"]
    assert first.attrs["skipped"] == "uninitialised memory"
    assert second.numpy().tolist() == [1, 1, 1]


def test_memory_filled_behind_our_back_is_an_input(dumps: Path) -> None:
    def run() -> None:
        empty = torch.empty(3)
        empty.numpy()[:] = 7
        empty.zero_()
        torch.ones(3).resize_(2).fill_(4)
        empty = torch.empty(3)
        # Whatever a kernel outside the dispatcher wrote here is read, so it counts.
        empty.add_(1)

    dump, _ = dump_of(dumps, run)
    assert inputs_of_fillers(dump) == [("zero_", ""), ("fill_", "")]
    (added,) = [record for record in dump if record.op_type == "aten::add_" and record.io == "input"]
    assert "skipped" not in added.attrs


def test_writes_to_sparse_tensors_are_seen(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_helpers import slow_down

    slow_down(monkeypatch, 0.002)

    def run() -> None:
        sparse = torch.randn(100, 100).to_sparse()
        rows = torch.randn(100, 100).to_sparse_csr()
        for _ in range(3):
            sparse._values() + 1
            sparse.mul_(2)
            rows.values() + 1
            rows.zero_()

    dump, _ = dump_of(dumps, run)
    added = list(dump.select(op_type="aten::add", io="input"))
    results = list(dump.select(op_type="aten::add", io="output"))
    assert len(added) == 6
    for before, after in zip(added, results):
        assert np.array_equal(before.numpy() + np.float32(1), after.numpy())


def test_jagged_tensors_are_seen_by_their_parts(dumps: Path) -> None:
    def run() -> None:
        parts = [torch.ones(2, 3), torch.ones(4, 3)]
        jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
        (jagged * 2).sin()

    dump, _ = dump_of(dumps, run)
    assert last(dump, "sin").numpy().shape == (6, 3)
    assert last(dump, "mul").numpy().tolist() == [[2.0] * 3] * 6


def test_embedding_with_sparse_gradients(dumps: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.EmbeddingBag(50, 400, sparse=True, mode="sum")
    plain = torch.nn.EmbeddingBag(50, 400, sparse=True, mode="sum")
    plain.load_state_dict(model.state_dict())

    def train(one: Any) -> Any:
        optimizer = torch.optim.SparseAdam(one.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            one(torch.tensor([[1, 2], [1, 3]])).square().sum().backward()
            optimizer.step()
        return one.weight

    expected = train(plain)
    with ascend_dump.capture(model, path=dumps, strict=True) as cap:
        assert torch.equal(train(model), expected)
    assert cap.dump().errors() == []
    assert cap.dump().select(phase="backward")


@pytest.mark.parametrize("data", ["tensor", "full", "stats"])
def test_no_elements_and_no_dimensions(data: str, dumps: Path) -> None:
    def run() -> None:
        torch.ones(0, 3).sin()
        torch.ones(2, 0, 4).transpose(0, 1).cos()
        torch.tensor(2.0).exp2()

    dump, skipped = dump_of(dumps, run, data=data)
    assert skipped == {}
    empty, turned, scalar = last(dump, "sin"), last(dump, "cos"), last(dump, "exp2")
    assert (empty.shape, turned.shape, scalar.shape) == ((0, 3), (0, 2, 4), ())
    assert empty.statistics().count == 0
    assert scalar.statistics().max == 4.0
    if data != "stats":
        assert empty.numpy().shape == (0, 3)
        assert scalar.numpy().item() == 4.0


def test_statistics_of_views(dumps: Path) -> None:
    """Of the elements that the view has, each as often as it has it."""
    source = torch.arange(24.0).view(4, 6)
    views = {
        "t": source.t(),
        "expand": source[:1].expand(5, 6),
        "slice": source[:, 1::2],
        "gap": source.as_strided((2, 3), (0, 5), 1),
        "overlapping": source.as_strided((2, 3), (5, 0), 1),
        "conj": torch.complex(source, source).conj(),
    }

    def run() -> None:
        for view in views.values():
            torch.ops.aten.alias(view)

    dump, _ = dump_of(dumps, run, data="full")
    for view, record in zip(views.values(), dump.select(op_type="aten::alias", io="input")):
        found = record.statistics()
        values = view.resolve_conj().numpy()
        assert record.numpy().tolist() == values.tolist()
        assert found.count == values.size
        assert math.isclose(found.l2norm, np.linalg.norm(values.ravel()), rel_tol=1e-6)
        if not view.is_complex():
            assert (found.max, found.min) == (values.max(), values.min())
            assert math.isclose(found.mean, values.mean())


def test_what_only_works_out_shapes_is_not_recorded(dumps: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def run() -> None:
        torch.ones(3).sin()
        with FakeTensorMode():
            fake = torch.ones(4) * 2
            fake.cos()
            torch.empty_strided((2,), (1,))
        torch.ones(3).tan()

    dump, skipped = dump_of(dumps, run)
    assert last(dump, "tan").numpy().shape == (3,)
    assert {one.op_type for one in dump} == {"aten::ones", "aten::sin", "aten::tan"}
    assert "a FakeTensor" not in skipped


def test_buffers_of_lazy_modules(dumps: Path) -> None:
    model = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.LazyBatchNorm1d())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ascend_dump.capture(model, path=dumps, strict=True) as cap:
            for _ in range(2):
                model(torch.ones(3, 5)).sum().backward()
    assert {record.step for record in cap.dump()} == {0, 1}
    assert cap.dump().select("0/addmm_0", step=0)
    assert cap.dump().errors() == []
