"""Convert dump files of CANN: find the dump files among files and directories, and convert them on several threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

from ascend_dump.converting._file import ConversionFailure, Options, Result, convert_file
from ascend_dump.errors import AscendDumpError, ConfigError, CorruptDump, DumpNotFound, ReadError, WriteError
from ascend_dump.native.cann.mapping import MAPPING, read_mapping
from ascend_dump.native.cann.names import parse_name
from ascend_dump.storage import StoredPath
from ascend_dump.storage.files import walked

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["TYPES", "ConversionFailure", "Options", "Result", "Task", "check_options", "convert_all", "find_tasks"]

TYPES = ("npy", "npz", "bin", "txt", "csv")
#: Suffixes of files in dump directories that are no dump files: files of other tools, and converted files.
_OTHER_SUFFIXES = (".npy", ".npz", ".csv", ".txt", ".json", ".bin", ".pt", ".pbtxt", ".log", ".core", ".o")
#: Maximum number of threads; more would only wait for the disk.
_MOST_JOBS = 16
#: Maximum size of a file in bytes that is converted on the calling thread. Two threads took twice the processor time of
#: one thread for smaller files, and the same time for files of 3 MB (measured).
_SMALL_FILE = 1 << 20
#: Minimum number of digits of a name that may be a 64-bit hash.
_SHORTEST_HASH = 10

Select = Callable[[str], bool]


class Task(NamedTuple):
    """A file to convert.

    source   the file
    out      the directory for its output files
    named    True if the caller gave the file itself, or if it is named like a dump file; then other content is a
             failure
    name     its original name, if its name on disk is a hash
    problem  the reason why the original name is unknown
    """

    source: Path
    out: Path
    named: bool
    name: str = ""
    problem: str = ""


def check_options(options: Options) -> None:
    """Raise ConfigError for options that are invalid for every dump file of CANN."""
    from ascend_dump.native.cann.formats import TARGETS

    if options.type not in TYPES:
        from ascend_dump.converting.records import RECORD_TYPES

        what = "is for dumps that are not CANN's" if options.type in RECORD_TYPES else "is not a file type"
        raise ConfigError(f"type={options.type!r} {what}", hint=f"types: {', '.join(TYPES)}")
    if options.format is not None and options.format not in TARGETS:
        raise ConfigError(
            f"format={options.format!r} is no layout to convert to", hint=f"layouts: {', '.join(TARGETS)}"
        )
    if options.shape and options.format is None:
        raise ConfigError("shape= is the model's shape for a conversion of the layout", hint="give format= too")
    if options.original_format is not None and options.original_format not in TARGETS:
        raise ConfigError(f"original_format={options.original_format!r} is no layout", hint="such as NCHW or NHWC")
    if options.dtype is not None:
        _check_dtype(options.dtype, options.type)


def _check_dtype(name: str, type: str) -> None:
    import numpy as np

    from ascend_dump.converting._file import find_dtype

    dtype = find_dtype(name)
    if dtype is None or dtype.kind in "OSUMm" or dtype.name == "void":
        raise ConfigError(f"dtype={name!r} is no type of numpy or ml_dtypes", hint="such as float32 or float16")
    if not hasattr(np, name) and type != "bin":
        raise ConfigError(
            f"dtype={name!r} cannot be written to a {type} file", hint="use dtype='float32', or type='bin'"
        )


def find_tasks(sources: Sequence[Path], out: Path, select: Optional[Select] = None) -> Iterator[Task]:
    """Yield the files to convert: all files among `sources`, and the files below directories that may be dump files.

    The outputs of files below a directory get the same relative directories below `out`. select: gets an operator's
    name from a file name, and returns True to convert the file. Raises DumpNotFound for a source that does not
    exist, ConfigError for two files of the same name.
    """
    files: dict[str, Path] = {}
    for source in sources:
        if not source.exists():
            raise DumpNotFound("no such file or directory", path=source)
        if not source.is_dir() and files.setdefault(source.name, source) != source:
            raise ConfigError(
                f"{files[source.name]} and {source} would be converted to the same files",
                hint="give their directories, or another output for each",
            )
    prefixes = _prefixes([source for source in sources if source.is_dir()])
    for source in sources:
        if source.is_dir():
            yield from _find_below(source, out / prefixes[source], select)
        else:
            names, problem = _long_names(source.parent, [source.name])
            name = names.get(source.name, "")
            if select is None or _selected(source.name, name or source.name, select):
                yield Task(source, out, True, name, problem)


def _prefixes(directories: list[Path]) -> dict[Path, str]:
    """Return for each directory the name of its directory below the output: unique names; "" for a single directory."""
    if len(directories) < 2:
        return dict.fromkeys(directories, "")
    prefixes: dict[Path, str] = {}
    for directory in directories:
        name = unique = directory.resolve().name or "root"
        number = 2
        while unique in prefixes.values():
            unique, number = f"{name}-{number}", number + 1
        prefixes[directory] = unique
    return prefixes


def _find_below(root: Path, out: Path, select: Optional[Select]) -> Iterator[Task]:
    if isinstance(root, StoredPath):
        for directory, files in walked(root):
            target = out.joinpath(*directory.parts[len(root.parts) :])
            yield from _tasks_in(directory, sorted(name for name in files if name != MAPPING), target, select)
        return
    stack = [(os.fspath(root), out)]
    # The output directory may be inside the source. It is left out, so that outputs are not converted again.
    results = os.path.realpath(out)
    while stack:
        path, target = stack.pop()
        below = []
        names: list[str] = []
        with os.scandir(path) as items:
            for item in items:
                if item.is_dir(follow_symlinks=False):
                    if os.path.realpath(item.path) != results:
                        below.append(item.name)
                elif item.name != MAPPING:
                    names.append(item.name)
        yield from _tasks_in(Path(path), sorted(names), target, select)
        stack += [(os.path.join(path, name), target / name) for name in sorted(below, reverse=True)]


def _tasks_in(directory: Path, names: list[str], out: Path, select: Optional[Select]) -> Iterator[Task]:
    renamed, problem = _long_names(directory, names)
    for name in names:
        full = renamed.get(name, name)
        parsed = parse_name(full)
        if (parsed is None and name.endswith(_OTHER_SUFFIXES)) or (parsed is not None and parsed.statistics):
            continue
        if select is None or _selected(name, full, select):
            yield Task(
                directory / name, out, parsed is not None, renamed.get(name, ""), problem if _is_hash(name) else ""
            )


def _is_hash(name: str) -> bool:
    """Return True if a name on disk may be the hash of a longer name."""
    return name.isdecimal() and len(name) >= _SHORTEST_HASH


def _long_names(directory: Path, names: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return the original names by the hashes among `names`, and the reason why they are unknown, or ""."""
    if not any(map(_is_hash, names)):
        return {}, ""
    try:
        return read_mapping(directory / MAPPING).names, ""
    except ReadError as error:
        failure = error.message if os.path.lexists(directory / MAPPING) else "is not beside it"
        return {}, f"its name is a hash, and {MAPPING}, which has the operator's name, {failure}"


