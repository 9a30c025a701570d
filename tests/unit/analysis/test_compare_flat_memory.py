"""Programs of which one keeps all parameters in one vector, and updates this vector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

import torch
from torch import Tensor, nn
from torch.nn import functional

import ascend_dump
from ascend_dump.analysis.alignment.built_otherwise.flat_memory import with_divided_memory
from ascend_dump.analysis.operators.operator import Operator, operators, storage_of

RATE, MOMENTUM, DECAY, LIMIT = 0.05, 0.9, 0.99, 0.02


class FlatUpdate:
    """Clipped gradients, momentum and an average of weights, on one vector. wrong: the part with another setting"""

    def __init__(self, model: nn.Module, wrong: str = "", rate: float = RATE) -> None:
        self.wrong, self.rate = wrong, rate
        parameters = list(model.parameters())
        self.values = nn.utils.parameters_to_vector(parameters).detach().clone()
        nn.utils.vector_to_parameters(self.values, parameters)
        self.velocity, self.average = torch.zeros_like(self.values), self.values.clone()

    def __call__(self, gradients: list[Tensor]) -> None:
        gradient = torch.cat([each.flatten() for each in gradients])
        if self.wrong == "clip":
            gradient = gradient * min(1.0, LIMIT / float(gradient.norm()))
        else:
            gradient = gradient.clamp(-LIMIT, LIMIT)
        self.velocity = self.velocity * (0.5 if self.wrong == "momentum" else MOMENTUM) + gradient
        self.values.sub_(self.rate * self.velocity)
        if self.wrong == "average":
            self.average.copy_(self.values)
        else:
            self.average.mul_(DECAY).add_(self.values, alpha=1 - DECAY)


class Updates:
    """The same for each parameter."""

    def __init__(self, model: nn.Module, rate: float = RATE) -> None:
        self.rate = rate
        self.parameters = [parameter.data for parameter in model.parameters()]
        self.velocities = [torch.zeros_like(each) for each in self.parameters]
        self.averages = [each.clone() for each in self.parameters]

    def __call__(self, gradients: list[Tensor]) -> None:
        for number, gradient in enumerate(gradients):
            clipped = gradient.clamp_min(-LIMIT).clamp_max(LIMIT)
            self.velocities[number].mul_(MOMENTUM).add_(clipped)
            self.parameters[number].add_(self.velocities[number], alpha=-self.rate)
            self.averages[number].lerp_(self.parameters[number], 1 - DECAY)


def dump(path: Path, update_of: Callable[[nn.Module], Callable[[list[Tensor]], None]], data: Any = "tensor") -> Path:
    """Train a small network in three steps, with an update of all its parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 4))
    batches = torch.randn(3, 8, 6).unbind(0)
    update = update_of(model)
    with ascend_dump.capture(model, path=path, steps="0-2", data=data, quiet=True):
        for batch in batches:
            loss = functional.mse_loss(model(batch), batch[:, :4])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                update(list(gradients))
    return path


def compared(tmp_path: Path, wrong: str = "", data: str = "tensor") -> ascend_dump.Comparison:
    actual = dump(tmp_path / "actual", lambda model: FlatUpdate(model, wrong), data)
    return ascend_dump.compare(actual, dump(tmp_path / "reference", Updates, data))


def operators_of(path: Path) -> list[Operator]:
    return operators(record for batch in ascend_dump.open(path).batches() if batch.step == 1 for record in batch)


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_an_update_of_one_vector_is_no_difference(tmp_path: Path, data: str) -> None:
    comparison = compared(tmp_path, data=data)
    assert not comparison.origins, comparison.origins[0].evidence
    assert comparison.verdict != "different"


