"""Host dumps that are damaged, foreign or hostile: typed errors on the record, and the rest stays readable."""

from __future__ import annotations

import json
import math
import mmap
import os
import shutil
import socket
import struct
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from host_dumps import in_memory, item, line, model_directory, noise, put, read, write_step
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump import AscendDumpError, CorruptDump, NotSupported, ReadError, Record
from ascend_dump.reading import open_dump
from ascend_dump.writing import HostWriter, Item, Payload

#: Bytes of the largest tensor that is copied when it is read.
COPIED = 4096
HOSTILE: list[Any] = [
    *(None, True, -1, 0, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63), 1.5, 1e308, "", "nan", "NaN", "x" * 5000),
    *("/etc/passwd", "../../secret", "0/../tensors-00000.safetensors", "\0", [], [0], [-1], [2**62, 2**62], [1] * 65),
    *([2**31] * 3, [0, 2**62, 2**62], [10**6] * 9, {}, {"a": [1]}, [None], ["nan"], [1, 2, 3], [-1, 5], [0, 2**62]),
    *("object", "finfo", "O", "S9", "M8[s]", "V", "float3", "complex32", "(1000000000,)f4", ">f4", "float64", "uint8"),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("original")
    writer = HostWriter(model_directory(root), metadata={}, stats=("max", "mean", "nan"))
    base = noise(1, 64)
    window = np.lib.stride_tricks.as_strided(base, (8, 8), (4, 4), writeable=False)
    view = Payload(base.tobytes(), 0, base.nbytes, "float32", (64,), ((8, 8), (4, 4)))
    for step in range(2):
        write_step(
            writer,
            step,
            item("fc1", noise(0, 12).reshape(3, 4), io="input"),
            item("fc1", noise(2 + step, 30).reshape(5, 6)),
            item("half", np.array([np.nan, 1, -np.inf], dtype=np.float16)),
            Item(line("window", window), view),
            item("empty", np.zeros((0, 3), dtype=np.int64)),
            Item(line("sparse", base, skipped="sparse_coo layout"), None),
        )
    writer.close()
    assert writer.failure is None
    return root


@pytest.fixture
def dump(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "dump"))


def index_of(root: Path, step: int = 0) -> Path:
    [found] = root.glob(f"*/*/0/Model/0/{step}/index.jsonl")
    return found


def edit(root: Path, **changes: Any) -> None:
    """Change fields of the second line of step 0."""
    index = index_of(root)
    lines = index.read_bytes().splitlines(keepends=True)
    lines[1] = json.dumps({**json.loads(lines[1]), **changes}).encode() + b"\n"
    index.write_bytes(b"".join(lines))


def use(record: Record) -> None:
    """Whatever a tool does with a record; only our errors may come of it."""
    repr(record)
    hash(record)
    json.dumps(record.to_dict(), default=str)
    for call in (record.numpy, record.statistics):
        try:
            found = call()
        except AscendDumpError:
            continue
        if isinstance(found, np.ndarray) and found.size:
            # Small tensors are copied, so that they outlive their file; of others a hostile shape must not take memory.
            if found.nbytes > COPIED:
                owner: Any = found
                while isinstance(owner, np.ndarray) and owner.base is not None:
                    owner = owner.base
                if isinstance(owner, memoryview):
                    owner = owner.obj
                assert isinstance(owner, mmap.mmap), "more memory was taken than the file has"
            assert found.dtype.kind not in "OUSMmV" or found.dtype.itemsize <= 4


def use_all(root: Path) -> int:
    try:
        return sum(1 for record in open_dump(root) if use(record) is None)
    except ReadError:
        return 0


FIELDS = [
    *("seq", "op_type", "op_name", "io", "index", "time", "dtype", "shape", "nbytes", "device", "phase", "module"),
    *("source", "stride", "storage_offset", "storage", "address", "storage_nbytes", "version", "offset"),
    *("stored_stride", "skipped", "quantization", "origin", "hash", "shard", "blob", "stats", "unknown"),
]


