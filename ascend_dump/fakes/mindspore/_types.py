"""Element types and tensors of the fake MindSpore.

The numpy array of a tensor is never overwritten. An operator that changes a Parameter assigns a new array to it. So
references to the old array keep the old values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol, Union

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    _Array = np.ndarray[Any, Any]

__all__ = [
    "BFLOAT16",
    "DTYPES",
    "OPERATORS",
    "MindSporeDType",
    "Parameter",
    "ParameterTuple",
    "Tensor",
    "array_of",
    "dtype_of",
    "initializer",
]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class TensorMaker(Protocol):
    """The interface of the operator that computed a tensor."""

    scope: str


class MindSporeDType:
    """An element type, such as `mindspore.float32`. label: MindSpore's name, such as `Float32`."""

    __slots__ = ("label", "numpy")

    def __init__(self, label: str, numpy: Any) -> None:
        self.label = label
        self.numpy: np.dtype[Any] = np.dtype(numpy)

    def __repr__(self) -> str:
        return self.label


#: Name in the module `mindspore` -> type.
DTYPES: dict[str, MindSporeDType] = {
    "bool_": MindSporeDType("Bool", np.bool_),
    "int8": MindSporeDType("Int8", np.int8),
    "int16": MindSporeDType("Int16", np.int16),
    "int32": MindSporeDType("Int32", np.int32),
    "int64": MindSporeDType("Int64", np.int64),
    "uint8": MindSporeDType("UInt8", np.uint8),
    "uint16": MindSporeDType("UInt16", np.uint16),
    "uint32": MindSporeDType("UInt32", np.uint32),
    "uint64": MindSporeDType("UInt64", np.uint64),
    "float16": MindSporeDType("Float16", np.float16),
    "float32": MindSporeDType("Float32", np.float32),
    "float64": MindSporeDType("Float64", np.float64),
    "bfloat16": MindSporeDType("BFloat16", BFLOAT16),
    "complex64": MindSporeDType("Complex64", np.complex64),
    "complex128": MindSporeDType("Complex128", np.complex128),
}
_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values()}
#: Python's type -> numpy's type, for a Python type that is passed as dtype.
_LITERALS = ((bool, np.bool_), (int, np.int64), (float, np.float64), (complex, np.complex64))


def dtype_of(array: Union[_Array, np.generic]) -> MindSporeDType:
    """Return the type of an array. Raises TypeError for a type that MindSpore does not have."""
    dtype = _BY_NUMPY.get(array.dtype)
    if dtype is None:
        raise TypeError(f"For Tensor, the type of input_data {array.dtype} is not supported")
    return dtype


def array_of(value: Any, dtype: Any = None) -> _Array:
    """Return a tensor, an array, a number or a nested list as an array with contiguous memory.

    dtype: its type. By default numbers and lists of floats become float32.
    """
    if isinstance(value, Tensor):
        array = value.array
    elif isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
    else:
        array = np.asarray(value)
        if dtype is None and array.dtype == np.float64:
            array = array.astype(np.float32)
    if dtype is not None:
        array = array.astype(_numpy_type(dtype))
    # ascontiguousarray turns the shape () into (1,), so the shape is restored.
    contiguous: _Array = np.ascontiguousarray(array).reshape(array.shape)
    return contiguous


def _numpy_type(dtype: Any) -> np.dtype[Any]:
    literal = next((numpy for kind, numpy in _LITERALS if dtype is kind), dtype)
    numpy_dtype: np.dtype[Any] = dtype.numpy if isinstance(dtype, MindSporeDType) else np.dtype(literal)
    return numpy_dtype


