"""Edits of the loop, the optimizer, the loss, the data, and of how the whole network runs."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from program_pairs.case import Edit, Truth
from program_pairs.edits._swap import short
from program_pairs.program import Batch, Program


def optimizer(name: str, maker: Any) -> Edit:
    """Choose another optimizer that does the same."""

    def apply(program: Program) -> None:
        program.optimizer = maker

    return Edit(name, apply)


def wrong_optimizer(name: str, maker: Any, *lines: str, parameters: tuple[str, ...] = ()) -> Edit:
    """Choose another optimizer, or the same with wrong numbers."""
    truth = Truth(lines=("optimizer_step", *lines), parameters=parameters, visible=False)
    return Edit(name, optimizer(name, maker).apply, truth)


def options(name: str, *lines: str, **values: Any) -> Edit:
    """Change the options of the loop to wrong ones."""

    def apply(program: Program) -> None:
        program.options = replace(program.options, **values)

    return Edit(name, apply, Truth(lines=lines, visible=False))


def harmless_options(name: str, tolerance: float = 0.0, **values: Any) -> Edit:
    """Change the options of the loop to others that do the same."""
    return Edit(name, options(name, **values).apply, tolerance=tolerance)


def no_zero_grad() -> Edit:
    """Forget to set gradients to zero between steps."""
    edit = options("no_zero_grad", "zero_grad", "optimizer_step", "clip_call", "backward_call", zero_grad="first")
    words = ("accumulat", "zero_grad", r"\.grad\b")
    return replace(edit, truth=Truth(lines=edit.truth.lines if edit.truth else (), words=words, visible=False))


def micro_batches(number: int, accumulate: str = "mean") -> Edit:
    """Split each batch, and accumulate gradients."""

    def apply(program: Program) -> None:
        program.options = replace(program.options, micro_batches=number, accumulate=accumulate)
        program.capture_options = {"step": "optimizer"}

    if accumulate == "mean":
        return Edit(f"micro_batches_{number}", apply)
    lines = ("accumulate_last", "accumulate_mean", "optimizer_step", "clip_call", "backward_call")
    operators = (r".*(add_?|div|mul|mean|nll_loss_backward|_log_softmax_backward_data|mse_loss_backward)(\..*)?",)
    truth = Truth(lines=lines, operators=operators, words=("accumulat",), visible=False)
    return Edit(f"accumulate_{accumulate}", apply, truth)


# Losses


def own_cross_entropy(flaw: str = "", ignored: int = -100) -> Edit:
    """Replace the loss by an own cross entropy of the last dimension of the output against batch["labels"].

    The labels of a language model (`batch["shift"]`) are those of the next token.
    """

    def criterion(logits: Tensor, batch: Batch) -> Tensor:
        labels = batch["labels"]
        if batch.get("shift") and flaw != "label_shift":
            logits, labels = logits[:, :-1], labels[:, 1:]
        if flaw == "label_shift":
            logits, labels = logits[:, :-1], labels[:, :-1]  # planted: loss_label_shift
        logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
        if flaw == "temperature":
            logits = logits / 2.0  # planted: loss_temperature
        kept = labels != ignored
        shifted = logits - logits.amax(-1, keepdim=True).detach()
        log_probabilities = shifted - shifted.exp().sum(-1, keepdim=True).log()
        picked = -log_probabilities.gather(1, labels.clamp(min=0)[:, None])[:, 0]
        if flaw == "sum":
            return (picked * kept).sum()  # planted: loss_sum
        if flaw == "padding":
            return picked.mean()  # planted: loss_padding
        if flaw == "all_counted":
            return (picked * kept).sum() / labels.numel()  # planted: loss_all_counted
        if flaw == "smoothed":
            smooth = -log_probabilities.mean(-1)
            return ((0.9 * picked + 0.1 * smooth) * kept).sum() / kept.sum()  # planted: loss_smoothed
        if flaw == "batch":
            return (picked * kept).sum() / batch["labels"].shape[0]  # planted: loss_batch
        return (picked * kept).sum() / kept.sum()

    def apply(program: Program) -> None:
        program.criterion = criterion

    if not flaw:
        return Edit("own_cross_entropy", apply)
    return Edit(f"loss_{flaw}", apply, Truth(lines=(f"loss_{flaw}",), visible=False))


def own_mse(flaw: str = "") -> Edit:
    """Replace the loss by an own mean squared error against batch["target"]."""

    def criterion(output: Tensor, batch: Batch) -> Tensor:
        error = batch["target"] - output
        if flaw == "sum":
            return (error * error).sum() / 100  # planted: mse_sum
        if flaw == "absolute":
            return error.abs().mean()  # planted: mse_absolute
        if flaw == "huber":
            return functional.smooth_l1_loss(output, batch["target"])  # planted: mse_huber
        if flaw == "half":
            return (error * error).mean() / 2  # planted: mse_half
        return (error * error).sum() / error.numel()

    def apply(program: Program) -> None:
        program.criterion = criterion

    if not flaw:
        return Edit("own_mse", apply)
    return Edit(f"mse_{flaw}", apply, Truth(lines=(f"mse_{flaw}",), visible=False))


# Data


def data(name: str, change: Callable[[Batch], None], *modules: str, lines: tuple[str, ...] = ()) -> Edit:
    """Change the batches; right are the modules that read them, or the call of the network."""

    def apply(program: Program) -> None:
        for batch in program.batches:
            change(batch)

    return Edit(name, apply, Truth(modules=("", *modules), lines=("network_call", *lines)))


# How the whole network runs


def autocast() -> Edit:
    """Run forward in bfloat16 where autocast does."""
    return harmless_options("autocast", 0.1, autocast=True)


def low_precision() -> Edit:
    """Run the whole network in bfloat16."""

    def apply(program: Program) -> None:
        program.model.to(torch.bfloat16)
        for batch in program.batches:
            for name, value in batch.items():
                if isinstance(value, Tensor) and value.is_floating_point() and name != "target":
                    batch[name] = value.to(torch.bfloat16)
        criterion = program.criterion
        if criterion is not None:
            program.criterion = lambda output, batch: criterion(output.float(), batch)

    return Edit("bfloat16", apply, tolerance=0.25)


def channels_last() -> Edit:
    """Keep images and kernels with the channels last in memory."""

    def apply(program: Program) -> None:
        program.model.to(memory_format=torch.channels_last)
        for batch in program.batches:
            for name, value in batch.items():
                if isinstance(value, Tensor) and value.dim() == 4:
                    batch[name] = value.contiguous(memory_format=torch.channels_last)

    return Edit("channels_last", apply)


def threads(number: int = 2) -> Edit:
    """Run with another number of threads."""

    def apply(program: Program) -> None:
        program.before_run.append(lambda _: torch.set_num_threads(number))

    return Edit(f"threads_{number}", apply)


def compiled() -> Edit:
    """Compile the network with a backend that keeps the operators of ATen."""

    def apply(program: Program) -> None:
        program.model = torch.compile(program.model, backend="aot_eager")
        program.module_prefix = "_orig_mod."

    return Edit("compiled", apply)


class Wrapper(nn.Module):
    """A module around a network, as launchers put it there."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.module = inner

    def forward(self, *args: Any, **named: Any) -> Any:
        return self.module(*args, **named)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def wrapper() -> Edit:
    """Put a module around the network."""

    def apply(program: Program) -> None:
        program.model = Wrapper(program.model)
        program.module_prefix = "module."

    return Edit("wrapper", apply)


