"""Compute a few numbers of tensors at low cost: extremes, norms and samples; and find tensors with NaN or Inf."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import torch

from ascend_dump_torch._overflow import nonfinite
from ascend_dump_torch.memory.layouts import is_plain

__all__ = [
    "extremes_of",
    "kind_of",
    "nonfinite_among",
    "norms_of",
    "parameters_of",
    "plain_values",
    "sample_of",
    "settings_of",
    "tensors_in",
]

#: Maximum number of tensors that are taken from the result of a call, and of items searched in a list or mapping.
_MOST_TENSORS = 32


def kind_of(numbers: Iterable[float]) -> str:
    """Return the first of "NaN", "Inf" and "-Inf" that is among the numbers; "" if all numbers are finite."""
    wrong = [number for number in numbers if not math.isfinite(number)]
    kinds = {"NaN" if math.isnan(number) else "Inf" if number > 0 else "-Inf" for number in wrong}
    return next((kind for kind in ("NaN", "Inf", "-Inf") if kind in kinds), "")


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in the result of a call, searched in lists, mappings and data classes."""
    tensors: list[torch.Tensor] = []
    stack = [value]
    while stack and len(tensors) < _MOST_TENSORS:
        item = stack.pop()
        if isinstance(item, torch.Tensor):
            tensors.append(item)
        elif isinstance(item, (list, tuple)):
            stack += reversed(item[:_MOST_TENSORS])
        elif isinstance(item, Mapping):
            stack += reversed(list(item.values())[:_MOST_TENSORS])
        elif dataclasses.is_dataclass(item) and not isinstance(item, type):
            stack += reversed([getattr(item, part.name, None) for part in dataclasses.fields(item)])
    return tensors


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def settings_of(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the settings of an optimizer that are numbers: of each, the largest value in any parameter group."""
    settings: dict[str, float] = {}
    for group in optimizer.param_groups:
        for name, value in group.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                settings[name] = max(settings.get(name, value), float(value))
    return settings


def sample_of(parameters: Sequence[torch.Tensor], most: int, length: int) -> Optional[torch.Tensor]:
    """Return a float32 copy of the first elements of some parameters; None if no parameter can be sampled.

    Parameters with another device or dtype than the first one are left out.
    most: maximum number of parameters; length: maximum number of elements taken from each parameter
    """
    chosen = parameters[:: max(1, -(-len(parameters) // most))]
    pieces = [piece for parameter in chosen if (piece := plain_values(parameter)) is not None]
    # If a tensor is not contiguous, `reshape` would copy all its elements.
    pieces = [piece for piece in pieces if piece.is_contiguous()]
    pieces = [piece for piece in pieces if (piece.device, piece.dtype) == (pieces[0].device, pieces[0].dtype)]
    return torch.cat([piece.reshape(-1)[:length] for piece in pieces]).float() if pieces else None


def extremes_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the largest and the smallest element, or the only element; [] if there are no `plain_values`."""
    values = plain_values(tensor)
    if values is None:
        return []
    if values.numel() == 1:
        return [values.reshape(()).clone()]
    return list(torch.aminmax(values))[::-1]


def norms_of(tensors: Iterable[Optional[torch.Tensor]]) -> list[torch.Tensor]:
    """Return, for each device and dtype, the largest norm of its tensors: NaN or Inf if a tensor has NaN or Inf.

    On an accelerator the norm is the largest absolute value. On the CPU it is the L2 norm, because PyTorch computes it
    fifty times as fast there; it may overflow.
    """
    groups: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        values = None if tensor is None else plain_values(tensor)
        if values is not None:
            groups.setdefault((values.device, values.dtype), []).append(values)
    order = [2 if device.type == "cpu" else math.inf for device, _ in groups]
    return [torch.stack(torch._foreach_norm(group, power)).max() for power, group in zip(order, groups.values())]


def nonfinite_among(tensors: Sequence[Optional[torch.Tensor]]) -> list[int]:
    """Return the positions of the tensors with NaN or Inf."""
    values = ((position, None if tensor is None else plain_values(tensor)) for position, tensor in enumerate(tensors))
    return [position for position, tensor in values if tensor is not None and nonfinite(tensor)]


def plain_values(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    """Return the tensor in a form that `aminmax` accepts.

    Returns None if the tensor cannot have NaN or Inf, or if its elements are not checked: those of meta and nested
    tensors, and of subclasses and layouts that do not store plain elements.
    """
    if not is_plain(type(tensor)):
        # Of a DTensor the local part is used.
        local = getattr(tensor, "_local_tensor", None)
        if local is None or not is_plain(type(local)):
            return None
        tensor = local
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta or tensor.is_nested:
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.element_size() == 1 else tensor
