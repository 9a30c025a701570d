"""Write a graph as Python text, as torchair does for `debug.graph_dump.type = "py"`.

The text has a paragraph for each FX node: its source line, the node, and its GE operators. torchair 2.13 writes the
graph before and after its optimisation, as dynamo_original_… and dynamo_optimized_…; here both files are the same.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ascend_dump import NotSupported
from ascend_dump.fakes.torchair._lowering import Constant, Inner, LoweredOp

if TYPE_CHECKING:
    from ascend_dump.fakes.torchair._config import CompilerConfig

__all__ = ["write_graph"]

_HEAD = """# -*- coding: utf-8 -*-
from torch import tensor
from torchair._ge_concrete_graph import ge_apis as ge
from torchair.ge._ge_graph import get_default_ge_graph
"""


def write_graph(
    config: CompilerConfig, name: str, nodes: Sequence[Any], plans: Mapping[Any, Sequence[LoweredOp]]
) -> None:
    """Write the text of a graph if `debug.graph_dump` is set. Raises NotSupported for other types than "py".

    name: name of the graph. plans: the GE operators of each FX node.
    """
    graph_dump = config.debug.graph_dump
    if not graph_dump.enabled:
        return
    if graph_dump.type.value != "py":
        raise NotSupported(
            f"the fake torchair writes no graph as {graph_dump.type.value}", hint='set debug.graph_dump.type = "py"'
        )
    text = "\n".join([_HEAD, *_lines(nodes, plans)]) + "\n"
    for kind in ("original", "optimized"):
        with open(str(graph_dump.full_path(f"dynamo_{kind}_{name}")), "w", encoding="utf-8") as file:
            file.write(text)


def _lines(nodes: Sequence[Any], plans: Mapping[Any, Sequence[LoweredOp]]) -> Iterator[str]:
    inputs = [node for node in nodes if node.op == "placeholder"]
    for index, node in enumerate(inputs):
        shape = list(getattr(node.meta.get("val"), "shape", ()))
        yield f'{node.name}_0 = ge.Data(index={index}, shape={shape}, placement="CPU", node_name="{node.name}")'
    previous = ""
    for node in nodes:
        if node.op != "call_function":
            continue
        location = (node.stack_trace or "").split("File ")[-1].replace("\n", "")
        if location and location != previous:
            yield f"\n# File {location}"
        previous = location
        arguments = [
            *map(_formatted, node.args),
            *(f"{name}={_formatted(value)}" for name, value in node.kwargs.items()),
        ]
        yield f"## FX Code: {_formatted(node)} = {node._pretty_print_target(node.target)}({', '.join(arguments)})"
        ops = plans.get(node) or ()
        results = node.meta.get("val")
        for op in ops:
            operands = ", ".join(_operand(operand, ops, plans) for operand in op.inputs)
            if op is ops[-1] and isinstance(results, (tuple, list)):
                # For an operator with several outputs, torchair writes the names of the outputs, and no node_name.
                outputs = ", ".join(f"{op.name}_{index}" for index in range(len(results)))
                yield f"{outputs} = ge.{op.type}({operands})"
            else:
                yield f'{op.name}_0 = ge.{op.type}({operands}, node_name="{op.name}")'
    returned_nodes: Sequence[Any] = next((node.args[0] for node in nodes if node.op == "output"), ())
    returned = [_operand(operand, (), plans) for operand in returned_nodes if hasattr(operand, "name")]
    yield f"\n_ = ge.NetOutput([{', '.join(returned)}], dependencies=[])"


def _formatted(value: Any) -> str:
    """Return an argument as text; for an FX node with the type, shape and device of its output."""
    tensor = getattr(value, "meta", {}).get("val")
    if tensor is None or not hasattr(tensor, "shape"):
        return str(value)
    return f"{value.name}: {tensor.dtype}[{', '.join(map(str, tensor.shape))}]{tensor.device}"


def _operand(operand: Any, siblings: Sequence[LoweredOp], plans: Mapping[Any, Sequence[LoweredOp]]) -> str:
    if isinstance(operand, Inner):
        return f"{siblings[operand.number].name}_0"
    if isinstance(operand, Constant):
        return f"ge.Const({operand.values})"
    ops, output = plans.get(operand), 0
    if not ops and getattr(operand, "target", None) is operator.getitem:
        ops, output = plans.get(operand.args[0]), operand.args[1]
    return f"{ops[-1].name}_{output}" if ops else f"{operand.name}_0"
