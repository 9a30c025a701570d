"""Cases of the hand-written networks."""

from __future__ import annotations

from program_pairs.case import flag, planted
from program_pairs.cases._table import cases
from program_pairs.edits.layers import conv, embedding, linear
from program_pairs.edits.loops import (
    autocast,
    channels_last,
    checkpointed,
    compiled,
    evaluation_mode,
    functional_call,
    harmless_options,
    micro_batches,
    no_zero_grad,
    optimizer,
    options,
    own_cross_entropy,
    own_mse,
    threads,
    wrapper,
    wrong_optimizer,
)
from program_pairs.edits.norms import batch_norm, group_norm, layer_norm
from program_pairs.edits.weights import buffer, untied, weight
from program_pairs.optimizers import adam, adamw, hand_adamw, hand_sgd, sgd

_GPT_ATTENTION = "blocks.[012].attention"

cases(
    "own_gpt",
    flag("sdpa"),
    flag("additive_mask"),
    (flag("own_functions"), flag("operand_order")),
    (layer_norm(), flag("sdpa")),
    embedding("tokens"),
    own_cross_entropy(),
    checkpointed("blocks.[012]"),
    optimizer("hand_sgd", hand_sgd(lr=0.1)),
    micro_batches(2),
    # faults
    (planted("gpt_scale_of_width", _GPT_ATTENTION), flag("own_functions")),
    planted("gpt_mask_diagonal", _GPT_ATTENTION),
    (planted("gpt_mask_diagonal", _GPT_ATTENTION), flag("additive_mask")),
    (planted("gpt_mask_zero", _GPT_ATTENTION), layer_norm()),
    planted("gpt_mask_not_in_place", _GPT_ATTENTION),
    (planted("gpt_gate_of_token", _GPT_ATTENTION), flag("sdpa")),
    (planted("gpt_heads_not_merged", _GPT_ATTENTION), flag("operand_order")),
    planted("gpt_squared_relu", "blocks.[012].feed_forward"),
    (planted("gpt_same_norm", "blocks.[012]", "blocks.0.norm[12]", "blocks.0.feed_forward"), flag("sdpa")),
    planted("gpt_positions_from_one", ""),
    (planted("gpt_position_base", ""), layer_norm()),
    planted("gpt_positions_not_interleaved", ""),
    (planted("gpt_embedding_scale", ""), flag("additive_mask")),
    planted("gpt_layer_skipped", "", "blocks.1", "blocks.2", "blocks.[12].norm1"),
    (planted("gpt_no_final_norm", "", "norm", "head"), flag("sdpa")),
    untied("head.weight", "tokens"),
    options("clip_value", "clip_value", clip="value"),
    (own_cross_entropy("label_shift"), flag("sdpa")),
    (wrong_optimizer("sgd_nesterov", hand_sgd(lr=0.1, flaw="sgd_nesterov"), "sgd_nesterov"), layer_norm()),
)

_CELLS = "cells.[01]"

cases(
    "own_gru",
    flag("einsum_pool"),
    embedding("embed", style="index"),
    optimizer("fused_adamw", adamw(lr=5e-3, groups="one", fused=True)),
    (own_cross_entropy(), flag("einsum_pool")),
    wrapper(),
    # faults
    planted("gru_order_of_gates", _CELLS),
    (planted("gru_reset_before", _CELLS), flag("einsum_pool")),
    (planted("gru_update_reversed", _CELLS), own_cross_entropy()),
    planted("gru_state_detached", "", _CELLS),
    planted("gru_layers_share_state", "", _CELLS),
    (planted("gru_outputs_early", ""), flag("einsum_pool")),
    planted("gru_padding_counted", "", "classify"),
    (planted("gru_last_token", "", "classify"), embedding("embed", style="index")),
    planted("gru_loss_of_softmax", visible=False),
    weight("cells.1.weight_hidden", "rolled"),
    (weight("cells.0.bias_input", "zero"), flag("einsum_pool")),
    embedding("embed", "off_by_one"),
    wrong_optimizer("adam_lost_mean", hand_adamw(lr=5e-3, groups="one", flaw="adam_lost_mean"), "adam_lost_mean"),
    no_zero_grad(),
)

