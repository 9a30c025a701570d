"""Streams and events of the simulated NPU. Kernels run when they are requested, so there is nothing to wait for."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any, Callable, Optional

import torch

__all__ = ["make_streams"]

_NPU = torch._C._autograd.DeviceType.PrivateUse1.value


class Stream(torch.Stream):  # type: ignore[misc]  # torch is not typed where mypy runs
    """A stream of one device. The stream with number 0 is the default stream."""

    _numbers = itertools.count(1)

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        index = torch.device(device).index if device is not None and not isinstance(device, int) else device
        number = kwargs.get("stream_id", next(cls._numbers) if not kwargs else 0)
        device_index = kwargs.get("device_index", torch.npu.current_device() if index is None else index)
        return super().__new__(cls, stream_id=number, device_index=device_index, device_type=_NPU)

    @property
    def npu_stream(self) -> int:
        """The number of the stream. On a device it is the stream's address."""
        return int(self.stream_id)

    def synchronize(self) -> None:
        torch.npu.synchronize()

    def wait_stream(self, stream: Any) -> None:
        return None

    def wait_event(self, event: Any) -> None:
        return None

    def record_event(self, event: Any = None) -> Any:
        recorded = Event() if event is None else event
        recorded.record(self)
        return recorded

    def query(self) -> bool:
        return True

    def set_data_preprocess_stream(self, is_data_preprocess_stream: bool = False) -> None:
        return None

    def __enter__(self) -> Any:
        self._context = torch.npu.stream(self)
        return self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)


class ExternalStream(Stream):
    """A stream that the program itself created with acl."""

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> Any:
        return super().__new__(cls, device, stream_id=stream_ptr)


class SyncLaunchStream(Stream):
    """A stream that on a device has no task queue on the host. Here it is like other streams."""


class Event:
    """A point in a stream. Times are those of the host's clock."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timed = enable_timing
        self._recorded: Optional[float] = None

    def record(self, stream: Any = None) -> None:
        self._recorded = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        return None

    def reset(self, stream: Any = None) -> None:
        self._recorded = None

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to another one.

        Raises RuntimeError if one of them is not recorded, or was created without timing.
        """
        if not self._timed or not end_event._timed or self._recorded is None or end_event._recorded is None:
            raise RuntimeError("Both events must be recorded, and created with enable_timing=True")
        return (end_event._recorded - self._recorded) * 1000

    def recorded_time(self) -> float:
        """Return the time of the event in milliseconds since an unspecified moment; 0 if it is not recorded."""
        return (self._recorded or 0.0) * 1000


class ExternalEvent(Event):
    """An event that a captured graph waits for."""


class _CurrentStreams(threading.local):
    """The current stream of each device in one thread, by the number of the device."""

    def __init__(self) -> None:
        self.by_device: dict[int, Stream] = {}


def make_streams(current_device: Callable[[], int]) -> dict[str, Any]:
    """Return the members of `torch_npu.npu` for streams and events. current_device: returns the current device."""
    streams = _CurrentStreams()

    def default_stream(device: Any = None) -> Stream:
        stream: Stream = Stream(stream_id=0, device_index=_index(device))
        return stream

    def current_stream(device: Any = None) -> Stream:
        index = _index(device)
        return streams.by_device.get(index) or default_stream(index)

    def set_stream(stream: Optional[Stream]) -> None:
        if stream is not None:
            streams.by_device[stream.device_index] = stream

    def _index(device: Any) -> int:
        index = device if device is None or isinstance(device, int) else torch.device(device).index
        return current_device() if index is None else index

    class StreamContext:
        """The context manager of `with torch.npu.stream(s):`. For None it does nothing."""

        def __init__(self, stream_ctx: Optional[Stream]) -> None:
            self.stream = stream_ctx

        def __enter__(self) -> Any:
            if self.stream is not None:
                self.src_prev_stream = current_stream(self.stream.device_index)
                set_stream(self.stream)
            return self.stream

        def __exit__(self, *error: object) -> None:
            if self.stream is not None:
                set_stream(self.src_prev_stream)

    classes = (Stream, ExternalStream, SyncLaunchStream, Event, ExternalEvent, StreamContext)
    functions = (default_stream, current_stream, set_stream)
    return {**{each.__name__: each for each in (*classes, *functions)}, "stream": StreamContext}
