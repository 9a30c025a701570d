"""The oldest protobuf that frameworks pin, one between, and the newest: the same headers and bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import DATA

FIXTURES = DATA / "cann" / "in"
ROOT = Path(__file__).parents[3]
#: The oldest has only its pure-Python parser for newer interpreters; the environment variable makes sure.
VERSIONS = {"3.20.3": "python", "4.25.8": "upb", "newest": "upb"}


def run_with(version: str, implementation: str, tmp_path: Path) -> dict:
    place = tmp_path / version
    wanted = "protobuf" if version == "newest" else f"protobuf=={version}"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place), wanted]
    if subprocess.run(install, capture_output=True, check=False).returncode:
        pytest.skip(f"{wanted} cannot be installed here")
    path = os.pathsep.join([str(place), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation}
    script = Path(__file__).with_name("read_and_write.py")
    done = subprocess.run(
        [sys.executable, script, FIXTURES], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if version != "newest":
        assert found["version"] == version
    return found


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return run_with("newest", "upb", tmp_path_factory.mktemp("newest"))


@pytest.mark.parametrize("version", VERSIONS)
def test_same_headers_and_bytes(version: str, newest: dict, tmp_path: Path) -> None:
    found = newest if version == "newest" else run_with(version, VERSIONS[version], tmp_path)
    assert found["different"] == []
    assert found["headers"] == newest["headers"]
    assert len(found["headers"]) == 46
    assert found["mutants"]["read"] > 100
    assert found["mutants"]["refused"] > 100
