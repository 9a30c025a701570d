"""The dump JSON: file limits, adump's verdicts, and what a person is told."""

from __future__ import annotations

import json
import os

import places
import pytest

from ascend_dump.native.cann.config import Situation, adump, check_acl_config, parse
from ascend_dump.native.cann.config.keys import DUMP, ITEM

DATA = places.DATA / "cann"
VECTORS = [json.loads(line) for line in (DATA / "config_vectors.jsonl").read_text(encoding="utf-8").splitlines()]


def _vector_name(vector):
    return (json.dumps(vector["config"]["dump"]) if "config" in vector else vector["raw"])[:60]


@pytest.mark.parametrize("vector", VECTORS, ids=_vector_name)
def test_the_verdict_of_the_real_parser(vector, tmp_path):
    """adump's own verdict, error for error; the directory it looked at has another name here."""
    text = vector["raw"] if "raw" in vector else json.dumps(vector["config"])
    parsed = parse.parse_text(text.replace('"/dumpdir"', json.dumps(str(tmp_path))))
    assert parsed.refusal is None
    verdict = adump.judge(parsed.value)
    found = {
        "accept": verdict.accepted,
        "ret": 0 if verdict.accepted else -1,
        "acl_error": verdict.acl_error,
        "errors": [
            {"code": error.code, "args": {**error.args, "path": "-"}, "message": error.message()}
            for error in verdict.errors
        ],
    }
    if verdict.accepted:
        found.update(need_dump=verdict.need_dump, dfxPath=verdict.kernel_path, dfxTypes=list(verdict.kernel_data))
    if verdict.settings is not None:
        settings = verdict.settings
        found.update(
            dump_type=verdict.dump_type,
            dump_type_str=verdict.type_name,
            dumpPath=settings.path,
            dumpMode=settings.mode,
            dumpStatus=settings.status,
            dumpData=settings.data,
            dumpSwitch=settings.switch,
            dumpStatsItem=list(settings.stats),
        )
    expected = {name: str(tmp_path) if value == "/dumpdir" else value for name, value in vector["result"].items()}
    assert found == expected


@pytest.mark.parametrize("vector", VECTORS, ids=_vector_name)
def test_a_refusal_is_told_with_its_code_and_key_path(vector, tmp_path):
    text = json.dumps(vector["config"]) if "config" in vector else vector["raw"]
    problems = check_acl_config(
        text.replace('"/dumpdir"', json.dumps(str(tmp_path))).encode(), situation=Situation(cwd=str(tmp_path))
    )
    errors = [problem for problem in problems if problem.severity == "error"]
    expected = [
        # adump reports an invalid path and goes on, so that this alone refuses nothing.
        error
        for error in vector["result"]["errors"]
        if error["args"].get("reason") != "The value is an invalid path"
    ]
    assert [error.native for error in errors] == [error["code"] for error in expected]
    for error, wanted in zip(errors, expected):
        item = wanted["args"].get("item")
        assert error.where == ("dump" if item == "dump" else f"dump.{item}") or item is None
        assert wanted["args"].get("reason", "") in error.message
        assert error.hint


def _refusal(text):
    refusal = parse.parse_text(text).refusal
    return None if refusal is None else (refusal.acl_error, refusal.native)


_NOT_JSON = (100009, "EP0004")


@pytest.mark.parametrize(
    "text",
    [
        b'{"dump": {} // comment\n}',
        b'/* c */ {"dump": {}}',
        b'{"dump": {},}',
        b'{"dump": [1,]}',
        b"{'dump': {}}",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 400 + b"}",
        b'{"a": 01}',
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\\ud800"}',
        b'{"a": "\\udc00"}',
        b'{"a": "\\ud800\\u0041"}',
        b'{"a": "\\ud800x\\udc00"}',
        b'{"a": "\\ud800\\ud800\\udc00"}',
        b'{"a": "tab\there"}',
        b'{"a": "\\x"}',
        b"\xef\xbb\xbf\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b"   ",
        b"\0",
        b"{} {}",
        b'{"a": "\0"}',
    ],
)
def test_what_nlohmann_json_refuses(text):
    assert _refusal(text) == _NOT_JSON


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"\xef\xbb\xbf{}", {}),
        (b'{"a": 1, "a": {"b": 2}, "a": 3}', {"a": 3}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'{"a": "\\\\ud800"}', {"a": "\\ud800"}),
        (b"{}\0 anything after the end \xff", {}),
        (b'{"a": 123456789012345678901}', {"a": 123456789012345678901.0}),
        (b"[18446744073709551615, -9223372036854775808]", [2**64 - 1, -(2**63)]),
        (b"[]", []),
        (b"null", None),
        ('{"模型": "x"}', {"模型": "x"}),
    ],
)
def test_what_nlohmann_json_takes(text, value):
    assert parse.parse_text(text) == parse.Parsed(value, parse.parse_text(text).duplicates)
    assert parse.parse_text(text).refusal is None


