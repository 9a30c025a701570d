"""Engines of plain functions: slots before rows, padding, requests in turn, one cache for keys and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump.cli import main

torch: Any = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
nn, F = torch.nn, torch.nn.functional
HEADS, HEAD, VOCABULARY, NEW = 2, 8, 50, 3
SIZE, HALF = HEADS * HEAD, HEAD // 2
LENGTHS = (6, 4, 8)
WIDTH = max(LENGTHS)


class Norm(nn.Module):  # type: ignore[misc]  # torch is imported as Any
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(SIZE) + 0.5)

    def forward(self, x: Any) -> Any:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3))


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = Norm(), Norm()
        self.q, self.k, self.v, self.o = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(SIZE, 2 * SIZE, bias=False), nn.Linear(2 * SIZE, SIZE, bias=False)

    def forward(self, x: Any, angles: Any, bias: Any) -> Any:
        y = self.n1(x)
        q, k, v = (part(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        if angles is not None:
            q, k = rotated(q, angles[:, None]), rotated(k, angles[:, None])
        weights = (q @ k.transpose(2, 3) * HEAD**-0.5 + bias).softmax(-1)
        x = x + self.o((weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.n2(x))))


class Trainer(nn.Module):  # type: ignore[misc]
    """A model that reads padded rows. It rotates queries and keys, or adds distances to the scores.

    factor: that of the logits
    """

    factor = 1.0

    def __init__(self, *, rotates: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rotates = rotates
        self.embed, self.norm, self.head = nn.Embedding(VOCABULARY, SIZE), Norm(), nn.Linear(SIZE, VOCABULARY)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, ids: Any, mask: Any) -> Any:
        slots = torch.arange(ids.shape[1])
        sees = mask[:, None].bool() & (slots <= slots[:, None])
        bias = torch.zeros(sees.shape).masked_fill(~sees, -1e9)[:, None]
        angles = None
        if self.rotates:
            angles = slots[None, :, None] / 10.0 ** torch.arange(HALF)
        else:
            bias = bias + torch.tensor(SLOPES)[:, None, None] * (slots - slots[:, None])
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, angles, bias)
        logits = self.head(self.norm(x))
        return logits if self.factor == 1.0 else logits * self.factor


SLOPES = (0.5, 0.25)


def rotated(x: Any, angles: Any) -> Any:
    """Return heads, [..., HEAD], rotated by angles, [..., HALF]."""
    first, second = x[..., :HALF], x[..., HALF:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def normed(x: Any, weight: Any) -> Any:
    return x * weight * (x.pow(2).mean(-1, keepdim=True) + 1e-3).rsqrt()  # the weight first


def requests() -> list[Any]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(1, VOCABULARY, (length + NEW,), generator=generator) for length in LENGTHS]


def weights_of(trainer: Trainer) -> dict[str, Any]:
    return {name: value.detach().clone() for name, value in trainer.state_dict().items()}


def mlp(x: Any, w: dict[str, Any], n: int) -> Any:
    return F.silu(x @ w[f"layers.{n}.up.weight"].t()) @ w[f"layers.{n}.down.weight"].t()  # gated


def slots_first(w: dict[str, Any], fault: str) -> None:
    """Run tokens as [slots, rows], with padding on the right, behind which the new tokens are written."""
    rows, room = len(LENGTHS), WIDTH + NEW
    cache = torch.zeros(2, 2, room, rows, HEADS, HEAD)
    keep = torch.zeros(room, rows, dtype=torch.bool)

    def run(ids: Any, positions: Any, at: int) -> None:
        count = len(ids)
        angles = (positions[..., None].float() / 10.0 ** torch.arange(HALF))[:, :, None]
        x = w["embed.weight"].index_select(0, ids.reshape(-1)).view(count, rows, SIZE)
        for n in range(2):
            y = normed(x, w[f"layers.{n}.n1.weight"])
            q, k, v = (y @ w[f"layers.{n}.{name}.weight"].t() for name in "qkv")
            q, k, v = (part.unflatten(-1, (HEADS, HEAD)) for part in (q, k, v))
            q, k = rotated(q, angles), rotated(k, angles)
            cache[n, 0, at : at + count] = k
            cache[n, 1, at : at + count] = v.to(torch.bfloat16).float() if fault == "values" else v  # written
            keys, values = cache[n, :, : at + count]
            scores = q.permute(1, 2, 0, 3) @ keys.permute(1, 2, 3, 0) * HEAD**-0.5
            sees = keep[: at + count].t()[:, None] & torch.ones(count, at + count, dtype=torch.bool).tril(at)  # slots
            weights = scores.masked_fill(~sees[:, None], -1e9).softmax(-1)
            y = (weights @ values.permute(1, 2, 0, 3)).permute(2, 0, 1, 3).flatten(2)
            x = x + y @ w[f"layers.{n}.o.weight"].t()  # attended
            other = 1 if fault == "weight" else 2
            x = x + mlp(normed(x, w[f"layers.{n}.n{other}.weight"]), w, n)
        F.linear(normed(x, w["norm.weight"]), w["head.weight"], w["head.bias"])

    ids = nn.utils.rnn.pad_sequence([request[:-NEW] for request in requests()])
    for row, length in enumerate(LENGTHS):
        keep[: WIDTH if fault == "mask" else length, row] = True
    run(ids, torch.arange(WIDTH)[:, None].expand(-1, rows), 0)
    for n in range(NEW):
        keep[WIDTH + n] = True
        positions = torch.tensor([LENGTHS]) + n
        if fault == "positions":
            positions = torch.full((1, rows), WIDTH + n)
        run(torch.stack([request[n - NEW] for request in requests()])[None], positions, WIDTH + n)


def left_padded(w: dict[str, Any], fault: str) -> None:
    """Run rows with padding on the left, and a mask that has the tokens of later calls in advance."""
    rows, room = len(LENGTHS), WIDTH + NEW
    padding = torch.tensor([WIDTH - length for length in LENGTHS])
    ids = torch.stack([F.pad(request, (room - len(request), 0)) for request in requests()])
    valid = torch.arange(room) >= padding[:, None] * (fault != "no mask")
    positions = (valid.long().cumsum(-1) - 1).clamp(min=0)
    caches = torch.zeros(2, 2, rows, HEADS, room, HEAD)
    for begin, end in ((0, WIDTH), *((n, n + 1) for n in range(WIDTH, room))):
        causal = torch.arange(end) <= torch.arange(begin, end)[:, None]
        mask = causal.expand(rows, -1, -1) if fault == "mask" else causal & valid[:, None, :end]  # mask
        x = F.embedding(ids[:, begin:end], w["embed.weight"])
        angles = (positions[:, begin:end, None] / 10.0 ** torch.arange(HALF))[:, None]
        for n in range(2):
            y = normed(x, w[f"layers.{n}.n1.weight"])
            q, k, v = (y @ w[f"layers.{n}.{name}.weight"].t() for name in "qkv")
            q, k, v = (part.unflatten(-1, (HEADS, HEAD)).transpose(1, 2) for part in (q, k, v))
            caches[n, 0, :, :, begin:end], caches[n, 1, :, :, begin:end] = rotated(k, angles), v
            scores = rotated(q, angles) @ caches[n, 0, :, :, :end].transpose(2, 3) * HEAD**-0.5
            weights = torch.where(mask[:, None], scores, -1e9).softmax(-1)
            y = (weights @ caches[n, 1, :, :, :end]).transpose(1, 2).flatten(2)
            x = x + y @ w[f"layers.{n}.o.weight"].t()
            x = x + mlp(normed(x, w[f"layers.{n}.n2.weight"]), w, n)
        F.linear(normed(x, w["norm.weight"]), w["head.weight"], w["head.bias"])


def in_turn(w: dict[str, Any], fault: str) -> None:
    """Run each request in calls of its own: the prompts in parts, then one token of each request in turn."""
    caches = torch.zeros(len(LENGTHS), 2, 2, HEADS, WIDTH + NEW, HEAD)

    def run(row: int, begin: int, end: int) -> None:
        positions = torch.arange(begin, end)
        angles = positions[:, None] / 10.0 ** torch.arange(HALF)
        x = F.embedding(requests()[row][begin:end], w["embed.weight"])
        for n in range(2):
            y = normed(x, w[f"layers.{n}.n1.weight"])
            q, k, v = (y @ w[f"layers.{n}.{name}.weight"].t() for name in "qkv")
            q, k, v = (part.unflatten(-1, (HEADS, HEAD)).transpose(0, 1) for part in (q, k, v))
            caches[row, n, 0, :, begin:end], caches[row, n, 1, :, begin:end] = rotated(k, angles), v
            keys, values = caches[row, n, :, :, :end]
            q = q if fault == "queries" and not n else rotated(q, angles)
            scores = q * HEAD**-0.5 @ keys.transpose(1, 2)
            weights = scores.masked_fill(torch.arange(end) > positions[:, None], -1e9).softmax(-1)
            x = x + (weights @ values).transpose(0, 1).flatten(1) @ w[f"layers.{n}.o.weight"].t()
            x = x + mlp(normed(x, w[f"layers.{n}.n2.weight"]), w, n)
        F.linear(normed(x, w["norm.weight"]), w["head.weight"], w["head.bias"])

    for row, length in enumerate(LENGTHS):
        for begin in range(0, length, 3):
            run(row, begin, min(begin + 3, length))
    for n in range(NEW):
        for row, length in enumerate(LENGTHS):
            run(row, length + n, length + n + 1)


def in_one_batch(w: dict[str, Any], fault: str) -> None:
    """Run flat calls with tokens of all requests, which arrive one after the other, and pages of one cache."""
    cache = torch.zeros(2, 2, 100, HEADS, HEAD)
    tables: tuple[tuple[int, ...], ...] = ((8, 19, 9), (23, 12, 5), (3, 21, 14))
    seen_rows, seen_slots = torch.zeros(1, 0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    done = [0, 0, 0]

    def run(tokens: list[tuple[int, int]]) -> None:
        nonlocal seen_rows, seen_slots
        ids = torch.tensor([int(requests()[row][n]) for row, n in tokens])
        positions = torch.tensor([n for _, n in tokens])
        slots = torch.tensor([tables[row][n // 4] * 4 + n % 4 for row, n in tokens])
        rows = torch.tensor([[row for row, _ in tokens]])
        seen_rows, seen_slots = torch.cat((seen_rows, rows), 1), torch.cat((seen_slots, slots))
        before = (
            torch.arange(seen_slots.numel()) <= torch.arange(seen_slots.numel() - len(ids), seen_slots.numel())[:, None]
        )
        sees = before & ((seen_rows == rows.t()) if fault != "mask" else (seen_rows <= rows.t()))  # requests
        angles = positions[:, None] / 10.0 ** torch.arange(HALF)
        x = F.embedding(ids, w["embed.weight"])
        for n in range(2):
            y = normed(x, w[f"layers.{n}.n1.weight"])
            q, k, v = ((y @ w[f"layers.{n}.{name}.weight"].t()).unflatten(-1, (HEADS, HEAD)) for name in "qkv")
            cache[n, 0].index_copy_(0, slots, rotated(k, angles[:, None]))
            cache[n, 1].index_copy_(0, slots, v)
            keys, values = cache[n, 0][seen_slots], cache[n, 1][seen_slots]
            scores = torch.einsum("qhd,khd->hqk", rotated(q, angles[:, None]), keys) * HEAD**-0.5
            weights = scores.masked_fill(~sees, -1e9).softmax(-1)
            x = x + torch.einsum("hqk,khd->qhd", weights, values).flatten(1) @ w[f"layers.{n}.o.weight"].t()
            x = x + mlp(normed(x, w[f"layers.{n}.n2.weight"]), w, n)
        F.linear(normed(x, w["norm.weight"]), w["head.weight"], w["head.bias"])

    for arriving in (0, 1, 2, *[3] * NEW):
        batch = []
        if fault == "prefix" and arriving == 2:  # its first page is that of the first request
            tables, done[2] = (*tables[:2], (tables[0][0], *tables[2][1:])), 4
            seen_rows = torch.cat((seen_rows, torch.full((1, 4), 2)), 1)
            seen_slots = torch.cat((seen_slots, torch.arange(4) + tables[0][0] * 4))
        for row, length in enumerate(LENGTHS):
            count = length - done[row] if row == arriving else 1 if 0 < done[row] < length + NEW else 0
            batch += [(row, done[row] + n) for n in range(count)]
            done[row] += count
        if batch:
            run(batch)


def with_distances(w: dict[str, Any], fault: str) -> None:
    """Run rows with a place for each position, and distances of tokens that the product with keys adds."""
    rows, room = len(LENGTHS), WIDTH + NEW
    caches = torch.zeros(2, 2, rows, HEADS, room, HEAD)
    slopes = torch.tensor((0.5, 0.3) if fault == "slopes" else SLOPES)

    def run(ids: Any, start: Any) -> None:
        positions = start[:, None] + torch.arange(ids.shape[1])
        distances = (torch.arange(room) - positions[..., None]).float()
        bias = distances[:, None] * slopes[:, None, None]  # distances
        bias = bias.masked_fill((distances > 0)[:, None], -1e9).flatten(0, 1)
        x, places = F.embedding(ids, w["embed.weight"]), torch.arange(rows)[:, None]
        for n in range(2):
            y = normed(x, w[f"layers.{n}.n1.weight"])
            q, k, v = ((y @ w[f"layers.{n}.{name}.weight"].t()).unflatten(-1, (HEADS, HEAD)) for name in "qkv")
            caches[n, 0][places, :, positions], caches[n, 1][places, :, positions] = k, v
            keys, values = caches[n].flatten(1, 2)
            q = q.transpose(1, 2).flatten(0, 1)
            scale = HEAD**-0.5 * (0.8 if fault == "scale" else 1.0)
            weights = torch.baddbmm(bias, q, keys.transpose(1, 2), alpha=scale).softmax(-1)
            y = (weights @ values).unflatten(0, (rows, HEADS)).transpose(1, 2).flatten(2)
            x = x + y @ w[f"layers.{n}.o.weight"].t()
            x = x + mlp(normed(x, w[f"layers.{n}.n2.weight"]), w, n)
        F.linear(normed(x, w["norm.weight"]), w["head.weight"], w["head.bias"])

    run(
        nn.utils.rnn.pad_sequence([request[:-NEW] for request in requests()], batch_first=True),
        torch.zeros(rows).long(),
    )
    for n in range(NEW):
        lengths = torch.full((rows,), WIDTH) if fault == "padding" else torch.tensor(LENGTHS)
        run(torch.stack([request[n - NEW] for request in requests()])[:, None], lengths + n)


def with_lists(w: dict[str, Any], fault: str) -> None:
    """Run each request in calls of its own, and join the keys of a call to those of earlier ones."""
    for request in requests():
        caches: list[Any] = [None, None]
        prompt = len(request) - NEW
        for begin, end in ((0, prompt), *((n, n + 1) for n in range(prompt, len(request)))):
            positions = torch.arange(begin, end)
            if fault == "later" and begin:
                positions = positions + 1  # later
            x = F.embedding(request[begin:end], w["embed.weight"])
            for n in range(2):
                frequencies = 10.0 ** (torch.arange(0, HEAD, 2).float() / 2)  # as many as a prompt has tokens
                angles = positions[:, None].float() / frequencies
                y = normed(x, w[f"layers.{n}.n1.weight"])
                q, k, v = (y @ w[f"layers.{n}.{name}.weight"].t() for name in "qkv")
                q, k, v = (part.unflatten(-1, (HEADS, HEAD)).transpose(0, 1) for part in (q, k, v))
                q, k = rotated(q, angles), rotated(k, angles)
                if caches[n] is not None:
                    k, v = (torch.cat(pair, 1) for pair in zip(caches[n], (k, v)))
                caches[n] = (k.to(torch.bfloat16).float() if fault == "cast" else k), v  # kept
                sees = torch.arange(begin, end)[:, None] >= torch.arange(end)
                weights = (q @ k.transpose(1, 2) * HEAD**-0.5).masked_fill(~sees, -1e9).softmax(-1)
                x = x + (weights @ v).transpose(0, 1).flatten(1) @ w[f"layers.{n}.o.weight"].t()
                x = x + mlp(normed(x, w[f"layers.{n}.n2.weight"]), w, n)
            F.linear(normed(x, w["norm.weight"]), w["head.weight"], w["head.bias"])


def compared(tmp_path: Path, engine: Any, fault: str, factor: float = 1.0) -> ascend_dump.Comparison:
    """Compare an engine with a trainer. factor: that of the logits of the trainer, before their log-probabilities"""
    trainer = Trainer(rotates=engine is not with_distances)
    ids = nn.utils.rnn.pad_sequence(requests(), batch_first=True)
    with torch.no_grad(), ascend_dump.capture(trainer, path=tmp_path / "trainer", steps="0"):
        logits = trainer(ids, (ids > 0).long())
        (logits if factor == 1.0 else logits * factor).log_softmax(-1)
    weights = weights_of(trainer)
    with torch.no_grad(), ascend_dump.capture(None, path=tmp_path / "engine", steps="0"):
        engine(weights, fault)
    return ascend_dump.compare(tmp_path / "engine", tmp_path / "trainer")


ENGINES = (slots_first, left_padded, in_turn, in_one_batch, with_distances, with_lists)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_right_engine(engine: Any, tmp_path: Path) -> None:
    comparison = compared(tmp_path, engine, "")
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert not comparison.origins
    assert comparison.aligned[-1].startswith(f"{sum(LENGTHS) + len(LENGTHS) * NEW} tokens of 3 requests")


def test_numbers_of_two_requests_are_no_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros and ones of a flat call look like a mask of the second request, whose positions begin again."""
    monkeypatch.setitem(globals(), "LENGTHS", LENGTHS[:2])
    comparison = compared(tmp_path, in_one_batch, "")
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert comparison.aligned[-1].startswith(f"{sum(LENGTHS) + len(LENGTHS) * NEW} tokens of 2 requests")


