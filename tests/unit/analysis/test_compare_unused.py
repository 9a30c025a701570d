"""Names of a mapping and globs of rules that fit nothing are told, and change nothing else."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from report_pages import write_training

import ascend_dump
from ascend_dump.cli import main

pytest.importorskip("rapidfuzz")
_NAME, _OTHER = "layers.1.up/mm_0", "layers.2.up/mm_0"
_RULES = {"envelope": 8, "*softmx*": {"envelope": 16}, "aten::mm": {"envelope": 9}}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_training(tmp_path_factory.mktemp("unused") / "dump"))


@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        ({"nope": _NAME}, ['mapping: "nope" is no operator of actual']),
        ({_NAME: "nope"}, [f'mapping: "nope", for "{_NAME}" of actual, is no operator of the reference']),
        (
            {_NAME: _NAME, _OTHER: _NAME},
            [f'mapping: "{_OTHER}" is not paired with "{_NAME}", which "{_NAME}" is mapped to as well'],
        ),
        ({_NAME: _NAME}, []),
    ],
)
def test_names_that_are_not_used(mapping: dict[str, str], told: list[str], dump: str) -> None:
    found = ascend_dump.compare(dump, dump, mapping=mapping)
    assert list(found.unused) == told
    assert found.to_dict()["unused"] == told
    assert all(text in found.to_page().unchecked[0] for text in told)


def test_names_of_operators_that_were_not_selected_are_no_mistake(dump: str) -> None:
    one = ascend_dump.open(dump).select(_NAME)
    assert not ascend_dump.compare(one, one, mapping={_NAME: _NAME, _OTHER: _OTHER}).unused


def test_rules_that_fit_nothing(dump: str) -> None:
    told = ('rules: no operator has a name or type that matches "*softmx*"',)
    assert ascend_dump.compare(dump, dump, rules=_RULES).unused == told
    one = ascend_dump.open(dump).select("layers.1.act/tanh_0")
    assert ascend_dump.compare(one, one, rules=_RULES).unused == told


def test_the_same_with_an_executor(dump: str) -> None:
    mapping = {_NAME: _NAME, _OTHER: _NAME, "nope": _NAME}
    with ThreadPoolExecutor(1) as pool:
        found = ascend_dump.compare(dump, dump, mapping=mapping, rules=_RULES, executor=pool)
    assert found.unused == ascend_dump.compare(dump, dump, mapping=mapping, rules=_RULES).unused
    assert len(found.unused) == 3


class TestTheVerb:
    def test_says_what_it_did_not_use_and_exits_as_before(
        self, dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        mapping, rules = tmp_path / "mapping.json", tmp_path / "rules.json"
        mapping.write_text(json.dumps({f"nope_{number}": _NAME for number in range(12)}))
        rules.write_text(json.dumps(_RULES))
        words = ["compare", dump, dump, "--mapping", str(mapping), "--rules", str(rules)]
        assert main(words) == 0
        out = capsys.readouterr().out
        assert 'not used: mapping: "nope_0" is no operator of actual' in out
        assert "not used: 3 more (--json lists all)" in out
        assert main([*words, "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["unused"]) == 13

    def test_refuses_a_mapping_with_a_name_twice(
        self, dump: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "mapping.json"
        file.write_text('{"a": "b", "a": "c"}')
        assert main(["compare", dump, dump, "--mapping", str(file)]) == 2
        assert "has 'a' 2 times, expected each name once" in capsys.readouterr().err
