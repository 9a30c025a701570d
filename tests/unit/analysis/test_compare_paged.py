"""An engine with a paged cache is compared with a trainer: block tables, draft tokens, cached prefixes, experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

import ascend_dump
from ascend_dump import Comparison

torch: Any = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
HEADS, SIZE, VOCABULARY, EXPERTS = 2, 12, 40, 3
BLOCK, BLOCKS = 4, 16


class Norm(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    def __init__(self) -> None:
        super().__init__()
        self.eps, self.weight = 1e-5, nn.Parameter(torch.linspace(0.5, 1.5, SIZE))

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Experts(nn.Module):  # type: ignore[misc]
    """Stacked experts, [experts, out, in], or a list of layers with the same weights; each token goes to one."""

    def __init__(self, *, stacked: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        weights = torch.randn(EXPERTS, SIZE, SIZE, generator=generator) / 3
        self.router, self.stacked, self.scales = nn.Linear(SIZE, EXPERTS, bias=False), stacked, [1.0] * EXPERTS
        if stacked:
            self.weights = nn.Parameter(weights)
        else:
            self.list = nn.ModuleList(nn.Linear(SIZE, SIZE, bias=False) for _ in range(EXPERTS))
            for layer, weight in zip(self.list, weights):
                layer.weight = nn.Parameter(weight.clone())

    def forward(self, x: Any) -> Any:
        tokens = x.reshape(-1, SIZE)
        scores, ids = self.router(tokens).softmax(-1).max(-1)
        if self.stacked:
            made = torch.bmm(self.weights[ids], tokens[:, :, None])[..., 0]
        else:
            made = torch.zeros_like(tokens)
            for number, layer in enumerate(self.list):
                (rows,) = torch.where(ids == number)
                made.index_add_(0, rows, layer(tokens[rows]) * self.scales[number])
        return (made * scores[:, None]).view(x.shape)


def rotated(x: Any, positions: Any) -> Any:
    """x: [tokens, heads, 6]."""
    angles = positions[:, None].to(x.dtype) / 10.0 ** torch.arange(3)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attention(q: Any, k: Any, v: Any, begin: int) -> Any:
    """Attend from tokens at positions from `begin` on to all keys up to them; [tokens, heads, 6] of each."""
    mask = torch.arange(len(k))[None] <= begin + torch.arange(len(q))[:, None]
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1).reshape(-1, SIZE)


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, *, engine: bool, experts: bool) -> None:
        super().__init__()
        self.engine, self.n1, self.n2 = engine, Norm(), Norm()
        q, k, v, self.o = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))
        if engine:
            self.qkv = nn.Linear(SIZE, 3 * SIZE, bias=False)
            self.qkv.weight = nn.Parameter(torch.cat([layer.weight for layer in (q, k, v)]))
        else:
            self.q, self.k, self.v = q, k, v
        torch.manual_seed(7)
        mlp = nn.Sequential(nn.Linear(SIZE, 20), nn.SiLU(), nn.Linear(20, SIZE))
        self.mlp = Experts(stacked=not engine) if experts else mlp

    def forward(self, x: Any, residual: Any, positions: Any, meta: Optional[dict[str, Any]]) -> Any:
        if meta is None:
            y = self.n1(x)
            q, k, v = (layer(y).view(-1, HEADS, 6) for layer in (self.q, self.k, self.v))
            x = x + self.o(attention(rotated(q, positions), rotated(k, positions), v, 0))
            return x + self.mlp(self.n2(x))
        residual = x if residual is None else x + residual
        q, k, v = (t.reshape(-1, HEADS, 6) for t in self.qkv(self.n1(residual)).chunk(3, -1))
        q, k = rotated(q, positions), rotated(k, positions)
        keys, values = meta["caches"][self]
        keys.view(-1, HEADS, 6)[meta["slots"]] = k
        values.view(-1, HEADS, 6)[meta["slots"]] = v
        parts, row = [], 0
        for table, (begin, count) in zip(meta["tables"], meta["spans"]):
            blocks = table[: -(-(begin + count) // BLOCK)]
            cached = (cache[blocks].view(-1, HEADS, 6)[: begin + count] for cache in (keys, values))
            parts.append(attention(q[row : row + count], *cached, begin))
            row += count
        residual = residual + self.o(torch.cat(parts))
        return self.mlp(self.n2(residual)), residual


class Network(nn.Module):  # type: ignore[misc]
    """A trainer of one sequence, or an engine with the same weights; the head has the weights of the embeddings."""

    def __init__(self, *, engine: bool, experts: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm, self.head = nn.Embedding(VOCABULARY, SIZE), Norm(), nn.Linear(SIZE, VOCABULARY)
        self.head.weight = self.embed.weight
        names = "layers" if engine else "blocks"
        blocks = nn.ModuleList()
        for number in range(2):
            torch.manual_seed(number)
            blocks.append(Block(engine=engine, experts=experts))
        self.add_module(names, blocks)
        shape = 2, BLOCKS, BLOCK, HEADS, 6
        self.caches = {block: torch.zeros(shape).unbind() for block in blocks}

    def forward(self, ids: Any, positions: Any, meta: Optional[dict[str, Any]] = None) -> Any:
        x, residual = self.embed(ids), None
        if meta is None:
            for block in self.blocks:
                x = block(x, None, positions, None)
            return self.head(self.norm(x))
        for block in self.layers:
            x, residual = block(x, residual, positions, meta)
        return self.head(self.norm(x + residual))


class Scheduler:
    """Runs flat calls: (request, position of its first token, ids) of several requests. change: of tables and slots"""

    def __init__(self, network: Any, change: Any) -> None:
        self.network, self.change, self.calls = network, change, 0
        self.tables: dict[int, list[int]] = {}
        self.free = [9, 4, 12, 2, 7, 14, 1, 11, 5, 3]

    def run(self, *parts: tuple[int, int, list[int]]) -> None:
        for request, begin, ids in parts:
            table = self.tables.setdefault(request, [])
            while len(table) * BLOCK < begin + len(ids):
                table.append(self.free.pop(0))
        tables = [list(self.tables[request]) for request, _, _ in parts]
        positions = [begin + n for _, begin, ids in parts for n in range(len(ids))]
        slots = [
            self.tables[request][(begin + n) // BLOCK] * BLOCK + (begin + n) % BLOCK
            for request, begin, ids in parts
            for n in range(len(ids))
        ]
        if self.change is not None:
            tables, slots = self.change(self.calls, tables, slots)
        self.calls += 1
        meta = {
            "caches": self.network.caches,
            "slots": torch.tensor(slots),
            "tables": [torch.tensor(table) for table in tables],
            "spans": [(begin, len(ids)) for _, begin, ids in parts],
        }
        self.network(torch.tensor([i for _, _, ids in parts for i in ids]), torch.tensor(positions), meta)


def requests() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    sequences = [torch.randint(1, VOCABULARY, (n,), generator=generator).tolist() for n in (11, 9)]
    return [sequences[0], sequences[0][:BLOCK] + sequences[1][BLOCK:]]


def plain(scheduler: Scheduler, a: list[int], b: list[int]) -> None:
    scheduler.run((0, 0, a[:7]), (1, 0, b[:6]))
    for n in range(3):
        scheduler.run((0, 7 + n, [a[7 + n]]), (1, 6 + n, [b[6 + n]]))
    scheduler.run((0, 10, [a[10]]))


def drafts(scheduler: Scheduler, a: list[int], b: list[int]) -> None:
    """Two tokens of each draft are rejected at first, then none."""
    wrong = [VOCABULARY - 1, VOCABULARY - 2]
    scheduler.run((0, 0, a[:7]), (1, 0, b[:6]))
    scheduler.run((0, 7, [a[7], *wrong]), (1, 6, [b[6], *wrong]))
    scheduler.run((0, 8, a[8:11]), (1, 7, b[7:9]))


def prefix(scheduler: Scheduler, a: list[int], b: list[int]) -> None:
    """The second request begins behind a block of the first one."""
    scheduler.run((0, 0, a[:7]))
    scheduler.tables[1] = scheduler.tables[0][:1]
    scheduler.run((0, 7, [a[7]]), (1, BLOCK, b[BLOCK:7]))
    for n in range(2):
        scheduler.run((0, 8 + n, [a[8 + n]]), (1, 7 + n, [b[7 + n]]))
    scheduler.run((0, 10, [a[10]]))


SCHEDULES = {"plain": plain, "drafts": drafts, "prefix": prefix}


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Dumps of trainers, without and with experts."""
    paths = {}
    for experts in (False, True):
        trainer = Network(engine=False, experts=experts)
        paths[experts] = tmp_path_factory.mktemp("trainer")
        with torch.no_grad(), ascend_dump.capture(trainer, path=paths[experts], steps="0-9"):
            for ids in requests():
                trainer(torch.tensor(ids), torch.arange(len(ids)))
    return paths


