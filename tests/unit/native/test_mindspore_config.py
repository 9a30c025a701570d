"""MindSpore's dump JSON: every configuration that a real MindSpore was given has the verdict it got there.

`tests/data/mindspore/config_vectors.jsonl`: configurations, what MindSpore 2.10.0 said on a CPU (null:
accepted), and how many tensors it wrote in three steps of a small network. The suite of MindSpore replays them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import DATA

from ascend_dump import ConfigError, DumpRequest
from ascend_dump.native.mindspore import Runtime, check_mindspore_config
from ascend_dump.native.mindspore.config.build import mindspore_config
from ascend_dump.native.mindspore.config.check import Known
from ascend_dump.native.mindspore.config.dump_json import read_file, read_text
from ascend_dump.native.mindspore.config.select import KernelSelector, iteration_ranges, kernel_text
from ascend_dump.native.mindspore.runtime import RUNTIMES

VECTORS = [json.loads(line) for line in DATA.joinpath("mindspore/config_vectors.jsonl").read_text().splitlines()]
CPU = Runtime.named("cpu")
#: Accepted ones that do something else than they say, and what the check says about them.
TELLS = {
    "e2e_prec_low": "AD274",
    "ff_bad": "AD274",
    "ff_npy": "AD274",
    "iter_neg": "AD272",
    "odm_3": "AD274",
    "odm_3_io1": "AD274",
    "odm_4": "AD274",
    "odm_4_stat": "AD274",
    "ovf_with3": "AD274",
    "kempty": "AD273",
    "odm1": "AD274",
    "e_dev": "AD274",
    "k_dm0_ignored": "AD273",
    "sd_no0": "AD274",
}
OPERATORS = ["Default/fc-Dense/MatMul-op0", "Default/fc-Dense/BiasAdd-op0", "Default/relu-ReLU/ReLU-op0"]


def placed(vector: dict[str, Any], tmp_path: Path) -> tuple[bytes, dict[str, str], str]:
    """The content, the environment and the expected message, with a path of this machine in it."""
    out, file = tmp_path / "out", tmp_path / "file"
    out.mkdir()
    file.touch()

    def put(text: str) -> str:
        return text.replace("@OUT@", str(out)).replace("@FILE@", str(file))

    env = {name: put(value) for name, value in vector["env"].items()}
    return (
        put(vector["config"]).encode("latin-1" if "\0" in vector["config"] else "utf-8"),
        env,
        put(vector["message"] or ""),
    )


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_the_verdict_is_the_one_of_mindspore(vector, tmp_path):
    config, env, message = placed(vector, tmp_path)
    reading = read_text(config, runtime=CPU, env=env)
    said = reading.refusal.message if reading.refusal else ""
    assert said.strip() == message.strip()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_the_check_agrees(vector, tmp_path):
    config, env, message = placed(vector, tmp_path)
    known = Known(env=env, operators=OPERATORS)
    problems = check_mindspore_config(config, runtime=CPU, known=known)
    errors = [problem for problem in problems if problem.severity == "error"]
    # Each has statistic_category beside saved_data "tensor", which a CPU does not read.
    unread = "common_dump_settings.statistic_category"
    silent = [problem for problem in problems if problem.severity == "silent" and problem.where != unread]
    assert bool(errors) == bool(message)
    for problem in problems:
        assert problem.hint, problem
        assert problem.code != "AD270" or problem.where or problem.message.startswith("Parse dump json failed")
    if message:
        assert [problem.code for problem in errors] == ["AD270"]
    elif vector["files"] == 0:
        assert silent, "it wrote nothing, and the check says nothing"
    elif vector["name"] in TELLS:
        assert TELLS[vector["name"]] in {problem.code for problem in silent}
    else:
        assert silent == []


def base(**common: Any) -> dict[str, Any]:
    settings = {
        "dump_mode": 0,
        "path": "/tmp",
        "net_name": "Net",
        "iteration": "all",
        "input_output": 0,
        "kernels": [],
        "support_device": [0],
        **common,
    }
    return {"common_dump_settings": settings, "e2e_dump_settings": {"enable": True}}


def told(config: dict[str, Any], on: str = "ascend", **known: Any) -> list[tuple[str, str, str]]:
    found = check_mindspore_config(config, runtime=Runtime.named(on), known=Known(env={}, **known))
    return [(problem.code, problem.severity, problem.where.rpartition(".")[2]) for problem in found]


@pytest.mark.parametrize(
    ("config", "on", "known", "expected"),
    [
        (base(iteration="2-0"), "ascend", {}, ("AD272", "silent", "iteration")),
        (base(iteration="0|1-"), "cpu", {}, ("AD272", "silent", "iteration")),
        (base(iteration="0", initial_iteration=5), "cpu", {}, ("AD272", "silent", "iteration")),
        (base(iteration="0"), "cpu", {"graphs": 2}, ("AD272", "warning", "iteration")),
        (base(dump_mode=1, kernels=["name-regex(Default/\\d+)"]), "cpu", {}, ("AD273", "silent", "kernels[0]")),
        (base(dump_mode=1, kernels=["MatMul-op0"]), "cpu", {}, ("AD273", "silent", "kernels[0]")),
        (base(dump_mode=1), "cpu", {}, ("AD273", "silent", "kernels")),
        (
            base(dump_mode=1, kernels=["Default/fc-Dense/MatMul-op7"]),
            "cpu",
            {"operators": OPERATORS},
            ("AD273", "silent", "kernels[0]"),
        ),
        (base(), "ascend-ge", {}, ("AD274", "silent", "")),
        (base(op_debug_mode=3), "gpu", {}, ("AD274", "silent", "op_debug_mode")),
        (base(), "ascend", {"device_id": 3}, ("AD274", "silent", "support_device")),
        (base(path="/proc/nothing/here"), "cpu", {}, ("AD275", "silent", "path")),
        (base(path="/etc/hostname"), "cpu", {}, ("AD275", "silent", "path")),
        (base(net="x"), "cpu", {}, ("AD278", "silent", "net")),
        (base(kernels=["relu"]), "cpu", {}, ("AD273", "silent", "kernels")),
        (base(kernels=["relu"], dump_mode=2), "ascend", {}, ("AD273", "silent", "kernels")),
        (base(support_device=[1]), "cpu", {}, ("AD274", "silent", "support_device")),
        (base(statistic_category=["max"]), "ascend", {}, ("AD274", "silent", "statistic_category")),
        (base(), "cpu", {"complex": True}, ("AD279", "error", "")),
        (base(), "cpu", {"pynative": True}, ("AD279", "warning", "")),
    ],
    ids=lambda value: value[2] if isinstance(value, tuple) else None,
)
def test_what_is_accepted_without_being_done_is_told(config, on, known, expected):
    assert told(config, on, **known) == [expected]


def test_without_the_block_o0_dumps_nothing_and_a_cpu_waits():
    config = base(op_debug_mode=0)
    del config["e2e_dump_settings"]
    assert told(config, "ascend") == [("AD274", "silent", "e2e_dump_settings")]
    assert told(config, "cpu") == [("AD274", "warning", "e2e_dump_settings")]
    assert len(read_text(json.dumps(config).encode(), runtime=CPU, env={}).warnings) == 3


def test_refusals_that_only_ascend_and_gpu_know():
    def refusal(config: dict[str, Any], on: str) -> str:
        found = read_text(json.dumps(config).encode(), runtime=Runtime.named(on), env={}).refusal
        return "" if found is None else found.message

    statistics = base(saved_data="statistic", statistic_category=["max", "median"])
    assert refusal(statistics, "gpu").startswith("The following statistic_category is invalid:median, the valid")
    assert refusal(base(dump_mode=2), "ascend") == ""
    for on in ("cpu", "gpu"):
        assert refusal(base(dump_mode=2), on).startswith("Set dump is only supported in Ascend async dump")
    o2 = {"common_dump_settings": base(file_format="zip", op_debug_mode=0)["common_dump_settings"]}
    assert "'file_format' should be either 'npy' or 'bin'" in refusal(o2, "ascend-o2")
    o2["common_dump_settings"].update(file_format="bin", saved_data="full")
    assert "only supported on Ascend when file_format" in refusal(o2, "ascend-o2")
    del o2["common_dump_settings"]["op_debug_mode"]
    assert refusal(o2, "ascend-o2") == "Check dump json failed, op_debug_mode not found"


def test_all_refusals_are_listed_when_asked_for():
    config = base(iteration="0 | 1", net_name="a.b", dump_mode=9)
    config["e2e_dump_settings"] = {"enable": "yes"}
    first = check_mindspore_config(config, runtime=CPU)
    every = check_mindspore_config(config, runtime=CPU, all=True)
    assert [problem.where for problem in first] == ["e2e_dump_settings.enable"]
    assert [problem.where.rpartition(".")[2] for problem in every] == ["enable", "dump_mode", "net_name", "iteration"]


def test_the_file_itself(tmp_path):
    def said(name: str) -> str:
        found = read_file(name, runtime=CPU, env={}).refusal
        return "" if found is None else found.message

    assert said(" ") == said(str(tmp_path / "missing.json")) == "Get dump config file failed"
    assert said(str(tmp_path)) == f"Invalid json file name:{tmp_path}"
    upper = tmp_path / "dump.JSON"
    upper.write_text("{}")
    assert said(str(upper)) == "[DataDump] dump config file suffix only supports json! But got:.JSON"
    good = tmp_path / "with blank.json"
    good.write_bytes(b"\xef\xbb\xbf" + json.dumps(base()).encode() + b" trailing \xff junk")
    assert said(str(good)) == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{ // c\n "a": 1}', "line 1, column 3: # object key - @; last read: '{ /'; expected string literal"),
        ('{"a": 1, // c\n "b": 2}', "line 1, column 10: # object key - @; last read: '1, /'; expected string literal"),
        ('{"a": // c\n 1}', "line 1, column 7: # value - @; last read: '\"a\": /'"),
        ('{"a": 1 // c\n}', "line 1, column 9: # object - @; last read: '1 /'; expected '}'"),
        ('{"a": [1, // c\n 2]}', "line 1, column 11: # value - @; last read: '1, /'"),
        ('{"a": [1 // c\n]}', "line 1, column 10: # array - @; last read: '1 /'; expected ']'"),
        ("/* c */ {}", "line 1, column 1: # value - @; last read: '/'"),
        ('{"a": "x" # y\n}', "line 1, column 11: # object - @; last read: '\"x\" #'; expected '}'"),
        ('{"a" // c\n: 1}', "line 1, column 6: # object separator - @; last read: '\"a\" /'; expected ':'"),
        (
            '{\n  "common": {\n    // first\n    "b": 1}}',
            "line 3, column 5: # object key - @; last read: '\"common\": {<U+000A>    /'; expected string literal",
        ),
        ("\t// c", "line 1, column 2: # value - @; last read: '<U+0009>/'"),
        ("[true, // c\n1]", "line 1, column 8: # value - @; last read: '[true, /'"),
        ("{'a': 1}", "line 1, column 2: # object key - @; last read: '{''; expected string literal"),
    ],
)
def test_comments_are_refused_in_the_words_of_its_parser(text, said):
    """Each as MindSpore 2.10.0 said it on a CPU."""
    expected = said.replace("#", "syntax error while parsing", 1).replace("@", "invalid literal", 1)
    found = read_text(text.encode(), runtime=CPU, env={}).refusal
    assert found is not None
    assert found.message == f"Parse dump json failed, error:[json.exception.parse_error.101] parse error at {expected}"


@given(st.binary(max_size=200))
def test_hostile_bytes_are_refused_never_raised(data):
    assert read_text(data, runtime=CPU, env={}).refusals


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["path", "kernels", "iteration", "enable"]), inner)
        ),
        max_leaves=5,
    ),
    st.sampled_from(sorted(RUNTIMES)),
)
def test_values_of_any_type_are_judged_never_raised(value, on):
    for key in (
        "path",
        "net_name",
        "iteration",
        "kernels",
        "support_device",
        "saved_data",
        "statistic_category",
        "dump_mode",
    ):
        text = json.dumps(base(**{key: value})).encode()
        check_mindspore_config(text, runtime=Runtime.named(on), all=True, known=Known(env={}))
    check_mindspore_config(json.dumps({"common_dump_settings": value, "e2e_dump_settings": value}).encode(), all=True)


# --- selection -----------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 400, "9" * 5000])
def test_a_number_beyond_those_of_a_double_is_refused(number):
    reading = read_text(b'{"common_dump_settings": {"support_device": [%s]}}' % number.encode())
    assert "[json.exception.out_of_range.406] number overflow" in reading.refusals[0].message


def test_a_number_beyond_64_bits_is_no_unsigned_one():
    reading = read_text(b'{"common_dump_settings": {"dump_mode": 99999999999999999999}, "e2e_dump_settings": {}}')
    assert any("dump_mode" in refusal.message for refusal in reading.refusals)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", None),
        ("0|3-5|10", [(0, 0), (3, 5), (10, 10)]),
        ("0||2", [(0, 0), (2, 2)]),
        ("0|-1|2", [(0, 0), (2, 2)]),
        ("00|01", [(0, 0), (1, 1)]),
        ("2-0", []),
        ("1-", []),
        ("-", []),
        ("|", []),
        ("0-1-2", []),
        ("0-99999999999999999999999", []),
    ],
)
def test_iterations_are_those_that_mindspore_selects(text, expected):
    assert iteration_ranges(text) == expected


@pytest.mark.parametrize(
    ("kernel", "name", "matches"),
    [
        ("Default/fc-Dense/MatMul-op0", "Default/fc-Dense/MatMul-op0", True),
        ("Default/fc-Dense/MatMul-op0", "Default/fc-Dense/MatMul-op01", False),
        ("MatMul-op0", "Default/fc-Dense/MatMul-op0", False),
        ("MATMUL", "Default/fc-Dense/MatMul-op0", True),
        ("a", "Default/fc-Dense/BiasAdd-op0", True),
        ("dense", "Default/fc-Dense/BiasAdd-op0", False),
        ("conv", "conv1.weight", True),
        ("name-regex(fc.+)", "fc.weight", True),
        ("name-regex(fc.+)", "Default/fc-Dense/MatMul-op0", False),
        ("name-regex(Default/fc .+)", "Default/fc-Dense/MatMul-op0", True),
        ("name-regex(.*op\\d)", "Default/fc-Dense/MatMul-op0", False),
        ("name-regex(.*op[0-9])", "Default/fc-Dense/MatMul-op0", True),
        ("name-regex()", "Default/fc-Dense/MatMul-op0", False),
        ("", "anything", True),
    ],
)
def test_kernels_match_as_in_mindspore(kernel, name, matches):
    assert KernelSelector([kernel_text(kernel)]).matches(name) is matches


# --- building ------------------------------------------------------------------------------

DOCUMENTED: dict[str, Any] = {
    "op_debug_mode": 0,
    "dump_mode": 0,
    "path": "/absolute_path",
    "net_name": "ResNet50",
    "iteration": "0|5-8|100-120",
    "saved_data": "tensor",
    "input_output": 0,
    "kernels": ["Default/Conv-op12"],
    "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
    "statistic_category": ["max", "min", "l2norm"],
}
BLOCKS = {
    "ascend": {"e2e_dump_settings": {"enable": True, "trans_flag": True, "stat_calc_mode": "host"}},
    "ascend-o2": {},
    "cpu": {"e2e_dump_settings": {"enable": True, "trans_flag": True}},
    "gpu": {"e2e_dump_settings": {"enable": True, "trans_flag": True}},
}


@pytest.mark.parametrize("on", BLOCKS)
def test_the_documented_file_of_each_mode_is_built_and_accepted(on):
    request = DumpRequest(
        path="/absolute_path",
        models="ResNet50",
        steps="0|5-8|100-120",
        layers="Default/Conv-op12",
        stats=["max", "min", "l2norm"],
        options={"on": on},
    )
    # With dump_mode 0, as in the documents, MindSpore would not look at kernels.
    expected = {"common_dump_settings": {**DOCUMENTED, "dump_mode": 1}, **BLOCKS[on]}
    if on == "ascend-o2":
        expected["common_dump_settings"]["file_format"] = "npy"
    built = mindspore_config(request)
    assert built == expected
    # Statistics beside tensors are ignored, as the documents say too.
    found = check_mindspore_config(json.dumps(built).encode(), runtime=Runtime.named(on), all=True)
    assert [problem.where for problem in found] == ["common_dump_settings.statistic_category"]


def test_the_documented_file_as_printed_is_not_what_it_seems():
    config = {"common_dump_settings": {**DOCUMENTED, "path": "/tmp"}, **BLOCKS["ascend"]}
    assert told(config) == [("AD274", "silent", "statistic_category"), ("AD273", "silent", "kernels")]


def test_a_file_for_another_mode_has_no_effect_under_o2():
    block = {"sample_mode": 1, "stat_calc_mode": "device", "save_kernel_args": True}
    config = {**base(op_debug_mode=0), "e2e_dump_settings": block}
    [problem] = check_mindspore_config(config, runtime=Runtime.named("ascend-o2"), known=Known(env={}))
    assert (problem.severity, problem.where) == ("silent", "e2e_dump_settings")
    assert all(name in problem.message for name in block)


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"mode": "input"}, "input_output", 1),
        ({"mode": "output"}, "input_output", 2),
        ({"data": "stats"}, "saved_data", "statistic"),
        ({"data": "full"}, "saved_data", "full"),
        ({"scene": "overflow"}, "op_debug_mode", 3),
        ({"scene": "exception"}, "op_debug_mode", 4),
        ({"scene": "overflow", "options": {"overflow_number": 2}}, "overflow_number", 2),
        ({"options": {"initial_iteration": 7}}, "initial_iteration", 7),
        ({"options": {"set_dump": True}}, "dump_mode", 2),
        ({"options": {"devices": [1, 2]}}, "support_device", [1, 2]),
        ({"layers": "conv"}, "kernels", ["conv"]),
        ({"layers": "*conv1*"}, "kernels", ["name-regex(.*conv1.*)"]),
        ({"layers": "re:op[0-9]$"}, "kernels", ["name-regex(.*(?:op[0-9]$).*)"]),
        ({"stats": ["mean", "nan"], "data": "stats"}, "statistic_category", ["avg", "nan count"]),
        (
            {"data": "stats", "options": {"stat_calc_mode": "device"}},
            "statistic_category",
            ["max", "min", "avg", "l2norm"],
        ),
    ],
)
def test_each_setting_has_its_key(settings, key, value):
    built = mindspore_config(DumpRequest(path="/tmp", **settings))
    assert built["common_dump_settings"][key] == value
    assert [one for one in check_mindspore_config(built) if one.severity != "warning"] == []


def test_each_option_of_the_block():
    options = {
        "sync": False,
        "trans_flag": False,
        "device_stat_precision_mode": "low",
        "sample_num": 5,
        "save_kernel_args": True,
    }
    built = mindspore_config(DumpRequest(path="/tmp", options=options))
    assert built["e2e_dump_settings"] == {
        "enable": False,
        "trans_flag": False,
        "stat_calc_mode": "host",
        "device_stat_precision_mode": "low",
        "sample_mode": 1,
        "sample_num": 5,
        "save_kernel_args": True,
    }


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"scene": "watch", "watch": ["a"]}, "watch"),
        ({"quant": True}, "quant"),
        ({"level": "kernel"}, "level"),
        ({"models": ["a", "b"]}, "net_name"),
        ({"layers": "re:a\\d"}, "backslash"),
        ({"stats": ["negzero"]}, "below and above zero"),
        ({"layers": "a b"}, "blanks"),
        ({"options": {"set_dump": True, "on": "cpu"}}, "set_dump"),
        ({"options": {"file_format": "npy"}}, "file_format"),
        ({"options": {"on": "ascend-o2", "sample_num": 3}}, "sample_num"),
    ],
)
def test_what_mindspore_cannot_do_is_refused(settings, word):
    with pytest.raises(NotImplementedError, match=word):
        mindspore_config(DumpRequest(path="/tmp", **settings))


@pytest.mark.parametrize(
    "options",
    [
        {"on": "npu"},
        {"typo": 1},
        {"devices": "0"},
        {"sample_num": 0},
        {"overflow_number": 1},
        {"trans_flag": 1},
        {"stat_calc_mode": "gpu"},
        {"initial_iteration": -1},
        {"set_dump": True, "layers": "conv"},
    ],
)
def test_a_wrong_option_is_refused(options):
    layers = options.pop("layers", ()) if "layers" in options else ()
    with pytest.raises(ConfigError):
        mindspore_config(DumpRequest(path="/tmp", layers=layers, options=options))


@given(
    st.from_regex(r"[A-Za-z0-9_/*?.\-]{1,12}", fullmatch=True), st.from_regex(r"[A-Za-z0-9_/.\-]{0,12}", fullmatch=True)
)
def test_a_glob_selects_the_names_that_it_matches(glob, name):
    from ascend_dump.adapter import text_matcher

    if not set(glob) & set("*?"):
        return
    [kernel] = mindspore_config(DumpRequest(path="/tmp", layers=glob))["common_dump_settings"]["kernels"]
    assert KernelSelector([kernel_text(kernel)]).matches(name) == text_matcher(glob)(name)
