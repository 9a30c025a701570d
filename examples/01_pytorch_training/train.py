"""An ordinary training: a small convolutional network that tells noisy stripes from each other."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(16 * 8 * 8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.conv2(x))
        return self.head(x.flatten(1))


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Images (32, 1, 16, 16) of horizontal (0) or vertical (1) stripes, and which they are."""
    labels = torch.randint(2, (32,))
    stripes = torch.arange(16).remainder(2).float()
    rows = stripes.view(1, 16, 1).expand(32, 16, 16)
    images = torch.where(labels.view(32, 1, 1) == 0, rows, rows.transpose(1, 2))
    return (images + 0.5 * torch.randn(32, 16, 16)).unsqueeze(1), labels


def train(model: nn.Module, steps: int = 4) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        images, labels = make_batch()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.6f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    train(Net())
