"""The contents of torchair's own dumps: npy files of its eager dump, and pt files of its aclgraph modes."""

from __future__ import annotations

import contextlib
import pickle
import struct
import zipfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ascend_dump
from ascend_dump import CorruptDump, NotSupported
from ascend_dump.reading import Directory
from ascend_dump.reading.dialects import aclgraph_pt, torchair_npy

STAMP = "20261121015241486262"


def open_one(path: Path) -> Any:
    (record,) = ascend_dump.open(path)
    return record


# torchair_npy


@pytest.fixture
def step(tmp_path):
    path = tmp_path / "worldsize2_global_rank1" / "graph_1" / "3"
    path.mkdir(parents=True)
    return path


def save(step: Path, name: str, value: Any, stamp: str = STAMP) -> Path:
    np.save(step / f"{name}.{stamp}", value)
    return step / f"{name}.{stamp}.npy"


def test_names_and_levels_are_read(step, tmp_path):
    save(step, "addmm_1-aten.addmm.default.INPUT.1", np.arange(6, dtype="f2").reshape(2, 3))
    record = open_one(tmp_path)
    assert (record.op_name, record.op_type) == ("addmm_1", "aten.addmm.default")
    assert (record.io, record.index, record.step, record.rank, record.model) == ("input", 0, 3, 1, "graph_1")
    assert record.attrs == {"argument": 1}
    assert (record.dtype, record.shape, record.nbytes, record.format) == ("float16", (2, 3), 12, "ND")
    assert record.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert record.statistics().max == 5
    time = datetime.fromtimestamp(record.timestamp / 1e6, timezone.utc)
    assert f"{time:%Y%m%d%H%M%S%f}" == STAMP


def test_items_of_a_list_have_positions_of_their_own(step, tmp_path):
    for name in ("INPUT.0.0", "INPUT.0.1", "INPUT.0.10", "INPUT.0.2", "INPUT.1", "OUTPUT.0"):
        save(step, f"cat-aten.cat.default.{name}", np.ones(1))
    found = {(record.io, record.index): record.attrs for record in ascend_dump.open(tmp_path)}
    assert found == {
        ("input", 0): {"argument": 0, "item": 0},
        ("input", 1): {"argument": 0, "item": 1},
        ("input", 2): {"argument": 0, "item": 2},
        ("input", 3): {"argument": 0, "item": 10},
        ("input", 4): {"argument": 1},
        ("output", 0): {"result": 0},
    }


def test_records_come_in_the_order_they_ran(step, tmp_path):
    for second, name in ((7, "a-aten.relu.default"), (5, "z-aten.mm.default"), (9, "m-aten.add.Tensor")):
        save(step, f"{name}.OUTPUT.0", np.ones(1), stamp=f"2026112101524{second}000000")
    assert [record.op_name for record in ascend_dump.open(tmp_path)] == ["z", "a", "m"]


def test_arguments_that_are_no_tensors_are_told_apart(step, tmp_path):
    save(step, "n-aten.sum.dim_IntList.INPUT.0", np.float32(3))
    save(step, "n-aten.sum.dim_IntList.INPUT.1", np.array([0, 1]))
    save(step, "n-aten.sum.dim_IntList.INPUT.2", np.array("mean"))
    save(step, "n-aten.sum.dim_IntList.INPUT.3", np.array(None))
    scalar, numbers, text, none = ascend_dump.open(tmp_path)
    assert (scalar.numpy().item(), scalar.shape) == (3, ())
    assert numbers.numpy().tolist() == [0, 1]
    assert [record.attrs["no_tensor"] for record in (text, none)] == ["<U4", "|O"]
    for record in (text, none):
        assert record.error is None
        with pytest.raises(NotSupported, match="is no tensor but a Python object"):
            record.numpy()
        with pytest.raises(NotSupported, match="pickled objects are never loaded"):
            record.statistics()


