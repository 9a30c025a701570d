"""Intercept the creation of TensorFlow sessions, as npu_bridge does.

While watchers are registered, a wrapper of `BaseSession.__init__` passes the configuration of each new session to them.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any, Callable, Optional, Protocol

__all__ = ["Watcher", "session_class", "unwatch", "watch"]


class Watcher(Protocol):
    """An object that is told about new sessions, and can change their configuration."""

    def configure(self, config: Any) -> Any:
        """Return the configuration to use for a new session. config: the configuration of the program, or None."""

    def created(self, session: Any) -> None:
        """Take note of a session that was created with the returned configuration."""


log = logging.getLogger("ascend_dump")

_watchers: list[Watcher] = []
#: The class whose `__init__` is wrapped, the original `__init__`, and the wrapper.
_wrapped: Optional[tuple[Any, Callable[..., None], Callable[..., None]]] = None


def session_class() -> Any:
    """Return the base class of all sessions."""
    from importlib import import_module

    module = sys.modules.get("tensorflow.python.client.session") or import_module("tensorflow.python.client.session")
    return getattr(module, "BaseSession", None) or module.Session


def watch(watcher: Watcher) -> None:
    """Add a watcher and install the wrapper. A second call with the same watcher only installs a missing wrapper."""
    if watcher not in _watchers:
        _watchers.append(watcher)
    _install()


def unwatch(watcher: Watcher) -> None:
    """Remove a watcher, and with the last watcher the wrapper, unless something else has wrapped it meanwhile."""
    global _wrapped
    if watcher in _watchers:
        _watchers.remove(watcher)
    if _watchers or _wrapped is None:
        return
    session_type, original, wrapper = _wrapped
    if session_type.__dict__.get("__init__") is wrapper:
        session_type.__init__ = original
        _wrapped = None


def _install() -> None:
    global _wrapped
    session_type = session_class()
    if _wrapped is not None and _wrapped[0] is session_type and _leads_to(session_type.__init__, _wrapped[2]):
        return
    original = session_type.__init__

    @functools.wraps(original)
    def wrapper(self: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
        # The list itself is iterated, not a copy: the launcher's watcher may append another watcher to it, which has to
        # see this session too.
        for watcher in _watchers:
            config = _guarded(watcher.configure, config, otherwise=config)
        original(self, target, graph, config)
        for watcher in tuple(_watchers):
            _guarded(watcher.created, self)

    session_type.__init__ = wrapper
    _wrapped = (session_type, original, wrapper)


def _guarded(function: Callable[[Any], Any], argument: Any, otherwise: Any = None) -> Any:
    """Call a function and return its result. Exceptions are logged, so that the user's session is always created.

    otherwise: the result after an exception
    """
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
