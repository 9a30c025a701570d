"""Graphs that only a real TensorFlow has, under the fake npu_bridge: control flow, queues, both kinds of variables."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_bridge_cases import ONES, On, values

from ascend_dump import fakes


@pytest.fixture
def on(tmp_path: Path) -> Iterator[On]:
    import tensorflow as tf

    with fakes.install("npu_bridge", cwd=tmp_path) as npu:
        import_module("npu_bridge.npu_init")
        yield On(tf.compat.v1, npu, tmp_path)


@pytest.fixture(params=["old", "functional"])
def control_flow(request: pytest.FixtureRequest) -> Iterator[str]:
    """Switch and Merge in the graph itself, or If and While with functions."""
    import tensorflow as tf

    v1 = tf.compat.v1
    was_functional = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if request.param == "functional" else v1.disable_control_flow_v2)()
    yield str(request.param)
    (v1.enable_control_flow_v2 if was_functional else v1.disable_control_flow_v2)()


def test_branches_and_loops_run_and_only_what_is_outside_is_dumped(on: On, control_flow: str) -> None:
    tf = on.tf
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [], name="x")
        picked = tf.cond(x > 0, lambda: tf.add(x, 1.0, name="pos"), lambda: tf.multiply(x, 2.0, name="neg"))
        _, looped = tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, tf.multiply(a, 2.0, name="dbl")), [0, x])
        total = tf.add_n([picked, looped], name="sum")
        with tf.Session(config=on.dumping()) as session:
            assert [float(session.run(total, {x: each})) for each in (3.0, -1.0)] == [28.0, -10.0]
    names = {one.op_name for one in on.records()}
    assert {"sum", "Greater"} <= names
    assert not [name for name in names if name.rpartition("/")[2] in ("pos", "neg", "dbl")]
    found = [values(on.records(op="sum", io="input"), step=step, index=0) for step in (0, 1)]
    assert found == [4.0, -2.0]


def test_behind_a_raw_switch_nothing_is_asked_for_that_may_be_dead(on: On) -> None:
    import tensorflow

    tf, raw = on.tf, tensorflow.raw_ops
    with tf.Graph().as_default():
        chosen = tf.placeholder(tf.bool, [], name="chosen")
        dead, alive = raw.Switch(data=tf.constant(1.0), pred=chosen)
        merged = raw.Merge(inputs=[tf.add(dead, 1.0, name="a"), tf.add(alive, 2.0, name="b")])
        behind = tf.square(merged[0], name="behind")
        with tf.Session(config=on.dumping()) as session:
            assert [float(session.run(behind, {chosen: each})) for each in (False, True)] == [4.0, 9.0]
    assert {one.op_name for one in on.records() if one.op_type != "Data"} == {"behind"}


@pytest.mark.parametrize("resource", [False, True])
def test_both_kinds_of_variables_are_dumped_as_they_were(on: On, resource: bool) -> None:
    tf = on.tf
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None, 4], name="x")
        w = tf.get_variable("w", [4, 3], initializer=tf.ones_initializer(), use_resource=resource)
        loss = tf.reduce_mean(tf.matmul(x, w, name="mm"))
        train = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
        with tf.Session(config=on.dumping()) as session:
            session.run(tf.global_variables_initializer())
            for _ in range(2):
                session.run([loss, train], {x: ONES})
    kernels = [values(on.records(op="mm", io="input"), step=step, index=1) for step in (0, 1)]
    assert np.allclose(kernels[0], 1)
    assert np.allclose(kernels[1], 2 / 3)
    kind = "ResourceApplyGradientDescent" if resource else "ApplyGradientDescent"
    updates = [one for one in on.records(io="input", index=0) if one.op_type == kind]
    assert [float(one.numpy().max()) for one in sorted(updates, key=lambda one: one.step)] == [
        pytest.approx(1.0),
        pytest.approx(2 / 3),
    ]


def test_queues_texts_and_checkpoints_stay_on_the_host(on: On) -> None:
    tf = on.tf
    with tf.Graph().as_default():
        queue = tf.FIFOQueue(5, [tf.float32], shapes=[[]])
        fill = queue.enqueue_many([[1.0, 2.0, 3.0]])
        text = tf.strings.join([tf.constant("a"), tf.as_string(queue.size())])
        row = tf.square(queue.dequeue(name="row"), name="sq")
        w = tf.get_variable("w", [2], initializer=tf.ones_initializer())
        saver = tf.train.Saver([w])
        with tf.Session(config=on.dumping()) as session:
            session.run([fill, tf.global_variables_initializer()])
            assert session.run(text) == b"a3"
            assert [float(session.run(row)) for _ in range(3)] == [1.0, 4.0, 9.0]
            saver.restore(session, saver.save(session, str(on.root / "model.ckpt")))
    assert [float(one.numpy()) for one in on.records(op="sq", io="output")] == [1.0, 4.0, 9.0]
    types = {one.op_type for one in on.records()}
    assert not types & {"SaveV2", "RestoreV2", "StringJoin", "AsString", "MergeV2Checkpoints"}


def test_a_sequence_of_feeds_and_fetches_of_every_form(on: On) -> None:
    tf = on.tf
    with tf.Graph().as_default():
        sparse = tf.sparse_placeholder(tf.float32, [2, 2], name="sparse")
        dense = tf.sparse_tensor_dense_matmul(sparse, tf.ones([2, 1]), name="product")
        value = tf.SparseTensorValue(
            np.array([[0, 1]], np.int64), np.array([3.0], np.float32), np.array([2, 2], np.int64)
        )
        with tf.Session(config=on.dumping()) as session:
            found: Any = session.run({"d": dense, "s": sparse}, {sparse: value})
            session.run("product/SparseTensorDenseMatMul:0", {sparse: value})
    assert found["d"].tolist() == [[3.0], [0.0]]
    (one, other) = on.records(op="product/SparseTensorDenseMatMul", io="output")
    assert (one.numpy() == found["d"]).all()
    assert one.model != other.model
