"""Cases of the networks of timm and diffusers."""

from __future__ import annotations

from typing import Any

from program_pairs.cases._table import cases
from program_pairs.edits.attention import processor, timm_attention
from program_pairs.edits.blocks import block
from program_pairs.edits.layers import activation, conv, dropout, embedding, linear, pool
from program_pairs.edits.loops import (
    attribute,
    autocast,
    channels_last,
    checkpointed,
    compiled,
    data,
    evaluation_mode,
    functional_call,
    harmless_options,
    low_precision,
    micro_batches,
    no_zero_grad,
    optimizer,
    options,
    own_cross_entropy,
    own_mse,
    threads,
    training_mode,
    wrapper,
    wrong_optimizer,
)
from program_pairs.edits.norms import batch_norm, group_norm, layer_norm
from program_pairs.edits.weights import buffer, weight
from program_pairs.optimizers import adamw, hand_adamw, hand_sgd, sgd

Batch = dict[str, Any]


def _channels_reversed(batch: Batch) -> None:
    batch["image"] = batch["image"].flip(1)


def _not_scaled(batch: Batch) -> None:
    batch["image"] = batch["image"] * 0.5 + 0.1


def _steps_off_by_one(batch: Batch) -> None:
    batch["timestep"] = (batch["timestep"] + 1) % 1000


cases(
    "timm_resnet",
    batch_norm(),
    conv("layer[1-4].0.conv[12]"),
    (pool("maxpool"), batch_norm("layer.*")),
    channels_last(),
    block("resnet", "layer[1-4].0"),
    optimizer("hand_sgd", sgd(lr=0.1, weight_decay=1e-2, groups="two", foreach=True)),
    # faults
    (batch_norm("layer2.0.bn1", "eps"), block("resnet", "layer3.0")),
    batch_norm("layer1.0.bn2", "momentum").at(visible=False),
    batch_norm("layer3.0.bn1", "evaluating"),
    (batch_norm("bn1", "not_updated").at(visible=False), conv("layer1.0.conv1")),
    (batch_norm("layer2.0.bn2", "unbiased"), batch_norm("layer3.*")),
    conv("layer1.0.conv1", "flipped"),
    (conv("layer2.0.conv2", "padding"), batch_norm()),
    conv("layer4.0.conv1", "replicated"),
    (pool("maxpool", "mean"), batch_norm("layer.*")),
    block("resnet", "layer1.0", "activation_before_add", ("layer1.0.act2",)),
    (block("resnet", "layer2.0", "residual_lost", ("layer2.0.act2",)), batch_norm("layer[134].*")),
    block("resnet", "layer3.0", "residual_detached"),
    evaluation_mode("layer2.0.bn1"),
    weight("layer1.0.downsample.0.weight", "rolled"),
    (weight("fc.weight", "fresh"), batch_norm()),
    wrong_optimizer("decay_of_norms", sgd(lr=0.1, weight_decay=1e-2, groups="decay_all")),
    data("channels_reversed", _channels_reversed, "conv1"),
    (own_cross_entropy("smoothed"), batch_norm()),
)

cases(
    "timm_convnext",
    layer_norm("stages.*blocks.*norm"),
    conv("stages.*conv_dw"),
    (activation("stages.*act", "gelu"), linear("stages.*fc1", style="matmul")),
    block("convnext", "stages.*blocks.[01]"),
    autocast(),
    optimizer("hand_adamw", hand_adamw(lr=3e-3)),
    # faults
    (layer_norm("stages.1.blocks.0.norm", "eps"), conv("stages.*conv_dw")),
    layer_norm("stages.0.blocks.0.norm", "axis"),
    (activation("stages.1.blocks.1.mlp.act", "gelu", "quick"), layer_norm("stages.*blocks.*norm")),
    (conv("stages.0.blocks.0.conv_dw", "flipped"), conv("stages.[123].*conv_dw")),
    conv("stages.1.downsample.1", "swapped"),
    block("convnext", "stages.1.blocks.0", "gamma_lost", ("stages.1.blocks.0.drop_path",)),
    (
        block(
            "convnext",
            "stages.2.blocks.0",
            "gamma_on_residual",
            ("stages.3", "stages.3.downsample", "stages.3.downsample.0"),
        ),
        layer_norm("stages.*blocks.*norm"),
    ),
    weight("stages.1.blocks.1.gamma", "half"),
    linear("stages.3.blocks.0.mlp.fc2", "detached"),
    (
        wrong_optimizer("adam_second_beta", hand_adamw(lr=3e-3, flaw="adam_second_beta"), "adam_second_beta"),
        layer_norm("stages.*blocks.*norm"),
    ),
    options("gradient_sign", "gradient_sign", gradient="sign"),
)

