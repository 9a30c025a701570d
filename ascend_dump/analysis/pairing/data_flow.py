"""The data flow of one program: the operator that made each input, by storage and version in memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import COPIES, operator_class, writes
from ascend_dump.reading import Record

__all__ = ["OUTSIDE", "DataFlow", "Flows", "InputSource", "Made", "has_storages", "layout_of"]

#: Number of operators that are checked for recorded storages.
_CHECKED = 64
#: Position of the maker of a tensor that no operator of the step made.
OUTSIDE = -1


class Made(NamedTuple):
    """A tensor: the position of the operator that made it and the index of the output; `OUTSIDE` and the storage."""

    position: int
    output: int


class InputSource(NamedTuple):
    """The source of an input.

    maker    the operator whose output it is, which may be a view; None if unknown, or made outside
    root     the tensor before views and copies; None if unknown
    content  the bytes, if there is no maker
    """

    record: Record
    maker: Optional[Made]
    root: Optional[Made]
    content: Optional[Hashable]


class DataFlow:
    """The sources of the inputs of the operators of one step, and the readers of their outputs, by position."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.operators = operators
        self.modules = {operator.module_path for operator in operators}
        self.sources: list[list[InputSource]] = []
        self.readers: list[set[int]] = [set() for _ in operators]
        #: By the number of a storage: its last writer, views and copies left out.
        self._roots: dict[int, Made] = {}
        #: By storage, offset and layout: the operator that made this part last, which may be a view.
        self._makers: dict[Hashable, Made] = {}
        #: By content, if no storages are recorded: the operator that made it last.
        self._contents: dict[Hashable, Made] = {}
        for position, operator in enumerate(operators):
            self.sources.append([self._source(position, record) for record in operator.inputs])
            self._add_outputs(position, operator)

    def _source(self, position: int, record: Record) -> InputSource:
        storage = storage_of(record)
        if storage is None:
            return InputSource(record, None, self._contents.get(record.content), record.content)
        maker = self._makers.get(_part(record))
        root = self._roots.get(storage[0], Made(OUTSIDE, storage[0]))
        for made in (maker, root):
            if made is not None and made.position != OUTSIDE:
                self.readers[made.position].add(position)
        return InputSource(record, maker, root, None if maker is not None else record.content)

    def _add_outputs(self, position: int, operator: Operator) -> None:
        sources = self.sources[position]
        read = {} if writes(operator.op_type) else {storage_of(source.record): source.root for source in sources}
        is_copy = bool(sources) and operator_class(operator.op_type) in COPIES
        for record in operator.outputs:
            storage = storage_of(record)
            if storage is None:
                if record.content is not None:
                    self._contents[record.content] = Made(position, record.index)
                continue
            made = self._makers[_part(record)] = Made(position, record.index)
            of_view = next((root for key, root in read.items() if key is not None and key[0] == storage[0]), None)
            root = sources[0].root if of_view is None and is_copy else of_view
            self._roots[storage[0]] = made if root is None else root


def _part(record: Record) -> Hashable:
    return (record.attrs.get("storage"), *layout_of(record))


def layout_of(record: Record) -> tuple[Hashable, ...]:
    """Return the part of its storage that a tensor is: offset, shape and stride."""
    attrs = record.attrs
    return (attrs.get("storage_offset"), record.shape, tuple(attrs.get("stride") or ()))


#: The data flow of actual, and that of the reference.
Flows = tuple[DataFlow, DataFlow]


def has_storages(*sides: Sequence[Operator]) -> bool:
    """Return True if the operators of each side are recorded with their storages in memory."""
    return all(any(storage_of(record) for operator in side[:_CHECKED] for record in operator.records) for side in sides)
