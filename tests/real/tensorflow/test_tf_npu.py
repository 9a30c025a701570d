"""TensorFlow on Ascend beyond the document's programs: what takes effect where, and what is said when it does not."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf

# Private: the watchers of sessions are global, and are seen nowhere else.
from ascend_dump_tensorflow import _hook, apply, check_config, dump_config
from tensorflow.python.keras import backend as legacy_backend

import ascend_dump
import ascend_dump.fakes

X = np.arange(8, dtype="f").reshape(2, 4)


@pytest.fixture
def npu() -> Iterator[Any]:
    for backend in (tf.keras.backend, legacy_backend):
        backend.clear_session()
    with ascend_dump.fakes.install("npu_bridge") as device:
        import npu_bridge.npu_init  # noqa: F401  (sessions are watched from its import on)

        yield device


@pytest.fixture
def capture(npu: Any, tmp_path: Path) -> Callable[..., ascend_dump.Capture]:
    def make(target: Any = None, **settings: Any) -> ascend_dump.Capture:
        common = {"path": tmp_path / "dumps", "framework": "tensorflow", "steps": "0|2"}
        return ascend_dump.capture(target, **{**common, **settings})

    return make


def network() -> tuple[Any, Any]:
    x = tf.placeholder(tf.float32, [2, 4], name="x")
    weight = tf.get_variable("w", [4, 3], initializer=tf.ones_initializer(), use_resource=True)
    return x, tf.nn.relu(tf.matmul(x, weight, name="mm"), name="act")


def run_network(config: Any, times: int = 4) -> Any:
    x, act = network()
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        return [session.run(act, {x: X}) for _ in range(times)][-1]


def own(**settings: Any) -> Any:
    """A configuration with settings of the user's: bool into b, int into i, text into s."""
    config = tf.ConfigProto()
    entry = config.graph_options.rewrite_options.custom_optimizers.add()
    entry.name = "NpuOptimizer"
    for name, value in settings.items():
        if isinstance(value, bool):
            entry.parameter_map[name].b = value
        elif isinstance(value, int):
            entry.parameter_map[name].i = value
        else:
            entry.parameter_map[name].s = str(value).encode()
    return config


def model_function(features: Any, labels: Any, mode: Any, params: Any = None) -> Any:
    weight = tf.get_variable("w", [4, 1], use_resource=True)
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weight, name="mm") - labels))
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, tf.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def input_function() -> Any:
    return tf.data.Dataset.from_tensors((X, np.ones((2, 1), "f"))).repeat()


def multiplied(cap: Any) -> set[tuple[int, str]]:
    return {(one.step, one.io) for one in cap.dump().select(op="mm")}


# Which entry counts.


def test_values_are_those_that_the_program_computes(capture: Any) -> None:
    config = tf.ConfigProto()
    with capture(config, layers=["act"]) as cap:
        expected = run_network(config)
    found = {one.io: one.numpy() for one in cap.dump().select(op="act", step=2)}
    assert found["output"].tobytes() == expected.tobytes()
    assert {one.op_name for one in cap.dump()} == {"act"}


def test_the_last_entry_gets_the_settings_and_the_others_lose_theirs(capture: Any, tmp_path: Path) -> None:
    config = own(enable_dump=True, dump_path=tmp_path, dump_step="7", dump_mode="input")
    last = config.graph_options.rewrite_options.custom_optimizers.add()
    last.name = "NpuOptimizer"
    last.parameter_map["precision_mode"].s = b"allow_mix_precision"
    before = tf.ConfigProto()
    before.CopyFrom(config)
    with capture(config) as cap:
        first, second = config.graph_options.rewrite_options.custom_optimizers
        assert list(first.parameter_map) == []
        assert second.parameter_map["precision_mode"].s == b"allow_mix_precision"
        assert second.parameter_map["dump_path"].s == os.fsencode(cap.path)
        run_network(config)
    assert multiplied(cap) == {(0, "input"), (0, "output"), (2, "input"), (2, "output")}
    # What the bridge has set beside its entries is not ours to take back.
    now, then = (one.graph_options.rewrite_options.custom_optimizers for one in (config, before))
    assert list(now) == list(then)
    assert ("AD294", "warning") in {(one.code, one.severity) for one in cap.problems}


