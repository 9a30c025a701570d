"""Recognise overflow dumps of MindSpore that have only the tensors of the operators that overflowed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from ascend_dump.native.mindspore.names import METADATA_DIRECTORY
from ascend_dump.storage.files import children, read_small

__all__ = ["has_only_overflows", "read_json"]

_MOST_JSON = 1 << 20
#: The most JSON files of a directory that are read.
_MOST_CONFIGS = 50
#: op_debug_mode: the parser takes 1 and 2 for 3.
_OVERFLOW_MODES = (1, 2, 3)


def has_only_overflows(rank_directory: Path) -> bool:
    """Return True if a tree of O0 or O1 has only operators that overflowed, by the dump JSON in or next to it.

    Such a tree has no record of the overflow itself. On a CPU or GPU, which write metadata, op_debug_mode 3 dumps
    everything.
    """
    run = rank_directory.parent
    if any((run / rank / METADATA_DIRECTORY).exists() for rank in ("rank_0", rank_directory.name)):
        return False
    config = read_json(run.with_name(f"mindspore-{run.name}.json")) if run.name else None
    if config is None:
        config = next((document for document in _configs_near(run) if _is_of(document, run)), None)
    return _common(config).get("op_debug_mode") in _OVERFLOW_MODES


def _configs_near(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the dump JSON that the environment names, and those in the directory of the dump and in the one above."""
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
    """Read a small JSON object; None if it is not one or cannot be read."""
    try:
        value = json.loads(read_small(path, _MOST_JSON, follow_links=False))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
