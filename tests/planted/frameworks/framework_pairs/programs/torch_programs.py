"""The networks in PyTorch. The comments `stage:` name the parts of a network as the other frameworks name them."""

from __future__ import annotations

import contextlib
import tempfile
from importlib import import_module
from typing import Any

import numpy as np
import torch
from framework_pairs.programs.shared import CLASSES, HEADS, LENGTH, STEPS, TOKENS, WIDTH, Settings, data, mask
from torch import Tensor, nn
from torch.nn import functional

import ascend_dump
from ascend_dump import fakes


class Network(nn.Module):
    """Base of the networks: layers with the weights of their names."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.s = settings

    def _set(self, layer: nn.Module, **arrays: np.ndarray) -> Any:
        with torch.no_grad():
            for name, value in arrays.items():
                getattr(layer, name).copy_(torch.from_numpy(value))
        return layer

    def linear(self, name: str, inputs: int, outputs: int, bias: bool = True) -> Any:
        bias = bias and self.s.without_bias != name
        arrays = {"weight": self.s.array(f"{name}.w", outputs, inputs)}
        if bias:
            arrays["bias"] = self.s.array(f"{name}.b", outputs, scale=0.3)
        return self._set(nn.Linear(inputs, outputs, bias=bias), **arrays)

    def conv(self, name: str, inputs: int, outputs: int, size: int = 3, **options: Any) -> Any:
        layer = nn.Conv2d(inputs, outputs, size, bias=False, **options)
        return self._set(layer, weight=self.s.array(f"{name}.w", outputs, inputs, size, size))

    def affine(self, name: str, width: int) -> dict[str, np.ndarray]:
        return {
            "weight": self.s.array(f"{name}.w", width, scale=0.2, offset=1),
            "bias": self.s.array(f"{name}.b", width, scale=0.2),
        }

    def batch_norm(self, name: str, width: int) -> Any:
        return self._set(nn.BatchNorm2d(width, eps=self.s.eps_at(name, 1e-3)), **self.affine(name, width))

    def layer_norm(self, name: str) -> Any:
        return self._set(nn.LayerNorm(WIDTH, eps=self.s.eps_at(name, 1e-5)), **self.affine(name, WIDTH))

    def embedding(self, name: str, count: int) -> Any:
        return self._set(nn.Embedding(count, WIDTH), weight=self.s.array(f"{name}.w", count, WIDTH, scale=0.5))

    def stop(self, stage: str, x: Tensor) -> Tensor:
        return x.detach() if self.s.detached == stage else x

    def activation(self, x: Tensor) -> Tensor:
        if self.s.activation == "relu":
            return functional.relu(x)  # stage: act
        return functional.gelu(x, approximate="tanh" if self.s.activation == "gelu_tanh" else "none")  # stage: act


class Mlp(Network):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.fc1 = self.linear("fc1", 12, WIDTH)
        self.fc2 = self.linear("fc2", WIDTH, WIDTH)
        self.fc3 = self.linear("fc3", WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)  # stage: fc1
        x = self.stop("act", self.activation(x))  # stage: act
        x = functional.relu(self.fc2(x))  # stage: fc2
        return self.fc3(x)  # stage: fc3


class Cnn(Network):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.conv1, self.bn1 = self.conv("conv1", 3, 4, padding=1), self.batch_norm("bn1", 4)
        self.conv2, self.bn2 = self.conv("conv2", 4, 6, stride=2, padding=0), self.batch_norm("bn2", 6)
        self.head = self.linear("head", 24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)  # stage: conv1
        x = functional.relu(self.bn1(x))  # stage: bn1
        x = functional.max_pool2d(x, 2) if self.s.pool == "max" else functional.avg_pool2d(x, 2)  # stage: pool
        x = functional.pad(x, (1, 1, 1, 1) if self.s.symmetric_padding else (0, 1, 0, 1))  # stage: conv2
        x = self.conv2(x)  # stage: conv2
        x = self.stop("bn2", functional.relu(self.bn2(x)))  # stage: bn2
        if self.s.flat_order == "hwc":
            x = x.permute(0, 2, 3, 1)  # stage: flat
        return self.head(x.flatten(1))  # stage: head


class Resnet(Network):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.conv1, self.bn1 = self.conv("conv1", 3, 8, padding=1), self.batch_norm("bn1", 8)
        self.conv2, self.bn2 = self.conv("conv2", 8, 8, padding=1), self.batch_norm("bn2", 8)
        self.conv3, self.bn3 = self.conv("conv3", 8, 8, padding=1), self.batch_norm("bn3", 8)
        self.down, self.bn4 = self.conv("down", 8, 12, 1, stride=2), self.batch_norm("bn4", 12)
        self.head = self.linear("head", 12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)  # stage: conv1
        x = functional.relu(self.bn1(x))  # stage: bn1
        y = self.conv2(x)  # stage: conv2
        y = functional.relu(self.bn2(y))  # stage: bn2
        y = self.conv3(y)  # stage: conv3
        y = self.bn3(y)  # stage: bn3
        if self.s.shortcut:
            y = y + self.stop("add", x)  # stage: add
        if self.s.last_relu:
            y = functional.relu(y)  # stage: relu
        y = self.down(y)  # stage: down
        y = functional.relu(self.bn4(y))  # stage: bn4
        y = y.mean((2, 3)) if self.s.pool == "max" else y.amax((2, 3))  # stage: pool
        return self.head(y)  # stage: head


class Block(Network):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.norm1, self.norm2 = self.layer_norm("norm1"), self.layer_norm("norm2")
        self.q, self.k = self.linear("q", WIDTH, WIDTH), self.linear("k", WIDTH, WIDTH)
        self.v, self.o = self.linear("v", WIDTH, WIDTH), self.linear("o", WIDTH, WIDTH)
        self.up, self.down = self.linear("up", WIDTH, 32), self.linear("down", 32, WIDTH)
        self.register_buffer("mask", torch.from_numpy(mask(settings)))

    def heads(self, x: Tensor) -> Tensor:
        return x.view(2, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)  # stage: norm1
        q = self.heads(self.q(y))  # stage: q
        k = self.heads(self.k(y))  # stage: k
        v = self.heads(self.v(y))  # stage: v
        q, k = (k, q) if self.s.swapped else (q, k)
        scores = q @ k.transpose(-1, -2)  # stage: scores
        if self.s.scale:
            scores = scores / (WIDTH // HEADS) ** 0.5  # stage: scale
        scores = scores + self.mask  # stage: mask
        p = self.stop("softmax", torch.softmax(scores, self.s.axis))  # stage: softmax
        y = p @ v  # stage: mix
        y = (y.transpose(1, 2) if self.s.merged_heads else y).reshape(2, LENGTH, WIDTH)  # stage: merge
        y = self.o(y)  # stage: o
        x = y if self.s.residual == "add1" else x + y  # stage: add1
        y = self.norm2(x)  # stage: norm2
        y = self.up(y)  # stage: up
        y = self.activation(y)  # stage: act
        y = self.down(y)  # stage: down
        return y if self.s.residual == "add2" else x + y  # stage: add2


class Gru(Network):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.x = self.linear("x", 8, 3 * WIDTH)
        self.h = self.linear("h", WIDTH, 3 * WIDTH)
        self.head = self.linear("head", WIDTH, CLASSES)

    def candidate(self, reset: Tensor, hidden: Tensor, state: Tensor) -> Tensor:
        if self.s.reset_after:
            return reset * hidden  # stage: candidate
        weight, bias = self.h.weight[2 * WIDTH :], self.h.bias[2 * WIDTH :]  # stage: candidate
        return functional.linear(reset * state, weight, bias)  # stage: candidate

    def forward(self, x: Tensor) -> Tensor:
        h, states = torch.zeros(3, WIDTH), []
        for step in range(4):
            xr, xz, xn = self.x(x[:, step]).chunk(3, 1)  # stage: x
            hr, hz, hn = self.h(self.stop("state", h)).chunk(3, 1)  # stage: h
            r = torch.sigmoid(xr + hr)  # stage: reset
            z = torch.sigmoid(xz + hz)  # stage: update_gate
            n = torch.tanh(xn + self.candidate(r, hn, h))  # stage: candidate
            h = z * n + (1 - z) * h if self.s.update_swapped else (1 - z) * n + z * h  # stage: state
            states.append(h)
        return self.head(states[self.s.last_state])  # stage: head


class Lm(Network):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.table, self.positions = self.embedding("table", TOKENS), self.embedding("positions", LENGTH + 2)
        self.gain = nn.Parameter(torch.from_numpy(settings.array("norm.w", WIDTH, scale=0.2, offset=1)))
        self.gate, self.up = self.linear("gate", WIDTH, 24, False), self.linear("up", WIDTH, 24, False)
        self.down = self.linear("down", 24, WIDTH, False)

    def norm(self, x: Tensor) -> Tensor:
        spread = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.s.eps_at("norm", 1e-6))  # stage: norm
        return x * spread * self.gain  # stage: norm

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)  # stage: table
        if self.s.embedding_scale:
            x = x * WIDTH**0.5  # stage: embedding_scale
        order = torch.arange(LENGTH) + self.s.position_offset  # stage: positions
        x = x + self.positions(order)  # stage: positions
        y = self.norm(x)  # stage: norm
        gate = self.gate(y)  # stage: gate
        up = self.up(y)  # stage: up
        gate, up = (up, gate) if self.s.swapped else (gate, up)
        y = functional.gelu(gate) if self.s.activation == "gelu_tanh" else functional.silu(gate)  # stage: act
        y = self.stop("product", y * up)  # stage: product
        y = self.down(y)  # stage: down
        x = y if self.s.residual == "add1" else x + y  # stage: add1
        return functional.linear(x, self.stop("logits", self.table.weight))  # stage: logits


class Tower(Network):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.user, self.item = self.embedding("user", 22), self.embedding("item", 22)
        self.fc1 = self.linear("fc1", WIDTH + 4, WIDTH)
        self.fc2 = self.linear("fc2", WIDTH, WIDTH)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        user = self.user(ids[:, 0] + self.s.ids_offset)  # stage: user
        item = self.item(ids[:, 1])  # stage: item
        parts = (dense, user) if self.s.swapped else (user, dense)
        x = torch.cat(parts, 1)  # stage: join
        x = functional.relu(self.fc1(x))  # stage: fc1
        x = self.fc2(x)  # stage: fc2
        y = (x * self.stop("item", item)).sum(-1)  # stage: dot
        return y / WIDTH**0.5 if self.s.scale else y  # stage: scale


NETWORKS = {"mlp": Mlp, "cnn": Cnn, "resnet": Resnet, "block": Block, "gru": Gru, "lm": Lm, "tower": Tower}


def inputs_of(network: str, arrays: dict[str, Any]) -> tuple[Tensor, ...]:
    """Return what the network is called with."""
    x = torch.from_numpy(arrays["x"])
    if network == "lm":
        return (x[:, :LENGTH].long(),)
    return (x.long(), torch.from_numpy(arrays["dense"])) if network == "tower" else (x,)


def loss_of(network: str, y: Tensor, arrays: dict[str, Any], settings: Settings) -> Tensor:
    """Return the loss of a batch."""
    if network == "block":
        return functional.mse_loss(y, torch.from_numpy(arrays["y"]), reduction=settings.reduction)  # stage: loss
    if network == "tower":
        labels = torch.from_numpy(arrays["y"])
        return functional.binary_cross_entropy_with_logits(y, labels, reduction=settings.reduction)  # stage: loss
    labels = torch.from_numpy(arrays["x" if network == "lm" else "y"]).long()
    if network == "lm":
        labels = labels[:, settings.label_shift : settings.label_shift + LENGTH].reshape(-1)  # stage: loss
        y = y.reshape(-1, TOKENS)
    return functional.cross_entropy(y, labels, reduction=settings.reduction)  # stage: loss


class Program:
    """Three steps of training by SGD."""

    def __init__(self, network: str, settings: Settings) -> None:
        self.network, self.settings = network, settings
        self.model = NETWORKS[network](settings)
        self.model.train(settings.training)
        trained = [value for name, value in self.model.named_parameters() if short(name) != settings.frozen]
        self.optimizer = torch.optim.SGD(
            trained,
            lr=settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            nesterov=settings.nesterov,
        )
        self.run = self.model

    def step(self, number: int) -> Tensor:
        """Run one step, and return its loss."""
        arrays = data(self.network, number)
        if not self.settings.keeps_gradients:
            self.optimizer.zero_grad()
        y = self.run(*inputs_of(self.network, arrays))  # stage: call
        loss = loss_of(self.network, y, arrays, self.settings)
        loss.backward()
        self.optimizer.step()  # stage: update
        return loss

    def results(self, path: str) -> dict[str, np.ndarray]:
        """Run and dump all steps; return the losses and the parameters after them."""
        with ascend_dump.capture(self.model, path=path, steps="0-2", quiet=True):
            losses = [float(self.step(number).detach()) for number in range(STEPS)]
        named = {short(name): value.detach().numpy() for name, value in self.model.named_parameters()}
        return {"losses": np.array(losses, "f8"), **named}


def forward_results(network: str, settings: Settings, path: str, *, compiled: bool) -> dict[str, np.ndarray]:
    """Evaluate a network once, eagerly or by torchair on the simulated NPU; return its output."""
    model = NETWORKS[network](settings).eval()
    inputs = inputs_of(network, data(network, 0))
    with torch.no_grad(), contextlib.ExitStack() as stack:
        target, run = model, model
        if compiled:
            stack.enter_context(fakes.install("torchair", environ={}))
            # torchair writes graphs into the working directory.
            stack.enter_context(contextlib.chdir(stack.enter_context(tempfile.TemporaryDirectory())))
            torchair: Any = import_module("torchair")
            target = torchair.CompilerConfig()
            run = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=target))
        with ascend_dump.capture(target, path=path, steps="0", quiet=True):
            output = run(*inputs)
    torch._dynamo.reset()
    return {"output": output.numpy()}


def short(name: str) -> str:
    """Return the name of a parameter as the other frameworks have it."""
    return {"gain": "norm.w"}.get(name, name.replace(".weight", ".w").replace(".bias", ".b"))