def test_reading_a_configuration_creates_no_key(npu: Any) -> None:
    config = own(use_off_line=True)
    before = config.SerializeToString(deterministic=True)
    assert check_config(config) == []
    assert config.SerializeToString(deterministic=True) == before


def test_what_the_program_adds_in_the_block_stays(capture: Any) -> None:
    config = tf.ConfigProto()
    with capture(config):
        config.intra_op_parallelism_threads = 3
        config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["precision_mode"].s = b"force_fp16"
        run_network(config)
    assert config.intra_op_parallelism_threads == 3
    [entry] = config.graph_options.rewrite_options.custom_optimizers
    assert set(entry.parameter_map) == {"use_off_line", "precision_mode"}


@pytest.mark.parametrize("made", ["before", "inside"])
def test_npu_estimator_does_not_switch_the_dump_off(capture: Any, made: str, tmp_path: Path, caplog: Any) -> None:
    from npu_bridge.npu_init import NPUEstimator, NPURunConfig

    config = tf.ConfigProto()
    run_config = NPURunConfig(session_config=config)

    def make() -> Any:
        return NPUEstimator(model_function, model_dir=str(tmp_path / "model"), config=run_config)

    estimator = make() if made == "before" else None
    target = estimator if made == "before" else config
    with caplog.at_level(logging.WARNING, "ascend_dump"), capture(target) as cap:
        estimator = estimator or make()
        estimator.train(input_function, steps=4)
    assert {0, 2} == {step for step, _ in multiplied(cap)}
    # Only the road that needs mending says so.
    assert ("AD292" in caplog.text) == (made == "inside")


@pytest.mark.parametrize("kind", ["npu", "plain", "plain_without_session_config"])
def test_nothing_is_dumped_by_an_estimator_that_trains_on_after_the_block(
    capture: Any, kind: str, tmp_path: Path
) -> None:
    from npu_bridge.npu_init import NPUEstimator, NPURunConfig, npu_run_config_init

    model = str(tmp_path / "model")
    if kind == "npu":
        run_config: Any = NPURunConfig()
    else:
        run_config = tf.estimator.RunConfig(session_config=tf.ConfigProto() if kind == "plain" else None)
    with capture(run_config) as cap:
        if kind == "npu":
            estimator = NPUEstimator(model_function, model_dir=model, config=run_config)
        else:
            estimator = tf.estimator.Estimator(model_function, model_dir=model, config=npu_run_config_init(run_config))
        estimator.train(input_function, steps=6)
    assert {0, 2} == {step for step, _ in multiplied(cap)}
    files = sorted(cap.path.rglob("*"))
    estimator.train(input_function, steps=3)
    assert sorted(cap.path.rglob("*")) == files
    assert getattr(run_config, "_dump_config", None) is None


