"""Shards are files that the safetensors library opens, whatever is appended to them."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from host_dumps import content, item, lines_of, model_directory, open_shards, read, write_step
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

from ascend_dump.writing import HostWriter, Item, Limits, Line, Payload
from ascend_dump.writing.shard import Shard

NATIVE = ["bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64"]
NATIVE += ["float64"]
FOREIGN = ["complex64", "complex128"]
#: As small as a header may be.
SMALL = Limits(room=16 * 1024 - 8)


def make(path: Path, limits: Limits = SMALL) -> Shard:
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        return Shard(path.name, directory, {"step": "0"}, limits)
    finally:
        os.close(directory)


def header(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    found: dict[str, Any] = json.loads(data[8 : 8 + size])
    return found


def test_names_dtypes_shapes_and_metadata(tmp_path: Path) -> None:
    path = tmp_path / "tensors-00000.safetensors"
    shard = make(path)
    arrays = {name: np.frombuffer(content(name, 48), dtype=name).reshape(2, -1) for name in NATIVE if name != "bool"}
    arrays["bool"] = np.array([[True, False, True]])
    for name, array in arrays.items():
        assert shard.append(name, name, array.shape, array.tobytes(), array.nbytes) % 16 == 0
    shard.finish()
    shard.finish()
    loaded = load_file(path)
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"step": "0"}


def test_torch_reads_its_own_types(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    path = tmp_path / "tensors-00000.safetensors"
    shard = make(path)
    kinds = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "bool", "int64"]
    tensors = {name: torch.arange(6).reshape(3, 2).to(getattr(torch, name)) for name in kinds}
    for name, tensor in tensors.items():
        data = tensor.view(torch.uint8).numpy().tobytes()
        shard.append(name, name, tuple(tensor.shape), data, len(data))
    shard.finish()
    loaded = load_torch(path)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name].view(torch.uint8), tensor.view(torch.uint8))


def test_what_safetensors_has_no_word_for_is_stored_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "tensors-00000.safetensors"
    shard = make(path)
    for name in ("complex64", "float4_e2m1fn", "quint4x2", "int4"):
        shard.append(name, name, (3, 1), content(name, 24), 24)
    # Nor for a shape that does not fit the bytes: the whole file would be refused.
    shard.append("lies", "float32", (5, 5), content("lies", 24), 24)
    shard.append("deep", "float32", (1,) * 70, content("deep", 4), 4)
    shard.finish()
    loaded = load_file(path)
    assert {array.dtype for array in loaded.values()} == {np.dtype("uint8")}
    for name in loaded:
        if not name.startswith("__padding__"):
            assert loaded[name].tobytes() == content(name, loaded[name].size)


def test_no_tensor_at_all(tmp_path: Path) -> None:
    path = tmp_path / "tensors-00000.safetensors"
    make(path).finish()
    assert load_file(path) == {}
    assert path.stat().st_size == 16 * 1024


def test_names_may_hold_anything_and_come_twice(tmp_path: Path) -> None:
    path = tmp_path / "tensors-00000.safetensors"
    shard = make(path)
    names = ["a", "a", "a~2", "a", 'quo"te', "back\\slash", "new\nline\x00", "Ω𝄞", "lone\ud800", "a" * 3000]
    names += ["a" * 3000, "b" + "a" * 2999, ""]
    for number, name in enumerate(names):
        data = content(number, 20)
        shard.append(name, "uint8", (20,), data, 20)
    shard.finish()
    loaded = {name: array for name, array in load_file(path).items() if not name.startswith("__padding__")}
    assert sorted(array.tobytes() for array in loaded.values()) == sorted(content(n, 20) for n in range(len(names)))
    assert {"a", 'quo"te', "back\\slash", "new\nline\x00", "Ω𝄞", ""} < loaded.keys()
    assert max(map(len, loaded)) <= 1000


@settings(max_examples=30, deadline=None)
@given(
    tensors=st.lists(
        st.tuples(
            st.sampled_from([*NATIVE, *FOREIGN, "bfloat16", "float8_e5m2"]),
            st.integers(0, 3),
            st.integers(1, 40),
            st.text(max_size=60),
        ),
        min_size=1,
        max_size=40,
    ),
    room=st.sampled_from([9000, 16376, 262136]),
    nbytes=st.sampled_from([300 * 1024, 8 << 30]),
)
def test_any_mix_of_tensors_is_aligned_and_read_back(
    tmp_path_factory: pytest.TempPathFactory, tensors: list[Any], room: int, nbytes: int
) -> None:
    root = tmp_path_factory.mktemp("mix")
    writer = HostWriter(model_directory(root), metadata={}, limits=Limits(room, nbytes))
    items, expected = [], {}
    for number, (dtype, dimensions, size, name) in enumerate(tensors):
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        shape = (size, 2, 1)[:dimensions]
        data = content(number, int(np.prod(shape)) * kind.itemsize)
        if dtype == "bool":
            data = bytes(one & 1 for one in data)
        expected[0, name, "output", number] = data
        items.append(item(name, np.frombuffer(data, dtype=kind).reshape(shape), index=number))
    write_step(writer, 0, *items)
    writer.close()
    assert writer.failure is None
    assert read(root) == expected
    for one in lines_of(root):
        assert one["blob"][0] % 16 == 0
    stored = [data for shard in open_shards(root).values() for data in shard.values()]
    assert set(stored) == set(expected.values())
    assert len(stored) == len(set(stored))


def test_a_full_header_or_file_goes_on_in_the_next_shard(tmp_path: Path) -> None:
    for name, limits in (("room", Limits(room=9000)), ("bytes", Limits(nbytes=300 * 1024))):
        root = tmp_path / name
        writer = HostWriter(model_directory(root), metadata={}, limits=limits)
        arrays = {f"op/{number}" + "\x01" * (number % 90): np.full(300, number) for number in range(300)}
        write_step(writer, 0, *(item(name, array) for name, array in arrays.items()))
        writer.close()
        shards = open_shards(root)
        assert len(shards) > 3
        assert list(shards) == [f"0/tensors-{number:05d}.safetensors" for number in range(len(shards))]
        assert all(shards.values())
        assert read(root) == {(0, name, "output", 0): array.tobytes() for name, array in arrays.items()}
        for path in root.rglob("*.safetensors"):
            assert path.stat().st_size <= max(limits.nbytes, 4096)
            assert len(json.dumps(header(path))) > 100


def test_the_room_for_the_header_grows_with_the_step(tmp_path: Path) -> None:
    writer = HostWriter(model_directory(tmp_path), metadata={})
    write_step(writer, 0, item("op", np.ones(2)))
    arrays = {f"op{number}": np.full(2, number) for number in range(2000)}
    write_step(writer, 1, *(item(name, array) for name, array in arrays.items()))
    write_step(writer, 2, item("op", np.full(2, -1.0)))
    writer.close()
    assert writer.failure is None
    rooms: dict[str, list[int]] = {}
    for path in sorted(tmp_path.rglob("*.safetensors")):
        rooms.setdefault(path.parent.name, []).append(8 + int.from_bytes(path.read_bytes()[:8], "little"))
    kib = 1024
    assert rooms == {"0": [16 * kib], "1": [16 * kib, 64 * kib, 256 * kib], "2": [16 * kib]}
    assert {name: data for (step, name, *_), data in read(tmp_path).items() if step == 1} == {
        name: array.tobytes() for name, array in arrays.items()
    }


def test_a_tensor_larger_than_a_shard_has_its_own(tmp_path: Path) -> None:
    writer = HostWriter(model_directory(tmp_path), metadata={}, limits=Limits(nbytes=400_000))
    arrays = {name: np.frombuffer(content(name, size), "u1") for name, size in zip("abcd", (9, 500_000, 600_000, 9))}
    write_step(writer, 0, *(item(name, array) for name, array in arrays.items()))
    writer.close()
    assert [list(shard) for shard in open_shards(tmp_path).values()] == [
        ["a.output.0"],
        ["b.output.0"],
        ["c.output.0"],
        ["d.output.0"],
    ]
    assert read(tmp_path) == {(0, name, "output", 0): array.tobytes() for name, array in arrays.items()}


@pytest.mark.parametrize("at_once", [1, 777, 70_000])
def test_systems_that_write_a_part_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    pwrite, write = os.pwrite, os.write
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, data[:at_once], position))
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:at_once]))
    sizes = (3, 40) if at_once == 1 else (5, 300_000, 17, 260_000)
    limits = Limits(room=9000) if at_once == 1 else Limits()
    writer = HostWriter(model_directory(tmp_path), metadata={}, limits=limits, stats=("max",))
    arrays = {f"op{size}": np.frombuffer(content(size, size), "u1") for size in sizes}
    write_step(writer, 0, *(item(name, array) for name, array in arrays.items()))
    writer.close()
    assert writer.failure is None
    assert read(tmp_path) == {(0, name, "output", 0): array.tobytes() for name, array in arrays.items()}
    assert len(next(iter(open_shards(tmp_path).values()))) == len(sizes)


def test_pieces_beyond_what_the_system_writes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = []
    pwrite = os.pwrite

    def record(fd: int, data: memoryview, position: int) -> int:
        pieces.append(len(data))
        return pwrite(fd, data, position)

    monkeypatch.setattr(os, "pwrite", record)
    monkeypatch.setattr("ascend_dump.writing.shard._WRITE_MAX", 100_000)
    path = tmp_path / "tensors-00000.safetensors"
    shard = make(path)
    data = content("long", 350_000)
    offset = shard.append("long", "uint8", (350_000,), data, 350_000)
    shard.finish()
    assert max(pieces) == 100_000
    assert path.read_bytes()[offset:] == data


def test_a_file_that_takes_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = make(tmp_path / "tensors-00000.safetensors")
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda fd, data, position: 0)
        with pytest.raises(OSError, match="no bytes could be written"):
            shard.append("a", "uint8", (300_000,), bytes(300_000), 300_000)
    with pytest.raises(OSError, match="no bytes could be written"):
        shard.finish()
    assert load_file(tmp_path / "tensors-00000.safetensors") == {}


def test_a_shard_that_cannot_be_begun_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tensors-00000.safetensors"
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda fd, data, position: 0)
        with pytest.raises(OSError, match="no bytes could be written"):
            make(path)
    assert not path.exists()
    assert len(os.listdir("/proc/self/fd")) == before
    path.write_bytes(b"another's")
    with pytest.raises(FileExistsError):
        make(path)
    assert path.read_bytes() == b"another's"


def test_a_header_too_small_for_one_entry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too small"):
        make(tmp_path / "a", Limits(room=4000))
    assert not (tmp_path / "a").exists()


def test_quantised_and_packed_types_are_stored_as_their_bytes(tmp_path: Path) -> None:
    writer = HostWriter(model_directory(tmp_path), metadata={})
    items = []
    for name, size in (("qint8", 1), ("qint32", 4), ("quint4x2", 1), ("bits16", 2), ("uint3", 1)):
        data = content(name, 6 * size)
        record = Line(0, "aten::op", name, "output", 0, 1, name, (6,), len(data), stride=(1,))
        items.append(Item(record, Payload(data, 0, len(data), name, (6,))))
    write_step(writer, 0, *items)
    writer.close()
    found = read(tmp_path)
    assert found[0, "qint32", "output", 0] == content("qint32", 24)
    assert found[0, "uint3", "output", 0] == content("uint3", 6)
    assert len(next(iter(open_shards(tmp_path).values()))) == 5
