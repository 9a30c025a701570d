"""The networks in MindSpore, in graph mode. The comments `stage:` name the parts as the other frameworks name them.

    python mindspore_programs.py NETWORK SETTINGS DIRECTORY RESULTS

One program per process, since MindSpore reads the configuration of a dump once.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import mindspore as ms
import numpy as np
from framework_pairs.programs.shared import CLASSES, HEADS, LENGTH, STEPS, TOKENS, WIDTH, Settings, data, mask
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

import ascend_dump


class Network(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """Base of the networks: layers with the weights of their names."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.s = s
        self.detached = s.detached
        self.swapped = s.swapped

    def linear(self, name: str, inputs: int, outputs: int, bias: bool = True) -> Any:
        bias = bias and self.s.without_bias != name
        start = {"bias_init": Tensor(self.s.array(f"{name}.b", outputs, scale=0.3))} if bias else {}
        matrix = Tensor(self.s.array(f"{name}.w", outputs, inputs))
        return nn.Dense(inputs, outputs, weight_init=matrix, has_bias=bias, **start)

    def conv(self, name: str, inputs: int, outputs: int, size: int = 3, **options: Any) -> Any:
        kernel = Tensor(self.s.array(f"{name}.w", outputs, inputs, size, size))
        return nn.Conv2d(inputs, outputs, size, weight_init=kernel, **options)

    def affine(self, name: str, width: int) -> dict[str, Any]:
        return {
            "gamma_init": Tensor(self.s.array(f"{name}.w", width, scale=0.2, offset=1)),
            "beta_init": Tensor(self.s.array(f"{name}.b", width, scale=0.2)),
        }

    def batch_norm(self, name: str, width: int) -> Any:
        return nn.BatchNorm2d(width, eps=self.s.eps_at(name, 1e-3), **self.affine(name, width))

    def layer_norm(self, name: str) -> Any:
        return nn.LayerNorm((WIDTH,), epsilon=self.s.eps_at(name, 1e-5), **self.affine(name, WIDTH))

    def table_of(self, name: str, count: int) -> Any:
        return Parameter(Tensor(self.s.array(f"{name}.w", count, WIDTH, scale=0.5)), name=f"{name}.weight")

    def stop(self, stage: str, x: Any) -> Any:
        return ops.stop_gradient(x) if self.detached == stage else x

    def act(self) -> Any:
        if self.s.activation == "relu":
            return nn.ReLU()
        return nn.GELU(approximate=self.s.activation == "gelu_tanh")


class Mlp(Network):
    def __init__(self, s: Settings) -> None:
        super().__init__(s)
        self.fc1, self.fc2 = self.linear("fc1", 12, WIDTH), self.linear("fc2", WIDTH, WIDTH)
        self.fc3, self.activation, self.relu = self.linear("fc3", WIDTH, CLASSES), self.act(), nn.ReLU()

    def construct(self, x: Any) -> Any:
        x = self.fc1(x)  # stage: fc1
        x = self.stop("act", self.activation(x))  # stage: act
        x = self.relu(self.fc2(x))  # stage: fc2
        return self.fc3(x)  # stage: fc3


class Cnn(Network):
    def __init__(self, s: Settings) -> None:
        super().__init__(s)
        self.conv1, self.bn1 = self.conv("conv1", 3, 4, pad_mode="same"), self.batch_norm("bn1", 4)
        pad = {"pad_mode": "pad", "padding": 1} if s.symmetric_padding else {"pad_mode": "same"}
        self.conv2, self.bn2 = self.conv("conv2", 4, 6, stride=2, **pad), self.batch_norm("bn2", 6)
        self.head, self.relu = self.linear("head", 24, CLASSES), nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2) if s.pool == "max" else nn.AvgPool2d(2, 2)
        self.flat_order = s.flat_order

    def construct(self, x: Any) -> Any:
        x = self.conv1(x)  # stage: conv1
        x = self.relu(self.bn1(x))  # stage: bn1
        x = self.pool(x)  # stage: pool
        x = self.conv2(x)  # stage: conv2
        x = self.stop("bn2", self.relu(self.bn2(x)))  # stage: bn2
        if self.flat_order == "hwc":
            x = ops.transpose(x, (0, 2, 3, 1))  # stage: flat
        x = ops.reshape(x, (4, 24))  # stage: flat
        return self.head(x)  # stage: head


