"""Dumps of `same_networks` in MindSpore on the host. Usage: same_networks_dumps.py NETWORK DIRECTORY [gradients]

With `gradients`, those of all weights by the sum of the squares of what the network gives. One network per process,
since MindSpore reads the configuration of a dump once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "helpers"))

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from same_networks import HEADS, inputs, weights

import ascend_dump


def dense(of: dict[str, Any], name: str) -> Any:
    outputs, width = of[f"{name}.w"].shape
    return nn.Dense(width, outputs, weight_init=Tensor(of[f"{name}.w"]), bias_init=Tensor(of[f"{name}.b"]))


class Mlp(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    def __init__(self, of: dict[str, Any]) -> None:
        super().__init__()
        self.up, self.down = dense(of, "up"), dense(of, "down")
        self.relu = nn.ReLU()

    def construct(self, x: Any) -> Any:
        return self.down(self.relu(self.up(x)))


class Conv(nn.Cell):  # type: ignore[misc]
    def __init__(self, of: dict[str, Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, pad_mode="same", weight_init=Tensor(of["kernel"]))
        tensors = {
            "gamma_init": of["gamma"],
            "beta_init": of["beta"],
            "moving_mean_init": of["mean"],
            "moving_var_init": of["variance"],
        }
        self.norm = nn.BatchNorm2d(4, eps=1e-3, **{name: Tensor(value) for name, value in tensors.items()})
        self.relu = nn.ReLU()
        self.head = dense(of, "head")

    def construct(self, x: Any) -> Any:
        return self.head(ops.mean(self.relu(self.norm(self.conv(x))), (2, 3)))


class Transformer(nn.Cell):  # type: ignore[misc]
    def __init__(self, of: dict[str, Any]) -> None:
        super().__init__()
        for name in ("q", "k", "v", "o", "up", "down"):
            setattr(self, name, dense(of, name))
        for name in ("norm1", "norm2"):
            norm = nn.LayerNorm((8,), epsilon=1e-5)
            norm.gamma, norm.beta = (
                Parameter(Tensor(of[f"{name}.{one}"]), name=f"{name}.{long}") for one, long in (("w", "g"), ("b", "b"))
            )
            setattr(self, name, norm)
        self.gelu = nn.GELU(approximate=False)
        self.softmax = nn.Softmax(-1)

    def heads(self, x: Any) -> Any:
        return ops.transpose(ops.reshape(x, (2, 4, HEADS, 4)), (0, 2, 1, 3))

    def construct(self, x: Any) -> Any:
        y = self.norm1(x)
        q, k, v = self.heads(self.q(y)), self.heads(self.k(y)), self.heads(self.v(y))
        scores = ops.BatchMatMul(transpose_b=True)(q, k) * 0.5
        mixed = ops.BatchMatMul()(self.softmax(scores), v)
        x = x + self.o(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (2, 4, 8)))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class Gradients(nn.Cell):  # type: ignore[misc]
    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        self.of = ParameterTuple(net.trainable_params())
        self.gradient = ops.value_and_grad(net, None, self.of)

    def construct(self, x: Any) -> Any:
        return self.gradient(x)


class SumOfSquares(nn.Cell):  # type: ignore[misc]
    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def construct(self, x: Any) -> Any:
        y = self.net(x)
        return ops.reduce_sum(y * y)


def main(network: str, directory: str, gradients: str = "") -> None:
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    net: Any = {"mlp": Mlp, "conv": Conv, "transformer": Transformer}[network](weights(network))
    if gradients:
        net = Gradients(SumOfSquares(net))
    net.set_train(bool(gradients))
    with ascend_dump.capture(net, path=directory, steps="0"):
        net(Tensor(inputs(network)))


if __name__ == "__main__":
    main(*sys.argv[1:])
