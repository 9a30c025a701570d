"""The contract of adapters, kept by the adapter `torchair` under the real torchair: a pytest run of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable

import frontend
import numpy as np
import pytest
import torch

import ascend_dump
from ascend_dump.testing.contract import AdapterContract

VERSION = "TORCHAIR_VERSION"


def make_network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def make_input() -> Any:
    return torch.arange(40, dtype=torch.float32).reshape(5, 8) / 40


class _OnTheSimulatedDevice(AdapterContract):
    name = "torchair"
    bad_request = MappingProxyType({"data": "full"})

    @pytest.fixture(autouse=True)
    def device(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.chdir(tmp_path_factory.mktemp("work"))
        with frontend.installed(os.environ[VERSION]):
            import torchair  # noqa: F401  (the contract asks whether a target is accepted before it imports anything)

            yield


class TestAModule(_OnTheSimulatedDevice):
    """Its eager form, which the contract compares with, orders sums differently: about 1e-7 apart."""

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        return make_network

    def run_step(self, target: Any) -> Any:
        with torch.no_grad():
            return target(make_input()).numpy()

    def same(self, one: Any, other: Any) -> bool:
        return bool(np.allclose(one, other, rtol=0, atol=1e-6))


class TestAConfig(_OnTheSimulatedDevice):
    """The program's backend is the same with and without a capture, and so are its results."""

    settings = MappingProxyType({"options": {"reset": True}})

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        import torchair

        return torchair.CompilerConfig

    def run_step(self, target: Any) -> Any:
        import torchair

        if getattr(self, "config", None) is not target:
            self.config = target
            self.run = torch.compile(make_network(), backend=torchair.get_npu_backend(compiler_config=target))
        with torch.no_grad():
            return self.run(make_input()).numpy()


class _HalfConverted(torch.nn.Module):
    """Two graphs: torchair has converters for the first, and none for the Bessel function of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: Any) -> Any:
        x = self.norm(x)
        torch._dynamo.graph_break()
        return torch.special.i0(x)


def test_what_torchair_cannot_compile_is_trained_eagerly_and_the_rest_is_dumped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    module, eager = _HalfConverted(), _HalfConverted()
    with frontend.installed(os.environ[VERSION]):
        import torchair  # noqa: F401  (before the capture: it is what the program runs on)

        with ascend_dump.capture(module, framework="torchair", path="dumps", steps="0") as cap:
            result = module(make_input())
            result.sum().backward()
    expected = eager(make_input())
    expected.sum().backward()
    assert torch.allclose(result, expected, rtol=0, atol=1e-5)
    assert torch.allclose(module.norm.weight.grad, eager.norm.weight.grad, rtol=0, atol=1e-5)
    assert module.norm.num_batches_tracked == 1
    assert caplog.text.count("ge_converter is not implemented") == 1
    assert len(cap.dump()) > 0


def test_dynamic_shapes_are_compiled_once_and_dumped_at_every_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """PyTorch begins its analysis anew there, by an exception that passes through the backend."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    module, eager = torch.nn.LayerNorm(9), torch.nn.LayerNorm(9)
    with frontend.installed(os.environ[VERSION]):
        import torchair  # noqa: F401  (before the capture: it is what the program runs on)

        settings: Any = {"steps": "0-2", "options": {"dynamic": True}}
        with ascend_dump.capture(module, framework="torchair", path="dumps", **settings) as cap, torch.no_grad():
            for batch in (3, 6, 7):
                x = torch.randn(batch, 9)
                assert torch.allclose(module(x), eager(x), rtol=0, atol=1e-5)
    assert "could not compile" not in caplog.text
    dump = cap.dump()
    assert len(dump.known_values("model")) == 1
    found = {(record.step, record.shape) for record in dump.select(op_type="LayerNorm*", io="input", index=0)}
    assert found == {(0, (3, 9)), (1, (6, 9)), (2, (7, 9))}


def test_a_capture_without_a_target_knows_what_else_takes_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with frontend.installed(os.environ[VERSION]):
        import torchair

        configs = [torchair.CompilerConfig() for _ in range(2)]
        with ascend_dump.capture(framework="torchair", path="dumps", steps="0"):
            torchair.get_compiler(configs[0])
            torchair.inference.cache_compile(make_network().forward, config=configs[1])
            assert [config.dump_config.enable_dump.value for config in configs] == ["1", "0"]
        assert [config.dump_config.enable_dump.value for config in configs] == ["0", "0"]
    assert caplog.text.count("[AD247]") >= 1


@pytest.mark.parametrize("target", ["block", "config"])
def test_a_graph_of_get_compiler_is_dumped(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from torch._dynamo.backends.common import aot_autograd

    monkeypatch.chdir(tmp_path)
    network, x = make_network(), make_input()
    with frontend.installed(os.environ[VERSION]):
        import torchair

        config = torchair.CompilerConfig()
        settings: Any = {"target": config, "options": {"reset": True}} if target == "config" else {}
        with ascend_dump.capture(framework="torchair", path="dumps", steps="1", **settings) as cap, torch.no_grad():
            compiler = torchair.get_compiler(config)
            run = torch.compile(network, backend=aot_autograd(fw_compiler=compiler))
            for _ in range(2):
                result = run(x)
        [last] = cap.dump().select(op_type="Add", op="Add_1", io="output")
        assert last.step == 1
        assert np.array_equal(last.numpy(), result.numpy())
        assert cap.dump().known_values("step") == {1}


def test_a_model_that_is_exported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with frontend.installed(os.environ[VERSION]):
        import torchair

        # The simulated device exports nothing.
        with ascend_dump.capture(framework="torchair", path="dumps"), pytest.raises(ascend_dump.NotSupported):
            torchair.dynamo_export(make_input(), model=make_network())
    assert "dynamo_export writes a model into a file and runs nothing" in caplog.text


if __name__ == "__main__":
    os.environ[VERSION] = sys.argv[1]
    # Warnings are torchair's own.
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider", "--override-ini", "filterwarnings=ignore"]))
