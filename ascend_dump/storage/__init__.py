"""Read files in an object store or on a server by their addresses, through fsspec.

    located("s3://bucket/run7")      a `StoredPath`, which is a Path; for other texts, a Path on this machine

Stored files are listed once, when a dump is opened, and read in byte ranges. To map a stored file into memory, it is
first copied into a cache of limited size on this machine.
"""

from ascend_dump.storage._cache import cache_limit, copied_descriptor
from ascend_dump.storage._clients import filesystem, tried
from ascend_dump.storage._file import StoredFile
from ascend_dump.storage._listing import StoredObject, list_stored, read_range, status_anew, stored_files
from ascend_dump.storage._path import StoredPath, is_url, located, named_beside

__all__ = [
    "StoredFile",
    "StoredObject",
    "StoredPath",
    "cache_limit",
    "copied_descriptor",
    "filesystem",
    "is_url",
    "list_stored",
    "located",
    "named_beside",
    "read_range",
    "status_anew",
    "stored_files",
    "tried",
]
