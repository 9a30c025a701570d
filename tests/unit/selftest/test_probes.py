"""Each probe agrees with the simulated device, and refutes what it is made to refute."""

from __future__ import annotations

import dataclasses
import os
import runpy
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from other_devices import write_empty_operators
from test_probes_offline import OF_DUMPS, OF_INIT

import ascend_dump
from ascend_dump import fakes
from ascend_dump.native.cann.dump_file import tensor_of, write
from ascend_dump.selftest import probes_captured, probes_engine, probes_exceptions, probes_frameworks, program
from ascend_dump.selftest.assumptions import Outcome
from ascend_dump.selftest.evidence import Evidence
from ascend_dump.selftest.probes import PROBES, run_probes

torch = pytest.importorskip("torch")

PROGRAMS = Path(program.__file__).with_name("programs")

OF_FILES = [
    "file_names",
    "time_directory",
    "device_directory",
    "header_time",
    "header_version",
    "payload_order",
    "one_header_in_a_file",
    "dtype_numbers",
    "file_modes",
    "statistics_header",
    "statistics_numbers",
    "kernel_names",
    "kernels_per_operator",
    "no_model_levels",
    "kernels_in_their_step",
    "overflow_file",
    "overflow_task",
    "overflow_payload",
    "overflow_operator",
    "overflow_found",
    "overflow_status",
]
OF_FACTS = {
    "init_dump_twice": 100002,
    "set_dump_first": 100045,
    "missing_file": 100003,
    "deep_file": 100006,
    "refused_file": 100009,
    "empty_file": 0,
    "set_after_refusal": 0,
    "begin_again": True,
    "set_again": {"first": False, "second": True},
    "nothing_asked": True,
    "single_operators": True,
    "kernel_level": {"op": False, "kernel": True},
    "checked_interface": True,
    "waiting_interface": True,
    "graphs_again": True,
    "empty_operator": {"empty": False, "other": True},
}
OF_GRAPHS = ("graph_levels", "graph_steps", "rank_directory")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    """Steps 0 and 2 of three of a network of one product, on the simulated device."""
    root = tmp_path_factory.mktemp("probes")
    began = time.time()
    inputs: dict[int, Any] = {}
    outputs: dict[int, Any] = {}
    with fakes.install("torch_npu", environ={}) as npu:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3).npu()
        roots = {}
        for data in ("tensor", "stats"):
            with ascend_dump.capture(model, steps="0|2", path=root / data, mode="all", data=data) as cap:
                for step in range(3):
                    x = torch.full((2, 4), float(step + 1))
                    y = model(x.npu()).detach().cpu()
                    inputs[step], outputs[step] = [x.numpy()], [y.numpy()]
            roots[data] = cap.path
        with ascend_dump.capture(path=root / "overflow", scene="overflow") as cap:
            torch.full((4,), 1e30).npu() * 1e30
        yield Evidence(
            device=npu.device_id,
            began=began,
            ended=time.time(),
            tensors=roots["tensor"],
            statistics=roots["stats"],
            overflow=cap.path,
            eager=True,
            steps=(0, 2),
            inputs=inputs,
            outputs=outputs,
            facts={"soc": npu.soc, "products": 1, **OF_FACTS},
        )


@pytest.fixture
def copied(recorded: Evidence, tmp_path: Path) -> Evidence:
    """The same, to be spoilt."""
    roots = {}
    for name in ("tensors", "statistics", "overflow"):
        roots[name] = tmp_path / name
        shutil.copytree(getattr(recorded, name), roots[name])
    return dataclasses.replace(recorded, **roots)


@pytest.mark.parametrize("name", [*OF_FILES, *OF_FACTS])
def test_the_simulated_device_is_as_assumed(recorded: Evidence, name: str) -> None:
    found = PROBES[name](recorded)
    assert found.state == "confirmed", found


def test_every_probe_is_tried_here_or_with_its_framework() -> None:
    others = {*OF_DUMPS, *OF_INIT}
    for module in (probes_captured, probes_engine, probes_exceptions, probes_frameworks):
        others |= set(module.PROBES)
    others |= {"container", "disk_reserve", "never_dumped", "no_step_counter", "null_address"}
    others.add("overflow_of_conversion")
    assert set(PROBES) == {*OF_FILES, *OF_FACTS, *OF_GRAPHS, *others}


def test_without_evidence_nothing_is_known() -> None:
    assert {one.state for one in run_probes(Evidence(device=0, began=0, ended=1)).values()} == {"unknown"}


