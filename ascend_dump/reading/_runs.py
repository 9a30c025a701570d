"""Read the manifests in a dump, which have the request and the state of each run, and find lost records."""

from __future__ import annotations

import os
import re
import shlex
import socket
from array import array
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from ascend_dump.common.paths import MANIFEST
from ascend_dump.common.run_manifest import SCHEMA
from ascend_dump.common.units import counted
from ascend_dump.errors import ConfigError
from ascend_dump.request import DumpRequest
from ascend_dump.steps import Steps
from ascend_dump.storage.files import read_regular, regular_status, walked

if TYPE_CHECKING:
    from ascend_dump.dump_format import IndexText

__all__ = [
    "Indexed",
    "LostRecords",
    "Run",
    "RunState",
    "ShardUse",
    "find_lost_records",
    "is_of_complete_run",
    "read_run",
    "runs_above",
]

#: Levels from a file up to the directory of its run: `{time}/{device_id}/{model_name}/{model_id}/{step}/{file}`.
_LEVELS = 5
#: Maximum size of a manifest in bytes.
_MOST_BYTES = 10_000_000
#: Maximum number of characters of a text from a manifest; the rest is cut off.
_LONGEST_REASON = 1000
#: Maximum number of versions, environment variables and settings that are read from a manifest.
_MOST_SURROUNDINGS = 200
#: Bytes of an index that are read at a time.
_PART = 1 << 20
#: The shard file and byte range of a tensor, in a line of an index as ascend_dump writes it. Lines in another form are
#: counted, but their shards are not checked.
_SHARD = b'"shard":"'
_BLOB = re.compile(_SHARD + rb'(\d{1,18}/tensors-\d{5,18}\.safetensors)","blob":\[(\d{1,18}),(\d{1,18})\]')
_SCHEMAS = ("ascend-dump/host/", SCHEMA)


class RunState(str, Enum):
    """The state of a run. Each member is equal to its text."""

    COMPLETE = "complete"
    RUNNING = "running"  # its process is alive
    ENDED = "ended"  # its process does not exist any more and left the manifest incomplete: killed, or unable to write
    FAILED = "failed"  # the capture stopped early
    UNKNOWN = "unknown"  # the manifest is incomplete, and its process is on another machine, so it cannot be checked

    def __str__(self) -> str:
        return self.value


class Run(NamedTuple):
    """One run of a capture, read from its manifest. Dumps of other tools have no manifest.

    path    the directory of the run
    reason  a sentence that says why the run is not complete; "" if it is
    scene   the requested scene, as in `capture(scene=...)`
    notes   sentences about its steps: the number of removed steps, and the reason why the recording ended early
    made    (name, text) pairs: the request, the command, the versions of packages
    records number of records that it wrote and did not remove; None if the run is not complete, or if its manifest
            lacks the number
    ranks   the requested ranks, as in `capture(ranks=...)`; "" if all of them were requested
    steps   number of recorded steps, including steps without records; None as for `records`
    surroundings  (name, text) pairs: versions, environment variables, settings of the framework, the git commit
    label   the label of the capture, as in `capture(label=...)`; "" without a label
    is_whole  True if all operators of its steps were requested, with inputs and outputs
    """

    path: Path
    state: RunState
    reason: str = ""
    scene: Optional[str] = None
    notes: tuple[str, ...] = ()
    made: tuple[tuple[str, str], ...] = ()
    records: Optional[int] = None
    ranks: str = ""
    steps: Optional[int] = None
    surroundings: tuple[tuple[str, str], ...] = ()
    is_whole: bool = False
    label: str = ""


class LostRecords(NamedTuple):
    """A loss in a run: its indexes lack records that it wrote, or a shard (file of tensors) is missing or cut off.

    shard           path of the shard below the run's directory; "" if the indexes lack records
    found, written  number of records in the indexes, and number of records that the run wrote; for a shard: number of
                    records with a tensor that can be read, and number of records with a tensor in the shard
    size, needs     for a shard: its size in bytes (None if it is missing), and the end of its last tensor in bytes
    """

    run: Path
    found: int
    written: int
    shard: str = ""
    size: Optional[int] = None
    needs: int = 0

    @property
    def reason(self) -> str:
        """A sentence that describes the loss."""
        if not self.shard:
            return f"only {self.found} of the {self.written} written records are left: files are missing or cut off"
        what = "is missing" if self.size is None else f"is cut off: it has {self.size} of at least {self.needs} bytes"
        return f"{self.shard} {what}; the tensors of {counted(self.written - self.found, 'record')} are lost"


