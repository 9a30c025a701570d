"""The messages of MindSpore's JSON parser (nlohmann::json) about wrong syntax, as far as they are known.

Recorded with MindSpore 2.10.0 for characters that cannot begin a JSON value, such as those of a comment.
"""

from __future__ import annotations

import json
import re

__all__ = ["syntax_error"]

#: The context and the expectation of nlohmann's parser, by the expectation of Python's parser.
_CONTEXTS = {
    "Expecting value": ("value", ""),
    "Expecting property name enclosed in double quotes": ("object key", "; expected string literal"),
    "Expecting ':' delimiter": ("object separator", "; expected ':'"),
    "in object": ("object", "; expected '}'"),
    "in array": ("array", "; expected ']'"),
}
#: nlohmann's parser shows the text from the last of these characters on.
_REMEMBERED = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*')
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_BEGINS_A_TOKEN = set('{}[]:,"-0123456789tfn')


def syntax_error(text: str, error: json.JSONDecodeError) -> str:
    """Return the position and the reason, in Python's words if the words of nlohmann's parser are unknown."""
    # Python reports the position after a comma or a value, nlohmann's parser that of the unexpected character.
    position = re.compile(r"[ \t\r\n]*").match(text, error.pos).end()  # type: ignore[union-attr]  # it matches nothing too
    line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
    kind = error.msg
    if kind == "Expecting ',' delimiter":
        kind = f"in {_container(text[:position])}"
    if position >= len(text) or text[position] in _BEGINS_A_TOKEN or kind not in _CONTEXTS:
        return f"at line {error.lineno}, column {error.colno}: {error.msg}"
    context, expected = _CONTEXTS[kind]
    begins = [match.start() for match in _REMEMBERED.finditer(text, 0, position)]
    read = "".join(
        f"<U+{ord(character):04X}>" if character < " " else character
        for character in text[begins[-1] if begins else 0 : position + 1]
    )
    return (
        f"at line {line}, column {column}: syntax error while parsing {context} - invalid literal; "
        f"last read: '{read}'{expected}"
    )


def _container(text: str) -> str:
    """Return True if the end of a text is inside an object or an array."""
    waiting: list[str] = []
    for bracket in _STRUCTURE.finditer(text):
        if bracket[0] in "[{":
            waiting.append(bracket[0])
        elif bracket[0] in "]}" and waiting:
            waiting.pop()
    return "array" if waiting and waiting[-1] == "[" else "object"
