"""The operators of a dump as `ls` lists them: a summary of the records of one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

if TYPE_CHECKING:
    from ascend_dump.reading import Record

__all__ = ["Group", "Head", "groups_of", "operator_of"]


class Head(NamedTuple):
    """The fields of a record in one line of the listing, named as in `Record`."""

    op_name: str
    op_type: str
    step: Optional[int]
    run: Optional[str]
    rank: Optional[int]
    model: Optional[str]
    shape: Optional[Sequence[int]]
    kernel: Optional[str]
    error: None = None


class Group(NamedTuple):
    """The records of one run of an operator.

    first       its first output, else its first record
    types       names of element types, each once
    records     number of records; unreadable: number of unreadable records
    """

    first: Union[Record, Head]
    inputs: int
    outputs: int
    types: Sequence[str]
    bytes: int
    records: int
    unreadable: int


def groups_of(records: Iterable[Record]) -> Iterator[Group]:
    """Yield the operators in the order of execution."""
    return (_group(list(group)) for _, group in groupby(records, operator_of))


def operator_of(record: Record) -> tuple[Any, ...]:
    """Return the key common to the records of one run of an operator."""
    # An unreadable file stands alone: its records are not known to be of one operator.
    broken = id(record) if record.error is not None and not record.op_name else None
    return (*record.execution, broken)


def _group(records: list[Record]) -> Group:
    outputs = [record for record in records if record.io == "output"]
    return Group(
        (outputs or records)[0],
        sum(record.io == "input" for record in records),
        len(outputs),
        list(dict.fromkeys(record.dtype for record in records if record.dtype)),
        sum(record.nbytes or 0 for record in records),
        len(records),
        sum(record.error is not None for record in records),
    )
