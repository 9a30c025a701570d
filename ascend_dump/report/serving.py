"""A page that is served on this machine: it shows the tensor of any of its rows, because the dump is at hand.

Only this machine is listened to, every address begins with a random token, and nothing can be changed or run. Requests
name rows by their number on the page, so no path of a file comes from outside.
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
from ascend_dump.report.page.tensors import heat_map, value_histogram

if TYPE_CHECKING:
    import numpy as np

__all__ = ["PageServer", "parse_slice", "tensor_parts"]

_ADDRESS = "127.0.0.1"
#: Elements that are looked at before all of them, in blocks from all over the tensor.
_SAMPLE, _BLOCKS = 1 << 20, 64
#: Tensors that are read side by side.
_READERS = 2
#: Seconds until a client that sends or takes nothing is given up.
_PATIENCE = 30
#: Characters of values that are shown as text.
_MOST_TEXT = 20_000
#: What reads a dump keeps files open, and is not made for several threads.
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
    """Serves one page until it is shut down.

    address   what to open, with the token in it
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
        """Listen, and build the page; port 0 takes a free one. sources: as of `write_page`.

        Raises ConfigError where the port is taken."""
        self.token = secrets.token_urlsafe(24)
        self.readers = threading.Semaphore(_READERS)
        try:
            super().__init__((_ADDRESS, port), _PageRequest)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"port {port} cannot be listened to: {reason}", hint="give another port, or 0") from error
        try:
            self.built: BuiltPage = build_page(content, sources=sources, live=True)
        except BaseException:
            self.server_close()
            raise
        self.hosts = {f"{name}:{self.server_port}" for name in (_ADDRESS, "localhost")}
        self.address = f"http://{_ADDRESS}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error; anything else is told to those who debug."""
        log.debug("a request to the page failed", exc_info=True)


