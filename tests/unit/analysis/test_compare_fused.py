"""A graph of GE with fused operators against the same graph without: the pair is made at tensors that both have."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Union

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import DATA

import ascend_dump

# Private: a fused graph needs operators whose values the test chooses, and a device that writes them as CANN does.
from ascend_dump.fakes.device.npu import NodeInfo, Npu

pytest.importorskip("rapidfuzz")

Arrays = tuple[np.ndarray, ...]
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
    return dump_many(root, ops, {name: ((read,), (written,)) for name, (read, written) in values.items()})


def dump_many(
    root: Path, ops: tuple[NodeInfo, ...], values: Mapping[str, tuple[Arrays, Arrays]], graph: str = "net"
) -> Path:
    """values: by the name of an operator what it reads and writes."""
    root.mkdir()
    (root / "dump").mkdir()
    npu = Npu(environ={}, cwd=root)
    config = {"dump": {"dump_path": str(root / "dump"), "dump_list": [{}], "dump_mode": "all"}}
    (root / "acl.json").write_text(json.dumps(config))
    assert npu.arm_acl(root / "acl.json") == 0
    model = npu.load_model(graph, ops=ops)
    npu.begin_step(model, 0)
    for op in ops:
        if op.type != "Data":
            read, written = values[op.name]
            npu.run_op(op.type, op.name, list(read), list(written), model_id=model)
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


def ge_text(nodes: Sequence[tuple[str, str, Sequence[str], Sequence[str]]]) -> str:
    """A graph as GE writes it beside a dump: name, type, original names, and lines of attributes of each output."""
    ops = []
    for name, kind, originals, outputs in nodes:
        listed = "".join(f'          s: "{one}"\n' for one in originals)
        ops.append(
            f'  op {{\n    name: "{name}"\n    type: "{kind}"\n    attr {{\n      key: "_datadump_original_op_names"\n'
            f"      value {{\n        list {{\n{listed}        }}\n      }}\n    }}\n"
            + "".join(f"    output_desc {{\n      dtype: DT_FLOAT\n{one}    }}\n" for one in outputs)
            + "  }\n"
        )
    return f'graph {{\n  name: "net"\n{"".join(ops)}}}\n'


def attribute(**told: Union[str, int]) -> str:
    return "".join(
        f'      attr {{\n        key: "_{key}"\n        value {{\n          {"i" if isinstance(one, int) else "s"}: '
        f"{one if isinstance(one, int) else quoted(one)}\n        }}\n      }}\n"
        for key, one in told.items()
    )


def quoted(text: str) -> str:
    return f'"{text}"'


PAIR = (NodeInfo("x", "Data"), NodeInfo("first", "Conv2D", ("x:0",)), NodeInfo("second", "Relu", ("first:0",)))
PAIR_VALUES = {"first": (X, CONV), "second": (CONV, OUT)}


def both_in_one(root: Path, text: str, outputs: tuple[np.ndarray, np.ndarray], name: str = "fused") -> Path:
    """A graph in which one operator makes what two made, and GE's text of it beside the dump."""
    made = dump_many(root, (NodeInfo("x", "Data"), NodeInfo(name, "Fused", ("x:0",))), {name: ((X,), outputs)})
    (root / "ge_proto_00000001_graph_1_Build.txt").write_text(text)
    return made


TWO_ORIGINS = ge_text(
    [
        (
            "fused",
            "Fused",
            ("first", "second"),
            [
                attribute(datadump_origin_name="second", datadump_origin_output_index=0),
                attribute(datadump_origin_name="first", datadump_origin_output_index=0),
            ],
        )
    ]
)


