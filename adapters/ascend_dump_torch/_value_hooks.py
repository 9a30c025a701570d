"""Report the values that a user looks at: losses, gradients, parameters, and numbers that the program reads.

Hooks are installed at functions of PyTorch that every program calls, whatever its trainer: `backward`, `autograd.grad`,
the steps of optimizers and gradient scalers, and the methods that convert a tensor to a number.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

__all__ = ["Spectator", "follow_values"]

_current_node = torch._C._current_autograd_node
#: Methods that return the elements of a tensor to the program. Formatting and printing a tensor calls one of them.
_READING = ("item", "__float__", "tolist", "numpy")


class Spectator(Protocol):
    """Receives the values, in the thread that computes them. The methods are called:

    backward_begins  before a backward pass from `tensors`; accumulates: it adds to the gradients of parameters
    backward_ended   after `backward`
    differentiated   after `autograd.grad`, with the gradients that it returns
    scaled           after a gradient scaler has multiplied `loss`; result: the scaled loss
    steps            before an optimizer updates its parameters
    stepped          after an optimizer has updated its parameters
    scaler_stepped   after a gradient scaler was asked for an optimizer step; skipped: it left the step out
    reads            after the program has read the elements of a tensor; value: what it got
    """

    def backward_begins(self, tensors: Any, *, accumulates: bool) -> None: ...
    def backward_ended(self) -> None: ...
    def differentiated(self, gradients: Any) -> None: ...
    def scaled(self, loss: Any, result: Any) -> None: ...
    def steps(self, optimizer: torch.optim.Optimizer) -> None: ...
    def stepped(self, optimizer: torch.optim.Optimizer) -> None: ...
    def scaler_stepped(self, scaler: Any, skipped: bool) -> None: ...
    def reads(self, tensor: torch.Tensor, value: Any) -> None: ...


def follow_values(spectator: Spectator) -> Callable[[], None]:
    """Report the values of this process to `spectator`, which must not raise. Returns a function that ends this."""
    undo = [
        register_optimizer_step_pre_hook(lambda optimizer, *_: spectator.steps(optimizer)).remove,
        register_optimizer_step_post_hook(lambda optimizer, *_: spectator.stepped(optimizer)).remove,
        _replace(torch.autograd, "backward", functools.partial(_around_backward, spectator)),
        _replace(torch.autograd, "grad", functools.partial(_around_grad, spectator)),
        *_follow_scalers(spectator),
        *(_replace(torch.Tensor, name, functools.partial(_around_reading, spectator)) for name in _READING),
    ]

    def end() -> None:
        while undo:
            undo.pop()()

    return end


def _replace(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace an attribute by a function that wraps it.

    Returns a function that restores the attribute, unless other code has replaced it in the meantime.
    """
    original = getattr(owner, name)
    inherited = name not in vars(owner)
    ours = functools.wraps(original)(wrap(original))
    setattr(owner, name, ours)

    def restore() -> None:
        if vars(owner).get(name) is ours:
            if inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    return restore


def _is_nested() -> bool:
    """Return True inside a backward pass, where checkpointing runs another one, and while PyTorch traces a function."""
    return _current_node() is not None or torch.compiler.is_compiling()


def _around_backward(spectator: Spectator, original: Any) -> Any:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        nested = _is_nested()
        if not nested:
            spectator.backward_begins(tensors, accumulates=True)
        original(tensors, *args, **kwargs)
        if not nested:
            spectator.backward_ended()

    return backward


def _around_grad(spectator: Spectator, original: Any) -> Any:
    def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        nested = _is_nested()
        if not nested:
            spectator.backward_begins(outputs, accumulates=False)
        gradients = original(outputs, *args, **kwargs)
        if not nested:
            spectator.differentiated(gradients)
        return gradients

    return grad


def _around_reading(spectator: Spectator, original: Any) -> Any:
    def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        value = original(tensor, *args, **kwargs)
        spectator.reads(tensor, value)
        return value

    return read


def _follow_scalers(spectator: Spectator) -> list[Callable[[], None]]:
    scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    #: For each open call of `GradScaler.step`: True once the optimizer has made its step.
    steps: list[bool] = []

    def around_scale(original: Any) -> Any:
        def scale(self: Any, outputs: Any) -> Any:
            result = original(self, outputs)
            spectator.scaled(outputs, result)
            return result

        return scale

    def around_step(original: Any) -> Any:
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            steps.append(False)
            try:
                result = original(self, optimizer, *args, **kwargs)
                spectator.scaler_stepped(self, not steps[-1])
            finally:
                steps.pop()
            return result

        return step

    def note_step(*_: Any) -> None:
        if steps:
            steps[-1] = True

    return [
        register_optimizer_step_post_hook(note_step).remove,
        _replace(scaler, "scale", around_scale),
        _replace(scaler, "step", around_step),
    ]
