"""A language model in two programs with the same weights: an engine that generates, and a trainer that scores.

program.py rollout PATH [--batch N] [--mended]   the engine answers a prompt, with a cache: a prefill and 7 decode steps
program.py score PATH [--batch N] [--mended] [--int8]   the engine reads prompt and answer at once
program.py train PATH    the trainer reads prompt and answer at once

Each dumps its steps to PATH and prints the log-probabilities of the answer. The engine has one wrong number.
"""

import argparse

import torch
from torch import nn

import ascend_dump

LETTERS, WIDTH, HEADS, LAYERS, PROMPT, ANSWER = 50, 32, 4, 2, 8, 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cache = None

    def forward(self, x: torch.Tensor, use_cache: bool) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if use_cache and self.cache is not None:
            k, v = (torch.cat([old, new], 2) for old, new in zip(self.cache, (k, v)))
        self.cache = (k, v)
        scores = q @ k.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
        return self.out((scores.masked_fill(future, float("-inf")).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH, eps=eps)
        self.attention = Attention()
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, use_cache: bool) -> torch.Tensor:
        x = x + self.attention(self.n1(x), use_cache)
        return x + self.feed(self.n2(x))


class Model(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(PROMPT + ANSWER, WIDTH)
        # The engine has a copy of the code of the block, and in the last one another epsilon.
        self.blocks = nn.ModuleList(Block(eps if number == LAYERS - 1 else 1e-5) for number in range(LAYERS))
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, use_cache: bool = False) -> torch.Tensor:
        x = self.letters(ids) + self.places(positions)
        for block in self.blocks:
            x = block(x, use_cache)
        return self.head(x).log_softmax(-1)


class Int8(nn.Module):
    """A linear layer with weights and inputs of 8 bits."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.scale = linear.weight.abs().amax(1) / 127
        self.weight = torch.round(linear.weight / self.scale[:, None]).to(torch.int8)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scale = rows.abs().amax(1, keepdim=True) / 127
        y = torch._int_mm(torch.round(rows / scale).to(torch.int8), self.weight.t()).float()
        return (y * scale * self.scale + self.bias).reshape(*x.shape[:-1], -1)


def quantise(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8(child))


def prompts(count: int) -> torch.Tensor:
    """The prompt of the example, and others behind it."""
    return torch.stack([torch.arange(PROMPT) * (7 + row) % LETTERS for row in range(count)])


def generate(model: Model, ids: torch.Tensor) -> torch.Tensor:
    """Return the prompt with the answer."""
    new = ids
    for _ in range(ANSWER):
        positions = torch.arange(ids.shape[1] - new.shape[1], ids.shape[1])
        new = model(new, positions, use_cache=True)[:, -1:].argmax(-1)
        ids = torch.cat([ids, new], 1)
    return ids


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["rollout", "score", "train"])
    parser.add_argument("path")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--int8", action="store_true")
    options = parser.parse_args()
    is_engine = options.stage != "train"
    model = Model(eps=0.1 if is_engine and not options.mended else 1e-5)
    # Both programs score the answer of the engine.
    answered = generate(Model(eps=0.1), prompts(options.batch))
    if options.int8:
        quantise(model)
    if options.stage == "rollout":
        ids = prompts(options.batch)
        with ascend_dump.capture(model, path=options.path, steps=f"0-{ANSWER - 1}", label="rollout", quiet=True):
            answered = generate(model, ids)
    ids, positions = answered[:, :-1], torch.arange(PROMPT + ANSWER - 1)
    for block in model.blocks:
        block.attention.cache = None
    if options.stage == "rollout":
        scores = model(ids, positions)
    else:
        with ascend_dump.capture(model, path=options.path, label=options.stage, quiet=True):
            scores = model(ids, positions)
    of_answer = scores.gather(-1, answered[:, 1:, None])[0, PROMPT - 1 :, 0]
    print(" ".join(f"{score:.4f}" for score in of_answer.tolist()))


main()
