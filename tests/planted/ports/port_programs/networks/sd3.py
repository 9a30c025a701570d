"""The transformer of Stable Diffusion 3 of diffusers, without training, and a port with two streams in one class."""

from __future__ import annotations

import torch
from diffusers import SD3Transformer2DModel
from torch import Tensor, nn
from torch.nn import functional

from port_programs.program import Network, Program, Truth, generator, infer, normal, shaken

_WIDTH, _HEADS = 32, 4


def _source() -> nn.Module:
    model = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=_WIDTH // _HEADS,
        num_attention_heads=_HEADS,
        joint_attention_dim=24,
        caption_projection_dim=_WIDTH,
        pooled_projection_dim=20,
        out_channels=4,
        pos_embed_max_size=8,
        qk_norm="rms_norm",
    )
    return shaken(model).eval()


def _requests() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    drawn = generator()
    times = torch.tensor([[900.0, 250.0], [700.0, 130.0], [500.0, 10.0]], dtype=torch.float32)
    return normal(drawn, 3, 2, 4, 8, 8), normal(drawn, 3, 2, 5, 24), normal(drawn, 3, 2, 20), times


def reference() -> Program:
    model = _source()
    latents, texts, pooled, times = _requests()

    def output_of(step: int) -> Tensor:
        return model(latents[step], texts[step], pooled[step], times[step], return_dict=False)[0]

    return Program(model, infer(output_of))


