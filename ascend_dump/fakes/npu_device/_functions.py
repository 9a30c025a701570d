"""Functions and eager operators of TensorFlow 2 whose values the simulated NPU receives.

TensorFlow's operator callbacks (tensorflow.python.framework.op_callbacks) see every operator: an eager one with its
values, one of a function while it is traced. Into a function they put an operator that hands over the values when it
runs.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.fakes.npu_bridge.plan import GE_TYPES, Planned, make_plan

if TYPE_CHECKING:
    from ascend_dump.fakes.npu_bridge.process import BridgeProcess, GeSession

__all__ = ["watch_functions"]

_FOREIGN = ("resource", "variant", "string")
#: What brings values into a function, and what the callbacks put there themselves. What a function returns goes through
#: an Identity that waits for everything else in it, the telling included.
_PASSED_OVER = frozenset(("Placeholder", "NoOp", "Identity", "PyFunc", "EagerPyFunc", "PyFuncStateless"))


def watch_functions(process: BridgeProcess, session: GeSession) -> None:
    """From here on each tf.function is a graph of this GE session. Raises NotSupported on the stand-in."""
    import tensorflow as tf

    try:
        from tensorflow.python.framework import op_callbacks
    except ImportError:
        raise NotSupported(
            "the stand-in for tensorflow is 1.15, it has neither functions nor eager operators",
            hint="use npu_device.compat.v1 with it, or install a real tensorflow 2",
        ) from None
    watch = _Watch(process, session)
    kind = type(tf.function(lambda: None))
    real, decorator = kind.__call__, tf.function

    @functools.wraps(real)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return watch.call(self, real, args, kwargs)

    @functools.wraps(decorator)
    def function(func: Any = None, *args: Any, **kwargs: Any) -> Any:
        # The device compiles, XLA does not.
        kwargs.update({name: False for name in ("jit_compile", "experimental_compile") if kwargs.get(name)})
        return decorator(func, *args, **kwargs)

    kind.__call__, tf.function = call, function
    op_callbacks.add_op_callback(watch.callback)
    process.undo.append(functools.partial(setattr, tf, "function", decorator))
    process.undo.append(functools.partial(setattr, kind, "__call__", real))
    process.undo.append(functools.partial(op_callbacks.remove_op_callback, watch.callback))
    process.undo.append(watch.end)


class _Running:
    """A loaded function: its model, its graph, its operators by name, and how often it has run."""

    def __init__(self, model: int, graph: Any, ops: Sequence[Planned]) -> None:
        self.model = model
        self.graph = graph
        self.ops = {op.name: op for op in ops}
        self.step = 0


class _Watch:
    def __init__(self, process: BridgeProcess, session: GeSession) -> None:
        self._npu = process.npu
        self._session = session
        self._loaded: weakref.WeakKeyDictionary[Any, _Running] = weakref.WeakKeyDictionary()
        self._now: Optional[_Running] = None
        #: Whether a thread is in a call of a function already.
        self._inside = threading.local()
        self._lock = threading.RLock()
        self._on = True

    def end(self) -> None:
        self._on = False

    def call(self, function: Any, real: Any, args: Any, kwargs: Any) -> Any:
        """One call of a tf.function: a step. One that is called inside another is inlined, as far as it can be.

        (assumption npu_device.function_step)
        """
        import tensorflow as tf

        if not self._on or tf.config.functions_run_eagerly():
            return real(function, *args, **kwargs)
        if getattr(self._inside, "call", False):
            try:
                return function._python_function(*args, **kwargs)
            except Exception:
                return real(function, *args, **kwargs)
        if self._now is not None or not tf.executing_eagerly():
            return real(function, *args, **kwargs)
        self._inside.call = True
        try:
            return self._step(function, real, args, kwargs)
        finally:
            self._inside.call = False

    def _step(self, function: Any, real: Any, args: Any, kwargs: Any) -> Any:
        concrete = function.get_concrete_function(*args, **kwargs)
        running = self._loaded.get(concrete)
        if running is None:
            plan = make_plan(concrete.graph, concrete.graph.get_operations(), frozenset())
            if not plan.ops:
                return real(function, *args, **kwargs)
            graph = weakref.ref(concrete.graph)
            running = self._loaded[concrete] = _Running(self._session.load(plan.ops), graph, plan.ops)
        self._npu.begin_step(running.model, running.step)
        self._now = running
        try:
            return real(function, *args, **kwargs)
        finally:
            self._now = None
            running.step += 1
            self._npu.end_step(running.model)

    def callback(
        self, op_type: str, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        """Called by TensorFlow for every operator."""
        import tensorflow as tf

        if not self._on or op_type in _PASSED_OVER:
            return
        tensors = [*inputs, *outputs]
        numeric = [each.dtype.base_dtype.name not in _FOREIGN for each in tensors]
        if graph is None:
            if self._now is None and any(numeric):
                self._tell(op_type, op_type, len(inputs), numeric, [t.numpy() for t, n in zip(tensors, numeric) if n])
            return
        name = str(op_name.decode() if isinstance(op_name, bytes) else op_name)
        tell = functools.partial(self._tell_traced, weakref.ref(graph), op_type, name, len(inputs), numeric)
        tf.numpy_function(tell, [each for each, is_numeric in zip(tensors, numeric) if is_numeric], [])

    def _tell_traced(
        self, graph: Any, op_type: str, name: str, count: int, numeric: Sequence[bool], *values: Any
    ) -> None:
        # A data set's functions run beside it, bodies of loops inside it: their operators may have the same names.
        running = self._now
        if self._on and running is not None and graph == running.graph and name in running.ops:
            self._tell(op_type, name, count, numeric, values, running)

    def _tell(
        self,
        op_type: str,
        name: str,
        count: int,
        numeric: Sequence[bool],
        values: Sequence[Any],
        running: Optional[_Running] = None,
    ) -> None:
        left = iter(values)
        arrays = [np.asarray(next(left)) if is_numeric else np.empty(0, np.uint8) for is_numeric in numeric]
        kind = GE_TYPES.get(op_type, op_type)
        with self._lock:
            self._npu.run_op(
                kind, name, arrays[:count], arrays[count:], model_id=None if running is None else running.model
            )
