"""Cells of the fake MindSpore, functions under `jit`, and gradients of functions.

In graph mode, a call of a cell by the program runs as one graph; cells that it calls are parts of this graph. In
PyNative mode the operators run one by one. A function under `jit` is a graph in both modes. A cell gets its scope, the
path of the attributes that lead to it, when a cell above it first runs as a graph.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional, Union

from ascend_dump import NotSupported
from ascend_dump.fakes.mindspore._gradients import gradients
from ascend_dump.fakes.mindspore._graph import ROOT, Tape
from ascend_dump.fakes.mindspore._process import current
from ascend_dump.fakes.mindspore._state import GRAPH_MODE
from ascend_dump.fakes.mindspore._types import Parameter, ParameterTuple, Tensor

__all__ = ["Cell", "CellList", "SequentialCell", "grad", "jit", "set_dump", "value_and_grad"]

_numbers = itertools.count()


class Cell:
    """`mindspore.nn.Cell`."""

    def __init__(self, auto_prefix: bool = True, flags: Optional[Mapping[str, Any]] = None) -> None:
        self._cells: dict[str, Cell] = {}
        self._params: dict[str, Parameter] = {}
        self._auto_prefix = auto_prefix
        self._scope: Optional[str] = None
        self._number = next(_numbers)
        self._marked = False
        self.training = False
        self.requires_grad = False
        self.cls_name = type(self).__name__

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, (Cell, Parameter)) and "_cells" not in self.__dict__:
            raise AttributeError(f"For 'Cell', call super().__init__() before assigning {name!r}.")
        if isinstance(value, Cell):
            self._add_cell(name, value)
        elif isinstance(value, Parameter):
            if not value.named:
                value.name, value.named = name, True
            self._params[name] = value
        elif isinstance(value, ParameterTuple) and self._auto_prefix:
            self._params.update((parameter.name, parameter) for parameter in value)
        object.__setattr__(self, name, value)

    def _add_cell(self, name: str, cell: Cell) -> None:
        self._cells[name] = cell
        if self._auto_prefix:
            cell.update_parameters_name(f"{name}.")

    # Child cells and parameters.

    def cells(self) -> list[Cell]:
        return list(self.name_cells().values())

    def name_cells(self) -> dict[str, Cell]:
        children: dict[str, Cell] = {}
        for name, cell in self._cells.items():
            if all(cell is not child for child in children.values()):
                children[name] = cell
        return children

    def cells_and_names(self, name_prefix: str = "") -> Iterator[tuple[str, Cell]]:
        yield name_prefix, self
        for name, cell in self.name_cells().items():
            yield from cell.cells_and_names(f"{name_prefix}.{name}" if name_prefix else name)

    def parameters_and_names(self) -> Iterator[tuple[str, Parameter]]:
        ids: set[int] = set()
        for prefix, cell in self.cells_and_names():
            for name, parameter in cell._params.items():
                if id(parameter) not in ids:
                    ids.add(id(parameter))
                    yield (f"{prefix}.{name}" if prefix else name), parameter

    def get_parameters(self) -> Iterator[Parameter]:
        return (parameter for _, parameter in self.parameters_and_names())

    def trainable_params(self) -> list[Parameter]:
        return [parameter for parameter in self.get_parameters() if parameter.requires_grad]

    def untrainable_params(self) -> list[Parameter]:
        return [parameter for parameter in self.get_parameters() if not parameter.requires_grad]

    def parameters_dict(self) -> dict[str, Parameter]:
        return {parameter.name: parameter for parameter in self.get_parameters()}

    def update_parameters_name(self, prefix: str = "") -> None:
        """Rename the parameters: the new name is the prefix and the path of the parameter in this cell."""
        for name, parameter in self.parameters_and_names():
            parameter.name = prefix + name

    # State of the cell.

    def set_train(self, mode: bool = True) -> Cell:
        for _, cell in self.cells_and_names():
            cell.training = mode
        return self

    def set_grad(self, requires_grad: bool = True) -> Cell:
        self.requires_grad = requires_grad
        return self

    def get_scope(self) -> Optional[str]:
        return self._scope

    def generate_scope(self) -> None:
        """Set the scope of each cell below this one that has no scope yet."""
        classes = current().context["reserve_class_name_in_scope"]

        def walk(cell: Cell, prefix: str) -> None:
            below = []
            for name, child in cell.name_cells().items():
                scope = f"{prefix}/{name}" + (f"-{type(child).__name__}" if classes else "")
                if child._scope is None:
                    child._scope = scope
                below.append((child, scope))
            for child, scope in below:
                walk(child, scope)

        walk(self, ROOT)

    # Running.

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        raise AttributeError("For 'Cell', the method 'construct' is not defined.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        process = current()
        if process.in_graph or process.context["mode"] != GRAPH_MODE:
            return self._run(*args, **kwargs)
        return self._run_graph(args, kwargs)

    def _run_graph(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.generate_scope()
        inputs = _named_inputs(self.construct, args, kwargs)
        return current().run_graph(self._key(args, kwargs), self._run, args, kwargs, inputs)

    def _key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        training = tuple(cell.training for _, cell in self.cells_and_names())
        return ("cell", self._number, training, _signature(args, kwargs))

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the cell for these inputs, without running it."""
        self.generate_scope()
        bound = functools.partial(self._run, **kwargs)
        current().compile(self._key(args, kwargs), bound, args, _named_inputs(self.construct, args, kwargs))

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        process = current()
        process.marked += self._marked
        try:
            if process.tape is None:
                return self.construct(*args, **kwargs)
            with process.tape.within(self._scope or ROOT):
                return self.construct(*args, **kwargs)
        finally:
            process.marked -= self._marked

    def __repr__(self) -> str:
        inner = "".join(f"\n  ({name}): {cell!r}".replace("\n", "\n  ") for name, cell in self._cells.items())
        return f"{type(self).__name__}({inner.strip()})"


