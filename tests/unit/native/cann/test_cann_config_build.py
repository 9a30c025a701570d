"""A DumpRequest becomes a configuration that CANN takes and that does what it says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_dump import AscendDumpError, ConfigError, NotSupported
from ascend_dump.adapter import DumpRequest
from ascend_dump.native.cann.config import Situation, check_acl_config, check_ge_options
from ascend_dump.native.cann.config.build import acl_config, ge_options


def _built(path, **request):
    """The object `dump`, after checking that CANN takes it without a silent word."""
    config = acl_config(DumpRequest(path=path, **request))
    problems = check_acl_config(config, situation=Situation(status_check=True))
    assert [problem for problem in problems if problem.severity != "warning"] == []
    dump = config["dump"]
    assert dump.pop("dump_path", str(path)) == str(path)
    return dump


_PLAIN = {"dump_mode": "all", "dump_level": "all", "dump_data": "tensor", "dump_op_switch": "off"}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, {**_PLAIN, "dump_list": [{}]}),
        (
            {"steps": "0|3-5", "mode": "output", "level": "op"},
            {**_PLAIN, "dump_list": [{}], "dump_step": "0|3-5", "dump_mode": "output", "dump_level": "op"},
        ),
        ({"layers": ["a", "b"]}, {**_PLAIN, "dump_list": [{"layer": ["a", "b"]}]}),
        ({"models": ["m", "n"]}, {**_PLAIN, "dump_list": [{"model_name": "m"}, {"model_name": "n"}]}),
        (
            {"models": "m", "layers": "a"},
            {**_PLAIN, "dump_list": [{"model_name": "m", "layer": ["a"]}]},
        ),
        (
            {"models": ["m", "n"], "layers": ["a", "m:b", "n:c"]},
            {
                **_PLAIN,
                "dump_list": [{"model_name": "m", "layer": ["a", "b"]}, {"model_name": "n", "layer": ["a", "c"]}],
            },
        ),
        # The first example of CANN's document: all of one model, some operators of another.
        (
            {
                "models": ["ResNet-101", "ResNet-50"],
                "layers": ["ResNet-50:conv1conv1_relu", "ResNet-50:res2a_branch1", "ResNet-50:pool1"],
                "mode": "output",
            },
            {
                **_PLAIN,
                "dump_mode": "output",
                "dump_list": [
                    {"model_name": "ResNet-101"},
                    {"model_name": "ResNet-50", "layer": ["conv1conv1_relu", "res2a_branch1", "pool1"]},
                ],
            },
        ),
        ({"data": "stats"}, {**_PLAIN, "dump_list": [{}], "dump_data": "stats"}),
        (
            {"data": "stats", "stats": ["max", "mean", "neginf", "l2norm"]},
            {**_PLAIN, "dump_list": [{}], "dump_data": "stats", "dump_stats": ["Max", "Avg", "Negative Inf", "L2norm"]},
        ),
        ({"options": {"op_switch": True}}, {**_PLAIN, "dump_list": [{}], "dump_op_switch": "on"}),
        ({"options": {"op_switch": "only"}}, {**_PLAIN, "dump_list": [], "dump_op_switch": "on"}),
        (
            {"options": {"kernel_data": "printf,assert"}},
            {**_PLAIN, "dump_list": [{}], "dump_kernel_data": "printf,assert"},
        ),
        ({"scene": "overflow"}, {"dump_debug": "on"}),
        ({"scene": "exception"}, {"dump_scene": "aic_err_norm_dump"}),
        ({"scene": "exception", "options": {"exception": "lite"}}, {"dump_scene": "lite_exception"}),
        (
            {"scene": "exception", "options": {"exception": "aic_err_detail_dump"}},
            {"dump_scene": "aic_err_detail_dump"},
        ),
        (
            {"scene": "watch", "watch": ["C", "D"], "layers": ["A", "B"]},
            {
                "dump_list": [{"layer": ["A", "B"], "watcher_nodes": ["C", "D"]}],
                "dump_mode": "output",
                "dump_level": "all",
                "dump_data": "tensor",
                "dump_scene": "watcher",
            },
        ),
        (
            {
                "level": "op",
                "models": "m",
                "options": {
                    "optype_blacklist": [{"name": "Add", "pos": ["input0"]}],
                    "opname_range": ({"begin": "a", "end": "b"},),
                },
            },
            {
                **_PLAIN,
                "dump_level": "op",
                "dump_list": [
                    {
                        "model_name": "m",
                        "optype_blacklist": [{"name": "Add", "pos": ["input0"]}],
                        "opname_range": [{"begin": "a", "end": "b"}],
                    }
                ],
            },
        ),
    ],
)
def test_requests_and_their_dump_json(request_, expected, tmp_path):
    assert _built(tmp_path, **request_) == expected


def test_patterns_are_expanded_against_known_names(tmp_path):
    def layers(*texts, names=("conv1", "conv2", "relu[0]", "add")):
        return acl_config(DumpRequest(path=tmp_path, layers=texts), names=names)["dump"]["dump_list"][0]["layer"]

    assert layers("add") == ["add"]
    assert layers("conv*", "conv1") == ["conv1", "conv2"]
    assert layers("re:^a|2$") == ["conv2", "add"]
    with pytest.raises(ConfigError, match="matches no operator"):
        layers("pool*")
    with pytest.raises(ConfigError) as caught:
        layers("re:(")
    assert caught.value.code == "AD103"
    with pytest.raises(NotSupported, match="exact names"):
        layers("conv*", names=None)
    with pytest.raises(NotSupported, match="exact names"):
        acl_config(DumpRequest(path=tmp_path, scene="watch", watch="conv?"))


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        ({"data": "full"}, NotSupported, "not both"),
        ({"quant": True}, NotSupported, "quant"),
        ({"data": "stats", "stats": ["zero"]}, NotSupported, "zero"),
        ({"scene": "watch"}, ConfigError, "watch="),
        ({"scene": "watch", "watch": "C", "models": "m"}, NotSupported, "all models"),
        ({"scene": "exception", "options": {"exception": "loud"}}, ConfigError, "loud"),
        ({"options": {"op_swich": True}}, ConfigError, "op_swich"),
        ({"options": {"op_switch": "on"}}, ConfigError, "op_switch"),
        ({"options": {"op_switch": "only"}, "layers": "a"}, ConfigError, "dumps no model"),
        ({"options": {"kernel_data": ["all"]}}, ConfigError, "kernel_data"),
        ({"options": {"opname_range": {"begin": "a"}}}, ConfigError, "opname_range"),
        ({"options": {"optype_blacklist": ["Add"]}}, ConfigError, "optype_blacklist"),
    ],
)
def test_what_cann_cannot_do_raises(request_, error, words, tmp_path):
    with pytest.raises(error, match=words) as caught:
        acl_config(DumpRequest(path=tmp_path, **request_))
    assert caught.value.hint


def test_options_of_others_are_left_to_them(tmp_path):
    request = DumpRequest(path=tmp_path, options={"theirs": 1})
    with pytest.raises(ConfigError, match="theirs"):
        ge_options(request)
    assert acl_config(request, known_options=["theirs"])["dump"]["dump_list"] == [{}]


def test_what_has_no_effect_stays_in_for_the_check_to_tell(tmp_path):
    config = acl_config(DumpRequest(path=tmp_path, scene="overflow", steps="1"))
    assert config["dump"] == {"dump_path": str(tmp_path), "dump_debug": "on", "dump_step": "1"}
    silent = [problem.where for problem in check_acl_config(config) if problem.severity == "silent"]
    assert silent == ["dump.dump_step"]


def _options(path, **request):
    options = ge_options(DumpRequest(path=path, **request))
    assert check_ge_options(options, situation=Situation()) == []
    assert options.pop("ge.exec.dumpPath", str(path)) == str(path)
    return {name.rpartition(".")[2]: value for name, value in options.items()}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, {"enableDump": "1", "dumpMode": "all", "dumpData": "tensor"}),
        (
            {"steps": "0|3-5", "mode": "input", "data": "stats", "layers": ["a", "b"], "quant": True},
            {
                "enableDump": "1",
                "dumpMode": "input",
                "dumpData": "stats",
                "dumpStep": "0|3-5",
                "dumpLayer": "a b",
                "quant_dumpable": "1",
            },
        ),
        ({"scene": "overflow"}, {"enableDumpDebug": "1", "dumpDebugMode": "all"}),
        (
            {"scene": "overflow", "options": {"debug_mode": "aicore_overflow"}},
            {"enableDumpDebug": "1", "dumpDebugMode": "aicore_overflow"},
        ),
        ({"scene": "exception"}, {"enable_exception_dump": "1"}),
        ({"scene": "exception", "options": {"exception": "brief"}}, {"enable_exception_dump": "2"}),
    ],
)
def test_requests_and_their_session_options(request_, expected, tmp_path):
    assert _options(tmp_path, **request_) == expected


@pytest.mark.parametrize(
    "request_",
    [
        {"scene": "watch", "watch": "C"},
        {"models": "m"},
        {"stats": "max", "data": "stats"},
        {"level": "kernel"},
        {"data": "full"},
        {"layers": "conv*"},
        {"layers": "a b"},
        {"options": {"op_switch": True}},
        {"options": {"opname_range": []}},
        {"scene": "exception", "options": {"exception": "detail"}},
    ],
)
def test_what_session_options_cannot_express_raises(request_, tmp_path):
    with pytest.raises(NotSupported) as caught:
        ge_options(DumpRequest(path=tmp_path, **request_))
    assert caught.value.hint


_requests = st.fixed_dictionaries(
    {},
    optional={
        "steps": st.sampled_from([None, "0", "0|3-5", range(7)]),
        "mode": st.sampled_from(["input", "output", "all"]),
        "layers": st.lists(st.sampled_from(["a", "b/c", "conv*"]), max_size=2),
        "models": st.lists(st.sampled_from(["m", "n"]), max_size=2, unique=True),
        "data": st.sampled_from(["tensor", "stats", "full"]),
        "stats": st.lists(st.sampled_from(["max", "nan", "zero"]), max_size=2),
        "level": st.sampled_from(["op", "kernel", "all"]),
        "scene": st.sampled_from([None, "overflow", "exception"]),
        "quant": st.booleans(),
        "options": st.dictionaries(st.sampled_from(["op_switch", "kernel_data"]), st.just(True), max_size=1),
    },
)


@settings(max_examples=200, deadline=None)
@given(values=_requests)
def test_a_request_is_built_or_refused_with_a_hint_and_never_refused_by_cann_unexplained(values, tmp_path_factory):
    path = tmp_path_factory.getbasetemp()
    request = DumpRequest(path=path, **values)
    hints = []
    for build, check in ((acl_config, check_acl_config), (ge_options, check_ge_options)):
        try:
            found = build(request)
        except AscendDumpError as error:
            hints.append(error.hint)
            continue
        refused = [problem for problem in check(found, situation=Situation()) if problem.severity == "error"]
        # The one conflict a request can ask for: statistics named while tensors are dumped.
        assert all(problem.where == "dump.dump_stats" for problem in refused)
    assert all(hints)
