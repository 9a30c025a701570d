"""CLIP of transformers with its contrastive loss, and a port with `nn.MultiheadAttention` and patches by reshaping."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

from port_programs.program import (
    Network,
    Program,
    Truth,
    generator,
    parameter_of,
    train_clearing_before_backward,
    train_clearing_first,
    with_state,
)

#: With this token at the end of texts, transformers pools at the largest token, as the first checkpoints did.
_LEGACY_END = 2


def _data(end: int) -> tuple[Tensor, Tensor]:
    drawn = generator()
    tokens = torch.randint(3, 29, (4, 7), generator=drawn)
    tokens[:, -1] = end
    images = torch.randn(4, 3, 16, 16, generator=drawn, dtype=torch.float32)
    return tokens, images.to(torch.get_default_dtype())


def _source(end: int) -> nn.Module:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "projection_dim": 24,
    }
    text = CLIPTextConfig(
        **sizes, vocab_size=30, max_position_embeddings=8, eos_token_id=end, bos_token_id=0, pad_token_id=1
    )
    vision = CLIPVisionConfig(**sizes, image_size=16, patch_size=8)
    model = CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=24))
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(0.05 * torch.randn_like(parameter))
        elif parameter.ndim >= 2:
            parameter.data.mul_(5)
    return model.train()


def reference(end: int) -> Program:
    model = _source(end)
    tokens, images = _data(end)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of() -> Tensor:
        return model(input_ids=tokens, pixel_values=images, return_loss=True).loss

    return Program(model, train_clearing_first(optimizer, loss_of))


class Block(nn.Module):
    """One layer of either tower."""

    def __init__(self, layer: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        source = layer.self_attn
        projections = (source.q_proj, source.k_proj, source.v_proj)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.attention.in_proj_weight.data = torch.cat([each.weight for each in projections]).detach().clone()
        self.attention.in_proj_bias.data = torch.cat([each.bias for each in projections]).detach().clone()
        with_state(self.attention.out_proj, source.out_proj)
        self.norm1 = with_state(nn.LayerNorm(32), layer.layer_norm1)
        self.norm2 = with_state(nn.LayerNorm(32), layer.layer_norm2)
        self.expand = with_state(nn.Linear(32, 48), layer.mlp.fc1)
        self.contract = with_state(nn.Linear(48, 32), layer.mlp.fc2)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        normed = self.norm1(hidden)
        hidden = hidden + self.attention(normed, normed, normed, need_weights=False, attn_mask=mask)[0]
        inner = self.expand(self.norm2(hidden))
        if self.fault == "gelu":
            inner = functional.gelu(inner)  # planted: clip_gelu
        else:
            inner = inner * torch.sigmoid(1.702 * inner)
        return hidden + self.contract(inner)


class Port(nn.Module):
    """The port; it returns the loss."""

    def __init__(self, source: nn.Module, end: int, fault: str) -> None:
        super().__init__()
        self.end, self.fault = end, fault
        text, vision = source.text_model, source.vision_model
        self.tokens = parameter_of(text.embeddings.token_embedding.weight)
        self.text_positions = parameter_of(text.embeddings.position_embedding.weight)
        self.text_blocks = nn.ModuleList(Block(layer, "") for layer in text.encoder.layers)
        self.text_norm = with_state(nn.LayerNorm(32), text.final_layer_norm)
        self.text_projection = parameter_of(source.text_projection.weight.t())
        self.patches = nn.Linear(192, 32, bias=False)
        self.patches.weight.data = vision.embeddings.patch_embedding.weight.detach().flatten(1).clone()
        self.class_vector = parameter_of(vision.embeddings.class_embedding)
        self.image_positions = parameter_of(vision.embeddings.position_embedding.weight)
        self.norm_before = with_state(nn.LayerNorm(32), vision.pre_layrnorm)
        self.norm_after = with_state(nn.LayerNorm(32), vision.post_layernorm)
        layers = vision.encoder.layers
        self.image_blocks = nn.ModuleList(Block(layer, fault if layer is layers[1] else "") for layer in layers)
        self.image_projection = parameter_of(source.visual_projection.weight.t())
        self.scale = parameter_of(source.logit_scale)

    def _texts(self, tokens: Tensor) -> Tensor:
        batch, length = tokens.shape
        hidden = self.tokens[tokens] + self.text_positions[:length]
        mask = torch.full((length, length), float("-inf")).triu(1)
        for block in self.text_blocks:
            hidden = block(hidden, mask)
        ends = tokens.argmax(-1) if self.end == _LEGACY_END else (tokens == self.end).int().argmax(-1)
        return self.text_norm(hidden)[torch.arange(batch), ends] @ self.text_projection

    def _images(self, images: Tensor) -> Tensor:
        batch = len(images)
        parts = images.reshape(batch, 3, 2, 8, 2, 8).permute(0, 2, 4, 1, 3, 5).reshape(batch, 4, 192)
        hidden = torch.cat([self.class_vector.expand(batch, 1, -1), self.patches(parts)], 1) + self.image_positions
        hidden = self.norm_before(hidden)
        for block in self.image_blocks:
            hidden = block(hidden)
        return self.norm_after(hidden[:, 0]) @ self.image_projection

    def forward(self, tokens: Tensor, images: Tensor) -> Tensor:
        texts = functional.normalize(self._texts(tokens), dim=-1)
        pictures = functional.normalize(self._images(images), dim=-1)
        logits = self.scale.exp() * pictures @ texts.T
        labels = torch.arange(len(logits))
        if self.fault == "loss":
            return functional.cross_entropy(logits, labels)  # planted: clip_loss
        return (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)) / 2


def port(end: int, fault: str) -> Program:
    model = Port(_source(end), end, fault)
    tokens, images = _data(end)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Program(model, train_clearing_before_backward(optimizer, lambda: model(tokens, images)))


NETWORK = Network(
    "clip",
    partial(reference, 29),
    partial(port, 29),
    {
        "gelu": Truth(
            modules=(r"vision_model\.encoder\.layers\.1\.mlp(\.activation_fn)?",),
            readers=(r"image_blocks\.1\.contract", r"vision_model\.encoder\.layers\.1\.mlp\.fc2"),
        ),
        "loss": Truth(
            operators=(r":aten::(_?log_softmax|nll_loss_forward|cross_entropy_loss|t|transpose|add|div)",),
            readers=("",),
        ),
    },
)
NETWORK_OF_LARGEST_TOKEN = Network("clip_largest_token", partial(reference, _LEGACY_END), partial(port, _LEGACY_END))
