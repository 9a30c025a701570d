"""A difference that begins inside of an attention is found, although both programs have the keys in another order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump

torch: Any = pytest.importorskip("torch")
nn = torch.nn
HEADS, GROUPS, HEAD, ROOM, VOCABULARY = 4, 2, 6, 12, 40
SIZE = HEADS * HEAD
LENGTHS, NEW = (6, 4), 3


class Attention(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    """Attention to the tokens of a call, or to a cache: one request after the other, or one token of each request.

    sink: a score of each head that has no key; by_hand: the operators of a softmax; cap: the largest score
    factor: that of the numbers in the cache
    shown: the number of later tokens that a whole sequence attends to
    """

    sink: Any = None
    by_hand = ""
    has_positive_values = False
    cap: Any = None
    factor = 1.0
    shown = 0

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(SIZE, n, bias=False) for n in (SIZE, *[GROUPS * HEAD] * 2, SIZE))
        self.fault = ""

    def weights(self, scores: Any, axis: int = 0) -> Any:
        """Return the weights of the keys. axis: that of the heads"""
        if self.by_hand == "sum":
            exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
            return exponentials / exponentials.sum(-1, keepdim=True)
        if self.by_hand == "logsumexp":
            return (scores - scores.logsumexp(-1, keepdim=True)).exp()
        if self.sink is None or self.fault == "no sink":
            return scores.softmax(-1)
        shape = [1] * scores.dim()
        shape[axis : axis + 2] = (GROUPS, -1) if scores.shape[axis] == GROUPS else (HEADS, 1)
        sink = self.sink.view(shape).expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sink), -1).softmax(-1)[..., :-1]

    def capped(self, scores: Any) -> Any:
        return scores if self.cap is None else torch.tanh(scores / self.cap) * self.cap

    def forward(self, x: Any, positions: Any, cache: Any, lengths: Any) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        v = v.relu() if self.has_positive_values else v
        if cache is None:
            q, k, v = (part.unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (q, k, v))
            k, v = (part.repeat_interleave(HEADS // GROUPS, 1) for part in (k, v))
            scores = self.capped(q @ k.transpose(-1, -2) * HEAD**-0.5)
            scores = scores + torch.full(scores.shape[-2:], float("-inf")).triu(1 + self.shown)
            return self.o((self.weights(scores, 1) @ v).transpose(1, 2).flatten(2))
        rows = torch.arange(len(lengths)).repeat_interleave(lengths)
        if self.fault == "rounded values":
            v = v.to(torch.bfloat16).float()
        if self.fault == "rounded keys":
            k = k.to(torch.bfloat16).float()
        # One write for keys and values, which are the halves of each row of the cache.
        both = torch.stack((k, v), 1).view(1, -1, 2, GROUPS, HEAD)
        both = both if self.factor == 1.0 else both * self.factor
        if self.fault == "scatter":
            places = (rows * ROOM + positions)[:, None].expand(-1, both[0, 0].numel())
            cache.view(-1, places.shape[1]).scatter_(0, places, both.flatten(2)[0])
        elif self.fault == "slot" and len(q) == len(lengths):
            cache[rows[None], (positions + 1)[None]] = both
        elif self.fault == "overwrite":
            cache[rows[None], positions.clamp(max=LENGTHS[0])[None]] = both
        else:
            cache[rows[None], positions[None]] = both
        q = q.view(-1, HEADS, HEAD)
        if len(q) == len(lengths):
            return self.o(self.decode(q, cache, positions))
        parts = (part.view(-1, GROUPS, HEAD).split(lengths.tolist()) for part in (k, v))
        return self.o(torch.cat([self.extend(*request) for request in zip(q.split(lengths.tolist()), *parts)]))

    def extend(self, q: Any, k: Any, v: Any) -> Any:
        """Return the attention of all tokens of one request. Its cache is only written here, not read."""
        count = HEADS // GROUPS
        k = k.repeat(1, count, 1) if self.fault == "heads" else k.repeat_interleave(count, 1)
        scores = self.capped(torch.einsum("qhd,khd->hqk", q, k) * HEAD**-0.5)
        weights = self.weights(scores.masked_fill(~torch.ones(scores.shape[1:], dtype=torch.bool).tril(), -1e30))
        return torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(count, 1)).flatten(1)

    def decode(self, q: Any, cache: Any, positions: Any) -> Any:
        """Return the attention of one token of each request."""
        keys, values = cache.unbind(2)
        rows = torch.arange(len(q))
        k = keys[rows.flip(0) if self.fault == "keys" else rows]
        v = values[rows.flip(0) if self.fault == "values" else rows]
        k, v = (part if self.factor == 1.0 else part / self.factor for part in (k, v))
        factor = 0.9 if self.fault == "factor" else 1.0
        if self.fault == "query":
            q = q * 0.9  # factor of the queries
        scores = torch.einsum("rgnd,rkgd->rgnk", q.unflatten(1, (GROUPS, -1)), k) * (factor * HEAD**-0.5)  # factor
        scores = self.capped(scores)
        last = positions + (self.fault == "mask")
        hidden = torch.arange(ROOM) > last[:, None, None, None]
        if self.fault == "window":
            near = torch.arange(ROOM) > positions[:, None, None, None] - 4
            hidden = hidden | ~near
        scores = scores.masked_fill(hidden, -1e30)
        weights = scores.half().softmax(-1).float() if self.fault == "softmax" else self.weights(scores, 1)
        return torch.einsum("rgnk,rkgd->rgnd", weights, v).flatten(1)


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.place = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(ROOM, SIZE)
        self.blocks = nn.ModuleList(Attention() for _ in range(2))
        self.head, self.cap = nn.Linear(SIZE, VOCABULARY), 5.0

    def forward(self, ids: Any, positions: Any, caches: Any = None, lengths: Any = None) -> Any:
        x = (self.embed(ids) * 3 if caches is None else self.embed(ids) / (1 / 3)) + self.place(positions)
        for number, block in enumerate(self.blocks):
            x = x + block(x, positions, None if caches is None else caches[number], lengths)
        return self.cap * torch.tanh(self.head(x) / self.cap)


def requests() -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(1, VOCABULARY, (length + NEW,), generator=generator) for length in LENGTHS]


def engine(path: Path, fault: str, cap: float = 5.0) -> Path:
    """Dump flat batches: the prompts of both requests, then one token of each, with their log-probabilities."""
    network, sequences = Network(), requests()
    network.cap = cap
    network.blocks[0].fault = fault
    caches = torch.zeros(2, len(LENGTHS), ROOM, 2, GROUPS, HEAD)
    with torch.no_grad(), ascend_dump.capture(network, path=path, steps="0-9"):
        prompts = torch.cat([sequence[:-NEW] for sequence in sequences])
        positions = torch.cat([torch.arange(length) for length in LENGTHS])
        network(prompts, positions, caches, torch.tensor(LENGTHS)).log_softmax(-1)
        for n in range(NEW - 1):
            ids = torch.stack([sequence[n - NEW] for sequence in sequences])
            network(ids, torch.tensor(LENGTHS) + n, caches, torch.ones(len(LENGTHS), dtype=torch.long)).log_softmax(-1)
    return path


def trainer(path: Path) -> Path:
    network, ids = Network(), nn.utils.rnn.pad_sequence(requests(), batch_first=True)
    with torch.no_grad(), ascend_dump.capture(network, path=path, steps="0-9"):
        network(ids, torch.arange(ids.shape[1]).expand(ids.shape))
    return path


@pytest.mark.parametrize("way", ["", "scatter"])
def test_a_right_attention_has_no_origin(way: str, tmp_path: Path) -> None:
    """Results that agree settle the write to the cache, which one side has."""
    comparison = ascend_dump.compare(engine(tmp_path / "a", way), trainer(tmp_path / "b"), align="tokens")
    assert not comparison.origins
    assert comparison.verdict == "noise"


def test_a_cache_is_no_state_for_later_steps(tmp_path: Path) -> None:
    """All calls are compared at once, so that a write to the cache does not explain a difference in the results."""
    faulty = engine(tmp_path / "a", "scatter", cap=4.0)
    origins = ascend_dump.compare(faulty, trainer(tmp_path / "b"), align="tokens").origins
    assert origins
    assert not any("scatter" in origin.op_name for origin in origins)


@pytest.mark.parametrize(
    ("fault", "operator", "text"),
    [
        ("mask", "gt", "attends to 8 keys here, to 7 in the reference"),
        ("softmax", "_to_copy", "the products of queries and keys agree"),
        ("factor", "mul", "the scores are 0.9 times"),
        ("keys", "index", "it reads other keys"),
        ("values", "index", "the weights of all keys agree"),
        ("heads", "repeat", "head 1 reads the keys of head 2"),
        ("rounded keys", "_to_copy", "the queries agree, and the keys are rounded to"),
        ("rounded values", "_to_copy", "the weights of all keys agree, and the results differ"),
        ("slot", "index_put_", "it reads other keys"),
        ("overwrite", "index_put_", "it reads other keys"),
    ],
)
def test_a_fault_in_an_attention(fault: str, operator: str, text: str, tmp_path: Path) -> None:
    comparison = ascend_dump.compare(engine(tmp_path / "a", fault), trainer(tmp_path / "b"), align="tokens")
    first = comparison.origins[0]
    assert first.module == "blocks.0", first
    assert first.op_name.startswith(f"blocks.0/{operator}_"), (first.op_name, first.evidence)
    assert text in first.evidence[0]


@pytest.mark.parametrize(
    ("fault", "operator"), [("", ""), ("mask", "gt"), ("values", "index"), ("no sink", "_softmax")]
)
def test_an_attention_with_a_sink(fault: str, operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The softmax has a column more than there are keys."""
    monkeypatch.setattr(Attention, "sink", torch.linspace(-1.0, 1.0, HEADS))
    comparison = ascend_dump.compare(engine(tmp_path / "a", fault), trainer(tmp_path / "b"), align="tokens")
    names = [origin.op_name.rpartition("_")[0] for origin in comparison.origins[:1]]
    assert names == ([f"blocks.0/{operator}"] if fault else []), comparison.origins
    assert comparison.verdict == ("different" if fault else "noise")


