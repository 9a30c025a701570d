"""The programs of the document on dump data of TensorFlow, on the stand-in and the simulated device.

Each is the document's, with a network and data where it has an ellipsis and a directory of the test as dump_path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ascend_dump
from ascend_dump import fakes
from ascend_dump.native.cann.graph import build_graphs, find_computational, find_model_folders, graph_name

HEAD = """
import os
import numpy as np
import tensorflow as tf
from npu_bridge.npu_init import *
"""

CONFIG = """
session_config = tf.ConfigProto(allow_soft_placement=True)
custom_op = session_config.graph_options.rewrite_options.custom_optimizers.add()
custom_op.name = 'NpuOptimizer'
custom_op.parameter_map["enable_dump"].b = True
custom_op.parameter_map["dump_path"].s = tf.compat.as_bytes(DUMP_PATH)
custom_op.parameter_map["dump_step"].s = tf.compat.as_bytes("0|5|10")
custom_op.parameter_map["dump_mode"].s = tf.compat.as_bytes("all")
custom_op.parameter_map["dump_layer"].s = tf.compat.as_bytes("mm loss nodename3")
"""

NET = """
def make_cost():
    weights = tf.get_variable("w", [4, 1], initializer=tf.ones_initializer())
    features = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensors(np.ones((2, 4), "f")).repeat()).get_next()
    return tf.reduce_mean(tf.square(tf.matmul(features, weights, name="mm")), name="loss")
"""

ESTIMATOR = """
def model_function(features, labels, mode, params):
    weights = tf.get_variable("w", [4, 1], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weights, name="mm") - labels), name="loss")
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
def input_fn():
    return tf.data.Dataset.from_tensors((np.ones((2, 4), "f"), np.zeros((2, 1), "f"))).repeat()
"""

ESTIMATOR_AUTOMATED = """
run_config = tf.estimator.RunConfig(
    train_distribute=None,
    session_config=session_config,
    save_checkpoints_secs=60*60*24)
classifier = tf.estimator.Estimator(
    model_fn=model_function, model_dir=MODEL_DIR, config=npu_run_config_init(run_config=run_config))
classifier.train(input_fn, steps=7)
"""

ESTIMATOR_MANUAL = """
dump_config = DumpConfig(
    enable_dump=True, dump_path=DUMP_PATH, dump_step="0|5|10", dump_mode="all", dump_layer="mm loss nodename3")
session_config = tf.ConfigProto(allow_soft_placement=True)
config = NPURunConfig(
    dump_config=dump_config,
    session_config=session_config
    )
NPUEstimator(model_fn=model_function, model_dir=MODEL_DIR, config=config).train(input_fn, steps=7)
"""

SESSION_AUTOMATED = """
config = npu_config_proto(config_proto=session_config)
cost = make_cost()
with tf.Session(config=config) as sess:
    sess.run(tf.global_variables_initializer())
    for _ in range(7):
        print(sess.run(cost))
"""

SESSION_MANUAL = """
config = session_config
custom_op.parameter_map["use_off_line"].b = True
config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
config.graph_options.rewrite_options.memory_optimization = RewriterConfig.OFF
cost = make_cost()
with tf.Session(config=config) as sess:
    sess.run(tf.global_variables_initializer())
    for _ in range(7):
        print(sess.run(cost))
"""

KERAS = """
import tensorflow.python.keras as keras
from tensorflow.python.keras import backend as K
custom_op.parameter_map["dump_layer"].s = b"mm/MatMul loss/Mean"
npu_keras_sess = set_keras_session_npu_config(config=session_config)
model = keras.Sequential([keras.layers.Dense(1, input_shape=(4,), name="mm")])
model.compile("sgd", "mse")
model.fit(np.ones((14, 4), "f"), np.zeros((14, 1), "f"), batch_size=2, epochs=1, verbose=0)
"""

RESOURCE = """
(npu_sess, npu_shutdown) = init_resource(config=session_config)
def main(_):
    with tf.Session(config=TRAINING) as sess:
        cost = make_cost()
        sess.run(tf.global_variables_initializer())
        for _ in range(7):
            sess.run(cost)
try:
    tf.app.run(main)
except SystemExit:
    pass
