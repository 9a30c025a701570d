"""Operators that two real PyTorch programs call differently: behind a difference, in the backward pass, by seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ascend_dump
from ascend_dump import Comparison
from ascend_dump.cli import main

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
functional = torch.nn.functional

Body = Callable[[Any], Any]


class Layer(torch.nn.Module):
    def __init__(self, body: Body, eps: float) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(16, eps=eps)
        self.linear = torch.nn.Linear(16, 16)
        self.body = body

    def forward(self, x: Any) -> Any:
        return x + self.body(self.linear(self.norm(x)))


class Deep(torch.nn.Module):
    def __init__(self, body: Body, *epsilons: float) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(Layer(body, eps) for eps in epsilons))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def dump(path: Path, body: Body = functional.gelu, *epsilons: float, steps: int = 2, seed: int = 0) -> Path:
    torch.manual_seed(0)
    network = Deep(body, *(epsilons or (1e-5,) * 3))
    x = torch.randn(8, 16)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    torch.manual_seed(seed)
    with ascend_dump.capture(network, path=path, steps=f"0-{steps - 1}"):
        for _ in range(steps):
            optimizer.zero_grad()
            network(x).pow(2).mean().backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("calls") / "reference")


@pytest.fixture(scope="module")
def actual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("calls") / "actual", functional.gelu, 1e-2, 1e-3, 1e-3)


def told(found: Comparison) -> list[tuple[str, tuple[str, ...], int]]:
    return [(one.op_name, one.arguments, one.others) for one in found.changed]


class TestBehindADifference:
    SAID = (("layers.1.norm/native_layer_norm_0", ("eps: 0.001 here, 1e-05 in the reference",), 1),)

    def test_a_changed_argument_is_told_once_and_is_no_origin(self, actual: Path, reference: Path) -> None:
        found = ascend_dump.compare(actual, reference)
        assert [(one.op_name, one.step) for one in found.origins] == [("layers.0.norm/native_layer_norm_0", 0)]
        assert "eps: 0.01 here, 1e-05 in the reference" in found.origins[0].evidence
        assert told(found) == list(self.SAID)
        [one] = found.changed
        assert (one.module, one.step, one.pair.verdict, one.pair.explained) == ("layers.1.norm", 0, "different", True)

    def test_ranks_on_an_executor_say_the_same(self, actual: Path, reference: Path) -> None:
        pytest.importorskip("polars")
        with ThreadPoolExecutor(1) as executor:
            found = ascend_dump.compare(actual, reference, executor=executor)
        assert told(found) == list(self.SAID)
        assert found.to_dict()["changed"] == ascend_dump.compare(actual, reference).to_dict()["changed"]

    def test_json_pages_and_the_verb_name_it(
        self, actual: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        page = tmp_path / "x.html"
        assert main(["compare", str(actual), str(reference), "--save", str(page)]) == 1
        out = capsys.readouterr().out
        assert "\nchanged     layers.1.norm/native_layer_norm_0 (aten::native_layer_norm), step 0\n" in out
        assert "\narguments   eps: 0.001 here, 1e-05 in the reference\n" in out
        assert "\nothers      1 more operator of this type with the same\n" in out
        html = page.read_text(encoding="utf-8")
        assert "Called with other arguments" in html
        assert "eps: 0.001 here, 1e-05 in the reference" in html
        assert main(["compare", str(actual), str(reference), "--json"]) == 1
        [one] = json.loads(capsys.readouterr().out)["changed"]
        assert (one["op_type"], one["others"]) == ("aten::native_layer_norm", 1)

    def test_what_is_not_changed_is_not_told(self, reference: Path, tmp_path: Path) -> None:
        found = ascend_dump.compare(dump(tmp_path / "one", functional.gelu, 1e-2, 1e-5, 1e-5), reference)
        assert len(found.origins) == 1
        assert found.changed == ()
        assert ascend_dump.compare(reference, reference).changed == ()


class TestNumbersOfARun:
    def test_other_seeds_are_random_and_no_other_arguments(self, tmp_path: Path) -> None:
        def body(x: Any) -> Any:
            return functional.dropout(x, 0.5)

        one, other = dump(tmp_path / "one", body), dump(tmp_path / "other", body, seed=1)
        found = ascend_dump.compare(one, other)
        assert {one.kind for one in found.origins} == {"random"}
        assert found.changed == ()

    @pytest.mark.parametrize("eps", [1e-2, 1.02e-5])
    def test_a_number_that_was_read_from_a_tensor_carries_its_difference_on(self, tmp_path: Path, eps: float) -> None:
        """By itself too: what is multiplied with it is the same on both sides."""

        def body(x: Any) -> Any:
            return functional.gelu(x) + torch.ones(8, 16) * x.detach().abs().sum().item()

        right, wrong = dump(tmp_path / "right", body), dump(tmp_path / "wrong", body, eps, 1e-5, 1e-5)
        found = ascend_dump.compare(wrong, right)
        names = {one.op_name for one in found.origins}
        assert names == ({"layers.0.norm/native_layer_norm_0"} if eps == 1e-2 else set())
        assert found.changed == ()
        assert any(
            pair.record.op_name == "layers.1/mul_0" and pair.record.io == "output" and pair.verdict != "equal"
            for pair in found.pairs
        )

    def test_sizes_that_follow_from_a_shape_are_not_told(self, tmp_path: Path) -> None:
        def body(size: int) -> Body:
            return lambda x: functional.pad(x, (0, size), value=1.0).reshape(-1, 4).reshape(8, 16 + size).sum(1, True)

        found = ascend_dump.compare(
            dump(tmp_path / "wrong", body(8), steps=1), dump(tmp_path / "right", body(4), steps=1)
        )
        assert found.origins[0].kind == "structure"
        assert found.changed == ()


class TestTheBackwardPass:
    @pytest.mark.parametrize(
        ("wrong", "right", "forward", "backward"),
        [
            (lambda x: x.clamp(-0.3, 0.2), lambda x: x.clamp(-0.5, 0.5), "clamp_0", {"ge_0", "le_0"}),
            (lambda x: x.abs().pow(3), lambda x: x.abs().pow(2), "pow_0", {"pow_1"}),
            (lambda x: x.clamp_min(-0.3), lambda x: x.clamp(-0.5, 0.5), "clamp_min_0", {"ge_0"}),
            (functional.relu, functional.gelu, "relu_0", set()),
            (lambda x: functional.gelu(x).clamp(0.1, 1.0), functional.gelu, "clamp_0", set()),
        ],
        ids=["clamp", "pow", "one bound", "another operator", "an extra operator"],
    )
    def test_what_it_is_called_with_belongs_to_the_forward_operator(
        self, tmp_path: Path, wrong: Body, right: Body, forward: str, backward: set[str]
    ) -> None:
        def in_the_middle(body: Body) -> Body:
            calls = iter(range(100))
            return lambda x: body(x) if next(calls) % 3 == 1 else functional.gelu(x)

        one = dump(tmp_path / "wrong", in_the_middle(wrong))
        found = ascend_dump.compare(one, dump(tmp_path / "right", in_the_middle(right)))
        assert [(one.kind, one.op_name, one.step) for one in found.origins] == [("structure", f"layers.1/{forward}", 0)]
        assert found.changed == ()
        named = " ".join(text for text in found.origins[0].evidence if text.startswith("its backward pass"))
        assert all(f"layers.1/{one}" in named for one in backward)

    def test_a_wrong_number_in_a_comparison_is_no_rounding(self, tmp_path: Path) -> None:
        """Each side is right for its own number, which is the fault."""

        def above(least: float) -> Body:
            return lambda x: x * (x > least)

        found = ascend_dump.compare(
            dump(tmp_path / "wrong", above(0.3), steps=1), dump(tmp_path / "right", above(0.0), steps=1)
        )
        assert found.verdict == "different"
        first = found.origins[0]
        assert (first.kind, first.op_name) == ("structure", "layers.0/gt_0")
        assert "other: 0.3 here, 0.0 in the reference" in first.evidence
        assert [one.op_name for one in found.origins] == ["layers.0/gt_0"]
        assert told(found) == [("layers.1/gt_0", ("other: 0.3 here, 0.0 in the reference",), 1)]
