"""The errors of the package.

    AscendDumpError
    ├── ConfigError (ValueError)             AD1xx  a value the user gave is wrong
    ├── AdapterError                         AD2xx
    │   ├── AdapterNotFound (LookupError)    AD201  nothing captures this target
    │   ├── FrameworkMissing (ImportError)   AD202  the adapter's framework cannot be imported
    │   └── NotSupported (NotImplementedError)  AD203  something that this framework or version cannot do
    ├── CaptureError (RuntimeError)          AD3xx  start/stop/step were called in a wrong order, or nothing was written
    ├── ReadError                            AD4xx
    │   ├── CorruptDump (ValueError)         AD401  a file is truncated, of another format, or contradicts itself
    │   ├── UnknownFormat (ValueError)       AD402  no dialect recognises the files
    │   ├── DumpNotFound (FileNotFoundError) AD403  the path does not exist or contains no dump
    │   └── StorageError (OSError)           AD405  an object store does not answer, or answers wrongly
    ├── WriteError (OSError)                 AD5xx  the dump cannot be written
    └── WorkerLost (RuntimeError)            AD601  a worker process, which analysed some of the ranks, has died

`code` is stable; `ascend-dump explain AD101` explains it.
"""

from __future__ import annotations

import errno
import os
from typing import Optional, Union

__all__ = [
    "AdapterError",
    "AdapterNotFound",
    "AscendDumpError",
    "CaptureError",
    "ConfigError",
    "CorruptDump",
    "DumpNotFound",
    "FrameworkMissing",
    "NotSupported",
    "ReadError",
    "StorageError",
    "UnknownFormat",
    "WorkerLost",
    "WriteError",
]

_Path = Union[str, "os.PathLike[str]"]


class AscendDumpError(Exception):
    """The base class of all errors. `code` is the name of its explanation, `hint` says what to do next."""

    default_code = "AD000"

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code or self.default_code
        self.reported = False  # True once this error was logged

    def __str__(self) -> str:
        text = f"{self.message} [{self.code}]"
        return f"{text}\nHint: {self.hint}" if self.hint else text


class ConfigError(AscendDumpError, ValueError):
    default_code = "AD101"


class AdapterError(AscendDumpError):
    default_code = "AD200"


class AdapterNotFound(AdapterError, LookupError):
    default_code = "AD201"


class FrameworkMissing(AdapterError, ImportError):
    default_code = "AD202"


class NotSupported(AdapterError, NotImplementedError):
    default_code = "AD203"


class CaptureError(AscendDumpError, RuntimeError):
    default_code = "AD301"


class ReadError(AscendDumpError):
    default_code = "AD400"

    def __init__(
        self,
        message: str,
        *,
        path: Optional[_Path] = None,
        offset: Optional[int] = None,
        hint: str = "",
        code: str = "",
    ) -> None:
        where = ""
        if path is not None:
            where = f"{os.fspath(path)}: " if offset is None else f"{os.fspath(path)} at byte {offset}: "
        super().__init__(where + message, hint=hint, code=code)
        self.path = path
        self.offset = offset


class CorruptDump(ReadError, ValueError):
    default_code = "AD401"


class UnknownFormat(ReadError, ValueError):
    default_code = "AD402"


class DumpNotFound(ReadError, FileNotFoundError):
    default_code = "AD403"

    # OSError.__str__ would print errno and strerror, which are not set here.
    __str__ = AscendDumpError.__str__


class StorageError(ReadError, OSError):
    default_code = "AD405"
    __str__ = AscendDumpError.__str__

    def __init__(
        self,
        message: str,
        *,
        path: Optional[_Path] = None,
        offset: Optional[int] = None,
        hint: str = "",
        code: str = "",
    ) -> None:
        super().__init__(message, path=path, offset=offset, hint=hint, code=code)
        # Code that reads files catches OSError, and prints these two attributes.
        self.errno = errno.EIO
        self.strerror = message


class WriteError(AscendDumpError, OSError):
    default_code = "AD501"
    __str__ = AscendDumpError.__str__


class WorkerLost(AscendDumpError, RuntimeError):
    default_code = "AD601"
