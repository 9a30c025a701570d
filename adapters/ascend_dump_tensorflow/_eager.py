"""Record eager operators with TensorFlow's operator callbacks.

A `tf.function` normally runs as one graph. While a step is recorded, such functions run eagerly, so that callbacks see
their operators, including those in loop bodies and branches.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump.writing import Item, Payload
from ascend_dump_tensorflow._arrays import RecordedTensor, line_of, payload_of

if TYPE_CHECKING:
    from ascend_dump.writing import HostWriter

__all__ = ["EagerRecorder"]

log = logging.getLogger("ascend_dump")

#: Path parts of files that are not user code: installed packages, frozen modules, this adapter, the standard library.
_LIBRARIES = (
    *(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages")),
    *("<frozen ", os.path.dirname(os.path.abspath(__file__)) + os.sep, os.path.dirname(os.__file__) + os.sep),
)

#: The function of TensorFlow in which a tape computes gradients, in a file of this name.
_TAPE = "imperative_grad"
_GRADIENTS = "gradient_tape/"

#: The active recorders.
_recording: list[EagerRecorder] = []
#: True if functions already ran eagerly before the first recorder started.
_ran_eagerly = False


def _run_functions_eagerly(recorder: EagerRecorder, config: Any) -> None:
    global _ran_eagerly
    if not _recording:
        _ran_eagerly = config.functions_run_eagerly()
    _recording.append(recorder)
    if not config.functions_run_eagerly():
        config.run_functions_eagerly(True)


def _run_functions_as_before(recorder: EagerRecorder, config: Any) -> None:
    if recorder not in _recording:
        return
    _recording.remove(recorder)
    if not _recording and not _ran_eagerly:
        config.run_functions_eagerly(False)


class EagerRecorder:
    """Records the operators that the current thread executes between `begin_step` and `end_step`."""

    def __init__(
        self, selects: Callable[[str], bool], inputs: bool, outputs: bool, fail: Callable[[Exception], None]
    ) -> None:
        """Create an idle recorder. fail: a function that gets exceptions of the recording, which must not be raised."""
        self.recording = False
        self._fail = fail
        self._thread = 0
        self._selects = selects
        self._inputs = inputs
        self._outputs = outputs
        self._writer: Optional[HostWriter] = None
        self._names: dict[str, int] = {}
        self._seq = 0
        #: Payloads of this step by the id of the tensor. The weak reference shows whether the id was reused.
        self._payloads: dict[int, tuple[weakref.ref[Any], Optional[Payload]]] = {}

    def begin_step(self, writer: HostWriter) -> None:
        import tensorflow as tf
        from tensorflow.python.framework import op_callbacks

        self._writer = writer
        self._names, self._payloads, self._seq = {}, {}, 0
        _run_functions_eagerly(self, tf.config)
        op_callbacks.add_op_callback(self._executed)
        self._thread = threading.get_ident()
        self.recording = True

    def end_step(self) -> None:
        if self._writer is None:
            return
        import tensorflow as tf
        from tensorflow.python.framework import op_callbacks

        self.recording = False
        if threading.get_ident() == self._thread:
            op_callbacks.remove_op_callback(self._executed)
        else:
            # A callback can be removed only by its own thread, so it stays, and does nothing.
            log.warning("the capture was ended in another thread than the one it recorded")
        _run_functions_as_before(self, tf.config)
        self._payloads = {}
        self._writer = None

    def _executed(
        self, op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        # If `graph` is given, the operator is added to a graph, and does not run.
        if graph is None and self.recording:
            try:
                self._record(op_type.decode() if isinstance(op_type, bytes) else str(op_type), inputs, outputs)
            except Exception as error:
                self.recording = False
                self._fail(error)

    def _record(self, op_type: str, inputs: Any, outputs: Any) -> None:
        source, is_gradient = _call_site()
        name = self._name(op_type, is_gradient=is_gradient)
        if not self._selects(name):
            return
        now = time.time_ns() // 1000
        items: list[Item] = []
        new = 0
        for io, is_recorded, tensors in (("input", self._inputs, inputs), ("output", self._outputs, outputs)):
            for index, tensor in enumerate(tensors or () if is_recorded else ()):
                before = len(self._payloads)
                payload = self._payload(tensor)
                if payload is not None:
                    recorded = RecordedTensor(op_type, name, io, index, now, payload, _device(tensor), source)
                    items.append(Item(line_of(recorded, self._seq), payload))
                    new += payload.nbytes if len(self._payloads) != before else 0
        self._seq += 1
        if items and self._writer is not None:
            self._writer.put(items, new)

    def _name(self, op_type: str, *, is_gradient: bool) -> str:
        """Return a name like those in a graph: name scope and type, and a number from the second occurrence on.

        In graphs of functions TensorFlow runs gradients in the scope gradient_tape, eagerly in none.
        """
        from tensorflow.python.eager import context

        scope = context.context().scope_name or ""
        if is_gradient and not scope.startswith(_GRADIENTS):
            scope = f"{_GRADIENTS}{scope}"
        name = f"{scope}{op_type}"
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return f"{name}_{count}" if count else name

    def _payload(self, tensor: Any) -> Optional[Payload]:
        entry = self._payloads.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            return entry[1]
        if not hasattr(tensor, "numpy") or tensor.dtype.name in ("resource", "variant", "string"):
            return None
        payload = payload_of(tensor.numpy() if tensor.shape.rank else _scalar(tensor))
        self._payloads[id(tensor)] = (weakref.ref(tensor), payload)
        return payload


def _scalar(tensor: Any) -> Any:
    import numpy as np

    return np.asarray(tensor.numpy())


def _device(tensor: Any) -> str:
    device = str(getattr(tensor, "device", "")).rpartition("device:")[2].lower()
    return "cpu" if device.startswith("cpu") or not device else device


def _call_site() -> tuple[str, bool]:
    """Return FILE:LINE of the innermost frame of the user's program, or "", and True if a tape computes gradients."""
    frame = sys._getframe(1)
    source, is_gradient = "", False
    while frame is not None:
        code = frame.f_code
        if not source and not any(part in code.co_filename for part in _LIBRARIES):
            source = f"{code.co_filename}:{frame.f_lineno}"
        is_gradient = is_gradient or (code.co_name == _TAPE and code.co_filename.endswith(f"{_TAPE}.py"))
        frame = frame.f_back  # type: ignore[assignment]
    return source, is_gradient
