"""A rollout (a prompt, then one token after the other with a cache) is compared with whole sequences of a trainer."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Optional

import pytest

import ascend_dump
from ascend_dump import Comparison, ConfigError, NotSupported
from ascend_dump.cli import Exit, main

torch: Any = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
HEADS, SIZE, VOCABULARY = 2, 12, 40


class Norm(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    def __init__(self) -> None:
        super().__init__()
        self.eps, self.weight = 1e-5, nn.Parameter(torch.linspace(0.5, 1.5, SIZE))

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Experts(nn.Module):  # type: ignore[misc]
    """Sends each token to two of four experts, whose rows are sorted by experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.weights = nn.Linear(SIZE, 4, bias=False), nn.Parameter(torch.randn(4, SIZE, SIZE) / 3)
        #: Added to the scores by which experts are chosen; -Inf for experts that are never chosen.
        self.choice: Any = None

    def forward(self, x: Any) -> Any:
        tokens = x.reshape(-1, SIZE)
        scores = self.router(tokens).softmax(-1)
        ids = (scores if self.choice is None else scores + self.choice).topk(2, -1).indices
        scores = scores.gather(-1, ids)
        order = ids.reshape(-1).argsort(stable=True)
        rows = tokens[order // 2]
        counts = torch.bincount(ids.reshape(-1), minlength=4).tolist()
        parts = [part @ weight for part, weight in zip(rows.split(counts), self.weights)]
        made = torch.empty_like(rows)
        made[order] = torch.cat(parts)
        return (made.view(-1, 2, SIZE) * scores[..., None]).sum(1).view(x.shape)


class ExpertsOfRows(Experts):
    """The same experts, each of which runs the rows of its tokens, or all rows with a weight of 0 for other tokens.

    kind: "hit" (experts without tokens do not run), "split" (rows are sorted by experts), "all" (all rows)
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Any) -> Any:
        tokens = x.reshape(-1, SIZE)
        scores = self.router(tokens).softmax(-1)
        ids = (scores if self.choice is None else scores + self.choice).topk(2, -1).indices
        scores = scores.gather(-1, ids)
        if self.kind == "all":
            of_experts = torch.zeros(len(tokens), 4).scatter(1, ids, scores)
            rows = tokens.repeat(4, 1) * of_experts.transpose(0, 1).reshape(-1, 1)
            return (rows.view(4, -1, SIZE) @ self.weights).view(-1, SIZE).reshape(4, -1, SIZE).sum(0).view(x.shape)
        if self.kind == "split":
            order = ids.reshape(-1).argsort(stable=True)
            rows = tokens[order // 2].split(torch.bincount(ids.reshape(-1), minlength=4).tolist())
            parts = [F.linear(part, weight.T) for part, weight in zip(rows, self.weights)]
            made = torch.zeros_like(tokens)
            return made.index_add_(0, order // 2, torch.cat(parts) * scores.reshape(-1)[order, None]).view(x.shape)
        made = torch.zeros_like(tokens)
        for expert in ids.unique().tolist():
            numbers, places = torch.where(ids == expert)
            made.index_add_(0, numbers, (tokens[numbers] @ self.weights[expert]) * scores[numbers, places, None])
        return made.view(x.shape)


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, *, experts: bool) -> None:
        super().__init__()
        self.n1, self.n2 = Norm(), Norm()
        self.q, self.k, self.v, self.o = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))
        self.mlp = Experts() if experts else nn.Sequential(nn.Linear(SIZE, 20), nn.SiLU(), nn.Linear(20, SIZE))

    def forward(self, x: Any, positions: Any, mask: Any, cache: Optional[dict[str, Any]]) -> Any:
        batch, length, _ = x.shape
        y = self.n1(x)
        angles = positions[..., None].to(x.dtype) / 10.0 ** torch.arange(3)
        cos, sin = (make(angles).repeat(1, 1, 2)[:, None].to(x.dtype) for make in (torch.cos, torch.sin))
        q, k, v = (f(y).view(batch, length, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = (t * cos + torch.cat((-t[..., 3:], t[..., :3]), -1) * sin for t in (q, k))
        if cache is not None:
            if "k" in cache:
                k, v = torch.cat((cache["k"], k), 2), torch.cat((cache["v"], v), 2)
            cache.update(k=k, v=v)
        scores = q @ k.transpose(2, 3) * 6**-0.5 + mask
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, SIZE))
        return x + self.mlp(self.n2(x))


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self, *, experts: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm, self.head = nn.Embedding(VOCABULARY, SIZE), Norm(), nn.Linear(SIZE, VOCABULARY)
        self.blocks = nn.ModuleList(Block(experts=experts) for _ in range(2))

    def forward(self, ids: Any, positions: Any, keys: Any, caches: Optional[list[dict[str, Any]]] = None) -> Any:
        """keys: [rows, keys], the request of each key and -1 for padding; rows with several requests are packed."""
        x = self.embed(ids)
        slots = torch.arange(keys.shape[1])
        own = keys[:, keys.shape[1] - ids.shape[1] :]
        sees = (own[:, :, None] == keys[:, None]) & (slots <= slots[-ids.shape[1] :, None]) & (keys >= 0)[:, None]
        mask = torch.zeros(sees.shape, dtype=x.dtype).masked_fill(~sees, torch.finfo(x.dtype).min)[:, None]
        for index, block in enumerate(self.blocks):
            x = block(x, positions, mask, None if caches is None else caches[index])
        return self.head(self.norm(x))


class IndexedTable(nn.Module):  # type: ignore[misc]
    """Indexes its weight with ids, after another table with positions, instead of calling an embedding."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.places, self.weight = nn.Parameter(torch.zeros(64, SIZE)), nn.Parameter(weight.detach().clone())

    def forward(self, ids: Any) -> Any:
        return self.places[torch.arange(ids.shape[1])] * 0.0 + self.weight[ids]


def indexing(network: Any) -> Any:
    """Replace the embedding of a network."""
    network.embed = IndexedTable(network.embed.weight)
    return network


def requests(*lengths: int) -> list[Any]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(1, VOCABULARY, (length,), generator=generator) for length in lengths]


