"""Every config that is given to `torchair.get_npu_backend`, for captures without a target."""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any, Callable

from ascend_dump._errors import AscendDumpError
from ascend_dump_torchair._config import torchair

__all__ = ["Hook"]

log = logging.getLogger("ascend_dump")

_NAME = "get_npu_backend"
_PLACES = ("torchair", "torchair.npu_fx_compiler", "torch_npu.dynamo.torchair")


class Hook:
    """Calls `fill(config)` for each backend that is made, until `remove`."""

    def __init__(self, fill: Callable[[Any], object]) -> None:
        self._undo: list[Callable[[], None]] = []
        for place in _PLACES:
            module = sys.modules.get(place)
            found = getattr(module, _NAME, None)
            if found is not None:
                self._replace(module, found, fill)

    def _replace(self, module: Any, original: Callable[..., Any], fill: Callable[[Any], object]) -> None:
        @functools.wraps(original)
        def get_npu_backend(*args: Any, **kwargs: Any) -> Any:
            if not args and "compiler_config" in kwargs:
                if kwargs["compiler_config"] is None:
                    kwargs["compiler_config"] = torchair().CompilerConfig()
            elif not args:
                kwargs["compiler_config"] = torchair().CompilerConfig()
            try:
                fill(kwargs["compiler_config"])
            except (AscendDumpError, KeyError) as error:
                # The program goes on without a dump.
                log.warning("this backend is not captured: %s", error)
            return original(*args, **kwargs)

        setattr(module, _NAME, get_npu_backend)
        self._undo.append(lambda: self._put_back(module, get_npu_backend, original))

    def _put_back(self, module: Any, ours: object, original: object) -> None:
        # Replaced again by somebody else: that one stays.
        if getattr(module, _NAME, None) is ours:
            setattr(module, _NAME, original)

    def remove(self) -> None:
        """Put the functions back; a second call does nothing."""
        while self._undo:
            self._undo.pop()()
