"""Pairs by dataflow: what reads the outputs of paired operators. And pairs that cross others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump.analysis.operators.operator import Operator

# Private: crossings of matches by themselves, without dumps of them.
from ascend_dump.analysis.pairing.matches import Match, crossings
from ascend_dump.cli import main
from ascend_dump.reading import Record

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")


class Attention(torch.nn.Module):
    """Branches of equal types and shapes, under some names and in some order."""

    def __init__(self, names: list[str], order: str, factor: float = 1.0) -> None:
        super().__init__()
        self.order, self.factor = order, factor
        for name, seed in zip(names, "qkv"):
            torch.manual_seed(ord(seed))
            self.add_module(name, torch.nn.Linear(8, 8))
        self.names = dict(zip("qkv", names))

    def forward(self, x: Any) -> Any:
        x = torch.tanh(x * self.factor)
        made = {one: getattr(self, self.names[one])(x) for one in self.order}
        return (made["q"] @ made["k"].T).softmax(-1) @ made["v"]


def dump(path: Path, *args: Any) -> Path:
    model = Attention(*args)
    torch.manual_seed(0)
    with torch.no_grad(), ascend_dump.capture(model, path=path):
        model(torch.randn(4, 8))
    return path


def paired(found: ascend_dump.Comparison, op_type: str) -> dict[str, tuple[str, str]]:
    return {
        pair.actual.op_name.split("/")[0]: (pair.reference.op_name.split("/")[0], pair.how)
        for pair in found.pairs
        if pair.actual is not None and pair.reference is not None and pair.record.op_type.startswith(op_type)
    }


def test_behind_a_fault_renamed_branches_in_another_order_are_paired_by_what_they_read(tmp_path: Path) -> None:
    reference = dump(tmp_path / "reference", ["query", "key", "value"], "qkv")
    actual = dump(tmp_path / "actual", ["first", "second", "third"], "vqk", 1.5)
    found = ascend_dump.compare(actual, reference)
    expected = {"first": "query", "second": "key", "third": "value"}
    # Their weights are evidence too.
    assert paired(found, "aten::addmm") == {name: (other, "parameter") for name, other in expected.items()}
    assert found.origins[0].op_type == "aten::mul"
    assert found.verdict == "different"
    assert not found.unmatched


def test_the_pairs_can_be_written_and_given_back(tmp_path: Path) -> None:
    reference = dump(tmp_path / "reference", ["query", "key", "value"], "qkv")
    actual = dump(tmp_path / "actual", ["first", "second", "third"], "vqk", 1.5)
    found = ascend_dump.compare(actual, reference)
    mapping = json.loads(found.save_mapping(tmp_path / "mapping.json").read_text())
    again = ascend_dump.compare(actual, reference, mapping=mapping)
    assert again.mapping == mapping
    assert {pair.how for pair in again.pairs} == {"mapping"}
    edited = {name: other for name, other in mapping.items() if not name.startswith("third")}
    third = ascend_dump.compare(actual, reference, mapping=edited)
    assert third.mapping == mapping, "what is left out is found again"


def test_names_that_both_programs_have_are_not_contradicted(tmp_path: Path) -> None:
    """Two modules whose weights were exchanged: the names say which is which, the weights are the fault."""
    reference = dump(tmp_path / "reference", ["query", "key", "value"], "qkv")
    actual = dump(tmp_path / "actual", ["key", "query", "value"], "kqv", 1.5)
    found = ascend_dump.compare(actual, reference)
    assert {name: other for name, (other, _) in paired(found, "aten::addmm").items()} == {
        name: name for name in ("query", "key", "value")
    }


def match(actual: int, reference: int, confidence: float) -> Match:
    one, other = (
        Operator(place, "t", f"{side}{place}", "", "", "", [], [Record(None, path=Path("f"))])
        for side, place in (("a", actual), ("b", reference))
    )
    return Match(one, other, "order" if confidence < 0.9 else "value", confidence)


@settings(deadline=None, max_examples=200)
@given(st.permutations(range(8)), st.lists(st.booleans(), min_size=8, max_size=8))
def test_weak_pairs_that_cross_strong_ones_are_told(order: list[int], strong: list[bool]) -> None:
    matches = [match(actual, reference, 1.0 if strong[reference] else 0.7) for reference, actual in enumerate(order)]
    told = {one.reference.position for one in crossings(matches)}
    assert not any(strong[place] for place in told)
    row = [(one.actual.position, one.reference.position) for one in matches if one.confidence == 1.0]
    if row == sorted(row):
        expected = {
            reference
            for reference, actual in enumerate(order)
            if not strong[reference] and any((actual - a) * (reference - b) < 0 for a, b in row)
        }
        assert told == expected


def test_crossings_are_part_of_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The user says what only order speaks against."""
    reference = bare(dump(tmp_path / "reference", ["query", "key", "value"], "qkv"))
    actual = bare(dump(tmp_path / "actual", ["first", "second", "third"], "qkv", 1.5))
    assert ascend_dump.compare(actual, reference).crossings == ()
    (tmp_path / "mapping.json").write_text('{"first/addmm_0": "value/addmm_0"}')
    found = ascend_dump.compare(actual, reference, mapping={"first/addmm_0": "value/addmm_0"})
    crossed = {(one.actual, one.reference, one.how) for one in found.crossings}
    assert ("second/addmm_0", "query/addmm_0", "order") in crossed
    assert {(one.step, one.rank) for one in found.crossings} == {(0, 0)}
    assert found.to_dict()["crossings"] == [one._asdict() for one in found.crossings]
    words = ["compare", str(actual), str(reference), "--mapping", str(tmp_path / "mapping.json")]
    main(words)
    assert f"against the order of other pairs: {len(crossed)} pairs (--all names them)" in capsys.readouterr().out
    main([*words, "--all"])
    assert "second/addmm_0 with query/addmm_0 (order)" in " ".join(capsys.readouterr().out.split())


def bare(root: Path) -> Path:
    """The dump as one that tells neither hashes nor places in memory."""
    for index in root.rglob("index.jsonl"):
        lines = [{**json.loads(one), "hash": "", "storage": -1} for one in index.read_text().splitlines()]
        index.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return root
