"""The networks in TensorFlow, in sessions and eagerly. Name scopes are the stages.

    python tensorflow_programs.py JOBS.json

JOBS.json is a list of [network, settings, mode, directory, file of results]; mode is graph or eager.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import numpy as np
import tensorflow as tf
from framework_pairs.programs.shared import CLASSES, HEADS, LENGTH, STEPS, TOKENS, WIDTH, Settings, data, mask

v1 = tf.compat.v1


class Layers:
    """Layers with the weights of their names, which the first call makes."""

    def __init__(self, settings: Settings) -> None:
        self.s = settings
        self.variables: dict[str, Any] = {}

    def variable(self, name: str, value: np.ndarray) -> Any:
        if name not in self.variables:
            with tf.init_scope():
                label = name.replace(".", "_")
                self.variables[name] = tf.Variable(np.ascontiguousarray(value), name=label)
        return self.variables[name]

    def linear(self, name: str, x: Any, inputs: int, outputs: int, bias: bool = True) -> Any:
        with tf.name_scope(name):
            matrix = self.variable(f"{name}.w", self.s.array(f"{name}.w", outputs, inputs).T)
            y = tf.matmul(x if len(x.shape) == 2 else tf.reshape(x, [-1, inputs]), matrix)
            if bias and self.s.without_bias != name:
                y = tf.nn.bias_add(y, self.variable(f"{name}.b", self.s.array(f"{name}.b", outputs, scale=0.3)))
            return y if len(x.shape) == 2 else tf.reshape(y, [*x.shape[:-1], outputs])

    def conv(self, name: str, x: Any, inputs: int, outputs: int, size: int = 3, stride: int = 1) -> Any:
        value = self.s.array(f"{name}.w", outputs, inputs, size, size).transpose(2, 3, 1, 0)
        with tf.name_scope(name):
            padding: Any = "SAME"
            if stride == 2 and self.s.symmetric_padding and size == 3:
                padding = [[0, 0], [1, 1], [1, 1], [0, 0]]
            return tf.nn.conv2d(x, self.variable(f"{name}.w", value), stride, padding)

    def affine(self, name: str, width: int) -> tuple[Any, Any]:
        gain = self.variable(f"{name}.w", self.s.array(f"{name}.w", width, scale=0.2, offset=1))
        return gain, self.variable(f"{name}.b", self.s.array(f"{name}.b", width, scale=0.2))

    def batch_norm(self, name: str, x: Any) -> Any:
        width, eps = int(x.shape[-1]), self.s.eps_at(name, 1e-3)
        with tf.name_scope(name):
            gain, offset = self.affine(name, width)
            if self.s.training:
                return v1.nn.fused_batch_norm(x, gain, offset, epsilon=eps, is_training=True)[0]
            mean, spread = tf.zeros(width), tf.ones(width)
            return v1.nn.fused_batch_norm(x, gain, offset, mean, spread, epsilon=eps, is_training=False)[0]

    def layer_norm(self, name: str, x: Any) -> Any:
        with tf.name_scope(name):
            gain, offset = self.affine(name, WIDTH)
            mean, spread = tf.nn.moments(x, [-1], keepdims=True)
            return tf.nn.batch_normalization(x, mean, spread, offset, gain, self.s.eps_at(name, 1e-5))

    def embedding(self, name: str, count: int) -> Any:
        return self.variable(f"{name}.w", self.s.array(f"{name}.w", count, WIDTH, scale=0.5))

    def stop(self, stage: str, x: Any) -> Any:
        return tf.stop_gradient(x) if self.s.detached == stage else x

    def activation(self, x: Any) -> Any:
        with tf.name_scope("act"):
            if self.s.activation == "relu":
                return tf.nn.relu(x)
            return tf.nn.gelu(x, approximate=self.s.activation == "gelu_tanh")


def mlp(f: Layers, x: Any) -> Any:
    x = f.stop("act", f.activation(f.linear("fc1", x, 12, WIDTH)))
    x = f.linear("fc2", x, WIDTH, WIDTH)
    with tf.name_scope("fc2"):
        x = tf.nn.relu(x)
    return f.linear("fc3", x, WIDTH, CLASSES)


def cnn(f: Layers, x: Any) -> Any:
    x = f.batch_norm("bn1", f.conv("conv1", x, 3, 4))
    with tf.name_scope("bn1"):
        x = tf.nn.relu(x)
    with tf.name_scope("pool"):
        pool = tf.nn.max_pool2d if f.s.pool == "max" else tf.nn.avg_pool2d
        x = pool(x, 2, 2, "VALID")
    x = f.batch_norm("bn2", f.conv("conv2", x, 4, 6, stride=2))
    with tf.name_scope("bn2"):
        x = f.stop("bn2", tf.nn.relu(x))
    with tf.name_scope("flat"):
        if f.s.flat_order == "chw":
            x = tf.transpose(x, [0, 3, 1, 2])
        x = tf.reshape(x, [4, 24])
    return f.linear("head", x, 24, CLASSES)


def resnet(f: Layers, x: Any) -> Any:
    x = f.batch_norm("bn1", f.conv("conv1", x, 3, 8))
    with tf.name_scope("bn1"):
        x = tf.nn.relu(x)
    y = f.batch_norm("bn2", f.conv("conv2", x, 8, 8))
    with tf.name_scope("bn2"):
        y = tf.nn.relu(y)
    y = f.batch_norm("bn3", f.conv("conv3", y, 8, 8))
    if f.s.shortcut:
        with tf.name_scope("add"):
            y = y + f.stop("add", x)
    if f.s.last_relu:
        with tf.name_scope("relu"):
            y = tf.nn.relu(y)
    y = f.batch_norm("bn4", f.conv("down", y, 8, 12, size=1, stride=2))
    with tf.name_scope("bn4"):
        y = tf.nn.relu(y)
    with tf.name_scope("pool"):
        y = tf.reduce_mean(y, [1, 2]) if f.s.pool == "max" else tf.reduce_max(y, [1, 2])
    return f.linear("head", y, 12, CLASSES)


def heads(x: Any) -> Any:
    return tf.transpose(tf.reshape(x, [2, LENGTH, HEADS, WIDTH // HEADS]), [0, 2, 1, 3])


def block(f: Layers, x: Any) -> Any:
    y = f.layer_norm("norm1", x)
    q, k, v = (heads(f.linear(name, y, WIDTH, WIDTH)) for name in ("q", "k", "v"))
    q, k = (k, q) if f.s.swapped else (q, k)
    with tf.name_scope("scores"):
        scores = tf.matmul(q, k, transpose_b=True)
    if f.s.scale:
        with tf.name_scope("scale"):
            scores = scores * np.float32((WIDTH // HEADS) ** -0.5)
    with tf.name_scope("mask"):
        scores = scores + tf.constant(mask(f.s))
    with tf.name_scope("softmax"):
        p = f.stop("softmax", tf.nn.softmax(scores, f.s.axis))
    with tf.name_scope("mix"):
        y = tf.matmul(p, v)
    with tf.name_scope("merge"):
        y = tf.reshape(tf.transpose(y, [0, 2, 1, 3]) if f.s.merged_heads else y, [2, LENGTH, WIDTH])
    y = f.linear("o", y, WIDTH, WIDTH)
    with tf.name_scope("add1"):
        x = y if f.s.residual == "add1" else x + y
    y = f.linear("up", f.layer_norm("norm2", x), WIDTH, 32)
    y = f.linear("down", f.activation(y), 32, WIDTH)
    with tf.name_scope("add2"):
        return y if f.s.residual == "add2" else x + y


def gru(f: Layers, x: Any) -> Any:
    h, states = tf.zeros([3, WIDTH]), []
    for step in range(4):
        xr, xz, xn = tf.split(f.linear("x", x[:, step], 8, 3 * WIDTH), 3, 1)
        hr, hz, hn = tf.split(f.linear("h", f.stop("state", h), WIDTH, 3 * WIDTH), 3, 1)
        with tf.name_scope("reset"):
            r = tf.sigmoid(xr + hr)
        with tf.name_scope("update_gate"):
            z = tf.sigmoid(xz + hz)
        with tf.name_scope("candidate"):
            if f.s.reset_after:
                n = tf.tanh(xn + r * hn)
            else:
                matrix, bias = f.variables["h.w"][:, 2 * WIDTH :], f.variables["h.b"][2 * WIDTH :]
                n = tf.tanh(xn + tf.matmul(r * h, matrix) + bias)
        with tf.name_scope("state"):
            h = z * n + (1 - z) * h if f.s.update_swapped else (1 - z) * n + z * h
        states.append(h)
    return f.linear("head", states[f.s.last_state], WIDTH, CLASSES)


def lm(f: Layers, ids: Any) -> Any:
    table = f.embedding("table", TOKENS)
    with tf.name_scope("table"):
        x = tf.gather(table, ids)
    if f.s.embedding_scale:
        with tf.name_scope("embedding_scale"):
            x = x * np.float32(WIDTH**0.5)
    with tf.name_scope("positions"):
        order = tf.range(LENGTH) + f.s.position_offset
        x = x + tf.gather(f.embedding("positions", LENGTH + 2), order)
    with tf.name_scope("norm"):
        gain = f.variable("norm.w", f.s.array("norm.w", WIDTH, scale=0.2, offset=1))
        spread = tf.reduce_mean(tf.square(x), -1, keepdims=True)
        y = x * tf.math.rsqrt(spread + f.s.eps_at("norm", 1e-6)) * gain
    gate, up = (f.linear(name, y, WIDTH, 24, False) for name in ("gate", "up"))
    gate, up = (up, gate) if f.s.swapped else (gate, up)
    with tf.name_scope("act"):
        y = tf.nn.gelu(gate) if f.s.activation == "gelu_tanh" else gate * tf.sigmoid(gate)
    with tf.name_scope("product"):
        y = f.stop("product", y * up)
    y = f.linear("down", y, 24, WIDTH, False)
    with tf.name_scope("add1"):
        x = y if f.s.residual == "add1" else x + y
    with tf.name_scope("logits"):
        return tf.matmul(tf.reshape(x, [-1, WIDTH]), f.stop("logits", table), transpose_b=True)


def tower(f: Layers, ids: Any, dense: Any) -> Any:
    with tf.name_scope("user"):
        user = tf.nn.embedding_lookup(f.embedding("user", 22), ids[:, 0] + f.s.ids_offset)
    with tf.name_scope("item"):
        item = tf.nn.embedding_lookup(f.embedding("item", 22), ids[:, 1])
    with tf.name_scope("join"):
        x = tf.concat([dense, user] if f.s.swapped else [user, dense], 1)
    x = f.linear("fc1", x, WIDTH + 4, WIDTH)
    with tf.name_scope("fc1"):
        x = tf.nn.relu(x)
    x = f.linear("fc2", x, WIDTH, WIDTH)
    with tf.name_scope("dot"):
        y = tf.reduce_sum(x * f.stop("item", item), -1)
    with tf.name_scope("scale"):
        return y * np.float32(WIDTH**-0.5) if f.s.scale else y


NETWORKS = {"mlp": mlp, "cnn": cnn, "resnet": resnet, "block": block, "gru": gru, "lm": lm, "tower": tower}


def feeds(network: str, step: int, s: Settings) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the inputs and the labels of a step, as TensorFlow has them."""
    arrays = data(network, step)
    x = arrays["x"]
    if network in ("cnn", "resnet"):
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    if network == "lm":
        return [x[:, :LENGTH].copy()], x[:, s.label_shift : s.label_shift + LENGTH].reshape(-1)
    return [x, *([arrays["dense"]] if network == "tower" else [])], arrays["y"]


