"""Report functions and eager operators of TensorFlow 2 to the simulated NPU.

TensorFlow calls *operator callbacks* (tensorflow.python.framework.op_callbacks). For an eager operator the callback
gets the values, and reports them at once. For an operator of a function it is called when the function is traced. It
then inserts an operator into the function, which reports the values when the function runs.
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

#: Types of tensors that contain no numbers.
_FOREIGN = ("resource", "variant", "string")
#: Types that are not reported: inputs of functions, and operators that reporting itself adds. Identity is among the
#: latter: the results of a function pass through an Identity that waits for all reports.
_UNREPORTED = frozenset(("Placeholder", "NoOp", "Identity", "PyFunc", "EagerPyFunc", "PyFuncStateless"))


def watch_functions(process: BridgeProcess, session: GeSession) -> None:
    """Report later calls of tf.functions as graphs of this GE session, and eager operators.

    Raises NotSupported with the fake TensorFlow, which is version 1.15.
    """
    import tensorflow as tf

    try:
        from tensorflow.python.framework import op_callbacks
    except ImportError:
        raise NotSupported(
            "the fake tensorflow is version 1.15, which has neither functions nor eager operators",
            hint="use npu_device.compat.v1 with it, or install a real TensorFlow 2",
        ) from None
    watch = _Watch(process, session)
    kind = type(tf.function(lambda: None))
    real, decorator = kind.__call__, tf.function

    @functools.wraps(real)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return watch.call(self, real, args, kwargs)

    @functools.wraps(decorator)
    def function(func: Any = None, *args: Any, **kwargs: Any) -> Any:
        # On an NPU, GE compiles the function instead of XLA.
        kwargs.update({name: False for name in ("jit_compile", "experimental_compile") if kwargs.get(name)})
        return decorator(func, *args, **kwargs)

    kind.__call__, tf.function = call, function
    op_callbacks.add_op_callback(watch.callback)
    process.undo.append(functools.partial(setattr, tf, "function", decorator))
    process.undo.append(functools.partial(setattr, kind, "__call__", real))
    process.undo.append(functools.partial(op_callbacks.remove_op_callback, watch.callback))
    process.undo.append(watch.end)


class _Running:
    """A traced function that is loaded on the device.

    model  id of the model
    graph  weak reference to TensorFlow's graph of the function
    ops    its operators by name
    step   number of its runs so far
    """

    def __init__(self, model: int, graph: Any, ops: Sequence[Planned]) -> None:
        self.model = model
        self.graph = graph
        self.ops = {op.name: op for op in ops}
        self.step = 0


class _Watch:
    """The callback and the replacement of `tf.function` calls, for one GE session.

    `_now` is the function that runs on the device, None if there is none.
    """

    def __init__(self, process: BridgeProcess, session: GeSession) -> None:
        self._npu = process.npu
        self._session = session
        self._loaded: weakref.WeakKeyDictionary[Any, _Running] = weakref.WeakKeyDictionary()
        self._now: Optional[_Running] = None
        #: Its attribute `call` is True in a thread that is inside a call of a function.
        self._inside = threading.local()
        self._lock = threading.RLock()
        self._on = True

    def end(self) -> None:
        self._on = False

    def call(self, function: Any, real: Any, args: Any, kwargs: Any) -> Any:
        """Call a tf.function as one step. A function that is called inside another one is inlined if possible.

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
        """Load the function if it is new, and run it as one step of its model."""
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
        """Report an eager operator (`graph` is None), or insert the report of a function's operator.

        TensorFlow calls this for each operator.
        """
        import tensorflow as tf

        if not self._on or op_type in _UNREPORTED:
            return
        tensors = [*inputs, *outputs]
        numeric = [tensor.dtype.base_dtype.name not in _FOREIGN for tensor in tensors]
        if graph is None:
            if self._now is None and any(numeric):
                self._report(op_type, op_type, len(inputs), numeric, [t.numpy() for t, n in zip(tensors, numeric) if n])
            return
        name = str(op_name.decode() if isinstance(op_name, bytes) else op_name)
        report = functools.partial(self._report_traced, weakref.ref(graph), op_type, name, len(inputs), numeric)
        tf.numpy_function(report, [tensor for tensor, is_numeric in zip(tensors, numeric) if is_numeric], [])

    def _report_traced(
        self, graph: Any, op_type: str, name: str, count: int, numeric: Sequence[bool], *values: Any
    ) -> None:
        # While the function runs, functions of data sets and bodies of loops run too. Their operators may have the same
        # names, but belong to other graphs.
        running = self._now
        if self._on and running is not None and graph == running.graph and name in running.ops:
            self._report(op_type, name, count, numeric, values, running)

    def _report(
        self,
        op_type: str,
        name: str,
        count: int,
        numeric: Sequence[bool],
        values: Sequence[Any],
        running: Optional[_Running] = None,
    ) -> None:
        """Report an operator to the device.

        count: number of inputs. numeric: for each input and output, True if it has numbers; only these have a value in
        `values`. running: the function of the operator, None for an eager operator.
        """
        remaining = iter(values)
        arrays = [np.asarray(next(remaining)) if is_numeric else np.empty(0, np.uint8) for is_numeric in numeric]
        kind = GE_TYPES.get(op_type, op_type)
        with self._lock:
            self._npu.run_op(
                kind, name, arrays[:count], arrays[count:], model_id=None if running is None else running.model
            )
