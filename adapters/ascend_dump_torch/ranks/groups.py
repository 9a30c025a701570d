"""Number the collective calls of each process group, so that the calls of different ranks can be matched."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import Any, Callable, Optional

import torch

from ascend_dump.dump_format import CollectiveCall, ranks_text

__all__ = ["GroupCalls", "Reductions", "kind_of_collective"]

_C10D: Any = None
with contextlib.suppress(ImportError, AttributeError):
    _C10D = torch._C._distributed_c10d
#: `CollectiveCall.kind` by the name of an operator of c10d, or of a functional collective, without leading and trailing
#: underscores.
_KINDS = {
    **dict.fromkeys(("allreduce", "all_reduce", "allreduce_coalesced", "all_reduce_coalesced"), "all_reduce"),
    **dict.fromkeys(
        (
            *("allgather", "allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced"),
            *("all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_gather_into_tensor_out"),
        ),
        "all_gather",
    ),
    **dict.fromkeys(
        (
            *("reduce_scatter", "reduce_scatter_base", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
            "reduce_scatter_tensor_out",
        ),
        "reduce_scatter",
    ),
    **dict.fromkeys(("alltoall", "alltoall_base", "all_to_all_single"), "all_to_all"),
    **{name: name for name in ("broadcast", "reduce", "gather", "scatter", "send", "recv", "barrier")},
    "monitored_barrier": "barrier",
    "recv_any_source": "recv",
}
#: Prefixes of the methods of a process group that take a reduction operation.
_REDUCING = ("allreduce", "reduce", "_reduce_scatter_base")


def kind_of_collective(namespace: str, base: str) -> str:
    """Return `CollectiveCall.kind` of an operator; "" if it is not a collective."""
    if namespace not in ("c10d", "c10d_functional", "_c10d_functional"):
        return ""
    return _KINDS.get(base.strip("_"), "")


class Reductions:
    """A context that notes the operation (such as sum or max) of each reduction that the program starts.

    This context is needed because dispatch modes get only an opaque object for the operation. The operation stays
    unknown if PyTorch starts the reduction itself, as in DistributedDataParallel.
    """

    def __init__(self, guard: Callable[..., Any]) -> None:
        self._guard = guard
        self._running = threading.local()
        self._before: list[tuple[str, Any]] = []

    @property
    def now(self) -> str:
        """The operation of the reduction that this thread is calling; "" if it is not known."""
        return getattr(self._running, "name", "")

    def __enter__(self) -> None:
        group = None if _C10D is None else _C10D.ProcessGroup
        for name in dir(group) if group is not None else ():
            if name.startswith(_REDUCING):
                self._before.append((name, group.__dict__.get(name)))
                setattr(group, name, self._wrap(getattr(group, name)))

    def __exit__(self, *error: object) -> None:
        for name, original in self._before:
            if original is None:  # inherited
                delattr(_C10D.ProcessGroup, name)
            else:
                setattr(_C10D.ProcessGroup, name, original)
        self._before = []

    def _begin(self, values: tuple[Any, ...]) -> None:
        self._running.name = "sum"  # the default
        for value in values:
            operation = getattr(value, "reduceOp", value)
            if isinstance(operation, (_C10D.ReduceOp, _C10D.ReduceOp.RedOpType)):
                operation = getattr(operation, "op", operation)
                self._running.name = str(operation).rpartition(".")[2].lower()

    def _wrap(self, method: Any) -> Any:
        def wrapped(group: Any, *args: Any, **kwargs: Any) -> Any:
            self._guard(self._begin, (*args, *kwargs.values()))
            try:
                return method(group, *args, **kwargs)
            finally:
                self._running.name = ""

        return wrapped


class GroupCalls:
    """Counts the collectives per process group in a step of one rank."""

    def __init__(self, reductions: Reductions) -> None:
        self._reductions = reductions
        self._calls: Counter[tuple[Any, ...]] = Counter()
        #: The ranks of each group seen in this step, by the name of the group.
        self._ranks: dict[str, tuple[int, ...]] = {}

    def begin_step(self) -> None:
        self._calls.clear()
        self._ranks.clear()  # another group may have this name now

    def describe(self, kind: str, names: tuple[str, ...], args: Any, kwargs: Any) -> Optional[CollectiveCall]:
        """Describe a call of a collective from its arguments; None if its group cannot be determined."""
        arguments = {**dict(zip(names, args)), **kwargs}
        name, ranks = self._group(arguments)
        if name is None:
            return None
        peer, tag, root = arguments.get("dst", arguments.get("src")), arguments.get("tag"), arguments.get("root_rank")
        peer = ranks[peer] if isinstance(peer, int) and 0 <= peer < len(ranks) else None
        root = ranks[root] if isinstance(root, int) and 0 <= root < len(ranks) else None
        if kind not in ("send", "recv"):
            peer = tag = None
        reduce = arguments.get("reduce_op")
        reduce = reduce if isinstance(reduce, str) else self._reductions.now if reduce is not None else ""
        key = (kind, name, peer, tag)
        nth = self._calls[key]
        self._calls[key] += 1
        return CollectiveCall(kind, name, ranks_text(ranks), nth, reduce.lower(), root, peer, tag or 0)

    def _group(self, arguments: dict[str, Any]) -> tuple[Optional[str], tuple[int, ...]]:
        group = arguments.get("process_group")
        name = arguments.get("group_name")
        if isinstance(group, torch.ScriptObject):
            group = _C10D.ProcessGroup.unbox(group)
            name = group.group_name
        if not isinstance(name, str):
            return None, ()
        if name not in self._ranks:
            try:
                if group is None:
                    group = torch.distributed.distributed_c10d._resolve_process_group(name)
                self._ranks[name] = tuple(torch.distributed.get_process_group_ranks(group))
            except (RuntimeError, ValueError, KeyError):
                return None, ()
        return name, self._ranks[name]
