"""Start the dump of a whole process from its environment, without changes to its code.

`start` is called by the start-up hook (`.pth`) that the package installs, and by the sitecustomize that
`ascend-dump run` puts on PYTHONPATH. Both may run in one interpreter.

    ASCEND_DUMP                     settings of the dump: `1`, `steps=0|2-5,path=/d`, JSON text or the path of a file.
                                    Empty, `0`, `off`, `false` and `no` mean off. `wait` and `wait,path=/d` mean: wait
                                    for `ascend-dump attach`
    ASCEND_DUMP_STRICT=1            failures decide the exit code. Code 2: at once if nothing can be dumped, at the end
                                    of the process if the dump is incomplete. Code 5: at the end of the process if
                                    nothing was recorded. ASCEND_DUMP=...,strict=true does the same, but only after
                                    the settings have been read
    ASCEND_DUMP_DISABLED_ADAPTERS   names of adapters to ignore, `*` for all
    ASCEND_DUMP_RUN                 id of the process that `ascend-dump run` has started. Only this process reports, at
                                    its end, that neither it nor a child process imported a framework
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, NoReturn, Optional

from ascend_dump.common.log import give_messages_a_name, of_this_rank, print_line
from ascend_dump.errors import AdapterNotFound, AscendDumpError

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType

    from ascend_dump.adapter import Adapter, Session
    from ascend_dump.attach.listener import Listener
    from ascend_dump.attach.server import Attachments
    from ascend_dump.capturing.capture import Capture
    from ascend_dump.request import DumpRequest

__all__ = ["RUN", "STRICT", "VARIABLE", "LaunchedCapture", "launch", "requested", "settings_of_waiting", "start"]

VARIABLE = "ASCEND_DUMP"
STRICT = "ASCEND_DUMP_STRICT"
RUN = "ASCEND_DUMP_RUN"
_OFF = ("", "0", "off", "false", "no")
_WAIT = "wait"

log = logging.getLogger("ascend_dump")

#: Exceptions that third-party code may raise. SystemExit, because an imported module may call sys.exit(), and that must
#: not end the program.
_ANY = (Exception, SystemExit)

_started = False
#: Launched captures by adapter name. A capture is added when the adapter's framework is imported.
_launched: dict[str, LaunchedCapture] = {}
#: The exit codes of strict processes: the dump is impossible or incomplete; nothing was recorded.
_FAILED, _EMPTY = 2, 5
#: The code of the error of an empty capture.
_NOTHING_WRITTEN = "AD303"
#: The exit code with which this process has to end; 0: the program's own exit code.
_code = 0
#: True if the settings of ASCEND_DUMP contain strict=true.
_asks_strictness = False


def start() -> None:
    """Register hooks on imports of frameworks if ASCEND_DUMP is set. Never raises; a second call does nothing."""
    global _started
    if _started or not _is_on(os.environ.get(VARIABLE, "")):
        return
    _started = True
    if _site_is_starting() and "sitecustomize" not in sys.modules:
        sys.meta_path.insert(0, _AfterSite())
    else:
        _arm()


def requested() -> Optional[DumpRequest]:
    """Return the request of ASCEND_DUMP, None if it is off or `wait`. Raises ConfigError for a wrong value."""
    from ascend_dump.request import DumpRequest

    text = os.environ.get(VARIABLE, "")
    if settings_of_waiting() is not None:
        return None
    return DumpRequest.from_text(text) if _is_on(text) else None


def settings_of_waiting() -> Optional[DumpRequest]:
    """Return the settings of ASCEND_DUMP=wait,..., None for any other value. Raises ConfigError for a wrong setting."""
    from ascend_dump.request import DumpRequest

    word, _, settings = os.environ.get(VARIABLE, "").partition(",")
    if word.strip().lower() != _WAIT:
        return None
    return DumpRequest.from_text(settings) if settings.strip() else DumpRequest()


def _is_on(text: str) -> bool:
    return text.strip().lower() not in _OFF


def _arm() -> None:
    global _asks_strictness
    # Registered before all exit handlers of the program, so that it runs after them.
    atexit.register(_end_strictly, os.getpid())
    try:
        give_messages_a_name()
        waiting = settings_of_waiting()
        if waiting is not None:
            _asks_strictness = waiting.strict
            _WaitingProcess(waiting).follow(_launchable_adapters())
            return
        request = requested()
        assert request is not None, "start() calls this function only if the dump is on"
        _asks_strictness = request.strict
        if os.environ.get(RUN) == str(os.getpid()):
            atexit.register(_warn_if_nothing_dumped, os.getpid(), os.path.abspath(request.path), time.time())
        adapters = _launchable_adapters()
        from wrapt import register_post_import_hook

        for adapter in adapters:
            for module in adapter.process_hooks:
                register_post_import_hook(_Hook(adapter, request), module)
    except _ANY as error:
        _complain(f"{VARIABLE}={os.environ[VARIABLE]!r} is ignored", error)


def _launchable_adapters() -> list[Adapter]:
    from ascend_dump.adapter import load, registered

    adapters = []
    for name in registered():
        try:
            adapter = load(name)
        except AscendDumpError as error:
            # One broken package must not prevent the others from dumping.
            _complain(f"the adapter {name!r} is left out", error)
            continue
        if adapter.process_hooks:
            adapters.append(adapter)
    if not adapters:
        raise AdapterNotFound(
            "no registered adapter can dump a whole process",
            hint="install a framework's adapter; `ascend-dump doctor` lists the registered adapters",
        )
    return adapters


class _Hook:
    """An import hook that launches one adapter after the import of its framework. It never makes the import fail."""

    def __init__(self, adapter: Adapter, request: DumpRequest) -> None:
        self._adapter = adapter
        self._request = request

    def __call__(self, module: ModuleType) -> None:
        log.debug("%s was imported: launching the adapter %r", module.__name__, self._adapter.name)
        launch(self._adapter, self._request)


class _WaitingProcess:
    """A listener for `ascend-dump attach`, opened once a framework that can be captured is imported."""

    def __init__(self, settings: DumpRequest) -> None:
        self._settings = settings
        self._listener: Optional[Listener] = None

    def follow(self, adapters: Sequence[Adapter]) -> None:
        from wrapt import register_post_import_hook

        for adapter in adapters:
            for module in adapter.process_hooks:
                register_post_import_hook(functools.partial(self._imported, adapter), module)

    def _imported(self, adapter: Adapter, module: ModuleType) -> None:
        try:
            adapter.wait()
            if self._listener is None:
                self._listener = _listen(self._settings)
        except _ANY as error:
            log.debug("waiting failed", exc_info=True)
            _complain("nobody can attach to this process", error)


def _listen(settings: DumpRequest) -> Listener:
    from ascend_dump.attach.listener import Listener

    # Filled at the first request, so that a process to which nobody attaches imports less.
    attachments: list[Attachments] = []

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        if not attachments:
            from ascend_dump.attach.server import Attachments

            attachments.append(Attachments(settings.replace(strict=False).to_mapping()))
        return attachments[0].handle(request)

    def forked() -> None:
        for attachment in attachments:
            attachment.forked()

    return Listener(handle, forked)


def launch(adapter: Adapter, request: DumpRequest) -> LaunchedCapture:
    """Call `Adapter.launch` after the import of the adapter's framework. The adapter starts the capture when it can."""
    name = adapter.name
    if name in _launched:
        return _launched[name]
    launched = _launched[name] = LaunchedCapture(adapter, request)
    for launched_capture in [candidate for candidate in _launched.values() if name in candidate.adapter.yields_to]:
        launched_capture.rest(name)
    try:
        launched.unused = adapter.launch(launched)
    except _ANY as error:
        log.debug("launching %r failed", name, exc_info=True)
        _complain(f"nothing is dumped by the adapter {name!r}", error)
    if len(_launched) == 1:
        atexit.register(_warn_if_unused, os.getpid())
    return launched


