"""A small GAN of transposed convolutions, and a port that spreads pixels and convolves, with another loop."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from port_programs.program import Network, Program, Truth, generator, normal, parameter_of


class Adversaries(nn.Module):
    """The reference; it returns logits of real images, of made ones, and of made ones for the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.painter = nn.Sequential(
            nn.ConvTranspose2d(6, 8, 4, 1, 0, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 1, 4, 2, 1),
            nn.Tanh(),
        )
        self.critic = nn.Sequential(
            nn.Conv2d(1, 4, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4, 8, 4, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.LeakyReLU(0.2),
            nn.Conv2d(8, 1, 4),
        )

    def forward(self, real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = self.painter(noise)
        return self.critic(real).flatten(), self.critic(made.detach()).flatten(), self.critic(made).flatten()


def _data() -> tuple[Tensor, Tensor]:
    drawn = generator()
    return normal(drawn, 6, 1, 16, 16).tanh(), normal(drawn, 6, 6, 1, 1)


def reference() -> Program:
    model = Adversaries()
    real, noise = _data()
    of_painter = torch.optim.Adam(model.painter.parameters(), lr=2e-3, betas=(0.5, 0.999), foreach=False)
    of_critic = torch.optim.Adam(model.critic.parameters(), lr=1e-3, betas=(0.5, 0.999), foreach=False)
    criterion = nn.BCEWithLogitsLoss()

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            on_real, on_made, fooled = model(real, noise)
            ones, zeros = torch.ones_like(on_real), torch.zeros_like(on_made)
            loss_of_painter = criterion(fooled, ones)
            loss_of_critic = (criterion(on_real, ones) + criterion(on_made, zeros)) / 2
            of_painter.zero_grad()
            loss_of_painter.backward(retain_graph=True)
            of_critic.zero_grad()
            loss_of_critic.backward()
            of_painter.step()
            of_critic.step()
            losses += [loss_of_painter.item(), loss_of_critic.item()]
        return losses

    return Program(model, train)


class Spread(nn.Module):
    """A transposed convolution: zeros between pixels, and a convolution with the kernel turned around."""

    def __init__(self, source: nn.ConvTranspose2d, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.kernel = parameter_of(source.weight.transpose(0, 1))
        self.stride, self.padding = source.stride[0], source.padding[0]

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        step, around = self.stride, 3 - self.padding
        spread = x.new_zeros(batch, channels, (height - 1) * step + 1, (width - 1) * step + 1)
        spread[:, :, ::step, ::step] = x
        kernel = self.kernel if self.fault == "turned" else self.kernel.flip(2, 3)
        return functional.conv2d(spread, kernel, padding=around)  # planted: gan_turned


class Stage(nn.Module):
    """Spreading and the norm of a batch."""

    def __init__(self, source: nn.ConvTranspose2d, norm: nn.BatchNorm2d, fault: str) -> None:
        super().__init__()
        self.spread = Spread(source, fault)
        self.gain, self.shift = parameter_of(norm.weight), parameter_of(norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.spread(x)
        return functional.batch_norm(x, None, None, self.gain, self.shift, True).relu()


class Port(nn.Module):
    """The port; both networks in one class, without the running statistics that nobody reads."""

    def __init__(self, source: Adversaries, fault: str) -> None:
        super().__init__()
        self.fault = fault
        painter, critic = source.painter, source.critic
        self.first, self.second = Stage(painter[0], painter[1], ""), Stage(painter[3], painter[4], fault)
        self.last, self.brightness = Spread(painter[6], ""), parameter_of(painter[6].bias)
        self.kernels = nn.ParameterList(critic[index].weight.detach().clone() for index in (0, 2, 5))
        self.biases = nn.ParameterList(critic[index].bias.detach().clone() for index in (0, 3, 5))
        self.gain = parameter_of(critic[3].weight)

    def of_critic(self) -> list[nn.Parameter]:
        return [*self.kernels, *self.biases, self.gain]

    def of_painter(self) -> list[nn.Parameter]:
        return [*self.first.parameters(), *self.second.parameters(), *self.last.parameters(), self.brightness]

    def paint(self, noise: Tensor) -> Tensor:
        return torch.tanh(self.last(self.second(self.first(noise))) + self.brightness)

    def judge(self, images: Tensor) -> Tensor:
        slope = 0.01 if self.fault == "slope" else 0.2
        x = functional.conv2d(images, self.kernels[0], self.biases[0], 2, 1)
        x = torch.maximum(x, slope * x)  # planted: gan_slope
        x = functional.conv2d(x, self.kernels[1], None, 2, 1)
        x = functional.batch_norm(x, None, None, self.gain, self.biases[1], True)
        x = torch.maximum(x, slope * x)  # planted: gan_slope
        return torch.einsum("bchw,chw->b", x, self.kernels[2][0]) + self.biases[2]

    def forward(self, real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses of both."""
        made = self.paint(noise)
        shown = made if self.fault == "detach" else made.detach()  # planted: gan_detach
        loss_of_critic = functional.softplus(-self.judge(real)).mean() + functional.softplus(self.judge(shown)).mean()
        fooled = self.judge(made)
        if self.fault == "saturating":
            return -functional.softplus(fooled).mean(), loss_of_critic / 2  # planted: gan_saturating
        return functional.softplus(-fooled).mean(), loss_of_critic / 2


def port(fault: str) -> Program:
    model = Port(Adversaries(), fault)
    real, noise = _data()
    groups = [(model.of_painter(), 2e-3), (model.of_critic(), 1e-3)]
    first_beta = 0.9 if fault == "beta" else 0.5
    moments = [[(torch.zeros_like(each), torch.zeros_like(each)) for each in group] for group, _ in groups]

    def train(steps: int) -> list[float]:
        losses = []
        for step in range(1, steps + 1):
            model.zero_grad()
            loss_of_painter, loss_of_critic = model(real, noise)
            loss_of_painter.backward(inputs=groups[0][0], retain_graph=True)
            loss_of_critic.backward()  # planted: gan_detach
            with torch.no_grad():
                for (parameters, rate), pairs in zip(groups, moments):
                    for parameter, (mean, square) in zip(parameters, pairs):
                        mean += (1 - first_beta) * (parameter.grad - mean)  # planted: gan_beta gan_detach
                        square += 0.001 * (parameter.grad**2 - square)  # place: gan_detach
                        deviation = (square / (1 - 0.999**step)).sqrt() + 1e-8
                        parameter -= rate / (1 - first_beta**step) * mean / deviation  # planted: gan_beta
            losses += [loss_of_painter.item(), loss_of_critic.item()]
        return losses

    return Program(model, train)


NETWORK = Network(
    "gan",
    reference,
    port,
    {
        "turned": Truth(modules=(r"painter\.3",), within=(r"second\.spread", r"painter\.3"), readers=("second",)),
        "slope": Truth(modules=(r"critic\.[14]",), readers=("", r"critic\.[25]")),
        "detach": Truth(
            operators=(r"(painter|first|second|last)?(\..*)?:.*[bB]ackward.*",),
            parameters=(r"(.* of )?(painter|first|second|last)\..*", r"(.* of )?brightness(\.grad)?"),
            visible=False,
        ),
        "saturating": Truth(
            operators=(r":aten::(softplus|neg|mean|binary_cross_entropy_with_logits)",), readers=("",), visible=False
        ),
        "beta": Truth(visible=False),
    },
)
