"""Opening files that may be hostile."""

from __future__ import annotations

import ast
import os
import socket
import tracemalloc
from pathlib import Path

import pytest

import ascend_dump

# Private: the rule itself is tested, of which only a part is public.
from ascend_dump.storage.files import (
    FileTooLarge,
    NotRegularFile,
    open_descriptor,
    open_regular,
    read_part,
    read_regular,
    read_small,
    regular_status,
    text_lines,
)


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file", 4) == b"0123"
    assert read_regular(str(tmp_path / "link"), 100) == b"0123456789"
    with open_regular(tmp_path / "file", follow_links=False) as file:
        assert file.read() == b"0123456789"


@pytest.mark.parametrize("follow", [True, False])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, follow: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        before = os.getcwd()
        os.chdir(tmp_path)  # the name of a socket must be short
        try:
            listening.bind("socket")
        finally:
            os.chdir(before)
        for path in (tmp_path / "pipe", tmp_path / "directory", tmp_path / "socket", Path("/dev/zero")):
            for use in (open_descriptor, regular_status):
                with pytest.raises(NotRegularFile, match="not a regular file"):
                    use(path, follow_links=follow)


def test_a_link_is_refused_where_none_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(NotRegularFile, match="a link, which is not followed"):
        open_descriptor(tmp_path / "link", follow_links=False)
    with pytest.raises(NotRegularFile):
        regular_status(tmp_path / "link", follow_links=False)
    assert regular_status(tmp_path / "link").st_size == 1


def test_a_file_that_is_too_large_is_refused_and_not_cut_off(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_small(tmp_path / "file", 10) == b"0123456789"
    with pytest.raises(FileTooLarge, match="larger than 9 bytes"):
        read_small(tmp_path / "file", 9)


def test_a_text_ends_at_a_hole(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"one\ntwo\xff\r\n")
    with open(path, "ab") as file:
        file.truncate(10_000)
    lines = list(text_lines(path, most=4000))
    assert lines == ["one\n", "two\ufffd\r\n"]


@pytest.mark.parametrize("name", ["statistic.csv", "Add.a.1.2.1589195081588018.csv", "mapping.csv"])
def test_texts_beside_tensors_may_have_holes(tmp_path: Path, name: str) -> None:
    place = tmp_path / "rank_0/Net/0/0"
    place.mkdir(parents=True)
    (place / name).touch()
    os.truncate(place / name, 100 << 20)
    for other in (
        "0123456789.npy",
        "Cast.a-op0.0.0.1.output.0.DefaultFormat.npy",
    ):  # the first one asks for the mapping
        (place / other).touch()
    tracemalloc.start()
    try:
        list(ascend_dump.open(tmp_path))
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


def test_what_cannot_be_opened_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_descriptor(tmp_path / "missing")
    with pytest.raises(OSError, match="null"):
        open_descriptor("a\0b")
    with pytest.raises(OSError, match="null"):
        regular_status("a\0b")


#: Where files that this package did not find in a dump are read in another way, and what keeps that safe.
OTHER_WAYS = {
    "attach/server.py": "a file of the kernel below /proc",
    "analysis/operators/names.py": "our own table of operators",
    "analysis/operators/undefined_outputs.py": "our own rules",
    "cli/config.py": "our own module for TensorFlow 1.15",
    "cli/demo.py": "our own example, and the file beside it that is compared with it",
    "ascend_dump_mindspore/_process.py": "what MindSpore wrote for an earlier capture of this process",
    "native/tensorflow/tf1_dump.py": "a settings file of the user, in a module that stands alone",
    "cli/shared/help_texts.py": "our own texts",
    "native/cann/config/situation.py": "a file of the kernel below /proc",
    "converting/_outputs.py": "the mapping that this conversion writes",
    "report/page/_write.py": "our own script and style",
    "triage_runs/_command.py": "files of the kernel below /proc",
    "selftest/assumptions.py": "our own list",
    "selftest/programs/offline_dumps.py": "what a device wrote for this program",
    "selftest/run.py": "a file of the kernel below /proc",
}


def test_nothing_else_opens_files_to_read_them() -> None:
    package = Path(ascend_dump.__file__).parent
    adapters = package.parent / "adapters"
    files = [(path, package) for path in package.rglob("*.py")] + [(path, adapters) for path in adapters.rglob("*.py")]
    found = set()
    for path, root in files:
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] in ("fakes", "testing") or name.startswith(("cli/demo_program/", "storage/files.py")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and reads_a_file(node):
                found.add(name)
    assert found == OTHER_WAYS.keys()


def reads_a_file(call: ast.Call) -> bool:
    """`open` of a path without a mode or with one that reads, `read_bytes()` and `read_text()` of a path."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in ("read_bytes", "read_text"):
        return not (isinstance(function.value, ast.Name) and function.value.id == "self")
    if not isinstance(function, ast.Name) or function.id != "open" or isinstance(call.args[0], ast.Call):
        return False
    mode = call.args[1] if len(call.args) > 1 else None
    return mode is None or (isinstance(mode, ast.Constant) and str(mode.value).startswith("r"))


def test_a_part_is_read_whole_where_the_system_returns_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, start: pread(descriptor, min(size, 7), start))
    assert read_part(path, 10, 50) == bytes(range(10, 60))
    assert read_part(path, 90, 50) == bytes(range(90, 100))
    assert read_part(path, 200, 50) == b""
