"""AutoencoderKL of diffusers as a variational autoencoder, and a port with convolutions and norms as functions."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn
from torch.nn import functional

from port_programs.program import (
    Network,
    Program,
    Truth,
    generator,
    normal,
    shaken,
    train_clearing_before_backward,
    train_clearing_first,
)

_GROUPS = 4


class Variational(nn.Module):
    """The reference; it returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.vae = AutoencoderKL(
            in_channels=3,
            out_channels=3,
            down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
            up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
            block_out_channels=(8, 16),
            layers_per_block=1,
            latent_channels=2,
            norm_num_groups=_GROUPS,
            sample_size=8,
        )

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        posterior = self.vae.encode(images).latent_dist
        latent = posterior.mean + posterior.std * noise  # place: image_vae_std
        made = self.vae.decode(latent).sample
        return functional.l1_loss(made, images) + 0.1 * posterior.kl().mean()  # place: image_vae_kl


def _source() -> nn.Module:
    return shaken(Variational()).train()


def _data() -> tuple[Tensor, Tensor]:
    drawn = generator()
    return normal(drawn, 2, 3, 8, 8), normal(drawn, 2, 2, 4, 4)


def reference() -> Program:
    model = _source()
    images, noise = _data()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Program(model, train_clearing_first(optimizer, lambda: model(images, noise)))


