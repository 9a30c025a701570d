"""The contract of adapters on a device: one class for each way to capture, on the simulated device and on a real one.

Test modules import the classes; their conftest has the fixture `backend`, a function of the fakes' names that gives a
context manager: inside it the frameworks can be imported, and their device is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable

import numpy as np
import pytest
from acl_helpers import execute
from torchair_helpers import make_input, make_mlp

import ascend_dump
from ascend_dump.fakes import MARK
from ascend_dump.fakes.device.offline_model import OfflineModel, OfflineNode, TensorSpec, save
from ascend_dump.selftest.onnx_model import OnnxNode, convert_with_atc, onnx_model
from ascend_dump.testing.contract import AdapterContract

__all__ = [
    "Backend",
    "MindSporeContract",
    "TestAConfig",
    "TestAModule",
    "TestAModuleThroughAJson",
    "TestATrainedModule",
    "TestMindSporeOnAscend",
    "TestModel",
    "TestModelOfStatistics",
    "TestOfflineModel",
]

Backend = Callable[..., "contextlib.AbstractContextManager[Any]"]


# torch_npu: kernels of eager operators.


class TestModel(AdapterContract):
    name = "torch_npu"
    bad_request: Mapping[str, Any] = MappingProxyType({"scene": "watch", "watch": "conv1"})

    @pytest.fixture(autouse=True)
    def application(self, backend: Backend) -> Iterator[None]:
        pytest.importorskip("torch")
        with backend("torch_npu"):
            yield

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        def make() -> Any:
            import torch

            torch.manual_seed(0)
            return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).npu()

        return make

    def run_step(self, target: Any) -> Any:
        import torch

        target.zero_grad()
        loss = target(torch.arange(8.0).reshape(2, 4).npu()).square().sum()
        loss.backward()
        return loss.detach().cpu().numpy()


class TestModelOfStatistics(TestModel):
    settings = MappingProxyType({"data": "stats", "mode": "output"})


# torchair: a module, a config, and the eager dumper.


class _Graphs(AdapterContract):
    name = "torchair"
    bad_request: Mapping[str, Any] = MappingProxyType({"data": "full"})

    @pytest.fixture(autouse=True)
    def application(
        self, backend: Backend, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        torch = pytest.importorskip("torch")
        monkeypatch.chdir(tmp_path_factory.mktemp("work"))
        torch._dynamo.reset()
        with backend("torchair") as npu:
            #: What tensors are moved to.
            self.device = "npu" if npu is None else "cpu"
            yield
        torch._dynamo.reset()


class TestAModule(_Graphs):
    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        return lambda: make_mlp().to(self.device)

    def run_step(self, target: Any) -> Any:
        import torch

        with torch.no_grad():
            return target(make_input().to(self.device)).cpu().numpy()


class TestATrainedModule(TestAModule):
    """A step runs a forward and a backward graph."""

    def run_step(self, target: Any) -> Any:
        import torch

        loss = target(make_input().to(self.device)).square().sum()
        gradients = torch.autograd.grad(loss, list(target.parameters()))
        return [loss.detach().cpu().numpy(), *(each.cpu().numpy() for each in gradients)]

    def same(self, one: Any, other: Any) -> bool:
        return len(one) == len(other) and all(super(TestATrainedModule, self).same(*pair) for pair in zip(one, other))


class TestAModuleThroughAJson(TestAModule):
    settings = MappingProxyType({"options": {"json": True}})


class TestAConfig(_Graphs):
    """The program builds its own backend, once, and goes on using it."""

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        import torchair

        return torchair.CompilerConfig

    def run_step(self, target: Any) -> Any:
        import torch
        import torchair

        if getattr(self, "config", None) is not target:
            self.config = target
            backend = torchair.get_npu_backend(compiler_config=target)
            self.run = torch.compile(make_mlp().to(self.device), backend=backend)
        with torch.no_grad():
            return self.run(make_input().to(self.device)).cpu().numpy()

    # What a program runs before a capture of its config decides for the process, see AD240.
    settings = MappingProxyType({"options": {"reset": True}})


# acl: an offline model.


def make_offline_model(acl: Any, om: Path) -> None:
    """relu(x @ w) of 1x4 by 4x2, for the device that acl has."""
    weights = np.arange(8, dtype=np.float32).reshape(4, 2)
    if getattr(acl, MARK, False):
        nodes = (
            OfflineNode("w", "Const", const=weights),
            OfflineNode("dense", "MatMul", ("x:0", "w:0")),
            OfflineNode("act", "Relu", ("dense:0",)),
        )
        save(OfflineModel("net", (TensorSpec("x", (1, 4), "float32"),), nodes, ("act:0",), True), om)
        return
    layers = (OnnxNode("dense", "MatMul", ("x", "w")), OnnxNode("act", "Relu", ("dense",)))
    convert_with_atc(onnx_model({"x": (1, 4)}, {"w": weights}, layers, {"act": (1, 2)}), om, acl.get_soc_name())


class TestOfflineModel(AdapterContract):
    name = "acl"
    bad_request = MappingProxyType({"data": "full"})

    @pytest.fixture(autouse=True)
    def application(self, backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        """An application with an initialised acl; it loads its model again when a dump is switched on or off."""
        om = tmp_path_factory.mktemp("models") / "net.om"
        with backend("acl"):
            acl: Any = import_module("acl")
            assert [acl.init(), acl.rt.set_device(0)] == [0, 0]
            make_offline_model(acl, om)
            self.acl, self.om, self.model = acl, str(om), 0
            self.captures: list[Any] = []
            self.loaded_for: Any = None
            yield
            acl.finalize()

    @pytest.fixture
    def capture(self, tmp_path: Path) -> Callable[..., ascend_dump.Capture]:
        def make(target: Any, **settings: Any) -> ascend_dump.Capture:
            common = {"path": tmp_path / "dumps", "strict": True, "framework": self.name}
            made: ascend_dump.Capture = ascend_dump.capture(target, **{**common, **settings})
            self.captures.append(made)
            return made

        return make

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        return lambda: None

    def run_step(self, target: Any) -> Any:
        active = next((capture for capture in self.captures if capture.active), None)
        if not self.model or active is not self.loaded_for:
            if self.model:
                assert self.acl.mdl.unload(self.model) == 0
            self.model, ret = self.acl.mdl.load_from_file(self.om)
            assert ret == 0
            self.loaded_for = active
        return execute(self.acl, self.model, np.arange(4, dtype=np.float32))


# MindSpore: graphs, on the CPU or kernel by kernel (jit_level O0) on a device.


class MindSporeContract(AdapterContract):
    name = "mindspore"
    device = ""

    @pytest.fixture(autouse=True)
    def program(self, backend: Backend) -> Iterator[None]:
        """A process in graph mode whose device is not up yet."""
        with backend("mindspore"):
            ms: Any = import_module("mindspore")
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


class TestMindSporeOnAscend(MindSporeContract):
    device = "Ascend"
    bad_request = MappingProxyType({"scene": "watch"})
