"""ConvNeXt of timm with smoothed labels, and a port with channels last: windows and patches by reshaping."""

from __future__ import annotations

import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.models.convnext import ConvNeXt
from torch import Tensor, nn
from torch.nn import functional

from port_programs.program import (
    Network,
    Program,
    Truth,
    generator,
    normal,
    parameter_of,
    shaken,
    train_clearing_first,
    train_clearing_last,
)


def _source() -> nn.Module:
    model = ConvNeXt(depths=(1, 1, 2, 1), dims=(8, 8, 12, 16), num_classes=5, ls_init_value=0.5, head_init_scale=20.0)
    for name, parameter in model.named_parameters():
        if name.endswith("fc1.weight"):
            parameter.data *= 30
    return shaken(model).train()


def _data() -> tuple[Tensor, Tensor]:
    drawn = generator()
    return normal(drawn, 2, 3, 64, 64), torch.randint(0, 5, (2,), generator=drawn)


def reference() -> Program:
    model = _source()
    images, labels = _data()
    criterion = LabelSmoothingCrossEntropy(0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Program(model, train_clearing_first(optimizer, lambda: criterion(model(images), labels)))


class Patches(nn.Module):
    """A convolution without overlap: one product of each patch."""

    def __init__(self, source: nn.Module, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.size = source.kernel_size[0]
        self.matrix = parameter_of(source.weight.permute(2, 3, 1, 0).flatten(0, 2))
        self.bias = parameter_of(source.bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        size = self.size
        x = x.reshape(batch, height // size, size, width // size, size, channels)
        if self.fault == "patch":
            x = x.permute(0, 1, 3, 4, 2, 5)  # planted: nhwc_convnext_patch
        else:
            x = x.permute(0, 1, 3, 2, 4, 5)
        return x.flatten(3) @ self.matrix + self.bias  # place: nhwc_convnext_patch


class Block(nn.Module):
    """Depthwise windows of seven, and two products."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.window = parameter_of(source.conv_dw.weight[:, 0])
        self.window_bias = parameter_of(source.conv_dw.bias)
        self.norm, self.enter, self.leave = source.norm, source.mlp.fc1, source.mlp.fc2
        self.gains = parameter_of(source.gamma)

    def forward(self, x: Tensor) -> Tensor:
        padded = functional.pad(x, (0, 0, 3, 3, 3, 3))
        windows = padded.unfold(1, 7, 1).unfold(2, 7, 1)
        y = torch.einsum("bhwcij,cij->bhwc", windows, self.window) + self.window_bias
        y = self.enter(self.norm(y))
        y = functional.gelu(y, approximate="tanh" if self.fault == "gelu" else "none")  # planted: nhwc_convnext_gelu
        y = self.leave(y)
        if self.fault == "gains":
            return x + y  # planted: nhwc_convnext_gains
        return x + y * self.gains


class Port(nn.Sequential):
    """The port, as a sequence; it returns logits."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        steps: list[nn.Module] = [Patches(source.stem[0]), self._norm(source.stem[1])]
        for index, stage in enumerate(source.stages):
            if isinstance(stage.downsample, nn.Sequential):
                norm, convolution = stage.downsample
                steps += [self._norm(norm), Patches(convolution, fault if index == 1 else "")]
            steps += [Block(block, fault if index == 2 and block is stage.blocks[1] else "") for block in stage.blocks]
        super().__init__(*steps, Head(source.head, fault))

    @staticmethod
    def _norm(source: nn.Module) -> nn.Module:
        norm = nn.LayerNorm(len(source.weight), eps=source.eps)
        norm.load_state_dict(source.state_dict())
        return norm


class Head(nn.Module):
    """Mean of all pixels, norm, and classes."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.norm, self.classes = Port._norm(source.norm), source.fc

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "head":
            return self.classes(self.norm(x).mean((1, 2)))  # planted: nhwc_convnext_head
        return self.classes(self.norm(x.mean((1, 2))))


def port(fault: str) -> Program:
    model = Port(_source(), fault)
    images, labels = _data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    smoothing = 0.0 if fault == "smoothing" else 0.1

    def loss_of() -> Tensor:
        logits = model(images.permute(0, 2, 3, 1))
        return functional.cross_entropy(logits, labels, label_smoothing=smoothing)  # planted: nhwc_convnext_smoothing

    return Program(model, train_clearing_last(optimizer, loss_of))


_BLOCK = r"stages\.2\.blocks\.1"
NETWORK = Network(
    "nhwc_convnext",
    reference,
    port,
    {
        "patch": Truth(
            modules=("4", r"stages\.1\.downsample\.1"), within=("4", r"stages\.1\.downsample(\.1)?"), readers=("4",)
        ),
        "gelu": Truth(
            modules=(_BLOCK + r"\.mlp(\.act)?",),
            within=("9", _BLOCK + r".*"),
            readers=(r"9\.leave", _BLOCK + r"\.mlp\.fc2"),
        ),
        "gains": Truth(
            operators=(_BLOCK + r":aten::(mul|add)_?",),
            within=("9", _BLOCK),
            readers=("9", _BLOCK, r"stages\.2\.blocks"),
        ),
        "head": Truth(
            modules=(r"\d+\.norm", r"head\.global_pool(\.pool)?", r"head\.norm"),
            readers=(r"\d+\.classes", r"head\.fc"),
        ),
        "smoothing": Truth(operators=(r":aten::(add|mul|mean|neg|_?log_softmax|gather|squeeze)",), visible=False),
    },
)
