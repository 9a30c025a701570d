"""acl's state in one process: initialisation, the dump interface, devices, contexts and streams.

The order of checks and the codes are those of acl's `acl.cpp` and `toolchain/dump.cpp`.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump.fakes.acl._memory import Memory, RtError
from ascend_dump.native.cann.acl_codes import AclError

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["AclProcess", "process_of"]

#: Number of bytes that a process can allocate.
_MEMORY = 1 << 34
#: The first handle of an object, and the distance to the next one. Handles look like addresses, but point to no memory.
_FIRST_HANDLE, _STEP = 0x7F0000000000, 0x40


class AclProcess:
    """acl's state in one process that uses the simulated device `npu`."""

    def __init__(self, npu: Npu) -> None:
        self.npu = npu
        self.memory = Memory(_MEMORY)
        self.initialised = False
        self._finalised = False
        self._first_config: Optional[str] = None
        self._dump_begun = False
        self._message = ""
        #: The function with which `finalize` unloads all models.
        self.unload_models: Callable[[], None] = lambda: None
        self._handles = itertools.count(_FIRST_HANDLE, _STEP)
        self._objects: dict[int, Any] = {}
        self._thread = threading.local()

    # Initialisation.

    def init(self, config: Optional[str] = None) -> int:
        # (assumption acl.init_twice)
        if self.initialised:
            return self.fail(AclError.REPEAT_INITIALIZE, "acl.init has been called already")
        digest = _digest(_path(config)) if config else None
        if digest is not None and self._first_config not in (None, digest):
            return self.fail(AclError.INVALID_PARAM, "the configuration differs from that of the first acl.init")
        code = self._arm(config) if config else AclError.SUCCESS
        if code != AclError.SUCCESS:
            return code
        self._first_config = self._first_config or digest
        self.initialised = True
        self._finalised = False
        return AclError.SUCCESS

    def finalize(self) -> int:
        if self._finalised:
            return self.fail(AclError.REPEAT_FINALIZE, "acl.finalize has been called already")
        # If acl was never initialised, the call succeeds and does nothing.
        if self.initialised:
            self.npu.disarm_acl()
            self.unload_models()
            self._dump_begun = self.initialised = False
            self._finalised = True
        return AclError.SUCCESS

    # Dump.

    def init_dump(self) -> int:
        # (assumption acl.init_dump_twice)
        # (assumption acl.init_dump_after_init)
        if not self.initialised:
            return self._too_early("acl.init", "acl.mdl.init_dump")
        if self._dump_begun:
            return self.fail(AclError.REPEAT_INITIALIZE, "EP0008 acl.mdl.init_dump failed. This API cannot be repeated")
        self._dump_begun = True
        return AclError.SUCCESS

    def set_dump(self, config: Optional[str]) -> int:
        # (assumption acl.refused_leaves_interface)
        refused = self._dump_refused("acl.mdl.set_dump")
        if refused:
            return refused
        if config is None:
            return self.fail(AclError.INVALID_PARAM, "EP0007 acl.mdl.set_dump failed because dumpCfgPath is NULL")
        return self._arm(_path(config))

    def finalize_dump(self) -> int:
        # (assumption acl.begin_again)
        # (assumption acl.finalize_ends_init)
        refused = self._dump_refused("acl.mdl.finalize_dump")
        if refused:
            return refused
        self.npu.disarm_acl()
        self._dump_begun = False
        return AclError.SUCCESS

    def _dump_refused(self, call: str) -> int:
        # (assumption acl.set_dump_first)
        if not self.initialised:
            return self._too_early("acl.init", call)
        if not self._dump_begun:
            return self._too_early("acl.mdl.init_dump", call, AclError.DUMP_NOT_RUN)
        return AclError.SUCCESS

    def _arm(self, config: str) -> int:
        code = int(self.npu.arm_acl(config))
        if code == AclError.SUCCESS:
            return code
        return self.fail(code, "; ".join(error.message for error in self.npu.errors) or f"{config} is refused")

    def _too_early(self, first: str, call: str, code: int = AclError.UNINITIALIZE) -> int:
        return self.fail(code, f"EP0008 {call} failed. Reason: {first} must be executed before {call} is called.")

    def fail(self, code: int, message: str) -> int:
        self._message = message
        return code

    def recent_message(self) -> str:
        """Return and clear the message of the last failure."""
        message, self._message = self._message, ""
        return message

    # Devices, contexts, streams.

    @property
    def context(self) -> int:
        """The handle of this thread's context, 0 if it has none."""
        context: int = getattr(self._thread, "context", 0)
        return context

    def set_device(self, device: int) -> int:
        if device != self.npu.device_id:
            return self.fail(RtError.INVALID_DEVICEID, f"there is no device {device}, only {self.npu.device_id}")
        self._thread.context = self.add(("context", device))
        return AclError.SUCCESS

    def reset_device(self, device: int) -> int:
        if device != self.npu.device_id:
            return RtError.INVALID_DEVICEID
        self._thread.context = 0
        return AclError.SUCCESS

    def create_context(self, device: int) -> tuple[int, int]:
        code = self.set_device(device)
        return (self.context, code) if code == AclError.SUCCESS else (0, code)

    def set_context(self, context: int) -> int:
        if self.get(context, "context") is None:
            return RtError.CONTEXT_NULL
        self._thread.context = context
        return AclError.SUCCESS

    def get_context(self) -> tuple[int, int]:
        return (self.context, AclError.SUCCESS if self.context else RtError.CONTEXT_NULL)

    def destroy_context(self, context: int) -> int:
        if self.context == context:
            self._thread.context = 0
        return self.remove(context, "context")

    def create_stream(self) -> tuple[int, int]:
        if not self.context:
            return 0, RtError.CONTEXT_NULL
        return self.add(("stream", [])), AclError.SUCCESS

    def enqueue(self, stream: int, work: Callable[[], int]) -> int:
        """Add work to a stream, and return a code. The work is done when the stream is synchronised.

        In the default stream, 0, the work is done at once, and its own code is returned.
        """
        if not self.context:
            return RtError.CONTEXT_NULL
        if not stream:
            return work()
        queue = self.get(stream, "stream")
        if queue is None:
            return RtError.STREAM_CONTEXT
        queue.append(work)
        return AclError.SUCCESS

    def synchronize_stream(self, stream: int) -> int:
        if not stream:
            return AclError.SUCCESS
        queue = self.get(stream, "stream")
        if queue is None:
            return RtError.STREAM_CONTEXT
        codes = [work() for work in queue]
        queue.clear()
        return next((code for code in codes if code), AclError.SUCCESS)

    def synchronize_device(self) -> int:
        streams = [handle for handle, (kind, _) in self._objects.items() if kind == "stream"]
        codes = [self.synchronize_stream(stream) for stream in streams]
        return next((code for code in codes if code), AclError.SUCCESS)

    # Objects that the program refers to by handles.

    def add(self, item: tuple[str, Any]) -> int:
        handle = next(self._handles)
        self._objects[handle] = item
        return handle

    def get(self, handle: int, kind: str) -> Any:
        """Return the object with this handle; None if there is none, or if it is of another kind."""
        actual_kind, value = self._objects.get(handle, ("", None))
        return value if actual_kind == kind else None

    def remove(self, handle: int, kind: str) -> int:
        if self._objects.get(handle, ("", None))[0] != kind:
            return AclError.INVALID_PARAM
        del self._objects[handle]
        return AclError.SUCCESS


def process_of(npu: Npu) -> AclProcess:
    """Return acl's state for a device, created at the first call. All fakes that use the device share it."""
    if npu.process is None:
        npu.process = AclProcess(npu)
    process: AclProcess = npu.process
    return process


def _path(config: object) -> str:
    """Return the path if it is text. Raises TypeError for a `pathlib.Path`, as pyACL does."""
    if not isinstance(config, str):
        raise TypeError(f"argument must be str, not {type(config).__name__}")
    return config


def _digest(path: str) -> Optional[str]:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None
