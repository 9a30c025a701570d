"""`options={"step": "optimizer"}`: count optimizer steps, as trainers do, instead of calls of the model."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Optional

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["OptimizerSteps"]


class OptimizerSteps:
    """Counts the steps of one optimizer: the first that makes a step and has parameters of the target.

    Without a target it is the first that makes a step. If this optimizer is deleted, another one is chosen in the same
    way.
    A step begins with a call of the model in training mode, and ends at the next call of the model: what follows the
    optimizer, such as an average of the parameters, belongs to it. Evaluations between two steps belong to no step.

    ended     called at the end of a step that no next step follows at once
    is_lazy   False if the model is not watched, so that a step ends with the step of the optimizer
    """

    def __init__(
        self, ended: Callable[[], None], target: Optional[torch.nn.Module] = None, *, is_lazy: bool = True
    ) -> None:
        self.count = 0
        #: True between a step of the optimizer and the next call of the model.
        self.is_updated = False
        self._is_lazy = is_lazy
        self._ended = ended
        self._target = target
        self._optimizer: Optional[weakref.ref[Any]] = None
        self._begun = False
        self._hook = register_optimizer_step_post_hook(self._updated)

    def begins(self, training: bool) -> Optional[int]:
        """Return the number of the step that a call of the model begins; None if it begins no step."""
        if self.is_updated and not training:
            self._ended()
        self.is_updated = False
        if self._begun or not training:
            return None
        self._begun = True
        return self.count

    def remove(self) -> None:
        self._hook.remove()

    def _updated(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        followed = None if self._optimizer is None else self._optimizer()
        if followed is None:
            if not self._has_parameters(optimizer):
                return
            self._optimizer = weakref.ref(optimizer)
        elif followed is not optimizer:
            return
        self.count += 1
        self._begun = False
        self.is_updated = self._is_lazy
        if not self._is_lazy:
            self._ended()

    def _has_parameters(self, optimizer: Any) -> bool:
        if self._target is None:
            return True
        mine = set(map(id, self._target.parameters()))
        return any(id(parameter) in mine for group in optimizer.param_groups for parameter in group["params"])
