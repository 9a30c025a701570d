"""Dialect `msprobe`: dumps of mindstudio-probe for PyTorch and MindSpore programs.

    [step{N}/][rank{R} | rank | proc{PID}/]dump.json | debug.json
                                           stack.json, construct.json
                                           dump_tensor_data/{record}.{input|output|parameters}.{path}.pt | .npy

Sources: dumps of mindstudio-probe 26.2.0 (PyTorch, tasks statistics, tensor and structure, levels L0, L1, mix and
debug), and its code in `core/dump` and `pytorch/dump` for everything that those dumps do not show. Fields of a record:

- `op_name` is the name of the entry in the JSON file, such as `Functional.linear.0.forward`. So `Record.label` is the
  name of the row in msprobe's own tables, unless an argument is a list of tensors.
- Records have the order of the file, which is the order of execution. A module comes after the calls inside it.
- `index` numbers the arguments; each tensor of a list has its own number. `attrs["argument"]` is msprobe's path of the
  argument: "0", "1.2", "mask", "parameters.weight". Parameters of a module are inputs, their gradients
  (parameters_grad) are outputs.
- `module` is the path of a module in the module's own entries. In entries of functions it is the module that called the
  function; only the levels L0 and mix record it. `stack` is the call stack in stack.json. `source` is the innermost
  line of that stack outside PyTorch, MindSpore and msprobe.
- `max` and `min` of a tensor with NaN are unknown, because msprobe writes NaN for both.
- msprobe's "md5" is the CRC-32 of the bytes; it becomes `attrs["hash"]`. The 64-bit number of the mode `xor` does not
  depend on the order of the values; it becomes `attrs["xor"]`.
- A directory `proc{PID}` is that of a process without a process group, which has no rank. If a step has several such
  directories, `run` is the name of the directory.
- If a JSON file is cut off, its complete entries are read. If it is missing, the fields are taken from the names of
  the tensor files.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

from ascend_dump.dump_format import numpy_dtype
from ascend_dump.errors import CorruptDump, NotSupported, ReadError
from ascend_dump.reading._dialect import Directory, Entry
from ascend_dump.reading._record import Record
from ascend_dump.reading.dialects.msprobe._json import items_of, items_of_data
from ascend_dump.reading.dialects.msprobe._loader import (
    StoredTensor,
    TensorLoader,
    content_hash,
    numbers_of,
    type_and_shape,
)
from ascend_dump.reading.dialects.msprobe._names import MsprobeName, module_of, source_of, stack_of
from ascend_dump.reading.dialects.msprobe._values import MsprobeTensor, call_of, gradients_of, tensors_of
from ascend_dump.storage.files import children

__all__ = ["DIALECT"]

_TENSORS = "dump_tensor_data"
_INDEXES = ("dump.json", "debug.json")
_STACK, _MODULES = "stack.json", "construct.json"
_PROCESS = re.compile(r"(?:rank(\d{0,9})|proc\d{1,18})", re.ASCII)
_STEP = re.compile(r"step(\d{1,18})", re.ASCII)
_GRADIENTS = ".parameters_grad"
_FILE = re.compile(
    r"(.+\.parameters_grad(?:\.\d+)?|.+\.debug|.+(?=\.(?:input|output|parameters)\.))"
    r"(?:\.(input|output|parameters))?(?:\.(.+))?\.(?:pt|npy)",
    re.DOTALL | re.ASCII,
)


class _MsprobeDialect:
    name = "msprobe"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        if directory.parts[-1:] == (_TENSORS,):
            return _tensor_files(directory)
        names = set(directory.names)
        # Other programs write files with these names too, so the directory has to look like one of msprobe.
        if not (_PROCESS.fullmatch((directory.parts or ("",))[-1]) or {_STACK, _MODULES} <= names):
            return [], set()
        indexes = [name for name in _INDEXES if name in names]
        return [_StepIndex(directory, name) for name in indexes], {
            *indexes,
            *({_STACK, _MODULES} & names),
        } if indexes else set()


DIALECT = _MsprobeDialect()


def _tensor_files(directory: Directory) -> tuple[list[Entry], set[str]]:
    """Return entries for the files of dump_tensor_data, and the names to claim.

    If there is an index (dump.json or debug.json) one level above, it has the records, so that there are no entries
    here. If only this directory was opened, the entries of the index are returned, limited to these files.
    """
    files = [file for file in map(_TensorFile.of, directory.names) if file is not None]
    names = {file.name for file in files}
    if not names:
        return [], names
    above = directory._replace(path=directory.path.parent, parts=directory.parts[:-1])
    indexes = [name for name in _INDEXES if (above.path / name).is_file()]
    if not indexes:
        return [*_unlisted(directory, files)], names
    if directory.path != directory.root:
        return [], names
    return [_StepIndex(above, name, only=names) for name in indexes], names


def _levels(directory: Directory) -> dict[str, Any]:
    """Return step, rank and run from the names of directories."""
    steps = [match for part in directory.parts for match in (_STEP.fullmatch(part),) if match]
    levels = [part for part in directory.parts if _PROCESS.fullmatch(part)]
    process = _PROCESS.fullmatch(levels[-1]) if levels else None
    rank = int(process[1]) if process and process[1] else None
    run = levels[-1] if rank is None and levels and _has_siblings(directory, levels[-1]) else None
    return {"step": int(steps[-1][1]) if steps else None, "rank": rank, "run": run}


def _has_siblings(directory: Directory, level: str) -> bool:
    """Return True if the directory `level` of a process has siblings: several processes wrote into one step."""
    ancestor = next((above for above in (directory.path, *directory.path.parents) if above.name == level), None)
    try:
        return ancestor is not None and sum(bool(_PROCESS.fullmatch(name)) for name in children(ancestor.parent)[0]) > 1
    except OSError:
        return False


class _StepIndex(Entry):
    """The file dump.json or debug.json, which lists the tensors of one step of one process.

    only: names of the tensor files whose records are read; None for all records
    """

    __slots__ = ("_only", "_folder")

    def __init__(self, directory: Directory, name: str, *, only: Optional[set[str]] = None) -> None:
        super().__init__(directory.path / name, **_levels(directory))
        self._folder = directory.path
        self._only = only

    @property
    def tensors_below(self) -> Path:
        return self._folder

    @property
    def work(self) -> int:
        # The approximate number of tensors: the text of each takes about 200 bytes.
        try:
            return 10 + self.path.stat().st_size // 200
        except OSError:
            return 10

    def records(self) -> Iterator[Record]:
        modules = self._read_beside(_MODULES)
        stacks = _stacks(self._read_beside(_STACK))
        number = -1
        try:
            for number, (name, value) in enumerate(items_of_data(self.path)):
                yield from self._records(value, self._fields(name, number, modules, stacks), stacks)
        except ReadError as error:
            yield Record(None, path=self.path, error=error, step=self.step, rank=self.rank, run=self.run)
            return
        if number < 0 and self._only is None:
            # A dump of the task "structure" has no tensors. It lists the modules and functions that ran.
            skipped = 'msprobe recorded the structure only ("task": "structure")'
            for number, name in enumerate(modules or stacks):
                fields = self._fields(name, number, modules, stacks)
                attrs = {"skipped": skipped, "no_tensor": True, **_stack_of(name, stacks)}
                yield Record(None, path=self.path, attrs=attrs, **fields)

    def _read_beside(self, name: str) -> Mapping[str, Any]:
        """Return the readable content of a file beside the index; {} if it is missing. Records do not depend on it."""
        content: dict[str, Any] = {}
        with contextlib.suppress(CorruptDump):
            for key, value in items_of(self._folder / name):
                content[key] = value
        return content

    def _fields(
        self, name: str, number: int, modules: Mapping[str, Any], stacks: Mapping[str, _Stack]
    ) -> dict[str, Any]:
        """Return the fields that all tensors of an entry of the index share. number: its position in the index."""
        parts = MsprobeName.of(name)
        return {
            "op_type": parts.op_type,
            "op_name": name,
            "step": self.step,
            "rank": self.rank,
            "run": self.run,
            "phase": parts.phase,
            "module": module_of(modules.get(name)) if parts.module is None else parts.module,
            "source": stacks[name].source if name in stacks else None,
            "nth": number,
        }

    def _records(self, value: Any, shared: dict[str, Any], stacks: Mapping[str, _Stack]) -> Iterator[Record]:
        name: str = shared["op_name"]
        call = call_of(name, value)
        for tensor in tensors_of(gradients_of(value) if _GRADIENTS in name else value):
            stored, fields = self._stored(tensor)
            if self._only is None or (stored.file is not None and stored.file.name in self._only):
                path = stored.file or self.path
                fields["attrs"].update(_stack_of(name, stacks))
                if MsprobeName.of(name).module is not None:
                    fields["attrs"]["level"] = "module"
                yield Record(
                    _LOADER, key=stored, path=path, io=tensor.io, index=tensor.index, call=call, **shared, **fields
                )

    def _stored(self, tensor: MsprobeTensor) -> tuple[StoredTensor, dict[str, Any]]:
        """Return the file and statistics of a tensor, and the fields of its record."""
        entry = tensor.entry
        shape = _shape(entry["shape"])
        dtype = entry["dtype"].rpartition(".")[2].lower()
        crc, xor = content_hash(entry)
        file = entry.get("data_name")
        path = self._folder / _TENSORS / file if isinstance(file, str) and _is_plain(file) else None
        attrs: dict[str, Any] = {"argument": tensor.path} if tensor.path else {}
        attrs.update({"hash": f"crc32:{crc}"} if crc else {"xor": xor} if xor else {})
        attrs.update({key: entry[key] for key in ("requires_grad", "device_mesh", "placements") if key in entry})
        fields = {"dtype": dtype, "shape": shape, "format": "ND", "nbytes": _nbytes(dtype, shape), "attrs": attrs}
        return StoredTensor(None if shape is None else numbers_of(entry, shape), crc, path), fields


_LOADER = TensorLoader()


def _is_plain(name: str) -> bool:
    """Return True if a name read from an index is a plain file name, and no path that leads elsewhere."""
    return name not in ("", ".", "..") and not {"/", "\\", "\0"} & set(name)


def _shape(sizes: list[Any]) -> Optional[tuple[int, ...]]:
    is_valid = len(sizes) <= 64 and all(type(size) is int and 0 <= size < 2**63 for size in sizes)
    return tuple(sizes) if is_valid else None


def _nbytes(dtype: str, shape: Optional[tuple[int, ...]]) -> Optional[int]:
    try:
        return None if shape is None else numpy_dtype(dtype).itemsize * math.prod(shape)
    except NotSupported:
        return None


class _Stack(NamedTuple):
    """The call stack of an entry. source: the line of the user's code; functions: as in `Record.stack`."""

    source: Optional[str]
    functions: tuple[str, ...]

    @classmethod
    def of(cls, lines: list[Any]) -> _Stack:
        return cls(source_of(lines), stack_of(lines))


