"""Programs that compute the same in another way: what agrees at its borders is no origin, a fault inside is one."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import zip_longest
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
from ascend_dump.analysis.alignment.step_boundaries import OperatorSteps, divided_steps
from ascend_dump.analysis.explaining.origins import importance
from ascend_dump.analysis.explaining.stretches import EnteredStretch
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.pairing.stretches import Stretch
from ascend_dump.cli import main

WIDTH, HEADS = 16, 2


class Norm(nn.LayerNorm):
    """A layer norm, and the same by hand. by_hand: None for the operator of PyTorch, else "right" or a fault."""

    by_hand: Optional[str] = None

    def forward(self, x: Tensor) -> Tensor:
        if self.by_hand is None:
            return super().forward(x)
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        if self.by_hand == "unbiased":
            variance = x.var(-1, keepdim=True)
        return centred * torch.rsqrt(variance + self.eps) * self.weight + self.bias


class Attention(nn.Module):
    by_hand: Optional[str] = None
    scales_queries = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        if self.scales_queries:
            scores = (q * self.scales_queries / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
            mixed = scores.masked_fill(later, -1e9).softmax(-1) @ v
        elif self.by_hand is None:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH if self.by_hand == "scale" else q.shape[-1])
            mixed = scores.masked_fill(later, -1e9).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = Norm(WIDTH), Attention()
        self.add: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda x, normed, mixed: x + mixed

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return self.add(x, normed, self.attention(normed))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(
    path: Path,
    change: Callable[[Any], Any] = lambda network: None,
    *,
    seed: int = 0,
    steps: int = 1,
    zero: bool = True,
    cast: bool = False,
    data: str = "tensor",
    **optimizer: Any,
) -> Path:
    torch.manual_seed(seed)
    network = Network()
    change(network)
    torch.manual_seed(1)
    chosen = torch.optim.AdamW(network.parameters(), **optimizer)
    with ascend_dump.capture(network, path=path, steps=f"0-{steps - 1}", mode="all", data=data):
        for _ in range(steps):
            if zero:
                chosen.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
                output = network(torch.randn(2, 6, WIDTH))
            output.float().square().mean().backward()
            chosen.step()
    return path


def compared(path: Path, change: Callable[[Any], Any] = lambda network: None, **settings: Any) -> Any:
    steps = settings.get("steps", 1)
    return ascend_dump.compare(train(path / "actual", change, **settings), train(path / "reference", steps=steps))


def norms(fault: str) -> Callable[[Any], Any]:
    """Return a change that writes all norms by hand, the second one with a fault."""

    def change(network: Any) -> None:
        for number, block in enumerate(network.blocks):
            block.norm.by_hand = fault if number == 1 else "right"

    return change


def attentions(fault: str) -> Callable[[Any], Any]:
    def change(network: Any) -> None:
        for number, block in enumerate(network.blocks):
            block.attention.by_hand = fault if number == 1 else "right"

    return change


@pytest.mark.parametrize("change", [norms("right"), attentions("right")], ids=["layer norm", "attention"])
def test_what_agrees_at_its_borders_has_no_origin(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    found = compared(tmp_path, change)
    assert (found.origins, found.verdict) == ((), "noise")


@pytest.mark.parametrize(
    ("change", "module"),
    [(norms("unbiased"), "blocks.1.norm"), (attentions("scale"), "blocks.1.attention")],
    ids=["layer norm", "attention"],
)
def test_the_module_that_is_built_differently_and_wrong_is_the_origin(
    tmp_path: Path, change: Callable[[Any], Any], module: str
) -> None:
    [origin] = compared(tmp_path, change).origins
    assert (origin.kind, origin.module, origin.step) == ("structure", module, 0)
    assert origin.evidence[0].startswith(f"{module} is built differently: ")
    assert origin.evidence[1].startswith("its result differs, read as blocks.1.")


def test_the_order_of_the_addends_is_no_difference(tmp_path: Path) -> None:
    def change(network: Any) -> None:
        for block in network.blocks:
            block.add = lambda x, normed, mixed: mixed + x

    found = compared(tmp_path, change)
    assert (found.origins, found.verdict) == ((), "equal")


def test_another_operator_of_the_same_operands_is_a_difference(tmp_path: Path) -> None:
    def change(network: Any) -> None:
        network.blocks[1].add = lambda x, normed, mixed: mixed - x

    [origin] = compared(tmp_path, change).origins
    assert (origin.kind, origin.module) == ("structure", "blocks.1")
    assert origin.evidence[0] == "aten::sub in actual, aten::add in the reference"


def test_an_input_that_reads_another_tensor_is_wiring(tmp_path: Path) -> None:
    def change(network: Any) -> None:
        network.blocks[1].add = lambda x, normed, mixed: normed + mixed

    [origin] = compared(tmp_path, change, steps=2).origins
    assert (origin.kind, origin.op_name, origin.step) == ("wiring", "blocks.1/add_0", 0)
    assert "reads blocks.1.norm/native_layer_norm_0 here, blocks.0/add_0 in the reference" in origin.evidence


def test_gradients_that_are_not_zeroed_are_one_origin(tmp_path: Path) -> None:
    [origin] = compared(tmp_path, zero=False, steps=2).origins
    assert (origin.kind, origin.step) == ("structure", 1)
    assert origin.evidence[0].startswith("gradients were accumulated: ")
    assert "not zero when a backward pass began" in origin.evidence[0]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_gradient_that_is_lost_between_two_backward_passes_is_missing_here(tmp_path: Path, is_lost: bool) -> None:
    def trained(path: Path, *, loses: bool) -> Path:
        torch.manual_seed(0)
        network = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        with ascend_dump.capture(network, path=path, steps="0", options={"step": "optimizer"}):
            for part in torch.randn(2, 8, 4):
                network(part).square().sum().backward()
                if loses:
                    network.zero_grad()
                    loses = False
            optimizer.step()
        return path

    found = ascend_dump.compare(trained(tmp_path / "a", loses=is_lost), trained(tmp_path / "b", loses=False))
    texts = [origin.evidence[0] for origin in found.origins]
    assert len(texts) == is_lost
    for text in texts:
        assert text.startswith("gradients were accumulated in the reference only: zero here when a backward pass began")
        assert text.endswith("look for a zero_grad() between two passes")


def test_another_number_of_an_optimizer_is_one_origin(tmp_path: Path) -> None:
    [origin] = compared(tmp_path, betas=(0.9, 0.99)).origins
    assert origin.kind == "structure"
    assert any(text.startswith("value: 0.01") and "0.001" in text for text in origin.evidence)


def test_other_weights_are_one_origin(tmp_path: Path) -> None:
    [origin] = compared(tmp_path, seed=3).origins
    assert origin.kind == "parameter"
    assert "parameters differ when they are first read: another seed or checkpoint" in origin.evidence[0]


@pytest.mark.parametrize("foreach", [True, False])
def test_an_optimizer_on_lists_is_compared_by_the_parameters(tmp_path: Path, foreach: bool) -> None:
    found = compared(tmp_path, foreach=foreach, steps=2)
    assert found.origins == ()
    assert "different" not in found.counts


def test_a_fault_in_an_optimizer_on_lists_is_seen(tmp_path: Path) -> None:
    [origin] = compared(tmp_path, foreach=True, lr=2e-3).origins
    assert (origin.kind, origin.module) == ("structure", "")


def test_autocast_differs_by_rounding(tmp_path: Path) -> None:
    found = compared(tmp_path, cast=True)
    assert found.origins == ()
    assert not {"different", "structure"} & set(found.counts)


def test_the_answer_fits_on_a_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "actual", norms("unbiased"), seed=3)
    train(tmp_path / "reference")
    sides = [str(tmp_path / "actual"), str(tmp_path / "reference")]
    main(["compare", *sides])
    assert len(capsys.readouterr().out.splitlines()) <= 25
    main(["compare", "--all", *sides])
    assert len(capsys.readouterr().out.splitlines()) > 25


def test_what_is_built_differently_and_agrees_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "actual", attentions("right"))
    train(tmp_path / "reference")
    assert main(["compare", str(tmp_path / "actual"), str(tmp_path / "reference")]) == 0
    answer, *note = capsys.readouterr().out.splitlines()
    assert answer.startswith("noise: ")
    text = " ".join(map(str.strip, note))
    assert text.startswith("built differently, and the results agree: blocks.*.attention (3 times: ")


def scaled_first(fault: float) -> Callable[[Any], Any]:
    """Return a change that scales the queries in place of the scores, in the second block by another factor."""

    def change(network: Any) -> None:
        for number, block in enumerate(network.blocks):
            block.attention.scales_queries = 1.0 if number != 1 else fault

    return change


def test_a_factor_before_a_product_in_place_of_behind_it_is_no_origin(tmp_path: Path) -> None:
    found = ascend_dump.compare(
        train(tmp_path / "actual", scaled_first(1.0), steps=2),
        train(tmp_path / "reference", attentions("right"), steps=2),
    )
    assert (found.origins, found.verdict) == ((), "noise")


def test_a_wrong_factor_before_a_product_is_the_origin(tmp_path: Path) -> None:
    found = ascend_dump.compare(
        train(tmp_path / "actual", scaled_first(1.5)), train(tmp_path / "reference", attentions("right"))
    )
    assert {origin.module for origin in found.origins} == {"blocks.1.attention"}
    assert found.verdict == "different"


def test_a_state_that_is_not_read_any_more_is_a_result(tmp_path: Path) -> None:
    """In the first step the correction of the bias cancels another decay."""
    [origin] = compared(tmp_path, betas=(0.8, 0.999), foreach=False).origins
    assert (origin.kind, origin.op_name) == ("structure", "lerp__0")


def test_a_mask_does_not_hide_that_a_difference_goes_on(tmp_path: Path) -> None:
    """Nothing is small in comparison with a mask, which is equal on both sides."""

    class Weights(nn.Module):
        def forward(self, scores: Tensor, mask: Tensor, bias: Optional[Tensor]) -> Tensor:
            return (scores + (mask if bias is None else mask + bias)).softmax(-1)

    torch.manual_seed(0)
    scores, bias = torch.randn(2, 6, 6), torch.randn(1, 6, 6)
    mask = torch.zeros(1, 6, 6).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), torch.finfo().min)

    def dump(name: str, with_bias: bool) -> Path:
        network = Weights()
        with ascend_dump.capture(network, path=tmp_path / name):
            network(scores, mask, bias if with_bias else None)
        return tmp_path / name

    found = ascend_dump.compare(dump("actual", False), dump("reference", True))
    assert found.verdict == "different"
    assert "aten::add runs in the reference only" in found.origins[0].evidence


def test_origins_are_found_behind_a_chain_of_thousands() -> None:
    """Each step updates a parameter by other operators, from what the two updates before it left."""
    chain: list[EnteredStretch] = []
    for step in range(3000):
        stretch = EnteredStretch(Stretch(), number=step, order=step, step=0)
        stretch.before = chain[-2:]
        stretch.differs = step % 3 == 0
        chain.append(stretch)
    assert chain[-1].origins() == {0}
    chain[0].causes = {3000}
    assert chain[-1].origins() == {3000}


class Momentum:
    """SGD with momentum by hand: nothing tells the recorder where its steps end."""

    def __init__(self, parameters: Any, lr: float) -> None:
        self.parameters, self.lr = list(parameters), lr
        self.buffers: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            assert parameter.grad is not None
            gradient = parameter.grad
            buffer = self.buffers[parameter] = (
                0.9 * self.buffers[parameter] + gradient if parameter in self.buffers else gradient.clone()
            )
            parameter.sub_(self.lr * buffer)

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def accumulated(path: Path, make: Callable[[Any], Any]) -> Path:
    """Record two steps of two backward passes each."""
    torch.manual_seed(0)
    network = Network()
    chosen = make(network.parameters())
    with ascend_dump.capture(network, path=path, steps="all", options={"step": "optimizer"}):
        for _ in range(2):
            chosen.zero_grad()
            for _ in range(2):
                (network(torch.randn(2, 6, WIDTH)).square().mean() / 2).backward()
            chosen.step()
    return path


@pytest.mark.parametrize("lr", [0.1, 0.2])
def test_an_optimizer_by_hand_has_other_steps(tmp_path: Path, lr: float) -> None:
    reference = accumulated(tmp_path / "reference", lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9))
    actual = accumulated(tmp_path / "actual", lambda parameters: Momentum(parameters, lr))
    steps = [{record.step for record in ascend_dump.open(path)} for path in (actual, reference)]
    assert steps == [{0}, {0, 1}]
    found = ascend_dump.compare(actual, reference)
    assert [(origin.kind, origin.module) for origin in found.origins] == [("structure", "")] * (lr != 0.1)


@pytest.mark.parametrize(
    ("coarse", "fine"), [((3, 0), (1, 1, 1)), ((3, 0, 1), (1, 1, 1, 1)), ((0, 2), (1, 1, 1)), ((), (1,)), ((0,), (1,))]
)
def test_steps_are_not_divided_if_one_has_no_forward_pass(coarse: tuple[int, ...], fine: tuple[int, ...]) -> None:
    def step(passes: int) -> list[Operator]:
        phases = [phase for _ in range(passes) for phase in ("forward", "backward")]
        return [Operator(index, "aten::mm", "mm", phase, "", "") for index, phase in enumerate([*phases, "optimizer"])]

    pairs = enumerate(zip_longest(map(step, coarse), map(step, fine), fillvalue=[]))
    steps: OperatorSteps = [((0, number), actual, reference) for number, (actual, reference) in pairs]
    swapped: OperatorSteps = [(key, reference, actual) for key, actual, reference in steps]
    assert divided_steps(steps) == steps
    assert divided_steps(swapped) == swapped


def test_a_wrapper_makes_no_program_of_another_framework(tmp_path: Path) -> None:
    """Both programs run operators that the other never runs, and no module has the same path."""

    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Any:
            return self.inner(x)

    def dump(name: str, wraps: bool) -> Path:
        torch.manual_seed(0)
        network: Any = Network()
        for change in (norms("right"), attentions("right")) if wraps else ():
            change(network)
        network = Wrapper(network) if wraps else network
        with ascend_dump.capture(network, path=tmp_path / name):
            network(torch.randn(2, 6, WIDTH)).square().mean().backward()
        return tmp_path / name

    found = ascend_dump.compare(dump("actual", True), dump("reference", False))
    assert (found.origins, found.inside) == ((), (0, 0))


def test_a_gradient_that_is_lost_begins_where_a_tensor_is_detached(tmp_path: Path) -> None:
    def change(network: Any) -> None:
        network.blocks[1].add = lambda x, normed, mixed: x + mixed.detach()

    found = compared(tmp_path, change)
    origin = found.origins[0]
    assert (origin.op_type, origin.module, origin.step) == ("aten::detach", "blocks.1", 0)
    assert origin.evidence[0] == "aten::detach runs in actual only"


def test_a_small_gradient_that_is_lost_explains_what_a_norm_by_hand_makes_of_it(tmp_path: Path) -> None:
    """Statistics show that the weight of the norm has another gradient, and hardly that what the norm reads differs."""

    def with_term(of: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
        def change(network: Any) -> None:
            terms = lambda normed: 0.02 * of(normed).sigmoid() + normed.tanh()  # noqa: E731
            network.blocks[1].add = lambda x, normed, mixed: x + mixed + terms(normed)

        return change

    def detached(network: Any) -> None:
        norms("right")(network)
        with_term(Tensor.detach)(network)

    actual = train(tmp_path / "actual", detached, data="stats")
    found = ascend_dump.compare(actual, train(tmp_path / "reference", with_term(lambda x: x), data="stats"))
    assert found.origins
    assert {origin.module for origin in found.origins} == {"blocks.1"}


def test_triage_answers_with_the_first_wrong_module(tmp_path: Path) -> None:
    """All blocks are built differently, and the last ones differ because of the second one."""
    train(tmp_path / "actual", scaled_first(1.5))
    train(tmp_path / "reference", attentions("right"))
    answer = ascend_dump.triage(tmp_path / "actual", tmp_path / "reference")
    assert answer.cause is not None
    assert answer.cause.module == "blocks.1.attention"


def test_another_weight_in_a_part_that_is_built_differently_is_the_origin(tmp_path: Path) -> None:
    """The operators that read it have no partners: the name of the parameter tells."""

    def change(network: Any) -> None:
        norms("right")(network)
        with torch.no_grad():
            network.blocks[1].norm.weight.mul_(1.1)

    [origin] = compared(tmp_path, change).origins
    assert origin.kind == "parameter"
    assert "(blocks.1.norm.weight): " in origin.evidence[0]


def test_the_module_of_a_parameter_is_the_one_that_owns_it(tmp_path: Path) -> None:
    """A block reads the weight of its linear layer itself, so that no operator runs in the layer."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(x, self.inner.weight * 1.0, self.inner.bias)

    def tied(network: Any) -> None:
        torch.manual_seed(3)
        network.blocks[1].norm = Tied()

    def changed(network: Any) -> None:
        tied(network)
        with torch.no_grad():
            network.blocks[1].norm.inner.weight.mul_(1.1)

    [origin] = ascend_dump.compare(train(tmp_path / "actual", changed), train(tmp_path / "reference", tied)).origins
    assert (origin.kind, origin.module) == ("parameter", "blocks.1.norm.inner")


