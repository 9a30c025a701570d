"""Requests of a dump: checked, brought to one form, written to text and read back."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import re
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ascend_dump
from ascend_dump import ConfigError, DumpRequest, NotSupported, Steps

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1).filter(str.strip)
STEPS = st.lists(st.integers(0, 10_000), min_size=1)


@st.composite
def requests(draw: st.DrawFn) -> DumpRequest:
    settings: dict[str, Any] = {
        "path": draw(NAMES.filter(lambda text: not text.startswith("~") and "$" not in text)),
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
        "quiet": draw(st.booleans()),
        "label": draw(st.none() | st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)),
        "max_bytes": draw(st.none() | st.integers(1, 10**15)),
        "options": draw(st.dictionaries(NAMES, st.booleans() | st.integers() | NAMES)),
    }
    if settings["scene"] != "exception" and settings["steps"] is None:
        settings["keep"] = draw(st.none() | st.integers(1, 1000))
    if settings["scene"] in (None, "overflow"):
        settings["until"] = draw(st.sampled_from([None, "nonfinite"]))
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
        ({"quiet": 1}, "True or False"),
        ({"max_bytes": "20 parsecs"}, "20GB"),
        ({"until": "loss"}, "nonfinite"),
        ({"until": "nonfinite", "scene": "watch"}, "does not dump what steps compute"),
        ({"keep": 0}, "1 or more"),
        ({"keep": True}, "1 or more"),
        ({"keep": "3.5"}, "1 or more"),
        ({"keep": 10**18}, "1 or more"),
        ({"keep": 3, "scene": "exception"}, "before something fails"),
        ({"max_bytes": 0}, "positive"),
        ({"max_bytes": float("inf")}, "positive"),
        ({"max_bytes": 2**63}, "below 2**63"),
        ({"max_bytes": 10**5000}, "below 2**63"),
        ({"max_bytes": "9" * 400}, "positive"),
        ({"max_bytes": "9" * 5000 + "GB"}, "positive"),
        ({"path": "$NOT_SET_ANYWHERE/d"}, "the environment variable in $NOT_SET_ANYWHERE is not set"),
        ({"path": "${NOT_SET_ANYWHERE}/d"}, "the environment variable in ${NOT_SET_ANYWHERE} is not set"),
        ({"path": "~no-such-user-anywhere/d"}, "no home directory"),
        ({"steps": 10**400}, "more than 18 digits"),
        ({"steps": 10**5000}, "more than 18 digits"),
        ({"steps": -(10**5000)}, "negative"),
        ({"steps": [0, float("inf")]}, "not an int"),
        ({"ranks": range(10**400)}, "more than 18 digits"),
        ({"path": ""}, "non-empty path"),
        ({"path": 3}, "a path"),
        ({"path": "a\0b"}, "path"),
        ({"options": [1]}, "mapping"),
        ({"label": ""}, "1 to 64 letters"),
        ({"label": "update actor"}, "letters, digits, '-' and '_'"),
        ({"label": "a\n"}, "1 to 64 letters"),
        ({"label": "a" * 65}, "1 to 64 letters"),
        ({"label": ["rollout"]}, "1 to 64 letters"),
        ({"label": 3}, "1 to 64 letters"),
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
    assert DumpRequest(max_bytes=text).max_bytes == expected


DEEP = [
    ("json", "[" * 100_000),
    *(("toml", text) for text in ("a = " + "[" * 100_000, "a." * 101 + "a = 0", "[" + "'a' . " * 101 + "a]")),
]


@pytest.mark.parametrize(("kind", "text"), DEEP)
def test_settings_that_are_nested_too_deep_are_refused(kind: str, text: str, tmp_path: Path) -> None:
    if kind == "toml" and sys.version_info < (3, 11) and not _has_tomli():
        pytest.skip("no reader of TOML")
    file = tmp_path / f"dump.{kind}"
    file.write_text(text)
    with pytest.raises(ConfigError, match="nested too deep"):
        DumpRequest.from_file(file)


def test_settings_in_toml_are_smaller_than_those_in_json(tmp_path: Path) -> None:
    for kind, text in {"json": '{"path": "%s"}', "toml": 'path = "%s"'}.items():
        (tmp_path / f"dump.{kind}").write_text(text % ("a" * 300_000))
    assert len(str(DumpRequest.from_file(tmp_path / "dump.json").path)) == 300_000
    with pytest.raises(ConfigError, match="larger than 262144 characters") as raised:
        DumpRequest.from_file(tmp_path / "dump.toml")
    assert "JSON" in str(raised.value.hint)


def test_text_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(ConfigError, match="nested too deep"):
        DumpRequest.from_text('{"options": ' + "[" * 100_000)


def test_numbers_that_nothing_counts_stay_text_in_options() -> None:
    assert DumpRequest.from_text(f"options.a={'9' * 5000}").options == {"a": "9" * 5000}


def test_home_and_variables_in_a_path_are_replaced_on_every_road(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RUN", "7")
    for written, found in {
        "$HOME/output": tmp_path / "output",
        "~/output": tmp_path / "output",
        "${HOME}/run$RUN": tmp_path / "run7",
        "$HOME": tmp_path,
    }.items():
        assert DumpRequest(path=written).path == DumpRequest(path=Path(written)).path == found
        assert DumpRequest.from_text(f"path={written}").path == found
        assert DumpRequest.from_mapping({"dump_path": written}).path == found
        file = tmp_path / "settings.json"
        file.write_text(json.dumps({"path": written}))
        for where in (str(file), "$HOME/settings.json", "~/settings.json"):
            assert DumpRequest.from_text(where).path == found


def test_a_path_object_may_name_a_directory_with_a_dollar_sign() -> None:
    assert DumpRequest(path=Path("costs$NOT_SET_ANYWHERE")).path == Path("costs$NOT_SET_ANYWHERE")


def test_a_layer_may_be_for_one_model_only() -> None:
    found = DumpRequest(models=["A", "B"], layers=["x", "A:conv1", "B:re:fc.*", "re:A:y", "C:z"])
    assert found.layers_of("A") == ("x", "conv1", "re:A:y", "C:z")
    assert found.layers_of("B") == ("x", "re:fc.*", "re:A:y", "C:z")
    assert DumpRequest(layers=["A:conv1"]).layers_of("A") == ("A:conv1",)


def test_type_checkers_know_the_values_that_are_taken() -> None:
    pytest.importorskip("typing_extensions")
    # Private: programs do not load these types.
    from ascend_dump.capturing._types import CaptureSettings

    for hints in map(typing.get_type_hints, (DumpRequest.__init__, CaptureSettings)):
        for name, sample in {"mode": "input", "data": "full", "level": "kernel", "scene": "watch"}.items():
            with pytest.raises(ConfigError) as refused:
                DumpRequest(**{name: "no such value"})
            told = re.findall(r"'(\w+)'", refused.value.hint)
            assert sample in told
            assert all(getattr(DumpRequest(**{name: value}), name) == value for value in told)
            assert hints[name] in (typing.Literal[tuple(told)], typing.Optional[typing.Literal[tuple(told)]])


SPELLINGS = {
    "path": ["dump_path"],
    "steps": ["dump_step"],
    "mode": ["dump_mode"],
    "layers": ["dump_layer", "layer"],
    "models": ["model_name"],
    "data": ["dump_data"],
    "stats": ["dump_stats"],
    "level": ["dump_level"],
    "scene": ["dump_scene"],
    "watch": ["watcher_nodes"],
    "quant": ["quant_dumpable"],
    "ranks": [],
    "max_bytes": [],
    "keep": [],
    "until": [],
    "ignore": [],
    "label": [],
    "quiet": [],
    "strict": [],
    "options": [],
}


def test_every_field_is_taken_from_a_file_by_its_name_and_by_other_spellings() -> None:
    assert [field.name for field in dataclasses.fields(DumpRequest)] == list(SPELLINGS)
    given = {"path": "d", "steps": "3", "mode": "input", "layers": ["a"], "models": ["m"], "data": "full"}
    given.update(stats=["max"], level="kernel", scene="watch", watch=["a"], quant=True, ranks="1")
    given.update(max_bytes=7, keep=3, until="nonfinite", ignore=["log"], label="a", quiet=True, strict=True)
    given.update(options={"a": 1})
    for name, others in SPELLINGS.items():
        more = {"watch": {"scene": "watch"}, "ignore": {"until": "nonfinite"}}.get(name, {})
        expected = DumpRequest(**{name: given[name], **more})
        assert expected != DumpRequest()
        for spelling in (name, *others):
            assert DumpRequest.from_mapping({spelling: given[name], **more}) == expected
        for spelling in others:
            with pytest.raises(ConfigError, match=f"{spelling}= is a framework's spelling"):
                ascend_dump.capture(**{spelling: given[name]})


def test_the_keywords_of_capture_are_those_of_a_request_for_people_and_for_type_checkers() -> None:
    """The signature is for `help(capture)` and for completion in a shell."""
    shown, settings = (inspect.signature(each).parameters for each in (ascend_dump.capture, DumpRequest))
    assert {field.name for field in dataclasses.fields(DumpRequest)} == set(settings)
    own = {"target", "framework", "graft"}
    assert {name: parameter for name, parameter in shown.items() if name not in own} == settings
    assert [parameter.kind for parameter in shown.values()] == [
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        *[inspect.Parameter.KEYWORD_ONLY] * (len(shown) - 1),
    ]
    pytest.importorskip("typing_extensions")
    from ascend_dump.capturing._types import CaptureSettings

    checked = typing.get_type_hints(CaptureSettings)
    accepted = typing.get_type_hints(DumpRequest.__init__)
    assert {name: checked[name] for name in settings} == {name: accepted[name] for name in settings}
    assert set(checked) == set(shown) - {"target"}
    of_capture = typing.get_type_hints(ascend_dump.capture)
    assert {name: checked[name] for name in own - {"target"}} == {name: of_capture[name] for name in own - {"target"}}
