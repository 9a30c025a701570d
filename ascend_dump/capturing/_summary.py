"""The summary that is logged at the end of a capture: steps and operators, directory, cost and next command."""

from __future__ import annotations

import json
import logging
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ascend_dump.common.counters import Tally
from ascend_dump.common.log import spoken
from ascend_dump.common.paths import MANIFEST
from ascend_dump.common.rank import Rank, is_spokesman, ranks_of_this_host
from ascend_dump.common.units import counted, duration, size
from ascend_dump.errors import AscendDumpError
from ascend_dump.storage.files import read_regular
from ascend_dump.writing.held_steps import EVERY, RECORD_BYTES

if TYPE_CHECKING:
    from ascend_dump.adapter import Session
    from ascend_dump.request import DumpRequest

__all__ = ["Progress", "tell"]

log = logging.getLogger("ascend_dump")

#: Seconds from the start to the first progress message, and maximum seconds between two messages.
_FIRST_MESSAGE, _MAX_PAUSE = 10.0, 60.0
#: Maximum seconds that the summary waits for other ranks of this machine, which end at about the same time.
_MAX_WAIT = 1.0
#: Maximum number of files of a dump; the records of a larger dump are not counted.
_MAX_FILES = 20_000
#: Maximum number of bytes read of a manifest, and maximum number of characters of a reason.
_MAX_MANIFEST, _MAX_REASON = 10_000_000, 200


class _FilesOnDisk(NamedTuple):
    """Number of record files, and bytes of all files, of a dump."""

    number: int
    nbytes: int


class _RankPart(NamedTuple):
    """The files and counters of one rank. tally: None if the records of the rank were not counted."""

    rank: int
    files: _FilesOnDisk
    tally: Optional[Tally]


def tell(
    path: Path,
    request: DumpRequest,
    rank: Rank,
    session: Session,
    *,
    seconds: float,
    failure: Optional[AscendDumpError],
) -> None:
    """Log the summary of a stopped capture.

    If the session counts its records, the first selected rank of a machine reports for all ranks of the machine;
    otherwise each rank reports for itself.

    seconds: duration of the capture. failure: why the dump is incomplete, None if it is complete.
    """
    if request.quiet:
        return
    tally = session.tally()
    if tally is not None and not is_spokesman(rank, request.ranks):
        return
    files = _files(path)
    own_part = _RankPart(rank.rank, files, tally if tally is not None else _count_records(path, files))
    if not files.number:
        _report_no_overflow(path, request, own_part, seconds)
        return
    parts, running = [own_part], list[int]()
    if tally is not None and rank.world > 1:
        other_parts, running = _other_ranks(path, rank)
        parts += other_parts
    where = path if len(parts) == 1 else path.parents[1]
    lines = [
        f"{_ranks_text(parts, rank)}dumped {_counts_text(parts)} into {_short(where)}",
        f"  {_cost_text(parts, seconds)}",
    ]
    lines += [f"  {line}" for line in _notes(request, parts, running, failure)]
    if any(part.tally is None or part.tally.records for part in parts):
        lines.append(f"  look at it: ascend-dump ls {shlex.quote(_short(where))}")
    spoken().info("%s", "\n".join(lines))


def _report_no_overflow(path: Path, request: DumpRequest, own_part: _RankPart, seconds: float) -> None:
    """Report an empty dump if that is a good result: no overflow. Other empty dumps are reported by the capture."""
    tally = own_part.tally
    if request.scene == "overflow" and tally is not None and tally.begun:
        text = f"no operator produced NaN or Inf in {counted(tally.begun, 'step')}: nothing was dumped"
        spoken().info("%s\n  %s", text, _cost_text([own_part], seconds))


def _ranks_text(parts: list[_RankPart], rank: Rank) -> str:
    if len(parts) > 1:
        return f"{len(parts)} ranks "
    return f"rank {rank.rank} " if rank.world > 1 else ""


def _counts_text(parts: list[_RankPart]) -> str:
    tallies = [part.tally for part in parts if part.tally is not None]
    if not tallies:
        return counted(sum(part.files.number for part in parts), "file")
    total = Tally.of_all(tallies)
    steps = sorted({tally.steps for tally in tallies})
    each = counted(steps[0], "step") if len(steps) == 1 else f"{steps[0]} to {counted(steps[-1], 'step')}"
    each += " each" if len(parts) > 1 else ""
    return f"{each}, {counted(total.operators, 'operator')}, {counted(total.records, 'record')}"


def _cost_text(parts: list[_RankPart], seconds: float) -> str:
    disk = f"{size(sum(part.files.nbytes for part in parts))} on disk"
    tally = parts[0].tally
    recorded_bytes = sum(part.tally.seen for part in parts if part.tally is not None)
    disk += f" of {size(recorded_bytes)} seen" if recorded_bytes else ""
    if tally is None or tally.took is None or tally.cost is None:
        return f"{disk}; {duration(seconds)} from start to end"
    of = " (of this rank)" if len(parts) > 1 else ""
    return f"{disk}; recording cost {duration(tally.cost)}{of}, the recorded steps took {duration(tally.took)}"


