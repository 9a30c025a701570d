"""Compute an offline model operator by operator, and report its operators to the simulated device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from ascend_dump import ConfigError
from ascend_dump.fakes.device.offline_model import find_dtype
from ascend_dump.fakes.kernels.npu_ops import compute

if TYPE_CHECKING:
    from ascend_dump.fakes.device.offline_model import OfflineModel

    _Array = np.ndarray[Any, Any]

__all__ = ["output_specs", "run_graph"]

#: Types that stand for inputs, constants and outputs of a graph: the device does not run them.
_NO_OPERATOR = ("Const", "Constant", "Data", "NetOutput")


def run_graph(
    graph: OfflineModel,
    feeds: Mapping[str, _Array],
    run_op: Callable[..., None],
    device_memory: Callable[[], Mapping[str, tuple[_Array, ...]]],
) -> dict[str, _Array]:
    """Compute a graph, and return its outputs by `name:output`.

    feeds: the inputs by name. run_op: reports an operator. device_memory: returns outputs that the device has changed
    (`Npu.trample`), which later operators read. Raises ConfigError for wrong feeds, NotSupported for an operator that
    the device lacks.
    """
    values = _feed(graph, feeds)
    for node in graph.nodes:
        inputs = [_value(values, port) for port in node.inputs]
        outputs = (node.const,) if node.const is not None else compute(node.type, node.name, inputs, node.attrs)
        values[node.name] = outputs
        if node.type in _NO_OPERATOR:
            continue
        attrs = {"_no_task": node.no_task}
        run_op(node.type, node.name, inputs, outputs, original_names=node.original_names, attrs=attrs)
        values.update(device_memory())
    return {port: _value(values, port).copy() for port in graph.outputs}


def output_specs(graph: OfflineModel) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """Return name, shape and type of each output. The graph is computed on ones. Raises the errors of `run_graph`."""
    values = _feed(graph, {spec.name: np.ones(spec.shape, find_dtype(spec.dtype)) for spec in graph.inputs})
    for node in graph.nodes:
        inputs = [_value(values, port) for port in node.inputs]
        values[node.name] = (
            (node.const,) if node.const is not None else compute(node.type, node.name, inputs, node.attrs)
        )
    return [(port, _value(values, port).shape, _value(values, port).dtype) for port in graph.outputs]


def _feed(graph: OfflineModel, feeds: Mapping[str, _Array]) -> dict[str, tuple[_Array, ...]]:
    values: dict[str, tuple[_Array, ...]] = {}
    for spec in graph.inputs:
        if spec.name not in feeds:
            raise ConfigError(
                f"nothing is fed to the input {spec.name!r}", hint=f"fed: {', '.join(feeds) or 'nothing'}"
            )
        array = np.asarray(feeds[spec.name])
        if array.shape != spec.shape or array.dtype.name != spec.dtype:
            raise ConfigError(
                f"the input {spec.name!r} is {spec.dtype} {spec.shape}, but {array.dtype.name} {array.shape} was fed",
                hint="feed an array of the model's own type and shape",
            )
        values[spec.name] = (array,)
    unknown = [name for name in feeds if name not in values]
    if unknown:
        raise ConfigError(f"the model has no input {unknown[0]!r}", hint=f"inputs: {', '.join(values)}")
    return values


def _value(values: Mapping[str, tuple[_Array, ...]], port: str) -> _Array:
    name, _, index = port.rpartition(":")
    outputs = values[name]
    if int(index) >= len(outputs):
        raise ConfigError(
            f"{name!r} has {len(outputs)} outputs, {port!r} is not one of them", hint="outputs are numbered from 0"
        )
    return outputs[int(index)]
