"""The program that gives GE options of its own agrees with the simulated device, and refutes one that is otherwise."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
from other_engines import OTHER_ENGINES, PatchEngine, steps_read_strictly, unchecked_steps
from torchair_helpers import simulated_torchair

from ascend_dump.fakes.device.npu import Npu
from ascend_dump.selftest import probes_engine, program
from ascend_dump.selftest.evidence import FAILED, Evidence
from ascend_dump.selftest.probes import PROBES, run_probes

pytest.importorskip("torch")

PROGRAM = Path(program.__file__).with_name("programs") / "engine_options.py"
NAMES = set(probes_engine.PROBES)
#: The question that answers a probe, where it is not of its name.
QUESTIONS = {
    "debug_without_mode": "detected",
    "overflow_modes": "detected",
    "overflow_of_conversion": "conversion_status",
}


def states(facts: dict[str, Any]) -> dict[str, str]:
    found = run_probes(Evidence(device=0, began=0, ended=1, facts=facts))
    return {name: one.state for name, one in found.items() if one.state != "unknown"}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], dict[str, Any]]]:
    monkeypatch.chdir(tmp_path)
    with simulated_torchair():
        yield lambda name: runpy.run_path(str(PROGRAM))[name](tmp_path)


def test_the_simulated_engine_is_as_assumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with simulated_torchair():
        facts = runpy.run_path(str(PROGRAM))["ask"](tmp_path)
    assert states(facts) == dict.fromkeys(NAMES - {"steps_on_the_device"}, "confirmed")
    assert list(facts[FAILED]) == ["steps_on_the_device"]
    seen = PROBES["steps_on_the_device"](Evidence(device=0, began=0, ended=1, facts=facts)).seen
    assert "GE itself refuses" in seen


@pytest.mark.parametrize(("name", "otherwise"), OTHER_ENGINES)
def test_an_engine_that_is_otherwise_refutes(
    monkeypatch: pytest.MonkeyPatch, asked: Callable[[str], Any], name: str, otherwise: PatchEngine
) -> None:
    otherwise(monkeypatch)
    question = QUESTIONS.get(name, name)
    facts = {question: asked(question), "soc": "Ascend910B"}
    assert states(facts).get(name) == "refuted", facts


def test_every_probe_is_refuted_here() -> None:
    assert {name for name, _ in OTHER_ENGINES} == NAMES - {"steps_on_the_device"}


def test_an_engine_that_does_not_check_steps_shows_how_the_device_reads_them(
    monkeypatch: pytest.MonkeyPatch, asked: Callable[[str], Any], tmp_path: Path
) -> None:
    unchecked_steps(monkeypatch)
    facts = {"steps_on_the_device": asked("steps_on_the_device")}
    assert facts["steps_on_the_device"].keys() == {"3-1", "1||3", " 2 "}
    assert states(facts) == {"steps_on_the_device": "confirmed"}
    steps_read_strictly(monkeypatch)
    (tmp_path / "otherwise").mkdir()
    found = runpy.run_path(str(PROGRAM))["steps_on_the_device"](tmp_path / "otherwise")
    assert states({"steps_on_the_device": found}) == {"steps_on_the_device": "refuted"}


@pytest.mark.parametrize("soc", [None, "Ascend310P3", "Ascend950"])
def test_a_device_that_may_have_other_modes_tells_nothing_of_them(soc: object) -> None:
    facts = {"detected": {"all": 1, "": 0, "aicore_overflow": 1, "atomic_overflow": 0}, "soc": soc}
    assert states(facts) == {"debug_without_mode": "confirmed"}


def test_a_conversion_without_a_record_tells_nothing() -> None:
    assert states({"conversion_status": []}) == {}


def test_an_engine_that_cannot_be_opened_again_answers_nothing(
    monkeypatch: pytest.MonkeyPatch, asked: Callable[[str], Any]
) -> None:
    refused: list[int] = []
    real = Npu.arm_ge

    def arm_ge(self: Npu, options: Any, **others: Any) -> int:
        refused.append(real(self, options, **others))
        return min(refused)

    monkeypatch.setattr(Npu, "arm_ge", arm_ge)
    with pytest.raises(LookupError, match="cannot be opened again"):
        asked("symlink")
