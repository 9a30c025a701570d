"""Arm the dump of a whole process from its environment, without a change to its code.

Two roads lead to `start`: the start-up hook that the package installs beside itself, and the
sitecustomize that `ascend-dump run` puts on PYTHONPATH. Both may run in one interpreter.

    ASCEND_DUMP                     what to dump: `1`, `steps=0|2-5,path=/d`, JSON text or a file;
                                    empty, `0`, `off`, `false` and `no` mean nothing
    ASCEND_DUMP_STRICT=1            end the process with exit code 2 where the default is one
                                    line on stderr
    ASCEND_DUMP_DISABLED_ADAPTERS   names of adapters to leave out, `*` for all
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump._errors import AdapterNotFound, AscendDumpError

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType

    from ascend_dump._request import DumpRequest
    from ascend_dump.adapter._contract import Adapter

__all__ = ["STRICT", "VARIABLE", "active_instead_of", "at_exit", "requested", "start"]

VARIABLE = "ASCEND_DUMP"
STRICT = "ASCEND_DUMP_STRICT"
_OFF = ("", "0", "off", "false", "no")

log = logging.getLogger("ascend_dump")

_started = False
#: Names of the adapters whose turn has come: each is activated once in a process.
_activated: set[str] = set()
#: Those among them that arm the process.
_active: dict[str, Adapter] = {}


def start() -> None:
    """Wait for the frameworks' imports, as ASCEND_DUMP asks. Never raises; a second call does nothing."""
    global _started
    if _started or not _is_on(os.environ.get(VARIABLE, "")):
        return
    _started = True
    if _site_is_starting() and "sitecustomize" not in sys.modules:
        sys.meta_path.insert(0, _AfterSite())
    else:
        _arm()


def requested() -> Optional[DumpRequest]:
    """What ASCEND_DUMP asks for, None when it is off. Raises ConfigError for a wrong value."""
    from ascend_dump._request import DumpRequest

    text = os.environ.get(VARIABLE, "")
    return DumpRequest.from_text(text) if _is_on(text) else None


def active_instead_of(adapter: Adapter) -> Optional[str]:
    """The adapter of `adapter.yields_to` that dumps this process, None when there is none.

    To be asked at the first step: the frameworks of both may be imported in any order before.
    """
    return next((name for name in adapter.yields_to if name in _active), None)


def at_exit(stop: Callable[[], object]) -> None:
    """Call `stop` once when this process ends, and once at the end of each process forked from it.

    Children that multiprocessing forks leave by os._exit, which runs its own finalizers but
    nothing of atexit; what a writer thread still holds would be lost.
    """
    from multiprocessing import util

    end = _End(stop)
    _ends.append(end)
    atexit.register(end)
    # Such a child clears the finalizers it inherited before it calls what is registered here.
    util.register_after_fork(end, _finalize)
    _finalize(end)


def _finalize(end: _End) -> None:
    from multiprocessing import util

    util.Finalize(None, end, exitpriority=0)


class _End:
    """Calls `stop` once in each process."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._ended_in = 0

    def __call__(self) -> None:
        if self._ended_in != os.getpid():
            self._ended_in = os.getpid()
            self._stop()


#: multiprocessing keeps only weak references.
_ends: list[_End] = []


def _is_on(text: str) -> bool:
    return text.strip().lower() not in _OFF


def _arm() -> None:
    from ascend_dump._log import give_messages_a_name

    give_messages_a_name()
    try:
        request = requested()
        assert request is not None, "start() returned when it is off"
        found = _launchable_adapters()
        from wrapt import register_post_import_hook

        for adapter in found:
            for module in adapter.process_hooks:
                register_post_import_hook(_Hook(adapter, request), module)
    except Exception as error:
        _complain(f"{VARIABLE}={os.environ[VARIABLE]!r} is ignored", error)


def _launchable_adapters() -> list[Adapter]:
    from ascend_dump.adapter._contract import load, registered

    found = []
    for name in registered():
        try:
            adapter = load(name)
        except AscendDumpError as error:
            # One broken package must not keep the others from dumping.
            _complain(f"the adapter {name!r} is left out", error)
            continue
        if adapter.process_hooks:
            found.append(adapter)
    if not found:
        raise AdapterNotFound(
            "no registered adapter can dump a whole process", hint="`ascend-dump doctor` lists what is registered"
        )
    return found


class _Hook:
    """Activates one adapter after its framework's import, which must not fail because of us."""

    def __init__(self, adapter: Adapter, request: DumpRequest) -> None:
        self._adapter = adapter
        self._request = request

    def __call__(self, module: ModuleType) -> None:
        name = self._adapter.name
        if name in _activated:
            return
        _activated.add(name)
        log.debug("%s was imported: activating the adapter %r", module.__name__, name)
        try:
            for other in [one for one in _active.values() if name in one.yields_to]:
                other.deactivate()
            self._adapter.activate(self._request)
            _active[name] = self._adapter
        except Exception as error:
            log.debug("activating %r failed", name, exc_info=True)
            _complain(f"nothing is dumped by the adapter {name!r}", error)


class _AfterSite:
    """Arms once every site directory is on the path.

    `.pth` files of one directory are processed before the next directory is added (a virtual
    environment over system packages, user packages over system packages), so wrapt or an adapter
    may not be importable yet. The last thing `site` does is to import sitecustomize.
    """

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name != "sitecustomize":
            return None
        sys.meta_path.remove(self)
        _arm()
        from importlib.util import find_spec

        # The loop over sys.meta_path, which was just changed, would skip one finder.
        return find_spec(name)


def _site_is_starting() -> bool:
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and frame.f_globals.get("__name__") == "site":
            return True
        frame = frame.f_back
    return False


def _complain(what: str, error: Exception) -> None:
    """Say it in one line; under ASCEND_DUMP_STRICT end the process with exit code 2."""
    _print(f"{what}: {_one_line(error)}")
    if not _is_on(os.environ.get(STRICT, "")):
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # it is closed, or there is none
            stream.flush()
    # A SystemExit inside site is a fatal error of the interpreter, with exit code 1; inside the import of a
    # framework it leaves half a module, over which the framework's own exit handlers may abort the process.
    os._exit(2)


def _one_line(error: Exception) -> str:
    if not isinstance(error, AscendDumpError):
        return repr(error)
    # The marks under a wrong part of the text point at nothing on one line.
    lines = (line.strip() for line in error.message.splitlines() if line.strip(" ^"))
    hint = f" Hint: {' '.join(error.hint.split())}" if error.hint else ""
    return f"{' '.join(lines)} [{error.code}]{hint}"


def _print(text: str) -> None:
    stream: Any = sys.stderr
    if stream is None:
        return
    try:
        stream.write(f"ascend-dump: {' '.join(text.splitlines())}\n")
        stream.flush()
    except (OSError, ValueError):  # stderr is closed: there is nobody to tell
        return
