"""Variables of the fake TensorFlow, variable scopes and initialisers.

As in TensorFlow 1.x, a variable is an operation VariableV2 with an Assign that initialises it and an Identity `read`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from ascend_dump import NotSupported
from ascend_dump.fakes.tensorflow._graph import DType, Operation, Tensor, TensorShape, as_dtype, current
from ascend_dump.fakes.tensorflow._ops import FUNCTIONS as TF
from ascend_dump.fakes.tensorflow._ops import OPERATORS, apply, convert, group

__all__ = ["FUNCTIONS", "INITIALIZERS", "Variable", "global_step"]

GLOBAL, LOCAL, TRAINABLE, STEP = "variables", "local_variables", "trainable_variables", "global_step"
#: The graph collection with the stack of variable scopes.
_SCOPE = "__variable_scope"


class Variable:
    """`tf.Variable` whose operation returns a reference to the variable (not a resource).

    Raises ValueError if the shape of the initial value is not known.
    """

    __array_priority__ = 100

    def __init__(
        self,
        initial_value: Any,
        trainable: bool = True,
        collections: Optional[Sequence[str]] = None,
        name: Optional[str] = None,
        dtype: Any = None,
        **ignored: Any,
    ) -> None:
        graph = current.graph()
        with graph.control_dependencies(None), graph.name_scope(name or "Variable") as scope:
            with graph.name_scope("Initializer"):
                value = convert(initial_value() if callable(initial_value) else initial_value, dtype, "initial_value")
            if not value.shape.is_fully_defined():
                raise ValueError("initial_value must have a shape specified")
            ref = DType(f"{value.dtype.base_dtype.name}_ref")
            attrs = {"shape": value.shape.as_list(), "dtype": value.dtype.base_dtype}
            self._variable = graph.create_op("VariableV2", (), [(ref, value.shape)], scope, attrs).outputs[0]
            self.initial_value = value
            self.initializer = _assign("Assign", self._variable, value, "Assign").op
            plain = [(value.dtype.base_dtype, value.shape)]
            self._snapshot = graph.create_op("Identity", [self._variable], plain, "read").outputs[0]
        for collection in collections or [GLOBAL]:
            graph.add_to_collection(collection, self)
        if trainable and TRAINABLE not in (collections or ()):
            graph.add_to_collection(TRAINABLE, self)

    @property
    def name(self) -> str:
        return self._variable.name

    @property
    def op(self) -> Operation:
        return self._variable.op

    @property
    def graph(self) -> Any:
        return self._variable.graph

    @property
    def dtype(self) -> DType:
        return self._variable.dtype

    @property
    def shape(self) -> TensorShape:
        return self._variable.shape

    def get_shape(self) -> TensorShape:
        return self._variable.shape

    def value(self) -> Tensor:
        return self._snapshot

    def read_value(self) -> Tensor:
        return apply("Identity", [self._variable], None, None, [(self.dtype.base_dtype, self.shape)]).outputs[0]

    def assign(self, value: Any, name: Optional[str] = None) -> Tensor:
        return _assign("Assign", self._variable, self._fitting(value), name)

    def assign_add(self, delta: Any, name: Optional[str] = None) -> Tensor:
        return _assign("AssignAdd", self._variable, self._fitting(delta), name)

    def assign_sub(self, delta: Any, name: Optional[str] = None) -> Tensor:
        return _assign("AssignSub", self._variable, self._fitting(delta), name)

    def _fitting(self, value: Any) -> Tensor:
        """Return a value as a tensor of the variable's type. Raises TypeError for a tensor of another type."""
        try:
            return convert(value, self.dtype.base_dtype)
        except ValueError as error:
            raise TypeError(str(error)) from None

    # The name is TensorFlow's. It has nothing to do with Python's eval.
    def eval(self, session: Any = None) -> Any:
        return self._variable.eval(session=session)

    def _as_graph_element(self) -> Tensor:
        return self._variable

    def _as_tensor(self) -> Tensor:
        return self._snapshot

    def __repr__(self) -> str:
        return f"<tf.Variable {self.name!r} shape={self.shape} dtype={self.dtype.name}>"


for _name, _method in OPERATORS.items():
    setattr(Variable, _name, _method)


def _assign(op_type: str, ref: Tensor, value: Tensor, name: Optional[str]) -> Tensor:
    """Add an operation that assigns a value to a variable, and return its output.

    Raises ValueError if the shapes differ, and NotSupported in a branch of `tf.cond`.
    """
    if current.graph().outer is not None and ref.graph is not current.graph():
        raise NotSupported(
            "the stand-in for tensorflow assigns no variables within tf.cond",
            hint="assign the result of tf.cond, or install a real tensorflow",
        )
    ref.shape.merge_with(value.shape)
    return apply(op_type, [ref, value], name, None, [(ref.dtype, ref.shape)]).outputs[0]