@pytest.mark.parametrize("fused_is", ["actual", "reference"])
def test_each_output_is_the_one_that_the_graph_beside_the_dump_tells(tmp_path: Path, fused_is: str) -> None:
    """Both outputs are as wrong as can be, so that values tell nothing."""
    fused = both_in_one(tmp_path / "a", TWO_ORIGINS, (-OUT, -CONV))
    plain = dump(tmp_path / "b", PAIR, PAIR_VALUES)
    found = ascend_dump.compare(*((fused, plain) if fused_is == "actual" else (plain, fused)))
    outputs = {
        frozenset((pair.actual.label, pair.reference.label)): (pair.how, pair.confidence)
        for pair in found.pairs
        if pair.actual is not None and pair.reference is not None and pair.record.io == "output"
    }
    told = ("provenance", 1.0)
    assert outputs == {
        frozenset(("fused.output.0", "second.output.0")): told,
        frozenset(("fused.output.1", "first.output.0")): told,
    }


def test_the_mapping_of_fused_operators_can_be_given_back(tmp_path: Path) -> None:
    fused = both_in_one(tmp_path / "a", TWO_ORIGINS, (OUT, CONV))
    plain = dump(tmp_path / "b", PAIR, PAIR_VALUES)
    found = ascend_dump.compare(fused, plain)
    assert found.verdict == "equal"
    assert found.mapping == {"fused": "second"}
    mapping = json.loads(found.save_mapping(tmp_path / "mapping.json").read_text())
    again = ascend_dump.compare(fused, plain, mapping=mapping)
    assert again.mapping == found.mapping
    sides = [
        {(p.actual and p.actual.label, p.reference and p.reference.label) for p in one.pairs} for one in (found, again)
    ]
    assert sides[0] == sides[1]
    assert "mapping" in {pair.how for pair in again.pairs}


@pytest.mark.parametrize("names", ["second.OUTPUT.0", "first.OUTPUT.0second.OUTPUT.0"])
def test_the_nodes_of_pytorchs_graph_are_known_by_the_names_of_their_tensors(tmp_path: Path, names: str) -> None:
    text = ge_text([("Relu_7", "Fused", (), [attribute(fx_tensor_name=names)])])
    found = ascend_dump.compare(
        both_in_one(tmp_path / "a", text, (-OUT, CONV), name="Relu_7"), dump(tmp_path / "b", PAIR, PAIR_VALUES)
    )
    [pair] = [pair for pair in found.pairs if pair.reference is not None and pair.reference.label == "second.output.0"]
    assert pair.actual is not None
    assert (pair.actual.label, pair.how, pair.confidence) == ("Relu_7.output.0", "provenance", 1.0)


def test_torchairs_text_tells_the_nodes_too(tmp_path: Path) -> None:
    text = (
        "from torchair.ge._ge_graph import Tensor\n"
        "## FX Code: second: torch.float32[2, 3] = torch.ops.aten.relu.default(first: torch.float32[2, 3])\n"
        'Cast_1 = ge.Cast(x_0, node_name="Cast_1")\n'
        'Relu_7 = ge.Relu(Cast_1, node_name="Relu_7")\n'
    )
    root = tmp_path / "a"
    ops = (NodeInfo("x", "Data"), NodeInfo("Relu_7", "Relu", ("x:0",)))
    made = dump_many(root, ops, {"Relu_7": ((X,), (-OUT,))}, "graph_1")
    (root / "dynamo_optimized_graph_1_rank_0_pid_1_ts_20261121015258982238.py").write_text(text)
    dumped = ascend_dump.open(made)
    assert {dumped.made_of(record).names for record in dumped if record.op_name == "Relu_7"} == {("second",)}
    found = ascend_dump.compare(dumped, dump(tmp_path / "b", PAIR, PAIR_VALUES))
    assert {pair.how for pair in found.pairs if pair.actual and pair.reference} == {"provenance"}
    assert found.mapping == {"Relu_7": "second"}


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 900))
def test_a_damaged_graph_beside_a_dump_tells_nothing_or_something(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, at: int
) -> None:
    root = tmp_path_factory.mktemp("graph")
    text = TWO_ORIGINS.encode()
    (root / "ge_proto_00000001_graph_1_Build.txt").write_bytes(text[:at] + junk + text[at:])
    shutil.copytree(DATA / "cann", root / "dump")
    dumped = ascend_dump.open(root / "dump")
    for record in dumped:
        dumped.made_of(record)
