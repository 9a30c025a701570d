"""Record: one tensor, or its statistics, of one operator at one step on one rank."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol, Union

from ascend_dump.errors import CorruptDump, NotSupported, ReadError

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.dump_format import Arguments
    from ascend_dump.statistics import Precision, Statistics

__all__ = ["FIELDS", "Loader", "Record"]


class Loader(Protocol):
    """Reads the payload of a record; implemented by each dialect.

    If recorded statistics are rounded, a method `precision(record)` returns their `Precision`.
    """

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        """Return the logical tensor, in `format` if given, else in the layout that it had on the device."""

    def statistics(self, record: Record) -> Optional[Statistics]:
        """Return the statistics in the dump; None if there are none."""


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


#: Attributes of the bytes of a tensor in its file and in memory, which a part of it does not have.
_OF_BYTES = ("hash", "stride", "storage_offset", "storage_nbytes", "address")


#: Bytes of a call whose names of arguments are cached.
_MOST_REPEATED = 2048


@functools.lru_cache(1 << 12)
def _name_of_argument(call: bytes, io: str, index: int) -> Optional[str]:
    """Return the argument that a tensor is in a call, see `dump_format.read_call`. Raises ValueError."""
    from ascend_dump.dump_format import read_call

    return read_call(call).name_of(io, index)


class Record:
    """One input or output of an operator: the unit of reading. Fields that a dialect does not know are None.

    Records are equal if all their fields are: they are the same place in the same dump. To compare values, compare
    `numpy()`. A record that cannot be read has empty names and an empty `io`, unless they are known nevertheless.

    op_type, op_name   as the framework names them
    io, index          "input" or "output" (or "buffer", "space"), and its position
    step               as counted by the framework; None outside any step
    rank, device       global rank and device id
    model, model_id    the model or graph; run is the time directory (`YYYYmmddHHMMSS`)
    task_id, stream_id of the device's execution
    timestamp          microseconds since the epoch
    dtype, shape       numpy or ml_dtypes name, tuple of ints
    format             CANN's name of the layout (`ND`, `NC1HWC0`, …)
    nbytes             bytes of the logical tensor
    phase              "forward", "backward" or "other"
    module, source     path of the module, and `file:line` of the user's code
    kernel             the kernel of an API call on an NPU (`AddAiCore` of `aclnnAdd`); None for the call, and elsewhere
    attrs              fields of this dialect only (hash, stride, storage, …)
    error              why this record cannot be read; reading its values raises this error
    loader, key        for authors of dialects: the reader of the payload, and the key that it finds the payload by

    >>> record = ascend_dump.open("dumps")[0]                    # doctest: +SKIP
    >>> record.op_name, record.shape, record.statistics().max    # doctest: +SKIP
    """

    __slots__ = (*FIELDS, "error", "loader", "key", "_attrs", "_call", "_nth")

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
        """attrs may be a function of `key` that makes them when they are needed.

        nth: the number of this run of the operator, if its inputs and outputs have different timestamps or tasks. call:
        the arguments of the operator, for `ascend_dump.dump_format.read_call`.
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
        self._call = call

    @property
    def attrs(self) -> dict[str, Any]:
        attrs = self._attrs
        if not isinstance(attrs, dict):
            attrs = self._attrs = attrs(self.key)
        return attrs

    @property
    def arguments(self) -> Optional[Arguments]:
        """The arguments of the operator, with tensors as references to records; None if the dump does not record them.

        Host dumps of PyTorch do: `record.arguments.values["eps"]`. All records of a call have the same. Raises
        CorruptDump for damaged text.
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

    def as_argument(self, op_type: str, index: int, call: bytes) -> Record:
        """Return the same tensor as an input or output of another operator. call: as for `Record`."""
        import copy

        record = copy.copy(self)
        record.op_type, record.index, record._call = op_type, index, call
        return record

    def as_part(self, loader: Loader, shape: tuple[int, ...]) -> Record:
        """Return a part of this tensor, which the loader reads; it has no hash and no place in memory of its own."""
        import copy

        part = copy.copy(self)
        part.loader, part.shape = loader, shape
        part._attrs = {name: value for name, value in self.attrs.items() if name not in _OF_BYTES}
        part.nbytes = (
            None if self.nbytes is None else self.nbytes * math.prod(shape) // max(math.prod(self.shape or ()), 1)
        )
        return part

    def as_eager(self, api: str, op_name: str, kernel: Optional[str], nth: int) -> Record:
        """Return this record as one of an API call or of its kernel, whose inputs and outputs are in several files."""
        self.op_type, self.op_name, self.kernel, self._nth = api, op_name, kernel, nth
        return self

    @property
    def stack(self) -> tuple[str, ...]:
        """The call stack that led to the operator, innermost function first: `model.py:7 in forward`.

        () if the dump does not record it. Host dumps of PyTorch do with `options={"stack": True}`, MindSpore's if the
        dump has its graphs. Raises CorruptDump for damaged text.
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

        None if the dump does not record it, and for outputs without a name. Host dumps of PyTorch name inputs, outputs
        that have a name in the schema, and arguments that the operator writes into.
        """
        name: Optional[str] = self.attrs.get("argument")
        if name is not None or self.io not in ("input", "output"):
            return name
        call = self._call
        if not call:
            return None
        try:
            # Most calls are repeated in each step.
            name_of = _name_of_argument if len(call) <= _MOST_REPEATED else _name_of_argument.__wrapped__
            return name_of(call, self.io, self.index)
        except ValueError:
            return None

    @property
    def parameter(self) -> Optional[str]:
        """The parameter of a tensor of an optimizer: the parameter itself (`fc.weight`), its gradient
        (`fc.weight.grad`), or a state of it (`exp_avg of fc.weight`).

        None elsewhere. Host dumps of PyTorch have it for operators outside of all modules, and for the first record of
        a parameter in each step. States have a name from the second step on. Statistics of level="module" have it for
        the norms of a parameter, of its gradient and of its change (`change of fc.weight`).
        """
        name: Optional[str] = self.attrs.get("parameter")
        return name

    @property
    def content(self) -> Optional[tuple[Hashable, ...]]:
        """Equal for equal tensors of any two dumps, without reading them; None if the dump has no hash.

        The first item is the hash of the stored bytes; the others describe their selection and order.
        """
        find = getattr(self.loader, "content", None)
        return None if find is None or self.error is not None else find(self)

    def numpy(self, *, format: Optional[str] = None) -> np.ndarray:
        """Read the logical tensor; bfloat16 and float8 have ml_dtypes types.

        format: another layout to convert to, such as "NCHW", if the dialect can.

        An array of more than 4096 bytes may be a read-only view of the mapped file: if that file is truncated while the
        array is in use, the system ends the process (SIGBUS). Copy arrays that have to outlive changes of the dump.

        Raises ReadError, and NotSupported for a record that holds statistics only.
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
                hint="its statistics() may be there; dump with data='tensor' to keep values",
            )
        return self.loader.tensor(self, format)

    def torch(self, *, writable: bool = True) -> Any:
        """Return the logical tensor as a PyTorch tensor on the CPU, with PyTorch's own bfloat16 and float8 types.

        writable: a copy that the program may change. If False, it shares the memory of `numpy()`, which may be a
        mapped file; as PyTorch has no read-only tensors, an operator that writes to it ends the process (SIGSEGV).

        Raises ReadError, NotSupported for records without values and for types that PyTorch lacks, and FrameworkMissing
        if PyTorch is not installed.

        >>> model.load_state_dict({"weight": record.torch()})   # doctest: +SKIP
        """
        from ascend_dump.reading.torch_tensors import as_torch

        return as_torch(self.numpy(), writable=writable)

    def statistics(self) -> Statistics:
        """Return the recorded statistics, else those computed from the tensor in one pass."""
        recorded = self.recorded_statistics()
        if recorded is not None:
            return recorded
        from ascend_dump.statistics import statistics

        return statistics(self.numpy())

    def recorded_statistics(self) -> Optional[Statistics]:
        """Return the recorded statistics, None if there are none; no tensor is read."""
        if self.error is not None:
            raise self.error
        return None if self.loader is None else self.loader.statistics(self)

    @property
    def precision(self) -> Precision:
        """The rounding of `statistics()`."""
        from ascend_dump.statistics import COMPUTED

        find: Optional[Callable[[Record], Precision]] = getattr(self.loader, "precision", None)
        return COMPUTED if find is None or self.recorded_statistics() is None else find(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, paths as text; attrs and error are included when set."""
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
    def execution(self) -> tuple[Any, ...]:
        """Identifies one run of an operator: equal for its records, different for those of other runs."""
        operator = (self.run, self.rank, self.device, self.model, self.model_id, self.step, self.op_type, self.op_name)
        if self._nth is not None:
            return (*operator, None, None, None, self._nth)
        return (*operator, self.task_id, self.stream_id, self.timestamp, None)

    @property
    def label(self) -> str:
        """A readable name: `layers.0/addmm_0.output.0`, or the file if even that is unknown."""
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
