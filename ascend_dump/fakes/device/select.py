"""Select the operators, tensors and steps of a model's dump.

GE selects operators and tensors when a model is loaded. The device selects steps at run time. Sources: GE
dump_properties (order of matching, ranges as a state machine over the execution order), GE data_dumper (blacklists),
aicpu_schedule dump_task_manager (how the device reads steps).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional, TypeVar

from ascend_dump.native.cann.config.ge import Blacklist, GeSettings
from ascend_dump.native.cann.graph import Node, why_no_dump

__all__ = ["NodeInfo", "StepRanges", "leave_out", "parse_steps", "select"]

_INTERVAL = re.compile(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?")
_LAST_STEP = 2**64 - 1

_Item = TypeVar("_Item")

#: The first and the last step of each interval; None for all steps.
StepRanges = Optional[tuple[tuple[int, int], ...]]


class NodeInfo(NamedTuple):
    """An operator of a model, for callers of `Npu`.

    inputs          `name:output` of the operators that produce them
    original_names  names of the operators from before fusion
    no_task         True if the device runs no task for it
    """

    name: str
    type: str
    inputs: tuple[str, ...] = ()
    original_names: tuple[str, ...] = ()
    no_task: bool = False

    def node(self) -> Node:
        """Return the operator as a `native.cann.graph.Node`."""
        return Node(
            self.name,
            self.type,
            tuple(self.inputs),
            "",
            original_names=tuple(self.original_names),
            no_task=self.no_task,
        )


def parse_steps(text: str) -> StepRanges:
    """Return the steps in a `dump_step`, as the device reads it. Raises ValueError for a text that it refuses.

    The device accepts more than the host: it drops empty parts, allows blanks, and swaps the ends of reversed
    intervals.

    (assumption cann.steps_on_the_device)
    """
    if not text:
        return None
    ranges = []
    for part in filter(None, text.split("|")):
        match = _INTERVAL.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is no step")
        pieces = [piece for piece in match.groups() if piece is not None]
        if any(len(piece.lstrip("0")) > 20 or int(piece) > _LAST_STEP for piece in pieces):
            raise ValueError(f"{part!r} does not fit 64 bits")
        first, last = int(pieces[0]), int(pieces[-1])
        ranges.append((min(first, last), max(first, last)))
    return tuple(ranges)


def select(settings: GeSettings, ops: Iterable[Node], model: str, om_name: str) -> frozenset[str]:
    """Return the names of the operators of a model that are dumped.

    A layer in the settings selects an operator by its name, or by one of its names from before fusion. Operators
    without a task on the device are never selected. om_name: the name of the model's file.

    (assumption cann.layer_of_fused)
    """
    nodes = list(ops)
    ranged = _ranged(nodes, settings.ranges.get(_matched(settings, model, om_name), ()))
    return frozenset(
        node.name
        for node in nodes
        if why_no_dump(node) is None
        and (
            any(settings.wants(name, model, om_name) for name in (node.name, *node.original_names))
            or (node.name in ranged and settings.status)
        )
    )


def leave_out(
    settings: GeSettings, node: Node, model: str, om_name: str, inputs: Sequence[_Item], outputs: Sequence[_Item]
) -> tuple[list[_Item], list[_Item]]:
    """Return inputs and outputs without those that a blacklist for the operator's type, or for its name, excludes."""
    key = _matched(settings, model, om_name)
    blacklists = (
        settings.types.get(key, {}).get(node.type, Blacklist()),
        settings.names.get(key, {}).get(node.name, Blacklist()),
    )
    without_inputs = frozenset[int]().union(*(blacklist.inputs for blacklist in blacklists))
    without_outputs = frozenset[int]().union(*(blacklist.outputs for blacklist in blacklists))
    return (
        [item for index, item in enumerate(inputs) if index not in without_inputs],
        [item for index, item in enumerate(outputs) if index not in without_outputs],
    )


def _matched(settings: GeSettings, model: str, om_name: str) -> str:
    """Return the model name under which the settings for a model are stored; "" if they apply to all models."""
    if settings.unnamed is not None:
        return ""
    return om_name if om_name in settings.models else model


def _ranged(nodes: Sequence[Node], ranges: Iterable[tuple[str, str]]) -> set[str]:
    """Return the names of the operators in ranges, each from a first to a last operator, in execution order."""
    selected: set[str] = set()
    for begin, end in ranges:
        state = "idle"
        for node in nodes:
            if state == "idle" and node.name == begin:
                state = "running"
            elif (state == "idle" and node.name == end) or (state == "stopped" and node.name == begin):
                break  # if the end comes first, or the beginning comes again, GE selects no further operators
            if state == "running":
                selected.add(node.name)
                if node.name == end:
                    state = "stopped"
    return selected
