"""Create, open and remove the directories and files of a dump. They are private to their owner, as CANN's are.

Another user may try to redirect what we write or remove, by links or by replaced directories. So links are never
followed, and directories of this process are recognised by device and inode.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional, Union

from ascend_dump.common.rank import Rank
from ascend_dump.errors import WriteError

__all__ = [
    "CALL",
    "CATALOG",
    "MANIFEST",
    "NO_PART",
    "PRIVATE_DIRECTORY",
    "PRIVATE_FILE",
    "PUSHED",
    "REMOVED_DIRECTORY",
    "UNFINISHED",
    "ForeignFile",
    "RunDirectory",
    "add_private_directory",
    "holds_files",
    "is_disk_failure",
    "is_private",
    "located",
    "make_private_directory",
    "mark_call",
    "move",
    "open_directory",
    "open_private",
    "remove_directory",
    "remove_file",
    "remove_tree",
    "replace_file",
    "user_cache",
]

PRIVATE_DIRECTORY = 0o700
PRIVATE_FILE = 0o600
#: The file in a run's directory with the request and the state of the run.
MANIFEST = "manifest.json"
#: The file in the directory of one call of a decorated function with the number of the call.
CALL = "call.json"
#: The directory inside a large dump with its catalog. The name of an unfinished catalog has a suffix.
CATALOG = ".ascend-dump-catalog"
#: Prefix of the directory of a step that is being removed.
REMOVED_DIRECTORY = ".ascend-dump-removed-"
#: Prefix of the file that lists the uploaded files with their hashes.
PUSHED = ".ascend-dump-pushed-"
#: Prefix of a file that is being written and gets its name when it is complete.
UNFINISHED = ".ascend-dump-unfinished-"
#: Prefixes of the names of files and directories that do not belong to the dump. Readers skip them.
NO_PART = (CATALOG, PUSHED, REMOVED_DIRECTORY, UNFINISHED)
#: Errors that mean that the path is wrong, and not that the disk failed.
_WRONG_PATH = frozenset(
    (
        *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
        *(errno.ENAMETOOLONG, errno.ELOOP),
    )
)
CALL_SCHEMA = "ascend-dump/call/1"
#: Device and inode of each directory of a rank or run that this process writes to, by its path.
_own: dict[str, tuple[int, int]] = {}


def user_cache() -> Path:
    """Return this user's cache directory of ascend_dump. It may not exist yet."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache, "ascend-dump")


def is_private(status: os.stat_result) -> bool:
    """Return True if a file belongs to this user, and no other user may write to it."""
    is_own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    return is_own and not status.st_mode & 0o022


def make_private_directory(path: Path, setting: str = "path=") -> None:
    """Create a directory and its missing parents, readable by their owner only.

    setting: the setting in which the user gave the path, for messages

    Raises WriteError if a directory cannot be created, or if files cannot be created in `path`.
    """
    missing = []
    ancestor = path
    try:
        while not ancestor.is_symlink() and not ancestor.exists() and ancestor != ancestor.parent:
            missing.append(ancestor)
            ancestor = ancestor.parent
        for directory in reversed(missing):
            try:
                add_private_directory(directory)
            except FileExistsError:  # another rank was first
                if not directory.is_dir():
                    raise
    except OSError as error:
        raise WriteError(
            f"{setting}{str(path)!r} cannot be created: {error.strerror}",
            hint=f"give {setting} a directory that this user may write",
        ) from error
    if not path.is_dir():
        raise WriteError(f"{setting}{str(path)!r} is not a directory", hint=f"give {setting} a directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise WriteError(
            f"{setting}{str(path)!r} cannot be written", hint=f"give {setting} a directory that this user may write"
        )


