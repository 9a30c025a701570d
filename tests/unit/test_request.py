"""What to dump: checked, brought to one form, written to text and read back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_dump import ConfigError, DumpRequest, NotSupported, Steps
from ascend_dump._request import ALIASES, SPELLINGS, parse_size

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1).filter(str.strip)
STEPS = st.lists(st.integers(0, 10_000), min_size=1)


@st.composite
def requests(draw: st.DrawFn) -> DumpRequest:
    settings: dict[str, Any] = {
        "path": draw(NAMES.filter(lambda text: not text.startswith("~"))),
        "steps": draw(st.none() | STEPS),
        "ranks": draw(st.none() | STEPS),
        "mode": draw(st.sampled_from(["input", "output", "all"])),
        "data": draw(st.sampled_from(["tensor", "stats", "full"])),
        "level": draw(st.sampled_from(["op", "kernel", "all"])),
        "scene": draw(st.sampled_from([None, "overflow", "watch", "exception"])),
        "layers": draw(st.lists(NAMES)),
        "models": draw(st.lists(NAMES)),
        "stats": draw(st.lists(st.sampled_from(["max", "mean", "nan"]))),
        "quant": draw(st.booleans()),
        "max_bytes": draw(st.none() | st.integers(1, 10**15)),
        "options": draw(st.dictionaries(NAMES, st.booleans() | st.integers() | NAMES)),
    }
    if settings["scene"] == "watch":
        settings["watch"] = draw(st.lists(NAMES))
    return DumpRequest(**settings)


@given(requests())
def test_text_and_mapping_read_back_to_the_same_request(request_: DumpRequest) -> None:
    assert DumpRequest.from_text(request_.to_text()) == request_
    assert DumpRequest.from_mapping(json.loads(json.dumps(request_.to_mapping()))) == request_
    assert "\n" not in request_.to_text()


@given(st.text())
def test_any_text_is_a_request_or_a_typed_error(text: str) -> None:
    with contextlib.suppress(ConfigError, NotSupported):
        assert isinstance(DumpRequest.from_text(text).steps, Steps)


def test_defaults() -> None:
    found = DumpRequest()
    assert found.path == Path("dumps")
    assert found.steps.all
    assert found.ranks.all
    assert (found.mode, found.data, found.scene, found.layers, found.max_bytes) == ("all", "tensor", None, (), None)
    assert found == DumpRequest.from_text("1") == DumpRequest.from_text("on")


def test_it_is_immutable_and_replaceable() -> None:
    found = DumpRequest(steps="0|1")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.mode = "input"  # type: ignore[misc]  # that it fails is the test
    with pytest.raises(TypeError):
        found.options["a"] = 1  # type: ignore[index]  # that it fails is the test
    assert found.replace(mode="input") == DumpRequest(steps="0|1", mode="input")
    assert found.mode == "all"


def test_text_takes_cann_spellings_and_lists() -> None:
    found = DumpRequest.from_text("dump_step=0|2-5, dump_path=/d, dump_layer=conv*;fc , options.rehash=true")
    assert found == DumpRequest(steps="0|2-5", path="/d", layers=["conv*", "fc"], options={"rehash": True})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"mode": "inpt"}, "did you mean 'input'"),
        ({"data": "statistics"}, "'stats'"),
        ({"scene": "overflw"}, "did you mean 'overflow'"),
        ({"stats": ["avg"]}, "mean"),
        ({"layers": 3}, "a name or a list"),
        ({"layers": [""]}, "non-empty"),
        ({"watch": ["a"]}, "scene='watch'"),
        ({"quant": "yes"}, "True or False"),
        ({"max_bytes": "20 parsecs"}, "20GB"),
        ({"max_bytes": 0}, "positive"),
        ({"path": ""}, "non-empty path"),
        ({"path": 3}, "a path"),
        ({"path": "a\0b"}, "path"),
        ({"options": [1]}, "mapping"),
        ({"steps": "a"}, "neither a number nor a range"),
        ({"ranks": "1-0"}, "backwards"),
    ],
)
def test_a_wrong_value_names_the_setting_and_what_it_takes(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DumpRequest(**settings)
    assert next(iter(settings)) in str(caught.value)
    assert expected in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stepz=1", "did you mean 'steps'"),
        ("steps=1,steps=2", "twice"),
        ("steps=1,dump_step=2", "another spelling"),
        ("steps=1,path", "name=value"),
        ("{not json", "not JSON"),
        ("no/such/file.json", "cannot be read"),
    ],
)
def test_wrong_text_is_explained(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DumpRequest.from_text(text)
    assert expected in str(caught.value)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    file.write_text('{"ascend_dump": {"dump_step": "0|1", "layers": ["a"]}}', encoding="utf-8-sig")
    expected = DumpRequest(steps="0|1", layers=["a"])
    assert DumpRequest.from_file(file) == DumpRequest.from_text(str(file)) == expected
    file.write_text('["steps"]')
    with pytest.raises(ConfigError, match="holds a list"):
        DumpRequest.from_file(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        DumpRequest.from_file(file)


def test_toml(tmp_path: Path) -> None:
    file = tmp_path / "dump.toml"
    file.write_text('[ascend_dump]\nsteps = "0|1"\n')
    if sys.version_info < (3, 11) and not _has_tomli():
        with pytest.raises(NotSupported, match="TOML"):
            DumpRequest.from_file(file)
        return
    assert DumpRequest.from_file(file) == DumpRequest(steps="0|1")
    file.write_text("steps = = 1")
    with pytest.raises(ConfigError):
        DumpRequest.from_file(file)


def _has_tomli() -> bool:
    from importlib.util import find_spec

    return find_spec("tomli") is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("20GB", 20 * 10**9), ("512 MiB", 512 * 2**20), ("1.5k", 1500), ("7", 7), ("3b", 3), ("2TiB", 2 * 2**40)],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


def test_every_field_has_spellings_and_no_alias_hides_a_field() -> None:
    assert [field.name for field in dataclasses.fields(DumpRequest)] == list(SPELLINGS)
    assert not set(ALIASES) & set(SPELLINGS)
    assert ALIASES["dump_path"] == "path"
    assert ALIASES["dump_step"] == "steps"
