"""Cells of the fake MindSpore, functions compiled by `jit`, and gradients of functions.

A call from outside runs as one graph in graph mode, operator by operator in PyNative mode; a function under `jit` is
a graph in both. Scopes are given by ownership, once and for all, when a cell is run as the root of a graph.
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
            self._params.update((one.name, one) for one in value)
        object.__setattr__(self, name, value)

    def _add_cell(self, name: str, cell: Cell) -> None:
        self._cells[name] = cell
        if self._auto_prefix:
            cell.update_parameters_name(f"{name}.")

    # What it holds.

    def cells(self) -> list[Cell]:
        return list(self.name_cells().values())

    def name_cells(self) -> dict[str, Cell]:
        found: dict[str, Cell] = {}
        for name, cell in self._cells.items():
            if all(cell is not other for other in found.values()):
                found[name] = cell
        return found

    def cells_and_names(self, name_prefix: str = "") -> Iterator[tuple[str, Cell]]:
        yield name_prefix, self
        for name, cell in self.name_cells().items():
            yield from cell.cells_and_names(f"{name_prefix}.{name}" if name_prefix else name)

    def parameters_and_names(self) -> Iterator[tuple[str, Parameter]]:
        seen: set[int] = set()
        for prefix, cell in self.cells_and_names():
            for name, parameter in cell._params.items():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
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
        """Give every parameter the prefix and where it stands in this cell; a name of its own is lost."""
        for name, parameter in self.parameters_and_names():
            parameter.name = prefix + name

    # Its state.

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
        """Name the scope of every cell below; a cell keeps the first one it gets."""
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
        """Compile for these inputs without running."""
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
    """`nn.SequentialCell`: cells that run one after the other."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        given = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple, dict)) else args
        named = given.items() if isinstance(given, dict) else ((str(at), cell) for at, cell in enumerate(given))
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
    """`nn.CellList`: cells that the program runs itself."""

    def construct(self, *inputs: Any) -> Any:
        raise NotImplementedError("a CellList cannot be called")

    def __getitem__(self, index: Union[int, slice]) -> Any:
        # Unlike in a sequence, what is in a part counts from 0 again.
        found = list(self._cells.values())[index]
        return type(self)(found) if isinstance(found, list) else found


def set_dump(target: Any, enabled: bool = True) -> None:
    """`mindspore.set_dump` and `mindspore.tools.set_dump`: mark what dump_mode 2 dumps."""
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
    for one in [cell for _, cell in target.cells_and_names()] if isinstance(target, Cell) else [target]:
        one._marked = enabled


class Primitive:
    """An operator as an object, such as `ops.ReLU()`."""

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
    """`mindspore.jit`: run a function, a method of a cell, or a cell as a graph."""
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
    """`mindspore.value_and_grad`."""
    if return_ids:
        raise NotSupported("the fake MindSpore has no return_ids", hint="leave it at False")
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
        chosen = [args[at] for at in positions]
        if not all(isinstance(one, Tensor) for one in chosen):
            raise NotSupported("the fake MindSpore differentiates by tensors only", hint="give a Tensor")
        held = [] if weights is None else [weights] if isinstance(weights, Parameter) else list(weights)
        found = gradients(tape, loss, [*chosen, *held])
        inputs, parameters = tuple(found[: len(chosen)]), tuple(found[len(chosen) :])
        first: Any = inputs if isinstance(grad_position, (tuple, list)) else inputs[0] if inputs else None
        second: Any = parameters[0] if isinstance(weights, Parameter) else parameters
        grads = second if grad_position is None else first if weights is None else (first, second)
        return result, grads

    key = next(_numbers)

    def call(*args: Any) -> Any:
        process = current()
        if process.in_graph or process.context["mode"] != GRAPH_MODE:
            return compute(*args)
        if isinstance(fn, Cell):
            fn.generate_scope()
        inputs = {f"args{at}": value for at, value in enumerate(args) if _is_input(value)}
        return process.run_graph(("grad", key, _signature(args, {})), compute, args, {}, inputs)

    return call


def grad(
    fn: Callable[..., Any], grad_position: Any = 0, weights: Any = None, has_aux: bool = False, return_ids: bool = False
) -> Callable[..., Any]:
    """`mindspore.grad`: like `value_and_grad` without the value; with has_aux, the other results follow."""
    both = value_and_grad(fn, grad_position, weights, has_aux, return_ids)

    def call(*args: Any) -> Any:
        result, grads = both(*args)
        return (grads, tuple(result[1:])) if has_aux else grads

    return call


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _is_input(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, Parameter)


def _named_inputs(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors among the arguments, by the names that their graph gives them."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {}
    found: dict[str, Tensor] = {}
    for name, value in bound.arguments.items():
        if inspect.signature(function).parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            found.update({f"{name}{at}": one for at, one in enumerate(value) if _is_input(one)})
        elif _is_input(value):
            found[name] = value
    return found


def _signature(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a graph is compiled for: types and shapes of tensors, and everything else by value."""

    def of(value: Any) -> Any:
        if isinstance(value, Parameter):
            return ("parameter", id(value))
        if isinstance(value, Tensor):
            return (value.shape, value.dtype.label)
        if isinstance(value, (tuple, list, ParameterTuple)):
            return tuple(of(one) for one in value)
        if isinstance(value, dict):
            return tuple((key, of(one)) for key, one in value.items())
        if isinstance(value, Cell):
            return ("cell", value._number, tuple(cell.training for _, cell in value.cells_and_names()))
        return repr(value)

    return (of(tuple(args)), of(dict(kwargs)))
