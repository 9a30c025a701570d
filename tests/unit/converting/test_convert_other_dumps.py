"""`ascend-dump convert` of dumps that other tools than CANN wrote."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import DATA

import ascend_dump
from ascend_dump.cli import Exit, main

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def msprobe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("msprobe")
    with tarfile.open(DATA / "msprobe.tar.gz") as archive:
        archive.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return root / "msprobe"


def sglang(root: Path, *values: Any) -> Path:
    """The values as one module's output each time it runs, as SGLang's dumper writes them."""
    for index, value in enumerate(values):
        tags = {"step": 0, "rank": 0, "dump_index": index, "name": "non_intrusive__model.mlp.output"}
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
    assert files == [f"rank0/0/{name}.npy" for name in names]
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
    assert "convert each by itself" in capsys.readouterr().err


def test_a_tree_with_files_of_cann_is_converted_as_before(
    msprobe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Relu.relu_1.3.2.1700000000000000").write_bytes(b"no dump")
    (tmp_path / "probe").symlink_to(msprobe / "tensor_mix")
    assert main(["convert", str(tmp_path), "-o", str(tmp_path / "out")]) == Exit.UNREADABLE
    assert "1 dump files" in capsys.readouterr().out
