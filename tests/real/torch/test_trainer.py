"""The Trainer of `transformers`, which owns the training loop, captured from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForSequenceClassification, Trainer, TrainingArguments
from workloads import VOCABULARY, digest, make_bert

import ascend_dump

STEPS = 3
#: Batches of one step: their gradients add up.
MICRO_BATCHES = 2

# The Trainer's own, which differ from release to release.
pytestmark = pytest.mark.filterwarnings("default")


def make_trainer(model: BertForSequenceClassification, directory: Path) -> Trainer:
    generator = torch.Generator().manual_seed(4)
    sentences = [
        {"input_ids": torch.randint(3, VOCABULARY, (12,), generator=generator), "labels": number % 3}
        for number in range(16)
    ]
    settings = TrainingArguments(
        output_dir=str(directory),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=MICRO_BATCHES,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=5,
    )
    return Trainer(model=model, args=settings, train_dataset=sentences)  # type: ignore[arg-type]  # any sequence will do


def losses(trainer: Trainer) -> list[Any]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_trainer(tmp_path: Path) -> None:
    plain = make_trainer(make_bert(), tmp_path / "plain")
    plain.train()
    assert len(losses(plain)) == STEPS

    model = make_bert()
    trainer = make_trainer(model, tmp_path / "captured")
    with ascend_dump.capture(model, steps="2|5", path=tmp_path / "dump", strict=True) as cap:
        trainer.train()
    assert losses(trainer) == losses(plain)
    assert digest(model) == digest(plain.model)

    dump = cap.dump()
    assert {record.step for record in dump} == {2, 5}, "each micro batch is a call of the model"
    for step in (2, 5):
        found = dump.select(step=step)
        assert {"forward", "backward", "other"} == {record.phase for record in found}
        assert len(found.select(op="bert.encoder.layer.0.attention.self.query/addmm_0", io="output")) == 1
    # Only the last micro batch of a step is followed by the optimizer.
    assert not dump.select(step=2, op="_foreach_*")
    updated = dump.select(step=5, op_type="aten::_foreach_*")
    assert len(updated) > 100
    assert all(record.statistics().nan == 0 for record in updated if not record.attrs.get("skipped"))


def test_the_callback_of_the_example_counts_as_the_trainer_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples" / "10_trainers"))
    from callbacks import hf_callback

    plain = make_trainer(make_bert(), tmp_path / "plain")
    plain.train()
    model = make_bert()
    trainer = make_trainer(model, tmp_path / "captured")
    trainer.add_callback(hf_callback(steps="1", path=tmp_path / "dump", strict=True))
    trainer.train()
    assert losses(trainer) == losses(plain)
    assert digest(model) == digest(plain.model)

    dump = ascend_dump.open(tmp_path / "dump")
    assert {record.step for record in dump} == {1}
    classified = dump.select(op="classifier/addmm_*", io="output")
    assert len({record.op_name for record in classified}) == MICRO_BATCHES
    assert any(str(record.attrs.get("parameter")).startswith("classifier.") for record in dump.select(phase="other"))
