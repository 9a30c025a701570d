"""Record a whole pyACL program: starts after acl is initialised, before a model is loaded.

CANN dumps only models that are loaded after the dump is set. Single operators are not loaded, so the capture starts
after `acl.init`; if something else initialised acl, at the first load.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Callable

from ascend_dump.adapter import Begin
from ascend_dump.native.cann.acl_codes import AclError

__all__ = ["launch"]

#: In acl.mdl: load_from_file, load_from_mem, load_with_config and their variants.
_LOADS = ("load_from", "load_with")


def launch(begin: Begin) -> Callable[[], str]:
    launched = _AclLaunch(begin)
    acl: Any = importlib.import_module("acl")
    acl.init = launched.after(acl.init)
    for name in dir(acl.mdl):
        if name.startswith(_LOADS) and callable(getattr(acl.mdl, name)):
            setattr(acl.mdl, name, launched.before(getattr(acl.mdl, name)))
    return launched.unused


class _AclLaunch:
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