def _stacks(document: Mapping[str, Any]) -> dict[str, _Stack]:
    """Return the call stacks by the names of entries. The file lists all entries with the same stack together."""
    stacks: dict[str, _Stack] = {}
    for key, value in document.items():
        if not isinstance(value, list):
            continue
        if len(value) == 2 and all(isinstance(part, list) for part in value):
            stack = _Stack.of(value[1])
            stacks.update((name, stack) for name in value[0] if isinstance(name, str))
        else:  # older versions list each entry with its own stack
            stacks[key] = _Stack.of(value)
    return stacks


def _stack_of(name: str, stacks: Mapping[str, _Stack]) -> dict[str, Any]:
    """Return {"stack": call stack} for the records of an entry; {} if the stack is unknown."""
    return {"stack": stacks[name].functions} if name in stacks and stacks[name].functions else {}


class _UnlistedTensor(Entry):
    """A file of dump_tensor_data without an index: a killed program may not have written the index."""

    __slots__ = ("_file", "_index")

    def __init__(self, directory: Directory, file: _TensorFile, index: int) -> None:
        super().__init__(directory.path / file.name, op_name=file.record, **_levels(directory))
        self._file, self._index = file, index

    def records(self) -> Iterator[Record]:
        parts = MsprobeName.of(self._file.record)
        fields: dict[str, Any] = {
            "path": self.path,
            "op_type": parts.op_type,
            "op_name": self.op_name,
            "io": self._file.io,
            "index": self._index,
            "step": self.step,
            "rank": self.rank,
            "run": self.run,
            "phase": parts.phase,
            "module": parts.module,
            "attrs": {"argument": self._file.argument} if self._file.argument else {},
        }
        try:
            dtype, shape = type_and_shape(self.path)
        except (ReadError, NotSupported) as error:
            broken = error if isinstance(error, ReadError) else CorruptDump(str(error), path=self.path)
            yield Record(None, error=broken, **fields)
            return
        stored = StoredTensor(file=self.path)
        yield Record(_LOADER, key=stored, dtype=dtype, shape=shape, format="ND", nbytes=_nbytes(dtype, shape), **fields)


