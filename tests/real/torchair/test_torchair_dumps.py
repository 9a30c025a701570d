"""What torchair writes by itself, read back: its graphs as Python text, and its eager dump."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from conftest import VERSIONS, read_json

import ascend_dump
from ascend_dump.native.torchair.graph import GraphOp, read_torchair_graph


@pytest.fixture(scope="module", params=(VERSIONS[0], VERSIONS[-1]))
def place(request: pytest.FixtureRequest, run_program: Callable[..., Path]) -> Path:
    return run_program("write_dumps", request.param)


@pytest.fixture
def report(place: Path) -> Any:
    return read_json(place / "report.json")


@pytest.fixture(params=["original", "optimized"])
def graph(request: pytest.FixtureRequest, place: Path) -> list[GraphOp]:
    found = [path for path in place.rglob(f"dynamo_{request.param}_graph_*.py") if "graph_1_" in path.name]
    assert len(found) == 1, found
    return list(read_torchair_graph(found[0]))


def test_the_text_names_every_operator_but_constants(graph: list[GraphOp], report: Any) -> None:
    handed = {name: kind for name, kind in report["handed"] if kind != "Const"}
    assert {one.node.name: one.node.type for one in graph if one.node.type and not one.to_input} == handed
    assert [(one.node.type, one.fx) for one in graph if one.to_input] == [("Assign", "copy_")]


def test_every_node_gets_its_own_line_or_none(graph: list[GraphOp], report: Any) -> None:
    # Of three equal layers torchair writes the lines of the first one only.
    found = {one.fx: one.source for one in graph if one.fx}
    known = {name: source for name, source in found.items() if source}
    assert known == {name: report["nodes"][name]["source"] for name in known}
    assert len(known) > 30
    # In the line of a linear layer it may come from the line that an addmm began before.
    assert found.keys() - known.keys() <= {name for name in found if name.startswith("addmm")}


def test_the_eager_dump_holds_every_call_with_its_values(place: Path, report: Any) -> None:
    dump = ascend_dump.open(place / "eager")
    assert dump.errors() == []
    assert (dump.known_values("step"), dump.known_values("rank")) == ({0, 1}, {0})
    for step in (0, 1):
        outputs = {(record.op_name, record.index): record for record in dump.select(step=step, io="output")}
        assert outputs
        for name, _ in outputs:
            assert report["nodes"][name]["is_call"]
            assert outputs[name, 0].op_type == report["nodes"][name]["target"]
        checked = 0
        for record in dump.select(step=step, io="input"):
            arguments = report["nodes"][record.op_name]["arguments"]
            producer = outputs.get((arguments[record.attrs["argument"]], 0))
            if producer is not None and "item" not in record.attrs:
                assert np.array_equal(record.numpy(), producer.numpy()), record
                checked += 1
        assert checked > 20
        computed = [record for record in outputs.values() if record.op_name != "copy_"]
        last = max(computed, key=lambda record: record.timestamp)
        assert np.array_equal(last.numpy(), np.array(report["results"][step], np.float32))
