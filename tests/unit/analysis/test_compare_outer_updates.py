"""Ranks that update by their part of the batch, and then by the mean over ranks, are compared with one rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rank_program import Rank

import ascend_dump
from ascend_dump.analysis.compare import Comparison
from ascend_dump.dump_format import CollectiveCall

pytest.importorskip("rapidfuzz")

_ROWS, _WIDTH, _OUT, _INNER, _OUTER = 8, 6, 4, np.float32(0.1), np.float32(0.5)
_SUM = CollectiveCall("all_reduce", "0", "0-1", reduce="sum")


def write(root: Path, ranks: int, *, undivided: bool = False, rate: bool = False, unreduced: bool = False) -> Path:
    """Return the dump of a step.

    undivided  rank 1 does not divide the sum of the changes
    rate       rank 1 takes another outer step
    unreduced  no rank reduces the changes
    """
    rng = np.random.default_rng(5)
    x, w, out = (rng.standard_normal(shape).astype("f4") for shape in ((_ROWS, _WIDTH), (_WIDTH, _OUT), (_ROWS, _OUT)))
    size = _ROWS // ranks
    parts = [slice(rank * size, (rank + 1) * size) for rank in range(ranks)]
    gradients = [np.ascontiguousarray(x[part].T) @ (out[part] / np.float32(size)) for part in parts]
    total = np.sum([_INNER * gradient for gradient in gradients], axis=0, dtype="f4")
    for number, part in enumerate(parts):
        rank = Rank(root, number, ranks)
        weight, before = rank.tensor(w, "w"), rank.tensor(w)
        rows, outside = rank.tensor(x[part]), rank.tensor(out[part] / np.float32(size))
        rank.run("aten::mm", [rows, weight], [rank.tensor(x[part] @ w)], "fc")
        gradient = rank.tensor(gradients[number], "w.grad")
        rank.run("aten::mm", [rank.tensor(x[part].T), outside], [gradient], "fc", phase="backward")
        inner = rank.written(weight, w - _INNER * gradients[number])
        rank.run("aten::add_", [weight, gradient], [inner], phase="other", source="inner.py:1")
        change = rank.tensor(_INNER * gradients[number])
        rank.run("aten::sub", [before, inner], [change], phase="other", source="outer.py:1")
        if ranks > 1 and not unreduced:
            added = rank.written(change, total)
            rank.run("c10d::allreduce_", [change], [added], phase="other", source="outer.py:2", collective=_SUM)
            change = added
            if not (undivided and number):
                mean = rank.written(change, total / np.float32(ranks))
                rank.run("aten::div_", [change], [mean], phase="other", source="outer.py:3")
                change = mean
        common = rank.written(inner, w)
        rank.run("aten::copy_", [inner, before], [common], phase="other", source="outer.py:4")
        step = _OUTER * np.float32(2 if rate and number else 1)
        updated = rank.written(common, w - step * change.values)
        rank.run("aten::add_", [common, change], [updated], phase="other", source="outer.py:5")
        rank.close()
    return root


def compared(root: Path, **changes: bool) -> Comparison:
    return ascend_dump.compare(write(root / "actual", 2, **changes), write(root / "reference", 1))


def test_inner_updates_by_parts_of_the_batch_agree(tmp_path: Path) -> None:
    comparison = compared(tmp_path)
    assert (comparison.verdict, comparison.origins) == ("noise", ())


def test_an_operator_that_one_rank_leaves_out_is_named_where_another_rank_runs_it(tmp_path: Path) -> None:
    [origin] = compared(tmp_path, undivided=True).origins
    assert (origin.kind, origin.op_type, origin.source) == ("structure", "aten::div_", "outer.py:3")
    assert origin.evidence[0] == "rank 0 runs aten::div_, rank 1 does not"


def test_a_wrong_outer_update_is_named_and_no_inner_one(tmp_path: Path) -> None:
    [origin] = compared(tmp_path, rate=True).origins
    assert (origin.op_type, origin.source, origin.rank) == ("aten::add_", "outer.py:5", 1)


def test_updates_that_no_rank_reduces_are_named(tmp_path: Path) -> None:
    """No rank ends the step with the right parameters."""
    first = compared(tmp_path, unreduced=True).origins[0]
    assert any("it is not reduced over ranks" in text for text in first.evidence)
