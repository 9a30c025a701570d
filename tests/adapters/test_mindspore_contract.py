"""The contract, kept by the adapter `mindspore` on the fake MindSpore."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Callable

import numpy as np
import pytest

from ascend_dump import fakes
from ascend_dump.testing.contract import AdapterContract


class TestMindSpore(AdapterContract):
    name = "mindspore"
    device = "CPU"
    # Statistics are refused on a CPU.
    bad_request = MappingProxyType({"data": "stats"})

    @pytest.fixture(autouse=True)
    def program(self) -> Iterator[None]:
        """A process in graph mode whose device is not up yet."""
        with fakes.install("mindspore"):
            import mindspore as ms

            ms.set_context(mode=ms.GRAPH_MODE)
            ms.set_device(self.device)
            yield

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        from mindspore import nn

        def make() -> Any:
            weights = {"weight_init": "ones", "bias_init": "zeros"}
            return nn.SequentialCell(nn.Dense(4, 3, **weights), nn.ReLU(), nn.Dense(3, 2, **weights))

        return make

    def run_step(self, target: Any) -> Any:
        import mindspore as ms

        return target(ms.Tensor(np.arange(8, dtype=np.float32).reshape(2, 4))).asnumpy()

    # MindSpore takes no capture once anything has run in its process, so what runs first there runs last here.

    def test_results_are_unchanged(self, capture: Any, make_target: Callable[[], Any]) -> None:
        captured, plain = make_target(), make_target()
        with capture(captured):
            results = [self.run_step(captured) for _ in range(3)]
        for one, other in zip(results, [self.run_step(plain) for _ in range(3)]):
            assert self.same(one, other)

    def test_the_target_is_the_same_object_as_before(self, capture: Any, make_target: Callable[[], Any]) -> None:
        target = make_target()
        before = self.parts(target)
        with capture(target):
            self.run_step(target)
        after = self.parts(target)
        assert before.keys() == after.keys()
        assert [name for name in before if before[name] is not after[name]] == []


class TestMindSporeOnAscend(TestMindSpore):
    """Kernel by kernel (jit_level O0) on the simulated device."""

    device = "Ascend"
    bad_request = MappingProxyType({"scene": "watch"})
