"""Compressed indexes are read as plain ones are, whatever wrote them and however they are damaged."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import subprocess
import tracemalloc
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, Optional

import pytest
from host_dumps import item, model_directory, noise, values, write_step
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ascend_dump
from ascend_dump import CorruptDump
from ascend_dump.cli import main
from ascend_dump.dump_format import GZIP, MOST_EXPANSION, CompressedText, DamagedIndex
from ascend_dump.reading import Dump, open_dump
from ascend_dump.writing import HostWriter

#: Records of each of the two steps of `plain`.
RECORDS = 300
#: Records of a step whose index the writer compresses.
MANY = 6000
#: The module with the sizes of what is in memory.
MODULE = "ascend_dump.dump_format._index_files"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plain")
    writer = HostWriter(model_directory(root), metadata={}, stats=("max", "nan"))
    for step in range(2):
        write_step(writer, step, *(item(f"op{number}", noise(number % 7, 5)) for number in range(RECORDS)))
    writer.close()
    return root


@pytest.fixture
def dump(plain: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "dump"))


def index_of(root: Path, step: int = 0) -> Path:
    [found] = root.glob(f"*/*/0/Model/0/{step}/index.jsonl*")
    return found


def compress(root: Path, pack: Callable[[bytes], bytes] = gzip.compress, steps: tuple[int, ...] = (0, 1)) -> None:
    for step in steps:
        index = index_of(root, step)
        index.with_name("index.jsonl.gz").write_bytes(pack(index.read_bytes()))
        index.unlink()


def in_members(text: bytes) -> bytes:
    """Parts that end inside of lines, and empty ones, each compressed by itself."""
    parts = [text[:10], b"", text[10:777], text[777:], b""]
    return b"".join(gzip.compress(part) for part in parts)


def by_gzip(text: bytes) -> bytes:
    return subprocess.run(["gzip", "-9", "-c"], input=text, stdout=subprocess.PIPE, check=True).stdout


def seen(dump: Dump) -> list[Any]:
    """All that records say but the name of the index."""
    found = []
    for record in dump:
        fields = record.to_dict()
        path = str(fields.pop("path")).removesuffix(".gz").partition("worldsize")[2]
        found.append((fields, path, record.numpy().tobytes(), record.statistics()))
    return found


def unreadable(dump: Dump) -> CorruptDump:
    """The one error of a dump."""
    [record] = dump.errors()
    assert isinstance(record.error, CorruptDump)
    assert record.error.code == "AD401"
    return record.error


@pytest.mark.parametrize("pack", [gzip.compress, in_members, by_gzip])
def test_it_has_the_same_records(plain: Path, dump: Path, pack: Callable[[bytes], bytes]) -> None:
    expected = seen(open_dump(plain))
    compress(dump, pack)
    assert seen(open_dump(dump)) == expected
    assert seen(open_dump(dump).select(step=1, op="op7*")) == seen(open_dump(plain).select(step=1, op="op7*"))
    assert [len(batch) for batch in open_dump(dump).batches()]
    assert seen(open_dump(index_of(dump, 1))) == seen(open_dump(index_of(plain, 1)))
    shard = next(index_of(dump).parent.glob("*.safetensors"))
    assert len(open_dump(shard)) == RECORDS
    if find_spec("polars"):
        frames = [open_dump(root).catalog().collect().drop("path") for root in (plain, dump)]
        assert frames[0].equals(frames[1])


def test_records_are_found_at_their_positions(
    plain: Path, dump: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    polars = pytest.importorskip("polars")
    monkeypatch.setattr("ascend_dump.reading._dump._LARGE", 0)
    monkeypatch.setattr("ascend_dump.reading._catalog_cache._WORTH_KEEPING", 0)
    compress(dump, in_members)
    for root in (plain, dump):
        open_dump(root).catalog()
    rows = [open_dump(root).where(polars.col("op_name").is_in(["op299", "op3"])) for root in (plain, dump)]
    assert [record.op_name for record in rows[1]] == ["op3", "op299"] * 2
    assert seen(rows[1]) == seen(rows[0])
    for verb in ("ls", "stats", "ops", "overflow"):
        said = []
        for root in (plain, dump):
            code = main([verb, str(root)])
            said.append((code, capsys.readouterr().out.replace(str(root), "ROOT")))
        assert said[1] == said[0], verb


def test_lost_records_are_found(dump: Path) -> None:
    compress(dump)
    [run] = dump.glob("worldsize*/*")
    (run / "manifest.json").write_text(
        '{"schema": "ascend-dump/host/1", "state": "complete", "tally": {"records": 601, "begun": 2}}'
    )
    [lost] = open_dump(dump).lost_records()
    assert (lost.found, lost.written, lost.shard) == (600, 601, "")
    os.truncate(next(index_of(dump).parent.glob("*.safetensors")), 100)
    assert [lost.shard for lost in open_dump(dump).lost_records()] == ["", "0/Model/0/0/tensors-00000.safetensors"]
    index = index_of(dump)
    index.write_bytes(index.read_bytes()[:-100])
    assert open_dump(dump).lost_records() == [], "an index that cannot be read is listed as such"


def test_of_both_files_one_is_read(dump: Path) -> None:
    """As after a kill between the two, or where one was copied later."""
    index = index_of(dump)
    index.with_name("index.jsonl.gz").write_bytes(gzip.compress(index.read_bytes()))
    index.write_bytes(index.read_bytes()[:1000])
    assert len(open_dump(dump)) == 2 * RECORDS
    assert main(["ls", str(dump)]) == 0


def test_an_index_that_is_compressed_after_the_dump_was_opened(dump: Path) -> None:
    opened = open_dump(dump)
    expected = values(opened)
    compress(dump)
    assert values(opened) == expected
    assert opened.recipe()
    assert len(repr(opened)) < 200
    later = open_dump(dump)
    for step in (0, 1):
        index = index_of(dump, step)
        index.with_name("index.jsonl").write_bytes(gzip.decompress(index.read_bytes()))
        index.unlink()
    assert values(later) == expected, "and the other way round, where a step is continued"


def test_an_index_that_goes_is_an_error(dump: Path) -> None:
    compress(dump)
    opened = open_dump(dump)
    index_of(dump).unlink()
    assert "cannot be read: No such file" in str(unreadable(opened))


def test_links_and_directories_are_no_index(dump: Path, tmp_path: Path) -> None:
    index = index_of(dump)
    secret = tmp_path / "secret.gz"
    secret.write_bytes(gzip.compress(index.read_bytes() * 2))
    compressed = index.with_name("index.jsonl.gz")
    compressed.symlink_to(secret)
    assert len(open_dump(dump)) == 2 * RECORDS
    compressed.unlink()
    compressed.mkdir()
    assert len(open_dump(dump)) == 2 * RECORDS
    # A link that appears after the dump was opened is not followed either.
    opened = open_dump(dump)
    compressed.rmdir()
    index.unlink()
    compressed.symlink_to(secret)
    assert "a link, which is not followed" in str(unreadable(opened))
    compressed.unlink()
    os.mkfifo(compressed)
    assert "not a regular file" in str(unreadable(opened))


@pytest.mark.parametrize(
    ("damage", "reason", "readable"),
    [
        (lambda data: b"", "its gzip data is cut off", 0),
        (lambda data: data[:5], "its gzip data is cut off", 0),
        (lambda data: data[:-1], "its gzip data is cut off", RECORDS),
        (lambda data: bytes(50), "its gzip data is damaged: .*incorrect header check", 0),
        (lambda data: b"{}" + data, "its gzip data is damaged: .*incorrect header check", 0),
        (lambda data: data[:-6] + b"??" + data[-4:], "its gzip data is damaged: .*incorrect data check", 0),
        (lambda data: data + b"more", "other bytes follow its gzip data", RECORDS),
        (lambda data: data + bytes(512), "other bytes follow its gzip data", RECORDS),
        (lambda data: data + data[:50], "its gzip data is cut off", RECORDS),
    ],
)
def test_damage_is_named_and_the_rest_is_read(
    dump: Path, damage: Callable[[bytes], bytes], reason: str, readable: int
) -> None:
    compress(dump, steps=(0,))
    index = index_of(dump)
    index.write_bytes(damage(index.read_bytes()))
    opened = open_dump(dump)
    error = unreadable(opened)
    assert error.path == index
    with pytest.raises(CorruptDump, match=reason):
        raise error
    found = sum(record.error is None for record in opened.select(step=0))
    # With damaged bytes the text is lost that was made with them, which is less than 64 KiB.
    assert found == readable if "data check" not in reason else RECORDS // 5 < found < RECORDS
    assert len(opened.select(step=1)) == RECORDS
    if find_spec("polars"):
        rows = open_dump(dump).catalog().collect()
        assert rows["error"].null_count() == found + RECORDS
        assert len(rows) == found + RECORDS + 1
    assert main(["ls", str(dump)]) == 3


def test_lines_before_a_cut_are_read(dump: Path) -> None:
    compress(dump, steps=(0,))
    index = index_of(dump)
    data = index.read_bytes()
    index.write_bytes(data[: len(data) // 2])
    readable = sum(record.error is None for record in open_dump(dump).select(step=0))
    assert RECORDS // 6 < readable < RECORDS
    assert unreadable(open_dump(dump)).offset


def test_a_last_line_that_is_cut_off(dump: Path) -> None:
    [run] = dump.glob("worldsize*/*")
    (run / "manifest.json").write_text('{"schema": "ascend-dump/host/1", "state": "complete"}')
    compress(dump, lambda text: gzip.compress(text[:-30]), steps=(1,))
    assert "the last line is cut off, although the run had ended" in str(unreadable(open_dump(dump)))


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    cut=st.none() | st.integers(0, 10**6),
    more=st.binary(max_size=40),
)
def test_flipped_bytes_and_cuts(
    dump: Path, plain: Path, flips: list[tuple[int, int]], cut: Optional[int], more: bytes
) -> None:
    index = index_of(plain)
    shutil.copy(index, dump / index.relative_to(plain))
    index = dump / index.relative_to(plain)
    data = bytearray(gzip.compress(index_of(plain).read_bytes()))
    for place, value in flips:
        data[place % len(data)] = value
    index.with_name("index.jsonl.gz").write_bytes((data if cut is None else data[: cut % len(data)]) + more)
    index.unlink()
    for record in open_dump(dump):
        assert record.error is None or isinstance(record.error, CorruptDump)
    assert open_dump(dump).select(step=1).errors() == []


@pytest.mark.parametrize(
    ("line", "megabytes"), [(b"\n", 1), (b"{}\n", 1), (b"x" * 1000, 100), (b"\0", 100), (b"{" * 9999 + b"\n", 100)]
)
def test_a_bomb_takes_little_memory(dump: Path, line: bytes, megabytes: int) -> None:
    """A file with a thousand times its bytes of text."""
    deflater = zlib.compressobj(9, wbits=GZIP)
    block = line * (1_000_000 // len(line))
    compress(dump, lambda _: b"".join([*(deflater.compress(block) for _ in range(megabytes)), deflater.flush()]), (0,))
    size = index_of(dump).stat().st_size
    assert size < megabytes * 6000
    if megabytes > 1:
        tracemalloc.start()  # of many short lines it would take minutes
    try:
        records = list(open_dump(dump).select(step=0))
        assert tracemalloc.get_traced_memory()[1] < 15 << 20
    finally:
        tracemalloc.stop()
    errors = [str(record.error) for record in records]
    assert len(errors) <= 1002
    assert ("zero bytes in the index" if line == b"\0" else f"more than {MOST_EXPANSION} bytes of text") in errors[-1]


def test_memory_and_states_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a few of a hundred megabytes of text in memory."""
    monkeypatch.setattr(f"{MODULE}._APART", 1 << 18)
    deflater = zlib.compressobj(1, wbits=GZIP)
    part = bytes(random.Random(0).choices(range(256), k=1 << 13)) * 128
    data = b"".join([*(deflater.compress(part) for _ in range(100)), deflater.flush()])
    tracemalloc.start()
    try:
        with CompressedText(in_file(data), "x") as text:
            assert text.seek(100 * len(part) - 5) > 100_000_000
            assert text.read(100) == part[-5:]
            text.seek(50 * len(part))
            assert text.read(100) == part[:100]
            assert len(text._states) <= 65
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()


