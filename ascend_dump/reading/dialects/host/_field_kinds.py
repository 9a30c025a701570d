"""The kinds of fields whose values differ between a step and its repetition, as numbers for a compiled function."""

from __future__ import annotations

#: `Line.time`; an integer; an integer of at least 0; five digits.
TIME, INTEGER, NATURAL, DIGITS = range(4)
#: `Line.hash`; a statistic that is a float; one that is a count, or null; the number of elements.
HASH, NUMBER, COUNT, ELEMENTS = range(4, 8)
#: Values in `Line.call` that are no columns of a catalog: a float, a hash, an integer of at least 0.
SKIPPED_FLOAT, SKIPPED_HASH, SKIPPED_INTEGER = range(8, 11)
