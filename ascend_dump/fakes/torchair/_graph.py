"""A compiled graph: PyTorch runs its FX nodes on the CPU, and their GE operators are reported to the simulated device.

Source: torchair 2.13, _ge_concrete_graph/fx2ge_converter.py (when a graph is created, and what its first run does) and
npu_fx_compiler.py (modes).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from ascend_dump.fakes.device.npu import NodeInfo
from ascend_dump.fakes.torchair._lowering import Constant, Inner, LoweredOp, Namer, lower
from ascend_dump.fakes.torchair._scope import reads_scope
from ascend_dump.fakes.torchair._text import write_graph

if TYPE_CHECKING:
    from ascend_dump.fakes.torchair._config import CompilerConfig
    from ascend_dump.fakes.torchair._engine import TorchairEngine

    _Array = np.ndarray[Any, Any]

__all__ = ["ConcreteGraph", "GraphRunner", "as_array"]


class GraphRunner:
    """A function that runs an FX graph node by node on the CPU. Subclasses override `fed`, `call` and `ended`."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.nodes = list(module.graph.nodes)

    def __call__(self, *args: Any) -> Any:
        from torch.fx.node import map_arg

        values: dict[Any, Any] = {}
        feeds = iter(args)
        result: Any = None
        for node in self.nodes:
            if node.op == "placeholder":
                values[node] = self.fed(node, next(feeds))
            elif node.op == "get_attr":
                values[node] = operator.attrgetter(node.target)(self.module)
            elif node.op == "output":
                result = map_arg(node.args[0], values.__getitem__)
            else:
                arguments = map_arg((node.args, dict(node.kwargs)), values.__getitem__)
                values[node] = self.call(node, *arguments, values=values)
        self.ended()
        return result

    def fed(self, node: Any, value: Any) -> Any:
        """Return the value of a placeholder, for the argument `value` of the graph."""
        return value

    def call(self, node: Any, args: Any, kwargs: Any, *, values: dict[Any, Any]) -> Any:
        if node.op == "call_function":
            return node.target(*args, **kwargs)
        if node.op == "call_module":
            return self.module.get_submodule(node.target)(*args, **kwargs)
        return getattr(args[0], node.target)(*args[1:], **kwargs)

    def ended(self) -> None:
        """Do nothing: for subclasses, called after the last node of a run."""


class _Plan(NamedTuple):
    """The GE operators of an FX node. changes: the node overwrites arguments, so they are copied before it runs."""

    ops: list[LoweredOp]
    changes: bool