class ShardUse(NamedTuple):
    """The use of a shard (file of tensors) by the records of indexes.

    records  number of records with a tensor in the shard
    end      end of the last of these tensors, in bytes
    behind   a function from a file size to the number of records with a tensor that ends behind it
    """

    records: int
    end: int
    behind: Callable[[int], int]


class Indexed(NamedTuple):
    """The content of the indexes of a run: the number of records, and the use of each shard by its absolute path."""

    records: int
    shards: Mapping[Path, ShardUse]


def find_lost_records(run: Run, read_indexes: Optional[Callable[[Path], Indexed]] = None) -> list[LostRecords]:
    """Return the losses of a run; an empty list if nothing is lost, or if the number of written records is unknown.

    Each line of an index counts as a record. No tensor is read: a shard is cut off if it ends before its last tensor.

    read_indexes: a function from a run's directory to the content of its indexes; by default the files are read
    """
    if run.records is None:
        return []
    try:
        indexed = (read_indexes or _read_indexes)(run.path)
    except OSError:  # not counted as a loss, because an index that cannot be opened is listed as an unreadable record
        return []
    lost = [LostRecords(run.path, indexed.records, run.records)] if indexed.records < run.records else []
    for path, use in sorted(indexed.shards.items()):
        try:
            size: Optional[int] = regular_status(path, follow_links=False).st_size
        except FileNotFoundError:
            size = None
        except OSError:  # a shard that cannot be accessed is not counted as a loss either
            continue
        if size is None or size < use.end:
            readable = 0 if size is None else use.records - use.behind(size)
            lost.append(LostRecords(run.path, readable, use.records, _below(path, run.path), size, use.end))
    return lost


def _below(path: Path, run: Path) -> str:
    return "/".join(path.parts[len(run.parts) :])


def _read_indexes(root: Path) -> Indexed:
    from ascend_dump.dump_format import index_among, open_index

    records = 0
    ends: dict[Path, array[int]] = {}
    # The manifest was read before the files are listed here: if it says that the run is complete, all files exist.
    for directory, names in walked(root):
        index = index_among(names)
        if index is not None:
            of_step: dict[bytes, array[int]] = {}
            with open_index(directory / index) as file:
                for text in _whole_lines(file):
                    records += text.count(b"\n")
                    for shard, begin, size in _BLOB.findall(text) if _SHARD in text else ():
                        of_step.setdefault(shard, array("q")).append(int(begin) + int(size))
            for shard, shard_ends in of_step.items():
                ends.setdefault(directory.parent / shard.decode(), array("q")).extend(shard_ends)
    return Indexed(records, {path: _use_of(shard_ends) for path, shard_ends in ends.items()})


def _whole_lines(file: IndexText) -> Iterator[bytes]:
    """Yield parts of a file that end with a whole line, then the unfinished last line. Stop at a zero byte."""
    unfinished = b""
    for part in iter(lambda: file.read(_PART), b""):
        if b"\0" in part:
            # A disk that lost the latest writes leaves a hole of zero bytes. The text after the hole is not read.
            yield (unfinished + part[: part.index(0)]).rpartition(b"\n")[0] + b"\n"
            return
        head, newline, tail = part.rpartition(b"\n")
        if newline:
            yield unfinished + head + newline
            unfinished = tail
        else:
            # A line that is longer than a part is no record. It is shortened, so that it does not fill the memory.
            unfinished = (unfinished + tail)[:_PART]
    yield unfinished


def _use_of(ends: array[int]) -> ShardUse:
    return ShardUse(len(ends), max(ends), lambda size: sum(end > size for end in ends))


def runs_above(directory: Path) -> Iterable[Path]:
    """Return the nearest parents of a directory or file: one of them may be the directory of its run."""
    return list(directory.absolute().parents)[:_LEVELS]


def is_of_complete_run(path: Path) -> bool:
    """Return True if a file belongs to a complete run; False also if no manifest is found."""
    runs = map(read_run, runs_above(path))
    return any(run is not None and run.state is RunState.COMPLETE for run in runs)


def read_run(root: Path) -> Optional[Run]:
    """Return the run of the directory `root`; None if it has no manifest of ascend_dump."""
    manifest = _manifest(root)
    run = _read_run(root, manifest)
    if run is None:
        return None
    return run._replace(
        notes=tuple(_notes(manifest)),
        made=tuple(_made(manifest)),
        ranks=_ranks(manifest),
        surroundings=tuple(islice(_surroundings(manifest), _MOST_SURROUNDINGS)),
        is_whole=_is_whole(manifest.get("request")),
        label=_label(manifest),
    )


