"""Dumps that TensorFlow's own debugger writes are read with the values that its own reader finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ascend_dump

PROGRAM = """
import sys
import numpy as np
import tensorflow as tf
from tensorflow.python.debug.wrappers.dumping_wrapper import DumpingDebugWrapperSession
v1 = tf.compat.v1
v1.disable_eager_execution()
x = v1.placeholder(tf.float32, [4, 8], name="x")
w = v1.get_variable("w", initializer=np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32))
parts = tf.split(tf.nn.relu(tf.matmul(x, w, name="product"), name="relu"), 3, axis=1, name="parts")
wrong = tf.math.log(parts[1] - 100.0, name="wrong")
total = v1.while_loop(lambda i, s: i < 4, lambda i, s: (i + 1, s + tf.reduce_sum(parts[2])), [0, 0.0])[1]
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    dumped = DumpingDebugWrapperSession(session, sys.argv[1])
    for _ in range(2):
        dumped.run([wrong, total], {x: np.ones((4, 8), np.float32)})
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("debugger") / "dump"
    subprocess.run([sys.executable, "-c", PROGRAM, str(place)], check=True, timeout=900)
    return place


def test_every_value_is_read(root: Path) -> None:
    from tensorflow.python.debug.lib.debug_data import DebugDumpDir, InconvertibleTensorProto

    dump = ascend_dump.open(root)
    assert dump.known_values("step") == {0, 1}
    assert dump.errors() == []
    by_file = {record.path: record for record in dump if record.io == "output"}
    runs = sorted(root.iterdir())
    assert len(runs) == 2
    checked = 0
    for run in runs:
        for datum in DebugDumpDir(str(run)).dumped_tensor_data:
            record = by_file.pop(Path(datum.file_path))
            assert (record.op_name, record.index) == (datum.node_name, datum.output_slot)
            expected = datum.get_tensor()
            if not isinstance(expected, InconvertibleTensorProto):
                assert np.array_equal(record.numpy(), expected, equal_nan=record.dtype == "float32")
                checked += 1
    assert by_file == {}
    assert checked > 20


def test_inputs_are_those_of_the_graph(root: Path) -> None:
    dump = ascend_dump.open(root)
    [product] = dump.select("product", step=1, io="output")
    [before] = dump.select("relu", step=1, io="input")
    assert np.array_equal(product.numpy(), before.numpy())
    assert len(list(dump.select("parts", step=1, io="output"))) == 3


def test_the_operator_that_made_nan_is_named(root: Path) -> None:
    from ascend_dump.analysis.operators.nonfinite import first_nonfinite

    found = first_nonfinite(ascend_dump.open(root))
    assert found is not None
    assert (found.kind, found.record.op_name) == ("origin", "wrong")
