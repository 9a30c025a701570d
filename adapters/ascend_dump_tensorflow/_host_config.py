"""Prepare the ConfigProto of sessions that are recorded on the host.

Grappler and the older graph optimiser rename, fuse and fold operators before the debugger sees them. So both are
switched off, unless the user wants them.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Optional

from ascend_dump_tensorflow._bridge import holder_of, kind_of
from ascend_dump_tensorflow._proto import config_class, copy_of

__all__ = ["Marked", "claims", "quiet"]

#: Name of the entry by which a configuration is marked. TensorFlow ignores it, because no optimiser has this name.
_MARK = "AscendDumpHost"
_KEY = "root"
#: OptimizerOptions.L0: no elimination of common subexpressions, no constant folding.
_L0 = -1


class Marked:
    """A mark in the configuration of the program, by which its sessions are recognised, until `restore`."""

    def __init__(self, target: Any, root: str) -> None:
        self._holder: Optional[Any] = None
        kind = kind_of(target)
        if kind == "config":
            config = target
        else:
            holder = holder_of(target)
            config = holder._session_config
            if config is None:
                self._holder = holder
                config = _default_of(holder)
                holder.__dict__["_session_config"] = config
        self._config = config
        self._root = root
        self._before = copy_of(config)
        entry = config.graph_options.rewrite_options.custom_optimizers.add()
        entry.name = _MARK
        entry.parameter_map[_KEY].s = root.encode("utf-8", "surrogateescape")
        self._after = copy_of(config)

    def restore(self) -> None:
        if self._holder is not None:
            self._holder.__dict__["_session_config"] = None
            return
        if self._config == self._after:
            self._config.CopyFrom(self._before)
            return
        _unmark(self._config, self._root)


def claims(config: Any, root: str) -> bool:
    """Return True if this is the configuration that the capture with the directory `root` has marked, or a copy."""
    return config is not None and any(
        entry.name == _MARK and entry.parameter_map[_KEY].s == root.encode("utf-8", "surrogateescape")
        for entry in config.graph_options.rewrite_options.custom_optimizers
    )


def quiet(config: Any, *, off: bool) -> Any:
    """Return a copy of a configuration without the mark. off: True to switch the optimisers off in it."""
    copied = copy_of(config)
    _unmark(copied, None)
    if off:
        copied.graph_options.rewrite_options.disable_meta_optimizer = True
        copied.graph_options.optimizer_options.opt_level = _L0
    return copied


def _unmark(config: Any, root: Optional[str]) -> None:
    optimizers = config.graph_options.rewrite_options.custom_optimizers
    for index in reversed(range(len(optimizers))):
        entry = optimizers[index]
        if entry.name == _MARK and (root is None or os.fsdecode(entry.parameter_map[_KEY].s) == root):
            del optimizers[index]


def _default_of(run_config: Any) -> Any:
    """Return the session configuration that an Estimator uses if its RunConfig contains none."""
    for base in type(run_config).__mro__:
        module = sys.modules.get(base.__module__)
        make = getattr(module, "get_default_session_config", None)
        if make is not None:
            return make()
    return config_class()()