@pytest.mark.parametrize("mark", ["{", "["])
def test_nesting_is_counted_over_raw_characters(mark):
    ten = mark * 10 + {"{": "}", "[": "]"}[mark] * 10
    assert _refusal(f'{{"a": {json.dumps(ten)}}}' if mark == "[" else f'["{ten}"]') is None
    assert _refusal(f'{{"a": "{mark * 11}"}}') == (100006, "")


def test_nesting_hidden_from_the_count_is_survived():
    text = '["]",' * 200_000 + "1" + "]" * 200_000
    assert _refusal(text) == _NOT_JSON


def test_a_file_of_brackets_is_refused():
    assert _refusal("[" * (1 << 20)) == (100006, "")


def test_a_wide_object_of_repeated_keys_is_read():
    parsed = parse.parse_text("{" + ",".join(f'"k{n % 50000}":{n}' for n in range(100_000)) + "}")
    assert len(parsed.duplicates) == 50_000


def test_an_empty_file_configures_nothing(tmp_path):
    file = tmp_path / "acl.json"
    file.write_bytes(b"")
    assert parse.read_config(file) == parse.Parsed(empty=True)
    (problem,) = check_acl_config(file)
    assert (problem.severity, problem.code) == ("silent", "AD112")


def test_files_acl_cannot_take(tmp_path):
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(parse.MAX_BYTES + 1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path / "missing.json", tmp_path, large, pipe, "bad\0name"):
        refusal = parse.read_config(path).refusal
        assert refusal is not None
        assert refusal.acl_error == 100003
    (problem,) = check_acl_config(tmp_path / "missing.json")
    assert (problem.severity, problem.native, problem.code) == ("error", "100003", "AD110")


def test_a_file_of_exactly_the_limit_is_read(tmp_path):
    file = tmp_path / "acl.json"
    file.write_bytes(b"{}".ljust(parse.MAX_BYTES))
    assert parse.read_config(file).value == {}


@pytest.mark.parametrize("source", ["{}", " \n{}", "[]", '\ufeff{"a": 1}', b"{}", "", "1\n", {}])
def test_text_and_values_are_not_taken_for_paths(source):
    assert all(problem.native != "100003" for problem in check_acl_config(source))


def test_a_path_may_hold_brackets(tmp_path):
    directory = tmp_path / "run[1]{2}"
    directory.mkdir()
    (directory / "acl.json").write_text('{"dump": {}}')
    assert [problem.where for problem in check_acl_config(str(directory / "acl.json"))] == ["dump"]


def _errors(dump, **more):
    config = {"dump": dump}
    return [
        (problem.native, problem.where) for problem in check_acl_config(config, **more) if problem.severity == "error"
    ]


def test_every_refusal_can_be_listed_at_once(tmp_path):
    dump = {
        "dump_mode": "ALL",
        "dump_step": "1|5-3|x",
        "dump_level": "ops",
        "dump_list": [{"layer": [1, "a"]}, 3, {"model_name": ""}],
        "dump_stats": ["Max", "max"],
    }
    assert _errors(dump) == [("EP0001", "dump.dump_list[0].layer[0]")]
    assert _errors(dump, all=True) == [
        ("EP0001", "dump.dump_list[0].layer[0]"),
        ("EP0001", "dump.dump_list[1]"),
        ("EP0002", "dump.dump_mode"),
        ("EP0002", "dump.dump_level"),
        ("EP0002", "dump.dump_stats[1]"),
        ("EP0001", "dump.dump_path"),
        ("EP0003", "dump.dump_step[1]"),
        ("EP0003", "dump.dump_step[2]"),
        ("EP0001", "dump.dump_list[2].model_name"),
        ("EP0005", "dump.dump_stats"),
    ]