_LAYERS = "layers.[012]"

cases(
    "own_gnn",
    flag("dense_graph"),
    flag("operand_order"),
    (linear(".*(message|own|score)", style="matmul"), flag("operand_order")),
    own_cross_entropy(),
    optimizer("hand_adamw", hand_adamw(lr=5e-3)),
    # faults
    planted("gnn_direction", _LAYERS, "layers.[012].score"),
    (planted("gnn_slope", _LAYERS), flag("dense_graph")),
    planted("gnn_softmax_of_all", _LAYERS),
    (planted("gnn_degree_lost", _LAYERS), flag("operand_order")),
    (planted("gnn_last_message", _LAYERS), own_cross_entropy()),
    planted("gnn_own_lost", _LAYERS),
    (planted("gnn_residual_lost", "", "layers.1"), flag("operand_order")),
    planted("gnn_sum_of_graph", "", "readout"),
    (planted("gnn_count_of_edges", "", "readout"), flag("dense_graph")),
    (wrong_optimizer("second_beta", adamw(lr=5e-3, betas=(0.9, 0.5))), flag("operand_order")),
    weight("layers.1.own.weight", "transposed"),
)

cases(
    "own_policy",
    flag("own_functions"),
    (flag("own_functions"), linear("body.[02]", style="einsum")),
    harmless_options("own_clipping", clip="own"),
    compiled(),
    # faults
    planted("rl_critic_detached", "", "body.3", "body", "critic"),
    planted("rl_discount", visible=False),
    (planted("rl_done_lost", visible=False), flag("own_functions")),
    planted("rl_not_reversed", visible=False),
    (planted("rl_advantage_raw", visible=False), linear("body.[02]", style="einsum")),
    planted("rl_ratio_of_logs", visible=False),
    planted("rl_larger_loss", visible=False),
    (planted("rl_entropy_sign", visible=False), flag("own_functions")),
    planted("rl_value_weight", visible=False),
    linear("actor", "no_bias"),
    (wrong_optimizer("eps", adamw(lr=3e-3, weight_decay=0.0, eps=1e-2)), flag("own_functions")),
)

_UNITS = "units.[01]"

cases(
    "own_convnet",
    batch_norm(),
    conv("units.*conv[12]"),
    (flag("operand_order"), flag("library_pool")),
    channels_last(),
    (batch_norm(), conv("stem"), own_cross_entropy()),
    autocast(),
    functional_call(),
    # faults
    (planted("conv_maximum", _UNITS, "units.0.squeeze"), batch_norm()),
    planted("conv_softmax_gate", _UNITS),
    planted("conv_norm_after_activation", _UNITS, "units.0.bn1"),
    (planted("conv_same_norm", _UNITS, "units.0.bn[12]"), conv("stem")),
    planted("conv_in_place_lost", _UNITS),
    (planted("conv_not_normalised", "", "stem"), batch_norm()),
    planted("conv_channels_reversed", "", "stem"),
    (planted("conv_mean_of_rows", "", "head"), flag("operand_order")),
    batch_norm("units.1.bn1", "instance"),
    (batch_norm("units.0.bn2", "momentum").at(visible=False), flag("operand_order")),
    (batch_norm("bn", "root").at(visible=False), conv("units.*conv[12]")),
    batch_norm("units.0.bn1", "eps"),
    (conv("units.1.conv2", "flipped"), batch_norm()),
    evaluation_mode("units.0.bn1"),
    buffer("bn.running_mean", "shifted").at(visible=False),
    (wrong_optimizer("momentum", sgd(lr=0.1, momentum=0.0, weight_decay=5e-3, groups="two")), flag("operand_order")),
)

_MIXING = "layers.[01]"

