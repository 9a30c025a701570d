"""Dumps that are stored elsewhere, in the memory store of fsspec; tests/real/storage has a server."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_dumps import RUN, item, model_directory, noise, write_step
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import DATA, extract

import ascend_dump
from ascend_dump.cli import main
from ascend_dump.reading import open_regular
from ascend_dump.storage import located
from ascend_dump.writing import HostWriter

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def store() -> Iterator[Any]:
    found = fsspec.filesystem("memory")
    found.store.clear()
    yield found
    found.store.clear()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def put(store: Any, root: Path, name: str = "run7") -> str:
    for path in root.rglob("*"):
        if path.is_file():
            store.pipe_file(f"/{name}/{path.relative_to(root)}", path.read_bytes())
    return f"memory://{name}"


def host_dump(root: Path, elements: int = 300_000) -> Path:
    directory = model_directory(root)
    with closing(HostWriter(directory, metadata={})) as writer:
        for step in range(2):
            write_step(writer, step, item("large", noise(step, elements)), item("small", noise(9 + step, 5)))
    return root


def seen(dump: ascend_dump.Dump, root: object) -> list[Any]:
    """All that records tell, with their values, free of the place where they are."""
    found = []
    for record in dump:
        fields = record.to_dict()
        value: Any
        try:
            array = record.numpy()
            value = str(array.dtype), array.shape, array.tobytes()
        except ascend_dump.AscendDumpError as error:
            value = type(error).__name__, str(error).replace(str(root), "ROOT")
        found.append((json.dumps(fields, default=str).replace(str(root), "ROOT"), value))
    return found


class Requests:
    """The ranges that are read from a store: (name, start, end) of each."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: list[tuple[str, int, int]] = []
        read = type(store).cat_file

        def cat_file(fs: Any, path: str, start: Any = None, end: Any = None, **more: Any) -> bytes:
            self.ranges.append((path, start, end))
            return bytes(read(fs, path, start, end, **more))

        monkeypatch.setattr(type(store), "cat_file", cat_file)

    def bytes_of(self, ending: str) -> int:
        return sum(end - start for name, start, end in self.ranges if name.endswith(ending))


