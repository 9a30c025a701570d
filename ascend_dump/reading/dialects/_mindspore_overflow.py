"""Recognise MindSpore's overflow dumps. They have the tensors of operators that overflowed, but no overflow records."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from ascend_dump.native.mindspore.names import METADATA_DIRECTORY
from ascend_dump.storage.files import children, read_small

__all__ = ["has_only_overflows", "read_json"]

#: Maximum size of a JSON file in bytes.
_MOST_JSON = 1 << 20
#: Maximum number of JSON files that are read per directory.
_MOST_CONFIGS = 50
#: Values of `op_debug_mode` that dump overflows: MindSpore's parser treats 1 and 2 like 3.
_OVERFLOW_MODES = (1, 2, 3)


def has_only_overflows(rank_directory: Path) -> bool:
    """Return True if a dump of MindSpore has only operators that overflowed.

    rank_directory: `rank_N` of a dump with jit_level O0 or O1, which has no file about the overflow itself. The answer
    is read from `op_debug_mode` in the dump JSON inside or next to the run. It is False if the directory of metadata
    exists: MindSpore writes metadata on a CPU or GPU, where op_debug_mode 3 dumps all operators.
    """
    run = rank_directory.parent
    if any((run / rank / METADATA_DIRECTORY).exists() for rank in ("rank_0", rank_directory.name)):
        return False
    config = read_json(run.with_name(f"mindspore-{run.name}.json")) if run.name else None
    if config is None:
        config = next((document for document in _configs_near(run) if _is_of(document, run)), None)
    return _common(config).get("op_debug_mode") in _OVERFLOW_MODES


def _configs_near(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON file that MINDSPORE_DUMP_CONFIG names, and those in the run's directory and its parent."""
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


def read_json(path: Path) -> Optional[dict[str, Any]]:
    """Return the JSON object in a small file; None if the file cannot be read or contains something else."""
    try:
        value = json.loads(read_small(path, _MOST_JSON, follow_links=False))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
