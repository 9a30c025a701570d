"""GE's second reading of the dump JSON, and its session options."""

from __future__ import annotations

import pytest

from ascend_dump.native.cann.config import Situation, adump, check_ge_options, ge
from ascend_dump.native.cann.config.keys import GE_OPTIONS
from ascend_dump.native.cann.graph import Node


def _judge(tmp_path, env=None, **dump):
    config = {"dump": {"dump_path": str(tmp_path), **dump}}
    verdict = adump.judge(config, env=env)
    assert verdict.accepted
    return ge.judge(config, verdict, env=env)


def test_ge_is_not_asked_when_nothing_is_dumped(tmp_path):
    for dump in ({}, {"dump_list": []}, {"dump_kernel_data": "all"}):
        assert not _judge(tmp_path, **dump).asked
    config = {"dump": []}
    assert not ge.judge(config, adump.judge(config)).asked


def test_the_whole_of_a_model_dump(tmp_path):
    found = _judge(
        tmp_path,
        dump_mode="all",
        dump_level="op",
        dump_step="0|3-5",
        dump_list=[
            {"model_name": "net", "layer": ["a", "b"]},
            {
                "model_name": "part",
                "opname_range": [{"begin": "x", "end": "y"}],
                "optype_blacklist": [
                    {"name": "Add", "pos": ["input0", "output2", "sideways"]},
                    {"name": "Add", "pos": ["input3"]},
                ],
                "opname_blacklist": [{"name": "add_1", "pos": ["output0"]}],
            },
        ],
    )
    assert found.accepted
    settings = found.settings
    assert (settings.status, settings.debug, settings.exception, settings.op_switch) == (True, False, "", False)
    assert (settings.path, settings.step, settings.mode, settings.data) == (str(tmp_path), "0|3-5", "all", "tensor")
    assert settings.models == {"net": {"a", "b"}, "part": frozenset()}
    assert settings.unnamed is None
    assert settings.ranges == {"part": (("x", "y"),)}
    assert settings.types["part"] == {"Add": ge.Blacklist(frozenset({0, 3}), frozenset({2}))}
    assert settings.names["part"] == {"add_1": ge.Blacklist(frozenset(), frozenset({0}))}


@pytest.mark.parametrize(
    ("items", "op", "model", "om_name", "wanted"),
    [
        ([{}], "any", "m", "", True),
        ([{"layer": ["a"]}], "a", "m", "", True),
        ([{"layer": ["a"]}], "b", "m", "", False),
        ([{"model_name": "m"}], "any", "m", "", True),
        ([{"model_name": "m"}], "any", "other", "", False),
        ([{"model_name": "file"}], "any", "inner", "file", True),
        ([{"model_name": "m", "layer": ["a"]}], "b", "m", "", False),
        (
            [{"model_name": "file", "layer": ["a"]}, {"model_name": "inner", "layer": ["b"]}],
            "b",
            "inner",
            "file",
            False,
        ),
        ([{"model_name": "m", "layer": ["a"]}, {"layer": ["b"]}], "a", "m", "", False),
        ([{"model_name": "m", "layer": ["a"]}, {"layer": ["b"]}], "b", "anything", "", True),
        ([{"model_name": "m", "layer": ["a"]}, {"model_name": "m", "layer": ["b"]}], "a", "m", "", False),
    ],
)
def test_which_operator_of_which_model(items, op, model, om_name, wanted, tmp_path):
    settings = _judge(tmp_path, dump_list=items).settings
    assert settings.wants(op, model, om_name) is wanted


def test_a_range_alone_does_not_select_the_rest(tmp_path):
    item = {"model_name": "m", "opname_range": [{"begin": "x", "end": "y"}]}
    settings = _judge(tmp_path, dump_level="op", dump_list=[item]).settings
    assert not settings.wants("z", "m")


@pytest.mark.parametrize(
    ("dump", "every", "unnamed"),
    [
        ({"dump_op_switch": "on"}, True, None),
        ({"dump_op_switch": "on", "dump_list": []}, False, frozenset()),
        ({"dump_op_switch": "on", "dump_list": [{"layer": []}]}, True, None),
        ({"dump_op_switch": "on", "dump_list": [{"layer": []}, {"layer": ["a"]}]}, False, {"a"}),
    ],
)
def test_the_switch_for_single_operators_and_models(dump, every, unnamed, tmp_path):
    settings = _judge(tmp_path, **dump).settings
    assert (settings.op_switch, settings.every, settings.unnamed) == (True, every, unnamed)


