"""A rollout that runs another operator than the trainer, or one with another number of values for each token."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
nn = torch.nn
HEADS, SIZE, VOCABULARY, EXPERTS, LENGTH, NEW = 2, 12, 40, 6, 9, 3


class Attention(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """limit: queries, keys and values are cut to it in place; narrow: the weights are rounded, or the result

    slots: number of slots of a ring in which keys and values are cached; 0 for a cache to which they are appended
    """

    limit: Optional[float] = None
    narrow = ""
    slots = 0

    def __init__(self, *, rotates: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))
        self.rotates = rotates

    def forward(self, x: Any, turn: Any, cache: Any) -> Any:
        parts = [f(x) for f in (self.q, self.k, self.v)]
        for part in () if self.limit is None else parts:
            part.clamp_(-self.limit, self.limit)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        if self.rotates:
            q, k = (t * turn[0] + torch.cat((-t[..., 3:], t[..., :3]), -1) * turn[1] for t in (q, k))
        if cache is not None and self.slots:
            k, v = self.cached(cache, k, v)
        elif cache is not None:
            k, v = (torch.cat((cache.get(name, k[:, :, :0]), new), 2) for name, new in (("k", k), ("v", v)))
            cache.update(k=k, v=v)
        scores = q @ k.transpose(2, 3) * 6**-0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
        weights = scores.masked_fill(~mask, -1e30).softmax(-1)
        weights = weights.to(torch.bfloat16).float() if self.narrow == "weights" else weights
        result = (weights @ v).transpose(1, 2).flatten(2)
        return self.o(result.to(torch.bfloat16).float() if self.narrow == "result" else result)

    def cached(self, cache: Any, *new: Any) -> Any:
        """Write to the ring, and read it in a step of decoding."""
        begin, count = cache.get("count", 0), new[0].shape[2]
        end = cache["count"] = begin + count
        for name, tensor in zip("kv", new):
            room = cache.setdefault(name, torch.zeros(*tensor.shape[:2], LENGTH, tensor.shape[3]))
            room[:, :, torch.arange(begin, end) % self.slots] = tensor
        return new if not begin else tuple(cache[name][:, :, torch.arange(end)] for name in "kv")


class Experts(nn.Module):  # type: ignore[misc]
    """Sends each token to some experts, whose rows are sorted by experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.weights = nn.Linear(SIZE, EXPERTS, bias=False), nn.Parameter(torch.randn(EXPERTS, SIZE, SIZE))
        self.count, self.factor = 2, 1.0

    def forward(self, x: Any) -> Any:
        tokens = x.reshape(-1, SIZE)
        scores = self.router(tokens).sigmoid()
        ids = scores.topk(self.count, -1).indices
        scores = scores.gather(-1, ids)
        order = ids.reshape(-1).sort(stable=True).indices
        counts = torch.bincount(ids.reshape(-1), minlength=EXPERTS).tolist()
        parts = zip((tokens[order // self.count] * self.factor).split(counts), self.weights)
        rows = torch.cat([part @ weight for part, weight in parts]) * scores.reshape(-1)[order, None]
        return rows[order.argsort()].view(-1, self.count, SIZE).sum(1).view(x.shape)


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self, rotating: tuple[bool, ...] = (True, False), counts: tuple[int, ...] = (2, 2)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCABULARY, SIZE), nn.Linear(SIZE, VOCABULARY)
        self.attentions = nn.ModuleList(Attention(rotates=rotates) for rotates in rotating)
        self.experts = nn.ModuleList(Experts() for _ in rotating)
        for experts, count in zip(self.experts, counts):
            experts.count = count

    def forward(self, ids: Any, positions: Any, caches: Any = None) -> Any:
        x = self.embed(ids)
        angles = positions[..., None] / 10.0 ** torch.arange(3)
        turn = [make(angles).repeat(1, 1, 2)[:, None] for make in (torch.cos, torch.sin)]
        for number, (attention, experts) in enumerate(zip(self.attentions, self.experts)):
            x = x + attention(x, turn, None if caches is None else caches[number])
            x = x + experts(x)
        return self.head(x)


def compared(tmp_path: Path, network: Any, rows: int = 1, limit: Optional[float] = None) -> ascend_dump.Comparison:
    """Compare the rollout of a network, a prompt and single tokens, with the whole sequence in the right one.

    limit: that of the right one
    """
    ids = torch.randint(1, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(3))
    positions = torch.arange(LENGTH).expand(rows, -1)
    prompt = slice(0, LENGTH - NEW)
    caches: list[Any] = [{} for _ in network.attentions]
    with torch.no_grad(), ascend_dump.capture(network, path=tmp_path / "rollout", steps="0-9"):
        for part in (prompt, *(slice(n, n + 1) for n in range(LENGTH - NEW, LENGTH))):
            network(ids[:, part], positions[:, part], caches)
    right = Network()
    right.attentions[0].limit = limit
    with torch.no_grad(), ascend_dump.capture(right, path=tmp_path / "trainer", steps="0"):
        right(ids, positions)
    return ascend_dump.compare(tmp_path / "rollout", tmp_path / "trainer")


@pytest.mark.parametrize("rows", [1, 2])
def test_two_programs_that_agree(tmp_path: Path, rows: int) -> None:
    comparison = compared(tmp_path, Network(), rows)
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert not comparison.origins


def test_operators_of_one_side_are_the_origin_of_what_views_and_copies_of_them_lead_to(tmp_path: Path) -> None:
    """The rotation of a layer that has none is not before the product with the keys, but before copies of it."""
    first = compared(tmp_path, Network(rotating=(True, True))).origins[0]
    assert (first.module, first.kind) == ("attentions.1", "structure")
    assert first.op_name.rpartition("/")[2].startswith("mul")


def test_another_number_of_experts_is_the_first_origin(tmp_path: Path) -> None:
    """Values whose number differs are compared, and the operator is named before the rows of later layers."""
    first = compared(tmp_path, Network(counts=(1, 2))).origins[0]
    assert (first.op_name, first.kind) == ("experts.0/topk_0", "structure")
    assert "k: 1 here, 2 in the reference" in first.evidence


def test_the_order_of_experts_is_no_origin(tmp_path: Path) -> None:
    """The rows of a call are numbered anew, so that a sort of equal experts returns other numbers."""
    network = Network()
    network.experts[0].factor = 1.5
    first, *_ = compared(tmp_path, network).origins
    assert (first.op_name, first.kind) == ("experts.0/mul_0", "structure")


@pytest.mark.parametrize("clips", [True, False])
def test_a_write_in_place_that_one_side_lacks(clips: bool, tmp_path: Path) -> None:
    """Its reader is behind it, although the reader has a partner and the write has none."""
    network = Network()
    network.attentions[0].limit = 0.2 if clips else None
    comparison = compared(tmp_path, network, limit=0.2)
    if clips:
        assert comparison.verdict in ("equal", "noise"), comparison.counts
        return
    first = comparison.origins[0]
    assert (first.op_name, first.kind) == ("attentions.0/clamp__0", "structure"), first.evidence
    assert "aten::clamp_ runs in the reference only" in " ".join(first.evidence)


def test_weights_that_one_side_casts(tmp_path: Path) -> None:
    """Casts of one side are not compared, so that the walk takes their results for data from outside."""
    network = Network()
    network.attentions[0].narrow = "weights"
    comparison = compared(tmp_path, network)
    evidence = [fact for origin in comparison.origins for fact in origin.evidence]
    assert comparison.origins[0].op_name == "attentions.0/_to_copy_0"
    assert "rounded to bfloat16 for the product" in evidence[0]
    assert not any("from outside" in fact or "no recorded operator" in fact for fact in evidence), evidence


def test_the_result_of_a_cast_of_one_side_is_not_from_outside(tmp_path: Path) -> None:
    network = Network()
    network.attentions[0].narrow = "result"
    evidence = [fact for origin in compared(tmp_path, network).origins for fact in origin.evidence]
    assert any("attentions.0/_to_copy_1 here" in fact for fact in evidence), evidence
    assert not any("from outside" in fact or "no recorded operator" in fact for fact in evidence), evidence


@pytest.mark.parametrize("slots", [LENGTH, LENGTH - 3])
def test_a_ring_that_is_too_short_is_read_in_steps_of_decoding(slots: int, tmp_path: Path) -> None:
    """The prompt does not read the ring, so that the operators that move its keys are right."""
    network = Network()
    network.attentions[0].slots = slots
    comparison = compared(tmp_path, network)
    if slots == LENGTH:
        assert comparison.verdict in ("equal", "noise"), comparison.counts
        return
    first = comparison.origins[0]
    assert (first.module, first.op_name.rpartition("/")[2][:6]) == ("attentions.0", "index_"), first
    assert first.pair.record.step != 0
    assert any("index_put__0 wrote the cache here" in fact for fact in first.evidence), first.evidence
