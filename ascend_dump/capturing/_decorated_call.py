"""The context in which one call of a decorated function runs: it makes the call one step of the capture."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Optional, Protocol

if TYPE_CHECKING:
    from types import TracebackType

    from ascend_dump.capturing._call_gate import CallGate

__all__ = ["CapturedCalls", "DecoratedCall"]


class CapturedCalls(Protocol):
    """The methods of a capture that `DecoratedCall` uses."""

    @property
    def recording(self) -> bool: ...

    def begin_call(self) -> bool:
        """Count a call. Return True if `end_call` must be called when it returns, as for a call that is a step."""

    def end_call(self, error: Optional[BaseException]) -> None:
        """End the step of a call. error: the exception that the call raised, None if it returned."""


class _ToFinish(Enum):
    """The part of a capture to finish when a call returns."""

    NOTHING = "nothing"  # nested in a step that another call began
    CALL = "call"  # counted as a call, but `steps=` does not select it
    STEP = "step"


class DecoratedCall:
    """The context of one call of a decorated function."""

    __slots__ = ("_capture", "_gate", "_to_finish")

    def __init__(self, gate: CallGate, capture: CapturedCalls) -> None:
        self._gate = gate
        self._capture = capture
        self._to_finish = _ToFinish.NOTHING

    def __enter__(self) -> None:
        # A recursive call, or one from a second thread, runs inside the open step.
        if not self._gate.take(recorded=self._capture.recording):
            return
        try:
            self._to_finish = _ToFinish.STEP if self._capture.begin_call() else _ToFinish.CALL
        except BaseException:
            self._gate.end()
            raise

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._to_finish is _ToFinish.NOTHING:
            return
        try:
            if self._to_finish is _ToFinish.STEP:
                self._capture.end_call(error)
        finally:
            self._gate.end()
