"""Parse the text form of GE's graphs (`ge_proto_*.txt`) in one pass, operator by operator."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from typing import NamedTuple, Optional, Union

from ascend_dump.errors import CorruptDump

__all__ = ["GraphText", "Node", "OutputOrigin", "escape"]

_Path = Union[str, "os.PathLike[str]"]

_NO_TASK = b"_no_task"
_DUMPED_WITHOUT_TASK = b"_no_task_and_dump_needed"
_ORIGINAL_NAMES = b"_datadump_original_op_names"
_ORIGINAL_TYPE = b"original_type"
_WANTED = frozenset((_NO_TASK, _DUMPED_WITHOUT_TASK, _ORIGINAL_NAMES, _ORIGINAL_TYPE))

_ROOT, _GRAPH, _OP, _ATTR, _VALUE, _LIST = range(6)
#: The relevant messages inside each message; all others are skipped.
_OPENS = {
    (_ROOT, b"graph"): _GRAPH,
    (_GRAPH, b"op"): _OP,
    (_OP, b"attr"): _ATTR,
    (_ATTR, b"value"): _VALUE,
    (_VALUE, b"list"): _LIST,
}
#: The field with the description of an output, and its attributes about the origin of the output.
_OUTPUT = b"output_desc"
_ORIGIN = re.compile(
    rb'key\s*:\s*"(_datadump_origin_name|_datadump_origin_output_index|_fx_tensor_name)"\s*value\s*(?::\s*)?\{\s*'
    rb'(?:s\s*:\s*("(?:[^"\\]|\\.)*")|i\s*:\s*(\d{1,9}))'
)
_OPEN, _CLOSE = ord("{"), b"}"
_QUOTES = (ord('"'), ord("'"))
_UNCLOSED = (b'"', b"'")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[{}"\']|[^\s{}"\',;]+')
#: A line in compact form: it opens or closes a message and contains other text too.
_COMPACT = re.compile(rb'\n[^"\n{}]*(?:\{[^\n]|\}[^\n])|\n *[^ \n}][^\n]*\}\n')
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}

#: Maximum number of original operators kept for one fused operator; the rest of a longer list is dropped.
_MOST_VALUES = 100_000
#: Limits on `_skip_message`, so that a hostile file cannot make it slow: bytes searched for the end of one message, and
#: failed searches.
_LONGEST_JUMP = 1 << 20
_MOST_FAILED_JUMPS = 100
_CUT_OFF = "it ends inside a message: the file was cut off"


class OutputOrigin(NamedTuple):
    """The origin of an output, before GE changed the graph; "" and 0 if it is unknown.

    name, output  the operator's name, and the index of its output
    fx            names of the tensors in PyTorch's FX graph, `{node}.OUTPUT.{i}`; for a fused operator all in one text
    """

    name: str = ""
    output: int = 0
    fx: str = ""


_NO_ORIGIN = OutputOrigin()
_OF_OUTPUT = (b"_datadump_origin_name", b"_datadump_origin_output_index", b"_fx_tensor_name")


class Node(NamedTuple):
    """One operator of a graph.

    name            the name as used in `layers=`
    inputs          `source:output`, as in the file
    graph           name of the graph it belongs to: subgraphs follow the main graph in the file
    original_names  names of the operators that GE fused into this one; `layers=` takes them too
    original_type   the framework's type of an operator that GE wraps (FrameworkOp)
    no_task         True if GE sends no device task for this operator
    dumped_without_task  True if it is dumped nevertheless
    origins         the origins of the outputs; empty if none is known
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    graph: str
    id: int = 0
    stream_id: int = 0
    original_names: tuple[str, ...] = ()
    original_type: str = ""
    no_task: bool = False
    dumped_without_task: bool = False
    origins: tuple[OutputOrigin, ...] = ()