def loss_of(network: str, y: Any, labels: Any, s: Settings) -> Any:
    """Return the loss of a batch."""
    with tf.name_scope("loss"):
        if network == "block":
            losses = tf.math.squared_difference(y, labels)
        elif network == "tower":
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=y)
        else:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=y)
        return tf.reduce_mean(losses) if s.reduction == "mean" else tf.reduce_sum(losses)


def trained(f: Layers) -> list[Any]:
    return [variable for name, variable in f.variables.items() if name != f.s.frozen]


def run_graph(network: str, s: Settings, directory: str) -> dict[str, Any]:
    """Train in a session; steps are counted for each graph, so that the run that sets the variables is one."""
    f = Layers(s)
    with tf.Graph().as_default():
        example, label = feeds(network, 0, s)
        places = [v1.placeholder(value.dtype, value.shape, name=f"x{number}") for number, value in enumerate(example)]
        labels = v1.placeholder(label.dtype, label.shape, name="labels")
        loss = loss_of(network, NETWORKS[network](f, *places), labels, s)
        optimizer = v1.train.MomentumOptimizer(s.learning_rate, s.momentum, use_nesterov=s.nesterov)
        # Of rows outside of the batch, a sparse gradient updates no momentum; the other frameworks have dense ones.
        pairs = [(g, v) for g, v in optimizer.compute_gradients(loss, trained(f)) if g is not None]
        update = optimizer.apply_gradients([(tf.convert_to_tensor(g), v) for g, v in pairs], name="update")
        start, config = v1.global_variables_initializer(), v1.ConfigProto()

        def train() -> tuple[list[Any], list[Any]]:
            with v1.Session(config=config) as session:
                session.run(start)
                losses = []
                for step in range(STEPS):
                    values, label = feeds(network, step, s)
                    fed = {**dict(zip(places, values)), labels: label}
                    losses.append(session.run([loss, update], fed)[0])
                return losses, session.run(list(f.variables.values()))

        import ascend_dump

        with ascend_dump.capture(config, path=directory, framework="tensorflow", steps="0-2", quiet=True):
            losses, values = train()
        return {"losses": losses, **dict(zip(f.variables, values))}


