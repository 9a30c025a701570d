"""Errors of `trends`: runs that differ in their seeds alone, and runs with a fault in the middle.

    python tests/benchmarks/bench_parting.py [--seeds 7]

Each network is trained for 40 steps, of which every other one is recorded: a Llama (3 layers) and a BERT (2 layers) of
transformers with AdamW, and a convolutional network with momentum. `partings` counts combinations of three seeds (a
run, its reference, and another run of the reference) in which the run parts from its reference; `spikes` counts runs
with a spike. A fault begins in step 20: another epsilon of a norm, or a weight that is 20 times as large. It is found
if step and module (or its parameter) are named first, against a run with another seed and with the same one.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

import torch
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

import ascend_dump
from ascend_dump.analysis.trends import Curve, Parting
from ascend_dump.analysis.trends.parting import find_partings, pair_curves

STEPS, BEGIN = 40, 20
Fault = Callable[[Any], None]


def llama() -> Any:
    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    tokens = {"vocab_size": 97, "bos_token_id": 0, "eos_token_id": 0, "max_position_embeddings": 64}
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **sizes, **tokens))


def bert() -> Any:
    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    return BertForMaskedLM(BertConfig(vocab_size=97, max_position_embeddings=64, **sizes))


def convolutions() -> Any:
    nn = torch.nn
    first = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    second = (nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU())
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def other_epsilon(model: Any) -> None:
    model.model.layers[1].post_attention_layernorm.variance_epsilon = 0.05


def larger(name: str) -> Fault:
    def multiply(model: Any) -> None:
        with torch.no_grad():
            model.get_parameter(name).mul_(20.0)

    return multiply


#: By network: its faults, with the module in which each of them is.
FAULTS: dict[Callable[[], Any], dict[str, Fault]] = {
    llama: {
        "model.layers.1.post_attention_layernorm": other_epsilon,
        "model.layers.1.mlp.down_proj": larger("model.layers.1.mlp.down_proj.weight"),
    },
    bert: {"bert.encoder.layer.1.output.dense": larger("bert.encoder.layer.1.output.dense.weight")},
    convolutions: {"3": larger("3.weight")},
}


def loss_of(make: Callable[[], Any], model: Any) -> torch.Tensor:
    if make is convolutions:
        labels = torch.randint(0, 10, (16,))
        images = torch.randn(16, 3, 12, 12) + labels[:, None, None, None] * 0.3
        return torch.nn.functional.cross_entropy(model(images), labels)
    tokens = torch.randint(0, 97, (4, 24)).cumsum(1) % 97
    loss: torch.Tensor = model(tokens, labels=tokens).loss
    return loss


def train(make: Callable[[], Any], seed: int, path: Path, fault: Optional[Fault] = None) -> Path:
    torch.manual_seed(seed)
    model = make()
    parameters = model.parameters()
    optimizer: Any = torch.optim.AdamW(parameters, lr=2e-3)
    if make is convolutions:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 10)
    with ascend_dump.capture(model, data="stats", level="module", steps="0-:2", path=path, quiet=True):
        for step in range(STEPS):
            if fault is not None and step == BEGIN:
                fault(model)
            loss_of(make, model).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return path


def partings(actual: Sequence[Curve], reference: Sequence[Curve], noise: Optional[Sequence[Curve]]) -> list[Parting]:
    """`Trends.partings` of dumps whose curves are read already: each is read once."""
    pairs, _ = pair_curves(actual, reference, noise)
    return find_partings(pairs, has_noise=noise is not None)


def is_found(found: Sequence[Parting], module: str) -> bool:
    return bool(found) and found[0].step == BEGIN and found[0].curve.name in (module, f"{module}.weight")


def measure(make: Callable[[], Any], seeds: Sequence[int], directory: Path) -> None:
    runs = [ascend_dump.trends(train(make, seed, directory / f"seed{seed}")).curves for seed in seeds]
    spikes = sum(any(curve.spikes for curve in curves) for curves in runs)
    wrong = [bool(partings(*three)) for three in itertools.permutations(runs, 3)]
    print(f"{make.__name__:13} partings {sum(wrong)} of {len(wrong)}  spikes {spikes} of {len(runs)}", flush=True)
    for number, (module, fault) in enumerate(FAULTS[make].items()):
        other, same = (
            ascend_dump.trends(train(make, seed, directory / f"{number}_{seed}", fault)).curves
            for seed in (1000, seeds[0])
        )
        with_noise = is_found(partings(other, runs[0], runs[1]), module)
        without = is_found(partings(same, runs[0], None), module)
        print(f"  fault in {module}: found {with_noise} with another seed and noise, {without} with the same seed")


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=7)
    options = parser.parse_args()
    for make in FAULTS:
        with tempfile.TemporaryDirectory() as directory:
            measure(make, range(options.seeds), Path(directory))


if __name__ == "__main__":
    main()
