"""`ascend-dump convert` of a host dump."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ascend_dump
from ascend_dump.cli import Exit, main

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")


def shell(*words: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("host") / "dumps"
    torch.manual_seed(0)
    with ascend_dump.capture(path=path, quiet=True):
        a = torch.randn(3, 4)
        (a.to(torch.bfloat16) @ a.to(torch.bfloat16).t()).relu()
    return path


def read(file: Path) -> dict[str, Any]:
    """Its tensors by the ends of their names, in float32."""
    if file.suffix == ".npz":
        return {name: array.astype("f4") for name, array in np.load(file).items()}
    if file.suffix == ".safetensors":
        return {name: tensor.float().numpy() for name, tensor in safetensors.load_file(file).items()}
    end = ".".join(file.name.split(".")[-3:-1])
    if file.suffix == ".pt":
        return {end: torch.load(file).float().numpy()}
    return {end: np.load(file).astype("f4") if file.suffix == ".npy" else np.loadtxt(file, delimiter=",", dtype="f4")}


@pytest.mark.parametrize("kind", ["npy", "npz", "csv", "pt", "safetensors"])
def test_every_tensor_is_there_with_its_values(kind: str, dump: Path, tmp_path: Path) -> None:
    code, out, err = shell("convert", dump, "-o", tmp_path, "--type", kind)
    assert (code, err) == (Exit.OK, "")
    records = list(ascend_dump.open(dump))
    found = {}
    for file in tmp_path.rglob(f"*.{kind}"):
        name = file.name.removesuffix(f".{kind}") if kind in ("npz", "safetensors") else file.name.rsplit(".", 3)[0]
        found.update({(name, end): value for end, value in read(file).items()})
    assert set(found) == {(record.op_name, f"{record.io}.{record.index}") for record in records}
    for record in records:
        value = found[record.op_name, f"{record.io}.{record.index}"]
        np.testing.assert_array_equal(value, record.numpy().astype("f4"))
    files = len({name for name, _ in found}) if kind in ("npz", "safetensors") else len(found)
    assert out.startswith(f"{len(records)} records · {files} files written · ")


def test_own_types_are_kept_where_a_file_has_them(dump: Path, tmp_path: Path) -> None:
    shell("convert", dump, "-o", tmp_path, "--type", "pt", "--select", "relu*", "--io", "output")
    [file] = tmp_path.rglob("*.pt")
    assert torch.load(file).dtype == torch.bfloat16
    assert file.stat().st_mode & 0o777 == 0o600
    shell("convert", dump, "-o", tmp_path / "raw", "--type", "bin", "--select", "relu*", "--io", "output")
    [file] = (tmp_path / "raw").rglob("*.bin")
    assert file.stat().st_size == 9 * 2
    shell("convert", dump, "-o", tmp_path / "wide", "--dtype", "float64", "--select", "relu*", "--io", "output")
    [file] = (tmp_path / "wide").rglob("*.npy")
    assert np.load(file).dtype == np.float64


def test_one_document(dump: Path, tmp_path: Path) -> None:
    code, out, _ = shell("convert", dump, "-o", tmp_path, "--json")
    document = json.loads(out)
    assert code == Exit.OK
    assert document["totals"]["written"] == len(ascend_dump.open(dump))
    assert all(Path(name).is_file() for one in document["files"] for name in one["written"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "NCHW"], "and only dumps of CANN have them"),
        (["--type", "xyz"], "types: npy"),
        (["--msaccucmp-compat"], "converts dumps of CANN only"),
        (["--dtype", "wrong"], "no type of numpy"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(words: list[str], message: str, dump: Path, tmp_path: Path) -> None:
    code, _, err = shell("convert", dump, "-o", tmp_path, *words)
    assert (code, message in err) == (Exit.USAGE, True)


def test_one_file_of_a_dump_is_refused(dump: Path, tmp_path: Path) -> None:
    for pattern in ("index.jsonl", "tensors-*.safetensors"):
        [file] = dump.rglob(pattern)
        code, _, err = shell("convert", file, "-o", tmp_path)
        assert (code, "give the directory of the dump" in err) == (Exit.USAGE, True)


def test_damaged_tensors_are_told_and_the_others_converted(dump: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(dump, copy)
    [shard] = copy.rglob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size - 8])
    code, _, err = shell("convert", copy, "-o", tmp_path / "out")
    assert code == Exit.UNREADABLE
    assert "could not be converted" in err
    assert list((tmp_path / "out").rglob("*.npy"))


def test_statistics_alone_give_no_files(tmp_path: Path) -> None:
    with ascend_dump.capture(path=tmp_path / "dumps", data="stats", quiet=True):
        torch.ones(3)
    code, _, err = shell("convert", tmp_path / "dumps", "-o", tmp_path / "out")
    assert (code, "no record with values was found" in err) == (Exit.UNREADABLE, True)
