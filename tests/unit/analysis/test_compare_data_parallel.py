"""Data-parallel ranks, each with its part of the batch, are compared with one rank that has the whole batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest
from host_dumps import item, rank_writer

import ascend_dump
from ascend_dump.analysis.compare import Comparison
from ascend_dump.dump_format import CollectiveCall

pytest.importorskip("rapidfuzz")

_Fault = Callable[[int, str, np.ndarray], np.ndarray]
_BATCH, _IN, _OUT, _RATE = 8, 6, 4, np.float32(0.1)


class Step(NamedTuple):
    """An operator: type, module, phase, and its tensors with the names of parameters."""

    op_type: str
    module: str
    phase: str
    inputs: list[tuple[np.ndarray, str]]
    outputs: list[tuple[np.ndarray, str]]


def programs(ranks: int, *, fault: _Fault = lambda rank, name, array: array, missing: str = "") -> list[list[Step]]:
    """A linear layer with a mean squared error; gradients are added over ranks, divided, and subtracted.

    missing: "reduction" or "division" leaves that out on all ranks
    """
    rng = np.random.default_rng(1)
    x = rng.standard_normal((_BATCH, _IN)).astype("f4")
    weight = rng.standard_normal((_IN, _OUT)).astype("f4")
    size = _BATCH // ranks
    forward: list[list[Step]] = []
    local: list[np.ndarray] = []
    for rank in range(ranks):
        mine = np.ascontiguousarray(x[rank * size : (rank + 1) * size])
        out = fault(rank, "out", mine @ weight)
        square = out * out
        loss = np.asarray(square.mean(), "f4")
        grad_out = fault(rank, "grad_out", (2 * out / np.float32(out.size)).astype("f4"))
        local.append(fault(rank, "gradient", mine.T @ grad_out))
        forward.append(
            [
                Step("aten::mm", "fc", "forward", [(mine, ""), (weight, "w")], [(out, "")]),
                Step("aten::square", "act", "forward", [(out, "")], [(square, "")]),
                Step("aten::mean", "loss", "forward", [(square, "")], [(loss, "")]),
                Step("aten::mm", "fc", "backward", [(mine.T.copy(), ""), (grad_out, "")], [(local[-1], "")]),
            ]
        )
    for rank, steps in enumerate(forward):
        gradient = local[rank]
        if ranks > 1 and missing != "reduction":
            total = np.sum(local, axis=0, dtype="f4")
            steps.append(Step("c10d::allreduce_", "", "other", [(gradient, "w.grad")], [(total, "w.grad")]))
            gradient = total
        if ranks > 1 and missing != "division":
            mean = gradient / np.float32(ranks)
            steps.append(Step("aten::div_", "", "other", [(gradient, "w.grad")], [(mean, "w.grad")]))
            gradient = mean
        updated = fault(rank, "update", weight - _RATE * gradient)
        steps.append(Step("aten::add_", "", "other", [(weight, "w"), (gradient, "w.grad")], [(updated, "w")]))
    return forward


def write(root: Path, ranks: list[list[Step]]) -> Path:
    for rank, steps in enumerate(ranks):
        writer = rank_writer(root, rank, len(ranks))
        for number, step in enumerate(steps):
            name = f"{step.module}/{step.op_type}_{number}" if step.module else f"{step.op_type}_{number}"
            items = []
            for io, tensors in (("input", step.inputs), ("output", step.outputs)):
                for index, (array, parameter) in enumerate(tensors):
                    one = item(name, array, io=io, index=index, op_type=step.op_type, seq=number, module=step.module)
                    one.line.phase = step.phase
                    one.line.parameter = parameter
                    if parameter == "w":
                        one.line.storage, one.line.version = 1, int(io == "output")
                    if step.op_type.startswith("c10d::"):
                        one.line.collective = CollectiveCall("all_reduce", "0", f"0-{len(ranks) - 1}", reduce="sum")
                    items.append(one)
            writer.put(items, sum(one.payload.nbytes for one in items if one.payload is not None))
        writer.end_step()
        writer.close()
    return root


def compared(root: Path, ranks: int, **changes: Any) -> Comparison:
    return ascend_dump.compare(
        write(root / "actual", programs(ranks, **changes)), write(root / "reference", programs(1))
    )


def one_element(rank: int, name: str) -> _Fault:
    def wrong(number: int, where: str, array: np.ndarray) -> np.ndarray:
        if (number, where) == (rank, name):
            array = array.copy()
            array.reshape(-1)[3] += np.float32(0.5)
        return array

    return wrong


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_healthy_program_on_several_ranks_agrees_with_one_rank(tmp_path: Path, ranks: int) -> None:
    comparison = compared(tmp_path, ranks)
    assert not comparison.origins
    assert comparison.verdict in ("equal", "noise")
    found = {(pair.record.rank, pair.record.op_name): pair.transformation for pair in comparison.pairs}
    assert found[1, "fc/aten::mm_0"] == f"part 2 of {ranks} along axis 0"
    assert found[1, "loss/aten::mean_2"] == f"mean over {ranks} ranks"
    assert found[1, "fc/aten::mm_3"] == f"mean over {ranks} ranks"


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("name", "op_name"), [("out", "fc/aten::mm_0"), ("update", "aten::add__6"), ("grad_out", "fc/aten::mm_3")]
)
def test_a_wrong_operator_of_one_rank_is_the_origin(tmp_path: Path, rank: int, name: str, op_name: str) -> None:
    comparison = compared(tmp_path, 2, fault=one_element(rank, name))
    first = comparison.origins[0]
    assert (first.op_name, first.rank) == (op_name, rank)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("reduction", "the sum over the 2 ranks agrees: it is not reduced over ranks"),
        ("division", "all 2 ranks have 2 times the value of one rank: a division by their number is missing"),
    ],
)
def test_what_ranks_leave_out_is_said_at_the_update(tmp_path: Path, missing: str, words: str) -> None:
    comparison = compared(tmp_path, 2, missing=missing)
    [first] = comparison.origins
    assert first.op_type == "aten::add_"
    assert "the same on rank 1" in first.evidence
    assert words in first.evidence
    assert "(w.grad)" in first.evidence[0]


def without_update(steps: list[Step], **instead: Step) -> list[Step]:
    return [step for step in steps if step.op_type != "aten::add_"] + [*instead.values()]


def test_an_update_that_one_rank_does_not_run_is_named(tmp_path: Path) -> None:
    """No later step reads the parameter, so nothing that both sides compute differs."""
    ranks = programs(2)
    ranks[1] = without_update(ranks[1])
    comparison = ascend_dump.compare(write(tmp_path / "actual", ranks), write(tmp_path / "reference", programs(1)))
    [origin] = comparison.origins
    assert (origin.kind, origin.op_type) == ("structure", "aten::add_")
    assert origin.evidence[0] == "rank 1 does not update w, which the other side updates"


def test_an_update_that_a_rank_receives_or_that_no_rank_runs_is_not_missed(tmp_path: Path) -> None:
    reference = write(tmp_path / "reference", programs(1))
    ranks = programs(2)
    updated = next(step for step in ranks[0] if step.op_type == "aten::add_").outputs[0]
    for name, received in (
        ("received", {"copy": Step("aten::copy_", "", "other", [updated], [updated])}),
        ("none", {}),
    ):
        changed = [without_update(ranks[0], **received), without_update(ranks[1], **received)]
        changed = [ranks[0], changed[1]] if received else changed
        assert not ascend_dump.compare(write(tmp_path / name, changed), reference).origins


def test_a_call_that_is_missing_is_named_before_what_prepares_it(tmp_path: Path) -> None:
    def averaged(*, is_missing: bool) -> list[list[Step]]:
        ranks = programs(2, missing="reduction")
        local = [steps[3].outputs[0][0] for steps in ranks]
        shares = [gradient / np.float32(2) for gradient in local]
        for gradient, share, steps in zip(local, shares, ranks):
            weight = steps[0].inputs[1][0]
            mean = gradient if is_missing else np.sum(shares, axis=0, dtype="f4")
            del steps[4:]
            if not is_missing:
                steps.append(Step("aten::div_", "", "other", [(gradient, "w.grad")], [(share, "w.grad")]))
                steps.append(Step("c10d::allreduce_", "", "other", [(share, "w.grad")], [(mean, "w.grad")]))
            update = weight - _RATE * mean
            steps.append(Step("aten::add_", "", "other", [(weight, "w"), (mean, "w.grad")], [(update, "w")]))
        return ranks

    reference = write(tmp_path / "reference", averaged(is_missing=False))
    found = ascend_dump.compare(write(tmp_path / "actual", averaged(is_missing=True)), reference)
    first = found.origins[0]
    assert (first.op_type, first.evidence[0]) == (
        "c10d::allreduce_",
        "aten::div_, c10d::allreduce_ run in the reference only",
    )
    assert ascend_dump.compare(reference, reference).origins == ()
