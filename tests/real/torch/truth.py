"""What a run really computed, recorded by the most naive means, to hold a dump against."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_dump import Dump, Record

#: Operators whose outputs nobody has filled: what is in them differs from run to run.
UNSET = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}


class Value(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Operator(NamedTuple):
    """Values are None where nobody has filled the memory."""

    op_type: str
    inputs: list[Optional[Value]]
    outputs: list[Optional[Value]]


class Truth(TorchDispatchMode):
    """Copies every input before each operator and every output after it.

    steps: the operators of each top-level call of `model`, and of what follows it.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.steps: list[list[Operator]] = []
        self._depth = 0
        self._unset: set[int] = set()
        self._handles = [
            model.register_forward_pre_hook(self._called, prepend=True),
            model.register_forward_hook(self._returned, always_call=True),
        ]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self.steps.append([])

    def _returned(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Optional[dict[str, Any]] = None) -> Any:
        kwargs = kwargs or {}
        op_type = func._schema.name
        inputs = [self._value_of(tensor) for tensor in tensors_in([*args, *kwargs.values()])]
        result = func(*args, **kwargs)
        made = tensors_in([result])
        if op_type in UNSET:
            self._unset |= {tensor.data_ptr() for tensor in made}
        else:
            self._unset -= {tensor.data_ptr() for tensor in made}
        if self.steps:
            self.steps[-1].append(Operator(op_type, inputs, [self._value_of(tensor) for tensor in made]))
        return result

    def _value_of(self, tensor: torch.Tensor) -> Optional[Value]:
        return None if tensor.data_ptr() in self._unset else value_of(tensor)


def tensors_in(values: Any) -> list[torch.Tensor]:
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += tensors_in(value)
    return found


def value_of(tensor: torch.Tensor) -> Value:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    data = plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return Value(str(tensor.dtype).replace("torch.", ""), tuple(tensor.shape), data)


def value_in(record: Record) -> Value:
    array = record.numpy()
    assert array.dtype.name == record.dtype
    return Value(record.dtype or "", array.shape, np.ascontiguousarray(array).tobytes())


def compare_step(dump: Dump, operators: list[Operator]) -> int:
    """Assert that the records of one step are these operators, value by value; how many there are."""
    found: dict[int, list[Record]] = defaultdict(list)
    for record in dump:
        found[record.attrs["seq"]].append(record)
    assert sorted(found) == [seq for seq, op in enumerate(operators) if op.inputs or op.outputs]
    compared = 0
    for seq, records in found.items():
        operator = operators[seq]
        assert {record.op_type for record in records} == {operator.op_type}
        for io, values in (("input", operator.inputs), ("output", operator.outputs)):
            recorded = [record for record in records if record.io == io]
            assert [record.index for record in recorded] == list(range(len(values)))
            for record, value in zip(recorded, values):
                if value is not None:
                    assert value_in(record) == value, record
                    compared += 1
                elif io == "output":
                    assert record.attrs["skipped"] == "uninitialised memory"
    return compared