class _PageRequest(BaseHTTPRequestHandler):
    server: PageServer
    timeout = _PATIENCE
    server_version = "ascend-dump"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        # A name of another site may be made to lead to this machine: then the browser sends that name.
        if self.headers.get("Host") not in self.server.hosts:
            return self._refuse(HTTPStatus.MISDIRECTED_REQUEST)
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return self._refuse(HTTPStatus.FORBIDDEN)
        parts = urlsplit(self.path)
        token, _, place = parts.path.lstrip("/").partition("/")
        given = token.encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self.server.token.encode()):
            return self._refuse(HTTPStatus.NOT_FOUND)
        if place == "":
            html = self.server.built.html.encode("utf-8", "backslashreplace")
            return self._send(HTTPStatus.OK, "text/html; charset=utf-8", iter([html] if with_body else []))
        found = _ROW.fullmatch(place)
        if found is None or int(found[1]) >= len(self.server.built.rows):
            return self._refuse(HTTPStatus.NOT_FOUND)
        query = parse_qs(parts.query)
        asked = {name: query.get(name, [""])[0] for name in ("side", "slice")}
        row = self.server.built.rows[int(found[1])]
        with self.server.readers:
            lines = tensor_parts(row, asked["side"], asked["slice"])
            try:
                first = next(lines)
            except AscendDumpError as error:
                return self._refuse(HTTPStatus.BAD_REQUEST, _said(error))
            body = (json.dumps(line).encode() + b"\n" for line in _with(first, lines))
            return self._send(HTTPStatus.OK, "application/x-ndjson", body if with_body else iter(()))

    def _send(self, status: HTTPStatus, kind: str, body: Iterator[bytes]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()  # the connection ends the body
        try:
            for part in body:
                self.wfile.write(part)
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            pass  # nobody looks any more

    def _refuse(self, status: HTTPStatus, reason: str = "") -> None:
        text = json.dumps({"error": reason or status.phrase}).encode()
        self._send(status, "application/json", iter([text]))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the addresses hold the token."""


def _with(first: dict[str, Any], rest: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield first
    try:
        yield from rest
    except AscendDumpError as error:
        yield {"note": _said(error)}


def _said(error: AscendDumpError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


def tensor_parts(row: PageRow, side: str = "", text: str = "") -> Iterator[dict[str, Any]]:
    """What a page draws of the tensor of a row, a first look before the whole: dicts that replace one another's keys.

    side: "actual", "reference", or "" for both where there are two. text: a slice such as `0, :, 10:20`. Raises
    ConfigError for what the row does not have, and what reading raises.
    """
    import numpy as np

    arrays = _arrays(row, side)
    index = parse_slice(text)
    try:
        arrays = {name: np.asarray(array[index]) for name, array in arrays.items()}
    except (IndexError, ValueError) as error:
        shapes = " and ".join(str(list(array.shape)) for array in arrays.values())
        raise ConfigError(f"{text!r} is no slice of {shapes}: {error}", hint="write one such as 0, :, 10:20") from None
    actual, reference = arrays.get("actual"), arrays.get("reference")
    shown = next(iter(arrays.values()))
    size = shown.size
    what = f"{shown.dtype}{list(shown.shape)}, {size} elements"
    begin: dict[str, Any] = {"note": what, "values_text": _as_text(shown)}
    if size > _SAMPLE:
        sample = {name: _sample(array) for name, array in arrays.items()}
        begin["values"] = value_histogram(sample.get("actual"), sample.get("reference"))
        begin["note"] = f"{what}; a histogram of {_SAMPLE} of them, all follow"
        yield begin
        begin = {"note": what}
    begin["values"] = value_histogram(*(None if one is None else one.ravel(order="K") for one in (actual, reference)))
    yield begin
    heat = None
    if actual is not None and reference is not None and actual.shape == reference.shape:
        heat, title = heat_map(actual, reference), "|actual − reference|"
    else:
        heat, title = heat_map(shown), "|value|"
    if heat is not None:
        yield {"heat": {"what": title, **heat}}


def _arrays(row: PageRow, side: str) -> dict[str, np.ndarray]:
    if side not in ("", "both", "actual", "reference"):
        raise ConfigError(f"{side!r} is no side of a comparison", hint='give "actual", "reference" or "both"')
    records = {"actual": row.actual, "reference": row.reference}
    names = [side] if side in records else list(records)
    found = {name: records[name] for name in names}
    with _READING:
        arrays = {name: record.numpy() for name, record in found.items() if record is not None}
    if not arrays:
        raise ConfigError(f"the row has no {side or 'tensor'}", hint="look at the other side")
    return arrays


def parse_slice(text: str) -> tuple[Any, ...]:
    """A slice as numpy writes it, without brackets: `0, :, 10:20`, `...`, or nothing for all. Raises ConfigError."""
    found: list[Any] = []
    for part in text.split(",") if text.strip() else []:
        word = part.strip()
        if word == "...":
            found.append(Ellipsis)
            continue
        matched = _PART.fullmatch(word)
        if matched is None or not word or found.count(Ellipsis) > 1 or len(found) > 64:
            raise ConfigError(f"{text!r} is no slice", hint="write one such as 0, :, 10:20")
        numbers = [None if one is None else int(one) for one in matched.group(1, 3, 5)]
        if ":" not in word:
            found.append(numbers[0])
        elif numbers[2] == 0:
            raise ConfigError(f"{text!r}: the step of a slice is not 0", hint="write one such as 0:100:10")
        else:
            found.append(slice(*numbers))
    return tuple(found)


def _sample(array: np.ndarray) -> np.ndarray:
    """Blocks of elements from all over the tensor, so that few pages of its file are read."""
    import numpy as np

    flat = array.ravel(order="K")
    block = _SAMPLE // _BLOCKS
    starts = np.linspace(0, flat.size - block, _BLOCKS).astype(np.int64)
    return np.concatenate([flat[start : start + block] for start in starts.tolist()])


def _as_text(array: np.ndarray) -> str:
    import numpy as np

    with np.printoptions(precision=5, linewidth=110, threshold=500, edgeitems=4):
        return str(array)[:_MOST_TEXT]
