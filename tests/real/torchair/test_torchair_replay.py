"""Operators of GE that torchair's own frontend made, run again through the nodes of its text of the graph."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Callable

import pytest
from conftest import VERSIONS

import ascend_dump


@pytest.fixture(scope="module", params=(VERSIONS[0], VERSIONS[-1]))
def dump(request: pytest.FixtureRequest, run_program: Callable[[str, str], Path]) -> Path:
    return run_program("replay_dumps", request.param) / "dump"


def test_every_node_is_run_and_right(dump: Path) -> None:
    found = ascend_dump.replay(dump)
    assert set(found.counts) <= {"equal", "noise"}, [(one.node, one.reason) for one in found.wrong]
    nodes = {one.node.partition(" ")[0] for one in found.pairs}
    assert {
        "addmm",
        "addmm_3",
        "relu",
        "relu_1",
        "native_layer_norm",
        "cat",
        "add",
        "sub",
        "_softmax",
        "sum_1",
    } <= nodes
    assert {one.op_type for one in found.refused if one.reason != "graph"} == set()


def test_a_wrong_operator_is_named_alone(dump: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "dump"
    shutil.copytree(dump, spoilt)
    [relu] = ascend_dump.open(spoilt).select(op="Relu_1", io="output")
    content = bytearray(relu.path.read_bytes())
    content[-1] ^= 0x41
    relu.path.write_bytes(content)
    [wrong] = ascend_dump.replay(spoilt).wrong
    assert (wrong.record.op_name, wrong.node) == ("Relu_1", "relu_1 (aten.relu.default)")