cases(
    "timm_vit",
    timm_attention(),
    (timm_attention(style="einsum"), layer_norm()),
    (conv("patch_embed.proj"), activation("blocks.*act", "gelu")),
    harmless_options("average_by_lerp", average="lerp"),
    block("timm_vit", "blocks.[012]"),
    compiled(),
    (wrapper(), layer_norm()),
    # faults
    timm_attention("blocks.1.attn", "scale"),
    (timm_attention("blocks.0.attn", "qkv_order"), layer_norm()),
    timm_attention("blocks.2.attn", "key_and_value"),
    (timm_attention("blocks.1.attn", "not_transposed", "einsum"), activation("blocks.*act", "gelu")),
    (layer_norm("blocks.1.norm2", "unbiased"), timm_attention()),
    layer_norm("norm", "one_plus"),
    block("timm_vit", "blocks.0", "post_norm", ("blocks.0.norm2", "blocks.0.mlp", "blocks.0.mlp.fc1")),
    (
        block("timm_vit", "blocks.1", "norms_swapped", ("blocks.1.norm1", "blocks.1.norm2", "blocks.1.mlp")),
        timm_attention(),
    ),
    conv("patch_embed.proj", "swapped"),
    weight("pos_embed", "positions", ""),
    options("average_never", "average_call", "average_update", average="never"),
    options("average_not_in_place", "average_not_in_place", "average_update", average="not_in_place"),
    (options("average_swapped", "average_swapped", "average_update", average="swapped"), layer_norm()),
    wrong_optimizer("nesterov", sgd(lr=0.05, nesterov=True)),
    wrong_optimizer("head_left_out", sgd(lr=0.05, groups="no_head"), parameters=("head.bias",)),
)

cases(
    "timm_mixer",
    (layer_norm(), activation("blocks.*act", "gelu")),
    linear("blocks.*fc[12]", style="einsum"),
    block("mixer", "blocks.[01]"),
    conv("stem.proj"),
    optimizer("fused_adamw", adamw(lr=3e-3, groups="one", fused=True)),
    # faults
    layer_norm("blocks.1.norm1", "kept_mean"),
    (layer_norm("norm", "no_root"), linear("blocks.*fc[12]", style="einsum")),
    block("mixer", "blocks.0", "norms_swapped", ("blocks.0.norm1", "blocks.0.norm2", "blocks.0.mlp_channels")),
    (block("mixer", "blocks.1", "first_residual", ("norm",)), layer_norm()),
    activation("blocks.0.mlp_channels.act", "gelu", "relu"),
    (linear("blocks.1.mlp_tokens.fc1", "no_bias"), layer_norm()),
    linear("blocks.0.mlp_channels.fc2", "stale"),
    wrong_optimizer("adam_eps_inside", hand_adamw(lr=3e-3, groups="one", flaw="adam_eps_inside"), "adam_eps_inside"),
    (own_cross_entropy("sum"), layer_norm()),
)

cases(
    "timm_swin",
    (layer_norm("layers.*blocks.*"), activation("layers.*act", "gelu")),
    block("swin", "layers.[01].blocks.[01]"),
    linear("layers.*(qkv|proj)", style="matmul"),
    functional_call(),
    # faults
    (layer_norm("layers.0.blocks.1.norm1", "eps"), activation("layers.*act", "gelu")),
    attribute("layers.1.blocks.0.norm2", "eps", 0.1),
    weight("layers.0.blocks.0.attn.relative_position_bias_table", "fresh"),
    (weight("layers.1.blocks.1.attn.qkv.weight", "interleaved"), layer_norm("layers.*blocks.*")),
    block("swin", "layers.0.blocks.1", "norm_skipped", ("layers.0.blocks.1.mlp", "layers.0.blocks.1.mlp.fc1")),
    (
        block("swin", "layers.1.blocks.0", "first_residual", ("layers.1.blocks.1", "layers.1.blocks.1.norm1")),
        activation("layers.*act", "gelu"),
    ),
    buffer("layers.0.blocks.1.attn_mask", "zero", "layers.0.blocks.1.attn"),
    linear("layers.0.blocks.0.attn.proj", "no_bias"),
    wrong_optimizer("sgd_lost_momentum", hand_sgd(lr=0.05, flaw="sgd_lost_momentum"), "sgd_lost_momentum"),
    no_zero_grad(),
)

cases(
    "timm_efficientnet",
    batch_norm(),
    (conv("blocks.*conv_(dw|pw|pwl)"), batch_norm("blocks.*")),
    channels_last(),
    low_precision(),
    threads(2),
    # faults
    (batch_norm("blocks.3.0.bn2", "eps"), conv("blocks.*conv_pw")),
    training_mode("training_mode", ".*bn\\d"),
    conv("blocks.3.0.conv_dw", "flipped"),
    (conv("blocks.4.0.conv_dw", "padding"), batch_norm()),
    activation("blocks.3.0.se.gate", "relu", "relu"),
    (activation("blocks.4.0.se.act1", "silu", "relu"), batch_norm()),
    weight("blocks.3.0.se.conv_expand.bias", "zero"),
    buffer("blocks.1.0.bn1.running_var", "half"),
    (weight("blocks.4.0.conv_pwl.weight", "rolled"), batch_norm("blocks.3.*")),
    data("not_scaled", _not_scaled, "conv_stem"),
    activation("bn2.act", "silu", "gate_lost").at("bn2"),
)

