"""A language model of characters, and a port of it whose losses look just as good. What is wrong in the port?

train.py [PATH] [--ported]    with PATH: dump the first step there
"""

import contextlib
import sys

import torch
from torch import nn

import ascend_dump

STEPS, WIDTH, HEADS, CONTEXT = 60, 64, 4, 32
TEXT = " ".join(f"{n} times {m} is {n * m}." for n in range(2, 12) for m in range(2, 12))


class Attention(nn.Module):
    def __init__(self, *, ported: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        # The size of a head is what counts, and the port took that of the model.
        self.scale = (WIDTH if ported else WIDTH // HEADS) ** -0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) * self.scale
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, *, ported: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(ported=ported)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Model(nn.Module):
    def __init__(self, letters: int, *, ported: bool) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block(ported=ported) for _ in range(2)))
        self.head = nn.Linear(WIDTH, letters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.letters(x) + self.places.weight))


def train(model: nn.Module, text: torch.Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        starts = torch.randint(len(text) - CONTEXT - 1, (8,)).tolist()
        batch = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == STEPS - 1:
            print(f"step {step}: loss {loss.item():.2f}")


def main() -> None:
    paths = [argument for argument in sys.argv[1:] if argument != "--ported"]
    torch.manual_seed(0)
    letters = sorted(set(TEXT))
    model = Model(len(letters), ported="--ported" in sys.argv)
    text = torch.tensor([letters.index(letter) for letter in TEXT])
    with ascend_dump.capture(model, path=paths[0], steps=0) if paths else contextlib.nullcontext():
        train(model, text)


if __name__ == "__main__":
    main()