@pytest.mark.parametrize(
    ("engine", "fault", "line", "fact"),
    [
        (slots_first, "values", "# written", "values are rounded to bfloat16"),
        (slots_first, "weight", "# the weight first", "of actual computes a result that the reference lacks"),
        (slots_first, "mask", "# slots", "attends to 9 keys here, to 7 in the reference"),
        (slots_first, "positions", "torch.full((1, rows)", "its position is 8 here, 6 in the reference"),
        (left_padded, "mask", "<= torch.arange(begin, end)[:, None]", "attends to 3 keys here, to 1 in the reference"),
        (in_turn, "queries", "scores = q * HEAD**-0.5", "computes a result that the reference lacks"),
        (in_one_batch, "mask", "# requests", "attends to 8 keys here, to 1 in the reference"),
        (with_lists, "cast", "# kept", "the queries agree, and the keys are rounded to bfloat16"),
        (with_lists, "later", "# later", "its position is 7 here, 6 in the reference"),
        (with_distances, "slopes", "# distances", "it begins in one of these operators of actual: mul_0"),
        (with_distances, "scale", "torch.baddbmm(", "the scores are 0.8 times those of the reference at first"),
        (with_distances, "padding", "# distances", "first token 6 of request 0; 6 of 27 tokens differ"),
    ],
)
def test_a_fault(engine: Any, fault: str, line: str, fact: str, tmp_path: Path) -> None:
    first = compared(tmp_path, engine, fault).origins[0]
    assert any(fact in text for text in first.evidence), first.evidence
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    [number] = [number for number, text in enumerate(lines, 1) if line in text and f'"{line}"' not in text]
    assert str(first.source).rpartition("/")[2] == f"{Path(__file__).name}:{number}", first