def test_inputs_of_another_size_are_one_origin(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.token = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(1, WIDTH))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.linear(x) * y + self.token.expand(len(x), -1)

    def dump(path: Path, rows: int) -> Path:
        torch.manual_seed(0)
        network = Sum()
        batches = [(x[:rows].clone(), y[:rows].clone()) for x, y in torch.randn(2, 2, 4, WIDTH)]
        with ascend_dump.capture(network, path=path, steps="0-1", mode="all"):
            for x, y in batches:
                network(x, y).square().mean().backward()
        return path

    origin, *others = ascend_dump.compare(dump(tmp_path / "actual", 2), dump(tmp_path / "reference", 4)).origins
    assert origin.kind == "input"
    assert "inputs have other sizes" in origin.evidence[0]
    assert "input" not in [other.kind for other in others]
    assert "aten::expand" not in [other.op_type for other in others], "its size is that of the data"


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_an_origin_between_passes_comes_after_those_of_the_pass_before_it(phase: str) -> None:
    """An optimizer of one side lacks an operator where its gradient is missing."""

    def origin(kind: str, phase: str, step: int) -> Any:
        return SimpleNamespace(kind=kind, pair=SimpleNamespace(record=SimpleNamespace(phase=phase, step=step)))

    of_pass, of_optimizer = origin("unknown", phase, 1), origin("structure", "other", 1)
    assert sorted([of_optimizer, of_pass], key=importance([of_optimizer, of_pass])) == [of_pass, of_optimizer]
    earlier = origin("structure", "other", 0)
    assert sorted([of_pass, earlier], key=importance([of_pass, earlier])) == [earlier, of_pass]


