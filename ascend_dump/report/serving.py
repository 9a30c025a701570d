"""A local HTTP server for a page and the tensors of its rows.

The server listens on the loopback address only. Every URL begins with a random token. Requests cannot change or run
anything. They identify rows by their number on the page, so they contain no file path.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Union
from urllib.parse import parse_qs, urlsplit

from ascend_dump.common.log import log
from ascend_dump.errors import AscendDumpError, ConfigError
from ascend_dump.report.page import BuiltPage, PageContent, PageRow, build_page
from ascend_dump.report.page.tensors import titled_heat_map, value_histogram

if TYPE_CHECKING:
    import numpy as np

__all__ = ["PageServer", "parse_slice", "tensor_parts"]

_ADDRESS = "127.0.0.1"
#: Number of elements in the first histogram of a large tensor, and number of blocks in which they are read.
_SAMPLE, _BLOCKS = 1 << 20, 64
#: Maximum number of tensors that are read at the same time.
_READERS = 2
#: Seconds after which a silent client is disconnected.
_TIMEOUT = 30
#: Maximum number of characters of values that are shown as text.
_MOST_TEXT = 20_000
#: A lock for reading dumps: their readers keep files open and are not thread-safe.
_READING = threading.Lock()
_ROW = re.compile(r"tensor/([0-9]{1,9})")
_PART = re.compile(r"(-?[0-9]{1,18})?(:(-?[0-9]{1,18})?)?(:(-?[0-9]{1,18})?)?")
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class PageServer(ThreadingHTTPServer):
    """A server of one page.

    address   the URL of the page, including the token
    built     the page

    >>> with PageServer(PageContent("t", (), "equal", "Both dumps are the same.")) as server:
    ...     server.address.startswith("http://127.0.0.1:")
    True
    """

    daemon_threads = True
    allow_reuse_address = False

    def __init__(
        self, content: PageContent, port: int = 0, *, sources: Union[str, os.PathLike[str], None] = None
    ) -> None:
        """Listen on the port (0: any free port) and build the page. sources: see `write_page`.

        Raises ConfigError if the port cannot be used.
        """
        self.token = secrets.token_urlsafe(24)
        self.readers = threading.Semaphore(_READERS)
        try:
            super().__init__((_ADDRESS, port), _PageRequest)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                f"cannot listen on port {port}: {reason}", hint="use another port, or 0 for a free one"
            ) from error
        try:
            self.built: BuiltPage = build_page(content, sources=sources, live=True)
        except BaseException:
            self.server_close()
            raise
        self.hosts = {f"{name}:{self.server_port}" for name in (_ADDRESS, "localhost")}
        self.address = f"http://{_ADDRESS}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error for debugging: clients may disconnect at any time."""
        log.debug("a request to the page failed", exc_info=True)