def padded(sequences: list[Any], *, left: bool) -> tuple[Any, Any, Any]:
    """Return ids, positions and keys of a batch."""
    longest = max(map(len, sequences))
    ids, positions = torch.zeros(2, len(sequences), longest, dtype=torch.long)
    keys = torch.full((len(sequences), longest), -1)
    for row, sequence in enumerate(sequences):
        where = slice(longest - len(sequence), None) if left else slice(0, len(sequence))
        ids[row, where], positions[row, where] = sequence, torch.arange(len(sequence))
        keys[row, where] = 0
    return ids, positions, keys


def rollout(path: Path, network: Any, sequences: list[Any], *, new: int = 3, chunk: int = 99) -> Path:
    """Dump prompts with padding on the left, in chunks, then `new` tokens of each sequence one by one."""
    ids, positions, keys = padded([sequence[:-new] for sequence in sequences], left=True)
    caches: list[dict[str, Any]] = [{} for _ in network.blocks]
    with torch.no_grad(), ascend_dump.capture(network, path=path, steps="0-99"):
        for begin in range(0, ids.shape[1], chunk):
            part = slice(begin, begin + chunk)
            network(ids[:, part], positions[:, part], keys[:, : begin + chunk], caches)
        for n in range(-new, 0):
            keys = torch.cat((keys, torch.zeros(len(sequences), 1, dtype=torch.long)), 1)
            ids = torch.stack([sequence[n] for sequence in sequences])[:, None]
            positions = torch.tensor([[len(sequence) + n] for sequence in sequences])
            network(ids, positions, keys, caches)
    return path


