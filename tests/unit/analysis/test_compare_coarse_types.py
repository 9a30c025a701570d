"""Programs in bfloat16 against float32: where a difference ends, and where rounding could only explain it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest

import ascend_dump

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

Scores = Callable[[Any, Any], Any]


class Attention(torch.nn.Module):
    def __init__(self, scores: Scores, activation: Callable[[Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.up, self.down = (torch.nn.Linear(16, 16) for _ in range(5))
        self.norm = torch.nn.LayerNorm(16)
        self.scores, self.activation = scores, activation

    def forward(self, x: Any) -> Any:
        x = x + self.scores(self.q(x), self.k(x)).softmax(-1) @ self.v(x)
        return self.norm(x + self.down(self.activation(self.up(x))))


def of_product(q: Any, k: Any) -> Any:
    return (q @ k.T) * 0.25


def of_query(q: Any, k: Any) -> Any:
    return (q * 0.25) @ k.T


def of_both(q: Any, k: Any) -> Any:
    return (q * 0.5) @ (k * 0.5).T


def gelu(x: Any) -> Any:
    return torch.nn.functional.gelu(x, approximate="tanh")


def other_gelu(x: Any) -> Any:
    return torch.nn.functional.gelu(x)


def small_gelu(x: Any) -> Any:
    return torch.nn.functional.gelu(x) * 0.2


def small_silu(x: Any) -> Any:
    return torch.nn.functional.silu(x) * 0.2


def train(
    path: Path, scores: Scores = of_product, activation: Callable[[Any], Any] = gelu, dtype: Any = torch.float32
) -> Path:
    model = Attention(scores, activation).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    with ascend_dump.capture(model, path=path, steps="0|1"):
        for _ in range(2):
            x = torch.randn(12, 16, generator=generator).to(dtype)
            model(x).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.mark.parametrize("scores", [of_query, of_both])
def test_a_factor_elsewhere_ends_at_the_product(tmp_path: Path, scores: Scores) -> None:
    """The scaled query is far off, and the scores agree: that a later gradient is rough says nothing of it."""
    found = ascend_dump.compare(train(tmp_path / "actual", scores, dtype=torch.bfloat16), train(tmp_path / "reference"))
    assert not found.origins
    assert "different" not in found.counts


def test_a_setting_within_rounding_is_told_once(tmp_path: Path) -> None:
    """Both kinds of GELU agree as far as bfloat16 goes. The backward operator has the same argument."""
    actual = train(tmp_path / "actual", activation=other_gelu, dtype=torch.bfloat16)
    found = ascend_dump.compare(actual, train(tmp_path / "reference"))
    assert not found.origins
    [call] = found.changed
    assert call.op_type == "aten::gelu"
    assert call.arguments == ("approximate: 'none' here, 'tanh' in the reference",)


def test_another_operator_is_an_origin_once_though_rounding_may_explain_its_results(tmp_path: Path) -> None:
    """A large residual hides a wrong activation up to the rounding of bfloat16, in both steps."""
    actual = train(tmp_path / "actual", activation=small_silu, dtype=torch.bfloat16)
    found = ascend_dump.compare(actual, train(tmp_path / "reference", activation=small_gelu))
    [origin] = found.origins
    assert origin.op_name == "silu_0"
    assert "aten::silu in actual, aten::gelu in the reference" in origin.evidence


def test_a_setting_whose_difference_a_later_operator_removes_is_told(tmp_path: Path) -> None:
    """The slope of negative elements does not matter, because the next operator sets them to zero."""

    def leaky(slope: float) -> Callable[[Any], Any]:
        return lambda x: torch.nn.functional.leaky_relu(x, slope).clamp(min=0)

    actual = train(tmp_path / "actual", activation=leaky(0.1))
    found = ascend_dump.compare(actual, train(tmp_path / "reference", activation=leaky(0.2)))
    assert not found.origins
    assert [call.arguments for call in found.changed] == [("negative_slope: 0.1 here, 0.2 in the reference",)]


def test_a_power_enlarges_rounding_by_its_exponent(tmp_path: Path) -> None:
    def program(dtype: Any) -> Path:
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(64, 64, generator=generator).to(dtype) + 1
        with ascend_dump.capture(path=tmp_path / str(dtype), steps="0"):
            (x + 8).sub(8).pow(20)
        return tmp_path / str(dtype)

    found = ascend_dump.compare(program(torch.bfloat16), program(torch.float32))
    assert (found.verdict, found.origins) == ("noise", ())
