"""The contract suite passes for a sound adapter, and each of its tests fails for a broken one."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable

import numpy as np
import pytest

from ascend_dump.adapter import registered
from ascend_dump.testing.contract import AdapterContract


class TestToy(AdapterContract):
    name = "toy"
    bad_request = MappingProxyType({"scene": "watch", "watch": ["double"]})

    @pytest.fixture(autouse=True)
    def _install(self, toy: Any) -> None:
        """The framework is imported, its adapter registered."""

    @pytest.fixture
    def make_target(self) -> Callable[[], Any]:
        def double(value: Any) -> Any:
            return value * 2

        return lambda: sys.modules["toyframe"].Network(first=double, second=np.sqrt)

    def run_step(self, target: Any) -> Any:
        return target(np.arange(6, dtype=np.float32))


def test_its_author_needs_public_names_only(third_party: Path) -> None:
    tree = ast.parse((third_party / "ascend_dump_toy.py").read_text())
    found = [
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    ]
    ours = [name for name in found if name.startswith("ascend_dump")]
    assert "ascend_dump.adapter.HostWriter" in ours
    assert not [name for name in ours if "._" in name]


def test_one_that_is_installed_while_the_program_runs_is_found(
    third_party: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, where pip runs in a cell: what is registered is kept until a directory of sys.path changes."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = registered()
    assert "toy" not in before
    shutil.copytree(third_party, tmp_path, dirs_exist_ok=True)
    later = time.time_ns() + 10**9  # the clock of a file system may stand still for some milliseconds
    os.utime(tmp_path, ns=(later, later))
    assert set(registered()) - set(before) == {"toy"}
    monkeypatch.setenv("ASCEND_DUMP_DISABLED_ADAPTERS", "toy")
    assert registered() == before
    monkeypatch.delenv("ASCEND_DUMP_DISABLED_ADAPTERS")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path[1:], str(tmp_path / "none")])
    assert "toy" in registered()


def test_what_it_raises_at_the_end_stays_out_of_the_program(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import ascend_dump
    from ascend_dump.adapter import load

    def fail(self: Any) -> None:
        raise ZeroDivisionError("its own mistake")

    load("toy")
    monkeypatch.setattr(sys.modules["ascend_dump_toy"]._Session, "stop", fail)
    network = toy.Network(first=np.sqrt)
    with ascend_dump.capture(network, path=tmp_path):
        assert network(np.float32(4)) == 2
    assert caplog.text.count("its own mistake") == 1
    with pytest.raises(ascend_dump.AscendDumpError, match="toy could not end the capture"):  # noqa: SIM117
        with ascend_dump.capture(network, path=tmp_path, strict=True):
            network(np.float32(4))


def test_one_that_has_no_recorder_is_told_of(toy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import ascend_dump

    network = toy.Network(first=np.sqrt)
    for settings in ({"keep": 2}, {"until": "nonfinite"}, {}):
        caplog.clear()
        with ascend_dump.capture(network, path=tmp_path, **settings) as cap:
            network(np.float32(4))
            with pytest.raises(ascend_dump.NotSupported, match="until the capture ends"):
                cap.trigger("enough")
        assert [f"{name}= changes nothing" in caplog.text for name in ("keep", "until")] == [
            name in settings for name in ("keep", "until")
        ]


#: What an author may get wrong, as a change of the sound adapter, and the tests that tell.
FAULTS = {
    "keeps dumping after stop": (
        "self.observed.remove(self.observe)",
        "return",
        {"nothing_is_written_after_stop", "the_target_is_the_same_object_as_before", "an_exception_in_the_block"},
    ),
    "fails on a second stop": (
        "if self.observe in self.observed:",
        "if True:",
        {"the_adapter_itself_may_be_stopped_twice"},
    ),
    "changes the result": (
        "items = []",
        "items = []; result *= 2",
        {"results_are_unchanged"},
    ),
    "finds no problem": (
        "if request.scene is None:",
        "if True:",
        {"a_bad_request_is_a_problem_that_helps"},
    ),
    "has a problem without advice": (
        '"leave out scene="',
        '""',
        {"a_bad_request_is_a_problem_that_helps"},
    ),
    "refuses everything": (
        "if request.scene is None:",
        "if False:",
        {"a_good_request_is_no_error", "records_name_the_operators_that_ran"},
    ),
    "ignores the steps": (
        "if self.step in self.request.steps:",
        "if True:",
        {"unselected_steps_write_nothing", "a_dump_that_stays_empty_is_reported"},
    ),
    "writes to another place": (
        "HostRun(run,",
        'HostRun(run._replace(path=run.path.parent.parent.parent / "elsewhere"),',
        {"the_adapter_itself_may_be_stopped_twice"},
    ),
    "names no operators": (
        "function.__name__, name,",
        '"", name,',
        {"records_name_the_operators_that_ran"},
    ),
    "accepts anything": (
        'return target is None or isinstance(target, sys.modules["toyframe"].Network)',
        "return True",
        {"it_accepts_its_target_and_nothing_foreign"},
    ),
    "touches the target in check": (
        "if request.scene is None:",
        "target.checked = True\n        if request.scene is None:",
        {"check_leaves_the_target_alone"},
    ),
    "mixes two captures": (
        "self.run = HostRun(run, request=self.request.to_mapping(), versions={})",
        "self.run = _RUNS.setdefault(1, HostRun(run, request={}, versions={}))",
        {"two_captures_in_a_row_do_not_mix"},
    ),
    "is not registered": (
        'framework = "toyframe"',
        'framework = "no_such_framework"',
        {"it_is_registered_and_usable"},
    ),
}


#: The contract, once for each directory with a broken adapter.
BROKEN = """
import importlib
import sys