def test_a_shared_prefix_is_no_rejected_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that begins behind the first tokens of another one writes none of them again."""
    first, second, third = requests()
    shared = [first, second, torch.cat((first[:4], third[4:]))]
    monkeypatch.setitem(globals(), "requests", lambda: shared)
    comparison = compared(tmp_path, in_one_batch, "prefix")
    assert comparison.verdict in ("equal", "noise"), comparison.counts
    assert comparison.aligned[-1].startswith("27 tokens of 3 requests")
    assert not any("a later call replaces" in note for note in comparison.aligned)


def test_padding_that_nothing_hides_is_joined(tmp_path: Path) -> None:
    """Tokens behind padding are compared, although masks and positions count it as tokens."""
    comparison = compared(tmp_path, left_padded, "no mask")
    assert comparison.aligned[-1].startswith("27 tokens of 3 requests")
    assert "positions of actual count 6 slots of padding before its requests as tokens" in comparison.aligned
    assert comparison.verdict == "different"
    assert "attends to 3 keys here, to 1 in the reference" in comparison.origins[0].evidence[0]


def test_no_step_is_said_to_be_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The calls of an engine have no partners of their own, because their tokens are joined."""
    trainer, weights = Trainer(rotates=True), {}
    with torch.no_grad(), ascend_dump.capture(trainer, path=tmp_path / "trainer", steps="0"):
        trainer(nn.utils.rnn.pad_sequence(requests(), batch_first=True), torch.ones(3, WIDTH + NEW))
    weights = weights_of(trainer)
    with torch.no_grad(), ascend_dump.capture(None, path=tmp_path / "engine", steps="0-9") as cap:
        for row in range(3):
            with pytest.MonkeyPatch.context() as patch:
                request = requests()[row]
                patch.setitem(globals(), "requests", lambda request=request: [request])
                with_lists(weights, "later")
            cap.step()
    main(["compare", str(tmp_path / "engine"), str(tmp_path / "trainer")])
    assert "has the step" not in capsys.readouterr().out


