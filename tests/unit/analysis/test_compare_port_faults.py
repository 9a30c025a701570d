"""Faults of ports whose differences are hidden: by data from before the first step, by other noise, or by chance."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ascend_dump
from ascend_dump.analysis.alignment.ranks_and_steps import operators_in
from ascend_dump.analysis.explaining.borders import agreeing_inside, judge_border
from ascend_dump.analysis.explaining.drafts import Draft
from ascend_dump.analysis.explaining.rank_state import RankState
from ascend_dump.analysis.explaining.results import Pair
from ascend_dump.analysis.explaining.stretches import EnteredStretch, MadeInside
from ascend_dump.analysis.explaining.tracking.known_differences import KnownDifferences
from ascend_dump.analysis.judging.input_noise import NO_ORIGINS
from ascend_dump.analysis.judging.noise import NoiseJudge
from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.analysis.numerics.measure import Measure
from ascend_dump.analysis.numerics.tensor_pair import Difference
from ascend_dump.analysis.pairing.stretches import Stretch

BATCH, WIDTH, LENGTH, TIMES = 3, 8, 5, 50


def dumped(
    path: Path, model: nn.Module, loop: Callable[[Any], object], data: str = "tensor", steps: str = "0-1"
) -> Path:
    """Dump a loop, in which a step begins when the model is called."""
    torch.manual_seed(1)
    with ascend_dump.capture(model, path=path, steps=steps, data=data, quiet=True):
        loop(model)
    return path


def line_of(function: Callable[..., object], text: str) -> str:
    """Return the file and line of a statement of a function, as origins have it."""
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(number for number, line in enumerate(lines) if text in line)}"


def layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, WIDTH)


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))


SHARES = torch.linspace(0.9, 0.1, TIMES)


def denoised(model: Any) -> None:
    """Train with shares of noise by powers."""
    for step in range(2):
        x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))
        share = SHARES[torch.tensor([7, 20, 40]) + step].view(-1, 1)
        prediction = model(share**0.5 * x)
        (prediction - share**0.5 * x.cos()).square().mean().backward()
        model.zero_grad()


def denoised_by_hand(model: Any, shift: int) -> None:
    for step in range(2):
        x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))
        times = torch.tensor([7, 20, 40]) + step
        shifted = times - shift if shift else times
        share = SHARES[shifted].view(-1, 1)
        prediction = model(share.sqrt() * x)
        (prediction - share.sqrt() * x.cos()).square().mean().backward()
        model.zero_grad()


@pytest.mark.parametrize("shift", [0, 1])
def test_data_of_a_first_step_are_traced_to_what_makes_them_in_later_steps(tmp_path: Path, shift: int) -> None:
    """Shares are computed before the model is called, which the first step does not record, and read behind it."""
    actual = dumped(tmp_path / "actual", layer(), lambda model: denoised_by_hand(model, shift))
    found = ascend_dump.compare(actual, dumped(tmp_path / "reference", layer(), denoised))
    if not shift:
        assert found.origins == ()
        return
    [origin] = found.origins
    assert origin.source == line_of(denoised_by_hand, "times - shift")
    assert any("differs in step 0 too" in line for line in origin.evidence)


def averaged(model: Any) -> None:
    """Update by limited gradients and by their average."""
    means = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for step in range(2):
        model(torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True)
        with torch.no_grad():
            for parameter, mean in zip(model.parameters(), means):
                mean.lerp_(parameter.grad, 0.1)
                parameter.add_(mean, alpha=-1.0).add_(parameter.grad, alpha=-0.5)
        model.zero_grad()


def averaged_by_hand(model: Any, limit: float) -> None:
    means = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for step in range(2):
        model(torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        with torch.no_grad():
            norm = sum(parameter.grad.square().sum() for parameter in model.parameters()).sqrt()
            norm = norm * (1 + 3e-7)  # another rounding
            scale = torch.clamp(limit / (norm + 1e-6), max=1)
            for number, parameter in enumerate(model.parameters()):
                gradient = parameter.grad * scale
                means[number] = 0.9 * means[number] + 0.1 * gradient
                parameter.data -= means[number] + 0.5 * gradient
        model.zero_grad()


@pytest.mark.parametrize("limit", [0.1, 0.01])
def test_a_call_that_differs_is_the_cause_though_a_later_result_is_near_by_chance(tmp_path: Path, limit: float) -> None:
    """Gradients that are a tenth too small are near the average, which has a tenth of the right gradients."""
    actual = dumped(tmp_path / "actual", layers(), lambda model: averaged_by_hand(model, limit))
    found = ascend_dump.compare(actual, dumped(tmp_path / "reference", layers(), averaged))
    if limit == 0.1:
        assert found.origins == ()
    else:
        assert found.origins[0].source == line_of(averaged_by_hand, "scale = torch.clamp")


class Attention(nn.Module):
    """Attention of PyTorch, or by hand.

    axis    of the softmax
    factor  of the scores; None for the attention of PyTorch
    """

    def __init__(self, factor: Optional[float] = None, axis: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.factor, self.axis = factor, axis
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part[:, None] for part in self.qkv(x).chunk(3, -1))
        if self.factor is None:
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            scores = (q[:, 0] @ k[:, 0].mT) * (self.factor / math.sqrt(WIDTH))
            mixed = scores.softmax(self.axis) @ v[:, 0]
        return self.out(mixed.reshape(x.shape))


def attend(model: Any) -> None:
    for step in range(2):
        model(3 * torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(step))).sum().backward()
        model.zero_grad()


@pytest.mark.parametrize(
    ("factor", "axis", "line"), [(1.0, -1, ""), (1.0, -2, "scores.softmax"), (1.5, -1, "scores = ")]
)
def test_the_sums_of_a_fused_attention_tell_if_scores_are_right(
    tmp_path: Path, factor: float, axis: int, line: str
) -> None:
    actual = dumped(tmp_path / "actual", nn.Sequential(Attention(factor, axis)), attend)
    found = ascend_dump.compare(actual, dumped(tmp_path / "reference", nn.Sequential(Attention()), attend))
    if not line:
        assert found.origins == ()
    else:
        assert found.origins[0].source == line_of(Attention.forward, line)


class Gated(nn.Module):
    """A residual whose activation matters little, scaled by angles that have noise of their own."""

    def __init__(self, approximate: str, *, is_by_hand: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.approximate, self.is_by_hand = approximate, is_by_hand
        self.enter, self.leave, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.leave(functional.gelu(self.enter(x), approximate=self.approximate))
        angles = torch.arange(1.0, 1 + WIDTH) * 7.77
        angles = (angles * 0.3).mul(3.3) if self.is_by_hand else angles * 0.3 * 3.3 + 0.0
        waves = (angles / 7 * 11).sin() if self.is_by_hand else (angles * (11 / 7)).sin()
        y = 20 * x + inner
        scaled = torch.addcmul(waves, y, 1 + waves) if self.is_by_hand else y * (1 + waves) + waves
        return self.last(scaled)


def infer(model: Any) -> None:
    with torch.no_grad():
        for step in range(2):
            model(torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step)))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_a_changed_argument_is_told_though_other_noise_explains_what_is_left_of_it(
    tmp_path: Path, approximate: str
) -> None:
    actual = dumped(tmp_path / "actual", Gated(approximate, is_by_hand=True), infer)
    found = ascend_dump.compare(actual, dumped(tmp_path / "reference", Gated("tanh", is_by_hand=False), infer))
    assert found.verdict in ("noise", "unmatched") or found.origins
    assert [origin.op_type for origin in found.origins] == ["aten::gelu"] * (approximate == "none")


class Positions(nn.Module):
    """Embeddings of positions of tokens that are not 0. is_by_hand: flags are multiplied as they are"""

    def __init__(self, first: int = 1, factor: float = 1.0, *, is_by_hand: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.factor, self.is_by_hand = first, factor, is_by_hand
        self.table = nn.Embedding(LENGTH + 2, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.is_by_hand:
            keep = tokens != 0
            positions = torch.cumsum(keep, 1) * keep + self.first
        else:
            mask = (tokens != 0).int()
            positions = (torch.cumsum(mask, 1).type_as(mask) * mask).long() + self.first
        return self.table(positions) * self.factor


def embed(model: Any) -> None:
    for _ in range(2):
        model(torch.tensor([[3, 4, 5, 6, 0], [2, 3, 0, 0, 0]])).square().sum().backward()
        model.zero_grad()


@pytest.mark.parametrize(
    ("first", "factor", "line"), [(1, 1.0, ""), (0, 1.0, "keep + self.first"), (1, 1.5, "self.factor")]
)
def test_integers_of_another_type_are_undecided_where_statistics_agree(
    tmp_path: Path, first: int, factor: float, line: str
) -> None:
    """They are no origin, and no indices that rounding changed, which would explain what differs behind them."""
    sides = Positions(first, factor, is_by_hand=True), Positions(is_by_hand=False)
    paths = tmp_path / "actual", tmp_path / "reference"
    found = ascend_dump.compare(*(dumped(path, side, embed, "stats") for path, side in zip(paths, sides)))
    if not line:
        assert found.origins == ()
    else:
        assert found.origins[0].source == line_of(Positions.forward, line)


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_statistics_show_where_parts_that_are_built_differently_agree_inside(tmp_path: Path, eps: float) -> None:
    class Norm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            centred = x - x.mean(-1, keepdim=True)
            return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * self.weight + self.bias

    sides = []
    for name, model in (("actual", Norm(WIDTH)), ("reference", nn.LayerNorm(WIDTH))):
        path = dumped(tmp_path / name, model, lambda model: model(2 * torch.randn(BATCH, WIDTH)), "stats", "0")
        sides.append(operators_in([[*ascend_dump.open(path)]], None))  # type: ignore[list-item]
    state = RankState(Rules(), None, NoiseJudge(Rules()))
    agreeing = agreeing_inside(state, Stretch((sides[0], sides[1])))
    results = [side[-1].outputs[0] if side is sides[0] else side[0].outputs[0] for side in sides]
    assert [id(record) in agreeing for record in results] == [eps == 1e-5] * 2


@pytest.mark.parametrize("is_cast", [False, True])
def test_flags_in_the_type_of_integers_are_no_flips(is_cast: bool) -> None:
    """Other bytes of one type are other values, even if statistics agree."""
    difference = Difference("different", "", (1, 2), Measure(count=4, unequal=0), True, is_cast)
    assert KnownDifferences().add_noise(difference, "bool", NO_ORIGINS).flips == (not is_cast)


@pytest.mark.parametrize("has_values", [False, True])
def test_another_shape_that_enters_a_part_does_not_explain_other_values(has_values: bool) -> None:
    """A part that only has another shape, such as copies for each sequence, and a later part whose values differ."""
    state = RankState(Rules(), None, NoiseJudge(Rules()))
    record: Any = SimpleNamespace(label="m/bmm_0.input.0", step=0)
    pair = Pair(record, record, "dataflow", 0.95, "different", "")
    for _ in range(2):
        state.drafts.add(Draft("structure", pair, ["built differently"], hidden=True))
    state.drafts[0].changes_shape = True
    state.drafts[0].border = pair if has_values else None
    part = EnteredStretch(Stretch(), 1, 1, 1, causes={0})
    made: Any = MadeInside(part, None, record)  # type: ignore[arg-type]
    border, _ = judge_border(state, [made], record, record, Difference("structure", contents=(1, 2)), pair)
    assert border.causes == ({0} if has_values else {1})