def in_file(data: bytes) -> Any:
    """A regular file with no name."""
    descriptor = os.memfd_create("index") if hasattr(os, "memfd_create") else os.open(os.devnull, os.O_RDONLY)
    file = os.fdopen(descriptor, "w+b")
    file.write(data)
    file.flush()
    return file


MOVES = st.lists(st.tuples(st.integers(0, 1_100_000), st.integers(0, 200_000), st.booleans()), max_size=12)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs files without a name")
@settings(max_examples=100, deadline=None)
@given(size=st.integers(0, 1_000_000), members=st.lists(st.integers(0, 300_000), max_size=4), moves=MOVES)
def test_text_is_read_at_any_position(size: int, members: list[int], moves: list[tuple[int, int, bool]]) -> None:
    text = b"".join(b"%d" % (number * 31 % 997) + b"\n" * (number % 50 == 0) for number in range(size // 3))
    parts, rest = [], text
    for length in members:
        parts.append(rest[:length])
        rest = rest[length:]
    data = b"".join(map(gzip.compress, [*parts, rest]))
    expected = io.BytesIO(text)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_MADE", 5000), ("_READ", 3000), ("_BEHIND", 20_000), ("_APART", 30_000)):
            patch.setattr(f"{MODULE}.{name}", value)
        with CompressedText(in_file(data), "x") as opened:
            for position, count, is_line in moves:
                assert opened.seek(position) == expected.seek(position)
                if is_line:
                    assert opened.readline(count) == expected.readline(count)
                else:
                    assert opened.read(count) == expected.read(count)
                assert opened.tell() == expected.tell()
            opened.seek(0)
            assert b"".join(iter(lambda: opened.read(70_000), b"")) == text
            assert opened.is_over


def test_text_before_damage_is_read_at_any_position() -> None:
    text = b"".join(b"%d\n" % (number * 31 % 997) for number in range(100_000))
    data = gzip.compress(text)
    with CompressedText(in_file(data[:-20]), "x") as opened:
        for _ in range(2):
            opened.seek(50)
            found = opened.read(len(text))
            assert text[50:].startswith(found)
            assert len(found) > 300_000
            with pytest.raises(DamagedIndex, match="cut off"):
                opened.read(1)
            with pytest.raises(DamagedIndex, match="cut off"):
                opened.readline(1)
            assert not opened.is_over


@pytest.mark.parametrize("stored", [False, True])
def test_a_large_step_is_listed_by_its_catalog(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stored: bool
) -> None:
    """List an index that the writer itself compressed, also in an object store."""
    writer = HostWriter(model_directory(tmp_path / "dump"), metadata={}, tensors=False, stats=("max",))
    for step in range(2):
        write_step(writer, step, *(item(f"op{number}", noise(number % 7, 5)) for number in range(MANY)))
    writer.close()
    assert [path.name for path in sorted((tmp_path / "dump").rglob("index.jsonl*"))] == ["index.jsonl.gz"] * 2
    place = str(tmp_path / "dump")
    if stored:
        fsspec = pytest.importorskip("fsspec")
        store = fsspec.filesystem("memory")
        store.put(place, "/compressed", recursive=True)
        place = "memory://compressed"
    assert main(["ls", place]) == 0
    assert f"{2 * MANY} records" in capsys.readouterr().out
    assert len(ascend_dump.open(place).select(op="op1999")) == 2


def test_the_command_line_tools_of_gzip_read_it(tmp_path: Path) -> None:
    writer = HostWriter(model_directory(tmp_path), metadata={}, tensors=False, stats=("max",))
    write_step(writer, 0, *(item(f"op{number}", noise(number % 7, 5)) for number in range(MANY)))
    writer.close()
    index = index_of(tmp_path)
    done = subprocess.run(["gzip", "-dc", index], stdout=subprocess.PIPE, check=True)
    assert done.stdout.count(b"\n") == MANY
    assert subprocess.run(["gzip", "-t", index], check=False).returncode == 0
