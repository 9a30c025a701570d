"""Reference dumps of sessions on the host: TensorFlow's debugger against values fetched without it."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf
from planted_links import plant, state_of
from tensorflow.python.debug.lib import debug_data, debug_utils
from tensorflow.python.keras import backend as legacy_backend

import ascend_dump

X = np.arange(8, dtype="f").reshape(2, 4) / 8


@pytest.fixture(params=["control_flow_v1", "control_flow_v2"])
def control_flow(request: pytest.FixtureRequest) -> Iterator[str]:
    v2 = request.param == "control_flow_v2"
    (tf.enable_control_flow_v2 if v2 else tf.disable_control_flow_v2)()
    yield request.param
    tf.disable_control_flow_v2()


@pytest.fixture
def capture(tmp_path: Path) -> Callable[..., ascend_dump.Capture]:
    def make(target: Any = None, **settings: Any) -> ascend_dump.Capture:
        return ascend_dump.capture(target, path=tmp_path / "dumps", framework="tensorflow", strict=True, **settings)

    return make


def network(resource: bool = True) -> tuple[Any, Any, Any]:
    """Input, loss and training operator of a small convolution."""
    x = tf.placeholder(tf.float32, [2, 4], name="x")
    image = tf.reshape(x, [2, 2, 2, 1], name="image")
    kernel = tf.get_variable("kernel", [2, 2, 1, 3], use_resource=resource)
    bias = tf.get_variable("bias", [3], initializer=tf.ones_initializer(), use_resource=resource)
    hidden = tf.nn.relu(
        tf.nn.bias_add(tf.nn.conv2d(image, kernel, [1, 1, 1, 1], "SAME", name="conv"), bias), name="act"
    )
    kept = tf.nn.dropout(hidden, rate=0.25, name="drop")
    loss = tf.reduce_mean(tf.square(kept), name="loss")
    return x, loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss)


def outputs(dump: ascend_dump.Dump) -> dict[str, np.ndarray]:
    """By the name of a tensor, its only value."""
    found: dict[str, np.ndarray] = {}
    for record in dump.select(io="output"):
        name = f"{record.op_name}:{record.index}"
        assert name not in found, f"{name} has several values"
        found[name] = record.numpy()
    return found


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "ref"])
def test_every_dumped_tensor_is_the_value_fetched_without_the_debugger(capture: Any, resource: bool) -> None:
    config = tf.ConfigProto()
    x, loss, _ = network(resource)
    with capture(config) as cap, tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        session.run(loss, {x: X})
    found = outputs(cap.dump().select(model="run1_loss"))
    with tf.Session() as plain:
        plain.run(tf.global_variables_initializer())
        # In one run, as the random operators give other numbers in each.
        expected = dict(zip(found, plain.run(list(found), {x: X})))
    assert {"conv:0", "act:0", "drop/random_uniform/RandomUniform:0", "loss:0"} <= set(found)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].tobytes() == value.tobytes(), name


def test_nothing_behind_a_planted_link_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    victims: list[tuple[Path, dict[str, tuple[int, bytes]]]] = []

    def plant_it(value: np.ndarray) -> np.ndarray:
        victim = plant(tmp_path / "dumps")
        victims.append((victim, state_of(victim)))
        return value

    config = tf.ConfigProto()
    value = tf.identity(tf.py_func(plant_it, [tf.constant(X)], tf.float32), name="planted")
    cap = ascend_dump.capture(config, path=tmp_path / "dumps", framework="tensorflow")
    with cap, tf.Session(config=config) as session:
        assert session.run(value).tobytes() == X.tobytes()
    [(victim, before)] = victims
    assert any(".tfdbg-" in name for name in before)
    # TensorFlow itself opens its files by their paths.
    after = {name: state for name, state in state_of(victim).items() if name in before}
    assert after == before
    assert "was moved" in caplog.text


def test_every_input_is_the_output_it_comes_from(capture: Any) -> None:
    config = tf.ConfigProto()
    x, loss, train = network()
    with capture(config) as cap, tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        session.run([loss, train], {x: X})
    dump = cap.dump().select(model="run1_loss")
    made = outputs(dump)
    graph = tf.get_default_graph()
    compared = 0
    for record in dump.select(io="input"):
        source = graph.get_operation_by_name(record.op_name).inputs[record.index].name
        expected = X if source == "x:0" else made[source]
        assert record.numpy().tobytes() == expected.tobytes(), record
        compared += 1
    assert compared > 20
    [update] = dump.select(op="*ApplyGradientDescent", io="input", index=2).select(op="*kernel*")
    assert update.op_type == "ResourceApplyGradientDescent"
    assert update.shape == (2, 2, 1, 3)


def test_training_is_the_same_with_and_without_a_capture(capture: Any) -> None:
    x, loss, train = network()

    def fit(config: Any) -> list[bytes]:
        with tf.Session(config=config) as session:
            session.run(tf.global_variables_initializer())
            losses = [session.run([loss, train], {x: X})[0] for _ in range(5)]
            return [
                *(one.tobytes() for one in losses),
                *(one.tobytes() for one in session.run(tf.trainable_variables())),
            ]

    plain = fit(tf.ConfigProto())
    config = tf.ConfigProto()
    with capture(config, steps="1|3") as cap:
        assert fit(config) == plain
    assert {record.step for record in cap.dump().select(model="run*_loss")} == {1, 3}
    assert fit(config) == plain
    config = tf.ConfigProto()
    with capture(config, options={"optimize": True}):
        assert fit(config) == plain


def test_loop_bodies_are_seen_once_for_each_iteration(capture: Any, control_flow: str) -> None:
    x = tf.placeholder(tf.float32, [], name="x")

    def body(i: Any, value: Any) -> tuple[Any, Any]:
        return i + 1, tf.multiply(value, 2.0, name="twice")

    _, last = tf.while_loop(lambda i, value: i < 3, body, [0, x])
    end = tf.add(last, 1.0, name="end")
    with capture() as cap, tf.Session() as session:
        assert session.run(end, {x: 3.0}) == 25.0
    # Functional loops are lowered, and their operators get names of the lowering.
    pattern = "while/twice" if control_flow == "control_flow_v1" else "re:while/body/.*twice.*"
    twice = [one for one in cap.dump().select(op=pattern) if one.op_type == "Mul"]
    assert [float(one.numpy()) for one in twice if one.io == "output"] == [6.0, 12.0, 24.0]
    assert [float(one.numpy()) for one in twice if one.io == "input" and one.index == 0] == [3.0, 6.0, 12.0]
    sequence = [one.attrs["seq"] for one in twice if one.io == "output"]
    assert sequence == sorted(set(sequence))


def test_only_the_branch_taken_is_seen(capture: Any, control_flow: str) -> None:
    x = tf.placeholder(tf.float32, [], name="x")
    chosen = tf.cond(x > 0, lambda: tf.add(x, 1.0, name="up"), lambda: tf.subtract(x, 1.0, name="down"))
    with capture() as cap, tf.Session() as session:
        assert [session.run(chosen, {x: value}) for value in (3.0, -3.0)] == [4.0, -4.0]
    ran = [{one.op_type for one in cap.dump().select(step=step, op="cond*")} for step in (0, 1)]
    assert ("AddV2" in ran[0], "Sub" in ran[0]) == (True, False)
    assert ("AddV2" in ran[1], "Sub" in ran[1]) == (False, True)


def test_side_effects_happen_once(capture: Any) -> None:
    queue = tf.FIFOQueue(10, [tf.float32], shapes=[[]])
    fill = queue.enqueue_many([np.arange(6, dtype="f")])
    item = tf.identity(queue.dequeue(), name="item")
    numbers = tf.data.make_one_shot_iterator(tf.data.Dataset.range(6)).get_next()
    with capture() as cap, tf.Session() as session:
        session.run(fill)
        assert [session.run([item, numbers]) for _ in range(3)] == [[0.0, 0], [1.0, 1], [2.0, 2]]
    assert [float(one.numpy()) for one in cap.dump().select(op="item", io="output")] == [0.0, 1.0, 2.0]


def test_the_end_of_the_data_is_raised_as_before(capture: Any) -> None:
    numbers = tf.data.make_one_shot_iterator(tf.data.Dataset.range(1)).get_next()
    with capture() as cap, tf.Session() as session:
        assert session.run(numbers) == 0
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(numbers)
    assert list(cap.path.glob(".tfdbg*")) == []


@pytest.mark.parametrize("mode", ["input", "output", "all"])
def test_mode_and_layers(capture: Any, mode: str) -> None:
    x, loss, _ = network()
    with capture(mode=mode, layers=["act", "re:conv$"]) as cap, tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(loss, {x: X})
    found = {(one.op_name, one.io) for one in cap.dump()}
    assert found == {(name, io) for name in ("act", "conv") for io in ("input", "output") if mode in (io, "all")}


def test_statistics_are_those_of_the_tensor(capture: Any) -> None:
    x, loss, _ = network()
    with capture(data="full", layers="conv") as cap, tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(loss, {x: X})
    [record] = cap.dump().select(io="output")
    assert record.statistics().max == record.numpy().max()
    with capture(data="stats", layers="conv") as cap, tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(loss, {x: X})
    [statistic] = cap.dump().select(io="output")
    assert statistic.statistics().max == record.statistics().max


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (tf.bfloat16, [1.5, -2.0]),
        (tf.float16, [1.5, -2.0]),
        (tf.float64, [1.5, -2.0]),
        (tf.complex64, [1 + 2j, -1j]),
        (tf.bool, [True, False]),
        (tf.int8, [-3, 4]),
        (tf.uint16, [3, 4]),
        (tf.int64, [-(2**40), 1]),
    ],
)
def test_types(capture: Any, dtype: Any, values: list[Any]) -> None:
    end = tf.identity(tf.constant(values, dtype=dtype, shape=[2, 1]), name="end")
    with capture() as cap, tf.Session() as session:
        expected = session.run(end)
    [record] = cap.dump().select(op="end", io="output")
    assert record.dtype == dtype.name
    assert record.shape == (2, 1)
    assert record.numpy().tobytes() == expected.tobytes()


def test_text_and_empty_tensors(capture: Any) -> None:
    with capture() as cap, tf.Session() as session:
        session.run(tf.identity(tf.constant(["a"]), name="text"))
        session.run(tf.identity(tf.zeros([0, 3]), name="empty"))
    assert len(cap.dump().select(op="text")) == 0
    assert [one.numpy().shape for one in cap.dump().select(op="empty", io="output")] == [(0, 3)]
    assert cap.dump().errors() == []


def model_function(features: Any, labels: Any, mode: Any) -> Any:
    weight = tf.get_variable("w", [4, 1])
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weight, name="mm") - labels))
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, tf.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def input_function() -> Any:
    return tf.data.Dataset.from_tensors((X, np.ones((2, 1), "f"))).repeat()


@pytest.mark.parametrize("way", ["config", "run_config", "bare_run_config", "estimator", "process"])
def test_estimators(capture: Any, way: str, tmp_path: Path) -> None:
    config = None if way == "bare_run_config" else tf.ConfigProto()
    run_config = tf.estimator.RunConfig(session_config=config, tf_random_seed=7)
    estimator = tf.estimator.Estimator(model_function, model_dir=str(tmp_path / "model"), config=run_config)
    targets = {"config": config, "estimator": estimator, "process": None}
    with capture(targets.get(way, run_config), steps="0|2", layers="mm") as cap:
        if way.endswith("config"):
            # An Estimator copies its configuration when it is made.
            estimator = tf.estimator.Estimator(model_function, model_dir=str(tmp_path / "model"), config=run_config)
        estimator.train(input_function, steps=4)
    assert {one.step for one in cap.dump().select(op="mm")} == {0, 2}
    first = next(iter(cap.dump().select(op="mm", io="input", index=0)))
    assert first.numpy().tobytes() == X.tobytes()
    if way == "bare_run_config":
        assert run_config.session_config is None
    elif config is not None:
        assert config == tf.ConfigProto()
    files = sorted(cap.path.rglob("*"))
    estimator.train(input_function, steps=2)
    assert sorted(cap.path.rglob("*")) == files


@pytest.mark.parametrize("kind", ["public", "legacy"])
def test_keras(capture: Any, kind: str) -> None:
    import tensorflow.python.keras as legacy

    keras = tf.keras if kind == "public" else legacy
    backend = tf.keras.backend if kind == "public" else legacy_backend

    def fit(captured: bool) -> tuple[Any, Any]:
        backend.clear_session()
        tf.set_random_seed(7)
        if not captured:
            return train(), None
        with capture(steps="1") as cap:
            return train(), cap

    def train() -> Any:
        backend.set_session(tf.Session())
        half = keras.initializers.Constant(0.5)
        model = keras.Sequential([keras.layers.Dense(3, input_shape=(4,), kernel_initializer=half, name="d0")])
        model.compile("sgd", "mse")
        model.fit(X, np.ones((2, 3), "f"), batch_size=1, epochs=2, verbose=0, shuffle=False)
        return [one.tobytes() for one in model.get_weights()]

    plain, _ = fit(False)
    weights, cap = fit(True)
    assert weights == plain
    [record] = cap.dump().select(op="*d0/MatMul", op_type="MatMul", io="input", index=0)
    assert record.step == 1
    assert record.numpy().tobytes() == X[1:].tobytes()


def test_a_monitored_session_and_its_metadata(capture: Any) -> None:
    x, loss, train = network()
    tf.train.get_or_create_global_step()
    options, metadata = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
    with capture(layers="conv") as cap, tf.train.MonitoredTrainingSession() as session:
        session.run([loss, train], {x: X}, options=options, run_metadata=metadata)
    assert len(cap.dump().select(io="output")) == 1
    assert len(metadata.step_stats.dev_stats) > 0
    assert len(metadata.partition_graphs) == 0
    assert not options.debug_options.debug_tensor_watch_opts


def test_a_session_that_exists(capture: Any) -> None:
    x, loss, _ = network()
    with tf.Session() as session, tf.Session() as other:
        session.run(tf.global_variables_initializer())
        other.run(tf.global_variables_initializer())
        with capture(session, layers="loss") as cap:
            session.run(loss, {x: X})
            other.run(loss, {x: X})
        session.run(loss, {x: X})
    assert [problem.code for problem in cap.problems] == ["AD296"]
    assert len(cap.dump().select(op="loss", io="output")) == 1


def test_grappler_is_told_without_a_target_too(capture: Any) -> None:
    x, loss, _ = network()
    with capture() as cap, tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(loss, {x: X})
    assert "AD296" in [problem.code for problem in cap.problems]


@pytest.mark.parametrize("setting", ["1", "0"])
def test_operators_that_onednn_merges_are_told(tmp_path: Path, setting: str) -> None:
    program = f"""