@pytest.mark.parametrize("name", OF_FACTS)
def test_another_answer_of_the_interface_refutes(recorded: Evidence, name: str) -> None:
    other = dataclasses.replace(recorded, facts={**recorded.facts, name: "other"})
    assert PROBES[name](other).state == "refuted"


def first(evidence: Evidence, pattern: str = "*") -> Path:
    roots = (evidence.tensors, evidence.statistics, evidence.overflow)
    return next(path for root in roots if root is not None for path in sorted(root.rglob(pattern)) if path.is_file())


def rename(pattern: str, new: Callable[[Path], Path]) -> Callable[[Evidence], None]:
    def spoil(evidence: Evidence) -> None:
        path = first(evidence, pattern)
        target = new(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)

    return spoil


def each(evidence: Evidence, change: Callable[[bytes], bytes], pattern: str = "*") -> None:
    assert evidence.tensors is not None
    assert evidence.statistics is not None
    assert evidence.overflow is not None
    for root in (evidence.tensors, evidence.statistics, evidence.overflow):
        for path in sorted(root.rglob(pattern)):
            if path.is_file():
                path.write_bytes(change(path.read_bytes()))


def swap(old: bytes, new: bytes) -> Callable[[Evidence], None]:
    return lambda evidence: each(evidence, lambda data: data.replace(old, new))


def negate_last_byte(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 0xFF])


def restamp(path: Path) -> Path:
    fields = path.name.split(".")
    return path.with_name(".".join([*fields[:-1], str(int(fields[-1]) + 1)]))


