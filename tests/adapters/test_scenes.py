"""What a scene leaves out of a request is told alike by every adapter and by `config`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump import fakes
from ascend_dump.cli import Exit, main

FAKES = {
    "acl": ("acl",),
    "mindspore": ("mindspore",),
    "tensorflow": ("tensorflow", "npu_bridge"),
    "torch_npu": ("torch_npu",),
}


@pytest.fixture(params=list(FAKES))
def framework(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name: str = request.param
    if name == "torch_npu":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    with fakes.install(*FAKES[name]):
        if name == "tensorflow":
            import npu_bridge  # noqa: F401  (without it the host is captured)
        yield name


def told(framework: str, **settings: Any) -> list[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ascend_dump.capture(framework=framework, **{"path": "dumps", **settings}) as cap:
            return [(problem.where, problem.severity) for problem in cap.problems if problem.code == "AD350"]


def test_overflow_looks_everywhere(framework: str) -> None:
    given = {"layers": ["conv1"], "mode": "input"}
    assert told(framework, scene="overflow", **given) == [("layers", "silent"), ("mode", "silent")]
    assert told(framework, scene="overflow") == []


def test_what_session_options_cannot_say_is_told_where_there_is_a_file(tmp_path: Path) -> None:
    given = {"models": ["m"], "data": "stats", "stats": ["max"], "level": "op"}
    with fakes.install("acl"):
        found = told("acl", scene="overflow", **given)
        assert [where for where, _ in found] == ["models", "data", "stats", "level"]
        assert told("acl", scene="watch", watch=["a"], mode="input") == [("mode", "silent")]
        assert told("acl", scene="watch", watch=["a"], mode="output") == told("acl", scene="watch", watch=["a"]) == []


@pytest.mark.parametrize("name", ["acl", "ge", "mindspore", "tensorflow"])
def test_config_tells_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for scene in ("overflow", "exception"):
        asked = ["config", "--for", name, "--scene", scene, "--path", "dumps"]
        assert main(asked) == Exit.OK
        assert main([*asked, "--layers", "conv1"]) == Exit.DIFFERENT
        assert f"layers: layers=['conv1'] does nothing with scene='{scene}'" in capsys.readouterr().err


def test_a_model_names_the_directory_of_mindspore_in_every_scene(tmp_path: Path) -> None:
    with fakes.install("mindspore"):
        assert told("mindspore", scene="overflow", models=["ResNet"], path=tmp_path) == []
        given = {"layers": ["conv1"], "mode": "output", "data": "stats", "stats": ["max"], "steps": "0"}
        assert [where for where, _ in told("mindspore", scene="exception", path=tmp_path, **given)] == list(given)


def test_a_directory_with_the_name_of_a_framework_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acl").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with fakes.install("acl") as npu:
        assert list(npu.files) == []
