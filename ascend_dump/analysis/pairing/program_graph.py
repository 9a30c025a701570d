"""One program as the pairing across frameworks looks at it: what computes, what it makes, and who reads that."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from ascend_dump.analysis.numerics.device_formats import as_in_model
from ascend_dump.analysis.numerics.permutations import find_layout
from ascend_dump.analysis.numerics.tensor_pair import identity_of
from ascend_dump.analysis.operators.names import continues, is_source, is_view, operation
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.errors import AscendDumpError, NotSupported, ReadError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Output", "Read", "Side", "output_of"]

_ADDITION, _PRODUCT, _LINEAR, _INSIDE = "add", "matmul", "linear", "inside of linear"
#: MindSpore and TensorFlow name the operators of the backward pass so.
_GRADIENTS = re.compile(r"(?:^|/)(?:[Gg]radients(?:_\d+)?|gradient_tape)/")
#: How far statistics of the same values may be apart, relative to the norm; and where nothing else tells that they are.
NEAR, _NEARER = 1e-3, 1e-4

#: An input as it is read, the tensor that it is a view of, and the place of the operator that made that.
Read = tuple[Record, Optional[Hashable], Optional[int]]


@dataclass
class Output:
    """One output of an operator that computes: its first four statistics are alike in every layout.

    array: None where the dump has statistics only.
    """

    operator: int
    record: Record
    array: Optional[np.ndarray]
    size: int
    norm: float
    total: float
    low: float
    high: float

    def is_same(self, other: Output) -> bool:
        """Whether both hold the same values in some layout; without values, as far as statistics tell."""
        if self.array is None or other.array is None:
            return self._near(other, _NEARER)
        return self._near(other, NEAR) and find_layout(self.array, other.array) is not None

    def resembles(self, other: Output) -> bool:
        """Whether the statistics are about the same, as they are after a small fault; False if values are known."""
        return (self.array is None or other.array is None) and self._near(other, NEAR)

    def _near(self, other: Output, share: float) -> bool:
        if self.size != other.size:
            return False
        scale = max(self.norm, other.norm)
        rms = scale / math.sqrt(self.size)
        return (
            abs(self.norm - other.norm) <= share * scale
            and abs(self.total - other.total) <= share * scale * math.sqrt(self.size)
            and abs(self.low - other.low) <= share * 10 * rms
            and abs(self.high - other.high) <= share * 10 * rms
        )

    def holds_same_elements(self, other: Output) -> bool:
        """Whether the elements are the same ones, in whatever order, as far as statistics tell."""
        same = (self.size, self.low, self.high) == (other.size, other.low, other.high)
        return same and math.isclose(self.norm, other.norm, rel_tol=1e-9, abs_tol=0.0)


class Side:
    """The operators of one program that compute, what they make, and where that is read."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.operators = operators
        #: By the identity of a tensor: that of which it is a view.
        self.views: dict[Hashable, Hashable] = {}
        #: By the identity of a tensor: the types in which views of it, or those it is a view of, give its elements.
        self.types: dict[Hashable, set[Optional[str]]] = {}
        #: By the identity of a tensor: the place of the operator that made it.
        self.made: dict[Hashable, int] = {}
        self.computing: list[int] = []
        self._reads: dict[int, list[Read]] = {}
        self.tensors: list[list[Output]] = [[] for _ in operators]
        for place, operator in enumerate(operators):
            self._add(place, operator)
        self._continued = {one for place in self.computing for one in self.before(place)}
        self._backward = [one.phase == "backward" or _GRADIENTS.search(one.op_name) is not None for one in operators]

    def _add(self, place: int, operator: Operator) -> None:
        if is_source(operator.op_type) or not operator.outputs:
            return
        read = [identity_of(record) for record in operator.inputs]
        if is_view(operator.op_type) and not _alters(operator):
            for record in operator.outputs:
                written = identity_of(record)
                if (
                    written is not None
                    and read
                    and read[0] is not None
                    and written not in self.made
                    and written not in read
                ):
                    self.views.setdefault(written, self.root(read[0]))
                    types = self.types.setdefault(self.root(read[0]), set())
                    types.update((operator.inputs[0].dtype, record.dtype))
                    self.types[written] = types
            return
        for record in [*operator.outputs]:
            written = identity_of(record)
            if written is not None and written in read:
                continue
            try:
                tensor = _read_output(place, record)
            except ReadError as error:
                _set_aside(operator, record, error)
                continue
            if tensor is not None and written is not None:
                self.tensors[place].append(tensor)
                self.made.setdefault(written, place)
        if self.tensors[place]:
            self.computing.append(place)

    def does(self, place: int) -> tuple[str, bool]:
        """The operation, and whether it is of the backward pass.

        An addition after a product is a linear layer in other frameworks, which have no separate product.
        """
        return self._does(place), self._backward[place]

    def is_linear(self, place: int) -> bool:
        return self._does(place) == _LINEAR

    def _does(self, place: int) -> str:
        if place in self._continued:
            return _INSIDE
        done = operation(self.operators[place].op_type)
        if done == _ADDITION and any(operation(self.operators[one].op_type) == _PRODUCT for one in self.before(place)):
            return _LINEAR
        return done

    def before(self, place: int) -> list[int]:
        """The operators that this one continues, so that they are one with it in other frameworks."""
        found: list[int] = []
        stack = [place]
        while stack:
            here = stack.pop()
            names = continues(self.operators[here].op_type)
            if names:
                makers = [maker for _, _, maker in self.reads(here) if maker is not None]
                makers = [maker for maker in makers if operator_class(self.operators[maker].op_type) in names]
                found += makers
                stack += makers
        return found

    def root(self, identity: Optional[Hashable]) -> Optional[Hashable]:
        """The tensor that this is a view of."""
        return self.views.get(identity, identity)

    def reads(self, place: int) -> list[Read]:
        """Each input with floating values of an operator, the tensor it is a view of, and who made that."""
        found = self._reads.get(place)
        if found is not None:
            return found
        found = self._reads[place] = []
        for record in self.operators[place].inputs:
            if _is_float(record):
                root = self.root(identity_of(record))
                maker = self.made.get(root)
                # Equal bytes may be written again later.
                found.append((record, root, maker if maker is not None and maker < place else None))
        return found

    def leading_to(self, paired: Collection[int]) -> set[int]:
        """Operators without a partner that lead to one with a partner."""
        found: set[int] = set()
        stack = list(paired)
        while stack:
            for _, _, maker in self.reads(stack.pop()):
                if maker is not None and maker not in paired and maker not in found:
                    found.add(maker)
                    stack.append(maker)
        return found

    def reads_outside(self, place: int, paired: Collection[int]) -> list[Read]:
        """What an operator reads together with those without a partner before it: of paired ones, and of nobody."""
        found: dict[Hashable, Read] = {}
        seen = {place}
        stack = [place]
        while stack:
            for record, root, maker in self.reads(stack.pop()):
                if maker is None or maker in paired:
                    # Of one tensor several parts may be read: query, key and value of an attention.
                    part = (record.attrs.get("storage_offset"), math.prod(record.shape or ()))
                    found.setdefault((identity_of(record), part), (record, root, maker))
                elif maker not in seen:
                    seen.add(maker)
                    stack.append(maker)
        return list(found.values())


