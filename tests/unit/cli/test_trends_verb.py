"""The verb `trends`, as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_dumps import item, model_directory, write_step

from ascend_dump.cli import Exit, main
from ascend_dump.cli.shared.schemas import schema
from ascend_dump.writing import HostWriter


def write(path: Path, modules: int, *, spike: bool = False, begin: int = 0) -> Path:
    """Outputs of modules in 12 steps; spike: of all modules from the third on, in step 9."""
    writer = HostWriter(
        model_directory(path), metadata={}, tensors=False, stats=("max", "min", "l2norm", "nan", "zero")
    )
    for step in range(begin, begin + 12):
        items = []
        for number in range(modules):
            name = f"layers.{number}.\x1b[31mfc"
            factor = 100.0 if spike and step == 9 and number > 1 else 1.0 + 0.01 * (step % 3)
            fields: dict[str, Any] = {"op_type": "Linear", "module": name, "phase": "forward"}
            items.append(item(f"{name}/forward_0", np.full((2, 2), factor, "float32"), **fields))
        write_step(writer, step, *items)
    writer.close()
    return path


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("calm"), 20)


@pytest.fixture(scope="module")
def spiked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("spiked"), 20, spike=True)


def shell(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["trends", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_answer_is_short_and_names_the_spike(spiked: Path, calm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = shell(capsys, spiked)
    lines = out.splitlines()
    assert (code, len(lines)) == (Exit.DIFFERENT, 25)
    assert lines[0] == f"{spiked}: 12 steps from 0 to 11, 20 modules, 60 curves"
    assert (
        lines[1] == r"spike in step 9, first in activation_max of layers.2.\x1b[31mfc: 100, 99 times the median before"
    )
    assert lines[2] == "  36 curves (activation_max of 18, activation_rms of 18) in this step, 36 in all"
    [heading] = [number for number, line in enumerate(lines) if line.startswith("quantity")]
    assert lines[heading + 1].split()[:2] == ["activation_max", r"layers.2.\x1b[31mfc"]
    assert "\x1b" not in out
    assert max(map(len, lines[2:])) <= 100
    code, out, _ = shell(capsys, calm, "--all")
    assert (code, "spike in" in out) == (Exit.OK, False)
    assert len(out.splitlines()) > 60


def test_a_reference_names_step_and_module(spiked: Path, calm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = shell(capsys, spiked, calm)
    assert code == Exit.DIFFERENT
    assert out.splitlines()[1].startswith("different: the runs part in step 9, first in activation_max of layers.2.")
    assert "no noise was measured" in out
    code, out, _ = shell(capsys, calm, spiked, "--step", "0-8")
    assert (code, out.splitlines()[1]) == (Exit.OK, "equal")
    code, out, err = shell(capsys, spiked, calm, "--noise", calm)
    assert (code, "the same dump as the reference" in err) == (Exit.USAGE, True)


def test_the_document_fits_its_schema(spiked: Path, calm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    code, out, _ = shell(capsys, spiked, calm, "--json")
    document = json.loads(out)
    assert code == Exit.DIFFERENT
    jsonschema.validate(document, schema("trends"))
    assert document["partings"][0]["step"] == 9
    [curve, *_] = document["curves"]
    assert (curve["steps"], len(curve["values"])) == ([*range(12)], 12)


def test_selections_without_a_match(calm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = shell(capsys, calm, "--module", "layer.3*")
    assert (code, "no curve matches module='layer.3*'" in err) == (Exit.UNREADABLE, True)
    assert "nearest: layers." in err
    code, out, _ = shell(capsys, calm, "--module", "layers.1?.*")
    assert (code, "10 modules, 30 curves" in out) == (Exit.OK, True)
    code, _, err = shell(capsys, calm, "--step", "99")
    assert code == Exit.UNREADABLE


def test_a_dump_that_cannot_be_read_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, 2)
    [index] = [file for file in path.rglob("index.jsonl") if file.parent.name == "3"]
    index.write_bytes(index.read_bytes() + b"{broken\n")
    code, out, _ = shell(capsys, path)
    assert code == Exit.UNREADABLE
    assert "1 record of actual cannot be read" in out
    assert main(["trends", str(tmp_path / "missing")]) == Exit.UNREADABLE


def test_exports_are_checked_before_the_work(calm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    refused = {
        ("xlsx", "x.xlsx"): "curves cannot be exported as 'xlsx'",
        ("csv", "."): "is a directory",
        ("csv", "none/x.csv"): "there is no directory",
    }
    for (name, target), message in refused.items():
        code, out, err = shell(capsys, calm, "--export", name, tmp_path / target)
        assert (code, out, message in err) == (Exit.USAGE, "", True)
    table = tmp_path / "x.csv"
    code, _, err = shell(capsys, calm, "--export", "csv", table, "--export", "csv", table)
    assert (code, "2 times" in err) == (Exit.USAGE, True)
    code, out, _ = shell(capsys, calm, "--export", "csv", table)
    assert (code, len(table.read_text().splitlines())) == (Exit.OK, 1 + 12 * 60)
    assert out.splitlines()[0].startswith(str(calm))


def test_ranks_have_a_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dump").mkdir()
    for rank in (0, 1):
        source = write(tmp_path / f"source{rank}", 1) / "worldsize1_global_rank0"
        source.rename(tmp_path / "dump" / f"worldsize2_global_rank{rank}")
    _, out, _ = shell(capsys, tmp_path / "dump")
    assert "rank  quantity" in out
    _, out, _ = shell(capsys, tmp_path / "dump", "--rank", "1")
    assert "rank  quantity" not in out
