"""Find the operators that overflowed, in real captures of PyTorch."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import ascend_dump
from ascend_dump.analysis.overflow import ANSWERS, OverflowReport, find_overflows
from ascend_dump.cli import Exit, main
from ascend_dump.native.cann.dump_file import tensor_of, write

torch: Any = pytest.importorskip("torch")

SETTINGS = [
    {"scene": "overflow"},
    {"data": "tensor", "mode": "all"},
    {"data": "full", "mode": "all"},
    {"data": "stats", "mode": "all"},
]


def masked_row() -> None:
    scores = torch.zeros(2, 4) + 1.0
    mask = torch.tensor([[True] * 4, [False] * 4])
    torch.softmax(scores.masked_fill(mask, float("-inf")), -1) * 2


def too_large() -> None:
    torch.exp(torch.full((3,), 100.0) * 10) + 1


def inf_minus_inf() -> None:
    big = torch.exp(torch.full((2,), 1000.0))
    big - big


def healthy_attention() -> None:
    scores = torch.randn(4, 4)
    mask = torch.triu(torch.full((4, 4), float("-inf")), diagonal=1)
    torch.softmax(scores + mask, -1) @ torch.randn(4, 4)
    torch.softmax(scores.masked_fill(torch.eye(4, dtype=torch.bool), float("-inf")), -1) @ torch.randn(4, 4)


def from_outside(value: float) -> Callable[[], Any]:
    layer = torch.nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight[0, 1] = value
    return lambda: layer(torch.ones(2, 3))


def captured(path: Path, run: Callable[[], Any], **settings: Any) -> OverflowReport:
    with ascend_dump.capture(path=path, framework="torch", **settings) as cap, torch.no_grad():
        run()
    return find_overflows(ascend_dump.open(cap.path))


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: next(iter(one.values())))
class TestWhatCapturesOfPyTorchTell:
    def test_finite_inputs_and_a_value_that_is_not(self, tmp_path: Path, settings: dict[str, Any]) -> None:
        report = captured(tmp_path, too_large, **settings)
        assert report.answer == "origin"
        assert report.overflows[0].record.op_type == "aten::exp"
        assert len(report.overflows) == 1

    def test_a_row_that_is_masked_as_a_whole(self, tmp_path: Path, settings: dict[str, Any]) -> None:
        report = captured(tmp_path, masked_row, **settings)
        assert report.answer == "nan-made"
        assert report.overflows[0].record.op_type == "aten::_softmax"

    def test_inf_minus_inf(self, tmp_path: Path, settings: dict[str, Any]) -> None:
        report = captured(tmp_path, inf_minus_inf, **settings)
        assert [(one.kind, one.record.op_type) for one in report.overflows] == [
            ("origin", "aten::exp"),
            ("nan-made", "aten::sub"),
        ]

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_a_weight_that_is_wrong(self, tmp_path: Path, settings: dict[str, Any], value: float) -> None:
        report = captured(tmp_path, from_outside(value), **settings)
        assert report.answer == "outside"
        [one] = report.overflows
        assert one.record.io == "input"
        assert "a parameter or a buffer of the model" in (one.source or "")

    def test_a_healthy_mask_is_no_overflow(self, tmp_path: Path, settings: dict[str, Any]) -> None:
        report = captured(tmp_path, healthy_attention, **settings)
        assert (report.answer, report.overflows, report.reasons) == ("none", (), ())


def test_what_only_carries_it_on_is_counted(tmp_path: Path) -> None:
    def run() -> None:
        value = torch.exp(torch.full((2,), 1000.0))
        for _ in range(5):
            value = value * 2

    report = captured(tmp_path, run, mode="all")
    assert (report.answer, len(report.overflows), report.followed) == ("origin", 1, 5)


def test_outputs_alone_do_not_tell_who_made_it(tmp_path: Path) -> None:
    report = captured(tmp_path, too_large, mode="output")
    assert report.answer == "outside"
    assert "mode='all'" in (report.overflows[0].source or "")


def test_a_batch_with_nan_in_a_dump_of_inputs(tmp_path: Path) -> None:
    report = captured(tmp_path, lambda: torch.ones(2).add(float("nan")).mul(2), mode="input")
    assert report.answer == "outside"
    assert report.overflows[0].record.io == "input"


NAN = float("nan")


@pytest.mark.parametrize("settings", [{}, {"scene": "overflow"}, {"mode": "output"}], ids=str)
@pytest.mark.parametrize(
    ("run", "answer", "words"),
    [
        (lambda: torch.full((3,), NAN) * 2, "outside", "has no tensor inputs: the program gave it fill_value=nan"),
        (lambda: torch.logspace(0, 100, 3) * 2, "origin", "it has no tensor inputs: it made the value itself"),
    ],
    ids=["given", "made"],
)
def test_an_operator_without_tensor_inputs(
    tmp_path: Path, settings: dict[str, Any], run: Callable[[], Any], answer: str, words: str
) -> None:
    report = captured(tmp_path, run, **settings)
    assert (report.answer, len(report.overflows)) == (answer, 1)
    assert words in report.overflows[0].words[0]
    assert "mode='all'" not in report.overflows[0].words[0]


def test_a_number_that_the_program_gave_is_told(tmp_path: Path) -> None:
    report = captured(tmp_path / "scalar", lambda: torch.ones(2) * NAN)
    assert (report.answer, report.overflows[0].words[1]) == ("origin", "the program gave it other=nan")
    for mode in ("all", "output"):
        report = captured(tmp_path / mode, lambda: torch.tensor([1.0, NAN]) * 2, mode=mode)
        assert report.answer == "outside"
        assert report.overflows[0].source == ("lift_fresh_0 is a constant of the program, as in torch.tensor(...)")


def test_steps_that_were_watched_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(4, 2)
    with ascend_dump.capture(model, path=tmp_path, scene="overflow", quiet=True):
        for _ in range(3):
            model(torch.ones(2, 4))
    words = "3 steps were watched, and no operator made NaN or Inf\n"
    assert main(["overflow", str(tmp_path)]) == Exit.OK
    assert capsys.readouterr().out == f"no overflow: {words}"
    assert main(["triage", str(tmp_path)]) == Exit.OK
    assert capsys.readouterr().out == words


@pytest.mark.parametrize(
    ("state", "pid", "answer"), [("complete", 1, "none"), ("running", 2**22 + 1, "unchecked"), (None, 1, "unchecked")]
)
def test_a_run_without_a_record(tmp_path: Path, state: str, pid: int, answer: str) -> None:
    manifest = {
        "schema": "ascend-dump/capture/1", "state": state, "scene": "overflow", "pid": pid,
        "host": socket.gethostname(),
    }  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    report = ascend_dump.overflow(tmp_path)
    assert report.answer == answer
    assert bool(report.reasons) is (answer == "unchecked")


def put(path: Path, name: str, *tensors: tuple[str, Any]) -> None:
    made = [tensor_of(io, 0, np.asarray(values), address=1) for io, values in tensors]
    write(path / name, made, op_name=name.split(".")[1], dump_time=0)


def test_a_dump_of_a_device_is_judged_by_its_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "Add.a.1.2.1589195081588018", ("input", np.ones(2, "f4")), ("output", np.ones(2, "f4")))
    assert main(["overflow", str(tmp_path)]) == Exit.OK
    inf = np.array([np.inf, 1], "f4")
    put(tmp_path, "Exp.b.2.2.1589195081588020", ("input", np.ones(2, "f4")), ("output", inf))
    put(tmp_path, "Exp.b.3.2.1589195081588022", ("input", inf), ("output", inf))
    capsys.readouterr()
    assert main(["overflow", str(tmp_path), "--json"]) == Exit.DIFFERENT
    document = json.loads(capsys.readouterr().out)
    assert document["answer"] == "origin"
    assert [(one["kind"], one["operator"]["op_name"]) for one in document["overflows"]] == [("origin", "b")]
    assert document["followed"] == 1


def test_what_cannot_be_read_is_not_taken_for_finite(tmp_path: Path) -> None:
    put(tmp_path, "Add.a.1.2.1589195081588018", ("input", np.ones(2, "f4")), ("output", np.ones(2, "f4")))
    (tmp_path / "Add.b.1.2.1589195081588019").write_bytes(b"")
    report = find_overflows(ascend_dump.open(tmp_path))
    assert (report.answer, report.operators) == ("unchecked", 2)
    assert report.reasons == ("1 record cannot be read",)
    assert report.answer in ANSWERS


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.second(torch.relu(self.first(x)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_of_modules_the_innermost_one_is_told(tmp_path: Path, value: float) -> None:
    """The modules around it only follow, as do their gradients, and all modules after an update by these."""
    network = torch.nn.Sequential(Block(), Block())
    with torch.no_grad():
        network[1].first.weight[0, 1] = value
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with ascend_dump.capture(network, path=tmp_path, level="module", quiet=True) as cap:
        for _ in range(2):
            optimizer.zero_grad()
            network(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    report = find_overflows(cap.dump())
    assert [(one.record.op_name, one.record.step) for one in report.overflows] == [("1.first/forward_0", 0)]
    assert "records neither parameters nor the functions between modules" in report.overflows[0].words[-1]
    assert report.followed > 4
    found = ascend_dump.triage(cap.dump())
    assert [one.op_name for one in found.suspects if one.rule == "non-finite"] == ["1.first/forward_0"]
    assert found.next is not None
    assert found.next.layers[0] == "1.first"
    assert found.next.level != "module"
