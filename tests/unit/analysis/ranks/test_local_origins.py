"""Tensors that one rank of several has for itself, and what is computed from them, are compared with one rank."""

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


def write_clipped(root: Path, ranks: int, *, is_local: bool = False) -> Path:
    """Each rank updates its part of a parameter by a gradient divided by its norm; wrong: by that of the part."""
    rng = np.random.default_rng(2)
    gradients = rng.standard_normal((_STEPS, 8, 3)).astype("f4")
    value = rng.standard_normal((8, 3)).astype("f4")
    writers = [rank_writer(root, rank, ranks) for rank in range(ranks)]
    for step in range(_STEPS):
        values, parts = np.split(value, ranks), np.split(gradients[step], ranks)
        squares = [np.asarray((part * part).sum(), "f4") for part in parts]
        total = np.asarray(sum(squares), "f4")
        factors = [np.asarray(1 / np.sqrt(square if is_local else total), "f4") for square in squares]
        updated = [part - _RATE * gradient * factor for part, gradient, factor in zip(values, parts, factors)]
        whole = np.concatenate(updated)
        for rank, writer in enumerate(writers):
            used = squares[rank] if is_local else total
            update = [(values[rank], ""), (parts[rank], ""), (factors[rank], "")]
            calls = [
                operator(0, "aten::relu", "forward", [(value, "w")], [(np.maximum(value, 0), "")]),
                operator(1, "aten::neg", "backward", [(-parts[rank], "")], [(parts[rank], "")]),
                operator(2, "aten::sum", "other", [(parts[rank], "")], [(squares[rank], "")]),
                operator(4, "aten::rsqrt", "other", [(used, "")], [(factors[rank], "")]),
                operator(5, "aten::addcmul", "other", update, [(updated[rank], "")]),
            ]
            if ranks > 1:
                calls.append(operator(6, "c10d::allgather_", "other", [(updated[rank], "")], [(whole, "")]))
            if step:
                writer.begin_step(step)
            for items in calls:
                writer.put(items, sum(one.payload.nbytes for one in items if one.payload is not None))
            writer.end_step()
        value = whole
    for writer in writers:
        writer.close()
    return root


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


def test_a_result_without_a_counterpart_is_the_origin_of_a_parameter_that_is_computed_from_it(tmp_path: Path) -> None:
    reference = write_clipped(tmp_path / "reference", 1)
    healthy = ascend_dump.compare(write_clipped(tmp_path / "healthy", 2), reference)
    assert (healthy.origins, healthy.verdict) == ((), "noise")
    comparison = ascend_dump.compare(write_clipped(tmp_path / "actual", 2, is_local=True), reference)
    [origin] = comparison.origins
    assert (origin.kind, origin.op_type, origin.step) == ("unknown", "aten::rsqrt", 0)
    assert "fc/aten::relu_0.input.0 (w), which is computed from it, differs" in origin.evidence[1]
