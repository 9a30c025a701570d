"""What a fake npu_bridge must do, on the stand-in for TensorFlow and on a real one: both test modules import all of it.

They define the fixture `on`: TensorFlow's 1.x interface, the simulated device, and an empty directory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import ascend_dump
from ascend_dump.fakes.npu_bridge.module import ProcessAborted

#: What the environment must not hold.
VARIABLES = (
    *("DUMP_GRAPH_PATH", "DUMP_GE_GRAPH", "DUMP_GRAPH_LEVEL", "DUMP_GRAPH_FORMAT", "NPU_COLLECT_PATH"),
    *("ASCEND_WORK_PATH", "ASCEND_DEVICE_ID", "DEVICE_ID", "RANK_ID", "RANK_SIZE"),
)
ONES = np.ones((2, 4), np.float32)


class On(NamedTuple):
    tf: Any
    npu: Any
    root: Path

    @property
    def path(self) -> Path:
        """Where dumps go; it exists."""
        found = self.root / "dumps"
        found.mkdir(exist_ok=True)
        return found

    def config(self, **keys: Any) -> Any:
        """A ConfigProto with an NpuOptimizer: texts, numbers and truth values become the right kind."""
        made = self.tf.ConfigProto(allow_soft_placement=True)
        self.add_entry(made, **keys)
        return made

    def dumping(self, **keys: Any) -> Any:
        return self.config(**{"enable_dump": True, "dump_path": str(self.path), "dump_mode": "all", **keys})

    def add_entry(self, proto: Any, **keys: Any) -> Any:
        entry = proto.graph_options.rewrite_options.custom_optimizers.add()
        entry.name = "NpuOptimizer"
        for key, value in keys.items():
            kind = "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "s"
            setattr(entry.parameter_map[key], kind, value.encode() if isinstance(value, str) else value)
        return entry

    def net(self) -> Any:
        """A small network in the default graph: its loss and the operation that trains it."""
        tf = self.tf
        x = tf.placeholder(tf.float32, [None, 4], name="x")
        w = tf.get_variable("w", [4, 3], initializer=tf.ones_initializer())
        loss = tf.reduce_mean(tf.nn.relu(tf.matmul(x, w, name="mm"), name="act"), name="loss")
        return x, loss, tf.train.GradientDescentOptimizer(1.0).minimize(loss)

    def train(self, config: Any, steps: int = 1) -> list[float]:
        """The losses of so many steps in a session of its own."""
        tf = self.tf
        with tf.Graph().as_default():
            x, loss, train = self.net()
            with tf.Session(config=config) as session:
                session.run(tf.global_variables_initializer())
                return [float(session.run([loss, train], {x: ONES})[0]) for _ in range(steps)]

    def records(self, **selection: Any) -> list[Any]:
        files = [path for path in self.path.rglob("*") if path.is_file()]
        return list(ascend_dump.open(self.path).select(**selection)) if files else []


def values(records: list[Any], **wanted: Any) -> Any:
    """The array of the one record that fits."""
    fitting = [one for one in records if all(getattr(one, key) == value for key, value in wanted.items())]
    assert len(fitting) == 1, fitting
    return fitting[0].numpy()


# What is dumped.


def test_every_operator_of_the_pruned_graph_is_dumped_with_its_values(on: On) -> None:
    losses = on.train(on.dumping(), steps=2)
    assert losses == pytest.approx([4.0, 8 / 3])
    records = on.records()
    step0 = [one for one in records if one.step == 0]
    assert (values(step0, op_name="mm", io="input", index=0) == ONES).all()
    assert (values(step0, op_name="mm", io="input", index=1) == 1).all()
    assert (values(step0, op_name="mm", io="output", index=0) == 4).all()
    assert values(step0, op_name="loss", io="output") == 4
    mm = next(one for one in records if one.op_name == "mm" and one.io == "output")
    assert (mm.op_type, mm.device, mm.step) == ("MatMulV2", 0, 0)
    assert {one.op_type for one in records if one.op_name == "loss"} == {"ReduceMean"}
    gradients = {one.op_name for one in records if one.op_name.startswith("gradients/")}
    assert {"gradients/mm_grad/MatMul_1", "gradients/act_grad/ReluGrad"} <= gradients


def test_a_variable_is_dumped_as_it_was_before_the_step_changes_it(on: On) -> None:
    on.train(on.dumping(), steps=2)
    records = on.records(op="mm", io="input")
    weights = [values(records, step=step, index=1) for step in (0, 1)]
    assert weights[0].max() == weights[0].min() == 1
    assert np.allclose(weights[1], 2 / 3)


def test_results_are_the_same_with_and_without_a_dump(on: On) -> None:
    assert on.train(on.config(), 3) == on.train(on.dumping(), 3) == on.train(on.dumping(dump_step="1"), 3)


@pytest.mark.parametrize(
    ("mode", "sides"), [("input", {"input"}), ("output", {"output"}), ("all", {"input", "output"})]
)
def test_the_mode_decides_on_the_sides(on: On, mode: str, sides: set[str]) -> None:
    on.train(on.dumping(dump_mode=mode))
    assert {one.io for one in on.records(op="mm")} == sides


def test_without_a_mode_it_is_the_outputs(on: On) -> None:
    on.train(on.config(enable_dump=True, dump_path=str(on.path)))
    assert {one.io for one in on.records(op="mm")} == {"output"}


def test_steps_are_counted_for_each_graph(on: On) -> None:
    tf = on.tf
    with tf.Graph().as_default():
        x, loss, train = on.net()
        with tf.Session(config=on.dumping(dump_step="0|2-3")) as session:
            session.run(tf.global_variables_initializer())
            for _ in range(5):
                session.run(train, {x: ONES})
                session.run(loss, {x: ONES})
    found = {(one.model, one.step) for one in on.records(op="mm")}
    assert len({model for model, _ in found}) == 2
    assert {step for _, step in found} == {0, 2, 3}
    assert len(found) == 6


def test_layers_select_by_exact_names(on: On) -> None:
    on.train(on.dumping(dump_layer="mm loss nosuch"))
    assert {one.op_name for one in on.records()} == {"mm", "loss"} | {"x"}
    # What feeds an operator is written beside it.
    assert {one.op_type for one in on.records(op="x")} == {"Data"}


def test_statistics_in_place_of_tensors(on: On) -> None:
    on.train(on.dumping(dump_data="stats", dump_mode="output"))
    (record,) = on.records(op="mm")
    assert record.path.suffix == ".csv"
    assert record.statistics().max == 4


def test_nothing_runs_twice(on: On) -> None:
    tf = on.tf
    with tf.Graph().as_default():
        data = tf.data.Dataset.from_tensor_slices(np.arange(3, dtype=np.float32))
        row = tf.square(tf.data.make_one_shot_iterator(data).get_next(), name="sq")
        counter = tf.get_variable("n", [], initializer=tf.zeros_initializer())
        count = tf.assign_add(counter, 1.0)
        with tf.Session(config=on.dumping()) as session:
            session.run(tf.global_variables_initializer())
            found = [session.run([row, count]) for _ in range(3)]
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(row)
    assert found == [[0, 1], [1, 2], [4, 3]]
    assert [float(one.numpy()) for one in on.records(op="sq", io="output")] == [0, 1, 4]


def test_what_never_runs_on_the_device_is_not_dumped(on: On) -> None:
    tf = on.tf
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [2], name="x")
        picked = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.square(x), lambda: tf.negative(x), name="pick")
        shaped = tf.reshape(picked, [1, 2], name="shaped")
        done = tf.add(shaped, tf.constant([[1.0, 2.0]], name="const"), name="done")
        with tf.Session(config=on.dumping()) as session:
            assert session.run(done, {x: [1.0, 2.0]}).tolist() == [[2.0, 6.0]]
    types = {one.op_type for one in on.records()}
    assert "done" in {one.op_name for one in on.records()}
    assert not types & {"Const", "If", "StatelessIf", "Reshape", "Variable", "NoOp", "Switch", "Merge"}


def test_names_lose_what_a_file_name_cannot_have_and_long_ones_are_mapped(on: On) -> None:
    tf = on.tf
    long = "a" * 240
    with tf.Graph().as_default(), tf.name_scope("outer"):
        x = tf.placeholder(tf.float32, [2], name="x")
        y = tf.square(tf.square(x, name="in.ner"), name=long)
        with tf.Session(config=on.dumping(dump_mode="output")) as session:
            session.run(y, {x: [1.0, 2.0]})
    names = {path.name.split(".")[1] for path in on.npu.files if "." in path.name}
    assert "outer_in_ner" in names
    (mapping,) = on.path.rglob("mapping.csv")
    assert f"Square.outer_{long}." in mapping.read_text()
    assert any(one.op_name.endswith(long) for one in on.records())


def test_a_relative_path_is_that_of_the_process(on: On) -> None:
    assert on.path.is_dir()
    on.train(on.dumping(dump_path="dumps"))
    assert on.records(op="mm")


def test_each_session_has_its_own_time_directory_and_all_are_one_dump(on: On) -> None:
    on.npu._clock = iter(range(1_600_000_000, 1_700_000_000, 3)).__next__
    for _ in range(2):
        on.train(on.dumping(dump_layer="mm"))
    assert len(list(on.path.iterdir())) == 2
    assert len(on.records(op="mm", io="output")) == 2


def test_a_session_keeps_the_settings_it_was_made_with(on: On) -> None:
    tf = on.tf
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [2], name="x")
        y = tf.square(x, name="sq")
        config = on.dumping()
        with tf.Session(config=config) as session:
            config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["enable_dump"].b = False
            session.run(y, {x: [1.0, 2.0]})
    assert on.records(op="sq")


def test_overflow_is_reported_with_the_operators_inputs_and_outputs(on: On) -> None:
    on.npu.overflow("mm")
    on.train(on.config(enable_dump_debug=True, dump_path=str(on.path)))
    assert {(one.op_name, one.io) for one in on.records(op="mm")} == {("mm", "input"), ("mm", "output")}
    assert [path for path in on.npu.files if path.name.startswith("Opdebug.")]
    assert {one.op_name for one in on.records() if one.op_type != "Opdebug"} == {"mm"}


def test_an_operator_that_fails_is_an_internal_error(on: On) -> None:
    on.npu.fail("mm")
    with pytest.raises(on.tf.errors.InternalError, match="mm"):
        on.train(on.dumping())


# Which settings count.


def test_the_last_entry_decides_on_each_key(on: On) -> None:
    config = on.dumping()
    on.add_entry(config, enable_dump=False)
    on.train(config)
    assert on.npu.executed
    assert on.records() == []


def test_a_later_entry_without_a_path_is_refused_while_the_dump_is_on(on: On) -> None:
    config = on.dumping()
    on.add_entry(config, precision_mode="allow_mix_precision")
    with pytest.raises(on.tf.errors.InternalError, match="dump_path must be set"):
        on.train(config)


def test_a_value_of_the_wrong_kind_is_off(on: On) -> None:
    on.train(on.dumping(enable_dump=1))
    assert on.records() == []


def test_reading_a_missing_key_creates_it_and_texts_are_bytes(on: On) -> None:
    entry = on.add_entry(on.config())
    assert "zzz" not in entry.parameter_map
    assert entry.parameter_map["zzz"].WhichOneof("value") is None
    assert "zzz" in entry.parameter_map
    for wrong in ("text", None):
        with pytest.raises(TypeError):
            entry.parameter_map["dump_path"].s = wrong
    with pytest.raises(TypeError):
        entry.parameter_map["enable_dump"].b = "True"


def test_the_documents_configuration_has_its_exact_bytes(on: On) -> None:
    from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

    keys = {"enable_dump": True, "dump_path": "/home/HwHiAiUser/output", "dump_step": "0|5|10", "dump_mode": "all"}
    config = on.config(use_off_line=True, **keys, dump_layer="nodename1 nodename2 nodename3")
    rewrite = config.graph_options.rewrite_options
    rewrite.remapping = rewrite.memory_optimization = RewriterConfig.OFF
    assert len(config.SerializeToString(deterministic=True)) == 199
    # OFF is a value of another enumeration; as a memory optimisation the number means MANUAL.
    assert (rewrite.memory_optimization, RewriterConfig.MANUAL) == (2, 2)


def test_callables_of_a_session_run_on_the_device(on: On) -> None:
    tf = on.tf
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [2], name="x")
        fed, free = tf.square(x, name="fed"), tf.square(tf.get_variable("w", [], initializer=tf.ones_initializer()))
        with tf.Session(config=on.dumping(dump_mode="output")) as session:
            session.run(tf.global_variables_initializer())
            assert session.make_callable([fed], [x])([1.0, 3.0])[0].tolist() == [1.0, 9.0]
            call = session.make_callable(free)
            assert [call(), call()] == [1.0, 1.0]
            assert session.make_callable(free.op, accept_options=True)(options=None) is None
            with pytest.raises(TypeError, match="must be a list or tuple"):
                session.make_callable(fed, x)
            with pytest.raises(ValueError, match="nosuch"):
                session.make_callable("nosuch:0")
    assert [one.numpy().tolist() for one in on.records(op="fed")] == [[1.0, 9.0]]
    assert sorted(one.step for one in on.records(op=free.op.name)) == [0, 0, 1]


def test_use_off_line_false_stays_on_the_host(on: On) -> None:
    assert on.train(on.dumping(use_off_line=False)) == [4.0]
    assert on.npu.executed == []


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dump_path": None}, "if use dump function, dump_path must be set."),
        ({"dump_path": "nosuch"}, "the path nosuch is not directory."),
        ({"dump_path": ""}, "the path  is not directory."),
        ({"dump_step": "a"}, "dump_step string style is error"),
        ({"dump_step": "1-2-3"}, "dump_step string style is error"),
        ({"dump_step": "5-5"}, "the first step is >= second step"),
        ({"dump_step": "|".join(map(str, range(101)))}, "dump_step only support dump <= 100 sets of data"),
        ({"dump_data": "x"}, "dump_data should be 'tensor' or 'stats'."),
        ({"dump_data": "x", "enable_dump": False}, "dump_data should be 'tensor' or 'stats'."),
        ({"enable_exception_dump": 3}, "enable_exception_dump should be one of 0, 1 and 2."),
        ({"enable_exception_dump": 3, "use_off_line": False}, "enable_exception_dump should be one of 0, 1 and 2."),
        ({"dump_step": "0|"}, "E10001"),
        ({"dump_step": "0||1"}, "dump_step string style is error"),
        ({"enable_dump_debug": True}, "E10001"),
    ],
)
def test_what_is_refused_is_an_internal_error_of_each_run(on: On, keys: dict[str, Any], message: str) -> None:
    used = {"enable_dump": True, "dump_path": str(on.path), **keys}
    config = on.config(**{key: value for key, value in used.items() if value is not None})
    tf = on.tf
    with tf.Graph().as_default():
        y = tf.square(tf.placeholder_with_default([1.0], [1]) if hasattr(tf, "raw_ops") else tf.constant([1.0]))
        with tf.Session(config=config) as session:
            for _ in range(2):
                with pytest.raises(tf.errors.InternalError) as refusal:
                    session.run(y)
    assert message in str(refusal.value)
    assert on.npu.executed == []


def test_a_path_must_be_writable_and_no_link(on: On) -> None:
    (on.root / "link").symlink_to(on.path)
    with pytest.raises(on.tf.errors.InternalError, match="is not directory"):
        on.train(on.dumping(dump_path=str(on.root / "link")))
    if os.geteuid() != 0:  # root may write everywhere
        on.path.chmod(0o500)
        with pytest.raises(on.tf.errors.InternalError, match="does't have read, write permissions"):
            on.train(on.dumping())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"enable_dump": True, "dump_mode": "outputs"}, r"dump mode should be one of the list:\[input, output, all\]"),
        ({"enable_dump_debug": True, "dump_debug_mode": "aicore"}, "dump debug mode should be one of the list"),
        ({"session_device_id": -1}, "session_device_id must be nonnegative integer."),
        ({"graph_run_mode": 2}, "graph_run_mode value must be 0 or 1"),
    ],
)
def test_a_mistyped_mode_or_number_ends_the_process(on: On, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ProcessAborted, match=message):
        on.train(on.config(dump_path=str(on.path), **keys))


def test_modes_and_steps_are_not_looked_at_while_the_dump_is_off(on: On) -> None:
    assert on.train(on.config(dump_mode="x", dump_step="x", dump_debug_mode="x", dump_path="nosuch")) == [4.0]


# The functions of npu_bridge.


def test_every_session_gets_an_npu_optimizer_and_so_does_the_users_configuration(on: On) -> None:
    import npu_bridge.npu_init as init

    tf = on.tf
    config = tf.ConfigProto()
    with tf.Session(config=config), tf.Session() as other:
        assert [each.name for each in config.graph_options.rewrite_options.custom_optimizers] == ["NpuOptimizer"]
        assert other._config.graph_options.rewrite_options.custom_optimizers[0].name == "NpuOptimizer"
    assert init.session.Session.__init__.__wrapped__


def test_npu_config_proto_adds_one_entry_once_and_takes_foreign_things_for_nothing(on: On) -> None:
    import npu_bridge.npu_init as init

    given = on.tf.ConfigProto()
    assert init.npu_config_proto(given) is given
    first = given.SerializeToString(deterministic=True)
    init.npu_config_proto(given)
    assert given.SerializeToString(deterministic=True) == first
    rewrite = given.graph_options.rewrite_options
    assert (rewrite.memory_optimization, rewrite.remapping, given.allow_soft_placement) == (2, 2, True)
    assert given.graph_options.optimizer_options.global_jit_level == -1
    # With an entry of the user's own the memory optimisation stays as it is.
    own = init.npu_config_proto(on.config())
    assert own.graph_options.rewrite_options.memory_optimization == 0
    assert init.npu_config_proto("text").allow_soft_placement


def test_init_resource_keeps_dump_keys_to_its_own_session(on: On) -> None:
    import npu_bridge.npu_init as init

    tf = on.tf
    with tf.Graph().as_default():
        session, shutdown = init.init_resource(config=on.dumping())
        assert on.train(None) == [4.0]
        init.shutdown_resource(session, shutdown)
        init.close_session(session)
    assert on.npu.executed
    assert on.records() == []


def test_the_first_initialisation_decides_on_statistics(on: On) -> None:
    import npu_bridge.npu_init as init

    with on.tf.Graph().as_default():
        init.init_resource()
    on.train(on.dumping(dump_data="stats"))
    assert {one.path.suffix for one in on.records(op="mm")} != {".csv"}
    assert any("dumpData=stats is ignored" in line for line in on.npu.log)


def test_a_star_import_rebinds_names_of_the_script(on: On) -> None:
    import tensorflow

    names: dict[str, Any] = {"tf": None}
    # Python allows a star only at the top of a module, which this stands for.
    exec("from npu_bridge.npu_init import *", names)
    assert names["tf"] is tensorflow
    assert {"RewriterConfig", "session", "backend", "config_pb2", "os", "npu_ops", "DumpConfig"} <= names.keys()


def test_ranks_come_from_the_environment(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    import npu_bridge.npu_init as init

    assert init.get_npu_rank_id() == 0
    monkeypatch.setenv("RANK_ID", "7")
    monkeypatch.setenv("RANK_SIZE", "8")
    with on.tf.Graph().as_default():
        init.init_resource()
    assert (init.get_npu_rank_id(), init.get_rank_size()) == (7, 8)


@pytest.mark.parametrize(
    ("env", "keys", "device"),
    [
        ({}, {}, "0"),
        ({"DEVICE_ID": "5"}, {}, "5"),
        ({"DEVICE_ID": "5", "ASCEND_DEVICE_ID": "6"}, {}, "6"),
        ({"ASCEND_DEVICE_ID": "6"}, {"session_device_id": 7}, "7"),
    ],
)
def test_the_directory_has_the_number_of_the_device(
    on: On, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], keys: dict[str, int], device: str
) -> None:
    # The rank is no device: rank 15 of two machines with eight devices each runs on device 7.
    for name, value in {"RANK_ID": "15", "RANK_SIZE": "16", **env}.items():
        monkeypatch.setenv(name, value)
    on.train(on.dumping(**keys))
    assert {path.relative_to(on.path).parts[1] for path in on.npu.files} == {device}


@pytest.mark.parametrize(("value", "message"), [("a", "should be int, such as 0, 1, 2"), ("-1", "should be >= 0")])
def test_a_device_that_is_no_number_is_an_invalid_argument(
    on: On, monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.setenv("ASCEND_DEVICE_ID", value)
    with pytest.raises(on.tf.errors.InvalidArgumentError, match=f"ASCEND_DEVICE_ID .*{message}"):
        on.train(on.dumping())


def test_dump_config_checks_nothing_and_keeps_two_names_without_underscore(on: On) -> None:
    from npu_bridge.estimator.npu.npu_config import DumpConfig

    made = DumpConfig(enable_dump=True, dump_mode="nonsense")
    assert vars(made) == {
        "_enable_dump": True,
        "_dump_path": None,
        "_dump_step": None,
        "_dump_mode": "nonsense",
        "_enable_dump_debug": False,
        "_dump_debug_mode": "all",
        "dump_data": "tensor",
        "dump_layer": None,
    }


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"enable_exception_dump": -1}, ValueError, "enable_exception_dump must be nonnegative, got -1"),
        ({"enable_exception_dump": None}, TypeError, "enable_exception_dump must be int, got"),
        ({"iterations_per_loop": 0}, ValueError, "iterations_per_loop must be positive, got 0"),
        ({"graph_run_mode": 2}, ValueError, '"graph_run_mode" value must be 0 or 1'),
        ({"mix_compile_mode": 1}, TypeError, '"mix_compile_mode" type must be bool'),
        ({"mix_compile_mode": True, "iterations_per_loop": 2}, ValueError, '"iterations_per_loop" must be 1'),
        ({"jit_compile": True}, TypeError, "Expected str, got bool"),
        ({"horovod_mode": 1}, ValueError, '"horovod_mode" type must be bool'),
    ],
)
def test_npu_run_config_looks_at_a_few_values(
    on: On, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    from npu_bridge.npu_init import NPURunConfig

    with pytest.raises(error, match=message):
        NPURunConfig(**settings)


def test_what_dump_config_cannot_hold_is_told_by_npu_estimator(on: On) -> None:
    if not hasattr(on.tf, "estimator"):
        pytest.skip("this TensorFlow has no Estimator")
    from npu_bridge.npu_init import DumpConfig, NPUEstimator, NPURunConfig

    def model(features: Any, labels: Any, mode: Any) -> None:
        """Never called."""

    for wrong in ({"dump_debug_mode": None}, {"dump_step": 5}, {"enable_dump": "True"}):
        with pytest.raises(TypeError):
            NPUEstimator(model, config=NPURunConfig(dump_config=DumpConfig(**wrong)))


# The end.


def test_sessions_are_as_before_after_the_installation(on: On) -> None:
    from tensorflow.python.client import session

    assert hasattr(session.BaseSession.run, "__wrapped__")