import tensorflow.compat.v1 as tf
import ascend_dump
tf.disable_v2_behavior()
for options in ({{}}, {{"optimize": True}}):
    config = tf.ConfigProto()
    with ascend_dump.capture(config, path={str(tmp_path)!r}, options=options) as cap:
        with tf.Session(config=config) as session:
            session.run(tf.identity(tf.constant(1.0)))
    print("AD299" in [problem.code for problem in cap.problems])
"""
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": setting}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(setting == "1"), "False"]


def test_sessions_of_other_configurations_are_left_alone(capture: Any) -> None:
    mine, other = tf.ConfigProto(), tf.ConfigProto()
    end = tf.identity(tf.constant(1.0), name="end")
    with capture(mine) as cap:
        with tf.Session(config=other) as session:
            session.run(end)
        assert len(cap.dump()) == 0
        with tf.Session(config=mine) as session:
            session.run(end)
    assert len(cap.dump().select(op="end", io="output")) == 1


def test_threads_have_their_own_runs(capture: Any) -> None:
    x = tf.placeholder(tf.float32, [], name="x")
    end = tf.multiply(x, 2.0, name="end")
    with capture() as cap, tf.Session() as session:
        threads = [threading.Thread(target=session.run, args=(end, {x: float(n)})) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = {one.step: float(one.numpy()) for one in cap.dump().select(op="end", io="output")}
    assert sorted(found) == [0, 1, 2, 3]
    assert sorted(found.values()) == [0.0, 2.0, 4.0, 6.0]


def test_callables_of_a_session_are_recorded(capture: Any) -> None:
    x = tf.placeholder_with_default(1.0, [], name="x")
    end = tf.multiply(x, 2.0, name="end")
    with capture() as cap:
        session = tf.Session()
        plain, fed = session.make_callable(end), session.make_callable([end], [x])
        assert [plain(), fed(3.0)] == [2.0, [6.0]]
    with session:
        assert [plain(), fed(4.0)] == [2.0, [8.0]]
    assert sorted(float(one.numpy()) for one in cap.dump().select(op="end", io="output")) == [2.0, 6.0]


def test_after_the_block_tensorflow_is_as_before(capture: Any) -> None:
    from tensorflow.python.client.session import BaseSession

    names = ("__init__", "run", "make_callable", "_make_callable_from_options")
    before = {name: BaseSession.__dict__[name] for name in names}
    with capture() as cap, tf.Session() as session:
        session.run(tf.constant(1.0))
        assert BaseSession.__dict__["run"] is not before["run"]
    assert {name: BaseSession.__dict__[name] for name in before} == before
    assert len(cap.dump()) == 1


def test_a_failure_of_ours_is_told_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Private: makes a part fail, which no program can.
    from ascend_dump_tensorflow import _debugger

    def fail(*args: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(_debugger, "read", fail)
    caplog.set_level(logging.WARNING, "ascend_dump")
    session = tf.Session()
    with session, ascend_dump.capture(session, path=tmp_path / "dumps") as cap:
        assert [session.run(tf.constant(2.0)) for _ in range(3)] == [2.0, 2.0, 2.0]
    assert [record.message.count("no space left") for record in caplog.records if "no space" in record.message] == [1]
    assert list(cap.path.glob(".tfdbg*")) == []


def test_nothing_ran_is_told_with_reasons(capture: Any) -> None:
    config = tf.ConfigProto()
    cap = capture(config).start()
    with tf.Session() as session:
        session.run(tf.constant(1.0))
    with pytest.raises(ascend_dump.CaptureError, match="created from the target"):
        cap.stop()
    with pytest.raises(ascend_dump.CaptureError, match="created in the block ran anything"):
        capture().start().stop()
    with tf.Session() as session, pytest.raises(ascend_dump.CaptureError, match="ran nothing in the block"):
        capture(session).start().stop()
    cap = capture(layers="no_such").start()
    with tf.Session() as session:
        session.run(tf.constant(1.0, name="one"))
    with pytest.raises(ascend_dump.CaptureError, match="layers= selects; there were one"):
        cap.stop()


def step_zero_of(graph: Any) -> None:
    with tf.Session(graph=graph) as session:
        for value in (1.0, 2.0):
            session.run("doubled:0", {"given:0": value})


def doubling() -> Any:
    graph = tf.Graph()
    with graph.as_default():
        tf.multiply(tf.placeholder(tf.float32, [], name="given"), 2.0, name="doubled")
    return graph


def test_each_session_counts_its_own_steps(capture: Any) -> None:
    """Also where a graph is gone, and another one gets its identity."""
    kept = doubling()
    with capture(steps=0) as cap:
        for _ in range(2):
            step_zero_of(kept)
        for _ in range(6):
            step_zero_of(doubling())
            gc.collect()
    found = cap.dump().select(op="doubled", io="output")
    assert [(record.step, float(record.numpy())) for record in found] == [(0, 2.0)] * 8
    assert len({record.model for record in found}) == 8


def test_the_order_of_feeds_makes_no_other_model(capture: Any) -> None:
    a, b = tf.placeholder(tf.float32, [], name="a"), tf.placeholder(tf.float32, [], name="b")
    tf.add(a, b, name="c")
    with capture() as cap, tf.Session() as session:
        session.run("c:0", {a: 1, b: 2})
        session.run("c:0", {b: 1, a: 2})
    assert [(record.model, record.step) for record in cap.dump().select(op="c", io="output")] == [
        ("run0_c", 0),
        ("run0_c", 1),
    ]


@pytest.mark.parametrize("layers", [(), ("doubled",)], ids=["all", "one"])
@pytest.mark.parametrize("second", [(), ("doubled",)], ids=["all", "one"])
def test_captures_in_each_other_both_have_what_they_ask_for(tmp_path: Path, layers: Any, second: Any) -> None:
    outer = ascend_dump.capture(path=tmp_path / "outer", framework="tensorflow", layers=layers, strict=True).start()
    inner = ascend_dump.capture(path=tmp_path / "inner", framework="tensorflow", layers=second, strict=True).start()
    with tf.Session(graph=doubling()) as session:
        session.run("doubled:0", {"given:0": 1.0})
        outer.stop()
        session.run("doubled:0", {"given:0": 2.0})
        inner.stop()
        assert session.run("doubled:0", {"given:0": 3.0}) == 6.0
    for cap, asked, values in ((outer, layers, [2.0]), (inner, second, [2.0, 4.0])):
        found = cap.dump().select(op="doubled", io="output")
        assert [float(record.numpy()) for record in found] == values
        assert {record.op_name for record in cap.dump()} >= {"doubled"}
        assert ("doubled/y" in {record.op_name for record in cap.dump()}) == (not asked)


def test_what_the_program_watches_itself_is_still_written(capture: Any, tmp_path: Path) -> None:
    graph = doubling()
    options = tf.RunOptions()
    debug_utils.watch_graph(options, graph, debug_urls=f"file://{tmp_path / 'own'}")
    with capture() as cap, tf.Session(graph=graph) as session:
        session.run("doubled:0", {"given:0": 1.0}, options=options)
    own = debug_data.DebugDumpDir(str(tmp_path / "own"))
    assert [float(one.get_tensor()) for one in own.find(lambda datum, _: datum.node_name == "doubled")] == [2.0]
    assert [float(record.numpy()) for record in cap.dump().select(op="doubled", io="output")] == [2.0]
