"""Each probe agrees with the simulated device, and refutes what it is made to refute."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from test_probes_offline import OF_DUMPS, OF_INIT

import ascend_dump
from ascend_dump import fakes
from ascend_dump.fakes.device.npu import NodeInfo, Npu
from ascend_dump.native.cann.dump_file import payload, read_header, tensor_of, write
from ascend_dump.native.cann.statistics_csv import HEADER, format_statistics
from ascend_dump.selftest import (
    probes_captured,
    probes_eager,
    probes_engine,
    probes_exceptions,
    probes_frameworks,
    program,
)
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
    "dtype_numbers",
    "file_modes",
    "statistics_header",
    "statistics_numbers",
    "kernels_in_their_step",
]
OF_MODELS = [
    "one_header_in_a_file",
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
        yield Evidence(
            device=npu.device_id,
            began=began,
            ended=time.time(),
            tensors=roots["tensor"],
            statistics=roots["stats"],
            eager=True,
            steps=(0, 2),
            inputs=inputs,
            outputs=outputs,
            facts={"soc": npu.soc, **OF_FACTS},
        )


def run_model(root: Path, **settings: Any) -> tuple[Npu, Path]:
    """Dump a model of one operator that overflows, in two steps."""
    root.mkdir(parents=True)
    npu = Npu(environ={}, cwd=root)
    (root / "acl.json").write_text(json.dumps({"dump": {"dump_path": str(root), **settings}}))
    assert npu.arm_acl("acl.json") == 0
    npu.overflow("mul", status=0x20)
    model = npu.load_model("net", ops=[NodeInfo("mul", "Mul")])
    for step in range(2):
        npu.begin_step(model, step)
        npu.run_op("Mul", "mul", [np.float32([3e38])], [np.float32([np.inf])], model_id=model)
        npu.end_step(model)
    (root / "acl.json").unlink()
    return npu, root


@pytest.fixture(scope="module")
def of_models(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    root = tmp_path_factory.mktemp("models")
    npu, tensors = run_model(root / "tensors", dump_mode="all", dump_list=[{}])
    _, overflow = run_model(root / "overflow", dump_debug="on")
    return Evidence(device=0, began=0, ended=1, tensors=tensors, overflow=overflow, facts={"soc": npu.soc})


def copy(evidence: Evidence, directory: Path) -> Evidence:
    """Return the same, to be spoilt."""
    roots = {}
    for name in ("tensors", "statistics", "overflow"):
        root = getattr(evidence, name)
        if root is not None:
            roots[name] = directory / name
            shutil.copytree(root, roots[name])
    return dataclasses.replace(evidence, **roots)


@pytest.fixture
def copied(recorded: Evidence, tmp_path: Path) -> Evidence:
    return copy(recorded, tmp_path)


@pytest.mark.parametrize("name", [*OF_FILES, *OF_FACTS])
def test_the_simulated_device_is_as_assumed(recorded: Evidence, name: str) -> None:
    found = PROBES[name](recorded)
    assert found.state == "confirmed", found


@pytest.mark.parametrize("name", OF_MODELS)
def test_the_simulated_device_runs_models_as_assumed(of_models: Evidence, name: str) -> None:
    found = PROBES[name](of_models)
    assert found.state == "confirmed", found


def test_eager_operators_tell_nothing_of_models(recorded: Evidence) -> None:
    eager = dataclasses.replace(recorded, overflow=recorded.tensors)
    assert {PROBES[name](eager).state for name in OF_MODELS} == {"unknown"}


def test_every_probe_is_tried_here_or_with_its_framework() -> None:
    others = {*OF_DUMPS, *OF_INIT}
    for module in (probes_captured, probes_eager, probes_engine, probes_exceptions, probes_frameworks):
        others |= set(module.PROBES)
    others |= {"container", "disk_reserve", "never_dumped", "no_step_counter", "null_address"}
    assert set(PROBES) == {*OF_FILES, *OF_MODELS, *OF_FACTS, *OF_GRAPHS, *others}


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
    for root in filter(None, (evidence.tensors, evidence.statistics, evidence.overflow)):
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


def add_a_file(evidence: Evidence) -> None:
    """The outputs of an operator in a file of their own."""
    path = first(evidence, "Mul.*")
    fields = path.name.split(".")
    shutil.copy(path, path.with_name(".".join([*fields[:-1], str(int(fields[-1]) + 1)])))


def keep_outputs(evidence: Evidence) -> None:
    for path in sorted(evidence.tensors.rglob("Mul.*") if evidence.tensors else ()):
        write_one_side(path)


def write_one_side(path: Path) -> None:
    header = read_header(path)
    tensors = [(tensor, bytes(payload(header, tensor))) for tensor in header.outputs]
    write(path, tensors, op_name=header.op_name, dump_time=header.dump_time)


SPOILT: dict[str, Callable[[Evidence], None]] = {
    "file_names": rename("*MatMul*", lambda path: path.with_name("x")),
    "time_directory": rename("*MatMul*", lambda path: path.parents[1].with_name("20010101000000") / "0" / path.name),
    "device_directory": rename("*MatMul*", lambda path: path.parent.with_name("7") / path.name),
    "header_time": rename("*MatMul*", restamp),
    "header_version": swap(b"2.0", b"3.0"),
    "payload_order": lambda evidence: each(evidence, negate_last_byte),
    "file_modes": lambda evidence: os.chmod(first(evidence, "*MatMul*"), 0o644),
    "statistics_header": swap(b"Nan Count", b"NaN Count"),
    "statistics_numbers": swap(b",0,0,0\n", b",0,0,1\n"),
    "kernels_in_their_step": lambda evidence: each(evidence, negate_last_byte),
}
SPOILT_MODELS: list[tuple[str, Callable[[Evidence], None]]] = [
    ("one_header_in_a_file", lambda evidence: each(evidence, lambda data: data + data, "Mul.*")),
    ("one_header_in_a_file", add_a_file),
    ("one_header_in_a_file", keep_outputs),
    ("overflow_file", rename("Opdebug*", lambda path: path.with_name(path.name.replace("Opdebug", "OpDebug")))),
    (
        "overflow_task",
        rename("Opdebug*", lambda path: path.with_name(path.name.replace("DumpDebug", "").replace(".0.", ".9.", 1))),
    ),
    ("overflow_found", lambda evidence: [path.unlink() for path in evidence.overflow.rglob("Opdebug*")]),
    ("overflow_operator", lambda evidence: [path.unlink() for path in evidence.overflow.rglob("Mul.*")]),
    ("overflow_payload", swap(b"\x5a\x5a\x5a\x5a", b"\x5b\x5a\x5a\x5a")),
]


@pytest.mark.parametrize("name", SPOILT)
def test_another_behaviour_refutes(copied: Evidence, name: str) -> None:
    assert PROBES[name](copied).state == "confirmed"
    SPOILT[name](copied)
    found = PROBES[name](copied)
    assert found.state == "refuted", found


@pytest.mark.parametrize(("name", "spoil"), SPOILT_MODELS)
def test_another_behaviour_of_models_refutes(of_models: Evidence, tmp_path: Path, name: str, spoil: Any) -> None:
    copied = copy(of_models, tmp_path)
    assert PROBES[name](copied).state == "confirmed"
    spoil(copied)
    found = PROBES[name](copied)
    assert found.state == "refuted", found


@pytest.mark.parametrize(("change", "state"), [(1e-6, "confirmed"), (1e-3, "refuted")])
def test_the_last_digit_of_an_average_and_the_sign_of_nan_may_differ(tmp_path: Path, change: float, state: str) -> None:
    array = np.float32([50.9687, 50.9688])
    texts = [list(format_statistics(values)) for values in (array, np.float32([np.nan, 1]))]
    texts[0][2] = f"{float(texts[0][2]) * (1 + change):g}"
    texts[1] = [text.replace("nan", "-nan") for text in texts[1]]
    root = tmp_path / "20260101000000" / "0"
    root.mkdir(parents=True)
    rows = [f"Output,{index},8,DT_FLOAT,ND,2,{','.join(text)}\n" for index, text in enumerate(texts)]
    (root / "Add.add.1.0.1700000000000000.csv").write_text("".join([f"{HEADER}\n", *rows]))
    outputs = {0: [array, np.float32([np.nan, 1])]}
    found = Evidence(device=0, began=0, ended=1, statistics=tmp_path, steps=(0,), outputs=outputs)
    assert PROBES["statistics_numbers"](found).state == state


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
    npu = Npu(environ={}, cwd=tmp_path)
    (tmp_path / "acl.json").write_text(json.dumps({"dump": {"dump_path": str(tmp_path), "dump_debug": "on"}}))
    assert npu.arm_acl("acl.json") == 0
    npu.overflow("mul", status=status)
    npu.run_op("Mul", "mul", [np.ones(4, "f4")], [np.ones(4, "f4")])
    found = PROBES["overflow_status"](Evidence(device=0, began=0, ended=1, overflow=tmp_path))
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
