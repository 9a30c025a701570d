"""The example of MindSpore on the simulated one: every command of its README, and what it leaves."""

from __future__ import annotations

import re

import pytest
from readmes import Walked, walk_once

import ascend_dump

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    return walk_once("05_mindspore", tmp_path_factory)


def test_losses_fall_and_are_the_same_with_and_without_a_dump(walked: Walked) -> None:
    losses = re.findall(r"^epoch: 1 step: \d, loss is (\S+)$", walked.printed, re.MULTILINE)
    plain, configured, captured = losses[:6], losses[6:12], losses[12:18]
    assert plain == configured == captured
    assert float(plain[-1]) < float(plain[0]) / 2
    assert re.findall(r"^accuracy: (\S+)$", walked.printed, re.MULTILINE) == ["1.00", "1.00"]


def test_configuration_and_capture_leave_the_same_records(walked: Walked) -> None:
    configured, captured = (ascend_dump.open(walked.place / name) for name in ("dumps", "captured"))
    assert configured.known_values("step") == captured.known_values("step") == {0, 2}
    assert len(configured) == len(captured) == 250
    assert f"{len(captured)} records of steps [0, 2]" in walked.printed
    assert re.search(r"BiasAddGrad-op0: \[\S+, \S+, \S+\]", walked.printed)


def test_the_launcher_wrote_one_operator(walked: Walked) -> None:
    [record] = ascend_dump.open(walked.place / "launched")
    assert (record.op_type, record.step, record.io) == ("MaxPool", 1, "output")


def test_the_overflow_is_that_of_the_convolution_in_the_second_step(walked: Walked) -> None:
    dump = ascend_dump.open(walked.place / "overflow")
    assert {(record.step, record.op_type) for record in dump} == {(1, "Conv2D")}
    [line] = [
        text for text in walked.printed.splitlines() if text.strip().startswith("1  Default") and "output" in text
    ]
    assert "conv-Conv2d/Conv2D-op0" in line.split("output")[0]