def _norm(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Norm without parameters of its own, moved by those of the condition."""
    normed = functional.layer_norm(x, (_WIDTH,), eps=1e-6)
    return torch.addcmul(shift[:, None], normed, 1 + scale[:, None])  # place: sd3_modulation


class Stream(nn.Module):
    """Parameters of images or of texts in a block; the last block has fewer of texts."""

    def __init__(self, modulation: nn.Linear, projections: list[nn.Linear], norms: list[nn.Module]) -> None:
        super().__init__()
        self.modulation = modulation
        self.fused = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.fused.weight.data.copy_(torch.cat([projection.weight for projection in projections]))
        self.fused.bias.data.copy_(torch.cat([projection.bias for projection in projections]))
        self.query_gain, self.key_gain = norms[0].weight, norms[1].weight

    def heads(self, x: Tensor) -> list[Tensor]:
        """Return queries, keys and values."""
        query, key, value = self.fused(x).view(*x.shape[:2], 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        return [
            functional.rms_norm(query, query.shape[-1:], self.query_gain, 1e-6),
            functional.rms_norm(key, key.shape[-1:], self.key_gain, 1e-6),
            value,
        ]


class Joint(nn.Module):
    """One block."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        attention = source.attn
        self.image = Stream(
            source.norm1.linear, [attention.to_q, attention.to_k, attention.to_v], [attention.norm_q, attention.norm_k]
        )
        self.text = Stream(
            source.norm1_context.linear,
            [attention.add_q_proj, attention.add_k_proj, attention.add_v_proj],
            [attention.norm_added_q, attention.norm_added_k],
        )
        self.is_last = source.context_pre_only
        self.image_out, self.image_feed = attention.to_out[0], source.ff
        if not self.is_last:
            self.text_out, self.text_feed = attention.to_add_out, source.ff_context

    def _feed(self, feed: nn.Module, x: Tensor) -> Tensor:
        approximation = "none" if self.fault == "gelu" else "tanh"
        inner = functional.gelu(feed.net[0].proj(x), approximate=approximation)  # planted: sd3_gelu
        return feed.net[2](inner)

    def forward(self, image: Tensor, text: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        shift, scale, gate, shift_feed, scale_feed, gate_feed = self.image.modulation(condition).chunk(6, 1)
        if self.fault == "modulation":
            shift, scale = scale, shift  # planted: sd3_modulation
        queries = self.image.heads(_norm(image, shift, scale))
        of_text = self.text.modulation(condition)
        if self.is_last:
            scale_of_text, shift_of_text = of_text.chunk(2, 1)
        else:
            shift_of_text, scale_of_text, gate_of_text, *others = of_text.chunk(6, 1)
        both = zip(self.text.heads(_norm(text, shift_of_text, scale_of_text)), queries)
        mixed = functional.scaled_dot_product_attention(*(torch.cat(pair, 2) for pair in both))
        mixed = mixed.transpose(1, 2).flatten(2)
        image = image + gate[:, None] * self.image_out(mixed[:, text.shape[1] :])
        image = image + gate_feed[:, None] * self._feed(self.image_feed, _norm(image, shift_feed, scale_feed))
        if not self.is_last:
            text = text + gate_of_text[:, None] * self.text_out(mixed[:, : text.shape[1]])
            text = text + others[2][:, None] * self._feed(self.text_feed, _norm(text, others[0], others[1]))
        return image, text


class Port(nn.Module):
    """The port; it returns the predicted noise."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.patches = nn.Linear(16, _WIDTH)
        self.patches.weight.data.copy_(source.pos_embed.proj.weight.flatten(1))
        self.patches.bias.data.copy_(source.pos_embed.proj.bias)
        self.register_buffer("grid", source.pos_embed.pos_embed.view(8, 8, _WIDTH).clone())
        embedder = source.time_text_embed
        self.time = nn.Sequential(embedder.timestep_embedder.linear_1, nn.SiLU(), embedder.timestep_embedder.linear_2)
        self.pooled = nn.Sequential(embedder.text_embedder.linear_1, nn.SiLU(), embedder.text_embedder.linear_2)
        self.texts = source.context_embedder
        blocks = source.transformer_blocks
        self.blocks = nn.ModuleList(
            Joint(block, fault if block is blocks[0] or fault == "gelu" else "") for block in blocks
        )
        self.last_modulation, self.pixels = source.norm_out.linear, source.proj_out

    def _waves(self, times: Tensor, dtype: torch.dtype) -> Tensor:
        frequencies = 10000.0 ** (-torch.arange(128, dtype=torch.float32) / 128)
        angles = times[:, None] * frequencies
        functions = (torch.sin, torch.cos) if self.fault == "waves" else (torch.cos, torch.sin)
        return torch.cat([function(angles) for function in functions], 1).to(dtype)  # planted: sd3_waves

    def forward(self, latent: Tensor, text: Tensor, pooled: Tensor, times: Tensor) -> Tensor:
        parts = latent.view(-1, 4, 4, 2, 4, 2).permute(0, 2, 4, 1, 3, 5).reshape(-1, 16, 16)
        grid = self.grid[:4, :4] if self.fault == "crop" else self.grid[2:6, 2:6]  # planted: sd3_crop
        image = self.patches(parts) + grid.reshape(16, _WIDTH)  # planted: sd3_crop
        text = self.texts(text)
        condition = functional.silu(self.time(self._waves(times, latent.dtype)) + self.pooled(pooled))
        for block in self.blocks:
            image, text = block(image, text, condition)
        scale, shift = self.last_modulation(condition).chunk(2, 1)
        pixels = self.pixels(_norm(image, shift, scale))
        if self.fault == "pixels":
            pixels = pixels.view(-1, 4, 4, 4, 2, 2).permute(0, 3, 1, 4, 2, 5)  # planted: sd3_pixels
        else:
            pixels = pixels.view(-1, 4, 4, 2, 2, 4).permute(0, 5, 1, 3, 2, 4)
        return pixels.reshape(latent.shape)  # place: sd3_pixels


def port(fault: str) -> Program:
    model = Port(_source(), fault).eval()
    latents, texts, pooled, times = _requests()
    return Program(model, infer(lambda step: model(latents[step], texts[step], pooled[step], times[step])))


NETWORK = Network(
    "sd3",
    reference,
    port,
    {
        "modulation": Truth(
            modules=(r"transformer_blocks\.0\.norm1",),
            within=(r"blocks\.0(\..*)?", r"transformer_blocks\.0\.norm1"),
            readers=(r"blocks\.0\.image(\.fused)?", r"transformer_blocks\.0\.attn\.to_[qkv]"),
        ),
        "gelu": Truth(
            modules=(r"transformer_blocks\.\d\.ff(_context)?\.net\.0",),
            readers=(
                r"blocks\.\d\.(image|text)_feed\.net\.2",
                r"transformer_blocks\.\d\.ff(_context)?\.net\.2",
            ),
        ),
        "waves": Truth(
            modules=(r"time_text_embed\.time_proj",),
            readers=(r"time(\.0)?", r"time_text_embed\.timestep_embedder(\.linear_1)?"),
        ),
        "crop": Truth(
            operators=(r"pos_embed:aten::(add|slice|reshape|clone|view)",),
            within=("", "pos_embed"),
            readers=("pos_embed", r"blocks\.0", r"transformer_blocks\.0(\.norm1(\.norm)?)?"),
        ),
        "pixels": Truth(operators=(r":aten::(einsum|permute|reshape|clone|_unsafe_view|view)",), readers=("",)),
    },
)