def test_values_that_may_be_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values without a negative number cannot be told from weights, so that their vectors are unknown."""
    monkeypatch.setattr(Attention, "has_positive_values", True)
    first = ascend_dump.compare(engine(tmp_path / "a", "values"), trainer(tmp_path / "b"), align="tokens").origins[0]
    assert first.op_name.startswith("blocks.0/index_"), (first.op_name, first.evidence)


@pytest.mark.parametrize("by_hand", ["sum", "logsumexp"])
@pytest.mark.parametrize(("fault", "operator"), [("", ""), ("mask", "gt"), ("heads", "repeat"), ("values", "index")])
def test_a_softmax_of_single_operators(
    by_hand: str, fault: str, operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = trainer(tmp_path / "b")
    monkeypatch.setattr(Attention, "by_hand", by_hand)
    comparison = ascend_dump.compare(engine(tmp_path / "a", fault), reference, align="tokens")
    names = [origin.op_name.rpartition("_")[0] for origin in comparison.origins[:1]]
    assert names == ([f"blocks.0/{operator}"] if fault else []), comparison.origins


@pytest.mark.parametrize("fault", ["keys", "values"])
def test_a_cache_of_scaled_numbers(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator that reads it is behind the one that restores the numbers."""
    monkeypatch.setattr(Attention, "factor", 4.0)
    first = ascend_dump.compare(engine(tmp_path / "a", fault), trainer(tmp_path / "b"), align="tokens").origins[0]
    assert first.op_name.startswith("blocks.0/index_"), (first.op_name, first.evidence)


