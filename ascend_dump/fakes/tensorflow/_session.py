"""Sessions of the fake TensorFlow. A run computes the operations that the fetches need, with numpy, in order."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from ascend_dump.fakes.tensorflow._graph import Graph, Operation, Tensor, TensorShape, current
from ascend_dump.fakes.tensorflow._kernels import compute
from ascend_dump.fakes.tensorflow._proto import messages

if TYPE_CHECKING:
    _Array = np.ndarray[Any, Any]

__all__ = ["ERRORS", "BaseSession", "FetchHandler", "InteractiveSession", "Session"]


class OpError(Exception):
    """`tf.errors.OpError`: the base of errors of operations in a run."""

    def __init__(self, node_def: Any, op: Any, message: str) -> None:
        super().__init__(message)
        self.node_def = node_def
        self.op = op
        self.message = message


class FailedPreconditionError(OpError):
    pass


class OutOfRangeError(OpError):
    pass


class InvalidArgumentError(OpError):
    pass


class NotFoundError(OpError):
    pass


class InternalError(OpError):
    pass


ERRORS = {
    error.__name__: error
    for error in (
        *(OpError, FailedPreconditionError, OutOfRangeError, InvalidArgumentError, NotFoundError, InternalError),
    )
}


class FetchHandler:
    """A converter of a nested structure of fetches to a flat list, and of the list's values to the same structure."""

    def __init__(self, graph: Graph, fetches: Any, feeds: Any = None) -> None:
        self._graph = graph
        self._tensors: dict[Tensor, None] = {}
        self._targets: dict[Operation, None] = {}
        self._build = self._take(fetches)

    def fetches(self) -> list[Tensor]:
        return list(self._tensors)

    def targets(self) -> list[Operation]:
        return list(self._targets)

    def build_results(self, session: Any, values: Sequence[Any]) -> Any:
        return self._build(dict(zip(self._tensors, values)))

    def _take(self, fetch: Any) -> Callable[[Mapping[Tensor, Any]], Any]:
        """Register the fetches in a structure, and return the function that builds the structure from the values.

        Raises TypeError for an invalid fetch, ValueError for one that is not in the graph.
        """
        if isinstance(fetch, Mapping):
            named = {key: self._take(value) for key, value in fetch.items()}
            form = OrderedDict if isinstance(fetch, OrderedDict) else dict
            return lambda values: form((key, part(values)) for key, part in named.items())
        if isinstance(fetch, (list, tuple)):
            parts = [self._take(part) for part in fetch]
            kind = type(fetch)
            if hasattr(fetch, "_fields"):
                return lambda values: kind(*(part(values) for part in parts))
            return lambda values: kind(part(values) for part in parts)
        if fetch is None:
            raise TypeError("Fetch argument None has invalid type <class 'NoneType'>")
        try:
            element = self._graph.as_graph_element(fetch)
        except (TypeError, KeyError) as error:
            raise (TypeError if isinstance(error, TypeError) else ValueError)(
                f"Fetch argument {fetch!r} cannot be interpreted as a Tensor. ({error})"
            ) from None
        if isinstance(element, Operation):
            self._targets[element] = None
            return lambda values: None
        self._tensors[element] = None
        return lambda values: values[element]


class _Ref:
    """The value of the output of a variable's operation: a reference to the variable, from which its value is read."""

    def __init__(self, op: Operation) -> None:
        self.op = op