def trainer(path: Path, network: Any, sequences: list[Any], *, packed: bool = False) -> Path:
    if packed:
        numbers = torch.cat([torch.full((len(sequence),), n) for n, sequence in enumerate(sequences)])[None]
        inputs = torch.cat(sequences)[None], torch.cat([torch.arange(len(s)) for s in sequences])[None], numbers
    else:
        inputs = padded(sequences, left=False)
    with torch.no_grad(), ascend_dump.capture(network, path=path, steps="0-99"):
        network(*inputs)
    return path


def compared(tmp_path: Path, faulty: Any, sequences: list[Any], **settings: Any) -> Comparison:
    """Compare the rollout of a network with whole sequences of the right one."""
    packed = settings.pop("packed", False)
    right = Network(experts=isinstance(faulty.blocks[0].mlp, Experts)).to(faulty.head.weight.dtype)
    reference = trainer(tmp_path / "trainer", right, sequences, packed=packed)
    return ascend_dump.compare(rollout(tmp_path / "rollout", faulty, sequences, **settings), reference)


@pytest.mark.parametrize(
    ("lengths", "settings", "experts"),
    [
        ((11,), {}, False),
        ((12,), {"chunk": 4}, False),
        ((10, 12, 9), {}, True),
        ((10, 12, 9), {"packed": True}, True),
    ],
)
def test_a_right_rollout(lengths: tuple[int, ...], settings: dict[str, Any], experts: bool, tmp_path: Path) -> None:
    """Everything is equal or noise, and the log-probabilities of all tokens are compared first."""
    comparison = compared(tmp_path, Network(experts=experts), requests(*lengths), **settings)
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert comparison.origins == ()
    assert comparison.aligned[0].startswith(f"log-probabilities of {sum(lengths) - len(lengths)} tokens: ")
    assert f"{sum(lengths)} tokens of " in comparison.aligned[-1]


@pytest.mark.parametrize("own", [0, 1])
def test_a_pack_of_two_sequences_of_which_the_rollout_has_one(own: int, tmp_path: Path) -> None:
    """The numbers 0 and 1 of the two sequences look like a mask of padding on the left."""
    network, sequences = Network(), requests(11, 6)
    reference = trainer(tmp_path / "trainer", network, sequences, packed=True)
    actual = rollout(tmp_path / "rollout", network, [sequences[own]])
    comparison = ascend_dump.compare(actual, reference, align="tokens")
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert comparison.origins == ()
    assert f"{len(sequences[own])} tokens of " in comparison.aligned[-1]


