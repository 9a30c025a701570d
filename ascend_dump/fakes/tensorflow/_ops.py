"""The functions of the fake TensorFlow that add operations to a graph: `tf.matmul`, `tf.nn.relu` and so on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.fakes.tensorflow._graph import (
    DType,
    Graph,
    Operation,
    Tensor,
    TensorShape,
    as_dtype,
    current,
    graph_of,
)
from ascend_dump.fakes.tensorflow._kernels import infer

__all__ = ["FUNCTIONS", "NN", "apply", "convert", "group", "no_op", "placeholder"]

#: The functions of `tf` and of `tf.nn`, by name.
FUNCTIONS: dict[str, Callable[..., Any]] = {}
NN: dict[str, Callable[..., Any]] = {}


def apply(
    op_type: str,
    inputs: Sequence[Any],
    name: Optional[str] = None,
    attrs: Optional[dict[str, Any]] = None,
    outputs: Optional[Sequence[tuple[DType, TensorShape]]] = None,
) -> Operation:
    """Add an operation to the graph of its inputs, and return it.

    outputs: types and static shapes of the outputs; by default they are inferred. Raises the errors of `infer`.
    """
    graph = graph_of(*inputs)
    with graph.as_default():
        tensors = [graph.capture(convert(value)) for value in inputs]
        specs = infer(op_type, tensors, attrs or {}) if outputs is None else outputs
        return graph.create_op(op_type, tensors, specs, name, attrs)


def convert(value: Any, dtype: Any = None, name: str = "Const") -> Tensor:
    """Return an object as a tensor: a tensor itself, the value of a variable, or a new constant for other values.

    dtype: the type of the tensor. Raises TypeError for objects without a value, and ValueError for None and for a
    tensor of another type.
    """
    element = value._as_tensor() if hasattr(value, "_as_tensor") else value
    if element is None:
        raise ValueError("None values not supported.")
    if isinstance(element, Tensor):
        if dtype is not None and element.dtype.base_dtype != as_dtype(dtype):
            raise ValueError(f"Tensor conversion requested dtype {as_dtype(dtype).name} for {element!r}")
        return element
    if isinstance(element, Operation):
        raise TypeError(f"Can't convert Operation {element.name!r} to Tensor")
    if isinstance(element, (list, tuple)) and any(isinstance(item, Tensor) for item in element):
        kind = dtype or next(item.dtype.base_dtype for item in element if isinstance(item, Tensor))
        parts = [apply("ExpandDims", [convert(item, kind), np.int32(0)]).outputs[0] for item in element]
        return apply("ConcatV2", [*parts, np.int32(0)], "stack").outputs[0]
    array, is_python_value = np.asarray(element), not isinstance(element, (np.ndarray, np.generic))
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8").astype(np.object_)
    if dtype is not None:
        if is_python_value:
            _check_python(array, as_dtype(dtype))
        array = array.astype(as_dtype(dtype).as_numpy_dtype)
    elif array.dtype == np.float64 and is_python_value:
        array = array.astype(np.float32)
    elif array.dtype == np.int64 and is_python_value and (array == array.astype(np.int32)).all():
        array = array.astype(np.int32)
    spec = (as_dtype(array.dtype), TensorShape(array.shape))
    return current.graph().create_op("Const", (), [spec], name, {"value": array, "dtype": spec[0]}).outputs[0]


def _check_python(array: Any, dtype: DType) -> None:
    """Raise TypeError for Python values of another kind than the type, such as floats for int32."""
    kind = {"bool": "b", "string": "OSU"}.get(dtype.name, "biuf" if dtype.is_floating else "biu")
    if array.size and array.dtype.kind not in kind:
        raise TypeError(f"Expected {dtype.name}, but got {array.reshape(-1)[0]!r}.")


def placeholder(dtype: Any, shape: Any = None, name: Optional[str] = None) -> Tensor:
    spec = (as_dtype(dtype), shape if isinstance(shape, TensorShape) else TensorShape(shape))
    return current.graph().create_op("Placeholder", (), [spec], name, {"dtype": spec[0]}).outputs[0]


def no_op(name: Optional[str] = None) -> Operation:
    return current.graph().create_op("NoOp", (), (), name)


def group(*inputs: Any, name: Optional[str] = None) -> Operation:
    """Return an operation that does nothing, and runs after all of `inputs`."""
    flat = [part for value in inputs for part in (value if isinstance(value, (list, tuple)) else [value])]
    with current.graph().control_dependencies(flat):
        return no_op(name or "group_deps")


def _function(name: str, where: dict[str, Callable[..., Any]] = FUNCTIONS) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        where[name] = function
        return function

    return register


def _unary(op_type: str) -> Callable[..., Tensor]:
    def call(x: Any, name: Optional[str] = None) -> Tensor:
        return apply(op_type, [x], name).outputs[0]

    return call


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) or hasattr(value, "_as_tensor")


def _divisible(tensor: Tensor) -> Tensor:
    """Return a tensor of floating-point numbers for a division; integers are converted as in TensorFlow."""
    name = tensor.dtype.base_dtype.name
    small = name in ("int8", "uint8", "int16")
    result: Tensor = FUNCTIONS["cast"](tensor, "float32" if small else "float64") if "int" in name else tensor
    return result


def _operands(x: Any, y: Any, *names: str) -> tuple[Tensor, Tensor]:
    """Return two operands as tensors. An operand that is no tensor gets the type of the other one."""
    first_name, second_name = names or ("Const", "Const")
    if _is_tensor(x) or not _is_tensor(y):
        first = convert(x, name=first_name)
        return first, convert(y, None if _is_tensor(y) else first.dtype.base_dtype, second_name)
    second = convert(y, name=second_name)
    return convert(x, second.dtype.base_dtype, first_name), second


def _binary(op_type: str) -> Callable[..., Tensor]:
    def call(x: Any, y: Any, name: Optional[str] = None) -> Tensor:
        graph = graph_of(x, y)
        with graph.as_default(), graph.name_scope(name or op_type.lower().replace("addv2", "add")) as scope:
            first, second = _operands(x, y, "x", "y")
            if op_type == "RealDiv" and first.dtype.base_dtype == second.dtype.base_dtype:
                first, second = _divisible(first), _divisible(second)
            return apply(op_type, [first, second], scope).outputs[0]

    return call


for _name, _type in {
    "square": "Square",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "log": "Log",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "identity": "Identity",
    "negative": "Neg",
    "abs": "Abs",
    "shape": "Shape",
    "stop_gradient": "StopGradient",
    "is_finite": "IsFinite",
    "logical_not": "LogicalNot",
    "sign": "Sign",
}.items():
    FUNCTIONS[_name] = _unary(_type)
for _name, _type in {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "RealDiv",
    "pow": "Pow",
    "equal": "Equal",
    "maximum": "Maximum",
    "minimum": "Minimum",
    "greater": "Greater",
    "less": "Less",
    "floormod": "FloorMod",
    "logical_and": "LogicalAnd",
}.items():
    FUNCTIONS[_name] = _binary(_type)
for _name, _type in {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softmax": "Softmax"}.items():
    NN[_name] = _unary(_type)


def _reduction(op_type: str) -> Callable[..., Tensor]:
    def call(
        input_tensor: Any, axis: Any = None, keepdims: Any = None, name: Optional[str] = None, keep_dims: Any = None
    ) -> Tensor:
        x = convert(input_tensor)
        axes = range(len(x.shape)) if axis is None else axis
        indices = convert(np.array(list(axes) if isinstance(axes, Iterable) else axes, np.int32))
        keep = bool(keepdims or keep_dims)
        return apply(op_type, [x, indices], name, {"keep_dims": keep}).outputs[0]

    return call


for _name in ("mean", "sum", "max", "min", "prod"):
    FUNCTIONS[f"reduce_{_name}"] = _reduction(_name.capitalize())


@_function("constant")
def _constant(value: Any, dtype: Any = None, shape: Any = None, name: str = "Const") -> Tensor:
    if shape is None:
        return convert(value, dtype, name)
    if isinstance(shape, Tensor):
        return _filled(shape, convert(value, dtype, name))
    with Graph().as_default():
        array = convert(value, dtype).op.attrs["value"].reshape(-1)
    dims = [shape] if isinstance(shape, (int, np.integer)) else list(shape)
    size = math.prod(dims)
    if array.size > size or (size and not array.size):
        raise ValueError(f"Too many or no elements provided. Needed {size}, but received {array.size}")
    # As in TensorFlow, the last element is repeated if there are too few.
    return convert(np.concatenate([array, np.repeat(array[-1:], size - array.size)]).reshape(dims), dtype, name)


def _filled(dims: Tensor, value: Tensor) -> Tensor:
    if dims.op.type != "Shape":
        raise NotSupported(
            "the stand-in for tensorflow fills the shape of a tensor only, as given by tf.shape",
            hint="give the shape as a list, or install a real tensorflow",
        )
    return apply("Fill", [dims, value]).outputs[0]


@_function("zeros")
def _zeros(shape: Any, dtype: Any = "float32", name: str = "zeros") -> Any:
    return _constant(0, dtype, shape, name)


@_function("ones")
def _ones(shape: Any, dtype: Any = "float32", name: str = "ones") -> Any:
    return _constant(1, dtype, shape, name)


@_function("matmul")
def _matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False, name: Optional[str] = None) -> Tensor:
    first, second = _operands(a, b)
    kind = "MatMul" if first.shape.ndims == second.shape.ndims == 2 else "BatchMatMulV2"
    return apply(kind, [first, second], name, {"transpose_a": transpose_a, "transpose_b": transpose_b}).outputs[0]


@_function("cast")
def _cast(x: Any, dtype: Any, name: Optional[str] = None) -> Tensor:
    tensor, kind = convert(x), as_dtype(dtype)
    if tensor.dtype.base_dtype == kind:
        return tensor
    return apply("Cast", [tensor], name, {"DstT": kind.as_numpy_dtype}).outputs[0]


@_function("reshape")
def _reshape(tensor: Any, shape: Any, name: Optional[str] = None) -> Tensor:
    dims = shape if isinstance(shape, Tensor) else np.array(shape, np.int32)
    return apply("Reshape", [tensor, dims], name).outputs[0]


@_function("expand_dims")
def _expand_dims(input: Any, axis: int, name: Optional[str] = None) -> Tensor:
    return apply("ExpandDims", [input, np.int32(axis)], name).outputs[0]


@_function("squeeze")
def _squeeze(input: Any, axis: Any = None, name: Optional[str] = None) -> Tensor:
    axes = () if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    return apply("Squeeze", [input], name, {"squeeze_dims": axes}).outputs[0]


@_function("transpose")
def _transpose(a: Any, perm: Any = None, name: Optional[str] = None) -> Tensor:
    tensor = convert(a)
    order = range(len(tensor.shape))[::-1] if perm is None else perm
    return apply("Transpose", [tensor, np.array(list(order), np.int32)], name).outputs[0]


@_function("concat")
def _concat(values: Sequence[Any], axis: int, name: Optional[str] = None) -> Tensor:
    return apply("ConcatV2", [*values, np.int32(axis)], name or "concat").outputs[0]


@_function("argmax")
def _argmax(input: Any, axis: int = 0, name: Optional[str] = None, output_type: Any = "int64") -> Tensor:
    attrs = {"output_type": as_dtype(output_type).as_numpy_dtype}
    return apply("ArgMax", [input, np.int32(axis)], name, attrs).outputs[0]


@_function("bias_add", NN)
def _bias_add(value: Any, bias: Any, name: Optional[str] = None) -> Tensor:
    return apply("BiasAdd", [value, bias], name).outputs[0]


@_function("softmax_cross_entropy_with_logits", NN)
def _cross_entropy(labels: Any = None, logits: Any = None, name: Optional[str] = None) -> Tensor:
    scores = convert(logits)
    return apply("SoftmaxCrossEntropyWithLogits", [scores, _cast(labels, scores.dtype.base_dtype)], name).outputs[0]


@_function("sparse_softmax_cross_entropy_with_logits", NN)
def _sparse_cross_entropy(labels: Any = None, logits: Any = None, name: Optional[str] = None) -> Tensor:
    return apply("SparseSoftmaxCrossEntropyWithLogits", [logits, labels], name).outputs[0]


FUNCTIONS.update(placeholder=placeholder, no_op=no_op, group=group, convert_to_tensor=convert)


def _operator(function: Callable[..., Any], *, swapped: bool = False) -> Callable[..., Any]:
    def method(self: Any, operand: Any) -> Any:
        return function(operand, self) if swapped else function(self, operand)

    return method


def _negative(self: Any) -> Any:
    return FUNCTIONS["negative"](self)


OPERATORS: dict[str, Callable[..., Any]] = {"__neg__": _negative}
for _name, _type in {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "truediv": "RealDiv",
    "pow": "Pow",
    "matmul": "MatMul",
}.items():
    _plain = FUNCTIONS["matmul"] if _name == "matmul" else _binary(_type)
    OPERATORS[f"__{_name}__"] = _operator(_plain)
    OPERATORS[f"__r{_name}__"] = _operator(_plain, swapped=True)
OPERATORS["__gt__"] = _operator(_binary("Greater"))
OPERATORS["__lt__"] = _operator(_binary("Less"))


def _missing_operator(name: str) -> Callable[..., Any]:
    def method(self: Any, *operands: Any) -> Any:
        raise NotSupported(
            f"the stand-in for tensorflow has no operator {name} of tensors",
            hint="use a function that it has, or install a real tensorflow",
        )

    return method


for _name in (
    *("__ge__", "__le__", "__mod__", "__rmod__", "__floordiv__", "__rfloordiv__", "__getitem__", "__abs__"),
    *("__invert__", "__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__"),
):
    OPERATORS[_name] = _missing_operator(_name)
for _name, _method in OPERATORS.items():
    setattr(Tensor, _name, _method)