class SequentialCell(Cell):
    """`nn.SequentialCell`: a list of cells. A call runs one after the other."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        cells = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple, dict)) else args
        named = cells.items() if isinstance(cells, dict) else ((str(number), cell) for number, cell in enumerate(cells))
        for name, cell in named:
            self._add_cell(name, cell)

    def construct(self, input: Any) -> Any:
        value = input
        for cell in self._cells.values():
            value = cell(value)
        return value

    def append(self, cell: Cell) -> SequentialCell:
        self._add_cell(str(len(self._cells)), cell)
        return self

    def __len__(self) -> int:
        return len(self._cells)

    def __getitem__(self, index: Union[int, slice]) -> Any:
        if isinstance(index, slice):
            return type(self)(dict(list(self._cells.items())[index]))
        return list(self._cells.values())[index]

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells.values())


class CellList(SequentialCell):
    """`nn.CellList`: a list of cells. It cannot be called; the program calls the cells."""

    def construct(self, *inputs: Any) -> Any:
        raise NotImplementedError("a CellList cannot be called")

    def __getitem__(self, index: Union[int, slice]) -> Any:
        # As in MindSpore, the cells of a slice are numbered from 0. (In a SequentialCell they keep their numbers.)
        cells = list(self._cells.values())[index]
        return type(self)(cells) if isinstance(cells, list) else cells


def set_dump(target: Any, enabled: bool = True) -> None:
    """`mindspore.set_dump`, also `mindspore.tools.set_dump`: mark a cell, or a primitive, for a dump with dump_mode 2.

    A marked cell marks all cells below it.
    """
    if not isinstance(target, (Cell, Primitive)):
        raise ValueError(
            f'The "target" parameter must be an instance of Cell or Primitive, but got an instance of {type(target)}.'
        )
    if not isinstance(enabled, bool):
        raise ValueError('The "enabled" parameter must be bool.')
    if current().target != "Ascend":
        import warnings

        warnings.warn(
            f"Current device_target is {current().target}, which is not supported by set_dump. "
            "Only Ascend device target is supported currently. If you have Ascend device, consider set device_target "
            "to Ascend before calling set_dump.",
            stacklevel=2,
        )
    for part in [cell for _, cell in target.cells_and_names()] if isinstance(target, Cell) else [target]:
        part._marked = enabled


class Primitive:
    """An operator as an object that can be called, such as `ops.ReLU()`."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function
        self._marked = False

    def __call__(self, *args: Any) -> Any:
        process = current()
        process.marked += self._marked
        try:
            return self._function(*args)
        finally:
            process.marked -= self._marked

    def __repr__(self) -> str:
        return f"Prim[{self.name}]"


