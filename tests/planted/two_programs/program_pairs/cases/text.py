"""Cases of the networks of transformers."""

from __future__ import annotations

from typing import Any

import torch

from program_pairs.cases._table import cases
from program_pairs.edits.attention import attention, library_attention
from program_pairs.edits.blocks import block, chunked
from program_pairs.edits.layers import activation, dropout, embedding, linear
from program_pairs.edits.loops import (
    attribute,
    autocast,
    checkpointed,
    compiled,
    data,
    functional_call,
    harmless_options,
    low_precision,
    micro_batches,
    no_zero_grad,
    optimizer,
    options,
    own_cross_entropy,
    same_layer_twice,
    threads,
    wrapper,
    wrong_optimizer,
)
from program_pairs.edits.norms import composite_rms_norm, layer_norm, rms_norm
from program_pairs.edits.parts import experts, fused_attention, fused_mlp, mixer, rotary, rotary_table
from program_pairs.edits.weights import buffer, frozen, untied, weight
from program_pairs.optimizers import adam, adamw, hand_adamw, hand_sgd, sgd

Batch = dict[str, Any]


def _shift_ids(batch: Batch) -> None:
    batch["input_ids"] = batch["input_ids"].roll(1, 1)


def _no_mask(batch: Batch) -> None:
    batch["attention_mask"] = torch.ones_like(batch["attention_mask"])


def _mask_of_left(batch: Batch) -> None:
    batch["attention_mask"] = batch["attention_mask"].flip(1)


def _positions_from_one(batch: Batch) -> None:
    ids = batch["input_ids"]
    batch["position_ids"] = torch.arange(1, ids.shape[1] + 1).expand_as(ids).contiguous()


# A decoder of today: RMS norm, rotary embedding, grouped heads, gated MLP

cases(
    "llama",
    rms_norm(),
    composite_rms_norm(),
    library_attention("eager"),
    (attention("llama", style="einsum"), own_cross_entropy()),
    fused_mlp(),
    (fused_attention(), fused_mlp()),
    rotary("llama", ""),
    optimizer("fused_adamw", adamw(lr=3e-3, fused=True)),
    optimizer("hand_adamw", hand_adamw(lr=3e-3)),
    micro_batches(2),
    autocast(),
    (rms_norm(), wrapper()),
    checkpointed("model.layers.[012]"),
    harmless_options("own_clipping", clip="own"),
    # faults
    rms_norm("model.layers.1.input_layernorm", "eps"),
    (rms_norm("model.layers.0.post_attention_layernorm", "centred"), library_attention("eager")),
    (rms_norm("model.norm", "no_weight"), fused_mlp()),
    (rms_norm("model.layers.2.input_layernorm", "absolute"), rms_norm(), own_cross_entropy()),
    rms_norm("model.layers.1.post_attention_layernorm", "detached"),
    (attention("llama", "model.layers.1.self_attn", "scores_larger"), rms_norm()),
    attention("llama", "model.layers.0.self_attn", "head_order"),
    (attention("llama", "model.layers.2.self_attn", "scale", "einsum"), fused_mlp()),
    attention("llama", "model.layers.1.self_attn", "not_transposed"),
    fused_mlp("model.layers.1.mlp", "halves"),
    (fused_mlp("model.layers.0.mlp", "on_up"), composite_rms_norm()),
    fused_attention("model.layers.2.self_attn", "key_and_value"),
    fused_attention("model.layers.1.self_attn", "key_not_rotated"),
    rotary("llama", "model.layers.[012].self_attn", "direction"),
    (rotary("llama", "model.layers.[012].self_attn", "offset"), library_attention("eager")),
    (rotary_table("model.rotary_emb", "base"), rms_norm()),
    rotary_table("model.rotary_emb", "repeated"),
    block("llama", "model.layers.1", "normed_residual", ("model.layers.1.post_attention_layernorm",)),
    (
        block("llama", "model.layers.0", "first_residual", ("model.layers.1", "model.layers.1.input_layernorm")),
        rms_norm(),
    ),
    (block("llama", "model.layers.2", "parallel", ("model.layers.2.post_attention_layernorm",)), fused_mlp()),
    weight("model.layers.1.self_attn.k_proj.weight", "interleaved"),
    (weight("model.layers.0.mlp.up_proj.weight", "fresh"), library_attention("eager")),
    wrong_optimizer("second_beta", adamw(lr=3e-3, betas=(0.9, 0.999))),
    wrong_optimizer("decay_of_norms", adamw(lr=3e-3, groups="decay_all")),
    (wrong_optimizer("adam_coupled", hand_adamw(lr=3e-3, flaw="adam_coupled"), "adam_coupled"), rms_norm()),
    options("clip_max", "clip_max", clip="max"),
    (own_cross_entropy("label_shift"), composite_rms_norm()),
    data("ids_shifted", _shift_ids, "model.embed_tokens", "model"),
)

