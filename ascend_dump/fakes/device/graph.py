"""Run an offline model on the simulated device, operator by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ascend_dump import ConfigError
from ascend_dump.fakes.device.offline_model import find_dtype
from ascend_dump.fakes.kernels.npu_ops import compute

if TYPE_CHECKING:
    from ascend_dump.fakes.device.offline_model import OfflineModel

    _Array = np.ndarray[Any, Any]

__all__ = ["output_specs", "run_graph"]

#: What brings values into a graph or out of it runs as no operator.
_NO_OPERATOR = ("Const", "Constant", "Data", "NetOutput")


class _OperatorRunner(Protocol):
    """What a graph needs of the device that runs it."""

    def run_op(
        self,
        op_type: str,
        name: str,
        inputs: Sequence[_Array],
        outputs: Sequence[_Array],
        *,
        model_id: int,
        original_names: Sequence[str],
        attrs: Mapping[str, Any],
    ) -> None: ...

    def device_memory(self, model_id: int) -> Mapping[str, tuple[_Array, ...]]: ...


def run_graph(
    npu: _OperatorRunner, graph: OfflineModel, feeds: Mapping[str, _Array], model_id: int
) -> dict[str, _Array]:
    """Compute a loaded graph, telling the device of each operator; the outputs by `name:output`.

    What an operator tramples over is what later operators read. Raises ConfigError for feeds that do not fit,
    NotSupported for an operator the device does not have.
    """
    values = _feed(graph, feeds)
    for node in graph.nodes:
        inputs = [_value(values, port) for port in node.inputs]
        outputs = (node.const,) if node.const is not None else compute(node.type, node.name, inputs, node.attrs)
        values[node.name] = outputs
        if node.type in _NO_OPERATOR:
            continue
        npu.run_op(
            node.type,
            node.name,
            inputs,
            outputs,
            model_id=model_id,
            original_names=node.original_names,
            attrs={"_no_task": node.no_task},
        )
        values.update(npu.device_memory(model_id))
    return {port: _value(values, port).copy() for port in graph.outputs}


def output_specs(graph: OfflineModel) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """Name, shape and type of every output, found by computing the graph on ones. Raises as `run_graph`."""
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
                f"the input {spec.name!r} is {spec.dtype} {spec.shape}, fed is {array.dtype.name} {array.shape}",
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
        raise ConfigError(f"{name!r} has {len(outputs)} outputs, {port!r} asks for another", hint="count from 0")
    return outputs[int(index)]
