"""The loop of the programs, with the rewrites and faults of a loop."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from program_pairs.program import Program


@dataclass
class LoopOptions:
    """Settings of a loop besides forward, backward and step."""

    max_norm: float = 0.0
    clip: str = "library"
    micro_batches: int = 1
    accumulate: str = "mean"
    zero_grad: str = "each"
    autocast: bool = False
    order: str = "usual"
    backward: str = "once"
    decay_of_average: float = 0.9
    average: str = "usual"
    rate: str = "usual"
    gradient: str = "usual"
    freeze: str = ""


def clip_gradients(model: nn.Module, options: LoopOptions) -> None:
    """Clip the norm of all gradients."""
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    if options.clip == "library":
        torch.nn.utils.clip_grad_norm_(parameters, options.max_norm)  # place: clip_call
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if options.clip == "value":
        torch.nn.utils.clip_grad_value_(parameters, options.max_norm)  # planted: clip_value
        return
    if options.clip == "each":
        for gradient in gradients:
            gradient.mul_((options.max_norm / (gradient.norm() + 1e-6)).clamp(max=1.0))  # planted: clip_each
        return
    if options.clip == "squared":
        total = sum((gradient.square().sum() for gradient in gradients), torch.zeros(()))  # planted: clip_squared
    elif options.clip == "max":
        total = torch.stack([gradient.abs().max() for gradient in gradients]).max()  # planted: clip_max
    else:
        total = torch.sqrt(sum((gradient.square().sum() for gradient in gradients), torch.zeros(())))
    scale = (options.max_norm / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale)  # planted: clip_squared clip_max


def update_average(model: nn.Module, average: nn.Module, options: LoopOptions) -> None:
    """Move the averaged weights towards the weights."""
    decay = options.decay_of_average
    with torch.no_grad():
        for old, new in zip(average.parameters(), model.parameters()):
            if options.average == "usual":
                old.mul_(decay).add_(new, alpha=1 - decay)  # place: average_update
            elif options.average == "lerp":
                old.lerp_(new, 1 - decay)
            elif options.average == "swapped":
                old.mul_(1 - decay).add_(new, alpha=decay)  # planted: average_swapped
            elif options.average == "not_in_place":
                old.mul(decay).add(new, alpha=1 - decay)  # planted: average_not_in_place
            elif options.average == "copied":
                old.copy_(new)  # planted: average_copied


def _micro_batches(batch: dict[str, Any], number: int) -> list[dict[str, Any]]:
    if number == 1:
        return [batch]
    parts: list[dict[str, Any]] = [{} for _ in range(number)]
    for name, value in batch.items():
        pieces = value.chunk(number) if isinstance(value, Tensor) and value.dim() > 0 else [value] * number
        for part, piece in zip(parts, pieces):
            part[name] = piece
    return parts


def _backward(loss: Tensor, options: LoopOptions) -> None:
    if options.backward == "twice":
        loss.backward(retain_graph=True)  # planted: backward_twice
        loss.backward()  # planted: backward_twice
    elif options.backward == "scaled":
        (loss * 8.0).backward()  # planted: loss_not_unscaled
    else:
        loss.backward()  # place: backward_call


def _change_gradients(model: nn.Module, options: LoopOptions) -> None:
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        if options.gradient == "sign":
            parameter.grad.neg_()  # planted: gradient_sign
        elif options.gradient == "rounded":
            parameter.grad.copy_(parameter.grad.half() * 4e-2)  # planted: gradient_rounded
        elif options.gradient == "world_size":
            parameter.grad.div_(2)  # planted: gradient_world_size
        elif options.gradient == "biases_lost" and name.endswith("bias"):
            parameter.grad.zero_()  # planted: gradient_biases_lost


def train(program: Program) -> list[Tensor]:
    """Train for one step a batch, or evaluate where there is no optimizer."""
    model, options = program.model, program.options
    if program.optimizer is None or program.criterion is None:
        return evaluate(program)
    optimizer = program.optimizer(model)
    if options.rate == "warm_up_lost":
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * 4
    losses = []
    for index, batch in enumerate(program.batches):
        if options.zero_grad == "each" or (options.zero_grad == "first" and index == 0):
            optimizer.zero_grad()  # place: zero_grad
        total = None
        for part in _micro_batches(batch, options.micro_batches):
            context = torch.autocast("cpu", torch.bfloat16) if options.autocast else contextlib.nullcontext()
            with context:
                output = program.forward(model, part)
                loss = program.criterion(output, part)
            program.outputs.append(output.detach().clone())
            if options.micro_batches > 1 and options.accumulate == "mean":
                loss = loss / options.micro_batches  # place: accumulate_mean
            elif options.micro_batches > 1 and options.accumulate == "last":
                optimizer.zero_grad()  # planted: accumulate_last
            _backward(loss, options)
            total = loss.detach() if total is None else total + loss.detach()
        losses.append(total)
        _change_gradients(model, options)
        if options.order == "step_before_clip":
            optimizer.step()  # planted: step_before_clip
        if options.max_norm:
            clip_gradients(model, options)
        if options.order == "usual":
            optimizer.step()  # place: optimizer_step
        elif options.order == "two_steps":
            optimizer.step()  # planted: two_steps
            optimizer.step()  # planted: two_steps
        if program.average is not None and options.average != "never":
            update_average(model, program.average, options)  # place: average_call
    return losses


def evaluate(program: Program) -> list[Tensor]:
    """Call the network once a batch, without gradients."""
    losses = []
    with torch.no_grad():
        for batch in program.batches:
            context = torch.autocast("cpu", torch.bfloat16) if program.options.autocast else contextlib.nullcontext()
            with context:
                output = program.forward(program.model, batch)
            program.outputs.append(output.detach().clone())
            losses.append(output.detach().float().square().mean())
    return losses
