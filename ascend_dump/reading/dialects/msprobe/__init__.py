"""Dialect `msprobe`: dumps of mindstudio-probe for PyTorch and MindSpore programs.

    [step{N}/][rank{R} | rank | proc{PID}/]dump.json | debug.json
                                           stack.json, construct.json
                                           dump_tensor_data/{record}.{input|output|parameters}.{path}.pt | .npy

Sources: dumps of mindstudio-probe 26.2.0 (PyTorch, tasks statistics, tensor and structure, levels L0, L1, mix and
debug); its `core/dump` and `pytorch/dump` for what those do not show. What to know when reading one:

- `op_name` is the name of the record as it stands in the file, `Functional.linear.0.forward`, so `Record.label` is the
  row that msprobe's own tables have, as long as no argument is a list of tensors. Records follow each other as in the
  file: in the order of execution, a module behind what it called.
- `index` counts the arguments; each tensor of a list counts. `attrs["argument"]` is msprobe's path: "0", "1.2", "mask",
  "parameters.weight". Parameters of a module are inputs of it, parameters_grad are outputs.
- `module` is the module that ran the API: levels L0 and mix record that. `stack` is what stack.json has of it,
  `source` its innermost line outside PyTorch, MindSpore and msprobe.
- `max` and `min` of a tensor with NaN are unknown: msprobe gives NaN there. Its "md5" is the CRC-32 of the bytes, as
  `attrs["hash"]`. The 64 bits of the mode `xor` do not depend on the order of the values: `attrs["xor"]`.
- `proc{PID}` names a process without a process group: it has no rank. `run` tells several of one step apart.
- Of a file that is cut off, what is whole is read. Where the index is missing, the tensors are read by their names.
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
        # Others write files of these names too.
        if not (_PROCESS.fullmatch((directory.parts or ("",))[-1]) or {_STACK, _MODULES} <= names):
            return [], set()
        found = [name for name in _INDEXES if name in names]
        return [_StepIndex(directory, name) for name in found], {
            *found,
            *({_STACK, _MODULES} & names),
        } if found else set()


DIALECT = _MsprobeDialect()


def _tensor_files(directory: Directory) -> tuple[list[Entry], set[str]]:
    """The index one level above lists these files, unless it is missing or they were opened by themselves."""
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
    """Step, rank and run, as the directories say."""
    steps = [found for part in directory.parts for found in (_STEP.fullmatch(part),) if found]
    levels = [part for part in directory.parts if _PROCESS.fullmatch(part)]
    process = _PROCESS.fullmatch(levels[-1]) if levels else None
    rank = int(process[1]) if process and process[1] else None
    run = levels[-1] if rank is None and levels and _has_siblings(directory, levels[-1]) else None
    return {"step": int(steps[-1][1]) if steps else None, "rank": rank, "run": run}


def _has_siblings(directory: Directory, level: str) -> bool:
    """Return True if several processes wrote into one step."""
    place = next((above for above in (directory.path, *directory.path.parents) if above.name == level), None)
    try:
        return place is not None and sum(bool(_PROCESS.fullmatch(name)) for name in children(place.parent)[0]) > 1
    except OSError:
        return False


class _StepIndex(Entry):
    """dump.json or debug.json: all tensors of one step of one process."""

    __slots__ = ("_only", "_place")

    def __init__(self, directory: Directory, name: str, *, only: Optional[set[str]] = None) -> None:
        super().__init__(directory.path / name, **_levels(directory))
        self._place = directory.path
        self._only = only

    @property
    def tensors_below(self) -> Path:
        return self._place

    @property
    def work(self) -> int:
        # One line for each tensor; the text of one takes about 200 bytes.
        try:
            return 10 + self.path.stat().st_size // 200
        except OSError:
            return 10

    def records(self) -> Iterator[Record]:
        modules = self._beside(_MODULES)
        stacks = _stacks(self._beside(_STACK))
        number = -1
        try:
            for number, (name, value) in enumerate(items_of_data(self.path)):
                yield from self._records(value, self._fields(name, number, modules, stacks), stacks)
        except ReadError as error:
            yield Record(None, path=self.path, error=error, step=self.step, rank=self.rank, run=self.run)
            return
        if number < 0 and self._only is None:
            # The task "structure" records which modules and functions ran.
            skipped = 'msprobe recorded the structure only ("task": "structure")'
            for number, name in enumerate(modules or stacks):
                fields = self._fields(name, number, modules, stacks)
                attrs = {"skipped": skipped, "no_tensor": True, **_stack_of(name, stacks)}
                yield Record(None, path=self.path, attrs=attrs, **fields)

    def _beside(self, name: str) -> Mapping[str, Any]:
        """Return a file that says more of the records; without it, or a part of it, they can be read all the same."""
        found: dict[str, Any] = {}
        with contextlib.suppress(CorruptDump):
            for key, value in items_of(self._place / name):
                found[key] = value
        return found

    def _fields(
        self, name: str, number: int, modules: Mapping[str, Any], stacks: Mapping[str, _Stack]
    ) -> dict[str, Any]:
        """What the tensors of one record have in common."""
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

    def _records(self, value: Any, known: dict[str, Any], stacks: Mapping[str, _Stack]) -> Iterator[Record]:
        name: str = known["op_name"]
        call = call_of(name, value)
        for tensor in tensors_of(gradients_of(value) if _GRADIENTS in name else value):
            stored, fields = self._stored(tensor)
            if self._only is None or (stored.file is not None and stored.file.name in self._only):
                path = stored.file or self.path
                fields["attrs"].update(_stack_of(name, stacks))
                if MsprobeName.of(name).module is not None:
                    fields["attrs"]["level"] = "module"
                yield Record(
                    _LOADER, key=stored, path=path, io=tensor.io, index=tensor.index, call=call, **known, **fields
                )

    def _stored(self, tensor: MsprobeTensor) -> tuple[StoredTensor, dict[str, Any]]:
        """Where the values are, and the fields that the entry of a tensor says."""
        entry = tensor.entry
        shape = _shape(entry["shape"])
        dtype = entry["dtype"].rpartition(".")[2].lower()
        crc, xor = content_hash(entry)
        file = entry.get("data_name")
        path = self._place / _TENSORS / file if isinstance(file, str) and _is_plain(file) else None
        attrs: dict[str, Any] = {"argument": tensor.path} if tensor.path else {}
        attrs.update({"hash": f"crc32:{crc}"} if crc else {"xor": xor} if xor else {})
        attrs.update({key: entry[key] for key in ("requires_grad", "device_mesh", "placements") if key in entry})
        fields = {"dtype": dtype, "shape": shape, "format": "ND", "nbytes": _nbytes(dtype, shape), "attrs": attrs}
        return StoredTensor(None if shape is None else numbers_of(entry, shape), crc, path), fields


_LOADER = TensorLoader()


def _is_plain(name: str) -> bool:
    """No path from inside a file leads anywhere else."""
    return name not in ("", ".", "..") and not {"/", "\\", "\0"} & set(name)


def _shape(given: list[Any]) -> Optional[tuple[int, ...]]:
    sound = len(given) <= 64 and all(type(size) is int and 0 <= size < 2**63 for size in given)
    return tuple(given) if sound else None


def _nbytes(dtype: str, shape: Optional[tuple[int, ...]]) -> Optional[int]:
    try:
        return None if shape is None else numpy_dtype(dtype).itemsize * math.prod(shape)
    except NotSupported:
        return None


class _Stack(NamedTuple):
    """What led to a record: the line of the user's code, and all functions."""

    source: Optional[str]
    functions: tuple[str, ...]

    @classmethod
    def of(cls, lines: list[Any]) -> _Stack:
        return cls(source_of(lines), stack_of(lines))


