"""Group the records of a dump into operators in execution order, with their inputs and outputs."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.analysis.operators.properties import COLLECTIVES, operator_class
from ascend_dump.reading import MadeOf, Record

__all__ = [
    "Operator",
    "call_of",
    "common_module",
    "is_read_for",
    "is_same_name",
    "module_of",
    "operators",
    "parameter_name",
    "storage_of",
]

#: Levels that wrappers of a model add to the path of a module.
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "model"}


@dataclass
class Operator:
    """One executed operator.

    position    index in the execution order of its step, from 0
    broken      records that cannot be read and probably belong to the operator
    made_of     its sources in the program, for an operator of a compiled graph
    kernel      the name of the kernel, for a kernel of an API call on an NPU; else None
    kernels     for an API call on an NPU: its kernels that are recorded
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
    kernel: Optional[str] = None
    kernels: list[Operator] = field(default_factory=list)

    @property
    def records(self) -> Iterator[Record]:
        yield from self.inputs
        yield from self.outputs
        yield from self.broken

    @property
    def module_path(self) -> str:
        """Return the module path without the levels of wrappers, so that it matches the path in another program."""
        return module_of(self.module)

    @functools.cached_property
    def function(self) -> str:
        """The `operator_class`, by which rules of operators are selected; "" for a module, to which no rule applies."""
        record = next(self.records, None)
        is_module = record is not None and (is_of_module(record) or record.attrs.get("level") == "module")
        return "" if is_module else operator_class(self.op_type)

    @property
    def label(self) -> str:
        return self.op_name or self.op_type


def operators(records: Iterable[Record], made_of: Optional[Callable[[Record], MadeOf]] = None) -> list[Operator]:
    """Group records, in the order of their Dump, into operators.

    The records of one run of an operator follow each other. Only the outputs of a collective may come later, when the
    collective is complete.

    made_of: returns the sources in the program of a record's operator, see `Operator.made_of`
    """
    grouped: list[Operator] = []
    #: Collectives without outputs so far, by their run.
    running: dict[Any, Operator] = {}
    #: Kernels by the run of their API call. The call is recorded after its kernels.
    kernels: dict[Any, list[Operator]] = {}
    last: Any = None
    for record in records:
        key = record.execution
        if record.io == "output" and record.error is None and key in running:
            running[key].outputs.append(record)
            last = key if grouped[-1] is running[key] else None
            continue
        if key != last or (grouped and _repeats(grouped[-1], record)):
            if grouped and grouped[-1].op_type.startswith(COLLECTIVES) and not grouped[-1].outputs:
                running[last] = grouped[-1]
            grouped.append(
                Operator(
                    len(grouped),
                    record.op_type,
                    record.op_name,
                    record.phase or "",
                    record.module or "",
                    record.source or "",
                )
            )
            last = key
            grouped[-1].kernel = record.kernel
            if record.kernel is not None:
                kernels.setdefault(call_of(record), []).append(grouped[-1])
            elif kernels:
                grouped[-1].kernels = kernels.pop(call_of(record), [])
            if made_of is not None:
                grouped[-1].made_of = made_of(record)
        operator = grouped[-1]
        if record.error is not None:
            operator.broken.append(record)
        elif record.io == "input":
            operator.inputs.append(record)
        else:
            operator.outputs.append(record)
    return grouped


def call_of(record: Record) -> tuple[Any, ...]:
    """Return a key that the records of an API call on an NPU share with the records of its kernels."""
    name = record.op_name.rpartition("/")[0] if record.kernel is not None else record.op_name
    return (record.run, record.rank, record.device, record.model, record.step, name)


def _repeats(operator: Operator, record: Record) -> bool:
    """Return True if the operator already has this input or output, so that the record begins a new operator."""
    if record.error is not None:
        return False
    side = operator.inputs if record.io == "input" else operator.outputs
    return any(member.index == record.index and member.io == record.io for member in side)


def is_read_for(operator: Operator, index: Optional[int], output: int) -> bool:
    """Return True if an output may be computed from an input.

    An operator on lists computes each tensor of a list by itself. Inputs after the lists apply to all tensors.

    index: the index of the input; None if it is unknown
    """
    if index is None or not operator.function.startswith("_foreach_"):
        return True
    count = max(len(operator.outputs), 1)
    return index % count == output % count or index >= len(operator.inputs) // count * count


@functools.lru_cache(maxsize=1 << 16)
def module_of(path: str) -> str:
    """Return the path of a module without the levels that wrappers (DDP, FSDP, torch.compile, checkpointing) add."""
    levels = [level for level in path.split(".") if level not in _WRAPPERS]
    return ".".join(levels)


def is_same_name(name: str, other: str) -> bool:
    """Return True if two names of parameters are one but for the levels of wrappers, and words before the name.

    >>> is_same_name("model.norm.weight", "base_model.model._orig_mod.norm.weight")
    True
    """
    shorter, longer = sorted((module_of(name), module_of(other)), key=len)
    return f".{longer}".endswith(f".{shorter}")


def common_module(paths: Iterable[str]) -> str:
    """Return the path of the innermost module that contains all modules of these paths; "" if there is none."""
    shared: list[str] = []
    for levels in zip(*(path.split(".") for path in paths)):
        if len(set(levels)) > 1:
            break
        shared.append(levels[0])
    return ".".join(shared)


def parameter_name(record: Record) -> Optional[str]:
    """Return the name of the parameter to which a tensor of an optimizer belongs; None for other tensors.

    Such tensors are the parameter itself, its gradient, and the state that the optimizer keeps for it.
    """
    name = record.parameter
    return None if name is None else name.rpartition(" of ")[2].removesuffix(".grad")


def storage_of(record: Record) -> Optional[tuple[int, int]]:
    """Return (number of a tensor's storage in the step, version of the storage or -1); None if it is not recorded."""
    attrs = record.attrs
    storage, version = attrs.get("storage", -1), attrs.get("version", -1)
    if storage is None or storage < 0:
        return None
    return storage, -1 if version is None else version
