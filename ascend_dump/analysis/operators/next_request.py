"""What `layers=` of the next capture selects the operators that a finding is about."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Optional

from ascend_dump.reading import Record

__all__ = ["is_of_module", "layers_of"]

#: The names that `level="module"` gives to the calls of modules.
_CALL = re.compile(r"(?:(?P<module>.+)/)?(?:forward|backward)_\d+")


def is_of_module(record: Record) -> bool:
    """Whether a record is of a call of a module, from `level="module"`, and not of an operator."""
    return "::" not in record.op_type and record.module is not None and _module(record.op_name) == record.module


def layers_of(record: Record, names: Iterable[str]) -> tuple[str, ...]:
    """The patterns for operators of these names, in a dump such as that of the record; empty for all operators.

    A call of a module stands for the operators that the module calls itself: those of modules inside it have records of
    their own.
    """
    if not is_of_module(record):
        return tuple(dict.fromkeys(name for name in names if name))
    found = tuple(dict.fromkeys(module for module in map(_module, names) if module is not None))
    # The operators that the outermost module calls itself have no path to select them by: they are among all only.
    return () if not record.module else tuple(module for module in found if module)


def _module(name: str) -> Optional[str]:
    """The path of the module of a call; None if the name is not that of one."""
    found = _CALL.fullmatch(name)
    return None if found is None else found["module"] or ""
