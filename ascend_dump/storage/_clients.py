"""Access object stores through fsspec: find the client for an address, repeat requests, and translate exceptions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Optional, TypeVar

from ascend_dump.common.log import log
from ascend_dump.errors import NotSupported, StorageError

__all__ = ["ShortAnswer", "filesystem", "translated", "tried"]

_Result = TypeVar("_Result")
#: Pauses in seconds before a request is repeated after a broken connection.
_PAUSES = (0.2, 1.0)
#: Names of exceptions of clients for missing credentials. Names, because the clients are not imported here.
_CREDENTIALS = (
    *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"),
    *("TokenRetrievalError", "DefaultCredentialsError", "ClientAuthenticationError", "NoAuthTokenError"),
)
_CONNECTION = (
    *("EndpointConnectionError", "ConnectionClosedError", "ConnectTimeoutError", "ReadTimeoutError"),
    *("IncompleteReadError", "ResponseStreamingError", "HTTPClientError", "ConnectionError", "ClientPayloadError"),
    *("ClientConnectorError", "ClientConnectionError", "ServerDisconnectedError", "ClientOSError", "FSTimeoutError"),
    *("ContentLengthError", "ServerTimeoutError", "SocketTimeoutError", "ProxyConnectionError"),
)
#: Names of the exceptions that botocore raises after five attempts of its own, for all failures of connections.
_ENDPOINT = ("EndpointConnectionError", "ConnectTimeoutError")
#: Names of the causes of these exceptions if no connection was ever made. Then we do not repeat the request.
_NEVER_THERE = ("ConnectTimeoutError", "ClientConnectorError", "ClientConnectorDNSError", "NewConnectionError")


class ShortAnswer(ConnectionError):
    """A store sent fewer bytes than were requested. count: the number of bytes that it sent."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


def filesystem(path: str) -> tuple[Any, str]:
    """Return the fsspec file system of an address, and the path in it. Raises NotSupported, StorageError."""
    try:
        from fsspec.core import url_to_fs

        located: tuple[Any, str] = url_to_fs(path)
    except ImportError as error:
        raise NotSupported(
            f"{path} needs a package that is not installed: {str(error)[:300]}",
            hint="pip install 'ascend-dump[remote]' reads s3://; other stores have packages of their own, see fsspec",
        ) from None
    except ValueError as error:
        raise NotSupported(
            f"{path}: {str(error)[:300]}", hint="give an address that fsspec knows, such as s3://bucket/run7"
        ) from None
    except Exception as error:  # exceptions of clients have no common class
        raise translated(error, path) from error
    return located


def tried(work: Callable[[], _Result], path: str, offset: Optional[int] = None, *, missing: str = "") -> _Result:
    """Call `work` and return its result. The call is repeated if the connection breaks.

    path, offset: the address and the position, for messages. missing: a message; if it is given, StorageError is raised
    instead of FileNotFoundError. Raises StorageError, FileNotFoundError.
    """
    for pause in (*_PAUSES, None):
        try:
            return work()
        except FileNotFoundError as error:
            if missing:
                raise StorageError(missing, path=path, hint="create it, or check the address") from error
            raise
        except Exception as error:  # exceptions of clients have no common class
            if pause is None or not _is_connection(error) or _never_answered(error):
                raise translated(error, path, offset) from error
            log.debug("%s: %s; the request is repeated", path, error)
            time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: Optional[BaseException] = error
    for _ in range(8):
        if current is None:
            return
        yield current
        current = current.__cause__ or current.__context__


def _has(error: BaseException, names: tuple[str, ...]) -> bool:
    return any(type(cause).__name__ in names for cause in _chain(error))


def _never_answered(error: BaseException) -> bool:
    """Return True if a client, after its own retries, could not connect at all."""
    return _has(error, _ENDPOINT) and _has(error, _NEVER_THERE)


def _is_connection(error: BaseException) -> bool:
    is_builtin = any(isinstance(cause, (ConnectionError, TimeoutError)) for cause in _chain(error))
    return is_builtin or _has(error, _CONNECTION)


def translated(error: Exception, path: str, offset: Optional[int] = None) -> Exception:
    """Return our error for a client's exception: StorageError, or NotSupported if the client lacks the operation."""
    description = f"{type(error).__name__}: {str(error)[:300]}" if str(error) else type(error).__name__
    if isinstance(error, StorageError):
        return error
    if _has(error, _CREDENTIALS):
        return StorageError(
            f"there are no credentials for this store ({description})",
            path=path,
            hint="for s3:// set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE; FSSPEC_S3_ANON=true for "
            "a public bucket",
            code="AD406",
        )
    if isinstance(error, PermissionError):
        return StorageError(
            f"the store refuses access: {description}",
            path=path,
            hint="check that these credentials may list and read this bucket",
            code="AD406",
        )
    if isinstance(error, NotImplementedError):
        return NotSupported(
            f"{path}: the client of this store lacks the operation: {description}", hint="use another store"
        )
    if isinstance(error, ShortAnswer):
        return StorageError(
            f"the answer ended after {error.count} bytes, {len(_PAUSES) + 1} times",
            path=path,
            offset=None if offset is None else offset + error.count,
            hint="the object was cut off or replaced since the dump was opened: open it again, or push it again",
        )
    if _never_answered(error):
        return StorageError(
            f"the store does not answer: {description}",
            path=path,
            offset=offset,
            hint="check the address, the network and proxies; for another server than Amazon's set "
            "FSSPEC_S3_ENDPOINT_URL, and AWS_MAX_ATTEMPTS for more or fewer tries",
        )
    if _is_connection(error):
        return StorageError(
            f"the connection broke {len(_PAUSES) + 1} times: {description}",
            path=path,
            offset=offset,
            hint="check the address and the network; for another server than Amazon's set FSSPEC_S3_ENDPOINT_URL",
        )
    return StorageError(
        f"the store cannot be read: {description}", path=path, offset=offset, hint="see the store's message"
    )
