"""The `layers=` of the next capture that select the operators of a finding."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Optional

from ascend_dump.reading import Record

__all__ = ["is_of_module", "layers_of"]

#: Names of module calls in dumps of `level="module"`, and of updates of their parameters.
_CALL = re.compile(r"(?:(?P<module>.+)/)?(?:forward|backward|update)_\d+")


def is_of_module(record: Record) -> bool:
    """Return True if a record of `level="module"` belongs to a module call or a parameter, and not to an operator."""
    return "::" not in record.op_type and record.module is not None and _module(record.op_name) == record.module


def layers_of(record: Record, names: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns for operators of these names, in a dump like that of the record; empty for all operators.

    A module call stands for the operators that the module calls itself; those of inner modules have their own records.
    """
    if not is_of_module(record):
        return tuple(dict.fromkeys(name for name in names if name))
    modules = tuple(dict.fromkeys(module for module in map(_module, names) if module is not None))
    # Operators that the outermost module calls itself have no path for a pattern; only the empty pattern includes them.
    return () if not record.module else tuple(module for module in modules if module)


def _module(name: str) -> Optional[str]:
    """Return the module path of a call; None if the name is not that of a call."""
    match = _CALL.fullmatch(name)
    return None if match is None else match["module"] or ""
