"""The example of TensorFlow on the stand-in: every command of its README, and what it leaves."""

from __future__ import annotations

import re

import numpy as np
import pytest
from readmes import Walked, walk_once

import ascend_dump
from ascend_dump.native.cann.graph import build_graphs, find_computational, graph_name

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    return walk_once("06_tensorflow", tmp_path_factory)


def test_losses_are_the_same_with_and_without_a_capture(walked: Walked) -> None:
    losses = re.findall(r"^step \d: loss .*$", walked.printed, re.MULTILINE)
    assert len(losses) == 16
    assert losses[:4] == losses[4:8] == losses[8:12] == losses[12:]
    numbers = [float(line.split()[3].rstrip(",")) for line in losses[:4]]
    assert numbers == sorted(numbers, reverse=True)


def test_the_dump_holds_the_selected_steps_of_the_computational_graph(walked: Walked) -> None:
    dump = ascend_dump.open(walked.place / "dumps")
    assert dump.known_values("step") == {0, 2}
    (found,) = find_computational(build_graphs(walked.place / "dumps"))
    trained = dump.select(op="head/matmul")
    assert {record.model for record in trained} == {graph_name(found)}
    one = {(record.io, record.index): record.numpy() for record in trained if record.step == 2}
    assert np.allclose(one["input", 0] @ one["input", 1], one["output", 0], atol=1e-6)
    assert "head/matmul" in walked.printed.split("operators · ")[1]


def test_the_evaluation_uses_the_trained_weights_and_dumps_one_operator(walked: Walked) -> None:
    dump = ascend_dump.open(walked.place / "evaluated")
    assert {record.op_name for record in dump} == {"head/matmul"}
    (kernel,) = dump.select(op="head/matmul", io="input", index=1)
    assert (kernel.numpy() == np.load(walked.place / "weights.npz")["head/kernel"]).all()
    assert "MatMulV2 head/matmul output 0 (32, 3)" in walked.printed


def test_the_launcher_captures_the_unchanged_program(walked: Walked) -> None:
    assert ascend_dump.open(walked.place / "launched").known_values("step") == {1}


def test_what_is_wrong_with_keys_is_told(walked: Walked) -> None:
    assert '"enable_dump": true' in walked.printed
    assert "the bridge ends the process with a fatal log message" in walked.printed
    assert "it cannot be 1 if enable_dump is 1" in walked.printed


def test_the_module_for_python_3_7_dumps_what_a_capture_does(walked: Walked) -> None:
    dumps = [ascend_dump.open(walked.place / name).select(op="head/matmul") for name in ("settled", "dumps")]
    found, expected = [{(record.step, record.io, record.index) for record in dump} for dump in dumps]
    assert found == expected
    assert list((walked.place / "arrays").rglob("*head_matmul*.npy"))
    assert "DumpConfig(enable_dump=True" in walked.printed
