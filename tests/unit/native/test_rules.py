"""Every rule of every configuration language trips on its own case and is quiet on the case beside it."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import pytest

import ascend_dump.native
from ascend_dump.adapter import SEVERITIES, Problem, worst_first
from ascend_dump.native.rules import Example, Hit, Rule, RuleTable


def tables() -> list[RuleTable[Any]]:
    """The tables of all modules below `native`, each once."""
    found: dict[int, RuleTable[Any]] = {}
    for module in pkgutil.walk_packages(ascend_dump.native.__path__, "ascend_dump.native."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, RuleTable):
                found[id(value)] = value
    return list(found.values())


RULES = {rule.id: (table, rule) for table in tables() for rule in table.values()}
EVERY = pytest.mark.parametrize(("table", "rule"), RULES.values(), ids=list(RULES))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a b", "here"):
        (tmp_path / name).mkdir()
    return tmp_path


@EVERY
def test_a_rule_trips_on_its_case(table: RuleTable[Any], rule: Rule, root: Path) -> None:
    problems = list(rule.problems(table.read(rule.trips.inside(root))))
    assert rule.where in [problem.where for problem in problems]
    assert {problem.severity for problem in problems} == {rule.severity}
    assert all(problem.message and problem.hint for problem in problems)
    assert rule.severity in SEVERITIES
    assert rule.about
    assert rule.source


@EVERY
def test_a_rule_is_quiet_on_the_case_beside_it(table: RuleTable[Any], rule: Rule, root: Path) -> None:
    assert list(rule.problems(table.read(rule.passes.inside(root)))) == []


def test_one_name_is_one_rule() -> None:
    names = {id(rule): rule.id for table in tables() for rule in table.values()}
    assert len(set(names.values())) == len(names) > 50


def test_a_table_refuses_a_second_rule_of_the_same_name() -> None:
    table = RuleTable(lambda example: example.config)

    def add() -> None:
        @table.rule("odd", "AD113", "x", "y", where="", trips=Example(1), passes=Example(0))
        def odd(subject: int) -> list[Hit]:
            return [Hit("", "odd", "make it even")] if subject % 2 else []

    add()
    assert [problem.message for problem in table.problems(3)] == ["odd"]
    with pytest.raises(ValueError, match="'odd'"):
        add()


def test_a_case_is_put_into_a_directory_and_its_surroundings() -> None:
    example = Example({"path": "$DIR/a"}).given(env={"X": "$DIR"})
    assert example.inside('/d"') == Example({"path": '/d"/a'}, {"env": {"X": '/d"'}})
    assert Example('{"path": "$DIR"}').inside("/d").config == '{"path": "/d"}'


def test_the_worst_comes_first_and_equals_keep_their_order() -> None:
    problems = [Problem("A", severity, str(number)) for number, severity in enumerate((*SEVERITIES[::-1], "error"))]
    assert [problem.message for problem in worst_first(problems)] == ["2", "3", "1", "0"]