# Sandwich norms, soft caps, sliding windows

cases(
    "gemma2",
    rms_norm(),
    attention("gemma2", style="small_mask"),
    attention("gemma2", style="scaled_query"),
    (own_cross_entropy(), activation(".*act_fn", "gelu_tanh")),
    optimizer("hand_sgd", hand_sgd(lr=0.05)),
    block("gemma2", "model.layers.[01]"),
    # faults
    rms_norm("model.layers.0.pre_feedforward_layernorm", "offset"),
    (rms_norm("model.layers.[01].input_layernorm", "offset"), attention("gemma2", style="small_mask")),
    attention("gemma2", "model.layers.0.self_attn", "softcap_lost"),
    (attention("gemma2", "model.layers.1.self_attn", "mask_value"), rms_norm()),
    attention("gemma2", "model.layers.0.self_attn", "scores_larger"),
    block("gemma2", "model.layers.0", "norm_skipped", ("model.layers.0.pre_feedforward_layernorm",)),
    (block("gemma2", "model.layers.1", "norm_after_add", ("model.layers.1.post_feedforward_layernorm",)), rms_norm()),
    block("gemma2", "model.layers.0", "residual_scaled", ("model.layers.1", "model.layers.1.input_layernorm")),
    (fused_mlp("model.layers.1.mlp", "not_activated"), rms_norm()),
    attribute("model.layers.1.self_attn", "scaling", 0.5),
    buffer("model.embed_tokens.embed_scale", "half", ""),
    (weight("model.layers.1.self_attn.o_proj.weight", "reversed"), attention("gemma2", style="scaled_query")),
    wrong_optimizer("momentum", sgd(lr=0.05, momentum=0.5)),
)

# Learned positions, Conv1D, tanh GELU, padded batch

cases(
    "gpt2",
    layer_norm(),
    (layer_norm(), library_attention("eager")),
    attention("gpt2", style="small_mask"),
    activation(".*mlp.act", "gelu_tanh"),
    (own_cross_entropy(), embedding("transformer.wpe", style="index")),
    optimizer("foreach_sgd", sgd(lr=0.05, weight_decay=0.1, groups="two", foreach=True)),
    functional_call(),
    (wrapper(), attention("gpt2", style="manual")),
    # faults
    layer_norm("transformer.h.1.ln_2", "unbiased"),
    (layer_norm("transformer.ln_f", "kept_mean"), library_attention("eager")),
    (activation("transformer.h.0.mlp.act", "gelu", "erf"), layer_norm()),
    activation("transformer.h.1.mlp.act", "gelu", "quick"),
    (embedding("transformer.wpe", "off_by_one"), layer_norm()),
    attention("gpt2", "transformer.h.0.attn", "mask_multiplied"),
    (attention("gpt2", "transformer.h.1.attn", "scores_larger"), activation(".*mlp.act", "gelu_tanh")),
    attention("gpt2", "transformer.h.1.attn", "softmax_axis"),
    block("gpt2", "transformer.h.0", "second_normed", ("transformer.h.1", "transformer.h.1.ln_1")),
    (block("gpt2", "transformer.h.1", "residual_twice", ("transformer.ln_f",)), layer_norm()),
    (weight("transformer.h.0.attn.c_attn.weight", "rolled"), layer_norm()),
    weight("transformer.h.1.mlp.c_fc.bias", "zero"),
    untied("lm_head.weight", "transformer.wte"),
    (own_cross_entropy("all_counted"), layer_norm()),
    own_cross_entropy("sum"),
    no_zero_grad(),
    data("mask_lost", _no_mask, "transformer", "transformer.h.0.attn", "transformer.h.0"),
    wrong_optimizer("learning_rate", sgd(lr=0.005, weight_decay=0.1, groups="two")),
)

# ALiBi; inference

