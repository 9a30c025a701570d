"""Networks of timm and diffusers, small and with random weights."""

from __future__ import annotations

import copy
from typing import Any

import diffusers
import timm
import torch
from timm.models.convnext import ConvNeXt
from timm.models.mlp_mixer import MlpMixer
from timm.models.resnet import BasicBlock, ResNet
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from program_pairs.case import network
from program_pairs.optimizers import adamw, sgd
from program_pairs.program import Batch, Program
from program_pairs.training import LoopOptions

Flags = frozenset[str]


def _livelier(model: nn.Module) -> nn.Module:
    """Give biases and scales values as after some training."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def _images(size: int, classes: int, batch: int = 4, channels: int = 3) -> list[Batch]:
    return [
        {"image": torch.randn(batch, channels, size, size), "labels": torch.randint(0, classes, (batch,))}
        for _step in range(2)
    ]


def _classify(model: nn.Module, batch: Batch) -> Tensor:
    logits: Tensor = model(batch["image"])  # place: network_call
    return logits


def _class_loss(logits: Tensor, batch: Batch) -> Tensor:
    return functional.cross_entropy(logits, batch["labels"])


@network("timm_resnet")
def timm_resnet(_: Flags) -> Program:
    model = ResNet(BasicBlock, layers=(1, 1, 1, 1), channels=(8, 8, 16, 16), num_classes=5, stem_width=8)
    return Program(
        _livelier(model), _images(32, 5), _classify, _class_loss, sgd(lr=0.1, weight_decay=1e-2, groups="two")
    )


@network("timm_convnext")
def timm_convnext(_: Flags) -> Program:
    model = ConvNeXt(
        depths=(1, 2, 1, 1), dims=(8, 8, 16, 16), num_classes=5, ls_init_value=0.5, kernel_sizes=3, patch_size=2
    )
    return Program(_livelier(model), _images(32, 5), _classify, _class_loss, adamw(lr=3e-3))


@network("timm_vit")
def timm_vit(_: Flags) -> Program:
    model = VisionTransformer(
        img_size=16, patch_size=4, embed_dim=32, depth=3, num_heads=4, num_classes=5, mlp_ratio=2.0
    )
    with torch.no_grad():
        model.pos_embed.add_(0.3 * torch.randn_like(model.pos_embed))
    program = Program(_livelier(model), _images(16, 5), _classify, _class_loss, sgd(lr=0.05))
    program.average = copy.deepcopy(program.model)
    return program


@network("timm_mixer")
def timm_mixer(_: Flags) -> Program:
    model = MlpMixer(img_size=16, patch_size=4, num_blocks=2, embed_dim=24, num_classes=5)
    return Program(_livelier(model), _images(16, 5), _classify, _class_loss, adamw(lr=3e-3, groups="one"))


@network("timm_swin")
def timm_swin(_: Flags) -> Program:
    model = SwinTransformer(
        img_size=16,
        patch_size=2,
        embed_dim=16,
        depths=(2, 2),
        num_heads=(2, 4),
        window_size=4,
        num_classes=5,
        drop_path_rate=0.0,
    )
    return Program(_livelier(model), _images(16, 5), _classify, _class_loss, sgd(lr=0.05))


@network("timm_efficientnet")
def timm_efficientnet(_: Flags) -> Program:
    model = timm.create_model("test_efficientnet", num_classes=5)
    return Program(_livelier(model).eval(), _images(32, 5), _classify)


# Diffusers


def _noise_loss(output: Tensor, batch: Batch) -> Tensor:
    return functional.mse_loss(output, batch["target"])


@network("unet")
def unet(_: Flags) -> Program:
    model = diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    batches: list[Batch] = [
        {
            "sample": torch.randn(2, 3, 8, 8),
            "timestep": torch.randint(0, 1000, (2,)),
            "text": torch.randn(2, 5, 16),
            "target": torch.randn(2, 3, 8, 8),
        }
        for _step in range(2)
    ]

    def forward(network: nn.Module, batch: Batch) -> Tensor:
        output: Any = network(batch["sample"], batch["timestep"], batch["text"])  # place: network_call
        return output.sample

    return Program(_livelier(model), batches, forward, _noise_loss, adamw(lr=1e-3), options=LoopOptions(max_norm=1.0))


@network("dit")
def dit(_: Flags) -> Program:
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
        norm_num_groups=4,
    )
    batches: list[Batch] = [
        {
            "sample": torch.randn(2, 4, 8, 8),
            "timestep": torch.randint(0, 1000, (2,)),
            "class_labels": torch.randint(0, 9, (2,)),
            "target": torch.randn(2, 4, 8, 8),
        }
        for _step in range(2)
    ]

    def forward(network: nn.Module, batch: Batch) -> Tensor:
        output: Any = network(  # place: network_call
            batch["sample"], timestep=batch["timestep"], class_labels=batch["class_labels"]
        )
        return output.sample

    for block in model.transformer_blocks:
        block.norm1.emb.class_embedder.dropout_prob = 0.0
    return Program(_livelier(model), batches, forward, _noise_loss, sgd(lr=0.05))


@network("autoencoder_kl")
def autoencoder_kl(_: Flags) -> Program:
    model = diffusers.AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(8, 16),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=16,
    )
    batches: list[Batch] = []
    for _step in range(2):
        image = torch.rand(2, 3, 16, 16)
        batches.append({"image": image, "target": image.clone()})

    def forward(network: nn.Module, batch: Batch) -> Tensor:
        output: Any = network(batch["image"], sample_posterior=False)  # place: network_call
        return output.sample

    return Program(_livelier(model), batches, forward, _noise_loss, adamw(lr=1e-3, weight_decay=0.0))
