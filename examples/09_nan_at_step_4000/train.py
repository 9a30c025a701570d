"""A network whose loss becomes NaN after hundreds of healthy steps. In which step, and by which operator?

train.py [PATH] [--fixed]    with PATH: keep the last steps there, until one produces NaN
"""

import contextlib
import sys

import torch
from torch import nn

import ascend_dump

STEPS = 500
#: Here a sample is blank: 4000 in a real run, 400 so that this example takes seconds.
BLANK = 400


class Length(nn.Module):
    """The length of each vector."""

    def __init__(self, *, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.pow(2).sum(-1, keepdim=True) + self.epsilon).sqrt()


class Net(nn.Module):
    def __init__(self, width: int = 32, *, epsilon: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Linear(16, width, bias=False)
        self.length = Length(epsilon=epsilon)
        self.head = nn.Linear(width + 1, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.embed(x))
        return self.head(torch.cat([hidden, self.length(hidden)], -1))


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    weights = torch.randn(16, 4)
    for step in range(STEPS):
        x = torch.randn(8, 16)
        if step == BLANK:
            x[5] = 0.0
        loss = nn.functional.cross_entropy(model(x), (x @ weights).argmax(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step in (BLANK - 1, BLANK + 1):
            print(f"step {step}: loss {loss.item():.4f}")


def main() -> None:
    paths = [argument for argument in sys.argv[1:] if argument != "--fixed"]
    torch.manual_seed(0)
    model = Net(epsilon=1e-12 if "--fixed" in sys.argv else 0.0)
    capture = (
        ascend_dump.capture(model, path=paths[0], keep=3, until="nonfinite", data="stats")
        if paths
        else contextlib.nullcontext()
    )
    with capture:
        train(model)


if __name__ == "__main__":
    main()
