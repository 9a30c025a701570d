"""The Trainer of Lightning, dumped by the callback of the example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ascend_dump

lightning = pytest.importorskip("lightning")

# Lightning's own, which differ from release to release.
pytestmark = pytest.mark.filterwarnings("default")

MICRO_BATCHES = 2


class Module(lightning.LightningModule):  # type: ignore[misc]  # without type information
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch: Any, number: int) -> Any:
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(directory: Path, *callbacks: Any) -> Module:
    module = Module()
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4) / 64)
    trainer = lightning.Trainer(
        default_root_dir=directory,
        max_steps=3,
        accumulate_grad_batches=MICRO_BATCHES,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=2))
    return module


def test_a_step_is_what_the_trainer_calls_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples" / "10_trainers"))
    from callbacks import lightning_callback

    plain = train(tmp_path)
    captured = train(tmp_path, lightning_callback(steps="1-", path=tmp_path / "dump", strict=True))
    assert all(map(torch.equal, plain.state_dict().values(), captured.state_dict().values()))
    dump = ascend_dump.open(tmp_path / "dump")
    for step in (1, 2):
        calls = dump.select(op_type="aten::addmm", io="output", step=step)
        assert len(calls) == MICRO_BATCHES
        assert any("add_" in record.op_type for record in dump.select(step=step, phase="other"))
    assert {record.step for record in dump} >= {1, 2}
    assert 0 not in {record.step for record in dump}