@pytest.mark.parametrize("field", FIELDS)
def test_a_hostile_field_harms_its_record_only(original: Path, dump: Path, field: str) -> None:
    for value in HOSTILE:
        shutil.copyfile(index_of(original), index_of(dump))
        edit(dump, **{field: value})
        records = list(open_dump(dump))
        assert len(records) == 12, value
        use(records[1])
        others = [record for number, record in enumerate(records) if number != 1]
        assert all(record.error is None for record in others), value
        assert records[0].numpy().tobytes() == noise(0, 12).tobytes(), value
        assert records[7].numpy().tobytes() == noise(3, 30).tobytes(), value


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(changes=st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(HOSTILE), min_size=2, max_size=6))
def test_several_hostile_fields(dump: Path, original: Path, changes: dict[str, Any]) -> None:
    index = index_of(dump)
    shutil.copy(index_of(original), index)
    edit(dump, **changes)
    assert use_all(dump) == 12


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    which=st.sampled_from(["index.jsonl", "tensors-00000.safetensors"]),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8),
    cut=st.none() | st.integers(0, 10**6),
)
def test_flipped_bytes_and_cuts(dump: Path, original: Path, which: str, flips: list[tuple[int, int]], cut: int) -> None:
    target = index_of(dump).parent / which
    data = bytearray((index_of(original).parent / which).read_bytes())
    for place, value in flips:
        # Where the header is blank, nothing is to be found.
        data[(place % len(data)) if which.startswith("index") else -1 - place % 1000] = value
    target.write_bytes(data if cut is None else data[: cut % len(data)])
    use_all(dump)
    later = open_dump(dump).select(step=1, op="half")
    assert all(record.error is None for record in later)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"shape": [5, 7]}, "reaches to byte"),
        ({"stride": [6]}, "impossible strides"),
        ({"stride": [-6, 1]}, "impossible strides"),
        ({"stride": [2**62, 1]}, "reaches to byte"),
        ({"offset": 10**9}, "reaches to byte"),
        ({"offset": 0}, "impossible strides or offsets"),
        ({"blob": [0, 2**40], "offset": 2**41}, "reaches to byte"),
        ({"shape": [2**62, 2**62], "stride": [0, 0]}, "impossible shape"),
        ({"shape": [0, 2**62, 2**62]}, "impossible shape"),
        ({"shard": "../../../../etc/passwd"}, "is not a shard"),
        ({"shard": "/etc/passwd"}, "is not a shard"),
        ({"shard": "٣/tensors-00000.safetensors"}, "is not a shard"),
        ({"shard": "7/tensors-00000.safetensors"}, r"7/tensors-00000\.safetensors: the shard is missing"),
        ({"shape": [1] * 65}, "not a record.*length <= 64"),
        ({"nbytes": 2**63}, "not a record"),
    ],
)
def test_lies_are_named(dump: Path, changes: dict[str, Any], text: str) -> None:
    edit(dump, **changes)
    record = list(open_dump(dump))[1]
    with pytest.raises(CorruptDump, match=text) as caught:
        record.numpy()
    assert str(dump) in str(caught.value)


@pytest.mark.parametrize("dtype", ["object", "finfo", "O", "S9", "M8[s]", "V4", "i4,i4", "(3,)f4", ">f4", "float3"])
def test_only_element_types_of_the_format_are_read(dump: Path, dtype: str) -> None:
    """numpy would follow the bytes of an object array as pointers."""
    edit(dump, dtype=dtype)
    with pytest.raises(NotSupported, match="no element type"):
        list(open_dump(dump))[1].numpy()


@pytest.mark.parametrize("stats", [["x"], [-1], [None], [1.5], ["nan"], [3, "NaN"], [3, "1e5"], [3, "infinity"]])
def test_statistics_that_are_none(dump: Path, stats: list[Any]) -> None:
    edit(dump, stats=stats)
    with pytest.raises(CorruptDump, match="has statistics"):
        list(open_dump(dump))[1].statistics()


