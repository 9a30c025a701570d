"""Overflow detection by the adapter `torch_npu`: its switch is read at the first operator of a process and stays."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from findings import findings

torch = pytest.importorskip("torch")

import ascend_dump  # noqa: E402
from ascend_dump import fakes  # noqa: E402
from ascend_dump.analysis.overflow import find_overflows  # noqa: E402
from ascend_dump.cli import Exit, main  # noqa: E402

SATURATION = "INF_NAN_MODE_FORCE_DISABLE"


@pytest.fixture
def npu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("ACL_DUMP_DATA", "TORCH_ACL_INIT_CONFIG_PATH", "INF_NAN_MODE_ENABLE", SATURATION):
        monkeypatch.delenv(name, raising=False)
    with fakes.install("torch_npu") as device:
        yield device


@pytest.fixture
def saturating(npu, monkeypatch):
    monkeypatch.setenv(SATURATION, "1")
    return npu


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, value: Any) -> Any:
        return (self.weight * value).half() * 2


def make() -> Any:
    """A model on the NPU: it is initialised, and no operator has run."""
    return Scale().npu()


def x(value: float = 1) -> Any:
    return torch.full((4,), value).npu()


def capture(target: Any = None, **settings: Any) -> Any:
    return ascend_dump.capture(target, **{"framework": "torch_npu", "path": "dumps", "scene": "overflow", **settings})


def first_operator() -> None:
    torch.ones(1).npu() + 1


def overflows(cap: Any) -> list[tuple[Any, str, Any]]:
    found = find_overflows(cap.dump()).overflows
    return [(overflow.record.step, overflow.record.op_type, overflow.record.kernel) for overflow in found]


def run(model: Any, *values: float) -> None:
    for value in values:
        model(x(value)).cpu()


def step_directories(cap: Any) -> list[str]:
    return sorted(path.name for path in cap.path.iterdir() if path.is_dir())


def test_the_kernel_that_overflows_is_dumped_and_those_that_pass_inf_on(npu):
    model = make()
    with capture(model, steps="0-2", strict=True) as cap:
        run(model, 1, 1e5, 1)
    # 1e5 is finite in float32 and Inf in float16.
    assert overflows(cap) == [(1, "aclnnCast", "CastAiCore"), (1, "aclnnMuls", "Muls")]
    assert {record.io for record in cap.dump()} == {"input", "output"}
    assert not [record for record in cap.dump() if record.op_type == "Opdebug"]
    assert step_directories(cap) == ["0", "1", "2"]


def test_in_saturation_mode_the_file_is_the_finding(saturating):
    model = make()
    with capture(model, steps="0-1", strict=True) as cap:
        run(model, 1, 1e5)
    assert overflows(cap) == [(1, "aclnnCast", "CastAiCore"), (1, "aclnnMuls", "Muls")]
    assert [record.numpy().max() for record in cap.dump().select(io="output")] == [65504, 65504]
    [first, _] = find_overflows(cap.dump()).overflows
    assert "its values are finite: the device saturates instead of making Inf" in first.words


def test_no_overflow_is_a_good_result(npu):
    model = make()
    with capture(model, steps="0", strict=True) as cap:
        run(model, 1)
    assert len(cap.dump()) == 0
    for path in (cap.path, cap.request.path):
        assert main(["overflow", str(path)]) == Exit.OK


@pytest.mark.parametrize("steps", ["0", "2", None])
def test_a_capture_after_the_first_operator_is_refused(npu, steps):
    model = make()
    first_operator()
    with pytest.raises(ascend_dump.CaptureError, match="reads its switch at the first operator") as refused:
        capture(model, steps=steps).start()
    assert refused.value.code == "AD257"
    assert npu.dump_root is None
    assert not list(Path("dumps").rglob("*_L0*")), "the overflow that tried it"
    with ascend_dump.capture(model, path="plain", steps="0", strict=True) as plain:
        run(model, 1)
    assert len(plain.dump())


def test_in_saturation_mode_it_is_told_before_and_after(saturating, caplog):
    model = make()
    first_operator()
    with caplog.at_level(logging.WARNING, "ascend_dump"), capture(model, steps="0", strict=True) as cap:
        run(model, 1e5)
    assert [problem.code for problem in cap.problems if "AD257" in problem.code] == ["AD257"]
    assert "no overflow was recorded: either there was none, or detection was off" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "ascend_dump"), capture(scene=None, steps="0"):
        x().relu()
    assert "AD257" not in caplog.text


def test_the_npu_is_initialised_with_the_detection_on(npu):
    with capture(steps="0", strict=True) as cap:
        model = make()
        torch.zeros(2, device="npu")
        run(model, 1e5)
    assert [kernel for _, _, kernel in overflows(cap)] == ["CastAiCore", "Muls"]


@pytest.mark.parametrize("environment", [{}, {SATURATION: "1"}])
@pytest.mark.parametrize("steps", ["1", "3"])
def test_steps_that_are_not_selected_leave_nothing(npu, monkeypatch, environment, steps):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    model = make()
    with capture(model, steps=steps, strict=True) as cap:
        run(model, 1e5, 1e5, 1e5, 1e5, 1e5)
    assert {step for step, _, _ in overflows(cap)} == {int(steps)}
    assert step_directories(cap) == [steps]


def test_captures_can_follow_each_other(npu):
    model = make()
    for number in range(2):
        with capture(model, steps="0", path=f"dumps{number}", strict=True) as cap:
            run(model, 1e5)
        assert len(overflows(cap)) == 2


def test_nothing_is_tried_while_a_graph_is_captured(npu):
    import torch_npu

    model = make()
    graph = torch_npu.npu.NPUGraph()
    with torch_npu.npu.graph(graph), pytest.raises(ascend_dump.CaptureError, match="the capture began while") as told:
        capture(model).start()
    assert told.value.code == "AD269"


# What it says beforehand.


def problems(**settings: Any) -> dict[str, str]:
    found = findings("torch_npu", ascend_dump.DumpRequest(path="dumps", scene="overflow", **settings), None)
    return {problem.code: problem.message for problem in found}


@pytest.mark.parametrize(
    ("environment", "initialised", "modes"),
    [
        ({}, True, {"INF_NAN"}),
        ({SATURATION: "1"}, True, {"saturation"}),
        ({}, False, {"INF_NAN", "saturation"}),
        ({SATURATION: "1"}, False, {"saturation"}),
        ({"INF_NAN_MODE_ENABLE": "0"}, False, {"saturation"}),
    ],
)
def test_the_cost_and_the_mode_are_told(npu, monkeypatch, environment, initialised, modes):
    import torch_npu

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if initialised:
        torch_npu.npu.init()
    found = problems()
    assert ("AD257" in found) is (initialised and modes == {"saturation"})
    assert "every kernel of this process waits for its stream" in found["AD258"]
    assert {mode for mode in ("INF_NAN", "saturation") if f"in {mode} mode" in found["AD258"]} == modes


def test_a_torch_npu_that_does_not_tell_its_mode_is_told(npu, monkeypatch):
    import torch_npu

    torch_npu.npu.init()
    monkeypatch.delattr(torch_npu.npu.utils, "is_support_inf_nan")
    assert "AD257" in problems()


def test_a_running_program_cannot_be_attached_to(npu):
    from ascend_dump_torch_npu import TorchNpuAdapter

    for scene in ("overflow", "exception"):
        with pytest.raises(ascend_dump.NotSupported, match="this program runs already"):
            TorchNpuAdapter().may_attach(ascend_dump.DumpRequest(path="dumps", scene=scene))
    TorchNpuAdapter().may_attach(ascend_dump.DumpRequest(path="dumps"))


def test_the_environment_is_left_as_it_was(npu):
    before = dict(os.environ)
    with capture(steps="0"):
        run(make(), 1)
    assert dict(os.environ) == before