class _TensorFile(NamedTuple):
    """The fields in the name of a file in dump_tensor_data.

    record    the name of the entry that it would have in the index
    argument  msprobe's path of the argument, such as "0" or "parameters.weight"
    """

    name: str
    record: str
    io: str
    argument: str

    @classmethod
    def of(cls, name: str) -> Optional[_TensorFile]:
        """Return the fields of a file name; None if msprobe does not write such names."""
        match = _FILE.fullmatch(name)
        if match is None:
            return None
        record, side, path = match[1], match[2], match[3] or ""
        io = "input" if side in ("input", "parameters") else "output"
        return cls(name, record, io, f"parameters.{path}" if side == "parameters" else path)

    @property
    def position(self) -> int:
        """The position of the argument; -1 for an argument with a name."""
        first = self.argument.partition(".")[0]
        return int(first) if first.isascii() and first.isdecimal() and len(first) < 10 else -1


def _unlisted(directory: Directory, files: list[_TensorFile]) -> Iterator[_UnlistedTensor]:
    """Yield an entry for each file, numbered as in an index: arguments by position, then the arguments with names."""
    before, number = ("", ""), -1
    for file in sorted(files, key=_order):
        side = (file.record, file.io)
        number = max(number + 1 if side == before else 0, file.position)
        before = side
        yield _UnlistedTensor(directory, file, number)


def _order(file: _TensorFile) -> tuple[Any, ...]:
    return file.record, file.io, file.position < 0, file.position, file.argument
