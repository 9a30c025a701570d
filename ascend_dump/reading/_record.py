"""Record: one tensor, or its statistics, of one operator at one step on one rank."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol, Union

from ascend_dump.errors import CorruptDump, NotSupported, ReadError

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.dump_format import Arguments, Line
    from ascend_dump.statistics import Precision, Statistics

__all__ = ["FIELDS", "Loader", "Record", "arguments_of"]


class Loader(Protocol):
    """An object that reads the tensor and the recorded statistics of records; each dialect implements one.

    Optional methods: `precision(record)` returns the `Precision` of recorded statistics that are rounded;
    `content(record)` returns the value of `Record.content`.
    """

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        """Return the logical tensor, converted to the layout `format`; None: in the layout it had on the device."""

    def statistics(self, record: Record) -> Optional[Statistics]:
        """Return the recorded statistics; None if the dump has none for this record."""


#: The public fields in the order every table and JSON document lists them.
FIELDS = (
    "op_type",
    "op_name",
    "io",
    "index",
    "step",
    "rank",
    "device",
    "model",
    "model_id",
    "run",
    "task_id",
    "stream_id",
    "timestamp",
    "dtype",
    "shape",
    "format",
    "nbytes",
    "phase",
    "module",
    "source",
    "kernel",
    "path",
)


#: Attributes about the stored bytes and the memory of a whole tensor. They are not valid for a part of the tensor.
_OF_BYTES = ("hash", "stride", "storage_offset", "storage_nbytes", "address")


#: Maximum size in bytes of the text of a call whose names of arguments are cached.
_MOST_REPEATED = 2048


def arguments_of(call: bytes) -> Mapping[tuple[str, int], str]:
    """Return the names of the arguments that a call of an operator gives to tensors, by `io` and index of their
    records, see `dump_format.read_call`; empty for damaged text.
    """
    # Most calls are repeated in each step.
    return (_arguments_of if len(call) <= _MOST_REPEATED else _arguments_of_long)(call)


def _read_arguments(call: bytes) -> Mapping[tuple[str, int], str]:
    from ascend_dump.dump_format import read_call

    try:
        return read_call(call).names()
    except ValueError:
        return {}


_arguments_of = functools.lru_cache(1 << 12)(_read_arguments)
_arguments_of_long = functools.lru_cache(1)(_read_arguments)


class Record:
    """One input or output of an operator: the unit of reading. Fields that a dialect does not know are None.

    Records are equal if all their fields are equal, so only records of the same dump are. To compare values, compare
    `numpy()`. A record that cannot be read has empty names and an empty `io`, unless they are known from the file name.

    op_type, op_name   as the framework names them
    io, index          "input" or "output" (or "buffer", "space"), and the position among the inputs or outputs
    step               as counted by the framework; None outside any step
    rank, device       global rank and device id
    model, model_id    name and number of the model or graph
    run                the name of the time directory (`YYYYmmddHHMMSS`)
    task_id, stream_id of the operator's execution on the device
    timestamp          microseconds since the epoch
    dtype, shape       numpy or ml_dtypes name, tuple of ints
    format             CANN's name of the layout (`ND`, `NC1HWC0`, …)
    nbytes             bytes of the logical tensor
    phase              "forward", "backward" or "other"
    module, source     path of the module, and `file:line` of the user's code
    kernel             a kernel that an API call on an NPU started (`AddAiCore` for `aclnnAdd`); None for the call
                       itself and for other dumps
    attrs              additional fields of its dialect (hash, stride, storage, …)
    error              the reason why this record cannot be read; reading its values raises this error
    loader, key        for authors of dialects: the object that reads the values, and its argument for this record

    >>> record = ascend_dump.open("dumps")[0]                    # doctest: +SKIP
    >>> record.op_name, record.shape, record.statistics().max    # doctest: +SKIP
    """

    __slots__ = (*FIELDS, "error", "loader", "key", "_attrs", "_call", "_nth", "_original")

    op_type: str
    op_name: str
    io: str
    index: int
    step: Optional[int]
    rank: Optional[int]
    device: Optional[int]
    model: Optional[str]
    model_id: Optional[int]
    run: Optional[str]
    task_id: Optional[int]
    stream_id: Optional[int]
    timestamp: Optional[int]
    dtype: Optional[str]
    shape: Optional[tuple[int, ...]]
    format: Optional[str]
    nbytes: Optional[int]
    phase: Optional[str]
    module: Optional[str]
    source: Optional[str]
    kernel: Optional[str]
    path: Path
    error: Optional[ReadError]
    loader: Optional[Loader]
    key: Any

    def __init__(
        self,
        loader: Optional[Loader],
        *,
        path: Path,
        op_type: str = "",
        op_name: str = "",
        io: Optional[str] = None,
        index: int = 0,
        key: Any = None,
        error: Optional[ReadError] = None,
        attrs: Union[dict[str, Any], Callable[[Any], dict[str, Any]], None] = None,
        step: Optional[int] = None,
        rank: Optional[int] = None,
        device: Optional[int] = None,
        model: Optional[str] = None,
        model_id: Optional[int] = None,
        run: Optional[str] = None,
        task_id: Optional[int] = None,
        stream_id: Optional[int] = None,
        timestamp: Optional[int] = None,
        dtype: Optional[str] = None,
        shape: Optional[tuple[int, ...]] = None,
        format: Optional[str] = None,
        nbytes: Optional[int] = None,
        phase: Optional[str] = None,
        module: Optional[str] = None,
        source: Optional[str] = None,
        kernel: Optional[str] = None,
        nth: Optional[int] = None,
        call: bytes = b"",
    ) -> None:
        """Create a record.

        attrs: a dictionary, or a function from `key` to a dictionary, called when the attributes are first used
        nth: the number of this execution among the operator's executions. Needed only if these cannot be told apart by
        timestamp and task, because timestamps and tasks differ between the inputs and outputs of one execution
        call: the arguments of the operator, for `ascend_dump.dump_format.read_call`
        """
        # No loop over the names, because it would dominate the time of listing a large dump.
        self.loader = loader
        self.key = key
        self.path = path
        self.op_type = op_type
        self.op_name = op_name
        self.io = io if io is not None else "output" if error is None else ""
        self.index = index
        self.error = error
        self._attrs = {} if attrs is None else attrs
        self.step = step
        self.rank = rank
        self.device = device
        self.model = model
        self.model_id = model_id
        self.run = run
        self.task_id = task_id
        self.stream_id = stream_id
        self.timestamp = timestamp
        self.dtype = dtype
        self.shape = shape
        self.format = format
        self.nbytes = nbytes
        self.phase = phase
        self.module = module
        self.source = source
        self.kernel = kernel
        self._nth = nth
        self._original: Optional[Record] = None
        self._call = call

    @classmethod
    def of_line(
        cls,
        line: Line,
        loader: Optional[Loader],
        path: Path,
        error: Optional[ReadError],
        call: bytes,
        attrs: Callable[[Any], dict[str, Any]],
        shared: Mapping[str, Any],
    ) -> Record:
        """Return the record of a line of an index in the dump format.

        This is as calling the class, in a third of the time: dumps have millions of lines.

        attrs, call  as in `__init__`
        shared       the fields that all lines have, from directory names
        """
        record = cls.__new__(cls)
        record.loader, record.key, record.path, record.error = loader, line, path, error
        record.op_type, record.op_name, record.io, record.index = line.op_type, line.op_name, line.io, line.index
        record.dtype, record.shape, record.format, record.nbytes = line.dtype, line.shape, "ND", line.nbytes
        record.phase, record.module, record.source = line.phase, line.module, line.source or None
        record.timestamp, record._nth, record._call = line.time, line.seq, call
        get = shared.get
        record.step, record.rank, record.run = get("step"), get("rank"), get("run")
        record.device, record.model, record.model_id = get("device"), get("model"), get("model_id")
        record.task_id = record.stream_id = record.kernel = record._original = None
        record._attrs = attrs
        return record

    @property
    def attrs(self) -> dict[str, Any]:
        attrs = self._attrs
        if not isinstance(attrs, dict):
            attrs = self._attrs = attrs(self.key)
        return attrs

    @property
    def arguments(self) -> Optional[Arguments]:
        """The arguments of the operator, with tensors as references to records; None if the dump does not record them.

        Dumps of PyTorch in the dump format record them: `record.arguments.values["eps"]`. All records of one call
        return the same arguments. Raises CorruptDump for damaged text.
        """
        if not self._call:
            return None
        from ascend_dump.dump_format import read_call

        try:
            return read_call(self._call)
        except ValueError as error:
            raise CorruptDump(
                f"{self.label}: its arguments cannot be read: {str(error)[:300]}",
                path=self.path,
                hint="the tensors of the operator can be read all the same",
            ) from None

    def has_call_of(self, other: Record) -> bool:
        """Return True if the operators of both records were called with the same arguments, as far as they are known.

        The recorded text is compared, which is faster than comparing `arguments`. False if the texts differ.
        """
        return self._call == other._call

    def as_argument(self, op_type: str, index: int, call: bytes) -> Record:
        """Return a copy of this record with another `op_type` and `index`. call: as for `Record`."""
        import copy

        record = copy.copy(self)
        record.op_type, record.index, record._call = op_type, index, call
        return record

    def as_part(self, loader: Loader, shape: tuple[int, ...]) -> Record:
        """Return a record for a part of this tensor. loader: reads the part.

        The part has no hash and no memory address, because those in `attrs` belong to the whole tensor.
        """
        import copy

        part = copy.copy(self)
        part.loader, part.shape, part._original = loader, shape, self.original
        part._attrs = {name: value for name, value in self.attrs.items() if name not in _OF_BYTES}
        part.nbytes = (
            None if self.nbytes is None else self.nbytes * math.prod(shape) // max(math.prod(self.shape or ()), 1)
        )
        return part

    def as_transposed(self, loader: Loader, index: int) -> Record:
        """Return a record with another `index` for this matrix, transposed in the same memory. loader: reads it."""
        import copy

        record = copy.copy(self)
        record.loader, record.index, record._original = loader, index, self.original
        record.shape = None if self.shape is None else self.shape[::-1]
        attrs = {name: value for name, value in self.attrs.items() if name != "hash"}
        record._attrs = {**attrs, "stride": list(self.attrs.get("stride") or ())[::-1]}
        return record

    def as_parameter(self, name: str) -> Record:
        """Return a copy of this record with another `parameter`."""
        import copy

        record = copy.copy(self)
        record._attrs = {**self.attrs, "parameter": name}
        record._original = self.original
        return record

    @property
    def original(self) -> Record:
        """The record of the dump, of which this one may be a copy with another `parameter`."""
        return self if self._original is None else self._original

    def as_eager(self, api: str, op_name: str, kernel: Optional[str], nth: int) -> Record:
        """Change this record to a record of one API call on an NPU, or of a kernel that the call started.

        CANN writes the inputs and the outputs of such an execution into several files, so that only `nth` joins them.
        """
        self.op_type, self.op_name, self.kernel, self._nth = api, op_name, kernel, nth
        return self

    @property
    def stack(self) -> tuple[str, ...]:
        """The call stack that led to the operator, innermost function first: `model.py:7 in forward`.

        () if the dump does not record it. PyTorch's is recorded with `options={"stack": True}`; MindSpore's is known if
        the dump has its graphs. Raises CorruptDump for damaged text.
        """
        recorded = self.attrs.get("stack")
        if recorded is not None or not self._call:
            return tuple(map(str, recorded)) if isinstance(recorded, (list, tuple)) else ()
        from ascend_dump.dump_format import read_stack

        try:
            return read_stack(self._call)
        except ValueError as error:
            raise CorruptDump(
                f"{self.label}: its call stack cannot be read: {str(error)[:300]}",
                path=self.path,
                hint="the tensors of the operator can be read all the same",
            ) from None

    @property
    def argument(self) -> Optional[str]:
        """The name of this tensor in the schema of its operator: `weight`, `exp_avgs[3]`.

        None if the dump does not record it, and for outputs without a name. Dumps of PyTorch in the dump format name
        inputs, outputs that have a name in the schema, and arguments that the operator writes into.
        """
        name: Optional[str] = self.attrs.get("argument")
        if name is not None or not self._call:
            return name
        return arguments_of(self._call).get((self.io, self.index))

    @property
    def parameter(self) -> Optional[str]:
        """The model's parameter that this tensor is or belongs to; None for other tensors.

        `fc.weight` is the parameter itself, `fc.weight.grad` its gradient, `exp_avg of fc.weight` a state that the
        optimizer keeps for it. Dumps of PyTorch in the dump format have it for operators outside of all modules, and
        for the first record of a parameter in each step. Optimizer states have a name from the second step on. The
        statistics of level="module" have it for the norms of a parameter, its gradient and its change (`change of
        fc.weight`).
        """
        name: Optional[str] = self.attrs.get("parameter")
        return name

    @property
    def content(self) -> Optional[tuple[Hashable, ...]]:
        """A value that is equal for equal tensors of any two dumps, and needs no tensor; None if the dump has no hash.

        The first item is the hash of the stored bytes. The other items say which of these bytes are the tensor's
        elements, and in which order.
        """
        find = getattr(self.loader, "content", None)
        return None if find is None or self.error is not None else find(self)

    def numpy(self, *, format: Optional[str] = None) -> np.ndarray:
        """Read the logical tensor. bfloat16 and float8 arrays have types of ml_dtypes.

        format: the layout to convert to, such as "NCHW"; NotSupported if the dialect cannot convert to it.

        An array of more than 4096 bytes may be a read-only view of the mapped file: if that file is truncated while the
        array is in use, the system ends the process (SIGBUS). Copy arrays that have to outlive changes of the dump.

        Raises ReadError, and NotSupported for a record that has statistics only.
        """
        if self.error is not None:
            raise self.error
        if self.loader is None:
            skipped = self.attrs.get("skipped")
            if skipped:
                raise NotSupported(
                    f"{self} was not stored: {skipped}", hint="the other tensors of the operator can be read"
                )
            raise NotSupported(
                f"{self} holds no tensor",
                hint="try its statistics(); dump with data='tensor' to store values",
            )
        return self.loader.tensor(self, format)

    def torch(self, *, writable: bool = True) -> Any:
        """Return the logical tensor as a PyTorch tensor on the CPU, with PyTorch's own bfloat16 and float8 types.

        writable: return a copy that the program may change. If False, the tensor shares the memory of `numpy()`, which
        may be a mapped file. PyTorch has no read-only tensors: an operator that writes to this one ends the process
        (SIGSEGV).

        Raises ReadError, NotSupported for records without values and for types that PyTorch lacks, and FrameworkMissing
        if PyTorch is not installed.

        >>> model.load_state_dict({"weight": record.torch()})   # doctest: +SKIP
        """
        from ascend_dump.reading.torch_tensors import as_torch

        return as_torch(self.numpy(), writable=writable)

    def statistics(self) -> Statistics:
        """Return the recorded statistics; if there are none, read the tensor and compute them."""
        recorded = self.recorded_statistics()
        if recorded is not None:
            return recorded
        from ascend_dump.statistics import statistics

        return statistics(self.numpy())

    def recorded_statistics(self) -> Optional[Statistics]:
        """Return the recorded statistics; None if there are none. Reads no tensor."""
        if self.error is not None:
            raise self.error
        return None if self.loader is None else self.loader.statistics(self)

    @property
    def precision(self) -> Precision:
        """The precision of the values that `statistics()` returns: recorded ones may be rounded."""
        from ascend_dump.statistics import COMPUTED

        find: Optional[Callable[[Record], Precision]] = getattr(self.loader, "precision", None)
        return COMPUTED if find is None or self.recorded_statistics() is None else find(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON, with the path as text; `attrs` and `error` only if set."""
        out: dict[str, Any] = {name: getattr(self, name) for name in FIELDS}
        out["path"] = str(self.path)
        if self.shape is not None:
            out["shape"] = list(self.shape)
        if self.attrs:
            out["attrs"] = self.attrs
        if self.error is not None:
            out["error"] = str(self.error)
        return out

    @property
    def nth(self) -> Optional[int]:
        """The number of this execution, if only that tells it from other executions of the operator."""
        return self._nth

    @property
    def execution(self) -> tuple[Any, ...]:
        """A key of one execution of an operator. Records of the same execution have equal keys; others do not."""
        # This is called for each record of a dump, so there is one tuple, without a shared part.
        nth = self._nth
        is_timed = nth is None
        return (
            self.run,
            self.rank,
            self.device,
            self.model,
            self.model_id,
            self.step,
            self.op_type,
            self.op_name,
            self.task_id if is_timed else None,
            self.stream_id if is_timed else None,
            self.timestamp if is_timed else None,
            nth,
        )

    @property
    def label(self) -> str:
        """A readable name: `layers.0/addmm_0.output.0`; the name of the file if the operator is unknown."""
        name = self.op_name or self.op_type or self.path.name
        return f"{name}.{self.io}.{self.index}" if self.io else name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in FIELDS) and (
            str(self.error) == str(other.error)
        )

    def __hash__(self) -> int:
        return hash((self.path, self.step, self.op_name, self.io, self.index, self.timestamp))

    def __repr__(self) -> str:
        step = "" if self.step is None else f"step {self.step} "
        shape = "" if self.shape is None else f" {self.dtype}{list(self.shape)}"
        broken = " (unreadable)" if self.error is not None else ""
        return f"<Record {step}{self.label}{shape}{broken}>"

    def _repr_html_(self) -> str:
        """Return the known fields as a small static table, for notebooks."""
        from ascend_dump.common.html import html_table

        rows = [(name, value) for name, value in self.to_dict().items() if value is not None and value != ""]
        return html_table(repr(self), ("field", "value"), rows)
