"""Overflow dumps of MindSpore: records of GE as JSON, or only the tensors of the operators that overflowed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Optional

from ascend_dump.errors import CorruptDump
from ascend_dump.native.cann.names import DumpName
from ascend_dump.native.cann.overflow import Unit, find_operator, overflow_of
from ascend_dump.native.mindspore.names import METADATA_DIRECTORY, NpyName
from ascend_dump.reading._record import Record
from ascend_dump.storage.files import children, read_small

__all__ = ["has_only_overflows", "overflow_record", "read_json"]

_MOST_JSON = 1 << 20
#: The most JSON files of a directory that are read.
_MOST_CONFIGS = 50
#: op_debug_mode: the parser takes 1 and 2 for 3.
_OVERFLOW_MODES = (1, 2, 3)

#: A file name, and where the file is.
_File = tuple[NpyName, Path]


def has_only_overflows(rank_directory: Path) -> bool:
    """Whether a tree of O0 or O1 has only operators that overflowed, by the dump JSON in or next to it.

    Such a tree has no record of the overflow itself. On a CPU or GPU, which write metadata, op_debug_mode 3 dumps
    everything.
    """
    run = rank_directory.parent
    if any((run / rank / METADATA_DIRECTORY).exists() for rank in ("rank_0", rank_directory.name)):
        return False
    config = read_json(run.with_name(f"mindspore-{run.name}.json")) if run.name else None
    if config is None:
        config = next((found for found in _configs_near(run) if _is_of(found, run)), None)
    return _common(config).get("op_debug_mode") in _OVERFLOW_MODES


def _configs_near(run: Path) -> Iterator[dict[str, Any]]:
    """The dump JSON that the environment names, and those in the directory of the dump and in the one above."""
    named = os.environ.get("MINDSPORE_DUMP_CONFIG")
    if named:
        yield read_json(Path(named)) or {}
    for directory in (run, run.absolute().parent):
        try:
            names = sorted(name for name in children(directory)[1] if name.endswith(".json"))
        except OSError:
            continue
        for name in names[:_MOST_CONFIGS]:
            yield read_json(directory / name) or {}


def _is_of(config: dict[str, Any], run: Path) -> bool:
    path = _common(config).get("path")
    return isinstance(path, str) and os.path.realpath(path) == os.path.realpath(run)


def _common(config: Optional[dict[str, Any]]) -> dict[str, Any]:
    common = None if config is None else config.get("common_dump_settings")
    return common if isinstance(common, dict) else {}


def overflow_record(path: Path, known: dict[str, Any], beside: Iterable[_File]) -> Record:
    """The JSON of an overflow, decoded as CANN's own record of it is.

    known: the fields that names and levels tell. beside: the tensors in its directory.
    """
    common = {**known, "op_type": "Opdebug", "op_name": "Node_OpDebug", "io": "output"}
    attrs: dict[str, Any] = {"scene": "overflow"}
    document = read_json(path)
    if document is None:
        error = CorruptDump("it is not the JSON of an overflow", path=path)
        return Record(None, error=error, attrs=attrs, **common)
    try:
        found = overflow_of(document)
    except CorruptDump as error:
        return Record(None, attrs={**attrs, "problems": [error.message]}, **common)
    units = [unit for unit in found.units if unit.overflowed] or list(found.units)
    files = sorted(beside, key=lambda file: file[0].timestamp)
    attrs.update(overflow=document, units=[_unit(unit, files, known["timestamp"]) for unit in units])
    if found.problems:
        attrs["problems"] = list(found.problems)
    return Record(None, attrs=attrs, **common)


def _unit(unit: Unit, files: list[_File], around: int) -> dict[str, Any]:
    fields: dict[str, Any] = {**unit._asdict(), "status": list(unit.status), "words": list(unit.words)}
    fields["operator"] = None
    by_name = {_device_name(name): name for name, _ in files}
    found = find_operator(unit._replace(context_id=None, thread_id=None), by_name, around)
    if found is not None:
        one = by_name[found]
        # There is one file per tensor.
        paths = [str(path) for name, path in files if name[:4] == one[:4]]
        fields["operator"] = {"op_type": one.op_type, "op_name": one.op_name, "path": paths[0], "paths": paths}
    return fields


def _device_name(name: NpyName) -> DumpName:
    return DumpName("device", name.op_type, name.op_name, name.timestamp, name.task_id, name.stream_id)


def read_json(path: Path) -> Optional[dict[str, Any]]:
    """Read a small JSON object; None if it is not one or cannot be read."""
    try:
        value = json.loads(read_small(path, _MOST_JSON, follow_links=False))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
