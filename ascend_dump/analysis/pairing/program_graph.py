"""The data-flow graph of one program: the operators that compute, their outputs, and what they read."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Optional

from ascend_dump.analysis.numerics.device_formats import as_in_model
from ascend_dump.analysis.numerics.permutations import find_layout
from ascend_dump.analysis.numerics.tensor_pair import identity_of
from ascend_dump.analysis.operators.names import continues, is_source, is_view, operation
from ascend_dump.analysis.operators.operator import Operator, storage_of
from ascend_dump.analysis.operators.properties import operator_class
from ascend_dump.analysis.operators.unread_inputs import is_unread
from ascend_dump.errors import AscendDumpError, NotSupported, ReadError
from ascend_dump.reading import Record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["NEAR", "Output", "ProgramGraph", "Read", "output_of", "part_of_memory"]

_ADDITION, _PRODUCT, _FACTOR, _LINEAR, _INSIDE = "add", "matmul", "mul", "linear", "inside of linear"
#: Prefix of the names of backward operators in MindSpore and TensorFlow.
_GRADIENTS = re.compile(r"(?:^|/)(?:[Gg]radients(?:_\d+)?|gradient_tape)/")
#: Largest relative difference of statistics of the same values. _NEARER applies if statistics are the only evidence.
NEAR, _NEARER = 1e-3, 1e-4
#: Fills of a mask are at most -_FILL, and _FILL_SHARE times as large as all other elements.
_FILL, _FILL_SHARE = 1e3, 100
#: Maximum number of indices that are compared.
_MOST_INTEGERS = 1 << 16


class Read(NamedTuple):
    """An input of an operator.

    root   the identity of the tensor that the input is a view of
    maker  position of the operator that made this tensor; None if no earlier operator made it
    """

    record: Record
    root: Optional[Hashable]
    maker: Optional[int]


@dataclass
class Output:
    """One output of an operator that computes. Its norm, sum, minimum and maximum do not depend on the layout.

    operator  the position of the operator
    array     the values; None if the dump has statistics only
    size      number of elements
    fills     number of elements that a mask filled with a huge negative number; the array has infinities there

    The norm, sum (`total`), minimum (`low`) and maximum (`high`) are those of the finite elements.
    """

    operator: int
    record: Record
    array: Optional[np.ndarray]
    size: int
    norm: float
    total: float
    low: float
    high: float
    fills: int = 0

    def is_same(self, output: Output) -> bool:
        """Return True if both outputs have nearly the same values in some layout.

        If a side has no values, statistics decide.
        """
        if self.array is None or output.array is None:
            return self._near(output, _NEARER)
        return self._near(output, NEAR) and find_layout(self.array, output.array) is not None

    def distance(self, output: Output) -> Optional[float]:
        """Return the distance of the finite elements from another output, relative to its norm, in the best layout.

        None if a side has no values, or if no layout has nearly the same ones.
        """
        import numpy as np

        layout = None
        if self.array is not None and output.array is not None:
            layout = find_layout(self.array, output.array)
        if self.array is None or output.array is None or layout is None:
            return None
        with np.errstate(invalid="ignore"):
            difference = layout.of(self.array).astype(np.float64) - output.array.astype(np.float64)
        distance = float(np.linalg.norm(difference[np.isfinite(difference)]))
        return distance / output.norm if output.norm else (math.inf if distance else 0.0)

    def resembles(self, output: Output) -> bool:
        """Return True if a side has no values, and statistics nearly agree, as they do after a small fault."""
        return (self.array is None or output.array is None) and self._near(output, NEAR)

    def _near(self, output: Output, share: float) -> bool:
        if (self.size, self.fills) != (output.size, output.fills):
            return False
        scale = max(self.norm, output.norm)
        rms = scale / math.sqrt(self.size)
        return (
            abs(self.norm - output.norm) <= share * scale
            and abs(self.total - output.total) <= share * scale * math.sqrt(self.size)
            and abs(self.low - output.low) <= share * 10 * rms
            and abs(self.high - output.high) <= share * 10 * rms
        )

    def has_same_elements(self, output: Output) -> bool:
        """Return True if the elements are the same in any order, as far as statistics show."""
        same = (self.size, self.low, self.high) == (output.size, output.low, output.high)
        return same and math.isclose(self.norm, output.norm, rel_tol=1e-9, abs_tol=0.0)


class ProgramGraph:
    """The operators of one program, identified by their positions.

    computing  positions of the operators that compute floating-point values
    tensors    the outputs of each operator that computes
    """

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.operators = operators
        #: True if the other program is of another framework, whose optimizers compute the same in other ways.
        self.has_other_optimizer = False
        #: By position of an operator and part of memory: the numbers of parts of its output that both programs read.
        self.parts: Mapping[tuple[int, Hashable], int] = {}
        #: By the identity of a view: the tensor that it is a view of.
        self.views: dict[Hashable, Hashable] = {}
        #: By the identity of a tensor: the types in which it and its views are recorded.
        self.types: dict[Hashable, set[Optional[str]]] = {}
        #: By the identity of a tensor: the position of the operator that made it.
        self.makers: dict[Hashable, int] = {}
        self.computing: list[int] = []
        self._reads: dict[int, list[Read]] = {}
        #: By the identity of the object: the position of the operator that has this record as an input.
        self._readers = {id(record): number for number, operator in enumerate(operators) for record in operator.inputs}
        self.tensors: list[list[Output]] = [[] for _ in operators]
        for position, operator in enumerate(operators):
            self._add(position, operator)
        self._continued = {fused for position in self.computing for fused in self.before(position)}
        self._backward = [_is_backward(operator) for operator in operators]
        self._last_backward = max(filter(self._backward.__getitem__, self.computing), default=len(operators))

    def _add(self, position: int, operator: Operator) -> None:
        if is_source(operator.op_type) or not operator.outputs:
            return
        read = [identity_of(record) for record in operator.inputs]
        if is_view(operator.op_type) and not _alters(operator):
            # TensorFlow's `Split` has the axis as its first input.
            source = max(operator.inputs, key=_size, default=None)
            viewed = None if source is None else identity_of(source)
            for record in operator.outputs:
                written = identity_of(record)
                if source is None or viewed is None or written is None:
                    continue
                if written not in self.makers and written not in read:
                    self.views.setdefault(written, self.root(viewed))
                    types = self.types.setdefault(self.root(viewed), set())
                    types.update((source.dtype, record.dtype))
                    self.types[written] = types
            return
        for record in [*operator.outputs]:
            written = identity_of(record)
            if written is not None and written in read:
                continue
            try:
                tensor = _read_output(position, record)
            except ReadError as error:
                _set_aside(operator, record, error)
                continue
            if tensor is not None and written is not None:
                self.tensors[position].append(tensor)
                self.makers.setdefault(written, position)
        if self.tensors[position]:
            self.computing.append(position)

    def does(self, position: int) -> tuple[str, bool]:
        """Return the name of the operation, and True if the operator belongs to the backward pass.

        An addition after a product is named as a linear layer, because other frameworks run both as one operator.
        """
        return self._does(position), self._backward[position]

    def is_backward(self, position: int) -> bool:
        return self._backward[position]

    def is_of_optimizer(self, position: int) -> bool:
        """Return True for operators after the backward pass, if optimizers compute the same in other ways."""
        return self.has_other_optimizer and position > self._last_backward

    def is_linear(self, position: int) -> bool:
        return self._does(position) == _LINEAR

    def is_inside_linear(self, position: int) -> bool:
        """Return True if the operator and a later one are one operator in other frameworks."""
        return position in self._continued

    def _does(self, position: int) -> str:
        if position in self._continued:
            return _INSIDE
        name = operation(self.operators[position].op_type)
        before = (operation(self.operators[fused].op_type) for fused in self.before(position))
        if name == _ADDITION and _PRODUCT in before:
            return _LINEAR
        return name

    def before(self, position: int) -> list[int]:
        """Return the chain of operators before an operator that other frameworks fuse with it."""
        continued: list[int] = []
        stack = [position]
        while stack:
            current = stack.pop()
            names = continues(self.operators[current].op_type)
            if names:
                makers = [maker for _, _, maker in self.reads(current) if maker is not None]
                makers = [maker for maker in makers if operator_class(self.operators[maker].op_type) in names]
                if makers and not self._may_be_fused(current):
                    continue
                continued += makers
                stack += makers
        return continued

    def _may_be_fused(self, position: int) -> bool:
        """Return True if an operator after a product may belong to a linear layer: a bias, or a factor of the layer.

        An addition of two results of equal size is a residual, and a product with a tensor is no factor.
        """
        operator = self.operators[position]
        sizes = [_size(read.record) for read in self.reads(position)]
        if operation(operator.op_type) == _ADDITION:
            size = self.tensors[position][0].size
            return any(read.maker is None for read in self.reads(position)) or any(part < size for part in sizes)
        return operation(operator.op_type) != _FACTOR or len(sizes) < 2 or 1 in sizes

    def part_of(self, read: Read) -> Optional[int]:
        """Return the number of the part that is read of an output; None for a whole output, and if it is unknown."""
        return None if read.maker is None else self.parts.get((read.maker, part_of_memory(read.record)))

    def reader_of(self, record: Record) -> Optional[int]:
        """Return the position of the operator whose input a record is."""
        return self._readers.get(id(record))

    def is_overwritten(self, record: Record) -> bool:
        """Return True if the operator that reads an input also writes to its memory, as an optimizer does."""
        reader = self.reader_of(record)
        if reader is None or storage_of(record) is None:
            return False
        storages = {storage[0] for output in self.operators[reader].outputs if (storage := storage_of(output))}
        return (storage_of(record) or (None,))[0] in storages

    def root(self, identity: Optional[Hashable]) -> Optional[Hashable]:
        """Return the identity of the tensor that a view belongs to; the identity itself for other tensors."""
        return self.views.get(identity, identity)

    def reads(self, position: int) -> list[Read]:
        """Return the floating-point inputs that an operator reads."""
        reads = self._reads.get(position)
        if reads is not None:
            return reads
        reads = self._reads[position] = []
        for record in self.operators[position].inputs:
            if _is_float(record) and not is_unread(record):
                root = self.root(identity_of(record))
                maker = self.makers.get(root)
                # The first operator that wrote these bytes may run later than this one; then it is not the maker.
                reads.append(Read(record, root, maker if maker is not None and maker < position else None))
        return reads

    def integers(self, position: int) -> Optional[tuple[int, ...]]:
        """Return the elements of the largest input of integers; None if there is none, or it is very large."""
        inputs = self.operators[position].inputs
        indices = [record for record in inputs if (record.dtype or "").startswith(("int", "uint"))]
        record = max(indices, key=_size, default=None)
        if record is None or not 1 < _size(record) <= _MOST_INTEGERS:
            return None
        try:
            return tuple(as_in_model(record).reshape(-1).tolist())
        except AscendDumpError:
            return None

    def leading_to(self, operators: Collection[int], paired: Optional[Collection[int]] = None) -> set[int]:
        """Return the unpaired operators whose outputs lead to these paired ones, directly or through unpaired others.

        paired: all paired operators; None if these are all
        """
        paired = operators if paired is None else paired
        leading: set[int] = set()
        stack = list(operators)
        while stack:
            for _, _, maker in self.reads(stack.pop()):
                if maker is not None and maker not in paired and maker not in leading:
                    leading.add(maker)
                    stack.append(maker)
        return leading

    def reads_outside(self, position: int, paired: Collection[int]) -> list[Read]:
        """Return the tensors that enter an operator together with the unpaired operators before it.

        These tensors are outputs of paired operators, or come from outside of the program.
        """
        outside: dict[Hashable, Read] = {}
        visited = {position}
        stack = [position]
        while stack:
            for record, root, maker in self.reads(stack.pop()):
                if maker is None or maker in paired:
                    # Several parts of one tensor may be read: query, key and value of an attention.
                    outside.setdefault(part_of_memory(record), Read(record, root, maker))
                elif maker not in visited:
                    visited.add(maker)
                    stack.append(maker)
        return list(outside.values())


def part_of_memory(record: Record) -> Hashable:
    """Return the identity of a record, which may be that of a larger tensor, with offset and size of the part."""
    return identity_of(record), record.attrs.get("storage_offset"), _size(record)


def _alters(operator: Operator) -> bool:
    """Return True if a view or copy is wrong, because its output has other elements than its input."""
    if len(operator.inputs) != 1 or len(operator.outputs) != 1:
        return False
    read, written = operator.inputs[0], operator.outputs[0]
    if read.dtype != written.dtype or read.content is None or read.content == written.content:
        return False
    sizes = [math.prod(record.shape or ()) for record in (read, written)]
    if sizes[0] != sizes[1]:
        return False
    a, b = output_of(0, read), output_of(0, written)
    return a is not None and b is not None and not a.has_same_elements(b)


def _is_backward(operator: Operator) -> bool:
    return operator.phase == "backward" or _GRADIENTS.search(operator.op_name) is not None


def _size(record: Record) -> int:
    return math.prod(record.shape or ())


def _is_float(record: Record) -> bool:
    return (record.dtype or "").startswith(("float", "bfloat", "complex"))


def _set_aside(operator: Operator, output: Record, error: ReadError) -> None:
    """Move an output whose values cannot be read to the broken records of its operator, so that it is reported."""
    output.error = error
    operator.outputs = [record for record in operator.outputs if record is not output]
    operator.broken.append(output)


def output_of(position: int, record: Record) -> Optional[Output]:
    """Return the `Output` of a record; None without floating-point values or statistics, or if they cannot be read."""
    try:
        return _read_output(position, record)
    except ReadError:
        return None


def _read_output(position: int, record: Record) -> Optional[Output]:
    if not _is_float(record):
        return None
    try:
        array = as_in_model(record)
    except NotSupported:
        return _of_statistics(position, record)
    except ReadError:
        raise
    except AscendDumpError:
        return None
    if not array.size or array.dtype.kind == "c":
        return None
    import numpy as np

    values = array.astype(np.float64)
    fills = _fills(values)
    if fills is not None:
        # They would hide differences of all other elements.
        array = np.where(fills, array.dtype.type(-np.inf), array)
        values[fills] = -np.inf
    finite = values[np.isfinite(values)]
    if not finite.size:
        finite = np.zeros(1)
    norm, total = float(np.linalg.norm(finite)), float(finite.sum())
    low, high = float(finite.min()), float(finite.max())
    return Output(position, record, array, array.size, norm, total, low, high, 0 if fills is None else int(fills.sum()))


def _fills(values: np.ndarray) -> Optional[np.ndarray]:
    """Return where a mask put a huge negative number, such as -1e9 in the scores of an attention; None if nowhere."""
    import numpy as np

    low = float(np.min(values, initial=0.0, where=np.isfinite(values)))
    if low > -_FILL:
        return None
    fills: np.ndarray = np.isfinite(values) & (values < 0.9 * low)
    others = float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values) & ~fills))
    return fills if fills.sum() > 1 and others < -low / _FILL_SHARE else None


def _of_statistics(position: int, record: Record) -> Optional[Output]:
    """Return the `Output` of a record that has statistics only; None if any of them is unknown or not finite."""
    try:
        statistics = record.recorded_statistics()
    except AscendDumpError:
        return None
    if statistics is None or not statistics.count:
        return None
    numbers = (statistics.l2norm, statistics.mean, statistics.min, statistics.max)
    if any(number is None or not math.isfinite(number) for number in numbers):
        return None
    norm, mean, low, high = (float(number) for number in numbers if number is not None)
    return Output(position, record, None, statistics.count, norm, mean * statistics.count, low, high)
