"""A fake of TensorFlow 1.15 in pure Python, with sessions, Estimator and tf.keras for small networks.

    with ascend_dump.fakes.install("tensorflow", "npu_bridge") as npu:
        import tensorflow as tf
        from npu_bridge.npu_init import *

Graphs are run with numpy. ConfigProto is a real protobuf message (`_proto`). With the fake npu_bridge, sessions run on
the simulated NPU.

Differences from TensorFlow:

- Only the operations in `_kernels` and the gradients in `_gradients` exist. The only optimizer is
  GradientDescentOptimizer, and the only layer is Dense. Other names raise NotSupported, which is an AttributeError too.
- Graphs are not optimised before a run. There is one thread, and there are no devices.
- All variables are references (VariableV2), not resources, also those of keras. The rank of a shape has to be known.
- Random numbers come from numpy. They are the same in every run of a program, with or without a seed.
- tf.cond is an operation If, and there are no loops. tf.data has no map. Checkpoints are .npz files.
- Names of gradients, and of operations of keras, differ in detail.
- An Estimator has no hooks of its own. In the steps that it logs, such as the first one, TensorFlow's Estimator also
  fetches the global step. On a device such steps are another graph, whose steps are counted separately.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ascend_dump import NotSupported
from ascend_dump.fakes.tensorflow import _data, _estimator, _gradients, _graph, _hooks, _ops, _session, _variables
from ascend_dump.fakes.tensorflow._keras import Backend, Dense, Sequential
from ascend_dump.fakes.tensorflow._proto import messages

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["modules"]

VERSION = "1.15.0"


class Missing(NotSupported, AttributeError):
    """Raised for a name that the fake lacks. As an AttributeError, it lets hasattr and getattr work as usual."""


def modules(npu: Npu) -> Mapping[str, ModuleType]:
    """Return the modules of TensorFlow, with an empty default graph."""
    _graph.current.begin()
    proto = messages()
    graph = _graph.current
    keras = _keras()
    parts: dict[str, dict[str, Any]] = {
        "tensorflow.errors": dict(_session.ERRORS),
        "tensorflow.nn": dict(_ops.NN),
        "tensorflow.train": _train(),
        "tensorflow.data": {
            name: getattr(_data, name) for name in ("Dataset", "make_one_shot_iterator", "make_initializable_iterator")
        },
        "tensorflow.estimator": {
            name: getattr(_estimator, name)
            for name in ("Estimator", "EstimatorSpec", "ModeKeys", "NanLossDuringTrainingError", "RunConfig")
        },
        "tensorflow.app": {"run": _run_app},
        "tensorflow.logging": _logging(),
        "tensorflow.losses": {
            "mean_squared_error": _mean_squared_error,
            "sparse_softmax_cross_entropy": _cross_entropy,
        },
        "tensorflow.metrics": {"mean": _metric_mean, "accuracy": _metric_accuracy},
        "tensorflow.layers": {"dense": _dense},
        **keras,
    }
    top = {
        **_ops.FUNCTIONS,
        **_variables.FUNCTIONS,
        **_variables.INITIALIZERS,
        **{name: proto[name] for name in ("ConfigProto", "GPUOptions", "GraphOptions", "OptimizerOptions")},
        **{name: proto[name] for name in ("RunMetadata", "RunOptions")},
        **{name: _graph.DType(name) for name in _graph.TYPES},
        **{name: getattr(_graph, name) for name in ("DType", "Graph", "Operation", "Tensor", "TensorShape")},
        "Session": _session.Session,
        "InteractiveSession": _session.InteractiveSession,
        "cond": _session.cond,
        "gradients": _gradients.gradients,
        "GraphKeys": _GraphKeys,
        "as_dtype": _graph.as_dtype,
        "get_default_graph": graph.graph,
        "get_default_session": graph.session,
        "reset_default_graph": graph.reset,
        "name_scope": lambda name, *values: graph.graph().name_scope(name),
        "control_dependencies": lambda inputs: graph.graph().control_dependencies(inputs),
        "set_random_seed": lambda seed: setattr(graph.graph(), "seed", seed),
        "disable_v2_behavior": lambda: None,
        "disable_eager_execution": lambda: None,
        "executing_eagerly": lambda: False,
    }
    python: dict[str, dict[str, Any]] = {
        "tensorflow.core": {},
        "tensorflow.core.protobuf": {},
        "tensorflow.core.protobuf.config_pb2": {
            **{name: proto[name] for name in ("ConfigProto", "GPUOptions", "GraphOptions", "OptimizerOptions")},
            **{name: proto[name] for name in ("RunMetadata", "RunOptions")},
        },
        "tensorflow.core.protobuf.rewriter_config_pb2": {"RewriterConfig": proto["RewriterConfig"]},
        "tensorflow.python": {},
        "tensorflow.python.client": {},
        "tensorflow.python.client.session": {
            **{name: getattr(_session, name) for name in ("BaseSession", "InteractiveSession", "Session")},
            "_FetchHandler": _session.FetchHandler,
        },
        "tensorflow.python.framework": {},
        "tensorflow.python.framework.errors": dict(_session.ERRORS),
        "tensorflow.python.framework.ops": {name: getattr(_graph, name) for name in ("Graph", "Operation", "Tensor")},
        "tensorflow.python.framework.dtypes": {"DType": _graph.DType, "as_dtype": _graph.as_dtype},
        **{f"tensorflow.python.{name.partition('.')[2]}": content for name, content in keras.items()},
    }
    compat = {"as_bytes": _as_bytes, "as_str": _as_text, "as_text": _as_text}
    names = {"__version__": VERSION, **top}
    loaded = {name: _module(name, content) for name, content in {**parts, **python}.items()}
    loaded["tensorflow"] = _module("tensorflow", names)
    loaded["tensorflow.compat"] = _module("tensorflow.compat", compat)
    loaded["tensorflow.compat.v1"] = _module("tensorflow.compat.v1", {**names, "compat": loaded["tensorflow.compat"]})
    for name in parts:
        _, _, last = name.partition(".")
        if "." not in last:
            setattr(loaded["tensorflow.compat.v1"], last, loaded[name])
    return dict(sorted(loaded.items()))


def _module(name: str, content: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = []
    vars(module).update(content)

    def missing(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise Missing(f"the stand-in for {name} has no {attribute!r}", hint="install a real tensorflow")

    module.__getattr__ = missing  # type: ignore[method-assign]  # PEP 562
    return module


def _keras() -> dict[str, dict[str, Any]]:
    backend = Backend()
    sequential = functools.partial(Sequential, backend=backend)
    names = ("set_session", "get_session", "clear_session")
    return {
        "tensorflow.keras": {"Sequential": sequential},
        "tensorflow.keras.backend": {name: getattr(backend, name) for name in names},
        "tensorflow.keras.layers": {"Dense": Dense},
        "tensorflow.keras.models": {"Sequential": sequential},
    }


def _train() -> dict[str, Any]:
    return {
        "GradientDescentOptimizer": _gradients.GradientDescentOptimizer,
        "get_global_step": _gradients.get_global_step,
        "get_or_create_global_step": _gradients.get_or_create_global_step,
        "SessionRunHook": _hooks.SessionRunHook,
        "SessionRunArgs": _hooks.SessionRunArgs,
    }


class _GraphKeys:
    GLOBAL_VARIABLES = _variables.GLOBAL
    LOCAL_VARIABLES = _variables.LOCAL
    TRAINABLE_VARIABLES = _variables.TRAINABLE
    GLOBAL_STEP = _variables.STEP


def _run_app(main: Any = None, argv: Any = None) -> None:
    """`tf.app.run`: call `main`, and end the process with its result."""
    function = main or sys.modules["__main__"].main
    sys.exit(function(argv or sys.argv))


def _logging() -> dict[str, Any]:
    log = logging.getLogger("tensorflow")
    levels = {name: getattr(logging, name) for name in ("DEBUG", "INFO", "WARN", "ERROR", "FATAL")}
    functions = {name: getattr(log, name) for name in ("debug", "info", "warning", "error")}
    return {**levels, **functions, "set_verbosity": log.setLevel, "get_verbosity": log.getEffectiveLevel}


def _as_bytes(value: Any, encoding: str = "utf-8") -> bytes:
    if isinstance(value, str):
        return value.encode(encoding)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise TypeError(f"Expected binary or unicode string, got {value!r}")


def _as_text(value: Any, encoding: str = "utf-8") -> str:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode(encoding)
    if isinstance(value, str):
        return value
    raise TypeError(f"Expected binary or unicode string, got {value!r}")


def _mean_squared_error(labels: Any, predictions: Any) -> Any:
    ops = _ops.FUNCTIONS
    values, targets = ops["cast"](predictions, "float32"), ops["cast"](labels, "float32")
    values.shape.merge_with(targets.shape)
    return ops["reduce_mean"](ops["square"](ops["subtract"](values, targets)))


def _cross_entropy(labels: Any, logits: Any) -> Any:
    labels, logits = (_ops.convert(value) for value in (labels, logits))
    if labels.shape.ndims == logits.shape.ndims:
        labels = _ops.FUNCTIONS["squeeze"](labels, -1)
    loss = _ops.NN["sparse_softmax_cross_entropy_with_logits"](labels=labels, logits=logits)
    return _ops.FUNCTIONS["reduce_mean"](loss)


def _metric_mean(values: Any, name: str = "mean") -> tuple[Any, Any]:
    """`tf.metrics.mean`: return the current mean, and the operation that adds the values of a batch."""
    ops, scope = _ops.FUNCTIONS, name
    with _graph.current.graph().name_scope(scope):
        total, count = (_variables.Variable(0.0, False, [_variables.LOCAL], part) for part in ("total", "count"))
        batch = ops["cast"](values, "float32")
        added = total.assign_add(ops["reduce_sum"](batch))
        counted = count.assign_add(ops["cast"](ops["reduce_prod"](ops["shape"](batch)), "float32"))
        with _graph.current.graph().control_dependencies([added, counted]):
            update = ops["divide"](total.read_value(), count.read_value(), name="update_op")
        return ops["divide"](total, ops["maximum"](count, 1.0), name="value"), update


def _metric_accuracy(labels: Any, predictions: Any, name: str = "accuracy") -> tuple[Any, Any]:
    ops = _ops.FUNCTIONS
    targets = _ops.convert(labels)
    values = ops["cast"](predictions, targets.dtype.base_dtype)
    ranks = values.shape.ndims - targets.shape.ndims
    values, targets = (
        ops["squeeze"](values, -1) if ranks == 1 else values,
        ops["squeeze"](targets, -1) if ranks == -1 else targets,
    )
    values.shape.merge_with(targets.shape)
    same = ops["equal"](values, targets)
    return _metric_mean(same, name)


def _dense(
    inputs: Any,
    units: int,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    name: Any = None,
    trainable: bool = True,
    reuse: Any = None,
    **options: Any,
) -> Any:
    """`tf.layers.dense`: return the output of a dense layer. activation: a function. NotSupported for other options."""
    _variables.refuse_options("tf.layers.dense", options)
    with _variables.variable_scope(name, "dense", reuse=reuse):
        kernel = _variables.get_variable(
            "kernel", [inputs.shape[-1], units], initializer=kernel_initializer, trainable=trainable
        )
        output = _ops.FUNCTIONS["matmul"](inputs, kernel, name="MatMul")
        if use_bias:
            zeros = bias_initializer or _variables.INITIALIZERS["zeros_initializer"]()
            bias = _variables.get_variable("bias", [units], initializer=zeros, trainable=trainable)
            output = _ops.NN["bias_add"](output, bias, name="BiasAdd")
        return output if activation is None else activation(output)
