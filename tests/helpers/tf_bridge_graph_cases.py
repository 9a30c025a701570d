"""The graphs that a fake npu_bridge writes, on the stand-in for TensorFlow and on a real one, as `tf_bridge_cases`."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tf_bridge_cases import ONES, On

from ascend_dump.native.cann.graph import build_graphs, find_computational, find_model_folders, graph_name, read_graph


def run_with_data(on: On, config: Any) -> None:
    tf = on.tf
    with tf.Graph().as_default():
        data = tf.data.Dataset.from_tensors(ONES).repeat()
        x = tf.data.make_one_shot_iterator(data).get_next()
        w = tf.get_variable("w", [4, 3], initializer=tf.random_normal_initializer(seed=1))
        loss = tf.reduce_mean(tf.matmul(x, w, name="mm"), name="loss")
        with tf.Session(config=config) as session:
            session.run(tf.global_variables_initializer())
            session.run(loss)
            session.run(tf.square(w, name="other"))


def test_both_methods_find_the_computational_graph_and_its_folder(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMP_GRAPH_PATH", str(on.root / "graphs"))
    run_with_data(on, on.dumping())
    (directory,) = (on.root / "graphs").iterdir()
    assert directory.name == f"pid_{os.getpid()}_deviceid_0"
    files = build_graphs(on.root / "graphs")
    assert len(files) == 3
    by_iterator, by_name = find_computational(files), find_computational(files, ["mm"])
    assert by_iterator == by_name
    (found,) = by_iterator
    (folder,) = find_model_folders(on.path, graph_name(found))
    assert any(".mm." in path.name for path in folder.rglob("*"))
    assert {one.model for one in on.records(op="mm")} == {graph_name(found)}
    assert len({one.model for one in on.records()}) == 3


def test_a_graphs_text_says_which_operators_have_no_task(on: On) -> None:
    on.train(on.dumping())
    nodes = {node.name: node for file in build_graphs(on.root) for node in read_graph(file)}
    assert nodes["w"].no_task
    assert (nodes["mm"].type, nodes["mm"].no_task, nodes["mm"].original_names) == ("MatMulV2", False, ("mm",))
    assert nodes["mm"].inputs[0] == "x:0"
    assert nodes["x"].type == "Data"


@pytest.mark.parametrize(
    ("env", "written"),
    [
        ({}, False),
        ({"DUMP_GE_GRAPH": "2"}, True),
        ({"DUMP_GE_GRAPH": "2", "DUMP_GRAPH_LEVEL": "4"}, False),
        ({"DUMP_GE_GRAPH": "2", "DUMP_GRAPH_LEVEL": "Build|PreRun"}, True),
        ({"DUMP_GE_GRAPH": "2", "DUMP_GRAPH_FORMAT": "onnx"}, False),
    ],
)
def test_graphs_are_written_for_a_dump_or_where_the_environment_asks(
    on: On, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], written: bool
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    on.train(on.config())
    assert bool(build_graphs(on.root)) is written
    on.train(on.dumping())
    assert build_graphs(on.root)


def test_collected_graphs_have_a_place_of_their_own_and_no_dump_beside_them(
    on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPU_COLLECT_PATH", str(on.root / "collected"))
    monkeypatch.setenv("DUMP_GRAPH_PATH", str(on.root / "graphs"))
    monkeypatch.setenv("DUMP_GE_GRAPH", "2")
    on.train(on.config())
    assert build_graphs(on.root / "collected" / "extra-info" / "graph" / f"{os.getpid()}_0")
    assert not (on.root / "graphs").exists()
