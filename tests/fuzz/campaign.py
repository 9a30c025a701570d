"""A campaign of mutated files over every reader: only errors of ours, in bounded time and memory.

    python tests/fuzz/campaign.py --mutants 100000 --seed 1 --jobs 2

Each mutant is made of a whole file by the seed, the reader and its number alone, so that any of them can be made
again. Ends with 1 when a reader raised anything else than our errors, took more than a second of processor time
or 300 MB, ended its process, or hung; such inputs are saved.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, Optional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "helpers"))

from mutation import mutate
from places import REPOSITORY
from subjects import Subject, subjects

from ascend_dump import AscendDumpError

__all__ = ["Finding", "Report", "main", "make_mutant", "run_campaign"]

#: Bounds for one mutant, which has one MB at most.
MOST_SECONDS = 1.0
MOST_BYTES = 300 << 20
#: Above what it has when it begins a worker gets no more memory than this.
_GUARD = 1500 << 20
#: A worker that says nothing for so long hangs, in seconds.
PATIENCE = 60.0
_BATCH = 400
#: In place of the number of a mutant: the process begins, or reads whole files first.
_STARTING = -1


class Finding(NamedTuple):
    """what: the kind and the place, equal for mutants that found the same."""

    subject: str
    number: int
    what: str
    details: str = ""


class _Batch(NamedTuple):
    subject: int
    first: int
    count: int


class _Done(NamedTuple):
    subject: int
    count: int
    seconds: float
    slowest: float
    findings: list[Finding]
    #: Whether the worker ends now, because it took too much memory to be measured further.
    worn: bool


class Report:
    """What a campaign did, by reader."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.slowest: dict[str, float] = {}
        self.findings: list[Finding] = []

    def by_cause(self) -> dict[tuple[str, str], list[Finding]]:
        found: dict[tuple[str, str], list[Finding]] = {}
        for one in self.findings:
            found.setdefault((one.subject, one.what), []).append(one)
        return found

    def lines(self) -> Iterator[str]:
        yield f"{'reader':34}{'mutants':>10}{'CPU s':>9}{'slowest s':>11}{'findings':>10}"
        found = Counter(one.subject for one in self.findings)
        for name in sorted(self.counts):
            numbers = f"{self.seconds[name]:9.1f}{self.slowest[name]:11.3f}{found[name]:10}"
            yield f"{name:34}{self.counts[name]:10}{numbers}"


def make_mutant(subject: Subject, seed: int, number: int) -> tuple[str, bytes]:
    """The place and the content of one mutant."""
    draw = random.Random(f"{seed} {subject.name} {number}")
    place = draw.choice(list(subject.seeds))
    return place, mutate(subject.seeds[place], list(subject.seeds.values()), draw)


def run_campaign(
    chosen: Sequence[Subject],
    *,
    mutants: int,
    seed: int,
    seconds: Optional[float] = None,
    jobs: int = 1,
    patience: float = PATIENCE,
    tell: Callable[[str], None] = lambda text: None,
) -> Report:
    """Go through so many mutants, spread over the readers, in worker processes; seconds: end then at the latest."""
    report = Report()
    begin = time.monotonic()
    batches = _batches(len(chosen), mutants)
    workers: list[_Worker] = []
    told = begin
    try:
        while True:
            late = seconds is not None and time.monotonic() - begin > seconds
            while len(workers) < jobs and not late:
                batch = next(batches, None)
                if batch is None:
                    break
                workers.append(_Worker(chosen, seed, batch))
            if not workers:
                return report
            wait([worker.pipe for worker in workers], timeout=0.2)
            for worker in list(workers):
                done = worker.answer(patience)
                if done is None:
                    continue
                name = chosen[done.subject].name
                report.counts[name] += done.count
                report.seconds[name] += done.seconds
                report.slowest[name] = max(report.slowest.get(name, 0.0), done.slowest)
                report.findings += done.findings
                batch = None if late or done.worn else next(batches, None)
                if batch is None:
                    worker.end()
                    workers.remove(worker)
                else:
                    worker.begin(batch)
            if time.monotonic() - told > 60:
                told = time.monotonic()
                tell(f"{sum(report.counts.values())} mutants in {told - begin:.0f} s, {len(report.findings)} findings")
    finally:
        for worker in workers:
            worker.end()


def _batches(subjects: int, mutants: int) -> Iterator[_Batch]:
    share, more = divmod(mutants, subjects)
    left = [share + (number < more) for number in range(subjects)]
    first = 0
    while any(left):
        for number in range(subjects):
            count = min(_BATCH, left[number])
            if count:
                left[number] -= count
                yield _Batch(number, first, count)
        first += _BATCH


