"""Convert one dump file of CANN: all tensors that can be converted, with the reasons for the others."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from ascend_dump.common.units import counted
from ascend_dump.converting._outputs import (
    copy_as_npy,
    fit_name,
    make_output_directory,
    write_bytes,
    write_npy,
    write_npz,
    write_text,
)
from ascend_dump.errors import AscendDumpError, NotSupported, ReadError
from ascend_dump.native.cann.dtypes import DataType, data_type
from ascend_dump.native.cann.dump_file import Buffer, DumpFile, Entry, Space, Tensor, decode, payload, read_header
from ascend_dump.native.cann.formats import Arranged, arrange, format_name
from ascend_dump.native.cann.names import parse_name
from ascend_dump.steps import Steps
from ascend_dump.storage.files import open_descriptor

if TYPE_CHECKING:
    import numpy as np

    _Array = np.ndarray[Any, Any]

__all__ = ["ConversionFailure", "Options", "Result", "cast", "convert_file", "find_dtype"]

#: Types of numpy to which integer types of ml_dtypes are widened in files. Other types of ml_dtypes become float32.
_WIDER = {"int4": "int8", "int2": "int8", "uint2": "uint8"}


class Options(NamedTuple):
    """The options of a conversion.

    type             type of the written files, such as npy, npz, bin, txt or csv
    format           the layout to convert to, see `cann.formats`; None: the layout on the device
    dtype            the type to which values are converted; None: unchanged as far as the file type allows
    io, indices      convert only inputs or only outputs, and only these positions; None: all
    shape            with `format`: the shape in the model, which replaces the one in the header
    original_format  the layout of the model, which replaces the one in the header
    names            form of file names: "msaccucmp", or "ours" with dtype, shape and layout
    """

    type: str = "npy"
    format: Optional[str] = None
    dtype: Optional[str] = None
    io: Optional[str] = None
    indices: Optional[Steps] = None
    shape: tuple[int, ...] = ()
    original_format: Optional[str] = None
    names: str = "msaccucmp"

    def wants(self, io: str, index: int) -> bool:
        return self.io in (None, io) and (self.indices is None or index in self.indices)


class ConversionFailure(NamedTuple):
    """A tensor that could not be converted. what: such as "input 0"; "" for the whole file."""

    source: Path
    what: str
    error: AscendDumpError


class Result(NamedTuple):
    """The result of converting one dump file, or records that belong into one output file.

    source    the dump file
    written   the written files; size: their bytes
    failures  the tensors that could not be converted
    problems  sentences about irregularities
    skipped   True for a file that is not named like a dump file and is none, and for a record without values
    records   number of records that were converted together
    """

    source: Path
    written: tuple[Path, ...] = ()
    failures: tuple[ConversionFailure, ...] = ()
    problems: tuple[str, ...] = ()
    size: int = 0
    skipped: bool = False
    records: int = 1


class _Writer:
    """The state of converting one dump file: the files written so far, the failures and the tensors for an npz file."""

    def __init__(self, dump: DumpFile, out: Path, options: Options, name: str) -> None:
        self.dump = dump
        self.name = name
        self.out = out
        self.options = options
        self.written: list[Path] = []
        self.failures: list[ConversionFailure] = []
        self.problems = list(dump.problems)
        self.archive: dict[str, _Array] = {}
        self.size = 0

    def path(self, suffix: str) -> Path:
        """Return the path of an output file. suffix: the part of its name after the dump file's name."""
        if not self.written:
            make_output_directory(self.out)
        name = self.name + suffix
        return self.out / fit_name(self.out, name, os.path.splitext(name)[1])

    def add(self, path: Path, size: int) -> None:
        self.written.append(path)
        self.size += size


