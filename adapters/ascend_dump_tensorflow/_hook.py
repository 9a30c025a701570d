"""Where every session of TensorFlow is made: the place where npu_bridge itself steps in.

One wrapper stands around `BaseSession.__init__` while somebody watches, and hands each configuration on.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any, Callable, Optional, Protocol

__all__ = ["Watcher", "session_class", "unwatch", "watch"]


class Watcher(Protocol):
    def configure(self, config: Any) -> Any:
        """The configuration that a new session gets instead of this one, which may be None."""

    def created(self, session: Any) -> None:
        """A session was made with it."""


log = logging.getLogger("ascend_dump")

_watchers: list[Watcher] = []
#: The class whose `__init__` is wrapped, what it was, and the wrapper.
_wrapped: Optional[tuple[Any, Callable[..., None], Callable[..., None]]] = None


def session_class() -> Any:
    """The class all sessions derive from."""
    from importlib import import_module

    module = sys.modules.get("tensorflow.python.client.session") or import_module("tensorflow.python.client.session")
    return getattr(module, "BaseSession", None) or module.Session


def watch(watcher: Watcher) -> None:
    """Begin to ask this watcher. A second call only makes sure that it is asked."""
    if watcher not in _watchers:
        _watchers.append(watcher)
    _install()


def unwatch(watcher: Watcher) -> None:
    """Stop watching; the wrapper goes with the last watcher, unless somebody has wrapped it meanwhile."""
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
        # The list itself: the launcher's watcher may add one that is for this very session.
        for watcher in _watchers:
            config = _guarded(watcher.configure, config, otherwise=config)
        before(self, target, graph, config)
        for watcher in tuple(_watchers):
            _guarded(watcher.created, self)

    where.__init__ = wrapper
    _wrapped = (where, before, wrapper)


def _guarded(function: Callable[[Any], Any], argument: Any, otherwise: Any = None) -> Any:
    """The user's session is made, whatever we fail at: what is wrong with its arguments TensorFlow says itself."""
    try:
        return function(argument)
    except Exception as error:
        log.warning("a session is left as it is: %r", error)
        log.debug("watching a session failed", exc_info=True)
        return otherwise


def _leads_to(function: Any, wrapper: Any) -> bool:
    """Whether the wrapper is still among what a call of this function goes through."""
    while function is not None and function is not wrapper:
        function = getattr(function, "__wrapped__", None)
    return function is not None