def test_the_kernel_level_turns_the_model_dump_off(tmp_path):
    found = _judge(tmp_path, dump_list=[{}], dump_level="kernel")
    assert found.accepted
    assert not found.settings.status
    assert not found.settings.wants("any", "m")


def test_overflow_detection_is_no_model_dump(tmp_path):
    settings = _judge(tmp_path, dump_debug="on", dump_step="1").settings
    assert (settings.debug, settings.status, settings.step) == (True, False, "1")


def test_the_watcher(tmp_path):
    items = [{"layer": ["A"], "watcher_nodes": ["C", "D"]}]
    settings = _judge(tmp_path, dump_scene="watcher", dump_list=items).settings
    assert (settings.status, settings.unnamed, settings.watched) == (True, {"A"}, {"C", "D"})


def test_an_exception_scene_takes_its_path_from_the_environment(tmp_path):
    config = {"dump": {"dump_scene": "aic_err_norm_dump", "dump_path": "/a b"}}
    found = ge.judge(config, adump.judge(config), env={"ASCEND_WORK_PATH": "/w"})
    assert (found.accepted, found.settings.exception, found.settings.path) == (True, "aic_err_norm_dump", "/w")
    assert not found.settings.wants("any", "m")


def test_ge_is_stricter_about_paths_than_adump(tmp_path):
    for name in ("a b", "tilde~", "pipe|", "数据", "quote'"):
        odd = tmp_path / name
        odd.mkdir()
        found = _judge(odd, dump_list=[{}])
        assert (found.accepted, found.rule, found.error) == (False, "ge-path-characters", "E19999")
        # A scene skips the check of the path.
        assert _judge(odd, dump_scene="watcher", dump_list=[{"watcher_nodes": ["C"]}]).accepted
    plain = tmp_path / "-=[];,.!@#$%^&*()_+{}?"
    plain.mkdir()
    assert _judge(plain, dump_list=[{}]).accepted


@pytest.mark.parametrize("name", ["NPU_COLLECT_PATH", "NPU_COLLECT_PATH_EXE"])
def test_a_collect_path_forbids_a_data_dump_but_no_exception_dump(name, tmp_path):
    env = {name: "/c"}
    for dump in ({"dump_list": [{}]}, {"dump_debug": "on"}):
        assert _judge(tmp_path, env, **dump).error == "E10056"
    assert _judge(tmp_path, env, dump_scene="aic_err_norm_dump").accepted
    assert _judge(tmp_path, env, dump_list=[{}], dump_level="kernel").accepted


# --- session options ---------------------------------------------------------------------


def _found(options, **facts):
    problems = check_ge_options(options, situation=Situation(**facts))
    assert all(problem.message and problem.hint for problem in problems)
    return [(problem.severity, problem.native, problem.where.rpartition(".")[2]) for problem in problems]


@pytest.fixture
def good(tmp_path):
    return {"ge.exec.enableDump": "1", "ge.exec.dumpPath": str(tmp_path)}


def _exec(**options):
    return {f"ge.exec.{name}": value for name, value in options.items()}


def test_good_options_are_quiet(good):
    assert _found(good) == []
    more = _exec(dumpStep="0|3-5", dumpMode="all", dumpData="stats", dumpLayer="a b\tc")
    assert _found({**good, **more, "ge.quant_dumpable": "1", "ge.maxDumpFileNum": "3", "ge.exec.deviceId": "0"}) == []
    assert _found({}) == []


@pytest.mark.parametrize("name", ["enableDump", "enableDumpDebug"])
@pytest.mark.parametrize("value", ["true", "on", "2", "01"])
def test_a_switch_is_one_or_zero(name, value):
    assert _found(_exec(**{name: value})) == [("error", "E10001", name)]


def test_two_switches_exclude_each_other(good):
    options = {**good, **_exec(enableDumpDebug="1", dumpDebugMode="all")}
    assert _found(options) == [("error", "E10001", "enableDumpDebug")]


