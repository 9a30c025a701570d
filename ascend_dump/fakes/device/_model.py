"""A model loaded on the simulated device, with the dump settings at the time of loading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from ascend_dump.fakes.device._arming import Arming
from ascend_dump.fakes.device.select import StepRanges, leave_out, parse_steps, select
from ascend_dump.native.cann.graph import Node
from ascend_dump.native.cann.names import DumpLevels, build_levels

if TYPE_CHECKING:
    from ascend_dump.fakes.device._files import KernelCall

__all__ = ["LoadedModel"]

#: The prefix of collective operators: the watched outputs are not written again after them.
_COLLECTIVE = "Hcom"


class LoadedModel:
    """One loaded model with the settings at the time of loading; later settings do not apply.

    step          the value of the step counter; None without a counter
    memory        watched and trampled operators: operator name -> its execution, with the outputs on the device
    log           lines for CANN's log only
    """

    def __init__(
        self,
        model_id: int,
        name: str,
        om_name: str,
        ops: Sequence[Node],
        arming: Optional[Arming],
        *,
        status_check: bool,
        static_shape: bool,
        session: int = 0,
    ) -> None:
        # (assumption cann.overflow_at_every_step)
        self.model_id = model_id
        self.name = name
        self.om_name = om_name
        self.nodes = {node.name: node for node in ops}
        self.tasks = {node.name: index for index, node in enumerate(ops)}
        self.arming = arming
        self.session = session
        self.step: Optional[int] = None
        self.memory: dict[str, KernelCall] = {}
        self.log: list[str] = []
        self._status_check = status_check
        self._static_shape = static_shape
        self._steps: StepRanges = None
        self._loaded = arming is not None
        self._selected: dict[str, bool] = {}
        if arming is None or arming.ge is None:
            return
        try:
            # Overflow is detected at every step.
            self._steps = parse_steps(arming.ge.step) if arming.ge.status else None
        except ValueError as error:
            self.log.append(f"{name}: the device refuses the dump information of the model: {error}")
            self._loaded = False
        chosen = select(arming.ge, ops, name, om_name)
        self._selected = {node.name: node.name in chosen for node in ops}

    def find_node(self, op_type: str, name: str, original_names: Sequence[str], *, no_task: bool) -> Node:
        """Return the operator of that name; a new one is added to the model."""
        node = self.nodes.get(name)
        if node is None:
            node = Node(name, op_type, (), "", original_names=tuple(original_names), no_task=no_task)
            self.nodes[name] = node
            self.tasks[name] = len(self.tasks)
            if self.arming is not None and self.arming.ge is not None:
                self._selected[name] = name in select(self.arming.ge, [node], self.name, self.om_name)
        return node

    def outputs_of(self, name: str) -> tuple[np.ndarray[Any, Any], ...]:
        """Return an operator's current outputs on the device, () unless they are watched or trampled."""
        return self.memory[name].outputs if name in self.memory else ()

    def dumps(self, node: Node, step: Optional[int]) -> bool:
        """Return True to dump this execution of an operator. With steps set and no step counter: never.

        (assumption cann.no_step_counter)
        """
        return not self.watches and not self.detects and self._selected.get(node.name, False) and self.at_step(step)

    def at_step(self, step: Optional[int]) -> bool:
        if not self._loaded:
            return False
        if self._steps is None:
            return True
        return step is not None and any(first <= step <= last for first, last in self._steps)

    @property
    def detects(self) -> bool:
        """True if overflow detection is on. The model must be built for it."""
        ge = None if self.arming is None else self.arming.ge
        return ge is not None and ge.debug and not ge.status and self._status_check

    @property
    def watches(self) -> bool:
        return self.arming is not None and self.arming.watcher

    def is_watched(self, node: Node, step: Optional[int]) -> bool:
        """Return True for a watched operator: only names after fusion count, only in static graphs.

        (assumption cann.watch_static)
        (assumption cann.watch_final_names)
        """
        ge = None if self.arming is None else self.arming.ge
        return self.watches and ge is not None and node.name in ge.watched and self._static_shape and self.at_step(step)

    def is_suspect(self, node: Node) -> bool:
        """Return True to write watched outputs again after this operator. (assumption cann.watch_collective)"""
        ge = None if self.arming is None else self.arming.ge
        if not self.watches or ge is None or node.type.startswith(_COLLECTIVE) or not self._static_shape:
            return False
        return ge.every or not ge.unnamed or node.name in ge.unnamed

    def leave_out(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return inputs and outputs without those on a blacklist."""
        if self.arming is None or self.arming.ge is None:
            return list(inputs), list(outputs)
        return leave_out(self.arming.ge, node, self.name, self.om_name, inputs, outputs)

    def folder(self, step: Optional[int]) -> tuple[str, ...]:
        """Return the levels model / model id / step. The model is the offline file's name if the settings name that.

        (assumption torchair.levels)
        """
        ge = None if self.arming is None else self.arming.ge
        name = self.om_name if ge is not None and self.om_name in ge.models else self.name
        return build_levels(DumpLevels(model=name, model_id=self.model_id, data_index=step))