def test_a_pickle_in_an_npy_file_is_not_run(step, tmp_path, monkeypatch):
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    np.save(step / f"n-aten.add.INPUT.0.{STAMP}", np.array([Evil()], dtype=object), allow_pickle=True)
    record = open_one(tmp_path)
    with pytest.raises(NotSupported):
        record.numpy()
    assert not (tmp_path / "ran").exists()


def test_large_arrays_are_mapped(step, tmp_path):
    save(step, "a-b.OUTPUT.0", np.ones((1 << 19,)))
    assert isinstance(open_one(tmp_path).numpy(), np.memmap)
    with pytest.raises(NotSupported, match="without a device layout"):
        open_one(tmp_path).numpy(format="NCHW")


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\xff\xff" + b" " * 20,
        b"\x93NUMPY\x01\x00\x46\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999,), }".ljust(70),
        b"\x93NUMPY\x01\x00\x46\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }".ljust(70),
        b"\x93NUMPY\x01\x00\x46\x00" + b"__import__('os').abort()".ljust(70),
        b"PK\x03\x04",
    ],
)
def test_a_broken_file_is_one_broken_record(step, tmp_path, damage):
    (step / f"bad-aten.mm.default.OUTPUT.0.{STAMP}.npy").write_bytes(damage)
    save(step, "good-aten.mm.default.OUTPUT.0", np.ones(1))
    bad, good = ascend_dump.open(tmp_path)
    assert isinstance(bad.error, CorruptDump)
    assert bad.op_name == "bad"
    with pytest.raises(CorruptDump):
        bad.numpy()
    assert good.numpy().tolist() == [1]


@pytest.mark.parametrize(
    "name",
    [
        "mm-aten.mm.default.INPUT.0.npy",
        "mm-aten.mm.default.INPUT.0.99999999999999999999.npy",
        "mm.INPUT.0.20261121015241486262.npy",
        "-aten.mm.INPUT.0.20261121015241486262.npy",
        "mm-aten.mm.default.output.0.20261121015241486262.npy",
    ],
)
def test_other_names_are_left_alone(step, name):
    assert torchair_npy.DIALECT.scan(Directory(step, step.parts, [name], step)) == ([], set())


@given(
    st.from_regex(r"[a-z_][a-z0-9_]{0,20}", fullmatch=True),
    st.from_regex(r"[a-z_]{1,8}(\.[a-zA-Z_]{1,9}){0,3}", fullmatch=True),
    st.sampled_from(["INPUT", "OUTPUT"]),
    st.integers(0, 99),
    st.none() | st.integers(0, 99),
    st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1)),
)
def test_every_name_that_torchair_forms_is_read_back(node, target, io, argument, item, time):
    parts = ["", str(argument), *([] if item is None else [str(item)])]
    name = f"{node}-{target}.{io}{'.'.join(parts)}.{time:%Y%m%d%H%M%S%f}.npy"
    place = Path("/dump/worldsize1_global_rank0/graph_2/0")
    [entry], claimed = torchair_npy.DIALECT.scan(Directory(place, place.parts, [name], place))
    assert claimed == {name}
    assert (entry.op_name, entry.op_type, entry.step, entry.rank, entry.model) == (node, target, 0, 0, "graph_2")
    [record] = entry.records()
    assert (record.io, record.timestamp % 10**6) == (io.lower(), time.microsecond)
    attrs = {"argument" if io == "INPUT" else "result": argument}
    assert record.attrs == ({**attrs, "item": item} if item is not None else attrs)


# aclgraph_pt


@pytest.fixture
def rank(tmp_path):
    path = tmp_path / "worldsize1_global_rank0"
    path.mkdir()
    return path


DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
DTYPES += ["complex64", "complex128", "float8_e5m2", "float8_e4m3fn", "uint16"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_are_read_as_torch_saved_them(rank, tmp_path, dtype):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype, None) or pytest.skip(f"this torch has no {dtype}")
    x = torch.tensor([[0, 1, 0], [1, 1, 1]]).to(kind)
    torch.save(x, rank / "addmm_1_device_0_4.pt")
    record = open_one(tmp_path)
    assert (record.op_name, record.op_type, record.io, record.index) == ("addmm_1", "addmm", "output", 0)
    assert (record.step, record.rank, record.device) == (4, 0, 0)
    assert (record.dtype, record.shape, record.nbytes) == (dtype, (2, 3), x.nbytes)
    assert record.numpy().astype("c8").real.tolist() == [[0, 1, 0], [1, 1, 1]]
    assert record.statistics().max in (1, True, None)


