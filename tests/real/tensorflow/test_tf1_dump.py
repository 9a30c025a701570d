"""`tf1_dump.py`, which runs where ascend_dump cannot be imported: what it sets, dumps and refuses."""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from ascend_dump_tensorflow import apply

import ascend_dump
import ascend_dump.fakes
from ascend_dump.cli import main


@pytest.fixture
def tf1_dump(tmp_path: Path) -> Any:
    """The file as it is copied beside a program."""
    file = tmp_path / "tf1_dump.py"
    assert main(["config", "--for", "tensorflow", "--standalone", str(file)]) == 0
    spec = importlib.util.spec_from_file_location("tf1_dump", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def npu() -> Iterator[Any]:
    with ascend_dump.fakes.install("npu_bridge") as device:
        import npu_bridge.npu_init  # noqa: F401  (sessions are watched from its import on)

        yield device


@pytest.fixture
def settings(tmp_path: Path) -> str:
    """The file that `config` writes for the document's program."""
    file = str(tmp_path / "dump.json")
    options = ["--path", str(tmp_path / "dumps"), "--steps", "0|2", "--mode", "all"]
    assert main(["config", "--for", "tensorflow", *options, "-o", file]) == 0
    (tmp_path / "dumps").rmdir()
    return file


def run_network(config: Any, scale: float = 1.0) -> list[Any]:
    tf.reset_default_graph()
    x = tf.constant(np.arange(8, dtype="f").reshape(2, 4) * scale)
    cost = tf.reduce_mean(tf.nn.relu(tf.matmul(x, tf.ones([4, 3]), name="mm"), name="act"), name="cost")
    with tf.Session(config=config) as session:
        return [session.run(cost) for _ in range(4)]


def model_function(features: Any, labels: Any, mode: Any) -> Any:
    w = tf.get_variable("w", [4, 1], use_resource=True)
    loss = tf.reduce_mean(tf.square(tf.matmul(features, w, name="mm") - labels))
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, tf.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def input_function() -> Any:
    return tf.data.Dataset.from_tensors((np.arange(8, dtype="f").reshape(2, 4), np.ones((2, 1), "f"))).repeat()


def text_of(config: Any) -> bytes:
    found: bytes = config.SerializeToString(deterministic=True)
    return found


def test_a_session_dumps_what_the_settings_say_and_the_configuration_is_as_before(
    tf1_dump: Any, npu: Any, settings: str, tmp_path: Path
) -> None:
    config = tf.ConfigProto(allow_soft_placement=True)
    before = text_of(config)
    plain = run_network(tf.ConfigProto(allow_soft_placement=True))
    with tf1_dump.capture(config, settings) as cap:
        assert run_network(config) == plain
    # The bridge itself leaves its entry there.
    assert b"dump" not in text_of(config)
    assert cap.path == str(tmp_path / "dumps")
    assert (tmp_path / "dumps").stat().st_mode & 0o777 == 0o700
    found = ascend_dump.open(cap.path).select(op="mm")
    assert {(record.step, record.io) for record in found} == {(s, io) for s in (0, 2) for io in ("input", "output")}
    untouched = tf.ConfigProto(allow_soft_placement=True)
    with tf1_dump.capture(untouched, settings):
        assert text_of(untouched) != before
    assert text_of(untouched) == before


def test_the_configuration_is_that_of_the_adapter(tf1_dump: Any, settings: str, tmp_path: Path) -> None:
    request = ascend_dump.DumpRequest(path=tmp_path / "dumps", steps="0|2", mode="all")
    config = tf.ConfigProto()
    with tf1_dump.capture(config, settings):
        assert text_of(config) == text_of(apply(tf.ConfigProto(), request))


def test_what_it_wrote_is_listed_converted_and_compared(
    tf1_dump: Any, npu: Any, settings: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = {}
    for name, scale in (("reference", 1.0), ("same", 1.0), ("other", 2.0)):
        content = {**json.loads(Path(settings).read_text()), "dump_path": str(tmp_path / name)}
        with tf1_dump.capture(tf.ConfigProto(), content) as cap:
            run_network(cap._target, scale)
        dumps[name] = cap.path
    assert main(["ls", dumps["reference"], "--op", "mm"]) == 0
    assert "mm" in capsys.readouterr().out
    assert main(["convert", dumps["reference"], "-o", str(tmp_path / "npy")]) == 0
    arrays = [np.load(path) for path in (tmp_path / "npy").rglob("*mm*output*.npy")]
    assert arrays
    expected = np.arange(8, dtype="f").reshape(2, 4) @ np.ones((4, 3), "f")
    assert all((array == expected).all() for array in arrays)
    assert main(["compare", dumps["same"], dumps["reference"]]) == 0
    assert main(["compare", dumps["other"], dumps["reference"]]) == 1


@pytest.mark.parametrize("kind", ["npu_run_config", "dump_config", "run_config"])
def test_estimators(tf1_dump: Any, npu: Any, settings: str, tmp_path: Path, kind: str) -> None:
    from npu_bridge.npu_init import NPUEstimator, NPURunConfig, npu_run_config_init

    model = str(tmp_path / "model")
    if kind == "dump_config":
        config = NPURunConfig(dump_config=tf1_dump.dump_config(settings))
        NPUEstimator(model_function, model_dir=model, config=config).train(input_function, steps=5)
    elif kind == "npu_run_config":
        config = NPURunConfig()
        with tf1_dump.capture(config, settings):
            NPUEstimator(model_function, model_dir=model, config=config).train(input_function, steps=5)
        assert config._dump_config is None
    else:
        config = tf.estimator.RunConfig(session_config=tf.ConfigProto())
        with tf1_dump.capture(config, settings):
            prepared = npu_run_config_init(run_config=config)
            tf.estimator.Estimator(model_function, model_dir=model, config=prepared).train(input_function, steps=5)
        assert b"dump" not in text_of(config.session_config)
    assert {record.step for record in ascend_dump.open(tmp_path / "dumps").select(op="mm")} == {0, 2}


@pytest.mark.parametrize("style", ["session", "estimator", "keras"])
def test_the_lines_to_paste_dump_what_the_settings_say(
    npu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], style: str
) -> None:
    options = ["--path", str(tmp_path / "dumps"), "--steps", "1", "--format", "python", "--style", style]
    assert main(["config", "--for", "tensorflow", *options]) == 0
    names: dict[str, Any] = {}
    exec(capsys.readouterr().out, names)
    if style == "session":
        run_network(names["config"])
    elif style == "estimator":
        estimator = names["NPUEstimator"](model_function, model_dir=str(tmp_path / "m"), config=names["config"])
        estimator.train(input_function, steps=5)
    else:
        model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(4,), name="mm")])
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 4), "f"), np.ones((8, 3), "f"), batch_size=4, epochs=2, verbose=0)
        names["npu_keras_sess"].close()
    assert {record.step for record in ascend_dump.open(tmp_path / "dumps").select(op="mm*")} == {1}