class Tensors(nn.Module):
    """Parameters of the source by short names."""

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.names = {name: name.replace(".", "_") for name, _ in source.named_parameters()}
        for name, parameter in source.named_parameters():
            self.register_parameter(self.names[name], parameter)

    def convolve(self, x: Tensor, name: str) -> Tensor:
        """Convolve without changing the size."""
        weight = getattr(self, f"{name}_weight")
        return functional.conv2d(x, weight, getattr(self, f"{name}_bias"), padding=weight.shape[-1] // 2)

    def activate(self, x: Tensor, name: str, is_interleaved: bool = False) -> Tensor:
        """Group norm and SiLU."""
        normed = self.normalize(x, name, is_interleaved)
        return normed * normed.sigmoid()

    def normalize(self, x: Tensor, name: str, is_interleaved: bool = False) -> Tensor:
        """Group norm by mean and deviation."""
        if is_interleaved:
            parts = x.unflatten(1, (-1, _GROUPS)).transpose(1, 2)  # planted: image_vae_groups
        else:
            parts = x.unflatten(1, (_GROUPS, -1))
        deviation, mean = torch.std_mean(parts, (2, 3, 4), correction=0, keepdim=True)
        parts = (parts - mean) / torch.sqrt(deviation**2 + 1e-6)  # place: image_vae_groups
        if is_interleaved:
            parts = parts.transpose(1, 2)  # planted: image_vae_groups
        gain, shift = getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias")
        return parts.flatten(1, 2) * gain.view(-1, 1, 1) + shift.view(-1, 1, 1)  # place: image_vae_groups


class Residual(Tensors):
    """Two convolutions, and a shortcut if the channels change."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolve(self.activate(x, "norm1"), "conv1")
        y = self.convolve(self.activate(y, "norm2"), "conv2")
        return y + (self.convolve(x, "conv_shortcut") if "conv_shortcut.weight" in self.names else x)


class Pixels(Tensors):
    """Attention of one head between pixels."""

    axis = -1

    def forward(self, x: Tensor) -> Tensor:
        flat = self.normalize(x, "group_norm").flatten(2)
        query, key, value = (
            getattr(self, f"to_{name}_weight") @ flat + getattr(self, f"to_{name}_bias")[:, None] for name in "qkv"
        )
        scores = query.mT @ key / query.shape[1] ** 0.5
        probabilities = scores.softmax(self.axis)  # planted: image_vae_axis
        mixed = self.to_out_0_weight @ (value @ probabilities.mT) + self.to_out_0_bias[:, None]
        return x + mixed.view_as(x)


class Middle(nn.Sequential):
    """The parts at the lowest resolution."""

    def __init__(self, source: nn.Module) -> None:
        super().__init__(Residual(source.resnets[0]), Pixels(source.attentions[0]), Residual(source.resnets[1]))


class Port(Tensors):
    """The port; it returns the loss. Its own tensors are the convolutions between the blocks."""

    def __init__(self, source: nn.Module, fault: str) -> None:
        encoder, decoder = source.encoder, source.decoder
        super().__init__(
            nn.ModuleDict(
                {
                    "image": encoder.conv_in,
                    "shrink": encoder.down_blocks[0].downsamplers[0].conv,
                    "statistics_norm": encoder.conv_norm_out,
                    "statistics": encoder.conv_out,
                    "quantized": source.quant_conv,
                    "dequantized": source.post_quant_conv,
                    "latent": decoder.conv_in,
                    "grow": decoder.up_blocks[0].upsamplers[0].conv,
                    "pixels_norm": decoder.conv_norm_out,
                    "pixels": decoder.conv_out,
                }
            )
        )
        self.fault = fault
        self.large, self.small = (Residual(encoder.down_blocks[level].resnets[0]) for level in (0, 1))
        self.code, self.decode = Middle(encoder.mid_block), Middle(decoder.mid_block)
        if fault == "axis":
            self.decode[1].axis = -2
        self.growing = nn.ModuleList(nn.Sequential(*map(Residual, block.resnets)) for block in decoder.up_blocks)

    def _encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.large(self.convolve(images, "image"))
        if self.fault == "padding":
            x = functional.conv2d(x, self.shrink_weight, self.shrink_bias, 2, 1)  # planted: image_vae_padding
        else:
            x = functional.conv2d(functional.pad(x, (0, 1, 0, 1)), self.shrink_weight, self.shrink_bias, 2)
        x = self.code(self.small(x))
        return self.convolve(self.convolve(self.activate(x, "statistics_norm"), "statistics"), "quantized").chunk(2, 1)

    def _decode(self, latent: Tensor) -> Tensor:
        x = self.decode(self.convolve(self.convolve(latent, "dequantized"), "latent"))
        x = self.growing[0](x)
        if self.fault == "growing":
            x = functional.interpolate(x, scale_factor=2, mode="bilinear")  # planted: image_vae_growing
        else:
            x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
        x = self.growing[1](self.convolve(x, "grow"))  # place: image_vae_growing
        return self.convolve(self.activate(x, "pixels_norm", self.fault == "groups"), "pixels")

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        mean, logarithm = self._encode(images)
        deviation = logarithm.exp() if self.fault == "std" else (logarithm / 2).exp()  # planted: image_vae_std
        made = self._decode(mean + deviation * noise)  # place: image_vae_std
        terms = mean**2 + logarithm.exp() - 1 - logarithm
        if self.fault == "kl":
            divergence = terms.mean() / 2  # planted: image_vae_kl
        else:
            divergence = terms.flatten(1).sum(1).mean() / 2
        return (made - images).abs().mean() + 0.1 * divergence  # place: image_vae_kl


def port(fault: str) -> Program:
    model = Port(_source().vae, fault)
    images, noise = _data()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Program(model, train_clearing_before_backward(optimizer, lambda: model(images, noise)))


_ATTENTION = r"vae\.decoder\.mid_block\.attentions\.0"
NETWORK = Network(
    "image_vae",
    reference,
    port,
    {
        "padding": Truth(
            modules=(r"vae\.encoder\.down_blocks\.0\.downsamplers\.0(\.conv)?",), readers=("", "small", "large")
        ),
        "groups": Truth(modules=(r"vae\.decoder\.conv_norm_out",), readers=("", r"vae\.decoder\.conv_(act|out)")),
        "growing": Truth(
            modules=(r"vae\.decoder\.up_blocks\.0\.upsamplers\.0",),
            readers=(r"growing\.1(\.0)?", r"vae\.decoder\.up_blocks\.0\.upsamplers\.0\.conv"),
        ),
        "std": Truth(
            operators=(r"vae:aten::exp|:aten::(exp|mul|add)",),
            readers=(r"decode", r"decode\.0", r"vae\.post_quant_conv"),
        ),
        "axis": Truth(
            modules=(_ATTENTION,),
            within=(r"decode\.1", _ATTENTION),
            readers=(r"decode\.1", _ATTENTION + r"\.to_out\.0"),
        ),
        "kl": Truth(operators=(r":aten::(sum|mean|mul|add)",), readers=("",), visible=False),
    },
)