def convert_file(source: Path, out: Path, options: Options, name: str = "") -> Result:
    """Convert the dump file `source`, and write the files into the directory `out`, which is created if necessary.

    name: the original name of the file, if its name on disk is a hash.

    Raises ReadError if `source` is not a dump file; WriteError if `out` cannot be written. Errors of single tensors
    are in the result.
    """
    dump = read_header(source)
    writer = _Writer(dump, out, options, name or source.name)
    try:
        opened = os.fdopen(open_descriptor(source), "rb")
    except OSError as error:  # the file was changed after its header was read
        raise ReadError(f"cannot be opened any more: {error.strerror}", path=source) from None
    with opened as file:
        entries: tuple[Entry, ...] = (*dump.tensors, *dump.buffers, *dump.spaces)
        for entry in entries:
            io = entry.io if isinstance(entry, Tensor) else entry.kind
            if not options.wants(io, entry.index):
                continue
            if entry.size and not entry.length and not entry.error:
                writer.problems.append(f"{io} {entry.index}: nothing was dumped, its address was null on the device")
                continue
            try:
                _write(writer, entry, file.fileno())
            except (ReadError, NotSupported) as error:
                writer.failures.append(ConversionFailure(source, f"{io} {entry.index}", error))
    if writer.archive:
        path = writer.path(".npz")
        writer.add(path, write_npz(path, writer.archive))
    return Result(source, tuple(writer.written), tuple(writer.failures), tuple(writer.problems), writer.size)


def _write(writer: _Writer, entry: Entry, descriptor: int) -> None:
    if not isinstance(entry, Tensor):
        _write_memory(writer, entry)
    elif entry.io == "output" and _is_overflow(writer.name) and writer.options.type != "bin":
        _write_overflow(writer, entry)
    else:
        _write_tensor(writer, entry, descriptor)


def _is_overflow(file_name: str) -> bool:
    """Return True for the name of a file with an overflow record, which is no tensor and is written as JSON."""
    name = parse_name(file_name)
    return name is not None and name.overflow


def _write_overflow(writer: _Writer, tensor: Tensor) -> None:
    from ascend_dump.native.cann.overflow import decode_overflow

    document = decode_overflow(payload(writer.dump, tensor).tobytes()).document
    path = writer.path(f".{tensor.io}.{tensor.index}.json")
    writer.add(path, write_bytes(path, json.dumps(document, indent=4).encode()))


def _write_memory(writer: _Writer, entry: Union[Buffer, Space]) -> None:
    raw = payload(writer.dump, entry)
    if writer.options.type == "npz":
        writer.archive[f"{entry.kind}.{entry.index}"] = raw
        return
    path = writer.path(f".{entry.kind}.{entry.index}.bin")
    writer.add(path, write_bytes(path, raw))


def _write_tensor(writer: _Writer, tensor: Tensor, descriptor: int) -> None:
    options = writer.options
    cann_type = data_type(tensor.data_type)
    if options.format is None and options.dtype is None:
        if options.type == "bin":
            raw = payload(writer.dump, tensor)
            needed = (math.prod(tensor.shape) * cann_type.bits + 7) // 8
            if cann_type.bits and needed <= raw.size:
                raw = raw[:needed]
            path = writer.path(_suffix(options, tensor, tensor.shape, _type_of_bytes(cann_type)))
            writer.add(path, write_bytes(path, raw))
            return
        if options.type == "npy" and _can_be_copied(tensor, cann_type):
            path = writer.path(_suffix(options, tensor, tensor.shape, cann_type.numpy))
            size = math.prod(tensor.shape) * cann_type.bits // 8
            writer.add(path, copy_as_npy(path, descriptor, tensor.offset, size, _dtype_str(cann_type), tensor.shape))
            return
    arranged = _arranged(writer.dump, tensor, options)
    array = _in_numpy_type(arranged.array, options, f"{tensor.io} {tensor.index}", writer.problems)
    if options.type == "npz":
        writer.archive[f"{tensor.io}.{tensor.index}"] = array
        return
    kind = options.dtype or arranged.array.dtype.name
    path = writer.path(_suffix(options, tensor, array.shape, kind, arranged.layout))
    if options.type == "npy":
        size = write_npy(path, array)
    elif options.type == "bin":
        import numpy as np

        size = write_bytes(path, np.ascontiguousarray(array))
    elif options.type == "csv":
        size = write_text(path, array, ",", "")
    else:
        size = write_text(path, array, " ", f"# {array.dtype.name} {list(array.shape)} {arranged.layout}\n")
    writer.add(path, size)


def _type_of_bytes(cann_type: DataType) -> str:
    """Return the type for the name of a bin file: numpy's, or CANN's if numpy has no type with the same bytes."""
    return cann_type.numpy if cann_type.storage == "plain" else cann_type.name.lower()


