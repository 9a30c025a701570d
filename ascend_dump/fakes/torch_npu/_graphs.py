"""NPUGraph, the class of torch_npu for kernels that are captured once and replayed in the same memory.

Sources: torch_npu 2.13, npu/graphs.py; document of aclmdlRICaptureBegin; rt_error_codes.h.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["CaptureCode", "CapturedKernels", "CapturedOperator", "Captures", "captures_of", "make_graphs"]

#: Operators whose arguments `NPUGraph.update` can replace.
_UPDATED = ("npu::npu_fused_infer_attention_score", "npu::npu_fused_infer_attention_score_v2")


class CaptureCode:
    """Error codes of CANN's runtime about the capture of a graph."""

    MODE_NOT_SUPPORT = 107030
    INVALIDATED = 507903


class CapturedOperator:
    """One captured operator.

    args, kwargs  its arguments, with host aliases of the device's tensors
    operands      the input tensors among them
    result        its result in the capture; replays write to the same memory
    replay        a function that runs the operator again
    """

    def __init__(
        self,
        func: Any,
        args: Any,
        kwargs: dict[str, Any],
        operands: Sequence[Any],
        result: Any,
        replay: Callable[[CapturedOperator], None],
    ) -> None:
        self.func, self.args, self.kwargs, self.operands = func, args, kwargs, operands
        self.result = result
        self._replay = replay

    def replay(self) -> None:
        self._replay(self)


class CapturedKernels:
    """The operators of a graph, in the order of the capture. name: the name of the graph on the device."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[CapturedOperator] = []


class Captures:
    """The captures of one process.

    current   the graph that is being captured, None if there is none
    updated   during a task update: the captured operators whose arguments are replaced by those of the next operators
              that the program calls; None otherwise
    broken    True after an operation that is forbidden during a capture; then `end` raises an error
    """

    def __init__(self) -> None:
        self.current: Optional[CapturedKernels] = None
        self.updated: Optional[Iterator[CapturedOperator]] = None
        self.broken = False
        self._numbers = itertools.count(1)
        self._group_start = 0

    def begin(self) -> CapturedKernels:
        self.current, self.broken = CapturedKernels(f"graph_{next(self._numbers)}"), False
        return self.current

    def end(self) -> None:
        """Finish the capture. Raises RuntimeError if it is broken."""
        self.current = None
        if self.broken:
            code = CaptureCode.INVALIDATED
            raise RuntimeError(f"NPU function error: aclmdlRICaptureEnd, error code is {code}\nthe capture is invalid")

    # Task groups: operators whose arguments the program replaces between replays.

    def begin_group(self, stream: Any = None) -> None:
        self._group_start = len(self._capturing("graph_task_group_begin").calls)

    def end_group(self, stream: Any = None) -> list[CapturedOperator]:
        return self._capturing("graph_task_group_end").calls[self._group_start :]

    def begin_update(self, stream: Any, handle: list[CapturedOperator]) -> None:
        self.updated = iter(handle)

    def end_update(self, stream: Any = None) -> None:
        self.updated = None

    def update(self, func: Any, args: Any, kwargs: dict[str, Any], operands: Sequence[Any]) -> Any:
        """Replace the arguments of the next operator of the group, and return the operator's captured result.

        Raises RuntimeError if `func` is not that operator.
        """
        call = next(self.updated or iter(()), None)
        if call is None or call.func._schema.name != func._schema.name:
            captured = "the end of the group" if call is None else call.func._schema.name
            raise RuntimeError(f"NPU graph task update: {func} does not update {captured}")
        call.args, call.kwargs, call.operands = args, kwargs, operands
        return call.result

    def _capturing(self, call: str) -> CapturedKernels:
        if self.current is None:
            raise RuntimeError(f"{call}: no graph is being captured")
        return self.current


_captures: weakref.WeakKeyDictionary[Npu, Captures] = weakref.WeakKeyDictionary()


def captures_of(npu: Npu) -> Captures:
    """Return the captures of the process that uses this device."""
    return _captures.setdefault(npu, Captures())


def make_graphs(npu: Npu, interface: dict[str, Any]) -> dict[str, Any]:
    """Return the functions and classes for graphs in `torch_npu.npu`. interface: the other members of that module."""
    captures = captures_of(npu)
    pools = itertools.count(1)

    def graph_pool_handle() -> tuple[int, int]:
        return next(pools), 0

    return {
        "NPUGraph": _graph_class(captures, graph_pool_handle),
        "graph": _capture_class(interface),
        "graph_pool_handle": graph_pool_handle,
        "graph_task_group_begin": captures.begin_group,
        "graph_task_group_end": captures.end_group,
        "graph_task_update_begin": captures.begin_update,
        "graph_task_update_end": captures.end_update,
        "is_current_stream_capturing": lambda: captures.current is not None,
    }


def _graph_class(captures: Captures, graph_pool_handle: Callable[[], tuple[int, int]]) -> type[Any]:
    class NPUGraph:
        def __init__(self) -> None:
            self._captured: Optional[CapturedKernels] = None
            self._pool: Optional[tuple[int, int]] = None
            self.auto_dispatch_capture = False

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            if captures.current is not None:
                raise RuntimeError("an NPU graph is being captured already: a capture cannot begin in another one")
            self._pool = pool or graph_pool_handle()
            self._captured = captures.begin()

        def capture_end(self) -> None:
            captures.end()

        def replay(self) -> None:
            for call in self._captured.calls if self._captured is not None else ():
                call.replay()

        def reset(self) -> None:
            self._captured = None

        def pool(self) -> Any:
            return self._pool

        def update(self, cpu_update_input: Any) -> None:
            """Replace keyword arguments of the attention operators (`_UPDATED`) of the graph.

            cpu_update_input: one mapping for each of them, or a single mapping for all.
            """
            if not self.auto_dispatch_capture:
                raise RuntimeError("the graph supports no update: capture it with auto_dispatch_capture=True")
            calls = self._captured.calls if self._captured is not None else []
            updated = [call for call in calls if call.func._schema.name in _UPDATED]
            values = list(cpu_update_input) * (len(updated) if len(cpu_update_input) == 1 else 1)
            if len(values) != len(updated):
                raise RuntimeError(f"the graph has {len(updated)} operators to update, and {len(values)} are given")
            for call, keywords in zip(updated, values):
                call.kwargs = {name: keywords.get(name, value) for name, value in call.kwargs.items()}

        def debug_dump(self, debug_path: str) -> None:
            return None

    return NPUGraph


def _capture_class(interface: dict[str, Any]) -> type[Any]:
    class GraphCapture:
        """The context manager of `with torch.npu.graph(g):`."""

        def __init__(
            self,
            npu_graph: Any,
            pool: Any = None,
            stream: Any = None,
            capture_error_mode: str = "global",
            auto_dispatch_capture: bool = False,
            **options: Any,
        ) -> None:
            self._graph = npu_graph
            self._arguments = (pool, capture_error_mode)
            npu_graph.auto_dispatch_capture = auto_dispatch_capture
            self._stream = interface["stream"](stream or interface["Stream"]())

        def __enter__(self) -> None:
            interface["synchronize"]()
            self._stream.__enter__()
            self._graph.capture_begin(*self._arguments)

        def __exit__(self, *error: object) -> None:
            self._stream.__exit__(*error)
            self._graph.capture_end()

    return GraphCapture
