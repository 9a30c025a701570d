"""Operators that return a view are recorded in a way of their own, with the same records as all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch = pytest.importorskip("torch")


def program() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 64)
    y = x.view(32, 128)
    y.t()[1:3].unsqueeze(0).expand(4, 2, 32)
    torch.as_strided(x, (3, 3), (1, 1)) + 1
    y.add_(1)
    x.view(16, 256).mul_(2)
    x.view(4096)
    pairs = torch.view_as_complex(x.view(2048, 2))
    pairs.conj().imag + 1
    torch.view_as_real(pairs)
    torch._neg_view(x).view(4096)
    x.view(torch.int32)
    x.select(0, 3), x[3:5], x.diagonal(), x.unfold(0, 2, 2)
    layer = torch.nn.Linear(64, 64)
    layer(x).transpose(0, 1).contiguous().sum().backward()
    layer.weight.grad.t(), layer.weight.detach(), layer.weight.data.t()
    x.data.view(4096)
    x.data.add_(1)
    x.view(4096), x.data.view(4096)
    unset = torch.empty(8, 8)
    unset.view(64), unset.t()
    unset.fill_(2)
    unset.view(64)
    torch.empty(0, 3).view(3, 0)
    torch.tensor(3.0).view(1).expand(1000)
    torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).view(4096)
    with torch.inference_mode():
        made = x + 1
        x.view(4096), made.view(4096)
        made.add_(1)
        made.t()
    torch.ops.aten._unsafe_view(x, [4096])
    x.split(32), x.unbind(0)


def told(path: Path) -> list[Any]:
    """Return the facts of the records of a dump, without times and addresses."""
    found = []
    for record in ascend_dump.open(path):
        attrs = {name: value for name, value in record.attrs.items() if name not in ("address", "blob", "shard")}
        fields = (record.op_name, record.op_type, record.io, record.index, record.dtype, record.shape, record.nbytes)
        # Values by their hash, since statistics of two engines differ in the last digit.
        found.append((*fields, record.module, record.phase, str(record.error), str(sorted(attrs.items(), key=str))))
    return found


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("tensors-*"))


@pytest.mark.filterwarnings("ignore:torch.quantize")
@pytest.mark.parametrize("mode", ["all", "input", "output"])
@pytest.mark.parametrize("data", ["tensor", "stats", "full"])
def test_records_are_those_of_the_general_way(
    mode: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("own", "general"):
        if name == "general":
            monkeypatch.setattr("ascend_dump_torch._schema._schemas", {})
            monkeypatch.setattr("ascend_dump_torch._schema._is_of_one_tensor", lambda schema: False)
        with ascend_dump.capture(
            framework="torch", path=tmp_path / name, mode=mode, data=data, strict=True, quiet=True
        ):
            program()
    own, general = told(tmp_path / "own"), told(tmp_path / "general")
    assert len(own) > 60
    assert [one for one in zip(own, general) if one[0] != one[1]] == []
    assert len(own) == len(general)
    assert size_of(tmp_path / "own") == size_of(tmp_path / "general")


def test_of_a_small_view_not_all_of_its_memory_is_stored(tmp_path: Path) -> None:
    large = torch.randn(1_000_000)
    with ascend_dump.capture(framework="torch", path=tmp_path, mode="output", quiet=True):
        large[:8], large[8:24].view(4, 4)
    assert size_of(tmp_path) < 400_000  # of which 262 kB are the header


def test_an_operator_whose_tensor_is_given_by_name(tmp_path: Path) -> None:
    library = torch.library.Library("ascend_dump_test_views", "DEF")
    library.define("whole(*, Tensor(a) self) -> Tensor(a)")
    library.impl("whole", lambda *, self: self.view(-1), "CPU")
    with ascend_dump.capture(framework="torch", path=tmp_path, quiet=True) as cap:
        torch.ops.ascend_dump_test_views.whole(self=torch.ones(2, 3))
    assert [record.shape for record in cap.dump().select(op="whole_0")] == [(2, 3), (6,)]


def test_a_view_that_cannot_be_made_raises_what_it_raises_without_a_capture(tmp_path: Path) -> None:
    with ascend_dump.capture(framework="torch", path=tmp_path, quiet=True) as cap:
        with pytest.raises(RuntimeError, match="shape"):
            torch.ones(6).view(4)
        torch.ones(6).view(2, 3)
    assert [record.shape for record in cap.dump().select(op="view_*", io="output")] == [(2, 3)]
