"""Tensors on a device that another package adds to PyTorch, as torch_npu does: here one that is written in Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import PROGRAMS, run_python

import ascend_dump


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("device")


@pytest.fixture(scope="module")
def run(folder: Path) -> dict[str, Any]:
    """What the program says; its process is started once, which is slow."""
    return json.loads(run_python(PROGRAMS / "device.py", folder, OMP_NUM_THREADS=1).stdout)


def test_training_has_the_names_and_values_of_the_host(folder: Path, run: dict[str, Any]) -> None:
    assert run["losses"]["npu"] == run["losses"]["cpu"]
    device, host = ascend_dump.open(folder / "npu"), ascend_dump.open(folder / "cpu")
    assert len(device) == len(host) > 150
    for one, other in zip(device, host):
        assert (one.step, one.op_name, one.io, one.index) == (other.step, other.op_name, other.io, other.index)
        assert (one.attrs["device"], other.attrs["device"]) == ("npu:0", "cpu")
        assert np.array_equal(one.numpy(), other.numpy()), one
    assert device.select("0/mm_*", phase="backward"), "the thread that runs the device's backward pass is seen too"


def test_the_overflow_is_found(folder: Path, run: dict[str, Any]) -> None:
    dump = ascend_dump.open(folder / "overflow")
    before, after = dump.select(op_type="aten::mul_")
    assert (before.io, before.numpy().tolist()) == ("input", [np.float32(1e38)] * 2)
    assert np.isinf(after.numpy()).all()


def test_no_memory_of_the_device_is_kept(run: dict[str, Any]) -> None:
    assert run["left"] == 0


def test_a_copy_to_the_host_is_waited_for(folder: Path, run: dict[str, Any]) -> None:
    assert run["waits"] == 1
    (copied,) = ascend_dump.open(folder / "graph").select(op_type="aten::copy_", io="output")
    assert copied.numpy().tolist() == [1.0, 1.0, 1.0]


def test_a_composite_operator_is_whole_only_where_the_device_has_a_kernel_for_it(
    folder: Path, run: dict[str, Any]
) -> None:
    dump = ascend_dump.open(folder / "composite")
    assert [(record.op_type, record.attrs["device"]) for record in dump if record.io == "output"] == [
        ("aten::square", "npu:0"),
        ("aten::ones", "cpu"),
        ("aten::pow", "cpu"),
    ]


def test_operators_that_go_into_a_graph_of_the_device_are_left_alone(folder: Path, run: dict[str, Any]) -> None:
    dump = ascend_dump.open(folder / "graph")
    assert not dump.select(op_type="aten::mul")
    assert dump.select(op_type="aten::add")
    (manifest,) = (folder / "graph").rglob("manifest.json")
    assert "operators captured into a device graph (npu)" in manifest.read_text()


def test_values_of_the_host_are_grafted_into_a_program_on_the_device(run: dict[str, Any]) -> None:
    assert run["graft"] == [[0, 2, 4], [-1, 1, 3], [1, 3, 5], [1, 1, 1]]
