"""Plan the graph that GE gets for one `Session.run`: the operators that its fetches need, in the order of execution.

The code uses only `tf.Operation` and `tf.Tensor`, so it works with a real TensorFlow and with the fake one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

from ascend_dump.native.cann.graph import Node, why_no_dump

__all__ = ["GE_TYPES", "Plan", "Planned", "Spec", "make_plan"]

#: TensorFlow's operator type -> GE's type, as in CANN's TensorFlow plugins. Other types have the same name in GE.
GE_TYPES = {
    "MatMul": "MatMulV2",
    "Mean": "ReduceMean",
    "Sum": "ReduceSum",
    "Softmax": "SoftmaxV2",
    "Placeholder": "Data",
    "Variable": "Variable",
    "VariableV2": "Variable",
    "VarHandleOp": "Variable",
    "IteratorGetNext": "FrameworkOp",
}
_VARIABLES = frozenset(("Variable", "VariableV2", "VarHandleOp", "TemporaryVariable"))
#: Operators that are not reported to the device: those that run on the host (data sets, checkpoints, printing), those
#: of the adapter, and old control flow, which GE converts.
_ON_HOST = frozenset(
    (
        *("NPUInit", "NPUShutdown", "NoOp", "SaveV2", "RestoreV2", "MergeV2Checkpoints", "Print", "PrintV2", "Assert"),
        *("PyFunc", "EagerPyFunc", "MakeIterator", "IteratorV2", "OneShotIterator", "Switch", "RefSwitch", "Merge"),
        *("RefMerge", "Enter", "RefEnter", "Exit", "RefExit", "NextIteration", "RefNextIteration", "LoopCond"),
        *("IsVariableInitialized", "VarIsInitializedOp", "PlaceholderWithDefault"),
    )
)
#: Operators that end a region of old control flow: their outputs always have values.
_ALIVE_AGAIN = frozenset(("Merge", "RefMerge", "Exit", "RefExit"))
#: Types of tensors that contain no numbers.
_FOREIGN = frozenset(("string", "resource", "variant"))


class Spec(NamedTuple):
    """A tensor.

    name   its name in TensorFlow
    dtype  the name of its type, without `_ref`
    shape  its static shape, with -1 for an unknown size; None if the number of dimensions is unknown
    """

    name: str
    dtype: str
    shape: Optional[tuple[int, ...]]


class Planned(NamedTuple):
    """One operator of the plan.

    type             GE's type
    original_type    TensorFlow's type
    inputs, outputs  its tensors, in TensorFlow's order
    """

    name: str
    type: str
    original_type: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]

    def node(self) -> Node:
        wrapped = self.original_type if self.type == "FrameworkOp" else ""
        sources = tuple(spec.name for spec in self.inputs)
        return Node(self.name, self.type, sources, "", original_type=wrapped, no_task=self.no_task)

    @property
    def no_task(self) -> bool:
        """True for a variable: the device runs no task for it, because it only names memory."""
        return self.type in _VARIABLES


class Plan(NamedTuple):
    """The plan of a `Session.run` with certain fetches and fed tensors.

    ops        the operators to report to the device, in the order of execution; empty if none runs on the device
    values     tensors to fetch in the run, because operators read or compute them
    variables  name of a variable's tensor -> the tensor to fetch before the run, which may overwrite the variable
    """

    ops: tuple[Planned, ...]
    values: tuple[Any, ...]
    variables: dict[str, Any]


def make_plan(graph: Any, roots: Iterable[Any], fed: frozenset[str]) -> Plan:
    """Return the plan of all operators on which the operations `roots` depend. fed: names of the fed tensors.

    (assumption npu_bridge.fed_names)
    """
    reached = _reach(roots, fed)
    order = [op for op in graph.get_operations() if op in reached]
    maybe_dead = _dead(order)
    ops, values, variables = [], {}, {}
    data: dict[str, Planned] = {}
    for op in order:
        tensors = [*op.inputs, *op.outputs]
        has_texts = any(_dtype(tensor) in ("string", "variant") for tensor in tensors)
        if op.type in _ON_HOST or op in maybe_dead or has_texts:
            continue
        if not all(graph.is_fetchable(tensor) for tensor in tensors):
            continue  # inside a frame of old control flow
        inputs, outputs = tuple(map(_spec, op.inputs)), tuple(map(_spec, op.outputs))
        for tensor in op.inputs:
            if tensor.name in fed:
                data[tensor.name] = Planned(tensor.op.name, "Data", tensor.op.type, (), (_spec(tensor),))
        ops.append(Planned(op.name, GE_TYPES.get(op.type, op.type), op.type, inputs, outputs))
        for tensor in tensors:
            source = _before(graph, tensor)
            if source is not None:
                variables[tensor.name] = source
            elif _dtype(tensor) not in _FOREIGN and tensor.name not in fed and tensor.op.type not in _VARIABLES:
                values[tensor.name] = tensor
    if all(why_no_dump(op.node()) is not None for op in ops):
        return Plan((), (), {})
    return Plan((*data.values(), *ops), tuple(values.values()), variables)


def _reach(roots: Iterable[Any], fed: frozenset[str]) -> set[Any]:
    """Return the operations `roots`, and all on which they depend. Fed tensors are not followed."""
    reached, todo = set(), list(roots)
    while todo:
        op = todo.pop()
        if op in reached:
            continue
        reached.add(op)
        todo += [tensor.op for tensor in op.inputs if tensor.name not in fed]
        todo += op.control_inputs
    return reached


def _dead(order: list[Any]) -> set[Any]:
    """Return the operators between a Switch and the next Merge.

    Those on the branch that is not taken have no values ("dead" tensors), so none of them can be fetched.
    """
    dead: set[Any] = set()
    size = -1
    while size != len(dead):
        size = len(dead)
        for op in order:
            if op.type in _ALIVE_AGAIN:
                continue
            sources = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
            if op.type in ("Switch", "RefSwitch") or any(source in dead for source in sources):
                dead.add(op)
    return dead


def _before(graph: Any, tensor: Any) -> Any:
    """Return the tensor to fetch before the run for the value of a variable; None if `tensor` is not of a variable.

    `tensor` may be the variable, the Identity that reads it, or the handle of a resource variable.
    """
    op = tensor.op
    if op.type in ("Variable", "VariableV2"):
        return tensor
    if op.type == "Identity" and op.inputs[0].op.type in ("Variable", "VariableV2"):
        return op.inputs[0]
    if op.type == "VarHandleOp":
        readers = (user for user in tensor.consumers() if user.type == "ReadVariableOp" and not user.control_inputs)
        return next((user.outputs[0] for user in readers if graph.is_fetchable(user.outputs[0])), None)
    return None


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype.base_dtype.name)


def _spec(tensor: Any) -> Spec:
    shape = tensor.get_shape()
    dims = None if shape.ndims is None else tuple(-1 if dim is None else int(dim) for dim in shape.as_list())
    return Spec(tensor.name, _dtype(tensor), dims)