class Tensor:
    """`mindspore.Tensor`, made from data, or from `shape`, `dtype` and `init`."""

    def __init__(
        self,
        input_data: Any = None,
        dtype: Optional[Any] = None,
        shape: Optional[Union[int, Sequence[int]]] = None,
        init: Any = None,
    ) -> None:
        if input_data is None:
            if shape is None or dtype is None:
                raise ValueError("For 'Tensor', input_data is None: shape and dtype must be given")
            input_data = initializer(0.0 if init is None else init, shape, dtype)
        if isinstance(input_data, str):
            raise TypeError("For Tensor, the input_data must not be a string")
        self.array: _Array = array_of(input_data, dtype)
        if self.array is input_data or self.array.base is not None:
            # Copy the program's array, because the program may overwrite it.
            self.array = self.array.copy()
        dtype_of(self.array)
        #: The recorded operator that computed the tensor, and the tensor's index among its outputs.
        self.node: Optional[TensorMaker] = None
        self.position = 0

    # Type, shape and values.

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> MindSporeDType:
        return dtype_of(self.array)

    @property
    def ndim(self) -> int:
        return int(self.array.ndim)

    @property
    def size(self) -> int:
        return int(self.array.size)

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    @property
    def itemsize(self) -> int:
        return int(self.array.itemsize)

    def dim(self) -> int:
        return self.ndim

    def asnumpy(self) -> _Array:
        # As in MindSpore, bfloat16 is converted, because numpy has no such type.
        return self.array.astype(np.float32) if self.array.dtype == BFLOAT16 else self.array.copy()

    numpy = asnumpy

    def item(self) -> Any:
        return self.array.item()

    def tolist(self) -> Any:
        return self.asnumpy().tolist()

    def copy(self) -> Tensor:
        return Tensor(self.array.copy())

    @classmethod
    def from_numpy(cls, array: _Array) -> Tensor:
        """Return a tensor that shares the memory of a contiguous array."""
        tensor = Tensor(0)
        tensor.array = array_of(array)
        return tensor

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> _Array:
        return np.asarray(self.asnumpy(), dtype)

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[position] for position in range(len(self.array)))

    def __bool__(self) -> bool:
        return bool(self.array)

    def __int__(self) -> int:
        return int(self.array.item())

    def __float__(self) -> float:
        return float(self.array.item())

    def __index__(self) -> int:
        if self.size != 1 or self.array.dtype.kind not in "iu":
            raise ValueError("Only integer tensors of a single element can be converted to an index.")
        return int(self.array.item())

    def __format__(self, spec: str) -> str:
        return format(self.item() if spec and self.size == 1 else str(self), spec)

    def __repr__(self) -> str:
        return f"Tensor(shape={list(self.shape)}, dtype={self.dtype}, value={self.asnumpy()})"

    def __str__(self) -> str:
        return str(self.asnumpy())

    __hash__ = object.__hash__

    # Operators. Each method calls one function of `OPERATORS`.

    def __add__(self, operand: Any) -> Tensor:
        return _call("Add", self, operand)

    def __radd__(self, operand: Any) -> Tensor:
        return _call("Add", operand, self)

    def __sub__(self, operand: Any) -> Tensor:
        return _call("Sub", self, operand)

    def __rsub__(self, operand: Any) -> Tensor:
        return _call("Sub", operand, self)

    def __mul__(self, operand: Any) -> Tensor:
        return _apply("mul", self, operand)

    def __rmul__(self, operand: Any) -> Tensor:
        return _apply("mul", self, operand)

    def __truediv__(self, operand: Any) -> Tensor:
        return _call("Div", self, operand)

    def __rtruediv__(self, operand: Any) -> Tensor:
        return _call("Div", operand, self)

    def __pow__(self, operand: Any) -> Tensor:
        return _call("Pow", self, operand)

    def __neg__(self) -> Tensor:
        return _call("Neg", self)

    def __matmul__(self, operand: Any) -> Tensor:
        return _apply("matmul", self, operand)

    def __eq__(self, operand: object) -> Any:
        return _call("Equal", self, operand) if isinstance(operand, _OPERANDS) else False

    def __ne__(self, operand: object) -> Any:
        return _call("NotEqual", self, operand) if isinstance(operand, _OPERANDS) else True

    def __gt__(self, operand: Any) -> Tensor:
        return _call("Greater", self, operand)

    def __ge__(self, operand: Any) -> Tensor:
        return _call("GreaterEqual", self, operand)

    def __lt__(self, operand: Any) -> Tensor:
        return _call("Less", self, operand)

    def __le__(self, operand: Any) -> Tensor:
        return _call("LessEqual", self, operand)

    def __getitem__(self, key: Any) -> Tensor:
        return _apply("getitem", self, key)

    def astype(self, dtype: Any) -> Tensor:
        return _apply("cast", self, dtype)

    to = astype

    def reshape(self, *shape: Any) -> Tensor:
        return _apply("reshape", self, shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)

    view = reshape

    def flatten(self) -> Tensor:
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> Tensor:
        return _apply("transpose", self, axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes)

    @property
    def T(self) -> Tensor:  # noqa: N802  (MindSpore's name)
        return _apply("transpose", self, tuple(reversed(range(self.ndim))))

    def sum(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return _apply("total", self, axis, keepdims)

    def mean(self, axis: Any = None, keep_dims: bool = False) -> Tensor:
        return _apply("mean", self, axis, keep_dims)

    def argmax(self, axis: Any = None) -> Tensor:
        return _apply("argmax", self, axis)

    def abs(self) -> Tensor:
        return _call("Abs", self)

    def exp(self) -> Tensor:
        return _call("Exp", self)

    def log(self) -> Tensor:
        return _call("Log", self)

    def sqrt(self) -> Tensor:
        return _call("Sqrt", self)


#: The functions that methods of tensors call, by name. `_functions` fills the table, because it imports this module.
OPERATORS: dict[str, Callable[..., Tensor]] = {}
_OPERANDS = (Tensor, int, float, complex, np.generic)


class Parameter(Tensor):
    """`mindspore.Parameter`: a tensor with a name, whose value operators can change."""

    def __init__(self, default_input: Any, name: Optional[str] = None, requires_grad: bool = True) -> None:
        super().__init__(default_input)
        self.name = "Parameter" if name is None else name
        #: False if the name is the default one, which a cell replaces.
        self.named = name is not None
        self.requires_grad = requires_grad

    def set_data(self, data: Any) -> Parameter:
        self.array = array_of(data).astype(self.array.dtype)
        return self

    def value(self) -> Tensor:
        return self

    def __repr__(self) -> str:
        grad = self.requires_grad
        return f"Parameter (name={self.name}, shape={self.shape}, dtype={self.dtype}, requires_grad={grad})"

    __str__ = __repr__


class ParameterTuple(tuple[Parameter, ...]):
    """`mindspore.ParameterTuple`."""


_generator = np.random.default_rng(0)


def set_seed(seed: int) -> None:
    """`mindspore.set_seed`: seed the random initializers."""
    global _generator
    _generator = np.random.default_rng(seed)


def initializer(init: Any, shape: Union[int, Sequence[int]] = (), dtype: Any = None) -> Tensor:
    """`mindspore.common.initializer.initializer`: return a new tensor of this shape and type.

    init: a number, a tensor, a function of the shape, or a name such as "zeros", "ones", "normal" or "he_uniform".
    """
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = DTYPES["float32"] if dtype is None else dtype
    if isinstance(init, (Tensor, np.ndarray)):
        return Tensor(array_of(init).reshape(dims), kind)
    if isinstance(init, (int, float)):
        return Tensor(np.full(dims, init), kind)
    if callable(init):
        return Tensor(init(dims), kind)
    name = str(init).lower()
    if name in ("zeros", "zero"):
        return Tensor(np.zeros(dims), kind)
    if name in ("ones", "one"):
        return Tensor(np.ones(dims), kind)
    fan = max(1, int(np.prod(dims[1:])) if len(dims) > 1 else 1)
    if name == "normal":
        return Tensor(_generator.normal(0.0, 0.01, dims), kind)
    if name in ("xavier_uniform", "he_uniform", "heuniform", "uniform"):
        bound = 0.07 if name == "uniform" else float(np.sqrt(3.0 / fan))
        return Tensor(_generator.uniform(-bound, bound, dims), kind)
    raise ValueError(f"The class {init!r} is not found: the fake has zeros, ones, normal, uniform, he_uniform")


def draw(kind: str, *arguments: float) -> Any:
    """Return an initializer: a function that returns random values of a shape.

    kind: "normal" (sigma, mean), "truncated" (sigma, mean, low, high) or "uniform" (scale), with the arguments in
    brackets.
    """

    def make(shape: Sequence[int]) -> _Array:
        if kind == "normal":
            sigma, mean = arguments
            return _generator.normal(mean, sigma, tuple(shape))
        if kind == "truncated":
            sigma, mean, low, high = arguments
            return np.clip(_generator.normal(0.0, 1.0, tuple(shape)), low, high) * sigma + mean
        (scale,) = arguments
        return _generator.uniform(-scale, scale, tuple(shape))

    return make


def _call(op_type: str, *inputs: Any) -> Tensor:
    return _apply("call", op_type, *inputs)


def _apply(function: str, *inputs: Any) -> Tensor:
    return OPERATORS[function](*inputs)
