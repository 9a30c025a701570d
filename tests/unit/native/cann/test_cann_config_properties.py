"""Any JSON value at any key is answered with findings, never with an exception."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ascend_dump.adapter import SEVERITIES
from ascend_dump.native.cann.config import Situation, adump, check_acl_config, check_ge_options, ge, parse
from ascend_dump.native.cann.config.keys import DUMP, GE_OPTIONS, ITEM, KERNEL_DATA
from ascend_dump.native.cann.graph import Node

_SITUATIONS = [
    Situation(),
    Situation(
        env={"NPU_COLLECT_PATH": "/c", "ASCEND_WORK_PATH": "/w", "ASCEND_DUMP_SCENE": "aic_err_norm_dump"},
        operators=[
            Node("a", "Data", (), "g"),
            Node("b", "If", (), "g"),
            Node("m", "HcomX", (), "g", original_names=("x",), no_task=True),
        ],
        dtypes=["int4"],
        models=["m"],
        container=True,
        captured=True,
        step_counter=False,
        static_shape=False,
        status_check=False,
        exception_on=True,
        ge_options={"ge.exec.enableDump": "1"},
        acl_dump=True,
    ),
]

_texts = st.text(max_size=8)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
_words = sorted({value for key in DUMP.values() for value in key.allowed} | set(KERNEL_DATA))
_likely = st.sampled_from([*_words, "", ".", "/", "1.2.3.4:/x", "0|3-5", "5-3", "a", "b", "m", "input0", "Add"])
_value = _likely | st.lists(_likely, max_size=3) | _json
_entry = st.dictionaries(st.sampled_from(["name", "pos", "begin", "end", "x"]), _value, max_size=3)
_item = st.dictionaries(st.sampled_from([*ITEM, "x"]), _value | st.lists(_entry, max_size=3), max_size=4)
_dump = st.dictionaries(st.sampled_from([*DUMP, "x"]), _value | st.lists(_item, max_size=3), max_size=7)
_configs = st.fixed_dictionaries({"dump": _dump | _value}) | _json


@pytest.mark.thorough
@settings(max_examples=400, deadline=None)
@given(config=_configs, situation=st.sampled_from(_SITUATIONS))
@example({"dump": {"dump_list": [{"watcher_nodes": True}, {"watcher_nodes": ["Add"]}]}}, _SITUATIONS[0])
def test_any_configuration_is_answered(config, situation):
    text = json.dumps(config).encode()
    parsed = parse.parse_text(text)
    first = check_acl_config(text, situation=situation)
    every = check_acl_config(text, all=True, situation=situation)
    for problem in every:
        assert problem.severity in SEVERITIES
        assert problem.message
        assert problem.hint
    if parsed.refusal is not None:
        assert [problem.severity for problem in first] == ["error"]
        return
    verdict = adump.judge(parsed.value, env=situation.env)
    errors = [problem for problem in first if problem.severity == "error"]
    assert bool(errors) is not verdict.accepted
    assert len(errors) <= 1
    if errors:
        assert errors[0] in every
        assert verdict.acl_error == 100009
    assert [problem for problem in first if problem.severity != "error"] == [
        problem for problem in every if problem.severity != "error"
    ]
    # A dump that is asked for and accepted either reaches GE or has been explained.
    answer = ge.judge(parsed.value, verdict, env=situation.env)
    if verdict.accepted and not verdict.need_dump and not verdict.kernel_data:
        assert any(problem.severity == "silent" for problem in first)
    if answer.asked and not answer.accepted:
        assert any(problem.code == "AD111" for problem in first)


@settings(max_examples=300, deadline=None)
@given(text=st.binary(max_size=40) | st.text(max_size=40) | _configs.map(json.dumps))
def test_any_text_is_parsed_or_refused(text):
    parsed = parse.parse_text(text)
    assert parsed.refusal is None or parsed.refusal.acl_error in (100006, 100009)
    assert parsed.refusal is None or parsed.value is None
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    assert parsed.empty is (data == b"")


@settings(max_examples=300, deadline=None)
@given(config=_json)
def test_what_json_writes_is_read_back(config):
    parsed = parse.parse_text(json.dumps(config, ensure_ascii=False))
    # Python's text may hold half a surrogate pair, which is not UTF-8.
    assert parsed.refusal is not None or json.loads(json.dumps(parsed.value)) == json.loads(json.dumps(config))


@settings(max_examples=300, deadline=None)
@given(
    options=st.dictionaries(st.sampled_from([*GE_OPTIONS, "ge.exec.dumpX", "other"]), _value, max_size=6),
    situation=st.sampled_from(_SITUATIONS),
)
def test_any_options_are_answered(options, situation):
    for problem in check_ge_options(options, situation=situation):
        assert problem.severity in SEVERITIES
        assert problem.message
        assert problem.hint
        assert problem.where in options or problem.native == "E10058"