def test_types_are_checked_before_values_and_values_before_conflicts(tmp_path):
    assert _errors({"dump_mode": "x", "dump_list": 1}) == [("EP0001", "dump.dump_list")]
    assert _errors({"dump_scene": "watcher", "dump_debug": "on", "dump_data": ""}) == [("EP0001", "dump.dump_data")]
    assert _errors({"dump_scene": "watcher", "dump_debug": "on"}) == [("EP0005", "dump.dump_debug")]


@pytest.mark.parametrize("key", [key for key in DUMP.values() if key.kind == "string"], ids=lambda key: key.name)
def test_a_text_key_takes_only_text(key, tmp_path):
    for value in (1, None, True, [], {}):
        assert _errors({"dump_path": str(tmp_path), key.name: value}) == [("EP0001", f"dump.{key.name}")]


@pytest.mark.parametrize("key", ITEM.values(), ids=lambda key: key.name)
def test_the_type_of_every_key_of_an_item(key, tmp_path):
    assert _errors({"dump_path": str(tmp_path), "dump_list": [{key.name: 1}]}) == [
        ("EP0001", f"dump.dump_list[0].{key.name}")
    ]


@pytest.mark.parametrize("key", [key for key in DUMP.values() if key.kind == "string" and key.allowed])
def test_every_allowed_value_and_no_other(key, tmp_path):
    for value in key.allowed:
        found = _errors({"dump_path": str(tmp_path), key.name: value})
        assert ("EP0002", f"dump.{key.name}") not in found
    assert _errors({"dump_path": str(tmp_path), key.name: "Other"}) == [("EP0002", f"dump.{key.name}")]
    assert _errors({"dump_path": str(tmp_path), key.name: ""}) == [("EP0001", f"dump.{key.name}")]


@pytest.mark.parametrize("scene", ["lite_exception", "aic_err_brief_dump", "aic_err_norm_dump", "aic_err_detail_dump"])
def test_an_exception_scene_checks_only_its_conflicts(scene):
    assert _errors({"dump_scene": scene, "dump_step": "junk", "dump_stats": []}, all=True) == []
    assert _errors({"dump_scene": scene, "dump_debug": "on"}) == [("EP0005", "dump.dump_debug")]
    assert _errors({"dump_scene": scene, "dump_op_switch": "on"}) == [("EP0005", "dump.dump_op_switch")]


def test_the_environment_moves_an_exception_dump():
    config = {"dump": {"dump_scene": "aic_err_norm_dump", "dump_path": "/a"}}
    path = lambda **env: adump.judge(config, env=env).settings.path  # noqa: E731  (one expression, thrice)
    assert path() == "/a"
    assert path(ASCEND_WORK_PATH="/w") == "/w"
    assert path(ASCEND_WORK_PATH="/w", ASCEND_DUMP_PATH="/d") == "/d"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("1.2.3.4:/a b", "The value contains invalid characters"),
        ("1.2.3.4:/数据", "The value contains invalid characters"),
        ("1.2.3.4:/fine:[x]?", None),
        ("1.2.3.4.:/fine", None),
        ("+1. 2.3x.004:/fine", None),
        ("1.2.3.-4:/x", "The path does not exist"),
        ("1.2.3:/x", "The path does not exist"),
        ("a:b", "The path does not exist"),
        (":", "The path does not exist"),
        ("$HOME", "The path does not exist"),
        ("~", "The path does not exist"),
    ],
)
def test_the_address_form_of_a_path(path, reason, tmp_path):
    verdict = adump.judge({"dump": {"dump_path": path, "dump_list": [{}]}}, cwd=str(tmp_path))
    final = [error.args["reason"] for error in verdict.errors if error.final]
    assert final == ([] if reason is None else [reason])


def test_paths_are_looked_at(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "dir")
    (tmp_path / "odd:").mkdir()
    reasons = {}
    for name in ("file", "dir", "link", "odd:", "dir\0ignored", "no/such"):
        verdict = adump.judge({"dump": {"dump_path": name, "dump_list": [{}]}}, cwd=str(tmp_path))
        reasons[name] = (verdict.accepted, [error.args["reason"] for error in verdict.errors])
    assert reasons == {
        "file": (False, ["The path is not a directory path"]),
        "dir": (True, []),
        "link": (True, []),
        # Reported as an error, and accepted.
        "odd:": (True, ["The value is an invalid path"]),
        "dir\0ignored": (True, []),
        "no/such": (False, ["The path does not exist"]),
    }


