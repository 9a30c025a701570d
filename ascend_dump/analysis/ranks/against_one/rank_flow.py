"""The flow of tensors through operators of several ranks, across collectives and messages."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.collectives import collective_of
from ascend_dump.analysis.operators.nonfinite import executions
from ascend_dump.analysis.operators.properties import operator_class, writes
from ascend_dump.analysis.operators.unread_inputs import is_unread
from ascend_dump.analysis.ranks.collective_calls import CallBook, operator_key
from ascend_dump.reading import Record

__all__ = ["RankFlow", "Write"]


class Write(NamedTuple):
    """An operator that wrote a tensor, and its output there.

    inputs    the tensors that it reads; if it is a call, those that ranks send
    replaced  the tensors of ranks that only receive, before the call
    """

    operator: Sequence[Record]
    output: Record
    inputs: tuple[Record, ...]
    replaced: tuple[Record, ...] = ()

    @property
    def is_call(self) -> bool:
        return collective_of(self.operator[0]) is not None


class RankFlow:
    """The operators of some steps of all ranks. Views write nothing.

    records  the records of the dump, in its order
    steps    the steps that are looked at
    """

    def __init__(self, records: Iterable[Record], steps: Set[Optional[int]]) -> None:
        book = CallBook()
        buffers: dict[Hashable, list[Record]] = {}
        #: The operators of each rank: rank, type and line of the program.
        self.lines: set[tuple[Optional[int], str, Optional[str]]] = set()
        #: By memory: operators with an output there, in the order in which they began.
        self._writers: dict[Hashable, list[tuple[Record, Sequence[Record]]]] = {}
        self._views: dict[Hashable, list[tuple[Record, Sequence[Record]]]] = {}
        for members in executions(records):
            first = members[0]
            if first.error is not None or first.step not in steps:
                continue
            book.look_at(members)
            if collective_of(first) is not None:
                buffers[operator_key(first)] = [record for record in members if record.io == "input"]
            self.lines.add((first.rank, first.op_type, first.source))
            viewed = set() if writes(first.op_type) else {_memory(record) for record in members if record.io == "input"}
            for record in members:
                memory = _memory(record)
                if record.io == "output" and memory is not None:
                    operators = self._views if memory in viewed else self._writers
                    operators.setdefault(memory, []).append((record, members))
        book.end()
        for writers in self._writers.values():
            writers.sort(key=lambda writer: writer[0].attrs.get("seq", 0))
        #: By operator of a call: the tensors of the ranks that send, and of those that do not.
        self._sent: dict[Hashable, tuple[Record, ...]] = {}
        self._replaced: dict[Hashable, tuple[Record, ...]] = {}
        for parts in book.calls.values():
            keys = [operator_key(part.first) for part in parts]
            sent = tuple(record for part in parts if part.join.gives for record in part.inputs)
            takers = (operator_key(part.first) for part in parts if not part.join.gives)
            replaced = tuple(record for key in takers for record in buffers[key])
            self._sent.update(dict.fromkeys(keys, sent))
            self._replaced.update(dict.fromkeys(keys, replaced))
        #: By content: messages of which no receiver is recorded, because recording began later there.
        self._messages = {
            record.content: part
            for parts in book.calls.values()
            if len(parts) == 1 and parts[0].call.kind == "send"
            for part in parts
            for record in part.inputs
        }

        #: By rank and content: the tensors of all messages.
        self._alike: dict[Hashable, list[Record]] = {}
        for part in (part for parts in book.calls.values() for part in parts if part.call.kind == "send"):
            for record in part.inputs:
                self._alike.setdefault((part.rank, record.content), []).append(record)

    def alike(self, write: Write) -> Iterator[Record]:
        """Yield the tensors of other messages with the same content: each may be the one that a rank received."""
        for sent in write.inputs if write.is_call else ():
            alike = [] if sent.content is None else self._alike.get((sent.rank, sent.content), [])
            yield from (record for record in alike if record is not sent)

    def write(self, record: Record) -> Optional[Write]:
        """Return the last write to the elements of an input before its operator; None if none is recorded.

        If the receiver did not record a message, the call of the sender is returned.
        """
        number = record.attrs.get("seq", 0)
        begin, end = _elements(record)
        copy: Optional[Write] = None
        for output, operator in reversed(self._writers.get(_memory(record), [])):
            first, last = _elements(output)
            if output.attrs.get("seq", 0) < number and first < end and begin < last:
                replaced = self._replaced.get(operator_key(operator[0]), ())
                write = Write(operator, output, tuple(self._inputs(operator)), replaced)
                if copy is not None and not (write.is_call and output.source == copy.output.source):
                    return copy
                if copy is not None or operator_class(output.op_type) != "copy":
                    return write
                copy = write  # gloo copies the result of a call out of memory of its own
        if copy is not None:
            return copy
        part = None if record.content is None else self._messages.get(record.content)
        return None if part is None or part.rank == record.rank else Write([part.first], part.first, part.inputs)

    def cut(self, record: Record) -> Optional[Record]:
        """Return the output of the last operator that cut the elements of an input out of a larger tensor."""
        number, elements = record.attrs.get("seq", 0), _elements(record)
        for output, operator in reversed(self._views.get(_memory(record), [])):
            is_same = output.attrs.get("seq", 0) < number and _elements(output) == elements
            if is_same and any(tensor.io == "input" and _elements(tensor) != elements for tensor in operator):
                return output
        return None

    def _inputs(self, operator: Sequence[Record]) -> Iterator[Record]:
        sent = self._sent.get(operator_key(operator[0]))
        if sent is not None:
            yield from sent
        else:
            inputs = (record for record in operator if record.io == "input" and record.error is None)
            yield from (record for record in inputs if not is_unread(record))


def _memory(record: Record) -> Hashable:
    storage = record.attrs.get("storage")
    return None if storage is None or storage < 0 else (record.run, record.rank, record.step, storage)


def _elements(record: Record) -> tuple[int, int]:
    """Return the first element of a tensor in its memory, and the one after its last."""
    begin = record.attrs.get("storage_offset") or 0
    sizes = zip(record.shape or (), record.attrs.get("stride") or ())
    return begin, begin + 1 + sum((size - 1) * stride for size, stride in sizes if size > 1)