def test_indices_that_differ_later_are_not_made_by_a_part_that_views_them(tmp_path: Path) -> None:
    """The first layer adds up rows in two ways; the second one reads the indices in the wrong order."""

    class Sums(nn.Module):
        by_scatter = swapped = False

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
            if self.swapped:
                source, target = target, source
            rows = self.linear(x)[source]
            if self.by_scatter:
                return torch.zeros_like(x).scatter_add(0, target.unsqueeze(1).expand(-1, 4), rows)
            return torch.zeros_like(x).index_add(0, target, rows)

    class Graph(nn.Sequential):
        def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
            return self[1](self[0](x, source, target), source, target)

    def dump(name: str, *, is_wrong: bool) -> Path:
        torch.manual_seed(0)
        graph = Graph(Sums(), Sums())
        graph[0].by_scatter, graph[1].swapped = is_wrong, is_wrong
        x, source, target = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 4]), torch.tensor([1, 2, 3, 4, 5])
        with ascend_dump.capture(graph, path=tmp_path / name, mode="all", quiet=True), torch.no_grad():
            graph(x, source, target)
        return tmp_path / name

    found = ascend_dump.compare(dump("actual", is_wrong=True), dump("reference", is_wrong=False))
    assert {origin.module for origin in found.origins} == {"1"}


