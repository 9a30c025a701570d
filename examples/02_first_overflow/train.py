"""A float16 network whose loss jumps once. Which operator is to blame?

train.py [PATH] [--fixed]    with PATH: dump there what overflows
"""

import contextlib
import sys

import torch
from torch import nn

import ascend_dump


class RMSNorm(nn.Module):
    """Divides by the root of the mean square."""

    def __init__(self, width: int, *, upcast: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.upcast = upcast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float() if self.upcast else x
        scale = wide.pow(2).mean(-1, keepdim=True).sqrt()
        return self.weight * (wide / scale).to(x.dtype)


class Block(nn.Module):
    def __init__(self, width: int, *, upcast: bool) -> None:
        super().__init__()
        self.norm = RMSNorm(width, upcast=upcast)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 32, *, upcast: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(width, upcast=upcast) for _ in range(3)])
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).float()


def train(model: nn.Module, steps: int = 6) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        x, y = torch.randn(8, 32).half(), torch.randint(4, (8,))
        if step == 3:
            x[5] *= 200  # a sample that nobody has normalised
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")


def main() -> None:
    paths = [argument for argument in sys.argv[1:] if argument != "--fixed"]
    torch.manual_seed(0)
    model = Net(upcast="--fixed" in sys.argv).half()
    capture = ascend_dump.capture(model, path=paths[0], scene="overflow") if paths else contextlib.nullcontext()
    with capture:
        train(model)


if __name__ == "__main__":
    main()