class _PageRequest(BaseHTTPRequestHandler):
    """The handler of one HTTP request: for the page, or for the tensor of a row."""

    server: PageServer
    timeout = _TIMEOUT
    server_version = "ascend-dump"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        # Protection against DNS rebinding: if the name of a foreign site resolves to this machine, the browser sends
        # that name as Host.
        if self.headers.get("Host") not in self.server.hosts:
            return self._refuse(HTTPStatus.MISDIRECTED_REQUEST)
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return self._refuse(HTTPStatus.FORBIDDEN)
        parts = urlsplit(self.path)
        token, _, path = parts.path.lstrip("/").partition("/")
        if not hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self.server.token.encode()):
            return self._refuse(HTTPStatus.NOT_FOUND)
        if path == "":
            html = self.server.built.html.encode("utf-8", "backslashreplace")
            return self._send(HTTPStatus.OK, "text/html; charset=utf-8", iter([html] if with_body else []))
        match = _ROW.fullmatch(path)
        if match is None or int(match[1]) >= len(self.server.built.rows):
            return self._refuse(HTTPStatus.NOT_FOUND)
        query = parse_qs(parts.query)
        chosen = {name: query.get(name, [""])[0] for name in ("side", "slice")}
        row = self.server.built.rows[int(match[1])]
        with self.server.readers:
            lines = tensor_parts(row, chosen["side"], chosen["slice"])
            try:
                first = next(lines)
            except AscendDumpError as error:
                return self._refuse(HTTPStatus.BAD_REQUEST, _message(error))
            body = (json.dumps(line).encode() + b"\n" for line in _with_errors(first, lines))
            return self._send(HTTPStatus.OK, "application/x-ndjson", body if with_body else iter(()))

    def _send(self, status: HTTPStatus, kind: str, body: Iterator[bytes]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()  # no Content-Length: the end of the connection ends the body
        try:
            for part in body:
                self.wfile.write(part)
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            pass  # the client disconnected

    def _refuse(self, status: HTTPStatus, reason: str = "") -> None:
        text = json.dumps({"error": reason or status.phrase}).encode()
        self._send(status, "application/json", iter([text]))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the URLs contain the token."""


def _with_errors(first: dict[str, Any], later: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield first
    try:
        yield from later
    except AscendDumpError as error:
        yield {"note": _message(error)}


def _message(error: AscendDumpError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


def tensor_parts(row: PageRow, side: str = "", text: str = "") -> Iterator[dict[str, Any]]:
    """Yield the drawings of a row's tensor as dicts. A value in a later dict replaces an earlier value of the same key.

    For a large tensor, the first histogram is computed from a sample, because that is faster.

    side: "actual", "reference", or "" for both if there are two. text: a slice such as `0, :, 10:20`. Raises
    ConfigError for a side or slice that the row does not have, and the errors of reading.
    """
    import numpy as np

    arrays = _arrays(row, side)
    index = parse_slice(text)
    try:
        arrays = {name: np.asarray(array[index]) for name, array in arrays.items()}
    except (IndexError, ValueError) as error:
        shapes = " and ".join(str(list(array.shape)) for array in arrays.values())
        raise ConfigError(
            f"{text!r} is no slice of {shapes}: {error}", hint="write a slice such as 0, :, 10:20"
        ) from None
    actual, reference = arrays.get("actual"), arrays.get("reference")
    shown = next(iter(arrays.values()))
    size = shown.size
    described = f"{shown.dtype}{list(shown.shape)}, {size} elements"
    part: dict[str, Any] = {"note": described, "values_text": _as_text(shown)}
    if size > _SAMPLE:
        sample = {name: _sample(array) for name, array in arrays.items()}
        part["values"] = value_histogram(sample.get("actual"), sample.get("reference"))
        part["note"] = f"{described}; histogram of {_SAMPLE} elements; the histogram of all follows"
        yield part
        part = {"note": described}
    sides = (None if side is None else side.ravel(order="K") for side in (actual, reference))
    part["values"] = value_histogram(*sides)
    yield part
    heat = titled_heat_map(actual, reference)
    if heat is not None:
        yield {"heat": heat}


def _arrays(row: PageRow, side: str) -> dict[str, np.ndarray]:
    if side not in ("", "both", "actual", "reference"):
        raise ConfigError(f"{side!r} is no side of a comparison", hint='use "actual", "reference" or "both"')
    records = {"actual": row.actual, "reference": row.reference}
    names = [side] if side in records else list(records)
    with _READING:
        arrays = {name: record.numpy() for name in names if (record := records[name]) is not None}
    if not arrays:
        raise ConfigError(f"the row has no {side or 'tensor'}", hint="choose the other side")
    return arrays


def parse_slice(text: str) -> tuple[Any, ...]:
    """Parse a slice in numpy's notation without brackets: `0, :, 10:20`, `...`, or "" for all. Raises ConfigError."""
    index: list[Any] = []
    for part in text.split(",") if text.strip() else []:
        word = part.strip()
        if word == "...":
            index.append(Ellipsis)
            continue
        matched = _PART.fullmatch(word)
        if matched is None or not word or index.count(Ellipsis) > 1 or len(index) > 64:
            raise ConfigError(f"{text!r} is no slice", hint="write a slice such as 0, :, 10:20")
        numbers = [None if digits is None else int(digits) for digits in matched.group(1, 3, 5)]
        if ":" not in word:
            index.append(numbers[0])
        elif numbers[2] == 0:
            raise ConfigError(f"{text!r}: the step of the slice is 0", hint="write another step, as in 0:100:10")
        else:
            index.append(slice(*numbers))
    return tuple(index)


def _sample(array: np.ndarray) -> np.ndarray:
    """Return a sample: blocks of elements spread over the tensor, so that few pages of its file are read."""
    import numpy as np

    flat = array.ravel(order="K")
    block = _SAMPLE // _BLOCKS
    starts = np.linspace(0, flat.size - block, _BLOCKS).astype(np.int64)
    return np.concatenate([flat[start : start + block] for start in starts.tolist()])


def _as_text(array: np.ndarray) -> str:
    import numpy as np

    with np.printoptions(precision=5, linewidth=110, threshold=500, edgeitems=4):
        return str(array)[:_MOST_TEXT]
