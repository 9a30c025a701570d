"""The functions of the stand-in for TensorFlow that build operations: `tf.matmul`, `tf.nn.relu`, `tf.reduce_mean`, …"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional

from ascend_dump.fakes._tf_graph import DType, Operation, Tensor, TensorShape, as_dtype, current, graph_of
from ascend_dump.fakes._tf_kernels import infer

__all__ = ["FUNCTIONS", "NN", "apply", "convert", "group", "no_op", "placeholder"]

#: What stands in `tf` and in `tf.nn`, by name.
FUNCTIONS: dict[str, Callable[..., Any]] = {}
NN: dict[str, Callable[..., Any]] = {}


def apply(
    op_type: str,
    inputs: Sequence[Any],
    name: Optional[str] = None,
    attrs: Optional[dict[str, Any]] = None,
    outputs: Optional[Sequence[tuple[DType, TensorShape]]] = None,
) -> Operation:
    """Add an operation. outputs: types and shapes where they cannot be found from the inputs. Raises as `infer`."""
    graph = graph_of(*inputs)
    with graph.as_default():
        tensors = [graph.capture(convert(each)) for each in inputs]
        found = infer(op_type, tensors, attrs or {}) if outputs is None else outputs
        return graph.create_op(op_type, tensors, found, name, attrs)


def convert(value: Any, dtype: Any = None, name: str = "Const") -> Tensor:
    """A tensor as it is, a variable's value, or a constant. Raises TypeError for what is none."""
    import numpy as np

    found = value._as_tensor() if hasattr(value, "_as_tensor") else value
    if isinstance(found, Tensor):
        if dtype is not None and found.dtype.base_dtype != as_dtype(dtype):
            raise TypeError(f"Tensor conversion requested dtype {as_dtype(dtype).name} for {found!r}")
        return found
    if isinstance(found, Operation):
        raise TypeError(f"Can't convert Operation {found.name!r} to Tensor")
    if isinstance(found, (list, tuple)) and any(isinstance(each, Tensor) for each in found):
        parts = [apply("ExpandDims", [convert(each), np.int32(0)]).outputs[0] for each in found]
        return apply("ConcatV2", [*parts, np.int32(0)], "stack").outputs[0]
    array = np.asarray(found)
    if dtype is not None:
        array = array.astype(as_dtype(dtype).as_numpy_dtype)
    elif array.dtype == np.float64 and not isinstance(found, (np.ndarray, np.generic)):
        array = array.astype(np.float32)
    elif array.dtype == np.int64 and not isinstance(found, (np.ndarray, np.generic)):
        array = array.astype(np.int32)
    spec = (as_dtype(array.dtype), TensorShape(array.shape))
    return current.graph().create_op("Const", (), [spec], name, {"value": array, "dtype": spec[0]}).outputs[0]


def placeholder(dtype: Any, shape: Any = None, name: Optional[str] = None) -> Tensor:
    spec = (as_dtype(dtype), shape if isinstance(shape, TensorShape) else TensorShape(shape))
    return current.graph().create_op("Placeholder", (), [spec], name, {"dtype": spec[0]}).outputs[0]


def no_op(name: Optional[str] = None) -> Operation:
    return current.graph().create_op("NoOp", (), (), name)


def group(*inputs: Any, name: Optional[str] = None) -> Operation:
    """An operation that has run when all of these have."""
    flat = [part for each in inputs for part in (each if isinstance(each, (list, tuple)) else [each])]
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


def _binary(op_type: str) -> Callable[..., Tensor]:
    def call(x: Any, y: Any, name: Optional[str] = None) -> Tensor:
        graph = graph_of(x, y)
        with graph.as_default(), graph.name_scope(name or op_type.lower().replace("addv2", "add")) as scope:
            if hasattr(x, "dtype") or not hasattr(y, "dtype"):
                first = convert(x, name="x")
                second = convert(y, first.dtype.base_dtype if not hasattr(y, "dtype") else None, "y")
            else:
                second = convert(y, name="y")
                first = convert(x, second.dtype.base_dtype, "x")
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
        import numpy as np

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
    import numpy as np

    if shape is not None:
        value = np.broadcast_to(np.asarray(value, None if dtype is None else as_dtype(dtype).as_numpy_dtype), shape)
    return convert(value, dtype, name)


@_function("zeros")
def _zeros(shape: Any, dtype: Any = "float32", name: str = "zeros") -> Any:
    return _constant(0, dtype, shape, name)


@_function("ones")
def _ones(shape: Any, dtype: Any = "float32", name: str = "ones") -> Any:
    return _constant(1, dtype, shape, name)


@_function("matmul")
def _matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False, name: Optional[str] = None) -> Tensor:
    first, second = convert(a), convert(b)
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
    import numpy as np

    used = shape if isinstance(shape, Tensor) else np.array(shape, np.int32)
    return apply("Reshape", [tensor, used], name).outputs[0]


@_function("expand_dims")
def _expand_dims(input: Any, axis: int, name: Optional[str] = None) -> Tensor:
    import numpy as np

    return apply("ExpandDims", [input, np.int32(axis)], name).outputs[0]


@_function("squeeze")
def _squeeze(input: Any, axis: Any = None, name: Optional[str] = None) -> Tensor:
    axes = () if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    return apply("Squeeze", [input], name, {"squeeze_dims": axes}).outputs[0]


@_function("transpose")
def _transpose(a: Any, perm: Any = None, name: Optional[str] = None) -> Tensor:
    import numpy as np

    tensor = convert(a)
    order = range(len(tensor.shape))[::-1] if perm is None else perm
    return apply("Transpose", [tensor, np.array(list(order), np.int32)], name).outputs[0]


@_function("concat")
def _concat(values: Sequence[Any], axis: int, name: Optional[str] = None) -> Tensor:
    import numpy as np

    return apply("ConcatV2", [*values, np.int32(axis)], name or "concat").outputs[0]


@_function("argmax")
def _argmax(input: Any, axis: int = 0, name: Optional[str] = None) -> Tensor:
    import numpy as np

    return apply("ArgMax", [input, np.int32(axis)], name).outputs[0]


@_function("bias_add", NN)
def _bias_add(value: Any, bias: Any, name: Optional[str] = None) -> Tensor:
    return apply("BiasAdd", [value, bias], name).outputs[0]


@_function("softmax_cross_entropy_with_logits", NN)
def _cross_entropy(labels: Any = None, logits: Any = None, name: Optional[str] = None) -> Tensor:
    return apply("SoftmaxCrossEntropyWithLogits", [logits, labels], name).outputs[0]


@_function("sparse_softmax_cross_entropy_with_logits", NN)
def _sparse_cross_entropy(labels: Any = None, logits: Any = None, name: Optional[str] = None) -> Tensor:
    return apply("SparseSoftmaxCrossEntropyWithLogits", [logits, labels], name).outputs[0]


FUNCTIONS.update(placeholder=placeholder, no_op=no_op, group=group, convert_to_tensor=convert)


def _operator(function: Callable[..., Any], *, swapped: bool = False) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        return function(other, self) if swapped else function(self, other)

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
for _name, _method in OPERATORS.items():
    setattr(Tensor, _name, _method)
