"""The programs of the document "Dump Data Collection" of TensorFlow on Ascend, in seven variants.

Each stands in two parts: what makes the configuration, with the document's dump settings in it, and what runs.
Only the data is ours: the document's `...` and its paths. `result` is what the program computes.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

__all__ = ["SNIPPETS", "Snippet", "run"]

_HEAD = """
import os
import numpy as np
import tensorflow as tf
from npu_bridge.npu_init import *
"""

_SETTINGS = """
session_config = tf.ConfigProto(allow_soft_placement=True)
custom_op = session_config.graph_options.rewrite_options.custom_optimizers.add()
custom_op.name = "NpuOptimizer"
# enable_dump: dump enable
custom_op.parameter_map["enable_dump"].b = True
custom_op.parameter_map["dump_path"].s = tf.compat.as_bytes("/home/HwHiAiUser/output")
# dump_step: iterations to dump
custom_op.parameter_map["dump_step"].s = tf.compat.as_bytes("0|5|10")
# dump_mode: dump mode, selected from input, output, and all
custom_op.parameter_map["dump_mode"].s = tf.compat.as_bytes("all")
"""

_NETWORK = """
def network():
    x = tf.constant(np.arange(8, dtype="f").reshape(2, 4))
    w = tf.get_variable("w", [4, 3])
    hidden = tf.nn.relu(tf.matmul(x, w, name="mm"), name="act")
    return tf.reduce_mean(tf.square(hidden), name="cost")
"""

_ESTIMATOR = """
def model_function(features, labels, mode, params=None):
    w = tf.get_variable("w", [4, 1], use_resource=True)
    loss = tf.reduce_mean(tf.square(tf.matmul(features, w, name="mm") - labels))
    optimizer = tf.train.GradientDescentOptimizer(0.01)
    train = optimizer.minimize(loss, tf.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

def input_fn():
    batch = (np.arange(8, dtype="f").reshape(2, 4), np.ones((2, 1), "f"))
    return tf.data.Dataset.from_tensors(batch).repeat()
"""


class Snippet(NamedTuple):
    """target: the expression that a capture gets. settings, program: the two parts."""

    target: str
    settings: str
    program: str

    @property
    def without_dump(self) -> str:
        """The settings without what asks for a dump."""
        text = re.sub(r'custom_op\.parameter_map\["(enable_dump|dump_\w+)"\].*\n', "", self.settings)
        return re.sub(r"dump_config = .*\n|dump_config=dump_config, ", "", text)


SNIPPETS = {
    "init_resource": Snippet(
        "None",
        _HEAD + _SETTINGS,
        _NETWORK
        + """
def main(_=None):
    global result
    with tf.Session(config=session_config) as sess:
        cost = network()
        sess.run(tf.global_variables_initializer())
        result = [sess.run(cost) for _ in range(7)]

(npu_sess, npu_shutdown) = init_resource(config=session_config)
try:
    tf.app.run(main, argv=["train.py"])
except SystemExit:
    pass
shutdown_resource(npu_sess, npu_shutdown)
close_session(npu_sess)
""",
    ),
    "estimator_automated": Snippet(
        "session_config",
        _HEAD + _SETTINGS,
        _ESTIMATOR
        + """
run_config = tf.estimator.RunConfig(
    session_config=session_config, save_checkpoints_secs=60*60*24, tf_random_seed=7)
classifier = tf.estimator.Estimator(
    model_fn=model_function, model_dir=model_dir, config=npu_run_config_init(run_config=run_config))
classifier.train(input_fn, steps=7)
result = classifier.get_variable_value("w")
""",
    ),
    "estimator_manual": Snippet(
        "config",
        _HEAD
        + """
dump_config = DumpConfig(enable_dump=True, dump_path="/home/HwHiAiUser/output", dump_step="0|5|10", dump_mode="all")
session_config = tf.ConfigProto(allow_soft_placement=True)
config = NPURunConfig(dump_config=dump_config, session_config=session_config, tf_random_seed=7)
""",
        _ESTIMATOR
        + """
classifier = NPUEstimator(model_fn=model_function, model_dir=model_dir, config=config)
classifier.train(input_fn, steps=7)
result = classifier.get_variable_value("w")
""",
    ),
    "session_automated": Snippet(
        "session_config",
        _HEAD + _SETTINGS,
        _NETWORK
        + """
config = npu_config_proto(config_proto=session_config)
cost = network()
with tf.Session(config=config) as sess:
    sess.run(tf.global_variables_initializer())
    result = [sess.run(cost) for _ in range(7)]
""",
    ),
    "session_manual": Snippet(
        "session_config",
        _HEAD
        + _SETTINGS
        + """
custom_op.parameter_map["use_off_line"].b = True
session_config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
session_config.graph_options.rewrite_options.memory_optimization = RewriterConfig.OFF
""",
        _NETWORK
        + """
cost = network()
with tf.Session(config=session_config) as sess:
    sess.run(tf.global_variables_initializer())
    result = [sess.run(cost) for _ in range(7)]
""",
    ),
    **{
        f"keras_{kind}": Snippet(
            "session_config",
            _HEAD + imports + _SETTINGS,
            """
npu_keras_sess = set_keras_session_npu_config(config=session_config)
ones = keras.initializers.Constant(0.5)
model = keras.Sequential([
    keras.layers.Dense(3, input_shape=(4,), kernel_initializer=ones, name="d0"),
    keras.layers.Dense(1, kernel_initializer=ones, name="d1")])
model.compile("sgd", "mse")
model.fit(np.arange(32, dtype="f").reshape(8, 4) / 32, np.ones((8, 1), "f"),
          batch_size=4, epochs=3, verbose=0, shuffle=False)
result = model.get_weights()
npu_keras_sess.close()
""",
        )
        for kind, imports in {
            "legacy": "import tensorflow.python.keras as keras\nfrom tensorflow.python.keras import backend as K\n",
            "public": "keras = tf.keras\n",
        }.items()
    },
}


def run(source: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a part as the script it is; returns its names."""
    exec(compile(source, "train.py", "exec"), names)
    return names