def test_views_parameters_and_empty_tensors(rank, tmp_path):
    torch = pytest.importorskip("torch")
    whole = torch.arange(24.0).reshape(2, 3, 4)
    for number, tensor in enumerate(
        (whole[1, 1:, ::2], whole.permute(2, 0, 1), torch.nn.Parameter(whole), torch.zeros(0, 3), torch.tensor(5))
    ):
        torch.save(tensor, rank / f"relu_{number}.pt")
        (record,) = ascend_dump.open(rank).select(step=number)
        assert record.shape == tuple(tensor.shape)
        assert record.numpy().tolist() == tensor.tolist()


def test_a_broadcast_tensor_is_read_without_its_memory(rank, tmp_path):
    torch = pytest.importorskip("torch")
    torch.save(torch.ones(1).expand(10**6), rank / "expand_0.pt")
    assert open_one(tmp_path).numpy().strides == (0,)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("arg0_1_0.pt", ("placeholder", "arg0_1", 0, None)),
        ("primals_3_device_1_7.pt", ("placeholder", "primals_3", 7, 1)),
        ("tangents_1_0.pt", ("placeholder", "tangents_1", 0, None)),
        ("add_12.pt", ("add", "add", 12, None)),
        ("native_layer_norm_2_0.pt", ("native_layer_norm", "native_layer_norm_2", 0, None)),
    ],
)
def test_names_say_node_device_and_count(rank, file, expected):
    [entry], _ = aclgraph_pt.DIALECT.scan(Directory(rank, rank.parts, [file], rank))
    assert (entry.op_type, entry.op_name, entry.step, entry.device) == expected


def test_checkpoints_elsewhere_are_no_dump(tmp_path):
    names = ["model_3.pt", "optimizer.pt", "epoch_1_device.pt"]
    assert aclgraph_pt.DIALECT.scan(Directory(tmp_path, tmp_path.parts, names, tmp_path)) == ([], set())