def _selected(name: str, full: str, select: Select) -> bool:
    parsed = parse_name(full)
    return select(parsed.op_name if parsed is not None else name)


def convert_all(tasks: Iterable[Task], options: Options, *, jobs: int = 0, compat: bool = False) -> Iterator[Result]:
    """Convert files, several at a time, and yield the result of each.

    jobs    number of threads, 0 for one per processor. They convert the large files, because these are copied
            without Python's lock. Small files would only wait for that lock
    compat  write the output of msaccucmp, including its wrong decodings (`msaccucmp`)

    Raises ConfigError; WriteError if no further file can be written.
    """
    check_options(options)
    if compat:
        from ascend_dump.converting.msaccucmp import check_compat, convert_file_compat

        check_compat(options)
        work = convert_file_compat
    else:
        work = convert_file
    jobs = min(jobs or len(os.sched_getaffinity(0)), _MOST_JOBS)
    if jobs == 1:
        for task in tasks:
            yield _convert_task(task, options, work)
        return
    from concurrent.futures import Future, ThreadPoolExecutor

    waiting: deque[Union[Result, Future[Result]]] = deque()
    with ThreadPoolExecutor(jobs, thread_name_prefix="ascend-dump-convert") as pool:
        try:
            for task in tasks:
                if _is_small(task.source):
                    waiting.append(_convert_task(task, options, work))
                else:
                    waiting.append(pool.submit(_convert_task, task, options, work))
                # The queue is limited, because a directory may have millions of files.
                while waiting and (len(waiting) > 4 * jobs or isinstance(waiting[0], Result)):
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())
        finally:
            for future in waiting:
                if isinstance(future, Future):
                    future.cancel()


def _result(done: Union[Result, Future[Result]]) -> Result:
    return done if isinstance(done, Result) else done.result()


def _is_small(path: Path) -> bool:
    try:
        return path.stat().st_size <= _SMALL_FILE
    except OSError:
        return True


def _convert_task(task: Task, options: Options, work: Callable[[Path, Path, Options, str], Result]) -> Result:
    try:
        result = work(task.source, task.out, options, task.name)
        return result._replace(problems=(*result.problems, task.problem)) if task.problem else result
    except CorruptDump as error:
        if not task.named:
            return Result(task.source, skipped=True)
        return Result(task.source, failures=(ConversionFailure(task.source, "", error),))
    except WriteError:
        raise
    except AscendDumpError as error:
        return Result(task.source, failures=(ConversionFailure(task.source, "", error),))
