"""Compress the index of a complete step, and restore it if the step is written again.

A large step has megabytes of lines that differ little from each other, and each repeated step has them again: gzip
leaves a tenth of the bytes. Its fast levels take 5 to 10 ms per MB, without the interpreter's lock and in the
writer's thread; higher levels save a quarter more at most and take several times as long.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import zlib
from collections.abc import Iterator
from typing import Optional

from ascend_dump.common.paths import UNFINISHED, open_private
from ascend_dump.dump_format import COMPRESSED_INDEX, GZIP, INDEX, MOST_EXPANSION, CompressedText

__all__ = ["WORTH_COMPRESSING", "compress_index", "restore_index"]

log = logging.getLogger("ascend_dump")

#: Minimum size of an index that is compressed, in bytes. Below it there is little to save, tools that expect text can
#: read the index as it is, and the end of a short capture does not wait until its last step is compressed.
WORTH_COMPRESSING = 1 << 20
#: Of the levels that take the least time, the one with the smallest files.
_LEVEL = 3
_BLOCK = 1 << 18


def compress_index(index: int, directory: int) -> Optional[int]:
    """Replace the index of a complete step by a compressed one. Returns the size of its file; None if it stays plain.

    It stays plain if a file cannot be written or renamed (the disk is full), and if its text would have more than
    MOST_EXPANSION bytes for each byte of the file, because readers refuse such files.

    index, directory: descriptors of the plain index, open for reading, and of the directory of the step
    """
    try:
        status = os.fstat(index)
        if not os.path.samestat(status, os.stat(INDEX, dir_fd=directory, follow_symlinks=False)):
            raise OSError(0, "another file has its name")
        with _replacing(COMPRESSED_INDEX, directory) as file:
            size = _compress(index, file)
            if status.st_size > MOST_EXPANSION * size:
                raise OSError(0, "readers would refuse a file with so much text")
        os.unlink(INDEX, dir_fd=directory)
    except OSError as error:
        log.debug("an index of %s bytes is not compressed: %s", os.fstat(index).st_size, error.strerror)
        return None
    return size


def _compress(index: int, file: int) -> int:
    """Write a gzip file with the content of another file; return its size. Both are descriptors."""
    deflater = zlib.compressobj(_LEVEL, wbits=GZIP)
    read = size = 0
    while block := os.pread(index, _BLOCK, read):
        read += len(block)
        size += _write(file, deflater.compress(block))
    return size + _write(file, deflater.flush())


def restore_index(directory: int) -> None:
    """Replace a compressed index by a plain one, so that lines can be appended; without one do nothing.

    directory: a descriptor of the directory of the step. Raises OSError; also if the compressed index is damaged.
    """
    try:
        os.stat(COMPRESSED_INDEX, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    compressed = os.fdopen(open_private(COMPRESSED_INDEX, os.O_RDONLY, directory=directory), "rb")
    with CompressedText(compressed, COMPRESSED_INDEX) as text, _replacing(INDEX, directory) as file:
        while block := text.read(_BLOCK):
            _write(file, block)
    os.unlink(COMPRESSED_INDEX, dir_fd=directory)


def _write(file: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    return len(data)


@contextlib.contextmanager
def _replacing(name: str, directory: int) -> Iterator[int]:
    """Yield a descriptor of a new private file, which gets its name at the end of the block; then it is complete.

    A file of this name is replaced. After an exception the new file is removed.
    """
    # The name is random, because a writer that was killed may have left such a file.
    draft = f"{UNFINISHED}{secrets.token_hex(8)}"
    file = open_private(draft, os.O_WRONLY | os.O_EXCL, directory=directory)
    try:
        try:
            yield file
        finally:
            os.close(file)
        os.replace(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=directory)
        raise
