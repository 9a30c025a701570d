"""Parts of the TensorFlow adapter that need neither TensorFlow nor its bridges."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Private: these parts need no TensorFlow, so they are tested where there is none.
from ascend_dump_tensorflow._arrays import RecordedTensor, line_of, payload_of
from ascend_dump_tensorflow._graphs import graph_directory, marks_of, models_of, settle_environment
from findings import findings
from places import DATA

import ascend_dump
from ascend_dump.adapter import load
from ascend_dump.native.tensorflow.options import exact_names

GRAPHS = DATA / "ge_proto"


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    """As GE leaves them, the graphs of one process in a directory of their own."""
    place = tmp_path / "graphs" / "pid_7_deviceid_0"
    place.mkdir(parents=True)
    for name in ("ge_proto_00000009_graph_11_Build.txt", "ge_proto_00000017_graph_1_Build.txt"):
        shutil.copy(GRAPHS / name, place)
    (place / "ge_proto_00000018_graph_1_PreRunAfterBuild.txt").write_text('graph { name: "other" }')
    return tmp_path / "graphs"


def test_the_graph_with_the_data_pipeline_computes(graphs: Path, tmp_path: Path) -> None:
    other, training = models_of(tmp_path / "dumps", graphs)
    assert (other.computational, training.computational) == (False, True)
    folder = tmp_path / "dumps" / "20200808163566" / "0" / training.name
    folder.mkdir(parents=True)
    assert [model.folders for model in models_of(tmp_path / "dumps", graphs)] == [(), (folder,)]
    assert marks_of([other, training]) == {
        other.name: {"graph": "other", "graph_file": str(other.file)},
        training.name: {"graph": "computational", "graph_file": str(training.file)},
    }


def test_names_of_operators_outrank_the_data_pipeline(graphs: Path, tmp_path: Path) -> None:
    from ascend_dump.native.cann.graph import read_graph

    first = sorted(graphs.rglob("*_Build.txt"))[0]
    name = [node.name for node in read_graph(first)][-1]
    assert [model.computational for model in models_of(tmp_path, graphs, [name])] == [True, False]
    assert [model.computational for model in models_of(tmp_path, graphs, ["no_such_operator"])] == [False, False]
    assert marks_of(models_of(tmp_path, graphs, ["no_such_operator"])) == {}


def test_older_graphs_are_left_out(graphs: Path, tmp_path: Path) -> None:
    os.utime(sorted(graphs.rglob("*_Build.txt"))[0], (1000, 1000))
    assert len(models_of(tmp_path, graphs, since=2000)) == 1


def test_the_environment_is_set_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUMP_GE_GRAPH", "DUMP_GRAPH_LEVEL", "DUMP_GRAPH_PATH", "NPU_COLLECT_PATH", "ASCEND_WORK_PATH"):
        # Set first, so that it is gone again after the test, whatever the code below puts there.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    assert graph_directory() == tmp_path
    before, place = settle_environment(tmp_path / "graphs")
    assert place == tmp_path / "graphs"
    assert set(before) == {"DUMP_GE_GRAPH", "DUMP_GRAPH_LEVEL", "DUMP_GRAPH_PATH"}
    # What is there already stays: a second capture, or the user's own.
    again, place = settle_environment(tmp_path / "others")
    assert (again, place) == ({}, tmp_path / "graphs")
    monkeypatch.setenv("NPU_COLLECT_PATH", str(tmp_path / "collected"))
    assert graph_directory() == tmp_path / "collected" / "extra-info" / "graph"


def test_the_adapter_knows_its_targets_without_tensorflow() -> None:
    adapter = load("tensorflow")
    assert adapter.accepts(None)
    foreign = type("ConfigProto", (), {"__module__": "somebody.else"})()
    for target in (object(), 1, "graph", foreign):
        assert not adapter.accepts(target)
    alike = type("ConfigProto", (), {"__module__": "tensorflow.core.protobuf.config_pb2"})()
    assert adapter.accepts(alike)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"scene": "overflow"}, "AD203"),
        ({"options": {"optimise": True}}, "AD210"),
        ({"options": {"optimize": 1}}, "AD210"),
        ({"options": {"buffer_bytes": 0}}, "AD210"),
        ({"level": "op"}, "AD211"),
        ({"quant": True}, "AD211"),
        ({"models": "net"}, "AD211"),
        ({"stats": "max"}, "AD211"),
    ],
    ids=str,
)
def test_what_the_host_cannot_do(settings: dict[str, Any], code: str) -> None:
    problems = findings("tensorflow", ascend_dump.DumpRequest(**settings), None)
    assert code in {one.code for one in problems}
    assert all(one.hint for one in problems)


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([b"a"]), np.array([object()]), "text", None, 1.0])
def test_what_has_no_numbers_has_no_bytes(array: Any) -> None:
    assert payload_of(array) is None


def test_quantised_values_are_stored_as_the_integers_they_are() -> None:
    kind = np.dtype([("qint8", "i1")])
    payload = payload_of(np.array([(1,), (-1,)], kind))
    assert payload is not None
    assert (payload.dtype, payload.shape, payload.nbytes, bytes(payload.view())) == ("qint8", (2,), 2, b"\x01\xff")


def test_bytes_are_those_of_the_logical_array() -> None:
    array = np.arange(6, dtype="f").reshape(2, 3).T
    payload = payload_of(array)
    assert payload is not None
    assert (payload.shape, bytes(payload.view())) == ((3, 2), array.tobytes())
    line = line_of(RecordedTensor("Add", "gradients_1/add", "output", 0, 7, payload), 3)
    assert (line.seq, line.stride, line.phase, line.nbytes) == (3, (2, 1), "backward", 24)
    scalar = payload_of(np.array(2, "f"))
    assert scalar is not None
    assert (scalar.shape, scalar.nbytes) == ((), 4)


def test_patterns_are_no_names() -> None:
    assert exact_names(["a/b", "conv*", "re:x", "c[0]", "d"]) == ["a/b", "d"]
    assert exact_names("a b") == ["a", "b"]
