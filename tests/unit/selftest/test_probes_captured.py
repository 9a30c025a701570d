"""The program that captures graphs agrees with the simulated device, and refutes one that dumps them otherwise."""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path
from typing import Any, Callable

import pytest
from other_devices import capture_every_dump

from ascend_dump import fakes

# Private: a probe has to refute a device that is otherwise.
from ascend_dump.fakes.device._api_calls import ApiCall, ApiReports, CapturedReports
from ascend_dump.native.cann.dump_file import write
from ascend_dump.native.cann.names import DumpName
from ascend_dump.selftest import probes_captured, program
from ascend_dump.selftest.evidence import FAILED, Evidence

pytest.importorskip("torch")

PROGRAM = Path(program.__file__).with_name("programs") / "captured_graph.py"
NAMES = set(probes_captured.PROBES)
CALLS = "ascend_dump.fakes.device._api_calls"
#: Of another program: overflow detection is on, and finds nothing in a graph.
DETECTED = {"files": [{"name": "aclnnMuls_0_L0.Muls.1.0.1795692975419043"}], "captured": 0}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    def ask() -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        with fakes.install("torch_npu", environ={}):
            facts: dict[str, Any] = runpy.run_path(str(PROGRAM))["ask"](tmp_path)
        return {**facts, "detected_early": DETECTED}

    return ask


def states(facts: dict[str, Any]) -> dict[str, str]:
    evidence = Evidence(device=0, began=0, ended=1, facts=facts)
    found = {name: probe(evidence).state for name, probe in probes_captured.PROBES.items()}
    return {name: state for name, state in found.items() if state != "unknown"}


def test_the_simulated_device_is_as_assumed(asked: Callable[[], dict[str, Any]]) -> None:
    facts = asked()
    assert facts[FAILED] == {}
    assert states(facts) == dict.fromkeys(NAMES, "confirmed")


def without_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{CALLS}.DumpName", lambda form, *others: DumpName("device", *others))


def one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ApiReports.capture

    def capture(self: ApiReports, *arguments: Any, **others: Any) -> CapturedReports:
        self._dump_numbers = itertools.repeat(0)
        return real(self, *arguments, **others)

    monkeypatch.setattr(ApiReports, "capture", capture)


def a_file_for_each_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are named anew each time."""
    real = ApiReports.replay

    def replay(self: ApiReports, captured: CapturedReports, call: Any, arming: Any) -> None:
        real(self, self.capture(call, arming, stream=0), call, arming)

    monkeypatch.setattr(ApiReports, "replay", replay)


def without_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = ApiCall.reports
    monkeypatch.setattr(ApiCall, "reports", lambda self: [one for one in reports(self) if one.kernel is not None])


def replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_anew(path: Any, tensors: Any, *, append: bool, **header: Any) -> None:
        write(path, tensors, **header)

    monkeypatch.setattr("ascend_dump.fakes.device.disk.write", write_anew)


def every_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ApiReports, "capture", capture_every_dump)


def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_dump.fakes.torch_npu._process.TorchNpuRuntime.synchronize", lambda self: None)


@pytest.mark.parametrize(
    ("name", "otherwise"),
    [
        ("captured_name", without_a_number),
        ("captured_files", one_number),
        ("captured_files", without_the_call),
        ("append", replaces),
        ("append", a_file_for_each_replay),
        ("captured_scenes", every_dump),
        ("capturing", waits),
    ],
)
def test_a_device_that_is_otherwise_refutes(
    monkeypatch: pytest.MonkeyPatch,
    asked: Callable[[], dict[str, Any]],
    name: str,
    otherwise: Callable[[pytest.MonkeyPatch], None],
) -> None:
    otherwise(monkeypatch)
    assert states(asked()).get(name) == "refuted"


def test_two_files_of_one_side_of_a_kernel_refute_the_name() -> None:
    file = {"bytes": 10, "record": 5}
    names = ("aclnnMul_1_L0.MulAiCore.0.1.0.1795450593208843", "aclnnMul_1_L0.MulAiCore.1.1.0.1795450593208999")
    sides = [["input"], ["output"]]
    apart = [{"name": name, "sides": side, **file} for name, side in zip(names, sides)]
    assert states({"captured": apart})["captured_name"] == "confirmed"
    again = [{"name": name, "sides": sides[0], **file} for name in names]
    assert states({"captured": again})["captured_name"] == "refuted"


def test_an_overflow_in_a_graph_refutes(asked: Callable[[], dict[str, Any]]) -> None:
    facts = asked()
    assert states({**facts, "detected_early": {**DETECTED, "captured": 1}})["captured_scenes"] == "refuted"
    # Nor is anything known without an overflow outside of a graph.
    assert "captured_scenes" not in states({**facts, "detected_early": {**DETECTED, "files": []}})


def test_a_device_that_dumps_nothing_tells_nothing_of_dumps(
    monkeypatch: pytest.MonkeyPatch, asked: Callable[[], dict[str, Any]]
) -> None:
    monkeypatch.setattr("ascend_dump.fakes.device.disk.Disk.write_dump", lambda *arguments, **others: None)
    assert states(asked()) == {"capturing": "confirmed"}
