"""The contract, kept by the adapter `acl` on the simulated device."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Callable

import numpy as np
import pytest
from acl_helpers import execute

from ascend_dump import fakes
from ascend_dump.fakes.device.offline_model import OfflineModel, OfflineNode, TensorSpec, save
from ascend_dump.testing.contract import AdapterContract


class TestAcl(AdapterContract):
    name = "acl"
    bad_request = MappingProxyType({"data": "full"})

    @pytest.fixture(autouse=True)
    def application(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """An application with an initialised acl; it loads its model again when a dump is switched on or off."""
        om = tmp_path_factory.mktemp("models") / "net.om"
        nodes = (
            OfflineNode("w", "Const", const=np.arange(8, dtype=np.float32).reshape(4, 2)),
            OfflineNode("dense", "MatMul", ("x:0", "w:0")),
            OfflineNode("act", "Relu", ("dense:0",)),
        )
        save(OfflineModel("net", (TensorSpec("x", (1, 4), "float32"),), nodes, ("act:0",), True), om)
        with fakes.install("acl", environ={}) as npu:
            import acl

            assert [acl.init(), acl.rt.set_device(0)] == [0, 0]
            self.acl, self.npu, self.om, self.model = acl, npu, str(om), (None, 0)
            yield
            acl.finalize()

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        return lambda: None

    def run_step(self, target: Any) -> Any:
        root, model = self.model
        if not model or root != self.npu.dump_root:
            if model:
                assert self.acl.mdl.unload(model) == 0
            model, ret = self.acl.mdl.load_from_file(self.om)
            assert ret == 0
            self.model = (self.npu.dump_root, model)
        return execute(self.acl, model, np.arange(4, dtype=np.float32))