class GraphText:
    """A parser that reads the text once, line by line.

    A line usually contains one field, or opens or closes one message.
    """

    def __init__(self, path: _Path, data: mmap.mmap) -> None:
        self.path = path
        self.graph = ""
        self._data = data
        self._failed_jumps = 0

    def nodes(self, *, until_named: bool = False) -> Iterator[Node]:
        """Yield the operators of the file in order.

        until_named: yield nothing, but set `self.graph`: stop at the first name of a graph, or at the first operator.
        """
        state, graph, attr, indent = _ROOT, "", b"", 0
        fields: dict[bytes, list[bytes]] = {}
        outputs: list[OutputOrigin] = []
        pieces = self._pieces()
        for line, text, piece in pieces:
            if piece == _CLOSE:
                if state == _OP:
                    yield _node(fields, graph, outputs)
                elif state == _ROOT:
                    raise self._corrupt("unbalanced closing brace")
                state -= 1  # states are numbered by nesting
            elif piece[-1] == _OPEN:
                opened = _OPENS.get((state, piece[:-1].rstrip(b" :\t")))
                if opened is None or (opened == _VALUE and attr not in _WANTED):
                    is_output = state == _OP and piece.startswith(_OUTPUT)
                    message = self._message(pieces, _indent(line) if piece is text else None, is_read=is_output)
                    if is_output:
                        outputs.append(_origin(message))
                    continue
                state = opened
                if state == _GRAPH:
                    graph = ""
                elif state == _OP:
                    if until_named:
                        return
                    fields, outputs = {}, []
                elif state == _ATTR:
                    attr, indent = b"", _indent(line)
            else:
                key, _, value = piece.partition(b":")
                if state == _OP:
                    fields.setdefault(key, []).append(value)
                elif state == _ATTR:
                    attr = _unquote(value) if key == b"key" else attr
                    if attr not in _WANTED and piece is text and self._skip_message(indent):
                        state = _OP
                elif state in (_VALUE, _LIST):
                    if key in (b"s", b"b") and len(fields.setdefault(attr, [])) < _MOST_VALUES:
                        fields[attr].append(value)
                elif state == _GRAPH and key == b"name":
                    graph = _text(value)
                    self.graph = self.graph or graph
                    if until_named:
                        return
                elif state == _ROOT and not _is_field(key):
                    raise self._corrupt("its text is not that of a GE graph")
        if state != _ROOT:
            raise self._corrupt(_CUT_OFF)

    def _pieces(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield (line, line without white space at its ends, piece) for each piece: a brace or a field."""
        for line in iter(self._data.readline, b""):
            text = line.strip()
            if text:
                for piece in (text,) if _is_simple(text) else self._split(text):
                    yield line, text, piece

    def _message(self, pieces: Iterator[tuple[bytes, bytes, bytes]], indent: Optional[int], *, is_read: bool) -> bytes:
        """Skip the rest of the message that was opened last. Return its text if `is_read`, else b"".

        indent: the indent of its first line; None if that line has other pieces too
        """
        start = self._data.tell()
        if indent is not None and self._skip_message(indent):
            return self._data[start : self._data.tell()] if is_read else b""
        content: list[bytes] = []
        depth = 1
        for line, text, piece in pieces:
            if is_read:
                content.append(piece)
            if piece == _CLOSE:
                depth -= 1
                if not depth:
                    return b" ".join(content)
            elif piece[-1] == _OPEN and (is_read or piece is not text or not self._skip_message(_indent(line))):
                depth += 1
        raise self._corrupt(_CUT_OFF)

    def _skip_message(self, indent: int) -> bool:
        """Skip the rest of the current message, whose first line has this indent.

        Return False, and skip nothing, if its end cannot be found with certainty.

        Most messages of a file are not needed. In text that protobuf wrote, a message ends at the next brace with the
        indent of its first line; the lines that are skipped are checked to have that form.
        """
        if self._failed_jumps > _MOST_FAILED_JUMPS:
            return False
        start = self._data.tell()
        end = b"\n" + b" " * indent + b"}\n"
        brace = self._data.find(end, start - 1, start + _LONGEST_JUMP)
        if brace >= 0 and _are_whole_messages(self._data[start - 1 : brace + 1], indent):
            self._data.seek(brace + len(end))
            return True
        self._failed_jumps += 1
        return False

    def _split(self, text: bytes) -> Iterator[bytes]:
        """Split a line with several fields or braces into pieces: `attr { key: "a" value { b: true } }`."""
        if text.startswith(b"#"):
            return
        name = b""
        for match in _TOKEN.finditer(text):
            token = match[0]
            if token == b"{":
                yield name + token
                name = b""
            elif token == _CLOSE:
                if name:
                    raise self._corrupt("field without a value")
                yield token
            elif token in _UNCLOSED:
                raise self._corrupt("unterminated string")
            elif name.endswith(b":") or (name and token[0] in _QUOTES):
                yield name + token
                name = b""
            elif name:
                raise self._corrupt("field without a value")
            elif b":" in token[:-1]:
                yield token
            else:
                name = token
        if name:
            raise self._corrupt("field without a value")

    def _corrupt(self, reason: str) -> CorruptDump:
        return CorruptDump(
            f"not a valid GE graph: {reason}",
            path=self.path,
            offset=self._data.tell(),
            hint="give a ge_proto_*.txt file",
        )


def _are_whole_messages(lines: bytes, indent: int) -> bool:
    """Return True if these lines are complete messages in protobuf's layout.

    That is one brace or one field per line, all with a larger indent than `indent`.
    """
    opened, closed = lines.count(b"{\n"), lines.count(b"}\n")
    if opened != closed or lines.count(b"\n" + b" " * (indent + 1)) != lines.count(b"\n") - 1:
        return False
    # Other braces are allowed only inside strings.
    return (lines.count(b"{") == opened and lines.count(b"}") == closed) or _COMPACT.search(lines) is None


def _indent(line: bytes) -> int:
    return len(line) - len(line.lstrip(b" "))


def _origin(output: bytes) -> OutputOrigin:
    """Return the origin of an output, from the text of its description."""
    if b"_origin_" not in output and b"_fx_" not in output:
        return _NO_ORIGIN
    fields = {name: text or number for name, text, number in _ORIGIN.findall(output)}
    name, output, fx = (fields.get(key, b"") for key in _OF_OUTPUT)
    return OutputOrigin(_text(name), int(output) if output.isdigit() else 0, _text(fx))


def _node(fields: dict[bytes, list[bytes]], graph: str, outputs: list[OutputOrigin]) -> Node:
    def texts(key: bytes) -> tuple[str, ...]:
        return tuple(map(_text, fields.get(key, ())))

    def number(key: bytes) -> int:
        value = fields.get(key, [b"0"])[-1].strip()
        return int(value) if len(value) < 20 and value.lstrip(b"-").isdigit() else 0

    def true(key: bytes) -> bool:
        return [value.strip() for value in fields.get(key, ())][-1:] in ([b"true"], [b"1"])

    return Node(
        "".join(texts(b"name")[-1:]),
        "".join(texts(b"type")[-1:]),
        texts(b"input"),
        graph,
        number(b"id"),
        number(b"stream_id"),
        texts(_ORIGINAL_NAMES),
        "".join(texts(_ORIGINAL_TYPE)[-1:]),
        true(_NO_TASK),
        true(_DUMPED_WITHOUT_TASK),
        tuple(outputs) if any(origin != _NO_ORIGIN for origin in outputs) else (),
    )


def _is_simple(text: bytes) -> bool:
    """Return True if a line certainly is a single piece: the beginning or end of a message, or one field."""
    last = text[-1]
    if last in _QUOTES:
        return text.count(b'"') == 2 and b": " in text[: text.find(b'"') + 1] and text.count(b"'") == 0
    if last == _OPEN:
        return text.count(b" ") <= 1 and text.count(b"{") == 1 and b'"' not in text and b"}" not in text
    return text == _CLOSE or (text.count(b" ") == 1 and b": " in text and b"{" not in text and b"}" not in text)


def _is_field(key: bytes) -> bool:
    return key.replace(b"_", b"").isalnum()


def _text(value: bytes) -> str:
    return _unquote(value).decode("utf-8", "backslashreplace")


def _unquote(value: bytes) -> bytes:
    value = value.strip()
    if len(value) >= 2 and value[0] in _QUOTES:
        value = value[1:-1]
    return _ESCAPE.sub(_unescape, value) if b"\\" in value else value


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if code[:1].isdigit():
        return bytes([int(code, 8) & 0xFF])
    if code[:1] in (b"x", b"X") and len(code) > 1:
        return bytes([int(code[1:], 16)])
    return _ESCAPED.get(code, code)


def escape(name: str) -> bytes:
    """Escape a name as protobuf's text format does.

    Quotes and backslashes get a backslash, bytes outside of printable ASCII become octal.
    """
    out = b""
    for byte in name.encode("utf-8", "backslashreplace"):
        char = bytes([byte])
        out += b"\\" + char if char in b"\"'\\" else char if 0x20 <= byte < 0x7F else b"\\%03o" % byte
    return out