def refuse_options(what: str, options: Mapping[str, Any], *harmless: str) -> None:
    """Raise NotSupported if an option is set, that is, not None.

    what: the name of the function that got the options. harmless: options to ignore.
    """
    for name, value in options.items():
        if value is not None and name not in harmless:
            raise NotSupported(
                f"the stand-in for tensorflow has no option {name!r} of {what}",
                hint=f"leave out {name}, or install a real tensorflow",
            )


def _random(op_type: str, spread: float = 1.0, middle: float = 0.0, seed: Optional[int] = None) -> Any:
    def make(shape: Sequence[int], dtype: Any = "float32", partition_info: Any = None) -> Tensor:
        kind = as_dtype(dtype)
        dims = convert(np.array(shape, np.int32), name="shape")
        attrs = {"dtype": kind, "spread": spread, "middle": middle, "seed": seed, "graph_seed": current.graph().seed}
        return apply(op_type, [dims], None, attrs, [(kind, TensorShape(shape))]).outputs[0]

    return make


def _constant(value: Any) -> Any:
    def make(shape: Sequence[int], dtype: Any = "float32", partition_info: Any = None) -> Tensor:
        tensor: Tensor = TF["constant"](np.asarray(value, as_dtype(dtype).as_numpy_dtype), dtype, shape, "value")
        return tensor

    return make


def _glorot(seed: Optional[int] = None, dtype: Any = "float32") -> Any:
    def make(shape: Sequence[int], dtype: Any = dtype, partition_info: Any = None) -> Tensor:
        field = math.prod(shape[:-2])
        fans = (shape[-2 if len(shape) > 1 else 0] * field, shape[-1] * field) if shape else (1, 1)
        limit = (6.0 / max(1, sum(fans))) ** 0.5
        tensor: Tensor = _random("RandomUniform", 2 * limit, -limit, seed)(shape, dtype)
        return tensor

    return make


#: Name in `tf` -> function that returns an initialiser: a function of shape and type that returns a tensor.
INITIALIZERS: dict[str, Any] = {
    "zeros_initializer": lambda dtype="float32": _constant(0),
    "ones_initializer": lambda dtype="float32": _constant(1),
    "constant_initializer": lambda value=0, dtype="float32": _constant(value),
    "random_normal_initializer": lambda mean=0.0, stddev=1.0, seed=None, dtype="float32": _random(
        "RandomStandardNormal", stddev, mean, seed
    ),
    "truncated_normal_initializer": lambda mean=0.0, stddev=1.0, seed=None, dtype="float32": _random(
        "TruncatedNormal", stddev, mean, seed
    ),
    "random_uniform_initializer": lambda minval=0.0, maxval=1.0, seed=None, dtype="float32": _random(
        "RandomUniform", maxval - minval, minval, seed
    ),
    "glorot_uniform_initializer": _glorot,
}


class _Scope:
    """A variable scope.

    name         its full name
    reuse        True to use existing variables, "auto" to use or create them, None to create them
    initializer  the default initialiser of variables in it
    """

    def __init__(self, name: str = "", reuse: Any = None, initializer: Any = None) -> None:
        self.name = name
        self.reuse = reuse
        self.initializer = initializer

    def reuse_variables(self) -> None:
        self.reuse = True


def _scope() -> _Scope:
    scopes = current.graph().get_collection_ref(_SCOPE)
    if not scopes:
        scopes.append(_Scope())
    scope: _Scope = scopes[-1]
    return scope


@contextlib.contextmanager
def variable_scope(
    name_or_scope: Any,
    default_name: Optional[str] = None,
    values: Any = None,
    initializer: Any = None,
    reuse: Any = None,
    **options: Any,
) -> Iterator[_Scope]:
    """`tf.variable_scope`: enter a variable scope for the block. Raises NotSupported for other options."""
    refuse_options("tf.variable_scope", options, "use_resource")
    outer = _scope()
    if name_or_scope is None and default_name:
        name_or_scope = _unique(f"{outer.name}/" if outer.name else "", default_name)
    local_name = name_or_scope.name if isinstance(name_or_scope, _Scope) else name_or_scope or default_name
    full = str(local_name) if isinstance(name_or_scope, _Scope) or not outer.name else f"{outer.name}/{local_name}"
    scopes = current.graph().get_collection_ref(_SCOPE)
    counts = _counts()
    counts[full] = counts.get(full, 0) + 1
    scopes.append(
        _Scope(full, outer.reuse if reuse is None else reuse, outer.initializer if initializer is None else initializer)
    )
    try:
        with current.graph().name_scope(local_name):
            yield scopes[-1]
    finally:
        scopes.pop()
        for inner in [name for name in counts if name.startswith(f"{full}/")]:
            del counts[inner]


