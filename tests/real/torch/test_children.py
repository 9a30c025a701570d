"""Processes that a training starts: data loaders, and trainings of their own."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from processes import PROGRAMS, run_python
from torch.utils.data import DataLoader

import ascend_dump

sys.path.insert(0, str(PROGRAMS))

import children
import loader

CONTEXTS = ("fork", "spawn")


def numbers(losses: list[str]) -> list[float]:
    return [float.fromhex(loss) for loss in losses]


@pytest.fixture(scope="module")
def plain() -> list[str]:
    """The losses without loader processes and without a capture."""
    return loader.train(DataLoader(loader.Samples(), batch_size=8), loader.make_model())


@pytest.mark.parametrize("context", CONTEXTS)
class TestDataLoader:
    def test_inside_the_block(self, context: str, plain: list[str], tmp_path: Path) -> None:
        run_python(PROGRAMS / "loader.py", context, tmp_path / "losses.json", tmp_path / "dumps")
        assert json.loads((tmp_path / "losses.json").read_text()) == plain
        dump = ascend_dump.open(tmp_path / "dumps")
        assert dump.known_values("model") == {"Sequential"}
        losses = dump.select("nll_loss_forward_0", io="output", index=0)
        assert [float(record.numpy()).hex() for record in losses] == [plain[1], plain[4]]
        assert not dump.errors()

    def test_under_the_launcher(self, context: str, plain: list[str], tmp_path: Path) -> None:
        """A loader process that calls a module writes a run of its own, beside the training's."""
        dumps = tmp_path / "dumps"
        run_python(PROGRAMS / "loader.py", context, tmp_path / "losses.json", ASCEND_DUMP=f"steps=1|4,path={dumps}")
        assert json.loads((tmp_path / "losses.json").read_text()) == plain
        dump = ascend_dump.open(dumps)
        runs = {(run, model) for run, model in ((record.run, record.model) for record in dump)}
        assert Counter(model for _, model in runs) == {"Sequential": 1, "Linear": 2}
        losses = dump.select("nll_loss_forward_0", io="output", index=0)
        assert [float(record.numpy()).hex() for record in losses] == [plain[1], plain[4]]
        assert not dump.errors()


@pytest.mark.parametrize("context", CONTEXTS)
def test_trainings_in_child_processes(context: str, tmp_path: Path) -> None:
    for seed in (1, 2):
        children.train(seed, str(tmp_path))
    plain = {seed: json.loads((tmp_path / f"{seed}.json").read_text()) for seed in (1, 2)}
    dumps = tmp_path / "dumps"
    run_python(PROGRAMS / "children.py", context, tmp_path, ASCEND_DUMP=f"path={dumps}", OMP_NUM_THREADS=2)
    captured = {seed: json.loads((tmp_path / f"{seed}.json").read_text()) for seed in (1, 2)}
    # Another number of threads may add in another order.
    assert {seed: numbers(losses) for seed, losses in captured.items()} == {
        seed: pytest.approx(numbers(losses), rel=1e-6) for seed, losses in plain.items()
    }
    dump = ascend_dump.open(dumps)
    losses = {}
    for run in {record.run for record in dump}:
        records = list(dump.select("mse_loss_0", io="output", run=run))
        assert [record.step for record in records] == [0, 1, 2]
        losses[records[0].attrs["hash"]] = [float(record.numpy()).hex() for record in records]
    assert sorted(losses.values()) == sorted(captured.values())
    states = [json.loads(manifest.read_text())["state"] for manifest in dumps.rglob("manifest.json")]
    assert states == ["complete", "complete"]
