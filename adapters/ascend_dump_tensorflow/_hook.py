"""Intercept the creation of TensorFlow sessions, as npu_bridge does.

While there are watchers, one wrapper of `BaseSession.__init__` passes each configuration to them.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any, Callable, Optional, Protocol

__all__ = ["Watcher", "session_class", "unwatch", "watch"]


class Watcher(Protocol):
    def configure(self, config: Any) -> Any:
        """Return the configuration for a new session. config: that of the program, or None."""

    def created(self, session: Any) -> None:
        """Note that a session was created with that configuration."""


log = logging.getLogger("ascend_dump")

_watchers: list[Watcher] = []
#: The class whose `__init__` is wrapped, the original, and the wrapper.
_wrapped: Optional[tuple[Any, Callable[..., None], Callable[..., None]]] = None


def session_class() -> Any:
    """Return the base class of all sessions."""
    from importlib import import_module

    module = sys.modules.get("tensorflow.python.client.session") or import_module("tensorflow.python.client.session")
    return getattr(module, "BaseSession", None) or module.Session


def watch(watcher: Watcher) -> None:
    """Add a watcher. A second call only makes sure that the wrapper is installed."""
    if watcher not in _watchers:
        _watchers.append(watcher)
    _install()


def unwatch(watcher: Watcher) -> None:
    """Remove a watcher; with the last one the wrapper is removed, unless it was wrapped by something else."""
    global _wrapped
    if watcher in _watchers:
        _watchers.remove(watcher)
    if _watchers or _wrapped is None:
        return
    where, before, wrapper = _wrapped
    if where.__dict__.get("__init__") is wrapper:
        where.__init__ = before
        _wrapped = None


def _install() -> None:
    global _wrapped
    where = session_class()
    if _wrapped is not None and _wrapped[0] is where and _leads_to(where.__init__, _wrapped[2]):
        return
    before = where.__init__

    @functools.wraps(before)
    def wrapper(self: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
        # Not a copy of the list, because the launcher's watcher may add one for this session.
        for watcher in _watchers:
            config = _guarded(watcher.configure, config, otherwise=config)
        before(self, target, graph, config)
        for watcher in tuple(_watchers):
            _guarded(watcher.created, self)

    where.__init__ = wrapper
    _wrapped = (where, before, wrapper)


def _guarded(function: Callable[[Any], Any], argument: Any, otherwise: Any = None) -> Any:
    """Call a function; an exception is logged, so that the user's session is created in any case."""
    try:
        return function(argument)
    except Exception as error:
        log.warning("a session is not captured: %r", error)
        log.debug("watching a session failed", exc_info=True)
        return otherwise


def _leads_to(function: Any, wrapper: Any) -> bool:
    """Return True if a call of this function still goes through the wrapper."""
    while function is not None and function is not wrapper:
        function = getattr(function, "__wrapped__", None)
    return function is not None
