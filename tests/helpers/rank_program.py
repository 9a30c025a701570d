"""Write the operators of ranks by hand, with the memory of their tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from host_dumps import item, rank_writer


class Tensor:
    """Values in a memory of their own, or in that of another tensor, which an operator writes to."""

    def __init__(self, values: np.ndarray, storage: int, version: int = 0, parameter: str = "") -> None:
        self.values, self.storage, self.version, self.parameter = values, storage, version, parameter


class Rank:
    """The operators of one rank."""

    def __init__(self, root: Path, rank: int, ranks: int) -> None:
        self._writer = rank_writer(root, rank, ranks)
        self._storages = self._operators = 0
        self._names: dict[str, int] = {}

    def tensor(self, values: np.ndarray, parameter: str = "") -> Tensor:
        """Return a tensor in new memory."""
        self._storages += 1
        return Tensor(np.ascontiguousarray(values, "f4"), self._storages, parameter=parameter)

    def written(self, tensor: Tensor, values: np.ndarray) -> Tensor:
        """Return the same memory after an operator wrote to it."""
        values = np.ascontiguousarray(values, "f4")
        return Tensor(values, tensor.storage, tensor.version + 1, tensor.parameter)

    def run(self, op_type: str, inputs: list[Tensor], outputs: list[Tensor], module: str = "", **more: Any) -> None:
        """Write the records of an operator. more: its phase, source and collective"""
        short = op_type.split("::")[1]
        name = f"{module}/{short}" if module else short
        self._names[name] = self._names.get(name, -1) + 1
        records = []
        for io, tensors in (("input", inputs), ("output", outputs)):
            for index, tensor in enumerate(tensors):
                record = item(f"{name}_{self._names[name]}", tensor.values, io=io, index=index, op_type=op_type)
                record.line.module, record.line.seq, record.line.phase = (
                    module,
                    self._operators,
                    more.get("phase", "forward"),
                )
                record.line.storage, record.line.version = tensor.storage, tensor.version
                record.line.parameter, record.line.source = tensor.parameter, more.get("source", "net.py:1")
                record.line.collective = more.get("collective")
                records.append(record)
        self._operators += 1
        self._writer.put(records, sum(record.line.nbytes for record in records))

    def close(self) -> None:
        self._writer.end_step()
        self._writer.close()
