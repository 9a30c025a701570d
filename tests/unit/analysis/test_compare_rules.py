"""What decides between noise and a difference: rules as data, a second run of the reference, and statistics."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump import ConfigError
from ascend_dump.cli import main

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).relu())


def dump(path: Path, by: float = 0.0, **settings: Any) -> Path:
    """One step of inference; one element of a weight is off by `by`."""
    torch.manual_seed(0)
    model = Model()
    x = torch.randn(8, 16)
    with torch.no_grad():
        model.first.weight[2, 3] += by
        with ascend_dump.capture(model, path=path, **settings):
            model(x)
    return path


def without_hashes(root: Path) -> Path:
    """The dump as one whose writer makes no hashes."""
    for index in root.rglob("index.jsonl"):
        lines = [json.loads(line) for line in index.read_text().splitlines()]
        index.write_text("".join(json.dumps({**line, "hash": ""}) + "\n" for line in lines))
    return root


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("rules") / "reference")


@pytest.fixture(scope="module")
def actual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("rules") / "actual", 0.01)


class TestRules:
    def test_those_of_a_glob_are_of_its_operators_only(self, actual: Path, reference: Path) -> None:
        assert ascend_dump.compare(actual, reference).origins[0].module == "first"
        lax = {"envelope": 1e6, "drift": 1e9, "ceiling": 1e9, "gain": 1e9}
        assert ascend_dump.compare(actual, reference, rules=lax).verdict == "noise"
        assert ascend_dump.compare(actual, reference, rules={"second*": lax}).origins[0].module == "first"
        assert ascend_dump.compare(actual, reference, rules={"aten::*": lax}).verdict == "noise"

    def test_a_file_of_rules_is_printed_with_the_result(
        self, actual: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "rules.json"
        file.write_text('{"terms": 64, "*softmax*": {"bias": [1, 8]}}')
        assert main(["compare", str(actual), str(reference), "--rules", str(file)]) == 1
        assert 'rules: {"terms": 64, "*softmax*": {"bias": [1, 8]}}' in capsys.readouterr().out
        assert main(["compare", str(actual), str(reference), "--rules", str(file), "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["rules"]["*softmax*"] == {"bias": [1, 8]}

    @pytest.mark.parametrize("rules", [{"envelop": 1}, {"envelope": "8"}, {"*a*": {"bias": 1}}, {"drift": -1}])
    def test_what_is_no_rule_is_refused(self, actual: Path, reference: Path, rules: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="rule"):
            ascend_dump.compare(actual, reference, rules=rules)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("rule = 3", "there is no rule 'rule'"),
            ("['*mm*']\nrule = 3", "there is no rule 'rule' inside '*mm*'"),
            ("undefined = [1]", "'undefined' is allowed only inside a glob"),
            ("drift = -1", "'drift' is -1"),
        ],
    )
    def test_a_refusal_names_the_file_the_rule_and_those_that_there_are(
        self, actual: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
    ) -> None:
        file = tmp_path / "bad.toml"
        file.write_text(text)
        assert main(["compare", str(actual), str(reference), "--rules", str(file)]) == 2
        printed = capsys.readouterr().err
        assert f"rules {str(file)!r}: {said}" in printed
        assert "expected envelope, terms, drift, steps, bias, gain, ceiling, flips, undefined" in printed

    @pytest.mark.parametrize(
        ("text", "got"), [("[1]", "a list"), ('"x"', "a string"), ("3", "a number"), ("null", "null")]
    )
    def test_a_file_without_names_is_refused(
        self, actual: Path, reference: Path, tmp_path: Path, text: str, got: str
    ) -> None:
        file = tmp_path / "bad.json"
        file.write_text(text)
        with pytest.raises(ConfigError, match=f"expected an object with rule names as keys, got {got}"):
            ascend_dump.compare(actual, reference, rules=file)

    def test_a_file_that_is_not_there_is_wrong_usage(
        self, actual: Path, reference: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["compare", str(actual), str(reference), "--rules", "missing.toml"]) == 2
        assert "missing.toml" in capsys.readouterr().err


def test_what_differs_no_more_than_two_runs_of_the_reference_is_noise(
    actual: Path, reference: Path, tmp_path: Path
) -> None:
    assert ascend_dump.compare(actual, reference).verdict == "different"
    found = ascend_dump.compare(actual, reference, noise=dump(tmp_path / "again", -0.008))
    assert found.verdict == "noise"
    assert not found.origins
    assert any("two runs of the reference" in pair.reason for pair in found.pairs)
    assert ascend_dump.compare(actual, reference, noise=dump(tmp_path / "close", 1e-5)).verdict == "different"


class TestStatistics:
    """Without hashes, as of the statistics of other tools: what statistics prove, and what they do not."""

    @pytest.fixture
    def bare(self, reference: Path, tmp_path: Path) -> Path:
        return without_hashes(Path(shutil.copytree(reference, tmp_path / "reference")))

    def test_they_prove_a_difference(self, bare: Path, tmp_path: Path) -> None:
        found = ascend_dump.compare(without_hashes(dump(tmp_path / "actual", 5.0, data="stats")), bare)
        assert found.verdict == "different"
        assert (found.origins[0].kind, found.origins[0].module) == ("parameter", "first")
        assert "statistics prove" in found.origins[0].evidence[0]

    def test_they_never_prove_that_tensors_are_equal(self, bare: Path, tmp_path: Path) -> None:
        """Statistics on one side, tensors on the other."""
        found = ascend_dump.compare(without_hashes(dump(tmp_path / "actual", data="stats")), bare)
        assert found.verdict == "undecided"
        assert not found.origins
        assert main(["compare", str(tmp_path / "actual"), str(bare)]) == 1


def test_ranks_are_compared_side_by_side(reference: Path, actual: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        found = ascend_dump.compare(actual, reference, executor=executor)
    assert found.counts == ascend_dump.compare(actual, reference).counts


def test_another_model_altogether_is_never_a_pass(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = torch.nn.Conv1d(2, 3, 3)
    with ascend_dump.capture(model, path=tmp_path / "other"):
        model(torch.randn(1, 2, 9)).sin().sum()
    assert main(["compare", str(tmp_path / "other"), str(reference)]) == 1
    assert not capsys.readouterr().out.startswith(("equal", "noise"))