@pytest.mark.parametrize(
    ("wrong", "operator"), [("momentum", "aten::mul"), ("average", "aten::copy_"), ("clip", "aten::mul")]
)
def test_a_wrong_part_of_the_update_is_named(tmp_path: Path, wrong: str, operator: str) -> None:
    comparison = compared(tmp_path, wrong)
    assert comparison.verdict == "different"
    record = comparison.origins[0].pair.record
    line = {"momentum": "self.velocity = ", "average": "self.average.copy_", "clip": "gradient = gradient * "}[wrong]
    source = Path(__file__).read_text(encoding="utf-8").splitlines()[int((record.source or "").rpartition(":")[2]) - 1]
    assert (record.op_type, source.strip()[: len(line)]) == (operator, line), comparison.origins[0].evidence


def test_operators_on_a_vector_are_divided_into_those_on_its_parameters(tmp_path: Path) -> None:
    flat, parts = (operators_of(dump(tmp_path / name, kind)) for name, kind in (("flat", FlatUpdate), ("one", Updates)))
    divided, other = with_divided_memory(flat, parts)
    assert other is parts
    writers = [operator for operator in divided if operator.op_type == "aten::sub_"]
    assert [operator.outputs[0].parameter for operator in writers] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [operator.outputs[0].shape for operator in writers] == [(10, 6), (10,), (4, 10), (4,)]
    assert [operator.position for operator in divided] == list(range(len(divided)))
    [whole] = [operator.outputs[0] for operator in flat if operator.op_type == "aten::sub_"]
    assert (writers[1].outputs[0].numpy() == whole.numpy()[60:70]).all()
    assert writers[1].outputs[0].original is whole
    # The part has the memory of the parameter, which the forward pass reads.
    reads = {record.parameter: storage_of(record) for operator in divided for record in operator.inputs}
    assert all(
        (storage_of(one.inputs[0]) or (0,))[0] == (reads[one.outputs[0].parameter] or (1,))[0] for one in writers
    )


def test_contents_of_parts_are_those_of_recorded_tensors(tmp_path: Path) -> None:
    flat, parts = (operators_of(dump(tmp_path / name, kind)) for name, kind in (("flat", FlatUpdate), ("one", Updates)))
    divided, _ = with_divided_memory(flat, parts)
    joined = [operator for operator in divided if operator.op_type == "aten::cat"]
    assert len(joined) == 4
    for operator in joined:
        content, read = operator.outputs[0].content, operator.inputs[0].content
        assert content is not None
        assert read is not None
        assert content[0] == read[0]


def test_an_operator_that_joins_elements_reads_all_parts(tmp_path: Path) -> None:
    flat = operators_of(dump(tmp_path / "flat", lambda model: FlatUpdate(model, "clip")))
    divided, _ = with_divided_memory(flat, operators_of(dump(tmp_path / "one", Updates)))
    [norm] = [operator for operator in divided if operator.op_type == "aten::linalg_vector_norm"]
    assert [record.shape for record in norm.inputs] == [(10, 6), (10,), (4, 10), (4,)]
    assert norm.outputs[0].shape == ()


def test_vectors_of_both_programs_stay_whole(tmp_path: Path) -> None:
    sides: list[Any] = [operators_of(dump(tmp_path / name, FlatUpdate)) for name in ("one", "other")]
    divided = with_divided_memory(*sides)
    assert divided[0] is sides[0]
    assert divided[1] is sides[1]


def test_two_updates_of_vectors_are_compared_as_they_are(tmp_path: Path) -> None:
    actual = dump(tmp_path / "actual", lambda model: FlatUpdate(model, "momentum"))
    comparison = ascend_dump.compare(actual, dump(tmp_path / "reference", FlatUpdate))
    origin = comparison.origins[0]
    assert (origin.pair.record.op_type, origin.pair.record.shape) == ("aten::mul", (114,))


def test_a_small_update_does_not_make_right_what_leads_to_it(tmp_path: Path) -> None:
    rate = 1e-3
    actual = dump(tmp_path / "actual", lambda model: FlatUpdate(model, "clip", rate))
    comparison = ascend_dump.compare(actual, dump(tmp_path / "reference", lambda model: Updates(model, rate)))
    [origin, *_] = comparison.origins
    assert origin.pair.record.op_name == "mul_0", origin.evidence
