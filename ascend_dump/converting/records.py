"""Convert the records of dumps that are not CANN's: one file per tensor or operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.converting._file import ConversionFailure, Options, Result, cast, find_dtype
from ascend_dump.converting._outputs import (
    fit_name,
    make_output_directory,
    write_bytes,
    write_npy,
    write_npz,
    write_safetensors,
    write_text,
    write_torch,
)
from ascend_dump.dump_format import INDEX_NAMES, SHARD, index_among
from ascend_dump.errors import AscendDumpError, ConfigError, NotSupported, WriteError
from ascend_dump.storage.files import walked

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.reading import Record

    _Array = np.ndarray[Any, Any]

__all__ = ["RECORD_TYPES", "check_record_options", "convert_records", "is_file_of_host_dump", "is_host_dump"]

RECORD_TYPES = ("npy", "npz", "bin", "txt", "csv", "pt", "safetensors")
#: One file contains all tensors of an operator.
_ARCHIVES = ("npz", "safetensors")


def is_host_dump(path: Path) -> bool:
    """Return True if a directory contains a dump in the dump format, in which several tensors share a shard file."""
    return path.is_dir() and any(index_among(names) for _, names in walked(path))


def is_file_of_host_dump(path: Path) -> bool:
    """Return True if the path is an index or a shard of the dump format.

    Such files are converted by directory, not one by one.
    """
    return path.name in INDEX_NAMES or SHARD.fullmatch(f"0/{path.name}") is not None


def check_record_options(options: Options) -> None:
    """Raise ConfigError for options that are invalid for all records of dumps other than CANN's."""
    if options.type not in RECORD_TYPES:
        raise ConfigError(f"type={options.type!r} is not a file type", hint=f"types: {', '.join(RECORD_TYPES)}")
    for name in ("format", "shape", "original_format"):
        if getattr(options, name):
            raise ConfigError(
                f"{name}={getattr(options, name)!r} converts layouts of the device, and only dumps of CANN have them",
                hint="leave it out",
            )
    if options.dtype is not None and find_dtype(options.dtype) is None:
        raise ConfigError(
            f"dtype={options.dtype!r} is no type of numpy or ml_dtypes", hint="such as float32 or float16"
        )


def convert_records(
    records: Iterable[Record], out: Path, options: Options, as_torch: Callable[[_Array], Any]
) -> Iterator[Result]:
    """Write `{out}/rank{R}/{run}/{model}/{step}/{operator}.{io}.{index}.{type}`, and yield one `Result` per file.

    Levels that a record lacks are left out. Names of npz and safetensors files have no io and index.

    Types that numpy lacks become float32 in npy, npz, txt and csv; pt and safetensors keep them. npz and safetensors
    contain all tensors of an operator under names such as `input.0`. as_torch: a function from an array to a tensor of
    PyTorch. Records without values are reported as skipped. Raises WriteError if nothing more can be written.
    """
    check_record_options(options)
    files = _FilesOfRecords(out)
    for execution, group in groupby(records, lambda record: record.execution):
        members = list(group)
        files.count(members, execution)
        members = [record for record in members if record.error is not None or options.wants(record.io, record.index)]
        for group_of_file in [members] if options.type in _ARCHIVES else [[record] for record in members]:
            yield from _convert(group_of_file, files, options, as_torch)


def _convert(
    members: list[Record], files: _FilesOfRecords, options: Options, as_torch: Callable[[_Array], Any]
) -> Iterator[Result]:
    """Write the records `members` into one file, and yield its result.

    Another file is begun if a tensor has the same io and index as an earlier one, because names in a file are unique.
    """
    pending = _PendingFile()
    for record in members:
        try:
            array = record.numpy()
        except NotSupported:  # the record has no values
            yield Result(record.path, skipped=True)
            continue
        except AscendDumpError as error:
            pending.fail(record, error)
            continue
        if f"{record.io}.{record.index}" in pending.arrays:
            yield pending.write(files, options, as_torch)
            pending = _PendingFile()
        pending.add(record, array, options.dtype)
    if pending.records:
        yield pending.write(files, options, as_torch)


