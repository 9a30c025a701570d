"""Hand-written networks of images; their flags choose another style or plant a fault."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from program_pairs.case import network
from program_pairs.optimizers import adamw, sgd
from program_pairs.program import Batch, Program
from program_pairs.training import LoopOptions

Flags = frozenset[str]


class ResidualUnit(nn.Module):
    """Two convolutions with batch norm, squeeze and excitation."""

    def __init__(self, channels: int, flags: Flags) -> None:
        super().__init__()
        self.flags = flags
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.squeeze, self.excite = nn.Linear(channels, 4), nn.Linear(4, channels)

    def _weights(self, x: Tensor) -> Tensor:
        if "conv_maximum" in self.flags:
            pooled = x.amax((2, 3))  # planted: conv_maximum
        else:
            pooled = x.mean((2, 3))
        raw = self.excite(torch.relu(self.squeeze(pooled)))
        if "conv_softmax_gate" in self.flags:
            return torch.softmax(raw, -1)  # planted: conv_softmax_gate
        return torch.sigmoid(raw)

    def forward(self, x: Tensor) -> Tensor:
        if "conv_norm_after_activation" in self.flags:
            inside = self.bn1(torch.relu(self.conv1(x)))  # planted: conv_norm_after_activation
        else:
            inside = torch.relu(self.bn1(self.conv1(x)))
        if "conv_same_norm" in self.flags:
            inside = self.bn1(self.conv2(inside))  # planted: conv_same_norm
        else:
            inside = self.bn2(self.conv2(inside))
        inside = inside * self._weights(inside)[:, :, None, None]
        if "conv_in_place_lost" in self.flags:
            inside.add(x)  # planted: conv_in_place_lost
            return torch.relu(inside)  # planted: conv_in_place_lost
        if "operand_order" in self.flags:
            return torch.relu(inside + x)
        return torch.relu(x + inside)


class ConvNet(nn.Module):
    """A small classifier of images."""

    def __init__(self, flags: Flags) -> None:
        super().__init__()
        self.flags = flags
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.bn = nn.BatchNorm2d(12)
        self.units = nn.ModuleList(ResidualUnit(12, flags) for _ in range(2))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        if "conv_not_normalised" not in self.flags:
            x = (x - 0.5) / 0.25
        else:
            x = x - 0.5  # planted: conv_not_normalised
        if "conv_channels_reversed" in self.flags:
            x = x.flip(1)  # planted: conv_channels_reversed
        x = self.pool(torch.relu(self.bn(self.stem(x))))
        for unit in self.units:
            x = unit(x)
        if "conv_mean_of_rows" in self.flags:
            return self.head(x.mean(2).amax(2))  # planted: conv_mean_of_rows
        if "library_pool" in self.flags:
            return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return self.head(x.mean((2, 3)))


@network("own_convnet")
def own_convnet(flags: Flags) -> Program:
    batches: list[Batch] = [
        {"image": torch.rand(4, 3, 12, 12), "labels": torch.randint(0, 6, (4,))} for _step in range(2)
    ]

    def forward(model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(batch["image"])  # place: network_call
        return logits

    def criterion(logits: Tensor, batch: Batch) -> Tensor:
        return functional.cross_entropy(logits, batch["labels"])

    return Program(ConvNet(flags), batches, forward, criterion, sgd(lr=0.1, weight_decay=5e-3, groups="two"))


class MixerLayer(nn.Module):
    """Mixing of patches, then of channels."""

    def __init__(self, patches: int, width: int, flags: Flags) -> None:
        super().__init__()
        self.flags = flags
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.patches1, self.patches2 = nn.Linear(patches, 24), nn.Linear(24, patches)
        self.channels1, self.channels2 = nn.Linear(width, 48), nn.Linear(48, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        if "einsum_mixing" in self.flags:
            inner = functional.gelu(torch.einsum("bpc,hp->bch", normed, self.patches1.weight) + self.patches1.bias)
            x = x + torch.einsum("bch,ph->bpc", inner, self.patches2.weight) + self.patches2.bias[:, None]
        else:
            mixed = self.patches2(functional.gelu(self.patches1(normed.transpose(1, 2))))
            if "mixer_not_transposed" in self.flags:
                x = x + mixed.reshape(x.shape)  # planted: mixer_not_transposed
            else:
                x = x + mixed.transpose(1, 2)
        if "mixer_activation_lost" in self.flags:
            return x + self.channels2(self.channels1(self.norm2(x)))  # planted: mixer_activation_lost
        if "mixer_post_norm" in self.flags:
            return self.norm2(x + self.channels2(functional.gelu(self.channels1(x))))  # planted: mixer_post_norm
        return x + self.channels2(functional.gelu(self.channels1(self.norm2(x))))


class OwnMixer(nn.Module):
    """An MLP-Mixer that restores masked images."""

    def __init__(self, flags: Flags) -> None:
        super().__init__()
        self.flags = flags
        self.patch = nn.Conv2d(3, 20, 4, stride=4)
        self.layers = nn.ModuleList(MixerLayer(16, 20, flags) for _ in range(2))
        self.norm = nn.LayerNorm(20)
        self.restore = nn.Linear(20, 48)

    def forward(self, image: Tensor) -> Tensor:
        if "reshaped_patches" in self.flags:
            parts = image.reshape(-1, 3, 4, 4, 4, 4).permute(0, 2, 4, 1, 3, 5).reshape(-1, 16, 48)
            x = parts @ self.patch.weight.reshape(20, 48).t() + self.patch.bias
        elif "mixer_patches_swapped" in self.flags:
            parts = image.reshape(-1, 3, 4, 4, 4, 4).permute(0, 2, 4, 1, 5, 3)  # planted: mixer_patches_swapped
            parts = parts.reshape(-1, 16, 48)
            x = parts @ self.patch.weight.reshape(20, 48).t() + self.patch.bias  # planted: mixer_patches_swapped
        else:
            x = self.patch(image).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.restore(self.norm(x))


@network("own_mixer")
def own_mixer(flags: Flags) -> Program:
    batches: list[Batch] = []
    for _ in range(2):
        image = torch.randn(3, 3, 16, 16)
        target = image.reshape(-1, 3, 4, 4, 4, 4).permute(0, 2, 4, 1, 3, 5).reshape(-1, 16, 48)
        batches.append({"image": image * (torch.rand(3, 1, 16, 16) > 0.3), "target": target})

    def forward(model: nn.Module, batch: Batch) -> Tensor:
        output: Tensor = model(batch["image"])  # place: network_call
        return output

    def criterion(output: Tensor, batch: Batch) -> Tensor:
        return functional.mse_loss(output, batch["target"])

    return Program(OwnMixer(flags), batches, forward, criterion, sgd(lr=0.1))


class VAE(nn.Module):
    """A variational autoencoder whose noise is given."""

    def __init__(self, flags: Flags) -> None:
        super().__init__()
        self.flags = flags
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.SiLU()
        )
        self.moments = nn.Linear(64, 12)
        self.expand = nn.Linear(6, 64)
        self.decoder = nn.Sequential(nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1))

    def forward(self, image: Tensor, noise: Tensor) -> Tensor:
        features = self.encoder(image).flatten(1)
        mean, log_variance = self.moments(features).chunk(2, -1)
        if "vae_deviation" in self.flags:
            latent = mean + noise * torch.exp(log_variance)  # planted: vae_deviation
        elif "vae_no_noise" in self.flags:
            latent = mean + 0.0 * noise  # planted: vae_no_noise
        elif "vae_detached" in self.flags:
            latent = mean + noise * torch.exp(0.5 * log_variance).detach()  # planted: vae_detached
        elif "operand_order" in self.flags:
            latent = torch.sqrt(torch.exp(log_variance)) * noise + mean
        else:
            latent = mean + noise * torch.exp(0.5 * log_variance)
        image = self.decoder(self.expand(latent).view(-1, 16, 2, 2))
        if "vae_output_activated" in self.flags:
            image = torch.sigmoid(image)  # planted: vae_output_activated
        return torch.cat((image.flatten(1), mean, log_variance), -1)


def _vae_loss(output: Tensor, batch: Batch, flags: Flags) -> Tensor:
    image, mean, log_variance = output.split((64, 6, 6), -1)
    target = batch["image"].flatten(1)
    if "own_functions" in flags:
        error = (torch.relu(image) - image * target + torch.log1p(torch.exp(-image.abs()))).sum(-1).mean()
    else:
        error = functional.binary_cross_entropy_with_logits(image, target, reduction="none").sum(-1).mean()
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp())
    if "vae_divergence_mean" in flags:
        return error + divergence.mean()  # planted: vae_divergence_mean
    if "vae_divergence_sign" in flags:
        return error - divergence.sum(-1).mean()  # planted: vae_divergence_sign
    if "vae_divergence_lost" in flags:
        return error + 0.0 * divergence.sum()  # planted: vae_divergence_lost
    return error + divergence.sum(-1).mean()


@network("own_vae")
def own_vae(flags: Flags) -> Program:
    batches: list[Batch] = [{"image": torch.rand(4, 1, 8, 8), "noise": torch.randn(4, 6)} for _step in range(2)]

    def forward(model: nn.Module, batch: Batch) -> Tensor:
        output: Tensor = model(batch["image"], batch["noise"])  # place: network_call
        return output

    return Program(
        VAE(flags),
        batches,
        forward,
        lambda output, batch: _vae_loss(output, batch, flags),
        adamw(lr=2e-3, groups="one", weight_decay=0.05),
    )


class GAN(nn.Module):
    """A generator and a discriminator in one module."""

    def __init__(self, flags: Flags) -> None:
        super().__init__()
        self.flags = flags
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 36), nn.Tanh())
        self.discriminator = nn.Sequential(
            nn.Linear(36, 32), nn.LeakyReLU(0.2), nn.Linear(32, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)
        )

    def forward(self, real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = self.generator(noise)
        of_real = self.discriminator(real)
        if "gan_not_detached" in self.flags:
            of_made = self.discriminator(made * 1.0)
        else:
            of_made = self.discriminator(made.detach())
        return of_real, of_made, self.discriminator(made)


def _gan_loop(program: Program, flags: Flags) -> list[Tensor]:
    model: Any = program.model
    discriminator = torch.optim.Adam(model.discriminator.parameters(), lr=2e-3, betas=(0.5, 0.99))
    first = 0.9 if "gan_first_beta" in flags else 0.5
    generator = torch.optim.Adam(model.generator.parameters(), lr=1e-3, betas=(first, 0.99))
    losses = []
    entropy = functional.binary_cross_entropy_with_logits
    for batch in program.batches:
        of_real, of_made, of_fooled = model(batch["real"], batch["noise"])  # place: network_call
        if "own_functions" in flags:
            loss_of_discriminator = functional.softplus(-of_real).mean() + functional.softplus(of_made).mean()
            loss_of_generator = -functional.logsigmoid(of_fooled).mean()
        else:
            ones, zeros = torch.ones_like(of_real), torch.zeros_like(of_real)
            if "gan_smooth_labels" in flags:
                ones = ones * 0.9  # planted: gan_smooth_labels
            loss_of_discriminator = entropy(of_real, ones) + entropy(of_made, zeros)  # planted: gan_smooth_labels
            loss_of_generator = entropy(of_fooled, torch.ones_like(of_real))
        if "gan_saturating" in flags:
            loss_of_generator = -entropy(of_fooled, torch.zeros_like(of_fooled))  # planted: gan_saturating
        if "gan_labels_swapped" in flags:
            loss_of_discriminator = entropy(of_real, zeros) + entropy(of_made, ones)  # planted: gan_labels_swapped
        generator.zero_grad()
        discriminator.zero_grad()
        loss_of_generator.backward(retain_graph=True)
        if "gan_gradient_kept" not in flags:
            discriminator.zero_grad()
        loss_of_discriminator.backward()  # planted: gan_gradient_kept gan_not_detached
        discriminator.step()  # planted: gan_gradient_kept
        generator.step()  # planted: gan_first_beta gan_not_detached
        losses.append((loss_of_discriminator + loss_of_generator).detach())
        program.outputs.append(of_fooled.detach().clone())
    return losses


@network("own_gan")
def own_gan(flags: Flags) -> Program:
    batches: list[Batch] = [{"real": torch.rand(6, 36) * 2 - 1, "noise": torch.randn(6, 8)} for _step in range(2)]
    return Program(
        GAN(flags), batches, lambda model, batch: model(**batch)[2], loop=lambda program: _gan_loop(program, flags)
    )


class Denoiser(nn.Module):
    """A small network that predicts the noise of an image."""

    def __init__(self, flags: Flags) -> None:
        super().__init__()
        self.flags = flags
        self.time1, self.time2 = nn.Linear(16, 24), nn.Linear(24, 24)
        self.enter, self.middle, self.leave = (
            nn.Conv2d(1, 12, 3, padding=1),
            nn.Conv2d(12, 12, 3, padding=1),
            nn.Conv2d(24, 1, 3, padding=1),
        )
        self.norm = nn.GroupNorm(3, 12)

    def _time(self, time: Tensor, dtype: torch.dtype) -> Tensor:
        rates = torch.exp(-math.log(1e4) * torch.arange(8, dtype=dtype) / 8)
        if "diffusion_rates" in self.flags:
            rates = torch.exp(-math.log(1e4) * torch.arange(8, dtype=dtype) / 7)  # planted: diffusion_rates
        angles = time.to(dtype)[:, None] * rates
        if "diffusion_sin_and_cos" in self.flags:
            return torch.cat((angles.cos(), angles.sin()), -1)  # planted: diffusion_sin_and_cos
        return torch.cat((angles.sin(), angles.cos()), -1)

    def forward(self, image: Tensor, time: Tensor) -> Tensor:
        embedded = self.time2(functional.silu(self.time1(self._time(time, image.dtype))))
        scale, shift = embedded.chunk(2, -1)
        first = functional.silu(self.enter(image))
        normed = self.norm(self.middle(first))
        if "diffusion_scale_and_shift" in self.flags:
            scale, shift = shift, scale
        if "diffusion_one_plus_lost" in self.flags:
            inside = normed * scale[..., None, None] + shift[..., None, None]  # planted: diffusion_one_plus_lost
        elif "operand_order" in self.flags:
            inside = shift[..., None, None] + (1 + scale[..., None, None]) * normed
        else:
            inside = (
                normed * (1 + scale[..., None, None]) + shift[..., None, None]
            )  # planted: diffusion_scale_and_shift
        if "diffusion_skip_order" in self.flags:
            return self.leave(torch.cat((first, functional.silu(inside)), 1))  # planted: diffusion_skip_order
        return self.leave(torch.cat((functional.silu(inside), first), 1))


class Diffusion(nn.Module):
    """The noise schedule around the denoiser: noises an image, and denoises it."""

    def __init__(self, flags: Flags) -> None:
        super().__init__()
        self.flags = flags
        self.denoiser = Denoiser(flags)
        betas = torch.linspace(1e-3, 0.2, 20)
        if "diffusion_squared_schedule" in flags:
            betas = torch.linspace(1e-3**0.5, 0.2**0.5, 20).square()
        if "loop_of_products" in flags:
            kept = torch.tensor(list(itertools.accumulate((1 - betas).tolist(), lambda a, b: a * b)))
        else:
            kept = torch.cumprod(1 - betas, 0)
        self.kept = nn.Buffer(kept)

    def forward(self, image: Tensor, noise: Tensor, time: Tensor) -> Tensor:
        index = time
        if "diffusion_time_off_by_one" in self.flags:
            index = (time - 1).clamp(min=0)  # planted: diffusion_time_off_by_one
        kept = self.kept[index].view(-1, 1, 1, 1)  # planted: diffusion_squared_schedule diffusion_time_off_by_one
        if "diffusion_no_root" in self.flags:
            noised = kept * image + (1 - kept) * noise  # planted: diffusion_no_root
        else:
            noised = kept.sqrt() * image + (1 - kept).sqrt() * noise  # planted: diffusion_squared_schedule
        return self.denoiser(noised, time)


@network("own_diffusion")
def own_diffusion(flags: Flags) -> Program:
    batches: list[Batch] = []
    for _ in range(2):
        noise = torch.randn(4, 1, 8, 8)
        batches.append(
            {"image": torch.randn(4, 1, 8, 8), "noise": noise, "time": torch.randint(0, 20, (4,)), "target": noise}
        )

    def forward(model: nn.Module, batch: Batch) -> Tensor:
        output: Tensor = model(batch["image"], batch["noise"], batch["time"])  # place: network_call
        return output

    def criterion(output: Tensor, batch: Batch) -> Tensor:
        if "diffusion_target" in flags:
            return functional.mse_loss(output, batch["image"])  # planted: diffusion_target
        return functional.mse_loss(output, batch["target"])

    program = Program(Diffusion(flags), batches, forward, criterion, adamw(lr=3e-3), options=LoopOptions(max_norm=1.0))
    program.average = copy.deepcopy(program.model)
    return program