def _surroundings(manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(manifest.get("surroundings"), dict):
        yield "surroundings", "recorded"
    for field in ("versions", "surroundings"):
        texts = manifest.get(field)
        for name, text in texts.items() if isinstance(texts, dict) else ():
            if isinstance(text, str):
                yield name[:_LONGEST_REASON], text[:_LONGEST_REASON]


def _ranks(manifest: dict[str, Any]) -> str:
    request = manifest.get("request")
    ranks = request.get("ranks") if isinstance(request, dict) else None
    try:
        return str(Steps(ranks, name="ranks")) if isinstance(ranks, str) else ""
    except ConfigError:  # the manifest is damaged
        return ""


def _label(manifest: dict[str, Any]) -> str:
    request = manifest.get("request")
    try:
        return DumpRequest(label=request.get("label") if isinstance(request, dict) else None).label or ""
    except ConfigError:  # the manifest is damaged
        return ""


def _is_whole(request: object) -> bool:
    if not isinstance(request, dict):
        return False
    is_narrow = any(request.get(name) for name in ("layers", "models", "scene"))
    return not is_narrow and request.get("mode", "all") == "all" and request.get("level") != "module"


def _made(manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    request, versions, command = (manifest.get(name) for name in ("request", "versions", "command"))
    if isinstance(request, dict):
        yield "request", ", ".join(f"{name}={value!r}" for name, value in request.items())[:_LONGEST_REASON]
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        yield "command", shlex.join(command)[:_LONGEST_REASON]
    if isinstance(versions, dict):
        yield "versions", ", ".join(f"{name} {value}" for name, value in versions.items())[:_LONGEST_REASON]


def _notes(manifest: dict[str, Any]) -> Iterator[str]:
    request = manifest.get("request")
    keep, until = (request.get("keep"), request.get("until")) if isinstance(request, dict) else (None, None)
    removed, ended = manifest.get("removed"), manifest.get("ended")
    if isinstance(removed, dict) and type(removed.get("steps")) is int and removed["steps"]:
        options = request.get("options") if isinstance(request, dict) else None
        age = "" if isinstance(options, dict) and options.get("spread") else "older "
        steps = f"1 {age}step was" if removed["steps"] == 1 else f"{removed['steps']} {age}steps were"
        yield f"{steps} removed (keep={keep})"
    elif removed is None and type(keep) is int:
        yield f"only the last steps are here (keep={keep})"
    if isinstance(ended, dict):
        where = "" if type(ended.get("step")) is not int else f" at step {ended['step']}"
        yield f"the recording ended{where}: {str(ended.get('reason'))[:_LONGEST_REASON]}"
    elif until == "nonfinite" and manifest.get("state") in ("complete", "incomplete"):
        unknown = manifest.get("unknown")
        besides = f"; {unknown} tensors could not be checked" if type(unknown) is int and unknown else ""
        yield f"no step produced NaN or Inf, as far as it was recorded{besides}"


def _read_run(root: Path, manifest: dict[str, Any]) -> Optional[Run]:
    request = manifest.get("request")
    scene = request.get("scene") if isinstance(request, dict) else manifest.get("scene")
    scene = scene if isinstance(scene, str) else None
    state = manifest.get("state")
    if state == "complete":
        tally = manifest.get("tally")
        counts = [tally.get(name) if isinstance(tally, dict) else None for name in ("records", "begun")]
        records, steps = (count if type(count) is int else None for count in counts)
        return Run(root, RunState.COMPLETE, scene=scene, records=records, steps=steps)
    if state == "incomplete":
        return Run(
            root,
            RunState.FAILED,
            f"the capture ended early: {manifest.get('failure') or 'for no recorded reason'}",
            scene,
        )
    if state != "running":
        return None
    pid = manifest.get("pid")
    if manifest.get("host") != socket.gethostname() or not isinstance(pid, int):
        return Run(
            root,
            RunState.UNKNOWN,
            "its manifest is incomplete: the capture still runs on another machine, or ended early there",
            scene,
        )
    if _is_alive(pid):
        return Run(root, RunState.RUNNING, f"the capture has not ended: process {pid} still runs", scene)
    reason = f"process {pid} is gone and did not complete its manifest: it was killed, or could not write"
    return Run(root, RunState.ENDED, f"{reason}; the files that it completed can be read", scene)


def _manifest(root: Path) -> dict[str, Any]:
    import msgspec

    path = root / MANIFEST
    try:
        content = msgspec.json.decode(read_regular(path, _MOST_BYTES, follow_links=False))
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):  # not a manifest of ascend_dump
        return {}
    return content if isinstance(content, dict) and str(content.get("schema")).startswith(_SCHEMAS) else {}


def _is_alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # a process of another user
        return True
    return True
