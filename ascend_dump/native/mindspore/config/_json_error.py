"""What MindSpore's JSON parser (nlohmann::json) says about bad syntax, where it is known to say it.

Recorded with MindSpore 2.10.0 for characters that begin no JSON at all, such as those of a comment.
"""

from __future__ import annotations

import json
import re

__all__ = ["syntax_error"]

#: What Python's parser expected -> what the other one was parsing, and what it expected there.
_CONTEXTS = {
    "Expecting value": ("value", ""),
    "Expecting property name enclosed in double quotes": ("object key", "; expected string literal"),
    "Expecting ':' delimiter": ("object separator", "; expected ':'"),
    "in object": ("object", "; expected '}'"),
    "in array": ("array", "; expected ']'"),
}
#: The parser remembers what it has read since the last of these began.
_REMEMBERED = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*')
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_BEGINS_A_TOKEN = set('{}[]:,"-0123456789tfn')


def syntax_error(text: str, error: json.JSONDecodeError) -> str:
    """The position and the reason. Where the real words are not known, the reason is Python's."""
    # Python names the place behind a comma or a value, the other parser the character that it cannot read.
    at = re.compile(r"[ \t\r\n]*").match(text, error.pos).end()  # type: ignore[union-attr]  # it matches nothing too
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    kind = error.msg
    if kind == "Expecting ',' delimiter":
        kind = f"in {_container(text[:at])}"
    if at >= len(text) or text[at] in _BEGINS_A_TOKEN or kind not in _CONTEXTS:
        return f"at line {error.lineno}, column {error.colno}: {error.msg}"
    context, expected = _CONTEXTS[kind]
    begins = [found.start() for found in _REMEMBERED.finditer(text, 0, at)]
    read = "".join(f"<U+{ord(one):04X}>" if one < " " else one for one in text[begins[-1] if begins else 0 : at + 1])
    return (
        f"at line {line}, column {column}: syntax error while parsing {context} - invalid literal; "
        f"last read: '{read}'{expected}"
    )


def _container(text: str) -> str:
    """What encloses the end of a text."""
    waiting: list[str] = []
    for found in _STRUCTURE.finditer(text):
        if found[0] in "[{":
            waiting.append(found[0])
        elif found[0] in "]}" and waiting:
            waiting.pop()
    return "array" if waiting and waiting[-1] == "[" else "object"