def test_a_loss_of_the_trainer_is_no_result_of_the_model(tmp_path: Path) -> None:
    """It picks log-probabilities with gather and logsumexp."""

    class Trained(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = Network()

        def forward(self, ids: Any, positions: Any, keys: Any) -> Any:
            logits = self.network(ids, positions, keys)[:, :-1]
            found = logits.gather(-1, ids[:, 1:, None])[..., 0] - logits.logsumexp(-1)
            return -(found * (keys[:, 1:] == 0)).sum()

    sequences = requests(10, 12)
    inputs = padded(sequences, left=False)
    with torch.no_grad(), ascend_dump.capture(trained := Trained(), path=tmp_path / "trainer", steps="0"):
        trained(*inputs)
    actual = rollout(tmp_path / "rollout", Network(), sequences)
    comparison = ascend_dump.compare(actual, tmp_path / "trainer", align="tokens")
    assert comparison.origins == ()
    assert comparison.verdict == "noise", comparison.counts
    assert any("a loss" in reason for reason in comparison.omitted), comparison.omitted


def test_packed_sequences_whose_positions_go_on(tmp_path: Path) -> None:
    """The numbers 0 and 1 of the sequences are taken for a mask of padding: this is told, and it is no noise."""
    network, sequences = Network(), requests(11, 6)
    ids, keys = torch.cat(sequences)[None], torch.cat([torch.zeros(11), torch.ones(6)]).long()[None]
    with torch.no_grad(), ascend_dump.capture(network, path=tmp_path / "trainer", steps="0"):
        network(ids, torch.arange(17)[None], keys)
    actual = rollout(tmp_path / "rollout", network, sequences)
    comparison = ascend_dump.compare(actual, tmp_path / "trainer", align="tokens")
    assert comparison.verdict not in ("equal", "noise"), comparison.counts
    text = next(text for text in comparison.aligned if "were not compared" in text)
    assert text.startswith(
        "11 tokens of request 0 of actual were not compared: the reference has them in slots 0 to 10 "
    )


def test_a_rollout_that_indexes_the_table_of_embeddings(tmp_path: Path) -> None:
    """The table is that of the trainer, so the comparison is by tokens without the setting too."""
    network, sequences = indexing(Network()), requests(10, 12, 9)
    reference = trainer(tmp_path / "trainer", Network(), sequences)
    comparison = ascend_dump.compare(rollout(tmp_path / "rollout", network, sequences), reference)
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert "31 tokens of 3 requests" in comparison.aligned[-1]

    network.blocks[1].n2.eps = 0.1
    [origin] = ascend_dump.compare(rollout(tmp_path / "faulty", network, sequences), reference).origins
    assert origin.module == "blocks.1.n2"


def test_two_programs_that_index_a_table(tmp_path: Path) -> None:
    """A table that is indexed with positions is not taken. Both sides index the other one, so it is that of ids."""
    network, sequences = indexing(Network()), requests(11)
    reference = trainer(tmp_path / "trainer", network, sequences)
    actual = rollout(tmp_path / "rollout", network, sequences)
    for settings in ({"align": "tokens"}, {}):
        comparison = ascend_dump.compare(actual, reference, **settings)
        assert comparison.origins == ()
        assert comparison.aligned[0].startswith("log-probabilities of 10 tokens: ")
        assert "11 tokens of " in comparison.aligned[-1]


def test_the_first_token_and_the_operator_of_a_norm(tmp_path: Path) -> None:
    network = Network()
    network.blocks[1].n2.eps = 0.1
    [origin] = compared(tmp_path, network, requests(10, 12, 9)).origins
    assert origin.module == "blocks.1.n2"
    assert origin.evidence[0] == "first token 0 of request 0; 31 of 31 tokens differ"
    assert any(text.endswith("0.1 here, 1e-05 in the reference") for text in origin.evidence)


def test_a_cache_that_changes_while_decoding(tmp_path: Path) -> None:
    """The value of token 2 is another one in the cache of later calls: every call is looked at."""
    network, calls = Network(), []

    def spoil(block: Any, inputs: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            inputs[3]["v"][:, :, 2] = 1.0

    network.blocks[1].register_forward_pre_hook(spoil)
    comparison = compared(tmp_path, network, requests(11))
    first = comparison.origins[0]
    assert first.module == "blocks.1"
    assert first.evidence[0].startswith("first token 2; 1 of 11 tokens differ")


def test_an_operator_that_runs_in_decoding_only(tmp_path: Path) -> None:
    network = Network()
    network.blocks[0].o.register_forward_hook(lambda module, inputs, y: y * 1.1 if y.shape[1] == 1 else None)
    origin = compared(tmp_path, network, requests(11)).origins[0]
    assert origin.op_type == "aten::mul"
    assert origin.module == "blocks.0"
    assert origin.evidence[0] == "first token 8; 3 of 11 tokens differ"
    assert origin.evidence[1] == "aten::mul runs in some calls of actual only, such as call 1"


def test_a_rounding_in_decoding_only(tmp_path: Path) -> None:
    """A cast changes values, so it is named, although it only copies elements."""
    network = Network()
    network.blocks[0].o.register_forward_hook(
        lambda module, inputs, y: y.bfloat16().float() if y.shape[1] == 1 else None
    )
    origin = compared(tmp_path, network, requests(11)).origins[0]
    assert (origin.op_type, origin.module) == ("aten::_to_copy", "blocks.0")
    assert origin.evidence[1] == "aten::_to_copy runs in some calls of actual only, such as call 1"


class CountingNorm(Norm):
    """Keeps the largest elements of its inputs, which nothing reads."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.weight = norm.weight
        self.register_buffer("largest", torch.zeros(SIZE))

    def forward(self, x: Any) -> Any:
        self.largest.copy_(torch.maximum(self.largest, x.abs().amax((0, 1))))
        return super().forward(x)


def test_operators_of_one_side_without_an_effect_on_the_results(tmp_path: Path) -> None:
    """The log-probabilities of all tokens agree, and nothing behind them differs."""
    network = Network()
    network.blocks[1].n2 = CountingNorm(network.blocks[1].n2)
    comparison = compared(tmp_path / "right", network, requests(10, 12, 9))
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert comparison.origins == ()
    network.blocks[1].n2.eps = 0.1
    comparison = compared(tmp_path / "wrong", network, requests(10, 12, 9))
    assert comparison.origins[0].module == "blocks.1.n2"
    assert comparison.counts["unmatched"] > 0


def test_positions_that_are_one_too_large(tmp_path: Path) -> None:
    network = Network()
    network.register_forward_pre_hook(
        lambda module, inputs: (inputs[0], inputs[1] + (inputs[0].shape[1] == 1), *inputs[2:])
    )
    origin = compared(tmp_path, network, requests(11)).origins[0]
    assert origin.evidence[0].startswith("first token 8; its position is 9 here, 8 in the reference: 3 of 11 tokens")
    assert origin.kind == "input"


class Gated(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(SIZE, 20), nn.Linear(SIZE, 20), nn.Linear(20, SIZE)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class FusedGated(nn.Module):  # type: ignore[misc]
    """The same with one product. exchanged: the activation is that of the other half"""

    def __init__(self, parts: Gated) -> None:
        super().__init__()
        self.gate_up, self.down, self.exchanged = nn.Linear(SIZE, 40), parts.down, False
        self.gate_up.weight.data = torch.cat((parts.gate.weight, parts.up.weight)).detach()
        self.gate_up.bias.data = torch.cat((parts.gate.bias, parts.up.bias)).detach()

    def forward(self, x: Any) -> Any:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(up) * gate if self.exchanged else F.silu(gate) * up)


@pytest.mark.parametrize("exchanged", [False, True])
def test_the_activation_of_the_other_half_of_a_fused_product(exchanged: bool, tmp_path: Path) -> None:
    networks = Network(), Network()
    for network in networks:
        torch.manual_seed(5)
        network.blocks[1].mlp = Gated()
    networks[1].blocks[1].mlp = FusedGated(networks[1].blocks[1].mlp)
    networks[1].blocks[1].mlp.exchanged = exchanged
    sequences = requests(11)
    reference = trainer(tmp_path / "trainer", networks[0], sequences)
    comparison = ascend_dump.compare(rollout(tmp_path / "rollout", networks[1], sequences), reference)
    assert (comparison.verdict in ("equal", "noise")) == (not exchanged), comparison.counts
    assert [origin.module for origin in comparison.origins[:1]] == (["blocks.1.mlp"] if exchanged else [])


def test_tokens_that_go_to_other_experts_within_rounding(tmp_path: Path) -> None:
    """They are counted and left out; a router with other weights is an origin."""
    sequences = requests(40, 38, 39, 40, 40, 37)
    network = Network(experts=True)
    reference = trainer(tmp_path / "trainer", network, sequences)
    actual = rollout(tmp_path / "rollout", Network(experts=True).bfloat16(), sequences)
    comparison = ascend_dump.compare(actual, reference)
    routing = [text for text in comparison.aligned if text.startswith("routing: ")]
    assert routing
    assert all(text.endswith("within rounding") for text in routing)
    assert all(origin.kind == "parameter" or "experts" not in origin.op_name for origin in comparison.origins)

    with torch.no_grad():
        network.blocks[1].mlp.router.weight[1] += 0.2
    origin = ascend_dump.compare(rollout(tmp_path / "faulty", network, sequences), reference).origins[0]
    assert origin.module == "blocks.1.mlp.router"


@pytest.mark.parametrize("kind", ["hit", "split", "all"])
def test_experts_with_the_rows_of_their_tokens(kind: str, tmp_path: Path) -> None:
    """The number of rows of an expert differs between calls; a wrong weight of an expert is an origin."""

    def network() -> Any:
        made = Network()
        for number, block in enumerate(made.blocks):
            torch.manual_seed(10 + number)
            block.mlp = ExpertsOfRows(kind)
        return made

    sequences = requests(7, 9)
    reference = trainer(tmp_path / "trainer", network(), sequences)
    comparison = ascend_dump.compare(rollout(tmp_path / "rollout", network(), sequences), reference)
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    faulty = network()
    with torch.no_grad():
        faulty.blocks[1].mlp.weights[2] *= 1.1
    first = ascend_dump.compare(rollout(tmp_path / "faulty", faulty, sequences), reference).origins[0]
    assert first.module == "blocks.1.mlp"


def test_tokens_that_go_to_other_experts_because_of_a_bias(tmp_path: Path) -> None:
    """A score of -Inf is no scale for the margin between two experts."""
    networks = Network(experts=True), Network(experts=True)
    for network, bias in zip(networks, (0.0, 0.4)):
        network.blocks[1].mlp.choice = torch.tensor([0.0, bias, 0.0, -torch.inf])
    sequences = requests(14, 12)
    reference = trainer(tmp_path / "trainer", networks[1], sequences)
    right = ascend_dump.compare(rollout(tmp_path / "right", networks[1], sequences), reference)
    assert right.verdict == "noise", right.counts
    faulty = ascend_dump.compare(rollout(tmp_path / "rollout", networks[0], sequences), reference)
    assert not any("within rounding" in text for text in faulty.aligned)
    assert faulty.origins[0].module.startswith("blocks.1.mlp")


def test_a_request_and_its_padded_row_in_a_batch(tmp_path: Path) -> None:
    """Rows of other lengths cannot be cut, but the tokens of the row are compared."""
    sequences, faulty = requests(10, 7, 9), Network()
    faulty.blocks[1].n2.eps = 0.1
    batch = rollout(tmp_path / "batch", Network(), sequences)
    alone = rollout(tmp_path / "alone", Network(), sequences[1:2])
    comparison = ascend_dump.compare(alone, batch, rows={0: 1})
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert "7 tokens of 1 request: " in comparison.aligned[-1]
    with pytest.raises(NotSupported, match="the same length"):
        ascend_dump.compare(alone, batch, rows={0: 0})
    wrong = rollout(tmp_path / "wrong", faulty, sequences[1:2])
    assert ascend_dump.compare(wrong, batch, rows={0: 1}).origins[0].module == "blocks.1.n2"


class ScoredNetwork(Network):
    """Reads the score of a token of each row as a number, as engines do that return log-probabilities."""

    def forward(self, *args: Any) -> Any:
        logits = super().forward(*args)
        self.scores = [row[3].item() for row in logits[:, -1].log_softmax(-1)]
        return logits


def test_scores_that_are_read_as_numbers(tmp_path: Path) -> None:
    """More numbers are read of a batch, and nothing shows which of them is that of the request."""
    sequences = requests(10, 7, 9)
    batch = rollout(tmp_path / "batch", ScoredNetwork(), sequences)
    alone = rollout(tmp_path / "alone", ScoredNetwork(), sequences[1:2])
    comparison = ascend_dump.compare(alone, batch, rows={0: 1})
    assert (comparison.verdict, comparison.origins) == ("noise", ())
    # The trainer reads the score of the last slot of each row, which may be padding.
    comparison = ascend_dump.compare(batch, trainer(tmp_path / "trainer", ScoredNetwork(), sequences))
    assert (comparison.verdict, comparison.origins) == ("noise", ())


def test_ids_that_part(tmp_path: Path) -> None:
    """The tokens behind them are not compared, so the verdict is not that of those before."""
    [sequence] = requests(11)
    others = torch.cat((sequence[:8], (sequence[8:] + 1) % VOCABULARY))
    reference = trainer(tmp_path / "trainer", Network(), [sequence])
    comparison = ascend_dump.compare(rollout(tmp_path / "rollout", Network(), [others]), reference)
    assert (comparison.verdict, len(comparison.origins)) == ("unmatched", 0)
    assert any("the ids of request 0 part at token 8" in pair.reason for pair in comparison.pairs)


def test_dumps_of_other_requests_are_not_compared_by_tokens(tmp_path: Path) -> None:
    network = Network()
    actual = rollout(tmp_path / "rollout", network, [torch.arange(1, 9)])
    reference = trainer(tmp_path / "trainer", network, [torch.arange(20, 31)])
    with pytest.raises(NotSupported, match="ids of both dumps are of other requests"):
        ascend_dump.compare(actual, reference, align="tokens")
    assert not any("tokens" in text for text in ascend_dump.compare(actual, reference).aligned)


def test_a_dump_without_ids(tmp_path: Path) -> None:
    network = nn.Linear(3, 3)
    with ascend_dump.capture(network, path=tmp_path / "dump", steps="0"):
        network(torch.ones(2, 3))
    with pytest.raises(NotSupported, match="records no ids of tokens"):
        ascend_dump.compare(tmp_path / "dump", tmp_path / "dump", align="tokens")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"align": "rows"}, "align='rows', expected 'tokens'"),
        ({"align": "tokens", "rows": {0: 1}}, "align= and rows= were both given"),
        ({"align": "tokens", "replay": True}, "align= and replay= were both given"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        ascend_dump.compare(tmp_path, tmp_path, **settings)


def test_the_command_line(tmp_path: Path) -> None:
    network, sequences = Network(), requests(11)
    actual = rollout(tmp_path / "rollout", network, sequences)
    reference = trainer(tmp_path / "trainer", network, sequences)
    with redirect_stdout(io.StringIO()) as stdout, redirect_stderr(io.StringIO()):
        assert main(["compare", str(actual), str(reference), "--align", "tokens", "--json"]) == Exit.OK
    answer = json.loads(stdout.getvalue())
    assert answer["aligned"][0].startswith("log-probabilities of 10 tokens")
    # The reasons are in JSON, and printed with --all; else there is one line with the commonest ones.
    assert len(answer["aligned"][-1]) <= 120
    assert answer["omitted"]["picked for the program"] > answer["omitted"]["moved on one side"] > 0
    for options, is_listed in (((), False), (("--all",), True)):
        with redirect_stdout(io.StringIO()) as stdout, redirect_stderr(io.StringIO()):
            assert main(["compare", str(actual), str(reference), *options]) == Exit.OK
        assert ("tensors not compared: " in " ".join(stdout.getvalue().split())) == is_listed
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        assert main(["compare", str(actual), str(reference), "--align", "lines"]) == Exit.USAGE


class Adapted(nn.Module):  # type: ignore[misc]
    """A linear layer with a low-rank adapter, with the names that PEFT gives its parts."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(SIZE, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, SIZE, bias=False)})

    def forward(self, x: Any) -> Any:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x)) * 2.0

    def merged(self, factor: float) -> Any:
        with torch.no_grad():
            self.base_layer.weight += factor * self.lora_B["default"].weight @ self.lora_A["default"].weight
        return self.base_layer