class BaseSession:
    def __init__(self, target: str = "", graph: Optional[Graph] = None, config: Any = None) -> None:
        kind = messages()["ConfigProto"]
        if config is not None and not isinstance(config, kind):
            raise TypeError(f"config must be a tf.ConfigProto, but got {type(config)}")
        self._graph = current.graph() if graph is None else graph
        self._config = config
        self._closed = False
        self._variables: dict[Operation, _Array] = {}
        self._iterators: dict[Operation, Iterator[Any]] = {}
        self._random: dict[Operation, Any] = {}
        self._opened: list[contextlib.ExitStack] = []

    @property
    def graph(self) -> Graph:
        return self._graph

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """Return the values of the fetches, in their structure.

        Raises RuntimeError if the session is closed, and the errors of `tf.errors` if an operation fails.
        """
        if self._closed:
            raise RuntimeError("Attempted to use a closed Session.")
        handler = FetchHandler(self._graph, fetches)
        fed = dict(self._feeds(feed_dict or {}))
        tensors = handler.fetches()
        values = self._execute(self._graph, [*(tensor.op for tensor in tensors), *handler.targets()], fed)
        results = []
        for tensor in tensors:
            value = self._plain(values[tensor])
            results.append(value[()] if value.ndim == 0 else value.copy())
        return handler.build_results(self, results)

    def make_callable(self, fetches: Any, feed_list: Any = None, accept_options: bool = False) -> Callable[..., Any]:
        """Return a function that runs the fetches. Its arguments are the values for the tensors in `feed_list`.

        Raises TypeError if `feed_list` is not a list or tuple.
        """
        if feed_list is not None and not isinstance(feed_list, (list, tuple)):
            raise TypeError(f"Argument `feed_list` must be a list or tuple. Received: feed_list={feed_list}")
        FetchHandler(self._graph, fetches)

        def run(*feeds: Any, **options: Any) -> Any:
            return self.run(fetches, dict(zip(feed_list or (), feeds)), **options)

        return run

    def close(self) -> None:
        self._closed = True

    @contextlib.contextmanager
    def as_default(self) -> Iterator[BaseSession]:
        current.enter(self)
        try:
            yield self
        finally:
            current.leave(self)

    def __enter__(self) -> BaseSession:
        stack = contextlib.ExitStack()
        stack.enter_context(self._graph.as_default())
        stack.enter_context(self.as_default())
        self._opened.append(stack)
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.pop().close()
        self.close()

    # Running.

    def _feeds(self, feed_dict: Mapping[Any, Any]) -> Iterator[tuple[Tensor, _Array]]:
        """Yield each fed tensor with its value as an array. Raises ValueError for a value of a wrong shape."""
        for key, value in feed_dict.items():
            tensor = self._graph.as_graph_element(key, allow_operation=False)
            array = np.asarray(value, dtype=tensor.dtype.as_numpy_dtype)
            dims = None if tensor.shape.ndims is None else tensor.shape.as_list()
            if dims is not None and not (
                len(dims) == array.ndim and all(a in (None, b) for a, b in zip(dims, array.shape))
            ):
                raise ValueError(f"Cannot feed value of shape {array.shape} for {tensor!r}")
            yield tensor, array

    def _execute(self, graph: Graph, roots: Sequence[Operation], values: dict[Tensor, Any]) -> dict[Tensor, Any]:
        """Compute the operations on which `roots` depend, and return all values.

        values: values of tensors that are not computed, such as fed ones; the others are added.
        """
        reached: set[Operation] = set()
        todo = list(roots)
        while todo:
            op = todo.pop()
            if op in reached or (op.outputs and all(tensor in values for tensor in op.outputs)):
                continue
            reached.add(op)
            todo += [tensor.op for tensor in op.inputs if tensor not in values]
            todo += op.control_inputs
        # Operations are created after their inputs, so they can run in the order of creation.
        for op in sorted(reached, key=lambda operation: operation._id):
            inputs = [values[tensor] for tensor in op.inputs]
            for tensor, value in zip(op.outputs, self._run_op(op, inputs)):
                values.setdefault(tensor, value)
        return values

    def _run_op(self, op: Operation, inputs: Sequence[Any]) -> Sequence[Any]:
        special = _SPECIAL.get(op.type)
        if special is not None:
            return special(self, op, inputs)
        values = [self._plain(value) for value in inputs]
        try:
            arrays = compute(op.type, values, op.attrs)
        except (ValueError, IndexError) as error:
            raise InvalidArgumentError(None, op, f"{op.type} {op.name!r}: {error}") from None
        return [value.astype(out.dtype.as_numpy_dtype, copy=False) for value, out in zip(arrays, op.outputs)]

    def _plain(self, value: Any) -> _Array:
        """Return a value as an array; for a reference the value of the variable.

        Raises FailedPreconditionError if the variable is not initialised.
        """
        if not isinstance(value, _Ref):
            array: _Array = np.asarray(value)
            return array
        if value.op not in self._variables:
            raise FailedPreconditionError(None, value.op, f"Attempting to use uninitialized value {value.op.name}")
        return self._variables[value.op]

    def _has(self, op: Operation) -> bool:
        """Return True if the variable with this operation is initialised."""
        return op in self._variables

    # Operations with a state.

    def _variable(self, op: Operation, inputs: Sequence[Any]) -> Sequence[Any]:
        return [_Ref(op)]

    def _assign(self, op: Operation, inputs: Sequence[Any]) -> Sequence[Any]:
        ref, value = inputs[0], self._plain(inputs[1])
        if op.type == "AssignAdd":
            value = self._plain(ref) + value
        elif op.type == "AssignSub":
            value = self._plain(ref) - value
        self._put(op, ref, value)
        return [ref]

    def _descend(self, op: Operation, inputs: Sequence[Any]) -> Sequence[Any]:
        ref, rate, gradient = inputs[0], self._plain(inputs[1]), self._plain(inputs[2])
        if gradient.shape != self._plain(ref).shape:
            raise InvalidArgumentError(None, op, f"var and delta do not have the same shape, {gradient.shape}")
        self._put(op, ref, self._plain(ref) - rate * gradient)
        return [ref]

    def _put(self, op: Operation, ref: _Ref, value: _Array) -> None:
        if list(value.shape) != ref.op.outputs[0].shape.as_list():
            raise InvalidArgumentError(
                None, op, f"Assign requires shapes of both tensors to match: {ref.op.outputs[0].shape}, {value.shape}"
            )
        self._variables[ref.op] = value.copy()

    def _placeholder(self, op: Operation, inputs: Sequence[Any]) -> Sequence[Any]:
        raise InvalidArgumentError(None, op, f"You must feed a value for placeholder tensor {op.name!r}")

    def _draw(self, op: Operation, inputs: Sequence[Any]) -> Sequence[Any]:
        if op not in self._random:
            seed = op.attrs["seed"] if op.attrs["seed"] is not None else op._id
            self._random[op] = np.random.default_rng([op.attrs["graph_seed"] or 0, seed])
        source, shape = self._random[op], [int(dim) for dim in self._plain(inputs[0])]
        numbers = np.asarray(source.random(shape) if op.type == "RandomUniform" else source.standard_normal(shape))
        while op.type == "TruncatedNormal" and (abs(numbers) > 2).any():
            # Values that are more than 2 standard deviations from the mean are drawn again.
            outside = abs(numbers) > 2
            numbers[outside] = source.standard_normal(int(outside.sum()))
        return [(numbers * op.attrs["spread"] + op.attrs["middle"]).astype(op.outputs[0].dtype.as_numpy_dtype)]

    def _make_iterator(self, op: Operation, inputs: Sequence[Any]) -> Sequence[Any]:
        self._iterators[op.attrs["iterator"]] = iter(op.attrs["dataset"])
        return []

    def _get_next(self, op: Operation, inputs: Sequence[Any]) -> Sequence[Any]:
        iterator = inputs[0].op
        if iterator not in self._iterators:
            if iterator.type != "OneShotIterator":
                raise FailedPreconditionError(None, op, _NOT_INITIALISED)
            self._iterators[iterator] = iter(iterator.attrs["dataset"])
        try:
            row: Sequence[Any] = next(self._iterators[iterator])
        except StopIteration:
            raise OutOfRangeError(None, op, "End of sequence") from None
        return row

    def _if(self, op: Operation, inputs: Sequence[Any]) -> Sequence[Any]:
        body, outputs = op.attrs["then_branch" if self._plain(inputs[0]) else "else_branch"]
        return self._call(body, outputs, dict(zip(op.attrs["captured"], inputs[1:])))

    def _call(self, body: Graph, outputs: Sequence[Tensor], outer: Mapping[Tensor, Any]) -> Sequence[Any]:
        values = {inside: self._plain(outer[tensor]) for tensor, inside in body.captures.items()}
        results = self._execute(body, [tensor.op for tensor in outputs], values)
        return [self._plain(results[tensor]) for tensor in outputs]


