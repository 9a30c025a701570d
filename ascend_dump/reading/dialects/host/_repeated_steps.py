"""Read steps that repeat an earlier one, much faster than by decoding each line.

Without numba, and where a step differs from all earlier ones, lines are decoded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import msgspec
import numpy as np

from ascend_dump.common.log import log
from ascend_dump.dump_format import IndexText, Line, open_index, text_size
from ascend_dump.reading.dialects.host._calls import NO_CALL
from ascend_dump.reading.dialects.host._columns import LineColumns
from ascend_dump.statistics.compiling import announce_compiling, compiling, loading

if TYPE_CHECKING:
    import polars

    from ascend_dump.reading.dialects.host._step_template import MatchLines, StepReading, StepTemplate

__all__ = ["Prefix", "StepIndex", "StepTemplates", "StepText", "repeated_steps"]

#: Number of templates that are kept, and bytes of text of all of them together.
_MOST_TEMPLATES, _MOST_TEXT = 4, 1 << 24
#: Lines of a step that are compared with an earlier step before a template is made of the whole step.
_HEAD = 64
#: Bytes of text that are read at a time: they fit into a processor's cache.
_BLOCK = 1 << 18
#: Bytes that the lines of one operator have at most.
_MOST_BLOCK = 1 << 22


class StepIndex(NamedTuple):
    """An index to read.

    root    the directory of the steps
    shared  the fields that all lines have
    decode  a function that decodes lines; [] if one of them is no record
    """

    path: Path
    root: Path
    shared: dict[str, Any]
    decode: Callable[[bytes], Sequence[Line]]


class Prefix(NamedTuple):
    """The beginning of an index that was read. end: of its text; is_over: True if nothing follows"""

    frames: list[polars.DataFrame]
    rows: int = 0
    end: int = 0
    is_over: bool = False


class StepText:
    """The lines of a step that were decoded, from which a template can be made; without lines if there are too many."""

    def __init__(self, index: str) -> None:
        self.index = index
        self.size = self.lines = 0
        self.parts: list[bytes] = []
        self.frames: list[polars.DataFrame] = []

    def add(self, text: bytes, lines: int) -> None:
        self.size += len(text)
        self.lines += lines
        if self.size <= _MOST_TEXT:
            self.parts.append(text)
        else:
            self.parts.clear()
            self.frames.clear()

    def template(self, lines: Optional[int] = None) -> Optional[StepTemplate]:
        """Return a template of the first lines, of all lines by default; None if none can be made."""
        import polars as pl

        from ascend_dump.reading.dialects.host._step_template import StepTemplate

        if not self.parts:
            return None
        if lines is not None:
            text = b"".join(self.parts[0].splitlines(keepends=True)[:lines])
            frame = self.frames[0].head(text.count(b"\n"))
        else:
            text, frame = b"".join(self.parts), pl.concat(self.frames, rechunk=True)
        try:
            template = StepTemplate(text, frame, self.index)
        except (ValueError, OverflowError, msgspec.MsgspecError) as error:
            log.debug("%s is no template for later steps: %s", self.index, error)
            return None
        return template if template.is_usable else None


class _Reader:
    """One pass over the beginning of an index."""

    def __init__(self, index: StepIndex, file: IndexText, match_lines: MatchLines) -> None:
        self._index = index
        self._file = file
        self._match_lines = match_lines
        self._size = text_size(file)
        self._powers = powers()
        self.end = 0
        #: Number and name of the operator of the line above.
        self._operator: Optional[tuple[int, str]] = None

    def frame(self, template: StepTemplate) -> Optional[polars.DataFrame]:
        """Return the rows of the lines that repeat a template; None if these are only a few."""
        from ascend_dump.reading.dialects.host._step_template import StepReading

        if template.operator(0) == self._operator:
            return None  # its first line would belong to the operator above
        reading = StepReading(template)
        columns = LineColumns(self._index.shared, self._index.path, self._index.root)
        different: list[int] = []
        end, block = self.end, _BLOCK
        while reading.lines < len(template):
            self._file.seek(end)
            text = self._file.read(min(block, self._size - end))
            first = reading.lines
            stop, is_cut = reading.match(text, end, self._match_lines, self._powers)
            if is_cut and not stop and len(text) == block < _MOST_BLOCK:
                block *= 2  # all lines of an operator are read together
                continue
            numbers = reading.different(first)
            lines = self._decoded(text, reading, numbers, end) if len(numbers) else []
            if not stop or len(lines) < len(numbers):
                reading.lines = first
                break
            columns.add(lines, reading.places[numbers], NO_CALL)
            different += numbers.tolist()
            end += stop
        if reading.lines < min(_HEAD, len(template)):
            return None
        self.end, self._operator = end, template.operator(reading.lines - 1)
        frame = reading.frame(self._index.shared, self._index.path, self._index.root)
        return _with_rows(frame, columns.frame(), different) if different else frame

    def fits(self, template: StepTemplate) -> bool:
        """Return True if the next lines repeat a template. They are not read by that."""
        before = self.end, self._operator
        is_repeated = self.frame(template) is not None
        self.end, self._operator = before
        return is_repeated

    def _decoded(self, text: bytes, reading: StepReading, numbers: np.ndarray, begin: int) -> Sequence[Line]:
        """Decode the lines with these numbers; [] if one is no record, or of another operator than in the template."""
        starts = (reading.places[numbers] - begin).tolist()
        lines = self._index.decode(b"".join(text[start : text.index(b"\n", start) + 1] for start in starts))
        operators = [reading.template.operator(number) for number in numbers.tolist()]
        if [(line.seq, line.op_name) for line in lines] != operators:
            return []
        # In the columns these lines follow each other: a gap between two lines of one operator would be lost.
        pairs = zip(operators, operators[1:], np.diff(numbers).tolist())
        return [] if any(first == second and distance > 1 for first, second, distance in pairs) else lines

    @property
    def is_over(self) -> bool:
        """True if nothing follows the lines that were read."""
        if self.end >= self._size:
            return True
        self._file.seek(self.end)
        return not self._file.read(1)


def _with_rows(frame: polars.DataFrame, rows: polars.DataFrame, numbers: Sequence[int]) -> polars.DataFrame:
    """Return the table with other rows in place of those with these numbers."""
    import polars as pl

    order = np.arange(frame.height, dtype=np.uint32)
    order[list(numbers)] = np.arange(frame.height, frame.height + rows.height, dtype=np.uint32)
    return pl.concat([frame, rows])[pl.Series(order)]


class StepTemplates:
    """The templates of the steps of a dump that were read so far, the last used one first."""

    def __init__(self, match_lines: MatchLines) -> None:
        self._match_lines = match_lines
        self._templates: list[StepTemplate] = []
        self._decoded: Optional[StepText] = None
        #: A template of the first lines of `_decoded`, made once they are compared with a later step.
        self._head: Optional[StepTemplate] = None

    def keep(self, text: StepText) -> None:
        """Keep lines that were decoded: a later step may repeat them."""
        self._decoded = text if text.lines >= _HEAD else None
        self._head = None

    def read(self, index: StepIndex) -> Prefix:
        """Read the beginning of an index as far as it repeats earlier steps."""
        frames: list[polars.DataFrame] = []
        end, is_over = 0, False
        if not self._templates and self._decoded is None:
            return Prefix(frames)
        try:
            with open_index(index.path) as file:
                reader = _Reader(index, file, self._match_lines)
                while not is_over:
                    frame = self._next(reader)
                    if frame is None:
                        break
                    frames.append(frame)
                    end = reader.end
                    is_over = reader.is_over
        except OSError as error:  # it is reported by whoever reads the rest
            log.debug("%s: %s", index.path, error)
        return Prefix(frames, sum(frame.height for frame in frames), end, is_over)

    def _next(self, reader: _Reader) -> Optional[polars.DataFrame]:
        frame = self._repeated(reader)
        if frame is None and self._decoded is not None:
            if self._head is None:
                self._head = self._decoded.template(_HEAD)
            if self._head is not None and reader.fits(self._head):
                template = self._decoded.template()
                self._decoded = self._head = None
                if template is not None:
                    self._add(template)
                    frame = self._repeated(reader)
        return frame

    def _repeated(self, reader: _Reader) -> Optional[polars.DataFrame]:
        """Return the rows of the lines that repeat a template; None if there is none."""
        for template in self._templates:
            frame = reader.frame(template)
            if frame is not None:
                self._templates.remove(template)
                self._templates.insert(0, template)
                return frame
        return None

    def _add(self, template: StepTemplate) -> None:
        self._templates.insert(0, template)
        while len(self._templates) > _MOST_TEMPLATES or sum(each.size for each in self._templates) > _MOST_TEXT:
            self._templates.pop()


@functools.cache
def powers() -> np.ndarray:
    from ascend_dump.reading.dialects.host._decimal_kernel import powers_of_five

    return powers_of_five()


def repeated_steps() -> Optional[StepTemplates]:
    """Return an object that reads repeated steps; None if numba is not installed or does not work."""
    try:
        with loading():
            from ascend_dump.reading.dialects.host._line_kernel import match_lines
        with compiling():
            announce_compiling(match_lines, "reading")
            return StepTemplates(match_lines)
    except Exception as error:  # a broken installation raises anything
        log.debug("numba cannot read repeated steps: %s: %s", type(error).__name__, error)
        return None