def test_a_host_dump_is_read_where_it_lies(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = host_dump(tmp_path / "dump")
    url = put(store, root)
    requests = Requests(store, monkeypatch)
    dump = ascend_dump.open(url)
    names = [record.op_name for record in dump]
    assert names == ["large", "small"] * 2
    assert requests.bytes_of(".safetensors") == 0
    record = next(iter(dump.select(op="small", step=1)))
    assert np.array_equal(record.numpy(), noise(10, 5))
    assert requests.bytes_of(".safetensors") == 20
    assert str(record.path).startswith("memory://run7/worldsize1_global_rank0/")
    assert seen(dump, url) == seen(ascend_dump.open(root), root)
    assert not any((tmp_path / "cache").rglob("objects"))


@pytest.mark.parametrize("name", ["msprobe", "tfdbg", "same_networks", "cann", "mindspore"])
def test_every_dialect_reads_the_same_there(name: str, store: Any, tmp_path: Path) -> None:
    root = DATA / name
    archive = DATA / f"{name}.tar.gz"
    if archive.is_file():
        root = tmp_path / "dump"
        with tarfile.open(archive) as opened:
            opened.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    url = put(store, root)
    here = seen(ascend_dump.open(root), root)
    assert len(here) > 50
    assert seen(ascend_dump.open(url), url) == here


def test_a_part_and_a_single_file_are_opened_alike(store: Any, tmp_path: Path) -> None:
    root = host_dump(tmp_path / "dump", 10)
    url = put(store, root)
    step = f"{RUN}/1"
    assert seen(ascend_dump.open(f"{url}/{step}"), url) == seen(ascend_dump.open(root / step), root)
    file = f"{step}/index.jsonl"
    assert seen(ascend_dump.open(f"{url}/{file}"), url) == seen(ascend_dump.open(root / file), root)


def test_what_is_there_is_listed_anew_each_time(store: Any, tmp_path: Path) -> None:
    root = host_dump(tmp_path / "dump", 10)
    url = put(store, root)
    assert len(ascend_dump.open(url)) == 4
    store.rm(f"/run7/{RUN}/1", recursive=True)
    assert len(ascend_dump.open(url)) == 2
    file = f"{RUN}/0/index.jsonl"
    assert len(ascend_dump.open(f"{url}/{file}")) == 2
    store.pipe_file(f"/run7/{file}", store.cat_file(f"/run7/{file}").splitlines(keepends=True)[0])
    assert len(ascend_dump.open(url)) == 1


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    root = host_dump(tmp_path / "with space", 10)
    dump = ascend_dump.open(f"file://{str(root).replace(' ', '%20')}")
    assert dump.root == root
    assert len(dump) == 4


@pytest.mark.parametrize("url", ["memory://nowhere", "memory://run7/other"])
def test_nothing_there_is_said(url: str, store: Any, tmp_path: Path) -> None:
    put(store, host_dump(tmp_path / "dump", 10))
    with pytest.raises(ascend_dump.DumpNotFound, match="nothing is stored there"):
        ascend_dump.open(url)


@pytest.mark.parametrize("url", ["memory://run7/../other", "memory://", "zip://x::memory://run7", "memory://a\0b"])
def test_an_address_that_leads_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(ascend_dump.ConfigError, match="address"):
        ascend_dump.open(url)


def test_a_scheme_that_nobody_knows_is_said() -> None:
    with pytest.raises(ascend_dump.NotSupported, match="nosuchstore"):
        ascend_dump.open("nosuchstore://bucket/run7")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(ascend_dump.NotSupported, match=r"ascend-dump\[remote\]"):
        ascend_dump.open("s3://bucket/run7")


def test_stored_names_that_are_no_paths_are_passed_over(
    store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = put(store, host_dump(tmp_path / "dump", 10))
    for name in ("/run7/../../etc/passwd", "/run7/a/../index.jsonl", "/run7/./x.npy", "/run7//y.npy", "/run7/z\0.npy"):
        store.store[name] = store.store[next(iter(store.store))]
    assert len(ascend_dump.open(url)) == 4
    assert "are not valid paths and are ignored" in caplog.text


def test_a_shard_named_by_an_index_stays_in_the_dump(store: Any, tmp_path: Path) -> None:
    url = put(store, host_dump(tmp_path / "dump", 10))
    index = f"/run7/{RUN}/1/index.jsonl"
    store.pipe_file("/secret.safetensors", b"x" * 1000)
    store.pipe_file(index, store.cat_file(index).replace(b"1/tensors-00000.safetensors", b"../../secret.safetensors"))
    errors = ascend_dump.open(url).errors()
    assert errors
    assert all("is not a shard of this dump" in str(record.error) for record in errors)


def test_a_truncated_shard_is_told_with_its_place(store: Any, tmp_path: Path) -> None:
    url = put(store, host_dump(tmp_path / "dump", 10))
    shard = f"/run7/{RUN}/0/tensors-00000.safetensors"
    store.pipe_file(shard, store.cat_file(shard)[:-40])
    dump = ascend_dump.open(url)
    found = [record for record in dump if record.step == 0]
    with pytest.raises(ascend_dump.CorruptDump, match=r"memory://run7/.*reaches to byte"):
        [record.numpy() for record in found]
    assert all(record.numpy().size for record in dump if record.step == 1)


def test_an_object_that_shrank_since_is_told_with_its_place(store: Any, tmp_path: Path) -> None:
    url = put(store, host_dump(tmp_path / "dump", 1000))
    dump = ascend_dump.open(url)
    records = list(dump)
    shard = f"/run7/{RUN}/0/tensors-00000.safetensors"
    store.pipe_file(shard, store.cat_file(shard)[:500])
    with pytest.raises(ascend_dump.StorageError, match=r"memory://run7/.* at byte .*the answer ended after") as caught:
        records[0].numpy()
    assert caught.value.code == "AD405"
    assert caught.value.offset is not None


@pytest.mark.parametrize("breaks", [2, 3])
def test_a_connection_that_breaks_is_tried_again(
    breaks: int, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    url = put(store, host_dump(tmp_path / "dump", 10))
    [record, *_] = ascend_dump.open(url)
    read = type(store).cat_file
    left = [breaks]

    def cat_file(*arguments: Any, **named: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise ConnectionResetError(104, "Connection reset by peer")
        return read(*arguments, **named)

    monkeypatch.setattr(type(store), "cat_file", cat_file)
    if breaks < 3:
        assert np.array_equal(record.numpy(), noise(0, 10))
        return
    with pytest.raises(ascend_dump.StorageError, match="the connection broke 3 times: ConnectionResetError") as caught:
        record.numpy()
    assert str(record.path) in str(caught.value)


def test_an_index_that_cannot_be_fetched_is_one_unreadable_record(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    url = put(store, host_dump(tmp_path / "dump", 10))
    dump = ascend_dump.open(url)
    read = type(store).cat_file

    def cat_file(fs: Any, path: str, *arguments: Any, **named: Any) -> Any:
        if path.endswith("0/0/index.jsonl"):
            raise ConnectionResetError(104, "Connection reset by peer")
        return read(fs, path, *arguments, **named)

    monkeypatch.setattr(type(store), "cat_file", cat_file)
    records = list(dump)
    assert [record.error is not None for record in records] == [True, False, False]
    assert isinstance(records[0].error, ascend_dump.StorageError)


def test_what_is_mapped_is_copied_into_a_private_bounded_cache(
    store: Any, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tfdbg's reader maps its files."""
    extract("tfdbg.tar.gz", tmp_path / "dump")
    url = put(store, tmp_path / "dump")
    monkeypatch.setenv("ASCEND_DUMP_CACHE_BYTES", "100000")
    first = seen(ascend_dump.open(url), url)
    copies = list((cache / "ascend-dump" / "objects").iterdir())
    assert copies
    assert sum(path.stat().st_size for path in copies) <= 100_000
    assert {stat.S_IMODE(path.stat().st_mode) for path in copies} == {0o600}
    assert stat.S_IMODE((cache / "ascend-dump" / "objects").stat().st_mode) == 0o700
    for path in copies:  # what is not as it was written is fetched again
        os.truncate(path, 3)
    assert seen(ascend_dump.open(url), url) == first
    monkeypatch.setenv("ASCEND_DUMP_CACHE_BYTES", "0")
    assert seen(ascend_dump.open(url), url) == first


def test_copies_are_not_put_where_others_can_write(store: Any, tmp_path: Path, cache: Path) -> None:
    extract("tfdbg.tar.gz", tmp_path / "dump")
    url = put(store, tmp_path / "dump")
    objects = cache / "ascend-dump" / "objects"
    objects.mkdir(parents=True)
    objects.chmod(0o777)
    with pytest.raises(ascend_dump.StorageError, match=str(objects)) as refused:
        list(ascend_dump.open(url))
    assert refused.value.hint.startswith("remove this directory")
    assert list(objects.iterdir()) == []


def test_a_size_of_the_cache_that_is_no_number_is_said(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract("tfdbg.tar.gz", tmp_path / "dump")
    url = put(store, tmp_path / "dump")
    monkeypatch.setenv("ASCEND_DUMP_CACHE_BYTES", "10 GB")
    with pytest.raises(ascend_dump.ConfigError, match="ASCEND_DUMP_CACHE_BYTES='10 GB'"):
        ascend_dump.open(url)


def test_the_catalog_of_a_large_dump_is_kept_in_the_cache_of_the_user(
    store: Any, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polars = pytest.importorskip("polars")
    root = tmp_path / "dump"
    directory = model_directory(root)
    with closing(HostWriter(directory, metadata={})) as writer:
        write_step(writer, 0, *(item(f"op_{number}", noise(number, 1)) for number in range(21_000)))
    url = put(store, root)
    first = ascend_dump.open(url).catalog().collect()
    assert list(cache.rglob("catalog.json"))
    assert not [name for name in store.store if "catalog" in name]
    requests = Requests(store, monkeypatch)
    again = ascend_dump.open(url).catalog().collect()
    assert again.equals(first)
    assert requests.bytes_of("index.jsonl.gz") == 0
    index = f"/run7/{directory.relative_to(root)}/0/index.jsonl.gz"
    text = gzip.decompress(store.cat_file(index))
    store.pipe_file(index, gzip.compress(text.replace(b'"op_17"', b'"op_xx"')))
    changed = ascend_dump.open(url).catalog()
    assert changed.filter(polars.col("op_name") == "op_xx").collect().height == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.integers(0, 300_000),
    moves=st.lists(
        st.tuples(st.integers(-10, 310_000), st.sampled_from([0, 1, 2]), st.integers(-1, 200_000)), max_size=8
    ),
)
def test_a_stored_file_is_read_as_one_on_disk(store: Any, size: int, moves: list[tuple[int, int, int]]) -> None:
    content = bytes(i * 31 % 251 for i in range(size))
    store.pipe_file("/files/one", content)
    disk = io.BytesIO(content)
    with open_regular(located("memory://files/one")) as file:
        assert file.seek(0, 2) == size
        file.seek(0)
        for place, whence, count in moves:
            try:
                expected = disk.seek(place if whence == 0 else -abs(place) if whence == 2 else place, whence)
            except ValueError:
                continue
            if whence == 2 and abs(place) > size:
                continue  # BytesIO begins at 0, a file refuses
            assert file.seek(expected) == expected
            assert file.read(count) == disk.read(count)
            assert file.readline(100) == disk.readline(100)


def test_graphs_and_files_of_cann_are_taken_where_they_lie(
    store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb, data, files in (("ops", "ge_proto", []), ("convert", "cann", ["-o", str(tmp_path / "out")])):
        graphs = sorted((DATA / data).rglob("ge_proto_*_Build.txt")) or [DATA / data]
        url = put(store, graphs[0].parent if verb == "ops" else DATA / data, data)
        here = main([verb, str(graphs[0]), *files])
        said = capsys.readouterr().out.replace(str(graphs[0]), "ROOT")
        address = f"{url}/{graphs[0].name}" if verb == "ops" else url
        assert main([verb, address, *files]) == here, verb
        assert capsys.readouterr().out.replace(address, "ROOT") == said


def test_a_capture_into_a_store_is_refused() -> None:
    with pytest.raises(ascend_dump.ConfigError, match=r"ascend-dump push DIRECTORY s3://bucket/run7"):
        ascend_dump.DumpRequest(path="s3://bucket/run7")


def test_a_comparison_takes_addresses(store: Any, tmp_path: Path) -> None:
    one, other = host_dump(tmp_path / "one", 10), host_dump(tmp_path / "other", 10)
    comparison = ascend_dump.compare(put(store, one, "one"), put(store, other, "other"))
    assert comparison.verdict == "equal"
    found = ascend_dump.triage("memory://one")
    assert str(found.dump) == "memory://one"