def checkpointed(where: str) -> Edit:
    """Recompute blocks in the backward pass."""

    def apply(program: Program) -> None:
        for name, module in program.model.named_modules():
            if re.fullmatch(where, name):
                usual = module.forward

                def forward(*args: Any, usual: Any = usual, **named: Any) -> Any:
                    return checkpoint(usual, *args, use_reentrant=False, **named)

                module.forward = forward

    return Edit(f"checkpointed@{short(where)}", apply)


def functional_call() -> Edit:
    """Call the network with its parameters given from outside."""

    def apply(program: Program) -> None:
        usual = program.forward

        def forward(model: nn.Module, batch: Batch) -> Tensor:
            weights = dict(model.named_parameters())
            proxy = lambda *args, **named: torch.func.functional_call(model, weights, args, named)
            return usual(proxy, batch)  # type: ignore[arg-type]

        program.forward = forward

    return Edit("functional_call", apply)


def training_mode(name: str = "training_mode", *modules: str) -> Edit:
    """Leave the network in training mode where it was evaluated."""

    def apply(program: Program) -> None:
        program.model.train()

    return Edit(name, apply, Truth(modules=modules))


def evaluation_mode(where: str) -> Edit:
    """Leave modules in evaluation mode while the network trains."""

    def apply(program: Program) -> None:
        for name, module in program.model.named_modules():
            if re.fullmatch(where, name):
                module.eval()

    return Edit(f"evaluation_mode@{short(where)}", apply, Truth(modules=(where,)))


def attribute(where: str, name: str, value: Any, *modules: str) -> Edit:
    """Set a wrong number of modules, as a wrong configuration does."""

    def apply(program: Program) -> None:
        found = False
        for path, module in program.model.named_modules():
            if re.fullmatch(where, path):
                if not hasattr(module, name):
                    raise LookupError(f"{path} has no {name}")
                setattr(module, name, value)
                found = True
        if not found:
            raise LookupError(f"no module matches {where}")

    return Edit(f"{name}={value}@{short(where)}".replace(" ", ""), apply, Truth(modules=(where, *modules)))


def same_layer_twice(container: str, first: int, second: int) -> Edit:
    """Put one layer in the place of another, as a loop over a wrong index does."""

    def apply(program: Program) -> None:
        layers: Any = program.model.get_submodule(container)
        layers[second] = copy.deepcopy(layers[first])

    place = re.escape(f"{container}.{second}")
    return Edit(
        f"same_layer@{container}.{second}", apply, Truth(modules=(f"{place}(\\..*)?",), parameters=(f"{place}\\..*",))
    )
