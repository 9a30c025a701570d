"""The two files that describe a graph, which MindSpore writes beside a dump: the text `.ir` and the protobuf `.pb`.

The text has only the lines that tools read, as MindSpore 2.10.0 writes them: the operators with their inputs, full
names and lines of the program. Operators without a kernel (Load, Depend, MakeTuple) are left out.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ascend_dump.fakes.mindspore._types import Parameter, Tensor, dtype_of

if TYPE_CHECKING:
    from ascend_dump.fakes.mindspore._graph import CompiledGraph, ExecutedOperator, ProgramLine, Tape

    _Array = np.ndarray[Any, Any]

__all__ = ["arguments", "protobuf", "text"]


def arguments(node: ExecutedOperator) -> Mapping[str, Any]:
    """Return the attributes of an operator, by the names that MindSpore gives them."""
    if node.op_type in ("MatMul", "BatchMatMul"):
        return {"transpose_a": bool(node.before[2]), "transpose_b": bool(node.before[3])}
    return node.attrs


def text(graph: CompiledGraph, tape: Tape) -> str:
    """Return the content of `ms_output_trace_code_graph_{id}.ir`. tape: the first run of the graph."""
    entry = f"kernel_graph{graph.number}"
    names, header = _parameters(tape)
    lines = [f"# IR entry: @{entry}", "# Total subgraphs: 1", "", "# Attrs:", "enable_zero_copy_in_graph: 1", ""]
    lines += [f"# Total params: {len(header)}", "# Params:", *header, "", f"subgraph @{entry}() {{"]
    for number, (node, full_name) in enumerate(zip(tape.nodes, graph.shown)):
        inputs = ", ".join(_input(value, names) for value in node.inputs)
        attrs = ", ".join(f"{key}: {value}" for key, value in arguments(node).items())
        inputs_before = [array for array in node.before if array is not None]
        before = ", ".join(_host(array) for array in inputs_before)
        after = ", ".join(_host(array) for array in node.results)
        lines += [
            f"  %{number}(CNode_{number}) = {node.op_type}({inputs}) primitive_attrs: {{{attrs}}}",
            f"      : ({before}) -> ({after})",
            f"      : ({', '.join(map(_device, inputs_before))}) -> ({', '.join(map(_device, node.results))})",
            f"      # Fullname with scope: ({full_name})",
            *(f"      {_where(line)}" for line in node.lines),
        ]
        names.update({id(output): f"%{number}" for output in node.outputs})
    return "\n".join([*lines, "}", ""])


def _parameters(tape: Tape) -> tuple[dict[int, str], list[str]]:
    """Return names of the graph's parameters and inputs by the id of the tensor, and the lines that declare them."""
    names: dict[int, str] = {}
    lines = []
    for tensor in [*tape.parameters(), *tape.inputs.values()]:
        if id(tensor) in names:
            continue
        inputs = (name for name, value in tape.inputs.items() if value is tensor)
        parameter_name = next(inputs, getattr(tensor, "name", ""))
        names[id(tensor)] = f"%para{len(names) + 1}_{parameter_name}"
        weight = isinstance(tensor, Parameter)
        kind = (
            f"<Ref[Tensor[{tensor.dtype}]], {_shape(tensor.array)}, ref_key={parameter_name}, is_parameter>"
            if weight
            else _host(tensor.array)
        )
        lines.append(f"{names[id(tensor)]}: {kind}  :  {_device(tensor.array)}  :  IsWeight: {str(weight).lower()}")
    return names, lines


def _input(value: Any, names: Mapping[int, str]) -> str:
    """Return an input as text: the name of a tensor, or the value or description of a constant; `()` for None."""
    if value is None:
        return "()"
    if id(value) in names:
        return names[id(value)]
    array = value.array if isinstance(value, Tensor) else value
    label = dtype_of(array).label
    return f"{label}({array.item()})" if array.ndim == 0 else f"Tensor(shape={list(array.shape)}, dtype={label})"


def _shape(array: _Array) -> str:
    return f"({', '.join(str(length) for length in array.shape)})"


def _host(array: _Array) -> str:
    """Return a tensor's type and shape as MindSpore describes them for the program."""
    label = dtype_of(array).label
    return f"<Tensor[{label}], {_shape(array)}>" if array.ndim else f"<{label}, NoShape>"


def _device(array: _Array) -> str:
    """Return a tensor's type and shape as MindSpore describes them for the device."""
    return f"<{dtype_of(array).label}xDefaultFormat[const vector]{{{_shape(array)[1:-1]}}}>"


def _where(line: ProgramLine) -> str:
    source = linecache.getline(line.file, line.number).rstrip()
    return f"# In file {line.file}:{line.number}, 0~{len(source)}/{source}/"


def protobuf(graph: CompiledGraph, tape: Tape) -> bytes:
    """Return the content of `ms_output_trace_code_graph_{id}.pb`.

    It has the inputs, name, type, scope and full name of each operator. With the numbers of the protobuf fields:
    ModelProto {1: version, 4: graph {1: operator {1: input {1: name}, 2: name, 3: type, 4: scope, 8: full name}}}
    """
    names, _ = _parameters(tape)
    names = {key: name.partition("_")[2] for key, name in names.items()}
    body = b""
    for number, (node, full_name) in enumerate(zip(tape.nodes, graph.shown), 1):
        inputs = b"".join(_field(1, _field(1, _input(value, names).encode())) for value in node.inputs)
        parts = ((2, str(number)), (3, node.op_type), (4, node.scope), (8, full_name))
        body += _field(1, inputs + b"".join(_field(field, part.encode()) for field, part in parts))
        names.update({id(output): str(number) for output in node.outputs})
    return b"\x08\x01" + _field(4, body)


def _field(number: int, data: bytes) -> bytes:
    """Return a protobuf field with bytes, a text or a message."""
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
