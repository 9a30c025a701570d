"""Record a whole pyACL program: start the capture after acl is initialised and before a model is loaded.

CANN dumps only models that are loaded after the dump is configured. Operators that run without a model are never
loaded. So the capture starts right after `acl.init`, or, if acl was initialised in another way, before the first model
is loaded.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Callable

from ascend_dump.adapter import Begin
from ascend_dump.native.cann.acl_codes import AclError

__all__ = ["launch"]

#: Prefixes of the functions of acl.mdl that load a model: load_from_file, load_from_mem, load_with_config, ….
_LOAD_PREFIXES = ("load_from", "load_with")


def launch(begin: Begin) -> Callable[[], str]:
    """Call `begin` at the right moment. Return a function that says why it was never called."""
    hooks = _AclHooks(begin)
    acl: Any = importlib.import_module("acl")
    acl.init = hooks.after(acl.init)
    for name in dir(acl.mdl):
        if name.startswith(_LOAD_PREFIXES) and callable(getattr(acl.mdl, name)):
            setattr(acl.mdl, name, hooks.before(getattr(acl.mdl, name)))
    return hooks.unused


class _AclHooks:
    """Wrappers around functions of acl; the first one that runs calls `begin`."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._begun = False

    def unused(self) -> str:
        return "it neither called acl.init nor loaded a model"

    def after(self, init: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(init)
        def init_and_begin(*args: Any, **kwargs: Any) -> Any:
            code = init(*args, **kwargs)
            if code == AclError.SUCCESS:
                self._begin_once()
            return code

        return init_and_begin

    def before(self, load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def begin_and_load(*args: Any, **kwargs: Any) -> Any:
            self._begin_once()
            return load(*args, **kwargs)

        return begin_and_load

    def _begin_once(self) -> None:
        if not self._begun:
            self._begun = True
            self._begin()