def run_eager(network: str, s: Settings, directory: str) -> dict[str, Any]:
    """Train eagerly with an optimizer of Keras."""
    f = Layers(s)
    optimizer = tf.keras.optimizers.SGD(s.learning_rate, s.momentum, nesterov=s.nesterov, jit_compile=False)

    def step(number: int) -> Any:
        values, label = feeds(network, number, s)
        with tf.GradientTape() as tape:
            loss = loss_of(network, NETWORKS[network](f, *map(tf.constant, values)), tf.constant(label), s)
        names = trained(f)
        gradients = tape.gradient(loss, names)
        with tf.name_scope("update"):
            optimizer.apply_gradients([pair for pair in zip(gradients, names) if pair[0] is not None])
        return loss.numpy()

    import ascend_dump

    with ascend_dump.capture(path=directory, framework="tensorflow", steps="0-2", quiet=True) as capture:
        losses = []
        for number in range(STEPS):
            losses.append(step(number))
            capture.step()
    return {"losses": losses, **{name: variable.numpy() for name, variable in f.variables.items()}}


def main(jobs: str) -> None:
    """Run all jobs of a file."""
    with open(jobs, encoding="utf-8") as file:
        for network, changed, mode, directory, results in json.load(file):
            settings = Settings(**changed)
            if mode == "graph":
                found = run_graph(network, settings, directory)
            else:
                found = run_eager(network, settings, directory)
            np.savez(results, **found)


if __name__ == "__main__":
    main(sys.argv[1])
