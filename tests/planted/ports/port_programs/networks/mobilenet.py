"""MobileNetV3 of torchvision, and a port as one table of steps that functions run."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3

from port_programs.program import Network, Program, Truth, generator, normal, shaken

#: Channels, kernel, expanded channels, channels after it, squeezed or not, activation, stride.
_TABLE = (
    (8, 3, 8, 8, True, "RE", 2),
    (8, 5, 24, 16, True, "HS", 2),
    (16, 3, 32, 16, False, "HS", 1),
)


def _source() -> nn.Module:
    rows = [InvertedResidualConfig(*row, 1, 1.0) for row in _TABLE]
    return shaken(MobileNetV3(rows, 32, num_classes=5, dropout=0.0)).train()


def _data() -> tuple[Tensor, Tensor]:
    drawn = generator()
    return normal(drawn, 4, 3, 32, 32), torch.randint(0, 5, (4,), generator=drawn)


def _program(model: nn.Module, split: tuple[list[nn.Parameter], list[nn.Parameter]]) -> Program:
    images, labels = _data()
    groups = [{"params": split[0], "weight_decay": 0.01}, {"params": split[1], "weight_decay": 0.0}]
    optimizer = torch.optim.RMSprop(groups, lr=1e-3, alpha=0.9, eps=0.0316, momentum=0.9)

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()  # place: mobilenet_decay
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def evaluate() -> float:
        return model.eval()(images).abs().sum().item()

    return Program(model, train, evaluate)


def reference() -> Program:
    model = _source()
    parameters = list(model.parameters())
    return _program(model, ([p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim == 1]))


class Unit(nn.Module):
    """A convolution and a batch norm, as tensors."""

    def __init__(self, source: nn.Sequential, momentum: float) -> None:
        super().__init__()
        convolution, norm = source[0], source[1]
        self.kernel, self.groups, self.stride = convolution.weight, convolution.groups, convolution.stride[0]
        self.gain, self.shift = norm.weight, norm.bias
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros_like(self.gain))
        self.register_buffer("variance", torch.ones_like(self.gain))


def _hard_sigmoid(x: Tensor) -> Tensor:
    return (x / 6 + 0.5).clamp(0, 1)


def _run(unit: Unit, x: Tensor, fault: str) -> Tensor:
    size = unit.kernel.shape[-1]
    if fault == "same" and unit.stride == 2:
        small, large = (size - 2) // 2, (size - 1) // 2
        padded = functional.pad(x, (small, large, small, large))  # planted: mobilenet_same
        x = functional.conv2d(padded, unit.kernel, None, 2, 0, 1, unit.groups)  # planted: mobilenet_same
    else:
        x = functional.conv2d(x, unit.kernel, None, unit.stride, size // 2, 1, unit.groups)
    return functional.batch_norm(
        x, unit.mean, unit.variance, unit.gain, unit.shift, unit.training, unit.momentum, 1e-3
    )  # planted: mobilenet_momentum


class Squeeze(nn.Module):
    """Weights of channels by two products."""

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.down, self.down_bias = source.fc1.weight, source.fc1.bias
        self.up, self.up_bias = source.fc2.weight, source.fc2.bias

    def forward(self, x: Tensor, fault: str) -> Tensor:
        pooled = functional.linear(x.mean((2, 3)), self.down.flatten(1), self.down_bias).relu()
        weights = functional.linear(pooled, self.up.flatten(1), self.up_bias)
        weights = torch.sigmoid(weights) if fault == "sigmoid" else _hard_sigmoid(weights)  # planted: mobilenet_sigmoid
        return x * weights[..., None, None]  # place: mobilenet_sigmoid


class Port(nn.Module):
    """The port; it returns logits."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        momentum = 0.1 if fault == "momentum" else 0.01
        features = list(source.features)
        self.first, self.last = Unit(features[0], momentum), Unit(features[-1], momentum)
        self.rows = nn.ModuleList()
        for feature in features[1:-1]:
            parts = [
                Squeeze(part) if hasattr(part, "scale_activation") else Unit(part, momentum) for part in feature.block
            ]
            self.rows.append(nn.ModuleList(parts))
        self.dense, self.classes = source.classifier[0], source.classifier[3]

    def forward(self, x: Tensor) -> Tensor:
        x = _run(self.first, x, "")
        x = x * _hard_sigmoid(x)
        for index, (row, settings) in enumerate(zip(self.rows, _TABLE)):
            fault = self.fault if index == 1 else ""
            y = x
            for part in row[:-1]:
                if isinstance(part, Squeeze):
                    y = part(y, fault)
                    continue
                y = _run(part, y, fault)
                y = y.relu() if settings[5] == "RE" else y * _hard_sigmoid(y)
            y = _run(row[-1], y, "")
            x = x + y if settings[6] == 1 and settings[0] == settings[3] else y
        x = _run(self.last, x, "")
        x = self.dense((x * _hard_sigmoid(x)).mean((2, 3)))
        return self.classes(x * _hard_sigmoid(x))


def port(fault: str) -> Program:
    model = Port(_source(), fault)
    decayed, kept = [], []
    for name, parameter in model.named_parameters():
        is_bias = "bias" in name or name.endswith("shift")
        is_gain = name.endswith("gain") and fault != "decay"  # the gains of norms are vectors too
        (kept if is_bias or is_gain else decayed).append(parameter)
    return _program(model, (decayed, kept))


_ROW = r"features\.2\.block"
NETWORK = Network(
    "mobilenet",
    reference,
    port,
    {
        "sigmoid": Truth(
            modules=(_ROW + r"\.2\.scale_activation",),
            operators=(_ROW + r"\.2:aten::mul_?",),
            readers=(r"rows\.1\.2", _ROW + r"\.2"),
        ),
        "same": Truth(modules=(_ROW + r"\.1\.0",), readers=("", r"rows\.1\.2", _ROW + r"\.1\.1")),
        "momentum": Truth(modules=(r"features\..*\.1",), visible=False),
        "decay": Truth(parameters=(r".*\.gain(\.grad)?", r".*features\..*\.1\.weight(\.grad)?"), visible=False),
    },
)
