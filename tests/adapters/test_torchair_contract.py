"""The contract, kept by the adapter `torchair` on the simulated device: a module, a config, and the eager dumper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable

import pytest
from torchair_helpers import make_input, make_mlp

from ascend_dump import fakes
from ascend_dump.testing.contract import AdapterContract

torch = pytest.importorskip("torch")


class _OnTheSimulatedDevice(AdapterContract):
    name = "torchair"
    bad_request: Mapping[str, Any] = MappingProxyType({"data": "full"})

    @pytest.fixture(autouse=True)
    def device(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.chdir(tmp_path_factory.mktemp("work"))
        torch._dynamo.reset()
        with fakes.install("torchair", environ={}) as npu:
            self.npu = npu
            yield
        torch._dynamo.reset()


class TestAModule(_OnTheSimulatedDevice):
    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        return make_mlp

    def run_step(self, target: Any) -> Any:
        with torch.no_grad():
            return target(make_input()).numpy()


class TestATrainedModule(_OnTheSimulatedDevice):
    """A step runs a forward and a backward graph."""

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        return make_mlp

    def run_step(self, target: Any) -> Any:
        loss = target(make_input()).square().sum()
        return [loss.detach().numpy(), *(each.numpy() for each in torch.autograd.grad(loss, list(target.parameters())))]

    def same(self, one: Any, other: Any) -> bool:
        return len(one) == len(other) and all(super(TestATrainedModule, self).same(*pair) for pair in zip(one, other))


class TestAModuleThroughAJson(TestAModule):
    settings = MappingProxyType({"options": {"json": True}})


class TestAConfig(_OnTheSimulatedDevice):
    """The program builds its own backend, once, and goes on using it."""

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        import torchair

        return torchair.CompilerConfig

    def run_step(self, target: Any) -> Any:
        import torchair

        if getattr(self, "config", None) is not target:
            self.config = target
            self.run = torch.compile(make_mlp(), backend=torchair.get_npu_backend(compiler_config=target))
        with torch.no_grad():
            return self.run(make_input()).numpy()

    # What a program runs before a capture of its config decides for the process, see AD240.
    settings = MappingProxyType({"options": {"reset": True}})


def test_the_working_directory_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ascend_dump

    monkeypatch.chdir(tmp_path)
    with fakes.install("torchair", environ={}):
        model = make_mlp()
        with ascend_dump.capture(model, framework="torchair", path="dumps", steps="0"):
            model(make_input())
            assert (tmp_path / "ge_dump_data_json").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["dumps"]


def test_a_working_directory_that_is_changed_in_the_block_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ascend_dump

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    with fakes.install("torchair", environ={}):
        model = make_mlp()
        with ascend_dump.capture(model, framework="torchair", path="dumps", steps="0") as cap:
            monkeypatch.chdir(tmp_path / "second")
            model(make_input())
            assert list((tmp_path / "second").iterdir())
    assert len(cap.dump()) > 0
    assert list((tmp_path / "second").iterdir()) == []