def _counts() -> dict[str, int]:
    """Return the number of times that each variable scope was entered, by full name.

    When a scope is left, the numbers of the scopes in it are removed.
    """
    collection = current.graph().get_collection_ref(f"{_SCOPE}_counts")
    if not collection:
        collection.append({})
    counts: dict[str, int] = collection[0]
    return counts


def _unique(outer: str, name: str) -> str:
    """Return a name for a variable scope in `outer` that was not entered before: `name`, `name_1` and so on."""
    counts, number, candidate = _counts(), 0, name
    while counts.get(outer + candidate):
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def get_variable(
    name: str,
    shape: Any = None,
    dtype: Any = "float32",
    initializer: Any = None,
    trainable: bool = True,
    collections: Optional[Sequence[str]] = None,
    **options: Any,
) -> Variable:
    """`tf.get_variable`: create a variable in the current variable scope, or return the existing one.

    Raises ValueError if it exists and the scope does not reuse variables, or if it is missing and the scope only reuses
    them. Raises NotSupported for other options.
    """
    refuse_options("tf.get_variable", options, "use_resource", "validate_shape", "synchronization", "aggregation")
    scope, graph = _scope(), current.graph()
    full = f"{scope.name}/{name}" if scope.name else name
    existing = next((item for item in graph.get_collection(GLOBAL) if item.name == f"{full}:0"), None)
    if existing is not None:
        if not scope.reuse:
            raise ValueError(f"Variable {full} already exists, disallowed. Did you mean to set reuse=True?")
        variable: Variable = existing
        if shape is not None:
            variable.shape.merge_with([shape] if isinstance(shape, int) else shape)
        return variable
    if scope.reuse is True:
        raise ValueError(f"Variable {full} does not exist, or was not created with tf.get_variable().")
    make = scope.initializer if initializer is None else initializer
    if make is None:
        make = _glorot() if as_dtype(dtype).is_floating else _constant(0)
    if any(make is item for item in INITIALIZERS.values()):  # tf.zeros_initializer in place of tf.zeros_initializer()
        make = make()
    dims = shape.as_list() if isinstance(shape, TensorShape) else [shape] if isinstance(shape, int) else shape
    initial = (lambda: make(dims, dtype)) if callable(make) else make
    # Without a name scope, because a variable is named after the variable scope only.
    with graph.name_scope(None):
        return Variable(initial, trainable, collections, full, dtype if callable(make) else None)


def _initializer(collection: str, default_name: str) -> Any:
    def make(name: Optional[str] = None) -> Operation:
        return variables_initializer(current.graph().get_collection(collection), name or default_name)

    return make


def variables_initializer(var_list: Iterable[Any], name: str = "init") -> Operation:
    return group(*[variable.initializer for variable in var_list], name=name)


def global_step(create: bool = True) -> Optional[Variable]:
    """Return the variable that counts training steps. If there is none, create it, or return None without `create`."""
    graph = current.graph()
    steps = graph.get_collection(STEP)
    if not steps and create:
        with graph.name_scope(None):
            graph.add_to_collection(STEP, Variable(np.int64(0), False, [GLOBAL], "global_step"))
        steps = graph.get_collection(STEP)
    return steps[0] if steps else None


FUNCTIONS: dict[str, Any] = {
    "Variable": Variable,
    "get_variable": get_variable,
    "variable_scope": variable_scope,
    "AUTO_REUSE": "auto",
    "global_variables_initializer": _initializer(GLOBAL, "init"),
    "local_variables_initializer": _initializer(LOCAL, "init_local"),
    "tables_initializer": lambda name="init_all_tables": group(name=name),
    "variables_initializer": variables_initializer,
    "global_variables": lambda scope=None: current.graph().get_collection(GLOBAL, scope),
    "trainable_variables": lambda scope=None: current.graph().get_collection(TRAINABLE, scope),
    "assign": lambda ref, value, name=None: ref.assign(value, name),
    "assign_add": lambda ref, value, name=None: ref.assign_add(value, name),
    "assign_sub": lambda ref, value, name=None: ref.assign_sub(value, name),
}
