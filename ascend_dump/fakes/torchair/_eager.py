"""Two kinds of torchair's dumps that PyTorch writes, without GE: .npy files and .pt files.

`config.debug.data_dump` runs the graph eagerly and saves .npy files. With a dump, the aclgraph modes (reduce-overhead
and npugraph_ex) save .pt files. Sources: torchair 2.13, fx_dumper.py (names and steps of .npy files, nodes that are
not saved) and _acl_concrete_graph/utils.py (nodes that are saved as .pt); torch_npu 2.13, npu/graphs.py (names of .pt
files, with a number that counts from the start of the process).
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from ascend_dump.fakes.torchair._config import rank_level
from ascend_dump.fakes.torchair._graph import GraphRunner, as_array

if TYPE_CHECKING:
    from ascend_dump.fakes.torchair._config import CompilerConfig
    from ascend_dump.fakes.torchair._engine import TorchairEngine

__all__ = ["NpyDumper", "TensorSaver"]


class NpyDumper(GraphRunner):
    """The runner for `config.debug.data_dump`: it saves the inputs and outputs of each ATen operator as .npy files.

    The filter of the config is called with each node. It returns the node whose name the files get, or None to save
    nothing.
    """

    def __init__(self, engine: TorchairEngine, config: CompilerConfig, module: Any) -> None:
        super().__init__(module)
        self._config = config.debug.data_dump
        self._filter: Any = self._config.filter
        self._name = engine.next_graph()
        self._step = 0

    def call(self, node: Any, args: Any, kwargs: Any, *, values: dict[Any, Any]) -> Any:
        import torch

        named_node = node if self._filter is None else self._filter(node)
        if named_node is None or node.op != "call_function" or getattr(node.target, "namespace", "") != "aten":
            return super().call(node, args, kwargs, values=values)
        folder = os.path.join(self._config.path or ".", rank_level(), self._name, str(self._step))
        os.makedirs(folder, exist_ok=True)
        stamp = datetime.now(tz=timezone.utc).strftime("%Y%m%d%H%M%S%f")

        def save(port: str, value: Any) -> None:
            if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
                value = value.float()
            if isinstance(value, torch.Tensor):
                array = as_array(value)
            else:
                array = np.array(value if isinstance(value, (int, float, str, list, tuple)) else str(value))
            np.save(os.path.join(folder, f"{named_node.name}-{node.target}.{port}.{stamp}"), array)

        for index, value in enumerate(args):
            if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
                for inner, tensor in enumerate(value):
                    save(f"INPUT.{index}.{inner}", tensor)
            else:
                save(f"INPUT.{index}", value)
        result = super().call(node, args, kwargs, values=values)
        for index, value in enumerate(result if isinstance(result, (list, tuple)) else [result]):
            save(f"OUTPUT.{index}", value)
        return result

    def ended(self) -> None:
        self._step += 1


class TensorSaver(GraphRunner):
    """The runner for a dump in the aclgraph modes: it saves the graph's inputs and each node's output as .pt files."""

    def __init__(self, engine: TorchairEngine, folder: str, module: Any) -> None:
        super().__init__(module)
        self._engine = engine
        self._folder = folder

    def fed(self, node: Any, value: Any) -> Any:
        self._save(node, value)
        return value

    def call(self, node: Any, args: Any, kwargs: Any, *, values: dict[Any, Any]) -> Any:
        result = super().call(node, args, kwargs, values=values)
        self._save(node, result)
        return result

    def _save(self, node: Any, value: Any) -> None:
        # (assumption torchair.saved_names)
        import torch

        if "tensor_meta" not in node.meta or not isinstance(value, torch.Tensor):
            return
        path = os.path.join(self._folder, node.name)
        torch.save(value.detach().cpu().clone(), f"{path}_{self._engine.count_saved(path)}.pt")
