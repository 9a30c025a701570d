"""The operators, tensors and steps in a model's dump: GE selects them at load, the device at each step.

Sources: GE dump_properties (order of matching, ranges as a state machine over the execution order), GE
data_dumper (blacklists), aicpu_schedule dump_task_manager (how the device reads steps).
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

#: First and last step of each interval; None for every step.
StepRanges = Optional[tuple[tuple[int, int], ...]]


class NodeInfo(NamedTuple):
    """One operator of a model in GE. Its fields are those of `cann.graph.Node`, an alternative to it."""

    name: str
    type: str
    inputs: tuple[str, ...] = ()
    original_names: tuple[str, ...] = ()
    no_task: bool = False

    def node(self) -> Node:
        return Node(
            self.name,
            self.type,
            tuple(self.inputs),
            "",
            original_names=tuple(self.original_names),
            no_task=self.no_task,
        )


def parse_steps(text: str) -> StepRanges:
    """Read `dump_step` as the device does, with looser rules than the host's. Raises ValueError if its load fails.

    Empty parts are dropped, blanks are allowed, reversed intervals are swapped.

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
    """Return the names of a model's operators with dump information.

    A `layer` matches the final name or any name from before fusion. Operators without a task are left out.

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
    """Return inputs and outputs without those on a blacklist of the operator's type or name."""
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
    """Return the model name of the settings for a model. Settings without a name apply to all models."""
    if settings.unnamed is not None:
        return ""
    return om_name if om_name in settings.models else model


def _ranged(nodes: Sequence[Node], ranges: Iterable[tuple[str, str]]) -> set[str]:
    selected: set[str] = set()
    for begin, end in ranges:
        state = "idle"
        for node in nodes:
            if state == "idle" and node.name == begin:
                state = "running"
            elif (state == "idle" and node.name == end) or (state == "stopped" and node.name == begin):
                break  # the end came first, or it starts again: GE adds no more
            if state == "running":
                selected.add(node.name)
                if node.name == end:
                    state = "stopped"
    return selected
