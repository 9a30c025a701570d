"""Comparing dumps of `level="module"` by the norms of gradients and of changes of parameters at optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

import ascend_dump
from ascend_dump.analysis.compare import Comparison

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
functional = torch.nn.functional

Sgd = torch.optim.SGD


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))


class ByHand:
    """An optimizer that is no `torch.optim.Optimizer`, so that its steps are not recorded."""

    def __init__(self, parameters: Any, lr: float) -> None:
        self.parameters, self.lr = list(parameters), lr

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        with torch.no_grad():
            for parameter in self.parameters:
                parameter -= self.lr * parameter.grad


def train(
    path: Path,
    *,
    optimizer: Any = Sgd,
    rate: float = 0.1,
    before_step: Callable[[Any], object] = lambda model: None,
    accumulate: bool = False,
    times: int = 1,
    change: Callable[[Any], object] = lambda model: None,
    data: str = "tensor",
    steps: int = 2,
) -> Path:
    """before_step: called with the model before each step of the optimizer. times: steps of the optimizer in a row"""
    model = network()
    change(model)
    x, y = torch.randn(8, 8), torch.arange(8) % 4
    updates = optimizer([parameter for parameter in model.parameters() if parameter.requires_grad], lr=rate)
    with ascend_dump.capture(model, path=path, steps="all", level="module", data=data, quiet=True):
        for _ in range(steps):
            if not accumulate:
                updates.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            before_step(model)
            for _ in range(times):
                updates.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("compare_updates") / "reference")


def only_origin(found: Comparison) -> tuple[str, str, Optional[int], str]:
    [origin] = found.origins
    assert found.verdict == "different"
    return origin.kind, origin.op_name, origin.step, origin.evidence[0]


def test_another_learning_rate_is_one_origin_at_the_updates(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(train(tmp_path / "actual", rate=0.2), reference)
    kind, op_name, step, text = only_origin(found)
    assert (kind, op_name, step) == ("unknown", "0/update_0", 0)
    assert text.startswith("4 parameters are updated differently, such as change of 0.weight: norm ")
    assert found.origins[0].explains > 4
    assert (found.origins[0].next["level"], "layers" in found.origins[0].next) == ("all", False)


def test_clipped_gradients_differ_where_the_optimizer_reads_them(reference: Path, tmp_path: Path) -> None:
    clip = lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # noqa: E731
    found = ascend_dump.compare(train(tmp_path / "actual", before_step=clip), reference)
    *place, text = only_origin(found)
    assert place == ["unknown", "0/update_0", 0]
    assert text.startswith("4 gradients differ where the optimizer reads them, such as 0.weight.grad: norm 0.00")


def test_gradients_that_are_not_reset_differ_though_all_modules_agree(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(train(tmp_path / "actual", accumulate=True), reference)
    assert only_origin(found)[:3] == ("unknown", "0/update_0", 1)
    assert any("zero_grad" in line for line in found.origins[0].evidence)


def test_a_parameter_that_one_program_does_not_update_is_named(reference: Path, tmp_path: Path) -> None:
    freeze = lambda model: model[2].weight.requires_grad_(False)  # noqa: E731
    found = ascend_dump.compare(train(tmp_path / "actual", change=freeze), reference)
    assert only_origin(found)[::3] == (
        "structure",
        "2.weight is updated in the reference only, or once more",
    )
    assert found.origins[0].module == "2"


def test_updates_of_one_module_are_paired_by_parameter(tmp_path: Path) -> None:
    """Names of updates only number the parameters of a module."""

    class Affine(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor, self.shift = torch.nn.Parameter(torch.ones(16)), torch.nn.Parameter(torch.zeros(16))

        def forward(self, x: Any) -> Any:
            return x * self.factor + self.shift

    def affine(model: Any, *, is_frozen: bool = False) -> None:
        model[1] = Affine()
        model[1].factor.requires_grad_(not is_frozen)

    actual = train(tmp_path / "actual", change=lambda model: affine(model, is_frozen=True))
    found = ascend_dump.compare(actual, train(tmp_path / "reference", change=affine))
    assert only_origin(found)[::3] == ("structure", "1.factor is updated in the reference only, or once more")


def test_a_parameter_without_an_update_comes_before_the_gradients_that_are_clipped_with_it(tmp_path: Path) -> None:
    clip = lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # noqa: E731
    freeze = lambda model: model[2].weight.requires_grad_(False)  # noqa: E731
    actual = train(tmp_path / "actual", before_step=clip, change=freeze)
    found = ascend_dump.compare(actual, train(tmp_path / "reference", before_step=clip))
    assert [(origin.kind, origin.module) for origin in found.origins] == [("structure", "2"), ("unknown", "0")]


def test_a_second_step_of_the_optimizer_is_one_origin(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(train(tmp_path / "actual", times=2), reference)
    assert found.verdict == "different"
    assert (
        found.origins[0]
        .evidence[0]
        .startswith("4 parameters are updated in actual only, or once more, such as 0.weight")
    )
    assert len(found.origins) <= 2


def test_a_parameter_that_one_program_does_not_update_is_no_origin_where_all_agrees(tmp_path: Path) -> None:
    def without_gradient(model: Any) -> None:
        model[2].bias.grad = None

    def zero(model: Any) -> None:
        model[2].bias.grad.zero_()

    sides = train(tmp_path / "actual", before_step=without_gradient), train(tmp_path / "reference", before_step=zero)
    found = ascend_dump.compare(*sides)
    assert (found.verdict, found.origins) == ("unmatched", ())


def test_norms_that_agree_are_no_pairs_of_tensors(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(train(tmp_path / "actual"), reference)
    assert (found.verdict, found.origins) == ("equal", ())
    assert not any("update_" in pair.record.op_name for pair in found.pairs)


def test_an_optimizer_by_hand_is_unmatched(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(train(tmp_path / "actual", optimizer=ByHand), reference)
    assert (found.verdict, found.origins) == ("unmatched", ())


def test_an_optimizer_that_is_not_recorded_is_no_origin(reference: Path, tmp_path: Path) -> None:
    found = ascend_dump.compare(train(tmp_path / "actual", optimizer=ByHand, rate=0.2), reference)
    assert only_origin(found)[:3] == ("unknown", "0/forward_0", 1)


def test_parameters_of_other_names_are_no_origin_beside_another_setting(reference: Path, tmp_path: Path) -> None:
    class Own(torch.nn.Module):
        def __init__(self, linear: Any) -> None:
            super().__init__()
            self.upper, self.lower = (torch.nn.Parameter(part.detach().clone()) for part in linear.weight.chunk(2))
            self.offset = linear.bias

        def forward(self, x: Any) -> Any:
            return functional.linear(x, torch.cat([self.upper, self.lower]), self.offset)

    def own(model: Any) -> None:
        model[0] = Own(model[0])

    found = ascend_dump.compare(train(tmp_path / "actual", change=own, rate=0.2), reference)
    assert only_origin(found)[0] == "unknown"


def test_a_wrong_module_explains_all_updates(reference: Path, tmp_path: Path) -> None:
    def wrong(model: Any) -> None:
        with torch.no_grad():
            model[0].weight.mul_(1.1)

    found = ascend_dump.compare(train(tmp_path / "actual", change=wrong), reference)
    assert only_origin(found)[:3] == ("unknown", "0/forward_0", 0)
    updates = [pair for pair in found.pairs if "update_" in pair.record.op_name]
    assert updates
    assert all(pair.explained for pair in updates)


def test_a_gradient_with_nan_differs(reference: Path, tmp_path: Path) -> None:
    def spoil(model: Any) -> None:
        model[2].bias.grad[0] = float("nan")

    found = ascend_dump.compare(train(tmp_path / "actual", steps=1, before_step=spoil), reference)
    assert "2.bias.grad: norm inf instead of" in only_origin(found)[3]


class Shifted(torch.nn.BatchNorm1d):
    """The gradient of a bias before a norm is rounding, of which Adam makes full steps."""

    shift = 0.0

    def forward(self, x: Any) -> Any:
        return super().forward(x + self.shift - self.shift)


def normed(model: Any, shift: float = 0.0) -> None:
    model[1] = Shifted(16)
    model[1].shift = shift


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_a_gradient_that_is_rounding_alone_is_no_evidence(tmp_path: Path, optimizer: Any) -> None:
    settings = {"optimizer": optimizer, "rate": 0.01, "steps": 1}
    actual = train(tmp_path / "actual", change=lambda model: normed(model, 0.5), **settings)
    found = ascend_dump.compare(actual, train(tmp_path / "reference", change=normed, **settings))
    assert (found.verdict, found.origins) == ("noise", ())


def test_another_setting_of_the_optimizer_explains_small_differences_beside_rounding(tmp_path: Path) -> None:
    rounded = lambda model: normed(model, 0.5)  # noqa: E731
    actual = train(tmp_path / "actual", optimizer=torch.optim.Adam, rate=0.0102, change=rounded)
    found = ascend_dump.compare(
        actual, train(tmp_path / "reference", optimizer=torch.optim.Adam, rate=0.01, change=normed)
    )
    assert only_origin(found)[:3] == ("unknown", "0/update_0", 0)
    outputs = [pair for pair in found.pairs if pair.record.op_name == "2/forward_0" and pair.record.io == "output"]
    assert [(pair.record.step, pair.verdict, pair.explained) for pair in outputs][1:] == [(1, "different", True)]