class LaunchedCapture:
    """The `Begin` of an adapter that ASCEND_DUMP has launched, in this process and in processes forked from it.

    unused   the function that `Adapter.launch` returned: it says why the capture never began
    begun    True once the adapter has called this object
    over     always False, because the user cannot stop a launched capture from outside
    """

    def __init__(self, adapter: Adapter, request: DumpRequest) -> None:
        self.adapter = adapter
        self.request = request
        self.unused: Optional[Callable[[], str]] = None
        self.begun = False
        self.over = False
        self._capture: Optional[Capture] = None
        self._has_stopped = False

    def __call__(self, target: Any = None, *, model: str = "") -> Optional[Session]:
        self.begun = True
        name = self.adapter.name
        instead = next((adapter_name for adapter_name in self.adapter.yields_to if adapter_name in _launched), None)
        if instead is not None:
            self.rest(instead)
            return None
        from ascend_dump.capturing.capture import Capture

        request = self.request.replace(strict=_is_strict())
        capture = Capture(target, request, framework=name, launched=True, model=model)
        capture.failed_at_exit = _failed_at_exit
        self._capture = capture
        try:
            return capture.begin()
        except _ANY as error:
            log.debug("starting the capture failed", exc_info=True)
            _complain(f"nothing is dumped by the adapter {name!r}", error)
            return None

    def rest(self, instead: str) -> None:
        """Stop this capture, because an adapter that captures the same program more precisely takes over.

        instead: the name of that adapter
        """
        if not self._has_stopped:
            self._has_stopped = True
            # No warning for the host's adapter in a program that uses a device: there two adapters are normal.
            level = logging.WARNING if self.adapter.priority > 0 else logging.INFO
            log.log(
                level,
                "nothing more is dumped by %s: %s takes over; ASCEND_DUMP_DISABLED_ADAPTERS leaves one out",
                self.adapter.name,
                instead,
            )
        if self._capture is not None:
            self._capture.stop()

    def done(self, failure: Optional[Exception] = None) -> None:
        """Do nothing: a launched capture is finished at the end of the process."""

    def end(self) -> None:
        """Finish the capture as at the end of the process. Afterwards the adapter may be launched again."""
        _launched.pop(self.adapter.name, None)
        if self._capture is not None:
            self._capture.end()


