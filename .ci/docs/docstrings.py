"""Our docstrings as reStructuredText.

They are plain text for `help()`: paragraphs, code in backticks, doctests, indented code, and lists whose names stand in
one column and whose text stands in another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["to_rest"]

_ROW = re.compile(r"(\S+(?: \S+)*?)  +(?=\S)")


def to_rest(lines: list[str]) -> list[str]:
    """The same text in reStructuredText, line by line.

    >>> to_rest(["Sums up `x*`.", "", "axis  along which", "      it goes", "keep  *args"])
    ['Sums up ``x*``.', '', '``axis``', '    along which', '    it goes', '``keep``', '    \\\\*args', '']
    """
    out: list[str] = []
    for paragraph in _paragraphs(lines):
        out += [*_block(paragraph), ""]
    return out


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    for text in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        if text.strip():
            yield text.split("\n")


def _block(lines: list[str]) -> list[str]:
    if lines[0].startswith(">>>"):
        return lines
    if all(line.startswith(" ") for line in lines):
        return [".. code-block:: python", "", *lines]
    rows = [match.end() for match in map(_ROW.match, lines) if match]
    indented = [len(line) - len(line.lstrip()) for line in lines if line.startswith(" ")]
    if not rows or (len(rows) == 1 and not indented and len(lines) > 1):
        return _prose(lines)
    return list(_rows(lines, max(set(rows), key=rows.count)))


def _rows(lines: list[str], column: int) -> Iterator[str]:
    """A definition list; column: where most texts begin."""
    for line in lines:
        match = _ROW.match(line)
        if line.startswith(" "):
            yield f"    {_escaped(line.strip())}"
        elif line[column - 1 : column] == " " and len(line) > column:
            yield from (f"``{line[:column].strip()}``", f"    {_escaped(line[column:].strip())}")
        elif match:
            yield from (f"``{match[1]}``", f"    {_escaped(line[match.end() :])}")
        else:
            yield _escaped(line)


def _prose(lines: list[str]) -> list[str]:
    # Lines of a bullet list are continued under its text.
    return [_escaped(line if lines[0].startswith("- ") else line.strip()) for line in lines]


def _escaped(text: str) -> str:
    """Nothing but backticks has a meaning in our docstrings."""
    parts = re.split(r"(`[^`]+`)", text)
    plain = [re.sub(r"([\\*|`]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
    code = [f"``{part[1:-1]}``" for part in parts[1::2]]
    # A letter right after a literal would not end it.
    return "".join(f"{before}{after}" for before, after in zip(plain, [*code, ""])).replace("``s ", "``\\s ")
