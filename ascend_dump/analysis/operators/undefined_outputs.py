"""Outputs that a kernel leaves unset, and inputs that are recorded after the operator has overwritten them.

Both are listed in the file `undefined.json`. A kernel does not write an output that its mode does not need. For
example, a batch norm in inference does not write the outputs for its backward pass: two runs differ there, and nothing
is wrong. An input that is recorded after the operator has written to it is a result, not an input.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Optional

import msgspec

from ascend_dump.analysis.numerics.tensor_pair import identity_of
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Record

__all__ = ["why_undefined", "written_inputs"]


class _When(msgspec.Struct, forbid_unknown_fields=True):
    """The conditions of a rule on the records of an operator; all that are given must be met.

    shape   the shape of the output
    copies  indices of an output and of an input that must have the same bytes
    flag    index of an input that is a single bool, and the value that it must have
    """

    shape: Optional[tuple[int, ...]] = None
    copies: Optional[tuple[int, int]] = None
    flag: Optional[tuple[int, bool]] = None

    def matches(self, operator: Operator, output: Optional[Record] = None) -> bool:
        if self.shape is not None and (output is None or output.shape != self.shape):
            return False
        if self.copies is not None:
            written, read = (
                next((record for record in records if record.index == index), None)
                for records, index in zip((operator.outputs, operator.inputs), self.copies)
            )
            if written is None or read is None or identity_of(written) != identity_of(read):
                return False
        return self.flag is None or _scalar(operator, self.flag[0]) == self.flag[1]


class _Rule(msgspec.Struct, forbid_unknown_fields=True):
    operators: frozenset[str]
    outputs: tuple[int, ...]
    why: str
    when: _When = msgspec.field(default_factory=_When)


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    operators: frozenset[str]
    inputs: frozenset[int]
    why: str
    when: _When = msgspec.field(default_factory=_When)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    about: str
    outputs: list[_Rule]
    written: list[_Written]


@functools.lru_cache(maxsize=1)
def _file() -> _File:
    return msgspec.json.decode((Path(__file__).parent / "undefined.json").read_bytes(), type=_File)


@functools.lru_cache(maxsize=1)
def _rules() -> dict[str, list[_Rule]]:
    """Return the rules of outputs, by the `operator_class` of operators."""
    by_name: dict[str, list[_Rule]] = {}
    for rule in _file().outputs:
        for name in rule.operators:
            by_name.setdefault(name, []).append(rule)
    return by_name


def written_inputs(operator: Operator) -> frozenset[int]:
    """Return the indices of inputs that are recorded with the values the operator wrote there."""
    name = operator.function
    indices = (rule.inputs for rule in _file().written if name in rule.operators and rule.when.matches(operator))
    return frozenset().union(*indices)


def why_undefined(operator: Operator, output: Record) -> Optional[str]:
    """Return why an output is no value of the program, because the kernel leaves it unset; None if it is a value."""
    for rule in _rules().get(operator.function, ()):
        if output.index in rule.outputs and rule.when.matches(operator, output):
            return rule.why
    return None


def _scalar(operator: Operator, index: int) -> Optional[bool]:
    """Return the value of an input that is a single bool; None if it is not recorded, or something else."""
    for record in operator.inputs:
        if record.index == index and record.shape == () and record.dtype == "bool":
            try:
                return bool(record.numpy())
            except AscendDumpError:
                return None
    return None
