"""NPUGraph: kernels that are captured once and replayed in the same memory.

Sources: torch_npu 2.13, npu/graphs.py; document of aclmdlRICaptureBegin; rt_error_codes.h.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["CaptureCode", "Captures", "captures_of", "make_graphs"]


class CaptureCode:
    """Codes of the runtime below acl that programs with graphs meet."""

    MODE_NOT_SUPPORT = 107030
    INVALIDATED = 507903


class Captures:
    """The graphs of one process.

    current   the graph in capture, None while kernels run
    broken    True after an operation that a capture forbids: `end` fails
    """

    def __init__(self) -> None:
        self.current: Optional[CapturedKernels] = None
        self.broken = False
        self._number = 0

    def begin(self) -> CapturedKernels:
        self._number += 1
        self.current, self.broken = CapturedKernels(f"graph_{self._number}"), False
        return self.current

    def end(self) -> None:
        """Finish the capture. Raises RuntimeError if it is broken."""
        self.current = None
        if self.broken:
            code = CaptureCode.INVALIDATED
            raise RuntimeError(f"NPU function error: aclmdlRICaptureEnd, error code is {code}\nthe capture is invalid")


class CapturedKernels:
    """The replays of a graph, in order, and the name by which the device identifies it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.replays: list[Callable[[], None]] = []


_captures: weakref.WeakKeyDictionary[Npu, Captures] = weakref.WeakKeyDictionary()


def captures_of(npu: Npu) -> Captures:
    """Return the captures of the process around this device."""
    return _captures.setdefault(npu, Captures())


def make_graphs(npu: Npu, synchronize: Callable[[], None]) -> dict[str, Any]:
    """Return `NPUGraph`, `graph` and `is_current_stream_capturing` of `torch_npu.npu`."""
    captures = captures_of(npu)

    class NPUGraph:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._captured: Optional[CapturedKernels] = None

        def capture_begin(self, *args: Any, **kwargs: Any) -> None:
            self._captured = captures.begin()

        def capture_end(self) -> None:
            captures.end()

        def replay(self) -> None:
            for replay in self._captured.replays if self._captured is not None else ():
                replay()

        def reset(self) -> None:
            self._captured = None

    class GraphCapture:
        def __init__(self, npu_graph: Any, *args: Any, **kwargs: Any) -> None:
            self._graph = npu_graph

        def __enter__(self) -> None:
            synchronize()
            self._graph.capture_begin()

        def __exit__(self, *error: object) -> None:
            self._graph.capture_end()

    return {
        "NPUGraph": NPUGraph,
        "graph": GraphCapture,
        "is_current_stream_capturing": lambda: captures.current is not None,
    }