SPOILT: dict[str, Callable[[Evidence], None]] = {
    "file_names": rename("*MatMul*", lambda path: path.with_name("x")),
    "time_directory": rename("*MatMul*", lambda path: path.parents[1].with_name("20010101000000") / "0" / path.name),
    "device_directory": rename("*MatMul*", lambda path: path.parent.with_name("7") / path.name),
    "no_model_levels": rename("*MatMul*", lambda path: path.parent / "graph_1" / path.name),
    "header_time": rename("*MatMul*", restamp),
    "header_version": swap(b"2.0", b"3.0"),
    "payload_order": lambda evidence: each(evidence, negate_last_byte, "*MatMul*"),
    "one_header_in_a_file": lambda evidence: each(evidence, lambda data: data + data, "*MatMul*"),
    "file_modes": lambda evidence: os.chmod(first(evidence, "*MatMul*"), 0o644),
    "statistics_header": swap(b"Nan Count", b"NaN Count"),
    "statistics_numbers": swap(b",0,0,0\n", b",0,0,1\n"),
    "kernel_names": rename("*MatMul*", lambda path: path.with_name(path.name.replace("aclnn", "acl"))),
    "kernels_per_operator": lambda evidence: first(evidence, "*MatMul*").unlink(),
    "kernels_in_their_step": lambda evidence: each(evidence, negate_last_byte, "*MatMul*"),
    "overflow_file": rename("Opdebug*", lambda path: path.with_name(path.name.replace("Opdebug", "OpDebug"))),
    "overflow_task": rename(
        "Opdebug*", lambda path: path.with_name(path.name.replace("DumpDebug", "").replace(".0.", ".9.", 1))
    ),
    "overflow_found": lambda evidence: first(evidence, "Opdebug*").unlink(),
    "overflow_operator": lambda evidence: first(evidence, "Mul.*").unlink(),
    "overflow_payload": swap(b"\x5a\x5a\x5a\x5a", b"\x5b\x5a\x5a\x5a"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_another_behaviour_refutes(copied: Evidence, name: str) -> None:
    assert PROBES[name](copied).state == "confirmed"
    SPOILT[name](copied)
    found = PROBES[name](copied)
    assert found.state == "refuted", found


def test_a_type_by_another_number_refutes(recorded: Evidence) -> None:
    """The bytes are the same, what they are read as is not."""
    doubled = {step: [array.view(np.int32) for array in arrays] for step, arrays in recorded.outputs.items()}
    other = dataclasses.replace(recorded, outputs=doubled)
    assert PROBES["payload_order"](other).state == "confirmed"
    assert PROBES["dtype_numbers"](other).state == "refuted"


@pytest.mark.parametrize(
    ("status", "state"),
    [(0x20, "confirmed"), (0x420, "confirmed"), (0x400, "unknown"), (0x8, "refuted"), (0x100, "refuted")],
)
def test_the_status_of_an_overflow_of_floating_point(tmp_path: Path, status: int, state: str) -> None:
    with fakes.install("torch_npu", environ={}) as npu:
        npu.overflow("aclnnMul_MulAiCore_Mul", status=status)
        with ascend_dump.capture(path=tmp_path / "dumps", scene="overflow") as cap:
            torch.full((4,), 1e30).npu() * 1e30
    found = PROBES["overflow_status"](Evidence(device=0, began=0, ended=1, overflow=cap.path))
    assert found.state == state, found


def file_with_tensors(root: Path, address: int, data: bytes) -> Evidence:
    """The file of an operator whose first input has that address, and that payload for all of its 16 bytes."""
    place = root / "20260101000000" / "0"
    place.mkdir(parents=True)
    array = np.arange(4, dtype="f4")
    tensors = [tensor_of("input", index, array) for index in range(2)]
    first, second = (tensor._replace(address=each) for (tensor, _), each in zip(tensors, (address, 0x100)))
    path = place / "Add.add.1.0.1700000000000000"
    write(path, [(first, data), (second, array.tobytes())], op_name="add", dump_time=1700000000000000)
    return Evidence(device=0, began=0, ended=1, tensors=root)


def test_a_tensor_without_an_address_has_no_bytes(tmp_path: Path) -> None:
    found = [
        PROBES["null_address"](file_with_tensors(tmp_path / str(number), address, data)).state
        for number, (address, data) in enumerate([(0, b""), (0, bytes(16)), (0x200, bytes(16))])
    ]
    assert found == ["confirmed", "refuted", "unknown"]


def test_kernels_without_any_file_tell_nothing_of_empty_ones() -> None:
    nothing = Evidence(device=0, began=0, ended=1, facts={"empty_operator": {"empty": False, "other": False}})
    assert PROBES["empty_operator"](nothing).state == "unknown"


@pytest.fixture
def dumped_kernels(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """What the program notes of kernels without elements and of a conversion that overflows."""

    def ask() -> dict[str, Any]:
        with fakes.install("torch_npu", environ={}):
            module = runpy.run_path(str(PROGRAMS / "dump_interface.py"))
            dumps = module["KernelDumps"](module["torch_npu"], tmp_path)
            return {name: module[name](dumps) for name in ("empty_operator", "conversion_status")}

    return ask


OF_KERNELS = ("empty_operator", "overflow_of_conversion")


def test_the_simulated_kernels_are_as_assumed(dumped_kernels: Callable[[], dict[str, Any]]) -> None:
    evidence = Evidence(device=0, began=0, ended=1, facts=dumped_kernels())
    assert [PROBES[name](evidence).state for name in OF_KERNELS] == ["confirmed", "confirmed"]


def test_kernels_that_are_otherwise_refute(
    monkeypatch: pytest.MonkeyPatch, dumped_kernels: Callable[[], dict[str, Any]]
) -> None:
    monkeypatch.setattr("ascend_dump.fakes.device._service.operator_file", write_empty_operators)
    monkeypatch.setattr("ascend_dump.fakes.device._service._converts_to_half", lambda call: False)
    evidence = Evidence(device=0, began=0, ended=1, facts=dumped_kernels())
    assert [PROBES[name](evidence).state for name in OF_KERNELS] == ["refuted", "refuted"]
    nothing = dataclasses.replace(evidence, facts={"conversion_status": []})
    assert PROBES["overflow_of_conversion"](nothing).state == "unknown"


def test_graphs_stand_below_their_levels(tmp_path: Path) -> None:
    def evidence(*levels: str) -> Evidence:
        name = "MatMulV2.MatMulV2.1.0.1700000000000000"
        root = tmp_path / "-".join(levels)
        (root.joinpath(*levels)).mkdir(parents=True)
        root.joinpath(*levels, name).write_bytes(b"")
        return Evidence(device=0, began=0, ended=1, tensors=root, steps=(1,))

    good = evidence("worldsize1_global_rank0", "20260101000000", "0", "graph_1", "1", "1")
    assert [PROBES[name](good).state for name in OF_GRAPHS] == ["confirmed"] * 3
    bad = evidence("rank0", "20260101000000", "0", "graph_1", "2")
    assert [PROBES[name](bad).state for name in OF_GRAPHS] == ["refuted"] * 3


def test_a_file_that_cannot_be_read_leaves_a_probe_without_an_answer(copied: Evidence) -> None:
    each(copied, lambda data: data[:4], "*MatMul*")
    found = run_probes(copied)
    assert found["header_version"].state == "unknown"
    assert "CorruptDump" in found["header_version"].seen
    assert found["file_names"] == Outcome("confirmed", found["file_names"].seen)
