"""Map and reduce over ranks: a function makes a small table of each, which is kept as Parquet until all are there.

    {work}/{name}-{made_of}.parquet     what the function gave for one task

A file gets its name when it is whole, so what is there is not made again: after a killed worker its own task alone is
repeated, and after a killed process those that were not done.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, as_completed
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from ascend_dump._version import __version__
from ascend_dump.common.log import log
from ascend_dump.common.paths import PRIVATE_FILE, make_private_directory, user_cache
from ascend_dump.errors import ConfigError, WorkerLost, WriteError
from ascend_dump.storage.files import open_regular

if TYPE_CHECKING:
    import polars

__all__ = ["Partials", "RankTask", "check_executor", "map_ranks"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
_MAGIC = b"PAR1"
#: What a run that was killed has left is used by its next run, or it is gone after so many seconds.
_KEPT = 7 * 24 * 3600

_Watch = Callable[[Iterable[str]], Iterable[str]]


class RankTask(NamedTuple):
    """What is done for one rank, wherever the executor does it.

    name       tells it from the others, and begins the name of its file: letters, digits, ".", "_" and "-"
    made_of    a digest of all that the result depends on: the files of the rank with sizes and times, the settings
    arguments  for the function; they must be picklable where the executor has processes
    """

    name: str
    made_of: str
    arguments: tuple[Any, ...]


class Partials:
    """The tables of all tasks, on disk. Used by `with`: the directory goes at its end unless it was given.

    paths    of the Parquet files, in the order of the tasks
    repeated names of the tasks that were done in this call; the others were there from an earlier one
    """

    def __init__(
        self, paths: Sequence[Path], repeated: Sequence[str], temporary: Optional[Path], held: contextlib.ExitStack
    ) -> None:
        self.paths = tuple(paths)
        self.repeated = tuple(repeated)
        self._temporary = temporary
        #: What keeps others from the directory.
        self._held = held

    def scan(self) -> polars.LazyFrame:
        """All tables one after the other, as a polars LazyFrame that reads when it is collected."""
        import polars as pl

        return pl.concat([pl.scan_parquet(path) for path in self.paths])

    def __iter__(self) -> Iterator[polars.DataFrame]:
        """Table by table, each read when it is asked for."""
        import polars as pl

        return (pl.read_parquet(path) for path in self.paths)

    def __enter__(self) -> Partials:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if error is None and self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        self._held.close()


def check_executor(executor: Any) -> None:
    """Raise ConfigError for what takes no tasks, such as the class of an executor."""
    if isinstance(executor, type) or not callable(getattr(executor, "submit", None)):
        given = f"the class {executor.__name__}" if isinstance(executor, type) else f"a {type(executor).__name__}"
        raise ConfigError(
            f"executor= is {given}, expected an executor of concurrent.futures",
            hint="make one, and give it: with ProcessPoolExecutor(8) as executor: ...",
        )


def map_ranks(
    function: Callable[..., polars.DataFrame],
    tasks: Sequence[RankTask],
    *,
    executor: Optional[Executor] = None,
    work: Union[str, os.PathLike[str], None] = None,
    watch: Optional[_Watch] = None,
) -> Partials:
    """Do the tasks that were not done before, and give the tables of all of them.

    function  makes the table of one task: a function of a module where the executor has processes. It reads what its
              arguments name, on the machine where it runs; the table alone comes back
    executor  any `concurrent.futures.Executor`, such as `dask.distributed.Client(...).get_executor()`; None: the tasks
              are done here, one after the other
    work      the directory of the tables; else one in the user's cache directory that goes when all is used, and stays
              after an error, so that the same call goes on where this one ended
    watch     is given the names of tasks as they are done and passes them on, to show how far the work is

    Raises what the function raises, ConfigError for what is no executor, WorkerLost where the executor lost a worker
    and does not replace it, WriteError where the tables cannot be written. Needs polars (NotSupported).

    >>> import polars
    >>> def squares(rank): return polars.DataFrame({"rank": [rank], "square": [rank * rank]})
    >>> with map_ranks(squares, [RankTask(f"rank-{n}", "1", (n,)) for n in range(3)]) as partials:
    ...     partials.scan().select("square").collect().to_series().to_list()
    [0, 1, 4]
    """
    from ascend_dump.reading.catalog import polars_or_refuse

    polars_or_refuse("work over many ranks")
    if executor is not None:
        check_executor(executor)
    for task in tasks:
        if not _NAME.fullmatch(task.name):
            raise ValueError(f"{task.name!r} is no name of a task: expected letters, digits, '.', '_' and '-'")
    if len({task.name for task in tasks}) < len(tasks):
        raise ValueError("two tasks have the same name")
    with contextlib.ExitStack() as held:
        directory = _own_place(function, tasks, held) if work is None else Path(work)
        make_private_directory(directory)
        paths, done = _mapped(function, tasks, executor, directory, watch)
        return Partials(paths, done, directory if work is None else None, held.pop_all())


def _mapped(
    function: Callable[..., polars.DataFrame],
    tasks: Sequence[RankTask],
    executor: Optional[Executor],
    directory: Path,
    watch: Optional[_Watch],
) -> tuple[list[Path], list[str]]:
    """The files of all tasks, and the names of those that were done here."""
    paths = [directory / f"{task.name}-{_digest(function, task)}.parquet" for task in tasks]
    missing = [(task, path) for task, path in zip(tasks, paths) if not _is_whole(path)]
    if len(missing) < len(tasks):
        log.debug("%d of %d tasks were done before: %s", len(tasks) - len(missing), len(tasks), directory)
    done = _here(function, missing) if executor is None else _elsewhere(executor, function, missing, len(tasks))
    for _ in done if watch is None else watch(done):
        pass
    return paths, [task.name for task, _ in missing]


def _here(function: Callable[..., polars.DataFrame], missing: Sequence[tuple[RankTask, Path]]) -> Iterator[str]:
    for task, path in missing:
        _keep(table_bytes(function, task.arguments), path)
        yield task.name


def _elsewhere(
    executor: Executor, function: Callable[..., polars.DataFrame], missing: Sequence[tuple[RankTask, Path]], count: int
) -> Iterator[str]:
    waiting: dict[Future[bytes], tuple[RankTask, Path]] = {}
    failed: Optional[Exception] = None
    try:
        for task, path in missing:
            try:
                waiting[executor.submit(table_bytes, function, task.arguments)] = task, path
            except BrokenExecutor as error:
                failed = error
                break
        for future in as_completed(list(waiting)):
            task, path = waiting[future]
            try:
                _keep(future.result(), path)
            except CancelledError:
                continue
            except Exception as error:
                # What the other workers have nearly done is waited for and kept.
                failed = failed or error
                for other in waiting:
                    other.cancel()
            else:
                yield task.name
    finally:
        for future in waiting:
            future.cancel()
    if failed is not None and _is_loss(failed):
        kept = count - sum(1 for _, path in missing if not path.exists())
        raise WorkerLost(
            f"a worker of {type(executor).__name__} ended before its rank was done: {failed}",
            hint=f"call it again with a new executor: {kept} of {count} ranks are kept; if it ran out of memory, "
            "with fewer workers",
        ) from failed
    if failed is not None:
        raise failed


def _is_loss(error: Exception) -> bool:
    """Whether it says that a worker is gone; dask has a name of its own for that."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ in ("KilledWorker", "LostWorkerError")


