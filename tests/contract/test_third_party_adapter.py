"""The contract suite passes for a sound adapter, and each of its tests fails for a broken one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable

import numpy as np
import pytest

from ascend_dump.fakes.contract import AdapterContract

pytest_plugins = ["pytester"]


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


def test_what_it_raises_at_the_end_stays_out_of_the_program(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import ascend_dump
    from ascend_dump._adapter import load

    def fail(self: Any, session: Any) -> None:
        raise ZeroDivisionError("its own mistake")

    monkeypatch.setattr(type(load("toy")), "stop", fail)
    network = toy.Network(first=np.sqrt)
    with ascend_dump.capture(network, path=tmp_path):
        assert network(np.float32(4)) == 2
    assert caplog.text.count("its own mistake") == 1
    with pytest.raises(ascend_dump.AscendDumpError, match="toy could not end the capture"):  # noqa: SIM117
        with ascend_dump.capture(network, path=tmp_path, strict=True):
            network(np.float32(4))


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
        {"a_good_request_is_no_error", "records_say_what_ran"},
    ),
    "ignores the steps": (
        "if self.step in self.request.steps:",
        "if True:",
        {"unselected_steps_write_nothing", "a_dump_that_stays_empty_is_told"},
    ),
    "writes to another place": (
        "Run(self.request.path,",
        'Run(self.request.path.parent / "elsewhere",',
        {"the_adapter_itself_may_be_stopped_twice"},
    ),
    "names no operators": (
        "function.__name__, name,",
        '"", name,',
        {"records_say_what_ran"},
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
        "self.run = Run(self.request.path, current_rank(), request=self.request.to_mapping(), versions={})",
        "self.run = _RUNS.setdefault(1, Run(self.request.path, current_rank(), request={}, versions={}))",
        {"two_captures_in_a_row_do_not_mix"},
    ),
    "is not registered": (
        'framework = "toyframe"',
        'framework = "no_such_framework"',
        {"it_is_registered_and_usable"},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_adapter_does_not_pass(fault: str, pytester: pytest.Pytester, third_party: Path) -> None:
    old, new, expected = FAULTS[fault]
    for file in third_party.glob("*.py"):
        text = file.read_text()
        if file.name == "ascend_dump_toy.py":
            assert old in text, "the sound adapter has changed: adapt the fault"
            text = text.replace(old, new).replace("class _Session:", "_RUNS: dict = {}\n\n\nclass _Session:")
            # What a fault writes is on disk before the test looks.
            text = text.replace("self.writer.end_step()", "self.writer.end_step()\n            self.writer.flush()")
        (pytester.path / file.name).write_text(text)
    for info in third_party.glob("*.dist-info"):
        (pytester.path / info.name).mkdir()
        for part in info.iterdir():
            (pytester.path / info.name / part.name).write_text(part.read_text())
    pytester.makepyfile(
        test_it="""
        import numpy as np
        import pytest
        import toyframe
        from ascend_dump.fakes.contract import AdapterContract

        class TestIt(AdapterContract):
            name = "toy"
            bad_request = {"scene": "overflow"}

            @pytest.fixture
            def make_target(self):
                def double(value):
                    return value * 2
                return lambda: toyframe.Network(first=double, second=np.sqrt)

            def run_step(self, target):
                return target(np.arange(6, dtype=np.float32))
        """
    )
    pytester.syspathinsert()
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")
    failed = {line.split("::test_")[1].split(" ")[0] for line in result.outlines if line.startswith("FAILED")}
    assert all(any(name.startswith(part) for name in failed) for part in expected), f"failed only: {sorted(failed)}"