_NOT_INITIALISED = "GetNext() failed because the iterator has not been initialized."

_SPECIAL: dict[str, Callable[[BaseSession, Operation, Sequence[Any]], Sequence[Any]]] = {
    **dict.fromkeys(("Assign", "AssignAdd", "AssignSub"), BaseSession._assign),
    **dict.fromkeys(("RandomUniform", "RandomStandardNormal", "TruncatedNormal"), BaseSession._draw),
    **dict.fromkeys(("IteratorV2", "OneShotIterator"), BaseSession._variable),
    "VariableV2": BaseSession._variable,
    "ApplyGradientDescent": BaseSession._descend,
    "Placeholder": BaseSession._placeholder,
    "MakeIterator": BaseSession._make_iterator,
    "IteratorGetNext": BaseSession._get_next,
    "If": BaseSession._if,
}


class Session(BaseSession):
    """`tf.Session`."""

    def __init__(self, target: str = "", graph: Optional[Graph] = None, config: Any = None) -> None:
        super().__init__(target, graph, config=config)


class InteractiveSession(BaseSession):
    """`tf.InteractiveSession`: a session that is the default session until it is closed."""

    def __init__(self, target: str = "", graph: Optional[Graph] = None, config: Any = None) -> None:
        super().__init__(target, graph, config=config)
        self._entered = contextlib.ExitStack()
        if graph is not None:
            self._entered.enter_context(graph.as_default())
        self._entered.enter_context(self.as_default())

    def close(self) -> None:
        self._entered.close()
        super().close()


