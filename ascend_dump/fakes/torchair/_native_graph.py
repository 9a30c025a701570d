"""The graph class of torchair's native module. It runs a GE graph operator by operator, and reports them to the device.

Sources: torchair's core/torchair.cpp (arguments and messages), concrete_graph.cpp and the executors (checks of a
graph and of its outputs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.fakes.device.select import NodeInfo
from ascend_dump.fakes.kernels.ge_compute import compute
from ascend_dump.fakes.kernels.ge_model import GeGraph, GeOp, Source, parse_model
from ascend_dump.fakes.kernels.ge_values import ge_number, to_array, to_tensor

if TYPE_CHECKING:
    from ascend_dump.fakes.torchair._native_session import NativeSession

__all__ = ["NpuGraph"]

_CPU, _NPU = 0, 1
_DATA = ("Data", "RefData")
_OUTPUT = "NetOutput"
#: Types that stand for inputs, constants and outputs of a graph: the device does not run them.
_NO_OPERATOR = frozenset((*_DATA, "Const", "Constant", _OUTPUT))
_PLAIN_LAYOUT = ("", "ND")


class _Loaded(NamedTuple):
    graph: GeGraph
    options: Mapping[str, str]
    dtypes: tuple[int, ...]
    on_npu: bool


class NpuGraph:
    """The class `_torchair.TorchNpuGraphBase` for one session.

    torchair calls `load`, `set_hint_shape` and `compile` once, and then `run` for each step. The methods raise
    RuntimeError as in the real class.
    """

    def __init__(self, session: NativeSession, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be str, not {type(name).__name__}")
        self._name = name
        self._session = session
        self._loaded: Optional[_Loaded] = None
        self._hints: tuple[list[list[int]], list[list[int]]] = ([], [])
        self._compiled = False
        self._model: Optional[int] = None
        self._steps = 0

    def load(
        self,
        serialized_proto: bytes,
        options: Mapping[str, str],
        input_placements: Sequence[int],
        output_dtypes: Sequence[int],
        executor_type: int,
    ) -> None:
        """Read a serialized ge.proto.ModelDef.

        output_dtypes: numbers of ge::DataType. executor_type: 0 for the CPU, 1 for the NPU.
        """
        invalid = [
            (key, value) for key, value in options.items() if not (isinstance(key, str) and isinstance(value, str))
        ]
        if invalid:
            raise TypeError(f"load(): the option {invalid[0]} is not of text")
        if executor_type not in (_CPU, _NPU):
            raise RuntimeError("Executor type is unknown.")
        graph = parse_model(bytes(serialized_proto))
        self._loaded = _Loaded(graph, dict(options), tuple(output_dtypes), executor_type == _NPU)

    def set_hint_shape(self, inputs_shape: Sequence[Sequence[int]], outputs_shape: Sequence[Sequence[int]]) -> None:
        """Set the shapes that the frontend expects, -1 for an unknown size."""
        if self._loaded is None:
            raise RuntimeError("Set graph inputs and outputs shape must after load")
        self._hints = ([list(shape) for shape in inputs_shape], [list(shape) for shape in outputs_shape])

    def compile(self) -> None:
        """Mark the graph as compiled, if `load` was called. Raises RuntimeError without an initialised session."""
        self._session.ensure()
        self._compiled = self._loaded is not None

    def auto_tune(self, arguments: tuple[Sequence[Any], Any]) -> None:
        """Do nothing: the fake has nothing to tune."""

    def summary(self) -> str:
        return ""

    def run(self, arguments: tuple[Sequence[Any], Sequence[Optional[Any]], Any]) -> list[Any]:
        """Run one step. arguments: inputs, tensors to write outputs into (or None for each), stream.

        Raises RuntimeError for an argument that is not a tensor, NotSupported for an operator that the device lacks.

        (assumption ge.step_counter)
        """
        inputs, assigned, _stream = arguments
        _check_tensors(inputs, none_allowed=False)
        _check_tensors(assigned, none_allowed=True)
        if self._loaded is None or not self._compiled:
            raise RuntimeError("Executor is not initialized.")
        self._session.ensure()
        loaded, npu = self._loaded, self._session.npu
        if self._model is None or self._model not in npu.models:
            # The model is loaded in the first run, and again after the end of a session, which unloads it.
            self._model, self._steps = self._load_model(loaded.graph), 0
        npu.begin_step(self._model, self._steps)
        self._steps += 1
        try:
            outputs = self._execute(loaded.graph, inputs, self._model)
        finally:
            npu.end_step(self._model)
        self._check_outputs(loaded, outputs)
        return _hand_over(outputs, inputs, assigned)

    def _load_model(self, graph: GeGraph) -> int:
        static = all(size >= 0 for shape in self._hints[0] for size in shape)
        nodes = [NodeInfo(op.name, op.type, tuple(str(source) for source in _fed(op))) for op in graph.ops]
        return self._session.load(self._session.npu.load_model(graph.name, ops=nodes, static_shape=static))

    def _execute(self, graph: GeGraph, inputs: Sequence[Any], model: int) -> list[Any]:
        """Compute the operators in order, report them to the device, and return the inputs of NetOutput."""
        # (assumption torchair.names_stay)
        npu = self._session.npu
        values: dict[str, tuple[Any, ...]] = {}
        for op in graph.ops:
            operands = [None if source is None else _value(values, source, op) for source in op.inputs]
            if op.type == _OUTPUT:
                return [tensor for tensor in operands if tensor is not None]
            outputs = (_input(op, inputs),) if op.type in _DATA else compute(op, operands)
            values[op.name] = outputs
            if op.type in _NO_OPERATOR:
                continue
            npu.run_op(
                op.type,
                op.name,
                [to_array(tensor) for tensor in operands if tensor is not None],
                [to_array(tensor) for tensor in outputs],
                model_id=model,
                formats=_formats(op),
            )
            for name, arrays in npu.device_memory(model).items():
                # The device may have overwritten outputs (`Npu.trample`). Later operators read the overwritten values.
                values[name] = tuple(map(to_tensor, arrays, values[name]))
        return []

    def _check_outputs(self, loaded: _Loaded, outputs: Sequence[Any]) -> None:
        """Raise RuntimeError for a wrong number of outputs and, for the NPU, for wrong types."""
        dtypes = tuple(ge_number(tensor.dtype) for tensor in outputs)
        if loaded.on_npu and dtypes != loaded.dtypes:
            raise RuntimeError(
                f"The dtypes of the net output of {loaded.graph.name} are {list(dtypes)}, "
                f"the FX graph expects {list(loaded.dtypes)}"
            )
        if len(outputs) != len(loaded.dtypes):
            raise RuntimeError(
                f"{loaded.graph.name} gave {len(outputs)} outputs, the FX graph expects {len(loaded.dtypes)}"
            )


def _fed(op: GeOp) -> list[Source]:
    """Return the inputs without the absent optional ones. The device numbers the remaining inputs without gaps."""
    return [source for source in op.inputs if source is not None]


def _formats(op: GeOp) -> dict[str, str]:
    """Return the layouts other than ND, by "input0", "output0" and so on."""
    fed = [index for index, source in enumerate(op.inputs) if source is not None]
    inputs = [op.input_formats[index] for index in fed if index < len(op.input_formats)]
    layouts = {f"input{index}": layout for index, layout in enumerate(inputs)}
    layouts.update({f"output{index}": layout for index, layout in enumerate(op.output_formats)})
    return {position: layout for position, layout in layouts.items() if layout not in _PLAIN_LAYOUT}


def _value(values: Mapping[str, tuple[Any, ...]], source: Source, op: GeOp) -> Any:
    outputs = values.get(source.name, ())
    if source.port >= len(outputs):
        raise RuntimeError(f"{op.type} {op.name!r} reads {source}, which is not an output of an earlier operator")
    return outputs[source.port]


def _input(op: GeOp, inputs: Sequence[Any]) -> Any:
    index = op.attrs.get("index", 0)
    if not 0 <= index < len(inputs):
        raise RuntimeError(f"{op.name!r} is input {index} of the graph, and {len(inputs)} were given")
    return inputs[index].detach()


def _check_tensors(tensors: object, *, none_allowed: bool) -> None:
    import torch

    if not isinstance(tensors, (list, tuple)):
        raise RuntimeError("not a list or tuple")
    for index, tensor in enumerate(tensors):
        if tensor is None and none_allowed:
            continue
        if tensor is None:
            raise RuntimeError(f"element {index} is None")
        if not isinstance(tensor, torch.Tensor):
            raise RuntimeError(f"element {index} is not a Tensor")


def _hand_over(outputs: Sequence[Any], inputs: Sequence[Any], assigned: Sequence[Optional[Any]]) -> list[Any]:
    """Return the outputs in memory of their own, as the device does.

    An output with an assigned tensor is copied to that tensor. Another output gets new memory if it shares memory with
    an input or an earlier output.
    """
    in_use = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    results = []
    for index, tensor in enumerate(outputs):
        target = assigned[index] if index < len(assigned) else None
        if target is not None:
            target.copy_(tensor)
            results.append(target)
            continue
        result = tensor.contiguous()
        if result.untyped_storage().data_ptr() in in_use:
            result = result.clone()
        in_use.add(result.untyped_storage().data_ptr())
        results.append(result)
    return results
