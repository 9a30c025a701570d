"""SegFormer of transformers, without training, and a port that keeps images as images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import SegformerConfig, SegformerForSemanticSegmentation

from port_programs.program import Network, Program, Truth, generator, infer, normal, parameter_of, shaken


def _source() -> nn.Module:
    config = SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 2],
        sr_ratios=[2, 1],
        hidden_sizes=[16, 24],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[2, 3],
        mlp_ratios=[2, 2],
        decoder_hidden_size=20,
        num_labels=4,
        initializer_range=0.2,
        attn_implementation="eager",
    )
    model = shaken(SegformerForSemanticSegmentation(config))
    drawn = generator()
    norm = model.decode_head.batch_norm
    norm.running_mean.copy_(0.2 * normal(drawn, 20))
    norm.running_var.copy_(1 + 0.3 * normal(drawn, 20).abs())
    return model.eval()


def _requests() -> Tensor:
    return normal(generator(), 3, 2, 3, 32, 48)


def reference() -> Program:
    model, requests = _source(), _requests()

    def output_of(step: int) -> Tensor:
        logits = model(pixel_values=requests[step]).logits
        return functional.interpolate(logits, size=(32, 48), mode="bilinear", align_corners=False)

    return Program(model, infer(output_of))


class ChannelNorm(nn.Module):
    """Norm of the channels of an image, by hand."""

    def __init__(self, source: nn.LayerNorm) -> None:
        super().__init__()
        self.gain, self.shift = (parameter_of(value.view(-1, 1, 1)) for value in (source.weight, source.bias))
        self.eps = source.eps

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.gain + self.shift


def _pointwise(source: nn.Linear) -> nn.Conv2d:
    """Return a linear layer as a convolution."""
    convolution = nn.Conv2d(source.in_features, source.out_features, 1)
    convolution.weight.data.copy_(source.weight[..., None, None])
    convolution.bias.data.copy_(source.bias)
    return convolution


class Looking(nn.Module):
    """Attention of all pixels to a smaller image."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.heads = source.num_attention_heads
        self.query, self.key, self.value, self.out = (
            _pointwise(getattr(source, f"{name}_proj")) for name in ("q", "k", "v", "o")
        )
        self.smaller = nn.Sequential()
        if source.sequence_reduction_ratio > 1:
            reduction = source.sequence_reduction
            self.smaller.extend([reduction.sequence_reduction, ChannelNorm(reduction.layer_norm)])

    def forward(self, x: Tensor) -> Tensor:
        small = x
        if self.fault == "rows" and len(self.smaller):
            small = x.mT.reshape(x.shape)  # planted: segformer_rows
        small = self.smaller(small)  # planted: segformer_rows
        query, key, value = (
            part.unflatten(1, (self.heads, -1)).flatten(3)
            for part in (self.query(x), self.key(small), self.value(small))
        )
        scores = torch.einsum("bhdq,bhdk->bhqk", query, key) / query.shape[2] ** 0.5
        if self.fault == "axis":
            scores = scores.softmax(2)  # planted: segformer_axis
        else:
            scores = scores.softmax(3)
        mixed = torch.einsum("bhqk,bhdk->bhdq", scores, value)  # place: segformer_axis
        return self.out(mixed.reshape(x.shape))


class Layer(nn.Module):
    """Attention, and a depthwise convolution between two products."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.norm1, self.looking = ChannelNorm(source.layernorm_before), Looking(source.attention, fault)
        self.norm2, self.widen = ChannelNorm(source.layernorm_after), _pointwise(source.mlp.fc1)
        self.near, self.narrow = source.mlp.dwconv.dwconv, _pointwise(source.mlp.fc2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.looking(self.norm1(x))
        inner = self.widen(self.norm2(x))
        if self.fault == "edges":
            wide = functional.pad(inner, (1, 1, 1, 1), mode="replicate")  # planted: segformer_edges
            inner = functional.conv2d(
                wide, self.near.weight, self.near.bias, groups=len(inner[0])
            )  # planted: segformer_edges
        else:
            inner = self.near(inner)
        return x + self.narrow(functional.gelu(inner))


class Port(nn.Module):
    """The port; it returns logits of all pixels."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.stages = nn.ModuleList()
        for index, stage in enumerate(source.segformer.stages):
            start = [stage.patch_embeddings.proj, ChannelNorm(stage.patch_embeddings.layer_norm)]
            blocks = stage.blocks
            layers = [Layer(block, fault if index == 0 or block is blocks[1] else "") for block in blocks]
            self.stages.append(nn.Sequential(*start, *layers, ChannelNorm(stage.layer_norm)))
        head = source.decode_head
        self.same_width = nn.ModuleList(_pointwise(projection.proj) for projection in head.linear_projections)
        self.fuse, self.norm, self.classes = head.linear_fuse, head.batch_norm, head.classifier

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[2:]
        levels = []
        for stage, same_width in zip(self.stages, self.same_width):
            x = stage(x)
            levels.append(same_width(x))
        is_aligned = self.fault == "corners"
        upper = functional.interpolate(
            levels[1], size=levels[0].shape[2:], mode="bilinear", align_corners=is_aligned
        )  # planted: segformer_corners
        both = (levels[0], upper) if self.fault == "levels" else (upper, levels[0])
        fused = self.fuse(torch.cat(both, 1))  # planted: segformer_levels
        logits = self.classes(self.norm(fused).clamp(min=0))
        return functional.interpolate(logits, size=size, mode="bilinear")


def port(fault: str) -> Program:
    model, requests = Port(_source(), fault), _requests()
    model.train(fault == "statistics")
    return Program(model, infer(lambda step: model(requests[step])))


_FIRST, _LAST = r"segformer\.stages\.0\.blocks\.0", r"segformer\.stages\.1\.blocks\.1"
NETWORK = Network(
    "segformer",
    reference,
    port,
    {
        "rows": Truth(
            modules=(
                _FIRST + r"\.attention\.sequence_reduction(\.sequence_reduction)?",
                r"stages\.0\.2\.looking\.smaller(\.0)?",
            )
        ),
        "axis": Truth(
            modules=(rf"({_FIRST}|{_LAST})\.attention",),
            within=(r"stages\.(0\.2|1\.3)\.looking", rf"({_FIRST}|{_LAST})\.attention"),
            readers=(rf"({_FIRST}|{_LAST})\.attention\.o_proj", r"stages\.(0\.2|1\.3)\.looking(\.out)?"),
        ),
        "edges": Truth(
            modules=(rf"({_FIRST}|{_LAST})\.mlp\.dwconv(\.dwconv)?",),
            readers=(rf"({_FIRST}|{_LAST})\.mlp\.(activation_fn|fc2)", r"stages\.(0\.2|1\.3)(\.narrow)?"),
        ),
        "corners": Truth(
            operators=(r"(decode_head)?:aten::upsample_bilinear2d",), readers=("fuse", r"decode_head(\.linear_fuse)?")
        ),
        "levels": Truth(modules=("fuse", r"decode_head\.linear_fuse"), operators=(r"(decode_head)?:aten::cat",)),
        "statistics": Truth(modules=("norm", r"decode_head\.batch_norm")),
    },
)
