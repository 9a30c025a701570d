"""The summary at the end of a run: recorded steps and operators, directory, cost and next command."""

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

#: Seconds from the start to the first message of progress, and the most between two messages.
_FIRST, _MOST = 10.0, 60.0
#: Seconds that the summary waits for other ranks of this machine, which end at about the same time.
_PATIENCE = 1.0
#: The most files of a dump that is opened to count its records.
_MANY_FILES = 20_000
#: Bytes of a manifest, and letters of a reason.
_MOST_BYTES, _LONGEST = 10_000_000, 200


class _FilesOnDisk(NamedTuple):
    number: int
    nbytes: int


class _RankPart(NamedTuple):
    """The recording of one rank. tally: None where it is not counted."""

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
    """Log the summary of a stopped capture. The first rank of a machine reports for all its ranks that count records.

    seconds: from start to end. failure: the reason of an incomplete dump.
    """
    if request.quiet:
        return
    tally = session.tally()
    if tally is not None and not is_spokesman(rank, request.ranks):
        return
    files = _files(path)
    mine = _RankPart(rank.rank, files, tally if tally is not None else _counted(path, files))
    if not files.number:
        _tell_of_nothing(path, request, mine, seconds)
        return
    parts, running = [mine], list[int]()
    if tally is not None and rank.world > 1:
        other_parts, running = _others(path, rank)
        parts += other_parts
    where = path if len(parts) == 1 else path.parents[1]
    lines = [f"{_who(parts, rank)}dumped {_what(parts)} into {_short(where)}", f"  {_price(parts, seconds)}"]
    lines += [f"  {line}" for line in _notes(request, parts, running, failure)]
    if any(part.tally is None or part.tally.records for part in parts):
        lines.append(f"  look at it: ascend-dump ls {shlex.quote(_short(where))}")
    spoken().info("%s", "\n".join(lines))


def _tell_of_nothing(path: Path, request: DumpRequest, mine: _RankPart, seconds: float) -> None:
    """Report an empty dump that is a good result; for other empty dumps the capture reports a failure."""
    tally = mine.tally
    if request.scene == "overflow" and tally is not None and tally.begun:
        text = f"no operator produced NaN or Inf in {counted(tally.begun, 'step')}: nothing was dumped"
        spoken().info("%s\n  %s", text, _price([mine], seconds))


def _who(parts: list[_RankPart], rank: Rank) -> str:
    if len(parts) > 1:
        return f"{len(parts)} ranks "
    return f"rank {rank.rank} " if rank.world > 1 else ""


def _what(parts: list[_RankPart]) -> str:
    tallies = [part.tally for part in parts if part.tally is not None]
    if not tallies:
        return counted(sum(part.files.number for part in parts), "file")
    total = Tally.of_all(tallies)
    steps = sorted({tally.steps for tally in tallies})
    each = counted(steps[0], "step") if len(steps) == 1 else f"{steps[0]} to {counted(steps[-1], 'step')}"
    each += " each" if len(parts) > 1 else ""
    return f"{each}, {counted(total.operators, 'operator')}, {counted(total.records, 'record')}"


def _price(parts: list[_RankPart], seconds: float) -> str:
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
    held = sum(part.tally.held for part in parts if part.tally is not None)
    if held:
        yield (
            f"the last steps were in memory, up to {counted(held, 'record')} (about {size(held * RECORD_BYTES)}), and "
            f"were written every {EVERY:.0f} s and at the end"
        )
    if tally is not None and tally.limit is not None:
        yield (
            f"default size limit {size(tally.limit)} (10 % of the free space), because neither a last step, keep= nor "
            "max_bytes= was given"
        )
    if tally is not None and tally.cut:
        yield "the last step was not ended by the optimizer: the capture stopped before"
    if running:
        yield f"still writing: {'rank' if len(running) == 1 else 'ranks'} {', '.join(map(str, running))}"
    if failure is not None and failure.reported:  # else it is told right after this
        # The rest of it was told before.
        yield f"not complete: {failure.message.splitlines()[0].partition(': ')[0][:_LONGEST]} [{failure.code}]"


def _short(path: Path) -> str:
    """Return the path relative to this directory, if it is below it."""
    try:
        near = os.path.relpath(path)
    except OSError:  # the directory is gone
        return os.fspath(path)
    return os.fspath(path) if near.startswith(os.pardir) else near


def _files(path: Path) -> _FilesOnDisk:
    """Return number and size of the files of a dump; our own marks do not count as files."""
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


def _counted(path: Path, files: _FilesOnDisk) -> Optional[Tally]:
    """Return the counters of a dump that its framework has written; None for a dump of too many files."""
    if not 0 < files.number <= _MANY_FILES:
        return None
    from ascend_dump.reading import open_dump

    try:
        dump = open_dump(path)
        steps = {(record.model, record.step) for record in dump}
        # The kernels of an API call are no operators of their own.
        executions = {record.execution: record.kernel for record in dump}
        operators = [run for run, kernel in executions.items() if kernel is None] or executions
    except Exception:  # whatever a file holds, the program has run well
        log.debug("the dump could not be counted", exc_info=True)
        return None
    numbers = {step for _, step in steps}
    return Tally(len(numbers), len(operators), len(dump), 0, len(numbers)) if len(dump) else None


def _others(path: Path, rank: Rank) -> tuple[list[_RankPart], list[int]]:
    """Return the recordings of the other ranks of this run on this machine, and the ranks that still write."""
    until = time.monotonic() + _PATIENCE
    while True:
        manifests = {
            number: _manifest_of(path.parents[1] / Rank(number, rank.world).level) for number in _neighbours(rank)
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


def _manifest_of(level: Path) -> Optional[tuple[Path, dict[str, Any]]]:
    """Return the newest run of a rank and its manifest, if it has our parent process and runs on this machine."""
    try:
        newest = max(level.iterdir())
        manifest = json.loads(read_regular(newest / MANIFEST, _MOST_BYTES, follow_links=False))
    except (OSError, ValueError, RecursionError):  # there is none
        return None
    mine = (
        isinstance(manifest, dict)
        and manifest.get("host") == socket.gethostname()
        and manifest.get("parent") == os.getppid()
    )
    return (newest, manifest) if mine else None


def _tally_of(manifest: dict[str, Any]) -> Optional[Tally]:
    try:
        return Tally(**manifest["tally"])
    except (KeyError, TypeError):
        return None


class Progress:
    """A thread that logs the progress of a long recording on a terminal. It does nothing elsewhere."""

    def __init__(self, session: Session, request: DumpRequest, rank: Rank) -> None:
        self._session = session
        self._over = threading.Event()
        if not request.quiet and _is_terminal() and is_spokesman(rank, request.ranks) and session.tally() is not None:
            threading.Thread(target=self._run, name="ascend_dump progress", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        pause, reported = _FIRST, 0
        while not self._over.wait(pause):
            pause = min(2 * pause, _MOST)
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
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False
