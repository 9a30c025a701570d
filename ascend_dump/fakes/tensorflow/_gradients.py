"""Gradients and optimizers of the fake TensorFlow. As in TensorFlow, they add operations to the graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional

from ascend_dump import NotSupported
from ascend_dump.fakes.tensorflow._graph import Operation, Tensor, TensorShape, as_dtype, current
from ascend_dump.fakes.tensorflow._ops import FUNCTIONS as TF
from ascend_dump.fakes.tensorflow._ops import apply, convert, group
from ascend_dump.fakes.tensorflow._variables import TRAINABLE, global_step

__all__ = ["GradientDescentOptimizer", "get_global_step", "get_or_create_global_step", "gradients"]

#: A function of an operation and the gradient of its output. It returns the gradients of the inputs, or None.
_Gradient = Callable[[Operation, Tensor], Sequence[Optional[Tensor]]]
#: Type of an operation -> its gradient function.
_GRADIENTS: dict[str, _Gradient] = {}
#: Types of operations through which no gradient passes.
_STOPS = frozenset(
    (
        *("Const", "Placeholder", "Shape", "ArgMax", "Equal", "Greater", "Less", "IteratorGetNext", "Variable"),
        *("StopGradient", "Assign", "AssignAdd", "AssignSub", "ApplyGradientDescent"),
    )
)


def gradients(ys: Any, xs: Any, grad_ys: Any = None, name: str = "gradients") -> list[Optional[Tensor]]:
    """Return the gradients of the sum of `ys` with respect to each of `xs`; None for an x on which no y depends.

    grad_ys: the gradients of `ys`, ones by default. Raises NotSupported for an operation for which the fake has no
    gradient.
    """
    targets = [convert(value) for value in (ys if isinstance(ys, (list, tuple)) else [ys])]
    # Every read of a variable contributes to its gradient. So the source is the variable itself, not one read of it.
    sources = [
        value._as_graph_element() if hasattr(value, "_as_tensor") else convert(value)
        for value in (xs if isinstance(xs, (list, tuple)) else [xs])
    ]
    weights = list(grad_ys) if isinstance(grad_ys, (list, tuple)) else [grad_ys] * len(targets)
    if len(weights) != len(targets):
        raise ValueError(f"Passed {len(weights)} grad_ys for {len(targets)} ys")
    graph = targets[0].graph
    with graph.as_default(), graph.name_scope(name):
        grads: dict[Tensor, list[Tensor]] = {}
        for number, target in enumerate(targets):
            if weights[number] is None:
                unit = TF["constant"](1, target.dtype.base_dtype, name=f"grad_ys_{number}")
                begin = apply("Fill", [apply("Shape", [target]).outputs[0], unit], f"grad_ys_{number}").outputs[0]
            else:
                begin = convert(weights[number], target.dtype.base_dtype, f"grad_ys_{number}")
                target.shape.merge_with(begin.shape)
            grads.setdefault(target, []).append(begin)
        for op in _between(targets, sources):
            output_grads = [grads[output] for output in op.outputs if output in grads]
            if not output_grads or op.type in _STOPS:
                continue
            function = _GRADIENTS.get(op.type)
            if function is None:
                raise NotSupported(
                    f"the stand-in for tensorflow has no gradient of {op.type} ({op.name})",
                    hint=f"it has those of {', '.join(sorted(_GRADIENTS))}; install a real tensorflow for others",
                )
            with graph.name_scope(f"{op.name}_grad"):
                for tensor, part in zip(op.inputs, function(op, _add(output_grads[0]))):
                    if part is not None and tensor.dtype.is_floating:
                        part.set_shape(tensor.shape)
                        grads.setdefault(tensor, []).append(part)
        return [_add(grads[source]) if source in grads else None for source in sources]


def _between(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> list[Operation]:
    """Return the operations on the paths from sources to targets, in reverse order of their creation."""
    graph = targets[0].graph
    depends: set[Operation] = set()
    source_tensors = set(sources)
    for op in graph.get_operations():
        if any(tensor in source_tensors or tensor.op in depends for tensor in op.inputs):
            depends.add(op)
    reached: set[Operation] = set()
    todo = [target.op for target in targets]
    while todo:
        op = todo.pop()
        if op in reached or op not in depends:
            continue
        reached.add(op)
        todo += [tensor.op for tensor in op.inputs]
    return sorted(reached, key=lambda op: -op._id)


def _add(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = TF["add"](total, part, name="AddN")
    return total


def _gradient(*types: str) -> Callable[[_Gradient], _Gradient]:
    def register(function: _Gradient) -> _Gradient:
        _GRADIENTS.update(dict.fromkeys(types, function))
        return function

    return register


def _like(grad: Tensor, op: Operation, number: int) -> Tensor:
    """Return the gradient of input `number` of an operation with two inputs.

    `grad` has the common shape of both inputs. It is summed over the axes along which this input was broadcast.
    """
    tensor, second = op.inputs[number], op.inputs[1 - number]
    grad_dims, dims, second_dims = grad.shape.as_list(), tensor.shape.as_list(), second.shape.as_list()
    if any(dim is None and second_dim != 1 for dim, second_dim in zip(dims[::-1], second_dims[::-1])):
        shapes = [apply("Shape", [value]).outputs[0] for value in op.inputs]
        axes_spec = [(as_dtype("int32"), TensorShape([None]))] * 2
        axes_tensor = apply("BroadcastGradientArgs", shapes, None, None, axes_spec).outputs[number]
        sum_spec = [(grad.dtype.base_dtype, TensorShape(None))]
        summed = apply("Sum", [grad, axes_tensor], "Sum", {"keep_dims": False}, sum_spec).outputs[0]
        spec = [(tensor.dtype.base_dtype, tensor.shape)]
        return apply("Reshape", [summed, shapes[number]], None, None, spec).outputs[0]
    if grad_dims == dims:
        return grad
    extra = len(grad_dims) - len(dims)
    broadcast = (extra + axis for axis, dim in enumerate(dims) if dim == 1 and grad_dims[extra + axis] != 1)
    axes = [*range(extra), *broadcast]
    summed = TF["reduce_sum"](grad, axes, name="Sum") if axes else grad
    spec = [(tensor.dtype.base_dtype, tensor.shape)]
    return apply("Reshape", [summed, apply("Shape", [tensor]).outputs[0]], None, None, spec).outputs[0]


@_gradient("Add", "AddV2")
def _of_add(op: Operation, grad: Tensor) -> Sequence[Optional[Tensor]]:
    return [_like(grad, op, 0), _like(grad, op, 1)]


@_gradient("Sub")
def _of_sub(op: Operation, grad: Tensor) -> Sequence[Optional[Tensor]]:
    return [_like(grad, op, 0), _like(-grad, op, 1)]  # type: ignore[operator]  # set on the class


@_gradient("Mul")
def _of_mul(op: Operation, grad: Tensor) -> Sequence[Optional[Tensor]]:
    x, y = op.inputs
    return [_like(TF["multiply"](grad, y), op, 0), _like(TF["multiply"](x, grad), op, 1)]


@_gradient("RealDiv")
def _of_div(op: Operation, grad: Tensor) -> Sequence[Optional[Tensor]]:
    _, y = op.inputs
    by_y = TF["multiply"](grad, TF["divide"](TF["negative"](op.outputs[0]), y))
    return [_like(TF["divide"](grad, y), op, 0), _like(by_y, op, 1)]


@_gradient("Sigmoid")
def _of_sigmoid(op: Operation, grad: Tensor) -> Sequence[Optional[Tensor]]:
    y = op.outputs[0]
    return [TF["multiply"](grad, TF["multiply"](y, TF["subtract"](1.0, y)))]


@_gradient("Reshape", "ExpandDims", "Squeeze")
def _of_reshape(op: Operation, grad: Tensor) -> Sequence[Optional[Tensor]]:
    x = op.inputs[0]
    spec = [(x.dtype.base_dtype, x.shape)]
    return [apply("Reshape", [grad, apply("Shape", [x]).outputs[0]], None, None, spec).outputs[0], None]


@_gradient("MatMul")
def _of_matmul(op: Operation, grad: Tensor) -> Sequence[Optional[Tensor]]:
    a, b = op.inputs
    flip_a, flip_b = bool(op.attrs.get("transpose_a")), bool(op.attrs.get("transpose_b"))
    matmul = TF["matmul"]
    grad_a = matmul(b, grad, flip_b, True, "MatMul") if flip_a else matmul(grad, b, False, not flip_b, "MatMul")
    grad_b = matmul(grad, a, True, flip_a, "MatMul_1") if flip_b else matmul(a, grad, not flip_a, False, "MatMul_1")
    return [grad_a, grad_b]


@_gradient("Sum", "Mean")
def _of_reduction(op: Operation, grad: Tensor) -> Sequence[Optional[Tensor]]:
    x = op.inputs[0]
    axes = op.inputs[1].op.attrs["value"].reshape(-1).tolist()
    if not op.attrs.get("keep_dims"):
        for axis in sorted(axis % len(x.shape) for axis in axes):
            grad = TF["expand_dims"](grad, axis)
    shape = apply("Shape", [x]).outputs[0]
    spread = apply("BroadcastTo", [grad, shape], None, None, [(grad.dtype, x.shape)]).outputs[0]
    if op.type == "Sum":
        return [spread, None]
    sizes = [apply("Prod", [apply("Shape", [tensor]).outputs[0], [0]]).outputs[0] for tensor in (x, op.outputs[0])]
    count = TF["divide"](*(TF["cast"](size, grad.dtype) for size in sizes))
    return [TF["divide"](spread, count, name="truediv"), None]


@_gradient("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits")
def _of_cross_entropy(op: Operation, grad: Tensor) -> Sequence[Optional[Tensor]]:
    return [TF["multiply"](TF["expand_dims"](grad, -1), op.outputs[1]), None]


class _Optimizer:
    """The base of optimizers. For each variable it adds operations that compute the gradient and that update it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def minimize(
        self,
        loss: Tensor,
        global_step: Any = None,
        var_list: Optional[Iterable[Any]] = None,
        name: Optional[str] = None,
    ) -> Operation:
        return self.apply_gradients(self.compute_gradients(loss, var_list), global_step, name)

    def compute_gradients(
        self, loss: Tensor, var_list: Optional[Iterable[Any]] = None
    ) -> list[tuple[Optional[Tensor], Any]]:
        """Return pairs of the gradient for a variable (None if the loss does not depend on it) and the variable.

        var_list: all trainable variables by default. Raises ValueError if there are none.
        """
        variables = list(loss.graph.get_collection(TRAINABLE) if var_list is None else var_list)
        if not variables:
            raise ValueError("No variables to optimize.")
        return list(zip(gradients(loss, variables), variables))

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: Optional[str] = None
    ) -> Operation:
        """Return an operation that updates the variables, and then adds 1 to `global_step`.

        Raises ValueError if no variable has a gradient.
        """
        pairs = [(grad, variable) for grad, variable in grads_and_vars if grad is not None]
        if not pairs:
            raise ValueError("No gradients provided for any variable.")
        graph = pairs[0][0].graph
        with graph.as_default(), graph.name_scope(name or self._name) as scope:
            updates = [self._update(grad, variable, f"update_{variable.op.name}") for grad, variable in pairs]
            with graph.control_dependencies(updates):
                if global_step is not None:
                    updates = [global_step.assign_add(1, "global_step").op]
        with graph.as_default():
            return group(*updates, name=scope)

    def _update(self, grad: Tensor, variable: Any, name: str) -> Operation:
        raise NotImplementedError