class RunDirectory(NamedTuple):
    """The directory of one run of one rank, `{path}/worldsizeN_global_rankR/{YYYYmmddHHMMSS}`, absolute.

    It is planned before the check of a capture, and created after the check.
    launched: True if the capture was started by ASCEND_DUMP and not by the program itself
    model: for a capture without a target, the name of the model in the dump; "" for none
    part: the name of `path` if it is a directory inside the run, for one call of a decorated function or for all calls;
    "" if `path` is the directory of the run itself
    """

    path: Path
    rank: Rank
    launched: bool = False
    model: str = ""
    part: str = ""

    @classmethod
    def planned(cls, path: Path, rank: Rank, *, launched: bool = False, model: str = "") -> RunDirectory:
        """Return the next free run directory below `path`. Nothing is created."""
        level = os.path.join(os.path.abspath(path), rank.level)
        return cls(Path(level, _free_time_level(level, time.time())), rank, launched, model)

    def beside(self, name: str) -> Path:
        """Return the path of a file next to the run's directory, with the run in its name: `acl-20260101010101.json`.

        name: the file name without the run, `acl.json`
        """
        stem, suffix = os.path.splitext(name)
        if self.part:
            return self.path.parent.with_name(f"{stem}-{self.path.parent.name}-{self.part}{suffix}")
        return self.path.with_name(f"{stem}-{self.path.name}{suffix}")

    def of_call(self, number: int) -> RunDirectory:
        """Return the directory inside this run for one call of a decorated function. `mark_call` creates it."""
        return self.within(f"call_{number}")

    def within(self, part: str) -> RunDirectory:
        """Return a directory inside this run directory. Nothing is created."""
        return self._replace(path=self.path / part, part=part)

    def make(self) -> RunDirectory:
        """Create the directory and return it. If another run has taken its name meanwhile, the name gets a later time.

        Raises WriteError if it cannot be created; with code AD310 if another user could change it, because the
        directory of the rank is a link or belongs to another user.
        """
        level = self.path.parent
        make_private_directory(level.parent)
        _own.pop(os.fspath(level), None)  # an earlier run's directory of this path may have been removed
        with contextlib.suppress(FileExistsError):
            _add(level)
        opened = _open_level(level)
        try:
            run, owner = self._make_in(opened)
            status = os.fstat(opened)
            levels = status.st_uid
            # The owner is compared with the owner of our new directory, and not with the user of the process, because
            # network file systems may report another owner.
            if levels not in (owner, 0):
                os.rmdir(run.path.name, dir_fd=opened)
                raise _unsafe(f"{level} belongs to user {levels}, but new directories of this process to user {owner}")
            _own[os.fspath(level)] = (status.st_dev, status.st_ino)
            return run
        finally:
            os.close(opened)

    def _make_in(self, opened: int) -> tuple[RunDirectory, int]:
        name = self.path.name
        while True:
            try:
                os.mkdir(name, PRIVATE_DIRECTORY, dir_fd=opened)
                break
            except FileExistsError:
                name = _free_time_level(self.path.parent, time.mktime(time.strptime(name, _TIME)))
            except OSError as error:
                raise _cannot_be_created(self.path, error) from error
        opened_run = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened)
        try:
            status = os.fstat(opened_run)
            _make_private(opened_run, status, PRIVATE_DIRECTORY)
            path = self.path.with_name(name)
            _own[os.fspath(path)] = (status.st_dev, status.st_ino)
            return self._replace(path=path), status.st_uid
        finally:
            os.close(opened_run)


_TIME = "%Y%m%d%H%M%S"


def _time_level(second: float) -> str:
    return time.strftime(_TIME, time.localtime(second))


def _free_time_level(level: Union[str, Path], second: float) -> str:
    """Return the name of the first free run directory. second: the earliest time, in seconds since the epoch.

    Runs that begin in the same second get the names of the following seconds. A free second is searched in steps that
    double, then by bisection.
    """

    def is_taken(after: int) -> bool:
        return os.path.lexists(os.path.join(level, _time_level(second + after)))

    if not is_taken(0):
        return _time_level(second)
    taken, free = 0, 1
    while is_taken(free):
        taken, free = free, 2 * free
    while free - taken > 1:
        middle = (taken + free) // 2
        taken, free = (middle, free) if is_taken(middle) else (taken, middle)
    return _time_level(second + free)


