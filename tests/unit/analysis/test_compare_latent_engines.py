"""Engines with a cache of latents: two products of queries and keys that are added, and norms of single operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
nn, F = torch.nn, torch.nn.functional
HEADS, PLAIN, TURNED, RANK, VALUE, SIZE, VOCABULARY, NEW = 3, 6, 4, 10, 5, 16, 40, 3
LENGTHS = (7, 5)
SCALE = (PLAIN + TURNED) ** -0.5
ENDS = [PLAIN, VALUE]
EXPERTS, CHOSEN = 4, 2


class Layer(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2, self.of_latent = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE), nn.LayerNorm(RANK)
        for norm in (self.n1, self.n2, self.of_latent):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
        self.q = nn.Linear(SIZE, HEADS * (PLAIN + TURNED), bias=False)
        self.down, self.up = nn.Linear(SIZE, RANK + TURNED, bias=False), nn.Linear(RANK, HEADS * sum(ENDS), bias=False)
        self.o, self.router = nn.Linear(HEADS * VALUE, SIZE, bias=False), nn.Linear(SIZE, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(EXPERTS))

    def forward(self, x: Any, positions: Any, sees: Any) -> Any:
        y = self.n1(x)
        q = self.q(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        q = torch.cat([q[..., :PLAIN], turned(q[..., PLAIN:], positions[:, None])], -1)
        latent, k = self.down(y).split([RANK, TURNED], -1)
        plain, v = self.up(self.of_latent(latent)).unflatten(-1, (HEADS, -1)).transpose(1, 2).split(ENDS, -1)
        k = torch.cat([plain, turned(k, positions)[:, None].expand(-1, HEADS, -1, -1)], -1)
        weights = (q @ k.transpose(2, 3) * SCALE).masked_fill(~sees, -1e9).softmax(-1)
        x = x + self.o((weights @ v).transpose(1, 2).flatten(2))
        y = self.n2(x).flatten(0, 1)
        shares, chosen = self.router(y).softmax(-1).topk(CHOSEN)
        results = torch.stack([expert(y).relu() for expert in self.experts], 1)
        results = results.gather(1, chosen[..., None].expand(-1, -1, SIZE))
        return x + (results * shares[..., None]).sum(1).view_as(x)


class Trainer(nn.Module):  # type: ignore[misc]
    """A model that makes the keys and values of all heads from latents."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCABULARY, SIZE), nn.Linear(SIZE, VOCABULARY)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, ids: Any, mask: Any) -> Any:
        slots = torch.arange(ids.shape[1])
        sees = mask[:, None, None].bool() & (slots <= slots[:, None])
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, slots[None], sees)
        return self.head(x)


def turned(x: Any, positions: Any) -> Any:
    """Return elements with each pair turned by angles. positions: as the axes of `x` before the last one"""
    angles = positions[..., None].float() / 10.0 ** torch.arange(TURNED // 2)
    first, second = x[..., : TURNED // 2], x[..., TURNED // 2 :]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def requests() -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(1, VOCABULARY, (length + NEW,), generator=generator) for length in LENGTHS]


def normed(x: Any, w: dict[str, Any], name: str, eps: float = 1e-5) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred**2).mean(-1, keepdim=True) + eps  # spread
    return centred / spread.sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]  # weighted


