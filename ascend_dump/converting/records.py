"""Convert the records of dumps that are not CANN's: one file per tensor or operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump._errors import AscendDumpError, ConfigError, NotSupported, WriteError
from ascend_dump._files import walked
from ascend_dump._paths import make_private_directory
from ascend_dump.converting._file import ConversionFailure, Options, Result, find_dtype
from ascend_dump.converting._outputs import (
    fit_name,
    write_bytes,
    write_npy,
    write_npz,
    write_safetensors,
    write_text,
    write_torch,
)
from ascend_dump.host import INDEX

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.reading import Record

    _Array = np.ndarray[Any, Any]

__all__ = ["RECORD_TYPES", "check_record_options", "convert_records", "is_host_dump"]

RECORD_TYPES = ("npy", "npz", "bin", "txt", "csv", "pt", "safetensors")
#: One file holds all tensors of an operator.
_ARCHIVES = ("npz", "safetensors")


def is_host_dump(path: Path) -> bool:
    """Whether a directory holds a host dump, whose tensors stand together in shards."""
    return path.is_dir() and any(INDEX in names for _, names in walked(path))


def check_record_options(options: Options) -> None:
    """Raise ConfigError for options that no record could be converted with."""
    if options.type not in RECORD_TYPES:
        raise ConfigError(f"type={options.type!r}", hint=f"types: {', '.join(RECORD_TYPES)}")
    for name in ("format", "shape", "original_format"):
        if getattr(options, name):
            raise ConfigError(
                f"{name}={getattr(options, name)!r} is for layouts of the device, which only dumps of CANN have",
                hint="leave it out",
            )
    if options.dtype is not None and find_dtype(options.dtype) is None:
        raise ConfigError(
            f"dtype={options.dtype!r} is no type of numpy or ml_dtypes", hint="such as float32 or float16"
        )


def convert_records(
    records: Iterable[Record], out: Path, options: Options, as_torch: Callable[[_Array], Any]
) -> Iterator[Result]:
    """Write `{out}/rank{R}/{step}/{operator}.{io}.{index}.{type}` for each record, and yield what became of it.

    Types that numpy lacks become float32 in npy, npz, txt and csv; pt and safetensors keep them. npz and safetensors
    hold all tensors of an operator as `input.0`, `output.0`. as_torch makes tensors of PyTorch. Records without values
    are passed by. Raises WriteError when nothing more can be written.
    """
    check_record_options(options)
    files = _FilesOfRecords(out)
    for _, group in groupby(records, lambda record: record.execution):
        members = [record for record in group if record.error is not None or options.wants(record.io, record.index)]
        if not members:
            continue
        for some in [members] if options.type in _ARCHIVES else [[record] for record in members]:
            yield _convert(some, files, options, as_torch)


def _convert(
    members: list[Record], files: _FilesOfRecords, options: Options, as_torch: Callable[[_Array], Any]
) -> Result:
    failures: list[ConversionFailure] = []
    arrays: dict[str, _Array] = {}
    for record in members:
        try:
            array = record.numpy()
            arrays[f"{record.io}.{record.index}"] = array if options.dtype is None else _cast(array, options.dtype)
        except NotSupported:
            continue  # it holds no values
        except AscendDumpError as error:
            failures.append(ConversionFailure(record.path, record.label, error))
    first = members[0]
    if not arrays:
        return Result(first.path, failures=tuple(failures), skipped=not failures)
    path = files.path(first, options.type)
    try:
        size = _write(path, arrays, options, as_torch)
    except WriteError:
        raise
    except AscendDumpError as error:
        failures.append(ConversionFailure(first.path, first.label, error))
        return Result(first.path, failures=tuple(failures))
    return Result(first.path, (path,), tuple(failures), size=size)


def _write(path: Path, arrays: dict[str, _Array], options: Options, as_torch: Callable[[_Array], Any]) -> int:
    import numpy as np

    if options.type == "safetensors":
        return write_safetensors(path, arrays)
    [array, *_] = arrays.values()
    if options.type == "pt":
        return write_torch(path, as_torch(array))
    if options.type == "bin":
        return write_bytes(path, np.ascontiguousarray(array))
    plain = {name: _plain(one) for name, one in arrays.items()}
    if options.type == "npz":
        return write_npz(path, plain)
    [array, *_] = plain.values()
    if options.type == "npy":
        return write_npy(path, array)
    head = "" if options.type == "csv" else f"# {array.dtype.name} {list(array.shape)}\n"
    return write_text(path, array, "," if options.type == "csv" else " ", head)


def _plain(array: _Array) -> _Array:
    """With a type that numpy itself has."""
    return array if array.dtype.isbuiltin == 1 else array.astype("float32")


def _cast(array: _Array, dtype: str) -> _Array:
    found = find_dtype(dtype)
    assert found is not None, "it was checked"
    return array.astype(found)


class _FilesOfRecords:
    """The files of records. An operator may have run again in a step under one name: it gets a number."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._directory: Optional[Path] = None
        self._taken: set[str] = set()
        self._runs: Counter[str] = Counter()

    def path(self, record: Record, type: str) -> Path:
        """Where the record goes, or all of its operator; creates the directory."""
        directory = _place(record, self._out)
        if directory != self._directory:  # the records of a step come one after the other
            self._directory, self._taken, self._runs = directory, set(), Counter()
        operator = record.op_name or record.op_type or record.path.name
        place = f".{record.io}.{record.index}" if record.io and type not in _ARCHIVES else ""
        while True:
            self._runs[operator + place] += 1
            number = self._runs[operator + place]
            again = "" if number == 1 else f"-{number}"
            name = fit_name(directory, f"{_file_name(operator + again + place)}.{type}", f".{type}")
            if name not in self._taken:  # another operator may have this name by itself
                self._taken.add(name)
                return directory / name


def _place(record: Record, out: Path) -> Path:
    parts = [f"rank{record.rank}"] if record.rank is not None else []
    parts += [_file_name(part) for part in (record.run, record.model) if part]
    parts += [str(record.step)] if record.step is not None else []
    directory = out.joinpath(*parts)
    make_private_directory(directory)
    return directory


def _file_name(label: Optional[str]) -> str:
    """A name as a file has it: names of operators hold what separates directories."""
    name = "".join(char if char.isprintable() and char not in "/\\\0" else "_" for char in label or "")
    return name if name.strip(".") else f"_{name}"