def compared(
    tmp_path: Path, trainers: dict[bool, Path], engine: Any, schedule: str = "plain", *, change: Any = None
) -> Comparison:
    """Compare an engine with the trainer of the same weights."""
    with torch.no_grad(), ascend_dump.capture(engine, path=tmp_path / "engine", steps="0-9"):
        SCHEDULES[schedule](Scheduler(engine, change), *requests())
    return ascend_dump.compare(tmp_path / "engine", trainers[isinstance(engine.layers[0].mlp, Experts)], align="tokens")


@pytest.mark.parametrize(
    ("schedule", "tokens", "experts"), [("plain", 20, True), ("drafts", 20, False), ("prefix", 16, False)]
)
def test_a_right_engine(schedule: str, tokens: int, experts: bool, trainers: dict[bool, Path], tmp_path: Path) -> None:
    """All is equal or noise; tokens of drafts that were rejected are left out and counted."""
    comparison = compared(tmp_path, trainers, Network(engine=True, experts=experts), schedule)
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert comparison.origins == ()
    assert f"{tokens} tokens of 2 requests" in comparison.aligned[-1]
    rejected = "left out: 4 tokens of actual that a later call replaces, as after a rejected draft"
    assert (rejected in comparison.aligned) == (schedule == "drafts")


