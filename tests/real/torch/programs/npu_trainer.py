"""The Trainer of `transformers` on an NPU: `python -m ascend_dump.fakes torch_npu -- npu_trainer.py FOLDER DEVICE`.

Prints the losses and the device of the model as JSON.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
from transformers import Trainer, TrainingArguments
from workloads import VOCABULARY, make_bert


def main(folder: str, device: str) -> None:
    generator = torch.Generator().manual_seed(4)
    sentences = [
        {"input_ids": torch.randint(3, VOCABULARY, (12,), generator=generator), "labels": number % 3}
        for number in range(16)
    ]
    settings = TrainingArguments(
        output_dir=folder,
        max_steps=3,
        per_device_train_batch_size=2,
        logging_steps=1,
        save_steps=3,
        report_to=[],
        disable_tqdm=True,
        use_cpu=device == "cpu",
        seed=5,
    )
    # Each device drops other elements.
    model = make_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    trainer = Trainer(model=model, args=settings, train_dataset=sentences)  # type: ignore[arg-type]
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(json.dumps({"losses": losses, "device": str(trainer.model.device)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
