"""Decorated functions: a wrapper that behaves as the function and makes each call one step of a capture."""

from __future__ import annotations

import copy
import inspect
import operator
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Callable, NoReturn, Union

import wrapt

from ascend_dump._errors import ConfigError

if TYPE_CHECKING:
    from ascend_dump._capture import Capture

    _FunctionWrapper = wrapt.FunctionWrapper[..., Any]
    _BoundFunctionWrapper = wrapt.BoundFunctionWrapper[..., Any]
else:  # which older versions do not have as generic types
    _FunctionWrapper, _BoundFunctionWrapper = wrapt.FunctionWrapper, wrapt.BoundFunctionWrapper

__all__ = ["decorate", "refuse_class"]

#: Not callable before they are bound, so the function inside them is looked at.
_DESCRIPTORS = (classmethod, staticmethod)


def decorate(capture: Capture, function: Any) -> Any:
    """The function, whose calls are steps of `capture`. Raises ConfigError for what cannot be decorated."""
    if inspect.isclass(function):
        raise refuse_class(function)
    plain = function.__func__ if isinstance(function, _DESCRIPTORS) else function
    if not callable(plain):
        raise ConfigError(
            f"a {type(function).__name__} cannot be decorated",
            hint="put @ascend_dump.capture(...) above a function, or use it in a with statement",
        )
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise ConfigError(
            f"{_name(plain)} is a generator: calling it runs nothing, so no step can be drawn around it",
            hint="use `with ascend_dump.capture(...)` inside it, or decorate the function that consumes it",
            code="AD304",
        )

    def run(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        with _Call(capture):
            return wrapped(*args, **kwargs)

    async def run_coroutine(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        with _Call(capture):
            return await wrapped(*args, **kwargs)

    found = _DecoratedFunction(function, run_coroutine if inspect.iscoroutinefunction(plain) else run)
    found._self_capture = capture
    return found


def refuse_class(found: type) -> ConfigError:
    """The error for a class, which is neither a function nor something that runs."""
    return ConfigError(
        f"{found.__qualname__} is a class, and a capture needs an object of it or one of its methods",
        hint="give the object: capture(model); or put @ascend_dump.capture above the method",
    )


def _name(function: Any) -> str:
    found = getattr(function, "__qualname__", None)
    return str(found) if found else type(function).__name__  # a functools.partial has none


def _refuse_block(name: str) -> NoReturn:
    raise ConfigError(
        f"`with capture({name})`: a function given to capture() is decorated, and {name} was not called",
        hint=f"write `with ascend_dump.capture(): {name}(...)` to dump a block; or decorate the function, each call of "
        "which is a step then",
    )


class _NoBlock:
    """Refuses to be the context manager of a with statement, which would dump nothing."""

    def __enter__(self) -> NoReturn:
        _refuse_block(_name(self.__wrapped__))  # type: ignore[attr-defined]  # of the proxy

    def __exit__(self, *error: object) -> None:
        """Never reached: a with statement looks for it before it enters."""

    async def __aenter__(self) -> NoReturn:
        self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        """As `__exit__`."""


class _BoundDecorated(_NoBlock, _BoundFunctionWrapper):
    """A decorated function as a method of an object."""

    @property
    def capture(self) -> Capture:
        return self._self_parent.capture  # type: ignore[no-any-return]

    # Proxies refuse to be copied and pickled; a method is what its object and its name are.
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
    """A method of a class, as unpickling needs it."""
    return operator.attrgetter(qualname)(import_module(module))


class _DecoratedFunction(_NoBlock, _FunctionWrapper):
    """Called as before; `capture` is what it is dumped by."""

    __bound_function_wrapper__ = _BoundDecorated
    _self_capture: Capture

    @property
    def capture(self) -> Capture:
        return self._self_capture

    # As functions are: by their name.
    def __reduce_ex__(self, protocol: Any) -> Union[str, Any]:
        return self.__qualname__

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class _Mine(Enum):
    """What one call of a decorated function has to finish when it returns."""

    NOTHING = "nothing"  # nested in a step that another call began
    CALL = "call"  # counted as a call, but `steps=` does not select it
    STEP = "step"


class _Call:
    """One call of a decorated function: one step."""

    __slots__ = ("_capture", "_mine")

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._mine = _Mine.NOTHING

    def __enter__(self) -> None:
        cap = self._capture
        # A recursive call, or one from a second thread, runs inside the open step.
        if not cap._call_gate.take(recorded=cap._running is not None):
            return
        self._mine = _Mine.CALL
        try:
            calls = cap._captures_each_call()
            number = cap._step
            cap._step += 1
            if not cap._is_wanted(number):
                cap.end_at_exit()
                return
            begun = cap.active
            if not begun:
                cap._arm(calls=calls)
                cap._step = number + 1
            if cap._running is not None:
                try:
                    cap._running.step(number)
                except BaseException:
                    if not begun:
                        cap._abandon()
                    raise
            self._mine = _Mine.STEP
        except BaseException:
            cap._call_gate.end()
            raise

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        cap, mine = self._capture, self._mine
        if mine is _Mine.NOTHING:
            return
        try:
            if mine is _Mine.STEP:
                cap._interrupted(error)
                if cap._running is not None:
                    cap._running.step(None)
                last = cap.request.steps.last
                if last is not None and cap._step > last:
                    cap.__exit__(kind, error, trace)
        finally:
            cap._call_gate.end()
