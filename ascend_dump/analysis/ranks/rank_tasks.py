"""Map and reduce over ranks: a function returns a small table per rank, stored as Parquet until all are complete.

    {work}/{name}-{digest}.parquet      the table of one task

A file gets its name when it is complete. Then its task is not repeated: after the death of a worker or of this process,
only the tasks without a file are run.
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
#: Seconds after which the tables of a killed run are removed if no later run used them.
_MAX_AGE = 7 * 24 * 3600

_Watch = Callable[[Iterable[str]], Iterable[str]]


class RankTask(NamedTuple):
    """The task of one rank.

    name       unique, and the beginning of the name of its file: letters, digits, ".", "_" and "-"
    made_of    a text that differs if any input of the result does: names, sizes and times of files, and settings
    arguments  of the function; they must be picklable if the executor has processes
    """

    name: str
    made_of: str
    arguments: tuple[Any, ...]


class Partials:
    """The tables of all tasks, on disk. A context manager: at its end a temporary directory is removed.

    paths     the Parquet files, in the order of the tasks
    repeated  names of the tasks that this call ran; the files of the others are from an earlier call
    """

    def __init__(
        self, paths: Sequence[Path], repeated: Sequence[str], temporary: Optional[Path], resources: contextlib.ExitStack
    ) -> None:
        self.paths = tuple(paths)
        self.repeated = tuple(repeated)
        self._temporary = temporary
        #: Releases the lock of the directory.
        self._resources = resources

    def scan(self) -> polars.LazyFrame:
        """Return all tables one after the other, as a polars LazyFrame that reads when it is collected."""
        import polars as pl

        return pl.concat([pl.scan_parquet(path) for path in self.paths])

    def __iter__(self) -> Iterator[polars.DataFrame]:
        """Yield table by table."""
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
        self._resources.close()


def check_executor(executor: Any) -> None:
    """Raise ConfigError for an object without `submit`, or the class of an executor."""
    if isinstance(executor, type) or not callable(getattr(executor, "submit", None)):
        name = f"the class {executor.__name__}" if isinstance(executor, type) else f"a {type(executor).__name__}"
        raise ConfigError(
            f"executor= is {name}, expected an executor of concurrent.futures",
            hint="create one, and pass it: with ProcessPoolExecutor(8) as executor: ...",
        )


def map_ranks(
    function: Callable[..., polars.DataFrame],
    tasks: Sequence[RankTask],
    *,
    executor: Optional[Executor] = None,
    work: Union[str, os.PathLike[str], None] = None,
    watch: Optional[_Watch] = None,
) -> Partials:
    """Run the tasks without a stored table, and return the tables of all tasks.

    function  returns the table of one task: a function of a module if the executor has processes. It reads files on
              the machine of the worker; only the table is sent back
    executor  any `concurrent.futures.Executor`, such as `dask.distributed.Client(...).get_executor()`; None: the tasks
              run in this process, one after the other
    work      the directory of the tables; None: a directory in the user's cache directory. It is removed after use, but
              not after an error, so that the same call can continue with its tables
    watch     an iterator function that receives the names of completed tasks and yields them, for a progress display

    Raises the errors of the function, ConfigError for an object that is no executor, WorkerLost if the executor lost a
    worker and does not replace it, WriteError if the tables cannot be written. Needs polars (NotSupported).

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
    with contextlib.ExitStack() as resources:
        directory = _locked_directory(function, tasks, resources) if work is None else Path(work)
        make_private_directory(directory)
        paths, done = _mapped(function, tasks, executor, directory, watch)
        return Partials(paths, done, directory if work is None else None, resources.pop_all())


def _mapped(
    function: Callable[..., polars.DataFrame],
    tasks: Sequence[RankTask],
    executor: Optional[Executor],
    directory: Path,
    watch: Optional[_Watch],
) -> tuple[list[Path], list[str]]:
    """Run the tasks without a file; return the files of all tasks, and the names of the tasks that were run."""
    paths = [directory / f"{task.name}-{_digest(function, task)}.parquet" for task in tasks]
    missing = [(task, path) for task, path in zip(tasks, paths) if not _is_whole(path)]
    if len(missing) < len(tasks):
        log.debug("%d of %d tasks were done before: %s", len(tasks) - len(missing), len(tasks), directory)
    done = _run_here(function, missing) if executor is None else _run_on(executor, function, missing, len(tasks))
    for _ in done if watch is None else watch(done):
        pass
    return paths, [task.name for task, _ in missing]


def _run_here(function: Callable[..., polars.DataFrame], missing: Sequence[tuple[RankTask, Path]]) -> Iterator[str]:
    for task, path in missing:
        _save(table_bytes(function, task.arguments), path)
        yield task.name


def _run_on(
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
                _save(future.result(), path)
            except CancelledError:
                continue
            except Exception as error:
                # Wait for the running tasks and keep their tables.
                failed = failed or error
                for pending in waiting:
                    pending.cancel()
            else:
                yield task.name
    finally:
        for future in waiting:
            future.cancel()
    if failed is not None and _is_loss(failed):
        done = count - sum(1 for _, path in missing if not path.exists())
        raise WorkerLost(
            f"a worker of {type(executor).__name__} ended before its rank was done: {failed}",
            hint=f"call it again with a new executor: {done} of {count} ranks are kept; if it ran out of memory, "
            "with fewer workers",
        ) from failed
    if failed is not None:
        raise failed


def _is_loss(error: Exception) -> bool:
    """Return True if a worker was lost; dask has its own error for that."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ in ("KilledWorker", "LostWorkerError")


def table_bytes(function: Callable[..., polars.DataFrame], arguments: tuple[Any, ...]) -> bytes:
    """Run a task and return its table as the bytes of a Parquet file, because worker and caller may share no disk."""
    buffer = io.BytesIO()
    function(*arguments).write_parquet(buffer, compression="zstd")
    return buffer.getvalue()


def _save(table: bytes, path: Path) -> None:
    """Write a table to a file, which gets its final name once it is complete on the disk."""
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
            f"{path}: the table of a rank cannot be written: {error.strerror}",
            hint="free space, or choose another directory with work= or XDG_CACHE_HOME",
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


def _locked_directory(function: Callable[..., Any], tasks: Sequence[RankTask], resources: contextlib.ExitStack) -> Path:
    """Lock and return the directory of these tasks; if another call has locked it, return a new directory."""
    import fcntl
    import tempfile

    directory = _cache_directory(function, tasks)
    make_private_directory(directory)
    lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)
    resources.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return Path(tempfile.mkdtemp(dir=directory.parent))
    return directory


def _cache_directory(function: Callable[..., Any], tasks: Sequence[RankTask]) -> Path:
    import xxhash

    parent = user_cache() / "ranks"
    text = " ".join(_digest(function, task) for task in tasks)
    with contextlib.suppress(OSError):
        for directory in parent.iterdir():
            if time.time() - directory.stat().st_mtime > _MAX_AGE:
                shutil.rmtree(directory, ignore_errors=True)
    return parent / xxhash.xxh3_128_hexdigest(text.encode())
