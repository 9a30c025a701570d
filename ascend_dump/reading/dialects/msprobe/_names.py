"""Parse the names that msprobe gives to calls of functions and modules, and find the user's line in a call stack."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Optional

__all__ = ["MsprobeName", "module_of", "source_of", "stack_of"]

_API = re.compile(r"(\w+)\.(.+)\.\d{1,18}\.(forward|backward)", re.ASCII)
_MODULE = re.compile(r"(?:Module|Cell)\.(?:(.+)\.)?([^.]+)\.(forward|backward|parameters_grad)(?:\.\d{1,18})?")
_DEBUG = re.compile(r"(.+?)(_grad)?\.\d{1,18}\.debug")
_FRAME = re.compile(r"File (.+), line (\d{1,9}), in ([^,\n]*)")
#: Paths of frameworks in a call stack: their lines are not the user's code.
_FRAMEWORK = re.compile(r"[/\\](?:site|dist)-packages[/\\](?:torch|torch_npu|mindspore|mindtorch|msprobe)[/\\]")


class MsprobeName(NamedTuple):
    """The parts of a name.

    op_type  the function ("linear"), the class of a module ("Linear"), or "save" for `PrecisionDebugger.save`
    phase    "forward", "backward" or None
    module   path of the module; None for a function
    """

    op_type: str
    phase: Optional[str] = None
    module: Optional[str] = None

    @classmethod
    def of(cls, name: str) -> MsprobeName:
        """Parse a name such as `Functional.linear.0.forward` or `Module.layers.0.up.Linear.forward.0`."""
        module = _MODULE.fullmatch(name)
        if module is not None:
            path, kind, phase = module.groups()
            return cls(kind, "forward" if phase == "forward" else "backward", path or "")
        api = _API.fullmatch(name)
        if api is not None:
            return cls(api[2], api[3])
        saved = _DEBUG.fullmatch(name)
        return cls("save", "backward" if saved[2] else None) if saved else cls("")


def module_of(parent: object) -> Optional[str]:
    """Return the path of a parent module. parent: a value in `construct.json`; None if it is no module."""
    # With micro steps the value is a pair of the name and the micro step.
    name = parent[0] if isinstance(parent, list) and parent else parent
    return MsprobeName.of(name).module if isinstance(name, str) else None


def stack_of(lines: Iterable[object]) -> tuple[str, ...]:
    """Return the functions of a stack in the form of `Record.stack`: `file:line in function`.

    Functions of frameworks are included. Lines in another form are left out.
    """
    frames = (_FRAME.match(line) for line in lines if isinstance(line, str))
    return tuple(f"{frame[1]}:{frame[2]} in {frame[3].strip()}" for frame in frames if frame is not None)


def source_of(lines: Iterable[object]) -> Optional[str]:
    """Return `file:line` of the innermost function of a stack outside the frameworks; None if there is none."""
    for line in lines:
        frame = _FRAME.match(line) if isinstance(line, str) else None
        if frame is not None and not _FRAMEWORK.search(frame[1]):
            return f"{frame[1]}:{frame[2]}"
    return None
