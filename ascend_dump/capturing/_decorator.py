"""A wrapper for decorated functions: it behaves like the function, and makes each call one step of a capture."""

from __future__ import annotations

import copy
import inspect
import operator
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Callable, NoReturn, Union

import wrapt

from ascend_dump.errors import ConfigError

if TYPE_CHECKING:
    _FunctionWrapper = wrapt.FunctionWrapper[..., Any]
    _BoundFunctionWrapper = wrapt.BoundFunctionWrapper[..., Any]
else:  # older versions of wrapt do not have these as generic types
    _FunctionWrapper, _BoundFunctionWrapper = wrapt.FunctionWrapper, wrapt.BoundFunctionWrapper

__all__ = ["decorate", "refuse_class"]

#: Objects that are not callable before they are bound. The function inside them is examined instead.
_DESCRIPTORS = (classmethod, staticmethod)


def decorate(function: Any, capture: object, step: Callable[[], AbstractContextManager[None]]) -> Any:
    """Return the function with its calls wrapped in `step()`, and with the attribute `capture`.

    Raises ConfigError for an object that cannot be decorated.
    """
    if inspect.isclass(function):
        raise refuse_class(function)
    inner_function = function.__func__ if isinstance(function, _DESCRIPTORS) else function
    if not callable(inner_function):
        raise ConfigError(
            f"an object of type {type(function).__name__} cannot be decorated, because it cannot be called",
            hint="put @ascend_dump.capture(...) above a function, or use it in a with statement",
        )
    if inspect.isgeneratorfunction(inner_function) or inspect.isasyncgenfunction(inner_function):
        raise ConfigError(
            f"{_name(inner_function)} is a generator: a call runs none of its code, so a call cannot be a step",
            hint="use `with ascend_dump.capture(...)` inside it, or decorate the function that consumes it",
            code="AD304",
        )

    def run(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        with step():
            return wrapped(*args, **kwargs)

    async def run_coroutine(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        with step():
            return await wrapped(*args, **kwargs)

    decorated = _DecoratedFunction(function, run_coroutine if inspect.iscoroutinefunction(inner_function) else run)
    decorated._self_capture = capture
    return decorated


def refuse_class(cls: type) -> ConfigError:
    """Return the error for a class given as target: a capture needs a function, or an object that runs."""
    return ConfigError(
        f"{cls.__qualname__} is a class, and a capture needs an object of it or one of its methods",
        hint="give the object: capture(model); or put @ascend_dump.capture above the method",
    )


def _name(function: Any) -> str:
    qualname = getattr(function, "__qualname__", None)
    return str(qualname) if qualname else type(function).__name__  # a functools.partial has none


def _refuse_with_statement(name: str) -> NoReturn:
    raise ConfigError(
        f"`with capture({name})`: a function given to capture() is decorated, and {name} was not called",
        hint=f"write `with ascend_dump.capture(): {name}(...)` to dump a block; or decorate the function, then each "
        "call of it is a step",
    )


class _NotAContextManager:
    """A base class of wrappers that raises ConfigError in a with statement, which would dump nothing."""

    def __enter__(self) -> NoReturn:
        _refuse_with_statement(_name(self.__wrapped__))  # type: ignore[attr-defined]  # an attribute of wrapt's proxy

    def __exit__(self, *error: object) -> None:
        """Do nothing. It exists because a with statement looks it up before it calls `__enter__`."""

    async def __aenter__(self) -> NoReturn:
        self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        """Do nothing, as `__exit__`."""


class _BoundDecorated(_NotAContextManager, _BoundFunctionWrapper):
    """A decorated function as a method of an object."""

    @property
    def capture(self) -> Any:
        return self._self_parent.capture

    # wrapt's proxies cannot be copied or pickled. A method is pickled as its object and its name.
    def __reduce_ex__(self, protocol: Any) -> Any:
        if hasattr(self, "__self__"):
            return getattr, (self.__self__, self.__name__)
        return _find, (self.__module__, self.__qualname__)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        if hasattr(self, "__self__"):
            return getattr(copy.deepcopy(self.__self__, memo), self.__name__)
        return self


def _find(module: str, qualname: str) -> Any:
    """Return the method of a class that was pickled by its module and qualified name."""
    return operator.attrgetter(qualname)(import_module(module))


class _DecoratedFunction(_NotAContextManager, _FunctionWrapper):
    """A decorated function, called as before; `capture` is its capture."""

    __bound_function_wrapper__ = _BoundDecorated
    _self_capture: object

    @property
    def capture(self) -> Any:
        return self._self_capture

    # Pickled by name, as Python pickles functions.
    def __reduce_ex__(self, protocol: Any) -> Union[str, Any]:
        return self.__qualname__

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self