def test_the_lines_around_a_function_that_runs_often(tmp_path: Path) -> None:
    """The line of the norm runs for each norm: those around it tell the norm with the wrong weight."""
    [*_, fact] = compared(tmp_path, slots_first, "weight").origins[0].evidence
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    numbers = [n for end in ("# attended", "# gated") for n, text in enumerate(lines, 1) if text.endswith(end)]
    around = " and ".join(f"{Path(__file__).name}:{number}" for number in numbers)
    assert fact.endswith(f" runs 5 times in a call; this is between {around}"), fact


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_factor_of_the_logits_that_one_side_does_not_record(factor: float, tmp_path: Path) -> None:
    """The answer says that it may be a temperature, or a factor of the model that the other side lacks."""
    comparison = compared(tmp_path, left_padded, "", factor)
    assert comparison.verdict in ("equal", "noise")
    notes = [note for note in comparison.aligned if note.startswith("the logits are compared before mul_")]
    assert [f"{Path(__file__).name}:" in note and "of the reference" in note for note in notes] == [True] * (
        factor != 1
    )


def test_a_factor_of_the_logits_in_a_model_is_no_temperature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side lacks it, though all tensors that both sides have agree."""
    monkeypatch.setattr(Trainer, "factor", 0.5)
    comparison = compared(tmp_path, left_padded, "")
    assert comparison.verdict == "different"
    [origin] = comparison.origins
    assert (origin.op_type, origin.evidence[0]) == ("aten::mul", "aten::mul runs in the reference only")
