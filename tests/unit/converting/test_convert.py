"""`convert`: what it writes, under which names, and what it does about what cannot be converted."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import places
import pytest

from ascend_dump import ConfigError, DumpNotFound, ReadError, WriteError
from ascend_dump.adapter import Steps
from ascend_dump.cli import main
from ascend_dump.converting.convert import Options, Result, check_options, convert_all, find_tasks
from ascend_dump.native.cann import dtypes, formats
from ascend_dump.native.cann.dump_file import Tensor, decode, read_header, tensor_of, write

DATA = places.DATA / "cann"
STAMP = 1589195081588018


def convert(source: Path, out: Path, *, compat: bool = False, jobs: int = 1, **options: object) -> list[Result]:
    return list(convert_all(find_tasks([source], out), Options(**options), jobs=jobs, compat=compat))


def tree(path: Path) -> dict[str, bytes]:
    return {str(found.relative_to(path)): found.read_bytes() for found in sorted(path.rglob("*")) if found.is_file()}


def write_file(path: Path, *arrays: np.ndarray, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pairs = [tensor_of("input" if number else "output", number, array) for number, array in enumerate(arrays)]
    write(path, pairs, op_name=path.name.split(".")[1], dump_time=STAMP, **options)
    return path


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return write_file(tmp_path / f"in/Add.a.1.7.{STAMP}", np.arange(6, dtype=np.float32).reshape(2, 3))


# what is written


def test_every_fixture_becomes_what_decode_gives(tmp_path: Path) -> None:
    results = convert(DATA / "in", tmp_path / "out")
    assert len(results) == 46
    failed = {result.source.name.split(".")[1]: result.failures[0].error.code for result in results if result.failures}
    assert failed == {"complex32": "AD401", "hif4": "AD203", "sh": "AD401"}
    for result in results:
        dump = read_header(result.source)
        for tensor in dump.tensors:
            path = tmp_path / "out" / f"{result.source.name}.{tensor.io}.{tensor.index}.npy"
            if result.failures:
                assert not path.exists()
                continue
            array, expected = np.load(path), decode(dump, tensor)
            assert array.shape == expected.shape
            wide = np.complex128 if expected.dtype.kind == "c" else np.float64
            np.testing.assert_array_equal(array.astype(wide), expected.astype(wide))
            assert path in result.written


def test_what_a_killed_process_left_is_removed(one: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in (".convert-left", ".convert-used", ".convert-young", "mine"):
        (out / name).write_bytes(b"a part")
        if name != ".convert-young":
            os.utime(out / name, (1e9, 1e9))
    with open(out / ".convert-used", "rb") as used:
        fcntl.flock(used, fcntl.LOCK_EX)
        (result,) = convert(one, out)
    assert {path.name for path in out.iterdir()} == {
        *(".convert-used", ".convert-young", "mine"), result.written[0].name
    }  # fmt: skip


def test_as_is_it_is_what_numpy_saves(one: Path, tmp_path: Path) -> None:
    (result,) = convert(one, tmp_path / "out")
    np.save(tmp_path / "expected.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    (path,) = result.written
    assert path.read_bytes() == (tmp_path / "expected.npy").read_bytes()
    assert result.size == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_large_payloads_are_copied_whole(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 255, (3, 100_001), dtype=np.uint8)
    source = write_file(tmp_path / f"Add.a.1.7.{STAMP}", array)
    (result,) = convert(source, tmp_path / "out")
    np.testing.assert_array_equal(np.load(result.written[0]), array)


@pytest.mark.parametrize("kernel", ["refuses", "missing"])
def test_without_the_kernel_s_copy(kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "across file systems")

    if kernel == "refuses":
        monkeypatch.setattr(os, "copy_file_range", refuse)
    else:
        monkeypatch.delattr(os, "copy_file_range")
    # More than is read at once, which is 16 MiB.
    array = np.random.default_rng(0).integers(0, 255, (1 << 24) + 100_001, dtype=np.uint8)
    (result,) = convert(write_file(tmp_path / f"Add.a.1.7.{STAMP}", array), tmp_path / "out")
    np.testing.assert_array_equal(np.load(result.written[0]), array)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float4_e2m1fn", "float8_e8m0fnu"])
def test_types_numpy_lacks_become_float32(name: str, tmp_path: Path) -> None:
    array = np.arange(8).astype(getattr(ml_dtypes, name))
    (result,) = convert(write_file(tmp_path / f"Add.a.1.7.{STAMP}", array), tmp_path / "out")
    loaded = np.load(result.written[0])
    assert loaded.dtype == np.float32
    np.testing.assert_array_equal(loaded, array.astype(np.float32))


def test_small_integers_become_int8(tmp_path: Path) -> None:
    array = np.array([-8, 7, -1, 0]).astype(ml_dtypes.int4)
    (result,) = convert(write_file(tmp_path / f"Add.a.1.7.{STAMP}", array), tmp_path / "out")
    loaded = np.load(result.written[0])
    assert (loaded.dtype, loaded.tolist()) == (np.int8, [-8, 7, -1, 0])


def test_dtype(one: Path, tmp_path: Path) -> None:
    (result,) = convert(one, tmp_path / "out", dtype="float16")
    assert np.load(result.written[0]).dtype == np.float16
    (result,) = convert(one, tmp_path / "bin", type="bin", dtype="bfloat16")
    expected = np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16)
    assert result.written[0].read_bytes() == expected.tobytes()
    assert result.written[0].name.endswith(".output.0.2_3.bfloat16.ND.bin")


@pytest.mark.parametrize(
    ("values", "dtype", "lost"),
    [
        ([255.5, -0.5, 3.0], "uint8", 0),
        ([256.0, -1.0, 3.0], "uint8", 2),
        ([7.5, -8.5, 8.0], "int4", 1),
        ([2.0**63, -(2.0**63), 2.0**62], "int64", 1),
        ([2.0**64, 2.0**63], "uint64", 1),
        ([np.nan, np.inf, 1.0], "int32", 2),
        ([1e39, -np.inf, np.nan, 65504.0], "float16", 1),
        ([1e39, 3e38], "float32", 1),
        ([1e39, 1.0], "bfloat16", 1),
        ([np.inf, 448.0], "float8_e4m3fn", 1),
    ],
)
def test_values_that_a_type_cannot_hold_are_counted(values: list[float], dtype: str, lost: int, tmp_path: Path) -> None:
    source = write_file(tmp_path / f"Add.a.1.7.{STAMP}", np.array(values))
    (result,) = convert(source, tmp_path / "out", type="bin", dtype=dtype)
    counts = [problem.split()[2] for problem in result.problems]
    assert counts == ([str(lost)] if lost else [])


def test_integers_that_a_type_cannot_hold_are_counted(tmp_path: Path) -> None:
    source = write_file(tmp_path / f"Add.a.1.7.{STAMP}", np.array([-1, 70_000, 255]))
    for dtype, lost in (("uint8", 2), ("uint64", 1), ("float16", 1)):
        (result,) = convert(source, tmp_path / dtype, dtype=dtype)
        assert f"output 0: {lost} value" in result.problems[0]


def test_a_complex_value_is_not_cut_to_its_real_part(tmp_path: Path) -> None:
    source = write_file(tmp_path / f"Add.a.1.7.{STAMP}", np.array([1 + 2j], np.complex64))
    (result,) = convert(source, tmp_path / "out", dtype="float32")
    assert "complex64 cannot be converted to float32" in str(result.failures[0].error)
    (result,) = convert(source, tmp_path / "out", dtype="complex128")
    assert np.load(result.written[0]).tolist() == [1 + 2j]


def test_bin_is_the_payload_without_padding(tmp_path: Path) -> None:
    array = np.arange(4).astype(ml_dtypes.int4)
    tensor, data = tensor_of("output", 0, array)
    source = tmp_path / f"Add.a.1.7.{STAMP}"
    padded = np.concatenate([data, np.zeros(30, np.uint8)])
    write(source, [(tensor._replace(size=32), padded)], op_name="a", dump_time=1)
    (result,) = convert(source, tmp_path / "out", type="bin")
    assert result.written[0].read_bytes() == data.tobytes()
    assert result.written[0].name == f"{source.name}.output.0.4.int4.ND.bin"


def test_bin_takes_what_has_no_values(tmp_path: Path) -> None:
    for prefix, size in (("Cast.hif4", 4), ("Short", 12)):
        source = next(path for path in (DATA / "in").iterdir() if path.name.startswith(prefix))
        (result,) = convert(source, tmp_path / "out", type="bin")
        assert not result.failures
        assert result.written[0].stat().st_size == size


def test_npz_holds_an_operator(tmp_path: Path) -> None:
    source = next(path for path in (DATA / "in").iterdir() if path.name.startswith("Fus"))
    (result,) = convert(source, tmp_path / "out", type="npz")
    assert [path.name for path in result.written] == [f"{source.name}.npz"]
    with np.load(result.written[0]) as archive:
        assert sorted(archive) == ["l1buffer.0", "output.0", "space.0"]
        assert archive["space.0"].tobytes() == b"hello log\0\0\0"
        assert archive["output.0"].shape == (2, 3)


@pytest.mark.parametrize(("type_", "separator"), [("txt", " "), ("csv", ",")])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int16"])
def test_text_reads_back_to_the_same_values(type_: str, separator: str, dtype: str, tmp_path: Path) -> None:
    values = np.array([[1 / 3, -np.inf, np.nan], [65504, 5e-8, -0.0]])
    array = (np.arange(6).reshape(2, 3) if dtype == "int16" else values).astype(dtype)
    source = write_file(tmp_path / f"Add.a.1.7.{STAMP}", array)
    (result,) = convert(source, tmp_path / "out", type=type_)
    text = result.written[0].read_text()
    assert text.startswith(f"# {dtype} [2, 3] ND\n") == (type_ == "txt")
    loaded = np.loadtxt(result.written[0], delimiter=separator).astype(dtype)
    np.testing.assert_array_equal(loaded, array)
    assert result.size == len(text.encode())


def test_text_of_other_shapes(tmp_path: Path) -> None:
    for number, (array, lines) in enumerate(
        [
            (np.float32(2.5), "2.5\n"),
            (np.arange(3, dtype=np.uint8), "0,1,2\n"),
            (np.zeros((0, 3), np.float32), ""),
            (np.arange(8, dtype=np.int32).reshape(2, 2, 2), "0,1\n2,3\n4,5\n6,7\n"),
            (np.array([True, False]), "1,0\n"),
            (np.array([1.5 - 2j], np.complex64), "1.5-2j\n"),
        ]
    ):
        source = write_file(tmp_path / f"Add.a{number}.1.7.{STAMP}", np.asarray(array))
        (result,) = convert(source, tmp_path / "out", type="csv")
        assert result.written[0].read_text() == lines


def test_layouts(tmp_path: Path) -> None:
    plain = np.arange(2 * 20 * 3 * 4, dtype=np.float16).reshape(2, 20, 3, 4)
    blocked = formats.convert(plain, "NCHW", "NC1HWC0")
    source = tmp_path / f"Conv2D.c.1.7.{STAMP}"
    number = formats.format_number("NC1HWC0")
    pair = tensor_of("output", 0, blocked, format=number, original_shape=(2, 3, 4, 20))  # NHWC in the model
    write(source, [pair], op_name="c", dump_time=1)
    for target, array in (("NCHW", plain), ("original", plain.transpose(0, 2, 3, 1))):
        (result,) = convert(source, tmp_path / target, format=target)
        loaded = np.load(result.written[0])
        np.testing.assert_array_equal(loaded, array)
        dims = "x".join(map(str, array.shape))
        assert result.written[0].name == f"{source.name}.output.0.{dims}.npy"
    (result,) = convert(source, tmp_path / "ours", format="original", names="ours")
    assert result.written[0].name == f"{source.name}.output.0.float16.2x3x4x20.NHWC.npy"


def test_a_shape_given_takes_the_place_of_the_recorded_one(tmp_path: Path) -> None:
    plain = np.arange(18 * 20, dtype=np.float32).reshape(18, 20)
    source = tmp_path / f"MatMul.m.1.7.{STAMP}"
    pair = tensor_of("output", 0, formats.convert(plain, "ND", "FRACTAL_NZ"), format=29, original_shape=())
    write(source, [pair], op_name="m", dump_time=1)
    (result,) = convert(source, tmp_path / "out", format="ND")
    assert np.load(result.written[0]).shape == (32, 32)
    (result,) = convert(source, tmp_path / "cut", format="ND", shape=(18, 20))
    np.testing.assert_array_equal(np.load(result.written[0]), plain)


def test_an_overflow_record_becomes_json(tmp_path: Path) -> None:
    results = convert(DATA / "in_overflow", tmp_path / "out")
    assert not any(result.failures for result in results)
    for expected in (DATA / "msaccucmp_overflow").glob("*.json"):
        assert (tmp_path / "out" / expected.name).read_bytes() == expected.read_bytes()


def test_only_some_tensors(tmp_path: Path) -> None:
    source = next(path for path in (DATA / "in").iterdir() if path.name.startswith("Add.Add_1"))
    (result,) = convert(source, tmp_path / "out", io="input", indices=Steps("1"))
    assert [path.name for path in result.written] == [f"{source.name}.input.1.npy"]


def test_what_was_not_dumped_is_no_failure(tmp_path: Path) -> None:
    array = np.arange(3, dtype=np.float32)
    source = tmp_path / f"Add.a.1.7.{STAMP}"
    lost = tensor_of("input", 1, array)[0]
    write(source, [tensor_of("input", 0, array, address=9), (lost, None)], op_name="a", dump_time=1)
    (result,) = convert(source, tmp_path / "out")
    assert (len(result.written), result.failures) == (1, ())
    assert result.problems == ("input 1: nothing was dumped, its address was null on the device",)


# which files


def test_a_tree_keeps_its_places(tmp_path: Path) -> None:
    array = np.arange(3, dtype=np.float32)
    root = tmp_path / "dumps"
    write_file(root / f"20260101000000/0/m/1/0/Add.a.1.7.{STAMP}", array)
    write_file(root / f"20260101000000/0/m/1/1/Add.a.1.7.{STAMP}", array)
    (root / "20260101000000/0/mapping.csv").write_text("")
    (root / "20260101000000/0/notes").write_text("not a dump")
    (root / f"20260101000000/0/m/1/0/Add.a.1.7.{STAMP}.csv").write_text("Input/Output,Index")
    results = convert(root, tmp_path / "out", jobs=3)
    assert list(tree(tmp_path / "out")) == [
        f"20260101000000/0/m/1/{step}/Add.a.1.7.{STAMP}.output.0.npy" for step in (0, 1)
    ]
    assert [result.source.name for result in results if result.skipped] == ["notes"]
    assert not any(result.failures for result in results)


def test_several_trees_do_not_mix(tmp_path: Path) -> None:
    array = np.arange(3, dtype=np.float32)
    roots = [tmp_path / "a/dumps", tmp_path / "b/dumps", tmp_path / "other"]
    for root in roots:
        write_file(root / f"Add.a.1.7.{STAMP}", array)
    list(convert_all(find_tasks(roots, tmp_path / "out"), Options(), jobs=2))
    assert list(tree(tmp_path / "out")) == [
        f"{name}/Add.a.1.7.{STAMP}.output.0.npy" for name in ("dumps", "dumps-2", "other")
    ]


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    files = [write_file(tmp_path / name / f"Add.a.1.7.{STAMP}", np.zeros(1)) for name in "ab"]
    with pytest.raises(ConfigError, match="the same files"):
        list(find_tasks(files, tmp_path / "out"))


def test_results_inside_the_source_are_not_converted_again(one: Path, tmp_path: Path) -> None:
    root = one.parent
    for _ in range(2):
        results = convert(root, root / "out")
        assert [result.source for result in results] == [one]
    assert convert(root, root)[0].written == (root / f"{one.name}.output.0.npy",)
    assert [result.source for result in convert(root, root)] == [one]


def test_selecting_by_the_name_in_the_file_name(tmp_path: Path) -> None:
    for name in ("conv1", "relu1"):
        write_file(tmp_path / f"in/X.{name}.1.7.{STAMP}", np.zeros(1))
    tasks = list(find_tasks([tmp_path / "in"], tmp_path, lambda name: name.startswith("conv")))
    assert [task.source.name for task in tasks] == [f"X.conv1.1.7.{STAMP}"]


def test_renamed_files_are_selected_by_their_real_name(tmp_path: Path) -> None:
    write_file(tmp_path / "in/12345678901234567890.b", np.zeros(1)).rename(tmp_path / "in/12345678901234567890")
    (tmp_path / "in/mapping.csv").write_text(f"12345678901234567890,X.conv1.1.7.{STAMP}\n")
    for name, count in (("conv1", 1), ("relu", 0)):
        assert len(list(find_tasks([tmp_path / "in"], tmp_path, lambda text, name=name: text == name))) == count


def test_a_source_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(DumpNotFound):
        list(find_tasks([tmp_path / "no"], tmp_path))


# names


def test_names_too_long_are_hashed_and_noted(tmp_path: Path) -> None:
    long = f"Add.{'x' * 220}.1.7.{STAMP}"
    source = write_file(tmp_path / long, np.arange(3, dtype=np.float32))
    for _ in range(2):
        (result,) = convert(source, tmp_path / "out")
        (path,) = result.written
        assert len(path.name) == 36
        np.testing.assert_array_equal(np.load(path), [0, 1, 2])
        mapping = (tmp_path / "out/mapping.csv").read_text()
        assert mapping == f"{path.name},{long}.output.0.npy\n"


def test_a_name_of_many_bytes_but_few_characters(tmp_path: Path) -> None:
    source = write_file(tmp_path / f"Add.{'算' * 74}.1.7.{STAMP}", np.arange(3, dtype=np.float32))
    (result,) = convert(source, tmp_path / "out")
    assert len(result.written[0].name) == 36


def test_ours_carry_type_and_shape(one: Path, tmp_path: Path) -> None:
    (result,) = convert(one, tmp_path / "out", names="ours")
    assert result.written[0].name == f"{one.name}.output.0.float32.2x3.ND.npy"
    bf16 = write_file(tmp_path / f"Add.b.1.7.{STAMP}", np.ones((), ml_dtypes.bfloat16))
    (result,) = convert(bf16, tmp_path / "out", names="ours")
    assert result.written[0].name == f"{bf16.name}.output.0.bfloat16.scalar.ND.npy"


# what goes wrong


def test_one_broken_file_does_not_stop_the_others(tmp_path: Path) -> None:
    for number in range(6):
        write_file(tmp_path / f"in/Add.a{number}.1.7.{STAMP}", np.arange(3, dtype=np.float32))
    (tmp_path / f"in/Add.a3.1.7.{STAMP}").write_bytes(b"broken")
    cut = tmp_path / f"in/Add.a4.1.7.{STAMP}"
    os.truncate(cut, cut.stat().st_size - 2)
    results = convert(tmp_path / "in", tmp_path / "out", jobs=3)
    assert [bool(result.failures) for result in results] == [False, False, False, True, True, False]
    assert len(tree(tmp_path / "out")) == 4
    assert results[3].failures[0].what == ""
    assert results[4].failures[0].what == "output 0"


def test_a_failed_write_leaves_nothing_and_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_file(tmp_path / f"Add.a.1.7.{STAMP}", np.zeros(100_000))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(WriteError, match="No space left"):
        convert(source, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_what_a_killed_process_of_the_same_number_left_stops_nothing(one: Path, tmp_path: Path) -> None:
    """In containers every process may have the same number."""
    out = tmp_path / "out"
    out.mkdir()
    for number in range(1000):
        (out / f".convert-{os.getpid()}-{number}").write_bytes(b"half")
    (result,) = convert(one, out)
    assert not result.failures
    assert (out / f"{one.name}.output.0.npy").is_file()


def test_an_old_result_is_replaced_whole(one: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / f"{one.name}.output.0.npy"
    target.parent.mkdir()
    target.write_bytes(b"x" * 5000)
    convert(one, tmp_path / "out")
    assert np.load(target).shape == (2, 3)


def test_a_link_in_the_way_is_replaced_not_followed(one: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    target = tmp_path / "out" / f"{one.name}.output.0.npy"
    target.parent.mkdir()
    target.symlink_to(tmp_path / "precious")
    convert(one, tmp_path / "out")
    assert (tmp_path / "precious").read_text() == "mine"
    assert np.load(target).shape == (2, 3)


def test_threads_write_what_one_writes(tmp_path: Path) -> None:
    convert(DATA / "in", tmp_path / "one", jobs=1)
    convert(DATA / "in", tmp_path / "many", jobs=8)
    assert tree(tmp_path / "one") == tree(tmp_path / "many")


def test_stopping_early_leaves_no_thread_behind(tmp_path: Path) -> None:
    results = convert_all(find_tasks([DATA / "in"], tmp_path / "out"), Options(), jobs=2)
    next(results)
    results.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ascend-dump-convert")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "pt"}, "type='pt'"),
        ({"format": "nchw"}, "format='nchw'"),
        ({"shape": (1, 2)}, "shape="),
        ({"dtype": "float33"}, "dtype='float33'"),
        ({"dtype": "datetime64"}, "dtype='datetime64'"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16' cannot be written"),
        ({"original_format": "ncwh"}, "original_format='ncwh'"),
    ],
)
def test_options_that_cannot_work(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_options(Options(**options))


def test_mutated_files_give_typed_failures_only(tmp_path: Path) -> None:
    rng = random.Random(1)
    for number, path in enumerate(sorted((DATA / "in").iterdir()) * 3):
        content = bytearray(path.read_bytes())
        for _ in range(3):
            content[rng.randrange(min(len(content), 100))] = rng.randrange(256)
        mutant = tmp_path / "in" / f"Cast.m{number}.1.7.{STAMP}"
        mutant.parent.mkdir(exist_ok=True)
        mutant.write_bytes(content)
    for type_ in ("npy", "bin", "npz", "csv"):
        results = convert(tmp_path / "in", tmp_path / type_, type=type_, jobs=2)
        assert len(results) == 3 * 46
    for compat in (False, True):
        assert len(convert(tmp_path / "in", tmp_path / f"nchw{compat}", format="NCHW", compat=compat)) == 3 * 46


# as msaccucmp


def test_compat_equals_the_real_converter(tmp_path: Path) -> None:
    results = convert(DATA / "in", tmp_path / "out", compat=True, jobs=2)
    assert tree(tmp_path / "out") == tree(DATA / "msaccucmp_npy")
    unread = {result.source.name.split(".")[1] for result in results if result.failures}
    packed = {"int4", "int2", "uint2", "e3m2", "e2m3", "e2m1", "e1m2", "hif4"}
    assert unread == packed | {"string", "qint8", "variant", "complex32", "e8m0", "sh"}


def test_compat_equals_the_real_overflow_records(tmp_path: Path) -> None:
    convert(DATA / "in_overflow", tmp_path / "out", compat=True)
    expected = tree(DATA / "msaccucmp_overflow")
    # The summary is by its overflow command; it stopped before the file of SDMA.
    found = tree(tmp_path / "out")
    assert {name: found[name] for name in expected if not name.startswith("overflow_summary")} == {
        name: content for name, content in expected.items() if not name.startswith("overflow_summary")
    }


@pytest.mark.parametrize("directory", sorted((DATA / "msaccucmp_fmt").iterdir()), ids=lambda path: path.name)
def test_compat_equals_the_real_layouts(directory: Path, tmp_path: Path) -> None:
    name, _, rest = directory.name.partition("_")
    target, _, shape = rest.partition("-o_0_-s_")
    options = {"format": target, "shape": tuple(map(int, shape.split(","))) if shape else ()}
    convert(DATA / "in" / name, tmp_path / "out", compat=True, **options)
    assert tree(tmp_path / "out") == tree(directory)


def test_compat_reproduces_the_known_mistakes(tmp_path: Path) -> None:
    source = next(path for path in (DATA / "in").iterdir() if path.name.startswith("TransData"))
    (result,) = convert(source, tmp_path / "out", compat=True, format="NHWC")
    assert result.written[0].name.endswith(".output.0.1x2x3x2.npy")
    blocked = next(path for path in (DATA / "in").iterdir() if path.name.startswith("Conv2D.conv1"))
    (result,) = convert(blocked, tmp_path / "out", compat=True, format="NHWC")
    assert result.written[0].name.endswith(".output.0.1x2x3x32.npy")
    bf16 = next(path for path in (DATA / "in").iterdir() if path.name.startswith("Cast.bf16"))
    (result,) = convert(bf16, tmp_path / "out", compat=True, type="bin")
    assert result.written[0].name.endswith(".output.0.6.bfloat16.ND.bin")
    assert result.written[0].stat().st_size == 24
    add = next(path for path in (DATA / "in").iterdir() if path.name.startswith("Add.Add_1"))
    (result,) = convert(add, tmp_path / "out", compat=True, type="bin")
    assert result.written[2].name.endswith(".output.0.6.float32.ND.bin")


def test_compat_refuses_a_file_with_null_addresses(tmp_path: Path) -> None:
    array = np.arange(3, dtype=np.float32)
    source = tmp_path / f"Add.a.1.7.{STAMP}"
    pairs = [tensor_of("input", 0, array, address=9), (tensor_of("input", 1, array)[0], None)]
    write(source, pairs, op_name="a", dump_time=1)
    (result,) = convert(source, tmp_path / "out", compat=True)
    assert "msaccucmp's error 11" in result.failures[0].error.message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [{"type": "npz"}, {"dtype": "float32"}, {"names": "ours"}, {"format": "NCL"}])
def test_compat_has_fewer_options(options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="msaccucmp"):
        convert(DATA / "in", tmp_path, compat=True, **options)


# the command


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["convert", str(DATA / "in"), "-o", str(out)]) == 3
    captured = capsys.readouterr()
    assert captured.out.startswith("46 dump files · 53 files written · ")
    assert "3 could not be converted, in 3 files:" in captured.err
    assert "Short.sh" in captured.err
    assert "needs 24 [AD401]" in captured.err
    add = next((DATA / "in").glob("Add.Add_1*"))
    assert main(["convert", str(add), "-o", str(out), "--type", "csv", "--io", "output"]) == 0
    assert capsys.readouterr().err == ""
    assert (out / f"{add.name}.output.0.csv").exists()


def test_the_command_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["convert", str(DATA / "in"), "-o", str(tmp_path), "--select", "hif*", "--json"]
    assert main(arguments) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "ascend-dump/convert/1"
    assert document["totals"] == {
        "files": 2,
        "written": 1,
        "bytes": 1152,
        "failed_files": 1,
        "failures": 1,
        "skipped": 0,
    }
    failed, done = document["files"]
    assert (failed["failures"][0]["what"], failed["failures"][0]["error"]["code"]) == ("output 0", "AD203")
    assert done["written"] == [str(tmp_path / "Cast.hif8.5.7.1589195081588151.output.0.npy")]


def test_the_command_lists_failures_as_msaccucmp_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(DATA / "in", tmp_path / "in")
    assert main(["convert", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--msaccucmp-compat"]) == 3
    listed = (tmp_path / "out/convert_failed_file_list.txt").read_text().splitlines()
    assert str(tmp_path / "in/Cast.int4.5.7.1589195081588246") in listed
    assert len(listed) == 14


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["no-such-file"], 3),
        ([str(DATA / "in"), "--type", "pt"], 2),
        ([str(DATA / "in"), "--format", "NCWH"], 2),
        ([str(DATA / "in"), "--shape", "1,x"], 2),
        ([str(DATA / "in"), "--index", "x"], 2),
        ([str(DATA / "in"), "--dtype", "real"], 2),
        ([], 2),
    ],
)
def test_the_command_s_exit_codes(arguments: list[str], code: int, tmp_path: Path) -> None:
    assert main(["convert", *arguments, "-o", str(tmp_path / "out")]) == code
    assert not (tmp_path / "out").exists()


def test_a_directory_without_dumps_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes").write_text("hello")
    assert main(["convert", str(tmp_path), "-o", str(tmp_path / "out")]) == 3
    captured = capsys.readouterr()
    assert "1 file of other kinds left out" in captured.out
    assert "no dump file of CANN was found" in captured.err
    assert "`ascend-dump ls`" in captured.err


def test_the_command_explains_what_is_odd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_file(tmp_path / f"Add.a.1.7.{STAMP}", np.zeros(1, np.float32))
    write_file(source, np.zeros(1, np.float32), append=True)
    assert main(["convert", str(source), "-o", str(tmp_path / "out"), "--shape", "1x2", "--format", "ND"]) == 0
    assert "the file was appended to" in capsys.readouterr().err


def test_a_file_that_vanishes_is_a_failure(one: Path, tmp_path: Path) -> None:
    tasks = list(find_tasks([one.parent], tmp_path / "out"))
    one.unlink()
    (result,) = convert_all(tasks, Options(), jobs=1)
    assert isinstance(result.failures[0].error, ReadError)


def test_every_type_converts_or_says_why(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for value in range(44):
        tensor = Tensor("output", 0, value, 2, (8,), (8,), 128)
        write(tmp_path / f"in/Cast.t{value}.1.7.{STAMP}", [(tensor, bytes(128))], op_name="t", dump_time=1)
    results = convert(tmp_path / "in", tmp_path / "out")
    failed = [result for result in results if result.failures]
    assert [result.source.name.split(".")[1] for result in failed] == ["t41"]
    assert dtypes.data_type(41).name in failed[0].failures[0].error.message


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        # As in the documents of CANN on overflow and of MindSpore, with the program's name changed.
        ("-d {in}/Add.Add_1.3.7.1589195081588018 -out {out} -v 2", "Add.Add_1.3.7.1589195081588018.output.0.npy"),
        ("-d {in} -out {out} -v 2", "Scalar.s.7.7.1589195081588518.output.0.npy"),
        (
            "-d {in}/Conv2D.conv1.6.7.1589195081588418 -out {out} -f NCHW -t npy",
            "Conv2D.conv1.6.7.1589195081588418.output.0.1x20x2x3.npy",
        ),
        ("-d {in}_overflow/Opdebug.Node_OpDebug.59.3.1589195081588818 -out {out}", "Opdebug.Node_OpDebug.59.3.*.json"),
        ("-d {in}/Pad.p.7.7.1589195081588520,{in}/Scalar.s.7.7.1589195081588518 -out {out}", "Pad.p.7.7.*.npy"),
    ],
)
def test_the_command_lines_of_msaccucmp_work(arguments: str, written: str, tmp_path: Path) -> None:
    words = [word.format_map({"in": DATA / "in", "out": tmp_path}) for word in arguments.split()]
    assert main(["convert", *words]) == (3 if "-d {in} " in arguments else 0)
    assert list(tmp_path.glob(written))


def test_a_position_in_msaccucmp_s_spelling_is_no_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "-d", str(DATA / "in"), "-o", "0", "-f", "ND"]) == 2
    assert "--io output --index 0" in capsys.readouterr().err
