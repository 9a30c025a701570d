"""The contract, kept by the adapter `torchair` on the simulated device: a module, a config, and what it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_contracts import TestAConfig, TestAModule, TestAModuleThroughAJson, TestATrainedModule
from torchair_helpers import make_input, make_mlp

from ascend_dump import fakes

__all__ = ["TestAConfig", "TestAModule", "TestAModuleThroughAJson", "TestATrainedModule"]

torch = pytest.importorskip("torch")


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