def experts(x: Any, w: dict[str, Any], name: str) -> Any:
    """Return the sum of the chosen experts of each token, which run on tokens that are sorted by experts."""
    shares, chosen = (x @ w[f"{name}.router.weight"].t()).softmax(-1).topk(CHOSEN)
    order = chosen.flatten().argsort(stable=True)
    parts = x[order // CHOSEN].split(torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist())
    weights = ((w[f"{name}.experts.{n}.weight"], w[f"{name}.experts.{n}.bias"]) for n in range(EXPERTS))
    results = torch.cat([F.linear(part, *of_expert).relu() for part, of_expert in zip(parts, weights)])
    results = torch.empty_like(results).index_copy(0, order, results)
    return (results.view(len(x), CHOSEN, SIZE) * shares[..., None]).sum(1)


def engine(w: dict[str, Any], fault: str) -> None:
    """Run each request on its own, with the weights of keys and values multiplied with queries and results."""
    for ids in requests():
        caches: list[Any] = [None, None]
        for begin, end in ((0, len(ids) - NEW), *((n, n + 1) for n in range(len(ids) - NEW, len(ids)))):
            positions, x = torch.arange(begin, end), F.embedding(ids[begin:end], w["embed.weight"])
            for n in range(2):
                name = f"layers.{n}"
                y = F.layer_norm(x, (SIZE,), w[f"{name}.n1.weight"], w[f"{name}.n1.bias"])
                q = (y @ w[f"{name}.q.weight"].t()).unflatten(-1, (HEADS, -1)).transpose(0, 1)
                latent, k = (y @ w[f"{name}.down.weight"].t()).split([RANK, TURNED], -1)
                if fault != "no norm":
                    own = "layers.1.of_latent" if fault == "other norm" else f"{name}.of_latent"
                    latent = normed(latent, w, own, 0.1 if fault == "eps" and n else 1e-5)
                new = torch.cat([latent, turned(k, positions)], -1)  # joined
                cache = caches[n] = new if caches[n] is None else torch.cat([caches[n], new])
                latents, keys = cache.split([RANK, TURNED], -1)
                up = w[f"{name}.up.weight"].unflatten(0, (HEADS, -1))
                absorbed = torch.bmm(q[..., :PLAIN], up[:, :PLAIN])
                scores = absorbed @ latents.t() + turned(q[..., PLAIN:], positions) @ keys.t()
                scores = scores * (PLAIN**-0.5 if fault == "scale" else SCALE)  # scaled
                hidden = torch.arange(end) > (positions[-1:, None] if fault == "mask" else positions[:, None])  # hidden
                weights = scores.masked_fill(hidden, -1e9).softmax(-1)
                y = torch.bmm(weights @ latents, up[:, PLAIN:].transpose(1, 2))
                x = x + y.transpose(0, 1).flatten(1) @ w[f"{name}.o.weight"].t()
                own = "n1" if fault == "other fused norm" and n else "n2"
                y = F.layer_norm(x, (SIZE,), w[f"{name}.{own}.weight"], w[f"{name}.n2.bias"])  # fused
                x = x + experts(y, w, name)
            F.linear(x, w["head.weight"], w["head.bias"])


def compared(tmp_path: Path, fault: str) -> ascend_dump.Comparison:
    trainer = Trainer()
    ids = nn.utils.rnn.pad_sequence(requests(), batch_first=True)
    with torch.no_grad(), ascend_dump.capture(trainer, path=tmp_path / "trainer", steps="0"):
        trainer(ids, (ids > 0).long())
    weights = {name: value.detach().clone() for name, value in trainer.state_dict().items()}
    with torch.no_grad(), ascend_dump.capture(None, path=tmp_path / "engine", steps="0"):
        engine(weights, fault)
    return ascend_dump.compare(tmp_path / "engine", tmp_path / "trainer")


def test_a_right_engine(tmp_path: Path) -> None:
    comparison = compared(tmp_path, "")
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert not comparison.origins
    assert comparison.aligned[-1].startswith(f"{sum(LENGTHS) + len(LENGTHS) * NEW} tokens of 2 requests")


@pytest.mark.parametrize(
    ("fault", "line", "fact"),
    [
        ("scale", "# scaled", "the scores are 1.291 times those of the reference: a factor differs"),
        ("mask", "# hidden", "it attends to 7 keys here, to 1 in the reference: the mask or the keys differ"),
        ("no norm", "", "actual goes on with cat_"),
        ("eps", "# spread", "from results that both have"),
        (
            "other fused norm",
            "# fused",
            "input.1 has other values than layers.1.n2/native_layer_norm_0.input.1 (layers.1.n2.weight)",
        ),
        ("other norm", "# weighted", "from results that both have"),
    ],
)
def test_a_fault(fault: str, line: str, fact: str, tmp_path: Path) -> None:
    comparison = compared(tmp_path, fault)
    first = comparison.origins[0]
    assert any(fact in text for text in first.evidence), first.evidence
    assert all(origin.kind != "input" for origin in comparison.origins)
    if not line:  # the operator that actual lacks
        assert first.module == "layers.0.of_latent"
        return
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    [number] = [number for number, text in enumerate(lines, 1) if text.endswith(f"  {line}")]
    assert str(first.source).rpartition("/")[2] == f"{Path(__file__).name}:{number}", first
