"""Every rule of the table of silent settings fires where it must and nowhere else."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple

import places
import pytest

from ascend_dump.native.cann.config import SILENT, SILENT_OPTIONS, Situation, check_acl_config, check_ge_options
from ascend_dump.native.cann.config.check import examine, read_source
from ascend_dump.native.cann.config.silent import Options
from ascend_dump.native.cann.graph import Node

DATA = places.DATA / "cann"
CASES = json.loads((DATA / "silent_cases.json").read_text())
OPTION_CASES = json.loads((DATA / "silent_option_cases.json").read_text())


def _node(name, type="Add", original_names=(), **more):
    return Node(name, type, (), "graph", original_names=tuple(original_names), **more)


def _situation(facts, root):
    facts = json.loads(json.dumps(facts).replace("$DIR", str(root)))
    facts.pop("free_bytes", None)
    if "operators" in facts:
        facts["operators"] = [_node(**one) for one in facts["operators"]]
    return Situation(cwd=str(root), **facts)


def _source(case, root):
    if "raw" in case:
        return case["raw"].replace("$DIR", str(root)).encode()
    return json.loads(json.dumps(case["config"]).replace("$DIR", str(root)))


def _hits(case, side, root, monkeypatch):
    facts = case.get("situation", {})
    if side == "passes" and "pass_situation" in case:
        facts = case["pass_situation"]
    if "free_bytes" in facts:
        usage = namedtuple("usage", "total used free")(1 << 30, 0, facts["free_bytes"])
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    situation = _situation(facts, root)
    subject = examine(read_source(_source(case[side], root)), situation)
    return subject, situation, list(SILENT[case["id"]].problems(subject))


@pytest.fixture
def root(tmp_path):
    (tmp_path / "a b").mkdir()
    (tmp_path / "here").mkdir()
    return tmp_path


def test_the_table_and_the_cases_name_the_same_rules():
    assert [case["id"] for case in CASES] == list(SILENT)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_rule_finds_its_setting_in_an_accepted_configuration(case, root, monkeypatch):
    subject, situation, hits = _hits(case, "trips", root, monkeypatch)
    assert subject.verdict.accepted
    assert case["where"] in [hit.where for hit in hits]
    assert {hit.severity for hit in hits} == {case["severity"]}
    assert all(hit.message and hit.hint for hit in hits)
    # The same finding reaches the user.
    assert set(hits) <= set(check_acl_config(_source(case["trips"], root), situation=situation))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_rule_is_quiet_beside_its_setting(case, root, monkeypatch):
    subject, _, hits = _hits(case, "passes", root, monkeypatch)
    assert subject.verdict.accepted
    assert hits == []


@pytest.mark.parametrize("case", [case for case in CASES if case["id"].startswith("ge-")], ids=lambda case: case["id"])
def test_what_ge_refuses_is_accepted_by_adump(case, root, monkeypatch):
    subject, _, hits = _hits(case, "trips", root, monkeypatch)
    assert subject.verdict.need_dump
    assert subject.ge.asked
    assert not subject.ge.accepted
    assert [hit.native for hit in hits] == [subject.ge.error]


def test_the_table_of_options_and_its_cases_name_the_same_rules():
    assert [case["id"] for case in OPTION_CASES] == list(SILENT_OPTIONS)


@pytest.mark.parametrize("case", OPTION_CASES, ids=lambda case: case["id"])
def test_a_rule_finds_its_option_and_is_quiet_beside_it(case, root):
    for side in ("trips", "passes"):
        facts = case.get("pass_situation", {}) if side == "passes" else case.get("situation", {})
        if side == "passes" and "pass_situation" not in case:
            facts = case.get("situation", {})
        situation = _situation(facts, root)
        options = json.loads(json.dumps(case[side]["options"]).replace("$DIR", str(root)))
        hits = list(SILENT_OPTIONS[case["id"]].problems(Options(options, situation)))
        found = check_ge_options(options, situation=situation)
        assert [problem for problem in found if problem.severity == "error"] == []
        assert set(hits) <= set(found)
        assert [hit.where for hit in hits] == ([case["where"]] if side == "trips" else [])
        assert all(hit.severity == case["severity"] and hit.message and hit.hint for hit in hits)


def test_unknown_facts_keep_rules_quiet(root):
    config = {"dump": {"dump_path": str(root), "dump_list": [{"model_name": "m", "layer": ["no", "Data"]}]}}
    assert check_acl_config(config, situation=Situation(cwd=str(root))) == []


def _where(config, root, **facts):
    return [problem.where for problem in check_acl_config(config, situation=_situation(facts, root))]


def test_duplicates_are_told_with_their_path(root):
    items = '"dump_list": [{"layer": ["a"], "layer": ["b"]}]'
    text = f'{{"dump": {{"dump_path": "{root}", {items}, {items}}}}}'
    assert _where(text, root) == ["dump.dump_list", "dump.dump_list[0].layer"]


def test_nested_unknown_keys_are_found_and_guessed(root):
    config = {
        "dump": {
            "dump_path": str(root),
            "layer": ["a"],
            "dump_level": "op",
            "dump_list": [
                {
                    "Layer": ["a"],
                    "model_name": "m",
                    "dump_mode": "all",
                    "optype_blacklist": [{"name": "Add", "pos": ["input0"], "position": ["input0"]}],
                    "opname_range": [{"begin": "a", "end": "b", "stop": "c"}],
                }
            ],
        }
    }
    found = {problem.where: problem.hint for problem in check_acl_config(config, situation=_situation({}, root))}
    assert found == {
        "dump.layer": "it belongs into dump.dump_list[i]",
        "dump.dump_list[0].Layer": "did you mean 'layer'?",
        "dump.dump_list[0].dump_mode": "it belongs into dump",
        "dump.dump_list[0].optype_blacklist[0].position": "known: name, pos",
        "dump.dump_list[0].opname_range[0].stop": "known: begin, end",
    }


def test_the_key_torchair_generates_is_told_only_when_it_asks_for_something(root):
    config = {"dump": {"dump_path": str(root), "quant_dumpable": "0", "dump_list": [{}]}}
    assert _where(config, root) == []
    config["dump"]["quant_dumpable"] = "1"
    assert _where(config, root) == ["dump.quant_dumpable"]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([{"layer": ["a"]}, {}], []),
        ([{}, {"layer": ["a"]}], ["dump.dump_list[0]"]),
        ([{"model_name": "m", "layer": ["a"]}, {"model_name": "m", "layer": ["a", "b"]}], []),
        ([{"model_name": "m", "layer": ["a"]}, {"model_name": "m", "layer": ["b"]}], ["dump.dump_list[0]"]),
        ([{"model_name": "m", "layer": ["a"]}, {"model_name": "n", "layer": ["b"]}], []),
    ],
)
def test_an_item_is_replaced_only_when_something_is_lost(items, expected, root):
    assert _where({"dump": {"dump_path": str(root), "dump_list": items}}, root) == expected


def test_the_watcher_knows_only_names_after_fusion(root):
    operators = [{"name": "conv_relu", "type": "Conv2D", "original_names": ["conv", "relu"]}, {"name": "add"}]
    config = {
        "dump": {
            "dump_path": str(root),
            "dump_scene": "watcher",
            "dump_list": [{"layer": ["add"], "watcher_nodes": ["relu"]}],
        }
    }
    (problem,) = check_acl_config(config, situation=_situation({"operators": operators}, root))
    assert (problem.where, problem.severity) == ("dump.dump_list[0].watcher_nodes[0]", "silent")
    assert "conv_relu" in problem.message


@pytest.mark.parametrize(
    ("begin", "end", "words"),
    [("no", "b", "nothing is dumped"), ("a", "no", "all after 'a'"), ("b", "a", "nothing"), ("a", "b", None)],
)
def test_ranges_are_held_against_the_execution_order(begin, end, words, root):
    config = {
        "dump": {
            "dump_path": str(root),
            "dump_level": "op",
            "dump_list": [{"model_name": "m", "opname_range": [{"begin": begin, "end": end}]}],
        }
    }
    found = check_acl_config(config, situation=_situation({"operators": [{"name": "a"}, {"name": "b"}]}, root))
    assert [words in problem.message for problem in found] == ([] if words is None else [True])


def test_overflow_without_knowledge_of_the_model_is_a_warning(root):
    (problem,) = check_acl_config(
        {"dump": {"dump_path": str(root), "dump_debug": "on"}}, situation=_situation({}, root)
    )
    assert (problem.severity, problem.where) == ("warning", "dump.dump_debug")
    assert "--status_check=1" in problem.message


@pytest.mark.parametrize("name", ["a,b", "a b", "a;b"])
def test_a_text_that_looks_like_several_names_is_a_warning(name, root):
    (problem,) = check_acl_config(
        {"dump": {"dump_path": str(root), "dump_list": [{"layer": [name]}]}}, situation=_situation({}, root)
    )
    assert problem.severity == "warning"


@pytest.mark.parametrize("name", ["", " ", "a ", "a*", "con?", "a[0-9]", "re:conv"])
def test_a_text_that_no_operator_can_have_is_silent(name, root):
    (problem,) = check_acl_config(
        {"dump": {"dump_path": str(root), "dump_list": [{"layer": [name]}]}}, situation=_situation({}, root)
    )
    assert (problem.severity, problem.where) == ("silent", "dump.dump_list[0].layer[0]")


def test_an_operator_that_may_run_on_the_host_is_a_warning(root):
    situation = _situation({"operators": [{"name": "c", "type": "Concat"}, {"name": "a"}]}, root)
    config = {"dump": {"dump_path": str(root), "dump_list": [{"layer": ["c", "a"]}]}}
    (problem,) = check_acl_config(config, situation=situation)
    assert (problem.severity, problem.where) == ("warning", "dump.dump_list[0].layer[0]")
