"""A weight that is wrong is named, although the products that read it have no partners in the other program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
nn = torch.nn
SIZE, INNER, EXPERTS, BEST, VOCABULARY, PROMPT, NEW = 16, 24, 4, 2, 40, 6, 3


class Experts(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """Experts of which each token takes the best ones: all at once in a trainer, one after the other in an engine."""

    def __init__(self, *, is_engine: bool) -> None:
        super().__init__()
        self.is_engine = is_engine
        self.router = nn.Parameter(torch.randn(EXPERTS, SIZE))
        self.up = nn.Parameter(torch.randn(EXPERTS, INNER, SIZE) / SIZE**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, SIZE, INNER) / INNER**0.5)
        self.factor, self.fault = 1.0, ""
        self.softens_best = False

    def forward(self, x: Any) -> Any:
        if self.softens_best and self.is_engine:
            weights, chosen = (x @ self.router.T).topk(BEST)
            weights = weights.softmax(-1)
        else:
            weights, chosen = (x @ self.router.T).softmax(-1).topk(BEST)
            weights = weights / weights.sum(-1, keepdim=True) if self.softens_best else weights
        if self.fault == "sum":
            weights = weights / weights.sum(-1, keepdim=True)
        if not self.is_engine:
            inner = torch.einsum("tc,eic->tei", x, self.up).relu()
            results = torch.einsum("tei,eci->tec", inner, self.down)
            taken = results.gather(1, chosen[..., None].expand(-1, -1, SIZE))
            return (taken * weights[..., None]).sum(1)
        result = torch.zeros_like(x)
        for expert in range(EXPERTS):
            rows, places = torch.where(chosen == expert)
            if len(rows):
                inner = nn.functional.linear(x[rows], self.up[expert]).relu()
                if self.fault == "activation":
                    inner = inner * inner
                taken = nn.functional.linear(inner, self.down[expert]) / self.factor
                result.index_add_(0, rows, taken * weights[rows, places, None])
        return result


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self, *, is_engine: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, SIZE)
        self.layers = nn.ModuleList(Experts(is_engine=is_engine) for _ in range(2))
        self.head = nn.Linear(SIZE, VOCABULARY, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def compared(tmp_path: Path, fault: str, *, softens_best: bool = False) -> Any:
    """Compare a prompt and single tokens of an engine with all tokens at once of a trainer."""
    ids = torch.randint(1, VOCABULARY, (PROMPT + NEW,), generator=torch.Generator().manual_seed(5))
    engine, trainer = (Network(is_engine=is_engine) for is_engine in (True, False))
    with torch.no_grad():
        if fault == "rows":
            engine.layers[0].down[:2] *= 0.5
        for layer in engine.layers if fault in ("factor", "sum") else ():
            layer.down *= 2.0
            layer.factor = 2.0
        engine.layers[0].fault = fault
        for layer in (*engine.layers, *trainer.layers):
            layer.softens_best = softens_best
        with ascend_dump.capture(engine, path=tmp_path / "a", steps="0-9"):
            for part in (ids[:PROMPT], *ids[PROMPT:].split(1)):
                engine(part)
        with ascend_dump.capture(trainer, path=tmp_path / "b", steps="0-9"):
            trainer(ids)
    return ascend_dump.compare(tmp_path / "a", tmp_path / "b", align="tokens")


def test_a_weight_of_an_expert_is_named(tmp_path: Path) -> None:
    first = compared(tmp_path, "rows").origins[0]
    assert (first.kind, first.pair.actual.parameter, first.pair.reference.parameter) == (
        "parameter",
        "layers.0.down",
        "layers.0.down",
    )
    assert "scaled by 0.5" in first.evidence[0]


def test_a_factor_that_the_program_takes_back_is_no_wrong_weight(tmp_path: Path) -> None:
    """All weights are scaled in both cases. Only the fault is an origin, and the weight is none."""
    assert compared(tmp_path / "right", "factor").verdict == "noise"
    first = compared(tmp_path / "wrong", "sum").origins[0]
    assert first.kind != "parameter", first.evidence


def test_a_choice_that_agrees_is_no_beginning(tmp_path: Path) -> None:
    """One side computes weights of all experts first, the other one of the best experts only: both choose the same."""
    assert compared(tmp_path / "right", "", softens_best=True).verdict == "noise"
    first = compared(tmp_path / "wrong", "activation", softens_best=True).origins[0]
    assert not first.op_name.startswith(("layers.0/_softmax", "layers.0/topk")), (first.op_name, first.evidence)