# Diffusers

cases(
    "unet",
    processor(),
    (processor(style="einsum"), group_norm(".*resnets.*norm[12]")),
    (layer_norm(), own_mse()),
    block("diffusers_resnet", ".*resnets.[01]"),
    conv("down_blocks.*resnets.*conv[12]"),
    micro_batches(2),
    channels_last(),
    # faults
    processor("down_blocks.0.attentions.0.transformer_blocks.0.attn1", "scale"),
    (processor("mid_block.attentions.0.transformer_blocks.0.attn2", "context"), layer_norm()),
    processor("up_blocks.1.attentions.0.transformer_blocks.0.attn2", "softmax_axis"),
    (group_norm("down_blocks.1.resnets.0.norm1", "groups"), processor()),
    group_norm("mid_block.resnets.0.norm2", "eps"),
    (group_norm("conv_norm_out", "interleaved"), layer_norm()),
    block("diffusers_resnet", "mid_block.resnets.1", "time_lost", ("mid_block.resnets.1.norm2",)),
    (
        block(
            "diffusers_resnet",
            "down_blocks.0.resnets.0",
            "time_not_activated",
            ("down_blocks.0.resnets.0.time_emb_proj",),
        ),
        processor(),
    ),
    block(
        "diffusers_resnet",
        "up_blocks.0.resnets.0",
        "output_scale",
        ("up_blocks.0.resnets.1", "up_blocks.0.resnets.1.norm1"),
    ),
    (conv("conv_in", "replicated"), group_norm(".*resnets.*norm[12]")),
    attribute("time_proj", "flip_sin_to_cos", False),
    attribute("time_proj", "downscale_freq_shift", 1),
    weight("time_embedding.linear_2.bias", "shifted"),
    data("steps_off_by_one", _steps_off_by_one, "time_proj"),
    (own_mse("sum"), processor()),
    options("clip_squared", "clip_squared", clip="squared"),
)

cases(
    "dit",
    processor(),
    (processor(style="scaled_query"), layer_norm("transformer_blocks.*")),
    (own_mse(), linear("transformer_blocks.*ff.net.*", style="einsum")),
    optimizer("hand_sgd", hand_sgd(lr=0.05)),
    embedding("transformer_blocks.*embedding_table"),
    checkpointed("transformer_blocks.[01]"),
    # faults
    processor("transformer_blocks.0.attn1", "value_from_key"),
    (processor("transformer_blocks.1.attn1", "not_transposed"), layer_norm("transformer_blocks.*")),
    (layer_norm("transformer_blocks.0.norm3", "eps"), processor()),
    layer_norm("transformer_blocks.1.norm1.norm", "unbiased"),
    embedding("transformer_blocks.0.norm1.emb.class_embedder.embedding_table", "off_by_one"),
    (activation("transformer_blocks.1.norm1.silu", "silu", "relu"), processor()),
    attribute("transformer_blocks.[01].norm1.emb.time_proj", "downscale_freq_shift", 0),
    weight("transformer_blocks.0.norm1.linear.weight", "rolled"),
    (linear("proj_out_2", "no_bias"), layer_norm("transformer_blocks.*")),
    buffer("pos_embed.pos_embed", "positions"),
    (own_mse("absolute"), processor()),
)

cases(
    "autoencoder_kl",
    group_norm(),
    conv(".*resnets.*conv[12]"),
    (processor(), group_norm(".*norm[12]")),
    block("diffusers_resnet", ".*resnets.[01]"),
    optimizer("hand_adamw", hand_adamw(lr=1e-3, weight_decay=0.0)),
    own_mse(),
    # faults
    (group_norm("encoder.down_blocks.0.resnets.0.norm1", "eps"), processor()),
    group_norm("decoder.conv_norm_out", "groups"),
    (conv("encoder.down_blocks.0.downsamplers.0.conv", "flipped"), group_norm()),
    conv("decoder.up_blocks.0.upsamplers.0.conv", "padding"),
    processor("encoder.mid_block.attentions.0", "residual_lost"),
    (processor("decoder.mid_block.attentions.0", "scale"), group_norm()),
    block("diffusers_resnet", "decoder.mid_block.resnets.0", "activation_lost", ("decoder.mid_block.resnets.0.conv2",)),
    weight("quant_conv.bias", "shifted"),
    weight("post_quant_conv.weight", "rolled"),
    (own_mse("huber"), group_norm()),
    wrong_optimizer("first_beta", adamw(lr=1e-3, weight_decay=0.0, betas=(0.5, 0.95))),
    dropout("decoder.up_blocks.0.resnets.0.dropout"),
)
