"""Dialect `converted`: files that msaccucmp and `ascend-dump convert` made from dump files of CANN.

    [{levels of the dump}/]{dump file}.{io}.{index}[.{details}].{npy|npz|pt|bin|txt|csv|json}

See `native.cann.converted` for the names. For readers:

- `op_name` is the name in the file name, in which `_` replaces blanks, dots and slashes.
- `format` is the layout in the file name. If a name has none, the layout is the device's, or the one that was passed
  to the converter.
- Converters widen types that numpy lacks: bfloat16 is float32 in npy files.
- If a tensor exists in files of several types, only the first type is read, in the order npy, npz, pt, bin, txt, csv.
  If the dump file exists too, no converted file is read.
- Text files without type and shape, such as those of `numpy.savetxt`, become records without values.
- Overflow records are JSON files. MindSpore with `file_format` npy writes the same JSON files, so they are read here.
- Files with MindSpore's names, as msaccucmp's type msnpy writes them, are read by the dialect `mindspore`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from ascend_dump.errors import CorruptDump, NotSupported, ReadError
from ascend_dump.native.cann.converted import RENAMED, ConvertedName, parse_converted
from ascend_dump.native.cann.mapping import MAPPING
from ascend_dump.native.cann.names import DumpName, eager_name, parse_name
from ascend_dump.reading._dialect import Directory, Entry
from ascend_dump.reading._record import Record
from ascend_dump.reading.dialects._cann_files import UNKNOWN_NAME, CannDirectory, CannEntry, is_hash
from ascend_dump.reading.dialects._eager_files import EagerEntry, join_eager

__all__ = ["DIALECT"]

_PREFERRED = ("npy", "npz", "pt", "bin", "txt", "csv", "json")


class _NamedFile(NamedTuple):
    """A file on disk, with the fields of its name. text: the full name of the dump file."""

    on_disk: str
    text: str
    dump: DumpName
    converted: ConvertedName


class _ConvertedDialect:
    name = "converted"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        cann_directory = CannDirectory(directory)
        files = list(_files_of(cann_directory, directory.names))
        claimed = {file.on_disk for file in files}
        if claimed and MAPPING in directory.names:
            claimed.add(MAPPING)
        best = _best_of(files, frozenset(directory.names)) if files else []
        entries = [_entry(cann_directory, file) for file in best]
        cann_directory.files = entries
        join_eager(entries)
        return list(entries), claimed


DIALECT = _ConvertedDialect()


def _files_of(directory: CannDirectory, names: Any) -> Iterator[_NamedFile]:
    long_names: Optional[dict[str, str]] = None
    for on_disk in names:
        name = on_disk
        if RENAMED.fullmatch(on_disk):
            long_names = directory.long_names() if long_names is None else long_names
            name = long_names.get(on_disk, "")
        converted = parse_converted(name)
        if converted is None:
            continue
        parsed = directory.parse(converted.dump)
        if parsed is None and is_hash(converted.dump):
            # msaccucmp keeps a hashed name; the original name is in the dump's `mapping.csv`.
            long_names = directory.long_names() if long_names is None else long_names
            text = long_names.get(converted.dump, converted.dump)
            parsed = text, parse_name(text) or UNKNOWN_NAME
        if parsed is None or parsed[1].statistics or (converted.type == "json") > parsed[1].overflow:
            continue
        if converted.layout and converted.type == "npy" and converted.dtype is None and _is_plain(parsed[1]):
            continue  # a name of MindSpore
        yield _NamedFile(on_disk, *parsed, converted)


def _is_plain(name: DumpName) -> bool:
    return name.form == "device" and name.task_type is None and name is not UNKNOWN_NAME


def _best_of(files: list[_NamedFile], names: frozenset[str]) -> list[_NamedFile]:
    """Return one file for each tensor, and no file for tensors whose dump file is in the directory (`names`)."""
    files = sorted((file for file in files if file.converted.dump not in names), key=_preference)
    types: dict[tuple[str, str, int], str] = {}
    dumps: set[str] = set()
    best = []
    for file in files:
        dump, io, index, kind = file.converted[:4]
        # An npz file has all tensors of an operator; its key is (dump, "", 0). Files of the same type may have the
        # tensor in several layouts: all of them are returned.
        if (dump, "", 0) in types or (dump in dumps if kind == "npz" else types.get((dump, io, index), kind) != kind):
            continue
        types[dump, io, index] = kind
        dumps.add(dump)
        best.append(file)
    return best


def _preference(file: _NamedFile) -> tuple[int, str]:
    return _PREFERRED.index(file.converted.type), file.on_disk


class _ConvertedFile(CannEntry):
    """A converted file. It contains one tensor, an overflow record, or all tensors of an operator (npz)."""

    __slots__ = ("_converted",)

    def __init__(self, directory: CannDirectory, file: _NamedFile) -> None:
        super().__init__(directory, file.on_disk, file.text, file.dump)
        self._converted = file.converted

    def records_of_file(self) -> Iterator[Record]:
        from ascend_dump.reading.dialects import _converted_values as values

        path, converted = self.path, self._converted
        attrs = self.attrs()
        # If the dump file's original name is unknown, its hash is the operator's name.
        common = {**self.shared_fields(path), "op_name": self.name.op_name or converted.dump}
        of_file: dict[str, Any] = {"io": converted.io, "index": converted.index, "format": converted.layout}
        if converted.layout and converted.dtype:
            attrs["data_type"] = converted.dtype
        try:
            if converted.type == "json":
                yield self._overflow(attrs, {**common, **of_file})
            elif converted.type == "npz":
                for io, index, value in values.of_archive(path):
                    yield _record(value, attrs, {**common, "io": io, "index": index})
            else:
                yield _record(values.of_file(path, converted), attrs, {**common, **of_file})
        except NotSupported as error:
            yield Record(values.WithoutValues(error), attrs=attrs, **common, **of_file)
        except ReadError as error:
            yield Record(None, error=error, attrs=attrs, **common, **of_file)

    def _overflow(self, attrs: dict[str, Any], common: dict[str, Any]) -> Record:
        from ascend_dump.native.cann.overflow import overflow_of
        from ascend_dump.reading.dialects import _converted_values as values
        from ascend_dump.reading.dialects._mindspore_overflow import read_json
        from ascend_dump.reading.dialects._overflow_fields import overflow_fields

        document = read_json(self.path)
        if document is None:
            raise CorruptDump("it is not the JSON of an overflow record", path=self.path)
        try:
            record = overflow_of(document)
        except CorruptDump as error:
            return Record(None, attrs={**attrs, "problems": [error.message]}, **common)
        attrs = {**attrs, **overflow_fields(self._directory, record, document, self.name.timestamp)}
        return _record(values.of_overflow(document), attrs, common)


class _EagerConvertedFile(EagerEntry, _ConvertedFile):
    """One file of an eager operator."""

    __slots__ = ()


def _entry(directory: CannDirectory, file: _NamedFile) -> _ConvertedFile:
    kind = _ConvertedFile if eager_name(file.dump) is None else _EagerConvertedFile
    return kind(directory, file)


def _record(value: Any, attrs: dict[str, Any], common: dict[str, Any]) -> Record:
    from ascend_dump.reading.dialects._converted_values import ARRAYS

    fields = {"dtype": value.dtype, "shape": value.shape, "nbytes": value.nbytes}
    return Record(ARRAYS, key=value, attrs=dict(attrs), **fields, **common)
