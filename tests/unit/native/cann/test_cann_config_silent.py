"""Settings that CANN accepts and ignores: each rule about them, and properties of all rules together."""

from __future__ import annotations

import pytest

from ascend_dump.native.cann.config import SILENT, SILENT_OPTIONS, Situation, check_acl_config, check_ge_options
from ascend_dump.native.rules import Example


def _situation(facts, root):
    return SILENT.read(Example("{}", facts).inside(root)).situation._replace(cwd=str(root))


@pytest.fixture
def root(tmp_path):
    (tmp_path / "a b").mkdir()
    (tmp_path / "here").mkdir()
    return tmp_path


def _source(example):
    return example.config.encode() if isinstance(example.config, str) else example.config


@pytest.mark.parametrize("rule", SILENT.values(), ids=list(SILENT))
def test_what_a_rule_is_about_is_accepted_and_reaches_the_user(rule, root):
    example = rule.trips.inside(root)
    subject = SILENT.read(example)
    assert subject.verdict.accepted
    assert SILENT.read(rule.passes.inside(root)).verdict.accepted
    found = check_acl_config(_source(example), situation=subject.situation)
    assert set(rule.problems(subject)) <= set(found)


@pytest.mark.parametrize("name", [name for name in SILENT if name.startswith("ge-")])
def test_what_ge_refuses_is_accepted_by_adump(name, root):
    subject = SILENT.read(SILENT[name].trips.inside(root))
    assert subject.verdict.need_dump
    assert subject.ge.asked
    assert not subject.ge.accepted
    assert [hit.native for hit in SILENT[name].problems(subject)] == [subject.ge.error]


@pytest.mark.parametrize("rule", SILENT_OPTIONS.values(), ids=list(SILENT_OPTIONS))
def test_an_option_that_is_ignored_is_accepted_and_reaches_the_user(rule, root):
    for example in (rule.trips.inside(root), rule.passes.inside(root)):
        subject = SILENT_OPTIONS.read(example)
        found = check_ge_options(example.config, situation=subject.situation)
        assert [problem for problem in found if problem.severity == "error"] == []
        assert set(rule.problems(subject)) <= set(found)


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
        "dump.layer": "put it into dump.dump_list[i]",
        "dump.dump_list[0].Layer": "did you mean 'layer'?",
        "dump.dump_list[0].dump_mode": "put it into dump",
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
    [("no", "b", "nothing is dumped"), ("a", "no", "all operators after 'a'"), ("b", "a", "nothing"), ("a", "b", None)],
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