def test_the_rank_that_the_document_selects(capture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tf.ConfigProto()
    for rank, expected in (("6", False), ("7", True)):
        monkeypatch.setenv("RANK_ID", rank)
        monkeypatch.setenv("RANK_SIZE", "8")
        tf.reset_default_graph()
        with capture(config, ranks="7", steps=0) as cap:
            run_network(config)
        assert (len(cap.dump()) > 0) is expected
        assert b"dump" not in config.SerializeToString()
    assert {record.rank for record in cap.dump()} == {7}


def test_several_time_directories_are_one_dump(capture: Any, npu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tf.ConfigProto()
    import time

    with capture(config, steps=0) as cap:
        for seconds in (0, 5):
            monkeypatch.setattr(npu, "_clock", lambda later=seconds: time.time() + later)
            tf.reset_default_graph()
            run_network(config)
    assert len([path for path in cap.path.iterdir() if path.is_dir()]) == 2
    assert len({one.run for one in cap.dump()}) == 2
    assert len(list(cap.dump().select(op="mm", io="output"))) == 2


# Without a target.


def test_every_session_of_the_block_gets_the_settings(capture: Any) -> None:
    config = tf.ConfigProto()
    before = config.SerializeToString(deterministic=True)
    with capture() as cap:
        run_network(None)
        tf.reset_default_graph()
        run_network(config)
    # The bridge itself leaves its entry in the user's configuration, and nothing else is there.
    assert {entry.name for entry in config.graph_options.rewrite_options.custom_optimizers} == {"NpuOptimizer"}
    assert b"dump" not in config.SerializeToString()
    assert before == tf.ConfigProto().SerializeToString()
    assert len(list(cap.dump().select(op="mm", io="output", step=2))) == 2


def test_keys_given_to_init_resource_alone_are_told(capture: Any, caplog: Any) -> None:
    from npu_bridge.npu_init import close_session, init_resource, shutdown_resource

    config = tf.ConfigProto()
    cap = capture(config, strict=True, steps="0-9").start()
    session, shutdown = init_resource(config=config)
    assert "AD292" not in caplog.text
    # When the session that trains is made, not when the block is over.
    tf.Session(config=tf.ConfigProto()).close()
    assert caplog.text.count("AD292") == 1
    run_network(tf.ConfigProto())
    assert caplog.text.count("AD292") == 1
    shutdown_resource(session, shutdown)
    close_session(session)
    with pytest.raises(ascend_dump.CaptureError, match="init_resource only"):
        cap.stop()


def test_a_session_with_a_dump_of_its_own_keeps_it(capture: Any, tmp_path: Path, caplog: Any) -> None:
    place = tmp_path / "own"
    place.mkdir()
    with caplog.at_level(logging.WARNING, "ascend_dump"), capture() as cap:
        run_network(own(enable_dump=True, dump_path=place, dump_step="1"))
    assert len(ascend_dump.open(place)) > 0
    assert len(cap.dump()) == 0
    assert f"into {place}" in caplog.text


def test_an_open_session_is_told(capture: Any, caplog: Any) -> None:
    network()
    with caplog.at_level(logging.WARNING, "ascend_dump"):
        with capture():
            session = tf.Session()
            session.run(tf.global_variables_initializer())
        assert "1 session(s) created inside the block are still open" in caplog.text
    session.close()


# What is refused.


def test_a_session_comes_too_late(capture: Any) -> None:
    with tf.Session() as session, pytest.raises(ascend_dump.ConfigError) as caught:
        capture(session).start()
    assert caught.value.code == "AD290"


def test_dump_and_overflow_detection_exclude_each_other(capture: Any, tmp_path: Path) -> None:
    debugging = own(enable_dump_debug=True, dump_path=tmp_path)
    with pytest.raises(ascend_dump.ConfigError) as caught:
        capture(debugging).start()
    assert caught.value.code == "AD291"
    with pytest.raises(ascend_dump.ConfigError, match="exclude each other"):
        apply(debugging, ascend_dump.DumpRequest(path=tmp_path))
    with pytest.raises(ascend_dump.ConfigError, match="exclude each other"):
        apply(own(enable_dump=True, dump_path=tmp_path), ascend_dump.DumpRequest(path=tmp_path, scene="overflow"))
    # What GE itself says where both are set by hand, only when the session runs.
    with pytest.raises(tf.errors.InternalError, match="E10001"):
        run_network(own(enable_dump=True, enable_dump_debug=True, dump_path=tmp_path))


def test_overflow_detection(capture: Any, npu: Any) -> None:
    npu.overflow("mm")
    config = tf.ConfigProto()
    with capture(config, scene="overflow", steps=None) as cap:
        assert config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["dump_debug_mode"].s == b"all"
        run_network(config)
    assert any(one.op_name == "mm" or "mm" in str(one.attrs) for one in cap.dump())


@pytest.mark.parametrize(
    ("settings", "code", "severity"),
    [
        ({"enable_dump": 1, "dump_path": "/tmp"}, "AD295", "silent"),
        ({"enable_dump": "True", "dump_path": "/tmp"}, "AD295", "silent"),
        ({"enable_dump": True, "dump_path": "/tmp", "dump_mode": "outputs"}, "AD295", "error"),
        ({"enable_dump_debug": True, "dump_path": "/tmp", "dump_debug_mode": "core"}, "AD295", "error"),
        ({"dump_data": "statistics"}, "AD295", "error"),
        ({"enable_exception_dump": 3}, "AD295", "error"),
        ({"enable_dump": True}, "AD110", "error"),
        ({"enable_dump": True, "dump_path": "/no/such"}, "AD110", "error"),
        ({"enable_dump": True, "dump_path": "/tmp", "dump_step": "5-3"}, "AD110", "error"),
        ({"enable_dump": True, "dump_path": "/tmp", "dump_step": "1||2"}, "AD110", "error"),
        ({"enable_dump": True, "enable_dump_debug": True, "dump_path": "/tmp"}, "AD291", "error"),
        ({"enable_dump": True, "dump_path": "/tmp", "use_off_line": False}, "AD292", "silent"),
        ({"dump_path": "/tmp"}, "AD113", "silent"),
    ],
    ids=str,
)
def test_what_is_wrong_in_a_written_configuration(npu: Any, settings: dict[str, Any], code: str, severity: str) -> None:
    problems = check_config(own(**settings))
    assert (code, severity) in {(one.code, one.severity) for one in problems}
    assert all(one.hint for one in problems)
    # And that is what happens: an error where it runs, or nothing that was asked for.
    config = own(**settings)
    if severity == "silent":
        run_network(config)
        assert npu.files == []
    else:
        from ascend_dump.fakes.npu_bridge.module import ProcessAborted

        aborts = code == "AD295" and ("dump_mode" in settings or "dump_debug_mode" in settings)
        with pytest.raises(ProcessAborted if aborts else tf.errors.InternalError):
            run_network(config)


def test_a_good_configuration_has_no_problem(npu: Any, tmp_path: Path) -> None:
    request = ascend_dump.DumpRequest(path=tmp_path, steps="0|5-10", mode="input", data="stats", layers="mm")
    assert check_config(apply(tf.ConfigProto(), request)) == []


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"scene": "watch", "watch": "mm"}, "AD203"),
        ({"scene": "exception"}, "AD203"),
        ({"models": "net"}, "AD203"),
        ({"level": "kernel"}, "AD203"),
        ({"data": "full"}, "AD203"),
        ({"layers": "*conv*"}, "AD203"),
        ({"layers": ["a b"]}, "AD203"),
        ({"options": {"grpah": "x"}}, "AD101"),
        ({"steps": str(2**31)}, "AD102"),
        ({"steps": "|".join(str(2 * n) for n in range(101))}, "AD102"),
    ],
    ids=str,
)
def test_what_a_request_cannot_have(capture: Any, settings: dict[str, Any], code: str) -> None:
    with pytest.raises(ascend_dump.ConfigError) as caught:
        capture(tf.ConfigProto(), **settings).start()
    assert caught.value.code == code