@pytest.mark.parametrize(
    ("before", "stats"),
    [
        ([3, 1.0, 0.5, 0.75, 1.0, 0, 0, 0, 0, 0, 0], [-3, 1.0, 0.5, 0.75, 1.0, 0, 0, 0, 0, 0, 0]),
        ([3, 1.0, 0.5, 0.75, 1.0, 0, 0, 0, 0, 0, 0], [3, 1.0, 0.5, 0.75, 1.0, 0.0, 0, 0, 0, 0, 0]),
        ([3, 1.0, "nan"], [3, 1.0, "NaN"]),
        ([3, 1.0, "nan"], [3, 1.0, "1e5"]),
    ],
)
def test_statistics_are_checked_after_others_of_the_same_types(dump: Path, before: list[Any], stats: list[Any]) -> None:
    edit(dump, stats=before)
    for _ in range(2):
        statistics = list(open_dump(dump))[1].statistics()
        assert [str(value) for value in statistics[: len(before)]] == [str(value) for value in before]
        assert set(statistics[len(before) :]) <= {None}
    edit(dump, stats=stats)
    with pytest.raises(CorruptDump, match="has statistics"):
        list(open_dump(dump))[1].statistics()


def test_statistics_of_hostile_shapes_take_no_longer_than_the_file(dump: Path) -> None:
    edit(dump, shape=[10**6, 10**6], stride=[0, 0], stats=None)
    found = list(open_dump(dump))[1].statistics()
    assert found.count == 10**12
    assert found.max == noise(2, 30)[0]
    edit(dump, shape=[3] * 30, stride=[0] * 20 + [1] * 10, stats=None)
    assert list(open_dump(dump))[1].statistics().count == 3**30


def test_text_that_is_no_record(dump: Path) -> None:
    index = index_of(dump)
    good = index.read_bytes()
    deep = b'{"quantization": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    bad = [b"{", b"NaN", b'{"seq": NaN}', b"\xff\xfe", b"null", b"[]", b"9" * 10_000, deep, b'{"op_name": "\\ud800"}']
    index.write_bytes(good + b"\n".join(bad) + b"\n\n" + b'{"seq": 1, "op_na')
    records = list(open_dump(dump).select(step=0))
    assert [record.error is None for record in records] == [True] * 6 + [False] * len(bad)
    assert all("not a record" in str(record.error) for record in records[6:])
    assert [one.error.offset for one in records[6:8] if one.error] == [len(good), len(good) + 2]
    for record in records:
        use(record)


def write_manifest(root: Path, **fields: Any) -> None:
    manifest = {"schema": "ascend-dump/host/1", **fields}
    [run] = root.glob("worldsize*/*")
    (run / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("size", [-30, 100], ids=["in the last line", "in the first line"])
def test_an_index_that_was_cut_off_after_its_run_ended(dump: Path, size: int) -> None:
    write_manifest(dump, state="complete")
    index = index_of(dump)
    index.write_bytes(index.read_bytes()[:size])
    whole = index.read_bytes().count(b"\n")
    records = list(open_dump(dump).select(step=0))
    assert [record.error is None for record in records] == [True] * whole + [False]
    error = records[-1].error
    assert isinstance(error, CorruptDump)
    assert (error.path, error.offset) == (index, index.read_bytes().rfind(b"\n") + 1)
    assert "the last line is cut off, although the run had ended" in str(error)
    assert len(list(open_dump(dump).select(step=1))) == 6, "the other step is as it was"


def test_noise_in_place_of_an_index(dump: Path) -> None:
    write_manifest(dump, state="complete")
    index_of(dump).write_bytes(b"\0garbage" * 9)
    [record] = open_dump(dump).select(step=0)
    assert isinstance(record.error, CorruptDump)
    assert record.error.offset == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "running", "pid": 2**30, "host": socket.gethostname()},
        {"state": "running"},
        {"state": "incomplete"},
        {},
    ],
    ids=["killed", "elsewhere", "failed", "unknown"],
)
def test_what_a_writer_could_not_finish_is_no_record(dump: Path, fields: dict[str, Any]) -> None:
    write_manifest(dump, **fields)
    index = index_of(dump)
    index.write_bytes(index.read_bytes()[:-30])
    assert open_dump(dump).errors() == []


@pytest.mark.parametrize("content", [b"", b"foreign", bytes(300), b"\xff" * 300])
def test_a_foreign_or_empty_shard(dump: Path, content: bytes) -> None:
    index_of(dump).with_name("tensors-00000.safetensors").write_bytes(content)
    kinds = {record.op_name: record for record in open_dump(dump).select(step=0)}
    with pytest.raises(CorruptDump, match="empty" if not content else "reaches to byte"):
        kinds["fc1"].numpy()
    assert kinds["empty"].numpy().shape == (0, 3)
    assert open_dump(dump).select(step=1, op="fc1", io="output").errors() == []


