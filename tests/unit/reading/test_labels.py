"""Labels of captures: shown by `ls`, selected by `--label` and `select`, and compared label by label."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump.cli import main

torch = pytest.importorskip("torch")

STAGES = ("rollout", "update_actor")


def dumped(path: Path, *, weight: float = 1.0, stages: tuple[str, ...] = STAGES) -> Path:
    """Dump two calls of a model for each stage, of the last one with a weight of its own."""
    torch.manual_seed(0)
    model, x = torch.nn.Linear(3, 2), torch.ones(1, 3)

    def stage(label: str) -> Any:
        return ascend_dump.capture(path=path, label=label, steps="0-1", quiet=True)(lambda: model(x))

    calls = {label: stage(label) for label in stages}
    with torch.no_grad():
        for _ in range(2):
            for label, call in calls.items():
                model.weight.mul_(weight if label == stages[-1] else 1.0)
                call()
    return path


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumped(tmp_path_factory.mktemp("labels") / "dumps")


def test_a_dump_is_narrowed_to_a_label(dump: Path) -> None:
    whole = ascend_dump.open(dump)
    assert whole.labels == list(STAGES)
    parts = [whole.select(label=label) for label in STAGES]
    assert [run.label for part in parts for run in part.runs()] == list(STAGES)
    assert [len(part) for part in parts] == [len(whole) // 2] * 2
    assert {record.run for record in parts[0]}.isdisjoint({record.run for record in parts[1]})
    assert len(whole.select(label="*")) == len(whole)
    assert len(whole.select(label="update")) == len(whole.select(label="")) == 0
    assert len(whole.select(label="re:^up").select(step=0, io="output")) == 2
    # The selection is repeated in another process, to which executors send it pickled, and in the columns of the
    # catalog.
    assert len(pickle.loads(pickle.dumps(parts[1]))) == len(parts[1])
    pytest.importorskip("polars")
    assert parts[1].catalog().collect().height == len(parts[1])


def test_a_directory_inside_a_run_has_its_label(dump: Path) -> None:
    step = next(dump.rglob("index.jsonl")).parent
    [label] = ascend_dump.open(step).labels
    assert len(ascend_dump.open(step).select(label=label)) == len(ascend_dump.open(step)) > 0


def test_ls_shows_labels_and_selects_them(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(dump)]) == 0
    listed = capsys.readouterr().out
    assert [line.split(":")[0] for line in listed.split("\n\n")[1].splitlines() if line.startswith("label ")] == [
        f"label {label}" for label in STAGES
    ]
    heading, *rows = listed.split("\n\n")[0].splitlines()
    assert heading.split()[0] == "label"
    assert {row.split()[0] for row in rows} == set(STAGES)
    assert main(["ls", str(dump), "--label", "rollout", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["labels"]) == ["rollout"]
    assert len(document["records"]) == len(ascend_dump.open(dump)) // 2
    assert main(["ls", str(dump), "--label", "rolout"]) == 3
    assert "--label rolout: the dump has rollout, update_actor" in capsys.readouterr().err


@pytest.mark.parametrize("has_executor", [False, True])
def test_equal_labels_are_compared(dump: Path, tmp_path: Path, has_executor: bool) -> None:
    actual = dumped(tmp_path / "actual", weight=2.0)
    with ThreadPoolExecutor(1) as pool:
        comparison = ascend_dump.compare(actual, dump, executor=pool if has_executor else None)
    assert comparison.labels == {"rollout": "different", "update_actor": "different"}, "the weight stays"
    assert not comparison.several_ranks
    first = comparison.origins[0]
    assert (first.step, first.evidence[0]) == (1, "label rollout")
    only = ascend_dump.compare(*(ascend_dump.open(side).select(label="rollout", step=0) for side in (actual, dump)))
    assert (only.verdict, dict(only.labels)) == ("equal", {})
    assert ascend_dump.compare(dump, dump).labels == dict.fromkeys(STAGES, "equal")


def test_labels_of_several_ranks_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        dumped(tmp_path / "reference")
        dumped(tmp_path / "actual", weight=2.0 if rank == "1" else 1.0)
    comparison = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference")
    assert comparison.labels == {"rollout": "different", "update_actor": "different"}
    assert comparison.several_ranks
    assert {(origin.rank, origin.evidence[0]) for origin in comparison.origins} == {
        (1, "label rollout"),
        (1, "label update_actor"),
    }
    assert len(comparison.pairs) == len(ascend_dump.open(tmp_path / "actual"))


def test_triage_looks_at_a_label(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["triage", str(dump), "--label", "rollout"]) == 0
    assert "nothing looks wrong" in capsys.readouterr().out
    assert main(["triage", "--label", "rollout", "--run", "--", "python", "train.py"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_what_is_no_executor_is_refused(dump: Path) -> None:
    with pytest.raises(ascend_dump.ConfigError):
        ascend_dump.compare(dump, dump, executor="no executor")  # type: ignore[arg-type]  # that is the test


def test_each_record_of_ls_has_its_label_where_there_are_labels(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls", str(dump), "--records"]) == 0
    assert capsys.readouterr().out.startswith("label ")
    assert main(["ls", str(dump), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    runs = {run: label for label, paths in document["labels"].items() for run in paths}
    assert all(runs[str(Path(record["path"]).parents[4])] == record["label"] for record in document["records"])
    assert {record["label"] for record in document["records"]} == set(STAGES)
    pytest.importorskip("jsonschema")
    from schemas import faults_of

    assert faults_of(document) == []
    with ascend_dump.capture(path=tmp_path, quiet=True):
        torch.ones(2).exp()
    assert main(["ls", str(tmp_path), "--json"]) == 0
    assert all("label" not in record for record in json.loads(capsys.readouterr().out)["records"])


def test_two_labels_of_one_dump_are_compared_with_each_other(dump: Path) -> None:
    sides = [ascend_dump.open(dump).select(label=label) for label in STAGES]
    assert ascend_dump.compare(*sides).verdict == "equal"


def test_a_label_that_one_side_lacks_is_unmatched(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actual = dumped(tmp_path / "actual", stages=("rollout", "ref"))
    assert main(["compare", str(actual), str(dump)]) == 1
    said = capsys.readouterr().out
    assert "by label: rollout equal, ref unmatched, update_actor unmatched" in said


@pytest.mark.parametrize("label", [3, "", "a b", "../x", "\x1b[2J", "x" * 65, ["a"], {"a": 1}, None])
def test_a_manifest_with_a_wrong_label_has_none(dump: Path, tmp_path: Path, label: Any) -> None:
    damaged = dumped(tmp_path / "damaged", stages=("rollout",))
    manifest = next(damaged.rglob("manifest.json"))
    document = json.loads(manifest.read_text())
    assert document["request"]["label"] == "rollout"
    document["request"]["label"] = label
    manifest.write_text(json.dumps(document))
    opened = ascend_dump.open(damaged)
    assert (opened.labels, [run.label for run in opened.runs()]) == ([""], [""])
    assert len(opened.select(label="")) == len(opened)


def test_the_environment_gives_a_label(tmp_path: Path) -> None:
    request = ascend_dump.DumpRequest.from_text(f"path={tmp_path},label=update_actor")
    assert (request.label, ascend_dump.DumpRequest.from_text(request.to_text())) == ("update_actor", request)


def test_a_dump_of_another_framework_keeps_the_label(ascend_dump_fakes: Any, tmp_path: Path) -> None:
    """CANN writes the files, so the label is in a manifest beside them."""
    ascend_dump_fakes("torch_npu")
    model = torch.nn.Linear(3, 2).npu()
    with ascend_dump.capture(model, path=tmp_path, label="ref", quiet=True) as cap:
        model(torch.ones(1, 3).npu())
    assert cap.dump().labels == ["ref"]
    assert len(ascend_dump.open(tmp_path).select(label="ref")) == len(ascend_dump.open(tmp_path)) > 0