def test_max_bytes_is_told_to_do_nothing(capture: Any) -> None:
    config = tf.ConfigProto()
    cap = capture(config, max_bytes="1GB").start()
    cap.stop()
    assert [(one.code, one.severity) for one in cap.problems] == [("AD211", "silent")]


def test_an_old_bridge_does_not_know_layers(capture: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from npu_bridge.estimator.npu import npu_config

    class DumpConfig:
        def __init__(
            self,
            enable_dump: bool = False,
            dump_path: Any = None,
            dump_step: Any = None,
            dump_mode: str = "output",
            enable_dump_debug: bool = False,
            dump_debug_mode: str = "all",
        ) -> None:
            self.given = (enable_dump, dump_path, dump_step, dump_mode)

    monkeypatch.setattr(npu_config, "DumpConfig", DumpConfig)
    for settings in ({"layers": "mm"}, {"data": "stats"}):
        with pytest.raises(ascend_dump.ConfigError) as caught:
            capture(tf.ConfigProto(), **settings).start()
        assert caught.value.code == "AD293"
        with pytest.raises(ascend_dump.NotSupported, match="has no dump_"):
            dump_config(ascend_dump.DumpRequest(path=tmp_path, **settings))
    made = dump_config(ascend_dump.DumpRequest(path=tmp_path, steps="0|5"))
    assert made.given == (True, str(tmp_path), "0|5", "all")


# The computational graph.


def test_the_directory_of_the_computational_graph_is_marked(capture: Any, tmp_path: Path) -> None:
    from npu_bridge.npu_init import NPUEstimator, NPURunConfig

    run_config = NPURunConfig()
    variables = ("DUMP_GE_GRAPH", "DUMP_GRAPH_LEVEL", "DUMP_GRAPH_PATH")
    before = {name: os.environ.get(name) for name in variables}
    with capture(run_config) as cap:
        assert os.environ["DUMP_GRAPH_PATH"]
        NPUEstimator(model_function, model_dir=str(tmp_path / "model"), config=run_config).train(
            input_function, steps=3
        )
    assert {name: os.environ.get(name) for name in variables} == before
    dump = cap.dump()
    marks = {record.attrs.get("graph") for record in dump}
    assert marks == {"computational", "other"}
    trained = {record.model for record in dump.select(op="mm")}
    assert {record.model for record in dump if record.attrs["graph"] == "computational"} == trained
    assert {record.attrs["graph"] for record in dump.select(model=next(iter(trained)))} == {"computational"}


@pytest.mark.parametrize("named", [{"layers": ["act", "mm"]}, {"options": {"computational": "act"}}], ids=str)
def test_the_computational_graph_by_the_names_of_operators(capture: Any, named: dict[str, Any]) -> None:
    with capture(**named) as cap:
        run_network(None)
        tf.reset_default_graph()
        with tf.Session() as session:
            session.run(tf.nn.relu(tf.constant([1.0]), name="mm" if "layers" in named else "other"))
    graphs = {record.model: record.attrs["graph"] for record in cap.dump()}
    assert sorted(set(graphs.values())) == ["computational", "other"]
    assert [graphs[record.model] for record in cap.dump().select(op="act", io="output", step=0)] == ["computational"]


def test_a_place_for_graphs_that_the_user_has_set_is_used(
    capture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "graphs"
    place.mkdir()
    monkeypatch.setenv("DUMP_GRAPH_PATH", str(place))
    with capture(layers="act") as cap:
        run_network(None)
    assert list(place.rglob("ge_proto_*_Build.txt"))
    assert {record.attrs["graph"] for record in cap.dump()} == {"computational"}


# The launcher.

PROGRAM = """
import sys
import tensorflow as tf
tf = tf.compat.v1
tf.disable_v2_behavior()
{bridge}
import numpy as np
x = tf.placeholder(tf.float32, [2, 4], name="x")
act = tf.nn.relu(tf.matmul(x, tf.ones([4, 3]), name="mm"), name="act")
with tf.Session() as session:
    for _ in range(4):
        session.run(act, {{x: np.ones((2, 4), "f")}})
{end}
print("done")
"""
BRIDGE = """
import ascend_dump.fakes
fake = ascend_dump.fakes.install("npu_bridge")
fake.__enter__()
import npu_bridge.npu_init
"""


@pytest.mark.parametrize("road", ["npu", "host"])
def test_the_launcher_needs_no_change_to_the_program(road: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.format(bridge=BRIDGE if road == "npu" else "", end=""))
    request = ascend_dump.DumpRequest(path=tmp_path / "dumps", steps="1|3", layers="mm")
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "ASCEND_DUMP": request.to_text()},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    found = ascend_dump.open(tmp_path / "dumps").select(op="mm")
    assert {(one.step, one.io) for one in found} == {(step, io) for step in (1, 3) for io in ("input", "output")}


def test_two_watchers_and_a_wrapper_in_between(npu: Any) -> None:
    """Whoever wraps sessions after us keeps working, and we are there again after them."""
    from tensorflow.python.client.session import BaseSession

    seen: list[str] = []

    class Watcher:
        def configure(self, config: Any) -> Any:
            seen.append("configured")
            return config

        def created(self, session: Any) -> None:
            seen.append("created")

    before = BaseSession.__init__
    watcher = Watcher()
    _hook.watch(watcher)
    ours = BaseSession.__init__
    BaseSession.__init__ = lambda self, *args, **kwargs: ours(self, *args, **kwargs)
    tf.Session().close()
    _hook.unwatch(watcher)
    tf.Session().close()
    BaseSession.__init__ = before
    assert seen == ["configured", "created"]
    _hook.watch(watcher)
    tf.Session().close()
    _hook.unwatch(watcher)
    assert seen == ["configured", "created"] * 2
