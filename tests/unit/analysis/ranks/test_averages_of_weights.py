"""Ranks that average their weights over the steps are compared with one rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rank_program import Rank, Tensor

import ascend_dump
from ascend_dump.analysis.compare import Comparison
from ascend_dump.dump_format import CollectiveCall

pytest.importorskip("rapidfuzz")

_ROWS, _WIDTH, _RATE, _SHARE, _DECAY = 8, 6, np.float32(0.1), np.float32(0.25), np.float32(0.9)
_SUM = CollectiveCall("all_reduce", "0", "0-1", reduce="sum")
_NAMES = ("first.weight", "second.weight")


def write(root: Path, ranks: int, *, early: bool = False, skipped: bool = False) -> Path:
    """Return the dump of a step that updates two weights and averages them, which reads views of them.

    early    rank 1 averages before its update
    skipped  rank 1 updates nothing
    """
    rng = np.random.default_rng(5)
    x, out = (rng.standard_normal((_ROWS, _WIDTH)).astype("f4") for _ in range(2))
    weights = {name: rng.standard_normal((_WIDTH, _WIDTH)).astype("f4") for name in _NAMES}
    averages = {name: rng.standard_normal((_WIDTH, _WIDTH)).astype("f4") for name in _NAMES}
    size = _ROWS // ranks
    parts = [slice(rank * size, (rank + 1) * size) for rank in range(ranks)]
    gradients = [x[part].T.copy() @ (out[part] / np.float32(size)) for part in parts]
    total = np.sum(gradients, axis=0, dtype="f4")
    for number, part in enumerate(parts):
        rank = Rank(root, number, ranks)
        tensors = {name: rank.tensor(weights[name], name) for name in _NAMES}
        kept = {name: rank.tensor(averages[name]) for name in _NAMES}
        rows, outside = rank.tensor(x[part]), rank.tensor(out[part] / np.float32(size))
        grads = {}
        for name in _NAMES:
            module = name.partition(".")[0]
            rank.run("aten::mm", [rows, tensors[name]], [rank.tensor(x[part] @ weights[name])], module)
            grads[name] = rank.tensor(gradients[number], f"{name}.grad")
            read = [rank.tensor(x[part].T), outside]
            rank.run("aten::mm", read, [grads[name]], module, phase="backward")

        def average(rank: Rank, tensors: dict[str, Tensor], kept: dict[str, Tensor]) -> None:
            for name in _NAMES:
                view = Tensor(tensors[name].values, tensors[name].storage, tensors[name].version)
                rank.run("aten::detach", [tensors[name]], [view], phase="other", source="average.py:1")
                values = kept[name].values
                written = rank.written(kept[name], values + _SHARE * (view.values - values))
                rank.run("aten::lerp_", [kept[name], view], [written], phase="other", source="average.py:1")

        if early and number:
            average(rank, tensors, kept)
        for name in _NAMES:
            if ranks > 1:
                added = rank.written(grads[name], total)
                rank.run("c10d::allreduce_", [grads[name]], [added], phase="other", source="sum.py:1", collective=_SUM)
                mean = rank.written(added, total / np.float32(ranks))
                rank.run("aten::div_", [added], [mean], phase="other", source="sum.py:2")
                grads[name] = mean
            if not (skipped and number):
                decayed = rank.written(tensors[name], tensors[name].values * _DECAY)
                rank.run("aten::mul_", [tensors[name]], [decayed], phase="other", source="update.py:1")
                updated = rank.written(decayed, decayed.values - _RATE * grads[name].values)
                rank.run("aten::add_", [decayed, grads[name]], [updated], phase="other", source="update.py:2")
                tensors[name] = updated
        if not (early and number):
            average(rank, tensors, kept)
        rank.close()
    return root


def compared(root: Path, **changes: bool) -> Comparison:
    return ascend_dump.compare(write(root / "actual", 2, **changes), write(root / "reference", 1))


def test_averages_after_the_update_agree(tmp_path: Path) -> None:
    comparison = compared(tmp_path)
    assert (comparison.verdict, comparison.origins) == ("noise", ())


def test_an_average_of_weights_before_their_update_is_named(tmp_path: Path) -> None:
    [origin] = compared(tmp_path, early=True).origins
    assert (origin.kind, origin.op_type, origin.source, origin.rank) == ("wiring", "aten::lerp_", "average.py:1", 1)
    assert "reads first.weight before add__0 here, after it in the reference" in origin.evidence


def test_an_update_that_a_rank_skips_is_named_before_the_average_of_the_weights(tmp_path: Path) -> None:
    first = compared(tmp_path, skipped=True).origins[0]
    assert first.kind != "wiring"
