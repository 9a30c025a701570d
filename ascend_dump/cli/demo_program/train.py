"""Train a small network for three steps. An operator overflows at step 1: find it.

--eps sets another epsilon of the layer norm: find the first operator that differs from a run without it.
"""

import argparse

import torch
from torch import nn

import ascend_dump


class Gate(nn.Module):
    """A gate that scales each channel by exp(w * x): it overflows for large x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.exp(self.weight * x)
        return x * scale


class DemoNetwork(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.gate = Gate(32)
        self.norm = nn.LayerNorm(32, eps)
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.gate(self.embed(x))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--eps", type=float, default=1e-5)
    parser.add_argument("--path", default="dumps")
    args = parser.parse_args()
    torch.manual_seed(0)
    model, loss_of = DemoNetwork(args.eps), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ascend_dump.capture(model, steps="0-2", path=args.path) as cap:
        for step in range(3):
            batch, label = torch.randn(8, 16), torch.randint(4, (8,))
            if step == 1:
                batch[3] *= 1000  # a broken sample
            loss = loss_of(model(batch), label)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {step}: loss {loss.item():.4f}")
    print(f"dump: {cap.path}")


if __name__ == "__main__":
    main()
