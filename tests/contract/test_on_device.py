"""The suite for a device: without one every test says why it is skipped, and on the simulated one every test runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import device_contracts
import pytest
from places import REPOSITORY

CLASSES = sorted(name for name in device_contracts.__all__ if name.startswith("Test"))


def run_suite(*options: str) -> str:
    left_out = ("ASCEND_", "PYTEST_", "RANK", "WORLD_SIZE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rsp", *options]
    done = subprocess.run(
        [*command, "tests/real/ascend"], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=900
    )
    return done.stdout + done.stderr


def counts(said: str) -> dict[str, int]:
    return {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", said)}


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ((), ["give --ascend-device=0"]),
        (("--ascend-device=0",), ["torch_npu cannot be imported", "acl cannot be imported", "torchair cannot be"]),
    ],
)
def test_without_a_device_every_test_is_skipped_with_a_reason(options: tuple[str, ...], reasons: list[str]) -> None:
    pytest.importorskip("torch")
    said = run_suite(*options)
    found = counts(said)
    assert set(found) == {"skipped"}, said
    assert found["skipped"] >= 8 * 14
    for reason in reasons:
        assert reason in said
    assert "every test was skipped: the run counts as failed" in said


@pytest.mark.thorough
def test_on_the_simulated_device_every_test_runs() -> None:
    pytest.importorskip("torch")
    said = run_suite("--ascend-device=simulated")
    found = counts(said)
    assert set(found) == {"passed"}, said
    for name in CLASSES:
        assert len(re.findall(rf"^PASSED .*::{name}::", said, re.MULTILINE)) >= 14, name


def test_what_is_no_device_is_refused() -> None:
    assert "expected the number of a device" in run_suite("--ascend-device=all")