def _warn_if_unused(process: int) -> None:
    from multiprocessing import parent_process

    # No warning in processes that may have run no model on purpose, such as workers of multiprocessing.
    if not _launched or _has_begun() or os.getpid() != process or parent_process() is not None:
        return
    first = max(_launched.values(), key=lambda launched: launched.adapter.priority)
    reason = first.unused() if first.unused is not None else ""
    if reason:
        log.warning("%s is set, but %s: nothing of this process was captured", VARIABLE, reason)


def _warn_if_nothing_dumped(process: int, path: str, since: float) -> None:
    """Warn if nothing was dumped in the whole run and no framework was imported in this process.

    Child processes that imported a framework report for themselves. since: start of the run in seconds of `time.time`.
    """
    if os.getpid() != process or _has_begun() or _is_written(path, since):
        return
    if not _launched:
        log.warning(
            "%s is set, but this process imported no framework that can be captured, and no process below it wrote "
            "into %s: nothing was dumped",
            VARIABLE,
            path,
        )
    _fail(_EMPTY)


def _has_begun() -> bool:
    return any(launched.begun for launched in _launched.values())


def _is_written(path: str, since: float) -> bool:
    """Return True if a run, at `{rank}/{time}`, was created in this directory of dumps after the time `since`."""
    for entry in (path, *_entries(path)):
        with contextlib.suppress(OSError):
            # 2 seconds less, because file systems round their times.
            if os.lstat(entry).st_mtime >= since - 2:
                return True
    return False


def _entries(path: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return [entry.path for entry in entries]
    return []


def _failed_at_exit(error: Exception) -> None:
    log.warning("%s", error)
    _fail(_EMPTY if getattr(error, "code", "") == _NOTHING_WRITTEN else _FAILED)


def _fail(code: int) -> None:
    """Set the exit code with which a strict process ends, unless the code for an incomplete dump was set before."""
    global _code
    if _is_strict() and _code != _FAILED:
        _code = code


def _end_strictly(process: int) -> None:
    """Exit with `_code` after all other exit handlers, unless an exception ended the program."""
    if _code and os.getpid() == process and getattr(sys, "last_value", None) is None:
        logging.shutdown()
        what = "nothing was recorded" if _code == _EMPTY else "the recording is not complete"
        _say(f"ascend-dump: {of_this_rank(f'{what}: exit code {_code}, because the settings are strict')}")
        _leave(_code)


class _AfterSite:
    """A meta-path finder that delays `_arm` until every site directory is on the path.

    `site` processes the `.pth` files of one directory before it adds the next directory: for example, the files of a
    virtual environment before it adds system packages. So wrapt or an adapter may not be importable yet when our `.pth`
    file runs. The last thing that `site` does is to import sitecustomize, which calls this finder.
    """

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name != "sitecustomize":
            return None
        sys.meta_path.remove(self)
        _arm()
        from importlib.util import find_spec

        # Python is looping over sys.meta_path, which was just changed, and would skip one finder. So search again.
        return find_spec(name)


def _site_is_starting() -> bool:
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and frame.f_globals.get("__name__") == "site":
            return True
        frame = frame.f_back
    return False


def _complain(what: str, error: BaseException) -> None:
    """Print a message in one line. In a strict process also exit with code 2."""
    _say(f"ascend-dump: {of_this_rank(' '.join(f'{what}: {_one_line(error)}'.splitlines()))}")
    if _is_strict():
        _leave(_FAILED)


def _say(text: str) -> None:
    with contextlib.suppress(Exception):  # printing may fail, for example without memory, and must not end the program
        print_line(text)


def _is_strict() -> bool:
    return _asks_strictness or _is_on(os.environ.get(STRICT, ""))


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the stream may be closed, full or None
            stream.flush()
    # Not sys.exit(). A SystemExit inside site is a fatal error of the interpreter, with exit code 1. Inside the import
    # of a framework it leaves a half-initialised module, and the framework's exit handlers may abort the process.
    os._exit(code)


def _one_line(error: BaseException) -> str:
    if not isinstance(error, AscendDumpError):
        try:
            return repr(error)
        except Exception:
            return type(error).__name__
    # A line of ^ marks, which marks the wrong part of the line above, makes no sense within one line.
    lines = (line.strip() for line in error.message.splitlines() if line.strip(" ^"))
    hint = f" Hint: {' '.join(error.hint.split())}" if error.hint else ""
    return f"{' '.join(lines)} [{error.code}]{hint}"
