"""Create the attributes of overflow records, and find the files of the operator that overflowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from ascend_dump.native.cann.converted import RENAMED, parse_converted
from ascend_dump.native.cann.names import DumpName
from ascend_dump.native.cann.overflow import OverflowRecord, Unit, find_operator
from ascend_dump.native.mindspore.names import parse_name as parse_mindspore_name
from ascend_dump.reading.dialects._cann_files import CannDirectory, is_hash
from ascend_dump.storage.files import children

__all__ = ["overflow_fields"]

#: Our form for names of MindSpore. They lack the task's context and thread, and each tensor has its own timestamp.
_MINDSPORE = "mindspore"


def overflow_fields(
    directory: CannDirectory, record: OverflowRecord, document: dict[str, Any], around: int
) -> dict[str, Any]:
    """Return the attributes of an overflow record: its content, and the operator of each unit that overflowed.

    document: the record as JSON. around: its timestamp
    """
    if directory.tasks is None:
        directory.tasks = _files_by_task(directory)
    units = [unit for unit in record.units if unit.overflowed] or list(record.units)
    fields = [_unit(unit, directory.tasks.get(unit.task_id, {}), around) for unit in units]
    attrs: dict[str, Any] = {"overflow": document, "units": fields}
    if record.problems:
        attrs["problems"] = list(record.problems)
    return attrs


def _unit(unit: Unit, files: Mapping[DumpName, list[Path]], around: int) -> dict[str, Any]:
    operator = find_operator(unit, files, around)
    if operator is None:
        of_mindspore = (name for name in files if name.form == _MINDSPORE)
        operator = find_operator(unit._replace(context_id=None, thread_id=None), of_mindspore, around)
    fields: dict[str, Any] = {**unit._asdict(), "status": list(unit.status), "words": list(unit.words)}
    fields["operator"] = None
    if operator is not None:
        names = [operator]
        if operator.form == _MINDSPORE:
            same = (name for name in files if name._replace(timestamp=operator.timestamp) == operator)
            names = sorted(same, key=lambda name: name.timestamp)
        paths = [str(path) for name in names for path in files[name]]
        fields["operator"] = {"op_type": operator.op_type, "op_name": operator.op_name, "path": paths[0]}
        fields["operator"]["paths"] = paths
    return fields


def _files_by_task(directory: CannDirectory) -> Mapping[int, Mapping[DumpName, list[Path]]]:
    """Return by task id the files of each operator run: only its dump file if that exists, else its converted files.

    The directory is listed again, because `Directory.names` lacks the files that other dialects have claimed.
    """
    try:
        _, names = children(directory.path)
    except OSError:  # removed since it was listed
        return {}
    files_by_task: dict[int, dict[DumpName, list[Path]]] = {}
    whole: set[DumpName] = set()
    for on_disk, dump, is_whole in _dump_names(directory, sorted(names)):
        if dump.task_id is None or dump in whole:
            continue
        files = files_by_task.setdefault(dump.task_id, {}).setdefault(dump, [])
        if is_whole:
            whole.add(dump)
            files.clear()
        files.append(directory.path / on_disk)
    return files_by_task


def _dump_names(directory: CannDirectory, names: list[str]) -> Iterator[tuple[str, DumpName, bool]]:
    """Yield (name on disk, fields of the dump file's name, True if it is a dump file with tensors)."""
    long_names: Optional[dict[str, str]] = None
    for on_disk in names:
        name = on_disk
        if is_hash(on_disk.partition(".")[0]) or RENAMED.fullmatch(on_disk):
            long_names = directory.long_names() if long_names is None else long_names
            stem, dot, suffix = on_disk.partition(".")
            name = long_names.get(on_disk) or long_names.get(stem, stem) + dot + suffix
        parsed = directory.parse(name)
        if parsed is not None:
            yield on_disk, parsed[1], not parsed[1].statistics
            continue
        converted = parse_converted(name)
        parsed = None if converted is None else directory.parse(converted.dump)
        if parsed is not None:
            yield on_disk, parsed[1], False
            continue
        npy = parse_mindspore_name(name)
        if npy is not None:
            name_of_dump = DumpName(_MINDSPORE, npy.op_type, npy.op_name, npy.timestamp, npy.task_id, npy.stream_id)
            yield on_disk, name_of_dump, False
