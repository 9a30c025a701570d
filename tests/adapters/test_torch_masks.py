"""The scene `overflow` passes over masks of Inf, and over what follows an origin for long."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Callable

import pytest

import ascend_dump
from ascend_dump.statistics.nonfinite.masks import RULES

torch = pytest.importorskip("torch")

INF = math.inf
MASK = torch.triu(torch.full((4, 4), -INF), 1)
FAR = torch.zeros(4, 4).masked_fill(torch.eye(4, dtype=torch.bool), INF)
ROOM = torch.full((4, 4), -2e38)

#: For each rule, operators on a mask that are quiet, and the same ones on what is none.
CASES: dict[str, tuple[list[Callable[[], Any]], list[Callable[[], Any]]]] = {
    "fills in values of the program's choice": (
        [
            lambda: torch.ones(4, 4).masked_fill(MASK.isinf(), -INF),
            lambda: torch.where(MASK.isinf(), torch.tensor(-INF), torch.ones(4, 4)),
            lambda: torch.full((3,), -INF),
            lambda: torch.nn.functional.pad(torch.ones(2), (1, 1), value=-INF),
            lambda: torch.ones(4).index_fill_(0, torch.tensor([1]), -INF),
            lambda: torch.zeros(4).copy_(torch.tensor(-INF)),
            lambda: torch.ones(4, 4).masked_fill(MASK.isinf(), INF),
        ],
        [
            lambda: torch.ones(4, 4).masked_fill(MASK.isinf(), math.nan),
            lambda: torch.full((3,), math.nan),
            lambda: torch.ones(4, dtype=torch.float16).copy_(torch.full((4,), -1e9)),
        ],
    ),
    "moves or repeats elements as they are": (
        [
            lambda: torch.cat([MASK, torch.ones(1, 4)]),
            lambda: MASK.to(torch.bfloat16),
            lambda: MASK.repeat(3, 2),
            lambda: MASK.expand(2, 4, 4).contiguous(),
            lambda: MASK[torch.tensor([0, 1])],
            lambda: torch.full((4, 4), INF).amin(-1),
        ],
        [lambda: torch.full((3,), -1e9).to(torch.float16), lambda: torch.full((3,), 1e9).to(torch.float16)],
    ),
    "adds scores to a mask, or bounds what was masked": (
        [lambda: torch.ones(2, 4, 4) + MASK, lambda: torch.ones(4, 4).add_(MASK), lambda: torch.minimum(MASK, ROOM)],
        [lambda: ROOM + ROOM, lambda: torch.full((4, 4), INF) + MASK, lambda: -ROOM * 1.5 + MASK - ROOM],
    ),
    "scales what was masked": (
        [lambda: MASK / 8, lambda: FAR * -2, lambda: -FAR, lambda: 1 - FAR],
        [lambda: (ROOM + MASK) * 2, lambda: -MASK, lambda: MASK * 0],
    ),
    "keeps the masked elements of a row at -Inf": (
        [lambda: MASK.log_softmax(-1), lambda: torch.full((2, 3), -INF).logsumexp(-1)],
        [lambda: torch.full((2, 3), -INF).log_softmax(-1)],
    ),
    "begins a recursion over logarithms of probabilities with the logarithm of zero": (
        [lambda: torch.ctc_loss(ctc(), torch.tensor([[1, 2]]), torch.tensor([6]), torch.tensor([2]))],
        [lambda: torch.ctc_loss(ctc()[:1], torch.tensor([[1, 2]]), torch.tensor([1]), torch.tensor([2]))],
    ),
}


def ctc() -> Any:
    return torch.zeros(6, 1, 4).log_softmax(-1)


def recorded(dumps: Path, run: Callable[[], Any]) -> list[str]:
    with ascend_dump.capture(path=dumps, scene="overflow", strict=True) as cap:
        run()
    return sorted({record.op_type for record in cap.dump()})


def test_every_rule_has_cases() -> None:
    assert set(CASES) == {rule.why for rule in RULES}
    assert all(passing and tripping for passing, tripping in CASES.values())


@pytest.mark.parametrize("why", CASES)
def test_rules(why: str, dumps: Path) -> None:
    passing, tripping = CASES[why]
    for number, run in enumerate(passing):
        assert recorded(dumps / f"passes{number}", run) == [], number
    for number, run in enumerate(tripping):
        assert recorded(dumps / f"trips{number}", run) != [], number


class Attention(torch.nn.Module):
    """A block as people write it: a causal mask and one of padding, filled in and added."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(8, 24)
        self.gain = gain

    def forward(self, x: Any, padding: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        size = x.shape[1]
        causal = torch.zeros(size, size).masked_fill(torch.ones(size, size).tril() == 0, -INF)
        scores = q @ k.transpose(1, 2) / 8**0.5 * self.gain + causal
        scores = scores.masked_fill(padding[:, None, :], -INF)
        return scores.softmax(-1) @ v


def test_a_healthy_transformer_records_nothing(dumps: Path) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    own = Attention()
    causal = torch.nn.Transformer.generate_square_subsequent_mask(5)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])

    def run() -> None:
        for _ in range(3):
            x = layer(torch.randn(2, 5, 8), src_mask=causal, src_key_padding_mask=padding.float() * -1e9).detach()
            own(x, padding).sum().backward()
            torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=causal)

    assert recorded(dumps, run) == []


def test_an_overflow_below_a_mask_is_recorded(dumps: Path) -> None:
    own, padding = Attention(gain=1e38), torch.zeros(2, 5, dtype=torch.bool)
    with ascend_dump.capture(own, path=dumps, scene="overflow", strict=True) as cap:
        own(torch.full((2, 5, 8), 100.0), padding)
    origins = {record.op_type for record in cap.dump() if record.attrs.get("origin")}
    assert origins == {"aten::mul"}


def test_a_row_that_is_masked_as_a_whole_is_recorded(dumps: Path) -> None:
    padding = torch.tensor([[True] * 5, [False] * 5])
    with ascend_dump.capture(own := Attention(), path=dumps, scene="overflow", strict=True) as cap:
        own(torch.randn(2, 5, 8), padding)
    first = next(iter(cap.dump().select(io="output")))
    assert first.op_type == "aten::_softmax"
    assert first.statistics().nan == 25


@pytest.mark.parametrize(("keep", "expected"), [(None, {2, 3, 7, 8}), (0, {2, 7}), (3, {2, 3, 4, 7, 8})])
def test_steps_after_an_origin(keep: Any, expected: set[int], dumps: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Steps 2 to 4 and 7 to 8 are a row each."""
    model = torch.nn.Linear(2, 2)
    inputs = [torch.full((1, 2), math.nan if step in (2, 3, 4, 7, 8) else 1.0) for step in range(10)]
    options = {} if keep is None else {"steps_after_origin": keep}
    with ascend_dump.capture(model, path=dumps, scene="overflow", strict=True, options=options) as cap:
        for x in inputs:
            model(x)
    assert {record.step for record in cap.dump()} == expected
    left_out = 5 - len(expected)
    manifest = json.loads((cap.path / "manifest.json").read_text())
    assert [one["count"] for one in manifest["skipped"]] == ([left_out] if left_out else [])
    assert caplog.text.count("steps_after_origin") == bool(left_out)


@pytest.mark.parametrize("value", [-1, True, "1"])
def test_steps_after_an_origin_is_a_number(value: Any, dumps: Path) -> None:
    with pytest.raises(ascend_dump.AscendDumpError, match="steps_after_origin"):
        ascend_dump.capture(path=dumps, scene="overflow", options={"steps_after_origin": value}).start()