def test_small_tensors_outlive_their_shard(dump: Path) -> None:
    """A view of the mapped file would end the process here."""
    records = [record for record in open_dump(dump) if record.attrs.get("skipped") is None]
    arrays = [record.numpy() for record in records]
    expected = [array.tobytes() for array in arrays]
    for shard in dump.rglob("*.safetensors"):
        os.truncate(shard, 0)
    assert [array.tobytes() for array in arrays] == expected
    assert not any(array.flags.writeable for array in arrays if array.size)


def test_a_shard_cut_off_after_it_was_mapped(dump: Path) -> None:
    records = list(open_dump(dump).select(step=0))
    assert records[1].numpy().size == 30
    os.truncate(index_of(dump).with_name("tensors-00000.safetensors"), 300)
    with pytest.raises(CorruptDump, match="reaches to byte"):
        records[2].numpy()


def test_shards_of_earlier_steps_that_were_deleted(dump: Path) -> None:
    shutil.rmtree(index_of(dump).parent)
    linked, own, *_ = open_dump(dump)
    with pytest.raises(CorruptDump, match=r"0/tensors-00000\.safetensors: the shard is missing") as caught:
        linked.numpy()
    assert "earlier" in caught.value.hint
    assert own.numpy().tobytes() == noise(3, 30).tobytes()


def link_file(shard: Path, secret: Path) -> None:
    shard.unlink()
    shard.symlink_to(secret)


def link_directory(shard: Path, secret: Path) -> None:
    other = secret.parent / "elsewhere"
    other.mkdir()
    shutil.copy(secret, other / shard.name)
    shutil.rmtree(shard.parent)
    shard.parent.symlink_to(other)


def make_pipe(shard: Path, secret: Path) -> None:
    shard.unlink()
    os.mkfifo(shard)


def make_directory(shard: Path, secret: Path) -> None:
    shard.unlink()
    shard.mkdir()


@pytest.mark.parametrize("replace", [link_file, link_directory, make_pipe, make_directory])
def test_only_files_of_the_dump_itself_are_read(
    dump: Path, tmp_path: Path, replace: Callable[[Path, Path], None]
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(1 << 20))
    replace(index_of(dump).with_name("tensors-00000.safetensors"), secret)
    # Step 1 reads from a shard of step 0.
    [linked] = open_dump(dump).select(step=1, op="fc1", io="input")
    with pytest.raises(CorruptDump, match=r"link|not a regular file"):
        linked.numpy()


def test_an_index_without_shards(dump: Path) -> None:
    for shard in dump.rglob("*.safetensors"):
        shard.unlink()
    for record in open_dump(dump):
        assert record.error is None
        use(record)
    assert next(iter(open_dump(dump))).statistics().count == 12


def test_strides_that_were_not_given(tmp_path: Path) -> None:
    writer = HostWriter(model_directory(tmp_path), metadata={})
    one = item("plain", noise(0, 24).reshape(2, 3, 4))
    one.line.stride = ()
    write_step(writer, 0, one)
    writer.close()
    [record] = open_dump(tmp_path)
    assert np.array_equal(record.numpy(), noise(0, 24).reshape(2, 3, 4))


def test_a_dump_that_is_being_written(tmp_path: Path) -> None:
    writer = HostWriter(model_directory(tmp_path), metadata={})
    writer.begin_step(0)
    early = None
    for number in range(20):
        put(writer, in_memory(f"op{number}", noise(number, 5000)))
        writer.flush()
        found = read(tmp_path)
        assert found == {(0, f"op{n}", "output", 0): noise(n, 5000).tobytes() for n in range(number + 1)}
        early = early or next(iter(open_dump(tmp_path)))
    writer.close()
    assert early is not None
    assert early.numpy().tobytes() == noise(0, 5000).tobytes()


def test_many_shards_take_few_file_descriptors(tmp_path: Path) -> None:
    writer = HostWriter(model_directory(tmp_path), metadata={})
    for step in range(200):
        write_step(writer, step, item("op", noise(step, 4)))
    writer.close()
    before = len(os.listdir("/proc/self/fd"))
    records = list(open_dump(tmp_path))
    for number, record in enumerate(records):
        assert record.numpy().tobytes() == noise(number, 4).tobytes()
    assert len(os.listdir("/proc/self/fd")) - before <= 40


