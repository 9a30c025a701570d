"""Decide if a tensor that no recorded operator wrote is data from outside, or a parameter or buffer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import VIEWS, operator_class, writes
from ascend_dump.reading import Record

__all__ = ["InputKinds"]

#: Operators whose inputs are data and parameters at fixed indices, with the indices of the data.
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
    # MindSpore and TensorFlow
    "BatchNorm": (0,),
    "BiasAdd": (0,),
    "Conv2D": (0,),
    "FusedBatchNormV3": (0,),
    "LayerNorm": (0,),
    "MatMul": (0,),
}


class InputKinds:
    """The memory that was written before one step, and how the operators of the step use it."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        outputs: set[int] = set()
        #: By storage: the first operator, apart from views, that reads it, and the index of the operator's input. None
        #: if only views have read it up to now.
        self._readers: dict[int, Optional[tuple[str, int]]] = {}
        #: Storages that an operator wrote in place, as an optimizer and the running mean of a norm do.
        self._updated: set[int] = set()
        for operator in operators:
            name = operator_class(operator.op_type)
            inputs = set()
            for record in operator.inputs:
                storage = _storage(record)
                if storage is None:
                    continue
                inputs.add(storage)
                if storage not in outputs and self._readers.get(storage) is None:
                    self._readers[storage] = None if name in VIEWS else (name, record.index)
            for record in operator.outputs:
                storage = _storage(record)
                if storage is None:
                    continue
                if storage not in inputs and storage not in self._readers:
                    outputs.add(storage)
                elif name not in VIEWS and storage in self._readers and writes(operator.op_type):
                    self._updated.add(storage)

    def kind_of(self, record: Record, module: str, *, first: bool) -> str:
        """Return "input" or "parameter" for an input that no recorded operator wrote.

        first: True for an input of the first operator of the step
        """
        storage = _storage(record)
        if storage in self._updated or record.parameter or record.attrs.get("requires_grad"):
            return "parameter"
        if record.dtype is not None and record.dtype.startswith(("int", "uint", "bool")):
            return "input"
        itself = operator_class(record.op_type), record.index
        name, index = itself if storage is None else self._readers.get(storage) or ("", 0)
        if name in _DATA:
            return "input" if index in _DATA[name] else "parameter"
        return "parameter" if module and not first else "input"


def _storage(record: Record) -> Optional[int]:
    storage = storage_of(record)
    return None if storage is None else storage[0]
