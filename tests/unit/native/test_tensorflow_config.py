"""The keys of TensorFlow's NpuOptimizer: what a request becomes, and what is refused or read as something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_dump import DumpRequest, NotSupported
from ascend_dump.adapter import Problem
from ascend_dump.native.cann.config import Situation
from ascend_dump.native.tensorflow.config import DUMP_KEYS, KEYS, check_parameters, parameters


def problems(**keys: Any) -> list[Problem]:
    return check_parameters(keys, situation=Situation(cwd="/"))


def found(**keys: Any) -> set[tuple[str, str, str]]:
    return {(one.code, one.severity, one.where) for one in problems(**keys)}


@pytest.fixture
def dump(tmp_path: Path) -> dict[str, Any]:
    return {"enable_dump": True, "dump_path": str(tmp_path)}


def test_a_request_becomes_keys_of_the_types_that_are_read(tmp_path: Path) -> None:
    request = DumpRequest(path=tmp_path, steps="0|5|7-10", mode="input", layers=["a", "b/c"], quant=True)
    assert parameters(request) == {
        "enable_dump": True,
        "dump_path": str(tmp_path),
        "dump_step": "0|5|7-10",
        "dump_mode": "input",
        "dump_layer": "a b/c",
        "quant_dumpable": "1",
    }
    assert check_parameters(parameters(request)) == []


def test_what_an_old_bridge_does_not_know_is_only_there_when_it_matters(tmp_path: Path) -> None:
    assert "dump_data" not in parameters(DumpRequest(path=tmp_path))
    assert parameters(DumpRequest(path=tmp_path, data="stats"))["dump_data"] == "stats"
    assert "dump_layer" not in parameters(DumpRequest(path=tmp_path))
    assert "dump_step" not in parameters(DumpRequest(path=tmp_path))


def test_overflow_and_exceptions_have_switches_of_their_own(tmp_path: Path) -> None:
    overflow = parameters(DumpRequest(path=tmp_path, scene="overflow", options={"debug_mode": "aicore_overflow"}))
    assert overflow == {
        "enable_dump_debug": True,
        "dump_path": str(tmp_path),
        "dump_debug_mode": "aicore_overflow",
    }
    assert parameters(DumpRequest(path=tmp_path, scene="exception")) == {"enable_exception_dump": 1}


def test_patterns_need_the_operators(tmp_path: Path) -> None:
    request = DumpRequest(path=tmp_path, layers="conv*")
    with pytest.raises(NotSupported):
        parameters(request)
    assert parameters(request, names=["conv1", "relu", "conv2"])["dump_layer"] == "conv1 conv2"


@given(
    steps=st.sampled_from([None, "0", "0|5|10-20", "all"]),
    mode=st.sampled_from(["input", "output", "all"]),
    data=st.sampled_from(["tensor", "stats"]),
    layers=st.lists(st.from_regex(r"[A-Za-z][A-Za-z0-9_/]{0,8}", fullmatch=True), max_size=3),
)
def test_what_is_built_is_accepted(steps: Any, mode: str, data: str, layers: list[str]) -> None:
    request = DumpRequest(path="/", steps=steps, mode=mode, data=data, layers=layers)
    built = parameters(request)
    assert check_parameters(json.dumps(built)) == []
    for name, value in built.items():
        assert type(value) is {"b": bool, "s": str, "i": int}[KEYS[name].field]


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"enable_dump": 1}, "enable_dump"),
        ({"enable_dump": "True"}, "enable_dump"),
        ({"enable_dump": None}, "enable_dump"),
        ({"dump_path": True}, "dump_path"),
        ({"dump_step": 5}, "dump_step"),
        ({"enable_exception_dump": "1"}, "enable_exception_dump"),
        ({"enable_exception_dump": True}, "enable_exception_dump"),
        ({"use_off_line": "false"}, "use_off_line"),
    ],
)
def test_another_field_is_not_seen(keys: dict[str, Any], where: str) -> None:
    assert ("AD295", "silent", where) in found(**keys)


def test_a_wrong_mode_is_told_to_end_the_process(dump: dict[str, Any]) -> None:
    [problem] = problems(**dump, dump_mode="outputs")
    assert (problem.code, problem.severity, problem.where) == ("AD295", "error", "dump_mode")
    assert "ends the process" in problem.message
    debug = {"enable_dump_debug": True, "dump_path": dump["dump_path"]}
    assert found(**debug, dump_debug_mode="core") == {("AD295", "error", "dump_debug_mode")}
    # The modes have defaults, and are not looked at while their switch is off.
    assert problems(**dump) == problems(**debug) == []
    assert ("AD295", "error", "dump_mode") not in found(dump_mode="outputs")


@pytest.mark.parametrize("steps", ["", "0", "0|5|10-20", "0-1"])
def test_steps_that_are_accepted(dump: dict[str, Any], steps: str) -> None:
    assert problems(**dump, dump_step=steps) == []


@pytest.mark.parametrize("steps", ["5-3", "5-5", "a", "1||2", "1|", "-1", "1-2-3", " 1", str(2**31)])
def test_steps_that_the_bridge_or_ge_refuses(dump: dict[str, Any], steps: str) -> None:
    assert found(**dump, dump_step=steps) == {("AD110", "error", "dump_step")}


def test_more_than_a_hundred_ranges(dump: dict[str, Any]) -> None:
    assert problems(**dump, dump_step="|".join(str(2 * n) for n in range(100))) == []
    assert found(**dump, dump_step="|".join(str(2 * n) for n in range(101))) == {("AD110", "error", "dump_step")}


def test_the_directory_must_be_there_and_no_link(dump: dict[str, Any], tmp_path: Path) -> None:
    assert found(enable_dump=True) == {("AD110", "error", "dump_path")}
    assert found(enable_dump=True, dump_path="/no/such") == {("AD110", "error", "dump_path")}
    file = tmp_path / "file"
    file.write_text("")
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    for path in (file, link):
        assert found(enable_dump=True, dump_path=str(path)) == {("AD110", "error", "dump_path")}


def test_both_switches(dump: dict[str, Any]) -> None:
    [problem] = problems(**dump, enable_dump_debug=True)
    assert (problem.code, problem.severity, problem.where) == ("AD291", "error", "enable_dump_debug")
    assert "enable_dump" in problem.message
    assert "ge.exec" not in problem.message + problem.hint


@pytest.mark.parametrize("name", ["dump_steps", "dump_layers", "dumpMode", "Enable_Dump"])
def test_a_misspelt_key_is_ignored(dump: dict[str, Any], name: str) -> None:
    assert found(**dump, **{name: "x"}) == {("AD113", "silent", name)}
    assert found(**dump, enable_data_pre_proc=True, graph_run_mode=1, profiling_mode=True) == set()


def test_what_has_no_effect(dump: dict[str, Any]) -> None:
    assert found(**dump, use_off_line=False) == {("AD292", "silent", "use_off_line")}
    assert found(dump_path=dump["dump_path"]) == {("AD113", "silent", "dump_path")}
    assert ("AD113", "silent", "dump_layer") in found(**dump, dump_layer="conv*")
    assert problems(use_off_line=False) == []
    assert problems(precision_mode="allow_mix_precision", iterations_per_loop=10) == []


@pytest.mark.parametrize("data", ["statistics", ""])
def test_data_is_checked_with_the_dump_off_too(data: str) -> None:
    assert found(dump_data=data) == {("AD295", "error", "dump_data")}


@pytest.mark.parametrize("kind", [-1, 3])
def test_exception_dump(kind: int) -> None:
    assert found(enable_exception_dump=kind) == {("AD295", "error", "enable_exception_dump")}


@pytest.mark.parametrize("text", ["[]", "{", '"x"', ""])
def test_what_is_no_object_is_refused(text: str) -> None:
    [problem] = check_parameters(text)
    assert (problem.code, problem.severity) == ("AD110", "error")


@given(st.dictionaries(st.sampled_from([*KEYS]), st.none() | st.booleans() | st.integers() | st.text(max_size=8)))
def test_no_content_breaks_the_check(keys: dict[str, Any]) -> None:
    for problem in check_parameters(keys, situation=Situation(cwd="/")):
        assert problem.hint
        assert problem.where in KEYS


def test_dump_keys_leave_out_what_is_there_for_other_reasons() -> None:
    assert set(KEYS) - set(DUMP_KEYS) == {"use_off_line", "enable_exception_dump"}
