"""Read the nodes of PyTorch's FX graph, with their arguments, from torchair's graph file, which is Python text.

    ## FX Code: relu: torch.float32[5, 16]cpu = torch.ops.aten.relu.default(addmm: torch.float32[5, 16]cpu)

Source: torchair 2.13, `_ge_concrete_graph/fx2ge_converter.py` (`converter_context`). A node among the arguments is
followed by its type, shape and device, unless it is in a list. A text has no quotes, unless it is in a list. A word
that may be a node or a text is read as a text. The file is parsed, not executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional, Union

from ascend_dump.native.cann.graph import Node
from ascend_dump.native.torchair.graph import read_torchair_graph

__all__ = ["FxGraph", "FxNode", "FxValue", "NotPlain", "read_fx_graph"]

_NODE = re.compile(r"(\w+)(?:: (.*))?", re.ASCII | re.DOTALL)
_TENSOR = re.compile(r"torch\.(\w+)\[([\w\s,*+/()-]*)\]\S*", re.ASCII)
_KEYWORD = re.compile(r"(\w+)=(?!=)", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:inf|nan|(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?)", re.ASCII)
_WORDS = {"None": None, "True": True, "False": False}
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_GETITEM = "operator.getitem"
#: Maximum length of the arguments of a node in characters; longer ones contain large constants.
_LONGEST = 1 << 20
_DEEPEST = 8


class FxValue(NamedTuple):
    """A node as a value. dtype, shape: of the node's output; None if the text lacks them. A symbolic length is None."""

    name: str
    dtype: Optional[str] = None
    shape: Optional[tuple[Optional[int], ...]] = None


class NotPlain(NamedTuple):
    """A word without quotes. Depending on the argument it is a text, a device, or a dtype such as `torch.float32`."""

    text: str


class FxNode(NamedTuple):
    """A node of the FX graph that calls an operator.

    value      its name and output
    target     the called operator, such as `aten.addmm.default`
    args, kwargs  the arguments: None, bool, int, float, str, FxValue, NotPlain, and lists of these. Both are None if
               the text is damaged or too long
    operators  the operators of GE in the lines below the node, in order. They were made for this node, or for a later
               node that has no line in the text
    """

    value: FxValue
    target: str
    args: Optional[list[Any]]
    kwargs: Optional[dict[str, Any]]
    operators: tuple[Node, ...]

    @property
    def item(self) -> Optional[tuple[FxValue, int]]:
        """For a `getitem` of a node with several outputs: this node and the index of the output; else None."""
        args = self.args or []
        if self.target != _GETITEM or len(args) != 2 or not isinstance(args[0], FxValue) or type(args[1]) is not int:
            return None
        return args[0], args[1]

    @property
    def values(self) -> Iterator[FxValue]:
        """All nodes among the arguments, also in lists."""
        stack: list[Any] = [*(self.args or ()), *(self.kwargs or {}).values()]
        while stack:
            argument = stack.pop()
            if isinstance(argument, list):
                stack += argument
            elif isinstance(argument, FxValue):
                yield argument


class FxGraph(NamedTuple):
    """An FX graph.

    nodes     the nodes by name, in the order of the graph
    inputs    the names of the graph's inputs
    returned  the names of the operators of GE whose outputs the graph returns
    """

    nodes: dict[str, FxNode]
    inputs: frozenset[str]
    returned: tuple[str, ...]


def read_fx_graph(path: Union[str, os.PathLike[str]]) -> FxGraph:
    """Read the FX graph in a graph file. Raises as `read_torchair_graph`."""
    nodes: dict[str, FxNode] = {}
    operators: dict[str, list[Node]] = {}
    inputs: set[str] = set()
    returned: tuple[str, ...] = ()
    name, code = "", ""
    for line in read_torchair_graph(path):
        if line.node.type == "Data":
            inputs.add(line.node.name)
        elif line.node.type == "NetOutput":
            returned = line.node.inputs
        elif line.code:
            if line.code != code:
                node, code = _node(line.code), line.code
                name = node.value.name
                nodes[name], operators[name] = node, []
            if line.node.type and not line.to_input:
                operators[name].append(line.node)
    nodes = {name: node._replace(operators=tuple(operators[name])) for name, node in nodes.items()}
    return FxGraph(nodes, frozenset(inputs), returned)


def _node(code: str) -> FxNode:
    result, _, right = code.partition(" = ")
    target, _, arguments = right.partition("(")
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    value = FxValue(result.partition(":")[0])
    name = target.removeprefix("torch.ops.")
    try:
        value = _of_node(result) or value
        if len(arguments) > _LONGEST or not arguments.endswith(")"):
            raise ValueError("no call")
        for piece in _pieces(arguments[:-1]):
            keyword = _KEYWORD.match(piece)
            if keyword is not None:
                kwargs[keyword[1]] = _value(piece[keyword.end() :])
            else:
                args.append(_value(piece))
    except ValueError:
        return FxNode(value, name, None, None, ())
    if name == _GETITEM and args and isinstance(args[0], NotPlain):
        # A node with several outputs has no type in the text, so it was read as a word.
        args[0] = FxValue(args[0].text)
    return FxNode(value, name, args, kwargs, ())


def _pieces(text: str) -> Iterator[str]:
    """Yield the parts of a text between commas, without commas inside brackets or quotes. Raises ValueError."""
    begin, closing, quote = 0, [], ""
    for position, sign in enumerate(text):
        if quote:
            if sign == quote and text[position - 1] != "\\":
                quote = ""
        elif sign in "\"'":
            quote = sign
        elif sign in _BRACKETS:
            closing.append(_BRACKETS[sign])
        elif sign in ")]}":
            if not closing or closing.pop() != sign:
                raise ValueError(f"{sign} closes nothing")
        elif sign == "," and not closing:
            yield text[begin:position].strip()
            begin = position + 1
    if closing or quote:
        raise ValueError("something is not closed")
    if text[begin:].strip():
        yield text[begin:].strip()


def _value(text: str, depth: int = 0) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER.fullmatch(text):
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    if len(text) > 1 and (text[0], text[-1]) in (("[", "]"), ("(", ")")):
        if depth >= _DEEPEST:
            raise ValueError("lists are nested too deeply")
        return [_in_list(piece, depth) for piece in _pieces(text[1:-1])]
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return (_of_node(text) if ": " in text else None) or NotPlain(text)


def _in_list(text: str, depth: int) -> Any:
    item = _value(text, depth + 1)
    is_name = isinstance(item, NotPlain) and text.isidentifier()
    return FxValue(text) if is_name else item


def _of_node(text: str) -> Optional[FxValue]:
    """Return the node that a text describes; None if it is not a node."""
    named = _NODE.fullmatch(text)
    if named is None:
        return None
    tensor = _TENSOR.fullmatch(named[2] or "")
    if tensor is None:
        return FxValue(named[1])
    sizes = [size.strip() for size in tensor[2].split(",") if size.strip()]
    return FxValue(named[1], tensor[1], tuple(int(size) if size.isdigit() else None for size in sizes))