def table_bytes(function: Callable[..., polars.DataFrame], arguments: tuple[Any, ...]) -> bytes:
    """What a worker does: it gives the table back as Parquet, since it may share no disk with whoever asked."""
    written = io.BytesIO()
    function(*arguments).write_parquet(written, compression="zstd")
    return written.getvalue()


def _keep(table: bytes, path: Path) -> None:
    """Write a file that has its name only once all of it is on the disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, PRIVATE_FILE), "wb") as file:
            file.write(table)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise WriteError(
            f"{path}: what is known of a rank cannot be kept: {error.strerror}",
            hint="free space, or set XDG_CACHE_HOME to a directory that has some",
        ) from error


def _is_whole(path: Path) -> bool:
    try:
        with open_regular(path, follow_links=False) as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o022 or status.st_size < 2 * len(_MAGIC):
                return False
            file.seek(-len(_MAGIC), os.SEEK_END)
            return file.read() == _MAGIC
    except OSError:
        return False


def _digest(function: Callable[..., Any], task: RankTask) -> str:
    import xxhash

    parts = (__version__, function.__module__, function.__qualname__, task.name, task.made_of)
    return xxhash.xxh3_128_hexdigest(repr(parts).encode("utf-8", "surrogatepass"))


def _own_place(function: Callable[..., Any], tasks: Sequence[RankTask], held: contextlib.ExitStack) -> Path:
    """The directory of these tasks, unless another call that is doing the same has it; then a new one."""
    import fcntl
    import tempfile

    place = _default_place(function, tasks)
    make_private_directory(place)
    lock = os.open(place / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)
    held.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return Path(tempfile.mkdtemp(dir=place.parent))
    return place


def _default_place(function: Callable[..., Any], tasks: Sequence[RankTask]) -> Path:
    import xxhash

    above = user_cache() / "ranks"
    text = " ".join(_digest(function, task) for task in tasks)
    with contextlib.suppress(OSError):
        for old in above.iterdir():
            if time.time() - old.stat().st_mtime > _KEPT:
                shutil.rmtree(old, ignore_errors=True)
    return above / xxhash.xxh3_128_hexdigest(text.encode())