shutdown_resource(npu_sess, npu_shutdown)
close_session(npu_sess)
"""

PROGRAMS = {
    "estimator-automated": HEAD + CONFIG + ESTIMATOR + ESTIMATOR_AUTOMATED,
    "estimator-manual": HEAD + ESTIMATOR + ESTIMATOR_MANUAL,
    "session-automated": HEAD + CONFIG + NET + SESSION_AUTOMATED,
    "session-manual": HEAD + CONFIG + NET + SESSION_MANUAL,
    "keras-automated": HEAD + CONFIG + KERAS,
    # "Similar to that of manual porting in sess.run mode": keras in a session with the rewriter's options.
    "keras-manual": HEAD
    + CONFIG
    + "session_config.graph_options.rewrite_options.remapping = RewriterConfig.OFF\n"
    + KERAS.replace("set_keras_session_npu_config(config=session_config)", "tf.Session(config=session_config)").replace(
        "model = ", "K.set_session(npu_keras_sess)\nmodel = "
    ),
    "init-resource": HEAD + CONFIG + NET + RESOURCE.replace("TRAINING", "npu_config_proto(session_config)"),
}


@pytest.fixture
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("DUMP_GRAPH_PATH", str(tmp_path / "graphs"))
    monkeypatch.setenv("JOB_ID", "10087")
    monkeypatch.delenv("RANK_ID", raising=False)
    (tmp_path / "output").mkdir()
    with fakes.install("tensorflow", "npu_bridge", cwd=tmp_path) as device:
        yield device


def execute(program: str, place: Path) -> None:
    names = {"__name__": "__main__", "DUMP_PATH": str(place / "output"), "MODEL_DIR": str(place / "model")}
    exec(compile(program, "program.py", "exec"), names)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_document_dumps_what_it_says(name: str, npu: Any, tmp_path: Path) -> None:
    execute(PROGRAMS[name], tmp_path)
    dump = ascend_dump.open(tmp_path / "output")
    (matmul,) = {record.op_name for record in dump if record.op_type == "MatMulV2"}
    assert matmul in ("mm", "mm/MatMul")
    records = dump.select(op=matmul)
    assert {record.step for record in records} == {0, 5}
    assert {(record.io, record.index) for record in records} == {("input", 0), ("input", 1), ("output", 0)}
    for step in (0, 5):
        one = {(record.io, record.index): record.numpy() for record in records if record.step == step}
        assert np.allclose(one["input", 0] @ one["input", 1], one["output", 0])
        assert (one["input", 0] == 1).all()
    # {dump_path}/{time}/{deviceid}/{model_name}/{model_id}/{data_index}/{op_type}.{op_name}.{task}.{stream}.{timestamp}
    form = r"\d{14}/0/ge_default_\d{14}_\d+/\d+/[05]/\w+\.\w+\.\d+\.0\.\d{16}"
    for path in npu.files:
        assert re.fullmatch(form, path.relative_to(tmp_path / "output").as_posix()), path
    # The computational graph, by the name of an operator.
    (found,) = find_computational(build_graphs(tmp_path / "graphs"), [matmul])
    (folder,) = find_model_folders(tmp_path / "output", graph_name(found))
    assert {record.model for record in records} == {folder.name}


@pytest.mark.parametrize("name", ["estimator-automated", "estimator-manual", "session-automated", "session-manual"])
def test_the_iterator_is_in_the_computational_graph_only(name: str, npu: Any, tmp_path: Path) -> None:
    execute(PROGRAMS[name], tmp_path)
    files = build_graphs(tmp_path / "graphs")
    assert len(files) > 1
    assert find_computational(files) == find_computational(files, ["mm"])


def test_init_resource_alone_does_not_reach_the_training_session(npu: Any, tmp_path: Path) -> None:
    execute(HEAD + CONFIG + NET + RESOURCE.replace("TRAINING", "None"), tmp_path)
    assert [each.name for each in npu.executed if each.name == "mm"] == ["mm"] * 7
    assert npu.files == []


def test_an_estimator_of_its_own_adds_an_entry_that_switches_the_dump_off(npu: Any, tmp_path: Path) -> None:
    manual = ESTIMATOR_MANUAL[ESTIMATOR_MANUAL.index("config = NPURunConfig") :].replace("dump_config=dump_config,", "")
    execute(HEAD + CONFIG + ESTIMATOR + manual, tmp_path)
    assert npu.executed
    assert npu.files == []


def test_an_estimator_sets_the_keys_of_its_dump_config(npu: Any, tmp_path: Path) -> None:
    import tensorflow as tf
    from npu_bridge.npu_init import DumpConfig, NPUEstimator, NPURunConfig

    proto = tf.ConfigProto()
    config = NPURunConfig(
        dump_config=DumpConfig(enable_dump=True, dump_path=str(tmp_path), dump_mode=None, dump_debug_mode="all"),
        session_config=proto,
        quant_dumpable="1",
    )
    assert config.save_checkpoints_steps == 100
    NPUEstimator(model_fn=lambda features, labels, mode: None, config=config)
    rewrite = proto.graph_options.rewrite_options
    (entry,) = rewrite.custom_optimizers
    keys = entry.parameter_map
    assert (keys["enable_dump"].b, keys["enable_dump_debug"].b, keys["use_off_line"].b) == (True, False, True)
    assert (keys["dump_data"].s, keys["quant_dumpable"].s) == (b"tensor", b"1")
    assert keys["enable_exception_dump"].i == 2
    # The debug mode is left out where there is no dump_mode.
    assert not {"dump_mode", "dump_debug_mode", "dump_step", "dump_layer"} & set(keys)
    assert rewrite.optimizers[-1] == "GradFusionOptimizer"


def test_what_the_estimators_classes_refuse(npu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from npu_bridge.npu_init import NPUEstimator, NPURunConfig

    with pytest.raises(ValueError, match="`dump_config` must be provided with type `DumpConfig`"):
        NPURunConfig(dump_config={"enable_dump": True})
    with pytest.raises(TypeError, match="dump_steps"):
        NPURunConfig(dump_steps="0")
    with pytest.raises(ValueError, match="`config` must be provided with type `NPUConfigs`"):
        NPUEstimator(model_fn=print, config=None)
    monkeypatch.delenv("JOB_ID")
    with pytest.raises(ValueError, match="Load job info failed"):
        NPUEstimator(model_fn=print, config=NPURunConfig())


RANKS = """
if int(os.getenv('RANK_ID')) == 7:
    dump_flag = True
