"""Records as tensors of PyTorch, as data frames and by their places."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump.statistics import Statistics

torch = pytest.importorskip("torch")

needs_polars = pytest.mark.skipif(importlib.util.find_spec("polars") is None, reason="needs polars")
TYPES = ["bfloat16", "float16", "float32", "float64", "int8", "uint8", "int64", "bool", "complex64"]
TYPES += [name for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]


def record_of(tensor: Any, path: Path) -> ascend_dump.Record:
    with ascend_dump.capture(path=path, mode="output", quiet=True) as cap:
        tensor.clone()
    [record] = cap.dump()
    return record


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", [(), (3, 5), (70, 90)], ids=str)
def test_tensors_come_back_as_they_were(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensor = (torch.randn(shape) * 3).to(getattr(torch, name))
    record = record_of(tensor, tmp_path)
    for writable in (False, True):
        again = record.torch(writable=writable)
        assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
        assert (
            bytes(again.contiguous().view(torch.uint8).flatten())
            == bytes(tensor.contiguous().reshape(-1).view(torch.uint8))
            if shape
            else again.item() == tensor.item()
        )


def test_a_program_may_change_the_tensor_it_gets(tmp_path: Path) -> None:
    record = record_of(torch.ones(100, 100), tmp_path)
    record.torch().fill_(7)
    assert float(record.torch().max()) == 1.0
    shared = record.numpy()
    assert shared.flags.writeable is False
    assert record.torch(writable=False).data_ptr() == shared.ctypes.data != record.torch().data_ptr()


def test_a_transposed_tensor_keeps_its_values(tmp_path: Path) -> None:
    with ascend_dump.capture(path=tmp_path, mode="output", quiet=True) as cap:
        turned = torch.arange(6.0).reshape(2, 3).t()
    record = cap.dump().select(op_type="aten::t")[0]
    assert torch.equal(record.torch(), turned)


def test_what_holds_no_values_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ascend_dump.capture(path=tmp_path, data="stats", mode="output", quiet=True) as cap:
        torch.ones(3)
    with pytest.raises(ascend_dump.NotSupported, match="holds statistics only"):
        cap.dump()[0].torch()
    record = record_of(torch.ones(3), tmp_path / "more")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ascend_dump.FrameworkMissing, match="not installed"):
        record.torch()


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> ascend_dump.Dump:
    with ascend_dump.capture(path=tmp_path_factory.mktemp("places"), mode="output", quiet=True) as cap:
        for number in range(5):
            torch.full((2,), float(number)).log()
    return cap.dump()


def test_places_are_those_of_a_list(dump: ascend_dump.Dump) -> None:
    records = list(dump)
    assert [dump[at] for at in range(len(records))] == records
    assert dump[-1] == records[-1]
    for part in (slice(2, 5), slice(None), slice(-3, None), slice(None, None, -1), slice(1, None, 2), slice(99, None)):
        assert dump[part] == records[part]
    for wrong in (len(records), -len(records) - 1):
        with pytest.raises(IndexError):
            dump[wrong]
    with pytest.raises(TypeError, match="select"):
        dump["log_0"]  # type: ignore[call-overload]


@needs_polars
@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_frames_hold_statistics_where_asked(data: Any, tmp_path: Path) -> None:
    with ascend_dump.capture(path=tmp_path, data=data, mode="output", quiet=True) as cap:
        torch.full((4,), -2.0).log()
        torch.empty(3)
    dump = cap.dump()
    frame = dump.to_frame(stats=True)
    fields = dump.to_frame()
    assert frame.select(fields.columns).equals(fields)
    assert set(frame.columns) - set(fields.columns) == set(Statistics._fields)
    full, log, empty = frame.rows(named=True)
    assert (full["max"], full["count"], log["nan"], empty["max"]) == (-2.0, 4, 4, None)


@needs_polars
def test_without_pandas(dump: ascend_dump.Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/real/torch has it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ascend_dump.NotSupported, match="pip install pandas"):
        dump.to_pandas()


def test_a_capture_says_where_it_is(tmp_path: Path) -> None:
    cap = ascend_dump.capture(path=tmp_path, quiet=True)
    assert repr(cap) == f"<Capture {tmp_path} (idle)>"
    with cap:
        torch.ones(1)
        assert repr(cap) == f"<Capture {cap.path} (active)>"
    assert repr(cap) == f"<Capture {cap.path} (ended)>"
