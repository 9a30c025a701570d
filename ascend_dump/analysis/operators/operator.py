"""Operators of a dump in the order they ran: the records of each, and what they read and write."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from ascend_dump.reading import MadeOf, Record

__all__ = ["Operator", "module_of", "operators", "storage_of"]

#: What wrappers of a model add to the path of a module, as whole levels of it.
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "model"}


@dataclass
class Operator:
    """One executed operator.

    position    place in the execution order of its step, from 0
    broken      records that cannot be read and belong to it as far as is known
    made_of     of one of a compiled graph: what it was in the program
    """

    position: int
    op_type: str
    op_name: str
    phase: str
    module: str
    source: str
    inputs: list[Record] = field(default_factory=list)
    outputs: list[Record] = field(default_factory=list)
    broken: list[Record] = field(default_factory=list)
    made_of: MadeOf = field(default_factory=MadeOf)

    @property
    def records(self) -> Iterator[Record]:
        yield from self.inputs
        yield from self.outputs
        yield from self.broken

    @property
    def place(self) -> str:
        """Module path without wrappers, for matching."""
        return module_of(self.module)

    @property
    def label(self) -> str:
        return self.op_name or self.op_type


def operators(records: Iterable[Record], made_of: Optional[Callable[[Record], MadeOf]] = None) -> list[Operator]:
    """Group records, in the order a Dump gives them, into operators.

    Records of one run of an operator follow each other. made_of: tells of a record what its operator was.
    """
    found: list[Operator] = []
    last: Any = None
    for record in records:
        key = record.execution
        if key != last or (found and _repeats(found[-1], record)):
            found.append(
                Operator(
                    len(found),
                    record.op_type,
                    record.op_name,
                    record.phase or "",
                    record.module or "",
                    record.source or "",
                )
            )
            last = key
            if made_of is not None:
                found[-1].made_of = made_of(record)
        operator = found[-1]
        if record.error is not None:
            operator.broken.append(record)
        elif record.io == "input":
            operator.inputs.append(record)
        else:
            operator.outputs.append(record)
    return found


def _repeats(operator: Operator, record: Record) -> bool:
    """Whether the operator has this very input or output already, so that the record begins another one."""
    if record.error is not None:
        return False
    side = operator.inputs if record.io == "input" else operator.outputs
    return any(one.index == record.index and one.io == record.io for one in side)


@functools.lru_cache(maxsize=1 << 16)
def module_of(path: str) -> str:
    """The path of a module without the levels that wrappers (DDP, FSDP, torch.compile, checkpointing) add."""
    levels = [level for level in path.split(".") if level not in _WRAPPERS]
    return ".".join(levels)


def storage_of(record: Record) -> Optional[tuple[int, int]]:
    """Where the tensor was in memory: the number of its storage in the step, and its version; None if unknown."""
    attrs = record.attrs
    storage, version = attrs.get("storage", -1), attrs.get("version", -1)
    if storage is None or storage < 0:
        return None
    return storage, -1 if version is None else version