@pytest.mark.parametrize(("rank", "is_dumped"), [("7", True), ("0", False)])
def test_one_rank_dumps(
    tf1_dump: Any, npu: Any, settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, is_dumped: bool
) -> None:
    monkeypatch.setenv("RANK_ID", rank)
    monkeypatch.setenv("RANK_SIZE", "8")
    config = tf.ConfigProto()
    with tf1_dump.capture(config, settings, ranks="7") as cap:
        run_network(config)
    assert cap.active is is_dumped
    if is_dumped:
        assert {record.rank for record in ascend_dump.open(tmp_path / "dumps")} == {7}
    else:
        assert not (tmp_path / "dumps").exists()
        assert tf1_dump.dump_config(settings, ranks="7")._enable_dump is False


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [("all", "0123"), ("0|2-3", "023"), ("1,3", "13"), ("7", "")],
)
def test_ranks_are_written_as_steps(
    tf1_dump: Any, settings: str, monkeypatch: pytest.MonkeyPatch, ranks: str, expected: str
) -> None:
    found = ""
    for rank in "0123":
        monkeypatch.setenv("RANK_ID", rank)
        found += rank if tf1_dump.capture(tf.ConfigProto(), settings, ranks=ranks).active else ""
    assert found == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"enable_dump": True, "enable_dump_debug": True, "dump_path": "d"}, "both enable_dump and enable_dump_debug"),
        ({"enable_dump": False, "dump_path": "d"}, "neither enable_dump nor"),
        ({"enable_dump": True}, "no dump_path"),
        ({"enable_dump": 1, "dump_path": "d"}, "enable_dump is 1, expected bool"),
        ({"enable_dump": True, "dump_path": "d", "dump_steps": "0"}, "'dump_steps' is not a key of a dump"),
        ("missing.json", "missing.json cannot be read"),
    ],
    ids=str,
)
def test_settings_that_dump_nothing_are_refused(tf1_dump: Any, settings: Any, message: str) -> None:
    with pytest.raises(tf1_dump.DumpError, match=message):
        tf1_dump.capture(tf.ConfigProto(), settings)


def test_what_else_is_refused(
    tf1_dump: Any, npu: Any, settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tf.ConfigProto()
    entry = config.graph_options.rewrite_options.custom_optimizers.add()
    entry.name = "NpuOptimizer"
    entry.parameter_map["enable_dump_debug"].b = True
    before = text_of(config)
    with pytest.raises(tf1_dump.DumpError, match="exclude each other"), tf1_dump.capture(config, settings):
        pass
    assert text_of(config) == before
    with pytest.raises(tf1_dump.DumpError, match=r"give the tf\.ConfigProto"):
        tf1_dump.capture(object(), settings)
    with pytest.raises(tf1_dump.DumpError, match="ranks is 'seven'"):
        tf1_dump.capture(config, settings, ranks="seven")
    shutil.rmtree(tmp_path / "dumps")
    (tmp_path / "dumps").write_text("")
    with pytest.raises(tf1_dump.DumpError, match="cannot be created"), tf1_dump.capture(tf.ConfigProto(), settings):
        pass
    monkeypatch.setenv("RANK_ID", "x")
    with pytest.raises(tf1_dump.DumpError, match="RANK_ID is 'x'"):
        tf1_dump.capture(config, settings)


def test_a_block_that_dumps_nothing_is_reported(tf1_dump: Any, settings: str, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "tf1_dump"), tf1_dump.capture(tf.ConfigProto(), settings):
        run_network(tf.ConfigProto())
    assert "npu_bridge is not imported" in caplog.text
    with ascend_dump.fakes.install("npu_bridge"):
        import npu_bridge.npu_init  # noqa: F401

        with caplog.at_level(logging.WARNING, "tf1_dump"), tf1_dump.capture(tf.ConfigProto(), settings):
            run_network(tf.ConfigProto())
    assert "create the session inside the block, from the captured configuration" in caplog.text