def test_a_sum_with_another_number_of_axes_of_length_one_agrees(tmp_path: Path) -> None:
    """The result of the part is read as a view of one shape. The terms cancel: both results are rounding alone."""

    class Total(nn.Module):
        at_once = True

        def forward(self, x: Tensor) -> Tensor:
            if self.at_once:
                return x.sum((0, 1), keepdim=True).view(-1)
            return x.sum(0, keepdim=True).flatten(0, 1).sum(0, keepdim=True).view(-1)

    def dump(name: str, *, at_once: bool) -> Path:
        torch.manual_seed(0)
        network = nn.Sequential(Total(), nn.Linear(8, 4))
        network[0].at_once = at_once
        x = torch.randn(33, 57, 8)
        with ascend_dump.capture(network, path=tmp_path / name, mode="all", quiet=True), torch.no_grad():
            network(x - x.mean((0, 1)))
        return tmp_path / name

    found = ascend_dump.compare(dump("actual", at_once=False), dump("reference", at_once=True))
    assert (found.origins, found.verdict) == ((), "noise")


class SmallMask(nn.Module):
    """Adds a mask to scores; small: by a part that makes the largest numbers of the mask smaller, in each step."""

    def __init__(self, *, small: bool) -> None:
        super().__init__()
        self.small, self.value = small, nn.Linear(6, 4)

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        if self.small:
            mask = torch.ops.aten.alias(mask)  # only flags are computed from it
            mask = torch.where(mask < -1e30, torch.full_like(mask, -1e9), torch.zeros_like(mask))
        return self.value((scores + mask).softmax(-1))