class Wrapped(nn.Module):  # type: ignore[misc]
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.base = network

    def forward(self, *inputs: Any) -> Any:
        return self.base(*inputs)


@pytest.mark.parametrize(("factor", "verdict"), [(2.0, "noise"), (3.0, "different")])
def test_an_engine_that_has_merged_the_adapters(factor: float, verdict: str, tmp_path: Path) -> None:
    sides = []
    for _ in range(2):
        network = Network()
        for block in network.blocks:
            block.q, block.v = Adapted(block.q), Adapted(block.v)
        sides.append(network)
    for block in sides[0].blocks:
        block.q, block.v = block.q.merged(factor), block.v.merged(factor)
    sequences = requests(11)
    reference = trainer(tmp_path / "trainer", Wrapped(sides[1]), sequences)
    comparison = ascend_dump.compare(rollout(tmp_path / "rollout", sides[0], sequences), reference)
    assert comparison.verdict == verdict
    found = [(origin.kind, origin.module) for origin in comparison.origins[:1]]
    assert found == [] if factor == 2 else found[0] in (("parameter", "blocks.0.q"), ("parameter", "blocks.0.v"))


class Scaled(nn.Module):  # type: ignore[misc]
    """Multiplies the logits of a network, on the tokens that are picked."""

    def __init__(self, network: Any, scale: float) -> None:
        super().__init__()
        self.network, self.scale, self.blocks, self.head = network, scale, network.blocks, network.head

    def forward(self, *inputs: Any) -> Any:
        return torch.tanh(self.network(*inputs) * self.scale)


