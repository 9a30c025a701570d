"""The promises of every adapter, for this one."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Callable

import pytest

from ascend_dump.testing.contract import AdapterContract

jax = pytest.importorskip("jax")


class TestJax(AdapterContract):
    name = "jax"
    bad_request = MappingProxyType({"scene": "watch", "watch": ["add"]})

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        from ascend_dump_jax import Recordable
        from network import loss

        return lambda: Recordable(loss)

    def run_step(self, target: Any) -> Any:
        from network import batch, parameters

        return target(parameters(), batch())
