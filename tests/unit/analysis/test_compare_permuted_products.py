"""An engine with the rows of a fused weight in another order than the trainer: no fault behind it is blamed on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
nn, F = torch.nn, torch.nn.functional
#: As many heads as requests, so that the axes of rows and heads have one size.
HEADS, HEAD, VOCABULARY, LENGTH, NEW = 2, 8, 40, 7, 2
SIZE = HEADS * HEAD


class Attention(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """is_joined: the weight has the rows of all queries first, then those of keys and values, not head by head"""

    def __init__(self, is_joined: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.is_joined = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE), is_joined

    def forward(self, x: Any, angles: Any, cache: list[Any], sees: Any) -> Any:
        if self.is_joined:
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = self.qkv(x).view(*x.shape[:2], HEADS, 3 * HEAD).transpose(1, 2).chunk(3, -1)
        q, k = (part * angles.cos() + part.flip(-1) * angles.sin() for part in (q, k))
        cache[:] = [torch.cat(both, 2) for both in zip(cache, (k, v))] if cache else [k, v]
        y = F.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=sees)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):  # type: ignore[misc]
    """A block with the names of the engine, whose weight is joined, or with those of the trainer."""

    def __init__(self, is_joined: bool, fault: str) -> None:
        super().__init__()
        self.name, self.fault = "attn" if is_joined else "attention", fault
        attention = Attention(is_joined)
        self.add_module(self.name, attention)
        self.norm, self.up = nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE)
        for parameter in attention.qkv.parameters() if is_joined else ():
            rows = parameter.data.view(HEADS, 3, HEAD, -1).transpose(0, 1)
            parameter.data = rows.reshape(parameter.shape).contiguous()

    def forward(self, x: Any, angles: Any, cache: list[Any], sees: Any) -> Any:
        y = self.get_submodule(self.name)(x, angles, cache, sees)
        z = self.norm(x + y) if self.fault == "sum" else self.norm(x)  # parallel
        return x + y + F.gelu(self.up(z))


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self, is_joined: bool = False, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.name, self.fault = "blocks" if is_joined else "layers", fault
        self.embed, self.head = nn.Embedding(VOCABULARY, SIZE), nn.Linear(SIZE, VOCABULARY)
        self.add_module(self.name, nn.ModuleList(Block(is_joined, fault) for _ in range(2)))

    def forward(self, ids: Any, positions: Any, cache: list[list[Any]]) -> Any:
        x = self.embed(ids)
        frequencies = 1.0 / 10.0 ** torch.arange(HEAD)
        if self.fault == "frequencies":
            frequencies = frequencies * 1.5
        keys = torch.arange(int(positions[-1, -1]) + 1)
        sees = keys <= positions[:, None, :, None] + (self.fault == "mask")
        angles = positions[:, None, :, None] * frequencies
        for block, of_block in zip(self.get_submodule(self.name), cache):
            x = block(x, angles, of_block, sees)
        return self.head(x)


def compared(tmp_path: Path, fault: str) -> ascend_dump.Comparison:
    ids = torch.randint(1, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    positions = torch.arange(LENGTH).expand(2, -1)
    for name, model, parts in (
        ("engine", Model(True, fault), (slice(LENGTH - NEW), *(slice(n, n + 1) for n in range(LENGTH - NEW, LENGTH)))),
        ("trainer", Model(), (slice(LENGTH),)),
    ):
        cache: list[list[Any]] = [[], []]
        with torch.no_grad(), ascend_dump.capture(model, path=tmp_path / name, steps="0-9"):
            for part in parts:
                model(ids[:, part], positions[:, part], cache)
    return ascend_dump.compare(tmp_path / "engine", tmp_path / "trainer")


def test_a_right_engine(tmp_path: Path) -> None:
    comparison = compared(tmp_path, "")
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert not comparison.origins


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("sum", "# parallel"),
        ("mask", 'self.fault == "mask"'),
        ("frequencies", "positions[:, None, :, None] * frequencies"),
    ],
)
def test_a_fault_is_not_one_of_the_permuted_weight(fault: str, line: str, tmp_path: Path) -> None:
    first = compared(tmp_path, fault).origins[0]
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = int(str(first.source).rpartition(":")[2])
    assert line in lines[number - 1], (first.op_name, lines[number - 1], first.evidence)