# Shards by themselves


def test_one_shard_of_a_dump(dump: Path) -> None:
    shard = index_of(dump).with_name("tensors-00000.safetensors")
    found = ascend_dump.open(shard)
    assert [record.op_name for record in found] == ["fc1", "fc1", "half", "window", "empty"]
    assert all(record.op_type == "aten::op" for record in found)
    assert next(iter(found)).step == 0


def test_a_shard_without_its_index(dump: Path) -> None:
    for index in dump.rglob("index.jsonl"):
        index.unlink()
    found = {(one.step, one.op_name, one.io, one.index): one for one in open_dump(dump)}
    assert set(found) == {
        *((0, "fc1", "input", 0), (0, "fc1", "output", 0), (0, "half", "output", 0), (0, "window", "output", 0)),
        *((0, "empty", "output", 0), (1, "fc1", "output", 0)),
    }
    assert np.array_equal(found[0, "fc1", "input", 0].numpy(), noise(0, 12).reshape(3, 4))
    assert math.isnan(found[0, "half", "output", 0].statistics().mean or 0)
    assert found[1, "fc1", "output", 0].rank == 0


def safetensors(header: Any, data: bytes = bytes(64), size: Any = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "empty"),
        (b"short", "no safetensors file"),
        (safetensors({}, size=2**63), "no safetensors file"),
        (safetensors(bytes(200)), "was not completed"),
        (safetensors(b"{nonsense"), "header is damaged"),
        (safetensors(b"[" * 100_000), "header is damaged"),
        (safetensors({"a": 3}), "is no tensor"),
        (safetensors({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}), "is no tensor"),
        (safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}), "is no tensor"),
        (safetensors({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}), "reaches to byte"),
        (safetensors({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}}), "needs 12 bytes"),
        (safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}}), "needs 4 bytes"),
        (safetensors({"a": {"dtype": "F32", "shape": [16], "data_offsets": [32, 96]}}), "reaches to byte"),
        (safetensors({"a": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}), "impossible shape"),
    ],
)
def test_a_shard_that_lies(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "tensors-00000.safetensors"
    path.write_bytes(content)
    [record] = open_dump(path)
    use(record)
    with pytest.raises(CorruptDump, match=text):
        record.numpy()


def test_what_a_shard_has_no_word_for(tmp_path: Path) -> None:
    path = tmp_path / "tensors-00000.safetensors"
    entry = {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}
    path.write_bytes(safetensors({"__metadata__": {"a": "b"}, "__padding__.1": entry, "any name": entry}, bytes(1)))
    [record] = open_dump(path)
    assert (record.op_name, record.io) == ("any name", "buffer")
    with pytest.raises(NotSupported, match="F4"):
        record.numpy()


def test_the_state_of_a_dump_is_that_of_its_tensors_too(dump: Path) -> None:
    """Its index stays as it is where a shard that was damaged is copied again."""
    states = [open_dump(dump).state(), open_dump(dump).select(step=1).state()]
    assert [open_dump(dump).state(), open_dump(dump).select(step=1).state()] == states
    first = index_of(dump).parent
    other = dump / "worldsize2_global_rank1" / "20260101010101" / "0" / "Model" / "0" / "0"
    other.mkdir(parents=True)
    (other / "index.jsonl").write_bytes(b"")
    (other / "tensors-00000.safetensors").write_bytes(b"")
    before = [open_dump(dump).select(rank=rank).state() for rank in (0, 1)]
    [shard] = first.glob("*.safetensors")
    os.utime(shard, ns=(1, 1))
    after = [open_dump(dump).select(rank=rank).state() for rank in (0, 1)]
    assert [one == two for one, two in zip(before, after)] == [False, True]
    assert open_dump(dump).select(step=1).state() != states[1], "its tensors may stand in the shard of step 0"
    (first.parent / ".ascend-dump-catalog").mkdir()
    (first.parent / ".ascend-dump-catalog" / "catalog.json").write_bytes(b"{}")
    assert [open_dump(dump).select(rank=rank).state() for rank in (0, 1)] == after
