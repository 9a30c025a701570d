"""`ascend-dump convert` of dumps that other tools than CANN wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import extract

import ascend_dump
from ascend_dump.cli import Exit, main

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def msprobe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("msprobe")
    extract("msprobe.tar.gz", root)
    return root / "msprobe"


def sglang(root: Path, *values: Any) -> Path:
    """The values as SGLang's dumper writes those of one module: its output each time it runs, or pairs with a name."""
    for index, given in enumerate(values):
        name, value = given if isinstance(given, tuple) else ("output", given)
        tags = {"step": 0, "rank": 0, "dump_index": index, "name": f"non_intrusive__model.mlp.{name}"}
        path = root / "dump_1" / ("___".join(f"{key}={item}" for key, item in tags.items()) + ".pt")
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"value": value, "meta": tags}, path)
    return root


def transformer_engine(root: Path, value: Any) -> Path:
    place = root / "tensor_dumps" / "rank_0"
    place.mkdir(parents=True)
    torch.save(value, place / "layer_0_qkv_output_iter_000000.pt")
    return root


def test_every_tensor_of_msprobe(msprobe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = msprobe / "tensor_mix"
    assert main(["convert", str(root), "-o", str(tmp_path)]) == Exit.OK
    assert capsys.readouterr().out.startswith("225 records · 225 files written")
    for record in ascend_dump.open(root):
        [file] = tmp_path.glob(f"{record.step}/{record.label}.npy")
        np.testing.assert_array_equal(np.load(file), record.numpy().astype(np.load(file).dtype))


def test_statistics_alone_are_no_values(msprobe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(msprobe / "statistics_L0"), "-o", str(tmp_path)]) == Exit.UNREADABLE
    told = capsys.readouterr()
    assert "records without values left out" in told.out
    assert "no record with values was found" in told.err


def test_what_ran_again_under_one_name_is_kept(tmp_path: Path) -> None:
    values = [torch.full((2,), number) for number in (1.0, 2.0, 3.0)]
    root = sglang(tmp_path / "dump", *values)
    assert main(["convert", str(root), "-o", str(tmp_path / "out")]) == Exit.OK
    files = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.npy"))
    names = ["model.mlp-2.output.0", "model.mlp-3.output.0", "model.mlp.output.0"]
    assert files == [f"rank0/dump_1/0/{name}.npy" for name in names]
    assert [np.load(tmp_path / "out" / file)[0] for file in files] == [2.0, 3.0, 1.0]


@pytest.mark.parametrize("type", ["pt", "npz", "csv"])
def test_tensors_of_transformer_engine(type: str, tmp_path: Path) -> None:
    root = transformer_engine(tmp_path / "dump", torch.ones(2, 3, dtype=torch.bfloat16))
    assert main(["convert", str(root), "-o", str(tmp_path / "out"), "--type", type]) == Exit.OK
    [file] = (tmp_path / "out").rglob(f"*.{type}")
    assert file.name.startswith("layer_0_qkv.")
    if type == "pt":
        assert torch.load(file).dtype == torch.bfloat16


