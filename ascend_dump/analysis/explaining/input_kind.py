"""What a tensor that no recorded operator made is for its program: data from outside, or a parameter or buffer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import VIEWS, operator_class
from ascend_dump.reading import Record

__all__ = ["Roles", "writes"]

#: Operators that have their data and their parameters at fixed places: those of the data.
_DATA = {
    "addmm": (1,),
    "addmv": (1,),
    "linear": (0,),
    "embedding": (1,),
    "_embedding_bag": (1, 2),
    "_embedding_bag_forward_only": (1, 2),
    "convolution": (0,),
    "_convolution": (0,),
    "mkldnn_convolution": (0,),
    "native_layer_norm": (0,),
    "native_batch_norm": (0,),
    "_native_batch_norm_legit": (0,),
    "native_group_norm": (0,),
    "_fused_rms_norm": (0,),
    "rms_norm": (0,),
}


class Roles:
    """The memory that the operators of one step find written already, and what they do with it."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        made: set[int] = set()
        self._found: dict[int, Optional[tuple[str, int]]] = {}
        self._written: set[int] = set()
        for operator in operators:
            name = operator_class(operator.op_type)
            read = set()
            for record in operator.inputs:
                storage = _storage(record)
                if storage is None:
                    continue
                read.add(storage)
                if storage not in made and self._found.get(storage) is None:
                    self._found[storage] = None if name in VIEWS else (name, record.index)
            for record in operator.outputs:
                storage = _storage(record)
                if storage is None:
                    continue
                if storage not in read and storage not in self._found:
                    made.add(storage)
                elif name not in VIEWS and storage in self._found and writes(operator.op_type):
                    self._written.add(storage)

    def kind_of(self, record: Record, module: str, *, first: bool) -> str:
        """ "input" or "parameter": of a difference that an operator's input has and nothing recorded made.

        first: no operator ran before in this step.
        """
        storage = _storage(record)
        if storage in self._written:
            return "parameter"  # an optimizer updates it, or a norm its running mean
        if record.dtype is not None and record.dtype.startswith(("int", "uint", "bool")):
            return "input"
        name, index = (self._found.get(storage) if storage is not None else None) or ("", 0)
        if name in _DATA:
            return "input" if index in _DATA[name] else "parameter"
        return "parameter" if module and not first else "input"


def _storage(record: Record) -> Optional[int]:
    found = storage_of(record)
    return None if found is None else found[0]


def writes(op_type: str) -> bool:
    """Whether an operator writes to memory that it was given, by its name."""
    name = op_type.rpartition("::")[2].split(".")[0]
    return name.endswith("_") or name.startswith(("native_batch_norm", "_native_batch_norm"))
