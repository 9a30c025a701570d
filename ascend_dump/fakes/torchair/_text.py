"""torchair's graph dump as Python text: FX node, source line and GE operators, one below the other.

Source: torchair 2.13, debug.graph_dump type "py" (files dynamo_original_… and dynamo_optimized_…, which are the same
here).
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
    """Write the graph where `debug.graph_dump` asks for it. Raises NotSupported for its other types."""
    wanted = config.debug.graph_dump
    if not wanted.enabled:
        return
    if wanted.type.value != "py":
        raise NotSupported(f"the fake torchair writes no graph as {wanted.type.value}", hint="use the type py")
    text = "\n".join([_HEAD, *_lines(nodes, plans)]) + "\n"
    for kind in ("original", "optimized"):
        with open(str(wanted.full_path(f"dynamo_{kind}_{name}")), "w", encoding="utf-8") as file:
            file.write(text)


def _lines(nodes: Sequence[Any], plans: Mapping[Any, Sequence[LoweredOp]]) -> Iterator[str]:
    inputs = [node for node in nodes if node.op == "placeholder"]
    for index, node in enumerate(inputs):
        shape = list(getattr(node.meta.get("val"), "shape", ()))
        yield f'{node.name}_0 = ge.Data(index={index}, shape={shape}, placement="CPU", node_name="{node.name}")'
    before = ""
    for node in nodes:
        if node.op != "call_function":
            continue
        place = (node.stack_trace or "").split("File ")[-1].replace("\n", "")
        if place and place != before:
            yield f"\n# File {place}"
        before = place
        arguments = [*map(_formatted, node.args), *(f"{name}={_formatted(one)}" for name, one in node.kwargs.items())]
        yield f"## FX Code: {_formatted(node)} = {node._pretty_print_target(node.target)}({', '.join(arguments)})"
        ops = plans.get(node) or ()
        made = node.meta.get("val")
        for op in ops:
            operands = ", ".join(_operand(each, ops, plans) for each in op.inputs)
            if op is ops[-1] and isinstance(made, (tuple, list)):
                # The real one names an operator by its outputs then.
                outputs = ", ".join(f"{op.name}_{index}" for index in range(len(made)))
                yield f"{outputs} = ge.{op.type}({operands})"
            else:
                yield f'{op.name}_0 = ge.{op.type}({operands}, node_name="{op.name}")'
    given: Sequence[Any] = next((node.args[0] for node in nodes if node.op == "output"), ())
    returned = [_operand(each, (), plans) for each in given if hasattr(each, "name")]
    yield f"\n_ = ge.NetOutput([{', '.join(returned)}], dependencies=[])"


def _formatted(given: Any) -> str:
    """A node with the type, the shape and the device of what it gives; another argument as it is."""
    made = getattr(given, "meta", {}).get("val")
    if made is None or not hasattr(made, "shape"):
        return str(given)
    return f"{given.name}: {made.dtype}[{', '.join(map(str, made.shape))}]{made.device}"


def _operand(each: Any, siblings: Sequence[LoweredOp], plans: Mapping[Any, Sequence[LoweredOp]]) -> str:
    if isinstance(each, Inner):
        return f"{siblings[each.place].name}_0"
    if isinstance(each, Constant):
        return f"ge.Const({each.values})"
    ops, output = plans.get(each), 0
    if not ops and getattr(each, "target", None) is operator.getitem:
        ops, output = plans.get(each.args[0]), each.args[1]
    return f"{ops[-1].name}_{output}" if ops else f"{each.name}_0"
