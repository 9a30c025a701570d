"""Count the steps of a program that runs eagerly: outermost calls of a `tf.function` or of a Keras model."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

__all__ = ["EagerSteps"]

#: Classes whose calls are steps, by module: functions, models of Keras 2, and models of Keras 3.
_CALLED = {
    "tensorflow.python.eager.polymorphic_function.polymorphic_function": "Function",
    "keras.src.engine.training": "Model",
    "keras.src.models.model": "Model",
}


class EagerSteps:
    """Calls `begins(number)` before each outermost call in the main thread. Numbers count from 0.

    Calls while a graph is built are not steps. In such calls TensorFlow does not execute eagerly, or Keras passes
    symbolic tensors.
    """

    def __init__(self, begins: Callable[[int], None]) -> None:
        """Wrap the classes now, or when the program imports them."""
        from wrapt import register_post_import_hook

        self._begins = begins
        self._inside = self._over = False
        self._count = 0
        self._undo: list[Callable[[], None]] = []
        for module in _CALLED:
            register_post_import_hook(self._wrap, module)

    def end(self) -> None:
        """Restore the classes, and count no further steps."""
        self._over = True
        undo, self._undo = self._undo, []
        for restore in undo:
            restore()

    def _wrap(self, module: Any) -> None:
        called = getattr(module, _CALLED[module.__name__], None)
        if called is None or self._over:
            return
        own = called.__dict__.get("__call__")
        original = called.__call__

        @functools.wraps(original)
        def call(target: Any, *args: Any, **kwargs: Any) -> Any:
            with self._call(args, kwargs):
                return original(target, *args, **kwargs)

        def restore() -> None:
            if called.__dict__.get("__call__") is not call:
                return
            if own is None:
                del called.__call__
            else:
                called.__call__ = own

        called.__call__ = call
        self._undo.append(restore)

    @contextmanager
    def _call(self, args: Any, kwargs: Any) -> Iterator[None]:
        if self._inside or self._over or not _executes(args, kwargs):
            yield
            return
        self._inside = True
        try:
            number, self._count = self._count, self._count + 1
            self._begins(number)
            yield
        finally:
            self._inside = False


def _executes(args: Any, kwargs: Any) -> bool:
    tensorflow = sys.modules["tensorflow"]
    if threading.current_thread() is not threading.main_thread() or not tensorflow.executing_eagerly():
        return False
    try:
        parts = tensorflow.nest.flatten((args, kwargs))
    except (TypeError, ValueError):  # arguments that cannot be flattened contain no symbolic tensors
        return True
    return all(type(part).__name__ != "KerasTensor" for part in parts)
