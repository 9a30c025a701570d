"""The data flow of one program: which operator made each input, recognised by the storage of the tensor in memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import COPIES, operator_class, writes
from ascend_dump.reading import Record

__all__ = ["OUTSIDE", "DataFlow", "Flows", "InputSource", "Made", "has_storages", "layout_of"]

#: Number of operators at the beginning of a step that are checked for recorded storages.
_CHECKED = 64
#: Position of the maker of a tensor that no operator of the step made.
OUTSIDE = -1


class Made(NamedTuple):
    """A tensor that an operator of the step made: position of the operator, index of the output.

    For a tensor from outside of the step: `OUTSIDE`, and the number of its storage.
    """

    position: int
    output: int


class InputSource(NamedTuple):
    """The source of an input.

    maker    the output that the input is, which may be a view; None if it is unknown, or from outside of the step
    root     the tensor that the input is a view or copy of; None if it is unknown
    content  the key of the bytes, if there is no maker; else None
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
        #: By the number of a storage: the tensor in this storage. A copy has the tensor that was copied.
        self._roots: dict[int, Made] = {}
        #: By storage, offset, shape and stride: the last output there, which may be a view.
        self._makers: dict[Hashable, Made] = {}
        #: By content, for tensors without a recorded storage: the last output with it.
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
    """Return the part of its storage that a tensor covers: offset, shape and stride."""
    attrs = record.attrs
    return (attrs.get("storage_offset"), record.shape, tuple(attrs.get("stride") or ()))


#: The data flow of actual, and that of the reference.
Flows = tuple[DataFlow, DataFlow]


def has_storages(*sides: Sequence[Operator]) -> bool:
    """Return True if each side records storages: at least for one tensor of its first operators."""
    return all(any(storage_of(record) for operator in side[:_CHECKED] for record in operator.records) for side in sides)