def _add(directory: Path) -> None:
    try:
        add_private_directory(directory)
    except FileExistsError:
        raise
    except OSError as error:
        raise _cannot_be_created(directory, error) from error


def _open_level(level: Path) -> int:
    try:
        return os.open(level, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _unsafe(f"{level} is a link or a file, expected the directory of this rank") from error
        raise _cannot_be_created(level, error) from error


def _unsafe(message: str) -> WriteError:
    return WriteError(
        message, hint="remove it, or give path= a directory in which only this user may write", code="AD310"
    )


def _cannot_be_created(directory: Path, error: OSError) -> WriteError:
    return WriteError(
        f"{directory} cannot be created: {error.strerror}", hint="give path= a directory that this user may write"
    )


#: The reason why a directory of this process is refused if its path leads to something else now.
_REPLACED = "this directory was moved, and a link or another directory has its path"


class ForeignFile(OSError):
    """An error for a path where we expect our own file or directory, but find another one.

    It is a link, no regular file, a file with other hard links, or a directory that replaced ours.
    """

    def __init__(
        self,
        path: Union[str, Path],
        reason: str = "it is a link, not a regular file, or a file with several hard links",
    ) -> None:
        super().__init__(errno.EPERM, reason, os.fspath(path))


def add_private_directory(path: Path) -> None:
    """Create one directory with mode 0700, whatever the umask is. Raises OSError; FileExistsError if it exists."""
    with located(path) as (name, directory):
        os.mkdir(name, PRIVATE_DIRECTORY, dir_fd=directory)
    is_own = _own.pop(os.fspath(path), None) is not None  # True if our directory of this path was removed
    fd = open_directory(path)
    try:
        status = os.fstat(fd)
        _make_private(fd, status, PRIVATE_DIRECTORY)
        if is_own:
            _own[os.fspath(path)] = (status.st_dev, status.st_ino)
    finally:
        os.close(fd)


def _make_private(fd: int, status: os.stat_result, mode: int) -> None:
    if status.st_mode & 0o777 != mode:
        with contextlib.suppress(OSError):  # some file systems have no modes to change
            os.fchmod(fd, mode)


def open_directory(path: Path) -> int:
    """Return a descriptor of a directory. It stays valid if the directory is moved.

    Raises OSError; ForeignFile for a link, and in the same cases as `located`.
    """
    with located(path) as (name, directory):
        try:
            opened = os.open(name, _DIRECTORY, dir_fd=directory)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, directory):
                raise ForeignFile(path) from None
            raise
        try:
            _refuse_replaced(os.fspath(path), opened)
        except OSError:
            os.close(opened)
            raise
        return opened


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _is_link(name: str, directory: Optional[int]) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)


@contextlib.contextmanager
def located(path: Union[str, Path]) -> Iterator[tuple[str, Optional[int]]]:
    """Yield (name, descriptor) for functions with `dir_fd`: the descriptor of the run's directory above `path`, and the
    name relative to this directory. Outside of the runs of this process, yield (path, None).

    A user with write access to a directory above a run can replace the run's directory by a link. Raises ForeignFile
    then.
    """
    name = os.fspath(path)
    run = next((above for above in map(os.fspath, Path(name).parents) if above in _own), None)
    if run is None:
        yield name, None
        return
    try:
        directory = os.open(run, _DIRECTORY)
    except OSError as error:
        raise ForeignFile(run, _REPLACED) if error.errno in (errno.ELOOP, errno.ENOTDIR) else error from None
    try:
        _refuse_replaced(run, directory)
        yield os.path.relpath(name, run), directory
    finally:
        os.close(directory)


