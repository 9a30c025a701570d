"""The backend `hccl` of torch.distributed, implemented with gloo.

A collective on tensors of the device runs in a gloo group, on the host aliases of the tensors. It is not reported as a
kernel, because CANN's dumps do not contain HCCL's collectives.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
import torch.distributed as distributed

from ascend_dump.fakes.torch_npu._backend import Operands

__all__ = ["register_hccl"]

NAME = "hccl"
_COLLECTIVES = (
    *("_allgather_base_", "_reduce_scatter_base_", "allgather_", "allgather_coalesced_", "allreduce_", "barrier"),
    *("allgather_into_tensor_coalesced_", "allreduce_coalesced_", "alltoall_", "alltoall_base_", "broadcast_"),
    *("gather_", "recv_", "recv_any_source_", "reduce_", "reduce_scatter_", "reduce_scatter_tensor_coalesced_"),
    *("scatter_", "send"),
)
#: Backend of a process group -> the group of gloo that runs its collectives on the host.
_host_groups: dict[Any, Any] = {}


@functools.cache
def register_hccl() -> None:
    """Register the backend and its collectives, once in a process."""
    if not distributed.is_available():
        return
    distributed.Backend.register_backend(NAME, _create, devices=["npu"])
    library = torch.library.Library("c10d", "IMPL")
    _libraries.append(library)
    with warnings.catch_warnings():
        # PyTorch warns because it has kernels for its private device, which are replaced here.
        warnings.simplefilter("ignore")
        for name in _COLLECTIVES:
            operator = getattr(torch.ops.c10d, name).default
            library.impl(name, functools.partial(_run_on_host, operator), "PrivateUse1", allow_override=True)


_libraries: list[Any] = []


def _create(store: Any, rank: int, size: int, timeout: Any) -> Any:
    backend = distributed.ProcessGroupGloo(store, rank, size, timeout=timeout)
    host_group = distributed.ProcessGroup(store, rank, size)
    host_group._set_default_backend(distributed.ProcessGroup.BackendType.GLOO)
    host_group._register_backend(torch.device("cpu"), distributed.ProcessGroup.BackendType.GLOO, backend)
    _host_groups[backend] = host_group
    return backend


def _run_on_host(operator: Any, *args: Any) -> Any:
    operands = Operands()
    lowered = [_host_group(value) if _is_group(value) else operands.lower(value) for value in args]
    return operands.lift(operator(*lowered), operands.index or 0)


def _is_group(value: Any) -> bool:
    return isinstance(value, torch.ScriptObject) and value._type().name() == "ProcessGroup"


def _host_group(boxed: Any) -> Any:
    group = distributed.ProcessGroup.unbox(boxed)
    host_group = _host_groups.get(group._get_backend(torch.device("npu")))
    # If the program uses gloo for both devices, the group itself can run on the host.
    return boxed if host_group is None else host_group.boxed()
