"""The contract between the core and the adapter of a framework, and the registry of adapters.

An adapter is a class that is registered under the entry point group `ascend_dump.adapters`. It may be loaded in any
process, so its package imports its framework inside functions only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Protocol

from ascend_dump.common.entry_points import distribution_of, entry_points_of
from ascend_dump.errors import AdapterNotFound, AscendDumpError, ConfigError, FrameworkMissing, NotSupported

if TYPE_CHECKING:
    from ascend_dump.adapter._session import Session
    from ascend_dump.common.paths import RunDirectory
    from ascend_dump.common.problem import Problem
    from ascend_dump.request import DumpRequest

__all__ = ["Adapter", "AdapterInfo", "Begin", "Repeats", "adapters", "choose", "fresh_adapters", "load", "registered"]

GROUP = "ascend_dump.adapters"

log = logging.getLogger("ascend_dump")


class Begin(Protocol):
    """A function that starts the capture of a whole process. `Adapter.launch` and `Adapter.attach` get one to call.

    It is called with the target. It returns the session, or None if this process is not captured, because the request
    was refused or another rank or adapter is selected. In that case the reason was reported already, and a second call
    would have the same result.

    model  a name for the dump if there is no target
    over   True once the user has stopped the capture from outside: no further step may begin
    """

    request: DumpRequest
    over: bool

    def __call__(self, target: Any = None, *, model: str = "") -> Optional[Session]: ...

    def done(self, failure: Optional[Exception] = None) -> None:
        """Report that no further step will be recorded.

        This finishes an attached capture. A launched capture is finished at the end of the process instead.

        failure: the exception because of which the capture could not begin, or None
        """


class Repeats(Enum):
    """The ability of a framework to be captured again after a capture has ended. Decorated functions need this."""

    #: A capture can begin at any time.
    ALWAYS = "always"
    #: A capture can begin again if the first one began before the framework was initialised.
    RESUMED = "resumed"
    #: The framework reads its settings only once, so one capture has to run from the first call to the last.
    NEVER = "never"


class Adapter(ABC):
    """The adapter of one framework: describes its abilities and starts captures. Third parties subclass this."""

    #: The name of the adapter, as given in `framework=`.
    name: str = ""
    #: The module whose presence in `sys.modules` makes this adapter eligible.
    framework: str = ""
    #: Among several adapters that accept a target, the one with the highest priority captures it. Adapters for the
    #: host have priority 0.
    priority: int = 0
    #: Modules after whose import `launch` is called if ASCEND_DUMP requests a dump. Empty if `launch` is not supported.
    process_hooks: tuple[str, ...] = ()
    #: The ability to capture several times in one process.
    repeats: Repeats = Repeats.ALWAYS
    #: Names of adapters that dump the same programs more precisely. If one of them is launched, this adapter stops.
    yields_to: tuple[str, ...] = ()
    #: Why a running program cannot be dumped, if `attach` is not overridden: a clause that follows "because".
    only_from_the_start: str = "its adapter has no way to do that"

    @abstractmethod
    def accepts(self, target: Any) -> bool:
        """Return True if this adapter can capture `target` (None: the whole process). Must import nothing."""

    @abstractmethod
    def check(self, request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
        """Return the problems of a request: everything that this framework would refuse or silently ignore.

        run: the directory of the dump; it is created later, if nothing is refused
        """

    @abstractmethod
    def start(self, request: DumpRequest, target: Any, run: RunDirectory) -> Session:
        """Arm the dump and return its session. run: an existing empty directory for the files of the dump.

        May raise any AscendDumpError; then the target must be unchanged.
        """

    def counts_steps(self, target: Any) -> bool:
        """Return True if the target or its framework counts steps itself, so that `Capture.step` must be refused."""
        return target is not None

    def launch(self, begin: Begin) -> Optional[Callable[[], str]]:
        """Arrange that `begin(target)` is called as soon as the dump of a whole process can begin.

        This method is called once, after the import of a module of `process_hooks`. By default it calls `begin` at
        once. It may return a function that is called at the end of the process if `begin` was never called. That
        function returns the reason, or "" if no warning is needed.
        """
        begin()
        return None

    def wait(self) -> None:  # noqa: B027  (most adapters have nothing to remember)
        """Prepare a process to which `ascend-dump attach` may attach later.

        Called after the import of a module of `process_hooks`. From now on the adapter remembers everything that
        `attach` will need, without slowing down steps.
        """

    def only_starts_others(self) -> bool:
        """Return True if this process is a launcher: it starts processes that run models, and runs no model itself."""
        return False

    def may_attach(self, request: DumpRequest) -> None:
        """Raise NotSupported if this adapter cannot attach to a running program, or not with this request."""
        if type(self).attach is Adapter.attach:
            raise NotSupported(
                f"{self.name} cannot begin in a program that runs already, because {self.only_from_the_start}",
                hint="start the program with `ascend-dump run`, or capture another framework of the process with "
                "`ascend-dump attach --framework NAME`",
            )

    def attach(self, begin: Begin) -> Callable[[], bool]:
        """Arrange that `begin` is called when the next step of a running program begins, in the thread of that step.

        This method is called in another thread, so it must not change anything that the program may be using at that
        moment. After the last step, or once `begin.over` is set, the adapter calls `begin.done` in a thread of the
        program.

        Returns a function that cancels the arrangement; that function returns False if the step has begun already. By
        default this method raises NotSupported.
        """
        self.may_attach(begin.request)
        raise AssertionError("may_attach refuses what has no attach")


class AdapterInfo(NamedTuple):
    """A registered adapter. reason: why it is usable or not."""

    name: str
    distribution: str
    version: str
    usable: bool
    reason: str


def adapters() -> list[AdapterInfo]:
    """Return a description of each registered adapter, usable or not. Adapters are loaded, but no framework."""
    infos = []
    for name, entry in sorted(_entry_points().items()):
        dist = distribution_of(entry)
        where: tuple[str, str] = (dist.metadata["Name"], dist.version) if dist is not None else ("", "")
        try:
            adapter = load(name)
        except AscendDumpError as error:
            infos.append(AdapterInfo(name, *where, False, error.message))
            continue
        if adapter.framework in sys.modules:
            infos.append(AdapterInfo(name, *where, True, f"{adapter.framework} is imported"))
        elif _importable(adapter.framework):
            infos.append(AdapterInfo(name, *where, True, f"{adapter.framework} is installed, not imported yet"))
        else:
            infos.append(AdapterInfo(name, *where, False, f"{adapter.framework} is not installed"))
    return infos


def registered() -> list[str]:
    """Return the names of the adapters that are installed and not disabled. Loads no adapter."""
    return sorted(_entry_points())


def load(name: str) -> Adapter:
    """Load the adapter registered as `name`. Raises AdapterNotFound if there is none, or if it cannot be loaded."""
    if name in _loaded:
        return _loaded[name]
    entry = _entry_points().get(name)
    if entry is None:
        raise AdapterNotFound(
            f"no adapter is registered as {name!r}",
            hint=f"registered: {', '.join(sorted(_entry_points())) or 'none'}; `ascend-dump doctor` lists them",
        )
    try:
        adapter = entry.load()()
    except (Exception, SystemExit) as error:  # SystemExit: an imported module may call sys.exit()
        raise AdapterNotFound(
            f"the adapter {name!r} cannot be loaded: {error!r}",
            hint="reinstall the package that provides it, see `ascend-dump doctor`",
        ) from error
    if not isinstance(adapter, Adapter):
        raise AdapterNotFound(
            f"the entry point {name!r} returns a {type(adapter).__name__}, not an ascend_dump Adapter",
            hint="its class must derive from ascend_dump.Adapter",
        )
    _loaded[name] = adapter
    return adapter


def choose(target: Any, framework: Optional[str]) -> Adapter:
    """Choose the adapter for a target: the named one, or else the accepting adapter with the highest priority.

    Without a name, only adapters whose framework the program has imported are considered. Raises ConfigError,
    AdapterNotFound or FrameworkMissing.
    """
    if framework is not None:
        if not isinstance(framework, str):
            raise ConfigError(f"framework={framework!r}: expected a name", hint="such as 'torch'")
        adapter = load(framework)
        if adapter.framework not in sys.modules and not _importable(adapter.framework):
            raise FrameworkMissing(
                f"framework={framework!r} needs the module {adapter.framework}, which is not installed",
                hint="install the framework, or leave framework= out to let the target decide",
            )
        if not adapter.accepts(target):
            raise AdapterNotFound(
                f"the adapter {framework!r} cannot capture {_describe(target)}",
                hint="leave framework= out to let the target decide",
            )
        return adapter
    candidates: list[Adapter] = []
    for name in _entry_points():
        try:
            adapter = load(name)
        except AdapterNotFound as error:
            log.debug("skipped: %s", error)
            continue
        if adapter.framework in sys.modules and adapter.accepts(target):
            candidates.append(adapter)
    if candidates:
        return max(candidates, key=lambda adapter: adapter.priority)
    names_and_reasons = ", ".join(f"{info.name} ({info.reason})" for info in adapters()) or "none"
    raise AdapterNotFound(
        f"no adapter captures {_describe(target)}",
        hint=f"import the framework first, or name it with framework=; registered: {names_and_reasons}",
    )


_loaded: dict[str, Adapter] = {}


@contextlib.contextmanager
def fresh_adapters() -> Iterator[None]:
    """Forget the loaded adapters inside the with block, and restore them at its end.

    For tests that install an adapter temporarily, or several adapters with one name.
    """
    before = dict(_loaded)
    _loaded.clear()
    try:
        yield
    finally:
        _loaded.clear()
        _loaded.update(before)


def _entry_points() -> dict[str, Any]:
    disabled = {name.strip() for name in os.environ.get("ASCEND_DUMP_DISABLED_ADAPTERS", "").split(",")}
    entries = entry_points_of(GROUP)
    return {name: entry for name, entry in entries.items() if name not in disabled and "*" not in disabled}


def _importable(module: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _describe(target: Any) -> str:
    return (
        "a whole process (no target given)"
        if target is None
        else f"an object of type {type(target).__module__}.{type(target).__qualname__}"
    )