def test_a_mask_of_several_parts(tmp_path: Path) -> None:
    """It is named where it is complete, with its parts."""
    comparison = ascend_dump.compare(engine(tmp_path / "a", "window"), trainer(tmp_path / "b"), align="tokens")
    first = comparison.origins[0]
    assert first.op_name == "blocks.0/bitwise_or_0"
    assert "it attends to 4 keys here, to 7 in the reference" in first.evidence[0]
    assert "combines the masks of blocks.0/gt_0 (test_compare_attention.py:" in first.evidence[1]


def test_a_mask_of_the_reference_that_shows_later_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More keys than a request has up to a token are wrong, whatever the cache of the other side has."""
    monkeypatch.setattr(Attention, "shown", 1)
    first = ascend_dump.compare(engine(tmp_path / "a", ""), trainer(tmp_path / "b"), align="tokens").origins[0]
    assert "it attends to 1 keys here, to 2 in the reference, of 1 tokens up to it" in first.evidence[0]
    assert first.evidence[1].startswith("the mask of the reference is wrong, see blocks.0/triu_0 ")


@pytest.mark.parametrize(("fault", "comment"), [("factor", "# factor"), ("query", "# factor of the queries")])
def test_a_factor_before_a_cap_of_the_scores(
    fault: str, comment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cap changes scores by no single factor. A factor may be at the scores or, before them, at the queries."""
    monkeypatch.setattr(Attention, "cap", 0.5)
    first = ascend_dump.compare(engine(tmp_path / "a", fault), trainer(tmp_path / "b"), align="tokens").origins[0]
    line = int(str(first.source).rpartition(":")[2])
    assert Path(__file__).read_text(encoding="utf-8").splitlines()[line - 1].endswith(comment), first.evidence


def test_another_cap_of_the_logits(tmp_path: Path) -> None:
    comparison = ascend_dump.compare(engine(tmp_path / "a", "", 6.0), trainer(tmp_path / "b"), align="tokens")
    first = comparison.origins[0]
    assert first.op_name == "div_1"
    assert first.pair.reference is not None, first.evidence
