"""Report the runs of TensorFlow sessions to the simulated NPU.

The methods of `BaseSession` in `tensorflow.python.client.session` are replaced. A run also fetches the tensors of all
operators that the program's fetches need, and their values are reported. They are fetched in the same run, so no
operator runs twice.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from ascend_dump.fakes.npu_bridge.options import Attributes, Invalid, OptionRefused, read_init_options
from ascend_dump.fakes.npu_bridge.plan import Plan, Spec, make_plan

if TYPE_CHECKING:
    from ascend_dump.fakes.npu_bridge.process import BridgeProcess, GeSession

    _Array = np.ndarray[Any, Any]

__all__ = ["watch_sessions"]

#: The attribute of BaseSession with the process that watches its sessions.
_MARK = "_ascend_dump_watched"


def watch_sessions(process: BridgeProcess) -> None:
    """Let all sessions of this process follow the NPU options in their ConfigProto.

    A second call does nothing. `BridgeProcess.leave` undoes it.
    """
    from tensorflow.python.client import session as module

    cls = module.BaseSession
    if getattr(cls, _MARK, None) is process:
        return
    _Watch(process, module).enter(cls)


class _Model:
    """A graph that is loaded on the device. number: id of the model. step: number of its runs so far."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.plan = plan
        self.number = number
        self.step = 0