import numpy as np
import pytest
from ascend_dump.testing import fresh_adapters
from ascend_dump.testing.contract import AdapterContract


class TestIt(AdapterContract):
    name = "toy"
    bad_request = {"scene": "overflow"}

    @pytest.fixture(autouse=True, params=%r)
    def _install(self, request, monkeypatch):
        monkeypatch.syspath_prepend(request.param)
        with fresh_adapters():
            yield importlib.import_module("toyframe")
        for name in ("toyframe", "ascend_dump_toy"):
            sys.modules.pop(name, None)

    @pytest.fixture
    def make_target(self):
        def double(value):
            return value * 2
        return lambda: sys.modules["toyframe"].Network(first=double, second=np.sqrt)

    def run_step(self, target):
        return target(np.arange(6, dtype=np.float32))
"""


def break_adapter(third_party: Path, where: Path, fault: str) -> None:
    shutil.copytree(third_party, where, ignore=shutil.ignore_patterns("__pycache__"))
    old, new, _ = FAULTS[fault]
    adapter = where / "ascend_dump_toy.py"
    text = adapter.read_text()
    assert old in text, "the sound adapter has changed: adapt the fault"
    text = text.replace(old, new).replace("class _Session(", "_RUNS: dict = {}\n\n\nclass _Session(")
    # What a fault writes is on disk before the test looks.
    text = text.replace("self.writer.end_step()", "self.writer.end_step()\n            self.writer.flush()")
    adapter.write_text(text)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, third_party: Path) -> dict[str, set[str]]:
    """Return the outcome of each test for each broken adapter: "PASSED name" or "FAILED name"."""
    place = tmp_path_factory.mktemp("broken")
    directories = {str(place / str(number)): fault for number, fault in enumerate(FAULTS)}
    for directory, fault in directories.items():
        break_adapter(third_party, Path(directory), fault)
    (place / "test_it.py").write_text(BROKEN % [*directories])
    options = ["-rfEp", "--tb=no", "-p", "no:cacheprovider", "--rootdir", str(place)]
    command = [sys.executable, "-m", "pytest", *options, "test_it.py"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=900)
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, set[str]] = {fault: set() for fault in FAULTS}
    for outcome, name, directory in re.findall(r"^([A-Z]+) .*::test_(\w+)\[(.*?)\]", done.stdout, re.MULTILINE):
        found[directories[directory]].add(f"{outcome} {name}")
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_adapter_does_not_pass(fault: str, outcomes: dict[str, set[str]]) -> None:
    assert len(outcomes[fault]) == sum(name.startswith("test_") for name in dir(AdapterContract))
    failed = {one.split(" ")[1] for one in outcomes[fault] if one.startswith("FAILED ")}
    expected = FAULTS[fault][2]
    assert all(any(name.startswith(part) for name in failed) for part in expected), f"failed only: {sorted(failed)}"
