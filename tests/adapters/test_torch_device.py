"""Memory of a device, which the host cannot read: tensors only say so here, and what is read of them is watched.

The tests of types and of the scene overflow run so too; what needs a device itself is in tests/real/torch/test_cuda.py.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import ascend_dump

torch = pytest.importorskip("torch")

from torch_helpers import (  # noqa: E402  (needs torch)
    Residual,
    Shadow,
    assert_same_as_shadow,
    pretend_device,
    same,
    train,
    transformer,
)


@pytest.fixture(autouse=True)
def copied(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Where `Tensor.cpu` has put copies."""
    return pretend_device(monkeypatch)


@pytest.mark.parametrize("data", ["tensor", "stats"])
@pytest.mark.parametrize("make", [Residual, transformer])
def test_a_training_loop(make: Callable[[], Any], data: str, tmp_path: Path, copied: set[int]) -> None:
    def make_input() -> Any:
        return torch.randn(2, 3, 8, 8) if make is Residual else torch.randn(2, 5, 32)

    torch.manual_seed(3)
    model = make()
    expected = train(copy.deepcopy(model), make_input)
    shadow = Shadow()
    with ascend_dump.capture(model, path=tmp_path, data=data, strict=True) as cap, shadow.under(model):
        assert same(expected, train(model, make_input))
    assert len(copied) > 50
    if data == "tensor":
        assert assert_same_as_shadow(cap, shadow) > 50


@pytest.mark.parametrize("data", ["tensor", "stats", "full"])
def test_views(data: str, tmp_path: Path) -> None:
    x = torch.arange(24.0).reshape(4, 6)
    z = torch.complex(x, -x)
    views = {
        "gaps": x[:, ::2],
        "transposed": x.t(),
        "part": x[1:3],
        "expanded": x[:1].expand(5, 6),
        "overlapping": x.as_strided((3, 4), (1, 2)),
        "conjugated": z.conj(),
        "negative": z.conj().imag,
        "empty": x[:0],
        "bytes": x.view(torch.uint8)[:, 1::3],
    }
    expected = {name: view.resolve_conj().resolve_neg().numpy().copy() for name, view in views.items()}
    with ascend_dump.capture(path=tmp_path, data=data, strict=True) as cap:
        for view in views.values():
            torch.ones_like(view)
    found = cap.dump().select(op_type="aten::ones_like", io="input")
    assert len(found) == len(views)
    for record, (name, array) in zip(found, expected.items()):
        assert record.shape == array.shape, name
        if data == "stats":
            assert record.statistics().count == array.size, name
            assert not array.size or name == "conjugated" or record.statistics().max == array.max(), name
        else:
            assert np.array_equal(record.numpy(), array), name


def test_what_overflowed_in_place(tmp_path: Path) -> None:
    """The inputs of such an operator are kept as they were, on the device, until its output is known."""
    x = torch.tensor([[1.0, 1000.0], [2.0, 3.0]]).t()
    with ascend_dump.capture(path=tmp_path, scene="overflow", strict=True) as cap:
        x[:, :1].exp_()
    (before,) = cap.dump().select(op_type="aten::exp_", io="input")
    (after,) = cap.dump().select(op_type="aten::exp_", io="output")
    assert before.numpy().tolist() == [[1.0], [1000.0]]
    assert after.numpy()[1, 0] == math.inf


@pytest.mark.parametrize("version", ["2.4", "2.6"])
def test_what_older_versions_say_of_accelerators(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.6 there is no `torch.accelerator`; in 2.6 it raises an error where there is none."""

    def none_available() -> None:
        raise RuntimeError("Cannot access accelerator device when none is available.")

    asked: list[str] = []
    if version == "2.4":
        monkeypatch.delattr(torch, "accelerator")
        monkeypatch.delattr(torch, "npu", raising=False)  # of a fake before, in the same process
        monkeypatch.setattr(torch.xpu, "_is_compiled", lambda: True)
        monkeypatch.setattr(torch.xpu, "is_initialized", lambda: bool(asked.append("xpu")))
    else:
        monkeypatch.setattr(torch.accelerator, "current_accelerator", none_available)
    with ascend_dump.capture(path=tmp_path, strict=True) as cap:
        torch.ones(3).add(1)
    assert len(cap.dump().select(op_type="aten::add")) == 2
    assert bool(asked) is (version == "2.4")
