"""Convert dump files to arrays that every tool reads: one file, many, or whole trees."""

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
#: Other files in dump directories, and our own files.
_OTHER_SUFFIXES = (".npy", ".npz", ".csv", ".txt", ".json", ".bin", ".pt", ".pbtxt", ".log", ".core", ".o")
#: More threads than this only wait for the disk.
_MOST_JOBS = 16
#: Below this, two threads took twice the processor time of one (measured), at 3 MB the same.
_SMALL_FILE = 1 << 20
#: Digits of a 64-bit hash; fewer are some other number.
_SHORTEST_HASH = 10

Select = Callable[[str], bool]


class Task(NamedTuple):
    """One file to convert.

    named    its name is a dump file's, so that being none is a failure
    name     the name it stands for, where it is a hash on disk
    problem  why that name is not known
    """

    source: Path
    out: Path
    named: bool
    name: str = ""
    problem: str = ""


def check_options(options: Options) -> None:
    """Raise ConfigError for options that no file could be converted with."""
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
        raise ConfigError(f"a {type} file cannot say dtype={name!r}", hint="use dtype='float32', or type='bin'")


def find_tasks(sources: Sequence[Path], out: Path, select: Optional[Select] = None) -> Iterator[Task]:
    """Yield the dump files among `sources`: files as they are, directories with all below them.

    A directory's outputs keep their place below it. `select` is a test of the operator's name as the
    file name has it. Raises DumpNotFound for a source that does not exist, ConfigError for two files of
    the same name.
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
    """Keep several trees apart by their names; one tree stands directly in the output."""
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
    # Converting into a directory of the source must not convert the results again.
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
    """Return True if a name that was too long may be on disk under this one."""
    return name.isdecimal() and len(name) >= _SHORTEST_HASH


def _long_names(directory: Path, names: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return the names that hashes among `names` stand for, and why none is known."""
    if not any(map(_is_hash, names)):
        return {}, ""
    try:
        return read_mapping(directory / MAPPING).names, ""
    except ReadError:
        return {}, f"its name is a hash, and {MAPPING}, which has the operator's name, is not beside it"


def _selected(name: str, full: str, select: Select) -> bool:
    parsed = parse_name(full)
    return select(parsed.op_name if parsed is not None else name)


def convert_all(tasks: Iterable[Task], options: Options, *, jobs: int = 0, compat: bool = False) -> Iterator[Result]:
    """Convert files, several at a time, and yield the result of each.

    jobs    threads, 0 for one per processor. They take the large files, where the copying is done
            without Python's lock; small ones would only wait for it
    compat  write the output of msaccucmp, wrong decodings included (`_msaccucmp`)

    Raises ConfigError, and WriteError when nothing more can be written.
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
                # A tree has up to millions of files: look only so far ahead.
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
