"""Track the placements of DTensors. They are noted when an operator reads or returns a DTensor."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Optional

import torch

from ascend_dump.dump_format import Placement, ranks_text
from ascend_dump_torch._arguments import collect

__all__ = ["Placements"]


class Placements:
    """The placements of the local tensors seen in a step."""

    def __init__(self) -> None:
        #: The placements by the id of the local tensor. The weak reference shows whether the id was reused.
        self._of: dict[int, tuple[weakref.ref[torch.Tensor], Placement]] = {}
        #: The placements by (id of the mesh, placements in PyTorch's form, shape of the whole tensor). The value keeps
        #: the mesh alive, so that its id is not reused.
        self._by_spec: dict[Any, tuple[Any, Placement]] = {}

    def clear(self) -> None:
        self._of.clear()
        self._by_spec.clear()

    @staticmethod
    def are_of(kinds: Any) -> bool:
        """Return True if one of these classes is a DTensor."""
        module = sys.modules.get("torch.distributed.tensor")
        dtensor = None if module is None else getattr(module, "DTensor", None)
        return dtensor is not None and any(issubclass(kind, dtensor) for kind in kinds)

    def note(self, values: Any) -> None:
        """Note the placements of the DTensors among the arguments or results of an operator."""
        tensors: list[torch.Tensor] = []
        collect(values, tensors)
        for tensor in tensors:
            spec, local = getattr(tensor, "_spec", None), getattr(tensor, "_local_tensor", None)
            if spec is None or local is None:
                continue
            key = (id(spec.mesh), spec.placements, tensor.shape)
            entry = self._by_spec.get(key)
            if entry is None:
                entry = self._by_spec[key] = (spec.mesh, _placement(spec, tensor.shape))
            self._of[id(local)] = weakref.ref(local), entry[1]

    def of(self, tensor: torch.Tensor) -> Optional[Placement]:
        entry = self._of.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def __bool__(self) -> bool:
        return bool(self._of)


def _placement(spec: Any, shape: Any) -> Placement:
    ranks = spec.mesh.mesh
    return Placement(
        ranks_text(ranks.flatten().tolist()),
        tuple(ranks.shape),
        tuple(_axis(axis) for axis in spec.placements),
        tuple(spec.mesh.mesh_dim_names or ()),
        tuple(shape),
    )


def _axis(placement: Any) -> str:
    """Return `shard 0`, `replicate`, `partial sum`; other placements as PyTorch prints them."""
    if placement.is_replicate():
        return "replicate"
    if placement.is_partial():
        return f"partial {placement.reduce_op}"
    if type(placement).__name__ == "Shard":
        return f"shard {placement.dim}"
    return str(placement)
