"""Options of `torch.compile` and of the program's config that meet those of a capture with the adapter `torchair`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

import pytest
from torchair_helpers import make_input, make_mlp

import ascend_dump
from ascend_dump import fakes
from ascend_dump.fakes.device.npu import Npu

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Npu]:
    monkeypatch.chdir(tmp_path)
    Path("elsewhere").mkdir()
    torch._dynamo.reset()
    with fakes.install("torchair", environ={}) as device:
        yield device
    torch._dynamo.reset()


def make_config(mode: str = "max-autotune") -> Any:
    import torchair

    config = torchair.CompilerConfig()
    config.mode = mode
    return config


def run(config: Any, **options: Any) -> None:
    """Compile the network with options of `torch.compile`, and call it once."""
    import torchair

    backend = torchair.get_npu_backend(compiler_config=config)
    with torch.no_grad():
        torch.compile(make_mlp(), backend=backend, options=options)(make_input())


@pytest.mark.parametrize("mode", ["max-autotune", "npugraph_ex"])
def test_options_of_compile_do_not_replace_those_of_the_capture(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    config = make_config(mode)
    with ascend_dump.capture(config, path="dumps", strict=True) as cap:
        run(config, dump_tensor_data=True, data_dump_dir="elsewhere", clone_input=False)
        # What does not set the dump is applied.
        assert config.debug.aclgraph.clone_input.value == "0"
    assert len(cap.dump()) > 0
    assert not list(Path("elsewhere").iterdir())
    told = [one for one in caplog.messages if "AD370" in one]
    assert len(told) == 1
    assert "torch.compile(options={'data_dump_dir': 'elsewhere'})" in told[0]
    assert config.dump_config.dump_path.value == "./"
    # After the block they are the program's again.
    run(config, dump_tensor_data=True, data_dump_dir="elsewhere")
    assert list(Path("elsewhere").iterdir())


def test_options_of_compile_meet_a_capture_without_a_target() -> None:
    with ascend_dump.capture(framework="torchair", path="dumps", steps="0", strict=True) as cap:
        run(None, dump_tensor_data=True, data_dump_dir="elsewhere")
    assert len(cap.dump()) > 0
    assert not list(Path("elsewhere").iterdir())


def test_options_of_compile_meet_a_capture_by_a_json() -> None:
    config = make_config()
    with ascend_dump.capture(config, path="dumps", steps="0", strict=True, options={"json": True}) as cap:
        run(config, dump_tensor_data=True, data_dump_dir="elsewhere")
    assert len(cap.dump()) > 0
    assert not list(Path("elsewhere").iterdir())


def test_a_program_that_changes_the_config_in_the_block_is_told_what_it_changed() -> None:
    config = make_config()
    cap = ascend_dump.capture(config, path="dumps", steps="0", strict=True).start()
    config.dump_config.dump_path = "elsewhere"
    run(config)
    with pytest.raises(ascend_dump.CaptureError, match=r"config\.dump_config\.dump_path = 'elsewhere'") as caught:
        cap.stop()
    assert caught.value.code == "AD370"


@pytest.mark.parametrize("option", ["run_eagerly", "data_dump", "fx_summary"])
def test_graphs_that_run_eagerly_are_told_before(option: str) -> None:
    config = make_config()
    if option == "run_eagerly":
        config.debug.run_eagerly = True
    else:
        getattr(config.debug, option).type = "npy" if option == "data_dump" else "csv"
    with ascend_dump.capture(config, path="dumps", steps="0") as cap:
        run(config)
    (found,) = [problem for problem in cap.problems if problem.code == "AD371"]
    assert (found.severity, found.where) == ("silent", "target")
    assert f"config.debug.{option}" in found.message


def test_graphs_that_an_option_of_compile_runs_eagerly_are_the_reason_of_an_empty_dump() -> None:
    config = make_config()
    cap = ascend_dump.capture(config, path="dumps", steps="0", strict=True).start()
    run(config, force_eager=True)
    with pytest.raises(ascend_dump.CaptureError, match=r"config\.debug\.run_eagerly let every graph run eagerly"):
        cap.stop()


@pytest.mark.parametrize("way", ["position", "name", "nothing"])
def test_a_capture_without_a_target_fills_the_config_of_a_compiler_too(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torchair

    made = []

    def get_compiler(compiler_config: Optional[Any] = None) -> str:
        assert compiler_config is not None
        made.append(compiler_config)
        assert compiler_config.dump_config.enable_dump.value == "1"
        return "a compiler"

    monkeypatch.setattr(torchair, "get_compiler", get_compiler, raising=False)
    config = make_config()
    arguments: Any = {"position": ((config,), {}), "name": ((), {"compiler_config": config}), "nothing": ((), {})}[way]
    with ascend_dump.capture(framework="torchair", path="dumps", steps="0"):
        assert torchair.get_compiler(*arguments[0], **arguments[1]) == "a compiler"
    assert (made == [config]) is (way != "nothing")
    assert torchair.get_compiler is get_compiler
    assert made[0].dump_config.enable_dump.value == "0"


@pytest.mark.parametrize(
    ("place", "name", "code"),
    [
        ("torchair.inference", "cache_compile", "AD247"),
        ("torchair", "dynamo_export", "AD256"),
        ("torchair.npu_export", "dynamo_export", "AD256"),
    ],
)
def test_a_model_that_cannot_be_captured_is_told_where_no_target_is_captured(
    place: str, name: str, code: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module: Any = sys.modules.get(place)
    if module is None:
        module = ModuleType(place)
        monkeypatch.setitem(sys.modules, place, module)
    monkeypatch.setattr(module, name, lambda function, *, config=None: (function, config), raising=False)
    config = make_config()
    cap = ascend_dump.capture(framework="torchair", path="dumps", steps="0", strict=True).start()
    for _ in range(2):
        assert getattr(module, name)(print, config=config) == (print, config)
    assert config.dump_config.enable_dump.value == "0"
    with pytest.raises(ascend_dump.CaptureError, match=rf"torchair.*{name}.*\[{code}\]"):
        cap.stop()
    assert caplog.text.count(f"[{code}]") == 1


def test_the_config_of_a_backend_is_given_by_name_only() -> None:
    import torchair

    config = make_config()
    with pytest.raises(TypeError, match=r"^get_npu_backend\(\) takes 0 positional arguments but 1 was given$") as alone:
        torchair.get_npu_backend(config)
    with pytest.raises(TypeError) as captured:  # noqa: SIM117  (Python 3.9)
        with ascend_dump.capture(framework="torchair", path="dumps", steps="0"):
            torchair.get_npu_backend(config)
    assert str(captured.value) == str(alone.value)


def test_whatever_restarts_or_skips_an_analysis_of_pytorch_is_no_failure() -> None:
    # The adapter keeps to base classes; what a later PyTorch adds beside them has to be looked at.
    # Private: the list of exceptions is held against PyTorch's own.
    from ascend_dump_torchair._target import steering_exceptions
    from torch._dynamo import exc

    found = [
        kind
        for name, kind in vars(exc).items()
        if isinstance(kind, type) and issubclass(kind, Exception) and ("Restart" in name or "SkipFrame" in name)
    ]
    assert len(found) >= 3
    assert [kind for kind in found if not issubclass(kind, steering_exceptions())] == []
