"""Checkpoints are read as data: files that lie about themselves are typed errors, and nothing in them runs."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from ascend_dump.errors import AscendDumpError, ConfigError, CorruptDump, DumpNotFound, NotSupported, UnknownFormat
from ascend_dump.reading.weights import open_weights

WEIGHTS = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.array([1, 2], np.int64), "c": np.float16(3)}


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def content(header: object, size: int) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def test_reads_the_tensors_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({name: np.asarray(value) for name, value in WEIGHTS.items()}, path)
    weights = open_weights(path)
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in weights.tensors.items()} == {
        "a": ("float32", (3, 4)),
        "b": ("int64", (2,)),
        "c": ("float16", ()),
    }
    assert weights.nbytes == 48 + 16 + 2
    for name, tensor in weights.tensors.items():
        assert tensor.elements().tobytes() == np.asarray(WEIGHTS[name]).tobytes()
    assert weights.tensors["a"].elements(5, 7).tolist() == [5, 6]


WHOLE = save({"a": np.arange(4, dtype=np.float32)})
LYING = {
    "no header": (b"", "its header claims 0 bytes"),
    "a header beyond the file": (struct.pack("<Q", 1 << 63) + b"{}", "its header claims 9223372036854775808 bytes"),
    "a truncated tensor": (WHOLE[:-1], "it is truncated"),
    "bytes behind the last tensor": (WHOLE + b"x", "belongs to no tensor"),
    "overlapping tensors": (content({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, 12), "'b' overlaps"),
    "a gap": (content({"a": entry("F32", [1], 4, 8)}, 8), "expected them to begin at 0"),
    "an end before the begin": (content({"a": entry("F32", [0], 8, 0)}, 8), "expected them to begin at 0"),
    "a negative size": (content({"a": entry("F32", [-1], 0, 4)}, 4), "its header is damaged"),
    "a size beyond any memory": (content({"a": entry("F32", [1 << 62, 1 << 62], 0, 4)}, 4), "for its shape"),
    "another size than its shape": (content({"a": entry("F32", [2], 0, 4)}, 4), "'a' needs 8 bytes for its shape"),
    "a header that is a list": (content([1], 0), "its header is damaged"),
    "a deep header": (content(b'{"a":' + b"[" * 50_000, 0), "its header is damaged"),
}


@pytest.mark.parametrize("name", LYING)
def test_a_file_that_lies_about_itself_is_a_typed_error(name: str, tmp_path: Path) -> None:
    data, words = LYING[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(CorruptDump, match=words) as caught:
        open_weights(path)
    assert str(path) in str(caught.value)


def test_an_unknown_type_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content({"a": entry("Q4_K", [1], 0, 1)}, 1))
    with pytest.raises(NotSupported, match="Q4_K"):
        open_weights(tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_any_damage_is_a_typed_error_or_other_values(changes: list[tuple[int, int]], tmp_path: Path) -> None:
    data = bytearray(WHOLE)
    for position, value in changes:
        data[position] = value
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    try:
        weights = open_weights(path)
    except AscendDumpError:
        return
    for tensor in weights.tensors.values():
        assert tensor.elements().size == tensor.size


def shards(directory: Path, weight_map: object) -> Path:
    directory.mkdir()
    save_file({"a": np.zeros(2, np.float32)}, directory / "one.safetensors")
    save_file({"b": np.zeros(2, np.float32)}, directory / "two.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def test_reads_the_shards_that_an_index_names(tmp_path: Path) -> None:
    directory = shards(tmp_path / "sharded", {"a": "one.safetensors", "b": "two.safetensors"})
    assert sorted(open_weights(directory).tensors) == ["a", "b"]
    assert sorted(open_weights(directory / "model.safetensors.index.json").tensors) == ["a", "b"]


@pytest.mark.parametrize(
    "file", ["../outside.safetensors", "/etc/passwd", "sub/one.safetensors", "..", "", "a\\b", "a\0"]
)
def test_an_index_leads_out_of_its_directory_nowhere(file: str, tmp_path: Path) -> None:
    save_file({"a": np.zeros(2, np.float32)}, tmp_path / "outside.safetensors")
    with pytest.raises(CorruptDump, match="expected the name of a file beside it"):
        open_weights(shards(tmp_path / "sharded", {"a": file}))


@pytest.mark.parametrize("weight_map", [[1], None, "one.safetensors", 3])
def test_an_index_without_a_map_is_a_typed_error(weight_map: object, tmp_path: Path) -> None:
    with pytest.raises(CorruptDump, match="weight_map"):
        open_weights(shards(tmp_path / "sharded", weight_map))


def test_a_missing_shard_and_a_missing_weight_are_named(tmp_path: Path) -> None:
    with pytest.raises(DumpNotFound, match=r"three\.safetensors"):
        open_weights(shards(tmp_path / "first", {"a": "three.safetensors"}))
    with pytest.raises(CorruptDump, match=r"'c' is in one\.safetensors, which lacks it"):
        open_weights(shards(tmp_path / "second", {"c": "one.safetensors"}))


def test_links_are_followed_in_the_cache_of_hugging_face_only(tmp_path: Path) -> None:
    cache = tmp_path / "models--owner--name"
    for name in ("blobs", "snapshots/revision"):
        (cache / name).mkdir(parents=True)
    save_file({"a": np.zeros(2, np.float32)}, cache / "blobs" / "0123")
    os.symlink("../../blobs/0123", cache / "snapshots/revision/model.safetensors")
    assert list(open_weights(cache / "snapshots/revision").tensors) == ["a"]

    save_file({"a": np.zeros(2, np.float32)}, tmp_path / "secret.safetensors")
    planted = cache / "snapshots/planted"
    planted.mkdir()
    os.symlink(tmp_path / "secret.safetensors", planted / "model.safetensors")
    with pytest.raises(CorruptDump, match="which is not followed"):
        open_weights(planted)
    directory = tmp_path / "linked"
    directory.mkdir()
    os.symlink(tmp_path / "secret.safetensors", directory / "model.safetensors")
    with pytest.raises(CorruptDump, match="which is not followed"):
        open_weights(directory)


def test_a_name_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("x", "y"):
        save_file({"a": np.zeros(2, np.float32)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ConfigError, match=r"'a' is in x.safetensors and in y.safetensors"):
        open_weights(tmp_path)


def test_a_pipe_a_text_and_nothing_are_typed_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(CorruptDump, match="not a regular file"):
        open_weights(tmp_path / "pipe.safetensors")
    (tmp_path / "notes.txt").write_text("weights")
    with pytest.raises(UnknownFormat, match="is no checkpoint"):
        open_weights(tmp_path / "notes.txt")
    with pytest.raises(DumpNotFound, match="does not exist"):
        open_weights(tmp_path / "nothing")


class Runs:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def test_a_file_of_torch_is_not_unpickled(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path, proof = tmp_path / "checkpoint.pt", tmp_path / "proof"
    state = {"w": torch.arange(6.0).reshape(2, 3).t(), "p": torch.nn.Parameter(torch.ones(3).bfloat16())}
    torch.save({"model": state, "optimizer": {"step": 3}, "attack": Runs(proof)}, path)
    weights = open_weights(path)
    assert not proof.exists()
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in weights.tensors.items()} == {
        "w": ("float32", (3, 2)),
        "p": ("bfloat16", (3,)),
    }
    assert weights.tensors["w"].elements().tolist() == [0, 3, 1, 4, 2, 5]
    assert weights.tensors["p"].elements().astype(float).tolist() == [1, 1, 1]


def test_a_bare_pickle_names_the_way_out(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(NotSupported, match="weights_only=True"):
        open_weights(tmp_path / "old.pt")


def test_a_tensor_that_repeats_itself_beyond_memory_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(1).expand(1 << 40)}, tmp_path / "bomb.pt")
    with pytest.raises(CorruptDump, match="needs 4398046511104 bytes"):
        open_weights(tmp_path / "bomb.pt")
