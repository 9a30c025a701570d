"""A rollout and a trainer that round otherwise: other kernels for attention in bfloat16, or another type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
HEADS, SIZE, VOCABULARY, LENGTH, NEW = 2, 16, 40, 12, 4


class Norm(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """Computes in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.eps, self.weight = 1e-5, nn.Parameter(torch.linspace(0.5, 1.5, SIZE))

    def forward(self, x: Any) -> Any:
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class Block(nn.Module):  # type: ignore[misc]
    """is_fused: attention is one operator. scale: of the scores, which are large, so that a few keys have all weight"""

    def __init__(self, is_fused: bool) -> None:
        super().__init__()
        self.norm, self.is_fused, self.scale = Norm(), is_fused, 3.0
        self.q, self.k, self.v, self.o = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))

    def forward(self, x: Any, mask: Any, cache: list[Any]) -> Any:
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = cache[:] = [torch.cat(both, 2) for both in zip(cache, (k, v))] if cache else [k, v]
        if self.is_fused:
            made = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)
        else:
            made = (q @ k.transpose(2, 3) * self.scale + mask).softmax(-1) @ v
        return x + self.o(made.transpose(1, 2).flatten(2))


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self, *, is_fused: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.place = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(LENGTH, SIZE)
        self.blocks, self.norm = nn.ModuleList(Block(is_fused) for _ in range(2)), Norm()
        self.head = nn.Linear(SIZE, VOCABULARY, bias=False)
        for weight in (weight for weight in self.parameters() if weight.ndim == 2):
            nn.init.normal_(weight, std=0.25 if len(weight) == SIZE else 1.0)

    def forward(self, ids: Any, positions: Any, caches: Any) -> Any:
        x = self.embed(ids) + self.place(positions)
        sees = torch.arange(int(positions.max()) + 1) <= positions[..., None]
        mask = torch.zeros(sees.shape, dtype=x.dtype).masked_fill(~sees, torch.finfo(x.dtype).min)[:, None]
        for block, cache in zip(self.blocks, caches):
            x = block(x, mask, cache)
        return self.head(self.norm(x))


def compared(tmp_path: Path, rollout: Any, trainer: Any) -> Any:
    ids = torch.randint(1, VOCABULARY, (4, LENGTH), generator=torch.Generator().manual_seed(3))
    places, caches = torch.arange(LENGTH).expand(ids.shape), [[], []]
    with torch.no_grad(), ascend_dump.capture(rollout, path=tmp_path / "rollout", steps="0-9"):
        for begin, end in [(0, LENGTH - NEW), *((n, n + 1) for n in range(LENGTH - NEW, LENGTH))]:
            rollout(ids[:, begin:end], places[:, begin:end], caches)
    with torch.no_grad(), ascend_dump.capture(trainer, path=tmp_path / "trainer", steps="0"):
        trainer(ids, places, [[], []])
    return ascend_dump.compare(tmp_path / "rollout", tmp_path / "trainer")


def test_fused_attention_in_a_narrow_type(tmp_path: Path) -> None:
    """The rounding of a score is relative to the score, and that of its weight to 1."""
    comparison = compared(tmp_path, Network(is_fused=True).bfloat16(), Network().bfloat16())
    assert comparison.origins == ()
    assert comparison.verdict == "noise", comparison.counts


def test_a_scale_of_fused_attention_in_a_narrow_type(tmp_path: Path) -> None:
    faulty = Network(is_fused=True).bfloat16()
    faulty.blocks[1].scale = 2.0
    assert "blocks.1" in compared(tmp_path, faulty, Network().bfloat16()).origins[0].module


def test_norms_in_a_wide_type_of_a_narrow_program(tmp_path: Path) -> None:
    """Casts that one side lacks are left out. What they round is rounding before the tensors behind them."""
    comparison = compared(tmp_path, Network().bfloat16(), Network())
    assert comparison.origins == ()
    assert comparison.verdict == "noise", comparison.counts


@pytest.mark.parametrize("eps", [0.2, 2.0])
def test_an_eps_of_a_norm_in_a_wide_type(tmp_path: Path, eps: float) -> None:
    """With the smaller one, most results are farther off than the rounding of the wide type in their inputs."""
    faulty = Network().bfloat16()
    faulty.blocks[1].norm.eps = eps
    assert compared(tmp_path, faulty, Network()).origins[0].module == "blocks.1.norm"


class Scaled(nn.Module):  # type: ignore[misc]
    """Multiplies the result of a module."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Any) -> Any:
        return self.inner(ids) * 4.0


def test_views_of_keys_lead_to_the_factor_that_is_lost_before_them(tmp_path: Path) -> None:
    """Without the views of one side, no operator would have written the keys of a block."""
    trainer = Network()
    trainer.embed = Scaled(trainer.embed)
    origins = compared(tmp_path, Network(), trainer).origins
    assert [origin.op_name for origin in origins] == ["embed/mul_0"]
