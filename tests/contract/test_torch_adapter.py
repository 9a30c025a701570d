"""The contract, kept by the adapter `torch`."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Callable

import pytest

from ascend_dump.adapter import registered
from ascend_dump.testing.contract import AdapterContract

torch = pytest.importorskip("torch")


@pytest.mark.skipif("torch" not in registered(), reason="ascend-dump is not installed here, only on PYTHONPATH")
class TestTorch(AdapterContract):
    name = "torch"
    bad_request = MappingProxyType({"scene": "watch", "watch": ["0/addmm_0"]})

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        def make() -> Any:
            torch.manual_seed(0)
            return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.Linear(4, 2))

        return make

    def run_step(self, target: Any) -> Any:
        torch.manual_seed(1)
        target.zero_grad()
        target(torch.ones(3, 4)).sum().backward()
        return torch.cat([parameter.grad.flatten() for parameter in target.parameters()])

    def parts(self, target: Any) -> dict[str, Any]:
        """Of every module below the target; gradients come and go with each step."""
        found = {}
        for path, module in target.named_modules():
            found.update({f"{path}.{name}": part for name, part in super().parts(module).items()})
        return found
