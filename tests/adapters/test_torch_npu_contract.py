"""The contract, kept by the adapter `torch_npu` on the simulated device."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

from ascend_dump import fakes  # noqa: E402
from ascend_dump.testing.contract import AdapterContract  # noqa: E402


class _OnNpu(AdapterContract):
    name = "torch_npu"
    bad_request = MappingProxyType({"scene": "watch", "watch": "conv1"})

    @pytest.fixture(autouse=True)
    def application(self) -> Iterator[None]:
        with fakes.install("torch_npu", environ={}):
            yield


class TestModel(_OnNpu):
    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        def make() -> Any:
            torch.manual_seed(0)
            return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).npu()

        return make

    def run_step(self, target: Any) -> Any:
        target.zero_grad()
        loss = target(torch.arange(8.0).reshape(2, 4).npu()).square().sum()
        loss.backward()
        return loss.detach().cpu().numpy()


class TestModelOfStatistics(TestModel):
    settings = MappingProxyType({"data": "stats", "mode": "output"})