def test_a_part_that_agreed_is_judged_again_in_the_next_step(tmp_path: Path) -> None:
    """The mask of each step has the same values, so that its difference is known from the step before."""
    torch.manual_seed(0)
    mask = torch.zeros(1, 6, 6).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), torch.finfo().min)
    networks = {"actual": SmallMask(small=True), "reference": SmallMask(small=False)}
    networks["actual"].load_state_dict(networks["reference"].state_dict())
    for name, network in networks.items():
        torch.manual_seed(1)
        with ascend_dump.capture(network, path=tmp_path / name, steps="0|1", data="tensor"):
            for _ in range(2):
                network(torch.randn(2, 6, 6), mask).square().sum().backward()
                network.zero_grad()
    found = ascend_dump.compare(tmp_path / "actual", tmp_path / "reference")
    assert found.origins == ()
    assert found.verdict in ("noise", "unmatched")


class Biased(nn.Module):
    """An attention with a learned bias."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1, 1, 6, 6))

    def forward(self, x: Tensor, later: Optional[Tensor] = None, mask: Optional[Tensor] = None) -> Tensor:
        """later: where scores count nothing; mask: what is added to the scores instead."""
        scores, bias = (x @ x.transpose(-1, -2))[:, None], self.bias.expand(len(x), 1, 6, 6)
        if later is not None:
            bias = torch.where(later, torch.tensor(float("-inf")), bias)
        scores = scores + (bias if mask is None else bias + mask)
        return scores.softmax(-1)[:, 0] @ x


class BiasedNetwork(nn.Module):
    masks_bias = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.attention = nn.Linear(WIDTH, WIDTH), Norm(WIDTH), Biased()

    def forward(self, x: Tensor) -> Tensor:
        later = torch.ones(6, 6, dtype=torch.bool).triu(1)
        x = self.norm(self.first(x))
        if self.masks_bias:
            return self.attention(x, later=later)
        return self.attention(x, mask=torch.where(later, torch.tensor(float("-inf")), torch.zeros(2, 1, 6, 6)))


def train_biased(path: Path, *, masks_bias: bool) -> Path:
    torch.manual_seed(0)
    inner = BiasedNetwork()
    inner.masks_bias, inner.norm.by_hand = masks_bias, None if masks_bias else "right"
    network = nn.Sequential(inner)
    optimizer = torch.optim.AdamW(network.parameters())
    with ascend_dump.capture(network, path=path, steps="0-1", mode="all", data="stats", quiet=True):
        for _ in range(2):
            optimizer.zero_grad()
            network(torch.randn(2, 6, WIDTH)).square().mean().backward()
            optimizer.step()
    return path


def test_a_mask_of_a_gradient_that_is_zero_there_loses_no_gradient(tmp_path: Path) -> None:
    """In the forward pass, one side applies the mask in the module, the other side around it."""
    actual = train_biased(tmp_path / "actual", masks_bias=False)
    found = ascend_dump.compare(actual, train_biased(tmp_path / "reference", masks_bias=True))
    assert found.origins == ()


class OfLibrary(nn.Module):
    """The attention of PyTorch with the weights of another one. Its products have rows in the order of tokens."""

    def __init__(self, other: Attention, shift: int) -> None:
        super().__init__()
        self.inner, self.shift = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), shift
        with torch.no_grad():
            self.inner.in_proj_weight.copy_(other.qkv.weight)
            self.inner.in_proj_bias.copy_(other.qkv.bias)
        self.inner.out_proj.load_state_dict(other.out.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.inner(x, x, x, attn_mask=later, need_weights=False)[0].roll(self.shift, 1)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_rows_in_another_order_are_no_other_parameter(tmp_path: Path, data: str, shift: int) -> None:
    def change(network: Any) -> None:
        for number, block in enumerate(network.blocks):
            block.attention = OfLibrary(block.attention, shift if number == 1 else 0)

    actual = train(tmp_path / "actual", change, data=data)
    found = ascend_dump.compare(actual, train(tmp_path / "reference", data=data))
    assert "parameter" not in {origin.kind for origin in found.origins}
    assert not any("changed since" in line for origin in found.origins for line in origin.evidence)
    assert bool(found.origins) == bool(shift), [(o.kind, o.op_name, o.evidence) for o in found.origins]


def test_a_view_that_something_changed_has_no_other_order(tmp_path: Path) -> None:
    """Both programs order the rows by tokens; one changes them by NumPy, which is not recorded."""

    class TokensFirst(Attention):
        change = 0.0

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).view(len(x), -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            rows = functional.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3).reshape(-1, WIDTH)
            rows.detach().numpy()[0] += self.change
            return self.out(rows).view(x.shape[1], len(x), -1).transpose(0, 1)

    def with_change(change: float) -> Callable[[Any], Any]:
        def edit(network: Any) -> None:
            network.blocks[1].attention.__class__ = TokensFirst
            network.blocks[1].attention.change = change

        return edit

    actual = train(tmp_path / "actual", with_change(1.0))
    found = ascend_dump.compare(actual, train(tmp_path / "reference", with_change(0.0)))
    assert found.origins[0].module == "blocks.1.attention.out"
    assert "changed since by something that is not recorded" in str(found.origins[0].evidence)
    assert "in another order" not in str(found.origins[0].evidence)
