"""Automatic differentiation of the fake MindSpore: a gradient rule for each operator type.

A rule runs the operators that MindSpore's rule runs. It takes the forward operator, the gradients of its outputs (None
for an output without one), and for each input True if its gradient is needed; it returns the gradients of the inputs.
For MatMul, BiasAdd, ReLU, Flatten, MaxPool, BatchNorm, Conv2D, Softmax, Sigmoid and the sparse cross entropy, the names
and inputs of the backward operators are those in dumps of MindSpore 2.10.0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, Union

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.fakes.mindspore._functions import call, execute, expanded, matmul_kernel
from ascend_dump.fakes.mindspore._graph import ROOT, ExecutedOperator, Tape
from ascend_dump.fakes.mindspore._types import Parameter, Tensor

__all__ = ["gradients"]

Grads = Sequence[Optional[Tensor]]
Rule = Callable[[ExecutedOperator, Grads, Sequence[bool]], Grads]


def add_all(grads: Sequence[Tensor]) -> Tensor:
    """Return the sum of several gradients of one tensor, which several operators use."""
    return execute("AddN", *grads)[0]


def _first(grads: Grads) -> Tensor:
    grad = grads[0]
    if grad is None:
        raise NotSupported(
            "the fake MindSpore differentiates only the first output of an operator", hint="compute the loss from it"
        )
    return grad


def _value(node: ExecutedOperator, position: int) -> Any:
    """Return an input of the forward operator as a tensor with the value that it had then."""
    value = node.inputs[position]
    changed = isinstance(value, Tensor) and value.array is not node.before[position]
    return Tensor(node.array(position)) if changed else value


def _fit(grad: Tensor, like: np.ndarray[Any, Any]) -> Tensor:
    """Sum a gradient over the axes that the forward operator broadcast, so that it has the shape of `like`."""
    extra = grad.ndim - like.ndim
    axes = tuple(range(extra)) + tuple(
        axis for axis in range(extra, grad.ndim) if like.shape[axis - extra] == 1 and grad.shape[axis] != 1
    )
    if not axes:
        return grad
    small = execute("ReduceSum", grad, axis=axes, keep_dims=False)[0]
    return small if small.shape == like.shape else execute("Reshape", small, shape=like.shape)[0]


def _binary(by_first: Callable[..., Tensor], by_second: Callable[..., Tensor]) -> Rule:
    def rule(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
        dy, x, y = _first(grads), _value(node, 0), _value(node, 1)
        if node.inputs[0] is node.inputs[1] and node.op_type in ("Add", "Mul"):
            # Both derivatives are the same operator, which MindSpore's compiler computes only once.
            grad = _fit(by_first(dy, x, y), node.array(0))
            return grad, grad
        return tuple(
            _fit(derivative(dy, x, y), node.array(position)) if is_needed else None
            for position, (derivative, is_needed) in enumerate(zip((by_first, by_second), needed))
        )

    return rule


def _unary(derivative: Callable[..., Tensor]) -> Rule:
    """Return the rule for an operator with one input. derivative: its arguments are gradient, input and output."""

    def rule(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
        return (derivative(_first(grads), _value(node, 0), node.outputs[0]),)

    return rule


def _matmul(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    dy, a, b = _first(grads), _value(node, 0), _value(node, 1)
    if min(node.array(0).ndim, node.array(1).ndim) < 2:
        raise NotSupported("the fake MindSpore differentiates products of matrices only", hint="reshape to matrices")
    flip_a, flip_b = bool(node.before[2]), bool(node.before[3])
    product = functools.partial(matmul_kernel, kernel=node.op_type)
    da = db = None
    if needed[0]:
        da = _fit(product(b, dy, flip_b, True) if flip_a else product(dy, b, False, not flip_b), node.array(0))
    if needed[1]:
        db = _fit(product(dy, a, True, flip_a) if flip_b else product(a, dy, not flip_a, False), node.array(1))
    return da, db


def _pow(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    dy, x, y = _first(grads), _value(node, 0), Tensor(node.array(1))
    dx = dz = None
    if needed[0]:
        dx = _fit(call("Mul", dy, call("Mul", y, call("Pow", x, call("Sub", y, 1)))), node.array(0))
    if needed[1]:
        dz = _fit(call("Mul", dy, call("Mul", node.outputs[0], call("Log", x))), node.array(1))
    return dx, dz


def _bias_add(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    dy = _first(grads)
    return dy, execute("BiasAddGrad", dy, node.before[2])[0] if needed[1] else None


def _conv2d(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    dy, x, w = _first(grads), _value(node, 0), _value(node, 1)
    common = {name: node.attrs[name] for name in ("stride", "pad_list")}
    dx = dw = None
    if needed[0]:
        dx = execute("Conv2DBackpropInput", dy, w, shape=node.array(0).shape, **common)[0]
    if needed[1]:
        dw = execute("Conv2DBackpropFilter", dy, x, kernel=node.array(1).shape[2:], **common)[0]
    return dx, dw


def _maxpool(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    return (execute("MaxPoolGrad", _value(node, 0), node.outputs[0], _first(grads), **node.attrs)[0],)


def _avgpool(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    return (execute("AvgPoolGrad", _value(node, 0), _first(grads), **node.attrs)[0],)


def _batchnorm(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    mean, var, reserve = node.outputs[3], node.outputs[4], node.outputs[2]
    training, eps, data_format = node.before[5], node.before[6], node.before[8]
    return execute(
        "BatchNormGrad", _first(grads), _value(node, 0), _value(node, 1), mean, var, reserve, training, eps, data_format
    )


def _softmax(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    dy, y, axis = _first(grads), node.outputs[0], node.array(1)
    with expanded("SoftmaxBackward"):
        product = call("Mul", dy, y)
        keep, skip = np.asarray(True), np.asarray(False)
        total = execute("ReduceSum", product, axis, keep, skip, axis=(int(axis[0]),), keep_dims=True)[0]
        return (call("Mul", y, call("Sub", dy, total)),)


def _log_softmax(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    dy, y, axis = _first(grads), node.outputs[0], int(node.array(1))
    total = execute("ReduceSum", dy, axis=(axis,), keep_dims=True)[0]
    return (call("Sub", dy, call("Mul", call("Exp", y), total)),)


def _sparse_cross_entropy(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    dy = _first(grads)
    logits, labels = _value(node, 0), _value(node, 1)
    dx = execute("SparseSoftmaxCrossEntropyWithLogits", logits, labels, is_grad=True)[0]
    # MindSpore's compiler removes a multiplication by 1.
    return (dx if dy.node is None and bool((dy.array == 1).all()) else call("Mul", dx, dy)), None


def _cross_entropy(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    dy = _first(grads)
    return call("Mul", node.outputs[1], execute("Reshape", dy, shape=(*dy.shape, 1))[0]), None


def _reduce_sum(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    return (_spread(node, _first(grads)),)


def _reduce_mean(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    dy = _first(grads)
    count = node.array(0).size // max(dy.size, 1)
    return (call("Div", _spread(node, dy), Tensor(np.asarray(count, dy.array.dtype))),)


def _spread(node: ExecutedOperator, dy: Tensor) -> Tensor:
    """Broadcast the gradient of a reduction to the shape of its input."""
    shape = node.array(0).shape
    if not node.attrs["keep_dims"]:
        axes = {axis % len(shape) for axis in node.attrs["axis"]}
        with_ones = tuple(1 if axis in axes else length for axis, length in enumerate(shape))
        dy = execute("Reshape", dy, shape=with_ones)[0]
    return execute("BroadcastTo", dy, shape=shape)[0]


def _cast(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    return (execute("Cast", _first(grads), dtype=node.array(0).dtype)[0],)


def _reshape(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    return (execute("Reshape", _first(grads), shape=node.array(0).shape)[0],)


def _transpose(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    return (execute("Transpose", _first(grads), perm=tuple(np.argsort(node.attrs["perm"]).tolist()))[0],)


def _slice(node: ExecutedOperator, grads: Grads, needed: Sequence[bool]) -> Grads:
    return (execute("StridedSliceGrad", _first(grads), shape=node.array(0).shape, key=node.attrs["key"])[0],)


def _slope_of_erf(x: Tensor) -> Tensor:
    at_zero = Tensor(np.asarray(2 / math.sqrt(math.pi), x.array.dtype))
    return call("Mul", at_zero, call("Exp", call("Neg", call("Square", x))))


def _two(x: Tensor) -> Tensor:
    return Tensor(np.asarray(2, x.array.dtype))


GRADIENTS: Mapping[str, Rule] = {
    "Add": _binary(lambda dy, x, y: dy, lambda dy, x, y: dy),
    "Sub": _binary(lambda dy, x, y: dy, lambda dy, x, y: call("Neg", dy)),
    "Mul": _binary(lambda dy, x, y: call("Mul", dy, y), lambda dy, x, y: call("Mul", dy, x)),
    "Div": _binary(
        lambda dy, x, y: call("Div", dy, y),
        lambda dy, x, y: call("Neg", call("Div", call("Mul", dy, x), call("Square", y))),
    ),
    "Neg": _unary(lambda dy, x, y: call("Neg", dy)),
    "Exp": _unary(lambda dy, x, y: call("Mul", dy, y)),
    "Log": _unary(lambda dy, x, y: call("Div", dy, x)),
    "Sqrt": _unary(lambda dy, x, y: call("Div", dy, call("Mul", y, _two(y)))),
    "Square": _unary(lambda dy, x, y: call("Mul", dy, call("Mul", x, _two(x)))),
    "Abs": _unary(lambda dy, x, y: call("Mul", dy, call("Sign", x))),
    "Tanh": _unary(lambda dy, x, y: call("TanhGrad", y, dy)),
    "Sigmoid": _unary(lambda dy, x, y: call("SigmoidGrad", y, dy)),
    "ReLU": _unary(lambda dy, x, y: call("ReluGrad", dy, y)),
    "Erf": _unary(lambda dy, x, y: call("Mul", dy, _slope_of_erf(x))),
    "GeLU": _unary(lambda dy, x, y: call("GeLUGrad", dy, x, y)),
    "Pow": _pow,
    "MatMul": _matmul,
    "BatchMatMul": _matmul,
    "BiasAdd": _bias_add,
    "Conv2D": _conv2d,
    "MaxPool": _maxpool,
    "AvgPool": _avgpool,
    "BatchNorm": _batchnorm,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "SparseSoftmaxCrossEntropyWithLogits": _sparse_cross_entropy,
    "SoftmaxCrossEntropyWithLogits": _cross_entropy,
    "ReduceSum": _reduce_sum,
    "ReduceMean": _reduce_mean,
    "Cast": _cast,
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Transpose": _transpose,
    "StridedSlice": _slice,
}


def gradients(
    tape: Tape, loss: Union[Tensor, Sequence[Any]], targets: Sequence[Tensor], seed: Optional[Tensor] = None
) -> list[Tensor]:
    """Return the gradients of the sum of `loss` with respect to each of `targets`.

    loss: a tensor, or several. seed: the gradient of the loss, 1 by default. For a target on which the loss does not
    depend, and for a parameter that requires no gradient, the gradient is zeros.
    """
    reached = {id(tensor) for tensor in targets if not isinstance(tensor, Parameter) or tensor.requires_grad}
    useful = []
    for node in list(tape.nodes):
        if any(id(tensor) in reached for tensor in node.inputs):
            reached.update(id(tensor) for tensor in node.outputs)
            useful.append(node)
    scopes = _backward_scopes(useful)
    parts: dict[int, list[Tensor]] = {}
    for tensor in (loss,) if isinstance(loss, Tensor) else loss:
        if isinstance(tensor, Tensor):
            parts.setdefault(id(tensor), []).append(Tensor(np.ones_like(tensor.array)) if seed is None else seed)

    def total(tensor: Tensor) -> Optional[Tensor]:
        grads = parts.get(id(tensor), [])
        if len(grads) > 1:
            with tape.within(f"Gradients/{tensor.node.scope if tensor.node is not None else ROOT}"):
                parts[id(tensor)] = [add_all(grads[::-1])]
        return parts[id(tensor)][0] if grads else None

    for node in reversed(useful):
        outer = [total(tensor) for tensor in node.outputs]
        if all(tensor is None for tensor in outer):
            continue
        rule = GRADIENTS.get(node.op_type)
        if rule is None:
            raise NotSupported(
                f"the fake MindSpore has no gradient of {node.op_type}", hint=f"it has {', '.join(GRADIENTS)}"
            )
        needed = [id(tensor) in reached for tensor in node.inputs]
        with tape.within(f"Gradients/{scopes[_primitive(node)]}/Grad_{node.op_type}"):
            inner = rule(node, outer, needed)
        for value, grad in zip(node.inputs, inner):
            if grad is not None and id(value) in reached:
                parts.setdefault(id(value), []).append(grad)
    grads = [total(tensor) for tensor in targets]
    return [Tensor(np.zeros_like(tensor.array)) if grad is None else grad for tensor, grad in zip(targets, grads)]


def _primitive(node: ExecutedOperator) -> tuple[str, ...]:
    """Return the key by which automatic differentiation treats operators as equal: type and attributes."""
    channels = node.array(1).shape[0] if node.op_type == "Conv2D" else ""
    attrs = {key: value for key, value in node.attrs.items() if key not in ("shape", "key", "perm")}
    return node.op_type, repr(attrs), str(channels)


def _backward_scopes(nodes: Sequence[ExecutedOperator]) -> dict[tuple[str, ...], str]:
    """Return the scope of the backward operators, by the key of the forward operator.

    In a graph, MindSpore differentiates equal operators only once, from the loss backwards, outer cells first. So all
    get the scope of the outermost of the equal operators; if there are several, of the last one.
    """
    chosen: dict[tuple[str, ...], str] = {}
    for node in reversed(nodes):
        scope = chosen.get(_primitive(node))
        if scope is None or node.scope.count("/") < scope.count("/"):
            chosen[_primitive(node)] = node.scope
    return chosen