@pytest.mark.parametrize("schedule", ["drafts", "prefix"])
def test_an_eps(schedule: str, trainers: dict[bool, Path], tmp_path: Path) -> None:
    engine = Network(engine=True)
    engine.layers[1].n2.eps = 0.1
    assert compared(tmp_path, trainers, engine, schedule).origins[0].module == "layers.1.n2"


@pytest.mark.parametrize("wrong", [False, True])
def test_logits_of_the_last_token_of_each_request(wrong: bool, trainers: dict[bool, Path], tmp_path: Path) -> None:
    """A row of another request is a fault, though it is one of the trainer's rows."""
    engine, ends = Network(engine=True), []

    def note_ends(module: Any, inputs: Any) -> None:
        ends[:] = torch.tensor([length for _, length in inputs[2]["spans"]]).cumsum(0).tolist()

    def pick(module: Any, inputs: Any) -> Any:
        rows = torch.tensor(ends[:1] * len(ends) if wrong else ends) - 1
        return (inputs[0][rows],)

    engine.register_forward_pre_hook(note_ends)
    engine.head.register_forward_pre_hook(pick)
    comparison = compared(tmp_path, trainers, engine)
    assert (comparison.verdict in ("equal", "noise")) == (not wrong), comparison.counts
    assert bool(comparison.origins) == wrong


def test_a_wrong_block_in_a_table(trainers: dict[bool, Path], tmp_path: Path) -> None:
    def change(call: int, tables: Any, slots: Any) -> Any:
        return ([tables[0], [tables[1][0], tables[0][1], *tables[1][2:]]] if call == 2 else tables), slots

    first = compared(tmp_path, trainers, Network(engine=True), change=change).origins[0]
    assert (first.kind, first.module) == ("wiring", "layers.0")
    assert first.evidence[0] == (
        "paged cache of actual: call 2 reads token 4 of request 1 from a slot that holds token 4 of request 0: "
        "slot 0 of block 4; the token was written to slot 0 of block 2"
    )


def test_a_token_that_is_written_to_another_slot(trainers: dict[bool, Path], tmp_path: Path) -> None:
    def change(call: int, tables: Any, slots: Any) -> Any:
        return tables, [slots[0] + 1, *slots[1:]] if call == 2 else slots

    first = compared(tmp_path, trainers, Network(engine=True), change=change).origins[0]
    assert first.kind == "wiring"
    assert "call 2 reads token 8 of request 0 from a slot that no call wrote to: slot 0 of block 7" in first.evidence[0]


def test_the_scale_of_an_expert(trainers: dict[bool, Path], tmp_path: Path) -> None:
    engine = Network(engine=True, experts=True)
    engine.layers[1].mlp.scales[0] = 1.3
    assert (compared(tmp_path, trainers, engine).origins[0].module or "").startswith("layers.1.mlp")


def test_the_same_requests_in_other_blocks(tmp_path: Path) -> None:
    """Without the setting `align`: two runs of an engine write the same tokens to other slots of its cache."""
    for name, free in (("actual", [3, 5, 11, 1, 14, 7, 2]), ("reference", [9, 4, 12, 2, 7, 14, 1])):
        engine = Network(engine=True)
        scheduler = Scheduler(engine, None)
        scheduler.free = free
        with torch.no_grad(), ascend_dump.capture(engine, path=tmp_path / name, steps="0-9"):
            plain(scheduler, *requests())
    found = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference")
    assert found.origins == ()
    assert found.verdict in ("equal", "noise"), found.counts
    assert "20 tokens of 2 requests" in found.aligned[-1]
