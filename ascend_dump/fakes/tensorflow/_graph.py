"""Graphs, operations and tensors of the fake TensorFlow, and the default graph and session of the process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

if TYPE_CHECKING:
    _Array = np.ndarray[Any, Any]

__all__ = ["TYPES", "DType", "Graph", "Operation", "Tensor", "TensorShape", "as_dtype", "current", "graph_of"]

TYPES = ("float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool", "string", "resource")


class DType(NamedTuple):
    """`tf.DType`: an element type. name: as in TensorFlow, such as "float32", or "float32_ref" for a variable."""

    name: str

    @property
    def base_dtype(self) -> DType:
        return DType(self.name[:-4]) if self.name.endswith("_ref") else self

    @property
    def as_numpy_dtype(self) -> Any:
        base = self.base_dtype.name
        return np.object_ if base in ("string", "resource") else np.dtype(base).type

    @property
    def is_floating(self) -> bool:
        return self.base_dtype.name.startswith("float")

    def __repr__(self) -> str:
        return f"tf.{self.name}"


def as_dtype(value: Any) -> DType:
    """Return the type for its name, or for a numpy type. Raises TypeError for an unknown type."""
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in TYPES:
        return DType(value)
    kind = np.dtype(value)
    name = "string" if kind.kind in "OSU" else kind.name
    if name not in TYPES:
        raise TypeError(f"Cannot convert value {value!r} to a TensorFlow DType.")
    return DType(name)


class TensorShape:
    """`tf.TensorShape`: a static shape. dims: its sizes, each None if unknown; None instead if the rank is unknown."""

    def __init__(self, dims: Optional[Iterable[Optional[int]]]) -> None:
        self._dims = None if dims is None else tuple(None if dim is None else int(dim) for dim in dims)

    @property
    def ndims(self) -> Optional[int]:
        return None if self._dims is None else len(self._dims)

    rank = ndims

    def as_list(self) -> list[Optional[int]]:
        if self._dims is None:
            raise ValueError("as_list() is not defined on an unknown TensorShape.")
        return list(self._dims)

    def is_fully_defined(self) -> bool:
        return self._dims is not None and None not in self._dims

    def merge_with(self, shape: Any) -> TensorShape:
        """Return the shape with the known sizes of both shapes. Raises ValueError if known sizes or ranks differ."""
        second = shape if isinstance(shape, TensorShape) else TensorShape(shape)
        if self._dims is None or second._dims is None:
            return self if second._dims is None else second
        pairs = list(zip(self._dims, second._dims))
        if len(self._dims) != len(second._dims) or any(None not in pair and pair[0] != pair[1] for pair in pairs):
            raise ValueError(f"Shapes {self!r} and {second!r} are incompatible")
        return TensorShape([b if a is None else a for a, b in pairs])

    def __getitem__(self, index: int) -> Optional[int]:
        return self.as_list()[index]

    def __len__(self) -> int:
        if self._dims is None:
            raise ValueError("Cannot take the length of shape with unknown rank.")
        return len(self._dims)

    def __str__(self) -> str:
        return "<unknown>" if self._dims is None else str(self._dims)

    def __iter__(self) -> Iterator[Optional[int]]:
        return iter(self.as_list())

    def __eq__(self, shape: object) -> bool:
        dims = shape._dims if isinstance(shape, TensorShape) else shape
        return self._dims == (tuple(dims) if isinstance(dims, (list, tuple)) else dims)

    def __hash__(self) -> int:
        return hash(self._dims)

    def __repr__(self) -> str:
        return f"TensorShape({None if self._dims is None else list(self._dims)})"


class Tensor:
    """`tf.Tensor`: one output of an operation."""

    #: Lets numpy call the tensor's method for an expression such as `array + tensor`.
    __array_priority__ = 100

    def __init__(self, op: Operation, index: int, dtype: DType, shape: TensorShape) -> None:
        self.op = op
        self.value_index = index
        self.dtype = dtype
        self._shape = shape
        self._consumers: list[Operation] = []

    @property
    def name(self) -> str:
        return f"{self.op.name}:{self.value_index}"

    @property
    def graph(self) -> Graph:
        return self.op.graph

    @property
    def shape(self) -> TensorShape:
        return self._shape

    def get_shape(self) -> TensorShape:
        return self._shape

    def set_shape(self, shape: Any) -> None:
        """Add known sizes to the static shape. Raises ValueError if they contradict it."""
        self._shape = self._shape.merge_with(shape)

    def consumers(self) -> list[Operation]:
        return list(self._consumers)

    # The name is TensorFlow's. It has nothing to do with Python's eval.
    def eval(self, feed_dict: Any = None, session: Any = None) -> Any:
        return _session_or_default(session).run(self, feed_dict)

    def __bool__(self) -> bool:
        raise TypeError("Using a `tf.Tensor` as a Python `bool` is not allowed. Use `tf.cond`.")

    def __iter__(self) -> Iterator[Tensor]:
        raise TypeError("Tensor objects are only iterable when eager execution is enabled.")

    def __repr__(self) -> str:
        return f"<tf.Tensor {self.name!r} shape={self._shape} dtype={self.dtype.name}>"


class Operation:
    """`tf.Operation`: a node of a graph. attrs: attributes of its kernel. controls: operations that run before it."""

    def __init__(
        self, graph: Graph, op_type: str, name: str, inputs: Sequence[Tensor], attrs: dict[str, Any], controls: set[Any]
    ) -> None:
        self.graph = graph
        self.type = op_type
        self.name = name
        self.attrs = attrs
        self.inputs: tuple[Tensor, ...] = tuple(inputs)
        self.control_inputs: list[Operation] = sorted(controls, key=lambda op: op._id)
        self.outputs: list[Tensor] = []
        self._id = graph._next_id()

    def get_attr(self, name: str) -> Any:
        if name not in self.attrs:
            raise ValueError(f"Operation {self.name!r} has no attr named {name!r}.")
        return self.attrs[name]

    def run(self, feed_dict: Any = None, session: Any = None) -> None:
        _session_or_default(session).run(self, feed_dict)

    def __repr__(self) -> str:
        return f"<tf.Operation {self.name!r} type={self.type}>"


class Graph:
    """`tf.Graph`: operations in the order of their creation.

    outer: for the body of a function, such as a branch of `tf.cond`, the graph in which it is called.
    """

    def __init__(self, outer: Optional[Graph] = None) -> None:
        self.outer = outer
        self.seed: Optional[int] = None
        self.finalized = False
        #: For the body of a function: tensor of an outer graph -> its placeholder in the body.
        self.captures: dict[Tensor, Tensor] = {}
        self._ops: dict[str, Operation] = {}
        self._ids = 0
        self._used: dict[str, int] = {}
        self._scope = ""
        self._controls: list[set[Operation]] = []
        self._collections: dict[str, list[Any]] = {}

    # Building the graph.

    def create_op(
        self,
        op_type: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[tuple[DType, TensorShape]],
        name: Optional[str] = None,
        attrs: Optional[dict[str, Any]] = None,
    ) -> Operation:
        """Add an operation, and return it. Raises RuntimeError if the graph is finalised.

        outputs: type and static shape of each output. name: made unique; the type by default.
        """
        if self.finalized:
            raise RuntimeError("Graph is finalized and cannot be modified.")
        captured = [self.capture(tensor) for tensor in inputs]
        controls = set().union(*self._controls) if self._controls else set()
        # A name that ends with a slash is the name of a scope, which is already unique.
        unique = name[:-1] if name and name.endswith("/") else self.unique_name(name or op_type)
        op = Operation(self, op_type, unique, captured, dict(attrs or {}), controls)
        op.outputs = [Tensor(op, index, dtype, shape) for index, (dtype, shape) in enumerate(outputs)]
        for tensor in captured:
            tensor._consumers.append(op)
        self._ops[op.name] = op
        return op

    def capture(self, tensor: Tensor) -> Tensor:
        """Return a tensor if it is in this graph, else the placeholder for it, which is added if necessary.

        Raises ValueError if this graph is not the body of a function.
        """
        if tensor.graph is self:
            return tensor
        if self.outer is None:
            raise ValueError(f"{tensor!r} must be from the same graph as the operation that takes it.")
        if tensor not in self.captures:
            inside = self.create_op("Placeholder", (), [(tensor.dtype.base_dtype, tensor.shape)], "captured").outputs[0]
            self.captures[tensor] = inside
        return self.captures[tensor]

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        full = f"{self._scope}{name}"
        number = self._used.get(full, 0)
        candidate = full if number == 0 else f"{full}_{number}"
        while number and candidate in self._used:
            number += 1
            candidate = f"{full}_{number}"
        if mark_as_used:
            self._used[full] = number + 1
            self._used.setdefault(candidate, 1)
        return candidate

    @contextlib.contextmanager
    def name_scope(self, name: Optional[str]) -> Iterator[str]:
        outer = self._scope
        if not name:
            self._scope = ""
        else:
            self._scope = name if name.endswith("/") else self.unique_name(name) + "/"
        try:
            yield self._scope
        finally:
            self._scope = outer

    @contextlib.contextmanager
    def control_dependencies(self, needed: Optional[Iterable[Any]]) -> Iterator[None]:
        outer = self._controls
        ops = set() if needed is None else {getattr(value, "op", value) for value in needed}
        self._controls = [] if needed is None else [*outer, ops]
        try:
            yield
        finally:
            self._controls = outer

    @contextlib.contextmanager
    def as_default(self) -> Iterator[Graph]:
        _stack.append(self)
        try:
            yield self
        finally:
            _drop(_stack, self)

    def finalize(self) -> None:
        self.finalized = True

    # Finding operations, tensors and collections.

    def get_operations(self) -> list[Operation]:
        return list(self._ops.values())

    def get_operation_by_name(self, name: str) -> Operation:
        return self.as_graph_element(name, allow_tensor=False)  # type: ignore[no-any-return]  # by the arguments

    def get_tensor_by_name(self, name: str) -> Tensor:
        return self.as_graph_element(name, allow_operation=False)  # type: ignore[no-any-return]  # by the arguments

    def as_graph_element(self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True) -> Any:
        """Return the tensor or operation for a name, a variable, or a tensor or operation itself.

        Raises KeyError for an unknown name, ValueError for an element of another graph, TypeError for other objects.
        """
        element = getattr(obj, "_as_graph_element", lambda: obj)()
        if isinstance(element, str):
            name, colon, index = element.partition(":")
            op = self._ops.get(name)
            if op is None or (colon and (not index.isdigit() or int(index) >= len(op.outputs))):
                raise KeyError(f"The name {element!r} refers to nothing in the graph.")
            element = op.outputs[int(index)] if colon else op
        allowed = (allow_tensor and isinstance(element, Tensor)) or (allow_operation and isinstance(element, Operation))
        if not allowed:
            raise TypeError(f"Can not convert a {type(obj).__name__} into a Tensor or Operation.")
        if element.graph is not self:
            raise ValueError(f"{obj!r} is not an element of this graph.")
        return element

    def is_fetchable(self, tensor: Any) -> bool:
        return True

    is_feedable = is_fetchable

    def get_collection_ref(self, name: str) -> list[Any]:
        return self._collections.setdefault(name, [])

    def get_collection(self, name: str, scope: Optional[str] = None) -> list[Any]:
        return [item for item in self._collections.get(name, ()) if scope is None or item.name.startswith(scope)]

    def add_to_collection(self, name: str, value: Any) -> None:
        self.get_collection_ref(name).append(value)

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids


#: The default graphs, the innermost last.
_stack: list[Graph] = [Graph()]
#: The default sessions, the innermost last.
_sessions: list[Any] = []


def _drop(stack: list[Any], item: Any) -> None:
    """Remove the last entry that is this graph or session. Earlier entries of the same object stay."""
    del stack[len(stack) - 1 - stack[::-1].index(item)]


class current:  # noqa: N801  (a namespace of functions)
    """Functions that return and set the default graph and session of the process."""

    @staticmethod
    def graph() -> Graph:
        return _stack[-1]

    @staticmethod
    def session() -> Any:
        return _sessions[-1] if _sessions else None

    @staticmethod
    def enter(session: Any) -> None:
        _sessions.append(session)

    @staticmethod
    def leave(session: Any) -> None:
        _drop(_sessions, session)

    @staticmethod
    def begin() -> None:
        """Reset the default graphs and sessions to those of a new process."""
        _stack[:] = [Graph()]
        _sessions.clear()

    @staticmethod
    def reset() -> None:
        """Replace the default graph by an empty one. Raises AssertionError inside `Graph.as_default`."""
        assert len(_stack) == 1, "Do not use tf.reset_default_graph() to clear nested graphs."
        _stack[0] = Graph()


def graph_of(*tensors: Any) -> Graph:
    """Return the graph to which an operation on these tensors is added.

    It is the body of a function if one is being built, else the graph of the tensors, else the default graph.
    """
    graph = current.graph()
    if graph.outer is not None:
        return graph
    return next((tensor.graph for tensor in tensors if isinstance(tensor, Tensor)), graph)


def _session_or_default(session: Any) -> Any:
    chosen = session or current.session()
    if chosen is None:
        raise ValueError("Cannot evaluate without a session: pass session=, or use `with sess.as_default()`.")
    return chosen
