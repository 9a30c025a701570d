"""Diffusion with a U-Net of diffusers, and a port of its noise schedule, its loss, its clipping and its optimizer."""

from __future__ import annotations

import math

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from torch import Tensor, nn
from torch.nn import functional

from port_programs.program import Network, Program, Truth, generator


def _network() -> nn.Module:
    return UNet2DModel(
        sample_size=8,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=8,
    ).train()


def _data() -> tuple[Tensor, Tensor, Tensor]:
    drawn = generator()
    images = torch.randn(2, 3, 8, 8, generator=drawn, dtype=torch.float32).to(torch.get_default_dtype())
    noise = torch.randn(2, 3, 8, 8, generator=drawn, dtype=torch.float32).to(torch.get_default_dtype())
    return images, noise, torch.tensor([100, 700])


def reference() -> Program:
    model = _network()
    images, noise, times = _data()
    scheduler = DDPMScheduler(1000, beta_schedule="squaredcos_cap_v2", prediction_type="v_prediction")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, foreach=False)
    rates = get_cosine_schedule_with_warmup(optimizer, 2, 10)

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            noisy = scheduler.add_noise(images, noise, times)  # place: ddpm_t
            prediction = model(noisy, times).sample
            velocity = scheduler.get_velocity(images, noise, times)  # place: ddpm_v
            loss = functional.mse_loss(prediction, velocity)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            rates.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    return Program(model, train)


def _kept_shares() -> Tensor:
    """Return the share of the image that is kept at each time."""
    angles = [(time / 1000 + 0.008) / 1.008 * math.pi / 2 for time in range(1001)]
    shares = [math.cos(angle) ** 2 for angle in angles]
    betas = torch.tensor([min(1 - shares[time + 1] / shares[time], 0.999) for time in range(1000)], dtype=torch.float32)
    return torch.cumprod(1 - betas, 0)


class Updates:
    """AdamW, clipping and the learning rate by hand."""

    def __init__(self, model: nn.Module, fault: str) -> None:
        self.fault = fault
        self.parameters = list(model.parameters())
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]

    def _rate(self, step: int) -> float:
        if self.fault == "lr":
            step = step + 1  # planted: ddpm_lr
        return 1e-3 * (step / 2 if step < 2 else 0.5 * (1 + math.cos(math.pi * (step - 2) / 8)))

    def update(self, step: int) -> None:
        """Update all parameters by their gradients."""
        norm = torch.stack([parameter.grad.norm() for parameter in self.parameters]).norm()
        scale = (0.5 / (norm + 1e-6)).clamp(max=1.0)
        rate = self._rate(step)
        with torch.no_grad():
            for parameter, mean, square in zip(self.parameters, self.means, self.squares):
                gradient = parameter.grad * scale
                if self.fault == "l2":
                    gradient = gradient + 1e-2 * parameter  # planted: ddpm_l2
                else:
                    parameter.mul_(1 - rate * 1e-2)  # place: ddpm_lr
                mean.lerp_(gradient, 0.1)  # place: ddpm_l2
                square.mul_(0.999).add_(gradient * gradient * 0.001)  # place: ddpm_l2
                deviation = (square / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
                parameter.add_(mean / deviation, alpha=-rate / (1 - 0.9 ** (step + 1)))  # place: ddpm_lr
                parameter.grad = None


def port(fault: str) -> Program:
    model = _network()
    images, noise, times = _data()
    updates = Updates(model, fault)
    shares = _kept_shares().to(images.dtype)

    def train(steps: int) -> list[float]:
        losses = []
        for step in range(steps):
            shifted = times - 1 if fault == "t" else times  # planted: ddpm_t
            share = shares[shifted].view(-1, 1, 1, 1)  # place: ddpm_t
            noisy = torch.sqrt(share) * images + torch.sqrt(1 - share) * noise  # place: ddpm_t
            prediction = model(noisy, times, return_dict=False)[0]
            if fault == "v":
                velocity = torch.sqrt(share) * noise + torch.sqrt(1 - share) * images  # planted: ddpm_v
            else:
                velocity = torch.sqrt(share) * noise - torch.sqrt(1 - share) * images
            loss = (prediction - velocity).pow(2).mean()  # place: ddpm_v
            loss.backward()
            updates.update(step)
            losses.append(loss.item())
        return losses

    return Program(model, train)


NETWORK = Network(
    "ddpm",
    reference,
    port,
    {
        "t": Truth(readers=("conv_in", "")),
        "v": Truth(visible=False),
        "l2": Truth(visible=False),
        "lr": Truth(visible=False),
    },
)