def test_the_path_is_required_and_looked_at_without_following_links(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("dir")
    (tmp_path / "odd name").mkdir()

    def check(**options):
        return _found(_exec(enableDump="1", **options), cwd=str(tmp_path))

    assert check() == [("error", "E10058", "dumpPath")]
    for refused in ("", "missing", "file", "link", "bad\0name/x"):
        assert check(dumpPath=refused) == [("error", "E10001", "dumpPath")]
    for taken in ("dir", "link/", str(tmp_path), "odd name"):
        assert check(dumpPath=taken) == []


@pytest.mark.parametrize(
    ("steps", "accepted"),
    [
        ("", True),
        ("5", True),
        ("0|3-5|10", True),
        ("0002147483647", True),
        ("2147483648", False),
        ("5-5", False),
        ("6-5", False),
        ("None", False),
        ("1|", False),
        ("|", False),
        ("1-2-3", False),
        ("-1", False),
        ("+1", False),
        (" 1", False),
        ("1|٣", False),
        ("|".join("1" * 100), True),
        ("|".join("1" * 101), False),
    ],
)
def test_the_grammar_of_steps_is_stricter_here(steps, accepted, good):
    expected = set() if accepted else {("error", "E10001", "dumpStep")}
    assert set(_found({**good, **_exec(dumpStep=steps)})) == expected


@pytest.mark.parametrize("mode", ["", "ALL", "both"])
def test_a_mode_is_one_of_three(mode, good):
    assert _found({**good, **_exec(dumpMode=mode)}) == [("error", "E10001", "dumpMode")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (_exec(dumpData="stat"), [("silent", "", "dumpData")]),
        (_exec(dumpLayer="a,b"), [("silent", "", "dumpLayer")]),
        (_exec(dumpLayer="*conv*"), [("silent", "", "dumpLayer")]),
        (_exec(dumpLayer=" \n"), [("silent", "", "dumpLayer")]),
        (_exec(dumpDebugMode="all"), [("silent", "", "dumpDebugMode")]),
        (_exec(dumplayer="a"), [("silent", "", "dumplayer")]),
        (_exec(dumpSteps="1"), [("silent", "", "dumpSteps")]),
        ({"ge.quant_dumpable": "true"}, [("silent", "", "quant_dumpable")]),
        ({"ge.exec.enable_exception_dump": "yes"}, [("silent", "", "enable_exception_dump")]),
        ({"ge.graph_dump_path": "x"}, []),
    ],
)
def test_what_ge_takes_and_ignores(options, expected, good):
    assert _found({**good, **options}) == expected


def test_overflow_options(tmp_path):
    base = _exec(enableDumpDebug="1", dumpPath=str(tmp_path))
    assert _found(base) == [("silent", "", "enableDumpDebug")]
    assert _found({**base, **_exec(dumpDebugMode="all")}) == []
    assert _found({**base, **_exec(dumpDebugMode="")}) == [("error", "E10001", "dumpDebugMode")]
    assert _found({**base, **_exec(dumpDebugMode="all", dumpStep="1", dumpMode="all")}) == [
        ("silent", "", "dumpStep"),
        ("silent", "", "dumpMode"),
    ]


@pytest.mark.parametrize("switch", [{}, _exec(enableDump="0"), _exec(enableDump="")])
def test_settings_without_the_switch_do_nothing(switch):
    assert _found({**switch, **_exec(dumpPath="/x")}) == [("silent", "", "dumpPath")]
    assert _found({**switch, **_exec(dumpStep="junk", dumpLayer="a")}) == [
        ("silent", "", "dumpStep"),
        ("silent", "", "dumpLayer"),
    ]


def test_what_the_surroundings_decide(good):
    operators = [Node("conv", "Conv2D", (), "g", original_names=("conv1",))]
    assert _found({**good, **_exec(dumpLayer="conv conv1 cnov")}, operators=operators) == [("silent", "", "dumpLayer")]
    assert _found(good, acl_dump=True) == [("silent", "", "enableDump")]
    exception = {"ge.exec.enable_exception_dump": "1"}
    assert _found(exception, env={}) == []
    assert _found(exception, env={"NPU_COLLECT_PATH": "/c"}) == [("silent", "", "enable_exception_dump")]


@pytest.mark.parametrize("name", list(GE_OPTIONS))
@pytest.mark.parametrize("value", [True, 1, None, ["1"]])
def test_an_option_is_text(name, value):
    assert ("error", "", name.rpartition(".")[2]) in _found({name: value})