def cond(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any], name: Optional[str] = None) -> Any:
    """`tf.cond` as an operation If, whose two branches are graphs of their own.

    Raises ValueError if the branches differ in the number or types of their outputs.
    """
    from ascend_dump.fakes.tensorflow._ops import apply, convert

    outer = current.graph()
    built = []
    for function in (true_fn, false_fn):
        body = Graph(outer)
        with body.as_default():
            result = function()
            flat = [convert(value) for value in (result if isinstance(result, (list, tuple)) else [result])]
            form = next((sequence for sequence in (tuple, list) if isinstance(result, sequence)), None)
            built.append((body, [body.capture(value) for value in flat], form))
    (then_body, then_outputs, kind), (else_body, else_outputs, _) = built
    specs = [(a.dtype.base_dtype, _common(a, b)) for a, b in zip(then_outputs, else_outputs)]
    if [tensor.dtype.base_dtype for tensor in then_outputs] != [tensor.dtype.base_dtype for tensor in else_outputs]:
        raise ValueError("Outputs of true_fn and false_fn must have the same number and types.")
    captured = list(dict.fromkeys([*then_body.captures, *else_body.captures]))
    attrs = {
        "then_branch": (then_body, then_outputs),
        "else_branch": (else_body, else_outputs),
        "captured": captured,
    }
    op = apply("If", [pred, *captured], name or "cond", attrs, specs)
    if len(op.outputs) == 1 and kind is not tuple:
        return op.outputs[0]
    return op.outputs[0] if kind is None else kind(op.outputs)


def _common(first: Tensor, second: Tensor) -> TensorShape:
    """Return the static shape that fits both tensors: sizes that differ are unknown."""
    if first.shape.ndims is None or first.shape.ndims != second.shape.ndims:
        return TensorShape(None)
    return TensorShape([a if a == b else None for a, b in zip(first.shape, second.shape)])
