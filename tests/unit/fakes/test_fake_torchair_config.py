"""The fake CompilerConfig: what each option accepts, how it reads back, what it says when it refuses."""

from __future__ import annotations

import functools
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_dump import fakes

REAL_STEPS = re.compile(r"^(((\d+)|(\d+-{0,1}\d+))\|{0,1})*$")


@functools.lru_cache(None)
def compiler_config() -> Any:
    with fakes.install("torchair"):
        return import_module("torchair").CompilerConfig


def make_config() -> Any:
    return compiler_config()()


@pytest.fixture
def config() -> Any:
    return make_config()


def takes_steps(text: str) -> bool:
    config = make_config()
    try:
        config.dump_config.dump_step = text
    except ValueError:
        return False
    return True


@given(st.text(alphabet="019|-a \n", max_size=9))
def test_steps_are_accepted_exactly_where_the_regular_expression_accepts_them(text: str) -> None:
    assert takes_steps(text) == (REAL_STEPS.match(text) is not None)


def test_steps_that_make_the_regular_expression_backtrack_are_answered_at_once() -> None:
    assert not takes_steps("1" * 5000 + "x")


@pytest.mark.parametrize(
    ("option", "value", "read"),
    [
        ("enable_dump", True, "1"),
        ("enable_dump", 1, "1"),
        ("enable_dump", 0, "0"),
        ("dump_mode", "input", "input"),
        ("quant_dumpable", True, "1"),
        ("dump_step", "0|3-5|10", "0|3-5|10"),
        ("dump_step", "5-2", "5-2"),
        ("dump_step", "1|", "1|"),
        ("dump_layer", 'Add_1 "a/b.c\\d"\n', 'Add_1 "a/b.c\\d"\n'),
        ("dump_data", "stats", "stats"),
        ("data_dump_stage", "original", "original"),
        ("dump_config_path", None, None),
    ],
)
def test_an_option_reads_back_as_text(config: Any, option: str, value: Any, read: Any) -> None:
    setattr(config.dump_config, option, value)
    assert getattr(config.dump_config, option).value == read


@pytest.mark.parametrize(
    ("option", "value", "kind", "message"),
    [
        ("enable_dump", "1", ValueError, "Value '1' (type: <class 'str'>) not in optional list [False, True]"),
        ("dump_mode", "foo", ValueError, "Value 'foo' (type: <class 'str'>) not in optional list ['input', 'output',"),
        ("dump_path", None, FileNotFoundError, "Please set legal dir path, None is not found"),
        ("dump_path", "no/such", FileNotFoundError, "Please set legal dir path, no/such is not found"),
        ("dump_config_path", "", ValueError, "File path cannot be empty!"),
        ("dump_config_path", "no.json", FileNotFoundError, "no.json is not found or is not '.json' file!"),
        ("dump_step", "1-", ValueError, "Please set legal regex value format match ^"),
        ("dump_step", 3, TypeError, "expected string or bytes-like object"),
        ("dump_layer", "a-b", ValueError, "a-b is Illegal format, correct example:Mul_1 Add1 Conv2D_1."),
        ("bogus", 1, ValueError, "_DataDumpConfig has no option bogus, all options ['enable_dump', 'dump_path',"),
    ],
)
def test_a_refusal_is_torchairs_with_its_tail(
    config: Any, option: str, value: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        setattr(config.dump_config, option, value)
    assert message in str(caught.value).splitlines()[0]
    assert "Traceback" in str(caught.value)
    assert str(caught.value).splitlines()[-1].startswith("[ERROR] ")
    assert caught.value.__cause__ is None


def test_only_what_is_switched_on_becomes_an_option_of_ge(config: Any, tmp_path: Path) -> None:
    config.dump_config.dump_path = str(tmp_path)
    config.dump_config.dump_step = "1"
    assert not [key for key in config.as_dict()[1] if "ump" in key]
    assert list(tmp_path.iterdir()) == []
    config.dump_config.enable_dump = True
    assert {key: value for key, value in config.as_dict()[1].items() if "ump" in key} == {
        "ge.exec.enableDump": "1",
        "ge.exec.dumpPath": os.fspath(tmp_path / "worldsize1_global_rank0"),
        "ge.exec.dumpMode": "all",
        "ge.quant_dumpable": "0",
        "ge.exec.dumpStep": "1",
        "ge.exec.dumpData": "tensor",
    }
    # Reading the options makes the directory.
    assert [path.name for path in tmp_path.iterdir()] == ["worldsize1_global_rank0"]


@pytest.mark.parametrize("mode", ["reduce-overhead", "npugraph_ex"])
def test_the_aclgraph_modes_hand_on_a_path_and_a_stage_alone(config: Any, mode: str, tmp_path: Path) -> None:
    config.mode = mode
    for option, value in {"enable_dump": True, "dump_path": str(tmp_path), "dump_mode": "input"}.items():
        setattr(config.dump_config, option, value)
    assert {key: value for key, value in config.as_dict()[1].items() if "ump" in key} == {
        "aclgraph.enableDump": "1",
        "aclgraph.dumpPath": os.fspath(tmp_path / "worldsize1_global_rank0"),
        "aclgraph.dumpStage": "optimized",
    }


def test_a_config_equals_itself_alone_and_has_no_hash(config: Any) -> None:
    other = make_config()
    assert config == config
    assert config != other
    # What makes them differ is a section without attributes.
    vars(other)["npugraphex_config"] = config.npugraphex_config
    assert config == other
    other.ge_config.oo_level = "O1"
    assert config != other
    with pytest.raises(TypeError, match="unhashable"):
        hash(config)


def test_a_path_of_the_debug_section_is_made_absolute_and_not_looked_at(config: Any) -> None:
    config.debug.data_dump.path = "nowhere"
    assert config.debug.data_dump.path == os.path.realpath("nowhere")
    with pytest.raises(ValueError, match="has no option path"):
        config.debug.fx_summary.path = "nowhere"


def test_options_of_torch_compile_land_in_the_callers_config(config: Any, tmp_path: Path) -> None:
    options = {"dump_tensor_data": True, "data_dump_dir": str(tmp_path), "inplace_pass": False}
    with fakes.install("torchair"):
        apply = import_module("torchair.npu_fx_compiler")._process_kwargs_options
    apply(config, {"options": options})
    assert config.dump_config.enable_dump.value == "1"
    assert config.dump_config.dump_path.value == str(tmp_path)
    assert config.debug.aclgraph.disable_reinplace_inplaceable_ops_pass.value == "1"
    with pytest.raises(ValueError, match=r"Invalid option 'nope', allowed options: \['_vllm"):
        apply(config, {"options": {"nope": 1}})