def test_log_probabilities_are_those_of_the_last_results(tmp_path: Path) -> None:
    """Log-probabilities are those of the last results, behind the product of the head."""
    sequences = requests(10, 12)
    reference = trainer(tmp_path / "trainer", Scaled(Network(), 0.5), sequences)
    comparison = ascend_dump.compare(rollout(tmp_path / "right", Scaled(Network(), 0.5), sequences), reference)
    assert (comparison.verdict, comparison.origins) == ("noise", ())
    plain = rollout(tmp_path / "plain", Network(), sequences)
    comparison = ascend_dump.compare(plain, reference)
    with torch.no_grad():
        inputs = padded(sequences, left=False)
        logits = Network()(*inputs)
        ids = inputs[0][:, 1:, None]
        of_sides = [x.log_softmax(-1)[:, :-1].gather(-1, ids)[..., 0] for x in (logits, torch.tanh(logits * 0.5))]
    difference = (of_sides[0] - of_sides[1]).abs()[inputs[2][:, 1:] >= 0].max()
    assert f"largest difference {float(difference):.2g} at" in comparison.aligned[0]
    assert {origin.op_name for origin in comparison.origins} == {"tanh_0", "mul_0"}
    of_plain = trainer(tmp_path / "plain trainer", Network(), sequences)
    turned = ascend_dump.compare(tmp_path / "right", of_plain)
    assert f"largest difference {float(difference):.2g} at" in turned.aligned[0]


def test_packed_requests_whose_positions_run_on(tmp_path: Path) -> None:
    """The requests are recognised at their wrong positions, without a setting."""
    sequences = requests(6, 12, 10)
    packed = torch.cat(sequences)[None]
    numbers = torch.cat([torch.full((len(sequence),), n) for n, sequence in enumerate(sequences)])[None]
    network = Network()
    with torch.no_grad(), ascend_dump.capture(network, path=tmp_path / "packed", steps="0-99"):
        network(packed, torch.arange(packed.shape[1])[None], numbers)
    comparison = ascend_dump.compare(tmp_path / "packed", trainer(tmp_path / "trainer", Network(), sequences))
    assert any("as if positions began again" in text for text in comparison.aligned), comparison.counts
    assert comparison.verdict == "unmatched"
