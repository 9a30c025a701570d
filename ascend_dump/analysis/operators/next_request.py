"""Find the `layers=` patterns with which the next capture selects the operators of a finding."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Optional

from ascend_dump.reading import Record

__all__ = ["is_of_module", "is_update", "layers_of"]

#: Names of module calls in dumps of `level="module"`, and of updates of their parameters.
_CALL = re.compile(r"(?:(?P<module>.+)/)?(?:forward|backward|update)_\d+")


def is_of_module(record: Record) -> bool:
    """Return True if a record of `level="module"` belongs to a module call or a parameter, and not to an operator."""
    return "::" not in record.op_type and record.module is not None and _module(record.op_name) == record.module


def is_update(record: Record) -> bool:
    """Return True if a record of `level="module"` is a norm of a parameter at an optimizer step."""
    return record.op_name.rpartition("/")[2].startswith("update_") and is_of_module(record)


def layers_of(record: Record, names: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns that select operators, or the operators in modules; an empty tuple selects all operators.

    record  a record of the dump that the names are from: it shows whether these are names of operators or module calls
    names   names of operators, or of module calls in a dump of `level="module"`
    """
    if not is_of_module(record):
        return tuple(dict.fromkeys(name for name in names if name))
    modules = tuple(dict.fromkeys(module for module in map(_module, names) if module is not None))
    # The outermost module has no path. So no pattern selects the operators that it calls itself, only an empty tuple.
    return () if not record.module else tuple(module for module in modules if module)


def _module(name: str) -> Optional[str]:
    """Return the module path in the name of a module call; None if it is no such name."""
    match = _CALL.fullmatch(name)
    return None if match is None else match["module"] or ""
