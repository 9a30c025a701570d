"""Opening files that may be hostile."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ascend_dump._files import NotRegularFile, open_descriptor, open_regular, read_regular


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
            with pytest.raises(NotRegularFile, match="not a regular file"):
                open_descriptor(path, follow_links=follow)


def test_a_link_is_refused_where_none_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(NotRegularFile, match="a link, which is not followed"):
        open_descriptor(tmp_path / "link", follow_links=False)


def test_what_cannot_be_opened_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_descriptor(tmp_path / "missing")
    with pytest.raises(OSError, match="null"):
        open_descriptor("a\0b")
