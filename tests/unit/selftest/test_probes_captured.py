"""The program that captures graphs agrees with the simulated device, and refutes one that dumps them otherwise."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any, Callable

import pytest
from other_devices import capture_every_dump

from ascend_dump import fakes
from ascend_dump.fakes.device.npu import Npu
from ascend_dump.native.cann.dump_file import write
from ascend_dump.native.cann.names import DumpName
from ascend_dump.selftest import probes_captured, program
from ascend_dump.selftest.evidence import FAILED, Evidence
from ascend_dump.selftest.probes import run_probes

pytest.importorskip("torch")

PROGRAM = Path(program.__file__).with_name("programs") / "captured_graph.py"
NAMES = set(probes_captured.PROBES)
SERVICE = "ascend_dump.fakes.device._service"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    def ask() -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        with fakes.install("torch_npu", environ={}):
            facts: dict[str, Any] = runpy.run_path(str(PROGRAM))["ask"](tmp_path)
        return facts

    return ask


def states(facts: dict[str, Any]) -> dict[str, str]:
    found = run_probes(Evidence(device=0, began=0, ended=1, facts=facts))
    return {name: one.state for name, one in found.items() if one.state != "unknown"}


def test_the_simulated_device_is_as_assumed(asked: Callable[[], dict[str, Any]]) -> None:
    facts = asked()
    assert facts[FAILED] == {}
    assert states(facts) == dict.fromkeys(NAMES, "confirmed")


def without_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{SERVICE}.DumpName", lambda form, *others: DumpName("device", *others))


def a_file_for_each_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is settled anew each time, with a number of its own."""
    real, replays = Npu.run_op, []

    def run_op(self: Npu, *arguments: Any, captured: str = "", **others: Any) -> None:
        replays.append(captured)
        real(self, *arguments, captured=captured and f"{captured}, {len(replays)}", **others)

    monkeypatch.setattr(Npu, "run_op", run_op)


def replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_anew(path: Any, tensors: Any, *, append: bool, **header: Any) -> None:
        write(path, tensors, **header)

    monkeypatch.setattr("ascend_dump.fakes.device.disk.write", write_anew)


def every_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{SERVICE}.DumpService.capture", capture_every_dump)


def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_dump.fakes.torch_npu._process.TorchNpuRuntime.synchronize", lambda self: None)


@pytest.mark.parametrize(
    ("name", "otherwise"),
    [
        ("captured_name", without_a_number),
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


def test_two_files_of_one_kernel_refute_the_name() -> None:
    file = {"bytes": 10, "record": 5}
    names = ("Mul.mul.0.1.0.1795450593208843", "Mul.mul.1.1.0.1795450593208999")
    assert states({"captured": [{"name": names[0], **file}]})["captured_name"] == "confirmed"
    assert states({"captured": [{"name": name, **file} for name in names]})["captured_name"] == "refuted"


def test_a_device_that_dumps_nothing_tells_nothing_of_dumps(
    monkeypatch: pytest.MonkeyPatch, asked: Callable[[], dict[str, Any]]
) -> None:
    monkeypatch.setattr(f"{SERVICE}.operator_file", lambda *arguments, **others: None)
    assert states(asked()) == {"capturing": "confirmed"}