class _State:
    """The state of one session.

    config      a copy of its ConfigProto
    attributes  its NPU options, once `checked` is True; None if it has none
    ge          its GE session, opened with its first graph
    models      loaded graphs, by the names of fetches and of fed tensors; None if no operator runs on the device
    running     True while the values of variables are read before a run
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self.attributes: Optional[Attributes] = None
        self.checked = False
        self.ge: Optional[GeSession] = None
        self.models: dict[tuple[object, ...], Optional[_Model]] = {}
        self.running = False


class _Watch:
    """The methods that replace those of BaseSession. `_real` contains the replaced ones."""

    def __init__(self, process: BridgeProcess, module: Any) -> None:
        self._process = process
        self._module = module
        self._states: weakref.WeakKeyDictionary[Any, _State] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        self._real: dict[str, Any] = {}

    def enter(self, cls: Any) -> None:
        for name, replacement in (
            ("__init__", self._init),
            ("run", self._run),
            ("make_callable", self._make_plain_callable),
            ("_make_callable_from_options", self._make_callable),
            ("close", self._close),
        ):
            if not hasattr(cls, name):
                continue
            self._real[name] = real = getattr(cls, name)
            setattr(cls, name, _method(replacement, real))
        setattr(cls, _MARK, self._process)
        self._process.undo.append(functools.partial(self._leave, cls))

    def _leave(self, cls: Any) -> None:
        for name, real in self._real.items():
            setattr(cls, name, real)
        delattr(cls, _MARK)
        for state in self._states.values():
            if state.ge is not None:
                state.ge.close()

    # The replacing methods. Their first argument is the session.

    def _init(self, session: Any, *args: Any, **kwargs: Any) -> None:
        self._real["__init__"](session, *args, **kwargs)
        self._state(session)

    def _run(
        self, session: Any, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        real, state = self._real["run"], self._state(session)
        if state.running or not self._offline(state):
            return real(session, fetches, feed_dict, options, run_metadata)
        graph = session.graph
        fed = dict(_fed(graph, feed_dict))
        handler = self._module._FetchHandler(graph, fetches, {})
        targets, fetched = list(handler.targets()), list(handler.fetches())
        roots = [*(tensor.op for tensor in fetched), *targets]
        if any(op in self._process.init_ops for op in roots):
            self._convert_refusal(
                self._process.initialise, self._convert_refusal(read_init_options, state.config), state.config
            )
        if any(op in self._process.shutdown_ops for op in roots):
            self._process.finalise()
        model = self._model(state, graph, roots, fetched, frozenset(fed))
        if model is None:
            return real(session, fetches, feed_dict, options, run_metadata)
        variables = self._variables(session, state, model.plan)
        result, values = real(session, [fetches, list(model.plan.values)], feed_dict, options, run_metadata)
        computed = dict(zip((tensor.name for tensor in model.plan.values), values))
        self._report(model, {**computed, **variables, **fed})
        return result

    def _make_plain_callable(
        self, session: Any, fetches: Any, feed_list: Any = None, accept_options: bool = False
    ) -> Any:
        """Return a callable that runs the fetches. With a `feed_list`, TensorFlow's own callable calls `run`."""
        call = self._real["make_callable"](session, fetches, feed_list, accept_options)
        if feed_list is not None:
            return call

        def run(**options: Any) -> Any:
            return session.run(fetches, **options) if self._offline(self._state(session)) else call(**options)

        return run

    def _make_callable(self, session: Any, options: Any) -> Any:
        """Return the callable that tf.keras uses for its steps."""
        real, state = self._real["_make_callable_from_options"], self._state(session)
        if not self._offline(state):
            return real(session, options)
        graph, names = session.graph, list(options.feed)
        fetched = [graph.as_graph_element(name) for name in options.fetch]
        roots = [*(tensor.op for tensor in fetched), *(graph.as_graph_element(name) for name in options.target)]
        model = self._model(state, graph, roots, fetched, frozenset(names))
        if model is None:
            return real(session, options)
        wider = type(options)()
        wider.CopyFrom(options)
        wider.fetch.extend(tensor.name for tensor in model.plan.values)
        call = real(session, wider)

        def run(*args: Any, **kwargs: Any) -> Any:
            variables = self._variables(session, state, model.plan)
            results = call(*args, **kwargs)
            values = results[len(fetched) :]
            computed = dict(zip((tensor.name for tensor in model.plan.values), values))
            self._report(model, {**computed, **variables, **dict(zip(names, args))})
            return results[: len(fetched)]

        # TensorFlow's callable has to stay alive as long as `run`, because it releases its handle when it is deleted.
        run.real = call  # type: ignore[attr-defined]
        return run

    def _close(self, session: Any) -> None:
        state = self._states.get(session)
        if state is not None and state.ge is not None:
            state.ge.close()
            state.ge = None
            state.models.clear()
        self._real["close"](session)

    # Helpers of these methods.

    def _state(self, session: Any) -> _State:
        state = self._states.get(session)
        if state is None:
            # The real adapter copies the configuration when the session is created.
            config, copy = getattr(session, "_config", None), None
            if config is not None:
                copy = type(config)()
                copy.CopyFrom(config)
            state = self._states[session] = _State(copy)
        return state

    def _offline(self, state: _State) -> bool:
        """Return True if the session's graphs run on the device. Raises tf.errors.InternalError, ProcessAborted."""
        if not state.checked:
            state.attributes = self._convert_refusal(self._process.attributes, state.config)
            state.checked = True
        return state.attributes is not None and state.attributes.offline

    def _model(
        self, state: _State, graph: Any, roots: Sequence[Any], fetched: Sequence[Any], fed: frozenset[str]
    ) -> Optional[_Model]:
        """Return the graph for these fetches, and load it at the first call; None if no operator runs on the device.

        (assumption npu_bridge.signature)
        """
        names = tuple(sorted({op.name for op in roots} | {tensor.name for tensor in fetched}))
        key = (names, tuple(sorted(fed)))
        with self._lock:
            if key not in state.models:
                plan = make_plan(graph, roots, fed)
                state.models[key] = _Model(plan, self._convert_refusal(self._load, state, plan)) if plan.ops else None
            return state.models[key]

    def _load(self, state: _State, plan: Plan) -> int:
        assert state.attributes is not None, "only sessions on the device load models"
        if state.ge is None:
            init = read_init_options(state.config)
            state.ge = self._process.open_session(state.attributes.options, init=init, config=state.config)
        return state.ge.load(plan.ops)

    def _variables(self, session: Any, state: _State, plan: Plan) -> dict[str, Any]:
        """Return the values of initialised variables before the run, by the names of their tensors.

        (assumption npu_bridge.variables)
        """
        from tensorflow.python.framework import errors

        values: dict[str, Any] = {}
        real = self._real["run"]
        state.running = True
        try:
            try:
                return dict(zip(plan.variables, real(session, list(plan.variables.values())))) if plan.variables else {}
            except errors.FailedPreconditionError:
                pass
            for name, tensor in plan.variables.items():
                try:
                    values[name] = real(session, tensor)
                except errors.FailedPreconditionError:
                    continue
        finally:
            state.running = False
        return values

    def _report(self, model: _Model, values: Mapping[str, Any]) -> None:
        """Report one run to the device. values: by the name of the tensor.

        Raises tf.errors.InternalError if the device lets an operator fail.

        (assumption npu_bridge.loop)
        """
        from ascend_dump.fakes.device.npu import OperatorFailed

        npu = self._process.npu
        with self._lock:
            npu.begin_step(model.number, model.step)
            model.step += 1
            try:
                for op in model.plan.ops:
                    inputs = [_value(values, spec) for spec in op.inputs]
                    outputs = [_value(values, spec) for spec in op.outputs]
                    npu.run_op(op.type, op.name, inputs, outputs, model_id=model.number)
            except OperatorFailed as error:
                raise self._failure(str(error)) from error
            finally:
                npu.end_step(model.number)

    def _convert_refusal(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function. If it raises OptionRefused, raise the TensorFlow error that the adapter would cause."""
        try:
            return function(*args)
        except OptionRefused as refusal:
            raise self._failure(str(refusal), invalid=isinstance(refusal, Invalid)) from None

    def _failure(self, message: str, *, invalid: bool = False) -> Exception:
        from tensorflow.python.framework import errors

        kind = errors.InvalidArgumentError if invalid else errors.InternalError
        error: Exception = kind(None, None, message)
        return error


def _method(replacement: Callable[..., Any], real: Any) -> Any:
    @functools.wraps(real)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return replacement(self, *args, **kwargs)

    return method


def _fed(graph: Any, feed_dict: Optional[Mapping[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each fed tensor. A key of `feed_dict` may be a tuple. Skip keys without a tensor."""
    for key, value in (feed_dict or {}).items():
        pairs: Iterable[tuple[Any, Any]] = zip(key, value) if isinstance(key, (tuple, list)) else ((key, value),)
        for element, part in pairs:
            try:
                tensor = graph.as_graph_element(element, allow_operation=False)
            except (TypeError, ValueError, KeyError):
                continue
            yield tensor.name, _as_array(part, tensor.dtype.as_numpy_dtype)


def _value(values: Mapping[str, Any], spec: Spec) -> _Array:
    """Return the value of a tensor.

    A tensor of known shape that is not in `values`, such as an uninitialised variable, has zeros. Resources, texts
    and tensors of unknown shape that are not in `values` are empty.
    """
    if spec.name in values:
        return np.asarray(values[spec.name])
    if spec.shape is None or -1 in spec.shape or spec.dtype in ("resource", "variant", "string"):
        return np.empty(0, np.uint8)
    from tensorflow.python.framework import dtypes

    return np.zeros(spec.shape, dtypes.as_dtype(spec.dtype).as_numpy_dtype)


def _as_array(value: Any, dtype: Any) -> _Array:
    return np.asarray(value, dtype=dtype)