class _PendingFile:
    """The tensors of the next file, with their failures and warnings."""

    def __init__(self) -> None:
        self.arrays: dict[str, _Array] = {}
        self.records: list[Record] = []
        self._failures: list[ConversionFailure] = []
        self._problems: list[str] = []

    def add(self, record: Record, array: _Array, dtype: Optional[str]) -> None:
        if dtype is not None:
            try:
                array, problem = cast(array, dtype)
            except NotSupported as error:
                self.fail(record, error)
                return
            if problem:
                self._problems.append(f"{record.label}: {problem}")
        self.records.append(record)
        self.arrays[f"{record.io}.{record.index}"] = array

    def fail(self, record: Record, error: AscendDumpError) -> None:
        self.records.append(record)
        self._failures.append(ConversionFailure(record.path, record.label, error))

    def write(self, files: _FilesOfRecords, options: Options, as_torch: Callable[[_Array], Any]) -> Result:
        first = next((record for record in self.records if record.error is None), self.records[0])
        written: tuple[Path, ...] = ()
        size = 0
        if self.arrays:
            path = files.path(first, options.type)
            try:
                size = _write(path, self.arrays, options, as_torch)
                written = (path,)
            except WriteError:
                raise
            except AscendDumpError as error:
                self._failures.append(ConversionFailure(first.path, first.label, error))
        failures, problems = tuple(self._failures), tuple(self._problems)
        return Result(first.path, written, failures, problems, size, records=len(self.records))


def _write(path: Path, arrays: dict[str, _Array], options: Options, as_torch: Callable[[_Array], Any]) -> int:
    import numpy as np

    if options.type == "safetensors":
        return write_safetensors(path, arrays)
    [array, *_] = arrays.values()
    if options.type == "pt":
        return write_torch(path, as_torch(array))
    if options.type == "bin":
        return write_bytes(path, np.ascontiguousarray(array))
    plain = {name: _to_numpy_dtype(value) for name, value in arrays.items()}
    if options.type == "npz":
        return write_npz(path, plain)
    [array, *_] = plain.values()
    if options.type == "npy":
        return write_npy(path, array)
    head = "" if options.type == "csv" else f"# {array.dtype.name} {list(array.shape)}\n"
    return write_text(path, array, "," if options.type == "csv" else " ", head)


def _to_numpy_dtype(array: _Array) -> _Array:
    """Return the array; as float32 if its dtype is not one of numpy's own."""
    return array if array.dtype.isbuiltin == 1 else array.astype("float32")


class _FilesOfRecords:
    """The paths of the files that are written for records.

    An operator may run several times in a step under one name. The files of its second and later runs get the suffix
    `-2`, `-3`, … after the operator's name.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._directory: Optional[Path] = None
        self._used_names: set[str] = set()
        self._last: Counter[str] = Counter()
        self._runs: Counter[str] = Counter()
        self._numbers: dict[Hashable, int] = {}

    def count(self, members: list[Record], execution: Hashable) -> None:
        """Count one run of an operator.

        Call this for every run, even if none of its records is written: otherwise `--index` would change the numbers of
        runs in file names.
        """
        record = next((member for member in members if member.error is None), None)
        if record is None:  # an unreadable record may lack its step
            return
        directory = _directory_of(record, self._out)
        if directory != self._directory:  # records are grouped by step, so the previous names can be forgotten
            self._directory, self._used_names = directory, set()
            self._last, self._runs, self._numbers = Counter(), Counter(), {}
        if execution not in self._numbers:
            self._runs[_operator(record)] += 1
            self._numbers[execution] = self._runs[_operator(record)]

    def path(self, record: Record, type: str) -> Path:
        """Return an unused path for a record, or for all records of its operator; create its directory."""
        directory = _directory_of(record, self._out)
        if not self._used_names:
            make_output_directory(directory)
        tensor_suffix = f".{record.io}.{record.index}" if record.io and type not in _ARCHIVES else ""
        operator = _operator(record)
        number = self._numbers[record.execution]
        while True:
            run_suffix = "" if number == 1 else f"-{number}"
            name = fit_name(directory, f"{_file_name(operator + run_suffix + tensor_suffix)}.{type}", f".{type}")
            if name not in self._used_names:
                self._used_names.add(name)
                self._last[operator + tensor_suffix] = max(number, self._last[operator + tensor_suffix])
                return directory / name
            # Taken by an operator that is really called `X-2`, or by a tensor with the same io and index.
            number = max(number, self._last[operator + tensor_suffix]) + 1


def _operator(record: Record) -> str:
    return record.op_name or record.op_type or record.path.name


def _directory_of(record: Record, out: Path) -> Path:
    parts = [f"rank{record.rank}"] if record.rank is not None else []
    parts += [_file_name(part) for part in (record.run, record.model) if part]
    parts += [str(record.step)] if record.step is not None else []
    return out.joinpath(*parts)


def _file_name(label: Optional[str]) -> str:
    """Return a name with path separators and unprintable characters replaced by `_`."""
    name = "".join(char if char.isprintable() and char not in "/\\\0" else "_" for char in label or "")
    return name if name.strip(".") else f"_{name}"
