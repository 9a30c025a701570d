"""The self-test of each framework that has no device here, on the simulated one; and what can be tried where."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from preloaded import write_python

from ascend_dump.selftest import processes
from ascend_dump.selftest.onnx_model import OnnxNode, onnx_model
from ascend_dump.selftest.processes import SUBJECTS
from ascend_dump.selftest.run import run_selftest

#: What a framework does not have, which the table tells with its reason.
SKIPPED = {"mindspore-ascend": ["a full disk is reported"]}
#: Probes that this framework's dump, or its program, lets say something.
CONFIRMED = {
    "torchair": {
        *("first_graph", "renamed", "graphs_again", "graph_levels", "rank_directory", "overflow_found", "saved_names"),
        *("acl_outranks_options", "data_unchecked", "overflow_modes", "step_range", "symlink", "watch_collective"),
    },
    "acl": {
        *("file_names", "payload_order", "statistics_header", "overflow_payload", "never_dumped"),
        *("init_twice", "long_names", "set_before_load", "watch_final_names", "watch_names"),
    },
    "npu_bridge": {"graph_levels", "graph_steps", "loop", "overflow_found", "signatures", "variable_values"},
    "mindspore-ascend": {
        *("tree", "stored_types", "sampled", "paused", "overflowed", "without_e2e", "graph_engine"),
        "device_statistics",
    },
}


@pytest.mark.thorough
@pytest.mark.parametrize("framework", CONFIRMED)
def test_every_promise_is_kept_on_the_simulated_device(framework: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    python = write_python(tmp_path / "python", "torch")
    work = tmp_path / "work"
    test = run_selftest(work, frameworks=[framework], simulated=True, python=str(python))
    assert [result for result in test.results if result.state == "FAIL"] == []
    assert [result.check for result in test.results if result.state == "SKIP"] == SKIPPED.get(framework, [])
    assert len(test.results) == 18
    assert {result.road for result in test.results} == {"with", "decorator", "launcher"}
    assert [name for name, outcome in test.probed.items() if outcome.state == "refuted"] == []
    assert {name for name, outcome in test.probed.items() if outcome.state == "confirmed"} >= CONFIRMED[framework]


# What can be tried where.


def installed(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    monkeypatch.setattr(processes, "find_spec", lambda name: object() if name in modules else None)


BY_NAME = {subject.name: subject for subject in SUBJECTS}


@pytest.mark.parametrize(
    ("name", "modules", "simulated", "lacks"),
    [
        ("torchair", (), True, "torch is not installed"),
        ("torchair", ("torch",), True, ""),
        ("torchair", ("torch",), False, "torch_npu is not installed"),
        ("torchair", ("torch", "torchair"), True, ""),
        ("acl", (), True, ""),
        ("acl", ("acl",), True, "the real acl is installed, and the simulated device needs its fake instead"),
        ("npu_bridge", (), True, ""),
        ("npu_bridge", ("npu_bridge",), False, "tensorflow is not installed"),
        ("npu_device", (), True, "tensorflow is not installed"),
        ("mindspore", (), True, "mindspore is not installed"),
        ("mindspore-ascend", (), True, ""),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, modules: tuple[str, ...], simulated: bool, lacks: str
) -> None:
    installed(monkeypatch, *modules)
    assert BY_NAME[name].lacks(simulated=simulated) == lacks


def test_as_much_as_is_installed_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real torchair runs on a simulated native part, npu_bridge on a real TensorFlow."""
    installed(monkeypatch, "torch", "torchair", "tensorflow")
    assert BY_NAME["torchair"].stand_ins() == ["torchair_native"]
    assert BY_NAME["npu_bridge"].stand_ins() == ["npu_bridge"]
    installed(monkeypatch, "torch")
    assert BY_NAME["torchair"].stand_ins() == ["torchair"]
    assert BY_NAME["npu_bridge"].stand_ins() == ["npu_bridge", "tensorflow"]


def test_the_onnx_file_for_atc_is_the_one_that_onnx_accepts() -> None:
    """onnx 1.23.2's checker took these bytes, and its reference gave x @ w1 @ w2 for them."""
    draw = np.random.default_rng(0).standard_normal
    weights = {"w1": draw((64, 48)).astype("f4"), "w2": draw((48, 8)).astype("f4")}
    nodes = (OnnxNode("first", "MatMul", ("x", "w1")), OnnxNode("second", "MatMul", ("first", "w2")))
    made = onnx_model({"x": (4, 64)}, weights, nodes, {"second": (4, 8)})
    assert hashlib.sha256(made).hexdigest() == "6ef1951491754276755eaa21e2c2a151e399ae9f7aa8ea98b8e204f6e4079d26"