class GradientDescentOptimizer(_Optimizer):
    def __init__(self, learning_rate: Any, use_locking: bool = False, name: str = "GradientDescent") -> None:
        super().__init__(name)
        self._rate = learning_rate

    def _update(self, grad: Tensor, variable: Any, name: str) -> Operation:
        ref = variable._as_graph_element()
        ref.shape.merge_with(grad.shape)
        rate = convert(self._rate, ref.dtype.base_dtype, "learning_rate")
        spec = [(ref.dtype, ref.shape)]
        return apply("ApplyGradientDescent", [ref, rate, grad], f"{name}/ApplyGradientDescent", None, spec)


def get_global_step(graph: Any = None) -> Any:
    with (graph or current.graph()).as_default():
        return global_step(create=False)


def get_or_create_global_step(graph: Any = None) -> Any:
    with (graph or current.graph()).as_default():
        return global_step()


# Gradient functions that are one expression.
_GRADIENTS.update(
    {
        "Neg": lambda op, grad: [TF["negative"](grad)],
        "Square": lambda op, grad: [TF["multiply"](grad, TF["multiply"](op.inputs[0], 2.0))],
        "Exp": lambda op, grad: [TF["multiply"](grad, op.outputs[0])],
        "Log": lambda op, grad: [TF["divide"](grad, op.inputs[0])],
        "Tanh": lambda op, grad: [TF["multiply"](grad, TF["subtract"](1.0, TF["square"](op.outputs[0])))],
        "Relu": lambda op, grad: [apply("ReluGrad", [grad, op.outputs[0]]).outputs[0]],
        "Identity": lambda op, grad: [grad],
        "BiasAdd": lambda op, grad: [grad, apply("BiasAddGrad", [grad]).outputs[0]],
    }
)