def _stacks(given: Mapping[str, Any]) -> dict[str, _Stack]:
    """By record; records that share a stack are listed with it."""
    found: dict[str, _Stack] = {}
    for key, value in given.items():
        if not isinstance(value, list):
            continue
        if len(value) == 2 and all(isinstance(part, list) for part in value):
            stack = _Stack.of(value[1])
            found.update((name, stack) for name in value[0] if isinstance(name, str))
        else:  # of older versions: the lines by record
            found[key] = _Stack.of(value)
    return found


def _stack_of(name: str, stacks: Mapping[str, _Stack]) -> dict[str, Any]:
    """Return the attribute `stack` of a record."""
    return {"stack": stacks[name].functions} if name in stacks and stacks[name].functions else {}


class _UnlistedTensor(Entry):
    """A file of dump_tensor_data without an index above it, as a killed program may leave it."""

    __slots__ = ("_file", "_index")

    def __init__(self, directory: Directory, file: _TensorFile, index: int) -> None:
        super().__init__(directory.path / file.name, op_name=file.record, **_levels(directory))
        self._file, self._index = file, index

    def records(self) -> Iterator[Record]:
        parts = MsprobeName.of(self._file.record)
        known: dict[str, Any] = {
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
            yield Record(None, error=broken, **known)
            return
        stored = StoredTensor(file=self.path)
        yield Record(_LOADER, key=stored, dtype=dtype, shape=shape, format="ND", nbytes=_nbytes(dtype, shape), **known)


class _TensorFile(NamedTuple):
    """What the name of a file in dump_tensor_data says."""

    name: str
    record: str
    io: str
    argument: str

    @classmethod
    def of(cls, name: str) -> Optional[_TensorFile]:
        """None where msprobe does not name files like this."""
        found = _FILE.fullmatch(name)
        if found is None:
            return None
        record, side, path = found[1], found[2], found[3] or ""
        io = "input" if side in ("input", "parameters") else "output"
        return cls(name, record, io, f"parameters.{path}" if side == "parameters" else path)

    @property
    def position(self) -> int:
        """Of the argument; -1 for one that has a name."""
        first = self.argument.partition(".")[0]
        return int(first) if first.isascii() and first.isdecimal() and len(first) < 10 else -1


def _unlisted(directory: Directory, files: list[_TensorFile]) -> Iterator[_UnlistedTensor]:
    """Their numbers as an index would count them: by position, those with names behind them."""
    before, number = ("", ""), -1
    for file in sorted(files, key=lambda one: (one.record, one.io, one.position < 0, one.position, one.argument)):
        number = max(number + 1, file.position) if (file.record, file.io) == before else max(0, file.position)
        before = (file.record, file.io)
        yield _UnlistedTensor(directory, file, number)
