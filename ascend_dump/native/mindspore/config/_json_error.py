"""Create the messages that MindSpore's JSON parser (nlohmann::json) has for wrong syntax, as far as they are known.

They were recorded with MindSpore 2.10.0, for characters that cannot begin a JSON token, such as those of a comment.
"""

from __future__ import annotations

import json
import re

__all__ = ["syntax_error"]

#: By the error of Python's parser: the context, and the rest of the message, in the words of nlohmann's parser.
_CONTEXTS = {
    "Expecting value": ("value", ""),
    "Expecting property name enclosed in double quotes": ("object key", "; expected string literal"),
    "Expecting ':' delimiter": ("object separator", "; expected ':'"),
    "in object": ("object", "; expected '}'"),
    "in array": ("array", "; expected ']'"),
}
#: Strings and numbers: nlohmann's parser shows the text from the last of them on.
_REMEMBERED = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*')
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_BEGINS_A_TOKEN = set('{}[]:,"-0123456789tfn')


def syntax_error(text: str, error: json.JSONDecodeError) -> str:
    """Return the position and the reason of an error. If nlohmann's message is unknown, use the words of Python.

    text: the JSON text. error: the error that Python's parser raised for it
    """
    # nlohmann's parser reports the position of the unexpected character, Python the position of white space before it.
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
    """Return "array" or "object": the innermost one that is still open at the end of a text."""
    waiting: list[str] = []
    for bracket in _STRUCTURE.finditer(text):
        if bracket[0] in "[{":
            waiting.append(bracket[0])
        elif bracket[0] in "]}" and waiting:
            waiting.pop()
    return "array" if waiting and waiting[-1] == "[" else "object"