else:
    dump_flag = False
dump_config = DumpConfig(enable_dump=dump_flag, dump_path=DUMP_PATH, dump_step="0", dump_mode="output")
config = NPURunConfig(dump_config=dump_config, session_config=tf.ConfigProto())
model_dir = MODEL_DIR + os.getenv('RANK_ID')
NPUEstimator(model_fn=model_function, model_dir=model_dir, config=config).train(input_fn, steps=2)
"""


def test_one_rank_of_many_dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "output").mkdir()
    monkeypatch.setenv("JOB_ID", "10087")
    for rank, device in ((6, 6), (7, 7)):
        monkeypatch.setenv("RANK_ID", str(rank))
        with fakes.install("tensorflow", "npu_bridge", cwd=tmp_path, device_id=device) as npu:
            execute(HEAD + ESTIMATOR + RANKS, tmp_path)
            assert npu.executed
            assert bool(npu.files) is (rank == 7)
    dump = ascend_dump.open(tmp_path / "output")
    assert {record.device for record in dump} == {7}
    monkeypatch.delenv("RANK_ID")
    with fakes.install("tensorflow", "npu_bridge", cwd=tmp_path), pytest.raises(TypeError):
        execute(HEAD + ESTIMATOR + RANKS, tmp_path)


def test_ranks_of_several_time_directories_are_read_as_one_dump(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    for device in (0, 1):
        clock = 1_600_000_000.0 + device
        with fakes.install("tensorflow", "npu_bridge", cwd=tmp_path, device_id=device, clock=lambda at=clock: at):
            execute(PROGRAMS["session-automated"], tmp_path)
    assert len(list((tmp_path / "output").iterdir())) == 2
    dump = ascend_dump.open(tmp_path / "output")
    assert {record.device for record in dump.select(op="mm")} == {0, 1}
    assert len(dump.select(op="mm", io="output")) == 4


def test_dump_and_overflow_detection_exclude_each_other(npu: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    program = HEAD + CONFIG + 'custom_op.parameter_map["enable_dump_debug"].b = True\n' + NET + SESSION_MANUAL
    with pytest.raises(tf.errors.InternalError, match="E10001"):
        execute(program, tmp_path)
    assert npu.files == []
