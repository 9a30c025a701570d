"""What a run really computed, recorded by the most naive means, to hold a dump against."""

from __future__ import annotations

from collections import defaultdict
from enum import Enum
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_dump import Dump, Record

#: Operators whose outputs nobody has filled: what is in them differs from run to run.
UNSET = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}
#: Operators that go on after they returned. The outputs of the functional ones are filled when
#: WAIT has returned; those of the others when an operator reads them, which nobody may let happen before.
COLLECTIVES = ("c10d", "_c10d_functional")
WAIT = "_c10d_functional::wait_tensor"
SENDERS = ("c10d::send", "c10d::barrier", "c10d::monitored_barrier_")
#: Why a tensor is not stored that a collective writes which nobody has waited for.
UNWAITED = "a collective writes it still"

PLAIN = (torch.Tensor, torch.nn.Parameter)


class Value(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Unknown(Enum):
    """Why a tensor has no value that could be told."""

    UNSET = "nobody has filled the memory"
    IN_FLIGHT = "a collective may be writing it"
    SUBCLASS = "it is a tensor subclass, whose parts have values of their own"


class Operator(NamedTuple):
    op_type: str
    inputs: list[Union[Value, Unknown]]
    outputs: list[Union[Value, Unknown]]


class Truth(TorchDispatchMode):
    """Copies every input before each operator and every output after it.

    steps: the operators of each top-level call of `model`, and of what follows it.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.steps: list[list[Operator]] = []
        self._depth = 0
        #: Memory that nobody has filled, and memory that a collective may be filling: a functional one, or another.
        self._unset: list[tuple[int, int]] = []
        self._filling: list[tuple[int, int]] = []
        self._in_flight: list[tuple[int, int]] = []
        self._handles = [
            model.register_forward_pre_hook(self._called, prepend=True),
            model.register_forward_hook(self._returned, always_call=True),
        ]

    def __enter__(self) -> Truth:
        self._resize = resize = torch.UntypedStorage.resize_

        def resize_and_note(storage: Any, nbytes: int) -> Any:
            resized = resize(storage, nbytes)
            self._unset.append((storage.data_ptr(), storage.data_ptr() + nbytes))
            return resized

        torch.UntypedStorage.resize_ = resize_and_note
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize
        for handle in self._handles:
            handle.remove()

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self.steps.append([])

    def _returned(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Optional[dict[str, Any]] = None) -> Any:
        if not all(kind in PLAIN for kind in types):
            return NotImplemented  # a tensor subclass: its parts come here next
        kwargs = kwargs or {}
        op_type = func._schema.name
        results = {argument.name for argument in func._schema.arguments if argument.is_out}
        given = tensors_in([*args, *(value for name, value in kwargs.items() if name not in results)])
        if func.namespace not in COLLECTIVES and not looks(func._schema):
            # Whoever reads a part has waited for the collective that writes it.
            spans = [span(tensor) for tensor in given]
            self._in_flight = [
                (begin, end)
                for begin, end in self._in_flight
                if not any(begin < high and low < end for low, high in spans)
            ]
        inputs = [self._value_of(tensor) for tensor in given]
        result = func(*args, **kwargs)
        returned = tensors_in([result])
        made = [*returned, *(one for one in written(func._schema, args, kwargs) if not contains(returned, one))]
        if op_type in UNSET:
            self._unset += [span(tensor) for tensor in made if is_plain(tensor)]
        elif func.namespace == "_c10d_functional" and op_type != WAIT:
            self._filling += [span(tensor) for tensor in made if is_plain(tensor)]
        elif func.namespace == "c10d":
            results = [a for a, argument in zip(args, func._schema.arguments) if not argument.name.startswith("input")]
            self._in_flight += map(span, tensors_in(results))
            if op_type != "c10d::_reduce_scatter_base_":  # gloo fills its output by an operator
                self._unset = subtract(self._unset, given)
            made = [] if func._schema.name in SENDERS else tensors_in(results)
        else:
            owned = {tensor.untyped_storage().data_ptr() for tensor in given}
            fresh = [tensor for tensor in made if tensor.untyped_storage().data_ptr() not in owned]
            filled = [*(made if op_type == WAIT else fresh), *written(func._schema, args, kwargs)]
            self._unset = subtract(self._unset, filled)
            self._filling = subtract(self._filling, filled)
        if self.steps:
            if func.namespace in COLLECTIVES and op_type != WAIT:
                wait_for(result)
                outputs = [value_of(tensor) if is_plain(tensor) else Unknown.SUBCLASS for tensor in made]
            else:
                outputs = [self._value_of(tensor) for tensor in made]
            self.steps[-1].append(Operator(op_type, inputs, outputs))
        return result

    def _value_of(self, tensor: torch.Tensor) -> Union[Value, Unknown]:
        if not is_plain(tensor):
            return Unknown.SUBCLASS
        if touches(tensor, [*self._filling, *self._in_flight]):
            return Unknown.IN_FLIGHT
        return Unknown.UNSET if touches(tensor, self._unset) else value_of(tensor)


def touches(tensor: torch.Tensor, ranges: list[tuple[int, int]]) -> bool:
    low, high = span(tensor)
    return any(low < end and begin < high for begin, end in ranges)


def subtract(ranges: list[tuple[int, int]], tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    for low, high in map(span, tensors):
        parts = [((begin, min(end, low)), (max(begin, high), end)) for begin, end in ranges]
        ranges = [part for pair in parts for part in pair if part[0] < part[1]]
    return ranges


def wait_for(result: Any) -> None:
    """Return when the outputs of a collective are there."""
    work = result[-1] if isinstance(result, (tuple, list)) else result
    if isinstance(work, torch.ScriptObject):
        torch.distributed.Work.unbox(work).wait()
    for tensor in tensors_in([result]):
        torch.ops._c10d_functional.wait_tensor(tensor)


def contains(tensors: list[torch.Tensor], tensor: torch.Tensor) -> bool:
    return any(one is tensor for one in tensors)


def looks(schema: Any) -> bool:
    """Whether an operator makes views, without reading."""
    return any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns)


def is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in PLAIN


def written(schema: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    found = [
        args[position] if position < len(args) else kwargs.get(argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return tensors_in(found)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses from its first element to the end of its last."""
    if not tensor.numel():
        return 0, 0
    elements = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride())) + 1
    return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.element_size()


def tensors_in(values: Any) -> list[torch.Tensor]:
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += tensors_in(value)
    return found


def value_of(tensor: torch.Tensor) -> Value:
    # A copy, because a storage that numpy has seen cannot be resized any more.
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().clone(memory_format=torch.contiguous_format)
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
                skipped = record.attrs.get("skipped")
                if skipped == UNWAITED:
                    own = io == "output" and operator.op_type.startswith("_c10d_functional")
                    assert own or value is Unknown.IN_FLIGHT, (record, value)
                elif isinstance(value, Value):
                    assert value_in(record) == value, record
                    compared += 1
                elif value is Unknown.SUBCLASS:
                    assert skipped, record
                elif io == "output" and operator.op_type in UNSET:
                    assert skipped == "uninitialised memory", record
    return compared