def _alters(operator: Operator) -> bool:
    """Whether what is called a view or a copy gives other elements than those of its input, so that it is wrong."""
    if len(operator.inputs) != 1 or len(operator.outputs) != 1:
        return False
    read, written = operator.inputs[0], operator.outputs[0]
    if read.dtype != written.dtype or read.content is None or read.content == written.content:
        return False
    sizes = [math.prod(record.shape or ()) for record in (read, written)]
    if sizes[0] != sizes[1]:
        return False
    a, b = output_of(0, read), output_of(0, written)
    return a is not None and b is not None and not a.holds_same_elements(b)


def _is_float(record: Record) -> bool:
    return (record.dtype or "").startswith(("float", "bfloat", "complex"))


def _set_aside(operator: Operator, output: Record, error: ReadError) -> None:
    """Tell an output whose values cannot be read as unreadable: nothing else would speak of it."""
    output.error = error
    operator.outputs = [one for one in operator.outputs if one is not output]
    operator.broken.append(output)


def output_of(place: int, record: Record) -> Optional[Output]:
    """None of a tensor without floating-point values, or of which nothing is known."""
    try:
        return _read_output(place, record)
    except ReadError:
        return None


def _read_output(place: int, record: Record) -> Optional[Output]:
    if not _is_float(record):
        return None
    try:
        array = as_in_model(record)
    except NotSupported:
        return _of_statistics(place, record)
    except ReadError:
        raise
    except AscendDumpError:
        return None
    if not array.size or array.dtype.kind == "c":
        return None
    import numpy as np

    values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    if not finite.size:
        finite = np.zeros(1)
    norm = float(np.linalg.norm(finite))
    return Output(place, record, array, array.size, norm, float(finite.sum()), float(finite.min()), float(finite.max()))


def _of_statistics(place: int, record: Record) -> Optional[Output]:
    """None where they are not all known and finite: those of the finite rest are not known."""
    try:
        found = record.recorded_statistics()
    except AscendDumpError:
        return None
    if found is None or not found.count:
        return None
    numbers = (found.l2norm, found.mean, found.min, found.max)
    if any(number is None or not math.isfinite(number) for number in numbers):
        return None
    norm, mean, low, high = (float(number) for number in numbers if number is not None)
    return Output(place, record, None, found.count, norm, mean * found.count, low, high)
