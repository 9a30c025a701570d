"""Options of `torch.compile` and of the program's config that meet those of a capture with the adapter `torchair`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
