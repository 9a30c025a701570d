"""`same_networks` in PyTorch, and faults that can be planted in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from same_networks import HEADS, inputs, weights
from torch.nn import functional

import ascend_dump

__all__ = ["FAULTS", "GRADIENT_FAULTS", "Fault", "Network", "Planted", "computing", "dump", "dump_gradients"]

_VIEWS = frozenset(("t", "transpose", "view", "expand", "_unsafe_view", "clone", "empty", "lift_fresh", "detach"))

#: Changes the weights, and the functions that are called.
Fault = Callable[[dict[str, Any], dict[str, Any]], None]


class Network:
    """The networks in PyTorch. A fault changes weights, or the functions that are called.

    approximate: that of GELU. training: the batch norm takes the statistics of its batch.
    """

    def __init__(
        self, network: str, fault: Optional[Fault] = None, approximate: str = "none", *, training: bool = False
    ) -> None:
        self.network = network
        self.of: dict[str, Any] = {
            name: torch.nn.Parameter(torch.from_numpy(value)) for name, value in weights(network).items()
        }
        self.functions: dict[str, Any] = {
            "gelu": lambda x: functional.gelu(x, approximate=approximate),
            "softmax": torch.softmax,
            "layer_norm": lambda x, *affine: functional.layer_norm(x, (8,), *affine, 1e-5),
            "batch_norm": lambda *tensors: functional.batch_norm(*tensors, training=training, eps=1e-3),
            "relu": functional.relu,
        }
        if fault is not None:
            with torch.no_grad():
                fault(self.of, self.functions)

    def dense(self, x: Any, name: str) -> Any:
        return functional.linear(x, self.of[f"{name}.w"], self.of[f"{name}.b"])

    def norm(self, x: Any, name: str) -> Any:
        return self.functions["layer_norm"](x, self.of[f"{name}.w"], self.of[f"{name}.b"])

    def heads(self, x: Any) -> Any:
        return x.view(2, 4, HEADS, 4).transpose(1, 2)

    def __call__(self, x: Any) -> Any:
        of, functions = self.of, self.functions
        if self.network == "mlp":
            return self.dense(functions["relu"](self.dense(x, "up")), "down")
        if self.network == "conv":
            y = functional.conv2d(x, of["kernel"], padding=1)
            y = functions["batch_norm"](y, of["mean"], of["variance"], of["gamma"], of["beta"])
            return self.dense(functions["relu"](y).mean((2, 3)), "head")
        y = self.norm(x, "norm1")
        q, k, v = (self.heads(self.dense(y, name)) for name in ("q", "k", "v"))
        mixed = functions["softmax"](q @ k.transpose(-1, -2) * 0.5, -1) @ v
        x = x + self.dense(mixed.transpose(1, 2).reshape(2, 4, 8), "o")
        return x + self.dense(functions["gelu"](self.dense(self.norm(x, "norm2"), "up")), "down")


def dump(network: str, path: Path, fault: Optional[Fault] = None, approximate: str = "none") -> Path:
    """Run it on the host, and dump its ATen operators."""
    run = Network(network, fault, approximate)
    with torch.no_grad(), ascend_dump.capture(path=path, framework="torch", steps="0"):
        run(torch.from_numpy(inputs(network)))
    return path


def dump_gradients(network: str, path: Path, fault: Optional[Fault] = None) -> Path:
    """Dump it with the gradients of all weights; the loss is the sum of the squares of the outputs."""
    run = Network(network, fault, training=True)
    for name in ("mean", "variance"):
        if name in run.of:
            run.of[name].requires_grad_(False)
    with ascend_dump.capture(path=path, framework="torch", steps="0"):
        y = run(torch.from_numpy(inputs(network)))
        (y * y).sum().backward()
    return path


def computing(path: Path) -> set[str]:
    """The operators of a dump that compute something."""
    made = ascend_dump.open(path).select(io="output")
    return {one.op_name for one in made if one.op_type.rpartition("::")[2].partition(".")[0] not in _VIEWS}


def scaled(name: str, by: float) -> Fault:
    def change(of: dict[str, Any], functions: dict[str, Any]) -> None:
        of[name].mul_(by)

    return change


def replaced(name: str, function: Any) -> Fault:
    def change(of: dict[str, Any], functions: dict[str, Any]) -> None:
        functions[name] = function

    return change


class Planted(NamedTuple):
    """A fault. expected: the operator of PyTorch that is wrong then; replaced: the one in whose place it stands."""

    network: str
    what: str
    fault: Fault
    expected: str
    replaced: str = ""

    @property
    def of_right_one(self) -> str:
        """The operator of a run without the fault."""
        return self.replaced or self.expected


FAULTS = [
    Planted("mlp", "a weight", scaled("up.w", 1.01), "addmm_0"),
    Planted("mlp", "a bias", scaled("down.b", 1.5), "addmm_1"),
    Planted("conv", "a kernel", scaled("kernel", 1.1), "convolution_0"),
    Planted("conv", "a moving mean", scaled("mean", 2), "native_batch_norm_0"),
    Planted(
        "conv",
        "an epsilon",
        replaced("batch_norm", lambda *t: functional.batch_norm(*t, eps=0.1)),
        "native_batch_norm_0",
    ),
    Planted("transformer", "a weight of one branch", scaled("q.w", 1.05), "addmm_0"),
    Planted("transformer", "a bias of one branch", scaled("v.b", 2), "addmm_2"),
    Planted("transformer", "a scale of a norm", scaled("norm1.w", 1.1), "native_layer_norm_0"),
    Planted(
        "transformer",
        "an epsilon of a norm",
        replaced("layer_norm", lambda x, *affine: functional.layer_norm(x, (8,), *affine, 0.1)),
        "native_layer_norm_0",
    ),
    Planted(
        "transformer", "an approximation", replaced("gelu", lambda x: functional.gelu(x, approximate="tanh")), "gelu_0"
    ),
    Planted("transformer", "another activation", replaced("gelu", functional.relu), "relu_0", "gelu_0"),
    Planted("transformer", "a wrong axis", replaced("softmax", lambda x, axis: torch.softmax(x, -2)), "_softmax_0"),
]


def backward(forward: Callable[..., Any], gradient: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one tensor whose gradient is made of that of what it gives, of what it was given and of what it
    gave."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = forward(x)
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradient(gradients[0], *ctx.saved_tensors)

    return lambda x, *ignored: Function.apply(x)


_aten = torch.ops.aten
#: Their forward passes are right.
GRADIENT_FAULTS = [
    Planted(
        "mlp",
        "a threshold",
        replaced("relu", backward(functional.relu, lambda g, x, y: _aten.threshold_backward(g, y, 0.3))),
        "threshold_backward_0",
    ),
    Planted(
        "conv",
        "a threshold after a convolution",
        replaced("relu", backward(functional.relu, lambda g, x, y: _aten.threshold_backward(g, y, 0.3))),
        "threshold_backward_0",
    ),
    Planted(
        "transformer",
        "an approximation",
        replaced("gelu", backward(functional.gelu, lambda g, x, y: _aten.gelu_backward(g, x, approximate="tanh"))),
        "gelu_backward_0",
    ),
    Planted(
        "transformer",
        "a wrong axis",
        replaced(
            "softmax",
            backward(
                lambda x: torch.softmax(x, -1), lambda g, x, y: _aten._softmax_backward_data(g, y, -2, torch.float32)
            ),
        ),
        "_softmax_backward_data_0",
    ),
]
