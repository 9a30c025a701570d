"""The JSON Schemas of documents and of index.jsonl hold for what verbs print and captures write."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump.cli import Exit, main
from ascend_dump.cli.shared.help_texts import topic_text
from ascend_dump.cli.shared.schemas import INDEX, schema, schema_names

pytest.importorskip("jsonschema")
from schemas import faults_of

DATA = Path(__file__).parents[2] / "data"


def document(*words: object) -> Any:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        main([str(word) for word in words])
    return json.loads(out.getvalue())


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two dumps of a program: they differ, and overflow, and one has a random number."""
    torch: Any = pytest.importorskip("torch")
    paths = []
    for name, factor in (("actual", 1000.0), ("reference", 2.0)):
        with ascend_dump.capture(path=tmp_path_factory.mktemp(name)) as cap:
            torch.nn.functional.linear((torch.ones(100) * factor).exp(), torch.rand(3, 100))
        paths.append(cap.path)
    return paths[0], paths[1]


GRAPHS = [
    "ge_proto/ge_proto_00000017_graph_1_Build.txt",
    "mindspore/conv_iter_0_2/rank_0/graphs/ms_output_trace_code_graph_0.ir",
]


@pytest.mark.parametrize(
    "words",
    [
        ["ls", 0],
        ["ls", 0, "--by", "module"],
        ["show", 0],
        ["stats", 0],
        ["stats", 0, "--by", "module"],
        ["overflow", 0],
        ["compare", 0, 1],
        ["compare", 0, 1, "--local"],
        ["watch", 0],
        ["push", 0, "memory://schemas"],
        ["triage", 0],
        ["triage", 0, 1],
        ["replay", 1],
        ["convert", 0, "-o", "out"],
        ["report", 0, "-o", "page.html"],
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_of_dumps_of_the_host(
    words: list[Any], dumps: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("polars")
    monkeypatch.chdir(tmp_path)
    found = document(*(dumps[word] if isinstance(word, int) else word for word in words), "--json")
    assert found["schema"] != "ascend-dump/error/1"
    assert faults_of(found) == []


@pytest.mark.parametrize(
    "words",
    [
        ["overflow", DATA / "cann" / "in_overflow"],
        ["ls", DATA / "cann" / "in_overflow"],
        ["help"],
        ["help", "nan"],
        ["explain", "AD102"],
        ["doctor"],
        ["attach", "--list"],
        ["config", "--for", "acl", "--path", "dumps"],
        ["run", "--dry-run", "--path", "dumps"],
        ["ls", "no_such_directory"],
        ["explain", "AD999"],
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_without_a_framework(words: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = ["--", sys.executable] if words[0] == "run" else []
    assert faults_of(document(*words, "--json", *program)) == []


def test_of_indexes(dumps: tuple[Path, Path]) -> None:
    pytest.importorskip("polars")
    found = document("compare", *(dump.parents[1] for dump in dumps), "--index-only", "--json")
    assert found["origins"]
    assert faults_of(found) == []


@pytest.mark.parametrize("graph", GRAPHS)
def test_of_operators_of_a_graph(graph: str) -> None:
    found = document("ops", DATA / graph, "--json")
    assert found["operators"]
    assert faults_of(found) == []


def test_of_a_checked_file(tmp_path: Path) -> None:
    file = tmp_path / "acl.json"
    file.write_text('{"dump": {"dump_path": "no_such_directory", "dump_list": []}}')
    found = document("check", file, "--against", "acl", "--json")
    assert found["problems"]
    assert faults_of(found) == []


def test_of_lines_of_an_index(dumps: tuple[Path, Path]) -> None:
    lines = [json.loads(line) for file in dumps[0].rglob(INDEX) for line in file.read_text().splitlines()]
    assert any("call" in line for line in lines)
    assert [fault for line in lines for fault in faults_of(line, INDEX)] == []
    assert faults_of({**lines[0], "shape": ["wide"]}, INDEX)


def test_a_field_that_is_missing_unknown_or_of_another_type_is_found(dumps: tuple[Path, Path]) -> None:
    found = document("compare", *dumps, "--json")
    assert faults_of({**found, "verdict": 1}) != []
    assert faults_of({**found, "surprise": 1}) != []
    assert faults_of({name: value for name, value in found.items() if name != "origins"}) != []
    found["pairs"][0]["measure"] = {"count": 1}
    assert faults_of(found) != []


def test_a_schema_is_printed_with_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "--schema", "compare"]) == Exit.OK
    printed = json.loads(capsys.readouterr().out)
    assert printed == schema("compare")
    assert printed["title"] == "ascend-dump/compare/1"
    assert main(["help", "--schema", "compere"]) == Exit.USAGE
    assert "did you mean 'compare'?" in capsys.readouterr().err
    assert main(["help", "nan", "--schema", "compare"]) == Exit.USAGE


def test_the_topic_names_every_schema() -> None:
    text = topic_text("schemas").text
    assert [name for name in schema_names() if f"`{name}`" not in text] == []
