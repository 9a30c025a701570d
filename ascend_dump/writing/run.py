"""Create the directories of one run of one rank, and write its manifest."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import msgspec

from ascend_dump._version import __version__
from ascend_dump.common.paths import RunDirectory, add_private_directory, replace_file
from ascend_dump.dump_format import MANIFEST, encodable
from ascend_dump.errors import AscendDumpError, WriteError
from ascend_dump.writing.budget import explain
from ascend_dump.writing.surroundings import loaded_versions, surroundings

if TYPE_CHECKING:
    from ascend_dump.writing.writer import HostWriter

__all__ = ["HostRun"]

#: Maximum number of bytes in the name of a model's directory; file systems allow 255.
_LONGEST_NAME = 200


class HostRun:
    """The manifest of one run of one rank, written to an existing, empty directory. Methods raise WriteError."""

    def __init__(
        self,
        directory: RunDirectory,
        *,
        request: dict[str, Any],
        versions: dict[str, str],
        settings: Optional[Mapping[str, str]] = None,
    ) -> None:
        """settings: values of framework settings, by the expression that returns each: `torch.get_num_threads()`."""
        self.root, rank = directory.path, directory.rank
        self._manifest: dict[str, Any] = {
            "schema": "ascend-dump/host/1",
            "state": "running",
            "request": request,
            "rank": rank.rank,
            "world_size": rank.world,
            "versions": {
                "ascend_dump": __version__,
                "python": platform.python_version(),
                **loaded_versions(),
                **versions,
            },
            "surroundings": {**(settings or {}), **surroundings()},
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "parent": os.getppid(),
            "command": list(getattr(sys, "argv", ())),  # an embedded interpreter may have none
            "start": time.time(),
        }
        self.write_manifest()

    def directory(self, device: int, model: str) -> Path:
        """Create and return `{device}/{model}/{model_id}`, with an unused model_id.

        Raises WriteError if it cannot be created.
        """
        model_level = self.root / str(device) / _file_name(model)
        directory = model_level
        try:
            for directory in (model_level.parent, model_level):
                with contextlib.suppress(FileExistsError):
                    add_private_directory(directory)
            for number in itertools.count():
                directory = model_level / str(number)
                with contextlib.suppress(FileExistsError):
                    add_private_directory(directory)
                    break
        except OSError as error:
            raise WriteError(
                f"{directory} cannot be created: {error.strerror}", hint="see `ascend-dump doctor`"
            ) from error
        return directory

    def finish(self, writers: Sequence[HostWriter], failure: Optional[AscendDumpError], **fields: Any) -> None:
        """Write the manifest of a capture that has ended. Raises WriteError.

        fields  further fields of the manifest that the adapter provides, such as `steps_seen` and `tally`
        """
        self.write_manifest(
            state="complete" if failure is None else "incomplete",
            failure=str(failure) if failure is not None else "",
            end=time.time(),
            records=sum(writer.records for writer in writers),
            logical_bytes=sum(writer.logical_bytes for writer in writers),
            bytes_written=sum(writer.bytes_written for writer in writers),
            **_merge_retention(writers),
            **fields,
        )

    def write_manifest(self, **changes: Any) -> None:
        """Update fields of the manifest, and replace the file atomically.

        Raises WriteError if it cannot be written; the earlier file stays.
        """
        self._manifest.update(changes)
        try:
            replace_file(self.root / MANIFEST, msgspec.json.format(_encode(self._manifest)))
        except OSError as error:
            raise explain(error, self.root) from error


def _merge_retention(writers: Sequence[HostWriter]) -> dict[str, Any]:
    """Merge the fields that `HostWriter.kept` returns for several writers, which count their steps separately.

    Numbers are summed. `first` and `last` are the lowest and the highest step that any writer removed. `ended` is taken
    from the first writer in the list that ended early.
    """
    fields_of_writers = [writer.kept() for writer in writers]
    merged: dict[str, Any] = {}
    removed = [fields["removed"] for fields in fields_of_writers if "removed" in fields]
    if removed:
        merged["removed"] = {
            "steps": sum(summary["steps"] for summary in removed),
            "records": sum(summary["records"] for summary in removed),
            "first": min((summary["first"] for summary in removed if summary["first"] is not None), default=None),
            "last": max((summary["last"] for summary in removed if summary["last"] is not None), default=None),
        }
    ended = [fields["ended"] for fields in fields_of_writers if "ended" in fields]
    if ended:
        merged["ended"] = ended[0]
    unknown = [fields["unknown"] for fields in fields_of_writers if "unknown" in fields]
    if unknown:
        merged["unknown"] = sum(unknown)
    harmless: Counter[str] = Counter()
    for fields in fields_of_writers:
        harmless.update(fields.get("harmless", {}))
    if harmless:
        merged["harmless"] = dict(harmless.most_common())
    return merged


def _encode(manifest: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(manifest, enc_hook=str)
    except UnicodeEncodeError:
        return msgspec.json.encode(_with_encodable_texts(manifest), enc_hook=str)


def _with_encodable_texts(value: Any) -> Any:
    """Return the value, with characters replaced that UTF-8 cannot encode.

    Command-line arguments and paths may contain bytes that are no text, which Python decodes to such characters.
    """
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {_with_encodable_texts(key): _with_encodable_texts(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_encodable_texts(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float)) else encodable(str(value))


def _file_name(model: str) -> str:
    """Return a model name as a directory name of at most 200 bytes.

    The characters are replaced that CANN's device-side dump_task also replaces in paths.
    """
    name = "".join("_" if letter in " ./\\\0" else letter for letter in encodable(model))
    while len(name.encode()) > _LONGEST_NAME:
        name = name[:-1]
    return name or "model"