def jit(function: Optional[Callable[..., Any]] = None, **settings: Any) -> Any:
    """`mindspore.jit`: return a function that runs a function, a method of a cell, or a cell as a graph."""
    if function is None:
        return functools.partial(jit, **settings)
    if isinstance(function, Cell):
        cell = function

        def run(*args: Any, **kwargs: Any) -> Any:
            return cell._run(*args, **kwargs) if current().in_graph else cell._run_graph(args, kwargs)

        return run

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        process = current()
        if process.in_graph:
            return function(*args, **kwargs)
        owner = args[0] if args and isinstance(args[0], Cell) else None
        if owner is not None:
            owner.generate_scope()
        key = ("jit", function, _signature(args, kwargs))
        return process.run_graph(key, function, args, kwargs, _named_inputs(function, args, kwargs))

    return call


def value_and_grad(
    fn: Callable[..., Any], grad_position: Any = 0, weights: Any = None, has_aux: bool = False, return_ids: bool = False
) -> Callable[..., Any]:
    """`mindspore.value_and_grad`: return a function that computes the result of `fn` and its gradients."""
    if return_ids:
        raise NotSupported("the fake MindSpore has no return_ids", hint="leave out return_ids")
    if isinstance(grad_position, list):
        raise TypeError("For 'F.grad', the 'grad_position' must be int or tuple.")
    if grad_position is None and weights is None:
        raise ValueError("`grad_position` and `weight` can not be None at the same time.")

    def compute(*args: Any) -> Any:
        process = current()
        if process.tape is not None:
            return derive(process.tape, *args)
        with process.recording(Tape(), graph=False) as tape:
            return derive(tape, *args)

    def derive(tape: Tape, *args: Any) -> Any:
        result = fn(*args)
        loss = result[0] if has_aux else result
        positions = () if grad_position is None else _as_tuple(grad_position)
        operands = [args[position] for position in positions]
        if not all(isinstance(tensor, Tensor) for tensor in operands):
            raise NotSupported(
                "the fake MindSpore differentiates by tensors only", hint="pass a Tensor at each grad_position"
            )
        parameters = [] if weights is None else [weights] if isinstance(weights, Parameter) else list(weights)
        grads = gradients(tape, loss, [*operands, *parameters])
        input_grads, weight_grads = tuple(grads[: len(operands)]), tuple(grads[len(operands) :])
        first: Any = input_grads if isinstance(grad_position, (tuple, list)) else next(iter(input_grads), None)
        second: Any = weight_grads[0] if isinstance(weights, Parameter) else weight_grads
        return result, second if grad_position is None else first if weights is None else (first, second)

    key = next(_numbers)

    def call(*args: Any) -> Any:
        process = current()
        if process.in_graph or process.context["mode"] != GRAPH_MODE:
            return compute(*args)
        if isinstance(fn, Cell):
            fn.generate_scope()
        inputs = {f"args{number}": value for number, value in enumerate(args) if _is_input(value)}
        return process.run_graph(("grad", key, _signature(args, {})), compute, args, {}, inputs)

    return call


def grad(
    fn: Callable[..., Any], grad_position: Any = 0, weights: Any = None, has_aux: bool = False, return_ids: bool = False
) -> Callable[..., Any]:
    """`mindspore.grad`: return a function that computes the gradients of `fn`.

    With has_aux, it returns the gradients and a tuple of the results of `fn` after the first one.
    """
    derive = value_and_grad(fn, grad_position, weights, has_aux, return_ids)

    def call(*args: Any) -> Any:
        result, grads = derive(*args)
        return (grads, tuple(result[1:])) if has_aux else grads

    return call


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _is_input(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, Parameter)


def _named_inputs(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors among the arguments, by the names that they have in the graph. Parameters are left out."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {}
    tensors: dict[str, Tensor] = {}
    for name, value in bound.arguments.items():
        if inspect.signature(function).parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            tensors.update({f"{name}{number}": item for number, item in enumerate(value) if _is_input(item)})
        elif _is_input(value):
            tensors[name] = value
    return tensors


def _signature(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the part of a graph's key that depends on its arguments. A new key means that a new graph is compiled.

    This part contains the types and shapes of tensors, and the values of other arguments.
    """

    def key_of(value: Any) -> Any:
        if isinstance(value, Parameter):
            return ("parameter", id(value))
        if isinstance(value, Tensor):
            return (value.shape, value.dtype.label)
        if isinstance(value, (tuple, list, ParameterTuple)):
            return tuple(key_of(item) for item in value)
        if isinstance(value, dict):
            return tuple((key, key_of(item)) for key, item in value.items())
        if isinstance(value, Cell):
            return ("cell", value._number, tuple(cell.training for _, cell in value.cells_and_names()))
        return repr(value)

    return (key_of(tuple(args)), key_of(dict(kwargs)))
