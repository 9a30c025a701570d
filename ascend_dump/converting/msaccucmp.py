"""Convert a dump file like msaccucmp 26: with the same names and the same bytes, even if they are wrong.

msaccucmp differs from our own conversion in `_file` (measured, and read in its dump_parse and conversion):

- a tensor of a type that it cannot read makes the whole file fail;
- some values differ (`cann.dtypes` lists them), bfloat16 becomes float32, and float8 becomes float64;
- payloads are read one after the other with the sizes in the header, so a file with null addresses fails;
- names of `bin` files have the number of elements instead of the shape; names for bfloat16 say float32;
- after a conversion the result is cut to the original shape, as if this were in the target layout. If that is
  impossible, the result is not cut;
- a tensor whose number of axes differs from that of its layout is treated as ND.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from ascend_dump.common.paths import PRIVATE_FILE
from ascend_dump.converting._file import ConversionFailure, Options, Result
from ascend_dump.converting._msaccucmp_values import FORMATS, TYPES, convert_layout, decode_as_msaccucmp, slice_to
from ascend_dump.converting._outputs import fit_name, make_output_directory, write_bytes, write_npy
from ascend_dump.errors import AscendDumpError, ConfigError, CorruptDump, NotSupported, WriteError
from ascend_dump.native.cann.dump_file import Buffer, DumpFile, Entry, Space, Tensor, payload, read_header

if TYPE_CHECKING:
    import numpy as np

    _Array = np.ndarray[Any, Any]

__all__ = ["FAILED_LIST", "check_compat", "convert_file_compat", "write_failed_list"]

#: Prefix of the names of overflow files; msaccucmp recognises only this spelling.
_OVERFLOW = "Opdebug.Node_OpDebug."

FAILED_LIST = "convert_failed_file_list.txt"
_FFTS_SLICES = {"input": "input_tensor_slice", "output": "output_tensor_slice"}


def check_compat(options: Options) -> None:
    """Raise ConfigError for options that msaccucmp does not have."""
    if options.type not in ("npy", "bin"):
        raise ConfigError(f"msaccucmp does not write {options.type}", hint="type: npy or bin")
    if options.dtype or options.original_format or options.names != "msaccucmp":
        raise ConfigError(
            "msaccucmp has no dtype, original_format or names", hint="leave them out, or --msaccucmp-compat"
        )
    if options.format is not None and options.format not in FORMATS:
        raise ConfigError(f"msaccucmp does not know format={options.format!r} (its error 6)", hint="such as NCHW")


class _Part(NamedTuple):
    tensor: Tensor
    array: _Array


def convert_file_compat(source: Path, out: Path, options: Options, name: str = "") -> Result:
    """Convert one file. Raises as `convert_file`, and NotSupported if msaccucmp fails for the whole file.

    name: unused, because msaccucmp's output files are named by the dump file's name on disk, even if that is a hash.
    """
    dump = _placed(read_header(source))
    attrs = _ffts(dump)
    parts = [
        _Part(tensor, decode_as_msaccucmp(payload(dump, tensor), tensor.data_type, _shape_read(dump, tensor)))
        for tensor in dump.tensors
    ]
    make_output_directory(out)
    saver = _Saver(dump, out, options)
    if options.format is not None:
        for part in parts:
            saver.attempt(part.tensor, _convert_part, part)
    elif source.name.startswith(_OVERFLOW):
        for part in parts:
            if part.tensor.io == "output":
                saver.attempt(part.tensor, _save_overflow, part)
    else:
        shapes = _ffts_shapes(source, parts, attrs) if attrs.get("threadMode") else {}
        for part in parts:
            saver.attempt(part.tensor, _save_part, part, shapes)
        for memory in dump.buffers:
            saver.attempt(memory, _save_memory, memory)
        for space in dump.spaces:
            saver.attempt(space, _save_memory, space)
    return Result(source, tuple(saver.written), tuple(saver.failures), dump.problems, saver.size)


def write_failed_list(out: Path, failures: Iterable[ConversionFailure], *, formats: bool) -> None:
    """Append the failed files to `FAILED_LIST`, like msaccucmp when it converts directories. Raises WriteError.

    formats: a layout was converted; then the failed tensors of each file are listed too
    """
    lines: dict[str, str] = {}
    for source, what, _ in failures:
        name = os.path.realpath(source)
        lines[name] = lines.get(name, name) + (f",{what.replace(' ', ':')}" if what and formats else "")
    if not lines:
        return
    make_output_directory(out)
    path = out / FAILED_LIST
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with open(os.open(path, flags, PRIVATE_FILE), "a", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(f"{line}\n" for line in lines.values())
    except OSError as error:
        raise WriteError(f"{path} cannot be written: {error.strerror}", hint="check the directory") from error


def _placed(dump: DumpFile) -> DumpFile:
    """Return the dump with payloads where msaccucmp reads them: one after the other, even for null addresses."""
    entries: list[Entry] = [*dump.tensors, *dump.buffers, *dump.spaces]
    if not entries:
        return dump
    file_size = os.stat(dump.path).st_size
    offset = entries[0].offset
    end = offset + sum(entry.size for entry in entries)
    if end > file_size or (dump.nano and end != file_size):
        raise CorruptDump(
            f"the header declares payloads up to byte {end}, the file has {file_size} (msaccucmp's error "
            f"{39 if dump.nano else 11})",
            path=dump.path,
            hint="leave --msaccucmp-compat out: null addresses and cut files are understood there",
        )
    placed: list[Any] = []
    for entry in entries:
        placed.append(entry._replace(offset=offset, length=entry.size, error=""))
        offset += entry.size
    tensors, buffers = len(dump.tensors), len(dump.buffers)
    return dump._replace(
        tensors=tuple(placed[:tensors]),
        buffers=tuple(placed[tensors : tensors + buffers]),
        spaces=tuple(placed[tensors + buffers :]),
    )


def _shape_read(dump: DumpFile, tensor: Tensor) -> Sequence[int]:
    """Return the shape with which msaccucmp reads a tensor: flat bytes for UNDEFINED, except in nano files."""
    return (tensor.size,) if tensor.data_type == 0 and tensor.size and not dump.nano else tensor.shape


def _ffts(dump: DumpFile) -> dict[str, Any]:
    """Return the first attribute of a file, decoded. msaccucmp always uses it as the slicing of FFTS+."""
    if not dump.attrs:
        return {}
    try:
        document = json.loads(dump.attrs[0][1])
        document["threadMode"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise CorruptDump(
            f"attribute {dump.attrs[0][0]!r} does not describe slices of FFTS+; msaccucmp fails on such a file",
            path=dump.path,
        ) from None
    slices: dict[str, Any] = document
    return slices


def _ffts_shapes(source: Path, parts: list[_Part], attrs: dict[str, Any]) -> dict[tuple[str, int], list[int]]:
    """Return the shapes of the slices of the thread in the file's name, by io and index.

    Raises CorruptDump if the file has other numbers of tensors.
    """
    shapes = {}
    try:
        thread = int(os.fspath(source).split(".")[-2])
        for io, name in _FFTS_SLICES.items():
            slices = attrs[name][thread] if attrs[name] else []
            count = sum(part.tensor.io == io for part in parts)
            if count and len(slices) != count:
                raise CorruptDump(f"{len(slices)} slices for {count} tensors (msaccucmp's error 42)", path=source)
            for index, axes in enumerate(slices):
                shapes[io, index] = [axis["higher"] - axis["lower"] for axis in axes]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        if isinstance(error, CorruptDump):
            raise
        raise CorruptDump("its FFTS+ slicing is invalid: msaccucmp stops", path=source) from None
    return shapes


class _Saver:
    """The state of converting one dump file: the files written so far, and the failures."""

    def __init__(self, dump: DumpFile, out: Path, options: Options) -> None:
        self.dump = dump
        self.out = out
        self.options = options
        self.written: list[Path] = []
        self.failures: list[ConversionFailure] = []
        self.size = 0

    def attempt(self, entry: Entry, save: Any, *arguments: Any) -> None:
        """Call `save` for one entry, unless the options exclude it. An error is stored as a failure."""
        io = entry.io if isinstance(entry, Tensor) else entry.kind
        if not self.options.wants(io, entry.index):
            return
        try:
            save(self, *arguments)
        except (CorruptDump, NotSupported) as error:
            self.fail(f"{io} {entry.index}", error)

    def fail(self, what: str, error: AscendDumpError) -> None:
        self.failures.append(ConversionFailure(self.dump.path, what, error))

    def save(self, suffix: str, data: Union[_Array, bytes]) -> None:
        name = self.dump.path.name + suffix
        extension = os.path.splitext(name)[1]
        path = self.out / fit_name(self.out, name, extension)
        if isinstance(data, bytes):
            self.size += write_bytes(path, data)
        elif extension == ".npy":
            self.size += write_npy(path, data)
        else:
            self.size += write_bytes(path, data.tobytes())
        self.written.append(path)


def _save_overflow(saver: _Saver, part: _Part) -> None:
    from ascend_dump.native.cann.overflow import decode_overflow

    document = decode_overflow(part.array.tobytes()).document
    saver.save(f".output.{part.tensor.index}.json", json.dumps(document, indent=4).encode())


def _save_memory(saver: _Saver, memory: Union[Buffer, Space]) -> None:
    kind = memory.kind
    if isinstance(memory, Buffer) and memory.type:
        kind = "Nonebuffer"  # msaccucmp knows only one type of buffers, and has None as the name of others
    saver.save(f".{kind}.{memory.index}.bin", payload(saver.dump, memory).tobytes())


def _save_part(saver: _Saver, part: _Part, shapes: dict[tuple[str, int], list[int]]) -> None:
    tensor = part.tensor
    shape = shapes.get((tensor.io, tensor.index), list(_shape_read(saver.dump, tensor)))
    head = f".{tensor.io}.{tensor.index}"
    if saver.options.type == "npy":
        saver.save(f"{head}.npy", _reshaped(part.array, shape))
    else:
        lengths = "_".join(map(str, part.array.shape))
        suffix = f"{head}.{lengths}.{_bin_dtype(tensor)}.{FORMATS.name(tensor.format)}.bin"
        saver.save(suffix, _reshaped(part.array, shape))


def _bin_dtype(tensor: Tensor) -> str:
    if tensor.data_type in (33, 34, 35) or tensor.data_type not in TYPES:
        # msaccucmp looks up the type in numpy, which has no float8 unless another module has loaded ml_dtypes.
        raise NotSupported(
            f"msaccucmp stops at data type {tensor.data_type} in bin files", hint="leave --msaccucmp-compat out"
        )
    return TYPES[tensor.data_type]


def _reshaped(array: _Array, shape: Sequence[int]) -> _Array:
    if not shape:
        return array
    try:
        return array.reshape(tuple(shape))
    except ValueError as error:
        raise CorruptDump(f"msaccucmp writes nothing: {error}") from None


def _convert_part(saver: _Saver, part: _Part) -> None:
    tensor, options = part.tensor, saver.options
    assert options.format is not None
    shape = list(_shape_read(saver.dump, tensor))
    source = FORMATS.name(tensor.format)
    if source in ("NCHW", "NHWC", "HWCN") and len(shape) != 4:
        source = "ND"
    to = list(options.shape or tensor.original_shape)
    if source == "FRACTAL_NZ":
        _check_nz(to, shape)
    named = options.format
    if source == options.format:
        if 0 not in part.array.shape and math.prod(shape) != part.array.size:
            raise CorruptDump(f"{part.array.size} values for shape {shape} (msaccucmp's error 11)")
        array = part.array.reshape(tuple(shape))
    else:
        array = convert_layout(part.array, source, options.format, shape, to, tensor.sub_format)
        if to:
            try:
                array = slice_to(array, to)
            except CorruptDump:
                named = FORMATS.name(tensor.format)
    head = f".{tensor.io}.{tensor.index}"
    if options.type == "npy":
        saver.save(f"{head}.{'x'.join(map(str, array.shape))}.npy", array)
    else:
        lengths = "_".join(map(str, array.shape))
        saver.save(f"{head}.{lengths}.{_bin_dtype(tensor)}.{named}.bin", array)


def _check_nz(to: list[int], shape: list[int]) -> None:
    """Raise CorruptDump, as msaccucmp does, if padding adds a block or more to one of the last two axes of `to`."""
    padded = [*shape[:-4], shape[-2] * shape[-3], shape[-1] * shape[-4]] if len(shape) >= 4 else []
    fits = (
        len(to) == len(padded) >= 2
        and to[:-2] == padded[:-2]
        and all(big - 16 < small <= big for small, big in zip(to[-2:], padded[-2:]))
    )
    if not fits:
        raise CorruptDump(
            f"shape {to} does not lie within a block of {padded} (msaccucmp's error 6)", hint="give --shape"
        )
