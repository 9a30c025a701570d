"""The program that lets kernels fail agrees with the simulated device, and refutes one that dumps them otherwise."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any, Callable

import pytest

from ascend_dump import fakes

# Private: a probe has to refute a device that is otherwise.
from ascend_dump.fakes.device._service import DumpService
from ascend_dump.fakes.device.npu import Npu
from ascend_dump.native.cann.names import DumpName
from ascend_dump.selftest import probes_exceptions, program
from ascend_dump.selftest.evidence import FAILED, Evidence
from ascend_dump.selftest.probes import PROBES, run_probes

pytest.importorskip("torch")

PROGRAM = Path(program.__file__).with_name("programs") / "failing_kernel.py"
QUESTIONS = {
    "exception_names": ("initial", "collected"),
    "exception_first": ("initial", "later"),
    "exception_environment": ("collected", "scene"),
    "initial_config": ("initial", "chosen"),
}
VARIABLES = ("NPU_COLLECT_PATH", "ASCEND_DUMP_SCENE", "ASCEND_DUMP_PATH", "TORCH_ACL_INIT_CONFIG_PATH")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Asks each question of a device of its own."""

    def ask(*questions: str) -> dict[str, Any]:
        facts: dict[str, Any] = {FAILED: {}}
        for question in questions:
            place = tmp_path / question
            place.mkdir()
            with monkeypatch.context() as patch:
                patch.chdir(place)
                for name in VARIABLES:
                    patch.setenv(name, "")
                    patch.delenv(name)
                with fakes.install("torch_npu"):
                    found = runpy.run_path(str(PROGRAM))["ask"](question, place)
            facts[FAILED].update(found.pop(FAILED))
            facts.update(found)
        return facts

    return ask


def states(facts: dict[str, Any]) -> dict[str, str]:
    found = run_probes(Evidence(device=0, began=0, ended=1, facts=facts))
    return {name: one.state for name, one in found.items() if one.state != "unknown"}


def test_the_simulated_device_is_as_assumed(asked: Callable[..., dict[str, Any]]) -> None:
    facts = asked("initial", "later", "collected", "scene", "chosen")
    assert facts[FAILED] == {}
    assert states(facts) == dict.fromkeys(QUESTIONS, "confirmed")
    assert set(probes_exceptions.PROBES) == set(QUESTIONS)


def as_a_normal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A brief dump is named with the operator, as a normal one."""
    monkeypatch.setattr(
        "ascend_dump.fakes.device._files.build_name",
        lambda name: f"{name.op_type}.{name.op_name}.{name.task_id}.{name.timestamp}",
    )


def milliseconds_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(name: DumpName) -> str:
        return f"{name.op_type}.{name.op_name}.{name.task_id}.{name.timestamp // 1000}.{name.timestamp % 1000}"

    monkeypatch.setattr("ascend_dump.fakes.device._files.build_name", build)


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_dump.fakes.device._files.EXCEPTION_DIRECTORY", ("extra-info", "exception"))


def last_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Npu._take

    def take(self: Npu, answer: Any) -> int:
        self._exception, self._looked = None, True
        return real(self, answer)

    monkeypatch.setattr(Npu, "_take", take)


def second_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Npu._take

    def take(self: Npu, answer: Any) -> int:
        return 500000 if answer.exception and self._exception is not None else real(self, answer)

    monkeypatch.setattr(Npu, "_take", take)


def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_dump.fakes.device.npu.read_environment", lambda env, cwd: None)


def no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ascend_dump.fakes.torch_npu._process.TorchNpuRuntime._init_config",
        lambda self: str(Path("initial.json").resolve()) if Path("initial.json").is_file() else "",
    )


def own_file_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_dump.fakes.torch_npu._process.INIT_CONFIG", "ANOTHER_VARIABLE")


def by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is named without its API call."""
    real = DumpService.report_failure

    def report(self: DumpService, call: Any, exception: Any) -> None:
        real(self, call._replace(node=call.node._replace(type=call.node.name)), exception)

    monkeypatch.setattr(DumpService, "report_failure", report)


@pytest.mark.parametrize(
    ("name", "otherwise"),
    [
        ("exception_names", as_a_normal_one),
        ("exception_names", by_the_kernel),
        ("exception_names", milliseconds_apart),
        ("exception_names", elsewhere),
        ("exception_first", last_wins),
        ("exception_first", second_refused),
        ("exception_environment", no_variables),
        ("initial_config", no_default),
        ("initial_config", own_file_only),
    ],
)
def test_a_device_that_is_otherwise_refutes(
    monkeypatch: pytest.MonkeyPatch,
    asked: Callable[..., dict[str, Any]],
    name: str,
    otherwise: Callable[[pytest.MonkeyPatch], None],
) -> None:
    otherwise(monkeypatch)
    facts = asked(*QUESTIONS[name])
    assert states(facts).get(name) == "refuted", facts


def test_a_device_that_dumps_no_exceptions_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, asked: Callable[..., dict[str, Any]]
) -> None:
    monkeypatch.setattr("ascend_dump.fakes.device._service.exception_file", lambda *arguments: None)
    assert states(asked("initial", "later", "collected", "scene", "chosen")) == {}


def test_a_dump_behind_none_is_not_the_second_one() -> None:
    later = {"refused": "", "first": [], "later": ["extra-info/data-dump/0/Add.add.1.20260101000000000"]}
    assert states({"failed_initial": [], "failed_later": later}) == {}


def test_a_kernel_that_does_not_fail_is_told(
    monkeypatch: pytest.MonkeyPatch, asked: Callable[..., dict[str, Any]]
) -> None:
    monkeypatch.setattr("torch.nn.functional.embedding", lambda index, weight: weight)  # a device that clamps indices
    facts = asked("initial")
    found = PROBES["exception_names"](Evidence(device=0, began=0, ended=1, facts=facts))
    assert (found.state, "did not let the kernel fail" in found.seen) == ("unknown", True)