class ConcreteGraph(GraphRunner):
    """A graph for GE. The device loads it at its first run, with the dump settings of that time.

    (assumption torchair.names_stay)
    """

    def __init__(self, engine: TorchairEngine, config: CompilerConfig, module: Any) -> None:
        super().__init__(module)
        self.name = engine.next_graph()
        self._engine = engine
        self._config = config
        self._model: Optional[int] = None
        self._step = 0
        self.plans, self._constant_values = _plan(self.nodes)
        self._constants: dict[str, Any] = {}
        engine.initialize(config.as_dict()[1])
        write_graph(config, self.name, self.nodes, {node: plan.ops for node, plan in self.plans.items()})

    def __call__(self, *args: Any) -> Any:
        # (assumption ge.step_counter)
        if self._model is None:
            self._load()
        model = self._model
        assert model is not None, "_load sets the model's number"
        self._engine.npu.begin_step(model, self._step)
        self._step += 1
        try:
            return super().__call__(*args)
        finally:
            self._engine.npu.end_step(model)

    @property
    def ops(self) -> list[LoweredOp]:
        return [op for plan in self.plans.values() for op in plan.ops]

    def _load(self) -> None:
        import torch

        from ascend_dump.fakes.torchair._engine import DUMP_KEYS

        # The constants are made here, because PyTorch would make fake tensors, which have no memory, when the graph is
        # created.
        constants = self._constant_values.items()
        self._constants = {name: torch.tensor(values, dtype=dtype) for name, (values, dtype) in constants}
        shared = dict(self._config.as_dict()[1])
        dump_options = {key: shared.pop(key) for key in DUMP_KEYS if key in shared}
        self._engine.initialize(shared)
        generate = getattr(self._engine.converter, "_set_dump_options_json", None)
        if generate is not None:
            generate(dump_options, self.name, self.ops)
        static = all(map(_has_numbers, self.nodes))
        self._model = self._engine.load(self.name, self._infos(), static_shape=static)

    def _infos(self) -> list[NodeInfo]:
        infos = [NodeInfo(node.name, "Data") for node in self.nodes if node.op == "placeholder"]
        for plan in self.plans.values():
            infos += [NodeInfo(each.name, "Const") for op in plan.ops for each in op.constants]
            for op in plan.ops:
                ports = (_port(each, plan.ops, self.plans) for each in op.inputs)
                infos.append(NodeInfo(op.name, op.type, tuple(ports)))
        return infos

    def call(self, node: Any, args: Any, kwargs: Any, *, values: dict[Any, Any]) -> Any:
        plan = self.plans.get(node)
        if plan is None:
            return super().call(node, args, kwargs, values=values)
        if plan.changes:
            before = {operand: values[operand].clone() for op in plan.ops for operand in op.inputs if operand in values}
            result = super().call(node, args, kwargs, values=values)
        else:
            result = super().call(node, args, kwargs, values=values)
            before = values
        inner: list[Any] = []
        for op in plan.ops:
            inputs = [self._value(operand, before, inner) for operand in op.inputs]
            value = result if op.compute is None else op.compute(*inputs)
            inner.append(value)
            outputs = value if isinstance(value, (tuple, list)) else (value,)
            self._engine.npu.run_op(
                op.type,
                op.name,
                [as_array(operand) for operand in inputs],
                [as_array(operand) for operand in outputs if operand is not None],
                model_id=self._model,
            )
        return result

    def _value(self, operand: Any, values: dict[Any, Any], inner: Sequence[Any]) -> Any:
        if isinstance(operand, Inner):
            return inner[operand.number]
        return self._constants[operand.name] if isinstance(operand, Constant) else values[operand]


def _has_numbers(node: Any) -> bool:
    """Return False for an input of the graph that is a symbolic number, or a tensor with a symbolic size."""
    import torch

    value = node.meta.get("val") if node.op == "placeholder" else None
    return not any(isinstance(size, torch.SymInt) for size in (value, *getattr(value, "shape", ())))


def _plan(nodes: Sequence[Any]) -> tuple[dict[Any, _Plan], dict[str, tuple[Any, Any]]]:
    """Return the plan of each FX node that has GE operators, and a pair (values, torch type) for each constant."""
    import torch

    plans: dict[Any, _Plan] = {}
    constants: dict[str, tuple[Any, Any]] = {}
    name, inside = Namer(), False
    for node in nodes:
        if node.op != "call_function":
            continue
        inside = reads_scope(node, inside)
        ops = [op._replace(in_scope=inside) for op in lower(node, name)]
        if not ops:
            continue
        schema = getattr(node.target, "_schema", None)
        plans[node] = _Plan(ops, bool(schema is not None and schema.is_mutable))
        like = node.meta.get("val")
        for constant in (constant for op in ops for constant in op.constants):
            dtype = getattr(torch, constant.dtype) if constant.dtype else getattr(like, "dtype", torch.float32)
            constants[constant.name] = (constant.values, dtype)
    return plans, constants


def _port(operand: Any, siblings: Sequence[LoweredOp], plans: dict[Any, _Plan]) -> str:
    """Return an operand as `name:output` of the GE operator that computes it; "" if no GE operator does."""
    if isinstance(operand, Inner):
        return f"{siblings[operand.number].name}:0"
    if isinstance(operand, Constant) or operand.op == "placeholder":
        return f"{operand.name}:0"
    if operand.target is operator.getitem:
        source = plans.get(operand.args[0])
        return "" if source is None else f"{source.ops[-1].name}:{operand.args[1]}"
    source = plans.get(operand)
    return "" if source is None else f"{source.ops[-1].name}:0"


def as_array(tensor: Any) -> _Array:
    """Return a tensor, or a number, as a numpy array. bfloat16 becomes the type of ml_dtypes with the same bits."""
    import torch

    values = tensor.detach().cpu() if isinstance(tensor, torch.Tensor) else torch.tensor(tensor)
    if values.dtype == torch.bfloat16:
        import ml_dtypes

        bits: _Array = values.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return bits
    return np.asarray(values.resolve_conj().resolve_neg().numpy())