class Resnet(Network):
    def __init__(self, s: Settings) -> None:
        super().__init__(s)
        self.conv1, self.bn1 = self.conv("conv1", 3, 8, pad_mode="same"), self.batch_norm("bn1", 8)
        self.conv2, self.bn2 = self.conv("conv2", 8, 8, pad_mode="same"), self.batch_norm("bn2", 8)
        self.conv3, self.bn3 = self.conv("conv3", 8, 8, pad_mode="same"), self.batch_norm("bn3", 8)
        self.down, self.bn4 = self.conv("down", 8, 12, 1, stride=2), self.batch_norm("bn4", 12)
        self.head, self.relu = self.linear("head", 12, CLASSES), nn.ReLU()
        self.shortcut, self.last_relu, self.mean = s.shortcut, s.last_relu, s.pool == "max"

    def construct(self, x: Any) -> Any:
        x = self.conv1(x)  # stage: conv1
        x = self.relu(self.bn1(x))  # stage: bn1
        y = self.conv2(x)  # stage: conv2
        y = self.relu(self.bn2(y))  # stage: bn2
        y = self.conv3(y)  # stage: conv3
        y = self.bn3(y)  # stage: bn3
        if self.shortcut:
            y = y + self.stop("add", x)  # stage: add
        if self.last_relu:
            y = self.relu(y)  # stage: relu
        y = self.down(y)  # stage: down
        y = self.relu(self.bn4(y))  # stage: bn4
        y = ops.mean(y, (2, 3)) if self.mean else ops.amax(y, (2, 3))  # stage: pool
        return self.head(y)  # stage: head


