"""Read the arguments of the nodes of PyTorch's graph from torchair's Python text of a graph.

    ## FX Code: relu: torch.float32[5, 16]cpu = torch.ops.aten.relu.default(addmm: torch.float32[5, 16]cpu)

Source: torchair 2.13, `_ge_concrete_graph/fx2ge_converter.py` (`converter_context`). Nodes among the arguments are
followed by type, shape and device, nodes in lists are not; texts outside lists have no quotes. Ambiguous words are read
as texts. The text is parsed, not executed.
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
#: Longer texts contain constants, not arguments of operators.
_LONGEST = 1 << 20
_DEEPEST = 8


class FxValue(NamedTuple):
    """A node and its output. dtype, shape: None if the text does not have them; a symbolic size is None."""

    name: str
    dtype: Optional[str] = None
    shape: Optional[tuple[Optional[int], ...]] = None


class NotPlain(NamedTuple):
    """A word without quotes: a text, a device, or `torch.float32`, depending on the argument."""

    text: str


class FxNode(NamedTuple):
    """A node with a call.

    value      its name and output
    target     the called operator, such as `aten.addmm.default`
    args, kwargs  None, bool, int, float, str, FxValue, NotPlain, and lists of these; both None if the text is
               damaged or too long
    operators  operators of GE below the node, in order: made for it, or for a node without a line in the text
    """

    value: FxValue
    target: str
    args: Optional[list[Any]]
    kwargs: Optional[dict[str, Any]]
    operators: tuple[Node, ...]

    @property
    def item(self) -> Optional[tuple[FxValue, int]]:
        """The node and the index of `getitem` of a node with several outputs; else None."""
        args = self.args or []
        if self.target != _GETITEM or len(args) != 2 or not isinstance(args[0], FxValue) or type(args[1]) is not int:
            return None
        return args[0], args[1]

    @property
    def values(self) -> Iterator[FxValue]:
        """The nodes among the arguments."""
        stack: list[Any] = [*(self.args or ()), *(self.kwargs or {}).values()]
        while stack:
            argument = stack.pop()
            if isinstance(argument, list):
                stack += argument
            elif isinstance(argument, FxValue):
                yield argument


class FxGraph(NamedTuple):
    """nodes: by name, in the order of the graph. inputs: names of its inputs. returned: names of GE's outputs."""

    nodes: dict[str, FxNode]
    inputs: frozenset[str]
    returned: tuple[str, ...]


def read_fx_graph(path: Union[str, os.PathLike[str]]) -> FxGraph:
    """Read a graph. Raises as `read_torchair_graph`."""
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
        # A node with several outputs has no type, so it was read as a text.
        args[0] = FxValue(args[0].text)
    return FxNode(value, name, args, kwargs, ())


def _pieces(text: str) -> Iterator[str]:
    """Yield the texts between the commas outside brackets and quotes."""
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