def _notes(
    request: DumpRequest, parts: list[_RankPart], running: list[int], failure: Optional[AscendDumpError]
) -> Iterator[str]:
    tally = parts[0].tally
    spread = request.options.get("spread", False)
    if request.keep is not None and tally is not None and tally.begun > tally.steps >= (1 if spread else request.keep):
        kept = f"{tally.steps}, spread over them" if spread else f"the last {tally.steps}"
        yield f"recorded {counted(tally.begun, 'step')}, kept {kept} (keep={request.keep})"
    in_memory = sum(part.tally.in_memory for part in parts if part.tally is not None)
    if in_memory:
        memory = f"{counted(in_memory, 'record')} (about {size(in_memory * RECORD_BYTES)})"
        yield (f"the last steps were in memory, up to {memory}, and were written every {EVERY:.0f} s and at the end")
    if tally is not None and tally.limit is not None:
        yield (
            f"default size limit {size(tally.limit)} (10 % of the free space), because neither a last step, keep= nor "
            "max_bytes= was given"
        )
    if tally is not None and tally.cut:
        yield "the last step was not ended by the optimizer, because the capture stopped first"
    if running:
        yield f"still writing: {'rank' if len(running) == 1 else 'ranks'} {', '.join(map(str, running))}"
    if failure is not None and failure.reported:  # otherwise the capture reports it right after the summary
        # Only its beginning: the whole message was reported before.
        yield f"not complete: {failure.message.splitlines()[0].partition(': ')[0][:_MAX_REASON]} [{failure.code}]"


def _short(path: Path) -> str:
    """Return the path relative to the current directory if it is inside it, else the path unchanged."""
    try:
        relative = os.path.relpath(path)
    except OSError:  # the current directory was removed
        return os.fspath(path)
    return os.fspath(path) if relative.startswith(os.pardir) else relative


def _files(path: Path) -> _FilesOnDisk:
    """Return number and size of the files of a dump. Manifests and markers count in the size only."""
    number = nbytes = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                nbytes += os.lstat(os.path.join(directory, name)).st_size
            except OSError:
                continue
            number += name not in _NO_RECORDS
    return _FilesOnDisk(number, nbytes)


_NO_RECORDS = (MANIFEST, "call.json")


def _count_records(path: Path, files: _FilesOnDisk) -> Optional[Tally]:
    """Count the records of a dump that a framework wrote. Return None if it has too many files or no records."""
    if not 0 < files.number <= _MAX_FILES:
        return None
    from ascend_dump.reading import open_dump

    try:
        dump = open_dump(path)
        steps = {(record.model, record.step) for record in dump}
        # The kernels of an API call do not count as operators, unless there are only kernels.
        executions = {record.execution: record.kernel for record in dump}
        operators = [run for run, kernel in executions.items() if kernel is None] or executions
    except Exception:  # a bad file must not make a successful program fail
        log.debug("the dump could not be counted", exc_info=True)
        return None
    numbers = {step for _, step in steps}
    return Tally(len(numbers), len(operators), len(dump), 0, len(numbers)) if len(dump) else None


def _other_ranks(path: Path, rank: Rank) -> tuple[list[_RankPart], list[int]]:
    """Return the parts of the other ranks of this run on this machine, and the numbers of ranks that still write."""
    until = time.monotonic() + _MAX_WAIT
    while True:
        manifests = {
            number: _sibling_manifest(path.parents[1] / Rank(number, rank.world).level) for number in _neighbours(rank)
        }
        running = [number for number, run in manifests.items() if run is not None and run[1].get("state") == "running"]
        if not running or time.monotonic() > until:
            break
        time.sleep(0.02)
    parts = []
    for number, run in manifests.items():
        tally = None if run is None else _tally_of(run[1])
        if run is not None and number not in running and tally is not None and tally.records:
            parts.append(_RankPart(number, _files(run[0]), tally))
    return parts, running


def _neighbours(rank: Rank) -> list[int]:
    return [number for number in ranks_of_this_host(rank) if number != rank.rank]


def _sibling_manifest(level: Path) -> Optional[tuple[Path, dict[str, Any]]]:
    """Return the newest run directory of a rank, and its manifest.

    Return None if the manifest cannot be read, or if the run is one of another machine or of another parent process.
    """
    try:
        newest = max(level.iterdir())
        manifest = json.loads(read_regular(newest / MANIFEST, _MAX_MANIFEST, follow_links=False))
    except (OSError, ValueError, RecursionError):  # there is no readable manifest
        return None
    own_part = (
        isinstance(manifest, dict)
        and manifest.get("host") == socket.gethostname()
        and manifest.get("parent") == os.getppid()
    )
    return (newest, manifest) if own_part else None


def _tally_of(manifest: dict[str, Any]) -> Optional[Tally]:
    try:
        return Tally(**manifest["tally"])
    except (KeyError, TypeError):
        return None


class Progress:
    """A thread that logs the progress of a long recording, if standard error is a terminal."""

    def __init__(self, session: Session, request: DumpRequest, rank: Rank) -> None:
        self._session = session
        self._over = threading.Event()
        if not request.quiet and _is_terminal() and is_spokesman(rank, request.ranks) and session.tally() is not None:
            threading.Thread(target=self._run, name="ascend_dump progress", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        pause, reported = _FIRST_MESSAGE, 0
        while not self._over.wait(pause):
            pause = min(2 * pause, _MAX_PAUSE)
            tally = self._session.tally()
            if tally is not None and tally.records > reported:
                reported = tally.records
                spoken().info(
                    "recording: %s, %s, %s seen so far",
                    counted(tally.begun, "step"),
                    counted(tally.records, "record"),
                    size(tally.seen),
                )


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # stderr is None or closed
        return False
