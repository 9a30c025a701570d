"""Own forward functions of whole blocks, for faults of the wiring and harmless rewrites."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from program_pairs.case import Edit, Truth
from program_pairs.edits._swap import short
from program_pairs.program import Program

Forward = Callable[..., Any]


def _llama(self: Any, flaw: str) -> Forward:
    def forward(hidden_states: Tensor, **others: Any) -> Tensor:
        normed = self.input_layernorm(hidden_states)
        attended, _ = self.self_attn(hidden_states=normed, **others)
        if flaw == "normed_residual":
            middle = normed + attended  # planted: block_normed_residual
        elif flaw == "residual_lost":
            middle = attended  # planted: block_residual_lost
        elif flaw == "residual_detached":
            middle = attended + hidden_states.detach()  # planted: block_residual_detached
        else:
            middle = attended + hidden_states
        if flaw == "norm_skipped":
            return self.mlp(middle) + middle  # planted: block_norm_skipped
        if flaw == "parallel":
            return self.mlp(self.post_attention_layernorm(hidden_states)) + middle  # planted: block_parallel
        if flaw == "first_residual":
            return self.mlp(self.post_attention_layernorm(middle)) + hidden_states  # planted: block_first_residual
        if flaw == "norms_swapped":
            return self.mlp(self.input_layernorm(middle)) + middle  # planted: block_norms_swapped
        return self.mlp(self.post_attention_layernorm(middle)) + middle

    return forward


def _gemma2(self: Any, flaw: str) -> Forward:
    def forward(hidden_states: Tensor, **others: Any) -> Tensor:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **others)
        if flaw == "norm_skipped":
            middle = attended + hidden_states  # planted: block_norm_skipped
        else:
            middle = self.post_attention_layernorm(attended) + hidden_states
        fed = self.mlp(self.pre_feedforward_layernorm(middle))
        if flaw == "norm_after_add":
            return self.post_feedforward_layernorm(fed + middle)  # planted: block_norm_after_add
        if flaw == "residual_scaled":
            return self.post_feedforward_layernorm(fed) + middle * 0.5  # planted: block_residual_scaled
        return self.post_feedforward_layernorm(fed) + middle

    return forward


def _gpt2(self: Any, flaw: str) -> Forward:
    def forward(hidden_states: Tensor, cache: Any = None, attention_mask: Any = None, *_: Any, **__: Any) -> Tensor:
        normed = self.ln_1(hidden_states)
        attended, _weights = self.attn(normed, cache=cache, attention_mask=attention_mask)
        middle = hidden_states + attended
        if flaw == "normed_residual":
            middle = normed + attended  # planted: block_normed_residual
        second = self.ln_2(middle)
        if flaw == "first_residual":
            return hidden_states + self.mlp(second)  # planted: block_first_residual
        if flaw == "second_normed":
            return second + self.mlp(second)  # planted: block_second_normed
        if flaw == "residual_twice":
            return middle + middle + self.mlp(second)  # planted: block_residual_twice
        return self.mlp(second) + middle

    return forward


def _bert_output(self: Any, flaw: str) -> Forward:
    def forward(hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        dense = self.dense(hidden_states)
        if flaw == "residual_lost":
            return self.LayerNorm(dense)  # planted: block_residual_lost
        if flaw == "norm_before_add":
            return self.LayerNorm(dense) + input_tensor  # planted: block_norm_before_add
        if flaw == "residual_scaled":
            return self.LayerNorm(dense + 0.5 * input_tensor)  # planted: block_residual_scaled
        return self.LayerNorm(input_tensor + dense)

    return forward


def _vit(self: Any, flaw: str) -> Forward:
    def forward(hidden_states: Tensor, attention_mask: Any = None, **others: Any) -> Tensor:
        normed = self.layernorm_before(hidden_states)
        attended, _ = self.attention(normed, attention_mask, **others)
        middle = hidden_states + attended
        if flaw == "norm_skipped":
            return middle + self.mlp(middle)  # planted: block_norm_skipped
        if flaw == "norms_swapped":
            return middle + self.mlp(self.layernorm_before(middle))  # planted: block_norms_swapped
        if flaw == "normed_residual":
            middle = normed + attended  # planted: block_normed_residual
        return middle + self.mlp(self.layernorm_after(middle))

    return forward


def _whisper(self: Any, flaw: str) -> Forward:
    def forward(hidden_states: Tensor, attention_mask: Any = None, **others: Any) -> Tensor:
        attended, _ = self.self_attn(
            hidden_states=self.self_attn_layer_norm(hidden_states), attention_mask=attention_mask, **others
        )
        middle = attended + hidden_states
        second = self.final_layer_norm(middle)
        if flaw == "activation_lost":
            return self.fc2(self.fc1(second)) + middle  # planted: block_activation_lost
        fed = self.fc2(self.activation_fn(self.fc1(second)))
        if flaw == "second_normed":
            return fed + second  # planted: block_second_normed
        if flaw == "first_residual":
            return fed + hidden_states  # planted: block_first_residual
        return fed + middle

    return forward


def _timm_vit(self: Any, flaw: str) -> Forward:
    def forward(x: Tensor, attn_mask: Any = None, **_: Any) -> Tensor:
        middle = self.attn(self.norm1(x)) + x
        if flaw == "norm_skipped":
            return self.mlp(middle) + middle  # planted: block_norm_skipped
        if flaw == "parallel":
            return self.mlp(self.norm2(x)) + middle  # planted: block_parallel
        if flaw == "norms_swapped":
            return self.mlp(self.norm1(middle)) + middle  # planted: block_norms_swapped
        if flaw == "post_norm":
            return self.norm2(self.mlp(middle)) + middle  # planted: block_post_norm
        return self.mlp(self.norm2(middle)) + middle

    return forward


def _resnet(self: Any, flaw: str) -> Forward:
    def forward(x: Tensor) -> Tensor:
        inside = self.act1(self.bn1(self.conv1(x)))
        inside = self.bn2(self.conv2(inside))
        shortcut = x if self.downsample is None else self.downsample(x)
        if flaw == "activation_before_add":
            return self.act2(inside) + shortcut  # planted: block_activation_before_add
        if flaw == "residual_lost":
            return self.act2(inside)  # planted: block_residual_lost
        if flaw == "activation_lost":
            return inside + shortcut  # planted: block_activation_lost
        if flaw == "residual_detached":
            return self.act2(inside + shortcut.detach())  # planted: block_residual_detached
        return self.act2(shortcut + inside)

    return forward


def _convnext(self: Any, flaw: str) -> Forward:
    def forward(x: Tensor) -> Tensor:
        inside = self.mlp(self.norm(self.conv_dw(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        if flaw == "gamma_lost":
            return inside + self.shortcut(x)  # planted: block_gamma_lost
        inside = self.gamma.view(1, -1, 1, 1) * inside
        if flaw == "residual_lost":
            return inside  # planted: block_residual_lost
        if flaw == "gamma_on_residual":
            return inside + self.gamma.view(1, -1, 1, 1) * self.shortcut(x)  # planted: block_gamma_on_residual
        return self.shortcut(x) + inside

    return forward


def _mixer(self: Any, flaw: str) -> Forward:
    def forward(x: Tensor) -> Tensor:
        mixed = self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        middle = mixed + x
        if flaw == "normed_residual":
            middle = mixed + self.norm1(x)  # planted: block_normed_residual
        if flaw == "norms_swapped":
            return self.mlp_channels(self.norm1(middle)) + middle  # planted: block_norms_swapped
        if flaw == "first_residual":
            return self.mlp_channels(self.norm2(middle)) + x  # planted: block_first_residual
        return self.mlp_channels(self.norm2(middle)) + middle

    return forward


def _swin(self: Any, flaw: str) -> Forward:
    def forward(x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        middle = self._attn(self.norm1(x)) + x
        flat = middle.reshape(batch, -1, channels)
        if flaw == "norm_skipped":
            flat = flat + self.mlp(flat)  # planted: block_norm_skipped
        elif flaw == "first_residual":
            flat = self.mlp(self.norm2(flat)) + x.reshape(batch, -1, channels)  # planted: block_first_residual
        else:
            flat = self.mlp(self.norm2(flat)) + flat
        return flat.reshape(batch, height, width, channels)

    return forward


def _resnet_block_of_diffusers(self: Any, flaw: str) -> Forward:
    def forward(input_tensor: Tensor, temb: Any = None, *_: Any, **__: Any) -> Tensor:
        hidden = self.conv1(self.nonlinearity(self.norm1(input_tensor)))
        if temb is not None and self.time_emb_proj is not None:
            if flaw == "time_not_activated":
                hidden = hidden + self.time_emb_proj(temb)[:, :, None, None]  # planted: block_time_not_activated
            elif flaw != "time_lost":
                hidden = self.time_emb_proj(self.nonlinearity(temb))[:, :, None, None] + hidden
        if flaw == "time_lost":
            hidden = self.norm2(hidden)  # planted: block_time_lost
        else:
            hidden = self.norm2(hidden)
        if flaw == "activation_lost":
            hidden = self.conv2(hidden)  # planted: block_activation_lost
        else:
            hidden = self.conv2(self.nonlinearity(hidden))
        shortcut = input_tensor if self.conv_shortcut is None else self.conv_shortcut(input_tensor)
        if flaw == "output_scale":
            return (shortcut + hidden) / 2**0.5  # planted: block_output_scale
        return (hidden + shortcut) / self.output_scale_factor

    return forward


def _t5_feed_forward(self: Any, flaw: str) -> Forward:
    def forward(hidden_states: Tensor) -> Tensor:
        normed = self.layer_norm(hidden_states)
        if flaw == "normed_residual":
            return self.DenseReluDense(normed) + normed  # planted: block_normed_residual
        if flaw == "norm_skipped":
            return self.DenseReluDense(hidden_states) + hidden_states  # planted: block_norm_skipped
        return self.DenseReluDense(normed) + hidden_states

    return forward


def _mamba(self: Any, flaw: str) -> Forward:
    def forward(hidden_states: Tensor, **others: Any) -> Tensor:
        normed = self.norm(hidden_states)
        if flaw == "norm_skipped":
            return hidden_states + self.mixer(hidden_states, **others)  # planted: block_norm_skipped
        if flaw == "normed_residual":
            return normed + self.mixer(normed, **others)  # planted: block_normed_residual
        return self.mixer(normed, **others) + hidden_states

    return forward


_BLOCKS = {
    "llama": _llama,
    "gemma2": _gemma2,
    "gpt2": _gpt2,
    "bert_output": _bert_output,
    "vit": _vit,
    "whisper": _whisper,
    "timm_vit": _timm_vit,
    "resnet": _resnet,
    "convnext": _convnext,
    "mixer": _mixer,
    "swin": _swin,
    "diffusers_resnet": _resnet_block_of_diffusers,
    "t5_feed_forward": _t5_feed_forward,
    "mamba": _mamba,
}


def block(kind: str, where: str, flaw: str = "", consumers: tuple[str, ...] = ()) -> Edit:
    """Replace the forward function of blocks.

    `consumers` are the modules behind the wrong line that read the wrong tensor: an engineer who sees that "the input
    of this module was made from the wrong tensor" is at the right place.
    """

    def apply(program: Program) -> None:
        found = False
        for name, module in program.model.named_modules():
            if re.fullmatch(where, name):
                module.forward = _BLOCKS[kind](module, flaw)
                found = True
        if not found:
            raise LookupError(f"no block matches {where}")

    truth = Truth(modules=(where, *consumers), lines=(f"block_{flaw}",)) if flaw else None
    return Edit(f"block_{flaw}@{short(where)}" if flaw else f"own_block@{short(where)}", apply, truth)


def chunked(where: str) -> Edit:
    """Cut the tokens of the input of a module in two, call it on each, and put the outputs together."""

    def apply(program: Program) -> None:
        for name, module in program.model.named_modules():
            if re.fullmatch(where, name):
                usual = module.forward

                def forward(x: Tensor, *others: Any, usual: Forward = usual, **named: Any) -> Tensor:
                    halves = [usual(part, *others, **named) for part in x.chunk(2, dim=1)]
                    return torch.cat(halves, dim=1)

                module.forward = forward

    return Edit(f"chunked@{short(where)}", apply)
