"""Lower ATen operators to GE operators as torchair does, and name the GE operators.

The name of a GE operator is its type; from the second operator of a type on, a number follows. An ATen operator that
is not in the tables below becomes one GE operator, whose type is the ATen name in camel case. Sources: torchair 2.13,
_ge_concrete_graph/ge_converter/aten (types), and graphs that torchair wrote as text (names).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

__all__ = ["Constant", "Inner", "LoweredOp", "Namer", "lower"]

#: ATen operator, in all its overloads -> type of the one GE operator that it becomes, with the same tensors.
_SAME = {
    "_adaptive_avg_pool2d": "AdaptiveAvgPool2d",
    "_log_softmax": "LogSoftmaxV2",
    "_log_softmax_backward_data": "LogSoftmaxGrad",
    "_softmax": "SoftmaxV2",
    "_to_copy": "Cast",
    "_unsafe_view": "Reshape",
    "all_reduce": "HcomAllReduce",
    "avg_pool2d": "AvgPoolV2",
    "bmm": "BatchMatMul",
    "cat": "ConcatV2",
    "clone": "Identity",
    "convolution": "Conv2D",
    "convolution_backward": "Conv2DBackpropInput",
    "copy_": "Assign",
    "detach": "Identity",
    "embedding": "GatherV2",
    "eq": "Equal",
    "expand": "BroadcastTo",
    "ge": "GreaterEqual",
    "gt": "Greater",
    "le": "LessEqual",
    "lt": "Less",
    "max_pool2d_with_indices": "MaxPoolWithArgmaxV3",
    "mean": "ReduceMean",
    "mm": "MatMul",
    "mse_loss": "MseLoss",
    "mse_loss_backward": "MseLossGrad",
    "native_layer_norm": "LayerNormV4",
    "native_layer_norm_backward": "LayerNormGrad",
    "ne": "NotEqual",
    "nll_loss_backward": "NLLLossGrad",
    "nll_loss_forward": "NLLLoss",
    "select": "GatherV2",
    "silu": "Swish",
    "slice": "StridedSliceV2",
    "sum": "ReduceSum",
    "threshold_backward": "ReluGrad",
    "view": "Reshape",
    "where": "SelectV2",
}
#: Functions in FX graphs for which there is no GE operator.
_NO_OPERATOR = ("sym_size", "sym_stride", "sym_numel", "scope_enter", "scope_exit", "wait_tensor")


class Constant(NamedTuple):
    """An argument that becomes an operator of type Const.

    name    name of that operator
    values  integers, or one number
    dtype   name of the type; "" for the type of the FX node's result
    """

    name: str
    values: Union[Sequence[int], float]
    dtype: str


class Inner(NamedTuple):
    """The output of another GE operator of the same FX node. number: its index in the list that `lower` returns."""

    number: int


class LoweredOp(NamedTuple):
    """One GE operator.

    inputs    FX nodes, `Constant` or `Inner` entries
    compute   returns the output for the values of the inputs; None if the outputs are those of the ATen operator
    in_scope  True if the operator is inside `torchair.scope.data_dump()`
    """

    type: str
    name: str
    inputs: tuple[Any, ...]
    compute: Optional[Callable[..., Any]] = None
    in_scope: bool = False

    @property
    def constants(self) -> list[Constant]:
        return [operand for operand in self.inputs if isinstance(operand, Constant)]


class Namer:
    """A function that returns a new name for an operator of a type in one graph: the type, then type_1, type_2, …"""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def __call__(self, kind: str) -> str:
        count = self._used.get(kind, 0)
        self._used[kind] = count + 1
        return f"{kind}_{count}" if count else kind


def lower(node: Any, name: Namer) -> list[LoweredOp]:
    """Return the GE operators of an FX node, in the order of execution.

    The list is empty for a node that calls no ATen operator, or one of `_NO_OPERATOR`. name: names the operators.
    """
    packet = getattr(node.target, "overloadpacket", None)
    if packet is None:
        return []
    aten = packet.__name__
    if aten in _NO_OPERATOR:
        return []
    tensors = tuple(_tensors(node))
    special = _SPECIAL.get(aten)
    if special is not None:
        special_ops: list[LoweredOp] = special(node, tensors, name)
        return special_ops
    kind = _SAME.get(aten) or "".join(word.title() for word in aten.strip("_").split("_"))
    return [LoweredOp(kind, name(kind), tensors)]


def _tensors(node: Any) -> Iterator[Any]:
    """Yield the FX nodes of the tensor arguments, in order. Lists of tensors are flattened."""
    from torch.utils._pytree import tree_leaves

    for leaf in tree_leaves((node.args, node.kwargs)):
        if hasattr(leaf, "meta") and hasattr(leaf.meta.get("val"), "dtype"):
            yield leaf


def _transpose(node: Any, tensors: tuple[Any, ...], name: Namer) -> list[LoweredOp]:
    rank = len(node.args[0].meta["val"].shape)
    aten = node.target.overloadpacket.__name__
    order = list(range(rank))
    if aten == "permute":
        order = [dim % rank for dim in node.args[1]]
    else:
        first, second = (0, 1) if aten == "t" else (node.args[1] % rank, node.args[2] % rank)
        if rank < 2:
            return [LoweredOp("Identity", name("Identity"), tensors)]
        order[first], order[second] = order[second], order[first]
    constant = Constant(name("Const"), order, "int64")
    return [LoweredOp("Transpose", name("Transpose"), (*tensors, constant))]


def _addmm(node: Any, tensors: tuple[Any, ...], name: Namer) -> list[LoweredOp]:
    bias, first, second = tensors
    alpha, beta = float(node.kwargs.get("alpha", 1)), float(node.kwargs.get("beta", 1))
    product = LoweredOp("MatMulV2", name("MatMulV2"), (first, second), lambda x, y: x @ y)
    scale = Constant(name("Const"), alpha, "")
    scaled = LoweredOp("Mul", name("Mul"), (Inner(0), scale), lambda x, _: x * alpha)
    if beta == 0:
        return [product, scaled._replace(compute=None)]
    if beta == 1:
        return [product, scaled, LoweredOp("Add", name("Add"), (Inner(1), bias))]
    return [product, scaled, LoweredOp("AxpyV2", name("AxpyV2"), (Inner(1), bias, Constant(name("Const"), beta, "")))]


def _add(node: Any, tensors: tuple[Any, ...], name: Namer) -> list[LoweredOp]:
    kind = "Add" if float(node.kwargs.get("alpha", 1)) == 1 else "AxpyV2"
    return [LoweredOp(kind, name(kind), (*tensors, *_scalar(node, tensors, name)))]


def _binary(kind: str) -> Callable[..., list[LoweredOp]]:
    def make(node: Any, tensors: tuple[Any, ...], name: Namer) -> list[LoweredOp]:
        return [LoweredOp(kind, name(kind), (*tensors, *_scalar(node, tensors, name)))]

    return make


def _scalar(node: Any, tensors: tuple[Any, ...], name: Namer) -> tuple[Constant, ...]:
    """Return the second operand as a constant if it is a number, else nothing."""
    if len(tensors) > 1 or len(node.args) < 2 or not isinstance(node.args[1], (int, float)):
        return ()
    return (Constant(name("Const"), float(node.args[1]), ""),)


def _softmax_grad(node: Any, tensors: tuple[Any, ...], name: Namer) -> list[LoweredOp]:
    gradient, softmax = tensors
    return [LoweredOp("SoftmaxGrad", name("SoftmaxGrad"), (softmax, gradient))]


_SPECIAL: dict[str, Callable[..., list[LoweredOp]]] = {
    "_softmax_backward_data": _softmax_grad,
    "add": _add,
    "addmm": _addmm,
    "div": _binary("RealDiv"),
    "mul": _binary("Mul"),
    "permute": _transpose,
    "pow": _binary("Pow"),
    "sub": _binary("Sub"),
    "t": _transpose,
    "transpose": _transpose,
}
