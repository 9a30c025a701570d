"""Interpreters and the third-party adapter that several areas test with."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import preloaded
import pytest
from interpreters import HOOK_FILES, STARTUP, THIRD_PARTY, Interpreter, lay_out, link_dependencies, make_interpreter
from places import REPOSITORY

# Processes side by side wait for each other: how long an example takes, or its making, says nothing. What Hypothesis
# chooses by itself where the variable CI is set stays.
hypothesis.settings.register_profile(
    "side by side", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("side by side")


#: Set by pytest itself, by mypy that runs within this process, by PyTorch's compiler, and by an import of polars.
_LEFT_BY_TOOLS = dict.fromkeys(
    ("PYTEST_CURRENT_TEST", "MYPY_CONFIG_FILE_DIR", "TORCHINDUCTOR_CACHE_DIR", "_RJEM_MALLOC_CONF"), ""
)


def pytest_configure(config: pytest.Config) -> None:
    """Processes of pytest-xdist find in their environment where the servers of all of them are."""
    if preloaded.DIRECTORY not in os.environ:
        directory = os.environ[preloaded.DIRECTORY] = tempfile.mkdtemp(prefix="preloaded-")
        config.add_cleanup(lambda: shutil.rmtree(directory))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run that skips everything has shown nothing, so it fails."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    ran = exitstatus == pytest.ExitCode.OK and reporter is not None and not session.config.option.collectonly
    if ran and not reporter.stats.get("passed"):
        reporter.write_line("\nevery test was skipped: the run counts as failed", red=True)
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.fixture(autouse=True)
def unchanged_environment() -> Iterator[None]:
    """A variable that a test leaves behind changes the programs that later tests of its process start."""
    before = {**os.environ, **_LEFT_BY_TOOLS}
    yield
    assert {**os.environ, **_LEFT_BY_TOOLS} == before


@pytest.fixture(scope="session")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The third-party adapter and its framework, as pip would lay them into site-packages."""
    return lay_out(THIRD_PARTY, tmp_path_factory.mktemp("third_party"))


@pytest.fixture(scope="session")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with everything we depend on, and pip, but not ascend_dump."""
    return link_dependencies(tmp_path_factory.mktemp("dependencies"))


@pytest.fixture(scope="session")
def bare_interpreter(tmp_path_factory: pytest.TempPathFactory, third_party: Path, dependencies: Path) -> Interpreter:
    """Imports ascend_dump, what it needs and the third-party adapter; has no start-up hook."""
    made = make_interpreter(tmp_path_factory.mktemp("interpreter") / "bare")
    made.add_paths("paths.pth", REPOSITORY, third_party, dependencies)
    return made


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory, third_party: Path, dependencies: Path) -> Interpreter:
    """As `bare_interpreter`, with the start-up hook where pip installs it."""
    made = make_interpreter(tmp_path_factory.mktemp("interpreter") / "hooked")
    made.add_paths("_paths.pth", REPOSITORY, third_party, dependencies)
    for name in HOOK_FILES:
        shutil.copy(STARTUP / name, made.site)
    return made


@pytest.fixture
def toy(third_party: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The third-party adapter installed into this process; gives its framework."""
    from ascend_dump.testing import fresh_adapters

    monkeypatch.syspath_prepend(str(third_party))
    with fresh_adapters():
        yield importlib.import_module("toyframe")
    for name in ("toyframe", "ascend_dump_toy"):
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """A test that leaves a capture active or a module of a fake in place would change what later tests find."""
    before = _left_behind()
    yield
    more = _left_behind() - before
    assert not more, f"the test leaves behind: {', '.join(sorted(more))}"


#: Modules that only a fake provides here, but for tests/real.
_FAKED = ("acl", "torch_npu", "torchair", "npu_bridge", "npu_device")


def _left_behind() -> set[str]:
    """Captures that wait for the end of the process, as every active one does; modules that a fake stands in for."""
    module = sys.modules.get("ascend_dump.adapter._exit")
    ends = [end._stop for end in module._ends] if module else []
    captures = {repr(end) for end in ends if getattr(end, "__name__", "") == "end"}
    # The real ones, which tests/real imports, lie in files.
    faked = {name for name in _FAKED if name in sys.modules and not getattr(sys.modules[name], "__file__", None)}
    return captures | {f"the module {name}" for name in faked}