cases(
    "own_mixer",
    flag("reshaped_patches"),
    flag("einsum_mixing"),
    (layer_norm(), own_mse()),
    optimizer("hand_sgd", hand_sgd(lr=0.1)),
    threads(2),
    # faults
    planted("mixer_not_transposed", _MIXING),
    (planted("mixer_activation_lost", _MIXING, "layers.0.channels2"), flag("reshaped_patches")),
    (planted("mixer_post_norm", _MIXING, "layers.0.norm2", "layers.0.channels1"), flag("einsum_mixing")),
    planted("mixer_patches_swapped", ""),
    layer_norm("layers.1.norm2", "no_root"),
    (linear("restore", "bias_sign"), flag("einsum_mixing")),
    (own_mse("half"), layer_norm()),
    weight("layers.0.channels2.bias", "zero"),
)

cases(
    "own_vae",
    flag("operand_order"),
    flag("own_functions"),
    (group_norm(), flag("operand_order")),
    conv("encoder.[02]"),
    optimizer("hand_adamw", hand_adamw(lr=2e-3, groups="one", weight_decay=0.05)),
    # faults
    (planted("vae_deviation", "", "expand"), group_norm()),
    planted("vae_no_noise", "", "expand"),
    planted("vae_detached", ""),
    (planted("vae_output_activated", "", visible=False), flag("own_functions")),
    planted("vae_divergence_mean", visible=False),
    (planted("vae_divergence_sign", visible=False), flag("operand_order")),
    planted("vae_divergence_lost", visible=False),
    group_norm("encoder.3", "interleaved"),
    (weight("decoder.0.weight", "reversed"), flag("own_functions")),
    wrong_optimizer("coupled_decay", adam(lr=2e-3, weight_decay=0.05)),
)

cases(
    "own_gan",
    flag("own_functions"),
    linear("(generator.[03]|discriminator.[024])", style="functional"),
    (linear("discriminator.[024]", style="einsum"), flag("own_functions")),
    # faults
    planted("gan_not_detached", "", visible=False),
    planted("gan_smooth_labels", visible=False),
    (planted("gan_saturating", visible=False), linear("discriminator.[024]", style="einsum")),
    planted("gan_labels_swapped", visible=False),
    planted("gan_gradient_kept", visible=False),
    planted("gan_first_beta", visible=False),
    linear("discriminator.2", "no_bias"),
    (linear("generator.3", "bias_sign"), flag("own_functions")),
    evaluation_mode("generator.1"),
)

cases(
    "own_diffusion",
    flag("operand_order"),
    (group_norm(), own_mse()),
    flag("loop_of_products"),
    conv("denoiser.(enter|middle|leave)"),
    harmless_options("average_by_lerp", average="lerp"),
    # faults
    planted("diffusion_rates", "denoiser", "denoiser.time1"),
    (planted("diffusion_sin_and_cos", "denoiser", "denoiser.time1"), flag("operand_order")),
    planted("diffusion_scale_and_shift", "denoiser"),
    (planted("diffusion_one_plus_lost", "denoiser"), group_norm()),
    planted("diffusion_skip_order", "denoiser", "denoiser.leave"),
    planted("diffusion_squared_schedule", "", "denoiser"),
    (planted("diffusion_time_off_by_one", "", "denoiser"), conv("denoiser.(enter|middle|leave)")),
    planted("diffusion_no_root", "", "denoiser", "denoiser.enter"),
    (planted("diffusion_target", visible=False), flag("operand_order")),
    options("average_copied", "average_copied", "average_update", average="copied"),
    (options("average_never", "average_call", "average_update", average="never"), group_norm()),
    group_norm("denoiser.norm", "eps"),
    wrong_optimizer("adam_decay_rate", hand_adamw(lr=3e-3, flaw="adam_decay_rate"), "adam_decay_rate"),
    (
        wrong_optimizer("adam_absolute", hand_adamw(lr=3e-3, flaw="adam_absolute"), "adam_absolute"),
        flag("operand_order"),
    ),
)