cases(
    "bloom",
    layer_norm(),
    linear(".*(dense_h_to_4h|dense_4h_to_h)", style="matmul"),
    activation(".*gelu_impl", "gelu_tanh"),
    threads(2),
    low_precision(),
    # faults
    (layer_norm("transformer.h.0.input_layernorm", "unbiased"), activation(".*gelu_impl", "gelu_tanh")),
    attribute("transformer.h.1.self_attention", "inv_norm_factor", 0.125),
    attribute("transformer.h.[01].self_attention", "beta", 2.0),
    (activation("transformer.h.1.mlp.gelu_impl", "gelu", "quick"), layer_norm()),
    linear("transformer.h.0.self_attention.query_key_value", "bias_sign"),
    (linear("transformer.h.1.mlp.dense_4h_to_h", "no_bias"), layer_norm()),
    weight("transformer.h.0.self_attention.dense.weight", "transposed"),
    data("mask_lost", _no_mask, "transformer", "transformer.h.0.self_attention", "transformer.h.0"),
    attribute("transformer.h.1.post_attention_layernorm", "eps", 0.1),
    (dropout("transformer.h.1.self_attention.attention_dropout"), layer_norm()),
    weight("transformer.word_embeddings_layernorm.bias", "reversed"),
)

# An encoder with padding

cases(
    "bert",
    (layer_norm(), activation(".*intermediate_act_fn", "gelu")),
    (library_attention("eager"), layer_norm()),
    attention("bert", style="small_mask"),
    linear(".*(query|key|value)", style="einsum"),
    own_cross_entropy(),
    optimizer("hand_sgd", hand_sgd(lr=0.1)),
    block("bert_output", "bert.encoder.layer.[01].output"),
    harmless_options("own_clipping", clip="own"),
    # faults
    layer_norm("bert.embeddings.LayerNorm", "eps"),
    (layer_norm("bert.encoder.layer.1.output.LayerNorm", "axis"), library_attention("eager")),
    (activation("bert.encoder.layer.0.intermediate.intermediate_act_fn", "gelu", "tanh"), layer_norm()),
    attention("bert", "bert.encoder.layer.0.attention.self", "mask_lost"),
    (attention("bert", "bert.encoder.layer.1.attention.self", "value_from_key"), layer_norm()),
    attention("bert", "bert.encoder.layer.1.attention.self", "scores_larger"),
    block(
        "bert_output",
        "bert.encoder.layer.0.attention.output",
        "norm_before_add",
        ("bert.encoder.layer.0.attention.output.LayerNorm",),
    ),
    (
        block(
            "bert_output", "bert.encoder.layer.1.output", "residual_lost", ("bert.encoder.layer.1.output.LayerNorm",)
        ),
        activation(".*intermediate_act_fn", "gelu"),
    ),
    (linear("bert.encoder.layer.0.attention.self.value", "detached"), layer_norm()),
    linear("bert.encoder.layer.1.intermediate.dense", "stale"),
    embedding("bert.embeddings.token_type_embeddings", "off_by_one"),
    weight("classifier.weight", "fresh"),
    (weight("bert.encoder.layer.1.attention.self.query.weight", "transposed"), library_attention("eager")),
    (own_cross_entropy("batch"), attention("bert", style="small_mask")),
    options("step_before_clip", "step_before_clip", "clip_call", order="step_before_clip"),
    options("clip_each", "clip_each", clip="each"),
    data("mask_of_left", _mask_of_left, "bert", "bert.encoder.layer.0.attention.self"),
    same_layer_twice("bert.encoder.layer", 0, 1),
    frozen("bert.encoder.layer.0.output.dense.weight"),
)

# Encoder and decoder with relative positions

cases(
    "t5",
    rms_norm(),
    library_attention("eager"),
    (attention("t5", style="einsum"), rms_norm()),
    (activation(".*DenseReluDense.act", "relu"), linear(".*DenseReluDense.w[io]", style="matmul")),
    optimizer("hand_adamw", hand_adamw(lr=3e-3, weight_decay=0.0)),
    # faults
    (rms_norm("encoder.block.1.layer.0.layer_norm", "centred"), library_attention("eager")),
    rms_norm("decoder.final_layer_norm", "sum"),
    attention("t5", "encoder.block.0.layer.0.SelfAttention", "bias_transposed"),
    (attention("t5", "decoder.block.1.layer.0.SelfAttention", "bias_sign"), rms_norm()),
    attention("t5", "decoder.block.0.layer.1.EncDecAttention", "scores_larger"),
    (attention("t5", "encoder.block.1.layer.0.SelfAttention", "scale"), rms_norm()),
    block(
        "t5_feed_forward",
        "encoder.block.0.layer.1",
        "normed_residual",
        ("encoder.block.1", "encoder.block.1.layer.0", "encoder.block.1.layer.0.layer_norm"),
    ),
    (
        block(
            "t5_feed_forward",
            "decoder.block.1.layer.2",
            "norm_skipped",
            ("decoder.block.1.layer.2.DenseReluDense", "decoder.block.1.layer.2.DenseReluDense.wi"),
        ),
        rms_norm(),
    ),
    activation("decoder.block.0.layer.2.DenseReluDense.act", "relu", "inplace_lost"),
    weight(
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "reversed",
        "encoder.block.0.layer.0.SelfAttention",
    ),
    (weight("decoder.block.1.layer.1.EncDecAttention.v.weight", "fresh"), rms_norm()),
    untied("lm_head.weight", "shared", "encoder.embed_tokens", "decoder.embed_tokens"),
    (
        wrong_optimizer(
            "adam_uncorrected", hand_adamw(lr=3e-3, weight_decay=0.0, flaw="adam_uncorrected"), "adam_uncorrected"
        ),
        rms_norm(),
    ),
    (own_cross_entropy("smoothed"), rms_norm()),
)