def archive(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


#: What torch writes for a tensor of two float32, by protocol 2.
PICKLE = (
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
    b"X\x03\x00\x00\x00cpuK\x02tQK\x00K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR."
)
DATA = struct.pack("<2f", 1.5, -2)


def test_torch_is_not_needed(rank, tmp_path):
    archive(rank / "mm_0.pt", {"t/data.pkl": PICKLE, "t/byteorder": b"little", "t/data/0": DATA})
    assert open_one(tmp_path).numpy().tolist() == [1.5, -2]
    archive(rank / "mm_0.pt", {"t/data.pkl": PICKLE, "t/byteorder": b"big", "t/data/0": struct.pack(">2f", 1.5, -2)})
    assert open_one(tmp_path).numpy().tolist() == [1.5, -2]


HOSTILE = {
    "empty": {},
    "no pickle": {"t/data/0": DATA},
    "no storage": {"t/data.pkl": PICKLE},
    "too little data": {"t/data.pkl": PICKLE, "t/data/0": DATA[:7]},
    "two pickles": {"a/data.pkl": PICKLE, "b/data.pkl": PICKLE, "a/data/0": DATA},
    "endless pickle": {"t/data.pkl": PICKLE[:-1], "t/data/0": DATA},
    "empty stack": {"t/data.pkl": b"\x80\x02.", "t/data/0": DATA},
    "large pickle": {"t/data.pkl": b"\x80\x02" + b"K\x01" * 40_000 + b".", "t/data/0": DATA},
    "unknown memo": {"t/data.pkl": b"\x80\x02h\x05.", "t/data/0": DATA},
    "negative stride": {"t/data.pkl": PICKLE.replace(b"K\x01\x85", b"J\xff\xff\xff\xff\x85"), "t/data/0": DATA},
    "beyond the end": {"t/data.pkl": PICKLE.replace(b"K\x00K\x02", b"K\x09K\x02"), "t/data/0": DATA},
    "path as key": {"t/data.pkl": PICKLE.replace(b"X\x01\x00\x00\x000", b"X\x02\x00\x00\x00.."), "t/data/..": DATA},
    "many members": {"t/data.pkl": PICKLE, **{f"t/data/{number}": DATA for number in range(70)}},
    "another function": {"t/data.pkl": b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.", "t/data/0": DATA},
    "absurd shape": {
        "t/data.pkl": PICKLE.replace(b"K\x02\x85K\x01\x85", b"\x8a\x08" + b"\xff" * 7 + b"\x7fK\x02\x86K\x00K\x00\x86"),
        "t/data/0": DATA,
    },
    "a set": {"t/data.pkl": pickle.dumps({1, 2}, 4), "t/data/0": DATA},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_harm_one_record(rank, kind):
    archive(rank / "bad_0.pt", HOSTILE[kind])
    archive(rank / "good_0.pt", {"t/data.pkl": PICKLE, "t/data/0": DATA})
    bad, good = ascend_dump.open(rank)
    with pytest.raises((CorruptDump, NotSupported)):
        bad.numpy()
    assert good.numpy().tolist() == [1.5, -2]


def test_what_is_compressed_is_refused(rank):
    members = {"t/data.pkl": PICKLE, "t/data/0": DATA + bytes(10**6)}
    archive(rank / "bomb_0.pt", members, zipfile.ZIP_DEFLATED)
    assert "torch.save writes no such archive" in str(open_one(rank).error)


def test_a_member_that_claims_more_than_the_file_has_is_not_believed(rank):
    """zipfile makes room for the size in the directory, here 1 TiB, before it reads a byte."""
    file = rank / "mm_0.pt"
    archive(file, {"t/data.pkl": PICKLE, "t/data/0": DATA})
    data = file.read_bytes()
    with zipfile.ZipFile(file) as found:
        start, entries = found.start_dir, len(found.infolist())
    claim = struct.pack("<HHQQ", 1, 16, 1 << 40, 1 << 40)  # the extra field of zip64: both sizes
    at = data.index(b"t/data/0", start)
    entry = bytearray(data[at - 46 : at])
    entry[20:28] = b"\xff" * 8  # "the sizes stand in the extra field"
    entry[30:32] = struct.pack("<H", len(claim))
    directory = data[start : at - 46] + entry + b"t/data/0" + claim
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, entries, entries, len(directory), start, 0)
    file.write_bytes(data[:start] + directory + end)
    assert "claims more bytes than" in str(open_one(rank).error)


@given(st.binary(max_size=300))
def test_any_bytes_are_one_record(tmp_path_factory, data):
    rank = tmp_path_factory.mktemp("x") / "worldsize1_global_rank0"
    rank.mkdir()
    (rank / "a_0.pt").write_bytes(data)
    assert isinstance(open_one(rank).error, CorruptDump)


@given(st.binary(max_size=200), st.integers(0, len(PICKLE)))
def test_any_pickle_is_data(tmp_path_factory, data, at):
    rank = tmp_path_factory.mktemp("x") / "worldsize1_global_rank0"
    rank.mkdir()
    archive(rank / "a_0.pt", {"t/data.pkl": PICKLE[:at] + data, "t/data/0": DATA})
    record = open_one(rank)
    with contextlib.suppress(CorruptDump, NotSupported):
        assert record.numpy().nbytes <= len(DATA) * 64


def test_both_dialects_lie_in_one_tree(tmp_path):
    rank = tmp_path / "worldsize1_global_rank0"
    step = rank / "graph_1" / "0"
    step.mkdir(parents=True)
    save(step, "mm-aten.mm.default.OUTPUT.0", np.ones(2))
    archive(rank / "mm_0.pt", {"t/data.pkl": PICKLE, "t/data/0": DATA})
    assert [record.op_type for record in ascend_dump.open(tmp_path)] == ["mm", "aten.mm.default"]
