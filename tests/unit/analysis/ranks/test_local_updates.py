"""Ranks that update their parameters by their own gradients, and average them, are compared with one rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from host_dumps import item, rank_writer

import ascend_dump
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.writing import Item

pytest.importorskip("rapidfuzz")

_STEPS, _BATCH, _RATE = 2, 8, np.float32(0.1)
_Tensors = list[tuple[np.ndarray, str]]


def operator(number: int, op_type: str, phase: str, inputs: _Tensors, outputs: _Tensors) -> list[Item]:
    module = "fc" if phase != "other" else ""
    name = f"{module and module + '/'}{op_type}_{number}"
    items = []
    for io, tensors in (("input", inputs), ("output", outputs)):
        for index, (array, parameter) in enumerate(tensors):
            one = item(name, array, io=io, index=index, op_type=op_type, seq=number, module=module)
            one.line.phase, one.line.parameter = phase, parameter
            if op_type.startswith("c10d::"):
                one.line.collective = CollectiveCall("all_reduce", "0", "0-1", reduce="sum")
            items.append(one)
    return items


def write(root: Path, ranks: int, *, averages: bool = True) -> Path:
    """A linear layer whose ranks update it by the gradients of their rows, and then average it."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((_STEPS, _BATCH, 6)).astype("f4")
    weights = [rng.standard_normal((6, 4)).astype("f4")] * ranks
    writers = [rank_writer(root, rank, ranks) for rank in range(ranks)]
    for step in range(_STEPS):
        parts = np.split(rows[step], ranks)
        outputs = [np.tanh(part @ weight) for part, weight in zip(parts, weights)]
        gradients = [part.T @ out / np.float32(len(part)) for part, out in zip(parts, outputs)]
        updated = [weight - _RATE * gradient for weight, gradient in zip(weights, gradients)]
        total = np.sum(updated, axis=0, dtype="f4")
        for rank, writer in enumerate(writers):
            part, weight, out, gradient = parts[rank], weights[rank], outputs[rank], gradients[rank]
            calls = [
                operator(0, "aten::mm", "forward", [(part, ""), (weight, "w")], [(out, "")]),
                operator(1, "aten::bmm", "backward", [(part.T.copy(), ""), (out, "")], [(gradient, "w.grad")]),
                operator(2, "aten::add_", "other", [(weight, "w"), (gradient, "w.grad")], [(updated[rank], "w")]),
            ]
            if ranks > 1 and averages:
                mean = total / np.float32(ranks)
                calls.append(operator(3, "c10d::allreduce_", "other", [(updated[rank], "w")], [(total, "w")]))
                calls.append(operator(4, "aten::div_", "other", [(total, "w")], [(mean, "w")]))
            if step:
                writer.begin_step(step)
            for items in calls:
                writer.put(items, sum(one.payload.nbytes for one in items if one.payload is not None))
            writer.end_step()
        weights = [total / np.float32(ranks)] * ranks if averages else updated
    for writer in writers:
        writer.close()
    return root


def test_updates_of_ranks_that_are_averaged_agree_with_one_rank(tmp_path: Path) -> None:
    comparison = ascend_dump.compare(write(tmp_path / "actual", 2), write(tmp_path / "reference", 1))
    assert comparison.origins == ()
    assert comparison.verdict == "noise"


def test_updates_of_ranks_that_are_not_averaged_are_an_origin(tmp_path: Path) -> None:
    actual = write(tmp_path / "actual", 2, averages=False)
    comparison = ascend_dump.compare(actual, write(tmp_path / "reference", 1))
    assert comparison.origins[0].op_type == "aten::add_"
    assert "the mean over the 2 ranks agrees: it is not reduced over ranks" in comparison.origins[0].evidence