class _Worker:
    """A process that reads mutants, and what it is doing."""

    def __init__(self, chosen: Sequence[Subject], seed: int, batch: _Batch) -> None:
        context = multiprocessing.get_context("spawn")
        self._chosen = chosen
        self._at: Any = context.Value("q", _STARTING)
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, list(chosen), seed, self._at), daemon=True)
        self._process.start()
        theirs.close()
        self.begin(batch)

    def begin(self, batch: _Batch) -> None:
        self._batch = batch
        self._at.value = _STARTING
        self._seen = (_STARTING, time.monotonic())
        with contextlib.suppress(OSError):  # it died: `answer` says so
            self.pipe.send(batch)

    def answer(self, patience: float) -> Optional[_Done]:
        """What came of the batch; None while it runs. A process that ended or hangs is a finding itself."""
        if self.pipe.poll():
            try:
                done: _Done = self.pipe.recv()
                return done
            except (EOFError, OSError):
                self._process.join(5)
                return self._lost(f"the process ended with {self._process.exitcode}")
        at = self._at.value
        if at != self._seen[0]:
            self._seen = (at, time.monotonic())
        elif time.monotonic() - self._seen[1] > (max(patience, PATIENCE) if at == _STARTING else patience):
            return self._lost(f"it hung for {patience:.0f} s")
        return None

    def _lost(self, what: str) -> _Done:
        at = max(self._at.value, self._batch.first)
        finding = Finding(self._chosen[self._batch.subject].name, at, what)
        return _Done(self._batch.subject, at - self._batch.first + 1, 0.0, 0.0, [finding], worn=True)

    def end(self) -> None:
        self.pipe.close()
        self._process.kill()
        self._process.join()
        self._process.close()


def _work(pipe: Connection, chosen: list[Subject], seed: int, at: Any) -> None:
    """What a worker does until nobody asks for more."""
    warnings.simplefilter("ignore")
    os.environ["ASCEND_DUMP_LOG"] = "error"
    import logging

    logging.disable(logging.CRITICAL)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as root:
        places = [_lay_out(Path(root) / str(number), subject) for number, subject in enumerate(chosen)]
        warm: set[int] = set()
        while True:
            try:
                batch: _Batch = pipe.recv()
            except EOFError:
                return
            subject, place = chosen[batch.subject], places[batch.subject]
            if batch.subject not in warm:
                for name in subject.seeds:  # what they import takes time and memory once
                    _try(subject, place, name, subject.seeds[name])
                warm.add(batch.subject)
                _limit()
            findings = []
            count, began, slowest, worn = 0, time.process_time(), 0.0, False
            for number in range(batch.first, batch.first + batch.count):
                at.value = number
                name, data = make_mutant(subject, seed, number)
                had = _peak_from_now_on()
                before = time.process_time()
                what, details = _try(subject, place, name, data)
                took = time.process_time() - before
                count, slowest = count + 1, max(slowest, took)
                if took > MOST_SECONDS:
                    findings.append(Finding(subject.name, number, "took too long", f"{took:.1f} s"))
                if what:
                    findings.append(Finding(subject.name, number, what, details))
                more = _peak() - had
                if more > MOST_BYTES:
                    findings.append(Finding(subject.name, number, "took too much memory", f"{more} bytes"))
                    worn = True
                    break
            pipe.send(_Done(batch.subject, count, time.process_time() - began, slowest, findings, worn))


def _lay_out(root: Path, subject: Subject) -> Path:
    for name, data in subject.beside.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    root.mkdir(parents=True, exist_ok=True)
    return root


def _try(subject: Subject, root: Path, name: str, data: bytes) -> tuple[str, str]:
    """What the reader raised that it should not, with its trace; empty where all is well."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    try:
        subject.use(path if subject.alone else root)
    except AscendDumpError as error:
        str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # nothing else may leave a reader
        return _cause(error), traceback.format_exc()[-2000:]
    finally:
        if name in subject.beside:
            path.write_bytes(subject.beside[name])
        else:
            path.unlink()
    return "", ""


def _cause(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if _is_ours(Path(one.filename))] or frames
    last = ours[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno} {last.name}"


def _is_ours(file: Path) -> bool:
    return REPOSITORY in file.parents and "site-packages" not in file.parts


def _peak_from_now_on() -> int:
    """The memory that this process has, in bytes, from which its peak is measured; where that cannot be, the peak."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc_pid_clear_refs(5): resets the peak
    return _peak()


def _peak() -> int:
    """The most memory that this process had since the peak was reset, in bytes."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _limit() -> None:
    """Let memory run out here before it does for the whole machine."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _GUARD, hard))


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=100_000, help="how many in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="others make other mutants (default: %(default)s)")
    parser.add_argument("--seconds", type=float, help="end after so many at the latest")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)")
    parser.add_argument("--only", metavar="TEXT", default="", help="readers whose name contains this")
    parser.add_argument("--save", metavar="DIR", type=Path, default=Path("fuzz_findings"), help="where inputs go")
    given = parser.parse_args(arguments)
    chosen = [one for one in subjects() if given.only in one.name]
    if not chosen:
        parser.error(f"no reader is named {given.only!r}: {', '.join(one.name for one in subjects())}")
    begin = time.monotonic()
    report = run_campaign(
        chosen, mutants=given.mutants, seed=given.seed, seconds=given.seconds, jobs=given.jobs, tell=print
    )
    took = time.monotonic() - begin
    print("\n".join(report.lines()))
    named = {one.name: one for one in chosen}
    for (name, what), same in report.by_cause().items():
        first = same[0]
        place, data = make_mutant(named[name], given.seed, first.number)
        given.save.mkdir(exist_ok=True, parents=True)
        saved = given.save / f"{name.replace(' ', '_')}-{given.seed}-{first.number}-{Path(place).name}"
        saved.write_bytes(data)
        print(f"\n{name}: {what}, {len(same)} times, first as mutant {first.number} of seed {given.seed}: {saved}")
        print(first.details)
    count = sum(report.counts.values())
    found = f"{len(report.findings)} findings, seed {given.seed}"
    print(f"\n{count} mutants of {len(chosen)} readers in {took:.0f} s, {found}")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