def _can_be_copied(tensor: Tensor, cann_type: DataType) -> bool:
    """Return True if bytes of the payload can be copied into an npy file: numpy has the type, no byte is missing.

    Bytes of BOOL (11) are never copied: for the device any byte except 0 means true, for numpy only 1.
    """
    if tensor.error or not cann_type.bits or cann_type.value == 11:
        return False
    import numpy as np

    if cann_type.storage != "plain" or not hasattr(np, cann_type.numpy) or len(tensor.shape) > 32:
        return False
    return 0 < math.prod(tensor.shape) * cann_type.bits // 8 <= tensor.length


def _dtype_str(cann_type: DataType) -> str:
    import numpy as np

    text: str = np.dtype(cann_type.numpy).str
    return text


def _arranged(dump: DumpFile, tensor: Tensor, options: Options) -> Arranged:
    array = decode(dump, tensor)
    source = format_name(tensor.format)
    if options.format is None:
        return Arranged(array, source)
    origin = tensor.original_op
    model_layout = None if origin is None else format_name(origin.format)
    return arrange(
        array,
        source,
        options.format,
        original_shape=options.shape or tensor.original_shape,
        original_format=options.original_format or model_layout,
        groups=max(1, tensor.sub_format),
    )


def _in_numpy_type(array: _Array, options: Options, what: str, problems: list[str]) -> _Array:
    """Return the array in the type to write. Types of ml_dtypes are widened, unless the file is bin."""
    kind = array.dtype.name
    if options.dtype is None:
        if array.dtype.isbuiltin == 1 or options.type == "bin":
            return array
        return array.astype(_WIDER.get(kind, "float32"))
    converted, problem = cast(array, options.dtype)
    if problem:
        problems.append(f"{what}: {problem}")
    return converted


def cast(array: _Array, dtype: str) -> tuple[_Array, str]:
    """Return the array in another type, and a sentence about values that this type cannot represent, or "".

    Raises NotSupported for complex numbers if the type is not complex.
    """
    import numpy as np

    target = find_dtype(dtype)
    assert target is not None, "callers have checked that the type exists"
    if array.dtype.kind == "c" and target.kind != "c":
        raise NotSupported(
            f"{array.dtype.name} cannot be converted to {dtype}", hint="leave --dtype out, or give complex64"
        )
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(target, copy=False)
    lost = _lost(array, converted)
    return (
        converted,
        f"{counted(lost, 'value')} cannot be held by {dtype}: NaN, Inf or out of its range" if lost else "",
    )


def _lost(array: _Array, converted: _Array) -> int:
    """Return the number of values that a type cannot represent: NaN, Inf, or out of its range. Rounding is no loss."""
    import ml_dtypes
    import numpy as np

    try:
        limits = ml_dtypes.iinfo(converted.dtype)  # type: ignore[no-untyped-call]  # it has no annotations
    except ValueError:  # a type of floats: count elements that became NaN or Inf, or are no longer NaN or Inf
        return int(
            np.count_nonzero((np.isnan(array) != np.isnan(converted)) | (np.isinf(array) != np.isinf(converted)))
        )
    if array.dtype.kind in "biu":
        in_range = (array >= limits.min) & (array <= limits.max)
    else:  # limits.max + 1 is a power of two and exact in float64; limits.max itself may not be
        whole = np.trunc(array.astype(np.float64))
        in_range = (whole >= limits.min) & (whole < float(limits.max + 1))
    return int(in_range.size - np.count_nonzero(in_range))


def find_dtype(name: str) -> Optional[np.dtype[Any]]:
    """Return the type of numpy or ml_dtypes with a name; None if there is none."""
    import ml_dtypes
    import numpy as np

    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        return None


def _suffix(options: Options, tensor: Tensor, shape: tuple[int, ...], dtype: str, layout: str = "") -> str:
    """Return the part of an output file's name after the dump file's name. dtype: the type for the name."""
    head = f".{tensor.io}.{tensor.index}"
    layout = layout or format_name(tensor.format)
    if options.names == "ours":
        return f"{head}.{dtype}.{_joined(shape, 'x')}.{layout}.{options.type}"
    if options.type == "bin":
        return f"{head}.{_joined(shape, '_')}.{dtype}.{layout}.bin"
    if options.format is not None:
        return f"{head}.{_joined(shape, 'x')}.{options.type}"
    return f"{head}.{options.type}"


def _joined(shape: tuple[int, ...], separator: str) -> str:
    return separator.join(map(str, shape)) or "scalar"
