"""ResNeXt of timm, and a port with grouped convolutions as loops over groups, and batch norm by hand."""

from __future__ import annotations

import torch
from timm.models.resnet import Bottleneck, ResNet
from torch import Tensor, nn
from torch.nn import functional

from port_programs.program import Network, Program, Truth, generator, parameter_of, train_clearing_first


def _source() -> nn.Module:
    return ResNet(
        Bottleneck,
        (1, 1, 1, 1),
        num_classes=6,
        stem_width=8,
        cardinality=4,
        base_width=8,
        channels=(8, 16, 16, 16),
        zero_init_last=False,
    )


def _program(model: nn.Module) -> Program:
    drawn = generator()
    images = torch.randn(4, 3, 32, 32, generator=drawn, dtype=torch.float32).to(torch.get_default_dtype())
    labels = torch.randint(0, 6, (4,), generator=drawn)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)

    def loss_of() -> Tensor:
        return functional.cross_entropy(model(images), labels, label_smoothing=0.1)

    def evaluate() -> float:
        return model.eval()(images).abs().sum().item()

    return Program(model, train_clearing_first(optimizer, loss_of), evaluate)


class BatchNorm(nn.Module):
    """Batch norm by hand."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.gain, self.shift = parameter_of(source.weight), parameter_of(source.bias)
        self.register_buffer("mean", source.running_mean.clone())
        self.register_buffer("variance", source.running_var.clone())

    def _affine(self, x: Tensor) -> Tensor:
        return x * self.gain[:, None, None] + self.shift[:, None, None]

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            deviation = torch.sqrt(self.variance[:, None, None] + 1e-5)
            return self._affine((x - self.mean[:, None, None]) / deviation)
        mean = x.mean((0, 2, 3), keepdim=True)
        variance = (x - mean).square().mean((0, 2, 3), keepdim=True)
        count = x.numel() / x.shape[1]
        with torch.no_grad():
            self.mean.mul_(0.9).add_(mean.flatten(), alpha=0.1)
            correction = 1 if self.fault == "unbiased" else count / (count - 1)
            self.variance.mul_(0.9).add_(variance.flatten() * correction, alpha=0.1)  # planted: resnext_unbiased
        eps = 1e-3 if self.fault == "eps" else 1e-5
        return self._affine((x - mean) / torch.sqrt(variance + eps))  # planted: resnext_eps


class Groups(nn.Module):
    """A grouped convolution as one convolution a group."""

    def __init__(self, source: nn.Conv2d) -> None:
        super().__init__()
        self.kernels = nn.ParameterList(kernel.detach().clone() for kernel in source.weight.chunk(source.groups))
        self.stride = source.stride

    def forward(self, x: Tensor) -> Tensor:
        parts = zip(x.chunk(len(self.kernels), 1), self.kernels)
        return torch.cat([functional.conv2d(part, kernel, stride=self.stride, padding=1) for part, kernel in parts], 1)


class Block(nn.Module):
    """One bottleneck."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.enter, self.groups, self.leave = source.conv1, Groups(source.conv2), source.conv3
        self.norm1, self.norm2, self.norm3 = (
            BatchNorm(source.bn1, fault),
            BatchNorm(source.bn2, ""),
            BatchNorm(source.bn3, ""),
        )
        self.shortcut = nn.ModuleList()
        if source.downsample is not None:
            self.shortcut.extend([source.downsample[0], BatchNorm(source.downsample[1], "")])

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm1(self.enter(x)).clamp(min=0)
        inner = self.norm2(self.groups(inner)).clamp(min=0)
        inner = self.norm3(self.leave(inner))
        for layer in self.shortcut:
            x = layer(x)
        if self.fault == "resid":
            return inner.clamp(min=0) + x  # planted: resnext_resid
        return (inner + x).clamp(min=0)


class Port(nn.Module):
    """The port; it returns logits."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.stem, self.norm = source.conv1, BatchNorm(source.bn1, "")
        stages = (source.layer1, source.layer2, source.layer3, source.layer4)
        self.blocks = nn.ModuleList(Block(stage[0], fault if stage is stages[2] else "") for stage in stages)
        self.classes = source.fc

    def forward(self, images: Tensor) -> Tensor:
        x = functional.max_pool2d(self.norm(self.stem(images)).clamp(min=0), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.classes(x.mean((2, 3)))


def reference() -> Program:
    return _program(_source())


def port(fault: str) -> Program:
    return _program(Port(_source(), fault))


_NORM = (r"blocks\.2\.norm1", r"layer3\.0\.bn1")
NETWORK = Network(
    "resnext",
    reference,
    port,
    {
        "eps": Truth(modules=_NORM, within=_NORM),
        "resid": Truth(
            modules=(r"layer3\.0\.act3",),
            operators=(r"layer3\.0:aten::add_?",),
            readers=(r"blocks\.2", r"layer3\.0"),
        ),
        "unbiased": Truth(modules=_NORM, within=_NORM, visible=False),
    },
)