# A mixture of experts

cases(
    "mixtral",
    experts("model.layers.[01].mlp"),
    (experts("model.layers.[01].mlp"), rms_norm()),
    library_attention("sdpa"),
    composite_rms_norm(),
    (rotary("mixtral", ""), attention("mixtral", style="small_mask")),
    checkpointed("model.layers.1"),
    # faults
    experts("model.layers.0.mlp", "not_normalised"),
    (experts("model.layers.1.mlp", "softmax_axis"), rms_norm()),
    experts("model.layers.1.mlp", "one_only"),
    (experts("model.layers.0.mlp", "order"), library_attention("sdpa")),
    experts("model.layers.0.mlp", "sigmoid"),
    (experts("model.layers.1.mlp", "detached"), composite_rms_norm()),
    attribute("model.layers.0.mlp.gate", "top_k", 1, "model.layers.0.mlp"),
    weight("model.layers.1.mlp.experts.gate_up_proj", "rolled"),
    (weight("model.layers.0.mlp.experts.down_proj", "reversed"), rms_norm()),
    weight("model.layers.0.mlp.gate.weight", "rolled"),
    attention("mixtral", "model.layers.0.self_attn", "head_order"),
    (attention("mixtral", "model.layers.1.self_attn", "mask_multiplied"), rms_norm()),
    (rotary("mixtral", "model.layers.[01].self_attn", "interleaved"), composite_rms_norm()),
    block("llama", "model.layers.0", "norm_skipped", ("model.layers.0.mlp", "model.layers.0.mlp.gate")),
    wrong_optimizer("eps", adamw(lr=2e-3, groups="one", eps=1e-3)),
    options("gradient_world_size", "gradient_world_size", gradient="world_size"),
)

# Images

cases(
    "vit",
    (layer_norm(), library_attention("eager")),
    activation(".*activation_fn", "gelu"),
    linear(".*mlp.fc[12]", style="einsum"),
    (micro_batches(3), layer_norm()),
    compiled(),
    low_precision(),
    block("vit", "vit.layers.[01]"),
    # faults
    (layer_norm("vit.layernorm", "eps"), library_attention("eager")),
    layer_norm("vit.layers.1.layernorm_before", "no_root"),
    (activation("vit.layers.0.mlp.activation_fn", "gelu", "tanh"), layer_norm()),
    attention("vit", "vit.layers.1.attention", "softmax_axis"),
    (attention("vit", "vit.layers.0.attention", "dropout"), layer_norm()),
    block(
        "vit",
        "vit.layers.1",
        "norms_swapped",
        ("vit.layers.1.layernorm_before", "vit.layers.1.mlp", "vit.layers.1.layernorm_after"),
    ),
    (
        block("vit", "vit.layers.0", "norm_skipped", ("vit.layers.0.mlp", "vit.layers.0.mlp.fc1")),
        activation(".*activation_fn", "gelu"),
    ),
    weight("vit.embeddings.position_embeddings", "positions"),
    weight("vit.embeddings.cls_token", "zero"),
    (linear("classifier", "no_bias"), layer_norm()),
    wrong_optimizer("decay_of_norms", sgd(lr=0.05, weight_decay=1e-2, groups="decay_all")),
    options("biases_lost", "gradient_biases_lost", gradient="biases_lost"),
    (micro_batches(3, "sum"), layer_norm()),
)

# Speech

