"""The example of eager kernels: every command of its README, in order, on the simulated device."""

from __future__ import annotations

import re

import pytest
from preloaded import COMPILER
from readmes import Walked, walk_once

import ascend_dump

pytest.importorskip("torch")

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    return walk_once("07_torch_npu", tmp_path_factory, imported=COMPILER)


def test_losses_are_the_same_with_and_without_a_capture(walked: Walked) -> None:
    losses = re.findall(r"^rank 0 (step \d: loss .*)$", walked.printed, re.MULTILINE)
    plain, captured, launched = losses[:4], losses[4:8], losses[8:12]
    assert plain == captured == launched


@pytest.mark.parametrize(
    ("folder", "steps", "ranks"), [("dumps", {0, 2}, {0}), ("launched", {1}, {0}), ("ranks", {0, 2}, {0, 1})]
)
def test_each_part_holds_its_steps_and_ranks(walked: Walked, folder: str, steps: set[int], ranks: set[int]) -> None:
    dump = ascend_dump.open(walked.place / folder)
    assert (dump.known_values("step"), dump.known_values("rank")) == (steps, ranks)
    assert {"aclnnAddmm", "aclnnRelu", "aclnnThresholdBackward"} <= {record.op_type for record in dump}
    assert dump.errors() == []


def test_host_and_npu_computed_the_same(walked: Walked) -> None:
    assert walked.printed.count("differ by at most 0e+00") == 2
    assert re.search(r"outer/addmm_0 +aclnnAddmm_1/MatMulCommon_0 ", walked.printed)


def test_the_overflow_is_found(walked: Walked) -> None:
    assert "aclnnAddmm aclnnAddmm_0/MatMulCommon_0  (first)" in walked.printed
