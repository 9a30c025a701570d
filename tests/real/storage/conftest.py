"""A real S3 server in a process of its own (moto), and a proxy before it that cuts connections."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from host_dumps import item, model_directory, noise, write_step

from ascend_dump.writing import HostWriter

#: Elements of the large tensors: some megabytes.
LARGE = 1 << 20
_SETTINGS = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of the server."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{address}/moto-api/", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, "the server ended"
                time.sleep(0.1)
        yield address
    finally:
        process.kill()
        process.wait()


class Proxy:
    """Passes bytes on to the server, and cuts what it is told to.

    spare     so many answers that begin from now on are passed on whole
    cuts      so many after them are cut, after `after` bytes
    received  bytes of answers
    """

    def __init__(self, server: str) -> None:
        self._port = int(server.rpartition(":")[2])
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.spare = 0
        self.cuts = 0
        self.after = 0
        self.received = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            above = socket.create_connection(("127.0.0.1", self._port))
            threading.Thread(target=self._pass_on, args=(client, above, False), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(above, client, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        try:
            while True:
                data = source.recv(1 << 16)
                if not data:
                    break
                if is_answer:
                    with self._lock:
                        self.received += len(data)
                        begins = data.startswith(b"HTTP/")
                        cut = begins and self.cuts > 0 and self.spare == 0
                        self.spare -= begins and self.spare > 0
                        self.cuts -= cut
                    if cut:
                        head, _, body = data.partition(b"\r\n\r\n")
                        target.sendall(head + b"\r\n\r\n" + body[: self.after])
                        break
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
            one.close()

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def proxy(server: str) -> Iterator[Proxy]:
    with closing(Proxy(server)) as found:
        yield found


@pytest.fixture
def settings(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Credentials and the address of the server, in the environment; gives a function that sets another address."""
    import fsspec

    fsspec.config.conf.clear()
    for name in _SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # The client's own tries, with growing pauses, would take minutes.
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")

    def use(address: str) -> None:
        monkeypatch.setenv("FSSPEC_S3_ENDPOINT_URL", address)
        fsspec.config.conf.clear()
        fsspec.config.set_conf_env(fsspec.config.conf)
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()

    use(server)
    yield use
    fsspec.config.conf.clear()


@pytest.fixture
def bucket(settings: Any, server: str, request: pytest.FixtureRequest) -> str:
    """A new bucket of the server."""
    import re

    import fsspec

    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:50].strip("-")
    fs = fsspec.filesystem("s3")
    if fs.exists(name):
        fs.rm(name, recursive=True)
    fs.mkdir(name)
    return name


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    root = tmp_path / "dump"
    with closing(HostWriter(model_directory(root), metadata={})) as writer:
        for step in range(2):
            write_step(writer, step, item("large", noise(step, LARGE)), item("small", noise(9 + step, 5)))
    return root
