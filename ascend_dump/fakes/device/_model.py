"""A model that is loaded on the simulated device, with the dump settings from the time when it was loaded."""

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

#: Prefix of the types of collective operators. A watcher writes nothing after them.
_COLLECTIVE = "Hcom"


class LoadedModel:
    """A loaded model. Dump settings that change after it was loaded do not apply to it.

    nodes         its operators by name
    tasks         their task ids by name
    arming        the settings of the dump service; None if no dump was on
    session       the GE session that loaded it
    step          the value of the step counter; None without a counter
    memory        operators in this step whose outputs are watched or trampled: name -> execution with these outputs
    log           lines for CANN's log
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
            # The steps apply to dumps of tensors only. Overflow is detected at every step.
            self._steps = parse_steps(arming.ge.step) if arming.ge.status else None
        except ValueError as error:
            self.log.append(f"{name}: the device refuses the dump information of the model: {error}")
            self._loaded = False
        chosen = select(arming.ge, ops, name, om_name)
        self._selected = {node.name: node.name in chosen for node in ops}

    def find_node(self, op_type: str, name: str, original_names: Sequence[str], *, no_task: bool) -> Node:
        """Return the operator with this name. If the model has none, it is added."""
        node = self.nodes.get(name)
        if node is None:
            node = Node(name, op_type, (), "", original_names=tuple(original_names), no_task=no_task)
            self.nodes[name] = node
            self.tasks[name] = len(self.tasks)
            if self.arming is not None and self.arming.ge is not None:
                self._selected[name] = name in select(self.arming.ge, [node], self.name, self.om_name)
        return node

    def outputs_of(self, name: str) -> tuple[np.ndarray[Any, Any], ...]:
        """Return the current outputs of a watched or trampled operator; () for other operators."""
        return self.memory[name].outputs if name in self.memory else ()

    def dumps(self, node: Node, step: Optional[int]) -> bool:
        """Return True if the settings select this operator and step for a dump of tensors.

        If steps are set, and the model has no step counter (`step` is None), nothing is dumped.

        (assumption cann.no_step_counter)
        """
        return not self.watches and not self.detects and self._selected.get(node.name, False) and self.at_step(step)

    def at_step(self, step: Optional[int]) -> bool:
        """Return True if the settings select this step."""
        if not self._loaded:
            return False
        if self._steps is None:
            return True
        return step is not None and any(first <= step <= last for first, last in self._steps)

    @property
    def detects(self) -> bool:
        """True if overflow detection is on, and the model was built with `--status_check=1`."""
        ge = None if self.arming is None else self.arming.ge
        return ge is not None and ge.debug and not ge.status and self._status_check

    @property
    def watches(self) -> bool:
        return self.arming is not None and self.arming.watcher

    def is_watched(self, node: Node, step: Optional[int]) -> bool:
        """Return True if a watcher is set for the output of this operator, and the step is selected.

        The watcher has to use the name after fusion. It works only in graphs with static shapes.

        (assumption cann.watch_static)
        (assumption cann.watch_final_names)
        """
        ge = None if self.arming is None else self.arming.ge
        return self.watches and ge is not None and node.name in ge.watched and self._static_shape and self.at_step(step)

    def is_suspect(self, node: Node) -> bool:
        """Return True if the watched outputs are written again after this operator.

        (assumption cann.watch_collective)
        """
        ge = None if self.arming is None else self.arming.ge
        if not self.watches or ge is None or node.type.startswith(_COLLECTIVE) or not self._static_shape:
            return False
        return ge.every or not ge.unnamed or node.name in ge.unnamed

    def leave_out(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return inputs and outputs without those that a blacklist of the settings excludes."""
        if self.arming is None or self.arming.ge is None:
            return list(inputs), list(outputs)
        return leave_out(self.arming.ge, node, self.name, self.om_name, inputs, outputs)

    def folder(self, step: Optional[int]) -> tuple[str, ...]:
        """Return the directories model, model id and step.

        The model is named after its file if the settings use the name of the file, else after its graph.

        (assumption torchair.levels)
        """
        ge = None if self.arming is None else self.arming.ge
        name = self.om_name if ge is not None and self.om_name in ge.models else self.name
        return build_levels(DumpLevels(model=name, model_id=self.model_id, data_index=step))