def test_options_of_cann_are_refused(msprobe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["convert", str(msprobe / "tensor_mix"), "-o", str(tmp_path)]
    assert main([*words, "--format", "NCHW"]) == Exit.USAGE
    assert "only dumps of CANN have" in capsys.readouterr().err
    assert main([*words, str(msprobe / "tensor_mix")]) == Exit.USAGE
    assert "convert each source by itself" in capsys.readouterr().err


def test_a_tree_with_files_of_cann_is_converted_as_before(
    msprobe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Relu.relu_1.3.2.1700000000000000").write_bytes(b"no dump")
    (tmp_path / "probe").symlink_to(msprobe / "tensor_mix")
    assert main(["convert", str(tmp_path), "-o", str(tmp_path / "out")]) == Exit.UNREADABLE
    assert "1 dump file ·" in capsys.readouterr().out


@pytest.mark.parametrize("type", ["npz", "safetensors"])
def test_two_dumps_of_one_name_are_both_kept(type: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sglang(tmp_path / "dump", torch.ones(2))
    sglang(tmp_path / "more", torch.zeros(2))
    (tmp_path / "more" / "dump_1").rename(tmp_path / "dump" / "dump_2")
    assert main(["convert", str(tmp_path / "dump"), "-o", str(tmp_path / "out"), "--type", type]) == Exit.OK
    assert capsys.readouterr().out.startswith("2 records · 2 files written")
    files = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob(f"*.{type}"))
    assert files == [f"rank0/dump_{number}/0/model.mlp.{type}" for number in (1, 2)]


def test_tensors_of_one_position_are_in_an_archive_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {"first": torch.ones(2), "second": torch.zeros(2)}
    root = sglang(tmp_path / "dump", values)
    assert main(["convert", str(root), "-o", str(tmp_path / "out"), "--type", "npz"]) == Exit.OK
    assert capsys.readouterr().out.startswith("2 records · 2 files written")
    files = [tmp_path / "out" / "rank0" / "dump_1" / "0" / f"model.mlp{end}.npz" for end in ("", "-2")]
    assert [np.load(file)["output.0"][0] for file in files] == [1.0, 0.0]


def test_an_input_that_only_the_second_run_has_goes_with_its_outputs(tmp_path: Path) -> None:
    tensors = [("inputs.0", 1.0), ("output", 2.0), ("inputs.0", 3.0), ("inputs.1", 4.0), ("output", 5.0)]
    root = sglang(tmp_path / "dump", *((name, torch.full((2,), value)) for name, value in tensors))
    assert [record.execution[-1] for record in ascend_dump.open(root)] == [0, 0, 1, 1, 1]
    assert main(["convert", str(root), "-o", str(tmp_path / "out")]) == Exit.OK
    assert main(["convert", str(root), "-o", str(tmp_path / "one"), "--io", "input", "--index", "1"]) == Exit.OK
    files = {file.name: np.load(file)[0] for file in (tmp_path / "out").rglob("*.npy")}
    assert files == {
        "model.mlp.input.0.npy": 1.0,
        "model.mlp.output.0.npy": 2.0,
        "model.mlp-2.input.0.npy": 3.0,
        "model.mlp-2.input.1.npy": 4.0,
        "model.mlp-2.output.0.npy": 5.0,
    }
    assert [file.name for file in (tmp_path / "one").rglob("*.npy")] == ["model.mlp-2.input.1.npy"]


def test_values_that_a_type_cannot_hold_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = sglang(tmp_path / "dump", torch.tensor([1.5, float("nan"), 1e20]), torch.ones(2))
    words = ["convert", str(root), "-o", str(tmp_path / "out"), "--dtype", "int32"]
    assert main(words) == Exit.OK
    told = capsys.readouterr().err
    assert "RuntimeWarning" not in told
    assert "model.mlp.output.0: 2 values cannot be held by int32: NaN, Inf or out of its range" in told
    assert told.count("cannot be held") == 1


def test_a_type_for_other_dumps_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Relu.relu_1.3.2.1700000000000000").write_bytes(b"no dump")
    words = ["convert", str(tmp_path), "-o", str(tmp_path / "out"), "--type"]
    assert main([*words, "pt"]) == Exit.USAGE
    assert "type='pt' is for dumps that are not CANN's" in capsys.readouterr().err
    assert main([*words, "foo"]) == Exit.USAGE
    assert "type='foo' is not a file type" in capsys.readouterr().err


def test_an_output_that_cannot_be_made_is_named_by_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = sglang(tmp_path / "dump", torch.ones(2))
    (tmp_path / "file").touch()
    assert main(["convert", str(root), "-o", str(tmp_path / "file" / "out")]) == Exit.USAGE
    assert "--out=" in capsys.readouterr().err