def _refuse_replaced(path: str, opened: int) -> None:
    status = os.fstat(opened)
    if _own.get(path, (status.st_dev, status.st_ino)) != (status.st_dev, status.st_ino):
        raise ForeignFile(path, _REPLACED)


def open_private(path: Union[str, Path], flags: int, *, directory: Optional[int] = None) -> int:
    """Open a file for writing, create it if it is missing, and return its descriptor. Its mode becomes 0600.

    directory: a descriptor that `path` is relative to. Raises OSError; ForeignFile for a link, a pipe, a device, or a
    file with several hard links, and in the same cases as `located`.
    """
    if directory is None:
        with located(path) as (name, above):
            return _open_private(name, flags, above)
    return _open_private(path, flags, directory)


def _open_private(path: Union[str, Path], flags: int, directory: Optional[int]) -> int:
    flags |= os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    truncate, flags = flags & os.O_TRUNC, flags & ~os.O_TRUNC
    try:
        fd = os.open(path, flags, PRIVATE_FILE, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise ForeignFile(path) from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise ForeignFile(path)
        if truncate:
            os.ftruncate(fd, 0)
    except OSError:
        os.close(fd)
        raise
    _make_private(fd, status, PRIVATE_FILE)
    return fd


def replace_file(path: Path, data: bytes) -> None:
    """Replace a private file atomically: readers see its old or its new content. Raises OSError, as `open_private`."""
    with located(path) as (name, directory):
        # The name is random, so that nobody can create a link with this name in advance.
        draft = os.path.join(os.path.dirname(name), f".{path.name}.{secrets.token_hex(8)}")
        try:
            with os.fdopen(_open_private(draft, os.O_WRONLY | os.O_EXCL, directory), "wb") as file:
                file.write(data)
            os.replace(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=directory)
            raise


def move(old: Path, new: Path) -> None:
    """Rename a file, link or directory; a file or link with the new name is replaced. Raises OSError, as `located`."""
    with located(old) as (old_name, old_above), located(new) as (new_name, new_above):
        os.replace(old_name, new_name, src_dir_fd=old_above, dst_dir_fd=new_above)


def remove_file(path: Path) -> None:
    """Remove a file or link. Raises OSError, in the same cases as `located` too."""
    with located(path) as (name, directory):
        os.unlink(name, dir_fd=directory)


def remove_directory(path: Union[str, Path]) -> None:
    """Remove an empty directory. Do nothing if that is impossible."""
    with contextlib.suppress(OSError), located(path) as (name, directory):
        os.rmdir(name, dir_fd=directory)


def remove_tree(path: Path) -> None:
    """Remove a directory and its contents, as far as possible. Links are removed, never followed."""
    with contextlib.suppress(OSError), located(path) as (top, above):
        for _, directories, files, opened in os.fwalk(top, topdown=False, dir_fd=above):
            for name in (*files, *directories):
                with contextlib.suppress(OSError):
                    if name in files or _is_link(name, opened):
                        os.unlink(name, dir_fd=opened)
                    else:
                        os.rmdir(name, dir_fd=opened)
        os.rmdir(top, dir_fd=above)


def is_disk_failure(error: OSError) -> bool:
    """Return True if the disk is full or failed, False if the path is wrong."""
    return error.errno is not None and error.errno not in _WRONG_PATH


def holds_files(root: Path) -> bool:
    """Return True if a directory contains any file except MANIFEST and CALL, so that a dump was written."""
    return any(name not in (MANIFEST, CALL) for _, _, names in os.walk(root) for name in names)


def mark_call(call_directory: Path, number: int) -> None:
    """Create the directory of one call of a decorated function. Readers use `number` as the step of its records.

    Raises WriteError.
    """
    try:
        add_private_directory(call_directory)
        with open(open_private(call_directory / CALL, os.O_WRONLY | os.O_EXCL), "w", encoding="utf-8") as file:
            json.dump({"schema": CALL_SCHEMA, "call": number}, file)
    except OSError as error:
        raise _cannot_be_created(call_directory, error) from error