def test_a_directory_without_permission_is_refused(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir(mode=0o500)
    if os.geteuid() == 0:  # root may read and write everything
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK | os.W_OK)
    verdict = adump.judge({"dump": {"dump_path": "closed", "dump_list": [{}]}}, cwd=str(tmp_path))
    assert [error.args["reason"] for error in verdict.errors] == [
        "The value is a path without read and write permissions"
    ]


@pytest.mark.parametrize(
    ("steps", "accepted"),
    [
        ("", True),
        ("5-5", True),
        ("0007-8", True),
        ("5-4", False),
        ("1-2-3", False),
        ("-5", False),
        ("٣", False),
        ("99999999999999999999-99999999999999999998", True),
        ("9223372036854775807-9223372036854775806", False),
        ("|".join("1" * 100), True),
        ("|".join("1" * 101), False),
    ],
)
def test_the_grammar_of_steps(steps, accepted, tmp_path):
    dump = {"dump_path": str(tmp_path), "dump_list": [{}], "dump_step": steps}
    assert adump.judge({"dump": dump}).accepted is accepted


def test_ranges_need_level_model_and_both_ends(tmp_path):
    def errors(level, **item):
        item["opname_range"] = [{"begin": "a", "end": "b"}]
        return _errors({"dump_path": str(tmp_path), "dump_level": level, "dump_list": [item]})

    where = "dump.dump_list[0]"
    assert errors("op", model_name="m") == []
    assert errors("all", model_name="m") == [("EP0005", f"{where}.opname_range")]
    assert errors("op") == [("EP0001", f"{where}.model_name")]


@pytest.mark.parametrize(
    ("text", "errors", "others"),
    [
        (
            '{ "dump":{ "dump_list":[ { "model_name":"ResNet-101" }, { "model_name":"ResNet-50", "layer":'
            '[ "conv1conv1_relu", "res2a_branch2ares2a_branch2a_relu", "res2a_branch1", "pool1" ] } ], '
            '"dump_path":"DIR/output", "dump_mode":"output", "dump_op_switch":"off", "dump_data":"tensor" } }',
            [],
            [],
        ),
        (
            '{ "dump":{ "dump_path":"output", "dump_list":[], "dump_op_switch":"on", "dump_data":"tensor" } }',
            [],
            [("warning", "dump.dump_op_switch"), ("warning", "dump.dump_path")],
        ),
        (
            '{ "dump":{ "dump_path":"output", "dump_debug":"on" } }',
            [],
            [("warning", "dump.dump_debug"), ("warning", "dump.dump_path")],
        ),
        (
            '{ "dump":{ "dump_list":[ { "layer":["A", "B"], "watcher_nodes":["C", "D"] } ], '
            '"dump_path":"DIR/", "dump_mode":"output", "dump_scene":"watcher" } }',
            [],
            [],
        ),
        # As printed: a comma is missing before dump_step.
        (
            '{ "dump":{ "dump_list":[{}], "dump_path":"DIR/output", "dump_mode":"output", "dump_op_switch":"off" '
            '"dump_step": "0|3-5|10" } }',
            ["EP0004"],
            [],
        ),
        (
            '{ "dump":{ "dump_list":[{}], "dump_path":"$HOME/output", "dump_mode":"output", "dump_op_switch":"off", '
            '"dump_step": "0|3-5|10" } }',
            ["EP0003"],
            [],
        ),
    ],
    ids=["model", "single-op", "overflow", "watcher", "steps-as-printed", "home"],
)
def test_the_examples_of_the_user_documents(text, errors, others, tmp_path):
    (tmp_path / "output").mkdir()
    problems = check_acl_config(text.replace("DIR", str(tmp_path)), situation=Situation(cwd=str(tmp_path)))
    assert [problem.native for problem in problems if problem.severity == "error"] == errors
    assert [(problem.severity, problem.where) for problem in problems if problem.severity != "error"] == others