class Block(Network):
    def __init__(self, s: Settings) -> None:
        super().__init__(s)
        self.norm1, self.norm2 = self.layer_norm("norm1"), self.layer_norm("norm2")
        self.q, self.k = self.linear("q", WIDTH, WIDTH), self.linear("k", WIDTH, WIDTH)
        self.v, self.o = self.linear("v", WIDTH, WIDTH), self.linear("o", WIDTH, WIDTH)
        self.up, self.down = self.linear("up", WIDTH, 32), self.linear("down", 32, WIDTH)
        self.activation, self.softmax = self.act(), nn.Softmax(s.axis)
        self.mask, self.scale, self.merged, self.residual = Tensor(mask(s)), s.scale, s.merged_heads, s.residual

    def heads(self, x: Any) -> Any:
        return ops.transpose(ops.reshape(x, (2, LENGTH, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    def construct(self, x: Any) -> Any:
        y = self.norm1(x)  # stage: norm1
        q = self.heads(self.q(y))  # stage: q
        k = self.heads(self.k(y))  # stage: k
        v = self.heads(self.v(y))  # stage: v
        q, k = (k, q) if self.swapped else (q, k)
        scores = ops.BatchMatMul(transpose_b=True)(q, k)  # stage: scores
        if self.scale:
            scores = scores / (WIDTH // HEADS) ** 0.5  # stage: scale
        scores = scores + self.mask  # stage: mask
        p = self.stop("softmax", self.softmax(scores))  # stage: softmax
        y = ops.BatchMatMul()(p, v)  # stage: mix
        y = ops.transpose(y, (0, 2, 1, 3)) if self.merged else y  # stage: merge
        y = ops.reshape(y, (2, LENGTH, WIDTH))  # stage: merge
        y = self.o(y)  # stage: o
        x = y if self.residual == "add1" else x + y  # stage: add1
        y = self.norm2(x)  # stage: norm2
        y = self.up(y)  # stage: up
        y = self.activation(y)  # stage: act
        y = self.down(y)  # stage: down
        return y if self.residual == "add2" else x + y  # stage: add2


class Gru(Network):
    def __init__(self, s: Settings) -> None:
        super().__init__(s)
        self.x, self.h = self.linear("x", 8, 3 * WIDTH), self.linear("h", WIDTH, 3 * WIDTH)
        self.head = self.linear("head", WIDTH, CLASSES)
        self.start = Tensor(np.zeros((3, WIDTH), "f4"))
        self.reset_after, self.update_swapped, self.last_state = s.reset_after, s.update_swapped, s.last_state

    def construct(self, x: Any) -> Any:
        h, states = self.start, []
        for step in range(4):
            gates = self.x(x[:, step])  # stage: x
            xr, xz, xn = ops.split(gates, WIDTH, 1)  # stage: x
            gates = self.h(self.stop("state", h))  # stage: h
            hr, hz, hn = ops.split(gates, WIDTH, 1)  # stage: h
            r = ops.sigmoid(xr + hr)  # stage: reset
            z = ops.sigmoid(xz + hz)  # stage: update_gate
            if self.reset_after:
                n = ops.tanh(xn + r * hn)  # stage: candidate
            else:
                matrix, bias = self.h.weight[2 * WIDTH :], self.h.bias[2 * WIDTH :]  # stage: candidate
                n = ops.tanh(xn + ops.matmul(r * h, matrix.T) + bias)  # stage: candidate
            h = z * n + (1 - z) * h if self.update_swapped else (1 - z) * n + z * h  # stage: state
            states.append(h)
        return self.head(states[self.last_state])  # stage: head


class Lm(Network):
    def __init__(self, s: Settings) -> None:
        super().__init__(s)
        self.table, self.positions = self.table_of("table", TOKENS), self.table_of("positions", LENGTH + 2)
        self.gain = Parameter(Tensor(s.array("norm.w", WIDTH, scale=0.2, offset=1)), name="gain")
        self.gate, self.up = self.linear("gate", WIDTH, 24, False), self.linear("up", WIDTH, 24, False)
        self.down = self.linear("down", 24, WIDTH, False)
        self.order = Tensor(np.arange(LENGTH, dtype="i4") + s.position_offset)
        self.eps, self.gelu, self.residual = s.eps_at("norm", 1e-6), s.activation == "gelu_tanh", s.residual
        self.embedding_scale = s.embedding_scale

    def construct(self, ids: Any) -> Any:
        x = ops.gather(self.table, ids, 0)  # stage: table
        if self.embedding_scale:
            x = x * WIDTH**0.5  # stage: embedding_scale
        x = x + ops.gather(self.positions, self.order, 0)  # stage: positions
        spread = ops.rsqrt(ops.mean(ops.square(x), -1, True) + self.eps)  # stage: norm
        y = x * spread * self.gain  # stage: norm
        gate = self.gate(y)  # stage: gate
        up = self.up(y)  # stage: up
        gate, up = (up, gate) if self.swapped else (gate, up)
        y = ops.gelu(gate) if self.gelu else gate * ops.sigmoid(gate)  # stage: act
        y = self.stop("product", y * up)  # stage: product
        y = self.down(y)  # stage: down
        x = y if self.residual == "add1" else x + y  # stage: add1
        table = self.stop("logits", self.table)
        return ops.matmul(ops.reshape(x, (-1, WIDTH)), table.T)  # stage: logits


class Tower(Network):
    def __init__(self, s: Settings) -> None:
        super().__init__(s)
        self.user, self.item = self.table_of("user", 22), self.table_of("item", 22)
        self.fc1, self.fc2 = self.linear("fc1", WIDTH + 4, WIDTH), self.linear("fc2", WIDTH, WIDTH)
        self.offset, self.scale, self.relu = s.ids_offset, s.scale, nn.ReLU()

    def construct(self, ids: Any, dense: Any) -> Any:
        user = ops.gather(self.user, ids[:, 0] + self.offset, 0)  # stage: user
        item = ops.gather(self.item, ids[:, 1], 0)  # stage: item
        x = ops.concat((dense, user) if self.swapped else (user, dense), 1)  # stage: join
        x = self.relu(self.fc1(x))  # stage: fc1
        x = self.fc2(x)  # stage: fc2
        y = ops.reduce_sum(x * self.stop("item", item), -1)  # stage: dot
        return y / WIDTH**0.5 if self.scale else y  # stage: scale


NETWORKS = {"mlp": Mlp, "cnn": Cnn, "resnet": Resnet, "block": Block, "gru": Gru, "lm": Lm, "tower": Tower}


class Loss(nn.Cell):  # type: ignore[misc]
    def __init__(self, network: str, net: Any, s: Settings) -> None:
        super().__init__()
        self.net = net
        self.last = network in ("block", "tower")
        if network == "block":
            self.loss = nn.MSELoss(s.reduction)
        elif network == "tower":
            self.loss = nn.BCEWithLogitsLoss(s.reduction)
        else:
            self.loss = nn.CrossEntropyLoss(reduction=s.reduction)

    def construct(self, labels: Any, *inputs: Any) -> Any:
        y = self.net(*inputs)  # stage: call
        return self.loss(y, labels)  # stage: loss


class Step(nn.Cell):  # type: ignore[misc]
    def __init__(self, whole: Any, s: Settings) -> None:
        super().__init__()
        self.whole = whole
        wanted = [p for p in whole.trainable_params() if short(p.name) != s.frozen]
        self.of = ParameterTuple(wanted)
        self.gradient = ops.value_and_grad(whole, None, self.of)
        self.optimizer = nn.Momentum(self.of, s.learning_rate, s.momentum, s.weight_decay, use_nesterov=s.nesterov)

    def construct(self, *inputs: Any) -> Any:
        loss, gradients = self.gradient(*inputs)  # stage: call
        self.optimizer(gradients)  # stage: update
        return loss


def short(name: str) -> str:
    """Return the name of a parameter as the other frameworks have it."""
    name = name.split("net.", 1)[-1].replace(".gamma", ".w").replace(".beta", ".b")
    name = name.replace(".weight", ".w").replace(".bias", ".b")
    return {"gain": "norm.w"}.get(name, name if "." in name else f"{name}.w")


def batch(network: str, step: int, s: Settings) -> list[Any]:
    """Return the labels and inputs of a step."""
    arrays = data(network, step)
    x = arrays["x"]
    if network == "lm":
        labels = np.ascontiguousarray(x[:, s.label_shift : s.label_shift + LENGTH]).reshape(-1)
        return [Tensor(labels), Tensor(np.ascontiguousarray(x[:, :LENGTH]))]
    return [Tensor(arrays["y"]), Tensor(x), *([Tensor(arrays["dense"])] if network == "tower" else [])]


def main(network: str, settings: str, directory: str, results: str) -> None:
    """Train a network, and save the losses and parameters."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    s = Settings(**json.loads(settings))
    net = Step(Loss(network, NETWORKS[network](s), s), s)
    net.set_train(s.training)

    with ascend_dump.capture(net, path=directory, steps="0-2", quiet=True):
        losses = [float(net(*batch(network, step, s)).asnumpy()) for step in range(STEPS)]
    found = {short(p.name): p.asnumpy() for p in net.whole.trainable_params()}
    np.savez(results, losses=losses, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