cases(
    "whisper",
    layer_norm(),
    (attention("whisper", style="scaled_query"), layer_norm()),
    (activation(".*activation_fn", "gelu"), linear(".*fc[12]", style="matmul")),
    block("whisper", "model.encoder.layers.[01]"),
    own_cross_entropy(),
    chunked("model.encoder.layers.[01].fc[12]"),
    # faults
    (layer_norm("model.encoder.layers.0.final_layer_norm", "bias_sign"), activation(".*activation_fn", "gelu")),
    layer_norm("model.decoder.layer_norm", "axis"),
    attention("whisper", "model.decoder.layers.1.encoder_attn", "scale"),
    (attention("whisper", "model.decoder.layers.0.self_attn", "mask_value"), layer_norm()),
    attention("whisper", "model.decoder.layers.1.self_attn", "mask_after"),
    (attention("whisper", "model.encoder.layers.1.self_attn", "detached"), layer_norm()),
    block(
        "whisper",
        "model.encoder.layers.0",
        "second_normed",
        ("model.encoder.layers.1", "model.encoder.layers.1.self_attn_layer_norm"),
    ),
    (block("whisper", "model.encoder.layers.1", "activation_lost", ("model.encoder.layers.1.fc2",)), layer_norm()),
    weight("model.encoder.conv1.weight", "reversed"),
    (weight("model.encoder.embed_positions.weight", "rolled", "model.encoder"), layer_norm()),
    weight("model.decoder.embed_positions.weight", "rolled", "model.decoder"),
    linear("model.decoder.layers.0.encoder_attn.k_proj", "transposed"),
    (own_cross_entropy("temperature"), layer_norm()),
    options("two_steps", "two_steps", order="two_steps"),
)

# A state space model

cases(
    "mamba",
    mixer("backbone.layers.[01].mixer"),
    mixer("backbone.layers.[01].mixer", style="loop"),
    (rms_norm(), mixer("backbone.layers.1.mixer")),
    optimizer("foreach_off", adamw(lr=3e-3, foreach=False)),
    (own_cross_entropy(), composite_rms_norm()),
    # faults
    mixer("backbone.layers.0.mixer", "conv_end"),
    (mixer("backbone.layers.1.mixer", "skip_lost"), rms_norm()),
    mixer("backbone.layers.0.mixer", "sign_of_a"),
    (mixer("backbone.layers.1.mixer", "softplus_lost"), composite_rms_norm()),
    mixer("backbone.layers.1.mixer", "gate_lost"),
    (mixer("backbone.layers.0.mixer", "state_lost"), rms_norm()),
    mixer("backbone.layers.0.mixer", "conv_not_activated"),
    weight("backbone.layers.0.mixer.A_log", "zero"),
    (weight("backbone.layers.1.mixer.D", "zero"), rms_norm()),
    weight("backbone.layers.1.mixer.conv1d.weight", "reversed"),
    block("mamba", "backbone.layers.0", "normed_residual", ("backbone.layers.1", "backbone.layers.1.norm")),
    (wrong_optimizer("adam_decay_sign", hand_adamw(lr=3e-3, flaw="adam_decay_sign"), "adam_decay_sign"), rms_norm()),
    wrong_optimizer("coupled_decay", adam(lr=3e-3)),
    options("backward_twice", "backward_twice", backward="twice"),
)

# Speech without a decoder

cases(
    "wav2vec2",
    (layer_norm("wav2vec2.encoder.*"), activation(".*intermediate_act_fn", "gelu")),
    library_attention("eager"),
    attention("wav2vec2", style="einsum"),
    linear(".*(intermediate_dense|output_dense)", style="functional"),
    # faults
    (layer_norm("wav2vec2.encoder.layers.0.layer_norm", "eps"), library_attention("eager")),
    layer_norm("wav2vec2.feature_projection.layer_norm", "uncentred"),
    (attention("wav2vec2", "wav2vec2.encoder.layers.1.attention", "not_transposed"), layer_norm("wav2vec2.encoder.*")),
    activation("wav2vec2.feature_extractor.conv_layers.0.activation", "gelu", "quick"),
    weight("wav2vec2.feature_projection.projection.weight", "rolled"),
    linear("wav2vec2.encoder.layers.0.feed_forward.output_dense", "bias_sign"),
    (
        attention("wav2vec2", "wav2vec2.encoder.layers.0.attention", "value_from_key"),
        activation(".*intermediate_act_fn", "gelu"),
    ),
    wrong_optimizer("sgd_dampened", hand_sgd(lr=0.02, flaw="sgd_dampened"), "sgd_dampened"),
)
