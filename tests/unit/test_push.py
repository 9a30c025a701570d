"""Uploading a dump: what is finished, verified, and what is missing only."""

from __future__ import annotations

import gzip
import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from host_dumps import RUN, item, model_directory, noise, write_step

import ascend_dump
from ascend_dump.cli import main
from ascend_dump.writing import HostWriter

fsspec = pytest.importorskip("fsspec")
URL = "memory://bucket/run7"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    found = fsspec.filesystem("memory")
    found.store.clear()
    yield found
    found.store.clear()


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    root = tmp_path / "dump"
    with closing(HostWriter(model_directory(root), metadata={})) as writer:
        for step in range(3):
            write_step(writer, step, item("a", noise(step, 50)), item("b", noise(9 + step, 5)))
    return root


def here(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def there(store: Any) -> dict[str, bytes]:
    """Return the files in the store, without the list of uploads."""
    found = {name[len("/bucket/run7/") :]: store.cat_file(name) for name in store.find("/bucket/run7")}
    return {name: data for name, data in found.items() if not name.startswith(".ascend-dump-pushed-")}


def running(root: Path) -> None:
    """Write the manifest of a run with a capture that has not ended."""
    manifest = {"schema": "ascend-dump/host/1", "state": "running", "host": socket.gethostname(), "pid": os.getpid()}
    (root / RUN.parts[0] / RUN.parts[1] / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def test_a_dump_is_there_as_it_is_here_and_can_be_read(store: Any, dump: Path) -> None:
    done = ascend_dump.push(dump, URL)
    assert there(store) == here(dump)
    assert (done.uploaded, done.present, done.unfinished, done.changed) == (len(here(dump)), 0, (), ())
    assert done.nbytes == sum(map(len, here(dump).values()))
    assert [record.numpy().tobytes() for record in ascend_dump.open(URL)] == [
        record.numpy().tobytes() for record in ascend_dump.open(dump)
    ]


def test_again_nothing_is_uploaded_and_no_file_is_read(store: Any, dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ascend_dump.push(dump, URL)
    seen: list[ascend_dump.converting.push.PushedFile] = []
    done = ascend_dump.push(dump, URL, watch=lambda files: (seen.append(one) or one for one in files))
    assert (done.uploaded, done.present) == (0, len(here(dump)))
    assert {one.verified for one in seen} == {"noted"}


def test_what_is_missing_or_changed_is_uploaded(store: Any, dump: Path) -> None:
    ascend_dump.push(dump, URL)
    store.rm(f"/bucket/run7/{RUN}/1/index.jsonl")
    store.pipe_file(f"/bucket/run7/{RUN}/2/index.jsonl", b"x" * (dump / RUN / "2" / "index.jsonl").stat().st_size)
    with open(dump / RUN / "0" / "index.jsonl", "ab") as file:
        file.write(b" \n")
    assert ascend_dump.push(dump, URL).uploaded == 3
    assert there(store) == here(dump)


def test_without_the_list_what_is_there_is_held_against_its_bytes(store: Any, dump: Path) -> None:
    ascend_dump.push(dump, URL)
    for name in store.find("/bucket/run7"):
        if ".ascend-dump-pushed-" in name:
            store.pipe_file(name, b'{"schema": "ascend-dump/pushed/1", "files": [5]}')
    done = ascend_dump.push(dump, URL)
    assert (done.uploaded, done.present) == (0, len(here(dump)))


def test_a_push_that_was_broken_off_goes_on(store: Any, dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = type(store).open
    left = [3]

    def open_file(fs: Any, path: str, mode: str = "rb", **more: Any) -> Any:
        if "w" in mode:
            left[0] -= 1
            if left[0] < 0:
                raise ConnectionResetError(104, "Connection reset by peer")
        return opened(fs, path, mode, **more)

    monkeypatch.setattr(type(store), "open", open_file)
    with pytest.raises(ascend_dump.StorageError, match=r"memory://bucket/run7/.*the connection broke 3 times"):
        ascend_dump.push(dump, URL, jobs=1)
    assert len(there(store)) == 3
    assert not any(name.endswith("index.jsonl") for name in there(store))
    monkeypatch.undo()
    done = ascend_dump.push(dump, URL)
    assert (done.uploaded, done.present) == (len(here(dump)) - 3, 3)
    assert there(store) == here(dump)


def test_bytes_that_arrive_wrong_are_seen(store: Any, dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = type(store).cat_file

    def cat_file(fs: Any, path: str, *arguments: Any, **named: Any) -> bytes:
        found = bytes(read(fs, path, *arguments, **named))
        return found[:-1] + b"?" if path.endswith("index.jsonl") else found

    monkeypatch.setattr(type(store), "cat_file", cat_file)
    with pytest.raises(ascend_dump.StorageError, match=r"index\.jsonl: the bytes in the store differ from the bytes"):
        ascend_dump.push(dump, URL)


def test_of_a_running_capture_the_newest_step_waits(store: Any, dump: Path) -> None:
    for step in range(3):
        for path in (dump / RUN / str(step)).iterdir():
            os.utime(path, (1000 + step, 1000 + step))
    running(dump)
    done = ascend_dump.push(dump, URL)
    assert done.unfinished == (f"{RUN}/2",)
    assert not any(name.startswith(f"{RUN}/2/") for name in there(store))
    assert len(ascend_dump.open(URL)) == 4
    (dump / RUN.parts[0] / RUN.parts[1] / "manifest.json").unlink()
    assert ascend_dump.push(dump, URL).uploaded == 2
    assert len(ascend_dump.open(URL)) == 6


#: Records of a step whose index the writer compresses.
MANY = 6000


def large_dump(root: Path) -> Path:
    with closing(HostWriter(model_directory(root), metadata={}, tensors=False, stats=("max",))) as writer:
        for step in range(2):
            write_step(writer, step, *(item(f"op{number}", noise(number % 7, 5)) for number in range(MANY)))
    return root


def test_compressed_indexes_come_after_tensors_and_one_of_a_step(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = large_dump(tmp_path / "dump")
    [first, second] = (dump / RUN / str(step) / "index.jsonl.gz" for step in range(2))
    first.with_name("tensors-00000.safetensors").write_bytes(b"x" * 99)
    second.with_name("index.jsonl").write_bytes(b"left by a kill\n")
    (first.parent / ".ascend-dump-unfinished-00").write_bytes(b"left by a kill")
    names: list[str] = []
    done = ascend_dump.push(dump, URL, jobs=1, watch=lambda files: (names.append(one.name) or one for one in files))
    assert done.uploaded == 5
    assert [name.rpartition("/")[2] for name in names[-2:]] == ["index.jsonl.gz"] * 2
    assert not any(name.endswith(("/index.jsonl", "unfinished-00")) for name in there(store))
    assert len(ascend_dump.open(URL)) == 2 * MANY


def test_an_index_that_is_compressed_meanwhile_waits(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = large_dump(tmp_path / "dump")
    compressed = dump / RUN / "0" / "index.jsonl.gz"
    plain = compressed.with_name("index.jsonl")
    data = compressed.read_bytes()
    plain.write_bytes(gzip.decompress(data))
    compressed.unlink()
    listed = ascend_dump.converting.push.walked

    def compress(root: Path) -> Any:
        yield from list(listed(root))
        compressed.write_bytes(data)
        plain.unlink(missing_ok=True)

    with monkeypatch.context() as patch:
        patch.setattr(ascend_dump.converting.push, "walked", compress)
        assert ascend_dump.push(dump, URL).changed == (f"{RUN}/0/index.jsonl",)
    assert ascend_dump.push(dump, URL).changed == ()
    assert len(ascend_dump.open(URL)) == 2 * MANY


def test_a_step_that_was_written_again_replaces_its_compressed_index(store: Any, tmp_path: Path) -> None:
    dump = large_dump(tmp_path / "dump")
    ascend_dump.push(dump, URL)
    compressed = dump / RUN / "0" / "index.jsonl.gz"
    text = gzip.decompress(compressed.read_bytes())
    compressed.with_name("index.jsonl").write_bytes(text + text[: text.index(b"\n") + 1])
    compressed.unlink()
    assert ascend_dump.push(dump, URL).uploaded == 1
    assert there(store) == here(dump)
    assert len(ascend_dump.open(URL)) == 2 * MANY + 1


def test_of_a_capture_on_another_machine_an_old_step_is_finished(store: Any, dump: Path) -> None:
    running(dump)
    manifest = dump / RUN.parts[0] / RUN.parts[1] / "manifest.json"
    manifest.write_text(
        manifest.read_text(encoding="utf-8").replace(socket.gethostname(), "elsewhere"), encoding="utf-8"
    )
    assert len(ascend_dump.push(dump, URL).unfinished) == 1
    for path in (dump / RUN).rglob("*"):
        os.utime(path, (1000, 1000))
    assert ascend_dump.push(dump, URL).unfinished == ()
    assert there(store) == here(dump)


def test_a_file_that_changes_while_it_is_read_waits(store: Any, dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = type(store).open
    growing = dump / RUN / "1" / "index.jsonl"

    def open_file(fs: Any, path: str, mode: str = "rb", **more: Any) -> Any:
        if path.endswith("1/index.jsonl"):
            with open(growing, "ab") as file:
                file.write(b"\n")
        return opened(fs, path, mode, **more)

    monkeypatch.setattr(type(store), "open", open_file)
    assert ascend_dump.push(dump, URL).changed == (f"{RUN}/1/index.jsonl",)
    monkeypatch.undo()
    assert ascend_dump.push(dump, URL).changed == ()
    assert there(store) == here(dump)


def test_links_and_catalogs_stay_here(store: Any, dump: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    (dump / "link").symlink_to(tmp_path / "secret")
    (dump / "links").symlink_to(tmp_path)
    (dump / ".ascend-dump-catalog").mkdir()
    (dump / ".ascend-dump-catalog" / "catalog.json").write_text("{}", encoding="utf-8")
    os.mkfifo(dump / "pipe")
    ascend_dump.push(dump, URL)
    assert {name.split("/")[0] for name in there(store)} == {RUN.parts[0]}


@pytest.mark.parametrize(
    ("given", "url", "kind", "match"),
    [
        (
            "dump",
            "elsewhere",
            ascend_dump.ConfigError,
            "is a local path, not a storage URL.*\n.*s3://.*gs://.*cp -r .*dump elsewhere",
        ),
        ("dump", "file:///some where", ascend_dump.ConfigError, "cp -r .*dump '/some where'"),
        ("dump", "memory://a/../b", ascend_dump.ConfigError, "is not the address"),
        (URL, URL, ascend_dump.ConfigError, "is stored already"),
        ("missing", URL, ascend_dump.DumpNotFound, "no such file"),
        ("dump", "nosuchstore://a/b", ascend_dump.NotSupported, "nosuchstore"),
    ],
)
def test_what_cannot_be_is_refused(
    given: str, url: str, kind: type[Exception], match: str, store: Any, dump: Path, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=match):
        ascend_dump.push(given if "://" in given else tmp_path / given, url)


def test_the_command_says_what_it_did(store: Any, dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", str(dump), URL]) == 0
    said = capsys.readouterr().out
    assert f"uploaded {len(here(dump))} files" in said
    assert f"look at it: ascend-dump ls {URL}" in said
    assert main(["push", str(dump), URL, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["uploaded"], document["present"], document["url"]) == (0, len(here(dump)), URL)
    assert main(["push", str(dump), URL, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["push", str(dump), "elsewhere"]) == 2
    assert main(["ls", URL]) == 0
    assert "a" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "of", "tries", "words"),
    [
        ("EndpointConnectionError", "ClientConnectorError", 1, "the store does not answer: EndpointConnectionError"),
        ("ConnectTimeoutError", "TimeoutError", 1, "the store does not answer"),
        ("EndpointConnectionError", "ServerDisconnectedError", 3, "the connection broke 3 times"),
        ("ClientConnectorError", "OSError", 3, "the connection broke 3 times"),
    ],
)
def test_a_store_that_never_answered_is_not_asked_again(name: str, of: str, tries: int, words: str) -> None:
    """botocore has tried five times by then, with growing pauses. It says the same of a connection that broke."""
    from ascend_dump.storage import tried

    asked = []

    def work() -> None:
        asked.append(1)
        raise type(name, (Exception,), {})("nobody listens") from type(of, (Exception,), {})()

    with pytest.raises(ascend_dump.StorageError, match=words) as caught:
        tried(work, "s3://bucket/run7")
    assert len(asked) == tries
    assert caught.value.code == "AD405"
