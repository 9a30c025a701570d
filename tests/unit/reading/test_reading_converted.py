"""The dialect `converted`: all names that msaccucmp and our `convert` write, and the values in the files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Optional

import ml_dtypes
import numpy as np
import places
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump import CorruptDump, NotSupported
from ascend_dump.analysis.overflow import find_overflows
from ascend_dump.cli import Exit, main
from ascend_dump.converting.convert import Options, convert_all, find_tasks
from ascend_dump.native.cann import formats
from ascend_dump.native.cann.dump_file import tensor_of, write
from ascend_dump.native.cann.overflow import PAYLOAD_SIZE, encode_overflow

DATA = places.DATA / "cann"
STAMP = 1589195081588018
LEVELS = "20260101120000/3/resnet50/1/7"
X = np.arange(6, dtype="f4").reshape(2, 3)


def dump_file(path: Path, *tensors: np.ndarray, io: str = "output", **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [tensor_of(io, number, tensor) for number, tensor in enumerate(tensors)]
    write(path, entries, op_name=path.name.split(".")[1], dump_time=STAMP, **options)
    return path


def convert(source: Path, out: Path, *, compat: bool = False, **options: Any) -> list[Path]:
    results = list(convert_all(find_tasks([source], out), Options(**options), jobs=1, compat=compat))
    return [path for result in results for path in result.written]


def save(path: Path, array: np.ndarray = X) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)
    return path


# --- names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # CANN's document on overflow, and MindSpore's on jit_level O2
        ("Pooling.pool1.1147.1589195081588018.output.0.npy", ("Pooling", "pool1", "output", 0, None)),
        (
            "Conv2D.Default_network-WithLossCell__backbone-AlexNet_conv3-Conv2d_Conv2D-op12.2.7.161243956333802"
            ".input.1.2x3.npy",
            ("Conv2D", "Default_network-WithLossCell__backbone-AlexNet_conv3-Conv2d_Conv2D-op12", "input", 1, None),
        ),
        (f"Add.a.1.7.{STAMP}.output.2.npy", ("Add", "a", "output", 2, None)),
        (f"Add.a.1.7.{STAMP}.output.0.NCHW.npy", ("Add", "a", "output", 0, "NCHW")),  # msnpy
        (f"Relu.relu_1.9.7.{STAMP}.4.487.0.3.input.0.ND.npy", ("Relu", "relu_1", "input", 0, "ND")),
        (f"Pooling.pool1.1147.{STAMP}.output.0.ND.npy", ("Pooling", "pool1", "output", 0, "ND")),
        (f"Add.a.1.7.{STAMP}.output.0.float32.2x3.NC1HWC0.npy", ("Add", "a", "output", 0, "NC1HWC0")),
    ],
)
def test_every_spelling_of_an_npy_file_is_read(name: str, expected: tuple[Any, ...], tmp_path: Path) -> None:
    save(tmp_path / LEVELS / name)
    [record] = ascend_dump.open(tmp_path)
    assert (record.op_type, record.op_name, record.io, record.index, record.format) == expected
    assert (record.step, record.device, record.model, record.model_id) == (7, 3, "resnet50", 1)
    assert record.run == "20260101120000"
    np.testing.assert_array_equal(record.numpy(), X)


def test_the_ids_in_the_name_are_known(tmp_path: Path) -> None:
    save(tmp_path / f"Relu.relu_1.9.8.{STAMP}.4.487.1.5.input.0.npy")
    [record] = ascend_dump.open(tmp_path)
    assert (record.task_id, record.stream_id, record.timestamp, record.device) == (9, 8, STAMP, 5)
    assert (record.attrs["context_id"], record.attrs["thread_id"]) == (487, 1)


@pytest.mark.parametrize("type", ["npy", "npz", "bin", "txt"])
def test_long_names_are_looked_up_in_the_mapping(type: str, tmp_path: Path) -> None:
    name = "n" * 240
    hashed = dump_file(tmp_path / "in" / "12345678901234567890.", X).rename(tmp_path / "in/12345678901234567890")
    (hashed.parent / "mapping.csv").write_text(f"{hashed.name},Add.{name}.1.7.{STAMP}\n")
    [path] = convert(hashed.parent, tmp_path / "out", type=type)
    assert len(path.stem) == 32
    [record] = ascend_dump.open(tmp_path / "out")
    assert (record.op_type, record.op_name, record.task_id) == ("Add", name, 1)
    np.testing.assert_array_equal(record.numpy(), X)


def test_the_hash_that_msaccucmp_leaves_in_a_name_is_looked_up_too(tmp_path: Path) -> None:
    save(tmp_path / "12345678901234567890.output.0.npy")
    [record] = ascend_dump.open(tmp_path)
    assert (record.op_name, record.io) == ("12345678901234567890", "output")
    (tmp_path / "mapping.csv").write_text(f"12345678901234567890,Add.a.1.7.{STAMP}\n")
    [record] = ascend_dump.open(tmp_path)
    assert (record.op_type, record.op_name, record.task_id) == ("Add", "a", 1)


def test_names_of_others_are_left_to_others(tmp_path: Path) -> None:
    for name in ("output.0.npy", "a.output.0.npy", "weights.npz", f"Add.a.1.7.{STAMP}.output.0.json", "x.input.1.txt"):
        (tmp_path / name).write_text("")
    with pytest.raises(ascend_dump.UnknownFormat):
        ascend_dump.open(tmp_path)


def test_one_file_of_each_tensor_is_read(tmp_path: Path) -> None:
    dump = dump_file(tmp_path / f"Add.a.1.7.{STAMP}", X, X + 1)
    for kind in ("npy", "npz", "bin", "txt", "csv"):
        convert(dump, tmp_path, type=kind)
    # As the document on overflow makes it of the npy file.
    np.savetxt(tmp_path / f"{dump.name}.output.0.txt", X.flatten())
    assert [(record.path, record.index) for record in ascend_dump.open(tmp_path)] == [(dump, 0), (dump, 1)]
    dump.unlink()
    assert [record.path.name for record in ascend_dump.open(tmp_path)] == [
        f"{dump.name}.output.{index}.npy" for index in (0, 1)
    ]
    save(tmp_path / f"{dump.name}.output.0.3x2.npy", X.T)
    assert len(ascend_dump.open(tmp_path)) == 3, "it is there in two layouts"


# --- values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["msaccucmp_npy", "msaccucmp_fmt"])
def test_what_msaccucmp_wrote_is_read(folder: str) -> None:
    """Files of the real converter, all of them."""
    files = [path for path in (DATA / folder).rglob("*") if path.is_file()]
    records = list(ascend_dump.open(DATA / folder))
    assert {record.path for record in records} == set(files)
    for record in records:
        expected = np.load(record.path) if record.path.suffix == ".npy" else np.fromfile(record.path, "u1")
        np.testing.assert_array_equal(record.numpy(), expected)
        assert (record.dtype, record.shape) == (expected.dtype.name, expected.shape)
        assert record.statistics().count == expected.size


def test_all_dump_files_give_the_same_values_converted(tmp_path: Path) -> None:
    """In bin files with the type that they had, whatever its bits; elsewhere in the widened type."""
    before = {(record.path.name, record.io, record.index): record for record in ascend_dump.open(DATA / "in")}
    for kind in ("bin", "npy", "npz"):
        convert(DATA / "in", tmp_path / kind, type=kind)
        seen = 0
        for record in ascend_dump.open(tmp_path / kind):
            name = next(name for name, *_ in before if record.path.name.startswith(f"{name}."))
            original = before[name, record.io, record.index]
            if record.error is not None or original.error is not None or original.attrs.get("data_type") == "HIFLOAT4":
                continue
            seen += 1
            value, expected = record.numpy(), original.numpy()
            assert kind != "bin" or value.dtype == expected.dtype
            wide = np.complex128 if expected.dtype.kind == "c" else np.float64
            np.testing.assert_array_equal(value.astype(wide), expected.astype(wide), err_msg=name)
        assert seen > 45


PLAIN = ("float32", "float16", "int8", "uint64", "bool", "complex64")
NARROW = ("bfloat16", "float8_e5m2", "int4", "float4_e2m1fn")


@settings(deadline=None, max_examples=150)
@given(
    dtype=st.sampled_from(PLAIN + NARROW),
    shape=st.lists(st.integers(0, 4), max_size=4).map(tuple),
    type=st.sampled_from(("npy", "npz", "bin", "txt", "csv")),
    names=st.sampled_from(("msaccucmp", "ours")),
    cast=st.sampled_from((None, "float32", "float64")),
    seed=st.integers(0, 1000),
)
def test_what_convert_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    dtype: str,
    shape: tuple[int, ...],
    type: str,
    names: str,
    cast: Optional[str],
    seed: int,
) -> None:
    root = tmp_path_factory.mktemp("converted")
    array = random_array(dtype, shape, seed)
    dump_file(root / f"in/{LEVELS}" / f"Add.a_b.1.7.{STAMP}", array, io="input")
    cast = None if dtype == "complex64" else cast
    convert(root / "in", root / "out", type=type, names=names, dtype=cast)
    [record] = ascend_dump.open(root / "out")
    assert record.error is None
    assert (record.op_type, record.op_name, record.io, record.index) == ("Add", "a_b", "input", 0)
    assert (record.step, record.device, record.timestamp) == (7, 3, STAMP)
    if type == "csv" and names == "msaccucmp":
        with pytest.raises(NotSupported, match="names ours"):
            record.numpy()
        return
    value = record.numpy()
    assert value.shape == record.shape == shape
    assert value.dtype.name == record.dtype
    wide = np.complex128 if dtype == "complex64" else np.float64
    np.testing.assert_array_equal(value.astype(wide), array.astype(wide))
    if cast is not None or type == "bin" or dtype in PLAIN:
        assert record.dtype == (cast or dtype)


def random_array(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 7, shape)
    return values.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))


@pytest.mark.parametrize("dtype", [*PLAIN, "bfloat16"])
@pytest.mark.parametrize("type", ["npy", "bin"])
def test_what_convert_writes_as_msaccucmp_is_read_back(dtype: str, type: str, tmp_path: Path) -> None:
    array = random_array(dtype, (2, 3), 0)
    convert(dump_file(tmp_path / f"Add.a.1.7.{STAMP}", array), tmp_path / "out", compat=True, type=type)
    [record] = ascend_dump.open(tmp_path / "out")
    assert record.dtype == ("float32" if dtype == "bfloat16" else dtype)
    # The names of its bin files have the number of elements.
    np.testing.assert_array_equal(record.numpy(), array.astype(record.dtype).reshape(record.shape))


@pytest.mark.parametrize(
    ("type", "names"),
    [
        ("npy", "msaccucmp"),
        ("npy", "ours"),
        ("npz", "ours"),
        ("bin", "msaccucmp"),
        ("bin", "ours"),
        ("txt", "ours"),
        ("csv", "ours"),
    ],
)
def test_what_convert_writes_in_another_layout_is_read_back(type: str, names: str, tmp_path: Path) -> None:
    array = random_array("float16", (1, 2, 3, 4), 0)
    source = tmp_path / f"Conv2D.a.1.7.{STAMP}"
    write(source, [tensor_of("input", 0, array, format=formats.format_number("NCHW"))], op_name="a", dump_time=STAMP)
    convert(source, tmp_path / "out", type=type, names=names, format="NHWC")
    [record] = ascend_dump.open(tmp_path / "out")
    assert record.format == ("NHWC" if type == "bin" or (names == "ours" and type != "npz") else None)
    np.testing.assert_array_equal(record.numpy(), array.transpose(0, 2, 3, 1))


def test_pt_files_are_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save(torch.from_numpy(X), tmp_path / f"Add.a.1.7.{STAMP}.output.0.pt")
    [record] = ascend_dump.open(tmp_path)
    assert (record.dtype, record.shape) == ("float32", (2, 3))
    np.testing.assert_array_equal(record.numpy(), X)


def test_text_without_its_type_is_listed_and_not_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savetxt(tmp_path / f"Add.a.1.7.{STAMP}.output.0.txt", X.flatten())
    [record] = ascend_dump.open(tmp_path)
    assert record.error is None
    with pytest.raises(NotSupported, match="without the type and shape"):
        record.numpy()
    assert main(["ls", str(tmp_path)]) == Exit.OK
    assert "Add" in capsys.readouterr().out


def test_a_long_line_of_digits_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / f"Add.a.1.7.{STAMP}.output.0.txt").write_text(f"# float32 [2, {'9' * 4000}")
    [record] = ascend_dump.open(tmp_path)
    with pytest.raises(NotSupported):
        record.numpy()


HEAD = f"Add.a.1.7.{STAMP}.output.0"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (f"{HEAD}.npy", b"\x93NUMPY", "begin like an npy"),
        (f"{HEAD}.2_3.float32.ND.bin", b"\0" * 23, "23 bytes, but float32"),
        (f"{HEAD}.9999999999999999999_9.float32.ND.bin", b"", "larger than any memory"),
        (f"{HEAD}.2_3.object.ND.bin", b"\0" * 48, "48 bytes, but object"),
        (f"{HEAD}.2_3.nothing.ND.bin", b"\0" * 48, "numpy does not know"),
        (f"{HEAD}.float32.2x3.ND.csv", b"1,2\n3,x\n,1,1,1,1", "not float32"),
        (f"{HEAD}.float32.2x300.ND.csv", b"1,2,3", "too many for"),
        (f"Add.a.1.7.{STAMP}.npz", b"PK\x05\x06", "no npz file"),
        (f"{HEAD}.pt", b"PK\x05\x06", "archive"),
        (f"Opdebug.Node_OpDebug.1.7.{STAMP}.output.0.json", b"[", "not the JSON"),
    ],
)
def test_broken_files_are_errors_of_their_own(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    save(tmp_path / f"Mul.m.1.7.{STAMP}.output.0.npy")
    dump = ascend_dump.open(tmp_path)
    broken, sound = sorted(dump, key=lambda record: record.op_type or "", reverse=name.startswith("Opdebug"))
    if broken.op_type == "Mul":
        broken, sound = sound, broken
    assert sound.error is None
    with pytest.raises(CorruptDump, match=reason):
        broken.numpy()


def test_a_compressed_archive_and_a_foreign_one_are_refused(tmp_path: Path) -> None:
    path = tmp_path / f"Add.a.1.7.{STAMP}.npz"
    np.savez_compressed(path, **{"output.0": X})
    [record] = ascend_dump.open(tmp_path)
    assert "compressed" in str(record.error)
    np.savez(path, weights=X)
    [record] = ascend_dump.open(tmp_path)
    assert "'weights.npy'" in str(record.error)


# --- overflow -------------------------------------------------------------------------------

OVERFLOW = {"AI Core": {"stream_id": 563, "task_id": 57, "model_id": 514, "status": 32}}


def overflow_dump(root: Path) -> Path:
    payload = np.frombuffer(encode_overflow(OVERFLOW), np.uint8)
    assert payload.size == PAYLOAD_SIZE
    dump_file(root / f"Opdebug.Node_OpDebug.59.3.{STAMP + 9}", payload)
    dump_file(root / f"Pooling.pool1.57.563.{STAMP}", X, X * 2)
    dump_file(root / f"Pooling.pool1.57.564.{STAMP}", X)
    return root


@pytest.mark.parametrize("spelling", ["Opdebug.Node_OpDebug.59.3", "OpDebug.Node_Opdebug.59"])
def test_overflow_finds_the_operator_in_converted_files(spelling: str, tmp_path: Path) -> None:
    convert(overflow_dump(tmp_path / "in"), tmp_path / "out")
    [record] = (tmp_path / "out").glob("Opdebug*")
    record.rename(record.with_name(f"{spelling}.{STAMP + 9}.output.0.json"))
    report = find_overflows(ascend_dump.open(tmp_path / "out"))
    [overflow] = report.overflows
    assert (overflow.unit, overflow.status, overflow.operator["op_name"]) == ("AI Core", (32,), "pool1")
    assert [(tensor.io, tensor.index, tensor.stream_id) for tensor in overflow.tensors] == [
        ("output", 0, 563),
        ("output", 1, 563),
    ]


@pytest.mark.parametrize("converted", ["Opdebug", "Pooling"])
def test_the_record_and_its_operator_may_be_in_different_formats(converted: str, tmp_path: Path) -> None:
    overflow_dump(tmp_path)
    for path in list(tmp_path.glob(f"{converted}*")):
        convert(path, tmp_path)
        path.unlink()
    [overflow] = find_overflows(ascend_dump.open(tmp_path)).overflows
    assert overflow.operator["op_name"] == "pool1"
    assert len(overflow.tensors) == 2


def test_the_dump_file_is_read_where_it_lies_beside_its_converted_ones(tmp_path: Path) -> None:
    overflow_dump(tmp_path)
    convert(tmp_path, tmp_path)
    [overflow] = find_overflows(ascend_dump.open(tmp_path)).overflows
    assert [tensor.path.name for tensor in overflow.tensors] == [f"Pooling.pool1.57.563.{STAMP}"] * 2


def test_a_record_opened_alone_finds_its_operator_beside_it(tmp_path: Path) -> None:
    convert(overflow_dump(tmp_path / "in"), tmp_path / "out")
    for root in ("in", "out"):
        [path] = (tmp_path / root).glob("Opdebug*")
        [overflow] = find_overflows(ascend_dump.open(path)).overflows
        assert overflow.operator["op_name"] == "pool1"


def test_the_bytes_of_an_overflow_record_survive(tmp_path: Path) -> None:
    overflow_dump(tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "out")
    before, after = (next(iter(ascend_dump.open(tmp_path / one).select(op_type="Opdebug"))) for one in ("in", "out"))
    np.testing.assert_array_equal(before.numpy(), after.numpy())


# --- the verbs ------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["npy", "npz", "bin"])
def test_the_verbs_work_on_a_converted_tree(type: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in" / LEVELS
    dump_file(source / f"Add.net_add.1.7.{STAMP}", X)
    dump_file(source / f"Mul.net_mul.2.7.{STAMP + 1}", np.array([1, np.nan], "f4"))
    out = tmp_path / "out"
    convert(tmp_path / "in", out, type=type)
    assert main(["ls", str(out), "--json"]) == Exit.OK
    assert main(["stats", str(out), "--json"]) == Exit.OK
    capsys.readouterr()
    assert main(["compare", str(out), str(tmp_path / "in"), "--json"]) == Exit.OK
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "equal"
    shutil.copytree(out, tmp_path / "other")
    assert main(["compare", str(out), str(tmp_path / "other")]) == Exit.OK
    assert main(["overflow", str(out)]) == Exit.DIFFERENT
    assert "net_mul" in capsys.readouterr().out
    assert main(["triage", str(out)]) == Exit.DIFFERENT
    assert "net_mul" in capsys.readouterr().out
    assert main(["convert", str(out), "--out", str(tmp_path / "again")]) == Exit.OK
    assert len(list((tmp_path / "again").rglob("*.npy"))) == 2
    assert main(["convert", str(next(out.rglob("Add*"))), "--out", str(tmp_path / "one")]) == Exit.OK
    assert len(list((tmp_path / "one").rglob("*.npy"))) == 1
