"""The TensorFlow adapter on the simulated device, with stand-ins for TensorFlow and its bridges."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

# Private: the watchers of sessions are global, and are seen nowhere else.
from ascend_dump_tensorflow import _hook, apply, check_config, dump_config
from findings import findings

import ascend_dump
import ascend_dump.fakes
from ascend_dump.adapter import load
from ascend_dump.cli import Exit, main
from ascend_dump.fakes.npu_bridge.module import ProcessAborted
from ascend_dump.testing import launch

X = np.arange(8, dtype="f").reshape(2, 4)


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    # GE writes graphs into the working directory where no other place is set.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOB_ID", "10087")
    with ascend_dump.fakes.install("tensorflow", "npu_bridge", force=True) as device:
        import npu_bridge.npu_init  # noqa: F401  (sessions are watched from its import on)

        yield device


@pytest.fixture
def tf(npu: Any) -> Any:
    import tensorflow

    return tensorflow


@pytest.fixture
def capture(npu: Any, tmp_path: Path) -> Callable[..., ascend_dump.Capture]:
    def make(target: Any = None, **settings: Any) -> ascend_dump.Capture:
        common = {"path": tmp_path / "dumps", "framework": "tensorflow", "steps": "0|2"}
        return ascend_dump.capture(target, **{**common, **settings})

    return make


def run_network(tf: Any, config: Any, times: int = 4) -> Any:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [2, 4], name="x")
        weight = tf.get_variable("w", [4, 3], initializer=tf.ones_initializer())
        act = tf.nn.relu(tf.matmul(x, weight, name="mm"), name="act")
        with tf.Session(config=config) as session:
            session.run(tf.global_variables_initializer())
            return [session.run(act, {x: X}) for _ in range(times)][-1]


def model_function(features: Any, labels: Any, mode: Any, params: Any = None) -> Any:
    import tensorflow as tf

    weight = tf.get_variable("w", [4, 1])
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weight, name="mm") - labels))
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, tf.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def input_function() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensors((X, np.ones((2, 1), "f"))).repeat()


def multiplied(cap: Any) -> set[tuple[int, str]]:
    return {(one.step, one.io) for one in cap.dump().select(op="mm")}


def entries(config: Any) -> list[Any]:
    return list(config.graph_options.rewrite_options.custom_optimizers)


def test_a_configuration(tf: Any, capture: Any) -> None:
    config = tf.ConfigProto()
    with capture(config, layers="act") as cap:
        expected = run_network(tf, config)
    assert {(one.op_name, one.step) for one in cap.dump()} == {("act", 0), ("act", 2)}
    [output] = cap.dump().select(step=2, io="output")
    assert output.numpy().tobytes() == expected.tobytes()
    assert b"dump" not in config.SerializeToString()


def test_every_session_without_a_target(tf: Any, capture: Any) -> None:
    with capture() as cap:
        run_network(tf, None)
        run_network(tf, tf.ConfigProto())
    assert len(list(cap.dump().select(op="mm", io="output", step=2))) == 2
    files = sorted(cap.path.rglob("*"))
    run_network(tf, None)
    assert sorted(cap.path.rglob("*")) == files


@pytest.mark.parametrize("way", ["npu_run_config", "npu_estimator", "config", "run_config"])
def test_estimators(tf: Any, capture: Any, way: str, tmp_path: Path) -> None:
    from npu_bridge.npu_init import NPUEstimator, NPURunConfig, npu_run_config_init

    model = str(tmp_path / "model")
    config = tf.ConfigProto()
    npu_config = NPURunConfig(session_config=config)
    run_config = tf.estimator.RunConfig(session_config=config)
    estimator = NPUEstimator(model_function, model_dir=model, config=npu_config) if way == "npu_estimator" else None
    target = {"npu_run_config": npu_config, "npu_estimator": estimator, "run_config": run_config, "config": config}[way]
    with capture(target) as cap:
        if way == "run_config":
            estimator = tf.estimator.Estimator(model_function, model_dir=model, config=npu_run_config_init(run_config))
        elif estimator is None:
            estimator = NPUEstimator(model_function, model_dir=model, config=npu_config)
        estimator.train(input_function, steps=6)
    assert {step for step, _ in multiplied(cap)} == {0, 2}
    files = sorted(cap.path.rglob("*"))
    estimator.train(input_function, steps=3)
    assert sorted(cap.path.rglob("*")) == files


def test_an_entry_that_is_appended_later_does_not_silence_the_dump(tf: Any, capture: Any, caplog: Any) -> None:
    config = tf.ConfigProto()
    with caplog.at_level(logging.WARNING, "ascend_dump"), capture(config) as cap:
        late = config.graph_options.rewrite_options.custom_optimizers.add()
        late.name = "NpuOptimizer"
        late.parameter_map["enable_dump"].b = False
        run_network(tf, config)
    assert {step for step, _ in multiplied(cap)} == {0, 2}
    assert "overrides settings of the dump" in caplog.text
    assert b"dump_path" not in config.SerializeToString()


def test_what_session_config_says_of_a_dump_does_not_narrow_that_of_an_npu_estimator(
    tf: Any, capture: Any, tmp_path: Path
) -> None:
    from npu_bridge.npu_init import NPUEstimator, NPURunConfig

    config = tf.ConfigProto()
    older = config.graph_options.rewrite_options.custom_optimizers.add()
    older.name = "NpuOptimizer"
    older.parameter_map["dump_layer"].s = b"act"
    older.parameter_map["use_off_line"].b = False
    target = NPURunConfig(session_config=config)
    # NPUEstimator says use_off_line=True in its own entry.
    assert findings("tensorflow", ascend_dump.DumpRequest(steps=0), target) == []
    with capture(target) as cap:
        NPUEstimator(model_function, model_dir=str(tmp_path / "m"), config=target).train(input_function, steps=4)
    assert {step for step, _ in multiplied(cap)} == {0, 2}
    assert older.parameter_map["dump_layer"].s == b"act"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"enable_exception_dump": 3}, ("AD295", "error", "enable_exception_dump")),
        ({"dump_config": {"enable_dump": True, "dump_path": "/own"}}, ("AD294", "warning", "target")),
        ({"dump_config": {"enable_dump_debug": True, "dump_path": "/own"}}, ("AD294", "warning", "target")),
    ],
)
def test_what_an_npu_run_config_says_itself_is_checked(npu: Any, settings: Any, expected: tuple[str, ...]) -> None:
    from npu_bridge.npu_init import DumpConfig, NPURunConfig

    given = {name: DumpConfig(**value) if name == "dump_config" else value for name, value in settings.items()}
    problems = findings("tensorflow", ascend_dump.DumpRequest(steps=0), NPURunConfig(**given))
    assert [(one.code, one.severity, one.where) for one in problems] == [expected]


def test_settings_are_bytes_and_bools_in_the_fields_that_are_read(tf: Any, tmp_path: Path) -> None:
    config = tf.ConfigProto()
    request = ascend_dump.DumpRequest(path=tmp_path, steps="0|5", mode="output", layers=["a", "b"])
    assert apply(config, request) is config
    [entry] = entries(config)
    fields = {name: value.WhichOneof("value") for name, value in entry.parameter_map.items()}
    assert fields == {
        "use_off_line": "b",
        "enable_dump": "b",
        "dump_path": "s",
        "dump_step": "s",
        "dump_mode": "s",
        "dump_layer": "s",
    }
    assert entry.parameter_map["dump_layer"].s == b"a b"
    # A second time with less takes out what it no longer asks for.
    apply(config, ascend_dump.DumpRequest(path=tmp_path))
    assert len(entries(config)) == 1
    assert not {"dump_step", "dump_layer"} & set(entries(config)[0].parameter_map)


def test_dump_config_is_what_npu_run_config_takes(npu: Any, tmp_path: Path) -> None:
    made = dump_config(ascend_dump.DumpRequest(path=tmp_path, steps="0|5", mode="all", layers="mm"))
    assert (made._enable_dump, made._enable_dump_debug) == (True, False)
    assert (made._dump_path, made._dump_step, made._dump_mode) == (str(tmp_path), "0|5", "all")
    assert (made.dump_data, made.dump_layer) == ("tensor", "mm")
    debugging = dump_config(ascend_dump.DumpRequest(path=tmp_path, scene="overflow"))
    assert (debugging._enable_dump, debugging._enable_dump_debug, debugging._dump_debug_mode) == (False, True, "all")


def test_without_npu_bridge_there_is_no_dump_config(tmp_path: Path) -> None:
    with pytest.raises(ascend_dump.FrameworkMissing, match="npu_bridge"):
        dump_config(ascend_dump.DumpRequest(path=tmp_path))


def test_the_switches_exclude_each_other(tf: Any, capture: Any, tmp_path: Path) -> None:
    config = apply(tf.ConfigProto(), ascend_dump.DumpRequest(path=tmp_path, scene="overflow"))
    before = config.SerializeToString(deterministic=True)
    with pytest.raises(ascend_dump.ConfigError) as caught:
        capture(config).start()
    assert caught.value.code == "AD291"
    with pytest.raises(ascend_dump.ConfigError, match="exclude each other"):
        apply(config, ascend_dump.DumpRequest(path=tmp_path))
    assert config.SerializeToString(deterministic=True) == before
    with capture(scene=None) as cap:
        run_network(tf, config)
    assert len(cap.dump()) == 0


def test_what_is_wrong_in_a_written_configuration(tf: Any) -> None:
    config = tf.ConfigProto()
    entry = config.graph_options.rewrite_options.custom_optimizers.add()
    entry.name = "NpuOptimizer"
    entry.parameter_map["enable_dump"].i = 1
    entry.parameter_map["dump_path"].s = b"/no/such"
    before = config.SerializeToString(deterministic=True)
    assert {(one.code, one.where) for one in check_config(config)} == {("AD295", "enable_dump"), ("AD113", "dump_path")}
    assert config.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # The bridge checks each entry with the switches as they are by then.
        ({"enable_dump": True}, {"dump_path": "here"}, ("error", "dump_path")),
        ({"enable_dump": True, "dump_path": "here"}, {"dump_mode": "all"}, ("error", "dump_path")),
        ({"enable_dump": True, "dump_path": "/no/such"}, {"dump_path": "here"}, ("error", "dump_path")),
        (
            {"enable_dump": True, "dump_path": "here", "dump_mode": "x"},
            {"dump_path": "here", "dump_mode": "all"},
            ("error", "dump_mode"),
        ),
        ({"dump_step": "5"}, {"enable_dump": True, "dump_path": "here"}, ("silent", "dump_step")),
        ({"dump_layer": "mm"}, {"enable_dump": True, "dump_path": "here"}, None),
        ({"dump_step": "5"}, {"enable_dump": True, "dump_path": "here", "dump_step": "6"}, None),
        ({"enable_dump": False}, {"enable_dump": True, "dump_path": "here"}, None),
        (
            {"enable_dump": True, "enable_dump_debug": True, "dump_path": "here"},
            {"enable_dump": False, "dump_path": "here"},
            None,
        ),
    ],
)
def test_each_entry_of_a_written_configuration_is_looked_at(
    tf: Any, tmp_path: Path, first: Any, second: Any, expected: Any
) -> None:
    config = tf.ConfigProto()
    for settings in (first, second):
        entry = config.graph_options.rewrite_options.custom_optimizers.add()
        entry.name = "NpuOptimizer"
        for name, value in settings.items():
            if isinstance(value, bool):
                entry.parameter_map[name].b = value
            else:
                entry.parameter_map[name].s = (str(tmp_path) if value == "here" else value).encode()
    assert [(one.severity, one.where) for one in check_config(config)] == ([] if expected is None else [expected])
    if expected is None or expected[0] == "silent":
        run_network(tf, config, times=1)
        return
    with pytest.raises((tf.errors.InternalError, ProcessAborted)):
        run_network(tf, config, times=1)


@pytest.mark.parametrize(
    ("key", "field", "value", "code", "severity"),
    [
        ("use_off_line", "b", False, "AD292", "silent"),
        ("use_off_line", "s", b"True", "AD295", "silent"),
        ("enable_exception_dump", "i", 3, "AD295", "error"),
    ],
)
def test_what_stays_beside_our_settings_is_checked(
    tf: Any, capture: Any, key: str, field: str, value: Any, code: str, severity: str
) -> None:
    config = tf.ConfigProto()
    entry = config.graph_options.rewrite_options.custom_optimizers.add()
    entry.name = "NpuOptimizer"
    setattr(entry.parameter_map[key], field, value)
    problems = findings("tensorflow", ascend_dump.DumpRequest(steps=0), config)
    assert [(one.code, one.severity, one.where) for one in problems] == [(code, severity, key)]
    with pytest.raises(ascend_dump.ConfigError):
        capture(config, strict=True).start()


def test_of_two_exception_settings_that_of_the_run_configuration_is_checked(tf: Any) -> None:
    from npu_bridge.npu_init import NPURunConfig

    config = tf.ConfigProto()
    entry = config.graph_options.rewrite_options.custom_optimizers.add()
    entry.name = "NpuOptimizer"
    entry.parameter_map["enable_exception_dump"].i = 3
    request = ascend_dump.DumpRequest(steps=0)
    for value, expected in ((1, []), (3, ["AD295"])):
        target = NPURunConfig(session_config=config, enable_exception_dump=value)
        found = findings("tensorflow", request, target)
        assert [one.code for one in found if one.where == "enable_exception_dump"] == expected


def test_ranks(tf: Any, capture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, expected in (("6", 0), ("7", 1)):
        monkeypatch.setenv("RANK_ID", rank)
        monkeypatch.setenv("RANK_SIZE", "8")
        with capture(ranks=7, steps=0, layers="act", mode="output") as cap:
            run_network(tf, None)
        assert len(cap.dump()) == expected


@pytest.mark.parametrize(("also_trains", "told"), [(False, 1), (True, 0)])
def test_keys_given_to_init_resource_only_are_told_when_the_next_session_is_made(
    tf: Any, capture: Any, caplog: Any, also_trains: bool, told: int
) -> None:
    from npu_bridge.npu_init import close_session, init_resource, shutdown_resource

    config = tf.ConfigProto()
    with capture(config):
        session, shutdown = init_resource(config=config)
        if also_trains:
            run_network(tf, config)
        assert "AD292" not in caplog.text
        tf.Session(config=tf.ConfigProto()).close()
        tf.Session(config=tf.ConfigProto()).close()
        assert caplog.text.count("AD292") == told
        shutdown_resource(session, shutdown)
        close_session(session)


def test_a_dump_is_empty_where_init_resource_alone_made_a_session(tf: Any, capture: Any) -> None:
    from npu_bridge.npu_init import close_session, init_resource, shutdown_resource

    config = tf.ConfigProto()
    cap = capture(config, strict=True).start()
    session, shutdown = init_resource(config=config)
    shutdown_resource(session, shutdown)
    close_session(session)
    with pytest.raises(ascend_dump.AscendDumpError, match="only init_resource created a session"):
        cap.stop()


def test_a_run_without_overflow_is_told_as_such(
    tf: Any, npu: Any, capture: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with capture(scene="overflow", steps=None, strict=True) as clean:
        run_network(tf, None)
    assert main(["overflow", str(clean.path)]) == Exit.OK
    assert capsys.readouterr().out == "no overflow: 0 operators checked\n"
    npu.overflow("mm")
    with capture(scene="overflow", steps=None, strict=True) as other:
        run_network(tf, None)
    assert main(["overflow", str(other.path)]) == Exit.DIFFERENT
    assert "mm" in capsys.readouterr().out


def test_the_computational_graph_is_marked_and_the_environment_restored(tf: Any, capture: Any, tmp_path: Path) -> None:
    from npu_bridge.npu_init import NPUEstimator, NPURunConfig

    names = ("DUMP_GE_GRAPH", "DUMP_GRAPH_LEVEL", "DUMP_GRAPH_PATH")
    before = {name: os.environ.get(name) for name in names}
    config = NPURunConfig()
    with capture(config) as cap:
        assert os.environ["DUMP_GE_GRAPH"] == "2"
        NPUEstimator(model_function, model_dir=str(tmp_path / "m"), config=config).train(input_function, steps=4)
    assert {name: os.environ.get(name) for name in names} == before
    marks = {one.model: one.attrs["graph"] for one in cap.dump()}
    assert sorted(set(marks.values())) == ["computational", "other"]
    assert {name for name, mark in marks.items() if mark == "computational"} == {
        one.model for one in cap.dump().select(op="mm")
    }
    narrowed = cap.dump().select(op="mm", step=0)
    assert {one.attrs["graph"] for one in narrowed} == {"computational"}


def test_no_graph_is_marked_where_none_is_recognised(tf: Any, capture: Any) -> None:
    with capture() as cap:
        run_network(tf, None)
    assert [one for one in cap.dump() if "graph" in one.attrs] == []


def test_a_broken_graph_file_does_not_keep_the_dump_from_being_read(tf: Any, capture: Any) -> None:
    with capture(layers="act") as cap:
        run_network(tf, None)
        graphs = Path(os.environ["DUMP_GRAPH_PATH"])
        (graphs / "ge_proto_00000001_graph_9_Build.txt").write_bytes(b"\0\xff not a graph {{{")
        (graphs / "ge_proto_00000002_graph_9_Build.txt").write_bytes(b"")
    assert {one.attrs["graph"] for one in cap.dump()} == {"computational"}


def test_reasons_when_nothing_was_written(tf: Any, capture: Any) -> None:
    cap = capture(tf.ConfigProto(), strict=True).start()
    run_network(tf, tf.ConfigProto())
    with pytest.raises(ascend_dump.CaptureError, match="no session was created with these settings") as caught:
        cap.stop()
    assert "1 session(s) in the block were created with another configuration" in str(caught.value)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["crossed", "nested"])
def test_two_captures_of_one_configuration_leave_nothing_in_it(tf: Any, capture: Any, order: Any) -> None:
    config = tf.ConfigProto()
    caps = [capture(config).start()]
    run_network(tf, config)
    caps.append(capture(config).start())
    run_network(tf, config)
    for number in order:
        caps[number].stop()
    assert all(multiplied(cap) == {(0, "input"), (0, "output"), (2, "input"), (2, "output")} for cap in caps)
    sizes = [len(cap.dump()) for cap in caps]
    assert "dump_path" not in str(config)
    run_network(tf, config)
    assert [len(cap.dump()) for cap in caps] == sizes


@pytest.mark.parametrize("first", ["tensor", "stats"])
def test_ge_keeps_the_kind_of_data_of_the_first_session(tf: Any, capture: Any, first: str) -> None:
    other = "stats" if first == "tensor" else "tensor"
    with capture(data=first, strict=True) as cap:
        run_network(tf, None)
    assert not any(problem.code == "AD298" for problem in cap.problems)
    with capture(data=other) as cap:
        assert [problem.severity for problem in cap.problems if problem.code == "AD298"] == ["silent"]
        run_network(tf, None)
    assert len(cap.dump())
    with capture(data=first, strict=True) as cap:
        run_network(tf, None)
    assert not any(problem.code == "AD298" for problem in cap.problems)


def test_a_session_before_the_capture_settles_the_data(tf: Any, capture: Any) -> None:
    run_network(tf, None)
    cap = capture(data="stats", strict=True).start()
    assert not any(problem.code == "AD298" for problem in cap.problems)
    run_network(tf, None)
    with pytest.raises(ascend_dump.AscendDumpError, match="tensor was dumped") as caught:
        cap.stop()
    assert caught.value.code == "AD298"


def test_sessions_are_as_before(tf: Any, capture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Captures of configurations leave a watcher behind, see the test of Estimators.
    monkeypatch.setattr(_hook, "_watchers", [])
    where = _hook.session_class()
    before = where.__init__
    with capture():
        assert where.__init__ is not before
    assert where.__init__ is before


def test_a_failure_of_ours_does_not_keep_a_session_from_being_made(tf: Any, caplog: Any) -> None:
    class Broken:
        def configure(self, config: Any) -> Any:
            raise OSError("no such thing")

        def created(self, session: Any) -> None:
            raise OSError("nor this")

    watcher = Broken()
    _hook.watch(watcher)
    try:
        with caplog.at_level(logging.WARNING, "ascend_dump"):
            run_network(tf, None)
    finally:
        _hook.unwatch(watcher)
    assert "no such thing" in caplog.text
    assert "nor this" in caplog.text


# TensorFlow 2.


@pytest.fixture
def device() -> Iterator[Any]:
    with ascend_dump.fakes.install("tensorflow", "npu_device", force=True):
        import npu_device

        yield npu_device


def test_options_of_npu_device_are_set_and_taken_back(device: Any, tmp_path: Path) -> None:
    import tensorflow  # noqa: F401  (the bridge stands on it)

    options = device.global_options()
    before = options.as_dict()
    options.dump_config.dump_mode = "input"
    cap = ascend_dump.capture(path=tmp_path, framework="tensorflow", steps="0|2", layers="mm", quant=True)
    with cap:
        found = options.as_dict()
        assert {name: found[name] for name in ("enable_dump", "dump_path", "dump_step", "dump_mode", "dump_layer")} == {
            "enable_dump": "1",
            "dump_path": str(cap.path),
            "dump_step": "0|2",
            "dump_mode": "all",
            "dump_layer": "mm",
        }
        assert found["quant_dumpable"] == "1"
    options.dump_config.dump_mode = "output" if options.dump_config.dump_mode.value == "input" else "wrong"
    assert options.as_dict() == before


def test_the_bridge_in_npu_device_has_configurations_of_its_own(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    device.compat.enable_v1()
    from npu_device.compat.v1.npu_init import DumpConfig, NPURunConfig

    config = NPURunConfig()
    with ascend_dump.capture(config, path=tmp_path / "dumps", steps=0, layers="mm") as cap:
        assert type(config._dump_config) is DumpConfig
        assert config._dump_config.dump_layer == "mm"
        assert config._dump_config._dump_path == str(cap.path)
    assert config._dump_config is None


def test_options_of_the_program_do_not_narrow_the_dump(device: Any, tmp_path: Path) -> None:
    own = device.global_options().dump_config
    own.enable_dump, own.dump_path, own.dump_step, own.dump_layer = True, "/own", "7", "conv"
    with ascend_dump.capture(path=tmp_path, framework="tensorflow", mode="input") as cap:
        assert [problem.severity for problem in cap.problems if problem.code == "AD294"] == ["warning"]
        found = device.global_options().as_dict()
        assert (found["dump_path"], found["dump_mode"]) == (str(cap.path), "input")
        assert not {"dump_step", "dump_layer"} & set(found)
    assert device.global_options().dump_config is own
    assert (own.dump_path.value, own.dump_step.value, own.dump_layer.value) == ("/own", "7", "conv")


def test_switches_of_the_program_exclude_ours(device: Any, tmp_path: Path) -> None:
    device.global_options().dump_config.enable_dump_debug = True
    with pytest.raises(ascend_dump.ConfigError, match="the configuration of npu_device sets enable_dump_debug"):
        ascend_dump.capture(path=tmp_path, framework="tensorflow").start()
    with ascend_dump.capture(path=tmp_path, framework="tensorflow", scene="overflow") as cap:
        assert device.global_options().as_dict()["enable_dump"] == "0"
        assert [problem.code for problem in cap.problems if problem.severity == "error"] == []


def test_an_open_device_is_too_late(device: Any, tmp_path: Path) -> None:
    import tensorflow  # noqa: F401  (as above)

    device.open()
    with pytest.raises(ascend_dump.ConfigError) as caught:
        ascend_dump.capture(path=tmp_path, framework="tensorflow").start()
    assert caught.value.code == "AD290"


def test_the_launcher_comes_before_the_device_is_opened(device: Any, tmp_path: Path) -> None:
    import tensorflow  # noqa: F401  (as above)

    road = launch(load("tensorflow"), ascend_dump.DumpRequest(path=tmp_path / "dumps", steps="1"))
    assert device.global_options().dump_config.enable_dump.value == "0"
    device.open()
    assert device.global_options().dump_config.enable_dump.value == "1"
    assert device.global_options().dump_config.dump_step.value == "1"
    road.end()
    assert device.global_options().dump_config.enable_dump.value == "0"
