"""The conditions of one `Dump.select`, and their tests on records and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

from ascend_dump.reading._dialect import Entry
from ascend_dump.reading._record import Record
from ascend_dump.steps import Steps

__all__ = ["Query"]

#: If one of these fields is in a file's name, all records in the file have the same value.
_OF_FILES = ("step", "rank", "device")


class Query(NamedTuple):
    """The conditions of one `select`. They are tested on entries too: a file that cannot match is not opened.

    texts    fields with their tests, such as ("op_name", a function from a name to bool)
    numbers  fields with the selected values
    written  a weaker test of `Entry.written_name`, for files whose name has the operator's name only in changed form
    """

    texts: tuple[tuple[str, Callable[[str], bool]], ...]
    numbers: tuple[tuple[str, Steps], ...]
    written: Optional[Callable[[str], bool]] = None
    #: The arguments of `select`, to repeat it in another process.
    chosen: Mapping[str, Any] = MappingProxyType({})

    def may_match(self, entry: Entry) -> bool:
        for name, test in self.texts:
            text = getattr(entry, name, None)
            if text is not None and not test(text):
                return False
        for name, steps in self.numbers:
            number = getattr(entry, name, None)
            if number is not None and number not in steps:
                return False
        return self.written is None or entry.written_name is None or self.written(entry.written_name)

    def takes_all_of(self, entry: Entry) -> bool:
        """Return True if the names of an entry's file and directories prove that all its records match."""
        is_proven = (name in _OF_FILES and getattr(entry, name) is not None for name, _ in self.numbers)
        return not self.texts and all(is_proven)

    def matches(self, record: Record) -> bool:
        if record.error is not None:
            return self._may_be(record)
        return all(test(getattr(record, name) or "") for name, test in self.texts) and all(
            getattr(record, name) in steps for name, steps in self.numbers
        )

    def _may_be(self, broken: Record) -> bool:
        """Return True if an unreadable record may match. Only fields that are known can exclude it."""
        for name, test in self.texts:
            text = getattr(broken, name)
            if text and not test(text):
                return False
        for name, steps in self.numbers:
            number = getattr(broken, name)
            is_known = number is not None and (name != "index" or broken.io != "")
            if is_known and number not in steps:
                return False
        return True
