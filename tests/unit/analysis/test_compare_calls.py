"""Operators that two real PyTorch programs call differently: behind a difference, in the backward pass, by seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
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
        assert main(["compare", str(actual), str(reference), "--all", "--save", str(page)]) == 1
        out = capsys.readouterr().out
        assert "\nchanged     layers.1.norm/native_layer_norm_0 (aten::native_layer_norm), step 0\n" in out
        assert "\narguments   eps: 0.001 here, 1e-05 in the reference\n" in out
        assert "\nothers      1 more operator of this type with the same changed arguments\n" in out
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
        without_effect = [("layers.0.norm/native_layer_norm_0", ("eps: 1.02e-05 here, 1e-05 in the reference",), 0)]
        assert told(found) == ([] if eps == 1e-2 else without_effect)
        assert any(
            pair.record.op_name == "layers.1/mul_0" and pair.record.io == "output" and pair.verdict != "equal"
            for pair in found.pairs
        )

    def test_sizes_that_follow_from_a_shape_are_not_told_and_paddings_are(self, tmp_path: Path) -> None:
        def body(size: int) -> Body:
            return lambda x: functional.pad(x, (0, size), value=1.0).reshape(-1, 4).reshape(8, 16 + size).sum(1, True)

        found = ascend_dump.compare(
            dump(tmp_path / "wrong", body(8), steps=1), dump(tmp_path / "right", body(4), steps=1)
        )
        assert [(one.kind, one.op_name) for one in found.origins] == [("structure", "layers.0/constant_pad_nd_0")]
        # The norm of the next layer removes what the first layer adds, so that the difference begins there anew.
        assert found.origins[0].evidence[-1] == "with it: layers.1/constant_pad_nd_0, layers.2/constant_pad_nd_0"
        assert not told(found)

    @pytest.mark.parametrize(
        ("axis", "eps", "size", "is_told"),
        [(1, 1e-3, 8, False), (1, 1e-3 * (1 + 1e-8), 8, False), (0, 1e-3, 8, True), (1, 1.1e-3, 8, True)],
    )
    def test_one_value_in_two_notations_is_not_told(
        self, tmp_path: Path, axis: int, eps: float, size: int, is_told: bool
    ) -> None:
        """Behind an origin, all of these operators read another tensor."""

        def body(axis: int, eps: float, size: int) -> Body:
            return lambda x: x.mean(axis, keepdim=True).add(torch.ones(()), alpha=eps).expand(8, 16).view(size, 16)

        def with_eps(path: Path, first: float, body: Body) -> Path:
            return dump(path, lambda x: body(x), first, 1e-5, 1e-5, steps=1)

        wrong = with_eps(tmp_path / "wrong", 1e-2, body(axis, eps, size))
        found = ascend_dump.compare(wrong, with_eps(tmp_path / "right", 1e-5, body(-1, 1e-3, -1)))
        assert found.origins
        assert bool(found.changed) == is_told


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


class Images(torch.nn.Module):
    def __init__(self, padding: int, stride: int = 1) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Conv2d(8 if i else 3, 8, 3, stride=1 if i else stride, padding=padding) for i in range(3)
        )
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(8) for _ in range(3))
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        for layer, norm in zip(self.layers, self.norms):
            x = torch.relu(norm(layer(x)))
        return self.head(x.mean((2, 3)))


class Sequence(torch.nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.enter, self.query, self.leave = torch.nn.Linear(6, 12), torch.nn.Linear(12, 12), torch.nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:
        x = self.enter(x)[:, : self.length]
        for _ in range(2):
            query = self.query(x).view(x.shape[0], x.shape[1], 2, 6).transpose(1, 2)
            attended = functional.scaled_dot_product_attention(query, query, query)
            x = x + attended.transpose(1, 2).reshape(x.shape)
        return self.leave(x.mean(1))


class Largest(torch.nn.Module):
    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.enter, self.leave = torch.nn.Linear(6, 6), torch.nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.leave(self.enter(x).max(self.axis)[0])


def train(path: Path, make: Callable[[], Any], *shape: int, steps: int = 2) -> Path:
    torch.manual_seed(0)
    network = make()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with ascend_dump.capture(network, path=path, steps=f"0-{steps - 1}", mode="all"):
        for _ in range(steps):
            optimizer.zero_grad()
            network(torch.randn(shape)).square().mean().backward()
            optimizer.step()
    return path


class TestAnotherShape:
    """Operators that give another shape than in the reference stay those that they are there."""

    @pytest.mark.parametrize(
        ("wrong", "right", "shape", "name", "evidence"),
        [
            (
                lambda: Images(padding=0),
                lambda: Images(padding=1),
                (1, 3, 32, 32),
                "layers.0/convolution_0",
                ("shape [1, 8, 30, 30] instead of [1, 8, 32, 32]", "padding: [0, 0] here, [1, 1] in the reference"),
            ),
            (
                lambda: Images(1, stride=2),
                lambda: Images(1),
                (1, 3, 32, 32),
                "layers.0/convolution_0",
                ("shape [1, 8, 16, 16] instead of [1, 8, 32, 32]", "stride: [2, 2] here, [1, 1] in the reference"),
            ),
            (
                lambda: Sequence(7),
                lambda: Sequence(8),
                (3, 9, 6),
                "slice_0",
                ("shape [3, 7, 12] instead of [3, 8, 12]", "end: 7 here, 8 in the reference"),
            ),
            (
                lambda: Largest(0),
                lambda: Largest(1),
                (3, 5, 6),
                "max_0",
                ("shape [5, 6] instead of [3, 6]", "dim: 0 here, 1 in the reference"),
            ),
        ],
        ids=["padding of three layers", "stride", "length of a sequence", "axis of a maximum"],
    )
    def test_it_is_one_origin_and_all_behind_it_is_explained(
        self,
        tmp_path: Path,
        wrong: Callable[[], Any],
        right: Callable[[], Any],
        shape: tuple[int, ...],
        name: str,
        evidence: tuple[str, str],
    ) -> None:
        found = ascend_dump.compare(train(tmp_path / "wrong", wrong, *shape), train(tmp_path / "right", right, *shape))
        assert found.verdict == "different"
        [origin] = found.origins
        assert (origin.kind, origin.op_name, origin.step) == ("structure", name, 0)
        assert origin.evidence[0].endswith(evidence[0])
        assert evidence[1] in origin.evidence
        assert not found.unmatched
        differing = [pair for pair in found.pairs if pair.verdict in ("different", "structure")]
        assert all(pair.explained or pair.record.op_name == name for pair in differing)

    def test_an_operator_more_is_none_of_another_shape(self, tmp_path: Path) -> None:
        """It stands alone, and the operators around it are paired as before."""
        right = dump(tmp_path / "right", functional.gelu, steps=1)
        wrong = dump(tmp_path / "wrong", lambda x: functional.gelu(x.repeat(1, 2)[:, 8:24]), steps=1)
        found = ascend_dump.compare(wrong, right)
        named = {one.op_name for one in found.origins}
        assert named & {"layers.0/repeat_0", "layers.0/slice_0"}
        assert not any("gelu" in name for name in named)


def in_groups(count: int) -> Body:
    """Rows are taken apart and put together again, which changes no element."""

    def body(x: Any) -> Any:
        groups = x.view(8, count, 16 // count).transpose(0, 1).reshape(count, -1)
        return functional.gelu(groups.view(count, 8, 16 // count).transpose(0, 1).reshape(8, 16))

    return body


def in_pieces(count: int) -> Body:
    return lambda x: torch.cat([functional.gelu(piece) for piece in x.chunk(count, 1)], 1)


class TestAnotherWayToTheSame:
    """A tensor with another shape on the way is no origin if it is equal again."""

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (in_groups(4), in_groups(2)),
            (in_pieces(2), in_pieces(4)),
            (lambda x: x * x.sum(1, keepdim=True).expand(8, 16), lambda x: x * x.sum(1)[:, None]),
        ],
        ids=["groups", "pieces", "sums"],
    )
    def test_it_has_no_origin(self, tmp_path: Path, one: Body, other: Body) -> None:
        found = ascend_dump.compare(dump(tmp_path / "one", one), dump(tmp_path / "other", other))
        assert found.origins == ()
        assert "different" not in found.counts

    def test_a_fault_on_the_way_is_seen(self, tmp_path: Path) -> None:
        wrong = dump(tmp_path / "wrong", lambda x: in_groups(4)(x) * 1.01)
        found = ascend_dump.compare(wrong, dump(tmp_path / "right", lambda x: in_groups(2)(x) * 1.0))
        assert found.verdict == "different"
        assert (found.origins[0].kind, found.origins[0].op_name) == ("structure", "layers.0/mul_0")

    def test_a_shape_that_stays_another_one_is_seen(self, tmp_path: Path) -> None:
        """Nothing of one shape on both sides comes of it in inference."""
        sides = []
        for name, padding in (("wrong", 0), ("right", 1)):
            torch.manual_seed(0)
            network = torch.nn.Conv2d(3, 8, 3, padding=padding)
            with torch.no_grad(), ascend_dump.capture(network, path=tmp_path / name):
                network(torch.randn(1, 3, 8, 8))
            sides.append(tmp_path / name)
        [origin] = ascend_dump.compare(*sides).origins
        assert (origin.kind, origin.evidence[1]) == ("structure", "padding: [0, 0] here, [1, 1] in the reference")


class TestOneOrigin:
    """One change of the program is reported once."""

    def test_two_wrong_inputs_of_one_operator(self, tmp_path: Path) -> None:
        def within(factor: float) -> Body:
            low, high = torch.linspace(-0.5, -0.2, 16) * factor, torch.linspace(0.1, 0.5, 16) * factor
            return lambda x: x.clamp(low, high)

        found = ascend_dump.compare(dump(tmp_path / "wrong", within(0.5)), dump(tmp_path / "right", within(1.0)))
        [origin] = found.origins
        assert (origin.kind, origin.op_name) == ("parameter", "layers.0/clamp_0")
        assert origin.evidence[0].startswith("layers.0/clamp_0.input.1: ")
        assert origin.evidence[-1] == "with it: input.2"

    def test_operators_of_one_line_that_one_side_runs_alone(self, tmp_path: Path) -> None:
        def body(factor: float) -> Body:
            return lambda x: x.clamp(-x.abs().mean(0) * factor, x.abs().mean(0) * factor)

        one = dump(tmp_path / "wrong", body(0.5), steps=1)
        found = ascend_dump.compare(one, dump(tmp_path / "right", lambda x: x.clamp(-x.abs().mean(0), x.abs().mean(0))))
        assert [one.op_name for one in found.origins] == ["layers.0/mul_0"]
        assert "with it: layers.0/mul_1" in found.origins[0].evidence

    def test_the_backward_pass_of_an_operator_that_gives_the_same(self, tmp_path: Path) -> None:
        """The largest elements of the rows of a symmetric matrix are those of columns; their gradients are not."""

        def largest(axis: int) -> Body:
            return lambda x: (x @ x.detach().T).max(axis)[0][:, None]

        wrong, right = dump(tmp_path / "wrong", largest(0)), dump(tmp_path / "right", largest(1))
        found = ascend_dump.compare(wrong, right)
        [origin] = found.origins
        assert (origin.step, origin.module) == (0, "layers.2")
        assert "layers.2/max_0 of the forward pass: dim: 0 here, 1 in the reference" in origin.evidence

    @pytest.mark.parametrize("of_actual", [True, False])
    def test_a_part_of_a_parameter_that_one_side_writes_between_steps(self, tmp_path: Path, of_actual: bool) -> None:
        """No record has all that is written; the next step reads other contents."""

        def trained(path: Path, *, written: bool) -> Path:
            torch.manual_seed(0)
            network = torch.nn.Linear(4, 2)
            with ascend_dump.capture(network, path=path, steps="0|1", mode="all"):
                network(torch.ones(2, 4)).square().sum().backward()
                if written:
                    with torch.no_grad():
                        network.weight[0, 0] = 9
                network(torch.ones(2, 4)).square().sum().backward()
            return path

        sides = trained(tmp_path / "actual", written=of_actual), trained(tmp_path / "reference", written=not of_actual)
        [origin] = ascend_dump.compare(*sides).origins
        side = "actual" if of_actual else "the reference"
        assert (origin.op_name, origin.step) == ("copy__0", 0)
        assert origin.evidence == (f"aten::copy_ runs in {side} only",)

    def test_what_both_sides_have_overwritten_since(self, tmp_path: Path) -> None:
        """One side writes to a weight, then both fill it, and another difference comes from where nobody looks."""

        def trained(path: Path, *, changed: bool) -> Path:
            torch.manual_seed(0)
            network = torch.nn.Linear(4, 2)
            with torch.no_grad(), ascend_dump.capture(network, path=path, steps="0|1", mode="all"):
                network(torch.ones(2, 4))
                if changed:
                    network.weight[0, 0] = 9
                network.weight.fill_(0.5)
                network.bias.fill_(0.5)
                network.weight.numpy()[1, 1] += changed
                network(torch.ones(2, 4))
            return path

        found = ascend_dump.compare(trained(tmp_path / "one", changed=True), trained(tmp_path / "other", changed=False))
        assert [(one.kind, one.op_name, one.step) for one in found.origins] == [("parameter", "t_0", 1)]

    def test_memory_that_another_input_has_now(self, tmp_path: Path) -> None:
        """The address of a tensor that one side alone has written is given to what the program brings from outside."""

        def run(path: Path, *, changed: bool) -> Path:
            torch.manual_seed(0)
            network = torch.nn.Linear(4, 2)
            memory = np.ones((2, 4), np.float32)
            before, after = torch.from_numpy(memory), torch.from_numpy(memory)
            with torch.no_grad(), ascend_dump.capture(network, path=path, steps="0|1", mode="all"):
                network(torch.ones(2, 4))
                if changed:
                    before.mul_(3)
                memory[:] = 1 + changed
                network(after)
            return path

        found = ascend_dump.compare(run(tmp_path / "one", changed=True), run(tmp_path / "other", changed=False))
        kinds = [(one.kind, one.op_name, one.step) for one in found.origins]
        assert kinds == [("structure", "mul__0", 0), ("input", "addmm_0", 1)]
