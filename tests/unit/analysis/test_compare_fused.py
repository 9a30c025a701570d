"""A graph of GE with fused operators against the same graph without: the pair is made at tensors that both have."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ascend_dump

# Private: a fused graph needs operators whose values the test chooses, and a device that writes them as CANN does.
from ascend_dump.fakes.device.npu import NodeInfo, Npu

pytest.importorskip("rapidfuzz")

RANDOM = np.random.RandomState(0)
X, CONV, BATCH, OUT = (RANDOM.standard_normal((2, 3)).astype("f4") for _ in range(4))
SUM = OUT + 1

FUSED = (
    NodeInfo("x", "Data"),
    NodeInfo("conv1bn1relu1", "Conv2D", ("x:0",), original_names=("conv1", "bn1", "relu1")),
    NodeInfo("add1", "Add", ("conv1bn1relu1:0",)),
)
PLAIN = (
    NodeInfo("x", "Data"),
    NodeInfo("conv1", "Conv2D", ("x:0",)),
    NodeInfo("bn1", "BatchNorm", ("conv1:0",)),
    NodeInfo("relu1", "Relu", ("bn1:0",)),
    NodeInfo("add1", "Add", ("relu1:0",)),
)
VALUES = {"conv1": (X, CONV), "bn1": (CONV, BATCH), "relu1": (BATCH, OUT), "add1": (OUT, SUM)}


def dump(root: Path, ops: tuple[NodeInfo, ...], values: dict[str, tuple[np.ndarray, np.ndarray]]) -> Path:
    root.mkdir()
    (root / "dump").mkdir()
    npu = Npu(environ={}, cwd=root)
    config = {"dump": {"dump_path": str(root / "dump"), "dump_list": [{}], "dump_mode": "all"}}
    (root / "acl.json").write_text(json.dumps(config))
    assert npu.arm_acl(root / "acl.json") == 0
    model = npu.load_model("net", ops=ops)
    npu.begin_step(model, 0)
    for op in ops:
        if op.type != "Data":
            read, written = values[op.name]
            npu.run_op(op.type, op.name, [read], [written], model_id=model)
    npu.end_step(model)
    return root / "dump"


def fused_values(out: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {"conv1bn1relu1": (X, out), "add1": (out, out + 1)}


@pytest.mark.parametrize("fused_is", ["actual", "reference"])
def test_a_fused_operator_is_the_last_one_it_was_made_of(tmp_path: Path, fused_is: str) -> None:
    fused, plain = dump(tmp_path / "a", FUSED, fused_values(OUT)), dump(tmp_path / "b", PLAIN, VALUES)
    found = ascend_dump.compare(*((fused, plain) if fused_is == "actual" else (plain, fused)))
    assert found.verdict == "equal"
    assert sorted(found.inside) == [0, 2]
    assert sorted(map(sorted, found.mapping.items())) == sorted(
        map(sorted, [("conv1bn1relu1", "relu1"), ("add1", "add1")])
    )
    assert {pair.how for pair in found.pairs} == {"provenance", "name"}


def test_a_fault_in_a_fused_operator_is_named(tmp_path: Path) -> None:
    wrong = dump(tmp_path / "a", FUSED, fused_values(OUT * np.float32(1.1)))
    found = ascend_dump.compare(wrong, dump(tmp_path / "b", PLAIN, VALUES))
    assert found.verdict == "different"
    [origin] = found.origins
    assert (origin.op_name, origin.kind) == ("conv1bn1relu1", "compute")
    assert origin.pair.reference is not None
    assert origin.pair.reference.op_name == "relu1"
