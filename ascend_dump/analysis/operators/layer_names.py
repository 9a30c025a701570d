"""Find the layers that a rank has under the names of other layers: stages of a pipeline, and experts of a rank.

The first layer of the second stage may be layer 0 of its rank, and layer 4 of the program on one rank. Weights show it:
a parameter of the rank has the content of a parameter of another name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

from ascend_dump.analysis.operators.operator import Operator, module_of
from ascend_dump.reading import Record

__all__ = ["contents_of_parameters", "layers_of_other_names", "with_names_of"]


def layers_of_other_names(parts: Iterable[Operator], whole: Iterable[Operator]) -> dict[str, str]:
    """Return the paths of modules of a rank, and the paths of the modules of the other side with the same weights.

    Paths are without the levels of wrappers. Modules with the same path on both sides are left out.

    parts, whole: the operators of the first step that both sides have
    """
    contents, whole_contents = contents_of_parameters(parts), contents_of_parameters(whole)
    names: dict[Any, list[str]] = {}
    for name, content in whole_contents.items():
        names.setdefault(content, []).append(name)
    paths: dict[str, set[str]] = {}
    for name, content in contents.items():
        same = names.get(content, [])
        if name in same or len(same) != 1:
            continue  # already equal, missing on the other side, or a common content such as zeros
        path, whole_path = _without_common_end(name, same[0])
        if path and whole_path:
            paths.setdefault(path, set()).add(whole_path)
    certain = {path: targets.pop() for path, targets in paths.items() if len(targets) == 1}
    return certain if len({*certain.values()}) == len(certain) else {}


def with_names_of(
    operators: Sequence[Operator], layers: Mapping[str, str], *, keep_labels: bool = False
) -> list[Operator]:
    """Return operators with other paths of modules and names of parameters.

    layers       the new path by the old one
    keep_labels  the names of the operators remain, for messages
    """
    if not layers:
        return [*operators]
    return [_renamed(operator, layers, keep_labels) for operator in operators]


def _renamed(operator: Operator, layers: Mapping[str, str], keep_labels: bool) -> Operator:
    module = _new_path(operator.module, layers)
    name = operator.op_name
    if module is not None and not keep_labels and name.startswith(f"{operator.module}/"):
        name = module + name[len(operator.module) :]
    inputs = [_with_parameter(record, layers) for record in operator.inputs]
    outputs = [_with_parameter(record, layers) for record in operator.outputs]
    return replace(
        operator, module=operator.module if module is None else module, op_name=name, inputs=inputs, outputs=outputs
    )


def _with_parameter(record: Record, layers: Mapping[str, str]) -> Record:
    state, of, name = (record.parameter or "").rpartition(" of ")
    path = _new_path(name, layers)
    return record if path is None else record.as_parameter(f"{state}{of}{path}")


def _new_path(path: str, layers: Mapping[str, str]) -> Optional[str]:
    """Return the new path of a module or parameter; None if it is in none of the layers."""
    levels = module_of(path).split(".")
    for count in range(len(levels), 0, -1):
        target = layers.get(".".join(levels[:count]))
        if target is not None:
            return ".".join([target, *levels[count:]])
    return None


def _without_common_end(name: str, whole_name: str) -> tuple[str, str]:
    """Return both names without the last levels that they share."""
    levels, whole_levels = name.split("."), whole_name.split(".")
    while levels and whole_levels and levels[-1] == whole_levels[-1]:
        levels.pop()
        whole_levels.pop()
    return ".".join(levels), ".".join(whole_levels)


def contents_of_parameters(operators: Iterable[Operator]) -> dict[str, Any]:
    """Return the contents of parameters as they are first read, by their names without the levels of wrappers."""
    contents: dict[str, Any] = {}
    for operator in operators:
        for record in operator.inputs:
            name = record.parameter
            if name and " of " not in name and not name.endswith(".grad") and record.content is not None:
                contents.setdefault(module_of(name), record.content)
    return contents
